//! Applications that run as their own users, started by a server with a third user.
//!
//! Only root can start these tests; otherwise they print a note and end.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Output;

use rustix::process::Signal;

use crate::support::{PATIENCE, Server, Site, eventually, is_alive, texts};

const APP: &str = r#"
import os, signal, threading, time

# It does not end by itself, and not when it is asked to.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=(1000,)).start()

def who():
    return f"{os.getuid()} {os.getgid()} {os.getgroups()} {os.environ.get('HOME')}"

def output():
    with open("/dev/stdout", "w") as file:
        print("opened by its name", file=file, flush=True)
    return "written"

def secret():
    with open("/proc/%d/environ" % os.getppid(), "rb") as file:
        return str(len(file.read()))

def kill():
    os.kill(os.getppid(), signal.SIGKILL)
    return "killed"

def app(environ, start_response):
    start_response("200 OK", [])
    try:
        text = globals()[environ["PATH_INFO"].split("/")[-1]]()
    except OSError as error:
        text = f"refused: {error}"
    return [text.encode()]
"#;

const PROGRAM: &str = r#"
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{os.getuid()} {os.getgid()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

const TOML: &str = r#"
[server]
user = "12345:12346"
keep_alive_drain = "100ms"
[apps.shop]
entry = "whoami:app"
processes = 1
stop_timeout = "200ms"
user = "12347:12348"
[apps.plain]
entry = "whoami:app"
processes = 1
stop_timeout = "200ms"
preload = false
user = "games"
[apps.own]
entry = "whoami:app"
processes = 1
stop_timeout = "200ms"
[apps.program]
kind = "command"
command = "python3 program.py {port}"
processes = 1
user = "12347:12348"
[[sites]]
[[sites.routes]]
path = "/shop/*"
app = "shop"
[[sites.routes]]
path = "/plain/*"
app = "plain"
[[sites.routes]]
path = "/program/*"
app = "program"
[[sites.routes]]
app = "own"
"#;

const ALL: [&str; 4] = ["shop", "plain", "own", "program"];

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let _ = writeln!(std::io::stderr(), "skipped: only root can become another");
    }
    is_root
}

fn site() -> Site {
    let site = Site::new()
        .file("whoami.py", APP)
        .file("program.py", PROGRAM)
        .config(TOML);
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(site.dir().parent().unwrap(), 0o755);
    set(site.dir(), 0o755);
    // The server can read it, its user cannot.
    set(&site.dir().join("penstock.toml"), 0o600);
    site
}

fn verb(server: &Server, words: &[&str]) -> Output {
    let control = format!("unix:{}", server.control_path().display());
    server.site().run(&[words, &["--admin", &control]].concat())
}

fn workers(server: &Server) -> Vec<i32> {
    ALL.iter().flat_map(|app| server.workers(app)).collect()
}

fn expect_users(server: &Server) {
    let text = |path: &str| server.get(path).text();
    assert!(text("/shop/who").starts_with("12347 12348 [12348] "));
    let games = text("/plain/who");
    assert!(games.starts_with("5 60 [60] /usr/games"), "{games}");
    assert!(text("/own/who").starts_with("12345 12346 [12346] "));
    assert_eq!(text("/program/who"), "12347 12348");
}

#[test]
fn each_application_runs_as_its_user_and_no_other() {
    if !is_root() {
        return;
    }
    let site = site();
    let server = site.serve(&[]);
    server.wait_all_ready(&ALL);
    expect_users(&server);
    for app in ["shop", "plain"] {
        assert_eq!(server.get(&format!("/{app}/output")).text(), "written");
        server.wait_log("opened by its name");
        for attempt in ["secret", "kill"] {
            let text = server.get(&format!("/{app}/{attempt}")).text();
            assert!(text.starts_with("refused: "), "{app} {attempt}: {text}");
        }
    }
    let shown = server.admin_json()["apps"].to_string();
    assert!(shown.contains("resident_bytes"), "{shown}");
    // A killed worker is replaced; one that does not end is killed.
    for app in ["shop", "plain"] {
        let before = server.workers(app)[0];
        crate::support::kill(before, Signal::KILL);
        eventually(PATIENCE, "another one serves", || {
            server
                .workers(app)
                .first()
                .is_some_and(|pid| *pid != before)
        });
        let before = server.workers(app)[0];
        let output = verb(&server, &["restart", app]);
        assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
        eventually(PATIENCE, "it is gone", || !is_alive(before));
    }
    expect_users(&server);
    // A user that no application had at the start is refused.
    let changed = TOML.replace("user = \"games\"", "user = \"12349:12349\"");
    site.write("penstock.toml", changed);
    std::fs::set_permissions(
        site.dir().join("penstock.toml"),
        std::fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let output = verb(&server, &["reload"]);
    let stderr = texts(&output).1;
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let words = "apps.plain.user: `12349:12349` was no user";
    assert!(stderr.contains(words), "{stderr}");
    expect_users(&server);
    let all = workers(&server);
    server.signal(Signal::TERM);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
    assert!(all.into_iter().all(|pid| !is_alive(pid)));
}

#[test]
fn nothing_of_another_user_outlives_a_server_that_is_killed() {
    if !is_root() {
        return;
    }
    let site = site();
    let server = site.serve(&[]);
    server.wait_all_ready(&ALL);
    let all = workers(&server);
    assert_eq!(all.len(), ALL.len());
    server.signal(Signal::KILL);
    assert_eq!(server.wait_exit(PATIENCE).code(), None);
    for pid in all {
        eventually(PATIENCE, "it is gone", || !is_alive(pid));
    }
}

/// Other users' processes are hidden from the server, but it may signal all of them.
#[test]
fn root_commands_a_server_that_cannot_see_it() {
    if !is_root() {
        return;
    }
    let site = site();
    let hide = "mount -t proc -o hidepid=2 proc /proc";
    let Some(server) = site.serve_with_mounts_of_root(hide, &[]) else {
        return;
    };
    server.wait_all_ready(&ALL);
    let output = verb(&server, &["restart", "own"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    let output = verb(&server, &["stop"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

/// Whether only root can have put the test binary where it is.
fn belongs_to_root(path: &Path) -> bool {
    let path = path.canonicalize().unwrap();
    path.ancestors().all(|part| {
        let about = part.symlink_metadata().unwrap();
        let is_shared = about.is_dir() && about.mode() & 0o1000 != 0;
        about.uid() == 0 && (about.mode() & 0o022 == 0 || is_shared)
    })
}

#[test]
fn an_upgrade_has_the_same_users_and_takes_no_other_program() {
    if !is_root() {
        return;
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_penstock"));
    let site = site();
    let server = site.serve(&[]);
    server.wait_all_ready(&ALL);
    let other = verb(&server, &["upgrade", "--binary", "/bin/true"]);
    let stderr = texts(&other).1;
    assert_eq!(other.status.code(), Some(1), "{stderr}");
    let output = verb(&server, &["upgrade"]);
    let (stdout, stderr) = texts(&output);
    if !belongs_to_root(binary) {
        assert_eq!(output.status.code(), Some(1), "{stdout}");
        assert!(
            stderr.contains("writable by users other than root"),
            "{stderr}"
        );
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}\n{}", server.log());
    let pid = server.admin_json()["pid"].as_i64().unwrap();
    assert_ne!(pid, i64::from(server.pid()));
    expect_users(&server);
    let all = workers(&server);
    let output = verb(&server, &["stop"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    for pid in all {
        eventually(PATIENCE, "it is gone", || !is_alive(pid));
    }
    eventually(PATIENCE, "the server is gone", || {
        !is_alive(i32::try_from(pid).unwrap())
    });
}

#[test]
fn check_loads_code_as_the_user_of_its_application() {
    if !is_root() {
        return;
    }
    let site = site();
    site.write(
        "whoami.py",
        "import os\nassert os.getuid() != 12347, os.getuid()\napp = print\n",
    );
    let output = site.run(&["check"]);
    let stderr = texts(&output).1;
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("AssertionError: 12347"), "{stderr}");
    assert!(!stderr.contains("apps.own"), "{stderr}");
    let toml = site.read("penstock.toml");
    site.write(
        "penstock.toml",
        toml.replace("\"games\"", "\"no-such-user\""),
    );
    let stderr = texts(&site.run(&["check"])).1;
    let words = "apps.plain.user: there is no user `no-such-user`";
    assert!(stderr.contains(words), "{stderr}");
}
