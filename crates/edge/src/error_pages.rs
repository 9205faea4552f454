//! A site's own error pages, in memory.
//!
//! The wiring loads them at start and at a reload, off the event loops; `faults` sends them in
//! place of the built-in page.
//!
//! # Invariants
//! - No file is read while requests are answered.
//! - A page is no larger than its bound.
//! - Status and fields stay those of the fault, or of the response that is intercepted.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use penstock_config::MAX_ERROR_PAGE_BYTES;
use penstock_exchange::{Body, Response};
use penstock_http::Status;

/// The pages of a site or a route, by status or class.
#[derive(Debug, Default)]
pub struct ErrorPages {
    pages: BTreeMap<u16, ErrorPage>,
    /// Those of a route's site, for what the route has no page for.
    outer: Option<Arc<Self>>,
}

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
        let pages = files.iter().map(load).collect::<io::Result<_>>()?;
        Ok(Self { pages, outer: None })
    }

    /// The pages of a route, before those of its site.
    #[must_use]
    pub fn before(self, outer: Arc<Self>) -> Self {
        Self {
            outer: Some(outer),
            ..self
        }
    }

    /// The response with this status, where there is a page for it or for its class.
    pub(crate) fn response_for(&self, status: Status) -> Option<Response> {
        let page = self.find(status.code())?;
        let mut response = Response::new(status, Body::Bytes(page.body.clone()));
        // Types of the table are valid fields.
        let _ = response
            .fields
            .push("Content-Type", page.content_type.as_bytes());
        Some(response)
    }

    fn find(&self, code: u16) -> Option<&ErrorPage> {
        let own = self.pages.get(&code);
        let own = own.or_else(|| self.pages.get(&(code / 100)));
        own.or_else(|| self.outer.as_ref()?.find(code))
    }
}

#[cfg(test)]
impl ErrorPages {
    /// Pages of HTML with these texts.
    pub(crate) fn from_pages<const N: usize>(pages: [(u16, &'static str); N]) -> Self {
        let page = |text: &'static str| ErrorPage {
            content_type: "text/html; charset=utf-8".to_owned(),
            body: Bytes::from_static(text.as_bytes()),
        };
        let pages = pages.into_iter().map(|(code, text)| (code, page(text)));
        Self {
            pages: pages.collect(),
            outer: None,
        }
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
    fn a_routes_page_goes_before_its_sites() {
        let site = ErrorPages::from_pages([(404, "site 404"), (5, "site 5xx"), (502, "site 502")]);
        let route = ErrorPages::from_pages([(5, "route 5xx")]).before(Arc::new(site));
        let rows = [(404, "site 404"), (502, "route 5xx"), (500, "route 5xx")];
        for (status, expected) in rows {
            let page = route.response_for(Status::new(status).unwrap()).unwrap();
            let Body::Bytes(body) = page.body else {
                panic!("{status}");
            };
            assert_eq!(&body[..], expected.as_bytes(), "{status}");
        }
        assert!(route.response_for(Status::new(403).unwrap()).is_none());
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
