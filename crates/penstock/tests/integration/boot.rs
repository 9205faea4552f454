//! Code that does not boot: reported in full to the operator only, and retried.
//!
//! # Invariants
//!
//! - The traceback is in the log and on the status page, on error pages only with `--dev`.
//! - A failing application does not affect others.
//! - A repaired file boots by itself.

use rustix::process::Signal;

use crate::rack::rack_site;
use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_alive, kill, texts};
use crate::wsgi::{serve_ready, wsgi_site, wsgi_site_with};

const GOOD: &str = r#"
import os
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"#;

fn app_status(server: &Server) -> serde_json::Value {
    server.admin_json()["apps"][0].clone()
}

fn wait_state(server: &Server, state: &str) {
    eventually(PATIENCE, &format!("the application is {state}"), || {
        app_status(server)["state"] == state
    });
}

fn wait_served(server: &Server) {
    eventually(PATIENCE, "the application serves", || {
        server.get("/").status == 200
    });
}

/// Checks the error page, the status page and the log, then repairs the application.
fn check_failing(name: &str, server: &Server, words: &[&str], repaired: (&str, &str)) {
    server.wait_log("does not start yet; see the log");
    wait_state(server, "failing");
    let answer = server.get("/");
    assert_eq!(answer.status, 503, "{name}");
    assert_eq!(answer.header("retry-after"), Some("1"), "{name}");
    assert_eq!(server.admin("GET", "/readyz").status, 503, "{name}");
    assert_eq!(server.admin("GET", "/healthz").status, 200, "{name}");
    let status = app_status(server);
    let report = status["boot_report"].as_str().unwrap_or_default();
    for word in words {
        assert!(
            report.contains(word),
            "{name}: {word:?} on the status page:\n{report}"
        );
        server.wait_log(word);
        assert!(
            !answer.text().contains(word),
            "{name}: {word:?} for strangers:\n{}",
            answer.text()
        );
    }
    server.site().write(repaired.0, repaired.1);
    wait_served(server);
    wait_state(server, "ready");
    server.wait_log(", ready in ");
    assert_eq!(
        app_status(server)["boot_report"],
        serde_json::Value::Null,
        "{name}"
    );
    assert_eq!(server.admin("GET", "/readyz").status, 200, "{name}");
}

#[test]
fn python_that_does_not_boot_is_shown_and_comes_up_once_repaired() {
    let rows: [(&str, &str, &[&str]); 9] = [
        (
            "syntax",
            "def app(:\n",
            &["app.py\", line 1", "def app(:", "SyntaxError"],
        ),
        (
            "import",
            "import nowhere\n",
            &[
                "import nowhere",
                "ModuleNotFoundError: No module named 'nowhere'",
            ],
        ),
        (
            "raises",
            "\n\n1 / 0\n",
            &["app.py\", line 3", "ZeroDivisionError: division by zero"],
        ),
        (
            "another name",
            "application = 1\n",
            &["AttributeError", "'app'"],
        ),
        (
            "not callable",
            "app = 1\n",
            &["app:app is a int, not a WSGI or ASGI application"],
        ),
        (
            "exits",
            "import sys\nsys.exit(0)\n",
            &["sys.exit(0)", "SystemExit: 0"],
        ),
        (
            "exits without a word",
            "import os\nos._exit(0)\n",
            &["exit code 0 before it was ready"],
        ),
        (
            "says why and exits",
            "import os\nprint('no database', flush=True)\nos._exit(3)\n",
            &["exit code 3 before it was ready", "no database"],
        ),
        (
            "killed",
            "import os\nos.kill(os.getpid(), 9)\n",
            &["SIGKILL before it was ready"],
        ),
    ];
    std::thread::scope(|scope| {
        for row in rows.chunks(3) {
            scope.spawn(move || {
                for (name, code, words) in row {
                    let server = wsgi_site(code).serve(&[]);
                    check_failing(name, &server, words, ("app.py", GOOD));
                }
            });
        }
    });
}

#[test]
fn ruby_that_does_not_boot_is_shown_and_comes_up_once_repaired() {
    let good = "run ->(env) { [200, {}, ['up']] }\n";
    let rows: [(&str, &str, &[&str]); 4] = [
        (
            "syntax",
            "run ->(env) {\n",
            &["config.ru:", "(SyntaxError)"],
        ),
        (
            "require",
            "\nrequire 'nowhere'\n",
            &[
                "config.ru:2:",
                "cannot load such file -- nowhere (LoadError)",
            ],
        ),
        (
            "nothing to run",
            "use Rack::Runtime\n",
            &["missing run or map statement"],
        ),
        ("exits", "exit(4)\n", &["config.ru:1:", "SystemExit"]),
    ];
    for (name, code, words) in rows {
        let server = rack_site(code).serve(&[]);
        check_failing(name, &server, words, ("config.ru", good));
    }
}

#[test]
fn with_dev_the_error_page_shows_the_traceback_escaped() {
    let server = wsgi_site("raise ValueError('<script>')\n").serve(&["--dev"]);
    wait_state(&server, "failing");
    let plain = server.get("/").text();
    assert!(
        plain.contains("app.py\", line 1") && plain.contains("ValueError: <script>"),
        "{plain}"
    );
    let mut browser = server.connect();
    browser.send("GET / HTTP/1.1\r\nHost: a\r\nAccept: text/html,*/*;q=0.8\r\n\r\n");
    let page = browser.expect_status(503);
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    assert!(
        page.text().contains("ValueError: &lt;script&gt;"),
        "{}",
        page.text()
    );
    // The page has the script that reloads it and no other.
    let scripts = page.text().matches("<script>").count();
    let own = page.text().matches("<script>(function look()").count();
    assert_eq!((scripts, own), (1, 1), "{}", page.text());
}

#[test]
fn requests_wait_for_a_slow_boot() {
    const SLOW: &str = r#"
import os
from time import sleep as pause
while not os.path.exists("go"):
    pause(0.005)
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"up"]
"#;
    let server = wsgi_site(SLOW).serve(&[]);
    wait_state(&server, "starting");
    assert_eq!(server.admin("GET", "/readyz").status, 503);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(PATIENCE, "it waits", || {
        app_status(&server)["queue"]["length"] == 1
    });
    server.site().write("go", "");
    assert_eq!(client.expect_status(200).text(), "up");
}

/// How the code is loaded: in a template, which is the default, or by each worker; and the text for
/// one that takes too long.
const WAYS: [(&str, &str); 2] = [
    ("", "the application was not loaded after 2s and was killed"),
    ("preload = false", "not ready after 2s and was killed"),
];

/// The process that loads the code: a template or a worker.
fn booting(server: &Server) -> i32 {
    eventually(PATIENCE, "a process loads the code", || {
        let app = app_status(server);
        let processes = ["templates", "workers"].map(|kind| app[kind].as_array().unwrap().clone());
        let mut boots = processes.iter().flatten();
        let pid = boots.find_map(|p| (p["state"] == "booting").then(|| p["pid"].as_i64())?)?;
        i32::try_from(pid).ok()
    })
}

#[test]
fn a_boot_that_takes_too_long_is_killed_and_told() {
    let code = "import threading\nthreading.Event().wait()\n";
    for (way, word) in WAYS {
        let lines = format!("processes = 1\nboot_timeout = \"2s\"\n{way}");
        let server = wsgi_site_with(code, &lines).serve(&[]);
        let pid = booting(&server);
        check_failing("boot_timeout", &server, &[word], ("app.py", GOOD));
        assert!(!is_alive(pid), "{way}");
    }
}

#[test]
fn a_stop_while_the_code_is_loaded_leaves_nothing() {
    for (way, _) in WAYS {
        let code = "import threading\nthreading.Event().wait()\n";
        let server = wsgi_site_with(code, &format!("processes = 1\n{way}")).serve(&[]);
        let pid = booting(&server);
        drop(server);
        eventually(PATIENCE, "its process is gone", || !is_alive(pid));
    }
}

#[test]
fn an_interpreter_that_is_missing_is_an_error_of_the_start() {
    let site = wsgi_site_with(GOOD, "interpreter = \"/nonexistent/python\"");
    let output = site.run(&["serve", "-l", "127.0.0.1:0", "--admin", "off"]);
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("application `app`") && errors.contains("/nonexistent/python"),
        "{errors}"
    );
}

#[test]
fn an_interpreter_that_is_none_is_told_as_a_failed_boot() {
    let server = wsgi_site_with(GOOD, "processes = 1\ninterpreter = \"false\"").serve(&[]);
    wait_state(&server, "failing");
    let report = app_status(&server)["boot_report"].to_string();
    assert!(
        report.contains("exit code 1 before it was ready"),
        "{report}"
    );
    assert_eq!(server.get("/").status, 503);
}

#[test]
fn one_applications_failure_is_not_anothers() {
    let toml = "[server]\nthreads = 1\n[apps.good]\nentry = \"good:app\"\nprocesses = 1\n\
                [apps.bad]\nentry = \"bad:app\"\nprocesses = 1\n[[sites]]\n\
                [[sites.routes]]\npath = \"/bad/*\"\napp = \"bad\"\n\
                [[sites.routes]]\npath = \"/*\"\napp = \"good\"\n";
    let site = Site::new()
        .file("good.py", GOOD)
        .file("bad.py", "1 / 0\n")
        .config(toml);
    let server = site.serve(&[]);
    server
        .wait_ready("good")
        .wait_log("app bad: wsgi, does not start");
    assert_eq!(server.get("/").status, 200);
    assert_eq!(server.get("/bad/").status, 503);
    assert!(server.admin("GET", "/readyz").text().contains("bad"));
}

#[test]
fn code_that_breaks_after_the_start_leaves_those_who_serve_alone() {
    for (way, _) in WAYS {
        let server = serve_ready(&wsgi_site_with(GOOD, &format!("processes = 2\n{way}")));
        server.site().write("app.py", "1 / 0\n");
        // A template has the code from before, and passes it to later workers.
        for template in app_status(&server)["templates"].as_array().unwrap() {
            let lost = server.workers("app")[0];
            kill(lost, Signal::KILL);
            eventually(PATIENCE, "its successor serves", || {
                let now = server.workers("app");
                now.len() == 2 && !now.contains(&lost) && app_status(&server)["state"] == "ready"
            });
            assert!(!server.log().contains("ZeroDivisionError"));
            kill(
                i32::try_from(template["pid"].as_i64().unwrap()).unwrap(),
                Signal::KILL,
            );
            server.wait_log("the template ended with SIGKILL unasked");
        }
        let workers = server.workers("app");
        kill(workers[0], Signal::KILL);
        eventually(PATIENCE, "its successor does not boot", || {
            server.log().contains("ZeroDivisionError")
        });
        wait_state(&server, "degraded");
        let mut client: RawClient = server.connect();
        for _ in 0..5 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.expect_status(200).text(), workers[1].to_string());
        }
        let ready = server.admin("GET", "/readyz").status;
        assert_eq!(ready, 200, "degraded still answers");
        server.site().write("app.py", GOOD);
        wait_state(&server, "ready");
    }
}
