//! The responses that GRIP libraries expect, and the limit on what is read.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use super::*;
use crate::fake::{FakeServer, MAX_PUBLISH_BYTES, PiecewiseBody, TestTransport, request};

/// The response of `POST /publish/` to `sent`.
fn answer(source: &FakeServer, accept: Option<&str>, sent: PiecewiseBody) -> (u16, Response) {
    let form = ResponseFormat::from_accept(accept.map(str::as_bytes));
    let body = RequestBody::Incoming(Box::new(sent));
    let work = pin!(handle_publish(source, form, None, body));
    let Poll::Ready(done) = work.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the made-up server never waits");
    };
    let response = done.unwrap();
    (response.status.code(), response)
}

fn pieces(text: &str) -> PiecewiseBody {
    PiecewiseBody {
        remaining: text.into(),
        piece_size: 7,
        length: Some(text.len() as u64),
        bytes_taken: Arc::default(),
    }
}

fn text(response: &Response) -> String {
    let Body::Bytes(bytes) = &response.body else {
        panic!("{:?}", response.body)
    };
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_answer_has_the_form_that_is_liked_better() {
    for (accept, expected) in [
        (None, Some(ResponseFormat::Text)),
        (Some("*/*"), Some(ResponseFormat::Text)),
        (Some("text/*"), Some(ResponseFormat::Text)),
        (Some("application/json"), Some(ResponseFormat::Json)),
        (
            Some("text/*;q=0.5, application/json"),
            Some(ResponseFormat::Json),
        ),
        (
            Some("application/json;q=0.5, text/plain"),
            Some(ResponseFormat::Text),
        ),
        (
            Some("text/plain;q=0, application/*"),
            Some(ResponseFormat::Json),
        ),
        (Some("image/png"), None),
        (Some(""), None),
    ] {
        assert_eq!(
            ResponseFormat::from_accept(accept.map(str::as_bytes)),
            expected,
            "{accept:?}"
        );
    }
    for (accept, content_type, said) in [
        ("text/plain", "text/plain; charset=utf-8", "Published\n"),
        (
            "application/json",
            "application/json",
            "{\"message\":\"Published\"}\n",
        ),
    ] {
        let (status, response) = answer(&FakeServer::default(), Some(accept), pieces("items"));
        assert_eq!((status, text(&response).as_str()), (200, said));
        let sent = response.fields.get("content-type");
        assert_eq!(sent, Some(content_type.as_bytes()));
    }
}

#[test]
fn each_failure_has_its_status_and_its_words() {
    for (sent, accept, is_broken, status, said, is_asked) in [
        ("{}", None, false, 400, "items is missing\n", true),
        ("long", None, false, 413, "item 0: too long\n", true),
        ("fast", None, false, 429, "items[3]: too fast\n", true),
        ("items", None, true, 503, "the server stops\n", true),
        (
            "items",
            Some("image/png"),
            false,
            406,
            "the answer is text/plain or application/json\n",
            false,
        ),
    ] {
        let source = FakeServer::default();
        source.is_broken.store(is_broken, Ordering::Relaxed);
        let (found, response) = answer(&source, accept, pieces(sent));
        assert_eq!((found, text(&response).as_str()), (status, said));
        let later = response.fields.get("retry-after").is_some();
        assert_eq!(later, matches!(status, 429 | 503), "{sent}");
        assert_eq!(
            source.recorded_calls().len(),
            usize::from(is_asked),
            "{sent}"
        );
    }
}

#[test]
fn a_body_is_read_to_its_bound_whether_it_says_its_length_or_not() {
    for (name, len, says_length, status) in [
        ("at the bound", MAX_PUBLISH_BYTES, true, 200),
        ("at the bound, chunked", MAX_PUBLISH_BYTES, false, 200),
        ("one more", MAX_PUBLISH_BYTES + 1, true, 413),
        ("one more, chunked", MAX_PUBLISH_BYTES + 1, false, 413),
        ("endless, chunked", 64 * MAX_PUBLISH_BYTES, false, 413),
    ] {
        let source = FakeServer::default();
        let taken = Arc::new(AtomicUsize::new(0));
        let sent = PiecewiseBody {
            remaining: " ".repeat(len).into(),
            piece_size: 1000,
            length: says_length.then_some(len as u64),
            bytes_taken: Arc::clone(&taken),
        };
        let (found, response) = answer(&source, None, sent);
        assert_eq!(found, status, "{name}: {}", text(&response));
        assert!(
            taken.load(Ordering::Relaxed) <= MAX_PUBLISH_BYTES + 1000,
            "{name}"
        );
        assert_eq!(
            source.recorded_calls().len(),
            usize::from(status == 200),
            "{name}"
        );
    }
}

#[test]
fn who_publishes_is_told_by_a_bearer_token() {
    for (values, expected) in [
        (&[][..], None),
        (&["Bearer a.b.c"], Some("a.b.c")),
        (&["bearer  a.b.c "], Some("a.b.c")),
        (&["Basic a.b.c"], None),
        (&["Bearer"], None),
        (&["Bearer "], None),
        (&["Bearer ab"], None),
        (&["Bearer a.b.c.d"], None),
        (&["Bearer .."], Some("..")),
        // Two are ambiguous.
        (&["Bearer a.b.c", "Bearer d.e.f"], None),
        (&["Bearer a.b.c", "Basic eA=="], None),
        (&["Bearer a.b.c", "Bearer a.b.c"], None),
    ] {
        let fields = values
            .iter()
            .map(|value| format!("\nAuthorization: {value}"));
        let text = format!(
            "POST /publish/ HTTP/1.1\nHost: 127.0.0.1:8090{}",
            fields.collect::<String>()
        );
        let head = request(&text, TestTransport::Tcp).head;
        assert_eq!(publisher_token(&head), expected, "{values:?}");
    }
}
