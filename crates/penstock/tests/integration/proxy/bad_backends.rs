//! Misbehaving back ends: 502 or 504 with the cause in the log, and never another response's bytes.
//!
//! Items 18 and 19 of the list of hostile input. Each row is requested by its own path, its
//! connection must be discarded, and the next client must get exactly its own response. Once a head
//! was forwarded, a broken body ends the client's connection: a truncated body must never look
//! complete. All is `strict` here; `legacy_servers` covers what is accepted otherwise.

use std::time::{Duration, Instant};

use super::{ProxySetup, SLACK, ask, asking, noise, post};
use crate::support::{
    Origin, PATIENCE, RawClient, Response, ResponseError, Script, Server, Step, head_of, last_page,
    page,
};

/// No retry, no ejection: the client gets the result of one attempt.
const PLAIN: &str = "strict = true\nretry = { attempts = 1 }\neject = { max_failures = 0 }\nresponse_timeout = \"1500ms\"\n\
                     body_idle_timeout = \"600ms\"";

type Row = (&'static str, Script);

/// An origin that responds to `/N` as row N says and correctly to anything else, and a server in
/// front of it.
fn serve(rows: &[Row]) -> (Origin, Server) {
    let scripts: Vec<Script> = rows.iter().map(|(_, script)| script.clone()).collect();
    let origin = Origin::start(move |seen| {
        let number = seen.target[1..].parse::<usize>();
        // A row always meets a fresh connection: a failure on a reused one may be retried.
        number.map_or_else(|_| last_page(&seen.target), |n| scripts[n].clone())
    });
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream(PLAIN)
        .serve();
    (origin, server)
}

/// Requests each row; its connection must be discarded and the next client get its own response.
fn each(rows: &[Row], check: impl Fn(&str, &Server, usize, Result<Response, ResponseError>)) {
    let (origin, server) = serve(rows);
    for (number, (name, _)) in rows.iter().enumerate() {
        let before = origin.requests().len();
        let mut client = asking(&server, format!("/{number}"));
        let got = client.try_response(false);
        let rest = if got.is_ok() {
            client.received.clone()
        } else {
            Vec::new()
        };
        assert_eq!(rest, b"", "{name}: more than a response");
        check(name, &server, number, got);
        assert_eq!(origin.requests().len(), before + 1, "{name}: asked once");
        let connection = origin.requests()[before].connection;
        for round in 0..2 {
            let target = format!("/well/{number}/{round}");
            let well = server.get(&target);
            assert_eq!((well.status, well.text()), (200, target), "behind {name}");
        }
        let next = origin.requests()[before + 1].connection;
        assert_ne!(next, connection, "{name}: its connection was used again");
        origin.wait_closed(connection);
    }
}

/// Each row gives this status, with the request and a cause in the log.
fn fails(status: u16, rows: &[Row]) {
    each(rows, |name, server, number, got| {
        let response = got.unwrap_or_else(|broken| panic!("{name}: {broken:?}"));
        assert_eq!(response.status, status, "{name}: {}", response.text());
        let start = format!("{status} GET /{number}: ");
        server.wait_log(&start);
        let log = server.log();
        let reason = log.split(&start).nth(1).unwrap().lines().next().unwrap();
        assert!(reason.len() > 8, "{name}: no reason in {reason:?}");
    });
}

/// Each row gives a beginning and then the end of the client's connection, or 502 if the fault was
/// known early enough.
fn cuts(rows: &[Row]) {
    each(rows, |name, server, number, got| match got {
        Ok(Response { status: 502, .. }) | Err(ResponseError::Truncated(_)) => {
            server.wait_log(&format!("/{number}"));
        }
        other => panic!("{name}: {other:?}"),
    });
}

fn raw(bytes: impl AsRef<[u8]>) -> Script {
    // Kept open: if the connection ends, the proxy closed it.
    Script::raw(bytes).then(Step::Hang)
}

fn ok_with(lines: &str) -> Script {
    raw(format!("HTTP/1.1 200 OK\r\n{lines}\r\nhello"))
}

#[test]
fn malformed_heads_are_refused() {
    let long = "a".repeat(100_000);
    let mega = format!("X-Y: {}\r\n", "a".repeat(1_000)).repeat(1_000);
    fails(
        502,
        &[
            ("an SSH banner", raw("SSH-2.0-OpenSSH_9.2\r\n\r\n")),
            ("no HTTP at all", raw("hello, this is a page\r\n\r\n")),
            (
                "HTTP/9.9",
                raw("HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n"),
            ),
            (
                "http/1.1",
                raw("http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            ),
            (
                "status of text",
                raw("HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n"),
            ),
            (
                "status 99",
                raw("HTTP/1.1 99 Low\r\nContent-Length: 0\r\n\r\n"),
            ),
            (
                "status 2000",
                raw("HTTP/1.1 2000 High\r\nContent-Length: 0\r\n\r\n"),
            ),
            (
                "status 1000",
                raw("HTTP/1.1 1000 High\r\nContent-Length: 0\r\n\r\n"),
            ),
            (
                "status -200",
                raw("HTTP/1.1 -200 Minus\r\nContent-Length: 0\r\n\r\n"),
            ),
            ("no status", raw("HTTP/1.1\r\nContent-Length: 0\r\n\r\n")),
            (
                "control byte in the reason",
                raw("HTTP/1.1 200 O\x07K\r\nContent-Length: 0\r\n\r\n"),
            ),
            (
                "bare cr in the reason",
                raw("HTTP/1.1 200 O\rK\r\nContent-Length: 0\r\n\r\n"),
            ),
            ("empty name", ok_with("Content-Length: 5\r\n: x\r\n")),
            ("no colon", ok_with("Content-Length: 5\r\nnothing\r\n")),
            ("space before the colon", ok_with("Content-Length : 5\r\n")),
            (
                "space in a name",
                ok_with("Content-Length: 5\r\nX Y: z\r\n"),
            ),
            ("folded", ok_with("Content-Length: 5\r\nX: y\r\n z\r\n")),
            (
                "nul in a value",
                ok_with("Content-Length: 5\r\nX: a\0b\r\n"),
            ),
            (
                "bare cr in a value",
                ok_with("Content-Length: 5\r\nX: a\rb\r\n"),
            ),
            (
                "bare lf in a value",
                ok_with("Content-Length: 5\r\nX: a\nb\r\n"),
            ),
            (
                "control byte in a value",
                ok_with("Content-Length: 5\r\nX: a\x01b\r\n"),
            ),
            (
                "a field of 100 kB",
                ok_with(&format!("Content-Length: 5\r\nX: {long}\r\n")),
            ),
            (
                "a head of 1 MB",
                ok_with(&format!("Content-Length: 5\r\n{mega}")),
            ),
        ],
    );
}

#[test]
fn bodies_framed_in_doubt_are_refused() {
    let chunks = |lines: &str| {
        raw(format!(
            "HTTP/1.1 200 OK\r\n{lines}\r\n5\r\nhello\r\n0\r\n\r\n"
        ))
    };
    fails(
        502,
        &[
            (
                "two lengths",
                ok_with("Content-Length: 5\r\nContent-Length: 6\r\n"),
            ),
            ("a list of lengths", ok_with("Content-Length: 5, 6\r\n")),
            ("negative length", ok_with("Content-Length: -5\r\n")),
            ("length with a plus", ok_with("Content-Length: +5\r\n")),
            ("length of text", ok_with("Content-Length: five\r\n")),
            ("empty length", ok_with("Content-Length:\r\n")),
            (
                "length too large to count",
                ok_with("Content-Length: 99999999999999999999999999\r\n"),
            ),
            (
                "length and coding",
                chunks("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
            ),
            (
                "coding and length",
                chunks("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
            ),
            ("unknown coding", chunks("Transfer-Encoding: xchunked\r\n")),
            ("gzip", chunks("Transfer-Encoding: gzip, chunked\r\n")),
            (
                "chunked twice",
                chunks("Transfer-Encoding: chunked, chunked\r\n"),
            ),
            (
                "two codings",
                chunks("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
            ),
            (
                "a coding in HTTP/1.0",
                raw("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            ),
        ],
    );
}

#[test]
fn no_answer_is_a_failure_of_the_back_end() {
    fails(
        502,
        &[
            ("closed unanswered", Script::early().then(Step::ReadBody)),
            ("reset", Script::early().then(Step::Reset)),
            ("closed inside the status line", Script::raw("HTTP/1.1 2")),
            (
                "closed inside the head",
                Script::raw("HTTP/1.1 200 OK\r\nContent-Le"),
            ),
            (
                "reset inside the head",
                Script::raw("HTTP/1.1 200 OK\r\n").then(Step::Reset),
            ),
            (
                "only half closed",
                Script::early().then(Step::CloseWrite).then(Step::Hang),
            ),
        ],
    );
}

#[test]
fn endless_heads_are_ended() {
    let most = 1 << 30;
    let fields = b"X-Endless: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(500);
    let interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(500);
    let flood =
        |start: &str, bytes: &[u8]| Script::raw(start).then(Step::Flood(bytes.to_vec(), most));
    each(
        &[
            ("endless fields", flood("HTTP/1.1 200 OK\r\n", &fields)),
            (
                "an endless name",
                flood("HTTP/1.1 200 OK\r\n", &[b'a'; 10_000]),
            ),
            ("an endless reason", flood("HTTP/1.1 200 ", &[b'a'; 10_000])),
        ],
        |name, _, _, got| assert_eq!(got.unwrap().status, 502, "{name}"),
    );
    // Interim responses may have been forwarded before the limit.
    let rows = [("an informational storm", flood("", &interim))];
    let (origin, server) = serve(&rows);
    let mut client = asking(&server, "/0");
    let last = loop {
        let response = client.response();
        if response.status >= 200 {
            break response;
        }
    };
    assert_eq!(last.status, 502);
    origin.wait_closed(0);
    assert_eq!(server.get("/well").text(), "/well");
}

#[test]
fn interim_answers_that_nobody_asked_for_do_no_harm() {
    let fine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n";
    // Kept on purpose: the next row meets the leftovers of the previous one.
    let kept = |bytes: String| Script::raw(bytes).keep();
    let rows = [
        (
            "continue",
            kept(format!("HTTP/1.1 100 Continue\r\n\r\n{fine}")),
        ),
        ("fifty hints", kept(format!("{}{fine}", early.repeat(50)))),
        (
            "processing",
            kept(format!("HTTP/1.1 102 Processing\r\n\r\n{fine}")),
        ),
    ];
    let (_origin, server) = serve(&rows);
    for (number, (name, _)) in rows.iter().enumerate() {
        let mut client = asking(&server, format!("/{number}"));
        let last = loop {
            let response = client.response();
            assert_ne!(response.status, 100, "{name}: nobody expected it");
            if response.status >= 200 {
                break response;
            }
        };
        assert_eq!((last.status, last.text().as_str()), (200, "fine"), "{name}");
    }
    fails(
        502,
        &[
            (
                "switching unasked",
                raw(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
                ),
            ),
            (
                "interim with a body",
                raw("HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\nhello"),
            ),
        ],
    );
}

#[test]
fn bodies_that_end_too_soon_cut_the_client() {
    let long = noise(300_000);
    let with = |head: &str, end: &[u8]| [head.as_bytes(), &long, end].concat();
    let sized = "HTTP/1.1 200 OK\r\nContent-Length: 300001\r\n\r\n";
    let coded = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n";
    let rows = [
        ("closed short of its length", Script::raw(with(sized, b""))),
        (
            "closed inside the chunks",
            Script::raw(with(coded, b"\r\n5\r\nhe")),
        ),
        (
            "closed before the last chunk",
            Script::raw(with(coded, b"\r\n")),
        ),
        (
            "closed inside the last chunk",
            Script::raw(with(coded, b"\r\n0\r\n")),
        ),
        (
            "a bad size",
            Script::raw(with(coded, b"\r\nxyz\r\n")).then(Step::Hang),
        ),
        (
            "a size with a sign",
            Script::raw(with(coded, b"\r\n+5\r\nhello\r\n0\r\n\r\n")).then(Step::Hang),
        ),
        (
            "a size of seventeen digits",
            Script::raw(with(coded, b"\r\n10000000000000005\r\nhello\r\n0\r\n\r\n"))
                .then(Step::Hang),
        ),
        (
            "a chunk longer than its size",
            Script::raw(with(coded, b"SPILL\r\n0\r\n\r\n")).then(Step::Hang),
        ),
        (
            "lf for a line end",
            Script::raw(with(coded, b"\n0\n\n")).then(Step::Hang),
        ),
        (
            "a bad trailer",
            Script::raw(with(
                coded,
                b"\r\n0\r\nContent-Length: 5\r\nnothing\r\n\r\n",
            ))
            .then(Step::Hang),
        ),
        ("stalled", Script::raw(with(sized, b"")).then(Step::Hang)),
        (
            "stalled inside the chunks",
            Script::raw(with(coded, b"\r\n5\r\nhe")).then(Step::Hang),
        ),
    ];
    cuts(&rows);
}

#[test]
fn a_reset_inside_a_body_cuts_the_client() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/cut" => {
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n";
            Script::raw([head.as_bytes(), &noise(200_000)].concat())
                .then(Step::ResetAt("go".into()))
        }
        _ => page(seen, "well"),
    });
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream(PLAIN)
        .serve();
    let mut client = asking(&server, "/cut");
    assert!(
        client
            .read_some()
            .is_some_and(|bytes| bytes.starts_with(b"HTTP/1.1 200 "))
    );
    origin.open_gate("go");
    assert!(matches!(
        client.try_response(false),
        Err(ResponseError::Truncated(_))
    ));
    assert_eq!(server.get("/next").text(), "well");
}

#[test]
fn a_close_at_any_byte_is_never_taken_for_an_end() {
    let whole = "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 5\r\n\r\nhello";
    let coded = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for response in [whole, coded] {
        let origin = Origin::start(move |seen| {
            let at = seen.target[1..].parse::<usize>().unwrap();
            Script::raw(&response[..at])
        });
        let server = ProxySetup::new([&origin]).upstream(PLAIN).serve();
        for at in 0..response.len() {
            let mut client = asking(&server, format!("/{at}"));
            match client.try_response(false) {
                Ok(answer) => assert_eq!(answer.status, 502, "cut at {at}"),
                Err(ResponseError::Truncated(_)) => {}
                Err(other) => panic!("cut at {at}: {other:?}"),
            }
        }
        assert_eq!(server.get(&format!("/{}", response.len())).text(), "hello");
    }
}

#[test]
fn a_response_may_come_byte_by_byte() {
    let origin = Origin::start(|_| {
        let response = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\
                        Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n";
        let bytes = response.as_bytes().chunks(1);
        bytes
            .fold(Script::early().then(Step::ReadBody), Script::send)
            .keep()
    });
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream(PLAIN)
        .serve();
    for _ in 0..3 {
        let mut client = asking(&server, "/");
        client.expect_status(103);
        assert_eq!(client.expect_status(200).text(), "hello");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn what_follows_a_response_is_nobodys_answer() {
    let foreign = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nforeign";
    let behind = |head: &str| raw(format!("{head}{foreign}"));
    let rows = [
        (
            "a second response",
            behind("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nme"),
        ),
        (
            "behind chunks",
            behind("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nme\r\n0\r\n\r\n"),
        ),
        (
            "a longer body than said",
            raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nmemory"),
        ),
    ];
    each(&rows, |name, _, _, got| {
        let response = got.unwrap_or_else(|broken| panic!("{name}: {broken:?}"));
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "me"),
            "{name}"
        );
    });
    let rows = [
        ("a body with 204", behind("HTTP/1.1 204 No Content\r\n\r\n")),
        (
            "a body with 304",
            behind("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ),
    ];
    each(&rows, |name, _, _, got| {
        assert!(matches!(got.unwrap().status, 204 | 304), "{name}");
    });
}

#[test]
fn a_body_to_head_is_nobodys_answer() {
    let origin = Origin::start(|seen| match seen.method.as_str() {
        "HEAD" => raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        _ => page(seen, "well"),
    });
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream(PLAIN)
        .serve();
    let mut client = server.connect();
    client
        .send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_head(200);
    ask(&mut client, "/");
    assert_eq!(client.expect_status(200).text(), "well");
    origin.wait_closed(0);
}

#[test]
fn what_comes_before_the_request_is_nobodys_answer() {
    let early = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";
    let origin = Origin::raw(vec![Step::Send(early.into()), Step::Hang]);
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream(PLAIN)
        .serve();
    // On a fresh connection it may be taken for the response, once; kept, it would be the next
    // one's.
    let first = server.get("/a").status;
    assert!(matches!(first, 200 | 502), "{first}");
    drop(server);
    // Sent into an idle connection, it ends the connection.
    let origin = Origin::start(|seen| {
        let idle = Script::raw(head_of("200 OK", "", 0)).idle_until(Step::Gate("go".into()));
        match seen.target.as_str() {
            "/idle" => idle
                .idle_until(Step::Send(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nforeign".into(),
                ))
                .idle_until(Step::Hang),
            _ => page(seen, "well"),
        }
    });
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream(PLAIN)
        .serve();
    assert_eq!(server.get("/idle").status, 200);
    origin.open_gate("go");
    origin.wait_closed(0);
    assert_eq!(server.get("/next").text(), "well");
}

#[test]
fn a_head_that_does_not_come_in_time_is_504() {
    let rows = [
        ("nothing", Script::early().then(Step::Hang)),
        ("half a head", raw("HTTP/1.1 200 OK\r\nContent-Le")),
        ("only an interim one", raw("HTTP/1.1 100 Continue\r\n\r\n")),
    ];
    let began = Instant::now();
    fails(504, &rows);
    let took = began.elapsed();
    let each = Duration::from_millis(1_500);
    assert!(took >= 3 * each && took < 3 * (each + SLACK), "{took:?}");
}

#[test]
fn a_head_that_dribbles_is_504_all_the_same() {
    let origin = Origin::start(|_| {
        let slow = (0..200).fold(Script::raw("HTTP/1.1 200 OK\r\nX: "), |script, _| {
            script.gate("drip").send("a")
        });
        slow.then(Step::Hang)
    });
    let server = ProxySetup::new([&origin]).upstream(PLAIN).serve();
    let began = Instant::now();
    let mut client = asking(&server, "/");
    client.patience(Duration::from_millis(20));
    while client.read_some().is_none() {
        assert!(
            began.elapsed() < PATIENCE,
            "nobody stops a dribbling back end"
        );
        origin.release_gate_once("drip");
    }
    client.patience(PATIENCE).expect_status(504);
    assert!(began.elapsed() >= Duration::from_millis(1_500));
}

#[test]
fn a_whole_exchange_can_be_bounded() {
    let origin = Origin::start(|_| {
        let slow = (0..400).fold(
            Script::raw("HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n"),
            |script, _| script.gate("drip").send("a"),
        );
        slow.then(Step::Hang)
    });
    let upstream = format!("{PLAIN}\ntotal_timeout = \"1s\"");
    let server = ProxySetup::new([&origin])
        .upstream(&upstream)
        .route("response_buffering = false")
        .serve();
    let began = Instant::now();
    let mut client = asking(&server, "/");
    client.patience(Duration::from_millis(20));
    let mut ended = false;
    while !ended {
        assert!(began.elapsed() < PATIENCE, "nobody stops it");
        // Too slow for the total timeout, but not between any two bytes.
        super::pass_time(Duration::from_millis(10));
        origin.release_gate_once("drip");
        ended = client.read_some().is_some_and(|bytes| bytes.is_empty());
    }
    assert!(began.elapsed() >= Duration::from_secs(1));
    let got = String::from_utf8_lossy(&client.received).into_owned();
    assert!(got.starts_with("HTTP/1.1 ") && got.len() < 800, "{got}");
}

#[test]
fn an_answer_before_the_request_was_sent_is_passed_on() {
    let refusal = format!(
        "{}too much",
        head_of("413 Too Large", "Connection: close\r\n", 8)
    );
    let origin = Origin::start(move |seen| match seen.method.as_str() {
        "POST" => Script::early()
            .send(&refusal)
            .then(Step::CloseWrite)
            .then(Step::Hang),
        _ => page(seen, "well"),
    });
    for route in ["", "request_buffering = false"] {
        let server = ProxySetup::new([&origin])
            .server("threads = 1")
            .upstream(PLAIN)
            .route(route)
            .serve();
        let before = origin.requests().len();
        let mut client = server.connect();
        let _ = client.try_send(post("/large", &noise(3 << 20)));
        let response = client.expect_status(413);
        assert_eq!(response.text(), "too much", "{route}");
        let connection = origin.requests()[before].connection;
        origin.wait_closed(connection);
        assert_eq!(server.get("/next").text(), "well", "{route}");
    }
}

#[test]
fn an_answer_that_leaves_the_body_unread_ends_the_connection() {
    // The rest of the body must be the last that the origin gets on this connection.
    let refusal = format!("{}no", head_of("403 Forbidden", "", 2));
    let body = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100_000);
    let origin = Origin::start(move |seen| match seen.method.as_str() {
        "POST" => Script::early().send(&refusal).then(Step::Hang),
        _ => page(seen, "well"),
    });
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream(PLAIN)
        .route("request_buffering = false")
        .serve();
    let mut client = server.connect();
    let request = post("/large", &body);
    let half = request.len() / 2;
    client.send(&request[..half]).expect_status(403);
    let _ = client.try_send(&request[half..]);
    origin.wait_closed(0);
    assert_eq!(server.get("/next").text(), "well");
    assert_eq!(origin.lines(), ["POST /large", "GET /next"]);
}

#[test]
fn bad_back_ends_take_no_memory_and_leave_no_slot_taken() {
    let rows = [
        (
            "cut",
            Script::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
        ),
        ("reset", Script::early().then(Step::Reset)),
        ("malformed", raw("SSH\r\n\r\n")),
    ];
    let (_origin, server) = serve(&rows);
    let mut clients: Vec<RawClient> = Vec::new();
    for round in 0..60 {
        clients.push(asking(&server, format!("/{}", round % rows.len())));
    }
    for mut client in clients {
        let got = client.try_response(false);
        assert!(
            !matches!(got, Ok(r) if r.status == 200),
            "a failure looked like a success"
        );
    }
    super::wait_in_progress(&server, 0);
    super::wait_waiting(&server, 0);
}
