//! Two hostile applications, in Python and in Ruby, try the attacks of a compromised application:
//! each attempt fails, and is logged where the server can detect it.
//!
//! One table drives both, in two deployments: each application as its own user, and all as the
//! server's user with limits on files and ports. Only root can become other users; otherwise these
//! tests print a note and end.

use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{PATIENCE, Response, Server, Site, eventually, is_alive, kernel_parts};

const PYTHON: &str = include_str!("apps/hostile.py");
const RUBY: &str = include_str!("apps/hostile.rb");

/// An application with a secret, and a socket without a file.
const VICTIM: &str = r#"
import os, socket
SOCKET = socket.socket(socket.AF_UNIX)
SOCKET.bind(f"\0penstock-victim-{os.getpid()}")
SOCKET.listen()

def app(environ, start_response):
    start_response("200 OK", [])
    return [f"{os.getpid()} {environ['PATH_INFO']}".encode()]
"#;

const TOML: &str = r#"
[server]
user = "12345:12346"
log = "logs/server.log"
keep_alive_drain = "100ms"
[limits]
temp_dir = "temp"
[caches.store]
path = "store"
[upstreams.origin]
servers = ["127.0.0.1:9"]
[apps.python]
dir = "python"
entry = "hostile:app"
processes = 1
OF_PYTHON
[apps.ruby]
dir = "ruby"
kind = "rack"
entry = "config.ru"
processes = 1
OF_RUBY
[apps.victim]
dir = "victim"
entry = "victim:app"
processes = 1
preload = false
OF_VICTIM
[[sites]]
[[sites.routes]]
path = "/python/*"
app = "python"
[[sites.routes]]
path = "/ruby/*"
app = "ruby"
[[sites.routes]]
path = "/victim/*"
app = "victim"
[[sites.routes]]
upstream = "origin"
cache = { stores = ["store"] }
"#;

/// How applications are isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deployment {
    /// Each has its own user.
    Users,
    /// All run as the server's user.
    Limits,
}

/// The attempt, with `{names}` filled in; the expected errors; its name in the log.
type Attempt = (&'static str, &'static [&'static str], Option<&'static str>);

const DENIED: &[&str] = &["EACCES", "EPERM"];
const EPERM: &[&str] = &["EPERM"];

/// System call numbers of this processor only.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ATTEMPTS: &[Attempt] = &[
    // The server's process.
    ("read /proc/{server}/mem", DENIED, None),
    ("write /proc/{server}/mem", DENIED, None),
    ("read /proc/{server}/environ", DENIED, None),
    ("read /proc/{server}/maps", DENIED, None),
    ("list /proc/{server}/fd", DENIED, None),
    ("list /proc/{server}/root/", DENIED, None),
    ("link /proc/{server}/cwd", DENIED, None),
    ("link /proc/{server}/exe", DENIED, None),
    ("write /proc/{server}/oom_score_adj", DENIED, None),
    ("write /proc/{server}/coredump_filter", DENIED, None),
    ("read /proc/{launcher}/mem", DENIED, None),
    ("leaked leaked", &["EBADF"], None),
    ("call 101 16 {server} 0 0", EPERM, Some("ptrace by process")),
    ("call 310 {server} buffer:16 0 buffer:16 0 0", EPERM, Some("process_vm_readv by process")),
    ("call 311 {server} buffer:16 0 buffer:16 0 0", EPERM, Some("process_vm_writev by process")),
    ("call 434 {server} 0", EPERM, Some("pidfd_open to the server by process")),
    ("call 438 0 3 0", EPERM, Some("pidfd_getfd by process")),
    ("call 312 {server} {server} 0 0 0", EPERM, Some("kcmp by process")),
    // Signals, limits and priorities.
    ("call 62 {server} 0", EPERM, Some("kill without a signal to the server by process")),
    ("call 62 {server} 15", EPERM, Some("kill with signal 15 to the server by process")),
    ("call 62 {server} 9", EPERM, Some("kill with signal 9 to the server by process")),
    ("call 62 -{server} 1", EPERM, Some("kill with signal 1 to the server by process")),
    ("call 62 -1 9", EPERM, Some("kill with signal 9 to all processes by process")),
    ("call 62 {launcher} 9", EPERM, Some("kill with signal 9 to the server's launcher by process")),
    ("call 200 {server} 19", EPERM, Some("tkill with signal 19 to the server by process")),
    ("call 234 {server} {server} 6", EPERM, Some("tgkill with signal 6 to the server by process")),
    ("call 129 {server} 12 buffer:128", EPERM, Some("rt_sigqueueinfo with signal 12 to the server by process")),
    ("call 62 {victim} 9", EPERM, None),
    ("call 302 {server} 7 buffer:16 0", EPERM, Some("prlimit64 to the server by process")),
    ("call 144 {server} 5 buffer:4", EPERM, Some("sched_setscheduler to the server by process")),
    ("call 203 {server} 8 buffer:8", EPERM, Some("sched_setaffinity to the server by process")),
    ("call 141 0 {server} 19", EPERM, Some("setpriority to the server by process")),
    ("call 141 2 0 19", EPERM, Some("setpriority to all processes by process")),
    ("call 251 1 {server} 24576", EPERM, Some("ioprio_set to the server by process")),
    // Another application.
    ("read /proc/{victim}/mem", DENIED, None),
    ("read /proc/{victim}/environ", DENIED, None),
    ("link /proc/{victim}/fd/1", DENIED, None),
    ("call 101 16 {victim} 0 0", EPERM, Some("ptrace by process")),
    ("read {site}/victim/secret.txt", DENIED, None),
    ("write {site}/victim/victim.py", DENIED, None),
    ("create {site}/victim/new.py", DENIED, None),
    ("abstract penstock-victim-{victim}", EPERM, None),
    // The server's files and sockets.
    ("read {site}/penstock.toml", DENIED, None),
    ("read {site}/logs/server.log", DENIED, None),
    ("write {site}/logs/server.log", DENIED, None),
    ("list {site}/store", DENIED, None),
    ("create {site}/store/object", DENIED, None),
    ("list {site}/temp", DENIED, None),
    ("create {site}/temp/file", DENIED, None),
    ("unix {control} POST+/stop+HTTP/1.1\\r\\nHost:+a\\r\\n\\r\\n", DENIED, None),
    ("tcp {admin} POST+/stop+HTTP/1.1\\r\\nHost:+127.0.0.1\\r\\n\\r\\n", DENIED, None),
    ("tcp {admin} POST+/upgrade+HTTP/1.1\\r\\nHost:+127.0.0.1\\r\\n\\r\\n", DENIED, None),
    // The machine.
    ("call 105 0", EPERM, None),
    ("call 161 text:/", EPERM, None),
    ("call 272 131072", EPERM, None),
    ("call 165 text:none text:/tmp text:tmpfs 0 0", EPERM, Some("mount by process")),
    ("call 166 text:/tmp 0", EPERM, Some("umount2 by process")),
    ("call 321 0 buffer:128 128", EPERM, Some("bpf by process")),
    ("call 298 buffer:128 0 -1 -1 0", EPERM, Some("perf_event_open by process")),
    ("call 323 1", EPERM, Some("userfaultfd by process")),
    ("call 250 0 -4 0", EPERM, Some("keyctl by process")),
    ("call 103 3 buffer:64 64", EPERM, Some("syslog by process")),
    ("call 304 -100 buffer:64 0", EPERM, Some("open_by_handle_at by process")),
    ("call 175 buffer:64 64 text:", EPERM, Some("init_module by process")),
    ("call 1073741925 16 {server} 0 0", &["ENOSYS"], Some("a call of another processor's interface by process")),
];
#[cfg(not(target_arch = "x86_64"))]
#[rustfmt::skip]
const ATTEMPTS: &[Attempt] = &[
    ("read /proc/{server}/mem", DENIED, None),
    ("read /proc/{server}/environ", DENIED, None),
    ("list /proc/{server}/fd", DENIED, None),
    ("read {site}/victim/secret.txt", DENIED, None),
    ("read {site}/penstock.toml", DENIED, None),
    ("list {site}/store", DENIED, None),
    ("abstract penstock-victim-{victim}", EPERM, None),
];

fn is_left_out() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let parts = kernel_parts();
    let has_all = parts.landlock >= 6 && parts.has_notifications;
    if !is_root || !has_all {
        eprintln!("left out: it takes root, Landlock with scopes and seccomp notifications");
    }
    !is_root || !has_all
}

/// A server with two hostile applications and a normal one, started by a shell that has left a file
/// open.
fn serve(deployment: Deployment) -> Server {
    let lines = |number: u32, folder: &str| match deployment {
        Deployment::Users => format!("user = \"{number}:{number}\""),
        Deployment::Limits => format!(
            "isolation = {{ write_paths = [\"{folder}/var\"], connect_ports = [], bind_ports = [] }}"
        ),
    };
    let victim = match deployment {
        Deployment::Users => lines(12349, "victim"),
        Deployment::Limits => String::new(),
    };
    let toml = TOML
        .replace("OF_PYTHON", &lines(12347, "python"))
        .replace("OF_RUBY", &lines(12348, "ruby"))
        .replace("OF_VICTIM", &victim);
    let site = Site::new()
        .file("python/hostile.py", PYTHON)
        .file("ruby/config.ru", RUBY)
        .file("victim/victim.py", VICTIM)
        .file("victim/secret.txt", "a secret of the victim's")
        .file("leaked.txt", "a secret of whoever started it")
        .config(&toml);
    let own = |path: &str, user: u32, mode: u32| {
        let path = site.dir().join(path);
        if !path.exists() {
            std::fs::create_dir(&path).unwrap();
        }
        chown(&path, Some(user), Some(user)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let of_victim = if deployment == Deployment::Users {
        12349
    } else {
        12345
    };
    let of_python = if deployment == Deployment::Users {
        12347
    } else {
        12345
    };
    own("../", 0, 0o755);
    own("", 0, 0o755);
    own("victim", of_victim, 0o700);
    own("victim/secret.txt", of_victim, 0o600);
    own("python/var", of_python, 0o700);
    for folder in ["logs", "store", "temp"] {
        own(folder, 12345, 0o700);
    }
    own("penstock.toml", 0, 0o600);
    let server = site.serve_after("exec 9<leaked.txt", &[]);
    server.wait_all_ready(&["python", "ruby", "victim"]);
    server
}

/// The launcher among the children of the server.
fn launcher(server: &Server) -> String {
    let list = format!("/proc/{0}/task/{0}/children", server.pid());
    let children = std::fs::read_to_string(list).unwrap();
    let is_it = |pid: &&str| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "penstock-launch")
    };
    children.split_whitespace().find(is_it).unwrap().to_owned()
}

fn try_it(server: &Server, language: &str, attempt: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "GET /{language}/ HTTP/1.1\r\nHost: a\r\nAttempt: {attempt}\r\n\r\n"
    ));
    client.response()
}

/// Whether a log line names an application's attempt.
fn is_named(log: &str, language: &str, name: &str) -> bool {
    let start = format!("warn {language}[");
    let name = format!("refused {name}");
    let mut lines = log.lines();
    lines.any(|line| line.contains(&start) && line.contains(&name))
}

fn expect_nothing_is_achieved(deployment: Deployment) {
    if is_left_out() {
        return;
    }
    let server = serve(deployment);
    let victim = server.get("/victim/x").text();
    let names = [
        ("{server}", server.pid().to_string()),
        ("{launcher}", launcher(&server)),
        ("{victim}", victim.split(' ').next().unwrap().to_owned()),
        ("{site}", server.site().dir().display().to_string()),
        ("{control}", server.control_path().display().to_string()),
        ("{admin}", server.admin_port().to_string()),
    ];
    let mut achieved = String::new();
    for language in ["python", "ruby"] {
        for (attempt, errors, name) in ATTEMPTS {
            let filled = names
                .iter()
                .fold((*attempt).to_owned(), |text, (name, value)| {
                    text.replace(name, value)
                });
            let text = try_it(&server, language, &filled).text();
            let error = text.strip_prefix("refused: ");
            if !error.is_some_and(|error| errors.contains(&error)) {
                let _ = writeln!(achieved, "{language}: {filled}: {text}");
            }
            let log = || server.site().read("logs/server.log");
            if let Some(name) = name {
                let what = format!("{language} is named: {filled}: {text}");
                eventually(PATIENCE, &what, || is_named(&log(), language, name));
            }
        }
    }
    assert!(achieved.is_empty(), "{deployment:?}:\n{achieved}");
    assert!(ATTEMPTS.len() >= 30 || cfg!(not(target_arch = "x86_64")));
    assert_eq!(server.get("/victim/x").text(), victim, "it was not touched");
    assert!(is_alive(names[1].1.parse().unwrap()), "the launcher");
    // Permitted actions work.
    for language in ["python", "ruby"] {
        let own = try_it(&server, language, "read /proc/self/status").text();
        assert_eq!(own, "DONE: 16 bytes");
    }
    let var = server.site().dir().join("python/var/new");
    let created = try_it(&server, "python", &format!("create {}", var.display())).text();
    assert!(created.starts_with("DONE: "), "{created}");
}

#[test]
fn hostile_applications_with_users_of_their_own_achieve_nothing() {
    expect_nothing_is_achieved(Deployment::Users);
}

#[test]
fn hostile_applications_within_limits_achieve_nothing() {
    expect_nothing_is_achieved(Deployment::Limits);
}

/// What an application writes to the sockets of its own worker, as hexadecimal digits: no frame; a
/// frame of 4 GiB; a forged response, after which the real one matches no request.
const GARBAGE: [&str; 3] = [
    "ffffffffffffffffffffffffffffffffffffffff",
    "11010200ffffffff0000000006000000",
    "11010100140000000000000006000000323030204f4b666f72676564",
];

#[test]
fn garbage_on_its_own_socket_ends_a_worker_and_mixes_no_answers() {
    if is_left_out() {
        return;
    }
    let server = serve(Deployment::Users);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let path = format!("/victim/{count}");
                let answer = server.get(&path);
                let text = answer.text();
                assert!(answer.status == 200 && text.ends_with(&path), "{text}");
                count += 1;
            }
            count
        });
        for language in ["python", "ruby"] {
            for bytes in GARBAGE {
                let worker = server.workers(language)[0];
                let mut client = server.connect();
                client.send(format!(
                    "GET /{language}/ HTTP/1.1\r\nHost: a\r\nAttempt: raw {bytes}\r\n\r\n"
                ));
                // The application's own request gets a response or an error.
                if let Ok(answer) = client.try_response(false) {
                    assert!([200, 502].contains(&answer.status), "{}", answer.text());
                }
                let end = format!("{language}[{worker}]: broke the worker protocol");
                eventually(PATIENCE, &end, || {
                    server.site().read("logs/server.log").contains(&end)
                });
                eventually(PATIENCE, "another worker serves", || {
                    let workers = server.workers(language);
                    workers.first().is_some_and(|pid| *pid != worker)
                });
                eventually(PATIENCE, "and answers for itself", || {
                    try_it(&server, language, "read /proc/self/status").text() == "DONE: 16 bytes"
                });
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(others.join().unwrap() > 0);
    });
}
