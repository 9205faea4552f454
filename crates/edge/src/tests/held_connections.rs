//! Held responses: edge sends the head, then hands the connection to the holder.

use std::future::poll_fn;
use std::sync::mpsc;
use std::task::{Context, Poll};

use penstock_config::{HeaderRules, PathPattern};
use penstock_exchange::{
    Body, Fault, FaultKind, FrontEndInstructions, HeldConnection, HeldConnectionGuard, HeldFraming,
    Hold, InternalRedirect, RequestBody, RequestTiming,
};
use penstock_runtime::loops;

use super::interim::Gate;
use super::*;
use crate::Filters;

/// A connection that was handed over, with its bare socket.
#[derive(Debug)]
struct HandedOver {
    socket: TcpStream,
    early_bytes: usize,
    framing: HeldFraming,
    guard: HeldConnectionGuard,
}

/// Passes each connection to the test; the channel closes when it is dropped.
#[derive(Debug)]
struct TestHolder(mpsc::SyncSender<HandedOver>);

impl Hold for TestHolder {
    fn hold(
        self: Box<Self>,
        client: HeldConnection,
        early_bytes: usize,
        framing: HeldFraming,
        guard: HeldConnectionGuard,
    ) {
        let held = HandedOver {
            socket: TcpStream::from(client.into_socket()),
            early_bytes,
            framing,
            guard,
        };
        self.0.try_send(held).unwrap();
    }
}

/// More than any test holds.
const MAX_HELD: usize = 16;

fn held_response(held: &mpsc::SyncSender<HandedOver>) -> Response {
    let mut response = Response::new(Status::OK, Body::Hold(Box::new(TestHolder(held.clone()))));
    response.fields = fields(&[("Content-Type", "text/event-stream")]);
    response
}

/// An edge where `/` is held, and the connections handed over.
fn test_edge() -> (TestEdge, mpsc::Receiver<HandedOver>) {
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let house = TestEdge::new(vec![
        route("/next", echo_handler()),
        route("/", handler_fn(move |_| ready(held_response(&keeper)))),
    ]);
    (house, held)
}

fn next_held(held: &mpsc::Receiver<HandedOver>) -> HandedOver {
    held.recv_timeout(TEST_TIMEOUT)
        .expect("nothing was handed over")
}

const HELD_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                    Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";

#[test]
fn the_head_is_sent_and_the_socket_is_handed_over() {
    let (house, held) = test_edge();
    let mut client = house.connect();
    let behind = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n\r\n{behind}"));
    assert_eq!(client.head(), HELD_HEAD);
    let mut stream = next_held(&held);
    assert_eq!(stream.framing, HeldFraming::Chunked);
    assert_eq!(stream.early_bytes, behind.len());
    stream.socket.write_all(b"5\r\nhello\r\n").unwrap();
    client.expect("5\r\nhello\r\n");
    // Its request is over, it counts as open, and the drain does not wait for it.
    house.wait_for_connections(1);
    let counted = house.edge.total_metrics();
    assert_eq!(
        (
            counted.active_requests.value(),
            counted.open_connections.value()
        ),
        (0, 1)
    );
    assert_eq!(
        (counted.held_connections.value(), counted.held_total.value()),
        (1, 1)
    );
    assert_eq!(counted.responses[1].value(), 1);
    assert_eq!(house.edge.held_connections(), 1);
    wait_until("the drain", || house.edge.drain.running_count() == 0);
    let (socket, guard) = (stream.socket, stream.guard);
    house.spawn(async move { drop((socket, guard)) });
    client.expect_end();
    wait_until("the end", || house.edge.held_connections() == 0);
    assert_eq!(house.edge.open_connections(), 0);
    assert_eq!(house.edge.total_metrics().held_total.value(), 1);
}

#[test]
fn an_http_10_client_reads_until_the_connection_closes() {
    let (house, held) = test_edge();
    let mut client = house.connect();
    client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let head = client.head();
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert!(!head.contains("Transfer-Encoding"), "{head}");
    let mut stream = next_held(&held);
    assert_eq!(stream.framing, HeldFraming::UntilClose);
    stream.socket.write_all(b"hello").unwrap();
    drop(stream);
    assert_eq!(client.rest(), b"hello");
}

#[test]
fn a_bodiless_response_is_not_held_and_the_connection_stays() {
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let handler = handler_fn(move |request| {
        let mut response = held_response(&keeper);
        if request.path() == b"/none" {
            response.status = Status::NO_CONTENT;
        }
        ready(response)
    });
    let house = TestEdge::new(vec![route("/next", echo_handler()), route("/", handler)]);
    let mut client = house.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(client.get("/none").head().starts_with("HTTP/1.1 204 "));
    assert!(client.get("/next").response().1.starts_with("GET /next\n"));
    assert_eq!(house.edge.total_metrics().held_total.value(), 0);
    drop(house);
    // All were dropped, and none was handed over.
    assert!(
        held.recv_timeout(TEST_TIMEOUT)
            .is_err_and(|e| e == mpsc::RecvTimeoutError::Disconnected)
    );
}

#[test]
fn an_unread_request_body_does_not_prevent_a_hold() {
    let gate = Gate::default();
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let (told, answered) = mpsc::sync_channel(MAX_HELD);
    let opened = gate.clone();
    let handler = handler_fn(move |request| {
        let RequestBody::Incoming(mut incoming) = request.body else {
            panic!("a body");
        };
        let (gate, told) = (gate.clone(), told.clone());
        loops::spawn_here(async move {
            gate.await;
            let mut all = Vec::new();
            let read = poll_fn(|cx| incoming.poll_fill(cx, &mut all)).await;
            let first = read.map_err(|fault| fault.kind);
            told.try_send((first, incoming.length())).unwrap();
        });
        ready(held_response(&keeper))
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n");
    assert_eq!(client.head(), HELD_HEAD);
    let stream = next_held(&held);
    assert_eq!(stream.early_bytes, 0);
    opened.open();
    let (read, length) = answered.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(
        (read, length),
        (Err(FaultKind::ClientDisconnected), Some(100))
    );
}

#[test]
fn an_unread_body_is_not_taken_for_pipelined_bytes() {
    let (house, held) = test_edge();
    let mut client = house.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\npart");
    assert_eq!(client.head(), HELD_HEAD);
    assert_eq!(next_held(&held).early_bytes, 0);
    client = house.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbodymore");
    assert_eq!(client.head(), HELD_HEAD);
    assert_eq!(next_held(&held).early_bytes, 4);
}

#[test]
fn a_client_that_left_before_its_head_was_out_is_not_held() {
    let gate = Gate::default();
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let waits = gate.clone();
    let handler = handler_fn(move |_| {
        let (gate, keeper) = (waits.clone(), keeper.clone());
        pending(async move {
            gate.await;
            Ok(held_response(&keeper).into())
        })
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    client.get("/");
    wait_until("the request", || {
        house.edge.total_metrics().active_requests.value() == 1
    });
    net::reset_on_close(&client.0).unwrap();
    drop(client);
    gate.open();
    house.wait_for_connections(0);
    assert_eq!(house.edge.total_metrics().held_total.value(), 0);
    assert_eq!(house.edge.total_metrics().client_disconnects.value(), 1);
    drop(house);
    assert!(
        held.recv_timeout(TEST_TIMEOUT)
            .is_err_and(|e| e == mpsc::RecvTimeoutError::Disconnected)
    );
}

#[test]
fn a_head_that_the_socket_does_not_take_at_once_comes_first() {
    const LONG: usize = 16 << 20;
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let handler = handler_fn(move |_| {
        let mut response = held_response(&keeper);
        response.fields = fields(&[("Date", "now"), ("X-Long", &"x".repeat(LONG))]);
        ready(response)
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    client.get("/");
    house.wait_for_turn();
    assert_eq!(house.edge.total_metrics().held_total.value(), 0);
    client.expect("HTTP/1.1 200 OK\r\nDate: now\r\nX-Long: ");
    let mut long = vec![0; LONG];
    client.0.read_exact(&mut long).unwrap();
    assert!(client.head().ends_with("Connection: close\r\n\r\n"));
    let mut stream = next_held(&held);
    stream.socket.write_all(b"0\r\n\r\n").unwrap();
    drop(stream);
    client.expect("0\r\n\r\n").expect_end();
    house.wait_for_connections(0);
}

#[test]
fn a_route_changes_the_fields_of_what_is_held_and_redirects_may_lead_to_it() {
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let mut target = route("/held", handler_fn(move |_| ready(held_response(&keeper))));
    target.is_internal = true;
    let changes = HeaderRules {
        set: [("X-Set".to_owned(), "1".parse().unwrap())].into(),
        ..HeaderRules::default()
    };
    let mut rules = penstock_config::Route::new(PathPattern::any());
    rules.response_headers = vec![changes];
    target.filters =
        Filters::compile(&rules, None, &penstock_rules::ConditionSet::default()).unwrap();
    let redirects = handler_fn(|_| {
        HandlerProgress::Ready(Ok(Reply::Redirect(Box::new(InternalRedirect {
            target: "/held".to_owned(),
            handler: None,
            fields: fields(&[("X-First", "2")]),
            max_rate: None,
            timing: RequestTiming::default(),
        }))))
    });
    let house = TestEdge::new(vec![target, route("/", redirects)]);
    let mut client = house.connect();
    let head = client.get("/").head();
    for line in ["X-Set: 1\r\n", "X-First: 2\r\n", "Connection: close\r\n"] {
        assert!(head.contains(line), "{line} in {head}");
    }
    next_held(&held).socket.write_all(b"1\r\na\r\n").unwrap();
    client.expect("1\r\na\r\n");
}

#[test]
fn interim_responses_come_before_what_is_held() {
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let handler = handler_fn(move |request| {
        let hints = fields(&[("Link", "</a>")]);
        request
            .client_state
            .push_interim(Status::EARLY_HINTS, hints);
        ready(held_response(&keeper))
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    client.get("/");
    client.expect("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    assert_eq!(client.head(), HELD_HEAD);
    drop(next_held(&held));
}

#[test]
fn held_connections_count_against_the_limit_and_outlive_the_drain() {
    let (keeper, held) = mpsc::sync_channel(MAX_HELD);
    let routes = vec![route(
        "/",
        handler_fn(move |_| ready(held_response(&keeper))),
    )];
    let house = TestEdge::with_settings(routes, |settings| settings.limits.max_connections = 2);
    let mut clients = [house.connect(), house.connect()];
    let mut streams = Vec::new();
    for client in &mut clients {
        assert_eq!(client.get("/").head(), HELD_HEAD);
        streams.push(next_held(&held));
    }
    let mut third = house.connect();
    third.get("/");
    house.wait_for_turn();
    assert_eq!(house.edge.open_connections(), 2);
    let first = streams.pop();
    house.spawn(async move { drop(first) });
    assert_eq!(third.head(), HELD_HEAD);
    streams.push(next_held(&held));
    house.edge.drain.begin();
    wait_until("the drain", || house.edge.drain.running_count() == 0);
    assert_eq!(
        (house.edge.open_connections(), house.edge.held_connections()),
        (2, 2)
    );
    streams[0].socket.write_all(b"1\r\na\r\n").unwrap();
    clients[0].expect("1\r\na\r\n");
}

/// A body that gives its trailers at once.
struct Trailing;

impl penstock_exchange::BodyStream for Trailing {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<bytes::Bytes, Fault>>> {
        Poll::Ready(None)
    }

    fn length(&self) -> Option<u64> {
        None
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        Some(fields(&[("Grip-Hold", "stream"), ("X-Sum", "1")]))
    }
}

#[test]
fn grip_fields_without_a_hub_are_removed() {
    let handler = handler_fn(|request| {
        let mut response = match request.path() {
            b"/trailing" => Response::new(Status::OK, Body::Stream(Box::new(Trailing))),
            _ => Response::with_text(Status::OK, "text/plain", "done"),
        };
        let said = [("Grip-Hold", "stream"), ("X-A", "1"), ("GRIP-channel", "a")];
        response.fields.append(&fields(&said));
        response.instructions = FrontEndInstructions::ForThisServer;
        ready(response)
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let mut client = house.connect();
    assert_eq!(
        client.get("/").response(),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: 1\r\nContent-Length: 4\r\n\r\n"
                .to_owned(),
            "done".to_owned()
        )
    );
    let head = client.get("/trailing").head();
    assert!(
        head.contains("X-A: 1\r\n") && !head.contains("rip-"),
        "{head}"
    );
    client.expect("0\r\nX-Sum: 1\r\n\r\n");
}

#[test]
fn grip_fields_for_a_front_penstock_are_passed_on() {
    let handler = handler_fn(|_| {
        let mut response = Response::with_text(Status::OK, "text/plain", "done");
        let said = [("Grip-Hold", "stream"), ("X-A", "1"), ("Grip-Channel", "a")];
        response.fields.append(&fields(&said));
        response.instructions = FrontEndInstructions::ForFrontEnd;
        ready(response)
    });
    let house = TestEdge::new(vec![route("/", handler)]);
    let (head, body) = house.connect().get("/").response();
    for line in ["Grip-Hold: stream\r\n", "X-A: 1\r\n", "Grip-Channel: a\r\n"] {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert_eq!(body, "done");
}
