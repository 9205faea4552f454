//! `bench hold` against real sockets in real processes: streams opened and lost, receipts, and
//! costs.
//!
//! Without the usual harness, since an agent is a copy of the running program, here of this one:
//! `main` is the agents' verb, a stand-in for a bench that gets killed, or the list of tests.
//! `server` serves the streams. Waits end with their condition or fail at their deadline.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test program without loops, whose output is its report"
)]

mod server;
mod socket;
mod tls;

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock_bench::hold::{
    self, HoldPhase, HoldPlan, HoldProgress, OpenLoopSettings, ProbeSpec, PublishSpec, SourceRange,
    StreamTarget, execute,
};
use penstock_bench::load::{Address, raise_descriptor_limit};
use penstock_bench::report::{HoldResult, LostStreams};
use penstock_bench::tls::TlsSettings;
use rustix::process::{Pid, Signal, kill_process};
use server::Server;

const TESTS: &[(&str, fn())] = &[
    (
        "holds_streams_of_every_framing_from_many_addresses",
        holds_streams_of_every_framing_from_many_addresses,
    ),
    ("every_loss_has_its_name", every_loss_has_its_name),
    (
        "every_message_arrives_once_and_is_timed",
        every_message_arrives_once_and_is_timed,
    ),
    (
        "what_a_stream_misses_or_gets_twice_is_counted",
        what_a_stream_misses_or_gets_twice_is_counted,
    ),
    (
        "others_are_asked_for_meanwhile",
        others_are_asked_for_meanwhile,
    ),
    (
        "streams_are_opened_again_and_some_never_read",
        streams_are_opened_again_and_some_never_read,
    ),
    ("a_stream_costs_little_memory", a_stream_costs_little_memory),
    ("holds_streams_with_tls", tls::holds_streams_with_tls),
    (
        "every_loss_with_tls_has_its_name",
        tls::every_loss_with_tls_has_its_name,
    ),
    (
        "a_stream_with_tls_costs_bounded_memory",
        tls::a_stream_with_tls_costs_bounded_memory,
    ),
    (
        "an_agent_that_is_killed_has_lost_its_streams",
        an_agent_that_is_killed_has_lost_its_streams,
    ),
    (
        "no_agent_outlives_a_bench_that_is_killed",
        no_agent_outlives_a_bench_that_is_killed,
    ),
    ("an_interrupt_reports_so_far", an_interrupt_reports_so_far),
    (
        "without_a_server_it_is_given_up",
        without_a_server_it_is_given_up,
    ),
    (
        "an_agent_that_cannot_start_is_an_error",
        an_agent_that_cannot_start_is_an_error,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    raise_descriptor_limit();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bench", "hold-agent"] => hold::run_agent(),
        ["stand-in", address] => stand_in(address.parse().unwrap()),
        ["--list", ..] => {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
            ExitCode::SUCCESS
        }
        filters => run_tests(filters),
    }
}

fn run_tests(filters: &[&str]) -> ExitCode {
    let filters: Vec<&&str> = filters.iter().filter(|one| !one.starts_with('-')).collect();
    let is_asked =
        |name: &str| filters.is_empty() || filters.iter().any(|one| name.contains(**one));
    let mut failed = 0;
    for (name, test) in TESTS.iter().filter(|(name, _)| is_asked(name)) {
        let passed = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    ExitCode::from(u8::from(failed > 0))
}

// ---- the tests ----------------------------------------------------------------------------------

fn holds_streams_of_every_framing_from_many_addresses() {
    let server = Server::start(Duration::from_millis(50));
    let mut plan = plan(
        &server,
        &["/chunked", "/until-close", "/pieces"],
        &[150, 150],
    );
    // As many ports as streams, so that every one is used.
    let source = |last: u8, first_port: u16| SourceRange {
        address: [127, 64, 9, last].into(),
        first_port,
        last_port: first_port + 74,
    };
    plan.sources = vec![
        vec![source(1, 40_000), source(2, 40_000)],
        vec![source(1, 41_000), source(3, 40_000)],
    ];
    let hold = run(&plan);
    assert!(
        hold.is_clean(),
        "{:?} {:?}",
        hold.counts,
        hold.first_reasons
    );
    let counts = hold.counts;
    assert_eq!((counts.begun, counts.opened, counts.open), (300, 300, 300));
    assert_eq!((counts.max_open, hold.opening.count), (300, 300));
    assert!(
        counts.comments >= 300 && counts.receipts >= 300,
        "{counts:?}"
    );
    assert!(counts.bytes > 300 * 60);
    assert_eq!((hold.agents, hold.sources, hold.streams), (2, 4, 300));
    assert!(hold.opening.min > 0 && hold.opening_seconds > 0.0);
    let samples = &hold.samples;
    assert!(samples.len() >= 3 && samples[0].is_opening && samples[0].open == 0);
    assert_eq!(samples.last().unwrap().open, 300);
    assert!(hold.cost.tool_bytes > 0 && hold.cost.kernel_bytes.is_some());
}

fn every_loss_has_its_name() {
    let server = Server::start(Duration::from_millis(50));
    let paths = [
        "/503",
        "/ended",
        "/closed",
        "/reset",
        "/malformed",
        "/silent",
        "/never",
        "/chunked",
    ];
    let mut plan = plan(&server, &paths, &[90, 90]);
    plan.stream_targets.push(nowhere());
    plan.hold = Duration::from_secs(4);
    plan.heartbeat = Some(Duration::from_millis(1500));
    plan.grace = Duration::from_millis(500);
    plan.timeout = Duration::from_millis(1500);
    let hold = run(&plan);
    let expected = LostStreams {
        status: 20,
        ended: 20,
        closed: 20,
        reset: 20,
        malformed: 20,
        silent: 20,
        timeout: 20,
        refused: 20,
        ..LostStreams::default()
    };
    assert_eq!(hold.counts.lost, expected, "{:?}", hold.first_reasons);
    assert_eq!((hold.counts.open, hold.counts.begun), (20, 180));
    assert_eq!(hold.statuses, [("503".to_owned(), 20)].into());
    assert_eq!(hold.first_reasons["status"], "response status 503");
    assert!(
        hold.first_reasons["refused"].contains("refused"),
        "{:?}",
        hold.first_reasons
    );
    assert_eq!(hold.first_reasons.len(), 8);
}

fn every_message_arrives_once_and_is_timed() {
    let server = Server::start(Duration::from_millis(50));
    let mut plan = plan(&server, &["/chunked", "/until-close"], &[30, 31]);
    plan.publish = Some(publish(&server));
    plan.hold = Duration::from_millis(1500);
    let hold = run(&plan);
    assert!(hold.is_clean(), "{:?} {:?}", hold.counts, hold.published);
    let published = hold.published.unwrap();
    assert!(published.accepted >= 5, "{published:?}");
    assert_eq!(hold.counts.received, published.accepted * 61);
    assert_eq!(published.latency.count, hold.counts.received);
    assert_eq!(published.last_receipt.count, published.accepted);
    assert_eq!(published.accepting.count, published.accepted);
    assert!(published.latency.min > 0 && published.latency.max <= published.last_receipt.max);
    assert!(
        hold.samples
            .iter()
            .any(|sample| sample.latency_p99.is_some())
    );
}

fn what_a_stream_misses_or_gets_twice_is_counted() {
    let server = Server::mischievous(Duration::from_millis(50));
    let mut plan = plan(&server, &["/chunked"], &[10]);
    plan.publish = Some(publish(&server));
    plan.hold = Duration::from_millis(1500);
    let hold = run(&plan);
    assert!(!hold.is_clean());
    assert_eq!((hold.counts.missed, hold.counts.repeated), (1, 1));
    assert_eq!(hold.counts.lost.total(), 0);
    let published = hold.published.unwrap();
    assert_eq!(hold.counts.received, published.accepted * 10);
}

fn others_are_asked_for_meanwhile() {
    let server = Server::start(Duration::from_millis(50));
    let mut plan = plan(&server, &["/chunked"], &[10]);
    plan.probe = Some(asking(&server, "/page"));
    let hold = run(&plan);
    let probe = hold.probe.as_ref().unwrap();
    assert!(hold.is_clean(), "{probe:?}");
    assert!(
        probe.requests >= 10 && probe.total.count == probe.requests,
        "{probe:?}"
    );
    assert!(probe.while_held.count > 0 && probe.while_held.count < probe.total.count);
    assert!(
        hold.samples
            .iter()
            .any(|sample| sample.probe_mean.is_some())
    );
    plan.probe = Some(asking(&server, "/missing"));
    let hold = run(&plan);
    let probe = hold.probe.as_ref().unwrap();
    assert!(!hold.is_clean() && probe.errors == probe.requests && probe.errors > 0);
    assert_eq!(probe.first_error.as_deref(), Some("response status 404"));
}

fn streams_are_opened_again_and_some_never_read() {
    let server = Server::start(Duration::from_millis(50));
    let mut plan = plan(&server, &["/chunked"], &[40]);
    plan.unread_one_in = Some(10);
    plan.heartbeat = Some(Duration::from_secs(5));
    let hold = run(&plan);
    assert!(hold.is_clean(), "{:?}", hold.counts);
    assert_eq!((hold.counts.unread, hold.counts.unread_closed), (4, 0));
    plan.unread_one_in = None;
    plan.churn = 200.0;
    let hold = run(&plan);
    assert!(
        hold.is_clean(),
        "{:?} {:?}",
        hold.counts,
        hold.first_reasons
    );
    let counts = hold.counts;
    assert!(counts.renewed > 20, "{counts:?}");
    assert_eq!(counts.begun, 40 + counts.renewed);
    assert!(counts.open <= 40 && counts.max_open <= 40, "{counts:?}");
    // Reopened streams are counted separately.
    assert!(counts.opened > 50, "{counts:?}");
    assert!(
        (counts.max_open..=40).contains(&hold.opened_first()),
        "{counts:?}"
    );
}

fn a_stream_costs_little_memory() {
    let server = Server::start(Duration::from_millis(200));
    let streams = 5000;
    // The agent's own memory, including the table, does not count for the streams.
    let alone = run(&plan(&server, &["/chunked"], &[1]));
    let mut plan = plan(&server, &["/chunked", "/pieces"], &[streams]);
    plan.rate = 5000.0;
    plan.publish = Some(publish(&server));
    plan.timeout = Duration::from_secs(20);
    let hold = run(&plan);
    assert!(
        hold.is_clean(),
        "{:?} {:?}",
        hold.counts,
        hold.first_reasons
    );
    let before = alone.cost.tool_bytes;
    assert!(before > 0 && hold.cost.tool_bytes > before);
    let each = (hold.cost.tool_bytes - before) / u64::from(streams - 1);
    println!("  {each} bytes a stream");
    assert!(each <= 700, "{each} bytes a stream");
}

fn an_agent_that_is_killed_has_lost_its_streams() {
    let server = Server::start(Duration::from_millis(50));
    let mut plan = plan(&server, &["/chunked"], &[12, 8]);
    plan.hold = Duration::from_secs(30);
    let mut is_killed = false;
    let stop = Arc::clone(&plan.stop);
    let hold = watched(&plan, |progress| {
        if progress.phase == HoldPhase::Holding && !is_killed {
            is_killed = true;
            kill(*agents_of(std::process::id()).first().unwrap());
        }
        if progress.counts.lost.agent > 0 {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let lost = hold.counts.lost;
    assert!(lost.agent == 12 || lost.agent == 8, "{lost:?}");
    assert_eq!(
        (lost.total(), hold.counts.open),
        (lost.agent, 20 - lost.agent)
    );
    let note = hold.notes.join("; ");
    assert!(note.contains("ended unexpectedly: signal: 9"), "{note}");
}

fn no_agent_outlives_a_bench_that_is_killed() {
    let server = Server::start(Duration::from_millis(50));
    let mut bench = Command::new(std::env::current_exe().unwrap())
        .args(["stand-in", &server.address.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    until("the streams are held", || server.streams() == 20);
    let agents = agents_of(bench.id());
    assert_eq!(agents.len(), 2);
    bench.kill().unwrap();
    bench.wait().unwrap();
    until("the agents are gone", || {
        agents.iter().all(|pid| !is_alive(*pid))
    });
    until("the streams are gone", || server.streams() == 0);
}

fn an_interrupt_reports_so_far() {
    let server = Server::start(Duration::from_millis(50));
    let mut plan = plan(&server, &["/chunked"], &[100_000]);
    plan.rate = 20.0;
    plan.hold = Duration::from_secs(3600);
    let stop = Arc::clone(&plan.stop);
    let begun = Instant::now();
    let hold = watched(&plan, |progress| {
        if progress.counts.open >= 3 {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "long before all are open"
    );
    assert!(hold.counts.open >= 3 && hold.counts.open < 100_000);
    assert!(hold.counts.lost.total() == 0 && !hold.is_clean());
}

fn without_a_server_it_is_given_up() {
    let server = Server::start(Duration::from_millis(50));
    let mut plan = plan(&server, &["/chunked"], &[100_000]);
    plan.stream_targets = vec![nowhere()];
    plan.rate = 2000.0;
    let hold = run(&plan);
    let refused = hold.counts.lost.refused;
    assert!((1000..100_000).contains(&refused), "{:?}", hold.counts);
    assert!(
        hold.notes[0].contains("was given up after"),
        "{:?}",
        hold.notes
    );
}

fn an_agent_that_cannot_start_is_an_error() {
    let server = Server::start(Duration::from_millis(50));
    let plan = plan(&server, &["/chunked"], &[5]);
    let why = execute(&plan, "/no/such/program".as_ref(), &mut |_| {}).unwrap_err();
    assert!(why.to_string().contains("/no/such/program"), "{why}");
    let why = execute(&plan, "/bin/true".as_ref(), &mut |_| {}).unwrap_err();
    assert!(why.to_string().contains("agent 0"), "{why}");
}

// ---- what the tests share -----------------------------------------------------------------------

/// The streams of these agents, at these paths in turn.
fn plan(server: &Server, paths: &[&str], shares: &[u32]) -> HoldPlan {
    let goal = |path: &&str| StreamTarget {
        address: server.address,
        server_name: None,
        request: format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"),
    };
    HoldPlan {
        targets: paths.iter().map(|path| server.url(path)).collect(),
        stream_targets: paths.iter().map(goal).collect(),
        shares: shares.to_vec(),
        sources: vec![Vec::new(); shares.len()],
        rate: 2000.0,
        hold: Duration::from_millis(800),
        heartbeat: Some(Duration::from_secs(20)),
        grace: Duration::from_secs(5),
        timeout: Duration::from_secs(10),
        churn: 0.0,
        unread_one_in: None,
        publish: None,
        probe: None,
        tls: TlsSettings::default(),
        servers: Vec::new(),
        baseline_time: Duration::ZERO,
        sample_interval: Duration::from_millis(100),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

fn publish(server: &Server) -> PublishSpec {
    let content = "data: {message}\n\n";
    let formats = serde_json::json!({ "http-stream": { "content": content } });
    let body = serde_json::json!({ "items": [{ "channel": "a", "formats": formats }] });
    PublishSpec {
        target: server.url("/publish/"),
        open_loop: pace(server, 20.0),
        head: "POST /publish/ HTTP/1.1\r\nHost: test\r\n".to_owned(),
        body: body.to_string(),
        channel: "a".to_owned(),
    }
}

fn asking(server: &Server, path: &str) -> ProbeSpec {
    ProbeSpec {
        target: server.url(path),
        open_loop: pace(server, 50.0),
        request: format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").into(),
    }
}

fn pace(server: &Server, rate: f64) -> OpenLoopSettings {
    OpenLoopSettings {
        address: Address::Tcp(server.address),
        tls: None,
        rate,
        timeout: Duration::from_secs(10),
    }
}

/// A port without a listener.
fn nowhere() -> StreamTarget {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    StreamTarget {
        address: listener.local_addr().unwrap(),
        server_name: None,
        request: "GET / HTTP/1.1\r\n\r\n".to_owned(),
    }
}

fn run(plan: &HoldPlan) -> HoldResult {
    watched(plan, |_| {})
}

fn watched(plan: &HoldPlan, mut watch: impl FnMut(&HoldProgress)) -> HoldResult {
    let program = std::env::current_exe().unwrap();
    let hold = execute(plan, &program, &mut watch).unwrap();
    until("the agents are gone", || {
        agents_of(std::process::id()).is_empty()
    });
    hold
}

/// A bench that holds 20 streams until it is killed.
fn stand_in(address: SocketAddr) -> ExitCode {
    let request = "GET /chunked HTTP/1.1\r\nHost: test\r\n\r\n".to_owned();
    let plan = HoldPlan {
        targets: Vec::new(),
        stream_targets: vec![StreamTarget {
            address,
            server_name: None,
            request,
        }],
        shares: vec![10, 10],
        sources: Vec::new(),
        rate: 1000.0,
        hold: Duration::from_secs(600),
        heartbeat: None,
        grace: Duration::ZERO,
        timeout: Duration::from_secs(10),
        churn: 0.0,
        unread_one_in: None,
        publish: None,
        probe: None,
        tls: TlsSettings::default(),
        servers: Vec::new(),
        baseline_time: Duration::ZERO,
        sample_interval: Duration::from_secs(1),
        stop: Arc::new(AtomicBool::new(false)),
    };
    let program = std::env::current_exe().unwrap();
    match execute(&plan, &program, &mut |_| {}) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The living children of a process that are agents.
fn agents_of(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_agent = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_alive(*pid) && parent_of(*pid) == Some(parent) && line.ends_with("hold-agent\0")
    };
    pids.filter(is_agent).collect()
}

fn stat_of(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = text.rsplit_once(')')?;
    Some(behind.split_whitespace().map(str::to_owned).collect())
}

fn parent_of(pid: u32) -> Option<u32> {
    stat_of(pid)?.get(1)?.parse().ok()
}

fn is_alive(pid: u32) -> bool {
    stat_of(pid).is_some_and(|stat| stat[0] != "Z")
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// Waits for a condition, at most 20 s.
fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
