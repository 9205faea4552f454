//! Bodies on their way: trailers and rates.

use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{Body, BodyStream, Fault};

use super::*;

/// Pieces, then trailers.
#[derive(Debug)]
struct Pieces {
    pieces: Vec<&'static str>,
    length: Option<u64>,
    trailers: Option<FieldBlock>,
}

impl BodyStream for Pieces {
    fn poll_chunk(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if self.pieces.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Bytes::from(self.pieces.remove(0)))))
    }

    fn length(&self) -> Option<u64> {
        self.length
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        assert!(self.pieces.is_empty(), "asked before the end");
        self.trailers.take()
    }
}

fn pieces(length: Option<u64>, trailers: &'static [(&'static str, &'static str)]) -> Vec<Route> {
    let handler = scripted(move |_| {
        let body = Pieces {
            pieces: vec!["abc", "de"],
            length,
            trailers: Some(fields(trailers)),
        };
        now(Response::new(Status::OK, Body::Stream(Box::new(body))))
    });
    vec![route("/", handler)]
}

#[test]
fn trailers_follow_the_last_chunk_without_the_forbidden_ones() {
    let trailers = &[
        ("Server-Timing", "db"),
        ("Content-Length", "3"),
        ("Set-Cookie", "a=b"),
        ("X-Sum", "1"),
    ];
    let house = House::new(pieces(None, trailers));
    let mut client = house.client();
    for _ in 0..2 {
        assert!(
            client
                .get("/")
                .head()
                .contains("Transfer-Encoding: chunked\r\n")
        );
        client.expect("3\r\nabc\r\n2\r\nde\r\n0\r\nServer-Timing: db\r\nX-Sum: 1\r\n\r\n");
    }
}

#[test]
fn a_body_that_is_not_chunked_has_no_trailers() {
    let house = House::new(pieces(Some(5), &[("X-Sum", "1")]));
    let mut client = house.client();
    for _ in 0..2 {
        assert_eq!(client.get("/").response().1, "abcde");
    }
    client.send("GET / HTTP/1.0\r\n\r\n").head();
    client.expect("abcde").expect_end();
}

#[test]
fn a_request_with_trailers_is_read_to_its_end() {
    let house = House::new(vec![route("/", mirror())]);
    let mut client = house.client();
    client.send(
        "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    assert!(client.response().1.starts_with("POST /a\n"));
    assert!(client.response().1.starts_with("GET /b\n"));
}

#[test]
fn a_body_is_sent_no_faster_than_its_rate_and_its_client_is_not_blamed() {
    let body = |kind: &[u8]| match kind {
        b"/bytes" => Body::Bytes(Bytes::from(vec![b'x'; 3_000])),
        _ => Body::Stream(Box::new(Pieces {
            pieces: vec![SMALL; 30],
            length: Some(3_000),
            trailers: None,
        })),
    };
    let handler = scripted(move |request| {
        let mut response = Response::new(Status::OK, body(request.path()));
        response.rate_max = Some(10_000);
        now(response)
    });
    // A client as slow as this would be cut at once.
    let house = House::with(vec![route("/", handler)], |settings| {
        settings.limits.body_rate_min = 1_000_000_000;
        settings.limits.body_rate_grace = Duration::ZERO;
        settings.limits.body_stall = Duration::from_millis(20);
    });
    let mut client = house.client();
    for target in ["/bytes", "/stream"] {
        let began = Instant::now();
        let (_, body) = client.get(target).response();
        let took = began.elapsed();
        assert_eq!(body.len(), 3_000, "{target}");
        // A tenth of a second's worth goes at once.
        assert!(took >= Duration::from_millis(195), "{target}: {took:?}");
    }
}

const SMALL: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
                     xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
