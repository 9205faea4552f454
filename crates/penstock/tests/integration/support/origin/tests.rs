//! The test origin itself, with direct clients.
//!
//! A proxy test depends on its origin: these tests check each step of a script from the other side
//! of the socket, without a proxy.

use std::time::Duration;

use super::{Address, Origin, ReservedPort, Script, Step, head_of, page};
use crate::support::{PATIENCE, RawClient, ResponseError, Site, eventually};

fn client(origin: &Origin) -> RawClient {
    match origin.address() {
        Address::Tcp(port) => RawClient::connect(port),
        Address::Unix(path) => RawClient::connect_unix(&path),
    }
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn answers_and_remembers_on_both_kinds_of_sockets() {
    let site = Site::new();
    let path = site.dir().join("origin.sock");
    let rows = [
        Origin::start(|seen| page(seen, "here")),
        Origin::start_unix(&path, |seen| page(seen, "here")),
    ];
    for origin in rows {
        let mut client = client(&origin);
        client.send(GET);
        assert_eq!(client.expect_status(200).text(), "here");
        client.send("HEAD /b HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.expect_head(200).header("content-length"), Some("4"));
        client.send("PUT /c HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        client.expect_status(200);
        assert_eq!(origin.last().body, b"hello");
        client.send(
            "POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n",
        );
        client.expect_status(200);
        let last = origin.last();
        assert_eq!(
            (last.body.as_slice(), last.connection),
            (b"abcde".as_slice(), 0)
        );
        assert_eq!(last.trailers, [("X-Sum".to_owned(), "5".to_owned())]);
        assert_eq!(origin.lines(), ["GET /a", "HEAD /b", "PUT /c", "POST /d"]);
        assert_eq!(origin.connections(), 1);
        assert_eq!(origin.requests()[0].field("HOST").as_deref(), Some("a"));
        assert!(origin.received(0).starts_with(GET.as_bytes()));
    }
}

#[test]
fn a_gate_holds_an_answer_until_it_is_opened() {
    let origin = Origin::start(|seen| {
        let head = head_of("200 OK", "", 8);
        match seen.target.as_str() {
            "/a" => Script::early()
                .send(head)
                .send("half")
                .gate("go")
                .send("half")
                .keep(),
            _ => page(seen, "other"),
        }
    });
    let mut first = client(&origin);
    first.send(GET);
    origin.wait_at("go", 1);
    eventually(PATIENCE, "the first half", || {
        first.read_some();
        first.received.ends_with(b"half")
    });
    let mut second = client(&origin);
    second
        .send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    assert_eq!(origin.most_in_progress(), 2);
    origin.release_gate_once("go");
    assert_eq!(first.expect_status(200).text(), "halfhalf");
    second.send(GET);
    origin.wait_at("go", 1);
    origin.open_gate("go");
    second.expect_status(200);
}

#[test]
fn ends_a_connection_in_every_way() {
    let half = || Script::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    let rows: [(&str, Script, Result<(), ResponseError>); 4] = [
        (
            "closed unanswered",
            Script::early(),
            Err(ResponseError::Closed),
        ),
        (
            "closed",
            half(),
            Err(ResponseError::Truncated(b"half".to_vec())),
        ),
        (
            "write side closed",
            half().then(Step::CloseWrite).then(Step::Hang),
            Err(ResponseError::Truncated(b"half".to_vec())),
        ),
        (
            "idle, then closed",
            Script::raw(head_of("200 OK", "", 0)).idle_until(Step::AwaitByte),
            Ok(()),
        ),
    ];
    for (name, script, expected) in rows {
        let origin = Origin::start(move |_| script.clone());
        let mut client = client(&origin);
        client.send(GET);
        let got = client.try_response(false).map(|_| ());
        assert_eq!(got, expected, "{name}");
        client.received.clear();
        let _ = client.try_send("G");
        assert_eq!(client.read_to_end(), b"", "{name}");
        drop(client);
        origin.wait_closed(0);
    }
    let origin = Origin::start(|_| Script::early().then(Step::Reset));
    let mut stream = std::net::TcpStream::connect(origin.address().to_string()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Write::write_all(&mut stream, GET.as_bytes()).unwrap();
    let error = std::io::Read::read(&mut stream, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn tunnels_floods_and_greets() {
    let echo = Origin::start(|_| {
        Script::early()
            .send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
            .then(Step::Echo)
    });
    let mut through = client(&echo);
    through.send(format!("{GET}early")).expect_status(101);
    through.send("late");
    eventually(PATIENCE, "both come back", || {
        through.read_some();
        through.received == b"earlylate"
    });
    let flood = Origin::raw(vec![Step::Flood(b"0123456789".to_vec(), 100_000)]);
    assert_eq!(client(&flood).read_to_end().len(), 100_000);
    let greeting = Origin::raw(vec![Step::Send(b"hello".to_vec()), Step::Hang]);
    let mut greeted = client(&greeting);
    greeted.send("anything");
    eventually(PATIENCE, "the greeting", || {
        greeted.read_some();
        greeted.received == b"hello"
    });
    eventually(PATIENCE, "what the client said", || {
        greeting.received(0) == b"anything"
    });
}

#[test]
fn a_port_refuses_listens_goes_down_and_comes_back() {
    let reserved = ReservedPort::new();
    let address = reserved.address().to_string();
    std::net::TcpStream::connect(&address).unwrap_err();
    let origin = reserved.listen(|seen| page(seen, "up"));
    let mut first = client(&origin);
    first.send(GET).expect_status(200);
    let down = origin.stop_listening();
    first.expect_closed();
    std::net::TcpStream::connect(&address).unwrap_err();
    let origin = down.listen(|seen| page(seen, "again"));
    assert_eq!(client(&origin).send(GET).expect_status(200).text(), "again");
    let swallowing = ReservedPort::new().fill_backlog();
    let to = swallowing.address().to_string().parse().unwrap();
    let error = std::net::TcpStream::connect_timeout(&to, Duration::from_millis(200)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn fails_a_test_whose_proxy_sends_what_is_in_doubt() {
    for (name, request) in [
        (
            "two framings",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        ("no host", "GET / HTTP/1.1\r\n\r\n"),
        ("bare lf", "GET / HTTP/1.1\r\nHost: a\r\nX: y\nZ: z\r\n\r\n"),
        ("old", "GET / HTTP/1.0\r\nHost: a\r\n\r\n"),
        (
            "lies",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ),
    ] {
        let origin = Origin::named("a");
        client(&origin).send(request).expect_closed();
        origin.wait_closed(0);
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(origin)));
        assert!(dropped.is_err(), "{name}");
    }
}
