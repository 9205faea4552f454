//! Each rule by a snapshot that breaks it alone.

use std::time::Duration;

use penstock_cluster::SharedRatesSnapshot;
use penstock_proxy::UpstreamCounters;

use super::*;
use crate::AdminOperations;
use crate::fake::FakeServer;

/// A snapshot with one of each part and nothing wrong.
fn well() -> Snapshot {
    let mut now = FakeServer::default().snapshot();
    now.apps.truncate(1);
    now.upstreams.truncate(1);
    for server in &mut now.upstreams[0].servers {
        (server.state, server.last_error) = ("up", None);
    }
    now.caches.truncate(1);
    now.certificates.list.retain(|it| it.problem.is_none());
    for last in now.jobs.iter_mut().filter_map(|job| job.last.as_mut()) {
        last.succeeded = true;
    }
    now.upstreams[0].counters = UpstreamCounters::default();
    now.front_end = None;
    now
}

fn texts(now: &Snapshot) -> Vec<(Severity, String, String)> {
    let found = find_problems(now, &History::default());
    let parts = |it: Problem| (it.severity, it.part, it.text);
    found.into_iter().map(parts).collect()
}

#[test]
fn a_server_that_is_well_has_no_problem() {
    assert_eq!(texts(&well()), []);
}

#[test]
fn each_part_names_itself_and_the_cause() {
    use Severity::*;
    type Break = fn(&mut Snapshot);
    let rows: [(Break, Severity, &str, &str); 21] = [
        (
            |now| {
                now.apps[0].state = "failing".into();
                now.apps[0].boot_report =
                    Some("Traceback (most recent call last):\n  File\nImportError: no b.\n".into());
            },
            Error,
            "app guestbook",
            "The application guestbook does not run: ImportError: no b.",
        ),
        (
            |now| {
                (now.apps[0].state, now.apps[0].kind) = ("failing".into(), "job");
                now.apps[0].last_failure = None;
            },
            Error,
            "app guestbook",
            "The job guestbook does not run.",
        ),
        (
            |now| {
                now.apps[0].state = "degraded".into();
                now.apps[0].last_failure = Some("process 7 exited with 1".into());
            },
            Warning,
            "app guestbook",
            "The application guestbook has 2 of 3 processes ready: process 7 exited with 1.",
        ),
        (
            |now| now.apps[0].state = "starting".into(),
            Warning,
            "app guestbook",
            "The application guestbook is not ready yet.",
        ),
        (
            |now| {
                now.apps[0].restart_error = Some("a.rb:1:in `x': no c (LoadError)\n\tfrom".into());
            },
            Error,
            "app guestbook",
            "The new code of the application guestbook does not start and the old code serves on: \
             a.rb:1:in `x': no c (LoadError).",
        ),
        (
            |now| {
                let upstream = &mut now.upstreams[0];
                upstream.up = false;
                upstream.servers[0].last_error = Some("connection refused".into());
            },
            Error,
            "upstream backends",
            "No server of the upstream backends is up: connection refused.",
        ),
        (
            |now| {
                now.upstreams[0].up = false;
                now.upstreams[0].servers.clear();
            },
            Error,
            "upstream backends",
            "The upstream backends has no server.",
        ),
        (
            |now| {
                let server = &mut now.upstreams[0].servers[2];
                (server.state, server.last_error) = ("ejected", Some("cannot connect".into()));
            },
            Error,
            "upstream backends",
            "The server unix:/run/b.sock of the upstream backends is ejected: cannot connect.",
        ),
        (
            |now| now.apps[0].queue.usage.waiting = 1000,
            Error,
            "app guestbook",
            "The queue of the application guestbook is full (1000 of 1000): more requests are \
             refused.",
        ),
        (
            |now| now.apps[0].counters.queue_full.add(4),
            Error,
            "app guestbook",
            "The application guestbook is too slow: its queue was full or they waited too long, and \
             4 requests were refused in the last minute.",
        ),
        (
            |now| {
                now.upstreams[0].queue.length = 500;
                now.upstreams[0].counters.queue_full = 2;
                now.upstreams[0].counters.queue_timeouts = 3;
            },
            Error,
            "upstream backends",
            "The queue of the upstream backends is full (500 of 500): 5 requests were refused in \
             the last minute.",
        ),
        (
            |now| now.certificates = FakeServer::default().snapshot().certificates,
            Error,
            "certificate b.test and 1 more",
            "The certificate of b.test and 1 more needs attention: expired 10 days ago: clients \
             refuse it; not replaced: the file is empty.",
        ),
        (
            |now| {
                let certificate = &mut now.certificates.list[0];
                certificate.hosts.clear();
                certificate.state = CertificateHealth::Warning;
                certificate.problem = Some("expires in 3 days".into());
            },
            Warning,
            "certificate any host",
            "The certificate of any host needs attention: expires in 3 days.",
        ),
        (
            |now| {
                let reason = "write: No space left on device".into();
                now.caches[0].state = StoreState::OutOfService { reason };
            },
            Error,
            "cache disk1",
            "The cache disk1 is out of service: write: No space left on device.",
        ),
        (
            |now| now.jobs = FakeServer::default().snapshot().jobs,
            Error,
            "job nightly",
            "The last run of the job nightly failed (exit status 1): no database.",
        ),
        (
            |now| now.connections.used = now.connections.max,
            Error,
            "server",
            "All 100 client connections are in use (limits.connections).",
        ),
        (
            |now| now.pools[0].queued = 65536,
            Error,
            "pool default",
            "The thread pool default is overloaded: 65536 jobs wait.",
        ),
        (
            |now| now.reload_error = Some("line 3: unknown key\nmore".into()),
            Error,
            "configuration",
            "The last reload failed and the old configuration serves on: line 3: unknown key.",
        ),
        (
            |now| now.front_end = FakeServer::default().snapshot().front_end,
            Error,
            "front end",
            "This server is not joined to the upstream shop at 10.0.0.1:7000: its key is another.",
        ),
        (
            |now| {
                now.hub
                    .cluster
                    .iter_mut()
                    .for_each(|it| it.connected = false);
            },
            Error,
            "hub",
            "Redis at redis://127.0.0.1:6379 does not answer: messages reach the subscribers of \
             this server only.",
        ),
        (
            |now| {
                now.shared_rates = Some(SharedRatesSnapshot {
                    connected: false,
                    decided_alone: 1,
                });
            },
            Warning,
            "rates",
            "Redis does not answer: this server limits rates alone.",
        ),
    ];
    for (break_it, severity, part, text) in rows {
        let history = History::default();
        let mut now = well();
        history.record(&now, Duration::ZERO);
        break_it(&mut now);
        let found = find_problems(&now, &history);
        let expected = Problem {
            severity,
            part: part.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(found, [expected]);
    }
}

#[test]
fn an_application_with_servers_of_its_own_is_one_problem() {
    let mut now = well();
    (now.apps[0].state, now.apps[0].last_failure) = ("failing".into(), None);
    now.upstreams[0].name = now.apps[0].name.clone();
    now.upstreams[0].up = false;
    let found = find_problems(&now, &History::default());
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn the_list_is_bounded_with_errors_first() {
    let mut now = well();
    (now.apps[0].state, now.apps[0].last_failure) = ("starting".into(), None);
    now.apps = vec![now.apps[0].clone(); MAX_PROBLEMS + 10];
    now.upstreams[0].servers[1].state = "down";
    let found = find_problems(&now, &History::default());
    assert_eq!(found.len(), MAX_PROBLEMS);
    assert_eq!(found[0].part, "upstream backends");
    assert_eq!(
        found[MAX_PROBLEMS - 1].text,
        "12 more problems are not listed here."
    );
}

#[test]
fn a_cause_is_one_line_and_bounded() {
    let mut now = well();
    now.reload_error = Some(format!("{}\nmore", "\u{e9}".repeat(MAX_CAUSE_CHARS + 1)));
    let text = &find_problems(&now, &History::default())[0].text;
    assert!(text.ends_with("\u{e9}\u{2026}.") && text.chars().count() < MAX_CAUSE_CHARS + 80);
}
