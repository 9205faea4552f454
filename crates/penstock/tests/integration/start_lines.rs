//! What a start says, and how often: failures in full once, the user, the environment of Rack.
//!
//! `boot` covers what a failure shows elsewhere; `command_line` the lines of a start that works.

use crate::rack::rack_site;
use crate::support::{Server, Site};

/// Lines of the log that contain `words`.
fn count_lines(server: &Server, words: &str) -> usize {
    server
        .log()
        .lines()
        .filter(|line| line.contains(words))
        .count()
}

/// Fails in a message that is another with every try.
const FAILING: &str =
    "import os\ndef fail():\n    raise ValueError(f'no {object()} in {os.getpid()}')\nfail()\n";

#[test]
fn a_traceback_is_logged_once_and_then_a_line_a_try() {
    let worker = Site::new().file("app.py", FAILING);
    let command = Site::new().file("app.py", FAILING).config(
        "[apps.app]\nkind = \"command\"\ncommand = [\"python3\", \"app.py\", \"{port}\"]\n",
    );
    let worker = worker.config("[apps.app]\nentry = \"app:app\"\nprocesses = 1\n");
    for (name, site) in [("worker", worker), ("command", command)] {
        let server = site.serve(&[]);
        server.wait_log("4 times now for the same reason");
        for words in ["Traceback (most recent call last)", "in fail"] {
            assert_eq!(count_lines(&server, words), 1, "{name}: {}", server.log());
        }
        // What changes is a new failure.
        site.write("app.py", FAILING.replace("no {object()}", "nothing"));
        server.wait_log("raise ValueError(f'nothing in");
        assert_eq!(
            count_lines(&server, "in fail"),
            2,
            "{name}: {}",
            server.log()
        );
    }
}

#[test]
fn new_code_that_does_not_boot_is_logged_once() {
    let good = "def app(environ, start):\n    start('200 OK', [])\n    return [b'one']\n";
    let site = Site::new().file("app.py", good);
    let server = site
        .config("[apps.app]\nentry = \"app:app\"\nprocesses = 2\n")
        .serve(&["--dev"]);
    server.wait_ready("app");
    server.site().write("app.py", FAILING);
    server.wait_log("the new version is given up, generation 1 serves on");
    assert_eq!(count_lines(&server, "in fail"), 1, "{}", server.log());
    assert_eq!(server.get("/").text(), "one");
}

#[test]
fn a_server_of_root_warns_once_and_names_the_remedy() {
    let server = Site::with_app().serve(&[]);
    server.wait_ready("site");
    let warned = usize::from(rustix::process::geteuid().is_root());
    assert_eq!(count_lines(&server, "as root"), warned, "{}", server.log());
    let remedy = "start it as an ordinary user, or set server.user to one";
    assert_eq!(count_lines(&server, remedy), warned, "{}", server.log());
}

#[test]
fn a_rack_application_names_its_environment() {
    let code = "run ->(env) { [200, {}, [ENV['RACK_ENV']]] }\n";
    for (arguments, environment) in [(&[][..], "production"), (&["--dev"], "development")] {
        let server = rack_site(code).serve(arguments);
        server.wait_ready("app");
        let line = format!("app app: rack in {environment}, 1 process, ready in ");
        server.wait_log(&line);
        assert_eq!(server.get("/").text(), environment);
    }
}
