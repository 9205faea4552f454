//! Bodies on their way: trailers and rates.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{Body, BodyRate, BodyStream, Fault, FaultKind, RequestBody};
use penstock_runtime::loops;

use super::interim::Gate;
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
    let handler = handler_fn(move |_| {
        let body = Pieces {
            pieces: vec!["abc", "de"],
            length,
            trailers: Some(fields(trailers)),
        };
        ready(Response::new(Status::OK, Body::Stream(Box::new(body))))
    });
    vec![route("/", handler)]
}

#[test]
fn trailers_follow_the_last_chunk_without_those_that_are_not_the_clients() {
    let trailers = &[
        ("Server-Timing", "db"),
        ("Content-Length", "3"),
        ("Set-Cookie", "a=b"),
        ("X-Accel-Redirect", "/secret"),
        ("x-accel-anything", "1"),
        ("X-SENDFILE", "/secret"),
        ("X-Accel", "1"),
        ("X-Sum", "1"),
    ];
    let house = TestEdge::new(pieces(None, trailers));
    let mut client = house.connect();
    for _ in 0..2 {
        assert!(
            client
                .get("/")
                .head()
                .contains("Transfer-Encoding: chunked\r\n")
        );
        client.expect(
            "3\r\nabc\r\n2\r\nde\r\n0\r\nServer-Timing: db\r\nX-Accel: 1\r\nX-Sum: 1\r\n\r\n",
        );
    }
}

/// A body that fails at once, with a long cause.
struct FailingStream;

const DETAIL_BYTES: usize = 32 << 20;

impl BodyStream for FailingStream {
    fn poll_chunk(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        let mut fault = Fault::new(FaultKind::AppProtocolError, "broken");
        fault.detail = Some("x".repeat(DETAIL_BYTES).into());
        Poll::Ready(Some(Err(fault)))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

#[test]
fn the_page_for_a_body_that_breaks_at_once_is_sent_whole_and_counted() {
    let handler = handler_fn(|_| {
        ready(Response::new(
            Status::OK,
            Body::Stream(Box::new(FailingStream)),
        ))
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    // More than the socket takes at once.
    let (head, body) = client.get("/").response();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(body.len() > DETAIL_BYTES, "{}", body.len());
    wait_until("the count", || {
        house.edge.total_metrics().active_requests.value() == 0
    });
    assert_eq!(house.edge.total_metrics().responses[4].value(), 1);
}

/// Says when it is dropped, and ends when the gate opens.
struct EndlessStream {
    gate: Gate,
    dropped: Arc<AtomicBool>,
}

impl BodyStream for EndlessStream {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        Pin::new(&mut self.gate).poll(cx).map(|()| None)
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

impl Drop for EndlessStream {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

/// `/endless` is answered by such a body, everything else at once.
fn endless(gate: &Gate) -> (TestEdge, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let (gate, told) = (gate.clone(), Arc::clone(&dropped));
    let handler = handler_fn(move |_| {
        let (gate, dropped) = (gate.clone(), Arc::clone(&told));
        let body = Body::Stream(Box::new(EndlessStream { gate, dropped }));
        ready(Response::new(Status::OK, body))
    });
    (
        TestEdge::new(vec![route("/endless", handler), route("/", echo_handler())]),
        dropped,
    )
}

const ENDLESS: &str = "GET /endless HTTP/1.1\r\nHost: h\r\n\r\n";
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
const UNREAD: &str = "POST /endless HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n";

#[test]
fn a_disconnect_is_noticed_behind_pipelined_bytes() {
    for (what, first, more) in [
        ("nothing", ENDLESS, ""),
        ("a request", ENDLESS, NEXT),
        ("a part of a body that nobody reads", UNREAD, "0123456789"),
    ] {
        let (house, dropped) = endless(&Gate::default());
        let mut client = house.connect();
        client.send(first).head();
        client.send(more);
        net::reset_on_close(&client.0).unwrap();
        drop(client);
        wait_until(what, || dropped.load(Ordering::Relaxed));
        house.wait_for_connections(0);
        assert_eq!(
            house.edge.total_metrics().client_disconnects.value(),
            1,
            "{what}"
        );
        assert_eq!(
            house.edge.total_metrics().active_requests.value(),
            0,
            "{what}"
        );
    }
}

#[test]
fn a_body_read_by_another_task_is_left_to_it() {
    let (dropped, read) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let told = (Arc::clone(&dropped), Arc::clone(&read));
    let handler = handler_fn(move |request| {
        let (dropped, read) = told.clone();
        let RequestBody::Incoming(mut incoming) = request.body else {
            panic!("a body");
        };
        loops::spawn_here(async move {
            let mut all = Vec::new();
            while poll_fn(|cx| incoming.poll_fill(cx, &mut all))
                .await
                .unwrap()
            {}
            read.store(all == b"firstlater", Ordering::Relaxed);
        });
        let gate = Gate::default();
        let body = Body::Stream(Box::new(EndlessStream { gate, dropped }));
        ready(Response::new(Status::OK, body))
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n");
    client.head();
    for piece in ["first", "later"] {
        client.send(piece);
        house.wait_for_turn();
    }
    wait_until("the body", || read.load(Ordering::Relaxed));
    drop(client);
    wait_until("the end", || dropped.load(Ordering::Relaxed));
    house.wait_for_connections(0);
}

#[test]
fn an_unwanted_body_does_not_hide_a_disconnect() {
    let noticed = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&noticed);
    let handler = handler_fn(move |request| {
        let noticed = Arc::clone(&told);
        drop(request.body);
        let client = request.client_state;
        pending(async move {
            poll_fn(|_| match client.is_disconnected() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            noticed.store(true, Ordering::Relaxed);
            Err(Fault::new(FaultKind::ClientDisconnected, "left"))
        })
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    house.wait_for_connections(1);
    house.wait_for_turn();
    drop(client);
    wait_until("it is noticed", || noticed.load(Ordering::Relaxed));
    house.wait_for_connections(0);
}

#[test]
fn requests_that_come_while_a_body_is_awaited_are_answered_behind_it() {
    let gate = Gate::default();
    let (house, _) = endless(&gate);
    let mut client = house.connect();
    client.send(format!("{ENDLESS}{NEXT}")).head();
    client.send(NEXT);
    house.wait_for_turn();
    gate.open();
    client.expect("0\r\n\r\n");
    for _ in 0..2 {
        assert!(client.response().1.starts_with("GET /next\n"));
    }
}

#[test]
fn a_body_that_is_not_chunked_has_no_trailers() {
    let house = TestEdge::new(pieces(Some(5), &[("X-Sum", "1")]));
    let mut client = house.connect();
    for _ in 0..2 {
        assert_eq!(client.get("/").response().1, "abcde");
    }
    client.send("GET / HTTP/1.0\r\n\r\n").head();
    client.expect("abcde").expect_end();
}

#[test]
fn a_request_with_trailers_is_read_to_its_end() {
    let house = TestEdge::new(vec![route("/", echo_handler())]);
    let mut client = house.connect();
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
    let handler = handler_fn(move |request| {
        let mut response = Response::new(Status::OK, body(request.path()));
        response.max_rate = Some(Box::new(BodyRate::of_response(10_000)));
        ready(response)
    });
    // A client as slow as this would be cut at once.
    let house = TestEdge::with_settings(vec![route("/", handler)], |settings| {
        settings.limits.min_body_rate = 1_000_000_000;
        settings.limits.body_rate_grace = Duration::ZERO;
        settings.limits.body_idle_timeout = Duration::from_millis(20);
    });
    let mut client = house.connect();
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
