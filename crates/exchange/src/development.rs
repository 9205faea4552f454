//! What pages under `serve --dev` share: how a page asks whether newer code serves and reloads, and
//! the bar on pages of old code.
//!
//! `penstock`'s `dev` decides when; `edge` puts the script on its pages of errors. A page asks by a
//! POST to its own address with the field `Penstock-Dev`: it reaches the handler of the application
//! by the route of the page, and is answered in its place.
//!
//! # Invariants
//! - A request for the state reaches no application and no cache (which pass on what is not GET or
//!   HEAD), and is in no access log: there is one a second for each open page.
//! - The bar goes behind the last byte of a page: a page that streams goes on to stream, and no HTML
//!   is parsed. Only whole pages get it: `text/html`, a body in memory or streamed, without coding,
//!   digest or range, and never the response to HEAD or an instruction to a front end.
//! - A response with a `Content-Security-Policy` gets the bar without style and script, which the
//!   policy may forbid. A page with the bar is not stored.

use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_http::{FieldBlock, Method, RequestHead, Status};

use crate::{Body, BodyStream, Fault, FrontEndInstructions, HandlerName, Reply, Request, Response};

/// The field of the request by which a page asks.
const STATE_FIELD: &str = "Penstock-Dev";

/// The code of an application, as its pages see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeState {
    /// A word for the code that serves: letters and digits, another after each restart.
    pub mark: String,
    /// Whether it serves.
    pub is_serving: bool,
    /// Why code that was saved does not serve in its place, in one line.
    pub failure: Option<String>,
}

/// Whether a page asks for the state.
#[must_use]
pub fn is_state_request(request: &Request) -> bool {
    request.head.method() == Method::Post && request.head.field(STATE_FIELD).is_some()
}

/// The answer to a page.
#[must_use]
pub fn state_response(code: &CodeState) -> Response {
    let mark = if is_mark(&code.mark) { &code.mark } else { "" };
    let serves = code.is_serving;
    let json = format!("{{\"mark\":\"{mark}\",\"serves\":{serves}}}");
    let mut response = Response::with_text(Status::OK, "application/json", json);
    response.fields.push_static("Cache-Control", "no-store");
    response.timing.handler = Some(HandlerName::Development);
    response
}

/// The script that reloads its page once code serves whose mark is not `mark`: it asks each second
/// while the page is shown. `None` if the mark is none.
#[must_use]
pub fn reload_script(mark: &str) -> Option<String> {
    is_mark(mark).then(|| {
        format!(
            "(function look(){{setTimeout(function(){{if(document.hidden)return look();\
             fetch(location.href,{{method:\"POST\",headers:{{\"{STATE_FIELD}\":\"state\"}}}})\
             .then(function(r){{return r.json()}})\
             .then(function(s){{s.serves&&s.mark!==\"{mark}\"?location.reload():look()}})\
             .catch(look)}},1000)}})()"
        )
    })
}

fn is_mark(mark: &str) -> bool {
    !mark.is_empty() && mark.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The reply to the request with this head, with the bar if it needs one.
///
/// # Errors
/// Those of `made`.
pub fn with_stale_bar(
    made: Result<Reply, Fault>,
    head: &RequestHead,
    code: impl FnOnce() -> CodeState,
) -> Result<Reply, Fault> {
    let mut made = made?;
    if let Reply::Response(response) = &mut made {
        add_stale_bar(response, head, &code());
    }
    Ok(made)
}

/// Adds the bar if code that was saved does not serve, and the page can have it.
fn add_stale_bar(response: &mut Response, head: &RequestHead, code: &CodeState) {
    let Some(failure) = &code.failure else {
        return;
    };
    if head.method() == Method::Head || !can_have_bar(response) {
        return;
    }
    let has_policy = response.fields.contains("Content-Security-Policy");
    let bar = Bytes::from(bar_html(failure, &code.mark, has_policy));
    response.body = match std::mem::replace(&mut response.body, Body::Empty) {
        Body::Bytes(page) => Body::Bytes([page, bar].concat().into()),
        Body::Stream(page) => Body::Stream(Box::new(StreamWithBar {
            page,
            bar: Some(bar),
        })),
        other => other,
    };
    let is_of_page = |name: &str| PAGE_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name));
    response.fields.remove_where(is_of_page);
    response.fields.push_static("Cache-Control", "no-store");
}

/// Fields that no longer fit a page with the bar.
const PAGE_FIELDS: [&str; 5] = [
    "cache-control",
    "content-length",
    "etag",
    "expires",
    "last-modified",
];

/// Fields of a body that must not change.
const FIXED_BODY_FIELDS: [&str; 5] = [
    "content-digest",
    "content-encoding",
    "content-range",
    "digest",
    "repr-digest",
];

fn can_have_bar(response: &Response) -> bool {
    let has_page = match &response.body {
        Body::Bytes(_) => true,
        // What a client has to put together by its length, such as a trailer, stays as it is.
        Body::Stream(_) => !response.fields.contains("Trailer"),
        _ => false,
    };
    let is_whole = response.status != Status::PARTIAL_CONTENT;
    has_page
        && is_whole
        && response.instructions == FrontEndInstructions::None
        && is_html(&response.fields)
        && !FIXED_BODY_FIELDS
            .iter()
            .any(|name| response.fields.contains(name))
}

fn is_html(fields: &FieldBlock) -> bool {
    let value = fields.get("Content-Type").unwrap_or_default();
    let media_type = value.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"text/html")
}

/// A page with the bar behind it.
struct StreamWithBar {
    page: Box<dyn BodyStream>,
    bar: Option<Bytes>,
}

impl BodyStream for StreamWithBar {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if self.bar.is_none() {
            return Poll::Ready(None);
        }
        match self.page.poll_chunk(cx) {
            Poll::Ready(None) => Poll::Ready(self.bar.take().map(Ok)),
            other => other,
        }
    }

    fn length(&self) -> Option<u64> {
        let bar = self.bar.as_ref().map_or(0, Bytes::len);
        self.page.length().map(|page| page + bar as u64)
    }
}

/// The bar: a dialog is shown above the page by any browser, without a style of its own.
fn bar_html(failure: &str, mark: &str, has_policy: bool) -> String {
    let cause = escape_html(failure);
    let text = format!(
        "The code that was saved does not start: <code>{cause}</code>. The code before it still \
         serves."
    );
    if has_policy {
        return format!("\n<dialog open role=\"alert\">{text}</dialog>\n");
    }
    let script = reload_script(mark).unwrap_or_default();
    format!(
        "\n<dialog open role=\"alert\" id=\"penstock-stale\" style=\"{BAR_STYLE}\">{text}</dialog>\n\
         <script>{script}</script>\n"
    )
}

const BAR_STYLE: &str = "position:fixed;inset:auto 0 0 0;width:auto;max-width:none;margin:0;border:0;\
    padding:.6rem 1rem;background:#b3261e;color:#fff;font:15px/1.4 system-ui,sans-serif;\
    z-index:2147483647";

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use penstock_http::{HeadLimits, ParseProgress};

    use super::*;

    const PAGE: &str = "<p>page</p>";

    fn code(failure: Option<&str>) -> CodeState {
        CodeState {
            mark: "7".to_owned(),
            is_serving: true,
            failure: failure.map(str::to_owned),
        }
    }

    /// New code that does not boot.
    fn broken() -> CodeState {
        code(Some("ImportError: <b> of 'x'"))
    }

    fn head(method: &str) -> RequestHead {
        let raw = format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n");
        let parsed = penstock_http::parse_head(raw.as_bytes(), &HeadLimits::default());
        let Ok(ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        head
    }

    fn page(fields: &[(&'static str, &'static str)]) -> Response {
        let mut response = Response::new(Status::OK, Body::Bytes(PAGE.into()));
        for (name, value) in fields {
            response.fields.push_static(name, value);
        }
        response
    }

    fn body(response: &Response) -> &str {
        match &response.body {
            Body::Bytes(bytes) => std::str::from_utf8(bytes).unwrap(),
            _ => "",
        }
    }

    const HTML: (&str, &str) = ("Content-Type", "Text/HTML; charset=utf-8");

    #[test]
    fn a_page_ends_with_the_bar_and_is_not_stored() {
        let mut response = page(&[HTML, ("ETag", "\"a\""), ("Cache-Control", "max-age=60")]);
        add_stale_bar(&mut response, &head("GET"), &broken());
        let text = body(&response);
        assert!(
            text.starts_with(PAGE) && text.contains("<script>"),
            "{text}"
        );
        assert!(text.contains("ImportError: &lt;b&gt; of"), "{text}");
        assert!(!response.fields.contains("ETag"));
        assert_eq!(response.fields.get("Cache-Control"), Some(&b"no-store"[..]));
    }

    #[test]
    fn a_policy_gets_no_style_and_no_script() {
        let mut response = page(&[HTML, ("Content-Security-Policy", "default-src 'self'")]);
        add_stale_bar(&mut response, &head("GET"), &broken());
        let text = body(&response);
        assert!(
            text.contains("<dialog open role=\"alert\">The code"),
            "{text}"
        );
        assert!(
            !text.contains("style") && !text.contains("script"),
            "{text}"
        );
    }

    #[test]
    fn other_responses_stay_as_they_are() {
        type Fields = &'static [(&'static str, &'static str)];
        let rows: [(&str, Fields, &str, CodeState); 6] = [
            ("no failure", &[HTML], "GET", code(None)),
            ("HEAD", &[HTML], "HEAD", broken()),
            ("no type", &[], "GET", broken()),
            (
                "JSON",
                &[("Content-Type", "application/json")],
                "GET",
                broken(),
            ),
            (
                "coded",
                &[HTML, ("Content-Encoding", "gzip")],
                "GET",
                broken(),
            ),
            (
                "digest",
                &[HTML, ("Repr-Digest", "sha-256=:x:")],
                "GET",
                broken(),
            ),
        ];
        for (name, fields, method, code) in rows {
            let mut response = page(fields);
            add_stale_bar(&mut response, &head(method), &code);
            assert_eq!(body(&response), PAGE, "{name}");
        }
        let mut part = page(&[HTML]);
        part.status = Status::PARTIAL_CONTENT;
        add_stale_bar(&mut part, &head("GET"), &broken());
        assert_eq!(body(&part), PAGE);
    }

    /// Pieces that are there at once.
    struct Pieces(VecDeque<&'static str>, u64);

    impl BodyStream for Pieces {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(piece.into())))
        }

        fn length(&self) -> Option<u64> {
            Some(self.1)
        }
    }

    #[test]
    fn a_page_that_streams_keeps_its_pieces_and_its_length_grows() {
        let mut response = page(&[HTML]);
        let pieces = Pieces(VecDeque::from(["one", "two"]), 6);
        response.body = Body::Stream(Box::new(pieces));
        add_stale_bar(&mut response, &head("GET"), &broken());
        let length = response.body.length();
        let Body::Stream(mut stream) = response.body else {
            panic!("it does not stream");
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(Some(piece)) = stream.poll_chunk(&mut cx) {
            all.push(piece.unwrap());
        }
        assert_eq!(
            (all.len(), &*all[0], &*all[1]),
            (3, &b"one"[..], &b"two"[..])
        );
        let total: usize = all.iter().map(Bytes::len).sum();
        assert_eq!(length, Some(total as u64));
    }

    #[test]
    fn a_mark_cannot_break_out_of_the_script() {
        let script = reload_script("7").unwrap();
        assert!(
            script.contains("s.mark!==\"7\"?location.reload()"),
            "{script}"
        );
        for mark in ["", "a\"b", "</script>", "a b"] {
            assert_eq!(reload_script(mark), None, "{mark}");
        }
        let response = state_response(&broken());
        assert_eq!(body(&response), "{\"mark\":\"7\",\"serves\":true}");
        assert_eq!(response.fields.get("Cache-Control"), Some(&b"no-store"[..]));
    }
}
