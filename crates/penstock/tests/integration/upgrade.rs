//! An upgrade fails no request: a new process of the program takes the listeners and serves, and
//! the previous one drains; a new process that does not become ready changes nothing.
//!
//! `penstock upgrade` and SIGUSR2. Clients with kept connections and clients with new ones see no
//! error; the new server is another process, which stops when told.

mod long_requests;
mod older_versions;
mod shutdown_and_signals;

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{
    ClientLoad, LoadClient, PATIENCE, RawClient, Server, Site, eventually, is_alive, kill, texts,
};

const TOML: &str = "[server]\nkeep_alive_drain = \"2s\"\n[apps.site]\nprocesses = 2\n";

fn serve(toml: &str) -> Server {
    let server = Site::with_app()
        .file("public/a.txt", "file")
        .config(toml)
        .serve(&[]);
    server.wait_ready("site");
    server
}

pub(crate) fn upgrade(server: &Server, more: &[&str]) -> (Option<i32>, String, String) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let arguments = [&["upgrade", "--admin", &admin][..], more].concat();
    let output = server.site().run(&arguments);
    let (stdout, stderr) = texts(&output);
    (output.status.code(), stdout, stderr)
}

pub(crate) fn pid_now(server: &Server) -> i32 {
    i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap()
}

/// The successor; ended with the test.
pub(crate) struct SuccessorProcess(i32);

impl SuccessorProcess {
    pub(crate) fn of(server: &Server) -> Self {
        // For a moment after the successor serves, the old server may still be asked.
        let mut pid = server.pid();
        eventually(PATIENCE, "the successor answers", || {
            pid = pid_now(server);
            pid != server.pid()
        });
        Self(pid)
    }

    /// Stops it, and waits.
    pub(crate) fn end(self) {
        kill(self.0, Signal::TERM);
        eventually(PATIENCE, "the successor ends", || !is_alive(self.0));
    }
}

impl Drop for SuccessorProcess {
    fn drop(&mut self) {
        if is_alive(self.0) {
            kill(self.0, Signal::KILL);
        }
    }
}

fn connect(port: u16) -> Result<TcpStream, String> {
    let client = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    Ok(client)
}

#[test]
fn clients_go_through_upgrades_without_an_error() {
    let server = serve(TOML);
    let (thinks, hurries) = (Duration::from_millis(50), Duration::ZERO);
    let clients = [
        ("/a.txt", true, thinks),
        ("/x", true, thinks),
        ("/x", true, hurries),
        ("/a.txt", false, hurries),
        ("/x", false, Duration::from_millis(5)),
    ];
    let clients = clients.map(|(path, keeps, pause)| LoadClient { path, keeps, pause });
    let port = server.port();
    let load = ClientLoad::start(move || connect(port), "a", &clients);
    load.more(50);
    let mut before = server.pid();
    for _ in 0..3 {
        let (code, stdout, stderr) = upgrade(&server, &[]);
        assert_eq!(code, Some(0), "{stdout}{stderr}\n{}", server.log());
        let now = pid_now(&server);
        assert_ne!(now, before);
        assert_eq!(stdout.trim(), format!("upgraded: process {now} serves"));
        load.more(50);
        eventually(PATIENCE, "the one before ends", || {
            match before == server.pid() {
                true => server.exited().is_some(),
                false => !is_alive(before),
            }
        });
        before = now;
    }
    let successor = SuccessorProcess::of(&server);
    load.more(50);
    load.end();
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    let workers = server.workers("site");
    successor.end();
    assert!(workers.len() == 2 && !workers.into_iter().any(is_alive));
}

#[test]
fn a_new_application_begins_as_large_as_the_load_had_made_the_one_before() {
    let toml = |mark: &str| {
        format!(
            "[server]\nkeep_alive_drain = \"2s\"\n[apps.site]\nprocesses = {{ min = 1, max = 3 }}\n\
             threads = {{ min = 1, max = 2 }}\nscale = {{ up_after = \"20ms\" }}\nenv = {{ MARK = \"{mark}\" }}\n"
        )
    };
    let server = serve(&toml("one"));
    let size = || {
        let app = server.admin_json()["apps"][0].clone();
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let ready = number(&app["processes"]["ready"]);
        (
            ready,
            number(&app["threads"]),
            number(&app["queue"]["slots"]),
        )
    };
    assert_eq!(size(), (1, 1, 1));
    let mut held: Vec<_> = (0..6).map(|_| server.connect()).collect();
    for client in &mut held {
        client.send("GET /gate/open HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually(PATIENCE, "all have been taken in", || size() == (3, 2, 6));
    // Other settings: another application in place of the first.
    server.site().write("penstock.toml", toml("two"));
    assert_eq!(
        server.admin("POST", "/reload").status,
        200,
        "{}",
        server.log()
    );
    assert_eq!(size(), (3, 2, 6), "{}", server.log());
    server.site().write("open", "");
    for client in &mut held {
        client.expect_status(200);
    }
    let (code, stdout, stderr) = upgrade(&server, &[]);
    assert_eq!(code, Some(0), "{stdout}{stderr}\n{}", server.log());
    let successor = SuccessorProcess::of(&server);
    assert_eq!(size(), (3, 2, 6), "{}", server.log());
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    successor.end();
}

#[test]
fn a_request_in_progress_is_finished_by_the_server_that_began_it() {
    let server = serve(TOML);
    let mut inside = server.connect();
    inside.send("GET /gate/open HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut idle = server.connect();
    idle.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    idle.expect_status(200);
    let mut fresh = server.connect();
    eventually(PATIENCE, "it is inside", || {
        !server.site().seen().is_empty()
    });
    server.signal(Signal::USR2);
    server.wait_log("upgrade: process ");
    server.wait_log(" serves");
    let successor = SuccessorProcess::of(&server);
    assert!(server.exited().is_none(), "a request is still in progress");
    // Connections opened before get one more response, with `Connection: close`.
    for client in [&mut idle, &mut fresh] {
        client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\nGET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.expect_status(200).header("connection"), None);
        let last = client.expect_status(200);
        assert_eq!(last.header("connection"), Some("close"));
        client.expect_closed();
    }
    server.site().write("open", "");
    let answer = inside.expect_status(200);
    assert_eq!(
        (answer.text().as_str(), answer.header("connection")),
        ("open", Some("close"))
    );
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(server.get("/a.txt").text(), "file");
    successor.end();
}

#[test]
fn an_upgrade_waits_until_the_server_before_is_gone() {
    let server = serve(TOML);
    let mut inside = server.connect();
    inside.send("GET /gate/open HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(PATIENCE, "it is inside", || {
        !server.site().seen().is_empty()
    });
    assert_eq!(upgrade(&server, &[]).0, Some(0));
    let first = pid_now(&server);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| upgrade(&server, &[]));
        server.wait_log("upgrade: waiting for the previous server to exit (pid=");
        let refused = server.admin("POST", "/reload");
        assert_eq!(refused.status, 409);
        assert!(refused.text().contains("an upgrade is in progress"));
        assert!(server.exited().is_none() && pid_now(&server) == first);
        server.site().write("open", "");
        inside.expect_status(200);
        let (code, stdout, stderr) = second.join().unwrap();
        assert_eq!(code, Some(0), "{stdout}{stderr}\n{}", server.log());
    });
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    eventually(PATIENCE, "the second one ends", || !is_alive(first));
    let successor = SuccessorProcess::of(&server);
    assert_eq!(server.get("/a.txt").text(), "file");
    assert_eq!(server.get("/x").status, 200);
    successor.end();
}

#[test]
fn other_listeners_and_more_threads_are_taken_up_by_the_new_server() {
    let toml = |listen: &str, threads: usize| {
        format!("[server]\nlisten = [{listen}]\nthreads = {threads}\n[apps.site]\nprocesses = 1\n")
    };
    let server = serve(&toml(
        "\"127.0.0.1:0\", \"unix:old.sock\", \"unix:kept.sock\"",
        3,
    ));
    let file = |name: &str| server.site().dir().join(name);
    let get = |name: &str| {
        let mut client = RawClient::connect_unix(&file(name));
        client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.expect_status(200).text()
    };
    let mut before = server.pid();
    for (listen, threads) in [
        ("\"127.0.0.1:0\", \"unix:kept.sock\", \"unix:new.sock\"", 1),
        ("\"unix:kept.sock\", \"127.0.0.1:0\", \"unix:new.sock\"", 4),
    ] {
        server.site().write("penstock.toml", toml(listen, threads));
        let (code, stdout, stderr) = upgrade(&server, &[]);
        assert_eq!(code, Some(0), "{stdout}{stderr}\n{}", server.log());
        let successor = pid_now(&server);
        eventually(PATIENCE, "the one before ends", || {
            match before == server.pid() {
                true => server.exited().is_some(),
                false => !is_alive(before),
            }
        });
        before = successor;
        // Whichever socket a connection comes to, a server serves it.
        for _ in 0..20 {
            assert_eq!(server.get("/a.txt").text(), "file");
        }
        assert_eq!(
            (get("kept.sock"), get("new.sock")),
            ("file".into(), "file".into())
        );
        assert!(!file("old.sock").exists());
    }
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    SuccessorProcess::of(&server).end();
    assert!(!file("kept.sock").exists() && !file("new.sock").exists());
}

#[test]
fn a_new_server_that_does_not_boot_changes_nothing() {
    let server = serve("[server]\n[apps.site]\nprocesses = 1\nboot_timeout = \"4s\"\n");
    let script = |name: &str, text: &str| {
        server.site().write(name, format!("#!/bin/sh\n{text}\n"));
        let path = server.site().dir().join(name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("fails", "echo it cannot be >&2; exit 1");
    script("hangs", "echo $$ > hangs.pid; exec sleep 1000");
    let is_unchanged = |what: &str| {
        assert_eq!(pid_now(&server), server.pid(), "{what}");
        assert_eq!(server.get("/a.txt").text(), "file", "{what}");
        assert_eq!(server.get("/x").status, 200, "{what}");
    };
    let (code, _, stderr) = upgrade(&server, &["--binary", "fails"]);
    assert_eq!(code, Some(1));
    for word in ["ended with exit code 1", "it cannot be"] {
        assert!(stderr.contains(word), "{stderr}");
    }
    is_unchanged("one that fails");
    let began = Instant::now();
    let (code, _, stderr) = upgrade(&server, &["--binary", "hangs"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("did not become ready in time"), "{stderr}");
    assert!(began.elapsed() < PATIENCE);
    let pid: i32 = server.site().read("hangs.pid").trim().parse().unwrap();
    assert!(!is_alive(pid), "it was ended");
    is_unchanged("one that hangs");
    let (code, _, stderr) = upgrade(&server, &["--binary", "nothing"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("nothing"), "{stderr}");
    // The real program, with an application that does not start.
    server.site().write(
        "app.py",
        "def app(environ, start_response): pass\nraise RuntimeError('not today')\n",
    );
    let (code, _, stderr) = upgrade(&server, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("not today"), "{stderr}");
    is_unchanged("one whose application fails");
    server
        .site()
        .write("penstock.toml", "[server]\nnonsense = 1\n");
    let (code, _, stderr) = upgrade(&server, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("nonsense"), "{stderr}");
    is_unchanged("one that does not understand its configuration");
}

#[test]
fn one_change_at_a_time() {
    let server = serve("[server]\n[apps.site]\nprocesses = 1\nboot_timeout = \"4s\"\n");
    server.site().write("hangs", "#!/bin/sh\nexec sleep 1000\n");
    let hangs = server.site().dir().join("hangs");
    std::fs::set_permissions(&hangs, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| upgrade(&server, &["--binary", "hangs"]));
        server.wait_log("new server starting");
        for (path, word) in [("/upgrade", "an upgrade"), ("/reload", "an upgrade")] {
            let refused = server.admin("POST", path);
            assert_eq!(refused.status, 409, "{path}");
            assert!(refused.text().contains(&format!("{word} is in progress")));
        }
        assert_eq!(first.join().unwrap().0, Some(1));
    });
    assert_eq!(
        server.admin("POST", "/reload").status,
        200,
        "and then it may be"
    );
}
