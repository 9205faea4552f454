//! Long polls: the back end asks to hold a response until a message arrives, and sets the default
//! response.

use rustix::process::Signal;

use super::*;
use crate::support::{is_alive, kill};

/// Polls for the numbers behind `after`: those that are missed already come at once.
const NUMBERS: &str = r#"
from urllib.parse import parse_qs


def app(environ, start):
    after = int(parse_qs(environ["QUERY_STRING"])["after"][0])
    _, _, last = environ.get("HTTP_GRIP_LAST", "").partition("last-id=")
    headers = [("Content-Type", "text/plain")]
    missed = range(after + 1, int(last) + 1 if last else 0)
    if not missed:
        hold = [("Grip-Hold", "response"), ("Grip-Channel", f"news; prev-id={after}")]
        headers += [*hold, ("Grip-Timeout", "120")]
    start("200 OK", headers)
    return [" ".join(map(str, missed)).encode()]
"#;

/// A client with a waiting poll.
fn polling(server: &Server, path: &str) -> RawClient {
    let polls = || server.admin_json()["hub"]["long_polls"].as_u64().unwrap();
    let before = polls();
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    eventually(PATIENCE, "the poll waits", || polls() > before);
    client
}

#[test]
fn a_message_answers_every_poll_and_the_worker_is_free_meanwhile() {
    let server = serve();
    let mut clients: Vec<_> = (0..20).map(|_| polling(&server, "/poll/news")).collect();
    assert!(!server.get("/pid").text().is_empty());
    let item = r#"{"items": [{"channel": "news", "formats": {"http-response":
        {"code": 201, "reason": "Made", "headers": {"X-Mark": "m"}, "body": "it came"}}}]}"#;
    assert_eq!(post(&server, "/publish/", "", item).status, 200);
    for client in &mut clients {
        let response = client.expect_status(201);
        assert_eq!(response.text(), "it came");
        assert_eq!(response.header("x-mark"), Some("m"));
        assert_eq!(response.header("grip-hold"), None);
    }
    // Its connection is reusable.
    clients[0].send("GET /plain HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(clients[0].expect_status(200).text(), "/plain");
    assert_eq!(server.admin_json()["hub"]["long_polls"], 0);
}

/// Polls until it has all numbers up to `last`. A response that does not come fails the test.
fn poll_numbers(server: &Server, last: u32) -> Vec<u32> {
    let (mut numbers, mut client) = (Vec::new(), server.connect());
    while numbers.last() != Some(&last) {
        let after = numbers.last().unwrap_or(&0);
        client.send(format!("GET /?after={after} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = client.expect_status(200);
        let text = response.text();
        numbers.extend(
            text.split_whitespace()
                .map(|number| number.parse::<u32>().unwrap()),
        );
        if response.header("connection") == Some("close") {
            client = server.connect();
        }
    }
    numbers
}

#[test]
fn an_upgrade_loses_no_poll_and_no_message() {
    let toml = format!("[server]\nthreads = 2\n{ONE}entry = \"app:app\"\n");
    let server = Site::new().file("app.py", NUMBERS).config(&toml).serve(&[]);
    server.wait_ready("app");
    let (rounds, per_round) = (3, 20);
    let publish = &|numbers: std::ops::RangeInclusive<u32>| {
        for number in numbers {
            let item = format!(
                r#"{{"items": [{{"channel": "news", "id": "{number}", "prev-id": "{}",
                    "formats": {{"http-response": {{"body": "{number}"}}}}}}]}}"#,
                number - 1
            );
            assert_eq!(post(&server, "/publish/", "", &item).status, 200);
        }
    };
    let last = rounds * per_round;
    let mut pid = server.pid();
    std::thread::scope(|scope| {
        let polls = || server.admin_json()["hub"]["long_polls"].as_u64().unwrap();
        let clients: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| poll_numbers(&server, last)))
            .collect();
        eventually(PATIENCE, "all wait", || polls() == 20);
        for round in 0..rounds {
            let first = round * per_round + 1;
            // While both processes have polls, and until the first has none.
            let publishing = scope.spawn(move || publish(first..=first + per_round - 2));
            let (code, stdout, stderr) = verb(&server, &["upgrade"], "");
            assert_eq!(code, 0, "{stdout}{stderr}\n{}", server.log());
            publishing.join().unwrap();
            publish(first + per_round - 1..=first + per_round - 1);
            match pid == server.pid() {
                true => assert_eq!(server.wait_exit(PATIENCE).code(), Some(0)),
                false => eventually(PATIENCE, "the old process ends", || !is_alive(pid)),
            }
            pid = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
        }
        for client in clients {
            assert!(
                client.join().unwrap().into_iter().eq(1..=last),
                "{}",
                server.log()
            );
        }
    });
    kill(pid, Signal::TERM);
    eventually(PATIENCE, "the new one ends", || !is_alive(pid));
}

#[test]
fn the_command_line_answers_polls_too() {
    let server = serve();
    let mut client = polling(&server, "/poll/news");
    publish(&server, "news", "told");
    assert_eq!(client.expect_status(200).text(), "told\n");
}

#[test]
fn a_poll_that_nothing_comes_for_gets_the_applications_answer() {
    let server = serve();
    let mut client = polling(&server, "/poll/silent");
    let response = client.expect_status(200);
    assert_eq!(response.text(), "nothing came");
    assert_eq!(response.header("content-type"), Some("text/plain"));
}

#[test]
fn a_client_that_leaves_its_poll_is_forgotten() {
    let server = serve();
    let client = polling(&server, "/poll/news");
    drop(client);
    eventually(PATIENCE, "the poll is gone", || {
        server.admin_json()["hub"]["long_polls"] == 0
    });
    publish(&server, "news", "to nobody");
    assert_eq!(server.get("/plain").text(), "/plain");
}
