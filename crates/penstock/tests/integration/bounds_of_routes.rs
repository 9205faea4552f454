//! Requests of a client at a time, and how fast its responses are sent.

use std::time::{Duration, Instant};

use crate::support::{Origin, PATIENCE, RawClient, Script, Server, Site, eventually, head_of};

/// An origin whose responses wait at a gate behind their first bytes.
fn slow_origin() -> Origin {
    Origin::start(|_| {
        let head = head_of("200 OK", "", 10);
        Script::raw(head + "first")
            .gate("rest")
            .send("rest.")
            .keep()
    })
}

fn send(server: &Server, path: &str, client: &str) -> RawClient {
    let mut connection = server.connect();
    connection.send(format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n"
    ));
    connection
}

#[test]
fn a_client_has_so_many_requests_at_a_time() {
    let origin = slow_origin();
    let toml = format!(
        "[server]\nthreads = 2\n[upstreams.u]\nservers = [\"{}\"]\nresponse_buffering = false\n\
         [[sites]]\n[[sites.routes]]\npath = \"/all/*\"\nupstream = \"u\"\n\
         max_concurrent = {{ max = 1, key = \"route\" }}\n\
         [[sites.routes]]\nupstream = \"u\"\nmax_concurrent = 2\n",
        origin.address()
    );
    let server = Site::new().config(&toml).serve(&[]);
    let mut first = send(&server, "/", "10.0.0.1");
    let second = send(&server, "/", "10.0.0.1");
    origin.wait_at("rest", 2);
    let refused = send(&server, "/", "10.0.0.1").response();
    assert_eq!(
        (refused.status, refused.header("Retry-After")),
        (429, Some("1"))
    );
    // Another client is not concerned, and a client that leaves has its place again.
    let other = send(&server, "/", "10.0.0.2");
    origin.wait_at("rest", 3);
    drop(second);
    let mut third = None;
    eventually(PATIENCE, "the place of the client that left", || {
        let mut asked = send(&server, "/", "10.0.0.1");
        // A refusal comes at once; a response waits at the gate.
        let is_refused = asked.try_response(true).unwrap().status == 429;
        third = (!is_refused).then_some(asked);
        !is_refused
    });
    assert_eq!(send(&server, "/", "10.0.0.1").response().status, 429);
    origin.open_gate("rest");
    assert_eq!(first.response().status, 200);
    // On the same connection: the request before has ended.
    for _ in 0..5 {
        first.send("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n");
        assert_eq!(first.response().status, 200);
    }
    drop((third, other));
    let mut whole = send(&server, "/all/x", "10.0.0.3");
    assert_eq!(whole.response().status, 200);
}

#[test]
fn a_response_is_sent_at_its_rate_behind_its_first_bytes() {
    let size = 300 * 1024;
    let toml = "[server]\nthreads = 1\n[[sites]]\n[[sites.routes]]\npath = \"/slow/*\"\n\
         response_rate = { rate = \"100KiB/s\", after = \"100KiB\" }\n\
         files = { root = \"public\" }\nrewrite = { strip_prefix = \"/slow\" }\n\
         [[sites.routes]]\nfiles = { root = \"public\" }\n";
    let server = Site::new()
        .config(toml)
        .file("public/a.bin", vec![b'a'; size])
        .serve(&[]);
    let begin = Instant::now();
    let mut slow = send(&server, "/slow/a.bin", "10.0.0.1");
    // The loop serves others meanwhile.
    let fast = send(&server, "/a.bin", "10.0.0.1").response();
    assert_eq!((fast.status, fast.body.len()), (200, size));
    let fast = begin.elapsed();
    let response = slow.response();
    let time = begin.elapsed();
    assert_eq!((response.status, response.body.len()), (200, size));
    // 200 KiB of it at the rate, but for a burst of a tenth of a second.
    assert!(time >= Duration::from_millis(1_850), "{time:?}");
    assert!(fast < time, "{fast:?} of {time:?}");
}
