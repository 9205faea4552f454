//! Stops and signals around an upgrade: each process that is told to stop stops, the other serves,
//! and signals to the server reach the serving one.

use rustix::process::Signal;

use super::{SuccessorProcess, pid_now, upgrade};
use crate::support::{PATIENCE, Server, Site, eventually, is_alive, kill};

/// Boots only while there is no file `slow`; `/signal/PID/NAME` sends a signal.
const APP: &str = r#"
import os, signal, time
open(f"boots-{os.getppid()}", "w").close()
while os.path.exists("slow"):
    time.sleep(0.01)

def app(environ, start):
    words = environ["PATH_INFO"].split("/")
    if words[1] == "signal":
        os.kill(int(words[2]), getattr(signal, words[3]))
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getppid()}".encode()]
"#;

fn serve(server: &str) -> Server {
    let toml = format!("[server]\n{server}\n[apps.site]\nprocesses = 1\nisolation = false\n");
    let server = Site::new().file("app.py", APP).config(&toml).serve(&[]);
    server.wait_ready("site");
    server
}

/// Begins an upgrade with a new server that does not get ready; returns its process.
fn begin_slowly(server: &Server) -> i32 {
    server.site().write("slow", "");
    server.signal(Signal::USR2);
    let pid = eventually(PATIENCE, "the new server boots", || {
        let log = server.log();
        let (_, rest) = log.split_once("upgrade: new server starting (pid=")?;
        rest.split_once(')')?.0.parse::<i32>().ok()
    });
    eventually(PATIENCE, "and its application", || {
        server.site().dir().join(format!("boots-{pid}")).exists()
    });
    pid
}

#[test]
fn a_stop_ends_an_upgrade_too() {
    let server = serve("listen = [\"127.0.0.1:0\", \"unix:front.sock\"]");
    let new = begin_slowly(&server);
    server.signal(Signal::TERM);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
    eventually(PATIENCE, "the new one is gone", || !is_alive(new));
    assert!(std::net::TcpStream::connect(("127.0.0.1", server.port())).is_err());
    assert!(!server.site().dir().join("front.sock").exists());
    server.wait_log("upgrade: aborted: the new server was killed: the server is stopping");
    let log = server.log();
    assert!(!log.contains(&format!("left process {new} ")), "{log}");
}

#[test]
fn the_new_server_serves_when_the_old_one_dies_on_the_way() {
    let server = serve("");
    let new = begin_slowly(&server);
    kill(server.pid(), Signal::KILL);
    server.wait_exit(PATIENCE);
    let client = std::thread::scope(|scope| {
        // A client that connects meanwhile waits in the queue.
        let waits = scope.spawn(|| server.get("/"));
        std::fs::remove_file(server.site().dir().join("slow")).unwrap();
        waits.join().unwrap()
    });
    assert_eq!(client.text(), new.to_string());
    let successor = SuccessorProcess::of(&server);
    assert_eq!(pid_now(&server), new);
    successor.end();
}

#[test]
fn the_command_follows_the_new_server_to_another_admin_address() {
    for (admin, told) in [
        ("unix:admin.sock", ", administered at unix:/"),
        ("off", ", without an admin interface"),
    ] {
        let server = serve("admin = \"127.0.0.1:0\"");
        let toml = server.site().read("penstock.toml");
        let toml = toml.replace("127.0.0.1:0", admin);
        server.site().write("penstock.toml", toml);
        let (code, stdout, stderr) = upgrade(&server, &[]);
        assert_eq!(code, Some(0), "{stdout}{stderr}\n{}", server.log());
        let pid = stdout.trim().strip_prefix("upgraded: process ");
        let (pid, rest) = pid
            .and_then(|rest| rest.split_once(" serves"))
            .expect(&stdout);
        let successor = SuccessorProcess(pid.parse().unwrap());
        assert!(rest.starts_with(told), "{stdout}");
        assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
        assert_eq!(server.get("/").text(), successor.0.to_string());
        successor.end();
    }
}

#[test]
fn a_reload_that_an_upgrade_keeps_waiting_reaches_the_server_that_serves() {
    let server = serve("");
    let new = begin_slowly(&server);
    server.signal(Signal::HUP);
    server.wait_log("reload: waiting for the upgrade in progress");
    std::fs::remove_file(server.site().dir().join("slow")).unwrap();
    server.wait_log(&format!("SIGHUP forwarded to the new server (pid={new})"));
    // Files written beside its code count as code.
    server.wait_log("reload: application site restarted");
    let successor = SuccessorProcess::of(&server);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    successor.end();
}

#[test]
fn applications_of_neither_server_have_a_say_in_the_other() {
    let server = serve("keep_alive_drain = \"10s\"");
    // Both serve: a kept connection holds the old one.
    let mut kept = server.connect();
    kept.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    kept.expect_status(200);
    assert_eq!(upgrade(&server, &[]).0, Some(0), "{}", server.log());
    let successor = SuccessorProcess::of(&server);
    let old = server.pid();
    server.get(&format!("/signal/{old}/SIGTERM"));
    server.wait_log("the new server, has started");
    assert!(server.exited().is_none());
    let path = format!("/signal/{}/SIGTERM", pid_now(&server));
    kept.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(kept.expect_status(200).text(), old.to_string());
    server.wait_log("which the previous server started");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(server.get("/").status, 200);
    successor.end();
}
