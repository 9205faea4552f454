//! Regressions that only a certain order of events shows.
//!
//! The order is forced: requests queue up for a stopped worker and then reach it in one batch; a
//! stopped server finds all of its responses at once.
//!
//! # Invariants
//!
//! - No connection makes the server hold more than it can use, and nothing stalls.
//! - No valid request costs a worker.
//! - No work is done for a disconnected client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{
    PATIENCE, RawClient, Server, Site, eventually, find, is_alive, is_server_hidden, kill,
};
use crate::wsgi::serve_ready;

/// An application with a path for each order of events.
const APP: &str = include_str!("apps/regressions.py");

/// Very short requests after which a worker counts as quick and gets batches.
const WARM_UP: usize = 1_200;

/// A site with the application, these lines in its table, and these tables before it.
fn site(app: &str, tables: &str) -> Site {
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nthreads = 1\n{tables}\n\
         [apps.app]\nentry = \"app:app\"\nprocesses = 1\n{app}\n\n\
         [[sites]]\n[[sites.routes]]\npath = \"/pages/*\"\nfiles = {{ root = \"public\" }}\n\
         [[sites.routes]]\npath = \"/*\"\napp = \"app\"\n"
    );
    let site = Site::new().file("app.py", APP).config(&toml);
    site.file("public/pages/a.txt", "page")
        .file("content", "content of the file")
}

fn ask(server: &Server, path: &str) -> RawClient {
    let mut client = server.connect();
    client.send(get(path));
    client
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// An upload that is buffered in a file.
fn upload(path: &str) -> String {
    let length = 100_000;
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    head + &"x".repeat(length)
}

fn app_status(server: &Server) -> serde_json::Value {
    server.admin_json()["apps"][0].clone()
}

fn wait_queue(server: &Server, key: &str, count: usize) {
    eventually(PATIENCE, &format!("{key} is {count}"), || {
        app_status(server)["queue"][key] == count
    });
}

/// Makes the application count as quick.
fn warm_up(server: &Server) {
    let mut client = server.connect();
    for _ in 0..WARM_UP / 100 {
        client.send(get("/").repeat(100));
        for _ in 0..100 {
            client.expect_status(200);
        }
    }
}

/// Queues up requests behind one in a stopped worker, and continues the worker.
fn in_one_batch(server: &Server, requests: &[String]) -> Vec<RawClient> {
    let worker = server.workers("app")[0];
    kill(worker, Signal::STOP);
    let mut first = ask(server, "/");
    wait_queue(server, "active", 1);
    let mut clients = Vec::new();
    for request in requests {
        let mut client = server.connect();
        client.send(request);
        clients.push(client);
        wait_queue(server, "length", clients.len());
    }
    kill(worker, Signal::CONT);
    first.expect_status(200);
    clients
}

/// Drops a client; returns when the server has noticed.
fn leave(server: &Server, client: RawClient) {
    client.reset();
    // The one loop handles events of its connections in order.
    for _ in 0..3 {
        assert_eq!(server.get("/pages/a.txt").text(), "page");
    }
}

fn resident_bytes(server: &Server) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", server.pid())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Sends requests with large heads without waiting for a response, and counts the responses.
fn pipeline(server: &Server, count: usize, mut meanwhile: impl FnMut()) {
    let padding = "p".repeat(4_000);
    let request = format!("GET /pid HTTP/1.1\r\nHost: a\r\nX-Padding: {padding}\r\n\r\n");
    let mut sender = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    sender.set_write_timeout(Some(PATIENCE)).unwrap();
    sender.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut receiver = sender.try_clone().unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            for _ in 0..count {
                sender.write_all(request.as_bytes()).unwrap();
            }
        });
        let receiving = scope.spawn(move || {
            let (mut buffer, mut answers) = (vec![0; 64 << 10], 0);
            let mut rest = Vec::new();
            while answers < count {
                let read = receiver.read(&mut buffer).unwrap();
                assert!(read > 0, "closed after {answers} answers");
                rest.extend_from_slice(&buffer[..read]);
                while let Some(at) = find(&rest, b"HTTP/1.1 200 OK") {
                    rest.drain(..at + 15);
                    answers += 1;
                }
            }
        });
        while !receiving.is_finished() {
            meanwhile();
        }
        sending.join().unwrap();
        receiving.join().unwrap();
    });
}

#[test]
fn pipelined_requests_cost_little_memory_and_hold_up_nobody() {
    if is_server_hidden() {
        return;
    }
    let server = serve_ready(&site("", ""));
    pipeline(&server, 100, || ());
    let before = resident_bytes(&server);
    let (mut most, mut served) = (0, 0);
    pipeline(&server, 5_000, || {
        let began = Instant::now();
        assert_eq!(server.get("/").status, 200);
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(2),
            "another client waited {took:?}"
        );
        most = resident_bytes(&server).max(most);
        served += 1;
    });
    let grown = most.saturating_sub(before);
    assert!(grown < 2 << 20, "grown by {grown} bytes for 20 MB of heads");
    assert!(served > 1, "no other client was served");
}

#[test]
fn a_stuck_thread_leaves_its_neighbours_in_service_until_a_new_worker_is_ready() {
    // Each worker loads the code itself, so that the gate keeps the next one.
    let app = "threads = 2\nresponse_timeout = \"600ms\"\npreload = false";
    let server = serve_ready(&site(app, ""));
    let old = server.get("/pid").text();
    server.site().write("gate", "");
    ask(&server, "/stuck").expect_status(504);
    for _ in 0..3 {
        assert_eq!(server.get("/pid").text(), old, "the other thread serves on");
    }
    std::fs::remove_file(server.site().dir().join("gate")).unwrap();
    eventually(PATIENCE, "a new worker serves", || {
        let answer = server.get("/pid");
        assert_eq!(answer.status, 200);
        answer.text() != old
    });
    eventually(PATIENCE, "the old worker is gone", || {
        !is_alive(old.parse().unwrap())
    });
}

#[test]
fn a_stuck_thread_beside_an_open_stream_is_no_outage() {
    let app = "threads = 2\nresponse_timeout = \"1s\"\nqueue = { timeout = \"3s\" }";
    let server = serve_ready(&site(app, ""));
    let old: i32 = server.get("/pid").text().parse().unwrap();
    let mut stream = ask(&server, "/ticking");
    assert!(!stream.read_some().unwrap().is_empty());
    ask(&server, "/stuck").expect_status(504);
    let answer = server.get("/pid");
    assert_eq!(answer.status, 200, "nobody is left to serve");
    assert_ne!(answer.text(), old.to_string(), "it had no free thread");
    assert!(is_alive(old), "not before the stream has ended");
    server.site().write("go", "");
    assert!(stream.expect_status(200).text().ends_with("done\n"));
    eventually(PATIENCE, "the old worker is gone", || !is_alive(old));
}

#[test]
fn files_handed_over_in_a_batch_all_arrive_at_once() {
    // It stops the server, which isolation would forbid.
    let server = serve_ready(&site("response_timeout = \"2s\"\nisolation = false", ""));
    warm_up(&server);
    for round in 0..5 {
        let paths = ["/freeze", "/file", "/file", "/file", "/file"];
        let request = |(number, path): (usize, &&str)| get(&format!("{path}?{round}.{number}"));
        let requests: Vec<String> = paths.iter().enumerate().map(request).collect();
        let clients = in_one_batch(&server, &requests);
        for (number, mut client) in clients.into_iter().enumerate() {
            let answer = client.expect_status(200);
            assert_eq!(answer.text(), "content of the file");
            let expected = format!("{round}.{number}");
            assert_eq!(answer.header("x-number"), Some(expected.as_str()));
        }
    }
    let mut clients: Vec<RawClient> = (0..24).map(|_| server.connect()).collect();
    for _ in 0..20 {
        for client in &mut clients {
            client.send(get("/file"));
        }
        for client in &mut clients {
            client.expect_status(200);
        }
    }
}

#[test]
fn an_upload_behind_a_head_request_for_a_stream_costs_no_worker() {
    let server = serve_ready(&site("", ""));
    warm_up(&server);
    let workers = server.workers("app");
    for _ in 0..10 {
        let head = get("/pieces").replace("GET", "HEAD");
        let requests = [head.clone(), upload("/length"), head, upload("/length")];
        let mut clients = in_one_batch(&server, &requests);
        for (number, client) in clients.iter_mut().enumerate() {
            if number % 2 == 0 {
                client.expect_head(200);
            } else {
                assert_eq!(client.expect_status(200).text(), "100000");
            }
        }
    }
    assert_eq!(server.workers("app"), workers, "{}", server.log());
}

#[test]
fn a_request_in_a_batch_whose_client_has_left_is_not_worked_for() {
    let server = serve_ready(&site("", ""));
    warm_up(&server);
    let mut clients = in_one_batch(&server, &[upload("/hold"), get("/left")]);
    leave(&server, clients.pop().unwrap());
    server.site().write("go", "");
    clients[0].expect_status(200);
    assert_eq!(server.get("/").status, 200);
    assert_eq!(server.site().read("seen"), "");
}

#[test]
fn a_request_given_back_whose_client_has_left_is_not_worked_for() {
    let server = serve_ready(&site("preload = false", ""));
    let worker = server.workers("app")[0];
    kill(worker, Signal::STOP);
    let client = ask(&server, "/left");
    wait_queue(&server, "active", 1);
    server.site().write("gate", "");
    kill(worker, Signal::KILL);
    wait_queue(&server, "length", 1);
    leave(&server, client);
    std::fs::remove_file(server.site().dir().join("gate")).unwrap();
    assert_eq!(server.get("/").status, 200);
    assert_eq!(server.site().read("seen"), "");
}

const LEAVING: &str = r#"
import atexit, os, signal
from time import sleep as pause

signal.signal(signal.SIGTERM, signal.SIG_IGN)

def leave():
    open("leaving", "w").close()
    while not os.path.exists("go"):
        pause(0.003)

atexit.register(leave)

def app(environ, start):
    start("200 OK", [])
    return [b"ok"]
"#;

/// A server with slowly ending applications, all of them ending; and their workers.
fn all_leaving(names: &[&str]) -> (Server, Vec<i32>) {
    let mut site = Site::new();
    let (mut apps, mut routes) = (String::new(), "[[sites]]\n".to_owned());
    for name in names {
        site = site.file(&format!("{name}/app.py"), LEAVING);
        apps += &format!("[apps.{name}]\ndir = \"{name}\"\nentry = \"app:app\"\nprocesses = 1\n");
        routes += &format!("[[sites.routes]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
    }
    let server = site
        .config(&format!("[server]\nthreads = 1\n{apps}{routes}"))
        .serve(&[]);
    for name in names {
        server.wait_ready(name);
    }
    let workers: Vec<i32> = names.iter().flat_map(|n| server.workers(n)).collect();
    assert_eq!(workers.len(), names.len());
    server.signal(Signal::TERM);
    eventually(PATIENCE, "all applications are told to end", || {
        let is_told = |name: &&str| server.site().dir().join(name).join("leaving").exists();
        names.iter().all(is_told)
    });
    assert!(
        workers.iter().copied().all(is_alive),
        "the last was told only after the first was killed"
    );
    (server, workers)
}

#[test]
fn several_applications_end_at_the_same_time() {
    let names = ["one", "two", "three", "four"];
    let (server, workers) = all_leaving(&names);
    for name in names {
        server.site().write(&format!("{name}/go"), "");
    }
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(!workers.into_iter().any(is_alive), "a worker is left");
}

#[test]
fn a_second_signal_does_not_wait_for_an_application_that_is_ending() {
    let (server, workers) = all_leaving(&["one"]);
    let began = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "took {took:?}");
    eventually(PATIENCE, "no worker is left", || {
        !workers.iter().copied().any(is_alive)
    });
}

#[test]
fn uploads_use_the_pool_of_the_newest_configuration() {
    let toml = |queue: u32| {
        let bounds = format!("threads = 1\nmax_queue = {queue}");
        site("", &format!("[blocking.default]\n{bounds}\n")).read("penstock.toml")
    };
    let site = site("", "");
    site.write("penstock.toml", toml(1));
    let server = serve_ready(&site);
    let pid = server.get("/pid").text();
    server.site().write("penstock.toml", toml(1_000));
    assert_eq!(server.admin("POST", "/reload").status, 200);
    assert_eq!(server.get("/pid").text(), pid, "the application goes on");
    // All uploads begin in the same iteration of the loop, far more than the old queue held.
    kill(server.pid(), Signal::STOP);
    let mut clients: Vec<RawClient> = (0..16).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(upload("/length"));
    }
    kill(server.pid(), Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.expect_status(200).text(), "100000");
    }
}

#[test]
fn a_slow_but_steady_reader_is_not_cut() {
    const BYTES_PER_SECOND: f64 = 200_000.0;
    let limits = "[limits]\nbody_idle_timeout = \"1s\"\nmin_body_rate = \"500B/s\"\n\
                  body_rate_grace = \"1s\"\n";
    let server = serve_ready(&site("", limits));
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(get("/big").as_bytes()).unwrap();
    let (mut buffer, mut count) = (vec![0; 64 << 10], 0);
    let began = Instant::now();
    eventually(PATIENCE, "four seconds of reading", || {
        let elapsed = began.elapsed().as_secs_f64();
        let due = (elapsed * BYTES_PER_SECOND) as usize - count;
        if due > 0 {
            count += stream.read(&mut buffer[..due]).expect("it was not cut");
        }
        elapsed > 4.0
    });
    while count < 16 << 20 {
        let read = stream.read(&mut buffer).expect("it was not cut");
        assert!(read > 0, "cut after {count} bytes");
        count += read;
    }
    assert_eq!(server.admin_json()["traffic"]["slow_clients"], 0);
}

#[test]
fn a_body_known_to_be_wrong_before_a_byte_is_out_is_a_bad_gateway() {
    let server = serve_ready(&site("", ""));
    let mut client = server.connect();
    for _ in 0..3 {
        client.send(get("/longer")).expect_status(502);
    }
    client.send(get("/")).expect_status(200);
}
