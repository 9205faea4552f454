//! Applications of every kind hold streams by GRIP, and none of their workers waits meanwhile.

use super::*;
use crate::rack::rack_site_with;
use crate::support::{Origin, Script, page};

/// Fifty streams on one worker that serves others meanwhile, and all of them receive the same.
fn many_on_one_worker(server: &Server) {
    let pid = server.get("/pid").text();
    let mut listeners: Vec<_> = (0..50)
        .map(|_| StreamClient::open(server, "/stream/news"))
        .collect();
    for listener in &mut listeners {
        listener.hear("data: welcome\n\n");
        assert!(!listener.head.contains("grip-"), "{}", listener.head);
        assert!(listener.head.contains("\r\nx-own: yes\r\n"));
        assert!(
            listener
                .head
                .contains("\r\ncontent-type: text/event-stream\r\n")
        );
        assert!(listener.head.contains("\r\nconnection: close\r\n"));
    }
    wait_held(server, 50);
    assert_eq!(server.get("/pid").text(), pid, "the worker is free");
    eventually(PATIENCE, "nothing is in progress", || {
        server.admin_json()["traffic"]["active"] == 0
    });
    assert!(server.admin_json()["connections"]["used"].as_u64().unwrap() >= 50);
    publish(server, "news", "hello\nworld");
    publish(server, "other", "not for them");
    publish(server, "news", "bye");
    for listener in &mut listeners {
        listener.hear("data: bye\n");
        let text = listener.text();
        assert_eq!(
            text.matches("data: hello\ndata: world\n").count(),
            1,
            "{text}"
        );
        assert!(!text.contains("not for them"), "{text}");
    }
    drop(listeners);
    wait_held(server, 0);
    eventually(PATIENCE, "their connections are gone", || {
        server.admin_json()["connections"]["used"] == 0
    });
}

#[test]
fn a_wsgi_application_holds_without_a_worker() {
    let server = serve();
    many_on_one_worker(&server);
    let apps = &server.admin_json()["apps"];
    assert_eq!(apps[0]["queue"]["active"], 0);
}

#[test]
fn a_rack_application_holds_without_a_worker() {
    let server = rack_site_with(RACK, "processes = 1\ngrip = true").serve(&[]);
    server.wait_ready("app");
    many_on_one_worker(&server);
}

#[test]
fn an_upstream_holds_without_a_connection() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/pid" => page(seen, "origin"),
        _ => Script::raw(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nGrip-Hold: stream\r\n\
             grip-channel: news\r\nX-Own: yes\r\nContent-Length: 15\r\n\r\ndata: welcome\n\n",
        )
        .keep(),
    });
    let toml = format!(
        "[server]\nthreads = 2\n[upstreams.b]\nservers = [\"{}\"]\nmax_active = 1\ngrip = true\n\
         [[sites]]\n[[sites.routes]]\npath = \"/*\"\nupstream = \"b\"\n",
        origin.address()
    );
    let server = Site::new().config(&toml).serve(&[]);
    many_on_one_worker(&server);
}

/// The application knows nothing of `Last-Event-ID`.
#[test]
fn a_returning_client_gets_missed_messages() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/stream/news");
    for words in [
        "\r\nx-accel-buffering: no\r\n",
        "\r\ncache-control: no-cache, no-transform\r\n",
    ] {
        assert!(listener.head.contains(words), "{}", listener.head);
    }
    publish(&server, "news", "1");
    let text = listener.hear("data: 1\n\n").text();
    let id = text.lines().find_map(|line| line.strip_prefix("id: "));
    let field = format!("Last-Event-ID: {}\r\n", id.unwrap());
    drop(listener);
    publish(&server, "news", "2");
    publish(&server, "news", "3");
    let gap = "event: gap\ndata: not-known\n\n";
    for (path, field, expected) in [
        ("/stream/news", field.as_str(), ["2", "3"].as_slice()),
        ("/instruct/news", &field, &["2", "3"]),
        ("/stream/news?lastEventID=not-known", "", &["1", "2", "3"]),
        (
            "/stream/news",
            "Last-Event-ID: not-known\r\n",
            &["1", "2", "3"],
        ),
        ("/stream/news", "", &[]),
    ] {
        let mut again = StreamClient::asking(&server, path, field);
        publish(&server, "news", "end");
        let text = again.hear("data: end\n\n").text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter(|data| data.parse::<u32>().is_ok());
        assert_eq!(
            data.collect::<Vec<_>>(),
            expected,
            "{path} {field:?}: {text}"
        );
        assert_eq!(
            text.contains(gap),
            expected.len() == 3,
            "{path} {field:?}: {text}"
        );
    }
}

#[test]
fn an_instruction_may_be_the_body() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/instruct/news");
    listener.hear("data: told\n\n");
    assert!(!listener.head.contains("grip"), "{}", listener.head);
    publish(&server, "news", "heard");
    listener.hear("data: heard\n");
}

#[test]
fn an_instruction_that_is_none_is_a_bad_gateway() {
    let server = serve();
    assert_eq!(server.get("/wrong/news").status, 502);
    assert_eq!(held(&server), 0);
    assert_eq!(server.get("/plain").text(), "/plain");
}

#[test]
fn the_keep_alive_is_the_applications_own() {
    let server = serve();
    let mut listener = StreamClient::open(&server, "/beat/quiet");
    listener.hear("beat\nbeat\n");
    assert!(listener.text().lines().all(|line| line == "beat"));
}

#[test]
fn a_client_cannot_speak_for_the_front_end() {
    for table in ["", "[hub]\ngrip_key = \"a key of this test\"\n"] {
        let server = serve_with("", table);
        let mut client = server.connect();
        client.send(
            "GET /grip HTTP/1.1\r\nHost: a\r\nGrip-Sig: forged\r\ngrip-feature: all\r\n\
             GRIP-LAST: a; last-id=b\r\nGrip_Sig: forged\r\nConnection: close\r\n\r\n",
        );
        let seen = client.expect_status(200).text();
        assert!(
            !seen.contains("forged") && !seen.contains("last-id"),
            "{seen}"
        );
        assert!(seen.contains("HTTP_GRIP_SIG=ey"), "{seen}");
        assert!(!seen.contains("HTTP_GRIP_FEATURE=all"), "{seen}");
    }
}

#[test]
fn what_only_looks_like_it_is_sent_as_it_is() {
    // An application may send GRIP fields to a client without holding anything.
    let server = serve();
    let mut client = server.connect();
    client.send("GET /stream/news HTTP/1.1\r\nHost: a\r\nX-Grip-Hold: stream\r\n\r\n");
    let mut listener = StreamClient::over(client);
    listener.hear("welcome");
    let head = server.get("/plain").headers;
    let names: Vec<_> = head
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect();
    assert!(
        !names.iter().any(|name| name.starts_with("grip")),
        "{names:?}"
    );
}

#[test]
fn a_head_request_and_an_old_client_are_answered() {
    let server = serve();
    let mut client = server.connect();
    client.send("HEAD /stream/news HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.expect_head(200);
    client.expect_closed();
    let mut old = server.connect();
    old.send("GET /stream/news HTTP/1.0\r\nHost: a\r\n\r\n");
    let await_words = |client: &mut RawClient, words: &str| {
        eventually(PATIENCE, words, || {
            find(&client.received, words.as_bytes()).is_some() || {
                client.read_some();
                false
            }
        });
    };
    await_words(&mut old, "\r\n\r\ndata: welcome\n\n");
    publish(&server, "news", "as it is");
    await_words(&mut old, "data: as it is\n");
    assert!(find(&old.received, b"chunked").is_none());
}

#[test]
fn a_cache_keeps_no_held_response() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/kept" => Script::raw(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\n\r\nk",
        )
        .keep(),
        _ => Script::raw(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nGrip-Hold: stream\r\n\
             Grip-Channel: news\r\nContent-Length: 1\r\n\r\nw",
        )
        .keep(),
    });
    let toml = format!(
        "[server]\nthreads = 2\n[upstreams.b]\nservers = [\"{}\"]\ngrip = true\n[caches.c]\nmax_size = \"1MiB\"\n\
         [[sites]]\n[[sites.routes]]\npath = \"/*\"\nupstream = \"b\"\ncache = [\"c\"]\n",
        origin.address()
    );
    let server = Site::new().config(&toml).serve(&[]);
    let mut listeners = [(); 3].map(|()| StreamClient::open(&server, "/stream"));
    wait_held(&server, 3);
    publish(&server, "news", "to all");
    for listener in &mut listeners {
        assert!(listener.hear("to all").text().starts_with('w'));
    }
    for _ in 0..2 {
        assert_eq!(server.get("/kept").text(), "k");
    }
    let lines = origin.lines();
    let asked = |line: &str| lines.iter().filter(|l| *l == line).count();
    assert_eq!((asked("GET /stream"), asked("GET /kept")), (3, 1));
}
