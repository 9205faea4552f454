//! Descriptors and connections run out: new clients wait in the kernel's queue, others are
//! unaffected.
//!
//! The server's own limit is lowered while it runs.
//!
//! # Invariants
//!
//! - Connected clients are served, and nothing spins.
//! - It is logged once.
//! - When clients disconnect, the next ones are accepted.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use super::{ask, asking, descriptors, expect_calm, lines_with, site};
use crate::support::{
    Origin, PATIENCE, RawClient, Server, Site, eventually, is_server_hidden, kill,
};
use crate::wsgi::serve_ready;

fn limit_descriptors(pid: i32, to: u64) -> Rlimit {
    // The server has inherited ours.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some(to),
        maximum,
    };
    prlimit(Pid::from_raw(pid), Resource::Nofile, limit).unwrap()
}

/// A client with an active request until it sends a byte.
fn busy(server: &Server) -> RawClient {
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    client
}

#[test]
fn without_descriptors_newcomers_wait_and_nothing_spins() {
    if is_server_hidden() {
        return;
    }
    let server = serve_ready(&site("processes = 1", ""));
    let pid = server.pid();
    let mut early = busy(&server);
    let there = descriptors(pid).len() as u64;
    let before = limit_descriptors(pid, there + 4);
    let mut crowd: Vec<RawClient> = (0..20).map(|_| asking(&server, "/")).collect();
    server.wait_log("no descriptor is left");
    expect_calm(&server);
    // Idle connections are closed, active ones stay.
    let mut served = 0;
    while let Some(mut client) = (!crowd.is_empty()).then(|| crowd.remove(0)) {
        client.expect_status(200);
        served += 1;
    }
    early.send("x").expect_status(200);
    assert!(
        lines_with(&server, "cannot accept") <= 2,
        "{}",
        server.log()
    );
    assert_eq!((served, server.get("/").status), (20, 200));
    prlimit(Pid::from_raw(pid), Resource::Nofile, before).unwrap();
    assert_eq!(server.admin_json()["state"], "running");
}

#[test]
fn without_descriptors_a_worker_that_dies_is_replaced_once_there_are_some() {
    // Forked anew, started anew, and forked from a template that is started anew.
    for (way, and_templates) in [("", false), ("preload = false", false), ("", true)] {
        let server = serve_ready(&site(&format!("processes = 1\n{way}"), ""));
        let pid = server.pid();
        let app = server.admin_json()["apps"][0].clone();
        let before = limit_descriptors(pid, 3);
        let kinds = [(and_templates, "templates"), (true, "workers")];
        for (_, kind) in kinds.into_iter().filter(|(is_killed, _)| *is_killed) {
            let process = i32::try_from(app[kind][0]["pid"].as_i64().unwrap()).unwrap();
            kill(process, Signal::KILL);
        }
        server.wait_log("cannot start a worker");
        prlimit(Pid::from_raw(pid), Resource::Nofile, before).unwrap();
        eventually(PATIENCE, "it serves again", || {
            server.get("/").status == 200
        });
    }
}

#[test]
fn without_descriptors_no_server_of_an_upstream_is_blamed() {
    let origins = [Origin::named("a"), Origin::named("b")];
    let servers = origins.each_ref().map(|o| format!("\"{}\"", o.address()));
    let servers = servers.join(", ");
    let toml = format!(
        "[upstreams.b]\nservers = [{servers}]\nconnections = {{ soft = 0 }}\n\
         eject = {{ max_failures = 1 }}\nhealth = {{ interval = \"20ms\", fall = 1 }}\n"
    );
    let server = Site::new().config(&toml).serve(&[]);
    let pid = server.pid();
    let mut client = server.connect();
    ask(&mut client, "/");
    client.expect_status(200);
    // None is free below it.
    let before = limit_descriptors(pid, 3);
    let began = Instant::now();
    eventually(PATIENCE, "some requests and probes", || {
        ask(&mut client, "/");
        client.expect_status(503);
        began.elapsed() >= Duration::from_millis(300)
    });
    prlimit(Pid::from_raw(pid), Resource::Nofile, before).unwrap();
    ask(&mut client, "/");
    client.expect_status(200);
    server.wait_log("cannot connect: out of descriptors on this host");
    let log = server.log();
    assert!(
        !log.contains("ejected") && !log.contains("probe failed"),
        "{log}"
    );
    let status = server.admin_json();
    for server in status["upstreams"][0]["servers"].as_array().unwrap() {
        let seen = (&server["state"], &server["failures"]);
        assert_eq!(seen, (&"up".into(), &0.into()), "{server}");
    }
}

#[test]
fn above_limits_connections_newcomers_wait_and_nothing_spins() {
    if is_server_hidden() {
        return;
    }
    let server = serve_ready(&site("processes = 1", "[limits]\nconnections = 4"));
    let mut inside: Vec<RawClient> = (0..4).map(|_| busy(&server)).collect();
    let mut newcomers: Vec<RawClient> = (0..3).map(|_| asking(&server, "/")).collect();
    server.wait_log("limits.connections is reached, and no connection is idle");
    expect_calm(&server);
    for client in &mut newcomers {
        let come = client.patience(Duration::from_millis(1)).read_some();
        assert_eq!(come, None, "served above the limit");
        client.patience(PATIENCE);
    }
    assert_eq!(lines_with(&server, "limits.connections is reached"), 1);
    assert_eq!(server.admin_json()["state"], "running", "has its own door");
    for mut client in newcomers {
        inside.remove(0).send("x").expect_status(200);
        client.expect_status(200);
    }
}
