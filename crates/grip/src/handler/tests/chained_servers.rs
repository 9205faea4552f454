//! Another Penstock in front of this one, with the same key: it holds the clients itself.

use std::time::Duration;

use penstock_exchange::Request;
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

use super::*;

const KEY: &str = "what both know";

fn signer(key: &str) -> Option<Signer> {
    Some(Signer::new(key, "penstock").unwrap())
}

/// What a server in front says of itself, signed with `key` so long ago.
fn said(key: &str, ago: Duration) -> String {
    let front = Signer::new(key, "front").unwrap();
    format!("Grip-Sig: {}", front.sign(clock::wall_time() - ago))
}

/// A request whose peer is trusted, unless it is a stranger.
fn from(peer: PeerAddress, target: &str, lines: &[&str]) -> Request {
    let mut request = request("GET", target, lines);
    request.peer = peer;
    request
}

#[test]
fn what_speaks_to_the_hub_is_passed_on_to_a_server_in_front_that_holds_itself() {
    let text = "hello\n";
    for (target, lines, body) in [
        ("/", &STREAM[..], text),
        ("/a", &STREAM[..], text),
        ("/", &POLL[..], text),
        (
            "/",
            &[
                "Content-Type: application/grip-instruct",
                "Grip-Hold: stream",
            ][..],
            "{}",
        ),
        ("/", &["Grip-Hold: not understood here"][..], ""),
    ] {
        let harness = GripHarness::with(
            Settings::default(),
            signer(KEY),
            [scripted_reply(lines, body)],
        );
        let token = said(KEY, Duration::ZERO);
        let response = harness.response(from(PeerAddress::Unix, target, &[&token]));
        assert!(response.has_grip(), "{lines:?}");
        assert_eq!(
            response.instructions,
            FrontEndInstructions::ForFrontEnd,
            "{lines:?}"
        );
        assert_eq!(response.fields, backend_response(200, lines, "").fields);
        assert_eq!(body_text(response.body), body);
        let counts = harness.hub.snapshot();
        assert_eq!(
            counts.counters.opened + counts.long_polls + counts.channels.used,
            0
        );
        // The back end knows this server, which may be the only one that it can reach.
        let asked = harness.next_backend_request();
        let signed = std::str::from_utf8(asked.head.field("grip-sig").unwrap()).unwrap();
        let verifier = Verifier::new(KEY, "HS256").unwrap();
        assert_eq!(verifier.verify(signed).unwrap()["iss"], "penstock");
    }
}

#[test]
fn an_ordinary_answer_is_for_no_front() {
    let harness = GripHarness::with(
        Settings::default(),
        signer(KEY),
        [scripted_reply(&["A: 1"], "page")],
    );
    let token = said(KEY, Duration::ZERO);
    let response = harness.response(from(PeerAddress::Unix, "/", &[&token]));
    assert_eq!(response.instructions, FrontEndInstructions::None);
    assert_eq!(body_text(response.body), "page");
}

#[test]
fn who_is_no_server_in_front_is_held_here() {
    let stranger = PeerAddress::Tcp("192.0.2.7:50000".parse().unwrap());
    let now = said(KEY, Duration::ZERO);
    let cut = &now[..now.len() - 1];
    for (name, own, peer, line) in [
        ("an untrusted peer", signer(KEY), stranger, &*now),
        ("no token", signer(KEY), PeerAddress::Unix, "A: 1"),
        ("a cut token", signer(KEY), PeerAddress::Unix, cut),
        (
            "another key",
            signer(KEY),
            PeerAddress::Unix,
            &said("another", Duration::ZERO),
        ),
        (
            "too late",
            signer(KEY),
            PeerAddress::Unix,
            &said(KEY, Duration::from_secs(2 * 3600)),
        ),
        ("no key here", None, PeerAddress::Unix, &now),
    ] {
        let harness = GripHarness::with(
            Settings::default(),
            own,
            [scripted_reply(&STREAM, "hello\n")],
        );
        let response = harness.response(from(peer, "/", &[line]));
        assert!(!response.has_grip(), "{name}");
        assert_eq!(names(&response.fields), STREAM_FIELDS, "{name}");
        harness.hold(response).expect("hello\n");
    }
}

#[test]
fn another_handler_gets_the_request_that_came_from_the_front() {
    let pass = Reply::Pass(Box::new(get("/")));
    let harness = GripHarness::with(Settings::default(), signer(KEY), [Ok(pass)]);
    let token = said(KEY, Duration::ZERO);
    let request = from(PeerAddress::Unix, "/", &[&token]);
    let head = Arc::clone(&request.head);
    let Ok(Reply::Pass(passed)) = harness.request(request) else {
        panic!("it is passed on");
    };
    assert!(Arc::ptr_eq(&passed.head, &head));
}

#[test]
fn a_websocket_from_the_front_ends_here() {
    let opening = [
        "Content-Type: application/websocket-events",
        "Sec-WebSocket-Extensions: grip",
    ];
    let script = [scripted_reply(&opening, "OPEN\r\n")];
    let harness =
        GripHarness::with_websockets_and_settings(Settings::default(), signer(KEY), script);
    let token = said(KEY, Duration::ZERO);
    let lines = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        &token,
    ];
    let response = harness.response(from(PeerAddress::Unix, "/chat", &lines));
    assert_eq!(response.status, Status::SWITCHING_PROTOCOLS);
    assert!(matches!(response.body, Body::Takeover(_)));
    assert_eq!(body_of(harness.next_backend_request()), "OPEN\r\n");
}
