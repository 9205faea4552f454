//! Resource limits of an application and its descendants: a fork bomb and 10 GB of memory harm no
//! other application.
//!
//! The server runs as root, so that it may create cgroups, and its applications have their own
//! users. Elsewhere these tests print a note and end.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::Signal;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, get, is_alive, texts};

/// Each attempt responds with its result, or with the error.
const HOSTILE: &str = r#"
import os, time

def who():
    return str(os.getpid())

def bomb():
    """Each child forks on, and none ends."""
    for started in range(100000):
        if os.fork() == 0:
            while True:
                try:
                    os.fork()
                except OSError:
                    time.sleep(0.01)
    return f"DONE: {started} forks"

def hoard():
    blocks = [b"x" * (16 << 20) for _ in range(10 << 30 >> 24)]
    return f"DONE: {len(blocks)} blocks"

def hoard_in_children():
    """No worker of its own takes much."""
    for _ in range(40):
        if os.fork() == 0:
            block = b"x" * (64 << 20)
            time.sleep(1000)
            os._exit(len(block))
    _, status = os.waitpid(-1, 0)
    return f"refused: a child was killed by {status}"

def limits():
    return open("/proc/self/limits").read()

def app(environ, start_response):
    start_response("200 OK", [])
    try:
        text = globals()[environ["PATH_INFO"].split("/")[-1]]()
    except (OSError, MemoryError) as error:
        text = f"refused: {error}"
    return [text.encode()]
"#;

/// The same in Ruby.
const RACK: &str = r##"
ATTEMPTS = {
  "who" => -> { Process.pid.to_s },
  "bomb" => lambda {
    100_000.times do
      fork do
        loop do
          fork
        rescue SystemCallError
          sleep 0.01
        end
      end
    end
    "DONE"
  },
  "hoard" => -> { "DONE: #{(0...640).map { "x" * (16 << 20) }.size} blocks" }
}.freeze

run(lambda do |env|
  text = begin
    ATTEMPTS.fetch(env["PATH_INFO"].split("/").last).call
  rescue SystemCallError, NoMemoryError => e
    "refused: #{e.class}"
  end
  [200, {}, [text]]
end)
"##;

const CALM: &str = r#"
def app(environ, start_response):
    start_response("200 OK", [])
    return [b"calm"]
"#;

const TOML: &str = r#"
[server]
user = "12345:12346"
keep_alive_drain = "100ms"
[apps.hostile]
entry = "hostile:app"
kind = "wsgi"
processes = 1
stop_timeout = "200ms"
user = "12347:12347"
max_tasks = 64
max_total_memory = "256MiB"
max_cpu = 1.5
[apps.rack]
dir = "rack"
kind = "rack"
processes = 1
stop_timeout = "200ms"
user = "12349:12349"
max_tasks = 64
max_total_memory = "256MiB"
[apps.calm]
entry = "calm:app"
kind = "wsgi"
processes = 1
stop_timeout = "200ms"
user = "12351:12351"
[[sites]]
[[sites.routes]]
path = "/hostile/*"
app = "hostile"
[[sites.routes]]
path = "/rack/*"
app = "rack"
[[sites.routes]]
path = "/static/*"
files = { root = "public" }
[[sites.routes]]
app = "calm"
"#;

const ALL: [&str; 3] = ["hostile", "rack", "calm"];

/// Requests to others while an application is at its limits.
const MANY: usize = 50;

fn site(toml: &str) -> Site {
    let site = Site::new()
        .file("hostile.py", HOSTILE)
        .file("calm.py", CALM)
        .file("rack/config.ru", RACK)
        .file("public/static/page.txt", "a page")
        .config(toml);
    for path in [site.dir().parent().unwrap(), site.dir()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    site
}

/// Whether limits are available here: root with cgroups of version 1. In version 2 the test itself
/// may be in the way.
fn has_bounds(server: &Server) -> bool {
    let warnings = server.admin_json()["warnings"].to_string();
    if !may_make_groups() {
        eprintln!("left out: {warnings}");
        return false;
    }
    let is_held =
        !warnings.contains("is not enforced") && !warnings.contains("counts all processes");
    assert!(is_held, "{warnings}");
    true
}

/// Whether this process may create cgroups with every controller, without asking the server.
fn may_make_groups() -> bool {
    let own = cgroups_of(rustix::process::getpid().as_raw_nonzero().get());
    ["pids", "memory", "cpu"].into_iter().all(|controller| {
        let place = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            (controllers.split(',').any(|it| it == controller)).then_some(path)
        });
        // Mounted whole, or in a container that sees only its part.
        place.is_some_and(|place| {
            [place, ""].into_iter().any(|place| {
                let name = format!("of-a-test-{}", std::process::id());
                let path = format!("/sys/fs/cgroup/{controller}{place}/{name}");
                std::fs::create_dir(&path).is_ok() && std::fs::remove_dir(&path).is_ok()
            })
        })
    })
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("left out: only root can become another");
    }
    is_root
}

fn bounds(server: &Server, app: &str) -> serde_json::Value {
    let shown = server.admin_json();
    let apps = shown["apps"].as_array().unwrap();
    let found = apps.iter().find(|it| it["name"] == app).unwrap();
    found["bounds"].clone()
}

fn expect_others_are_served(server: &Server) {
    for _ in 0..MANY {
        assert_eq!(server.get("/").text(), "calm");
        assert_eq!(server.get("/static/page.txt").text(), "a page");
    }
}

/// The cgroups of a server's applications, wherever they are mounted.
fn groups(pid: i32) -> Vec<PathBuf> {
    fn walk(folder: &Path, prefix: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().into_string().unwrap_or_default();
                found.extend(name.starts_with(prefix).then(|| path.clone()));
                walk(&path, prefix, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(
        Path::new("/sys/fs/cgroup"),
        &format!("penstock-{pid}-"),
        &mut found,
    );
    found
}

fn cgroups_of(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

fn verb(server: &Server, words: &[&str]) -> Output {
    let control = format!("unix:{}", server.control_path().display());
    server.site().run(&[words, &["--admin", &control]].concat())
}

#[test]
fn a_fork_bomb_is_held_and_named_and_others_are_served() {
    if !is_root() {
        return;
    }
    let site = site(TOML);
    let server = site.serve(&[]);
    server.wait_all_ready(&ALL);
    if !has_bounds(&server) {
        return;
    }
    // By default a user of its own has a limit as well.
    let ample = bounds(&server, "calm")["max_tasks"].as_u64().unwrap();
    assert!((1024..32_768).contains(&ample), "{ample}");
    for app in ["hostile", "rack"] {
        let before = server.workers(app)[0];
        let mut client = RawClient::connect(server.port());
        client.send(format!("GET /{app}/bomb HTTP/1.1\r\nHost: a\r\n\r\n"));
        // Ruby retries for ever.
        if app == "hostile" {
            let text = client.response().text();
            assert!(text.starts_with("refused: "), "{app}: {text}");
        }
        eventually(PATIENCE, &format!("{app} has all that it may"), || {
            bounds(&server, app)["tasks"] == 64
        });
        expect_others_are_served(&server);
        assert_eq!(bounds(&server, app)["tasks"], 64, "{app}: all that time");
        let words = format!("{app}: could not start ");
        server.wait_log(&words);
        server.wait_log("the application is at its bound of 64 (max_tasks)");
        let refused = format!("penstock_app_tasks_refused_total{{app=\"{app}\"}}");
        assert!(server.metric(&refused).unwrap() > 0.0, "{app}");
        // Processes in the worker's group end with it, and another worker takes its place.
        crate::support::kill(before, Signal::KILL);
        eventually(PATIENCE, &format!("{app} serves again"), || {
            (server.workers(app).first()).is_some_and(|pid| *pid != before)
        });
        assert_ne!(
            server.get(&format!("/{app}/who")).text(),
            before.to_string()
        );
    }
    let all = groups(server.pid());
    assert!(all.len() >= ALL.len(), "{all:?}");
    server.signal(Signal::TERM);
    let ended = server.wait_exit(PATIENCE);
    assert_eq!(ended.code(), Some(0), "{}", server.log());
    eventually(PATIENCE, "its cgroups are gone", || {
        all.iter().all(|path| !path.exists())
    });
}

#[test]
fn ten_gigabytes_of_memory_are_refused_and_named_and_others_are_served() {
    if !is_root() {
        return;
    }
    let site = site(TOML);
    let server = site.serve(&[]);
    server.wait_all_ready(&ALL);
    if !has_bounds(&server) {
        return;
    }
    let calm = server.workers("calm");
    for path in ["/hostile/hoard", "/rack/hoard"] {
        let app = path.split('/').nth(1).unwrap();
        let before = server.workers(app)[0];
        let mut client = RawClient::connect(server.port());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        expect_others_are_served(&server);
        let response = client.response();
        let text = response.text();
        // The kernel may refuse the memory, or kill the process.
        let is_refused = response.status == 502 || text.starts_with("refused: ");
        assert!(is_refused, "{path}: {text}");
        server.wait_log(&format!(
            "{app}[{before}]: worker was killed: memory bound of the application \
             (max_total_memory); replaced"
        ));
        server.wait_log("the application has met its bound of 256 MiB (max_total_memory)");
        eventually(PATIENCE, &format!("{app} serves again"), || {
            (server.workers(app).first()).is_some_and(|pid| *pid != before)
        });
        assert_eq!(server.get(&format!("/{app}/who")).status, 200);
        let kills = format!("penstock_app_out_of_memory_kills_total{{app=\"{app}\"}}");
        assert!(server.metric(&kills).unwrap() > 0.0, "{app}");
    }
    // Its children count as well.
    let text = server.get("/hostile/hoard_in_children").text();
    assert_eq!(text, "refused: a child was killed by 9");
    eventually(PATIENCE, "it is counted", || {
        server.metric("penstock_app_out_of_memory_kills_total{app=\"hostile\"}") > Some(1.0)
    });
    let used = bounds(&server, "hostile")["memory_bytes"].as_u64().unwrap();
    assert!(used <= 256 << 20, "{used}");
    expect_others_are_served(&server);
    assert_eq!(server.workers("calm"), calm, "no other was killed");
}

/// Sends requests to applications in turn; each must get a response.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Load {
    fn start(port: u16) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !until.load(Ordering::Relaxed) {
                for path in ["/hostile/who", "/rack/who", "/"] {
                    assert_eq!(get(port, path).status, 200, "{path}");
                    count += 1;
                }
            }
            count
        });
        Self { is_over, thread }
    }

    /// Stops; returns the number of requests.
    fn end(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn nothing_is_lost_by_a_restart_a_reload_or_an_upgrade_within_bounds() {
    if !is_root() {
        return;
    }
    let site = site(TOML);
    let server = site.serve(&[]);
    server.wait_all_ready(&ALL);
    if !has_bounds(&server) {
        return;
    }
    let others = cgroups_of(server.pid());
    let of = |server: &Server, app: &str| {
        cgroups_of(server.get(&format!("/{app}/who")).text().parse().unwrap())
    };
    let load = Load::start(server.port());
    let first = of(&server, "hostile");
    assert!(!others.contains(&format!("penstock-{}-", server.pid())));
    let group = format!("penstock-{}-1-hostile", server.pid());
    assert!(first.contains(&group), "{first}");
    let expect_served = |server: &Server| {
        for path in ["/hostile/who", "/rack/who", "/"] {
            assert_eq!(server.get(path).status, 200, "{path}");
        }
    };
    let output = verb(&server, &["restart", "hostile"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    expect_served(&server);
    assert_eq!(of(&server, "hostile"), first, "the same group");
    // Limits are set at the start, whatever a reload asks for.
    for (from, to, words) in [
        (
            "max_tasks = 64",
            "max_tasks = 65",
            "apps.hostile: max_tasks, ",
        ),
        ("max_cpu = 1.5", "", "apps.hostile: max_tasks, "),
        (
            "[apps.calm]\n",
            "[apps.new]\nentry = \"calm:app\"\nmax_cpu = 1\n[apps.calm]\n",
            "apps.new: it did not exist when the server was started",
        ),
    ] {
        site.write("penstock.toml", TOML.replacen(from, to, 1));
        let output = verb(&server, &["reload"]);
        let stderr = texts(&output).1;
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
        assert!(stderr.contains("restart the server"), "{stderr}");
        expect_served(&server);
    }
    // Other settings can change.
    let more = TOML.replace("processes = 1\n", "processes = 2\n");
    site.write("penstock.toml", &more);
    let output = verb(&server, &["reload"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    expect_served(&server);
    assert_eq!(of(&server, "hostile"), first, "the same group");
    let old = groups(server.pid());
    let output = verb(&server, &["upgrade"]);
    let stderr = texts(&output).1;
    if stderr.contains("writable by users other than root") {
        eprintln!("left out: {stderr}");
        load.end();
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}\n{}", server.log());
    expect_served(&server);
    let pid = server.admin_json()["pid"].as_i64().unwrap();
    let after = of(&server, "hostile");
    assert!(
        after.contains(&format!("penstock-{pid}-1-hostile")),
        "{after}"
    );
    assert_eq!(
        cgroups_of(i32::try_from(pid).unwrap()),
        others,
        "where the old one was"
    );
    eventually(PATIENCE, "the old one's cgroups are gone", || {
        old.iter().all(|path| !path.exists())
    });
    expect_served(&server);
    assert!(load.end() > MANY);
    let output = verb(&server, &["stop"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    eventually(PATIENCE, "the server is gone", || {
        !is_alive(i32::try_from(pid).unwrap())
    });
}

#[test]
fn cgroups_of_a_server_that_was_killed_are_removed_by_the_next() {
    if !is_root() {
        return;
    }
    let site = site(TOML);
    let server = site.serve(&[]);
    server.wait_all_ready(&ALL);
    if !has_bounds(&server) {
        return;
    }
    let text = server.get("/hostile/bomb").text();
    assert!(text.starts_with("refused: "), "{text}");
    let left = groups(server.pid());
    server.signal(Signal::KILL);
    assert_eq!(server.wait_exit(PATIENCE).code(), None);
    // Its worker was killed. Any starting server cleans up, including that of another test.
    assert!(left.len() >= ALL.len(), "{left:?}");
    drop(server);
    let next = site.serve(&[]);
    next.wait_all_ready(&ALL);
    assert!(left.iter().all(|path| !path.exists()), "{left:?}");
}

#[test]
fn without_cgroups_the_user_s_processes_are_bounded_and_the_rest_is_named() {
    if !is_root() {
        return;
    }
    let site = site(TOML);
    // The shell that starts the server mounts over them.
    let script = "exec unshare --mount sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \
                  \"$@\"' \"$0\" \"$@\"";
    let server = site.serve_after(script, &[]);
    server.wait_all_ready(&ALL);
    let warnings = server.admin_json()["warnings"].to_string();
    for words in [
        "max_tasks of calm, hostile, rack counts all processes of the user: ",
        "max_total_memory of hostile, rack is not enforced: ",
        "max_cpu of hostile is not enforced: ",
    ] {
        assert!(warnings.contains(words), "{warnings}");
        assert!(server.log().contains(words), "{}", server.log());
    }
    assert!(groups(server.pid()).is_empty());
    let limits = server.get("/hostile/limits").text();
    let processes = limits.lines().find(|it| it.starts_with("Max processes"));
    let processes: Vec<_> = processes.unwrap().split_whitespace().collect();
    assert_eq!(processes[2..4], ["64", "64"], "{limits}");
    let text = server.get("/hostile/bomb").text();
    assert!(text.starts_with("refused: "), "{text}");
    expect_others_are_served(&server);
}

#[test]
fn check_names_what_would_not_be_held() {
    let site = site("[apps.calm]\nentry = \"calm:app\"\nkind = \"wsgi\"\nmax_cpu = 1\n");
    let Some(mut command) = site.binary_with_mounts("mount -t tmpfs none /sys/fs/cgroup") else {
        return;
    };
    let output = command.arg("check").output().unwrap();
    let stderr = texts(&output).1;
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("warning: max_cpu of calm is not enforced: "),
        "{stderr}"
    );
}
