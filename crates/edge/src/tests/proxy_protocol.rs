//! Listeners of connections that begin with a PROXY protocol header.

use penstock_wire::proxy_protocol::encode_v2;

use super::*;

fn test_edge(adjust: impl FnOnce(&mut Settings)) -> TestEdge {
    let (house, socket) = TestEdge::without_acceptor(vec![route("/", echo_handler())], adjust);
    let (edge, info) = (Arc::clone(&house.edge), house.info(true));
    house.spawn(accept_connections(edge, socket, info, Drain::new(), None));
    house
}

const REQUEST: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

fn peer_of(client: &mut Client) -> String {
    let body = client.response().1;
    body.lines().last().unwrap().to_owned()
}

#[test]
fn the_header_names_the_client() {
    let house = test_edge(|_| {});
    let mut v2 = Vec::new();
    let of = |text: &str| text.parse::<SocketAddr>().unwrap();
    encode_v2(
        &mut v2,
        Some((of("[2001:db8::7]:9"), of("[2001:db8::8]:80"))),
    );
    let mut local = Vec::new();
    encode_v2(&mut local, None);
    for (what, header, expected) in [
        (
            "version 1",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\n".to_vec(),
            Some("192.0.2.1:5"),
        ),
        ("version 2", v2, Some("[2001:db8::7]:9")),
        ("unknown", b"PROXY UNKNOWN\r\n".to_vec(), None),
        ("local", local, None),
    ] {
        let mut client = house.connect();
        client.send(header).send(REQUEST);
        let own = client.0.local_addr().unwrap().to_string();
        let expected = expected.unwrap_or(&own);
        assert_eq!(
            peer_of(&mut client),
            format!("peer Tcp({expected})"),
            "{what}"
        );
        // Once, not before each request.
        client.send(REQUEST);
        assert_eq!(
            peer_of(&mut client),
            format!("peer Tcp({expected})"),
            "{what}"
        );
    }
}

#[test]
fn a_client_without_an_address_is_not_trusted() {
    let handler = handler_fn(|request| {
        let trusted = request.is_from_trusted_proxy();
        ready(Response::with_text(
            Status::OK,
            "text/plain",
            trusted.to_string(),
        ))
    });
    let (house, socket) = TestEdge::without_acceptor(vec![route("/", handler)], |_| {});
    let (edge, info) = (Arc::clone(&house.edge), house.info(true));
    house.spawn(accept_connections(edge, socket, info, Drain::new(), None));
    let mut local = Vec::new();
    encode_v2(&mut local, None);
    let mut unix = b"\r\n\r\n\0\r\nQUIT\n\x21\x31\0\xd8".to_vec();
    unix.resize(16 + 216, b'/');
    for (what, header, expected) in [
        ("the balancer itself", local, "true"),
        (
            "a proxy behind it",
            b"PROXY TCP4 127.0.0.1 192.0.2.2 5 6\r\n".to_vec(),
            "true",
        ),
        ("unknown", b"PROXY UNKNOWN\r\n".to_vec(), "false"),
        ("on a socket of the balancer's", unix, "false"),
        (
            "somebody else",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\n".to_vec(),
            "false",
        ),
    ] {
        let mut client = house.connect();
        client.send(header).send(REQUEST);
        assert_eq!(client.response().1, expected, "{what}");
    }
}

#[test]
fn a_header_may_be_split_at_every_byte() {
    let house = test_edge(|_| {});
    let mut v2 = Vec::new();
    let of = |text: &str| text.parse::<SocketAddr>().unwrap();
    encode_v2(&mut v2, Some((of("192.0.2.1:5"), of("192.0.2.2:6"))));
    for header in [b"PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\n".to_vec(), v2] {
        let whole = [&header, REQUEST.as_bytes()].concat();
        for at in 1..whole.len() {
            let mut client = house.connect();
            client.send(&whole[..at]);
            // The edge has seen the first part once it has taken the connection in.
            house.wait_for_connections(1);
            client.send(&whole[at..]);
            assert_eq!(peer_of(&mut client), "peer Tcp(192.0.2.1:5)", "{at}");
            drop(client);
            house.wait_for_connections(0);
        }
    }
}

#[test]
fn an_invalid_header_gets_no_response() {
    let house = test_edge(|_| {});
    for (at, bytes) in [
        REQUEST,
        "PROXY TCP4 192.0.2.1 x 5 6\r\n",
        "\r\n\r\n\0\r\nQUIT\nx",
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = house.connect();
        client.send(bytes);
        let mut rest = Vec::new();
        // The end of the stream or a reset, since bytes were left unread.
        let _ = client.0.read_to_end(&mut rest);
        assert_eq!(rest, b"", "{bytes:?}");
        wait_until("the count", || {
            house.edge.total_metrics().malformed_requests.value() == at as u64 + 1
        });
    }
    house.wait_for_connections(0);
}

#[test]
fn a_header_that_does_not_come_in_time_ends_the_connection() {
    let house = test_edge(|settings| settings.limits.header_timeout = Duration::from_millis(50));
    for part in ["", "PROXY TC"] {
        house.connect().send(part).expect_end();
    }
    assert_eq!(house.edge.total_metrics().slow_clients.value(), 2);
}

#[test]
fn a_header_of_an_untrusted_peer_is_not_read() {
    let house = test_edge(|settings| {
        settings.trusted_proxies = Arc::new(TrustedProxies::new(Vec::new(), false));
    });
    let mut client = house.connect();
    let _ = client.0.write_all(b"PROXY UNKNOWN\r\n");
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    assert_eq!(house.edge.total_metrics().accepted_connections.value(), 1);
    assert_eq!(house.edge.open_connections(), 0);
}

#[test]
fn the_drain_does_not_wait_for_a_header() {
    let house = test_edge(|_| {});
    let mut client = house.connect();
    house.wait_for_connections(1);
    house.edge.drain.begin();
    client.expect_end();
    house.wait_for_connections(0);
}
