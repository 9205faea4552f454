//! The server's own log: its format, output of applications, and refused requests.

use std::io::Write;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually};

const APP: &str = r#"
import json, sys

sys.stdout.write(json.dumps({"event": "loaded", "level": "info"}) + "\n")
sys.stdout.flush()

def app(environ, start):
    if environ["PATH_INFO"] == "/long":
        print(json.dumps({"event": "x" * 100_000}), flush=True)
        start("200 OK", [])
        return [b""]
    if environ["PATH_INFO"] == "/plain":
        sys.stderr.write("a plain line\n")
        start("200 OK", [])
        return [b""]
    try:
        {}["nothing"]
    except KeyError as error:
        raise ValueError("broken on purpose\nin two lines") from error
"#;

fn serve(log_format: &str) -> Server {
    let toml = format!(
        "[server]\nlog_format = \"{log_format}\"\nlisten = [\"127.0.0.1:0\"]\n\
         access_log = {{ path = \"access.log\", format = \"json\" }}\n\
         [apps.shop]\nentry = \"app:app\"\nprocesses = 1\n"
    );
    let server = Site::new().file("app.py", APP).config(&toml).serve(&[]);
    server.wait_ready("shop");
    server
}

/// The lines of the log, without the start announcements on the terminal.
fn json_lines(server: &Server) -> Vec<serde_json::Value> {
    let log = server.log();
    let lines = log.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_text_line_begins_with_an_iso_time_in_milliseconds_and_its_zone() {
    let server = serve("text");
    server.get("/plain");
    server.wait_log("a plain line");
    let log = server.log();
    let line = log
        .lines()
        .find(|line| line.contains("a plain line"))
        .unwrap();
    let (time, rest) = line.split_once(' ').unwrap();
    let shape: String = time
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{line}");
    let pid = server.workers("shop")[0];
    assert_eq!(rest, format!("info shop[{pid}]: a plain line"));
    assert!(
        log.lines()
            .any(|line| line == r#"{"event": "loaded", "level": "info"}"#),
        "an application's JSON stays as it is: {log}"
    );
}

#[test]
fn a_long_line_of_json_stays_whole() {
    for format in ["text", "json"] {
        let server = serve(format);
        server.get("/long");
        let long = format!("{{\"event\": \"{}\"}}", "x".repeat(100_000));
        eventually(PATIENCE, "the line is there", || {
            server.log().lines().any(|line| line == long)
        });
    }
}

#[test]
fn a_traceback_with_its_cause_is_one_event_at_level_error() {
    let server = serve("json");
    assert_eq!(server.get("/").status, 500);
    server.wait_log("ValueError: broken on purpose");
    let lines = json_lines(&server);
    let has = |line: &&serde_json::Value, text: &str| {
        line["message"]
            .as_str()
            .is_some_and(|message| message.contains(text))
    };
    let traceback: Vec<_> = lines
        .iter()
        .filter(|line| has(line, "Traceback") || has(line, "KeyError"))
        .collect();
    let [traceback] = traceback[..] else {
        panic!("one event: {lines:#?}");
    };
    assert_eq!(traceback["level"], "error");
    assert_eq!(traceback["app"], "shop");
    assert_eq!(traceback["pid"], server.workers("shop")[0]);
    for text in [
        "KeyError: 'nothing'",
        "ValueError: broken on purpose\n  in two lines",
        "in app",
    ] {
        assert!(has(&traceback, text), "{traceback}");
    }
    assert!(
        lines.iter().any(|line| line["event"] == "loaded"),
        "{lines:#?}"
    );
}

#[test]
fn a_boot_failure_is_told_whole_once_and_then_a_line_a_try() {
    let toml = "[server]\nadmin = \"off\"\nlisten = [\"127.0.0.1:0\"]\n\
                [apps.shop]\nentry = \"app:app\"\nkind = \"wsgi\"\nprocesses = 1\n";
    let site = Site::new().file("app.py", "import a_module_that_is_not_there\n");
    let server = site.config(toml).serve(&[]);
    server.wait_log("3 times now for the same reason");
    let log = server.log();
    assert_eq!(log.matches("Traceback").count(), 1, "{log}");
    let again: Vec<_> = log
        .lines()
        .filter(|line| line.contains("2 times now"))
        .collect();
    assert_eq!(again.len(), 1, "{log}");
    let reason = "ModuleNotFoundError: No module named 'a_module_that_is_not_there'";
    assert!(again[0].contains("tried again in"), "{log}");
    assert!(again[0].ends_with(reason), "{log}");
}

#[test]
fn a_refused_request_is_logged_with_client_reason_and_what_could_be_read() {
    let server = serve("text");
    for (bytes, words) in [
        (
            &b"GET /two HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"[..],
            "edge: 400 from 127.0.0.1: ",
        ),
        (b"BAD\x1b[2J \"line\r\n\r\n", r#""BAD\x1b[2J \"line""#),
        (
            b"POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\n",
            "413 from 127.0.0.1",
        ),
        (
            b"\r\n\r\nGET /behind HTTP/1.1\r\nHost: a\r\n\r\n",
            r#"blank lines before the request line: "GET /behind HTTP/1.1""#,
        ),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", "505 from 127.0.0.1"),
    ] {
        let mut client = RawClient::connect(server.port());
        client.try_send(bytes).unwrap();
        assert!(client.response().status >= 400);
        server.wait_log(words);
    }
    let log = server.log();
    for line in ["\"GET /two HTTP/1.1\"", "\"POST /size\""] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert!(
        !log.contains('\x1b'),
        "nothing that a terminal obeys: {log}"
    );
    let access = || server.site().read("access.log");
    eventually(PATIENCE, "the access log has it", || {
        access().contains(r#""line":"GET /two HTTP/1.1""#)
    });
}

#[test]
fn a_flood_of_refused_requests_is_a_few_lines_a_second() {
    const FLOOD: usize = 300;
    let server = serve("text");
    for _ in 0..FLOOD {
        let mut client = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        client.write_all(b"nonsense\r\n\r\n").unwrap();
    }
    eventually(PATIENCE, "all are answered", || {
        server
            .site()
            .read("access.log")
            .matches("\"line\":\"nonsense\"")
            .count()
            == FLOOD
    });
    let lines = server.log().matches("\"nonsense\"").count();
    assert!((1..FLOOD / 3).contains(&lines), "{lines} lines");
}

#[test]
fn a_line_of_the_access_log_is_at_most_six_times_as_long_as_its_head() {
    for format in ["combined", "json"] {
        let site = Site::new().file("public/a.txt", "a").config(&format!(
            "[server]\naccess_log = {{ path = \"access.log\", format = \"{format}\" }}\n\
             [[sites]]\n[[sites.routes]]\nfiles = {{ root = \"public\" }}\n"
        ));
        let server = site.serve(&[]);
        let mut head = b"GET /a.txt?".to_vec();
        head.extend([b'x'; 4_000]);
        head.extend(b" HTTP/1.1\r\nHost: a\r\nReferer: ");
        head.extend([0x80; 10_000]);
        head.extend(b"\r\nUser-Agent: ");
        head.extend([b'\\'; 10_000]);
        head.extend(b"\r\n\r\n");
        server.connect().send(&head).response();
        let line = eventually(PATIENCE, "it is in the log", || {
            let text = site.read("access.log");
            text.ends_with('\n').then_some(text)
        });
        assert_eq!(line.lines().count(), 1);
        assert!(
            line.len() > 4_000 && line.len() <= 6 * head.len(),
            "{}",
            line.len()
        );
    }
}
