//! Servers are added and removed at run time, and the status page shows their activity.
//!
//! `POST /upstreams/NAME/servers` drains, enables, disables, adds and removes; active requests
//! always finish.

use serde_json::json;

use super::{ProxySetup, asking, behind, status, wait_in_progress, wait_state};
use crate::support::{
    Address, Origin, PATIENCE, RawClient, Response, Script, Server, Step, eventually, head_of,
};

fn named(name: &'static str) -> Origin {
    Origin::start(move |seen| {
        let script = Script::early().then(Step::ReadBody);
        let script = if seen.target == "/hold" {
            script.gate("go")
        } else {
            script
        };
        script
            .send(format!("{}{name}", head_of("200 OK", "", name.len())))
            .keep()
    })
}

fn post(server: &Server, upstream: &str, body: &str) -> Response {
    let mut client = server.control();
    client.send(format!(
        "POST /upstreams/{upstream}/servers HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.response()
}

/// An action that must succeed.
fn act(server: &Server, action: &str, address: &Address) {
    let body = json!({ "action": action, "server": address.to_string() }).to_string();
    let answer = post(server, "b", &body);
    assert!(
        matches!(answer.status, 200 | 202 | 204),
        "{action}: {}",
        answer.text()
    );
}

/// The servers that answered twenty requests, by name.
fn answering(server: &Server) -> Vec<String> {
    let mut names: Vec<String> = (0..20).map(|_| server.get("/who").text()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

const TURNS: &str = "balance = \"round_robin\"";

#[test]
fn a_drained_server_finishes_and_gets_nothing_more() {
    let (a, b) = (named("a"), named("b"));
    let server = ProxySetup::new([&a, &b]).upstream(TURNS).serve();
    let mut held: Vec<RawClient> = (0..4).map(|_| asking(&server, "/hold")).collect();
    a.wait_at("go", 2);
    b.wait_at("go", 2);
    act(&server, "drain", &a.address());
    b.open_gate("go");
    wait_in_progress(&server, 2);
    assert_eq!(answering(&server), ["b"]);
    a.open_gate("go");
    for client in &mut held {
        client.expect_status(200);
    }
    wait_state(&server, &a.address(), "draining");
    act(&server, "enable", &a.address());
    wait_state(&server, &a.address(), "up");
    assert_eq!(answering(&server), ["a", "b"]);
}

#[test]
fn a_disabled_server_gets_nothing_until_enabled() {
    let (a, b) = (named("a"), named("b"));
    let server = ProxySetup::new([&a, &b]).upstream(TURNS).serve();
    act(&server, "disable", &b.address());
    wait_state(&server, &b.address(), "disabled");
    assert_eq!(answering(&server), ["a"]);
    act(&server, "disable", &a.address());
    assert_eq!(server.get("/").status, 503);
    act(&server, "enable", &b.address());
    assert_eq!(answering(&server), ["b"]);
}

#[test]
fn servers_are_added_and_removed_while_it_runs() {
    let (a, b) = (named("a"), named("b"));
    let server = behind(&a, TURNS);
    assert_eq!(answering(&server), ["a"]);
    act(&server, "add", &b.address());
    assert_eq!(answering(&server), ["a", "b"]);
    let mut held: Vec<RawClient> = (0..2).map(|_| asking(&server, "/hold")).collect();
    a.wait_at("go", 1);
    b.wait_at("go", 1);
    act(&server, "remove", &a.address());
    assert_eq!(answering(&server), ["b"]);
    a.open_gate("go");
    b.open_gate("go");
    for client in &mut held {
        client.expect_status(200);
    }
    eventually(PATIENCE, "it is off the list", || {
        status(&server)["servers"].as_array().unwrap().len() == 1
    });
    a.wait_closed(0);
}

#[test]
fn a_waiting_request_gets_a_server_that_is_added() {
    let (a, b) = (named("a"), named("b"));
    let server = behind(&a, "max_active = 1");
    let mut held = asking(&server, "/hold");
    a.wait_at("go", 1);
    let mut waiting = asking(&server, "/who");
    super::wait_waiting(&server, 1);
    act(&server, "add", &b.address());
    assert_eq!(waiting.expect_status(200).text(), "b");
    a.open_gate("go");
    held.expect_status(200);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let a = named("a");
    let server = behind(&a, TURNS);
    let address = a.address().to_string();
    for (name, upstream, body, expected) in [
        (
            "no such upstream",
            "none",
            json!({"action": "drain", "server": address}).to_string(),
            404,
        ),
        (
            "no such server",
            "b",
            json!({"action": "drain", "server": "127.0.0.1:1"}).to_string(),
            404,
        ),
        (
            "no such action",
            "b",
            json!({"action": "dance", "server": address}).to_string(),
            400,
        ),
        (
            "no address",
            "b",
            json!({"action": "add", "server": "nonsense"}).to_string(),
            400,
        ),
        (
            "there already",
            "b",
            json!({"action": "add", "server": address}).to_string(),
            409,
        ),
        (
            "no server",
            "b",
            json!({"action": "drain"}).to_string(),
            400,
        ),
        ("no JSON", "b", "{".to_owned(), 400),
        ("empty", "b", String::new(), 400),
    ] {
        let answer = post(&server, upstream, &body);
        assert_eq!(answer.status, expected, "{name}: {}", answer.text());
    }
    assert_eq!(server.admin("GET", "/upstreams/b/servers").status, 405);
    assert_eq!(answering(&server), ["a"]);
    assert_eq!(status(&server)["servers"].as_array().unwrap().len(), 1);
}

#[test]
fn the_status_says_what_each_server_does() {
    let (a, b) = (named("a"), named("b"));
    let server = ProxySetup::new([&a, &b]).upstream(TURNS).serve();
    let mut held = asking(&server, "/hold");
    wait_in_progress(&server, 1);
    for _ in 0..3 {
        server.get("/who");
    }
    let status = status(&server);
    let servers = status["servers"].as_array().unwrap();
    let sum = |key: &str| {
        servers
            .iter()
            .map(|s| s[key].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((sum("active"), sum("requests")), (1, 4), "{status}");
    assert!(
        servers
            .iter()
            .all(|s| s["state"] == "up" && s["connections_open"] != 0),
        "{status}"
    );
    for (metric, value) in [("requests_total", 4.0), ("requests_active", 1.0)] {
        let each = [a.address(), b.address()].map(|address| {
            let labels = format!("upstream=\"b\",server=\"{address}\"");
            let name = format!("penstock_upstream_server_{metric}{{{labels}}}");
            server.metric(&name).unwrap_or_else(|| panic!("no {name}"))
        });
        assert_eq!(each.iter().sum::<f64>(), value, "{metric}");
    }
    a.open_gate("go");
    b.open_gate("go");
    held.expect_status(200);
    let page = server.admin("GET", "/").text();
    assert!(page.contains("upstream"), "the status page shows upstreams");
}
