//! Streams move at an upgrade where several servers share a Redis.

use rustix::process::Signal;

use super::*;
use crate::support::{Redis, is_alive, kill};

/// A server of the cluster, whose application holds streams with links.
fn serve_shared(redis: &Redis) -> Server {
    let toml = format!(
        "[server]\nthreads = 2\nredis = \"unix:{}\"\n{ONE}entry = \"app:app\"\n\
         [hub]\nhistory = 1000\n[[sites]]\n[[sites.routes]]\npath = \"/events/*\"\n\
         hub = {{ channel = \"{{path.2}}\", namespace = \"app\" }}\n\
         [[sites.routes]]\npath = \"/*\"\napp = \"app\"\n",
        redis.socket.display()
    );
    let app = include_str!("../apps/linked_streams.py");
    let server = Site::new().file("app.py", app).config(&toml).serve(&[]);
    server.wait_ready("app");
    eventually(PATIENCE, "it has joined", || {
        server.admin_json()["hub"]["cluster"]["connected"] == true
    });
    server
}

/// Publishes events with these texts.
fn publish_texts(server: &Server, texts: impl Iterator<Item = String>) {
    for text in texts {
        let item = format!(
            r#"{{"items": [{{"channel": "news", "http-stream": {{"content": "data: {text}\n\n"}}}}]}}"#
        );
        assert_eq!(post(server, "/publish/", "", &item).status, 200);
    }
}

fn upgrade(server: &Server) -> i32 {
    let (code, stdout, stderr) = verb(server, &["upgrade"], "");
    assert_eq!(code, 0, "{stdout}{stderr}\n{}", server.log());
    i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap()
}

fn wait_until_gone(server: &Server, pid: i32) {
    match pid == server.pid() {
        true => assert_eq!(server.wait_exit(PATIENCE).code(), Some(0)),
        false => eventually(PATIENCE, "the old process ends", || !is_alive(pid)),
    }
}

/// The data of the events that begin with this mark.
fn data_of(text: &str, mark: &str) -> Vec<String> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let marked = data.filter(|data| data.starts_with(mark));
    marked.map(str::to_owned).collect()
}

#[test]
fn streams_of_a_cluster_move_to_the_next_process() {
    let site = Site::new();
    let redis = Redis::start(&site);
    let (near, far) = (serve_shared(&redis), serve_shared(&redis));
    let open = |path, count| (0..count).map(move |_| path);
    let paths = open("/events/news", 150)
        .chain(open("/next", 10))
        .chain(open("/left", 10));
    let mut listeners: Vec<_> = paths.map(|path| StreamClient::open(&near, path)).collect();
    listeners.push(StreamClient::open(&far, "/events/news"));
    // One without any message, to which the first comes after the move.
    let mut silent = StreamClient::open(&near, "/events/silent");
    let (mut pid, mut count) = (near.pid(), 0);
    let texts = |mark, numbers: std::ops::Range<u32>| numbers.map(move |n| format!("{mark}{n}."));
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for (server, mark) in [(&near, "n"), (&far, "f")] {
                scope.spawn(move || publish_texts(server, texts(mark, count..count + 100)));
            }
            let next = upgrade(&near);
            wait_until_gone(&near, pid);
            pid = next;
        });
        count += 100;
    }
    let expected = |mark| -> Vec<_> { texts(mark, 0..count).collect() };
    let last = [
        format!("data: n{}.\n", count - 1),
        format!("data: f{}.\n", count - 1),
    ];
    let mut first_order = None;
    for listener in &mut listeners {
        let text = listener.until("both ends", |text| {
            last.iter().all(|last| text.contains(last))
        });
        let text = text.text();
        assert!(!text.contains("event: gap"), "{text}\n{}", near.log());
        for mark in ["n", "f"] {
            assert_eq!(data_of(&text, mark), expected(mark), "{}", near.log());
        }
        let order: Vec<_> = text
            .lines()
            .filter(|line| line.ends_with('.'))
            .map(str::to_owned)
            .collect();
        assert_eq!(first_order.get_or_insert_with(|| order.clone()), &order);
    }
    publish(&far, "silent", "the first");
    silent.hear("data: the first\n");
    assert!(!silent.text().contains("event: gap"), "{}", silent.text());
    kill(pid, Signal::TERM);
    eventually(PATIENCE, "the new one ends", || !is_alive(pid));
}

#[test]
fn streams_of_a_cluster_wait_for_redis_before_they_move() {
    let site = Site::new();
    let redis = Redis::start(&site);
    let (near, far) = (serve_shared(&redis), serve_shared(&redis));
    let mut listeners: Vec<_> = (0..30)
        .map(|_| StreamClient::open(&near, "/events/news"))
        .collect();
    publish_texts(&far, ["before".to_owned()].into_iter());
    for listener in &mut listeners {
        listener.hear("data: before\n");
    }
    let old = near.pid();
    redis.signal(Signal::STOP);
    eventually(PATIENCE, "Redis is missed", || {
        publish_texts(&near, ["early".to_owned()].into_iter());
        near.admin_json()["hub"]["cluster"]["standalone"] == true
    });
    let pid = upgrade(&near);
    publish_texts(&near, ["new".to_owned()].into_iter());
    publish_texts(&far, ["far".to_owned()].into_iter());
    assert!(is_alive(old), "it keeps its streams: {}", near.log());
    redis.signal(Signal::CONT);
    wait_until_gone(&near, old);
    publish_texts(&far, ["after".to_owned()].into_iter());
    for listener in &mut listeners {
        let text = listener.hear("data: after\n").text();
        for word in ["before", "new", "far", "after"] {
            let times = data_of(&text, word).len();
            assert!(
                times == 1 || times == 0 && text.contains("event: gap"),
                "{word}: {text}"
            );
        }
        // Published several times, each of which comes once.
        assert!(!data_of(&text, "early").is_empty(), "{text}");
    }
    kill(pid, Signal::TERM);
    eventually(PATIENCE, "the new one ends", || !is_alive(pid));
}
