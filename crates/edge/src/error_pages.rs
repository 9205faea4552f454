//! A site's own error pages, in memory.
//!
//! The wiring loads them at start and at a reload, off the event loops; `faults` sends them in
//! place of the built-in page.
//!
//! # Invariants
//! - No file is read while requests are answered.
//! - A page is no larger than its bound.
//! - Status and fields stay those of the fault.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use penstock_config::MAX_ERROR_PAGE_BYTES;
use penstock_exchange::{Body, Response};
use penstock_http::Status;

/// The pages of a site, by status or class.
#[derive(Debug, Default)]
pub struct ErrorPages(BTreeMap<u16, ErrorPage>);

#[derive(Debug)]
struct ErrorPage {
    content_type: String,
    body: Bytes,
}

impl ErrorPages {
    /// Reads the files, named by status (`404`) or by the digit of a class (`5`). *Blocking*.
    ///
    /// # Errors
    /// When one cannot be read, is no regular file or is too large; the error names it.
    pub fn load(files: &BTreeMap<u16, PathBuf>) -> io::Result<Self> {
        let load = |(code, path): (&u16, &PathBuf)| {
            let page = ErrorPage::load(path).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            });
            Ok((*code, page?))
        };
        files.iter().map(load).collect::<io::Result<_>>().map(Self)
    }

    /// The response with this status, where there is a page for it or for its class.
    pub(crate) fn response_for(&self, status: Status) -> Option<Response> {
        let (code, pages) = (status.code(), &self.0);
        let page = pages.get(&code).or_else(|| pages.get(&(code / 100)))?;
        let mut response = Response::new(status, Body::Bytes(page.body.clone()));
        // Types of the table are valid fields.
        let _ = response
            .fields
            .push("Content-Type", page.content_type.as_bytes());
        Some(response)
    }
}

/// Reads a fixed page, with its media type by its ending. *Blocking*.
///
/// # Errors
/// When it cannot be read, is no regular file or is too large.
pub fn load_page(path: &Path) -> io::Result<(Bytes, String)> {
    ErrorPage::load(path).map(|page| (page.body, page.content_type))
}

impl ErrorPage {
    fn load(path: &Path) -> io::Result<Self> {
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "start and reload read off the loops"
        )]
        let file = std::fs::File::open(path)?;
        let mut body = Vec::new();
        file.take(MAX_ERROR_PAGE_BYTES + 1).read_to_end(&mut body)?;
        if body.len() as u64 > MAX_ERROR_PAGE_BYTES {
            let cause = format!("larger than {MAX_ERROR_PAGE_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, cause));
        }
        Ok(Self {
            content_type: content_type(path),
            body: body.into(),
        })
    }
}

/// The type by the suffix; HTML if that is unknown.
fn content_type(path: &Path) -> String {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let known = extension.and_then(|extension| mime_guess::from_ext(extension).first_raw());
    let known = known.unwrap_or("text/html");
    let is_text = known.starts_with("text/") || known == "application/json";
    match is_text {
        true => format!("{known}; charset=utf-8"),
        false => known.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_follows_the_suffix() {
        for (name, expected) in [
            ("404.html", "text/html; charset=utf-8"),
            ("404.HTM", "text/html; charset=utf-8"),
            ("404.txt", "text/plain; charset=utf-8"),
            ("404.json", "application/json; charset=utf-8"),
            ("sorry.png", "image/png"),
            ("404", "text/html; charset=utf-8"),
            ("404.unheard-of", "text/html; charset=utf-8"),
        ] {
            assert_eq!(content_type(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn an_unusable_file_is_named_in_the_error() {
        let folder = std::env::temp_dir().join(format!("penstock-pages-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let large = folder.join("large.html");
        let file = std::fs::File::create(&large).unwrap();
        file.set_len(MAX_ERROR_PAGE_BYTES + 1).unwrap();
        let rows = [
            (folder.join("none.html"), io::ErrorKind::NotFound),
            (folder.clone(), io::ErrorKind::InvalidInput),
            (large.clone(), io::ErrorKind::FileTooLarge),
        ];
        for (path, kind) in rows {
            let error = ErrorPages::load(&[(404, path.clone())].into()).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.starts_with(&path.display().to_string()), "{text}");
        }
        file.set_len(MAX_ERROR_PAGE_BYTES).unwrap();
        let pages = ErrorPages::load(&[(404, large)].into()).unwrap();
        let body = pages.response_for(Status::NOT_FOUND).unwrap().body;
        assert_eq!(body.length(), Some(MAX_ERROR_PAGE_BYTES));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
