//! Background work of an upstream, with servers on loopback; also shared fixtures of other tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use config::{Protocol, ServerAddr, UpstreamServer};
use penstock_config as config;
use penstock_exchange::buffering::BufferingSettings;
use penstock_runtime::blocking::Pool;
use penstock_runtime::{clock, loops};

use super::server_max_active;
use crate::resolve::DnsSource;
use crate::server_pool::{
    AttemptOutcome, AttemptReport, ClaimOutcome, ClaimedSlot, ReusePolicy, SelectionCriteria,
    ServerId, SlotWaiter,
};
use crate::{ServerSnapshot, Upstream, UpstreamSetup, UpstreamTls};

/// Runs a test on its own loop, as the control loop is one. Its servers run on tokio's thread.
pub(crate) fn run_on_loop(test: impl Future<Output = ()>) {
    let tokio = penstock_runtime::start_tokio().unwrap();
    let _entered = tokio.enter();
    loops::block_on(test).unwrap();
}

/// Waits until the condition becomes true.
pub(crate) async fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < deadline, "never: {what}");
        let soon = Instant::now() + Duration::from_millis(5);
        clock::timeout_at(soon, std::future::pending::<()>()).await;
    }
}

pub(crate) fn server(address: &str) -> UpstreamServer {
    UpstreamServer::new(address.parse().unwrap())
}

/// The configuration of an upstream with these servers.
pub(crate) fn upstream_config(protocol: Protocol, servers: &[&str]) -> config::Upstream {
    let servers = servers.iter().map(|address| server(address)).collect();
    config::Upstream {
        resolve_interval: Duration::from_secs(1),
        ..config::Upstream::new("pool", protocol, servers)
    }
}

pub(crate) fn start(config: config::Upstream) -> Arc<Upstream> {
    start_resolved_by(config, DnsSource::System)
}

/// The same with names resolved by `source`.
pub(crate) fn start_resolved_by(config: config::Upstream, source: DnsSource) -> Arc<Upstream> {
    Upstream::start_with_dns_source(config, setup(None), source)
}

/// The same with TLS to the servers.
pub(crate) fn start_with_tls(config: config::Upstream, tls: UpstreamTls) -> Arc<Upstream> {
    Upstream::start_with_dns_source(config, setup(Some(tls)), DnsSource::System)
}

fn setup(tls: Option<UpstreamTls>) -> UpstreamSetup {
    let store = BufferingSettings {
        max_body_memory: 1024,
        max_response_memory: 1024,
        max_response_spool: 1024,
        min_busy_rate: 0,
        rate_grace: Duration::ZERO,
        temp_dir: std::env::temp_dir(),
        temp_space: Arc::default(),
        pool: Pool::new("bodies", 1, 1),
    };
    UpstreamSetup {
        loop_count: 1,
        buffering_settings: store,
        tls,
    }
}

/// Names and states of the servers.
pub(crate) fn server_states(upstream: &Upstream) -> Vec<(String, &'static str)> {
    let servers = upstream.snapshot().servers.into_iter();
    servers.map(|it| (it.name, it.state)).collect()
}

pub(crate) fn first_server_snapshot(upstream: &Upstream) -> ServerSnapshot {
    upstream.snapshot().servers.remove(0)
}

pub(crate) fn first_server_id(upstream: &Upstream) -> ServerId {
    upstream.shared.server_pool.lock().servers[0].id
}

pub(crate) fn claim(upstream: &Upstream) -> ClaimedSlot {
    let waiter = || SlotWaiter {
        grant_sender: tokio::sync::oneshot::channel().0,
        client: None,
    };
    let want = SelectionCriteria {
        reuse: ReusePolicy::Any,
        ..SelectionCriteria::default()
    };
    let claimed = (upstream.shared).update_pool(|pool| pool.claim(clock::now(), 0, &want, waiter));
    match claimed {
        ClaimOutcome::Slot(slot) => slot,
        other => panic!("no place: {other:?}"),
    }
}

pub(crate) fn release(upstream: &Upstream, slot: &ClaimedSlot) {
    (upstream.shared).update_pool(|pool| pool.release(clock::now(), slot.id, None, &success()));
}

fn success() -> AttemptReport {
    AttemptReport {
        outcome: AttemptOutcome::Success,
        ..AttemptReport::default()
    }
}

/// A server that accepts connections and closes each on command, and counts them.
struct AcceptingServer {
    address: String,
    accepted: Arc<AtomicUsize>,
    close: Arc<tokio::sync::Notify>,
}

async fn accepting_server() -> AcceptingServer {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (accepted, close) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(tokio::sync::Notify::new()),
    );
    let (count, closing) = (Arc::clone(&accepted), Arc::clone(&close));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let closing = Arc::clone(&closing);
            tokio::spawn(async move {
                closing.notified().await;
                drop(stream);
            });
        }
    });
    AcceptingServer {
        address,
        accepted,
        close,
    }
}

#[test]
fn configured_servers_are_added_at_once_with_their_limits() {
    run_on_loop(async {
        let mut config = upstream_config(Protocol::Http, &["127.0.0.1:81", "unix:/run/a.sock"]);
        config.max_active = Some(7);
        config.servers[1].max_active = Some(2);
        config.servers[1].weight = 3;
        let upstream = start(config);
        let seen: Vec<_> = (upstream.snapshot().servers.into_iter())
            .map(|it| (it.name, it.state, it.weight, it.max_active))
            .collect();
        let row = |name: &str, weight, max| (name.to_owned(), "up", weight, Some(max));
        assert_eq!(
            seen,
            [row("127.0.0.1:81", 1, 7), row("unix:/run/a.sock", 3, 2)]
        );
    });
}

#[test]
fn no_server_has_more_in_progress_than_connections() {
    let mut config = upstream_config(Protocol::Http, &[]);
    config.connections.max = 10;
    let rows = [
        ("no limits", None, None, 10),
        ("of the upstream", None, Some(4), 4),
        ("of the server", Some(6), Some(4), 6),
        ("above the connections", Some(60), Some(4), 10),
    ];
    for (name, own, of_upstream, want) in rows {
        config.max_active = of_upstream;
        assert_eq!(server_max_active(&config, own), want, "{name}");
    }
}

#[test]
fn idle_connections_are_opened_in_advance_and_reopened() {
    run_on_loop(async {
        let taker = accepting_server().await;
        let mut config = upstream_config(Protocol::Http, &[&taker.address]);
        config.connections.min = 2;
        let upstream = start(config);
        wait_until("two idle connections", || {
            first_server_snapshot(&upstream).connections_idle == 2
        })
        .await;
        assert_eq!(taker.accepted.load(Ordering::Relaxed), 2);
        assert!(upstream.shared.server_pool.lock().servers[0].open_connections() == 2);
        taker.close.notify_waiters();
        wait_until("two new ones", || {
            taker.accepted.load(Ordering::Relaxed) == 4
                && first_server_snapshot(&upstream).connections_idle == 2
        })
        .await;
        // A request gets the connection, flagged as possibly closed meanwhile.
        let slot = claim(&upstream);
        let connection = slot.idle_connection.as_ref().unwrap();
        assert!(connection.is_reused());
        assert_eq!(first_server_snapshot(&upstream).counters.requests, 1);
    });
}

#[test]
fn a_draining_server_keeps_no_connection_of_a_request_that_ends() {
    run_on_loop(async {
        let taker = accepting_server().await;
        let mut config = upstream_config(Protocol::Http, &[&taker.address]);
        config.connections.min = 2;
        let upstream = start(config);
        wait_until("two idle connections", || {
            first_server_snapshot(&upstream).connections_idle == 2
        })
        .await;
        let mut slot = claim(&upstream);
        let name = first_server_snapshot(&upstream).name;
        let message = upstream.apply_change(crate::ServerChange::Drain(name.clone()));
        let want = format!("{name} is draining, 1 request in progress");
        assert_eq!(message, Ok(want));
        assert_eq!(first_server_snapshot(&upstream).connections_open, 1);
        let kept = slot.idle_connection.take().map(|kept| (kept, usize::MAX));
        let report = success();
        (upstream.shared).update_pool(|pool| pool.release(clock::now(), slot.id, kept, &report));
        let seen = first_server_snapshot(&upstream);
        assert_eq!((seen.active, seen.connections_open), (0, 0));
    });
}

#[test]
fn a_refusing_server_is_retried_with_growing_delays() {
    let mut pause = super::preconnect::next_delay(Duration::from_secs(60), true);
    let mut pauses = vec![pause.as_secs()];
    for _ in 0..8 {
        pause = super::preconnect::next_delay(pause, false);
        pauses.push(pause.as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn no_preconnect_where_a_connection_serves_one_request() {
    let mut config = upstream_config(Protocol::Http, &[]);
    config.connections.min = 2;
    assert!(super::preconnect::is_enabled(&config));
    for protocol in [Protocol::Uwsgi, Protocol::Scgi] {
        config.protocol = protocol;
        assert!(!super::preconnect::is_enabled(&config), "{protocol:?}");
    }
    config.protocol = Protocol::Http;
    config.proxy_protocol = Some(config::ProxyProtocol::V1);
    assert!(!super::preconnect::is_enabled(&config));
}

#[test]
fn an_ejected_server_comes_to_its_trial_without_any_request() {
    run_on_loop(async {
        let mut config = upstream_config(Protocol::Http, &["127.0.0.1:81", "127.0.0.1:82"]);
        config.eject.duration = Duration::from_millis(1);
        let upstream = start(config);
        let (key, now) = (first_server_id(&upstream), clock::now());
        for _ in 0..3 {
            upstream.shared.update_pool(|pool| {
                pool.change_health(now, key, |health| health.record_failure(now, true));
            });
        }
        assert_eq!(first_server_snapshot(&upstream).state, "ejected");
        wait_until("a trial", || {
            first_server_snapshot(&upstream).state == "trial"
        })
        .await;
    });
}

#[test]
fn all_tasks_end_with_the_upstream() {
    run_on_loop(async {
        let taker = accepting_server().await;
        let tasks = || {
            tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks()
        };
        let before = tasks();
        let mut config = upstream_config(Protocol::Http, &[&taker.address, "localhost:81"]);
        config.connections.min = 1;
        config.health = Some(config::HealthCheck {
            interval: Duration::from_millis(50),
            ..config::HealthCheck::default()
        });
        let upstream = start(config);
        wait_until("the name's servers", || {
            upstream.snapshot().servers.len() > 1
        })
        .await;
        wait_until("a task for each", || tasks() >= before + 5).await;
        drop(upstream);
        taker.close.notify_waiters();
        // The connections that were taken end as they are closed.
        wait_until("all tasks end", || {
            taker.close.notify_waiters();
            tasks() <= before
        })
        .await;
    });
}

#[test]
fn a_name_is_no_server_before_it_is_resolved() {
    run_on_loop(async {
        let config = upstream_config(Protocol::Http, &["localhost:81"]);
        let upstream = start(config);
        assert!(server_states(&upstream).is_empty());
        let address: ServerAddr = "localhost:81".parse().unwrap();
        wait_until("an address of it", || {
            let pool = upstream.shared.server_pool.lock();
            let mut members = pool.servers.iter();
            members.any(|it| it.spec.address == address)
        })
        .await;
        let first = first_server_snapshot(&upstream);
        assert_eq!(
            (first.name.as_str(), first.state),
            ("localhost:81 (127.0.0.1)", "up")
        );
        assert_eq!(
            upstream.shared.server_pool.lock().servers[0]
                .server
                .authority
                .as_ref(),
            "localhost:81"
        );
    });
}
