//! Long polls: the back end asks to hold a response until a message arrives, and sets the default
//! response.

use super::*;

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
