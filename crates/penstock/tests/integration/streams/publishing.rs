//! Ways to publish (the command line, its standard input, the admin interface), and their refusals.

use std::fmt::Write as _;

use super::*;

/// The `data` of each event, in order.
fn data(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect()
}

#[test]
fn each_line_of_standard_input_is_a_message_in_order() {
    let server = serve();
    let mut listeners = [(); 3].map(|()| StreamClient::open(&server, "/stream/lines"));
    let numbers: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let (code, stdout, stderr) = verb(&server, &["publish", "lines"], &numbers.join("\n"));
    assert_eq!(
        (code, stdout.trim()),
        (0, "published 1000 messages"),
        "{stderr}"
    );
    for listener in &mut listeners {
        let text = listener.hear("data: 999\n").text();
        assert_eq!(data(&text)[1..], numbers, "behind the welcome");
    }
}

#[test]
fn an_event_has_its_type_and_its_id() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/stream/news");
    let more = ["publish", "news", "a: b", "--event", "tick", "--id", "17"];
    assert_eq!(verb(&server, &more, "").0, 0);
    listener.hear("data: a: b\n\n");
    let text = listener.text();
    let event = text.split("\n\n").nth(1).unwrap();
    let mut lines: Vec<_> = event.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["data: a: b", "event: tick", "id: 17"]);
}

#[test]
fn an_id_that_no_browser_can_return_is_refused() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/stream/news");
    for id in ["1\n2", "1\r2"] {
        let more = ["publish", "news", "never", "--id", id];
        let (code, _, stderr) = verb(&server, &more, "");
        assert_eq!(code, 1);
        assert!(
            stderr.contains("`items[0].id`: an id of at most 1024 bytes"),
            "{stderr}"
        );
    }
    for id in [r"1\n2", r"1\r", r"\u0000"] {
        let item = |id: &str, data: &str| {
            format!(r#"{{"channel": "news", "id": "{id}", "event": {{"data": "{data}"}}}}"#)
        };
        let (first, second) = (item("1", "never"), item(id, "never"));
        let body = format!(r#"{{"items": [{first}, {second}]}}"#);
        let answer = post(&server, "/publish/", "", &body);
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("`items[1].id`"), "{}", answer.text());
    }
    // An empty one would clear the browser's last id.
    let more = ["publish", "news", "last", "--id", ""];
    assert_eq!(verb(&server, &more, "").0, 0);
    let text = listener.hear("data: last\n\n").text();
    assert!(
        !text.contains("never") && !text.contains("id: \n"),
        "{text}"
    );
    assert_eq!(text.matches("id: ").count(), 1, "{text}");
}

#[test]
fn the_admin_interface_answers_as_grip_libraries_know_it() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/stream/news");
    let item =
        r#"{"items": [{"channel": "news", "formats": {"http-stream": {"content": "raw\n"}}}]}"#;
    let json = "Content-Type: application/json\r\n";
    let answer = post(&server, "/publish/", json, item);
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "Published\n")
    );
    listener.hear("raw\n");
    let accept = "Accept: application/json\r\n";
    let answer = post(&server, "/publish", accept, item);
    assert_eq!(answer.text().trim_end(), r#"{"message":"Published"}"#);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    listener.until("it comes again", |text| text.matches("raw\n").count() == 2);
    for (body, status) in [
        ("", 400),
        ("nonsense", 400),
        ("{}", 400),
        (r#"{"items": {}}"#, 400),
        (r#"{"items": [{"formats": {}}]}"#, 400),
        (r#"{"items": [{"channel": "news"}]}"#, 400),
        (
            r#"{"items": [{"channel": "news", "http-stream": {"content": 7}}]}"#,
            400,
        ),
    ] {
        let answer = post(&server, "/publish/", json, body);
        assert_eq!(answer.status, status, "{body:?}: {}", answer.text());
        assert!(answer.text().len() > 5, "{body:?} has no reason");
    }
    assert_eq!(server.admin("GET", "/publish/").status, 405);
    assert_eq!(
        server.admin("GET", "/publish/").header("allow"),
        Some("POST")
    );
    let foreign = "Origin: http://evil.example\r\n";
    assert_eq!(post(&server, "/publish/", foreign, item).status, 403);
    publish(&server, "news", "last");
    let text = listener.hear("data: last\n").text();
    assert_eq!(text.matches("raw\n").count(), 2, "{text}");
}

#[test]
fn a_message_above_its_bound_is_refused_whole() {
    let server = serve_with("", "[hub]\nmax_message_size = \"10KiB\"\n");
    let mut listener = StreamClient::open(&server, "/stream/news");
    let item = |length: usize| {
        let content = "x".repeat(length);
        format!(
            r#"{{"items": [{{"channel": "news", "http-stream": {{"content": "{content}"}}}}]}}"#
        )
    };
    assert_eq!(post(&server, "/publish/", "", &item(9 << 10)).status, 200);
    for length in [11 << 10, 1 << 20] {
        let answer = post(&server, "/publish/", "", &item(length));
        assert_eq!(answer.status, 413, "{}", answer.text());
    }
    let long = "y".repeat(11 << 10);
    let (code, _, stderr) = verb(&server, &["publish", "news", &long], "");
    assert!(
        code == 1 && stderr.contains("hub.max_message_size"),
        "{stderr}"
    );
    publish(&server, "news", "z");
    let text = listener.hear("data: z\n").text();
    assert_eq!(text.matches('x').count(), 9 << 10);
    assert!(!text.contains('y'));
}

#[test]
fn many_messages_in_one_body_keep_their_order() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/stream/news");
    let mut items = String::new();
    for number in 0..500 {
        let comma = if number == 0 { "" } else { "," };
        let item =
            format!(r#"{{"channel": "news", "http-stream": {{"content": "data: {number}\n"}}}}"#);
        let _ = write!(items, "{comma}{}", item.replace('\n', "\\n"));
    }
    let answer = post(
        &server,
        "/publish/",
        "",
        &format!(r#"{{"items": [{items}]}}"#),
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = listener.hear("data: 499\n").text();
    let expected: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    assert_eq!(data(&text)[1..], expected);
}

#[test]
fn the_end_of_a_stream_can_be_published() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/stream/news");
    publish(&server, "news", "first");
    let close = r#"{"items": [{"channel": "news", "http-stream": {"action": "close"}}]}"#;
    assert_eq!(post(&server, "/publish/", "", close).status, 200);
    assert!(listener.end().contains("data: first\n"));
    wait_held(&server, 0);
}

#[test]
fn what_cannot_be_published_has_exit_code_one() {
    let server = serve();
    let nobody = ["publish", "nobody", "hears"];
    assert_eq!(
        verb(&server, &nobody, "").0,
        0,
        "a channel without listeners"
    );
    let (code, stdout, stderr) = verb(&server, &["publish", "news"], "good\nb\u{7f}d\n");
    assert_eq!(
        (code, stdout.trim()),
        (0, "published 2 messages"),
        "{stderr}"
    );
    let (code, _, stderr) = verb(&server, &["publish", "", "x"], "");
    assert!(
        code == 1 && !stderr.is_empty(),
        "an empty channel: {stderr}"
    );
    let site = Site::new();
    let output = site.run(&["publish", "news", "x", "--admin", "127.0.0.1:9"]);
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("no server at"), "{stderr}");
    let output = site.run(&["publish", "news", "--id", "7"]);
    assert_eq!(output.status.code(), Some(2), "an id for every line");
}

#[test]
fn the_status_says_what_is_held_and_what_it_costs() {
    let server = serve();
    let listeners = [(); 4].map(|()| StreamClient::open(&server, "/stream/news"));
    wait_held(&server, 4);
    publish(&server, "news", "counted");
    eventually(PATIENCE, "all four have it", || {
        server.admin_json()["hub"]["counters"]["delivered"] == 4
    });
    let hub = server.admin_json()["hub"].clone();
    assert_eq!(
        (&hub["counters"]["published"], &hub["counters"]["opened"]),
        (&1.into(), &4.into())
    );
    assert!(hub["stream_bytes"].as_u64().unwrap() > 0);
    assert!(
        hub["bytes_per_stream"].is_null(),
        "four say nothing about one"
    );
    assert_eq!(server.metric("penstock_hub_streams"), Some(4.0));
    assert_eq!(
        server.metric("penstock_hub_messages_published_total"),
        Some(1.0)
    );
    assert!(server.metric("penstock_socket_estimated_bytes").unwrap() >= 4.0 * 1000.0);
    let (code, stdout, _) = verb(&server, &["status"], "");
    assert!(code == 0 && stdout.contains("hub: 4 streams"), "{stdout}");
    drop(listeners);
    eventually(PATIENCE, "they are counted as closed", || {
        server.metric("penstock_hub_streams_closed_total") == Some(4.0)
    });
}
