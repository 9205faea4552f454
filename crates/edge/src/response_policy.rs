//! What a site, or a route of it, does with every response: pages of errors, `security_headers` and
//! `Strict-Transport-Security`.
//!
//! Built by `penstock`'s wiring and shared by the routes of a site; `exchange` applies it behind
//! the handlers and before the filters of the route.
//!
//! # Invariants
//! - Only an error is intercepted, and its status stays.
//! - What an error page replaces goes with every field that describes it (RFC 9110 §8).
//! - A body that is not sent is read no further than [`MAX_DISCARDED_BYTES`], for
//!   [`DISCARD_TIMEOUT`].
//! - A field that the handler has set is never changed.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Body, BodyStream, Response};
use penstock_http::{FieldBlock, Status};
use penstock_runtime::{clock, loops};

use crate::error_pages::ErrorPages;

/// Bytes of a replaced body that are read, so that its connection can be used again.
const MAX_DISCARDED_BYTES: u64 = 64 << 10;

/// How long they may take.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// RFC 6797 §6.1.
const HSTS_FIELD: &str = "Strict-Transport-Security";

/// What is done with the responses of a site or a route.
#[derive(Debug, Default)]
pub struct ResponsePolicy {
    /// The pages of the server's own errors, and of errors that are intercepted.
    pub error_pages: Arc<ErrorPages>,
    /// Statuses (`404`) and classes (`5`) of errors of back ends that get a page, too.
    pub intercepted: BTreeSet<u16>,
    /// The value of `Strict-Transport-Security` in responses over HTTPS.
    pub hsts: Option<Arc<str>>,
    /// Fields that responses get which do not have them.
    pub default_fields: Vec<(&'static str, String)>,
}

impl ResponsePolicy {
    /// Whether a response that no handler had to wait for may be sent as it is.
    pub(crate) fn is_silent(&self, scheme: &str) -> bool {
        self.default_fields.is_empty() && (self.hsts.is_none() || scheme != "https")
    }

    /// Replaces the body of a back end's error by the page for it, if errors like it are
    /// intercepted.
    pub(crate) fn intercept_error(&self, response: &mut Response) {
        if !response.status.is_error() || !self.intercepts(response.status) {
            return;
        }
        // A connection that is taken over has no body to replace.
        if matches!(response.body, Body::Takeover(_) | Body::Hold(_)) {
            return;
        }
        let Some(mut page) = self.error_pages.response_for(response.status) else {
            return;
        };
        discard(std::mem::replace(&mut response.body, page.body));
        let is_replaced = |name: &str| BODY_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name));
        response.fields.remove_where(is_replaced);
        response.fields.append(&std::mem::take(&mut page.fields));
    }

    fn intercepts(&self, status: Status) -> bool {
        let code = status.code();
        [code, code / 100]
            .iter()
            .any(|it| self.intercepted.contains(it))
    }

    /// Adds the fields that responses have by default.
    pub(crate) fn add_default_fields(&self, fields: &mut FieldBlock, scheme: &str) {
        for (name, value) in &self.default_fields {
            if !fields.contains(name) && !is_superseded(name, fields) {
                // The configuration has checked the value.
                let _ = fields.push(name, value.as_bytes());
            }
        }
        if let Some(hsts) = &self.hsts
            && scheme == "https"
            && !fields.contains(HSTS_FIELD)
        {
            let _ = fields.push(HSTS_FIELD, hsts.as_bytes());
        }
    }
}

/// Whether a response says the same by another field: `frame-ancestors` of a policy goes before
/// `X-Frame-Options` (CSP 3 §6.4.2.2).
fn is_superseded(name: &str, fields: &FieldBlock) -> bool {
    const DIRECTIVE: &[u8] = b"frame-ancestors";
    let policy = fields.get("Content-Security-Policy").unwrap_or_default();
    name == "X-Frame-Options"
        && (policy.windows(DIRECTIVE.len())).any(|part| part.eq_ignore_ascii_case(DIRECTIVE))
}

/// Reads what is left of a small body, so that its connection can be used again; drops any other.
fn discard(body: Body) {
    let Body::Stream(stream) = body else {
        return;
    };
    if stream
        .length()
        .is_some_and(|length| length > MAX_DISCARDED_BYTES)
    {
        return;
    }
    let deadline = clock::now() + DISCARD_TIMEOUT;
    loops::spawn_here(async move {
        // Either way the stream is dropped.
        let _ = clock::timeout_at(deadline, read_to_end(stream)).await;
    });
}

async fn read_to_end(mut stream: Box<dyn BodyStream>) {
    let mut count = 0;
    while let Some(Ok(chunk)) = poll_fn(|cx| stream.poll_chunk(cx)).await {
        count += chunk.len() as u64;
        if count > MAX_DISCARDED_BYTES {
            return;
        }
    }
}

/// Fields about the body that was replaced: its form, its validators and its ranges.
const BODY_FIELDS: [&str; 17] = [
    "accept-ranges",
    "content-digest",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "digest",
    "etag",
    "last-modified",
    "repr-digest",
    "trailer",
    "transfer-encoding",
    "x-sourcemap",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> ResponsePolicy {
        let pages = ErrorPages::from_pages([(404, "none"), (5, "sorry")]);
        ResponsePolicy {
            error_pages: Arc::new(pages),
            intercepted: [4, 503].into(),
            hsts: Some("max-age=1".into()),
            default_fields: vec![
                ("X-Content-Type-Options", "nosniff".to_owned()),
                ("X-Frame-Options", "SAMEORIGIN".to_owned()),
            ],
        }
    }

    fn response(status: u16) -> Response {
        let status = Status::new(status).unwrap();
        let mut response = Response::with_text(status, "application/json", "{}".to_owned());
        for (name, value) in [
            ("ETag", "\"a\""),
            ("Content-Encoding", "gzip"),
            ("Retry-After", "5"),
            ("WWW-Authenticate", "Basic"),
            ("Set-Cookie", "a=b"),
        ] {
            response.fields.push(name, value.as_bytes()).unwrap();
        }
        response
    }

    #[test]
    fn an_error_gets_its_page_and_keeps_its_status_and_fields() {
        for (status, page) in [
            (404, Some("none")),
            (503, Some("sorry")),
            (500, None),
            (418, None),
            (200, None),
        ] {
            let mut response = response(status);
            policy().intercept_error(&mut response);
            let Body::Bytes(body) = &response.body else {
                panic!("{status}");
            };
            assert_eq!(response.status.code(), status);
            assert_eq!(&body[..], page.unwrap_or("{}").as_bytes(), "{status}");
            let field = |name: &str| response.fields.get(name);
            assert_eq!(field("ETag").is_none(), page.is_some(), "{status}");
            assert_eq!(
                field("Content-Encoding").is_none(),
                page.is_some(),
                "{status}"
            );
            for name in ["Retry-After", "WWW-Authenticate", "Set-Cookie"] {
                assert!(response.fields.contains(name), "{status} {name}");
            }
            if page.is_some() {
                assert_eq!(
                    field("Content-Type"),
                    Some(&b"text/html; charset=utf-8"[..])
                );
            }
        }
    }

    #[test]
    fn default_fields_replace_nothing() {
        let mut fields = FieldBlock::new();
        fields.push("x-content-type-options", b"other").unwrap();
        fields
            .push(
                "Content-Security-Policy",
                b"default-src 'self'; Frame-Ancestors 'none'",
            )
            .unwrap();
        policy().add_default_fields(&mut fields, "http");
        let names: Vec<_> = fields.iter().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(names, ["x-content-type-options", "Content-Security-Policy"]);
        policy().add_default_fields(&mut fields, "https");
        assert_eq!(fields.get(HSTS_FIELD), Some(&b"max-age=1"[..]));

        let mut fields = FieldBlock::new();
        policy().add_default_fields(&mut fields, "http");
        assert_eq!(fields.get("X-Frame-Options"), Some(&b"SAMEORIGIN"[..]));
        assert!(!policy().is_silent("http") && ResponsePolicy::default().is_silent("https"));
    }
}
