//! Connections that stop being HTTP, and connections that never were.

use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::OnceLock;

use penstock_exchange::{Body, FrontEndInstructions, Takeover, TakeoverFuture, TunnelHandler};
use penstock_runtime::{ByteStream, Stream, write_all};
use penstock_sys::net::PeerAddress;

use super::*;

/// Sends back what it gets, `early` bytes in brackets.
#[derive(Debug, Clone, Copy)]
struct Echo;

async fn echo(stream: Arc<dyn ByteStream>, early: Vec<u8>) {
    let early = String::from_utf8(early).unwrap();
    let mut back = format!("[{early}]").into_bytes();
    let mut buffer = [0; 1024];
    loop {
        let _ = write_all(&*stream, &back).await;
        match poll_fn(|cx| stream.poll_read(cx, &mut buffer)).await {
            Ok(0) | Err(_) => return,
            Ok(count) => back = buffer[..count].to_vec(),
        }
    }
}

impl Takeover for Echo {
    fn take_over(self: Box<Self>, client: Arc<dyn ByteStream>, early: Vec<u8>) -> TakeoverFuture {
        Box::pin(echo(client, early))
    }
}

impl TunnelHandler for Echo {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        _listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        Box::pin(async move {
            let hello = format!("{peer:?} ");
            let _ = poll_fn(|cx| client.poll_write(cx, &[IoSlice::new(hello.as_bytes())])).await;
            echo(client, early).await;
        })
    }
}

fn switch() -> Response {
    let mut response = Response::new(Status::SWITCHING_PROTOCOLS, Body::Takeover(Box::new(Echo)));
    response.fields = fields(&[("Upgrade", "echo"), ("Connection", "Upgrade")]);
    response
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n";

#[test]
fn a_takeover_gets_the_socket_and_what_was_read_behind_the_request() {
    let house = TestEdge::new(vec![route("/", handler_fn(|_| ready(switch())))]);
    let mut client = house.connect();
    client.send(format!("{UPGRADE}early"));
    assert_eq!(client.head(), SWITCHED);
    client.expect("[early]").send("GET / HTTP/1.1\r\n\r\n");
    client.expect("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(house.edge.open_connections(), 1);
    assert_eq!(house.edge.total_metrics().responses[0].value(), 1);
    assert_eq!(house.edge.total_metrics().active_requests.value(), 0);
    assert_eq!(house.edge.drain.running_count(), 1);
    drop(client);
    house.wait_for_connections(0);
    wait_until("the drain", || house.edge.drain.running_count() == 0);
}

#[test]
fn a_switch_has_no_internal_fields() {
    for is_for_front in [false, true] {
        let handler = handler_fn(move |_| {
            let mut response = switch();
            response.fields.append(&fields(&[
                ("X-Accel-Expires", "60"),
                ("x-accel-redirect", "/private"),
                ("X-Sendfile-Type", "X-Accel-Redirect"),
                ("X-Lighttpd-Send-File", "/etc/passwd"),
                ("Grip-Channel", "a"),
            ]));
            // Whether or not the maker of the response noticed.
            if is_for_front {
                response.instructions = FrontEndInstructions::ForFrontEnd;
            }
            ready(response)
        });
        let house = TestEdge::new(vec![route("/", handler)]);
        let mut client = house.connect();
        client.send(UPGRADE);
        assert_eq!(client.head(), SWITCHED);
    }
}

#[test]
fn bytes_behind_an_upgrade_wait_for_its_answer() {
    // The handler answers when it has seen that the edge read on: nothing of it comes to a handler
    // before.
    let house = TestEdge::new(vec![
        route("/next", echo_handler()),
        route(
            "/",
            handler_fn(|request| {
                let accepts = request.head.field("accept") == Some(b"yes");
                pending(async move {
                    penstock_runtime::loops::yield_now().await;
                    let refused = Response::with_text(Status::OK, "text/plain", "no");
                    Ok(if accepts { switch() } else { refused }.into())
                })
            }),
        ),
    ]);
    let next = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut client = house.connect();
    client.send(format!("{UPGRADE}{next}"));
    assert_eq!(client.response().1, "no");
    assert!(client.response().1.starts_with("GET /next\n"));
    let accepted = UPGRADE.replace("Host", "Accept: yes\r\nHost");
    client.send(format!("{accepted}{next}"));
    assert_eq!(client.head(), SWITCHED);
    client.expect(&format!("[{next}]"));
}

#[test]
fn a_switch_that_cannot_be_meant_is_an_error() {
    for (what, request) in [
        ("not asked for", "GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
        (
            "by an old client",
            "GET / HTTP/1.0\r\nHost: h\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n",
        ),
        (
            "before the body was read",
            "POST / HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: upgrade\r\n\
             Content-Length: 100\r\n\r\nhalf",
        ),
    ] {
        let house = TestEdge::new(vec![route("/", handler_fn(|_| ready(switch())))]);
        let mut client = house.connect();
        client.send(request);
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 502 "), "{what}: {head}");
    }
    let interim = || Response::new(Status::CONTINUE, Body::Empty);
    let house = TestEdge::new(vec![route("/", handler_fn(move |_| ready(interim())))]);
    let head = house.connect().get("/").head();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
}

#[test]
fn a_body_read_before_the_switch_is_not_given_to_the_new_owner() {
    let house = TestEdge::new(vec![route(
        "/",
        handler_fn(|request| {
            pending(async move {
                let penstock_exchange::RequestBody::Incoming(mut body) = request.body else {
                    panic!("there is a body");
                };
                let mut all = Vec::new();
                while poll_fn(|cx| body.poll_fill(cx, &mut all)).await? {}
                assert_eq!(all, b"body");
                Ok(switch().into())
            })
        }),
    )]);
    let mut client = house.connect();
    let head = UPGRADE.replace("Host", "Content-Length: 4\r\nHost");
    client.send(format!("{head}bodymore"));
    assert_eq!(client.head(), SWITCHED);
    client.expect("[more]");
}

#[test]
fn a_tunnel_is_cut_when_the_drain_is_over() {
    let house = TestEdge::new(vec![route("/", handler_fn(|_| ready(switch())))]);
    let mut client = house.connect();
    client.send(UPGRADE);
    client.head();
    client.expect("[]");
    house.edge.drain.begin();
    client.send("still here").expect("still here");
    assert_eq!(house.edge.drain.running_count(), 1);
    drop(house);
    client.expect_end();
}

#[test]
fn a_switch_while_the_server_drains_says_nothing_of_closing() {
    let drain = Arc::new(OnceLock::<Drain>::new());
    let begins = Arc::clone(&drain);
    let house = TestEdge::new(vec![route(
        "/",
        handler_fn(move |_| {
            begins.get().unwrap().begin();
            ready(switch())
        }),
    )]);
    drain.set(house.edge.drain.clone()).unwrap();
    let mut client = house.connect();
    client.send(UPGRADE);
    assert_eq!(client.head(), SWITCHED);
    client.expect("[]");
}

fn tunnel_edge(proxy_protocol: bool) -> TestEdge {
    let (house, socket) =
        TestEdge::without_acceptor(Vec::new(), |settings| settings.limits.max_connections = 2);
    let (edge, info) = (Arc::clone(&house.edge), house.info(proxy_protocol));
    let target = TunnelTarget {
        handler: Arc::new(Echo),
        tls: None,
    };
    house.spawn(accept_connections(
        edge,
        socket,
        info,
        Drain::new(),
        Some(Arc::new(TunnelSwitch::new(target))),
    ));
    house
}

#[test]
fn a_tcp_listener_hands_over_from_the_first_byte() {
    let house = tunnel_edge(false);
    let mut client = house.connect();
    let own = client.0.local_addr().unwrap();
    client.expect(&format!("Tcp({own}) []"));
    client.send("anything").expect("anything");
    assert_eq!(house.edge.open_connections(), 1);
    drop(client);
    house.wait_for_connections(0);
}

#[test]
fn tunnels_count_against_the_limit_of_connections() {
    let house = tunnel_edge(false);
    let mut clients = [house.connect(), house.connect()];
    for client in &mut clients {
        client.send("a");
        client.expect(&format!("Tcp({}) []a", client.0.local_addr().unwrap()));
    }
    let mut third = house.connect();
    third.send("b");
    assert_eq!(house.edge.open_connections(), 2);
    drop(clients);
    third.expect(&format!("Tcp({}) []b", third.0.local_addr().unwrap()));
}

#[test]
fn a_tcp_listener_reads_the_proxy_header_too() {
    let house = tunnel_edge(true);
    let mut client = house.connect();
    client.send("PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\nearly");
    client.expect("Tcp(192.0.2.1:5) [early]");
}
