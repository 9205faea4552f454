//! What runs before new code serves, and what a Procfile starts beside an application.

use rustix::process::Signal;

use crate::support::{PATIENCE, Server, Site, eventually, is_alive, texts};

/// Answers what the release command wrote last.
const APP: &str = "\
migrated = open('migrated').read()
def application(environ, start):
    start('200 OK', [])
    return [migrated.encode()]
";

/// Copies the file `wanted`, unless that is `broken`; `slow` never ends by itself.
const MIGRATE: &str = "\
import os, signal, sys
wanted = open('wanted').read()
if wanted == 'broken':
    print('no such table', file=sys.stderr)
    sys.exit(4)
while wanted == 'slow':
    open('slow', 'w').write(str(os.getpid()))
    signal.pause()
open('migrated', 'w').write(wanted + os.environ.get('STAGE', ''))
";

const TOML: &str = r#"
[server]
threads = 1
[apps.shop]
dir = "shop"
entry = "app:application"
processes = 1
release_command = "python3 migrate.py"
env = { STAGE = "-x" }
[jobs.mailer]
command = ["python3", "-c", "import signal; print(open('migrated').read(), 'seen', flush=True); signal.pause()"]
app = "shop"
"#;

fn site(wanted: &str) -> Site {
    Site::new()
        .file("shop/app.py", APP)
        .file("shop/migrate.py", MIGRATE)
        .file("shop/wanted", wanted)
}

fn run(server: &Server, verb: &[&str]) -> (bool, String) {
    let control = format!("unix:{}", server.control_path().display());
    let output = server
        .site()
        .run(&[verb, &["--admin", &control][..]].concat());
    let (stdout, stderr) = texts(&output);
    (output.status.success(), stdout + &stderr)
}

#[test]
fn it_runs_before_the_first_code_and_before_each_restart() {
    let server = site("one").config(TOML).serve(&[]);
    server.wait_all_ready(&["shop", "mailer"]);
    assert_eq!(server.get("/").text(), "one-x");
    // The job has waited for it: before, its file was not there.
    server.wait_log("one-x seen");
    assert!(
        !server.log().contains("FileNotFoundError"),
        "{}",
        server.log()
    );
    server.site().write("shop/wanted", "two");
    let (done, text) = run(&server, &["restart", "shop"]);
    assert!(done, "{text}");
    assert_eq!(server.get("/").text(), "two-x");
    // One that fails leaves all as it is, and says so.
    server.site().write("shop/wanted", "broken");
    for verb in [&["restart", "shop"][..], &["reload"]] {
        server.site().write("shop/app.py", format!("{APP}# new\n"));
        let (done, text) = run(&server, verb);
        assert!(!done, "{text}");
        for part in [
            "release command `python3 migrate.py` failed",
            "no such table",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(server.get("/").text(), "two-x");
    }
    let shop = server.admin_json()["apps"].clone();
    let shop = shop
        .as_array()
        .unwrap()
        .iter()
        .find(|app| app["name"] == "shop");
    let error = shop.unwrap()["restart_error"].to_string();
    assert!(error.contains("no such table"), "{error}");
}

#[test]
fn one_that_fails_at_the_start_is_tried_again() {
    let server = site("broken").config(TOML).serve(&[]);
    server.wait_log("no such table");
    let answer = server.get("/");
    assert_eq!(answer.status, 503);
    server.site().write("shop/wanted", "three");
    server.wait_all_ready(&["shop", "mailer"]);
    assert_eq!(server.get("/").text(), "three-x");
}

#[test]
fn one_that_takes_too_long_is_ended_and_so_by_a_stop() {
    let toml = TOML.replace("env =", "release_timeout = \"300ms\"\nenv =");
    let server = site("slow").config(&toml).serve(&[]);
    server.wait_log("stopped at its `release_timeout` of 300ms");
    drop(server);
    let server = site("slow").config(TOML).serve(&[]);
    let pid = eventually(PATIENCE, "it runs", || {
        let file = server.site().dir().join("shop/slow");
        std::fs::read_to_string(file).ok()?.parse::<i32>().ok()
    });
    assert!(is_alive(pid));
    server.signal(Signal::TERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(!is_alive(pid));
}

const PROCFILE: &str = "\
web: gunicorn app:application
release: python3 migrate.py
worker: python3 -c 'import signal; print(\"works\", flush=True); signal.pause()'
";

#[test]
fn a_procfile_starts_its_other_programs_beside_the_application() {
    let server = site("four").file("shop/Procfile", PROCFILE);
    let server = server.serve(&["shop"]);
    server.wait_all_ready(&["shop", "worker"]);
    assert_eq!(server.get("/").text(), "four");
    server.wait_log("works");
    drop(server);
    let server = site("five").file("shop/Procfile", PROCFILE);
    let server = server.serve(&["shop", "--no-jobs"]);
    server.wait_all_ready(&["shop"]);
    assert_eq!(server.get("/").text(), "five");
    assert_eq!(server.admin_json()["apps"].as_array().unwrap().len(), 1);
}
