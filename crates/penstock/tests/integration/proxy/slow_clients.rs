//! A slow client never holds a slot: request bodies are buffered first, responses are read from the
//! origin.
//!
//! Every upstream here has one slot, so a second request that succeeds while the first client does
//! nothing is the proof.

use std::time::{Duration, Instant};

use super::{ProxySetup, ask, asking, behind, noise, post, wait_in_progress, wait_waiting};
use crate::support::{Origin, PATIENCE, Script, eventually, head_of, page};

const LARGE: usize = 4 << 20;
const HUGE: usize = 32 << 20;

fn large() -> Origin {
    Origin::start(|seen| match seen.target.as_str() {
        "/large" => page(seen, noise(LARGE)),
        "/huge" => page(seen, noise(HUGE)),
        _ => page(seen, "small"),
    })
}

#[test]
fn a_slow_reader_does_not_hold_the_only_slot() {
    let origin = large();
    let server = behind(&origin, "max_active = 1");
    for (target, size) in [("/large", LARGE), ("/huge", HUGE)] {
        let mut slow = asking(&server, target);
        origin.wait_requests(1);
        for _ in 0..10 {
            assert_eq!(server.get("/small").text(), "small");
        }
        assert!(slow.expect_status(200).body == noise(size), "{target}");
    }
}

#[test]
fn ten_slow_readers_cost_no_slot_either() {
    let origin = large();
    let server = behind(&origin, "max_active = 1");
    let slow: Vec<_> = (0..10).map(|_| asking(&server, "/large")).collect();
    let began = Instant::now();
    assert_eq!(server.get("/small").text(), "small");
    assert!(began.elapsed() < PATIENCE);
    wait_in_progress(&server, 0);
    for mut client in slow {
        assert!(client.expect_status(200).body == noise(LARGE));
    }
}

#[test]
fn a_slow_uploader_does_not_hold_the_only_slot() {
    let origin = large();
    let server = behind(&origin, "max_active = 1");
    let body = noise(LARGE);
    let requests = [post("/upload", &body), {
        let head = "POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        [head.as_bytes(), &super::chunked(&body, 50_000)].concat()
    }];
    for request in requests {
        let before = origin.requests().len();
        let mut slow = server.connect();
        let half = request.len() / 2;
        slow.send(&request[..half]);
        for _ in 0..10 {
            assert_eq!(server.get("/small").text(), "small");
        }
        assert_eq!(
            origin.requests().len(),
            before + 10,
            "nothing of it was sent yet"
        );
        slow.send(&request[half..]).expect_status(200);
        assert!(origin.last().body == body);
    }
}

#[test]
fn unbuffered_the_client_sets_the_pace() {
    let origin = large();
    for (upstream, route) in [
        ("", "response_buffering = false"),
        ("response_buffering = false", ""),
    ] {
        let server = ProxySetup::new([&origin])
            .upstream(&format!("max_active = 1\n{upstream}"))
            .route(route)
            .serve();
        let mut slow = asking(&server, "/huge");
        wait_in_progress(&server, 1);
        let mut next = asking(&server, "/small");
        wait_waiting(&server, 1);
        assert!(slow.expect_status(200).body == noise(HUGE));
        assert_eq!(next.expect_status(200).text(), "small");
    }
}

#[test]
fn a_client_that_leaves_a_response_taken_over_costs_nothing_more() {
    let origin = large();
    let server = behind(&origin, "max_active = 1");
    let slow = asking(&server, "/huge");
    wait_in_progress(&server, 0);
    drop(slow);
    eventually(PATIENCE, "its memory and file are given back", || {
        server.admin_json()["connections"]["used"] == 0
    });
    assert_eq!(server.get("/small").text(), "small");
}

#[test]
fn an_origin_may_set_the_pace_of_its_response() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/paced" => {
            let head = head_of("200 OK", "X-Accel-Limit-Rate: 100000\r\n", 150_000);
            Script::raw([head.as_bytes(), &noise(150_000)].concat()).keep()
        }
        _ => page(seen, "small"),
    });
    let server = behind(&origin, "max_active = 1\nsendfile = true");
    let mut client = server.connect();
    let began = Instant::now();
    ask(&mut client, "/paced");
    origin.wait_requests(1);
    assert_eq!(server.get("/small").text(), "small");
    let response = client.expect_status(200);
    let took = began.elapsed();
    assert!(response.body == noise(150_000));
    // A second's worth may be sent at once, or the rate apply from the first byte: half a second is
    // certain.
    assert!(took >= Duration::from_millis(500), "{took:?}");
}
