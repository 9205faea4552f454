//! Deployments as real processes: started, monitored, limited, and ended whatever happens.
//!
//! Without the usual harness, since a keeper is a copy of the running program, here of this one:
//! `main` is the keeper's verb, a stand-in for a bench that gets killed, or the list of tests.
//! Waits end with their condition or fail at their deadline.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test program without loops, whose output is its report"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock_bench::deploy::{self, DeployError, ResourceUsage, RunningDeployment, Testbed};
use penstock_bench::scenario::{CoreAssignment, Scenario};

const TESTS: &[(&str, fn())] = &[
    (
        "starts_answers_and_is_gone_after_stop",
        starts_answers_and_is_gone_after_stop,
    ),
    ("a_daemon_is_gone_after_stop", a_daemon_is_gone_after_stop),
    (
        "who_ignores_signals_is_killed",
        who_ignores_signals_is_killed,
    ),
    (
        "all_is_gone_when_the_bench_is_killed",
        all_is_gone_when_the_bench_is_killed,
    ),
    (
        "all_is_gone_when_the_bench_is_killed_while_it_stops",
        all_is_gone_when_the_bench_is_killed_while_it_stops,
    ),
    (
        "all_is_gone_when_the_keeper_is_killed",
        all_is_gone_when_the_keeper_is_killed,
    ),
    (
        "one_that_exits_at_once_has_failed_with_its_log",
        one_that_exits_at_once_has_failed_with_its_log,
    ),
    (
        "one_that_never_answers_times_out_with_its_log",
        one_that_never_answers_times_out_with_its_log,
    ),
    ("a_wrong_answer_fails_at_once", a_wrong_answer_fails_at_once),
    ("bad_gateways_are_waited_for", bad_gateways_are_waited_for),
    (
        "a_command_that_ends_under_load_is_noticed",
        a_command_that_ends_under_load_is_noticed,
    ),
    ("an_interrupt_ends_the_wait", an_interrupt_ends_the_wait),
    ("a_unix_socket_answers", a_unix_socket_answers),
    (
        "counts_the_living_and_the_dead",
        counts_the_living_and_the_dead,
    ),
    ("pins_all_its_processes", pins_all_its_processes),
    (
        "what_runs_beside_is_there_first_is_gone_last_and_is_not_counted",
        what_runs_beside_is_there_first_is_gone_last_and_is_not_counted,
    ),
    (
        "a_deployment_does_not_start_without_what_runs_beside_it",
        a_deployment_does_not_start_without_what_runs_beside_it,
    ),
    ("a_memory_limit_holds", a_memory_limit_holds),
    ("a_disk_limit_holds", a_disk_limit_holds),
    (
        "set_up_runs_in_order_and_leaves_nothing",
        set_up_runs_in_order_and_leaves_nothing,
    ),
    (
        "shows_the_first_line_of_versions",
        shows_the_first_line_of_versions,
    ),
    (
        "an_interrupt_ends_the_wait_for_versions",
        an_interrupt_ends_the_wait_for_versions,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bench", "keeper"] => deploy::run_keeper(),
        ["stand-in", file] => stand_in(Path::new(file), |_| {}),
        ["stand-in", file, "stop"] => stand_in(Path::new(file), RunningDeployment::stop),
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

fn starts_answers_and_is_gone_after_stop() {
    let place = Place::new(&format!(
        r#"
        files = {{ "sub/page.txt" = "at {{{{port}}}}", "server.py" = '''{SERVER}''' }}
        env = {{ PAGE = "{{{{dir}}}}/sub/page.txt" }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{port}}}} $PAGE"]"#
    ));
    let mut running = place.start().unwrap();
    assert!(running.unexpected_exit().is_none());
    assert_eq!(
        running.values.fill("{{here}}"),
        place.folder.display().to_string()
    );
    let dir = PathBuf::from(running.values.fill("{{dir}}"));
    assert!(dir.join("server.py").exists());
    let memory = running.memory_usage();
    assert!(memory.bytes > 1_000_000, "{memory:?}");
    assert_eq!(memory.processes, 1);
    let pids = place.pids_of(&dir);
    assert_eq!(pids.len(), 1);
    let begun = Instant::now();
    running.stop();
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "a SIGTERM was enough"
    );
    assert!(all_gone(&pids));
    drop(running);
    assert!(!dir.exists());
}

fn a_daemon_is_gone_after_stop() {
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''', "daemon.py" = '''{DAEMON}''' }}
        start = ["python3 daemon.py python3 {{{{dir}}}}/server.py {{{{port}}}}"]"#
    ));
    let mut running = place.start().unwrap();
    assert!(
        running.unexpected_exit().is_none(),
        "the command has ended, the daemon has not"
    );
    let pids = place.pids_of(Path::new(&running.values.fill("{{dir}}")));
    assert_eq!(pids.len(), 1);
    running.stop();
    assert!(all_gone(&pids));
}

fn who_ignores_signals_is_killed() {
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''' }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{port}}}}", "trap '' TERM; while :; do sleep 1000; done # {{{{dir}}}}"]"#
    ));
    let mut running = place.start().unwrap();
    let pids = place.pids_of(Path::new(&running.values.fill("{{dir}}")));
    assert_eq!(pids.len(), 2);
    running.stop();
    assert!(all_gone(&pids));
}

fn all_is_gone_when_the_bench_is_killed() {
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''', "daemon.py" = '''{DAEMON}''' }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{port}}}}", "python3 daemon.py sh -c 'sleep 1000; true' {{{{dir}}}}"]
        [companion]
        files = {{ "beside.py" = '''{SERVER}''' }}
        start = ["exec python3 {{{{dir}}}}/beside.py {{{{port2}}}}"]
        url = "http://127.0.0.1:{{{{port2}}}}""#
    ));
    let (mut bench, dirs) = stand_in_for_a_bench(&place.file, &[]);
    let [dir, shop] = [PathBuf::from(&dirs[0]), PathBuf::from(&dirs[1])];
    until("all are there", || place.pids_of(&dir).len() == 3);
    let pids = place.pids_of(&dir);
    bench.0.kill().unwrap();
    bench.0.wait().unwrap();
    until("no process is left", || all_gone(&pids));
    until("its folders are gone", || !dir.exists() && !shop.exists());
    until("its groups are gone", || groups_named(&dir).is_empty());
}

fn all_is_gone_when_the_bench_is_killed_while_it_stops() {
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''' }}
        start = [
          "exec python3 {{{{dir}}}}/server.py {{{{port}}}}",
          "trap 'touch asked' TERM; while :; do sleep 0.1; done # {{{{dir}}}}",
        ]"#
    ));
    let (mut bench, dirs) = stand_in_for_a_bench(&place.file, &["stop"]);
    let [dir, shop] = [PathBuf::from(&dirs[0]), PathBuf::from(&dirs[1])];
    let pids = place.pids_of(&dir);
    until("it was asked to stop", || dir.join("asked").exists());
    bench.0.kill().unwrap();
    bench.0.wait().unwrap();
    until("no process is left", || all_gone(&pids));
    until("its folders are gone", || !dir.exists() && !shop.exists());
}

fn all_is_gone_when_the_keeper_is_killed() {
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''' }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{port}}}}"]"#
    ));
    let mut running = place.start().unwrap();
    let dir = PathBuf::from(running.values.fill("{{dir}}"));
    if groups_named(&dir).is_empty() {
        return println!("  left out: without control groups nobody knows the keeper's children");
    }
    let pids = place.pids_of(&dir);
    let keeper = parent_of(*pids.first().unwrap());
    Command::new("kill")
        .args(["-9", &keeper.to_string()])
        .status()
        .unwrap();
    until("it is noticed", || running.unexpected_exit().is_some());
    running.stop();
    until("no process is left", || all_gone(&pids));
}

fn one_that_exits_at_once_has_failed_with_its_log() {
    let place = Place::new(r#"start = ["echo out of cheese; exit 3", "exec sleep 1000"]"#);
    match place.start().map(drop) {
        Err(DeployError::Exited { how, log, command }) => {
            assert_eq!(how.code(), Some(3));
            assert_eq!(log, "out of cheese\n");
            assert!(command.starts_with("echo"));
        }
        other => panic!("{other:?}"),
    }
    let place = Place::new(r#"start = ["true"]"#);
    let found = place.start().map(drop);
    assert!(
        matches!(found, Err(DeployError::Exited { .. })),
        "{found:?}"
    );
}

fn one_that_never_answers_times_out_with_its_log() {
    let mut place = Place::new(r#"start = ["echo loading; exec sleep 1000"]"#);
    let begun = Instant::now();
    place.scenario.ready_timeout = Duration::from_millis(400);
    match place.start().map(drop) {
        Err(DeployError::NotReady { log, last, .. }) => {
            assert_eq!(log, "loading\n");
            assert!(last.contains("refused"), "{last}");
        }
        other => panic!("{other:?}"),
    }
    assert!(begun.elapsed() < Duration::from_secs(4));
}

fn a_wrong_answer_fails_at_once() {
    let mut place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''', "page" = "something else" }}
        start = ["echo here; exec python3 {{{{dir}}}}/server.py {{{{port}}}} {{{{dir}}}}/page"]"#
    ));
    place.scenario.loads[0].expect.body = Some("Hello".to_owned());
    match place.start().map(drop) {
        Err(DeployError::WrongAnswer { what, log }) => {
            assert!(what.contains("something else"), "{what}");
            assert!(log.starts_with("here\n"), "{log}");
        }
        other => panic!("{other:?}"),
    }
}

fn bad_gateways_are_waited_for() {
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''' }}
        env = {{ BUSY = "3" }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{port}}}}"]"#
    ));
    place.start().unwrap();
}

fn a_command_that_ends_under_load_is_noticed() {
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''' }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{port}}}}"]"#
    ));
    let mut running = place.start().unwrap();
    let pids = place.pids_of(Path::new(&running.values.fill("{{dir}}")));
    Command::new("kill")
        .args(["-9", &pids.first().unwrap().to_string()])
        .status()
        .unwrap();
    until("it is noticed", || running.unexpected_exit().is_some());
    let why = running.unexpected_exit().unwrap();
    assert!(why.ends_with("signal: 9 (SIGKILL)"), "{why}");
}

fn an_interrupt_ends_the_wait() {
    let place = Place::new(r#"start = ["exec sleep 1000"]"#);
    place.stop.store(true, Ordering::Relaxed);
    let found = place.start().map(drop);
    assert!(matches!(found, Err(DeployError::Interrupted)), "{found:?}");
    let found = place.shop.run_setup(&["sleep 1000".to_owned()]);
    assert!(matches!(found, Err(DeployError::Interrupted)), "{found:?}");
}

fn a_unix_socket_answers() {
    let place = Place::new(&format!(
        r#"url = "unix:{{{{dir}}}}/front.sock"
        files = {{ "server.py" = '''{SERVER}''' }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{dir}}}}/front.sock"]"#
    ));
    let running = place.start().unwrap();
    assert_eq!(running.target().host, "localhost");
}

fn counts_the_living_and_the_dead() {
    // 0.4 s by a grandchild that has ended when the server responds, 0.4 s by a child that lives.
    let place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''', "burn.py" = '''{BURN}''' }}
        start = [
          "sh -c 'python3 burn.py; true'; exec python3 {{{{dir}}}}/server.py {{{{port}}}}",
          "python3 burn.py alive",
        ]"#
    ));
    let running = place.start().unwrap();
    let burnt = Path::new(&running.values.fill("{{dir}}")).join("burnt");
    until("the living has burnt its part", || burnt.exists());
    let spent = running.cpu_time().cpu_seconds;
    // Ticks of 10 ms are truncated for each process and kind.
    assert!((1.5..6.0).contains(&spent), "{spent}");
    let again = running.cpu_time().cpu_seconds;
    assert!(again >= spent, "{again}");
}

fn pins_all_its_processes() {
    let mut place = Place::new(&format!(
        r#"files = {{ "server.py" = '''{SERVER}''' }}
        start = ["exec python3 {{{{dir}}}}/server.py {{{{port}}}}"]"#
    ));
    place.scenario.cores = Some(CoreAssignment { server: 0, load: 0 });
    let running = place.start().unwrap();
    for pid in place.pids_of(Path::new(&running.values.fill("{{dir}}"))) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    }
    place.scenario.cores = Some(CoreAssignment {
        server: 1000,
        load: 0,
    });
    let found = place.start().map(drop);
    assert!(found.unwrap_err().to_string().contains("no core 1000"));
}

fn what_runs_beside_is_there_first_is_gone_last_and_is_not_counted() {
    // The companion burns 0.4 s before its first response; the deployment does not start without
    // one.
    let place = Place::new(&format!(
        r#"files = {{ "front.py" = '''{SERVER}''', "ask.py" = '''{ASK}''' }}
        start = ["python3 ask.py {{{{port2}}}} && exec python3 {{{{dir}}}}/front.py {{{{port}}}}"]
        [cores]
        server = 0
        load = 0
        [companion]
        files = {{ "back.py" = '''{SERVER}''', "burn.py" = '''{BURN}''' }}
        start = ["sh -c 'python3 burn.py; true'; exec python3 {{{{dir}}}}/back.py {{{{port2}}}}"]
        url = "http://127.0.0.1:{{{{port2}}}}""#
    ));
    let mut running = place.start().unwrap();
    let dir = PathBuf::from(running.values.fill("{{dir}}"));
    let pids = place.pids_of(&dir);
    assert_eq!(pids.len(), 2);
    let read = |pid: &u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let back = pids
        .iter()
        .find(|pid| read(pid, "cmdline").contains("back.py"));
    let status = read(back.unwrap(), "status");
    assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    assert_eq!(running.memory_usage().processes, 1);
    let (own, beside) = (
        running.cpu_time().cpu_seconds,
        running.companion_cpu_seconds(),
    );
    assert!((0.75..6.0).contains(&beside), "{beside}");
    // An interpreter that starts; the companion's time would be more.
    assert!(own < 0.75, "{own}");
    running.stop();
    assert!(all_gone(&pids));
    drop(running);
    assert!(!dir.exists());
}

fn a_deployment_does_not_start_without_what_runs_beside_it() {
    let place = Place::new(
        r#"start = ["touch {{here}}/started; exec sleep 1000"]
        [companion]
        start = ["echo out of order; exit 7"]
        url = "http://127.0.0.1:{{port2}}""#,
    );
    let error = place.start().map(drop).unwrap_err();
    assert!(matches!(error, DeployError::CompanionFailed(_)), "{error}");
    assert!(error.to_string().contains("out of order"), "{error}");
    assert!(!place.folder.join("started").exists());
}

fn a_memory_limit_holds() {
    let place = Place::new(
        r#"memory = "60MB"
        start = ["exec python3 -c 'x = bytearray(400_000_000); print(len(x))'"]"#,
    );
    match place.start().map(drop) {
        Err(DeployError::Exited { how, .. }) => assert_eq!(how.signal(), Some(9)),
        Err(error @ DeployError::CannotLimit { .. }) => left_out(&error),
        other => panic!("{other:?}"),
    }
}

fn a_disk_limit_holds() {
    let place = Place::new(&format!(
        r#"disk_read = "8MB/s"
        files = {{ "server.py" = '''{SERVER}''', "read.py" = '''{READ}''' }}
        start = ["python3 read.py {{{{dir}}}} && exec python3 {{{{dir}}}}/server.py {{{{port}}}}"]"#
    ));
    match place.start() {
        Ok(running) => {
            let took: f64 = running.log_tail().lines().next().unwrap().parse().unwrap();
            // 12 MB; the first second may be granted at once.
            assert!(took > 0.4, "{took}");
        }
        Err(error @ DeployError::CannotLimit { .. }) => left_out(&error),
        Err(error) => panic!("{error}"),
    }
}

fn set_up_runs_in_order_and_leaves_nothing() {
    let place = Place::new(r#"start = ["true"]"#);
    let commands = [
        "echo one >order",
        "echo two >>order; sleep 1000 & echo $! >pid",
    ];
    let commands = commands.map(str::to_owned);
    place.shop.run_setup(&commands).unwrap();
    let read = |name| fs::read_to_string(place.folder.join(name)).unwrap();
    assert_eq!(read("order"), "one\ntwo\n");
    assert!(all_gone(&BTreeSet::from([read("pid")
        .trim()
        .parse()
        .unwrap()])));
    let commands = ["exit 4", "touch never"].map(str::to_owned);
    let error = place.shop.run_setup(&commands).unwrap_err();
    assert_eq!(
        error.to_string(),
        "set-up `exit 4` ended with exit status: 4"
    );
    assert!(!place.folder.join("never").exists());
}

fn shows_the_first_line_of_versions() {
    let place = Place::new(
        r#"start = ["true"]
        versions = ["echo; echo one 1.0; echo more; echo no >&2", "echo two 2.0 >&2", "true", "basename {{penstock}}"]"#,
    );
    let versions = place.shop.versions(&place.scenario.deployments[0]);
    assert_eq!(versions, ["one 1.0", "two 2.0", "penstock"]);
}

fn an_interrupt_ends_the_wait_for_versions() {
    let place = Place::new(
        r#"start = ["true"]
        versions = ["echo one; exec sleep 1000", "echo two"]"#,
    );
    let shop = &place.shop;
    let begun = Instant::now();
    let versions = std::thread::scope(|scope| {
        let versions = scope.spawn(|| shop.versions(&place.scenario.deployments[0]));
        let folder = shop.values.penstock.parent().unwrap();
        until("the first has answered", || {
            let files = fs::read_dir(folder).unwrap().flatten();
            let mut files = files.filter_map(|file| fs::read_to_string(file.path()).ok());
            files.any(|text| text == "one\n")
        });
        place.stop.store(true, Ordering::Relaxed);
        versions.join().unwrap()
    });
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "not by its time-out"
    );
    assert_eq!(versions, ["one"]);
}

// ---- what they use ------------------------------------------------------------------------------

/// Responds at a port or a socket with the content of a file, or `Hello`; first with 503, `BUSY`
/// times.
const SERVER: &str = r#"
import os, socket, sys
where = sys.argv[1]
page = open(sys.argv[2]).read() if len(sys.argv) > 2 else "Hello"
busy = int(os.environ.get("BUSY", "0"))
if where.startswith("/"):
    listener = socket.socket(socket.AF_UNIX); listener.bind(where)
else:
    listener = socket.socket(); listener.bind(("127.0.0.1", int(where)))
listener.listen(16)
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    status = "503 Busy" if busy > 0 else "200 OK"
    busy -= 1
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode())
    connection.close()
"#;

/// Succeeds if a server responds at a port.
const ASK: &str = r#"
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
sys.exit(not connection.recv(1))
"#;

/// Leaves its session and its parents, as daemons do, and executes its arguments.
const DAEMON: &str = "
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.execvp(sys.argv[1], sys.argv[1:])
";

const BURN: &str = r#"
import sys, time
while time.process_time() < 0.8: pass
if len(sys.argv) > 1:
    open("burnt", "w").close()
    time.sleep(1000)
"#;

/// Prints the time it takes to read 12 MB from the disk.
const READ: &str = r#"
import os, sys, time
path = sys.argv[1] + "/data"
with open(path, "wb") as file:
    file.write(os.urandom(12_000_000)); file.flush(); os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
begun = time.monotonic()
with open(path, "rb") as file:
    while file.read(1 << 20): pass
print(time.monotonic() - begun, flush=True)
"#;

/// A scenario of one deployment in its own directory, and its testbed.
struct Place {
    folder: PathBuf,
    file: PathBuf,
    scenario: Scenario,
    shop: Testbed,
    /// Aborts the testbed's work.
    stop: Arc<AtomicBool>,
}

impl Place {
    fn new(deployment: &str) -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("penstock-deploy-test-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let file = folder.join("scenario.toml");
        let head = "title = \"test\"\nrequests = 1\n[[loads]]\nconnections = 1\n[[deployments]]\nname = \"one\"\n";
        fs::write(&file, format!("{head}{deployment}\n")).unwrap();
        let scenario = Scenario::read(&file).unwrap_or_else(|error| panic!("{error}"));
        let stop = Arc::new(AtomicBool::new(false));
        let shop = Testbed::new(&folder, Arc::clone(&stop)).unwrap();
        Self {
            folder,
            file,
            scenario,
            shop,
            stop,
        }
    }

    fn start(&self) -> Result<RunningDeployment, DeployError> {
        RunningDeployment::start(&self.shop, &self.scenario, &self.scenario.deployments[0])
    }

    /// The processes with a directory on their command line, without keepers and shells about to
    /// execute something else.
    fn pids_of(&self, folder: &Path) -> BTreeSet<u32> {
        let wanted = folder.display().to_string();
        let names = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.contains(&wanted))
        };
        pids().filter(|pid| names(pid) && !is_gone(*pid)).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A bench that starts a deployment, prints its directories, does something with it, and waits to
/// be killed.
fn stand_in(file: &Path, act: fn(&mut RunningDeployment)) -> ExitCode {
    let scenario = Scenario::read(file).unwrap();
    let shop = Testbed::new(&scenario.dir, Arc::default()).unwrap();
    let mut running = RunningDeployment::start(&shop, &scenario, &scenario.deployments[0]).unwrap();
    println!("{}", running.values.fill("{{dir}}"));
    println!("{}", shop.values.penstock.parent().unwrap().display());
    act(&mut running);
    loop {
        std::thread::park();
    }
}

/// Killed on drop, so that a failed test leaves nothing.
struct Bench(Child);

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stand_in_for_a_bench(file: &Path, how: &[&str]) -> (Bench, Vec<String>) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.arg("stand-in").arg(file).args(how);
    command.stdout(Stdio::piped());
    let mut child = Bench(command.spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let dirs: Vec<String> = lines.take(2).map(Result::unwrap).collect();
    assert_eq!(dirs.len(), 2);
    (child, dirs)
}

fn left_out(error: &DeployError) {
    println!("  left out: {error}");
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn stat_of(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = text.rsplit_once(')')?;
    Some(behind.split_whitespace().map(str::to_owned).collect())
}

fn parent_of(pid: u32) -> u32 {
    stat_of(pid).unwrap()[1].parse().unwrap()
}

/// A zombie counts as gone: its parent is not under test.
fn is_gone(pid: u32) -> bool {
    stat_of(pid).is_none_or(|stat| stat[0] == "Z")
}

fn all_gone(pids: &BTreeSet<u32>) -> bool {
    pids.iter().all(|pid| is_gone(*pid))
}

/// Control groups named after a deployment's directory.
fn groups_named(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
        {
            let names = path.file_name().zip(dir.file_name());
            if names.is_some_and(|(name, dir)| {
                let name = name.to_string_lossy();
                name.starts_with(&*dir.to_string_lossy())
            }) {
                found.push(path.clone());
            }
            folders.push(path);
        }
    }
    found
}

/// Waits for a condition, at most 15 s.
fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !is_true() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
