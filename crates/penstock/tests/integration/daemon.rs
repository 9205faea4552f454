//! Integration with service managers: readiness notification, socket activation, log reopening,
//! daemonising once ready, and the configured user.

mod connection_close;
mod users;

use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::support::{
    PATIENCE, RawClient, Site, eventually, get, is_alive, is_server_hidden, kill, texts,
};

const APP: &str = "[apps.site]\nprocesses = 1\n";

/// A service manager that receives notifications.
struct ServiceManager {
    socket: UnixDatagram,
    messages: Vec<String>,
}

impl ServiceManager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            socket,
            messages: Vec::new(),
        }
    }

    /// Waits for a message with this beginning.
    fn expect(&mut self, start: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let count = self.socket.recv(&mut buffer);
            let count = count.unwrap_or_else(|_| panic!("{start} among {:?}", self.messages));
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            self.messages.push(text.clone());
            if text.starts_with(start) {
                return text;
            }
        }
    }
}

#[test]
fn the_service_manager_is_told_of_everything() {
    let site = Site::with_app().config(APP);
    let path = site.dir().join("notify");
    let mut manager = ServiceManager::at(&path);
    let name = path.to_str().unwrap();
    let env = [("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", "200000")];
    let server = site.serve_with(&[], &env);
    let ready = manager.expect("READY=1");
    let status = format!("STATUS=serving http://127.0.0.1:{}", server.port());
    assert!(ready.contains(&status), "{ready}");
    manager.expect("WATCHDOG=1");
    server.signal(Signal::HUP);
    let reloading = manager.expect("RELOADING=1\nMONOTONIC_USEC=");
    assert!(reloading.len() > 30, "{reloading}");
    manager.expect("READY=1");
    server.signal(Signal::USR2);
    let successor = manager.expect("MAINPID=");
    let successor = DetachedServer(successor.trim_start_matches("MAINPID=").parse().unwrap());
    assert_ne!(successor.0, server.pid());
    manager.expect("READY=1");
    manager.expect("WATCHDOG=1");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    let is_stopping = |heard: &String| heard.starts_with("STOPPING");
    assert!(
        !manager.messages.iter().any(is_stopping),
        "{:?}",
        manager.messages
    );
    kill(successor.0, Signal::TERM);
    manager.expect("STOPPING=1");
    eventually(PATIENCE, "the successor ends", || !is_alive(successor.0));
}

#[test]
fn no_worker_sees_the_words_of_the_service_manager() {
    let app = "import os\n\
               def app(environ, start_response):\n\
               \x20   start_response('200 OK', [])\n\
               \x20   names = [n for n in os.environ if n.startswith(('NOTIFY', 'LISTEN', 'WATCHDOG', 'PENSTOCK_HAND'))]\n\
               \x20   return [repr(names).encode()]\n";
    let site = Site::new().file("app.py", app).config(APP);
    let env = [("NOTIFY_SOCKET", "/nowhere"), ("WATCHDOG_USEC", "1000000")];
    let server = site.serve_with(&[], &env);
    server.wait_ready("site");
    assert_eq!(server.get("/").text(), "[]");
}

/// Starts `penstock serve` as a service manager does, with these descriptors from 3 on.
fn activated<S: AsFd + AsRawFd>(site: &Site, arguments: &[&str], sockets: &[&S]) -> Output {
    // A shell moves them into place; LISTEN_PID is its own number, which the program keeps.
    let mut script = String::new();
    for (at, socket) in sockets.iter().enumerate() {
        let from = socket.as_raw_fd();
        script += &format!("exec {}<&{from}; ", 50 + at);
    }
    for at in 0..sockets.len() {
        script += &format!("exec {}<&{}; exec {}<&-; ", 3 + at, 50 + at, 50 + at);
    }
    script += "export LISTEN_PID=$$; exec \"$@\"";
    let mut command = Command::new("bash");
    command
        .args([
            "-c",
            &script,
            "bash",
            env!("CARGO_BIN_EXE_penstock"),
            "serve",
        ])
        .args(arguments)
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_FDNAMES", "web:other")
        .current_dir(site.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    for socket in sockets {
        let flags = rustix::io::fcntl_getfd(socket).unwrap() - rustix::io::FdFlags::CLOEXEC;
        rustix::io::fcntl_setfd(socket, flags).unwrap();
    }
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn sockets_that_are_passed_are_served() {
    let site = Site::with_app().file("public/a.txt", "file");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    // A client that connects before the server starts waits in the socket's queue.
    let mut early = RawClient::connect(address.port());
    early.send("GET /a.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let admin = site.dir().join("admin.sock");
    let output = std::thread::scope(|scope| {
        let (listen, place) = (address.to_string(), format!("unix:{}", admin.display()));
        let arguments = ["-l", &listen, "--admin", &place].map(str::to_owned);
        let (site, socket) = (&site, &socket);
        let running = scope.spawn(move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            activated(site, &arguments, &[socket])
        });
        assert_eq!(early.expect_status(200).text(), "file");
        assert_eq!(get(address.port(), "/a.txt").text(), "file");
        let stopped = site.run(&["stop", "--admin", &format!("unix:{}", admin.display())]);
        assert_eq!(stopped.status.code(), Some(0));
        running.join().unwrap()
    });
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
}

#[test]
fn a_socket_that_nothing_listens_on_is_an_error() {
    let site = Site::with_app();
    let [first, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let listen = first.local_addr().unwrap().to_string();
    let arguments = ["-l", &listen, "--admin", "off"];
    let output = activated(&site, &arguments, &[&first, &other]);
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let name = format!("other ({})", other.local_addr().unwrap());
    assert!(stderr.contains(&name), "{stderr}");
}

#[test]
fn logs_are_opened_anew_after_they_were_renamed() {
    let toml = "[server]\nlog = \"logs/server.log\"\naccess_log = \"logs/access.log\"\n";
    let site = Site::with_app().config(&format!("{toml}{APP}"));
    let server = site.serve(&[]);
    server.wait_ready("site");
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let rename = |name: &str| {
        let logs = site.dir().join("logs");
        std::fs::rename(logs.join(name), logs.join(format!("{name}.1"))).unwrap();
    };
    server.get("/before");
    eventually(PATIENCE, "the line is written", || {
        site.read("logs/access.log").contains("/before")
    });
    ["access.log", "server.log"].into_iter().for_each(rename);
    let output = site.run(&["reopen", "--admin", &admin]);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stdout.contains("server.log and ") && stdout.contains("access.log"),
        "{stdout}"
    );
    server.get("/after");
    eventually(PATIENCE, "the line is written", || {
        site.read("logs/access.log").contains("/after")
    });
    assert!(site.read("logs/access.log.1").contains("/before"));
    assert!(!site.read("logs/access.log.1").contains("/after"));
    eventually(PATIENCE, "so is the server's", || {
        site.read("logs/server.log").contains("logs: reopened ")
    });
    // A log that cannot be reopened continues in its old file; the signal does the same as the
    // verb.
    rename("access.log");
    std::fs::create_dir(site.dir().join("logs/access.log")).unwrap();
    server.signal(Signal::USR1);
    eventually(PATIENCE, "the failure is told", || {
        site.read("logs/server.log")
            .contains("The open files stay in use")
    });
    server.get("/later");
    eventually(PATIENCE, "the line is written", || {
        site.read("logs/access.log.1").contains("/later")
    });
}

#[test]
fn a_daemon_is_in_the_background_once_it_serves() {
    if is_server_hidden() {
        return;
    }
    let site = Site::with_app().config(APP);
    let admin = "unix:admin.sock";
    let listen = "unix:front.sock";
    let start = || {
        site.run(&[
            "serve",
            "--daemonize",
            "--log",
            "server.log",
            "-l",
            listen,
            "--admin",
            admin,
        ])
    };
    let output = start();
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    let daemon = DetachedServer::at(&site, admin);
    let pid = daemon.0;
    assert!(
        stdout.contains("app site: wsgi, 1 process, ready in "),
        "{stdout}"
    );
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat
        .rsplit(") ")
        .next()
        .unwrap()
        .split(' ')
        .nth(3)
        .unwrap()
        .to_owned();
    assert_eq!(session, pid.to_string(), "it leads a session of its own");
    let stream = |number: u8| std::fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
    assert_eq!(stream(0), Path::new("/dev/null"));
    assert_eq!(
        (stream(1), stream(2)),
        (site.dir().join("server.log"), site.dir().join("server.log"))
    );
    let mut client = RawClient::connect_unix(&site.dir().join("front.sock"));
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.expect_status(200);
    // Errors are printed where it was started.
    let second = start();
    let (_, stderr) = texts(&second);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr.contains("front.sock"), "{stderr}");
    let stopped = site.run(&["stop", "--admin", admin]);
    assert_eq!(stopped.status.code(), Some(0));
    eventually(PATIENCE, "it is gone", || !is_alive(pid));
    site.write(
        "app.py",
        "def app(environ, start_response): pass\nraise RuntimeError('not today')\n",
    );
    let broken = start();
    let (_, stderr) = texts(&broken);
    assert_eq!(broken.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("not today"), "{stderr}");
}

#[test]
fn why_a_daemon_does_not_start_is_said_before_the_command_ends() {
    let site = Site::new().config(APP).file(
        "app.py",
        "def app(environ, start_response): pass\nraise RuntimeError('not today')\n",
    );
    let stdout = std::fs::File::create(site.dir().join("stdout.txt")).unwrap();
    // Waiting for the end of a file is impossible: its content when the command ends is complete.
    let status = Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(["serve", "--daemonize", "--log", "server.log"])
        .args(["-l", "unix:front.sock", "--admin", "off"])
        .current_dir(site.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stdout)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    let stdout = site.read("stdout.txt");
    assert!(stdout.contains("not today"), "{stdout}");
}

/// A process that is not a child of the test; ended with it, whatever happens.
struct DetachedServer(i32);

impl DetachedServer {
    /// The server at the admin socket of a site.
    fn at(site: &Site, admin: &str) -> Self {
        let status = site.run(&["status", "--json", "--admin", admin]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        Self(i32::try_from(status["pid"].as_i64().unwrap()).unwrap())
    }
}

impl Drop for DetachedServer {
    fn drop(&mut self) {
        if is_alive(self.0) {
            kill(self.0, Signal::KILL);
        }
    }
}
