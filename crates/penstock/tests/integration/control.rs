//! Only root and the server's owner may change a running server, through the control socket; other
//! users, applications, and TCP clients without the token may not.

use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{
    PATIENCE, RawClient, Response, Server, Site, eventually, is_alive, kill, texts,
};
use rustix::process::Signal;

/// Performs the requested connection: `/socket?PATH&REQUEST` to a Unix socket, `/tcp?PORT&REQUEST`
/// to a port, in this process; `/child/...` in a child, `/orphan/...` in an orphan with its own
/// session.
const HOSTILE: &str = r#"
import os
import socket
import subprocess
import sys
import urllib.parse

CALL = '''
import socket, sys
kind, place, request = sys.argv[1:]
s = socket.socket(socket.AF_UNIX if kind == 'socket' else socket.AF_INET)
s.settimeout(10)
try:
    s.connect(place if kind == 'socket' else ('127.0.0.1', int(place)))
    s.sendall(request.encode())
    answer = b''
    while piece := s.recv(4096):
        answer += piece
except OSError as error:
    answer = str(error).encode()
sys.stdout.buffer.write(answer)
'''
ORPHAN = '''
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            pass
        os.execv(sys.executable, [sys.executable, '-c', os.environ['CALL'], *sys.argv[1:]])
    os._exit(0)
os.wait()
'''


def app(environ, start_response):
    way = environ['PATH_INFO'].strip('/').split('/')
    place, request = urllib.parse.unquote(environ['QUERY_STRING']).split('&', 1)
    arguments = [way[-1], place, request]
    if way[0] == 'child':
        answer = subprocess.check_output([sys.executable, '-c', CALL, *arguments])
    elif way[0] == 'orphan':
        answer = subprocess.check_output(
            [sys.executable, '-c', ORPHAN, *arguments],
            env={**os.environ, 'CALL': CALL})
    else:
        saved, sys.argv = sys.argv, ['', *arguments]
        out, sys.stdout = sys.stdout, type('Out', (), {'buffer': type('B', (), {'write': None})})
        kept = []
        sys.stdout.buffer.write = kept.append
        try:
            exec(CALL, {})
        finally:
            sys.argv, sys.stdout = saved, out
        answer = kept[0]
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [answer]
"#;

const TOML: &str = "[server]\n[apps.site]\nentry = \"app:app\"\n";

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let _ = writeln!(std::io::stderr(), "skipped: only root can become another");
    }
    is_root
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn post(path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

/// The response to an application that sends `request` there.
fn tricked(server: &Server, way: &str, place: &str, request: &str) -> String {
    let quoted: String = request.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let place = place.replace('/', "%2f");
    server.get(&format!("/{way}?{place}&{quoted}")).text()
}

/// Every change that exists.
const CHANGES: [&str; 7] = [
    "/reload",
    "/stop",
    "/upgrade",
    "/logs/reopen",
    "/cache/purge",
    "/apps/site/restart",
    "/upstreams/shop/servers",
];

/// Runs a verb: its exit code and all output.
fn verb(site: &Site, arguments: &[&str]) -> (Option<i32>, String) {
    let output = site.run(arguments);
    let (stdout, stderr) = texts(&output);
    (output.status.code(), stdout + &stderr)
}

#[test]
fn the_socket_is_for_whoever_started_the_server_and_goes_with_it() {
    let server = Site::with_app().config(TOML).serve(&[]);
    server.wait_ready("site");
    let path = server.control_path();
    let about = path.symlink_metadata().unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!(about.mode() & 0o777, 0o600);
    assert_eq!(about.uid(), rustix::process::geteuid().as_raw());
    let expected = format!("127.0.0.1_{}.sock", server.port());
    assert_eq!(path.file_name().unwrap().to_str(), Some(&*expected));
    let status = server.admin_json();
    assert_eq!(status["control_socket"], format!("unix:{}", path.display()));
    // By its path, or by the admin address, which names it.
    let (socket, tcp) = (
        format!("unix:{}", path.display()),
        format!("127.0.0.1:{}", server.admin_port()),
    );
    for admin in [&socket, &tcp] {
        let (code, stdout) = verb(server.site(), &["reload", "--admin", admin]);
        assert_eq!(code, Some(0), "{admin}: {stdout}");
        let (code, stdout) = verb(server.site(), &["status", "--admin", admin]);
        assert!(
            code == Some(0) && stdout.contains("site"),
            "{admin}: {stdout}"
        );
    }
    assert_eq!(server.admin_json()["config_reloads"], 2);
    let (code, stdout) = verb(server.site(), &["stop", "--admin", &socket]);
    assert_eq!((code, stdout.trim()), (Some(0), "stopped"));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn verbs_find_the_server_of_a_configuration_without_an_admin_interface() {
    let port = free_port();
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:{port}\"]\nadmin = \"off\"\n[apps.site]\nentry = \"app:app\"\n"
    );
    let server = Site::with_app().config(&toml).serve(&[]);
    server.wait_ready("site");
    for arguments in [
        &["reload"][..],
        &["status"],
        &["restart", "site"],
        &["reopen"],
    ] {
        let (code, stdout) = verb(server.site(), arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stdout}");
    }
    let (code, stdout) = verb(server.site(), &["stop"]);
    assert_eq!((code, stdout.trim()), (Some(0), "stopped"));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    let (code, stdout) = verb(server.site(), &["reload"]);
    assert!(code == Some(1) && stdout.contains("no server"), "{stdout}");
}

#[test]
fn a_mistake_in_the_file_does_not_hide_the_server() {
    let port = free_port();
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:{port}\"]\nadmin = \"off\"\n[apps.site]\nentry = \"app:app\"\n"
    );
    let server = Site::with_app().config(&toml).serve(&[]);
    server.wait_ready("site");
    let mistaken = format!("{toml}proceses = 2\n");
    server.site().write("penstock.toml", mistaken);
    for arguments in [&["status"][..], &["restart", "site"], &["reopen"]] {
        let (code, stdout) = verb(server.site(), arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stdout}");
    }
    let (code, text) = verb(server.site(), &["reload"]);
    assert!(code == Some(1) && text.contains("proceses"), "{text}");
    // Without its table the server must be named.
    server.site().write("penstock.toml", "[server\n");
    let (code, text) = verb(server.site(), &["stop"]);
    assert_eq!(code, Some(1));
    let socket = format!("unix:{}", server.control_path().display());
    assert!(
        text.contains("to name a running server") && text.contains(&socket),
        "{text}"
    );
    let (code, text) = verb(server.site(), &["stop", "--admin", &socket]);
    assert_eq!((code, text.trim()), (Some(0), "stopped"));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn nothing_is_changed_over_tcp() {
    let server = Site::with_app().config(TOML).serve(&[]);
    server.wait_ready("site");
    for path in CHANGES {
        let mut client = RawClient::connect(server.admin_port());
        client.send(post(path));
        let answer = client.response();
        assert_eq!(answer.status, 403, "{path}");
        let stdout = answer.text();
        let socket = format!("unix:{}", server.control_path().display());
        assert!(
            stdout.contains(&socket) && stdout.contains("server.admin_token"),
            "{stdout}"
        );
    }
    assert_eq!(server.admin_json()["config_reloads"], 0);
}

#[test]
fn an_application_and_whatever_it_starts_are_refused() {
    let server = Site::new().file("app.py", HOSTILE).config(TOML).serve(&[]);
    server.wait_ready("site");
    let socket = server.control_path().display().to_string();
    let admin = server.admin_port().to_string();
    for way in ["", "child/", "orphan/"] {
        for path in CHANGES.into_iter().chain(["/publish/"]) {
            let answer = tricked(&server, &format!("{way}socket"), &socket, &post(path));
            assert!(answer.starts_with("HTTP/1.1 403 "), "{way}{path}: {answer}");
        }
        let look = "GET /status.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = tricked(&server, &format!("{way}socket"), &socket, look);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{way}: {answer}");
        let answer = tricked(&server, &format!("{way}tcp"), &admin, &post("/stop"));
        assert!(answer.starts_with("HTTP/1.1 403 "), "{way}: {answer}");
    }
    server.wait_log("application processes cannot control the server");
    // The orphan is recognised by its mark.
    server.wait_log("refused site[");
    let status = server.admin_json();
    assert_eq!(
        (&status["config_reloads"], &status["state"]),
        (&0.into(), &"running".into())
    );
}

/// Leaves a process that outlives the server and asks for a stop at each socket that it is given.
const LEAVES: &str = r#"
import os, socket, time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('left', 'w').write('yes')
        while not os.path.exists('socket'):
            time.sleep(0.05)
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(10)
        try:
            s.connect(open('socket').read())
            s.sendall(b'POST /stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
            answer = s.recv(4096)
        except OSError as error:
            answer = str(error).encode()
        with open('answer.new', 'wb') as file:
            file.write(answer)
        os.rename('answer.new', 'answer')
    os._exit(0)
os.wait()


def app(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [b'ok']
"#;

#[test]
fn what_the_applications_of_a_killed_server_left_behind_is_refused() {
    let site = Site::new().file("app.py", LEAVES).config(TOML);
    let killed = site.serve(&[]);
    killed.wait_ready("site");
    eventually(PATIENCE, "a process is left", || site.read("left") == "yes");
    killed.signal(Signal::KILL);
    assert_eq!(killed.wait_exit(PATIENCE).code(), None);
    // The next server has another application: the process is not one of its own.
    site.write(
        "app.py",
        "def app(e, s):\n    s('200 OK', [])\n    return []\n",
    );
    let server = site.serve(&[]);
    server.wait_ready("site");
    site.write("socket", server.control_path().display().to_string());
    eventually(PATIENCE, "it has asked", || !site.read("answer").is_empty());
    let answer = site.read("answer");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    server.wait_log("which comes from an application of a server that has ended");
    assert_eq!(server.admin_json()["state"], "running");
}

#[test]
fn what_is_open_to_others_is_in_the_log_and_on_the_status_page() {
    let server = Site::with_app()
        .config(TOML)
        .serve(&["--admin", "0.0.0.0:0"]);
    server.wait_ready("site");
    let warning = "shows the status of this server to every machine that reaches it";
    server.wait_log(warning);
    let status = server.admin_json();
    let warnings = status["warnings"].as_array().unwrap();
    let mut warnings = warnings.iter().filter_map(|warning| warning.as_str());
    assert!(warnings.any(|text| text.contains(warning)), "{status}");
}

#[test]
fn an_upgrade_makes_no_socket_that_belongs_to_the_user_of_applications() {
    if !is_root() {
        return;
    }
    const ADMIN: &str = "admin = \"127.0.0.1:0\"\n";
    let server = served_by_another(HOSTILE, ADMIN).serve(&[]);
    server.wait_ready("site");
    let site = server.site();
    let admin = format!("unix:{}", server.control_path().display());
    let toml = site.read("penstock.toml");
    let socket = site.dir().join("own.sock").display().to_string();
    for key in ["control_socket", "admin"] {
        let more = match key {
            "control_socket" => format!("{ADMIN}control_socket = \"unix:{socket}\"\n"),
            _ => format!("admin = \"unix:{socket}\"\n"),
        };
        site.write("penstock.toml", toml.replace(ADMIN, &more));
        let path = site.dir().join("penstock.toml");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let (code, stdout) = verb(site, &["upgrade", "--admin", &admin]);
        assert_eq!(code, Some(1), "{stdout}");
        let expected = format!("server.{key}: unix:{socket} is not created");
        assert!(
            stdout.contains(&expected) && stdout.contains("restart the server"),
            "{stdout}"
        );
        assert_eq!(server.get("/socket?x&x").status, 200);
    }
}

/// A request over the socket by another user, with Python's error if there is no connection.
fn as_another(user: u32, socket: &Path, request: &str) -> String {
    let script = "import socket, sys\n\
                  s = socket.socket(socket.AF_UNIX)\n\
                  s.settimeout(10)\n\
                  s.connect(sys.argv[1])\n\
                  s.sendall(sys.argv[2].encode())\n\
                  sys.stdout.write(s.recv(65536).decode())\n";
    let output = Command::new("setpriv")
        .args([
            &format!("--reuid={user}"),
            &format!("--regid={user}"),
            "--clear-groups",
        ])
        .args(["/usr/bin/python3", "-c", script])
        .arg(socket)
        .arg(request)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = texts(&output);
    stdout + &stderr
}

#[test]
fn another_user_of_this_machine_is_refused() {
    if !is_root() {
        return;
    }
    let server = Site::with_app().config(TOML).serve(&[]);
    server.wait_ready("site");
    let socket = server.control_path();
    let stdout = as_another(12345, &socket, &post("/stop"));
    assert!(stdout.contains("PermissionError"), "{stdout}");
    // Even if its permissions are widened.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    for path in CHANGES {
        let stdout = as_another(12345, &socket, &post(path));
        assert!(stdout.starts_with("HTTP/1.1 403 "), "{path}: {stdout}");
    }
    server.wait_log("of user 12345: the socket is for root and user 0");
    assert_eq!(server.admin_json()["state"], "running");
}

/// A site served by another user, in directories that it can enter.
fn served_by_another(app: &str, more: &str) -> Site {
    let toml =
        format!("[server]\nuser = \"12345:12346\"\n{more}[apps.site]\nentry = \"app:app\"\n");
    let site = Site::new().file("app.py", app).config(&toml);
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(site.dir(), 0o777);
    open(&site.dir().join("penstock.toml"), 0o644);
    open(&site.dir().join("app.py"), 0o644);
    site
}

#[test]
fn root_stays_the_owner_where_the_server_becomes_another_user() {
    if !is_root() {
        return;
    }
    let site = served_by_another(HOSTILE, "");
    // As without a directory of a service manager: the next server would look for one of its own.
    let server = site.serve_after("unset RUNTIME_DIRECTORY", &[]);
    server.wait_ready("site");
    let socket = server.control_path();
    assert!(socket.starts_with("/run/penstock"), "{}", socket.display());
    let about = socket.symlink_metadata().unwrap();
    assert_eq!((about.uid(), about.mode() & 0o777), (0, 0o600));
    let shown = socket.display().to_string();
    // The application runs as the server's user, but is not the owner.
    for way in ["socket", "child/socket", "orphan/socket"] {
        let answer = tricked(&server, way, &shown, &post("/stop"));
        assert!(answer.contains("Permission denied"), "{way}: {answer}");
    }
    let stdout = as_another(12345, &socket, &post("/stop"));
    assert!(stdout.contains("PermissionError"), "{stdout}");
    let admin = format!("unix:{shown}");
    let (code, stdout) = verb(server.site(), &["reload", "--admin", &admin]);
    assert_eq!(code, Some(0), "{stdout}");
    // It passes to a server that could not create it.
    let (code, stdout) = verb(server.site(), &["upgrade", "--admin", &admin]);
    assert_eq!(code, Some(0), "{stdout}");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    let again = socket.symlink_metadata().unwrap();
    assert_eq!((again.ino(), again.uid()), (about.ino(), 0));
    let (code, stdout) = verb(server.site(), &["restart", "site", "--admin", &admin]);
    assert_eq!(code, Some(0), "{stdout}");
    let stdout = as_another(12345, &socket, &post("/stop"));
    assert!(stdout.contains("PermissionError"), "{stdout}");
    let (code, stdout) = verb(server.site(), &["stop", "--admin", &admin]);
    assert_eq!(code, Some(0), "{stdout}");
    // The server's user may not remove it.
    let _ = std::fs::remove_file(&socket);
}

#[test]
fn only_a_program_of_roots_follows_a_server_that_is_another_user() {
    if !is_root() {
        return;
    }
    let server = served_by_another(HOSTILE, "").serve(&[]);
    server.wait_ready("site");
    let site = server.site();
    let admin = format!("unix:{}", server.control_path().display());
    let own = Path::new(env!("CARGO_BIN_EXE_penstock"));
    let folder = site.dir().with_file_name("programs");
    std::fs::create_dir(&folder).unwrap();
    let program = folder.join("penstock");
    std::fs::copy(own, &program).unwrap();
    let upgrade = |path: &Path| {
        let path = path.display().to_string();
        verb(site, &["upgrade", "--binary", &path, "--admin", &admin])
    };
    // They belong to the application, though the server runs as the same user.
    for place in [&program, &folder] {
        std::os::unix::fs::chown(place, Some(12345), None).unwrap();
        let (code, stdout) = upgrade(&program);
        let expected = format!("{}: writable by users other than root", place.display());
        assert!(code == Some(1) && stdout.contains(&expected), "{stdout}");
        std::os::unix::fs::chown(place, Some(0), None).unwrap();
    }
    let (code, stdout) = upgrade(&program);
    assert_eq!(code, Some(0), "{stdout}");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    let pid = server.admin_json()["pid"].to_string();
    let runs = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(runs, program);
    let (code, stdout) = verb(site, &["stop", "--admin", &admin]);
    assert_eq!(code, Some(0), "{stdout}");
}

const TOKEN: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";

/// A site with a token in a file that only its owner can read.
fn with_token(toml: &str) -> Site {
    let site = Site::with_app()
        .file("token", format!("{TOKEN}\n"))
        .config(toml);
    let token = site.dir().join("token");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    site
}

fn reload_with(server: &Server, authorization: &str) -> Response {
    let mut client = RawClient::connect(server.admin_port());
    client.send(format!(
        "POST /reload HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Length: 0\r\n\r\n"
    ));
    client.response()
}

#[test]
fn the_bearer_of_the_token_makes_changes_over_tcp() {
    let site = with_token(
        "[server]\ncontrol_socket = \"off\"\nadmin_token = { file = \"token\" }\n[apps.site]\nentry = \"app:app\"\n",
    );
    let server = site.serve(&[]);
    server.wait_ready("site");
    assert!(!server.log().contains("control unix:"), "{}", server.log());
    for (authorization, status) in [
        (String::new(), 401),
        (format!("Authorization: Bearer {}\r\n", &TOKEN[1..]), 401),
        (format!("Authorization: Basic {TOKEN}\r\n"), 401),
        (
            format!("Authorization: Bearer {TOKEN}\r\nOrigin: http://evil.example\r\n"),
            403,
        ),
        (format!("Authorization: Bearer {TOKEN}\r\n"), 200),
    ] {
        let answer = reload_with(&server, &authorization);
        assert_eq!(answer.status, status, "{authorization}{}", answer.text());
    }
    server.wait_log("POST /reload refused: wrong token (client=127.0.0.1:");
    let log = server.log();
    assert!(!log.contains(&TOKEN[1..8]), "{log}");
    // Guesses are limited, and do not lock out clients with the token.
    let wrong = |_| reload_with(&server, "Authorization: Bearer guess\r\n").status;
    let statuses: Vec<u16> = (0..30).map(wrong).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(reload_with(&server, &right).status, 200);
    // The commands send it.
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let with_file = ["reload", "-c", "penstock.toml", "--admin", &admin];
    let (code, stdout) = verb(server.site(), &with_file);
    assert_eq!(code, Some(0), "{stdout}");
    let (code, stdout) = verb(server.site(), &["reload", "--admin", &admin]);
    assert!(
        code == Some(1) && stdout.contains("use -c FILE"),
        "{stdout}"
    );
    // A successor has it too.
    let (code, stdout) = verb(
        server.site(),
        &["upgrade", "-c", "penstock.toml", "--admin", &admin],
    );
    assert_eq!(code, Some(0), "{stdout}");
    assert_eq!(reload_with(&server, &right).status, 200);
    let next = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
    kill(next, Signal::TERM);
    eventually(PATIENCE, "the server that has followed ends", || {
        !is_alive(next)
    });
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn a_token_that_others_could_know_is_an_error() {
    let toml = "[server]\nadmin_token = { file = \"token\" }\n[apps.site]\nentry = \"app:app\"\n";
    for (content, mode, error) in [
        (TOKEN, 0o644, "chmod 0600"),
        (
            "correct horse battery staple correct horse",
            0o600,
            "openssl rand -base64 32",
        ),
        ("", 0o600, "openssl rand -base64 32"),
    ] {
        let site = Site::with_app().file("token", content).config(toml);
        let token = site.dir().join("token");
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode)).unwrap();
        for (arguments, code) in [
            (&["serve", "-l", "127.0.0.1:0", "--admin", "off"][..], 1),
            (&["check", "penstock.toml"], 2),
        ] {
            let (exit, stdout) = verb(&site, arguments);
            assert_eq!(exit, Some(code), "{arguments:?}: {stdout}");
            let is_named = stdout.contains("server.admin_token: ") && stdout.contains(error);
            assert!(is_named, "{arguments:?}: {stdout}");
        }
    }
}

#[test]
fn a_socket_that_was_left_is_replaced_and_one_that_lives_is_not() {
    let port = free_port();
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:{port}\"]\nreuse_port = true\n[apps.site]\nentry = \"app:app\"\n"
    );
    let site = Site::with_app().config(&toml);
    let path =
        |name: &str| -> PathBuf { site.runtime_dir().join(format!("127.0.0.1_{port}{name}")) };
    drop(std::os::unix::net::UnixListener::bind(path(".sock")).unwrap());
    let first = site.serve(&[]);
    assert_eq!(first.control_path(), path(".sock"));
    let second = site.serve(&[]);
    assert_eq!(second.control_path(), path("-2.sock"));
    drop(second);
    assert!(path(".sock").exists() && !path("-2.sock").exists());
    assert_eq!(first.admin("POST", "/reload").status, 200);
}

#[test]
fn without_a_folder_of_its_own_it_serves_and_says_what_is_missing() {
    if !is_root() {
        return;
    }
    // The path exists already: it is neither used nor does it stop the server.
    let user = 54321;
    let folder = PathBuf::from(format!("/tmp/penstock-{user}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(12345), Some(12345)).unwrap();
    let site = Site::with_app().config(TOML);
    for path in [site.dir(), site.dir().parent().unwrap()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    for file in ["app.py", "penstock.toml"] {
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(site.dir().join(file), mode).unwrap();
    }
    let drop_to = format!(
        "exec setpriv --reuid={user} --regid={user} --clear-groups env -u RUNTIME_DIRECTORY \
         -u XDG_RUNTIME_DIR HOME=/ \"$0\" \"$@\""
    );
    let server = site.serve_after(&drop_to, &[]);
    server.wait_ready("site");
    let _ = std::fs::remove_dir(&folder);
    server.wait_log("/tmp/penstock-54321: belongs to user 12345");
    server.wait_log("Set server.control_socket to a path");
    assert!(server.admin_json()["control_socket"].is_null());
    assert_eq!(server.get("/").status, 200);
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let (code, stdout) = verb(&site, &["reload", "--admin", &admin]);
    assert!(
        code == Some(1) && stdout.contains("has no control socket"),
        "{stdout}"
    );
}
