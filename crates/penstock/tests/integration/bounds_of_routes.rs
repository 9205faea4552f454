//! Requests of a client at a time, how fast its responses are sent, and time limits of a route.

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

#[test]
fn the_responses_to_a_client_share_its_rate() {
    let size = 100 * 1024;
    let toml = "[server]\nthreads = 1\n[[sites]]\n[[sites.routes]]\n\
         response_rate = { client_rate = \"200KiB/s\" }\nfiles = { root = \"public\" }\n";
    let server = Site::new()
        .config(toml)
        .file("public/a.bin", vec![b'a'; size])
        .serve(&[]);
    let begin = Instant::now();
    let mut ones: Vec<_> = (0..3)
        .map(|_| send(&server, "/a.bin", "10.0.0.1"))
        .collect();
    let other = send(&server, "/a.bin", "10.0.0.2").response();
    let alone = begin.elapsed();
    for one in &mut ones {
        let response = one.response();
        assert_eq!((response.status, response.body.len()), (200, size));
    }
    let together = begin.elapsed();
    assert_eq!((other.status, other.body.len()), (200, size));
    // 100 KiB alone and 300 KiB together, but for a burst of a tenth of a second at each rate.
    assert!(alone >= Duration::from_millis(390), "{alone:?}");
    assert!(together >= Duration::from_millis(1_150), "{together:?}");
    assert!(alone < together, "{alone:?} of {together:?}");
}

#[test]
fn a_route_has_time_limits_of_its_own() {
    let silent = Origin::start(|_| {
        Script::early()
            .gate("open")
            .send(head_of("200 OK", "", 0))
            .keep()
    });
    let app = "import threading\ndef application(environ, start):\n    threading.Event().wait()\n";
    let toml = format!(
        "[server]\nthreads = 1\n[upstreams.u]\nservers = [\"{}\"]\nretry = {{ attempts = 1 }}\n\
         [apps.stuck]\nentry = \"stuck:application\"\nkind = \"wsgi\"\nprocesses = 1\n\
         [[sites]]\n\
         [[sites.routes]]\npath = \"/upload/*\"\nupstream = \"u\"\nbody_idle_timeout = \"200ms\"\n\
         [[sites.routes]]\npath = \"/app/*\"\napp = \"stuck\"\nresponse_timeout = \"200ms\"\n\
         [[sites.routes]]\npath = \"/quick/*\"\nupstream = \"u\"\nresponse_timeout = \"200ms\"\n\
         [[sites.routes]]\nupstream = \"u\"\n",
        silent.address()
    );
    let server = Site::new().config(&toml).file("stuck.py", app).serve(&[]);
    // Neither limit of another route is this one's: it has those of the server, of a minute each.
    let mut patient = send(&server, "/other", "10.0.0.1");
    for path in ["/quick/a", "/app/a"] {
        let response = send(&server, path, "10.0.0.1").response();
        assert_eq!(response.status, 504, "{path}");
    }
    let mut slow = server.connect();
    slow.send("POST /upload/a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345");
    assert_eq!(slow.response().status, 408);
    server.wait_log("response_timeout (200ms)");
    silent.open_gate("open");
    assert_eq!(patient.response().status, 200);
}
