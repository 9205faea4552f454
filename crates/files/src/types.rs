//! The media type of a file, by the extension of its name.
//!
//! `tree` asks once per file that it describes. Text is announced as UTF-8: what else there is has
//! become rare, and without a charset browsers guess.

use std::borrow::Cow;

/// The value of `Content-Type` for a file of that name (RFC 9110 §8.3).
pub(crate) fn content_type(name: &[u8]) -> Cow<'static, str> {
    let known = extension(name)
        .and_then(|extension| mime_guess::from_ext(extension).first_raw())
        .unwrap_or("application/octet-stream");
    // RFC 9239 §6 made the one name of several.
    let known = if known == "application/javascript" {
        "text/javascript"
    } else {
        known
    };
    if is_text(known) {
        Cow::Owned(format!("{known}; charset=utf-8"))
    } else {
        Cow::Borrowed(known)
    }
}

/// What follows the last dot of the last segment; none for `name`, `.name` and `name.`.
fn extension(name: &[u8]) -> Option<&str> {
    let last = name.rsplit(|&byte| byte == b'/').next()?;
    let dot = last
        .iter()
        .rposition(|&byte| byte == b'.')
        .filter(|&at| at > 0)?;
    std::str::from_utf8(last.get(dot + 1..)?)
        .ok()
        .filter(|extension| !extension.is_empty())
}

fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/")
        || media_type.ends_with("+xml")
        || media_type.ends_with("+json")
        || TEXT.contains(&media_type)
}

/// Text by its nature though not by its name.
const TEXT: [&str; 2] = ["application/json", "application/xml"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_type_by_the_extension() {
        for (name, expected) in [
            ("index.html", "text/html; charset=utf-8"),
            ("a/b.c/INDEX.HTM", "text/html; charset=utf-8"),
            ("style.css", "text/css; charset=utf-8"),
            ("app.js", "text/javascript; charset=utf-8"),
            ("app.min.mjs", "text/javascript; charset=utf-8"),
            ("data.json", "application/json; charset=utf-8"),
            (
                "site.webmanifest",
                "application/manifest+json; charset=utf-8",
            ),
            ("feed.xml", "text/xml; charset=utf-8"),
            ("feed.rss", "application/rss+xml; charset=utf-8"),
            ("logo.svg", "image/svg+xml; charset=utf-8"),
            ("notes.txt", "text/plain; charset=utf-8"),
            ("photo.jpg", "image/jpeg"),
            ("photo.png", "image/png"),
            ("photo.webp", "image/webp"),
            ("photo.avif", "image/avif"),
            ("favicon.ico", "image/x-icon"),
            ("font.woff2", "font/woff2"),
            ("film.mp4", "video/mp4"),
            ("paper.pdf", "application/pdf"),
            ("code.wasm", "application/wasm"),
            ("a.tar.gz", "application/gzip"),
            ("README", "application/octet-stream"),
            ("a.html/README", "application/octet-stream"),
            ("a.", "application/octet-stream"),
            (".html", "application/octet-stream"),
            ("a.unheard-of", "application/octet-stream"),
            ("", "application/octet-stream"),
        ] {
            assert_eq!(content_type(name.as_bytes()), expected, "{name}");
        }
        assert_eq!(content_type(b"a.\xff\xfe"), "application/octet-stream");
    }
}
