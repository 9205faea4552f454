//! Servers fail, leave and return: another one serves where that is safe, and nothing is done
//! twice.
//!
//! `ReservedPort` is a port that refuses and that no other process can take.
//!
//! # Invariants
//!
//! - A request of which nothing was sent may be retried elsewhere; one that may have begun only if
//!   a repetition is harmless.
//! - A failing upstream is not flooded with retries.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{ProxySetup, SLACK, ask, asking, behind, post, wait_state};
use crate::support::{
    Address, Origin, PATIENCE, ReceivedRequest, ReservedPort, Script, Server, Step, eventually,
    find, head_of, last_page, page,
};

/// No server is ejected.
const NO_EJECT: &str = "eject = { max_failures = 0 }";

/// Reads whole requests and closes without a response.
fn silent() -> Origin {
    Origin::start(|_| Script::early().then(Step::ReadBody))
}

fn both(first: &Address, second: &Origin, upstream: &str) -> Server {
    ProxySetup::to([first.clone(), second.address()])
        .upstream(upstream)
        .serve()
}

#[test]
fn a_refused_connection_goes_to_another_server() {
    let (refusing, origin) = (ReservedPort::new(), Origin::named("other"));
    let server = both(&refusing.address(), &origin, NO_EJECT);
    let mut client = server.connect();
    for number in 0..20 {
        ask(&mut client, "/get");
        assert_eq!(client.expect_status(200).text(), "other", "{number}");
        client.send(post("/post", b"body"));
        client.expect_status(200);
    }
    assert_eq!(origin.requests().len(), 40);
}

#[test]
fn a_connection_that_is_not_made_in_time_goes_to_another_server() {
    let (swallowing, origin) = (ReservedPort::new().fill_backlog(), Origin::named("other"));
    let upstream = "connect_timeout = \"200ms\"\neject = { max_failures = 1, duration = \"30s\" }";
    let server = both(&swallowing.address(), &origin, upstream);
    let began = Instant::now();
    for _ in 0..6 {
        assert_eq!(server.get("/").text(), "other");
    }
    // The ejected server does not delay each request.
    assert!(began.elapsed() < SLACK);
    let alone = ProxySetup::to([swallowing.address()])
        .upstream("connect_timeout = \"200ms\"\nretry = { attempts = 1 }");
    let server = alone.serve();
    let began = Instant::now();
    assert_eq!(server.get("/").status, 502);
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(200) && took < SLACK,
        "{took:?}"
    );
    server.wait_log("502 GET /");
}

#[test]
fn nobody_left_to_try_is_502() {
    let (one, other) = (ReservedPort::new(), ReservedPort::new());
    let server = ProxySetup::to([one.address(), other.address()])
        .upstream(NO_EJECT)
        .serve();
    assert_eq!(server.get("/").status, 502);
    server.wait_log("502 GET /");
    let mut client = server.connect();
    client.send(post("/", b"x")).expect_status(502);
}

#[test]
fn a_connection_closed_while_idle_is_never_blamed_on_a_request() {
    let origin =
        Origin::start(|seen| page(seen, &seen.target).idle_until(Step::Gate("close".into())));
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream("retry = { attempts = 1 }")
        .serve();
    let mut client = server.connect();
    for (number, method) in ["GET", "POST", "GET", "DELETE", "POST"].iter().enumerate() {
        client.send(format!(
            "{method} /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        ));
        assert_eq!(client.expect_status(200).text(), format!("/{number}"));
        origin.wait_at("close", 1);
        origin.release_gate_once("close");
        origin.wait_closed(number);
    }
    assert_eq!(origin.requests().len(), 5);
    assert!(!server.log().contains("error"), "{}", server.log());
}

#[test]
fn a_server_that_closes_after_each_answer_without_a_word_loses_no_request() {
    // As uWSGI's HTTP and the Ruby FastCGI library do: keep-alive by protocol, closed a moment
    // later. With one slot and a queue, the next request is sent in that moment.
    let origin = Origin::start(|seen| page(seen, &seen.target).unkept());
    let server = behind(&origin, "max_active = 1");
    std::thread::scope(|scope| {
        for client in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut connection = server.connect();
                for turn in 0..25 {
                    let target = format!("/{client}/{turn}");
                    connection.send(post(&target, b"body"));
                    assert_eq!(connection.expect_status(200).text(), target);
                }
            });
        }
    });
    assert_eq!(origin.requests().len(), 200, "each exactly once");
}

/// How often these bytes began anywhere at the origin.
fn begun(origin: &Origin, start: &str) -> usize {
    let all = (0..origin.connections()).map(|number| origin.received(number));
    all.filter(|bytes| find(bytes, start.as_bytes()).is_some())
        .count()
}

#[test]
fn a_connection_closed_under_a_request_is_retried_only_where_that_is_harmless() {
    // The first response on a connection is good; it is closed or reset as the next request
    // arrives.
    for end in [None, Some(Step::Reset)] {
        let end = end.clone();
        let origin = Origin::start(move |seen| {
            let script = page(seen, &seen.target);
            if seen.target != "/first" {
                return script;
            }
            let script = script.idle_until(Step::AwaitByte);
            end.clone()
                .map_or_else(|| script.clone(), |end| script.clone().idle_until(end))
        });
        let server = ProxySetup::new([&origin])
            .server("threads = 1")
            .upstream(&format!(
                "{NO_EJECT}\nretry = {{ attempts = 2, budget = 1.0 }}"
            ))
            .serve();
        for (method, status) in [("GET", 200), ("PUT", 200), ("POST", 502)] {
            assert_eq!(server.get("/first").status, 200);
            let mut client = server.connect();
            let start = format!("{method} /{method}");
            client.send(format!(
                "{start} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
            ));
            assert_eq!(client.response().status, status, "{method}");
            if method == "POST" {
                assert_eq!(begun(&origin, &start), 1, "sent twice");
            }
        }
    }
}

#[test]
fn what_may_have_been_begun_is_never_done_twice() {
    let origins = [silent(), silent(), silent()];
    let server = ProxySetup::new(&origins)
        .upstream(&format!(
            "{NO_EJECT}\nretry = {{ attempts = 3, budget = 1.0 }}"
        ))
        .serve();
    let total = || origins.iter().map(|o| o.requests().len()).sum::<usize>();
    let mut before = 0;
    for (method, times) in [
        ("POST", 1),
        ("PATCH", 1),
        ("BREW", 1),
        ("GET", 3),
        ("HEAD", 3),
        ("PUT", 3),
        ("DELETE", 3),
        ("OPTIONS", 3),
    ] {
        let mut client = server.connect();
        client.send(format!(
            "{method} /{method} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        ));
        assert_eq!(
            client.try_response(method == "HEAD").unwrap().status,
            502,
            "{method}"
        );
        assert_eq!(total() - before, times, "{method}");
        before = total();
    }
}

#[test]
fn a_retry_goes_to_another_server_and_is_in_the_log() {
    let (bad, good) = (silent(), Origin::named("good"));
    let server = both(
        &bad.address(),
        &good,
        &format!("{NO_EJECT}\nbalance = \"round_robin\"\nretry = {{ attempts = 2, budget = 1.0 }}"),
    );
    for _ in 0..10 {
        assert_eq!(server.get("/").text(), "good");
    }
    assert!(!bad.requests().is_empty());
    assert_eq!(good.requests().len(), 10);
    let log = super::access_log(&server, 10);
    let retries: u64 = log
        .iter()
        .map(|line| line["retries"].as_u64().unwrap())
        .sum();
    assert_eq!(retries, bad.requests().len() as u64);
    assert!(
        log.iter()
            .all(|line| line["server"] == good.address().to_string().as_str())
    );
}

#[test]
fn a_response_that_has_begun_is_never_tried_again() {
    let bad = Origin::start(|_| Script::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"));
    let server = behind(
        &bad,
        &format!("{NO_EJECT}\nretry = {{ attempts = 3, budget = 1.0 }}"),
    );
    let mut client = asking(&server, "/");
    match client.try_response(false) {
        Ok(response) => assert_eq!(response.status, 502),
        Err(broken) => assert!(matches!(
            broken,
            crate::support::ResponseError::Truncated(_)
        )),
    }
    assert_eq!(bad.requests().len(), 1);
}

#[test]
fn a_failing_upstream_is_not_stormed() {
    const REQUESTS: usize = 200;
    // Ten retries per second are always allowed.
    const FLOOR: usize = 10;
    for (budget, share) in [("0.0", 0), ("0.1", REQUESTS / 10)] {
        let origins = [silent(), silent(), silent()];
        let upstream = format!("{NO_EJECT}\nretry = {{ attempts = 3, budget = {budget} }}");
        let server = ProxySetup::new(&origins).upstream(&upstream).serve();
        let began = Instant::now();
        for _ in 0..REQUESTS {
            assert_eq!(server.get("/").status, 502);
        }
        let seconds = began.elapsed().as_secs() as usize + 2;
        let most = REQUESTS + share + FLOOR * seconds;
        let total: usize = origins.iter().map(|o| o.requests().len()).sum();
        assert!(
            (REQUESTS..=most).contains(&total),
            "budget {budget}: {total} at the servers in {seconds} s"
        );
    }
}

#[test]
fn a_server_that_fails_again_and_again_is_put_aside_for_a_while() {
    let well = Arc::new(AtomicBool::new(false));
    let is_well = Arc::clone(&well);
    let bad = Origin::start(move |seen| {
        if is_well.load(Ordering::Relaxed) {
            page(seen, "back")
        } else {
            Script::early().then(Step::Reset)
        }
    });
    let good = Origin::named("good");
    let server = both(
        &bad.address(),
        &good,
        "balance = \"round_robin\"\nretry = { attempts = 1 }\neject = { max_failures = 2, duration = \"1s\" }",
    );
    let mut failed = 0;
    eventually(PATIENCE, "two failures", || {
        failed += usize::from(server.get("/").status == 502);
        failed == 2
    });
    wait_state(&server, &bad.address(), "ejected");
    let requests = bad.requests().len();
    assert_eq!(requests, 2);
    for _ in 0..20 {
        assert_eq!(server.get("/").text(), "good");
    }
    assert_eq!(bad.requests().len(), requests, "requested although ejected");
    well.store(true, Ordering::Relaxed);
    eventually(PATIENCE, "it is asked again", || {
        server.get("/").text() == "back"
    });
    wait_state(&server, &bad.address(), "up");
}

#[test]
fn one_good_answer_forgives_failures() {
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |_| match count.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => Script::early().then(Step::Reset),
        // Not kept: a failure on a reused connection is retried.
        _ => last_page("well"),
    });
    let server = behind(
        &origin,
        "retry = { attempts = 1 }\neject = { max_failures = 2, duration = \"30s\" }",
    );
    for round in 0..10 {
        let expected = if round % 2 == 0 { 502 } else { 200 };
        assert_eq!(server.get("/").status, expected, "{round}");
    }
}

/// Responds to `/up` by the flag and to anything else with the name.
fn probed(name: &'static str, well: &Arc<AtomicBool>) -> Origin {
    let well = Arc::clone(well);
    Origin::start(move |seen: &ReceivedRequest| {
        match (seen.target.as_str(), well.load(Ordering::Relaxed)) {
            ("/up", true) => page(seen, "up"),
            ("/up", false) => Script::raw(head_of("503 Down", "", 0)).keep(),
            _ => page(seen, name),
        }
    })
}

const HEALTH: &str =
    "health = { path = \"/up\", interval = \"50ms\", timeout = \"1s\", rise = 2, fall = 2 }";

/// The servers that answered twenty requests.
fn answering(server: &Server) -> BTreeSet<String> {
    (0..20).map(|_| server.get("/who").text()).collect()
}

#[test]
fn probes_take_a_server_down_and_bring_it_up() {
    let wells = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
    let (a, b) = (probed("a", &wells[0]), probed("b", &wells[1]));
    let server = ProxySetup::new([&a, &b])
        .upstream(&format!("{HEALTH}\nbalance = \"round_robin\""))
        .serve();
    let names = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(answering(&server), names(&["a", "b"]));
    wells[0].store(false, Ordering::Relaxed);
    wait_state(&server, &a.address(), "down");
    assert_eq!(answering(&server), names(&["b"]));
    wells[1].store(false, Ordering::Relaxed);
    wait_state(&server, &b.address(), "down");
    let nobody = server.get("/who");
    assert_eq!(
        (nobody.status, nobody.header("retry-after")),
        (503, Some("1"))
    );
    wells[0].store(true, Ordering::Relaxed);
    wait_state(&server, &a.address(), "up");
    assert_eq!(answering(&server), names(&["a"]));
    server.wait_log(&a.address().to_string());
}

#[test]
fn probes_without_a_path_only_connect() {
    let origin = Origin::named("first");
    let address = origin.address();
    let server = behind(
        &origin,
        "health = { interval = \"50ms\", timeout = \"1s\", rise = 1, fall = 2 }",
    );
    assert_eq!(server.get("/").text(), "first");
    let reserved = origin.stop_listening();
    wait_state(&server, &address, "down");
    assert_eq!(server.get("/").status, 503);
    let again = reserved.listen(|seen| page(seen, "again"));
    wait_state(&server, &address, "up");
    assert_eq!(server.get("/").text(), "again");
    drop(server);
    assert_eq!(again.lines(), ["GET /"], "probes ask nothing");
}

#[test]
fn requests_wait_for_a_server_that_comes_back() {
    // A restart that is shorter than the queue's timeout causes no error.
    let origin = Origin::named("before");
    let address = origin.address();
    let server = behind(
        &origin,
        "max_active = 1\nhealth = { interval = \"50ms\", rise = 1, fall = 1 }\nretry = { attempts = 3, budget = 1.0 }",
    );
    assert_eq!(server.get("/").text(), "before");
    let reserved = origin.stop_listening();
    wait_state(&server, &address, "down");
    let _again = reserved.listen(|seen| page(seen, "after"));
    wait_state(&server, &address, "up");
    assert_eq!(server.get("/").text(), "after");
    super::wait_in_progress(&server, 0);
}

#[test]
fn servers_that_restart_under_load_cost_no_idempotent_request() {
    let mut first = Some(Origin::named("one"));
    let second = Origin::named("two");
    let addresses = [first.as_ref().unwrap().address(), second.address()];
    let server = ProxySetup::to(addresses)
        .upstream(
            "retry = { attempts = 3, budget = 1.0 }\neject = { max_failures = 2, duration = \"100ms\" }",
        )
        .serve();
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let restarts = std::thread::scope(|scope| {
        for _ in 0..4 {
            let (stop, served, server) = (&stop, &served, &server);
            scope.spawn(move || {
                let mut client = server.connect();
                while !stop.load(Ordering::Relaxed) {
                    ask(&mut client, "/");
                    client.expect_status(200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // A thread that fails must not leave the others running.
        let restarts = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..5 {
                let goal = served.load(Ordering::Relaxed) + 100;
                eventually(PATIENCE, "a hundred more are served", || {
                    served.load(Ordering::Relaxed) >= goal
                });
                let reserved = first.take().unwrap().stop_listening();
                let goal = served.load(Ordering::Relaxed) + 100;
                eventually(PATIENCE, "and by the other alone", || {
                    served.load(Ordering::Relaxed) >= goal
                });
                first = Some(reserved.listen(|seen| page(seen, "one")));
            }
        }));
        stop.store(true, Ordering::Relaxed);
        restarts
    });
    restarts.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
