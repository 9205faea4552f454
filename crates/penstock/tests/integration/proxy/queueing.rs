//! One queue per upstream: exact limits, first come first served, and separate timeouts.
//!
//! `max_active` counts over all loops (the server has two). The origin holds requests at a gate, so
//! queued and active requests are known exactly.

use std::time::{Duration, Instant};

use super::{
    ProxySetup, SLACK, access_log, asking, behind, noise, pass_time, post, status,
    wait_in_progress, wait_waiting,
};
use crate::support::{
    Address, Origin, PATIENCE, RawClient, Script, Server, Step, eventually, head_of,
};

/// Holds every request but `/free` at the gate `go`, then responds with its target.
fn held() -> Origin {
    Origin::start(|seen| {
        let head = head_of("200 OK", "", seen.target.len());
        let script = Script::early().then(Step::ReadBody);
        let script = if seen.target == "/free" {
            script
        } else {
            script.gate("go")
        };
        script.send(format!("{head}{}", seen.target)).keep()
    })
}

/// Requests `/1` to `/n`, each when the previous one is in the queue; `/0` is active.
fn hold_and_queue(server: &Server, origin: &Origin, count: u64) -> Vec<RawClient> {
    let mut clients = vec![asking(server, "/0")];
    origin.wait_at("go", 1);
    for number in 1..=count {
        clients.push(asking(server, format!("/{number}")));
        wait_waiting(server, number);
    }
    clients
}

#[test]
fn a_server_never_has_more_than_max_active() {
    for most in [1, 3] {
        let origin = held();
        let server = behind(&origin, &format!("max_active = {most}"));
        let clients: Vec<_> = (0..24).map(|n| asking(&server, format!("/{n}"))).collect();
        wait_waiting(&server, 24 - most);
        wait_in_progress(&server, most);
        origin.wait_at("go", most as usize);
        origin.open_gate("go");
        for (number, mut client) in clients.into_iter().enumerate() {
            assert_eq!(client.expect_status(200).text(), format!("/{number}"));
        }
        assert_eq!(origin.most_in_progress(), most as usize);
        wait_in_progress(&server, 0);
    }
}

#[test]
fn each_server_has_its_own_bound_and_all_share_the_queue() {
    let origins = [held(), held()];
    let table = |origin: &Origin, most: usize| {
        format!(
            "{{ address = \"{}\", max_active = {most} }}",
            origin.address()
        )
    };
    let server = ProxySetup::to(Vec::<Address>::new())
        .server_table(table(&origins[0], 1))
        .server_table(table(&origins[1], 2))
        .serve();
    let clients: Vec<_> = (0..9).map(|n| asking(&server, format!("/{n}"))).collect();
    origins[0].wait_at("go", 1);
    origins[1].wait_at("go", 2);
    wait_waiting(&server, 6);
    // The first free server gets the next request.
    origins[1].open_gate("go");
    eventually(PATIENCE, "the queue is worked off by the other", || {
        status(&server)["queue"]["length"] == 0
    });
    origins[0].open_gate("go");
    for mut client in clients {
        client.expect_status(200);
    }
    assert_eq!(origins.each_ref().map(|o| o.requests().len()), [1, 8]);
    assert_eq!(origins.each_ref().map(Origin::most_in_progress), [1, 2]);
}

#[test]
fn first_come_is_first_served_whichever_loop_it_came_on() {
    let origin = held();
    let server = behind(&origin, "max_active = 1");
    let clients = hold_and_queue(&server, &origin, 12);
    origin.open_gate("go");
    for mut client in clients {
        client.expect_status(200);
    }
    let expected: Vec<String> = (0..=12).map(|number| format!("GET /{number}")).collect();
    assert_eq!(origin.lines(), expected);
}

#[test]
fn what_the_queue_cannot_hold_is_refused_at_once() {
    let origin = held();
    let server = behind(
        &origin,
        "max_active = 1\nqueue = { max = 2, timeout = \"30s\" }",
    );
    let clients = hold_and_queue(&server, &origin, 2);
    for _ in 0..5 {
        let began = Instant::now();
        let refused = server.get("/refused");
        assert_eq!(
            (refused.status, refused.header("retry-after")),
            (503, Some("1"))
        );
        assert!(began.elapsed() < SLACK);
    }
    origin.open_gate("go");
    for mut client in clients {
        client.expect_status(200);
    }
    assert_eq!(origin.lines(), ["GET /0", "GET /1", "GET /2"]);
    assert_eq!(status(&server)["counters"]["queue_full"], 5);
    assert_eq!(
        server.metric("penstock_upstream_queue_full_total{upstream=\"b\"}"),
        Some(5.0)
    );
}

#[test]
fn a_queue_of_none_takes_only_what_can_begin() {
    let origin = held();
    let server = behind(&origin, "max_active = 1\nqueue = { max = 0 }");
    let mut first = asking(&server, "/0");
    origin.wait_at("go", 1);
    assert_eq!(server.get("/refused").status, 503);
    origin.open_gate("go");
    first.expect_status(200);
    assert_eq!(server.get("/next").status, 200);
}

#[test]
fn who_waits_too_long_is_refused_and_never_sent() {
    let origin = held();
    let server = behind(&origin, "max_active = 1\nqueue = { timeout = \"300ms\" }");
    let mut first = asking(&server, "/0");
    origin.wait_at("go", 1);
    let began = Instant::now();
    let late = server.get("/late");
    let took = began.elapsed();
    assert_eq!((late.status, late.header("retry-after")), (503, Some("1")));
    assert!(
        took >= Duration::from_millis(300) && took < SLACK,
        "{took:?}"
    );
    origin.open_gate("go");
    first.expect_status(200);
    assert_eq!(server.get("/next").status, 200);
    assert_eq!(origin.lines(), ["GET /0", "GET /next"]);
    assert_eq!(status(&server)["counters"]["queue_timeouts"], 1);
    let log = access_log(&server, 3);
    let line = log.iter().find(|l| l["target"] == "/late").unwrap();
    assert_eq!(
        (line["status"].as_u64(), line["queue_position"].as_u64()),
        (Some(503), Some(1))
    );
    assert!(line["queue_time"].as_f64().unwrap() >= 0.3, "{line}");
}

#[test]
fn who_leaves_while_waiting_is_never_sent() {
    let origin = held();
    let server = behind(&origin, "max_active = 1");
    let mut clients = hold_and_queue(&server, &origin, 4);
    drop(clients.remove(3));
    wait_waiting(&server, 3);
    drop(clients.remove(1));
    wait_waiting(&server, 2);
    origin.open_gate("go");
    for mut client in clients {
        client.expect_status(200);
    }
    assert_eq!(origin.lines(), ["GET /0", "GET /2", "GET /4"]);
    assert!(!server.log().contains("error"), "{}", server.log());
}

#[test]
fn who_leaves_while_in_progress_frees_the_slot_at_once() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/hang" => Script::early().then(Step::Hang),
        "/half" => Script::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").then(Step::Hang),
        _ => Script::raw(head_of("200 OK", "", 0)).keep(),
    });
    let server = behind(&origin, "max_active = 1");
    for (number, target) in ["/hang", "/half"].iter().enumerate() {
        let leaving = asking(&server, target);
        origin.wait_requests(2 * number + 1);
        let mut next = asking(&server, "/next");
        wait_waiting(&server, 1);
        drop(leaving);
        next.expect_status(200);
        let cut = origin.requests()[2 * number].connection;
        origin.wait_closed(cut);
    }
    assert_eq!(
        origin.lines(),
        ["GET /hang", "GET /next", "GET /half", "GET /next"]
    );
}

#[test]
fn time_in_the_queue_is_not_taken_from_the_time_to_answer() {
    const HELD: Duration = Duration::from_millis(1_200);
    let origin = held();
    let server = behind(&origin, "max_active = 1\nresponse_timeout = \"2s\"");
    let began = Instant::now();
    let mut first = asking(&server, "/0");
    origin.wait_at("go", 1);
    let mut second = asking(&server, "/1");
    wait_waiting(&server, 1);
    // Each is held for 1.2 s of its 2 s; the second completes 2.4 s after it was sent.
    for client in [&mut first, &mut second] {
        pass_time(HELD);
        origin.release_gate_once("go");
        client.expect_status(200);
    }
    assert!(
        began.elapsed() >= 2 * HELD,
        "both clocks together are longer than each"
    );
}

#[test]
fn an_answer_that_does_not_come_costs_only_its_own_request() {
    let origin = held();
    let server = behind(
        &origin,
        "max_active = 1\nresponse_timeout = \"400ms\"\nretry = { attempts = 1 }",
    );
    let began = Instant::now();
    let mut late = asking(&server, "/late");
    origin.wait_at("go", 1);
    let mut next = asking(&server, "/free");
    assert_eq!(late.expect_status(504).header("retry-after"), None);
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(400) && took < SLACK,
        "{took:?}"
    );
    assert_eq!(next.expect_status(200).text(), "/free");
    // A late response of the origin reaches no client.
    origin.open_gate("go");
    origin.wait_closed(0);
    for _ in 0..4 {
        assert_eq!(server.get("/free").text(), "/free");
    }
    let log = access_log(&server, 6);
    let line = log.iter().find(|l| l["target"] == "/late").unwrap();
    assert_eq!(line["status"], 504);
    server.wait_log("504 GET /late");
}

#[test]
fn a_body_is_read_before_a_slot_is_claimed() {
    let origin = held();
    let server = behind(&origin, "max_active = 1");
    let body = noise(100_000);
    let request = post("/slow", &body);
    let mut slow = server.connect();
    slow.send(&request[..50_000]);
    for _ in 0..3 {
        assert_eq!(server.get("/free").status, 200);
    }
    slow.send(&request[50_000..]);
    origin.wait_at("go", 1);
    origin.open_gate("go");
    slow.expect_status(200);
    assert!(origin.last().body == body);
}

#[test]
fn how_long_a_request_waited_is_said_everywhere_alike() {
    let origin = held();
    let server = behind(&origin, "max_active = 1");
    let mut clients = hold_and_queue(&server, &origin, 1);
    pass_time(Duration::from_millis(500));
    origin.open_gate("go");
    for client in &mut clients {
        client.expect_status(200);
    }
    let log = access_log(&server, 2);
    let of = |target: &str| log.iter().find(|l| l["target"] == target).unwrap();
    let (first, second) = (of("/0"), of("/1"));
    let number = |line: &serde_json::Value, key: &str| line[key].as_f64().unwrap();
    assert!(
        number(first, "queue_time") < 0.4 && number(first, "app_time") >= 0.5,
        "{first}"
    );
    assert!(
        number(second, "queue_time") >= 0.5 && number(second, "app_time") < 0.4,
        "{second}"
    );
    assert!(
        number(second, "total_time") >= number(second, "queue_time"),
        "{second}"
    );
    for line in [first, second] {
        assert_eq!(
            line["server"],
            origin.address().to_string().as_str(),
            "{line}"
        );
        assert_eq!(line["retries"], 0, "{line}");
        assert!(
            line["connect_time"].is_number() || line["connect_time"].is_null(),
            "{line}"
        );
    }
    let times = &status(&server)["queue_time"];
    assert_eq!(times["count"], 2);
    assert!(times["sum_seconds"].as_f64().unwrap() >= 0.5, "{times}");
}

#[test]
fn connections_never_exceed_their_bound_either() {
    let origin = held();
    let server = behind(
        &origin,
        "connections = { max = 2, soft = 1, ttl = \"200ms\" }",
    );
    let clients: Vec<_> = (0..8).map(|n| asking(&server, format!("/{n}"))).collect();
    origin.wait_at("go", 2);
    wait_waiting(&server, 6);
    origin.open_gate("go");
    for mut client in clients {
        client.expect_status(200);
    }
    assert_eq!(origin.most_in_progress(), 2);
    // Above `max_idle` they close after their time, and no further.
    eventually(PATIENCE, "one connection is left", || {
        let open = (0..origin.connections())
            .filter(|&n| origin.is_open(n))
            .count();
        assert!(open >= 1, "the last one was closed as well");
        open == 1
    });
}
