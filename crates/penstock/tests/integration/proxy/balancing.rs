//! Balancing: shares by weight, idle servers first, keys and cookies, backups.
//!
//! Sequential requests make shares exact; requests held at a gate make servers busy.

use std::collections::BTreeMap;

use super::{ProxySetup, ask, asking, wait_in_progress};
use crate::support::{Address, Origin, RawClient, ReservedPort, Script, Server, Step, head_of};

/// Responds with its name; `/hold` waits at the gate.
fn named(name: &'static str) -> Origin {
    Origin::start(move |seen| {
        let script = Script::early().then(Step::ReadBody);
        let script = if seen.target.starts_with("/hold") {
            script.gate("go")
        } else {
            script
        };
        script
            .send(format!("{}{name}", head_of("200 OK", "", name.len())))
            .keep()
    })
}

fn three() -> [Origin; 3] {
    [named("a"), named("b"), named("c")]
}

fn weighted(origins: &[Origin], weights: &[u32], upstream: &str) -> Server {
    let front = ProxySetup::to(Vec::<Address>::new()).upstream(upstream);
    let tables = origins.iter().zip(weights).map(|(origin, weight)| {
        format!(
            "{{ address = \"{}\", weight = {weight} }}",
            origin.address()
        )
    });
    tables.fold(front, ProxySetup::server_table).serve()
}

/// The number of responses per server.
fn shares(server: &Server, requests: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    let mut client = server.connect();
    for _ in 0..requests {
        ask(&mut client, "/");
        *shares.entry(client.expect_status(200).text()).or_default() += 1;
    }
    shares
}

fn table<const N: usize>(rows: [(&str, usize); N]) -> BTreeMap<String, usize> {
    rows.into_iter()
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

#[test]
fn in_turn_each_gets_its_share_by_weight() {
    let origins = three();
    let server = weighted(&origins, &[1, 1, 1], "balance = \"round_robin\"");
    assert_eq!(
        shares(&server, 30),
        table([("a", 10), ("b", 10), ("c", 10)])
    );
    let server = weighted(&origins, &[1, 2, 3], "balance = \"round_robin\"");
    assert_eq!(
        shares(&server, 60),
        table([("a", 10), ("b", 20), ("c", 30)])
    );
}

#[test]
fn an_idle_server_comes_before_a_busy_one() {
    let origins = three();
    let server = ProxySetup::new(&origins).serve();
    let held: Vec<RawClient> = (0..3)
        .map(|n| {
            let client = asking(&server, format!("/hold/{n}"));
            wait_in_progress(&server, n + 1);
            client
        })
        .collect();
    for origin in &origins {
        origin.wait_at("go", 1);
    }
    // All are equally busy: every server gets requests, and none waits without need.
    let answers = shares(&server, 6);
    assert_eq!(answers.values().sum::<usize>(), 6);
    origins[1].open_gate("go");
    wait_in_progress(&server, 2);
    assert_eq!(shares(&server, 10), table([("b", 10)]));
    for origin in &origins {
        origin.open_gate("go");
    }
    for mut client in held {
        client.expect_status(200);
    }
    assert_eq!(shares(&server, 10).len(), 1, "the warm one is taken again");
}

#[test]
fn the_least_busy_by_weight_is_next() {
    let origins = [named("a"), named("b")];
    let server = weighted(&origins, &[1, 2], "balance = \"least_active\"");
    let held: Vec<RawClient> = (0..9)
        .map(|n| {
            let client = asking(&server, format!("/hold/{n}"));
            wait_in_progress(&server, n + 1);
            client
        })
        .collect();
    origins[0].wait_at("go", 3);
    origins[1].wait_at("go", 6);
    for origin in &origins {
        origin.open_gate("go");
    }
    for mut client in held {
        client.expect_status(200);
    }
}

#[test]
fn two_drawn_at_random_leave_nobody_out() {
    let origins = three();
    let server = weighted(&origins, &[1, 1, 1], "balance = \"random_two\"");
    let shares = shares(&server, 120);
    assert!(
        shares.len() == 3 && shares.values().all(|&count| count >= 12),
        "{shares:?}"
    );
}

/// Sends a request with these fields; returns the name of the server.
fn answer(server: &Server, target: &str, lines: &str) -> String {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
    client.expect_status(200).text()
}

#[test]
fn the_same_key_leads_to_the_same_server() {
    let origins = three();
    type Ask = fn(usize) -> (String, String);
    let rows: [(&str, Ask, bool); 6] = [
        ("path", |n| (format!("/{n}?{}", n % 2), String::new()), true),
        ("uri", |n| (format!("/?{n}"), String::new()), true),
        (
            "header:X-Key",
            |n| ("/".into(), format!("X-Key: {n}\r\n")),
            true,
        ),
        (
            "cookie:session",
            |n| ("/".into(), format!("Cookie: x=y; session={n}; z=1\r\n")),
            true,
        ),
        (
            "client_ip",
            |n| (format!("/{n}"), format!("X-Key: {n}\r\n")),
            false,
        ),
        ("path", |n| (format!("/same?{n}"), String::new()), false),
    ];
    for (key, request, spreads) in rows {
        let server = ProxySetup::new(&origins)
            .upstream(&format!("balance = \"hash\"\nkey = \"{key}\""))
            .serve();
        let mut users = BTreeMap::<String, usize>::new();
        for number in 0..40 {
            let (target, lines) = request(number);
            let first = answer(&server, &target, &lines);
            assert_eq!(answer(&server, &target, &lines), first, "{key} {number}");
            *users.entry(first).or_default() += 1;
        }
        assert_eq!(users.len(), if spreads { 3 } else { 1 }, "{key}: {users:?}");
    }
}

#[test]
fn a_key_that_all_want_does_not_bury_its_server() {
    let origins = [named("a"), named("b")];
    let server = ProxySetup::new(&origins)
        .upstream("balance = \"hash\"\nkey = \"path\"")
        .serve();
    let held: Vec<RawClient> = (0..12)
        .map(|n| {
            let client = asking(&server, "/hold");
            wait_in_progress(&server, n + 1);
            client
        })
        .collect();
    let seen = origins.each_ref().map(|origin| origin.requests().len());
    assert!(seen.iter().all(|&count| count >= 3), "{seen:?}");
    for origin in &origins {
        origin.open_gate("go");
    }
    for mut client in held {
        client.expect_status(200);
    }
}

#[test]
fn a_server_that_goes_moves_only_its_own_keys() {
    let mut origins = three().map(Some);
    let addresses = origins.each_ref().map(|o| o.as_ref().unwrap().address());
    let server = ProxySetup::to(addresses)
        .upstream("balance = \"hash\"\nkey = \"path\"\neject = { max_failures = 1, duration = \"30s\" }\nretry = { attempts = 3, budget = 1.0 }")
        .serve();
    let owners = |server: &Server| -> Vec<String> {
        (0..40)
            .map(|n| answer(server, &format!("/{n}"), ""))
            .collect()
    };
    let before = owners(&server);
    let _gone = origins[1].take().unwrap().stop_listening();
    let after = owners(&server);
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_ne!(after, "b");
        assert!(
            before == after || before == "b",
            "/{number} moved from {before} to {after}"
        );
    }
}

#[test]
fn a_cookie_keeps_a_client_at_its_server() {
    let mut origins = three().map(Some);
    let addresses = origins.each_ref().map(|o| o.as_ref().unwrap().address());
    let server = ProxySetup::to(addresses)
        .upstream("balance = \"round_robin\"\nsticky = \"route\"\neject = { max_failures = 1, duration = \"30s\" }\nretry = { attempts = 3, budget = 1.0 }")
        .serve();
    let first = |lines: &str| {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
        client.expect_status(200)
    };
    let mut owners = BTreeMap::new();
    for _ in 0..3 {
        let answer = first("");
        let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
        assert!(
            cookie.starts_with("route=") && cookie.contains("HttpOnly"),
            "{cookie}"
        );
        let value = cookie.split(';').next().unwrap().to_owned();
        assert!(
            !value.contains("127.0.0.1"),
            "it tells where servers are: {value}"
        );
        owners.insert(answer.text(), value);
    }
    assert_eq!(owners.len(), 3);
    for (name, cookie) in &owners {
        for _ in 0..5 {
            let again = first(&format!("Cookie: x=y; {cookie}\r\n"));
            assert_eq!(&again.text(), name);
            assert_eq!(again.header("set-cookie"), None, "it has one already");
        }
    }
    // An unknown value, and that of a removed server, are ignored.
    assert!(
        first("Cookie: route=nobody\r\n")
            .header("set-cookie")
            .is_some()
    );
    let _gone = origins[0].take().unwrap().stop_listening();
    let moved = first(&format!("Cookie: {}\r\n", owners["a"]));
    assert_ne!(moved.text(), "a");
    assert!(moved.header("set-cookie").is_some());
}

#[test]
fn a_backup_is_asked_only_when_no_other_can_be() {
    let (spare, mut main) = (named("spare"), Some(named("main")));
    let address = main.as_ref().unwrap().address();
    let server = ProxySetup::to([address.clone()])
        .server_table(format!(
            "{{ address = \"{}\", backup = true }}",
            spare.address()
        ))
        .upstream(
            "eject = { max_failures = 1, duration = \"200ms\" }\nretry = { attempts = 3, budget = 1.0 }",
        )
        .serve();
    assert_eq!(shares(&server, 20), table([("main", 20)]));
    let gone = main.take().unwrap().stop_listening();
    assert_eq!(shares(&server, 20), table([("spare", 20)]));
    let _back = gone.listen(|seen| crate::support::page(seen, "main"));
    crate::support::eventually(
        crate::support::PATIENCE,
        "the main one is asked again",
        || server.get("/").text() == "main",
    );
    assert_eq!(shares(&server, 20), table([("main", 20)]));
}

#[test]
fn a_server_that_refuses_is_not_what_idle_means() {
    let (refusing, origin) = (ReservedPort::new(), named("a"));
    let server = ProxySetup::to([refusing.address(), origin.address()]).serve();
    assert_eq!(shares(&server, 50), table([("a", 50)]));
}
