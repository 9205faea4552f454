//! Upgrades: a tunnel only after the origin accepted the request, then unchanged bytes both ways.
//!
//! Bytes that a client sends after its request wait for the response: they go to the tunnel after a
//! 101, else to the next request. `tunnels` tests the tunnel itself.

use super::{ProxySetup, access_log, behind, expect_bytes};
use crate::support::{Origin, RawClient, ReceivedRequest, Script, Server, Step, head_of, page};

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n\
                       Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n\r\n";
pub(super) const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: BBBB\r\n\r\n";

/// Accepts and echoes everything.
fn echo() -> Origin {
    Origin::start(|seen| match seen.field("upgrade") {
        Some(_) => Script::early().send(AGREED).then(Step::Echo),
        None => page(seen, "plain"),
    })
}

pub(super) fn upgraded(server: &Server) -> RawClient {
    let mut client = server.connect();
    client.send(UPGRADE).expect_status(101);
    client
}

#[test]
fn the_handshake_goes_through_both_ways() {
    let origin = echo();
    let server = behind(&origin, "");
    let mut client = server.connect();
    let answer = client.send(UPGRADE).expect_status(101);
    assert_eq!(answer.header("upgrade"), Some("websocket"));
    assert_eq!(
        answer
            .header("connection")
            .map(str::to_lowercase)
            .as_deref(),
        Some("upgrade")
    );
    assert_eq!(answer.header("sec-websocket-accept"), Some("BBBB"));
    let seen = &origin.requests()[0];
    assert_eq!(seen.field("upgrade").as_deref(), Some("websocket"));
    assert_eq!(
        seen.field("connection")
            .map(|c| c.to_lowercase())
            .as_deref(),
        Some("upgrade")
    );
    assert_eq!(seen.field("sec-websocket-key").as_deref(), Some("AAAA"));
    let line = &access_log(&server, 1)[0];
    assert_eq!(
        (line["status"].as_u64(), line["target"].as_str()),
        (Some(101), Some("/chat"))
    );
}

#[test]
fn nothing_is_tunnelled_before_the_origin_agreed() {
    let origin = Origin::start(|_| Script::early().gate("go").send(AGREED).then(Step::Echo));
    let server = behind(&origin, "");
    let mut client = server.connect();
    client.send(format!(
        "{UPGRADE}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    ));
    origin.wait_at("go", 1);
    client.send("more");
    assert!(origin.received(0).ends_with(b"\r\n\r\n"));
    let before = origin.received(0);
    assert!(
        !String::from_utf8_lossy(&before).contains("smuggled"),
        "sent before the 101"
    );
    origin.open_gate("go");
    client.expect_status(101);
    expect_bytes(
        &mut client,
        b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nmore",
    );
    assert_eq!(origin.lines(), ["GET /chat"]);
}

#[test]
fn a_refused_upgrade_is_an_ordinary_exchange() {
    let refusal = |seen: &ReceivedRequest| match seen.target.as_str() {
        "/chat" => Script::raw(format!(
            "{}no",
            head_of("426 Upgrade Required", "Upgrade: websocket\r\n", 2)
        ))
        .keep(),
        _ => page(seen, "plain"),
    };
    let origin = Origin::start(refusal);
    let server = ProxySetup::new([&origin]).server("threads = 1").serve();
    let mut client = server.connect();
    client.send(format!("{UPGRADE}GET /next HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(client.expect_status(426).text(), "no");
    assert_eq!(client.expect_status(200).text(), "plain");
    assert_eq!(origin.lines(), ["GET /chat", "GET /next"]);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_agreement_to_something_else_is_refused() {
    for (name, answer) in [
        (
            "another protocol",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        ),
        ("none", "HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        (
            "a length",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\n",
        ),
    ] {
        let origin = Origin::start(move |seen| match seen.target.as_str() {
            "/chat" => Script::early().send(answer).then(Step::Hang),
            _ => page(seen, "plain"),
        });
        let server = behind(&origin, "retry = { attempts = 1 }");
        let mut client = server.connect();
        let got = client.send(UPGRADE).response();
        // A length on a 101 may also be ignored: it means nothing there.
        let fine = got.status == 502 || (name == "a length" && got.status == 101);
        assert!(fine, "{name}: {}", got.status);
        drop(client);
        origin.wait_closed(0);
        assert_eq!(server.get("/next").text(), "plain", "{name}");
    }
}

#[test]
fn an_upgrade_to_http_2_is_never_offered_to_origins() {
    let origin = echo();
    let server = behind(&origin, "");
    let mut client = server.connect();
    for protocol in ["h2c", "H2C", "websocket, h2c", "TLS/1.0"] {
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
        ));
        let status = client.response().status;
        let offered = origin
            .requests()
            .last()
            .and_then(|seen| seen.field("upgrade"));
        let offered = offered.unwrap_or_default().to_lowercase();
        assert!(!offered.contains("h2c"), "{protocol}: {offered}");
        if status == 101 {
            client = server.connect();
        }
    }
}

#[test]
fn an_upgrade_goes_out_behind_its_body() {
    // As `docker exec` does.
    let agreed = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nprompt> ";
    let origin = Origin::start(move |_| {
        let script = Script::early().then(Step::ReadBody);
        script.send(agreed).then(Step::Echo)
    });
    for route in ["", "request_buffering = false"] {
        for (framing, body) in [
            ("Content-Length: 0", ""),
            ("Content-Length: 12", "{\"Tty\":true}"),
            (
                "Transfer-Encoding: chunked",
                "c\r\n{\"Tty\":true}\r\n0\r\n\r\n",
            ),
        ] {
            let server = ProxySetup::new([&origin]).route(route).serve();
            let mut client = server.connect();
            client.send(format!(
                "POST /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
                 {framing}\r\n\r\n{body}"
            ));
            client.expect_status(101);
            expect_bytes(&mut client, b"prompt> ");
            client.send("ls");
            expect_bytes(&mut client, b"ls");
            client.close_write();
            assert_eq!(client.read_to_end(), b"", "{route} {framing}");
            let seen = origin.last();
            assert_eq!(seen.body.is_empty(), body.is_empty(), "{route} {framing}");
            assert_eq!(seen.field("upgrade").as_deref(), Some("tcp"));
        }
    }
}
