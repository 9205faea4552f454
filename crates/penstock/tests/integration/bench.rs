//! `penstock bench` as people and scripts use it: its counts, output, saved files and leftovers.
//!
//! The engine, the reports and the deployments have their own tests in `penstock-bench`; here the
//! real binary measures a real server.
//!
//! # Invariants
//!
//! - Counts agree with the server's, and exit codes report the result.
//! - Nothing that a comparison started outlives it, however it ends.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{APP, PATIENCE, Server, Site, eventually, is_server_hidden, texts};

const PAGE: &str = "0123456789";

fn server() -> Server {
    let site = Site::new()
        .file("index.html", PAGE)
        .file("list.txt", "/\n# no path\n/index.html\n");
    site.serve(&["--threads", "1"])
}

fn bench(site: &Site, arguments: &[&str]) -> (i32, String, String) {
    let output = site.run(&[&["bench"], arguments].concat());
    let (stdout, stderr) = texts(&output);
    (output.status.code().unwrap(), stdout, stderr)
}

fn url(server: &Server, path: &str) -> String {
    format!("http://127.0.0.1:{}{path}", server.port())
}

fn json(site: &Site, file: &str) -> Value {
    serde_json::from_str(&site.read(file)).unwrap()
}

#[test]
fn a_run_counts_what_the_server_counted() {
    if is_server_hidden() {
        return;
    }
    let server = server();
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let arguments = [
        "run", "-c", "5", "-n", "500", "--json", "run.json", "--admin", &admin,
    ];
    let (code, stdout, stderr) = bench(
        server.site(),
        &[&arguments[..], &[&url(&server, "/")]].concat(),
    );
    assert_eq!(code, 0, "{stdout}{stderr}");
    for line in [
        "Complete requests:",
        "Requests per second:",
        "Percentage of the requests",
    ] {
        assert!(stdout.contains(line), "{line} in {stdout}");
    }
    let report = json(server.site(), "run.json");
    let figures = &report["figures"];
    assert_eq!(
        (report["kind"].as_str(), figures["requests"].as_u64()),
        (Some("run"), Some(500))
    );
    assert_eq!(
        figures["body_bytes"].as_u64(),
        Some(500 * PAGE.len() as u64)
    );
    assert_eq!(figures["total"]["count"].as_u64(), Some(500));
    assert!(report["server"]["memory_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(
        server.metric("penstock_responses_total{class=\"2xx\"}"),
        Some(500.0)
    );
}

#[test]
fn what_goes_wrong_is_named_and_in_the_exit_code() {
    let server = server();
    let (code, stdout, _) = bench(
        server.site(),
        &["run", "-n", "20", &url(&server, "/missing")],
    );
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("Non-2xx responses:"), "{stdout}");
    let refused = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/", listener.local_addr().unwrap())
    };
    let (code, stdout, _) = bench(
        server.site(),
        &["run", "-c", "1", "-n", "3", "--json", "-", &refused],
    );
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, report["figures"]["errors"]["connect"].as_u64()),
        (1, Some(3))
    );
    for wrong in [
        &["run", "ftp://127.0.0.1/"][..],
        &["run", "--ca", "missing.pem", "https://127.0.0.1/"],
        &[
            "run",
            "--insecure",
            "--tls-groups",
            "X448",
            "https://127.0.0.1/",
        ],
        &["run", "-n", "1", "-d", "1s", "http://127.0.0.1/"],
        &["compare", "missing.toml"],
        &["mix", "http://127.0.0.1/", "--load", "path=/"],
        &["render", "list.txt"],
    ] {
        let (code, _, stderr) = bench(server.site(), wrong);
        assert_eq!(code, 2, "{wrong:?}: {stderr}");
        assert!(!stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn a_mix_has_figures_for_each_load() {
    if is_server_hidden() {
        return;
    }
    let server = server();
    let url = url(&server, "/");
    let loads = [
        "--load",
        "name=all c=4 paths=list.txt",
        "--load",
        // Enough connections that none is missing, which would fail it, while other tests use the
        // processors.
        "name=one c=20 path=/index.html rate=200",
    ];
    let arguments = [
        &["mix", "-d", "500ms", "--json", "mix.json", &url],
        &loads[..],
    ]
    .concat();
    let (code, stdout, stderr) = bench(server.site(), &arguments);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let report = json(server.site(), "mix.json");
    let names: Vec<&str> = report["loads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|load| load["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["all", "one"]);
    // Half a second, or as long as it took while other tests use the processors.
    let one = &report["loads"][1];
    let (due, seconds) = (&one["schedule"]["due"], &one["seconds"]);
    let (due, seconds) = (due.as_f64().unwrap(), seconds.as_f64().unwrap());
    assert!(seconds >= 0.5, "{seconds}");
    assert!(
        (due - seconds * 200.0).abs() <= 5.0,
        "{due} were due in {seconds} s at 200 a second"
    );
}

#[test]
fn a_sweep_writes_its_three_files_which_can_be_compared() {
    let server = server();
    let url = url(&server, "/");
    let sweep = |name: &str| {
        let ladder = [
            "sweep",
            "--from",
            "1",
            "--to",
            "21",
            "--step",
            "10",
            "-n",
            "100",
            "--warm-up",
            "10ms",
            "--cool-down",
            "0s",
        ];
        let (code, stdout, stderr) =
            bench(server.site(), &[&ladder[..], &["-o", name, &url]].concat());
        assert_eq!(code, 0, "{stdout}{stderr}");
    };
    sweep("a");
    let report = json(server.site(), "a.json");
    let points: Vec<u64> = report["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["connections"].as_u64().unwrap())
        .collect();
    assert_eq!(points, [1, 11, 21]);
    assert_eq!(server.site().read("a.csv").lines().count(), 4);
    let page = server.site().read("a.html");
    assert!(
        page.contains("<svg") && !page.contains("src=\"http"),
        "one page of its own"
    );
    let (code, stdout, stderr) = bench(server.site(), &["compare", "a.json", "a.json"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains('%'), "{stdout}");
    let (code, again, _) = bench(server.site(), &["render", "a.json", "--html", "c.html"]);
    assert_eq!(code, 0);
    assert!(again.contains("21"), "{again}");
    assert_eq!(server.site().read("c.html"), page);
}

/// A good deployment, one that ends at once and one that responds wrongly.
const SCENARIO: &str = r#"
title = "Test"
rounds = 2
ready_timeout = "15s"
requests = 200
warm_up = "10ms"

[[loads]]
paths = ["/index.html"]
connections = [4]
expect = { body = "0123456789" }

[[deployments]]
name = "penstock"
files = { "root/index.html" = "0123456789" }
start = ["exec {{penstock}} serve root --listen 127.0.0.1:{{port}} --admin off"]

[[deployments]]
name = "broken"
start = ["echo it cannot start; exit 3"]

[[deployments]]
name = "wrong"
files = { "root/index.html" = "something else" }
start = ["exec {{penstock}} serve root --listen 127.0.0.1:{{port}} --admin off"]

[[goals]]
deployment = "penstock"
metric = "p99_ms"
max = 10000
"#;

#[test]
fn a_comparison_ranks_what_answers_and_shows_the_log_of_what_does_not() {
    if is_server_hidden() {
        return;
    }
    let site = Site::new().file("scenario.toml", SCENARIO);
    let (code, stdout, stderr) = bench(&site, &["compare", "scenario.toml", "--json", "out.json"]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.contains("it cannot start"), "{stdout}");
    assert!(stdout.contains("PASS"), "{stdout}");
    let report = json(&site, "out.json");
    assert_eq!(report["ranking"], serde_json::json!(["penstock"]));
    let deployments = report["deployments"].as_array().unwrap();
    assert_eq!(deployments[0]["rounds"].as_array().unwrap().len(), 2);
    let cpu = &deployments[0]["summary"]["cpu_us_per_request"]["median"];
    assert!(cpu.as_f64().is_some_and(|us| us < 10_000.0), "{cpu}");
    for (at, what) in [(1, "it cannot start"), (2, "something else")] {
        let failed = deployments[at]["failure"].as_str().unwrap();
        assert!(failed.contains(what), "{failed}");
    }
    assert_eq!(report["goals"][0]["met"], true);
}

#[test]
fn deployments_that_are_measured_together_start_once() {
    if is_server_hidden() {
        return;
    }
    let scenario = r#"
title = "Together"
rounds = 5
keep_running = true
requests = 50
warm_up = "0s"
[[loads]]
paths = ["/index.html"]
connections = [1, 4]
[[deployments]]
name = "a"
files = { "root/index.html" = "a" }
start = ["echo a >> {{here}}/starts; exec {{penstock}} serve root --listen 127.0.0.1:{{port}} --admin off"]
[[deployments]]
name = "b"
files = { "root/index.html" = "b" }
start = ["echo b >> {{here}}/starts; exec {{penstock}} serve root --listen 127.0.0.1:{{port}} --admin off"]
"#;
    let site = Site::new().file("together.toml", scenario);
    let (code, stdout, stderr) = bench(&site, &["compare", "together.toml", "--json", "out.json"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let starts = std::fs::read_to_string(site.dir().join("starts")).unwrap();
    assert_eq!(starts, "a\nb\n");
    for deployment in json(&site, "out.json")["deployments"].as_array().unwrap() {
        let rounds = deployment["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 5, "{deployment}");
        let points = rounds.iter().map(|points| points.as_array().unwrap().len());
        assert!(points.into_iter().all(|count| count == 2), "{deployment}");
    }
}

/// A comparison of one slow application, running until it is ended.
struct RunningComparison {
    site: Site,
    child: Child,
}

impl RunningComparison {
    fn start() -> Self {
        let scenario = r#"
title = "Long"
duration = "600s"
warm_up = "0s"
[[loads]]
connections = [2]
[[deployments]]
name = "app"
start = ["echo $$ > {{here}}/direct; exec {{penstock}} serve {{here}}/app --processes 1 --listen 127.0.0.1:{{port}} --admin off",
         "(setsid sh -c 'echo $$ > {{here}}/astray; exec sleep 1000' &) ; exec sleep 1000"]
"#;
        let site = Site::new()
            .file("long.toml", scenario)
            .file("app/app.py", APP);
        let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
        command.args(["bench", "compare", "long.toml", "--json", "out.json"]);
        command
            .current_dir(site.dir())
            .env("TMPDIR", site.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let running = Self { site, child };
        eventually(PATIENCE, "the load runs", || {
            running.site.read("app/seen.txt").lines().count() > 20
        });
        running
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn nothing_is_left(&self) {
        for file in ["direct", "astray"] {
            let pid: i32 = self.site.read(file).trim().parse().unwrap();
            let what = format!("the process of {file} is gone");
            eventually(PATIENCE, &what, || {
                !std::path::Path::new(&format!("/proc/{pid}")).exists()
            });
        }
        eventually(PATIENCE, "its folders are gone", || {
            let names = std::fs::read_dir(self.site.dir()).unwrap().flatten();
            let mut names = names.map(|entry| entry.file_name());
            !names.any(|name| name.to_string_lossy().starts_with("penstock-bench-"))
        });
    }
}

impl Drop for RunningComparison {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ctrl_c_gives_the_report_so_far_and_leaves_nothing() {
    if is_server_hidden() {
        return;
    }
    let mut running = RunningComparison::start();
    kill_process(running.pid(), Signal::INT).unwrap();
    let status = eventually(PATIENCE, "the comparison ends", || {
        running.child.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(130));
    running.nothing_is_left();
    let report = json(&running.site, "out.json");
    assert_eq!(report["context"]["interrupted"], true);
    let requests = &report["deployments"][0]["rounds"][0][0]["loads"][0]["requests"];
    assert!(requests.as_u64().is_some_and(|count| count > 0), "{report}");
}

#[test]
fn a_comparison_that_is_killed_leaves_nothing() {
    if is_server_hidden() {
        return;
    }
    let mut running = RunningComparison::start();
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    running.nothing_is_left();
}

#[test]
fn a_run_does_not_grow() {
    let server = server();
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
    command.args([
        "bench",
        "run",
        "-q",
        "-c",
        "8",
        "-d",
        "3s",
        &url(&server, "/"),
    ]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut seen: Vec<u64> = Vec::new();
    eventually(PATIENCE, "the run ends", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
        seen.extend::<Option<u64>>(kilobytes);
        child.try_wait().unwrap()
    });
    // The first third is the start; the last readings may be of a process that ends.
    let later = &seen[seen.len() / 3..seen.len() - seen.len() / 20];
    let (least, most) = (later.iter().min().unwrap(), later.iter().max().unwrap());
    assert!(most - least < 2048, "{least} to {most} kB");
}

/// Responds once per connection and closes it without an announcement.
fn closing_origin() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut request);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            let _ = std::io::Write::write_all(&mut stream, answer);
        }
    });
    port
}

#[test]
fn a_server_that_closes_each_connection_unannounced_is_no_failure() {
    let url = format!("http://127.0.0.1:{}/", closing_origin());
    let output = Site::new().run(&["bench", "run", "-c", "2", "-n", "20", &url]);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("Complete requests:      20"), "{stdout}");
}

#[test]
fn the_reason_of_exit_code_1_is_the_last_line_of_standard_error() {
    // Bound and not listening: connections are refused.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}/", taken.local_addr().unwrap().port());
    drop(taken);
    let output = Site::new().run(&["bench", "run", "-n", "5", &url]);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    let words =
        "penstock: bench: exit code 1: no request got a response; 5 connections could not be made";
    assert_eq!(last, words, "{stderr}");
}
