//! Instructions of a response to the front end, which no client sees: another body from inside, or
//! a rate.
//!
//! `proxy` and `apps` remove the fields from the heads that they read, and return the
//! [`InternalRedirect`] that results. Pure.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use penstock_http::{
    FieldBlock, Status, encode_path_segment, encode_target, parse_content_length,
    starts_with_ignore_case,
};

use crate::body::Body;
use crate::body_rate::BodyRate;
use crate::handler::{Handler, InternalRedirect};
use crate::response::{FrontEndInstructions, RequestTiming, Response};

/// Instructions of a response to the front end.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct AccelFields {
    /// Another route has the body (`X-Accel-Redirect`).
    pub redirect: Option<String>,
    /// A file is the body (`X-Sendfile`).
    pub sendfile: Option<Vec<u8>>,
    /// Maximum bytes per second (`X-Accel-Limit-Rate`).
    pub max_rate: Option<u64>,
}

/// Permission for a response to name another body.
#[derive(Debug, Default)]
pub struct SendfileGrant {
    /// The directories of the files that `X-Sendfile` may name, each with the handler of its files.
    pub dirs: Vec<(PathBuf, Arc<dyn Handler>)>,
}

/// Whether a field of a response is for a front end, and never for a client: `X-Accel-*`,
/// `X-Sendfile` and similar.
#[must_use]
pub fn is_accel_field(name: &[u8]) -> bool {
    let begins = |start: &str| starts_with_ignore_case(name, start);
    matches!(name.first(), Some(b'x' | b'X'))
        && (begins("x-accel-")
            || begins("x-sendfile")
            || name.eq_ignore_ascii_case(b"x-lighttpd-send-file"))
}

impl AccelFields {
    /// Reads a field of a response, if it is one of these. Applications write the path of a
    /// redirect encoded or raw. A rate of 0, and one that is not a number, is no limit.
    pub fn read_field(accel: &mut Option<Box<Self>>, name: &[u8], value: &[u8]) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("x-accel-redirect") {
            accel.get_or_insert_default().redirect = Some(encode_target(value));
        } else if is("x-sendfile") || is("x-lighttpd-send-file") {
            accel.get_or_insert_default().sendfile = Some(value.to_vec());
        } else if is("x-accel-limit-rate") {
            let rate = parse_content_length(value).filter(|&rate| rate > 0);
            accel.get_or_insert_default().max_rate = rate;
        }
    }

    /// The rate that the body gets.
    #[must_use]
    pub fn body_rate(&self) -> Option<Box<BodyRate>> {
        self.max_rate.map(BodyRate::of_response).map(Box::new)
    }

    /// Returns the redirect to the body, if that is elsewhere. `None` without a `grant`;
    /// `X-Sendfile` is ignored where the grant has no directory. Keeps some of `fields`, those of
    /// the first response.
    ///
    /// # Errors
    /// The reason why it may not be followed: no path, or not one below a directory.
    pub fn internal_redirect(
        &self,
        grant: Option<&SendfileGrant>,
        fields: &FieldBlock,
        timing: &RequestTiming,
    ) -> Result<Option<InternalRedirect>, String> {
        let Some(SendfileGrant { dirs: folders }) = grant else {
            return Ok(None);
        };
        let (target, handler) = match (&self.redirect, &self.sendfile) {
            (Some(target), _) => (target.clone(), None),
            (None, Some(path)) if !folders.is_empty() => {
                let mut below = folders.iter().filter_map(|(folder, handler)| {
                    Some((target_below(folder, path)?, Arc::clone(handler)))
                });
                let (target, handler) = below.next().ok_or_else(|| {
                    let path = String::from_utf8_lossy(path).escape_debug().to_string();
                    format!("X-Sendfile outside of the folders of sendfile: `{path}`")
                })?;
                (target, Some(handler))
            }
            (None, _) => return Ok(None),
        };
        if !target.starts_with('/') {
            let target = target.escape_debug();
            return Err(format!("X-Accel-Redirect to no path: `{target}`"));
        }
        Ok(Some(InternalRedirect {
            target,
            handler,
            fields: kept_fields(fields),
            max_rate: self.body_rate(),
            timing: timing.clone(),
        }))
    }
}

impl InternalRedirect {
    /// The response that it came from, for another front end to follow. That one could not follow a
    /// redirect to files of this machine ([`InternalRedirect::handler`]).
    #[must_use]
    pub fn into_original_response(self) -> Response {
        let mut response = Response::new(Status::OK, Body::Empty);
        response.fields = self.fields;
        response.max_rate = self.max_rate;
        response.timing = self.timing;
        // A field's value before.
        let _ = (response.fields).push("X-Accel-Redirect", self.target.as_bytes());
        response
    }
}

impl Response {
    /// Leaves the instructions to another Penstock in front of this server: the fields are sent.
    pub fn forward_instructions(&mut self) {
        self.instructions = FrontEndInstructions::ForFrontEnd;
        if let Some(rate) = self.max_rate.take().and_then(|rate| rate.of_response) {
            let rate = rate.to_string();
            // Digits are a valid value.
            let _ = (self.fields).push("X-Accel-Limit-Rate", rate.as_bytes());
        }
    }
}

/// Fields of the first response that are kept over an internal redirect.
const KEPT_FIELDS: [&str; 7] = [
    "content-type",
    "content-disposition",
    "content-language",
    "set-cookie",
    "cache-control",
    "expires",
    "accept-ranges",
];

/// The fields that survive an internal redirect.
fn kept_fields(fields: &FieldBlock) -> FieldBlock {
    let mut kept = FieldBlock::new();
    for (name, value) in fields.iter() {
        if KEPT_FIELDS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
        {
            // It was a field before.
            let _ = kept.push(name, value);
        }
    }
    kept
}

/// The percent-encoded target of the absolute `path` below `root`; `None` when it is not below, or
/// could leave.
fn target_below(root: &Path, path: &[u8]) -> Option<String> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let below = path.strip_prefix(root).ok()?;
    let mut target = String::new();
    for part in below.components() {
        let Component::Normal(name) = part else {
            return None;
        };
        target.push('/');
        target.push_str(&encode_path_segment(name.as_bytes()));
    }
    (!target.is_empty()).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_below_the_root_have_a_target() {
        let root = Path::new("/srv/files");
        for (path, expected) in [
            ("/srv/files/a b/c.txt", Some("/a%20b/c.txt")),
            ("/srv/files/%2e%2e/x", Some("/%252e%252e/x")),
            ("/srv/files", None),
            ("/srv/files/", None),
            ("/srv/filesx/a", None),
            ("/srv/files/../secret", None),
            ("/etc/passwd", None),
            ("srv/files/a", None),
            ("", None),
        ] {
            let target = target_below(root, path.as_bytes());
            assert_eq!(target.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn accel_fields_are_passed_to_another_front_end() {
        let accel = AccelFields {
            redirect: Some("/kept/a?b".to_owned()),
            max_rate: Some(4096),
            ..AccelFields::default()
        };
        let mut fields = FieldBlock::new();
        fields.push("Content-Type", b"text/plain").unwrap();
        let grant = SendfileGrant::default();
        let redirect = accel.internal_redirect(Some(&grant), &fields, &RequestTiming::default());
        let mut response = redirect.unwrap().unwrap().into_original_response();
        response.forward_instructions();
        let said = b"Content-Type: text/plain\r\nX-Accel-Redirect: /kept/a?b\r\nX-Accel-Limit-Rate: 4096\r\n";
        assert_eq!(response.fields.as_bytes(), said);
        assert_eq!(response.instructions, FrontEndInstructions::ForFrontEnd);
        assert!(response.max_rate.is_none());
    }

    /// A handler that is never called.
    #[derive(Debug)]
    struct UncalledHandler(&'static str);

    impl Handler for UncalledHandler {
        fn handle(&self, _: crate::Request) -> crate::HandlerProgress {
            unreachable!("{} is only named", self.0)
        }
    }

    #[test]
    fn nothing_is_followed_without_a_grant() {
        let of = |redirect: Option<&str>, sendfile: Option<&str>| AccelFields {
            redirect: redirect.map(str::to_owned),
            sendfile: sendfile.map(|path| path.as_bytes().to_vec()),
            max_rate: None,
        };
        let folder = |path: &str, name| -> (PathBuf, Arc<dyn Handler>) {
            (PathBuf::from(path), Arc::new(UncalledHandler(name)))
        };
        let bare = SendfileGrant::default();
        let both = SendfileGrant {
            dirs: vec![folder("/srv/a", "a"), folder("/srv/b", "b")],
        };
        let told = |accel: &AccelFields, grant| {
            let found =
                accel.internal_redirect(grant, &FieldBlock::new(), &RequestTiming::default());
            found.map(|found| {
                found.map(|found| (found.target, found.handler.map(|it| format!("{it:?}"))))
            })
        };
        let redirect = of(Some("/kept/a"), Some("/srv/a/b"));
        let file = of(None, Some("/srv/b/c"));
        assert_eq!(told(&redirect, None), Ok(None));
        assert_eq!(told(&file, None), Ok(None));
        assert_eq!(told(&file, Some(&bare)), Ok(None));
        let kept = Ok(Some(("/kept/a".to_owned(), None)));
        assert_eq!(told(&redirect, Some(&bare)), kept);
        assert_eq!(told(&redirect, Some(&both)), kept);
        let below = Ok(Some((
            "/c".to_owned(),
            Some("UncalledHandler(\"b\")".to_owned()),
        )));
        assert_eq!(told(&file, Some(&both)), below);
        let outside = told(&of(None, Some("/srv/c/d")), Some(&both));
        assert!(outside.unwrap_err().contains("X-Sendfile outside"));
    }

    #[test]
    fn fields_of_the_first_body_are_dropped() {
        let mut fields = FieldBlock::new();
        for (name, value) in [
            ("ETag", "\"a\""),
            ("Content-Type", "text/plain"),
            ("Last-Modified", "x"),
            ("Set-Cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("Server", "x"),
        ] {
            fields.push(name, value.as_bytes()).unwrap();
        }
        let kept = kept_fields(&fields);
        assert_eq!(
            kept.as_bytes(),
            b"Content-Type: text/plain\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n"
        );
    }
}
