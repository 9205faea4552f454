//! New configuration and new code in a running server: all of it or nothing, and no failed request.
//!
//! Tested under load by clients that count every response other than 200.
//!
//! # Invariants
//!
//! - An invalid change has no effect and is reported with its position.
//! - A valid change takes over, while active and queued requests are finished by the old
//!   configuration.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_alive, texts};

/// Responds with the `VERSION` of its environment and of its code; `/hold` waits for the file `go`.
fn code(version: &str) -> String {
    format!(
        r#"
import os
from time import sleep as pause
VERSION = "{version}"

def app(environ, start):
    if environ["PATH_INFO"] == "/hold":
        open("begun", "w").close()
        while not os.path.exists("go"):
            pause(0.005)
    start("200 OK", [("Content-Type", "text/plain")])
    return [(os.environ.get("VERSION", "") + VERSION).encode()]
"#
    )
}

const ROUTES: &str = "[[sites]]\n[[sites.routes]]\npath = \"/*\"\napp = \"app\"\n";

fn toml(app: &str) -> String {
    let server = "[server]\nlisten = [\"127.0.0.1:0\"]\nthreads = 2\n";
    format!("{server}[apps.app]\nentry = \"app:app\"\n{app}\n\n{ROUTES}")
}

fn site(app: &str) -> Site {
    Site::new().file("app.py", code("one")).config(&toml(app))
}

fn serve(site: &Site) -> Server {
    let server = site.serve(&[]);
    server.wait_ready("app");
    server
}

/// Runs a verb against the server: exit code, standard output, standard error.
fn verb(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server
        .site()
        .run(&[arguments, &["--admin", &admin]].concat());
    let (stdout, stderr) = texts(&output);
    (output.status.code().unwrap(), stdout, stderr)
}

fn reload(server: &Server) {
    let (code, stdout, stderr) = verb(server, &["reload"]);
    assert_eq!(
        (code, stdout.trim()),
        (0, "reloaded"),
        "{stderr}\n{}",
        server.log()
    );
}

fn restart(server: &Server) {
    let (code, stdout, stderr) = verb(server, &["restart", "app"]);
    assert_eq!(
        (code, stdout.trim()),
        (0, "app: restarted"),
        "{stderr}\n{}",
        server.log()
    );
}

/// Does `work` while clients send requests on kept and on new connections; returns the count of
/// each response.
fn under_load(server: &Server, work: impl FnOnce()) -> BTreeMap<String, usize> {
    let (stop, answers) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
    let note = |answer: crate::support::Response| {
        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), server.log());
        *answers.lock().unwrap().entry(answer.text()).or_insert(0) += 1;
    };
    let total = || answers.lock().unwrap().values().sum::<usize>();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (stop, note) = (&stop, &note);
            scope.spawn(move || {
                let mut kept = server.connect();
                while !stop.load(Ordering::Relaxed) {
                    if number % 2 == 0 {
                        note(kept.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").response());
                    } else {
                        note(server.get("/"));
                    }
                }
            });
        }
        eventually(PATIENCE, "there is load", || total() > 20);
        // The load ends also if the work fails.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let before = total();
        eventually(PATIENCE, "it goes on", || {
            total() > before + 20 || done.is_err()
        });
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    answers.into_inner().unwrap()
}

/// A client whose request occupies the worker in `/hold`.
fn hold(server: &Server) -> RawClient {
    let client = ask(server, "/hold");
    eventually(PATIENCE, "it has begun", || {
        server.site().dir().join("begun").exists()
    });
    client
}

fn ask(server: &Server, path: &str) -> RawClient {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

#[test]
fn a_reload_takes_up_changed_code_one_process_at_a_time_and_nobody_is_refused() {
    let site = site("processes = 2");
    let server = serve(&site);
    reload(&server);
    assert!(!server.log().contains("code changed"), "{}", server.log());
    let answers = under_load(&server, || {
        site.write("app.py", code("two"));
        reload(&server);
        assert_eq!(server.get("/").text(), "two");
    });
    assert!(answers.contains_key("one") && answers.contains_key("two"));
    assert_eq!(answers.len(), 2, "{answers:?}");
    let restarted = || server.log().matches("restart to generation").count();
    assert_eq!(restarted(), 1, "{}", server.log());
    // Unchanged code is not reloaded.
    reload(&server);
    assert_eq!(restarted(), 1, "{}", server.log());
    // Its configuration is active, and the command reports that the code is not.
    site.write("app.py", "raise RuntimeError('not today')\n");
    let (status, _, stderr) = verb(&server, &["reload"]);
    assert_eq!(status, 1, "{stderr}");
    for part in [
        "application `app` continues to serve with its old code",
        "not today",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert_eq!(server.get("/").text(), "two");
}

#[test]
fn a_hangup_brings_a_new_route() {
    let site = site("processes = 1").file("pages/new/index.html", "new page");
    let server = serve(&site);
    assert_eq!(server.get("/new/").text(), "one");
    let workers = server.workers("app");
    let route = "[[sites]]\n[[sites.routes]]\npath = \"/new/*\"\nfiles = { root = \"pages\" }\n[[sites.routes]]";
    server.site().write(
        "penstock.toml",
        toml("processes = 1").replace("[[sites]]\n[[sites.routes]]", route),
    );
    server.signal(Signal::HUP);
    eventually(PATIENCE, "the new route", || {
        server.get("/new/").text() == "new page"
    });
    assert_eq!(server.get("/").text(), "one");
    let status = server.admin_json();
    assert_eq!(
        (&status["config_reloads"], &status["config_generation"]),
        (&1.into(), &2.into())
    );
    assert_eq!(
        server.workers("app"),
        workers,
        "what did not change was not touched"
    );
    server.wait_log("reload: done");
}

#[test]
fn what_does_not_work_changes_nothing_and_is_told_with_its_place() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let good = toml("processes = 1");
    let rows: [(&str, String, &[&str]); 6] = [
        (
            "no toml",
            good.replace("[apps.app]", "[apps.app"),
            &["penstock.toml:4:", "not valid TOML"],
        ),
        (
            "two mistakes",
            good.replace("threads = 2", "threads = 0\nthraeds = 2"),
            &[
                "penstock.toml:3:11: `threads`",
                "penstock.toml:4:1: unknown key `thraeds`",
            ],
        ),
        (
            "no folder",
            good.replace("app = \"app\"", "files = { root = \"nowhere\" }"),
            &["penstock.toml:", "nowhere"],
        ),
        (
            "no interpreter",
            toml("interpreter = \"/nowhere/python\""),
            &["application `app`", "/nowhere/python"],
        ),
        (
            "no boot",
            toml("processes = 1\nenv = { VERSION = \"2\" }").replace("app:app", "broken:app"),
            &["application `app` does not start", "ZeroDivisionError"],
        ),
        (
            "address in use",
            good.replace("127.0.0.1:0", &format!("127.0.0.1:{port}")),
            &["cannot listen on http://127.0.0.1", "listens there"],
        ),
    ];
    let site = site("processes = 1").file("broken.py", "1 / 0\n");
    let server = serve(&site);
    let workers = server.workers("app");
    for (name, text, words) in rows {
        site.write("penstock.toml", text);
        let (code, stdout, stderr) = verb(&server, &["reload"]);
        assert_eq!((code, stdout.as_str()), (1, ""), "{name}: {stderr}");
        let status = server.admin_json();
        let shown = status["reload_error"].as_str().unwrap_or_default();
        for word in words {
            assert!(stderr.contains(word), "{name}: {word:?} in\n{stderr}");
            assert!(
                shown.contains(word),
                "{name}: {word:?} on the status page\n{shown}"
            );
        }
        assert_eq!(
            (&status["config_reloads"], &status["config_generation"]),
            (&0.into(), &1.into()),
            "{name}"
        );
        assert_eq!(server.get("/").text(), "one", "{name}: the old one serves");
        assert_eq!(server.workers("app"), workers, "{name}");
    }
    site.write("penstock.toml", good);
    reload(&server);
    assert_eq!(server.admin_json()["reload_error"], serde_json::Value::Null);
}

#[test]
fn a_changed_application_is_replaced_without_a_failed_request() {
    let server = serve(&site("processes = 2\nenv = { VERSION = \"1\" }"));
    let old = server.workers("app");
    let answers = under_load(&server, || {
        server.site().write(
            "penstock.toml",
            toml("processes = 2\nenv = { VERSION = \"2\" }"),
        );
        reload(&server);
        assert_eq!(
            server.get("/").text(),
            "2one",
            "from the moment that the reload has worked"
        );
    });
    assert!(
        answers.contains_key("1one") && answers.contains_key("2one"),
        "{answers:?}"
    );
    for pid in old {
        eventually(PATIENCE, "the old workers are gone", || !is_alive(pid));
    }
    server.wait_log("application app replaced");
}

#[test]
fn what_was_begun_or_waited_is_finished_by_the_old_application() {
    let server = serve(&site("processes = 1\nenv = { VERSION = \"1\" }"));
    let mut held = hold(&server);
    let waiting: Vec<RawClient> = (0..3).map(|_| ask(&server, "/")).collect();
    eventually(PATIENCE, "they wait", || {
        server.admin_json()["apps"][0]["queue"]["length"] == 3
    });
    server.site().write(
        "penstock.toml",
        toml("processes = 1\nenv = { VERSION = \"2\" }"),
    );
    reload(&server);
    assert_eq!(server.get("/").text(), "2one");
    server.site().write("go", "");
    assert_eq!(held.expect_status(200).text(), "1one");
    for mut client in waiting {
        assert_eq!(
            client.expect_status(200).text(),
            "1one",
            "accepted before the reload"
        );
    }
}

#[test]
fn an_application_that_is_gone_from_the_configuration_ends_though_no_request_comes() {
    let site = site("processes = 1");
    let server = serve(&site);
    // Every loop has served it.
    for _ in 0..32 {
        assert_eq!(server.get("/").status, 200);
    }
    let workers = server.workers("app");
    site.write("index.html", "a page");
    let toml = "[server]\nlisten = [\"127.0.0.1:0\"]\nthreads = 2\n[[sites]]\n[[sites.routes]]\nfiles = { root = \".\" }\n";
    site.write("penstock.toml", toml);
    reload(&server);
    for pid in workers {
        eventually(PATIENCE, "the old worker ends", || !is_alive(pid));
    }
}

#[test]
fn listeners_come_and_go_with_the_configuration() {
    let with =
        |listen: &str| toml("processes = 1").replace("[\"127.0.0.1:0\"]", &format!("[{listen}]"));
    let site = site("processes = 1").config(&with("\"127.0.0.1:0\", \"unix:first.sock\""));
    let server = serve(&site);
    let first = site.dir().join("first.sock");
    let mut kept = RawClient::connect_unix(&first);
    kept.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    site.write(
        "penstock.toml",
        with("\"127.0.0.1:0\", \"127.0.0.2:0\", \"unix:second.sock\""),
    );
    reload(&server);
    assert!(!first.exists(), "a closed listener leaves no dead socket");
    let mut second = RawClient::connect_unix(&site.dir().join("second.sock"));
    second
        .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    assert_eq!(server.get("/").status, 200, "the kept one");
    kept.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    let status = server.admin_json();
    let names: Vec<&str> = status["listeners"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|l| l.as_str())
        .collect();
    let other = names
        .iter()
        .find_map(|name| name.strip_prefix("http://")?.strip_prefix("127.0.0.2:"));
    let port: u16 = other
        .unwrap_or_else(|| panic!("{names:?}"))
        .parse()
        .unwrap();
    std::net::TcpStream::connect(("127.0.0.2", port)).unwrap();
    site.write("penstock.toml", with("\"127.0.0.1:0\""));
    reload(&server);
    eventually(PATIENCE, "the other address is closed", || {
        std::net::TcpStream::connect(("127.0.0.2", port)).is_err()
    });
    assert_eq!(server.get("/").status, 200);
}

/// A directory of pages behind these listeners, and an upstream without a server for those of
/// `[[tcp]]`.
fn listening(listen: &str, streams: &str) -> String {
    let files = "[[sites]]\n[[sites.routes]]\nfiles = { root = \".\" }\n";
    let upstream = "[upstreams.nobody]\nservers = [\"unix:nobody.sock\"]\n";
    let server = "[server]\nthreads = 2\nadmin = \"127.0.0.1:0\"\n";
    format!("{server}listen = [{listen}]\n{upstream}{streams}\n{files}")
}

const PROXY: &str = "PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n";
const GET: &str = "GET /page HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_listener_may_begin_and_cease_to_take_proxy_headers() {
    let plain = listening("\"127.0.0.1:0\", \"unix:a.sock\"", "");
    let heralded = listening(
        "{ address = \"127.0.0.1:0\", proxy_protocol = true }, \
         { address = \"unix:a.sock\", proxy_protocol = true }",
        "",
    );
    let site = Site::new().file("page", "page").config(&plain);
    let server = site.serve(&[]);
    let path = site.dir().join("a.sock");
    // The port stays, though a free one was requested.
    let all = || [server.connect(), RawClient::connect_unix(&path)];
    let mut before = all();
    for (toml, header) in [(&heralded, PROXY), (&plain, ""), (&heralded, PROXY)] {
        site.write("penstock.toml", toml);
        reload(&server);
        for mut client in all() {
            client.send(format!("{header}{GET}")).expect_status(200);
        }
        if !header.is_empty() {
            for mut client in all() {
                client.send(GET);
                client.expect_closed();
            }
        }
    }
    for client in &mut before {
        client.send(GET).expect_status(200);
    }
    drop((before, server));
    assert!(!path.exists(), "no dead socket is left");
}

#[test]
fn an_address_moves_between_http_and_tcp() {
    // Its own port, and none of another program.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let tcp = format!("\"127.0.0.1:{port}\"");
    let stream = |listen: &str| format!("[[tcp]]\nlisten = {listen}\nupstream = \"nobody\"\n");
    let http = listening(&format!("{tcp}, \"unix:a.sock\""), "");
    let streams = listening(
        "\"127.0.0.1:0\"",
        &(stream(&tcp) + &stream("\"unix:a.sock\"")),
    );
    let site = Site::new().file("page", "page").config(&http);
    let server = site.serve(&[]);
    let path = site.dir().join("a.sock");
    for (toml, is_http) in [(&streams, false), (&http, true), (&streams, false)] {
        site.write("penstock.toml", toml);
        reload(&server);
        for mut client in [RawClient::connect(port), RawClient::connect_unix(&path)] {
            // It may be closed before.
            let _ = client.try_send(GET);
            match is_http {
                true => drop(client.expect_status(200)),
                // No server is behind it.
                false => client.expect_closed(),
            }
        }
    }
}

#[test]
fn an_address_becomes_that_of_the_whole_machine() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let site = Site::new()
        .file("page", "page")
        .config(&listening(&format!("\"127.0.0.1:{port}\""), ""));
    let server = site.serve(&[]);
    site.write(
        "penstock.toml",
        listening(&format!("\"0.0.0.0:{port}\""), ""),
    );
    reload(&server);
    for host in ["127.0.0.1", "127.0.0.2"] {
        let stream = std::net::TcpStream::connect((host, port));
        assert!(stream.is_ok(), "{host}: {stream:?}");
    }
    assert_eq!(crate::support::get(port, "/page").text(), "page");
}

#[test]
fn a_reload_that_is_refused_leaves_listeners_and_no_new_sockets() {
    let site = Site::new()
        .file("page", "page")
        .config(&listening("\"127.0.0.1:0\", \"unix:a.sock\"", ""));
    let server = site.serve(&[]);
    let heralded = "{ address = \"unix:a.sock\", proxy_protocol = true }";
    let toml = listening(&format!("\"127.0.0.1:0\", {heralded}, \"unix:b.sock\""), "");
    site.write(
        "penstock.toml",
        toml.replace("root = \".\"", "root = \"nowhere\""),
    );
    let (code, ..) = verb(&server, &["reload"]);
    assert_eq!(code, 1);
    assert!(!site.dir().join("b.sock").exists(), "made and left");
    let mut client = RawClient::connect_unix(&site.dir().join("a.sock"));
    client.send(GET).expect_status(200);
    assert_eq!(server.get("/page").text(), "page");
}

#[test]
fn a_start_that_fails_leaves_no_sockets() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let site = Site::new().config(&listening(&format!("\"unix:a.sock\", \"{address}\""), ""));
    let output = site.run(&["serve"]);
    assert_eq!(output.status.code(), Some(1), "{:?}", texts(&output));
    assert!(!site.dir().join("a.sock").exists());
}

#[test]
fn a_reload_within_a_reload_is_refused() {
    const SLOW: &str = r#"
import os
from time import sleep as pause
open("booting", "w").close()
while not os.path.exists("go"):
    pause(0.005)
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"slow"]
"#;
    let server = serve(&site("processes = 1").file("slow.py", SLOW));
    server.site().write(
        "penstock.toml",
        toml("processes = 1").replace("app:app", "slow:app"),
    );
    std::thread::scope(|scope| {
        let first = scope.spawn(|| verb(&server, &["reload"]));
        eventually(PATIENCE, "the new code boots", || {
            server.site().dir().join("booting").exists()
        });
        let (code, _, stderr) = verb(&server, &["reload"]);
        assert!(
            code == 1 && stderr.contains("a reload is in progress"),
            "{code} {stderr}"
        );
        assert_eq!(server.get("/").text(), "one");
        server.site().write("go", "");
        let (code, _, stderr) = first.join().unwrap();
        assert_eq!(code, 0, "{stderr}");
    });
    assert_eq!(server.get("/").text(), "slow");
}

#[test]
fn a_storm_of_hangups_is_weathered() {
    let server = serve(&site("processes = 1"));
    let workers = server.workers("app");
    under_load(&server, || {
        for _ in 0..100 {
            server.signal(Signal::HUP);
        }
        server.wait_log("reload: done");
    });
    assert_eq!(server.workers("app"), workers);
}

#[test]
fn a_restart_rolls_to_new_code_without_a_failed_request() {
    let server = serve(&site("processes = 2"));
    let old = server.workers("app");
    let answers = under_load(&server, || {
        server.site().write("app.py", code("number two"));
        restart(&server);
        assert_eq!(server.get("/").text(), "number two");
    });
    assert!(
        answers.contains_key("one") && answers.contains_key("number two"),
        "{answers:?}"
    );
    for pid in old {
        eventually(PATIENCE, "the old workers are gone", || !is_alive(pid));
    }
    let app = &server.admin_json()["apps"][0];
    assert_eq!(
        (&app["generation"], &app["counters"]["crashed_workers"]),
        (&2.into(), &0.into())
    );
}

#[test]
fn new_code_that_does_not_boot_leaves_the_old_one_serving() {
    let server = serve(&site("processes = 2"));
    let old = server.workers("app");
    let answers = under_load(&server, || {
        server.site().write("app.py", "import nowhere_at_all\n");
        let (code, stdout, stderr) = verb(&server, &["restart", "app"]);
        assert_eq!((code, stdout.as_str()), (1, ""));
        assert!(stderr.contains("app.py\", line 1"), "{stderr}");
        assert!(
            stderr.contains("No module named 'nowhere_at_all'"),
            "{stderr}"
        );
    });
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["one"]);
    assert_eq!(server.workers("app"), old);
    let app = server.admin_json()["apps"][0].clone();
    assert_eq!(app["state"], "ready");
    assert!(
        app["boot_report"]
            .as_str()
            .unwrap()
            .contains("nowhere_at_all"),
        "until the next one"
    );
    server.site().write("app.py", code("repaired"));
    restart(&server);
    assert_eq!(server.get("/").text(), "repaired");
    assert_eq!(
        server.admin_json()["apps"][0]["boot_report"],
        serde_json::Value::Null
    );
}

#[test]
fn a_restart_finishes_what_the_old_worker_has_begun() {
    let server = serve(&site("processes = 1"));
    let old = server.workers("app")[0];
    let mut held = hold(&server);
    server.site().write("app.py", code("number two"));
    restart(&server);
    assert_eq!(
        server.get("/").text(),
        "number two",
        "beside the old worker, which is busy"
    );
    assert!(is_alive(old));
    server.site().write("go", "");
    assert_eq!(held.expect_status(200).text(), "one");
    eventually(PATIENCE, "the old worker is gone", || !is_alive(old));
}

#[test]
fn two_restarts_at_once_are_both_answered() {
    let server = serve(&site("processes = 2"));
    server.site().write("app.py", code("number two"));
    std::thread::scope(|scope| {
        let both = [
            scope.spawn(|| restart(&server)),
            scope.spawn(|| restart(&server)),
        ];
        both.into_iter().for_each(|one| one.join().unwrap());
    });
    assert_eq!(server.get("/").text(), "number two");
}

#[test]
fn an_application_that_is_not_there_is_named() {
    let server = serve(&site("processes = 1"));
    let (code, _, stderr) = verb(&server, &["restart", "nobody"]);
    assert!(
        code == 1 && stderr.contains("no application named nobody"),
        "{code} {stderr}"
    );
}
