//! Routes that hold streams themselves: `hub = { channel = "{path.2}" }`, without an application.

use std::path::Path;

use super::*;

/// A site with such a route, and more lines in its table.
fn serve_route(more: &str, tables: &str) -> Server {
    let toml = format!(
        "[server]\nthreads = 2\n{tables}[[sites]]\n[[sites.routes]]\npath = \"/events/*\"\n\
         hub = {{ channel = \"{{path.2}}\"{more} }}\n"
    );
    Site::new().config(&toml).serve(&[])
}

fn ask(server: &Server, method: &str, path: &str, body: &str) -> Response {
    let mut client = server.connect();
    let length = body.len();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    ));
    client.try_response(method == "HEAD").unwrap()
}

/// The events of a stream, without its heartbeats.
fn events(text: &str) -> Vec<&str> {
    let blocks = text.split("\n\n").filter(|block| !block.is_empty());
    blocks.filter(|block| !block.starts_with(':')).collect()
}

fn id_of(event: &str) -> &str {
    let id = event.lines().find_map(|line| line.strip_prefix("id: "));
    id.unwrap_or_else(|| panic!("no id: {event:?}"))
}

#[test]
fn the_address_names_the_channel() {
    let server = serve_route("", "");
    let mut one = StreamClient::open(&server, "/events/one");
    let mut two = StreamClient::open(&server, "/events/two?x=1");
    assert!(one.head.contains("\r\ncontent-type: text/event-stream\r\n"));
    assert!(
        one.head
            .contains("\r\ncache-control: no-store, no-cache, no-transform\r\n")
    );
    assert!(one.head.contains("\r\nx-accel-buffering: no\r\n"));
    publish(&server, "one", "first");
    publish(&server, "two", "second");
    one.hear("data: first\n");
    two.hear("data: second\n");
    assert!(!two.text().contains("first"));
    for (method, path, status, allow) in [
        ("GET", "/events/", 404, None),
        ("GET", "/events/%ff", 400, None),
        ("HEAD", "/events/one", 200, None),
        ("OPTIONS", "/events/one", 204, Some("GET, HEAD, OPTIONS")),
        ("POST", "/events/one", 405, Some("GET, HEAD, OPTIONS")),
        ("DELETE", "/events/one", 405, Some("GET, HEAD, OPTIONS")),
        ("GET", "/elsewhere", 404, None),
    ] {
        let answer = ask(&server, method, path, "");
        assert_eq!(
            (answer.status, answer.header("allow")),
            (status, allow),
            "{method} {path}"
        );
    }
    let long = format!("/events/{}", "x".repeat(256));
    assert_eq!(ask(&server, "GET", &long, "").status, 400);
    assert_eq!(held(&server), 2);
}

#[test]
fn who_comes_back_gets_what_it_missed() {
    let server = serve_route("", "");
    let mut listener = StreamClient::open(&server, "/events/news");
    for number in 1..=5 {
        publish(&server, "news", &format!("message {number}"));
    }
    let text = listener.hear("data: message 5\n\n").text();
    let heard = events(&text);
    assert_eq!(heard.len(), 5);
    let known = id_of(heard[1]).to_owned();
    drop(listener);
    let field = format!("Last-Event-ID: {known}\r\n");
    let mut again = [
        StreamClient::asking(&server, "/events/news", &field),
        StreamClient::open(&server, &format!("/events/news?lastEventID={known}")),
    ];
    publish(&server, "news", "message 6");
    for listener in &mut again {
        let text = listener.hear("data: message 6\n\n").text();
        let missed: Vec<_> = events(&text)
            .into_iter()
            .map(|event| {
                event
                    .lines()
                    .find_map(|line| line.strip_prefix("data: "))
                    .unwrap()
            })
            .collect();
        assert_eq!(missed, ["message 3", "message 4", "message 5", "message 6"]);
    }
    let last = id_of(heard[4]);
    let mut current = StreamClient::asking(
        &server,
        "/events/news",
        &format!("Last-Event-ID: {last}\r\n"),
    );
    let text = current.hear("data: message 6\n\n").text();
    assert_eq!(events(&text).len(), 1, "{text}");
}

#[test]
fn who_missed_more_than_is_kept_is_told() {
    let server = serve_route("", "[hub]\nhistory = { max_messages = 2 }\n");
    let mut listener = StreamClient::open(&server, "/events/news");
    for number in 1..=5 {
        publish(&server, "news", &format!("message {number}"));
    }
    let text = listener.hear("data: message 5\n\n").text();
    let known = id_of(events(&text)[0]).to_owned();
    for unknown in [known.as_str(), "never seen"] {
        let field = format!("Last-Event-ID: {unknown}\r\n");
        let mut again = StreamClient::asking(&server, "/events/news", &field);
        let text = again.hear("data: message 5\n\n").text();
        let missed = events(&text);
        assert_eq!(missed[0], format!("event: gap\ndata: {unknown}"));
        assert_eq!(missed.len(), 3, "{text}");
        assert!(missed[1].contains("data: message 4"), "{text}");
    }
}

#[test]
fn a_route_may_be_published_to() {
    let server = serve_route(", publish = true", "[hub]\nmax_message_size = \"1KiB\"\n");
    let mut listener = StreamClient::open(&server, "/events/news");
    let answer = ask(&server, "POST", "/events/news", "two\nlines");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "Published\n")
    );
    listener.hear("data: two\ndata: lines\n");
    assert_eq!(
        ask(&server, "POST", "/events/news", &"x".repeat(2000)).status,
        413
    );
    let mut client = server.connect();
    client.send(b"POST /events/news HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n\xff");
    client.expect_status(400);
    let answer = ask(&server, "PUT", "/events/news", "x");
    assert_eq!(
        (answer.status, answer.header("allow")),
        (405, Some("GET, HEAD, POST, OPTIONS"))
    );
    publish(&server, "news", "last");
    let text = listener.hear("data: last\n").text();
    assert_eq!(events(&text).len(), 2, "{text}");
}

#[test]
fn a_message_goes_to_the_room_of_its_request_once() {
    for channels in [
        r#"["room-{path.2}", "announcements"]"#,
        r#"["announcements", "room-{path.2}", "user-{path.2}"]"#,
    ] {
        let toml = format!(
            "[[sites]]\n[[sites.routes]]\npath = \"/rooms/*\"\n\
             hub = {{ channels = {channels}, publish = true }}\n"
        );
        let server = Site::new().config(&toml).serve(&[]);
        let mut rooms = ["/rooms/5", "/rooms/6"].map(|path| StreamClient::open(&server, path));
        assert_eq!(ask(&server, "POST", "/rooms/5", "to room 5").status, 200);
        publish(&server, "announcements", "to all");
        let heard = rooms
            .iter_mut()
            .map(|room| events(&room.hear("data: to all\n\n").text()).len());
        assert_eq!(heard.collect::<Vec<_>>(), [2, 1], "{channels}");
    }
}

#[test]
fn presence_is_counted_and_told_where_that_is_wanted() {
    let server = serve_route(", presence = true", "");
    let list = |arguments: &[&str]| {
        let (code, stdout, stderr) = verb(&server, &[&["channels"], arguments].concat(), "");
        assert_eq!(code, 0, "{stderr}");
        stdout.trim().to_owned()
    };
    assert_eq!(list(&[]), "no channel has subscribers");
    let mut one = StreamClient::open(&server, "/events/room-1");
    let _other = StreamClient::open(&server, "/events/room-1");
    let _news = StreamClient::open(&server, "/events/news");
    one.hear("event: presence\ndata: {\"channel\":\"room-1\",\"subscribers\":2}\n\n");
    assert_eq!(
        list(&[]),
        "hub news: 1 subscriber\nhub room-1: 2 subscribers"
    );
    assert_eq!(list(&["room-*"]), "hub room-1: 2 subscribers");
    assert_eq!(
        list(&["--json", "--namespace", "hub", "news"]),
        r#"{"channels":[{"namespace":"hub","channel":"news","subscribers":1}],"complete":true}"#
    );
    // It is not for every process that reaches the admin interface.
    let mut client = RawClient::connect(server.admin_port());
    client.send("GET /channels HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response().status, 401);
}

#[test]
fn heartbeats_may_be_events() {
    const BEAT: &str = "event: alive\ndata: {}\n\n";
    let server = serve_route(
        ", heartbeat_interval = \"1s\"",
        "[hub]\nheartbeat_event = \"alive\"\n",
    );
    let mut listener = StreamClient::open(&server, "/events/quiet");
    listener.until("two beats", |text| text.matches(BEAT).count() >= 2);
    let own = serve_route(
        ", heartbeat_interval = \"1s\", heartbeat_event = \"beat\"",
        "[hub]\nheartbeat_event = \"alive\"\n",
    );
    let mut listener = StreamClient::open(&own, "/events/quiet");
    listener.hear("event: beat\ndata: {}\n\n");
}

#[test]
fn heart_beats_come_while_nothing_else_does() {
    let server = serve_route(", heartbeat_interval = \"1s\"", "");
    let mut listener = StreamClient::open(&server, "/events/quiet");
    listener.until("two beats", |text| text.matches(":\n\n").count() >= 2);
    assert!(events(&listener.text()).is_empty());
}

#[test]
fn the_example_is_a_chat() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/streams-chat");
    let text = |name: &str| std::fs::read_to_string(example.join(name)).unwrap();
    let toml = text("penstock.toml").replace("127.0.0.1:8080", "127.0.0.1:0");
    let page = text("public/index.html");
    let server = Site::new()
        .file("public/index.html", &page)
        .config(&toml)
        .serve(&[]);
    assert_eq!(server.get("/").text(), page);
    let mut guests = [(); 2].map(|()| StreamClient::open(&server, "/rooms/lobby"));
    let mut other = StreamClient::open(&server, "/rooms/garden");
    assert_eq!(ask(&server, "POST", "/rooms/lobby", "hello").status, 200);
    publish(&server, "room-garden", "elsewhere");
    for guest in &mut guests {
        guest.hear("data: hello\n");
    }
    assert!(!other.hear("data: elsewhere\n").text().contains("hello"));
}
