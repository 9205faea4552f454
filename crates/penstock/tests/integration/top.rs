//! `penstock top`, and the routes and clients with most requests in the status.

use std::process::Command;

use crate::support::{Server, Site, texts};

const TOML: &str = r#"
[server]
threads = 2
[[sites]]
hosts = ["a.test", "b.test"]
[[sites.routes]]
path = "/busy"
respond = { body = "busy" }
[[sites.routes]]
path = "/busy/*"
deny = ["10.0.0.0/8"]
respond = { body = "less" }
"#;

fn ask(server: &Server, path: &str, client: &str, count: usize) {
    for _ in 0..count {
        let mut connection = server.connect();
        connection.send(format!(
            "GET {path} HTTP/1.1\r\nHost: b.test\r\nX-Forwarded-For: {client}\r\n\r\n"
        ));
        connection.response();
    }
}

fn control(server: &Server) -> String {
    format!("unix:{}", server.control_path().display())
}

#[test]
fn the_status_has_the_routes_and_clients_with_most_requests() {
    let server = Site::new().config(TOML).serve(&[]);
    ask(&server, "/busy", "192.0.2.1", 6);
    ask(&server, "/busy/1", "2001:db8::1", 2);
    ask(&server, "/busy/2", "2001:db8::2", 1);
    ask(&server, "/none", "10.0.0.1", 1);
    let top = &server.admin_json()["top"];
    let pairs = |key: &str| -> Vec<(String, u64)> {
        let list = top[key].as_array().unwrap().iter();
        list.map(|it| {
            let name = it["name"].as_str().unwrap().to_owned();
            (name, it["requests"].as_u64().unwrap())
        })
        .collect()
    };
    let expected = |pairs: &[(&str, u64)]| -> Vec<(String, u64)> {
        let owned = |(name, count): &(&str, u64)| ((*name).to_owned(), *count);
        pairs.iter().map(owned).collect()
    };
    assert_eq!(top["requests"], 10);
    let routes = [("a.test,b.test /busy", 6), ("a.test,b.test /busy/*", 3)];
    assert_eq!(pairs("routes"), expected(&routes));
    let clients = [("192.0.2.1", 6), ("2001:db8::/64", 3), ("10.0.0.1", 1)];
    assert_eq!(pairs("clients"), expected(&clients));
    let off = TOML.replace("threads = 2", "threads = 2\ntop_lists = false");
    server.site().write("penstock.toml", off);
    assert_eq!(server.admin("POST", "/reload").status, 200);
    ask(&server, "/busy", "192.0.2.1", 1);
    assert_eq!(server.admin_json()["top"]["requests"], 0);
}

#[test]
fn one_frame_goes_to_a_pipe() {
    let server = Site::new().config(TOML).serve(&[]);
    ask(&server, "/busy", "192.0.2.1", 3);
    ask(&server, "/busy/1", "10.0.0.1", 1);
    let done = server
        .site()
        .run(&["top", "--once", "--admin", &control(&server)]);
    let (out, error) = texts(&done);
    assert!(done.status.success(), "{error}");
    for expected in [
        "running, pid ",
        "requests/s",
        "TOP ROUTES",
        "a.test,b.test /busy    ",
        "75.0 %",
        "1 refused",
    ] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    assert!(!out.contains('\x1b'), "{out}");
    let live = server.site().run(&["top", "--admin", &control(&server)]);
    assert!(texts(&live).1.contains("use --once"), "{live:?}");
    let gone = server
        .site()
        .run(&["top", "--once", "--admin", "unix:/nowhere.sock"]);
    assert_eq!(gone.status.code(), Some(1));
}

/// Runs `penstock top` in a terminal of its own, lets it show two frames of two sizes, ends it and
/// prints how it left the terminal.
const IN_A_TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
end, program = sys.argv[1], sys.argv[2:]
leader, follower = pty.openpty()
resize = lambda rows, columns: fcntl.ioctl(leader, termios.TIOCSWINSZ,
    struct.pack("HHHH", rows, columns, 0, 0))
resize(24, 80)
before = termios.tcgetattr(follower)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
    for number in (0, 1, 2):
        os.dup2(follower, number)
    os.execv(program[0], program)
seen = b""
def wait_for(needle, count):
    global seen
    until = time.monotonic() + 15
    while seen.count(needle) < count:
        left = until - time.monotonic()
        assert left > 0, (needle, seen)
        if select.select([leader], [], [], left)[0]:
            seen += os.read(leader, 65536)
wait_for(b"requests/s", 2)
assert not termios.tcgetattr(follower)[3] & termios.ICANON
seen = b""
resize(24, 30)
os.kill(child, signal.SIGWINCH)
wait_for(b"requests/s", 1)
if end == "q":
    os.write(leader, b"q")
else:
    os.kill(child, getattr(signal, end))
wait_for(b"\x1b[?1049l", 1)
status = os.waitpid(child, 0)[1]
after = termios.tcgetattr(follower)
assert after == before, (before, after)
print("exit", os.waitstatus_to_exitcode(status))
"#;

#[test]
fn the_terminal_is_as_before_after_a_key_or_a_signal() {
    let server = Site::new().config(TOML).serve(&[]);
    for end in ["q", "SIGTERM", "SIGINT"] {
        let done = Command::new("python3")
            .args([
                "-c",
                IN_A_TERMINAL,
                end,
                env!("CARGO_BIN_EXE_penstock"),
                "top",
            ])
            .args(["--admin", &control(&server)])
            .output()
            .unwrap();
        let (out, error) = texts(&done);
        assert_eq!(out.trim_end(), "exit 0", "{end}: {error}");
    }
}
