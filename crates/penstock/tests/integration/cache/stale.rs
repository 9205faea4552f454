//! Stale objects: revalidated by the origin, or served stale where that is allowed.

use std::sync::Arc;
use std::time::Instant;

use super::{
    CacheSetup, IN_MEMORY, RequestCounts, STALE_SOON, SharedCounter, answer, cache_status, get,
    in_front_of, load, status, store, text,
};
use crate::support::{Origin, PATIENCE, Script, eventually, head_of};

/// An origin that confirms `ETag: "1"` with a 304.
fn confirming(cache_control: &'static str) -> Origin {
    Origin::start(move |seen| {
        let fields = format!("Cache-Control: {cache_control}\r\nETag: \"1\"\r\n");
        match seen.field("if-none-match").as_deref() {
            Some("\"1\"") => {
                Script::raw(format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n")).keep()
            }
            Some(other) => panic!("the cache asks for {other}"),
            None => answer(seen, &fields, "made once"),
        }
    })
}

#[test]
fn a_stored_response_is_confirmed_without_its_body() {
    let origin = confirming("max-age=1");
    let server = in_front_of(&origin);
    assert_eq!(text(&server, "/a"), "made once");
    eventually(STALE_SOON, "the origin is asked to confirm it", || {
        assert_eq!(text(&server, "/a"), "made once");
        origin.lines().len() >= 2
    });
    let seen = origin.requests();
    let conditions: Vec<_> = seen.iter().map(|s| s.field("if-none-match")).collect();
    assert_eq!(conditions[0], None);
    assert!(
        conditions[1..].iter().all(Option::is_some),
        "{conditions:?}"
    );
    // Fresh again: some later responses came from the cache alone.
    let before = origin.lines().len();
    for _ in 0..10 {
        assert_eq!(text(&server, "/a"), "made once");
    }
    assert!(origin.lines().len() < before + 10);
    assert_eq!(status(&server)["objects"], 1);
}

#[test]
fn what_must_be_confirmed_each_time_is() {
    let origin = confirming("no-cache");
    let server = in_front_of(&origin);
    let is_confirmed = || {
        let response = get(&server, "/a");
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "made once")
        );
        let seen = origin.requests();
        let last = seen.last().expect("it is asked each time");
        last.field("if-none-match").is_some()
    };
    assert!(!is_confirmed(), "nothing is stored yet");
    // The client may have the whole first response a moment before the store.
    eventually(PATIENCE, "what is stored is confirmed", is_confirmed);
    for _ in 0..3 {
        let before = origin.lines().len();
        assert!(is_confirmed());
        assert_eq!(origin.lines().len(), before + 1);
    }
}

#[test]
fn a_client_may_insist_on_a_confirmation() {
    let origin = confirming("max-age=3600");
    let server = in_front_of(&origin);
    text(&server, "/a");
    assert_eq!(text(&server, "/a"), "made once");
    assert_eq!(origin.lines().len(), 1);
    let response = super::ask(&server, "GET /a", "Cache-Control: no-cache\r\n");
    assert_eq!(response.text(), "made once");
    assert_eq!(origin.lines().len(), 2);
}

#[test]
fn a_stale_response_is_sent_while_a_new_one_is_fetched() {
    let given = RequestCounts::default();
    let origin = Origin::start(move |_| {
        let count = given.next("all");
        let fields = "Cache-Control: max-age=1, stale-while-revalidate=3600\r\n";
        let text = format!("{}{count}", head_of("200 OK", fields, 1));
        let script = match count {
            1 => Script::early(),
            _ => Script::early().gate("go"),
        };
        script.send(text).keep()
    });
    let server = in_front_of(&origin);
    assert_eq!(text(&server, "/a"), "1");
    // No client waits for the second response, which the origin has not sent yet.
    eventually(STALE_SOON, "the origin is asked again", || {
        assert_eq!(text(&server, "/a"), "1");
        origin.lines().len() == 2
    });
    for _ in 0..20 {
        let response = get(&server, "/a");
        assert_eq!(response.text(), "1", "{}", cache_status(&response));
    }
    assert_eq!(origin.lines().len(), 2, "one refresh at a time");
    origin.open_gate("go");
    eventually(PATIENCE, "the new one is there", || {
        text(&server, "/a") != "1"
    });
}

#[test]
fn a_stale_response_is_better_than_an_error() {
    let is_ill = SharedCounter::default();
    let ill = Arc::clone(&is_ill);
    let origin = Origin::start(move |seen| match load(&ill) {
        0 => {
            let fields = "Cache-Control: max-age=1, stale-if-error=3600\r\n";
            answer(seen, fields, "well")
        }
        _ => Script::raw(format!("{}ill", head_of("500 Ill", "", 3))).keep(),
    });
    let server = in_front_of(&origin);
    assert_eq!(text(&server, "/a"), "well");
    store(&is_ill, 1);
    let before = origin.lines().len();
    eventually(STALE_SOON, "the origin has failed", || {
        assert_eq!(text(&server, "/a"), "well");
        origin.lines().len() > before
    });
    assert_eq!(get(&server, "/other").status, 500);
    // The origin has stopped listening.
    let _gone = origin.stop_listening();
    for _ in 0..5 {
        assert_eq!(text(&server, "/a"), "well");
    }
    assert_eq!(get(&server, "/other").status / 100, 5);
}

#[test]
fn what_must_not_be_sent_stale_is_not() {
    let origin = super::counting("Cache-Control: max-age=1, must-revalidate\r\n");
    let front = CacheSetup::new(&origin, IN_MEMORY).route("stale_if_error = \"1h\"");
    let server = front.serve();
    assert_eq!(text(&server, "/a"), "/a 1");
    let _gone = origin.stop_listening();
    let began = Instant::now();
    eventually(STALE_SOON, "the error is told", || {
        let response = get(&server, "/a");
        assert!(
            matches!(response.status, 200 | 502 | 503 | 504),
            "{response:?}"
        );
        response.status != 200
    });
    assert!(began.elapsed() < STALE_SOON);
}
