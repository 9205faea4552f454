//! Properties of a file by its name: media type, `Cache-Control`, and whether compression pays.
//! Pure.
//!
//! `file_tree` asks once for each file that it describes. Text is declared as UTF-8: other
//! encodings have become rare, and browsers guess without a charset.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use penstock_http::FieldBlock;

#[derive(Debug)]
pub(crate) struct FileHeaderRules {
    media_types: BTreeMap<String, String>,
    cache_control: Vec<(String, String)>,
    immutable: bool,
}

/// For names with a fingerprint (RFC 8246 §2): a year, the longest sensible time for a cache.
const IMMUTABLE_CACHE_CONTROL: &str = "public, max-age=31536000, immutable";

impl FileHeaderRules {
    /// Compiles the rules of a route.
    ///
    /// # Errors
    /// Fails if a type or a `Cache-Control` is invalid, and names it.
    pub(crate) fn new(files: &penstock_config::Files) -> io::Result<Self> {
        let types = files
            .types
            .iter()
            .map(|(name, value)| ("types", name, value));
        let rules = files.cache_control.iter();
        let rules = rules.map(|(name, value)| ("cache_control", name, value));
        for (option, name, value) in types.chain(rules) {
            if FieldBlock::new().push("x", value.as_bytes()).is_err() {
                let cause = format!("{option}: {name:?}: {value:?} is no value for a field");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
            }
        }
        Ok(Self {
            media_types: files.types.clone(),
            cache_control: files.cache_control.clone(),
            immutable: files.immutable,
        })
    }

    /// The `Content-Type` of a file (RFC 9110 §8.3).
    pub(crate) fn content_type(&self, name: &[u8]) -> Cow<'static, str> {
        let extension = extension(name);
        let own = extension.and_then(|extension| {
            let lower = extension.to_ascii_lowercase();
            self.media_types.get(&lower)
        });
        if let Some(own) = own {
            return Cow::Owned(with_charset(own));
        }
        let known = extension
            .and_then(media_type_of_extension)
            .unwrap_or("application/octet-stream");
        if is_text(known) {
            Cow::Owned(with_charset(known))
        } else {
            Cow::Borrowed(known)
        }
    }

    /// The `Cache-Control` of a file with that name, relative to the root.
    pub(crate) fn cache_control(&self, name: &[u8]) -> Option<&str> {
        let mut rules = self.cache_control.iter();
        let rule = rules.find(|(pattern, _)| pattern_matches(pattern.as_bytes(), name));
        match rule {
            Some((_, value)) => Some(value),
            None => (self.immutable && has_fingerprint(name)).then_some(IMMUTABLE_CACHE_CONTROL),
        }
    }
}

fn media_type_of_extension(extension: &str) -> Option<&'static str> {
    let is_it = |(known, _): &&(&str, &str)| known.eq_ignore_ascii_case(extension);
    let mended = MEDIA_TYPE_OVERRIDES
        .iter()
        .find(is_it)
        .map(|(_, media_type)| *media_type);
    mended.or_else(|| mime_guess::from_ext(extension).first_raw())
}

/// Types that `mime_guess` lacks, or has different from the registered ones (IANA) or those of
/// nginx and Apache, on which players and browsers rely.
const MEDIA_TYPE_OVERRIDES: [(&str, &str); 42] = [
    ("avifs", "image/avif"),
    ("cjs", "text/javascript"),
    ("cmfa", "audio/mp4"),
    ("cmfv", "video/mp4"),
    ("cur", "image/x-icon"),
    ("har", "application/json"),
    ("ipynb", "application/x-ipynb+json"),
    ("jsonl", "application/x-ndjson"),
    ("ktx2", "image/ktx2"),
    // HLS: RFC 8216 §3.2, §4.
    ("m2t", "video/mp2t"),
    ("m2ts", "video/mp2t"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    // RFC 4337.
    ("m4a", "audio/mp4"),
    ("m4b", "audio/mp4"),
    ("m4s", "video/iso.segment"),
    // Source maps (ECMA-426 §8).
    ("map", "application/json"),
    ("mid", "audio/midi"),
    ("midi", "audio/midi"),
    // RFC 9239 §6 chose one name of several.
    ("mjs", "text/javascript"),
    ("mtl", "model/mtl"),
    ("mts", "video/mp2t"),
    ("ndjson", "application/x-ndjson"),
    ("obj", "model/obj"),
    // RFC 8081.
    ("otf", "font/otf"),
    ("psd", "image/vnd.adobe.photoshop"),
    ("rar", "application/vnd.rar"),
    ("rpm", "application/x-redhat-package-manager"),
    ("sql", "application/sql"),
    ("sqlite", "application/vnd.sqlite3"),
    ("stl", "model/stl"),
    ("tgz", "application/gzip"),
    ("toml", "application/toml"),
    ("topojson", "application/json"),
    ("ts", "video/mp2t"),
    ("ttml", "application/ttml+xml"),
    ("usdz", "model/vnd.usdz+zip"),
    // RFC 6350.
    ("vcf", "text/vcard"),
    ("woff", "font/woff"),
    // RFC 9512.
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zst", "application/zstd"),
    ("zstd", "application/zstd"),
];

fn with_charset(media: &str) -> String {
    if is_text(media) {
        format!("{media}; charset=utf-8")
    } else {
        media.to_owned()
    }
}

/// The extension of the last segment; `None` for `name`, `.name` and `name.`.
fn extension(name: &[u8]) -> Option<&str> {
    let last = last_segment(name);
    let dot = last
        .iter()
        .rposition(|&byte| byte == b'.')
        .filter(|&at| at > 0)?;
    std::str::from_utf8(last.get(dot + 1..)?)
        .ok()
        .filter(|extension| !extension.is_empty())
}

fn last_segment(name: &[u8]) -> &[u8] {
    name.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// A type with parameters is complete and left unchanged.
fn is_text(media_type: &str) -> bool {
    !media_type.contains(';')
        && (media_type.starts_with("text/")
            || media_type.ends_with("+xml")
            || media_type.ends_with("+json")
            || TEXT_TYPES.contains(&media_type))
}

/// Text types without `text/` in their name.
const TEXT_TYPES: [&str; 2] = ["application/json", "application/xml"];

/// Whether a pattern with `*` for any bytes matches a name: the whole path below the root if it has
/// a slash, else the last segment.
fn pattern_matches(pattern: &[u8], name: &[u8]) -> bool {
    if !pattern.contains(&b'/') {
        return glob_matches(pattern, last_segment(name));
    }
    glob_matches(pattern.strip_prefix(b"/").unwrap_or(pattern), name)
}

/// Backtracks to the last star only, so the work is at most the product of both lengths.
pub(crate) fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut in_text) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while in_text < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_text));
                at += 1;
            }
            Some(&byte) if byte == text[in_text] => {
                at += 1;
                in_text += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else {
                    return false;
                };
                star = Some((star_at, taken + 1));
                (at, in_text) = (star_at + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// Whether the name has a build tool's fingerprint (`app-3f2a9c81.js`, `app.3f2a9c81.css`): before
/// the extension, after a dot or a dash, at least eight hexadecimal digits with a letter and a
/// digit among them. The end of a UUID does not count: it identifies an object, not its version.
fn has_fingerprint(name: &[u8]) -> bool {
    let last = last_segment(name);
    let Some(dot) = last.iter().rposition(|&byte| byte == b'.') else {
        return false;
    };
    let stem = &last[..dot];
    let Some(mark) = stem.iter().rposition(|byte| b".-".contains(byte)) else {
        return false;
    };
    let print = &stem[mark + 1..];
    print.len() >= 8
        && print.iter().all(u8::is_ascii_hexdigit)
        && print.iter().any(u8::is_ascii_alphabetic)
        && print.iter().any(u8::is_ascii_digit)
        && !ends_in_uuid(stem)
}

fn ends_in_uuid(stem: &[u8]) -> bool {
    let Some(uuid) = stem.len().checked_sub(36).map(|start| &stem[start..]) else {
        return false;
    };
    let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, byte): (usize, &u8)| is_dash(at) == (*byte == b'-');
    uuid.iter().enumerate().all(fits)
}

#[cfg(test)]
mod tests;
