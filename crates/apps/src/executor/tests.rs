//! Real processes of `command` and `fastcgi` applications, started and ended by the executor.
//!
//! Small Python programs stand for servers of any kind; [`FakeServerSet`] stands for the upstream
//! and keeps what it is told. Each test drives one [`App`] on a loop of its own and drains it at
//! the end, which also proves that no process is left.

#![allow(clippy::disallowed_methods, reason = "tests may wait for a disk")]

mod ends;
mod refork;
mod templates;

use penstock_runtime::{clock, loops};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;

use penstock_config::{AppKind, ServerAddr, UpstreamServer};
use penstock_exchange::buffering::BufferingSettings;
use penstock_runtime::blocking::Pool;

use super::*;
use crate::server_set::ServerSet;
use crate::{App, AppResources, QueueUsage};

/// How long anything may take on a machine that has much to do.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A server in the manner of its first argument (`port`, `variable`, `path`, `fd`), at the address
/// that is the second. It answers each connection with its process id.
const SERVER: &str = r#"
import os, socket, sys
way, place = sys.argv[1:3]
if way == "fd":
    listener = socket.socket(fileno=int(place))
else:
    family = socket.AF_UNIX if way == "path" else socket.AF_INET
    listener = socket.socket(family)
    port = os.environ["PORT"] if way == "variable" else place
    listener.bind(place if way == "path" else ("127.0.0.1", int(port)))
    listener.listen()
while True:
    client, _ = listener.accept()
    if client.recv(1000):
        client.sendall(b"%d %s" % (os.getpid(), os.environ.get("PORT", "-").encode()))
    client.close()
"#;

/// An upstream that keeps its addresses.
#[derive(Debug)]
struct FakeServerSet {
    listed: watch::Sender<Vec<(ServerAddr, u64)>>,
    /// Where a request is in progress.
    in_progress_count: Mutex<Option<ServerAddr>>,
}

impl ServerSet for FakeServerSet {
    fn add(&self, server: UpstreamServer, generation: u64) {
        self.listed.send_modify(|listed| {
            assert!(listed.iter().all(|(address, _)| *address != server.address));
            listed.push((server.address, generation));
        });
    }

    fn remove(&self, address: &ServerAddr) {
        self.listed
            .send_modify(|listed| listed.retain(|(listed, _)| listed != address));
    }

    fn in_progress(&self, address: &ServerAddr) -> usize {
        usize::from(self.in_progress_count.lock().unwrap().as_ref() == Some(address))
    }

    fn consecutive_timeouts(&self, _: &ServerAddr) -> usize {
        0
    }

    fn queue_usage(&self) -> QueueUsage {
        QueueUsage::default()
    }
}

impl FakeServerSet {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            listed: watch::Sender::new(Vec::new()),
            in_progress_count: Mutex::default(),
        })
    }

    /// Waits until the servers are as wanted, and gives them.
    async fn when(&self, wanted: impl FnMut(&Vec<(ServerAddr, u64)>) -> bool) -> Vec<ServerAddr> {
        let mut listed = self.listed.subscribe();
        let listed = within(listed.wait_for(wanted)).await;
        let listed = listed.expect("the set lives").clone();
        listed.into_iter().map(|(address, _)| address).collect()
    }
}

/// A folder that goes with the test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let name = format!("penstock-test-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        entries.map(name).collect()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = clock::timeout(TEST_TIMEOUT, work).await;
    done.expect("it comes to something in time")
}

/// Looks again and again.
async fn until(is_so: impl Fn() -> bool) {
    let mut pace = clock::PollInterval::new(Duration::from_millis(5));
    within(async {
        while !is_so() {
            pace.tick().await;
        }
    })
    .await;
}

fn on_a_loop(test: impl Future<Output = ()>) {
    // It hears of children that ended through tokio.
    let tokio = penstock_runtime::start_tokio().unwrap();
    let _entered = tokio.enter();
    loops::block_on(test).unwrap();
}

fn app(dir: &TempDir, kind: AppKind, words: &[&str]) -> config::App {
    let mut app = config::App::new("shop", dir.0.clone(), kind, "");
    app.command = words.iter().map(ToString::to_string).collect();
    app.processes = config::Processes::exactly(1);
    app.boot_timeout = TEST_TIMEOUT;
    app
}

/// Starts an application that is quicker to lose its patience than a real one.
fn start(app: config::App, dir: &TempDir, servers: &Arc<FakeServerSet>) -> Arc<App> {
    let policy = quick_policy(&app);
    App::start_with_policy(
        policy,
        app,
        &setup(dir),
        Arc::clone(servers) as Arc<dyn ServerSet>,
    )
}

fn quick_policy(app: &config::App) -> SupervisorPolicy {
    SupervisorPolicy {
        stop_timeout: Duration::from_millis(300),
        ..App::supervisor_policy(app)
    }
}

fn setup(dir: &TempDir) -> AppResources {
    AppResources {
        loops: Vec::new(),
        launcher: None,
        account: None,
        cgroup: None,
        buffering_settings: BufferingSettings {
            max_body_memory: 0,
            max_response_memory: 0,
            max_response_spool: 0,
            min_busy_rate: 0,
            rate_grace: Duration::ZERO,
            temp_dir: dir.0.clone(),
            temp_space: Arc::default(),
            pool: Pool::new("default", 1, 1),
        },
        yields_cpu_at_boot: false,
        is_development: false,
        initial_size: None,
        owner: None,
    }
}

/// Ends an application; nothing of it may be left.
async fn end(app: &App, dir: &TempDir, servers: &FakeServerSet) {
    within(app.drain(clock::now() + Duration::from_secs(1))).await;
    assert_eq!(app.snapshot().workers.len(), 0);
    assert_eq!(servers.when(|_| true).await, []);
    let left: Vec<_> = dir.entries();
    let is_ours = |name: &&String| name.starts_with("penstock-");
    assert_eq!(left.iter().find(is_ours), None, "folders of sockets");
}

/// What a server answers to a line: its process id and its `PORT`.
fn ask(address: &ServerAddr) -> (u32, String) {
    let mut answer = String::new();
    match address {
        ServerAddr::Tcp(address) => exchange(TcpStream::connect(address).unwrap(), &mut answer),
        ServerAddr::Unix(path) => exchange(UnixStream::connect(path).unwrap(), &mut answer),
        other => panic!("{other:?}"),
    }
    let (pid, port) = answer.split_once(' ').expect("two words");
    (pid.parse().unwrap(), port.to_owned())
}

fn exchange(mut stream: impl Read + Write, answer: &mut String) {
    stream.write_all(b"who are you\n").unwrap();
    stream.read_to_string(answer).unwrap();
}

/// Whether a process runs; one that has ended may still wait to be reaped.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn tcp(address: &ServerAddr) -> SocketAddr {
    match address {
        ServerAddr::Tcp(address) => *address,
        other => panic!("{other:?}"),
    }
}

#[test]
fn any_http_server_that_takes_a_port_is_used() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("http"), FakeServerSet::new());
        dir.put("hello.txt", "hello");
        let words = [
            "python3",
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            "{port}",
        ];
        let mut config = app(&dir, AppKind::Command, &words);
        config.processes = config::Processes::exactly(2);
        let app = start(config, &dir, &servers);
        let ready = within(app.wait_until_up()).await.expect("it runs");
        assert_eq!(ready.1, "python3");
        let listed = servers.when(|listed| listed.len() == 2).await;
        assert_ne!(listed[0], listed[1]);
        for address in &listed {
            let mut stream = TcpStream::connect(tcp(address)).unwrap();
            stream
                .write_all(b"GET /hello.txt HTTP/1.0\r\n\r\n")
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
            assert!(answer.ends_with("hello"), "{answer}");
        }
        let workers = app.snapshot().workers.into_iter();
        let mut shown: Vec<_> = workers.filter_map(|w| w.address).collect();
        let mut addresses: Vec<_> = listed.iter().map(|a| tcp(a).to_string()).collect();
        shown.sort();
        addresses.sort();
        assert_eq!(shown, addresses);
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_process_listens_at_the_address_of_its_placeholder() {
    let rows = [
        ("port", "{port}"),
        ("variable", "-"),
        ("path", "{socket}"),
        ("fd", "{fd}"),
    ];
    for (way, blank) in rows {
        on_a_loop(async {
            let (dir, servers) = (TempDir::new(way), FakeServerSet::new());
            let script = dir.put("server.py", SERVER);
            let mut config = app(&dir, AppKind::Command, &["python3", &script, way, blank]);
            if way == "variable" {
                let other = [("PORT".to_owned(), "1".to_owned())];
                config.env = std::collections::BTreeMap::from(other).into();
            }
            let app = start(config, &dir, &servers);
            let listed = servers.when(|listed| listed.len() == 1).await;
            let (pid, port) = ask(&listed[0]);
            assert_eq!(app.snapshot().workers[0].pid, Some(pid), "{way}");
            let expected = match way {
                "port" | "variable" => tcp(&listed[0]).port().to_string(),
                _ => "-".to_owned(),
            };
            assert_eq!(port, expected, "{way}: PORT");
            if let ServerAddr::Unix(path) = &listed[0] {
                assert!(path.starts_with(&dir.0), "below limits.temp_dir");
            }
            end(&app, &dir, &servers).await;
        });
    }
}

#[test]
fn an_inherited_socket_is_announced_as_by_a_service_manager() {
    const ACTIVATED: &str = r#"
import os, socket
assert os.environ["LISTEN_PID"] == str(os.getpid())
assert os.environ["LISTEN_FDS"] == "1"
listener = socket.socket(fileno=3)
while True:
    client, _ = listener.accept()
    if client.recv(1000):
        client.sendall(b"%d -" % os.getpid())
    client.close()
"#;
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("activated"), FakeServerSet::new());
        let script = dir.put("server.py", ACTIVATED);
        let config = app(&dir, AppKind::Command, &["python3", &script, "{fd}"]);
        let app = start(config, &dir, &servers);
        let listed = servers.when(|listed| listed.len() == 1).await;
        assert_eq!(app.snapshot().workers[0].pid, Some(ask(&listed[0]).0));
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_fastcgi_program_finds_its_socket_as_descriptor_0() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("fastcgi"), FakeServerSet::new());
        let script = dir.put("server.py", SERVER);
        let mut config = app(&dir, AppKind::FastCgi, &["python3", &script, "fd", "0"]);
        config.processes = config::Processes::exactly(3);
        let app = start(config, &dir, &servers);
        let listed = servers.when(|listed| listed.len() == 3).await;
        let mut pids = Vec::new();
        for address in &listed {
            assert!(matches!(address, ServerAddr::Unix(_)), "{address:?}");
            pids.push(ask(address).0);
        }
        pids.sort_unstable();
        let workers = app.snapshot().workers.into_iter();
        let mut expected: Vec<_> = workers.filter_map(|worker| worker.pid).collect();
        expected.sort_unstable();
        assert_eq!(pids, expected, "one socket a process");
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_fastcgi_program_that_a_bare_connection_would_end_is_ready_and_lives() {
    // As the Ruby library without its C part.
    const FRAIL: &str = r#"
import os, socket, sys
way, place = sys.argv[1:3]
if way == "path":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
else:
    listener = socket.socket(fileno=int(place))
while True:
    client, _ = listener.accept()
    if not client.recv(1000):
        sys.exit("unexpected EOF")
    client.sendall(b"%d -" % os.getpid())
    client.close()
"#;
    for (way, place) in [("stdin", "0"), ("fd", "{fd}"), ("path", "{socket}")] {
        on_a_loop(async {
            let (dir, servers) = (TempDir::new(&format!("frail-{way}")), FakeServerSet::new());
            let script = dir.put("server.py", FRAIL);
            let config = app(&dir, AppKind::FastCgi, &["python3", &script, way, place]);
            let app = start(config, &dir, &servers);
            let listed = servers.when(|listed| listed.len() == 1).await;
            let worker = app.snapshot().workers.remove(0);
            assert_eq!(Some(ask(&listed[0]).0), worker.pid, "{way}");
            assert_eq!(worker.restarts, 0, "{way}");
            end(&app, &dir, &servers).await;
        });
    }
}

#[test]
fn a_fastcgi_program_that_ends_soon_was_never_ready() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("short"), FakeServerSet::new());
        let words = ["sh", "-c", "echo nothing_of_the_kind >&2; exit 1"];
        let app = start(app(&dir, AppKind::FastCgi, &words), &dir, &servers);
        let BootStatus::Failed { report } = within(app.wait_for_boot()).await else {
            panic!("it cannot have started");
        };
        assert!(report.contains("nothing_of_the_kind"), "{report}");
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_process_that_only_listens_is_not_ready() {
    const LATE: &str = r#"
import os, select, socket, sys, time
listener = socket.socket(fileno=int(sys.argv[1]))
select.select([listener], [], [])
open("called", "w").close()
while not os.path.exists("loaded"):
    time.sleep(0.01)
while True:
    client, _ = listener.accept()
    client.recv(1000)
    client.close()
"#;
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("late"), FakeServerSet::new());
        let script = dir.put("server.py", LATE);
        let config = app(&dir, AppKind::Command, &["python3", &script, "{fd}"]);
        let app = start(config, &dir, &servers);
        until(|| dir.0.join("called").exists()).await;
        let soon = clock::now() + probe::PROBE_CLOSE_TIMEOUT + Duration::from_millis(200);
        let mut listed = servers.listed.subscribe();
        let early = clock::timeout_at(soon, listed.wait_for(|listed| !listed.is_empty())).await;
        assert!(early.is_none(), "it has not accepted anything");
        drop(early);
        dir.put("loaded", "");
        servers.when(|listed| listed.len() == 1).await;
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_server_that_leaves_connections_open_is_ready_all_the_same() {
    const MUTE: &str = r#"
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
clients = []
while True:
    clients.append(listener.accept())
"#;
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("mute"), FakeServerSet::new());
        let script = dir.put("server.py", MUTE);
        let config = app(&dir, AppKind::Command, &["python3", &script, "{port}"]);
        let app = start(config, &dir, &servers);
        servers.when(|listed| listed.len() == 1).await;
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_program_that_does_not_start_is_reported_in_its_own_words() {
    let rows: [(&str, &[&str], &str); 4] = [
        (
            "dies",
            &["python3", "-c", "import nothing_of_the_kind # {port}"],
            "No module named 'nothing_of_the_kind'",
        ),
        (
            "daemon",
            &["python3", "-c", "# {port}"],
            "it has to stay in the foreground",
        ),
        (
            "missing",
            &["no-such-program", "{port}"],
            "`no-such-program` not found in PATH",
        ),
        ("no file", &["./server", "{port}"], "/server` not found"),
    ];
    for (name, words, expected) in rows {
        on_a_loop(async {
            let (dir, servers) = (TempDir::new(name), FakeServerSet::new());
            let app = start(app(&dir, AppKind::Command, words), &dir, &servers);
            let BootStatus::Failed { report } = within(app.wait_for_boot()).await else {
                panic!("{name}: it cannot have started");
            };
            assert!(report.contains(expected), "{name}: {report}");
            let refusal = app.refusal_fault().expect("requests need not wait");
            assert_eq!(refusal.detail.as_deref(), Some(report.as_str()), "{name}");
            end(&app, &dir, &servers).await;
        });
    }
}

#[test]
fn a_program_that_does_not_answer_is_given_up() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("silent"), FakeServerSet::new());
        let words = ["sh", "-c", "echo listening elsewhere; sleep 1000", "{port}"];
        let mut config = app(&dir, AppKind::Command, &words);
        config.boot_timeout = Duration::from_millis(500);
        let app = start(config, &dir, &servers);
        let BootStatus::Failed { report } = within(app.wait_for_boot()).await else {
            panic!("it cannot have started");
        };
        assert!(report.contains("did not answer at 127.0.0.1:"), "{report}");
        assert!(report.contains("listening elsewhere"), "{report}");
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn another_port_is_tried_after_one_was_in_use() {
    const UNLUCKY: &str = r#"
import os, socket, sys
if not os.path.exists("tried"):
    open("tried", "w").write(sys.argv[1])
    sys.exit("Address already in use")
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    listener.accept()[0].close()
"#;
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("unlucky"), FakeServerSet::new());
        let script = dir.put("server.py", UNLUCKY);
        let config = app(&dir, AppKind::Command, &["python3", &script, "{port}"]);
        let app = start(config, &dir, &servers);
        let listed = servers.when(|listed| listed.len() == 1).await;
        let tried = std::fs::read_to_string(dir.0.join("tried")).unwrap();
        assert_ne!(tcp(&listed[0]).port().to_string(), tried);
        assert!(app.refusal_fault().is_none());
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_process_that_dies_leaves_the_set_at_once_and_is_replaced() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("crash"), FakeServerSet::new());
        let script = dir.put("server.py", SERVER);
        let config = app(
            &dir,
            AppKind::Command,
            &["python3", &script, "path", "{socket}"],
        );
        let app = start(config, &dir, &servers);
        let first = servers.when(|listed| listed.len() == 1).await;
        let (pid, _) = ask(&first[0]);
        process::kill_group(pid).unwrap();
        servers.when(Vec::is_empty).await;
        let second = servers.when(|listed| listed.len() == 1).await;
        assert_ne!(first, second, "an address is not used twice");
        assert_ne!(ask(&second[0]).0, pid);
        assert_eq!(app.metrics().crashed_workers.value(), 1);
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_process_ends_only_when_nothing_is_in_progress_and_its_successor_serves() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("roll"), FakeServerSet::new());
        let script = dir.put("server.py", SERVER);
        let config = app(
            &dir,
            AppKind::Command,
            &["python3", &script, "port", "{port}"],
        );
        let app = start(config, &dir, &servers);
        let first = servers.when(|listed| listed.len() == 1).await;
        let (pid, _) = ask(&first[0]);
        *servers.in_progress_count.lock().unwrap() = Some(first[0].clone());
        within(app.restart()).await.expect("the new code boots");
        let second = servers.when(|listed| listed.len() == 1).await;
        assert_ne!(first, second);
        assert_eq!(
            servers.listed.borrow()[0].1,
            2,
            "the generation that serves"
        );
        assert!(is_alive(pid), "a request is in progress there");
        assert_eq!(ask(&first[0]).0, pid);
        *servers.in_progress_count.lock().unwrap() = None;
        until(|| !is_alive(pid)).await;
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_request_without_end_does_not_keep_an_old_process_for_ever() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("endless"), FakeServerSet::new());
        let script = dir.put("server.py", SERVER);
        let words = ["python3", &script, "port", "{port}"];
        let mut config = app(&dir, AppKind::Command, &words);
        let mut upstream = config::Upstream::new("shop", config::Protocol::Http, Vec::new());
        upstream.total_timeout = Some(Duration::from_millis(200));
        config.upstream = Some(Box::new(upstream));
        let app = start(config, &dir, &servers);
        let first = servers.when(|listed| listed.len() == 1).await;
        let (pid, _) = ask(&first[0]);
        *servers.in_progress_count.lock().unwrap() = Some(first[0].clone());
        within(app.restart()).await.expect("the new code boots");
        until(|| !is_alive(pid)).await;
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_drain_waits_for_requests_in_progress_until_its_deadline() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("drain"), FakeServerSet::new());
        let script = dir.put("server.py", SERVER);
        let words = ["python3", &script, "port", "{port}"];
        let app = start(app(&dir, AppKind::Command, &words), &dir, &servers);
        let listed = servers.when(|listed| listed.len() == 1).await;
        *servers.in_progress_count.lock().unwrap() = Some(listed[0].clone());
        let deadline = clock::now() + Duration::from_millis(300);
        let drained = app.drain(deadline);
        let mut drained = std::pin::pin!(drained);
        assert!(clock::timeout_at(deadline, &mut drained).await.is_none());
        assert!(servers.listed.borrow().is_empty(), "no new requests");
        within(drained).await;
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn the_old_processes_serve_on_when_new_ones_do_not_boot() {
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("kept"), FakeServerSet::new());
        let script = dir.put("server.py", SERVER);
        let config = app(
            &dir,
            AppKind::Command,
            &["python3", &script, "port", "{port}"],
        );
        let app = start(config, &dir, &servers);
        let first = servers.when(|listed| listed.len() == 1).await;
        dir.put("server.py", "def");
        let why = within(app.restart()).await.expect_err("it cannot boot");
        assert!(why.contains("SyntaxError"), "{why}");
        assert_eq!(servers.when(|_| true).await, first);
        ask(&first[0]);
        end(&app, &dir, &servers).await;
    });
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_with_its_children() {
    const STUBBORN: &str = r#"
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
child = os.fork()
while True:
    client, _ = listener.accept()
    if client.recv(1000):
        client.sendall(b"%d -" % (child or os.getpid()))
    client.close()
"#;
    on_a_loop(async {
        let (dir, servers) = (TempDir::new("stubborn"), FakeServerSet::new());
        let script = dir.put("server.py", STUBBORN);
        let config = app(&dir, AppKind::Command, &["python3", &script, "{port}"]);
        let app = start(config, &dir, &servers);
        let listed = servers.when(|listed| listed.len() == 1).await;
        let (child, _) = ask(&listed[0]);
        let pid = app.snapshot().workers[0].pid.unwrap();
        assert!(is_alive(pid) && is_alive(child));
        end(&app, &dir, &servers).await;
        until(|| !is_alive(pid) && !is_alive(child)).await;
    });
}
