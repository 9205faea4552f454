//! Many equal requests at once: one request to the origin for a shareable response, and no waiting
//! for others.

use super::{CacheSetup, IN_MEMORY, ON_DISK, answer, asking, content, in_front_of, wait_hit};
use crate::support::{Origin, PATIENCE, RawClient, Script, eventually, head_of};

const CLIENTS: usize = 1_000;

#[test]
fn a_thousand_misses_at_once_are_one_request_to_the_origin() {
    for cache in [IN_MEMORY, ON_DISK] {
        let body = content("shared", 20_000);
        let sent = body.clone();
        let origin = Origin::start(move |_| {
            let fields = "Cache-Control: max-age=3600\r\n";
            let head = head_of("200 OK", fields, sent.len());
            let script = Script::early().gate("head").send(head).send(&sent[..9_000]);
            script.gate("body").send(&sent[9_000..]).keep()
        });
        let server = CacheSetup::new(&origin, cache)
            .route("lock_timeout = \"1m\"")
            .serve();
        let mut clients: Vec<RawClient> = (0..CLIENTS).map(|_| asking(&server, "/a")).collect();
        origin.wait_at("head", 1);
        eventually(PATIENCE, "all of them are in progress", || {
            server.admin_json()["traffic"]["active"] == CLIENTS
        });
        origin.open_gate("head");
        // They are served while it grows.
        origin.wait_at("body", 1);
        let mut early = clients.pop().unwrap();
        while early.received.len() < 9_000 {
            assert!(early.read_some().is_some_and(|bytes| !bytes.is_empty()));
        }
        origin.open_gate("body");
        assert!(early.expect_status(200).body == body);
        for client in &mut clients {
            assert!(client.expect_status(200).body == body);
        }
        assert_eq!(origin.lines().len(), 1);
        assert!(wait_hit(&server, "/a").body == body);
    }
}

#[test]
fn what_cannot_be_shared_is_fetched_for_all_at_the_same_time() {
    let origin = Origin::start(|_| {
        let head = head_of("200 OK", "Cache-Control: no-store\r\n", 2);
        Script::early().gate("go").send(format!("{head}ok")).keep()
    });
    let server = in_front_of(&origin);
    let mut first = asking(&server, "/a");
    origin.wait_at("go", 1);
    origin.release_gate_once("go");
    first.expect_status(200);
    // The cache knows now that this response is not shareable.
    let mut clients: Vec<RawClient> = (0..20).map(|_| asking(&server, "/a")).collect();
    origin.wait_at("go", 20);
    origin.open_gate("go");
    for client in &mut clients {
        assert_eq!(client.expect_status(200).text(), "ok");
    }
}

#[test]
fn who_waits_for_what_turns_out_not_to_be_shared_goes_on_at_once() {
    let origin = Origin::start(|_| {
        let head = head_of("200 OK", "Cache-Control: private\r\n", 2);
        Script::early().gate("go").send(format!("{head}ok")).keep()
    });
    let front = CacheSetup::new(&origin, IN_MEMORY).route("lock_timeout = \"5m\"");
    let server = front.serve();
    let mut clients: Vec<RawClient> = (0..20).map(|_| asking(&server, "/a")).collect();
    eventually(PATIENCE, "all of them are in progress", || {
        server.admin_json()["traffic"]["active"] == 20
    });
    origin.release_gate_once("go");
    // The nineteen others do not wait for one another.
    origin.wait_at("go", 19);
    origin.open_gate("go");
    for client in &mut clients {
        assert_eq!(client.expect_status(200).text(), "ok");
    }
}

#[test]
fn nobody_waits_for_a_slow_fetch_longer_than_the_lock_timeout() {
    let origin = Origin::start(|seen| match seen.field("x-first") {
        Some(_) => {
            let head = head_of("200 OK", "Cache-Control: max-age=3600\r\n", 4);
            Script::early()
                .gate("late")
                .send(format!("{head}slow"))
                .keep()
        }
        None => answer(seen, "Cache-Control: max-age=3600\r\n", "quick"),
    });
    let front = CacheSetup::new(&origin, IN_MEMORY).route("lock_timeout = \"300ms\"");
    let server = front.serve();
    let mut first = server.connect();
    first.send("GET /a HTTP/1.1\r\nHost: a\r\nX-First: 1\r\n\r\n");
    origin.wait_at("late", 1);
    let mut clients: Vec<RawClient> = (0..5).map(|_| asking(&server, "/a")).collect();
    for client in &mut clients {
        assert_eq!(client.expect_status(200).text(), "quick");
    }
    origin.open_gate("late");
    assert_eq!(first.expect_status(200).text(), "slow");
}

#[test]
fn a_fetch_that_nobody_waits_for_any_more_is_given_up() {
    let origin = Origin::start(|seen| match seen.field("x-first") {
        Some(_) => Script::early().gate("never"),
        None => answer(seen, "Cache-Control: max-age=3600\r\n", "own"),
    });
    let server = CacheSetup::new(&origin, IN_MEMORY).serve();
    let mut first = server.connect();
    first.send("GET /a HTTP/1.1\r\nHost: a\r\nX-First: 1\r\n\r\n");
    origin.wait_at("never", 1);
    drop(first);
    eventually(PATIENCE, "nothing is left of it", || {
        let status = server.admin_json();
        let at_origin = &status["upstreams"][0]["servers"][0]["active"];
        status["connections"]["used"] == 0 && at_origin == 0
    });
    // A later client waits for no other.
    assert_eq!(asking(&server, "/a").expect_status(200).text(), "own");
}

#[test]
fn a_client_that_leaves_takes_nothing_from_those_who_wait() {
    let origin = Origin::start(|_| {
        let head = head_of("200 OK", "Cache-Control: max-age=3600\r\n", 5);
        let script = Script::early().gate("go").send(format!("{head}sh"));
        script.gate("on").send("are").keep()
    });
    let server = CacheSetup::new(&origin, IN_MEMORY).serve();
    let first = asking(&server, "/a");
    origin.wait_at("go", 1);
    let mut second = asking(&server, "/a");
    eventually(PATIENCE, "both are in progress", || {
        server.admin_json()["traffic"]["active"] == 2
    });
    drop(first);
    eventually(PATIENCE, "the first has left", || {
        server.admin_json()["connections"]["used"] == 1
    });
    origin.open_gate("go");
    origin.open_gate("on");
    assert_eq!(second.expect_status(200).text(), "share");
}
