//! Upstreams with TLS, and TCP listeners that pass it through.
//!
//! The details of handshakes and names are tested beside the code of `proxy`.

use std::io::{Read, Write};

use super::tcp::{front, port};
use super::upgrades::{AGREED, upgraded};
use super::{ProxySetup, asking, expect_bytes, noise, post, status};
use crate::support::{
    Origin, RawClient, ResponseError, Script, Server, Site, Step, TestAuthority, TlsFront, head_of,
    page, texts,
};

/// Trust in the authority of the tests.
const TLS: &str = "tls = { ca = \"ca.pem\" }\n";

/// An origin behind TLS, behind the proxy.
struct Secured {
    front: TlsFront,
    server: Server,
}

fn secured(origin: &Origin, upstream: &str) -> Secured {
    let authority = TestAuthority::new("Servers");
    let front = TlsFront::before(origin, &authority, "127.0.0.1");
    let server = serve(&front, &authority, upstream);
    Secured { front, server }
}

fn serve(front: &TlsFront, authority: &TestAuthority, upstream: &str) -> Server {
    ProxySetup::to([front.address()])
        .upstream(&format!("{TLS}{upstream}"))
        .serve_in(Site::new().file("ca.pem", authority.pem()))
}

#[test]
fn requests_reach_a_server_over_one_connection() {
    let origin = Origin::start(|seen| page(seen, seen.target.clone()));
    let Secured { front, server } = secured(&origin, "");
    let mut client = server.connect();
    for number in 0..20 {
        super::ask(&mut client, format!("/{number}"));
        assert_eq!(client.expect_status(200).text(), format!("/{number}"));
    }
    assert_eq!(front.accepted(), 1);
    let seen = origin.requests().remove(0);
    // The client's own connection has no TLS.
    assert_eq!(seen.field("x-forwarded-proto").as_deref(), Some("http"));
    let tls = status(&server)["tls"].clone();
    assert_eq!(
        (&tls["handshakes"], &tls["failures"]),
        (&1.into(), &0.into())
    );
    let name = "penstock_upstream_tls_handshakes_total{upstream=\"b\"}";
    assert_eq!(server.metric(name), Some(1.0));
}

#[test]
fn large_bodies_arrive_whole_at_the_pace_of_the_slower_side() {
    let body = noise(3_000_000);
    for lines in [
        "",
        "request_buffering = false\nresponse_buffering = false\n",
    ] {
        // It reads nothing until the gate opens.
        let origin = Origin::start(|seen| match &*seen.target {
            "/echo" => Script::early().gate("read").then(Step::ReadBody).send(
                [
                    head_of("200 OK", "", 3_000_000).as_bytes(),
                    &noise(3_000_000),
                ]
                .concat(),
            ),
            _ => page(seen, "other"),
        });
        let Secured {
            front: _front,
            server,
        } = secured(&origin, lines);
        let mut client = server.connect();
        let (sent, mut sender) = (post("/echo", &body), server.connect());
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(&sent));
            origin.wait_at("read", 1);
            // Others are served meanwhile.
            super::ask(&mut client, "/");
            client.expect_status(200);
            origin.open_gate("read");
        });
        // Nothing of the response was read so far.
        let response = sender.expect_status(200);
        assert!(response.body == body, "{lines}");
        let received = origin
            .requests()
            .into_iter()
            .find(|seen| seen.target == "/echo");
        assert!(received.unwrap().body == body, "{lines}");
    }
}

#[test]
fn an_interim_response_and_an_expectation_pass() {
    let origin = Origin::start(|seen| match &*seen.method {
        "POST" => Script::early()
            .send("HTTP/1.1 100 Continue\r\n\r\n")
            .then(Step::ReadBody)
            .send([head_of("200 OK", "", 4), "done".to_owned()].concat())
            .keep(),
        _ => page(seen, "get"),
    });
    let Secured {
        front: _front,
        server,
    } = secured(&origin, "request_buffering = false\n");
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    client.expect_head(100);
    client.send("hello");
    assert_eq!(client.expect_status(200).text(), "done");
    assert_eq!(origin.last().body, b"hello");
}

#[test]
fn a_body_without_length_is_whole_only_with_a_notice() {
    let origin = Origin::start(|_| {
        Script::early()
            .then(Step::ReadBody)
            .send("HTTP/1.1 200 OK\r\n\r\nall of it")
    });
    let authority = TestAuthority::new("Servers");
    let whole = TlsFront::before(&origin, &authority, "127.0.0.1");
    let server = serve(&whole, &authority, "");
    assert_eq!(server.get("/").text(), "all of it");
    let cut = TlsFront::cutting(&origin, &authority, "127.0.0.1");
    let server = serve(&cut, &authority, "");
    match asking(&server, "/").try_response(false) {
        Err(ResponseError::Truncated(_)) => {}
        Ok(response) => assert_eq!(response.status, 502),
        other => panic!("{other:?}"),
    }
    server.wait_log("close_notify");
}

#[test]
fn a_server_that_closes_between_requests_costs_no_error() {
    let origin = Origin::start(|seen| {
        let script = page(seen, "well");
        script.idle_until(Step::Gate("close".to_owned()))
    });
    let Secured { front, server } = secured(&origin, "");
    for _ in 0..5 {
        assert_eq!(server.get("/").text(), "well");
        // The next request may meet the end on its way.
        origin.wait_at("close", 1);
        origin.release_gate_once("close");
    }
    assert_eq!(front.accepted(), origin.connections());
    assert_eq!(status(&server)["servers"][0]["failures"], 0);
}

#[test]
fn tunnels_run_over_tls() {
    let echo = Origin::start(|seen| match seen.field("upgrade") {
        Some(_) => Script::early().send(AGREED).then(Step::Echo),
        None => page(seen, "plain"),
    });
    let Secured {
        front: _front,
        server,
    } = secured(&echo, "");
    let mut client = upgraded(&server);
    check_tunnel(&mut client);
    let (raw, authority) = (Origin::raw(vec![Step::Echo]), TestAuthority::new("Servers"));
    let secure = TlsFront::before(&raw, &authority, "127.0.0.1");
    let server =
        front([secure.address()], TLS).serve_in(Site::new().file("ca.pem", authority.pem()));
    check_tunnel(&mut RawClient::connect(port(&server)));
    // A server may speak first, and end first.
    let greeting = Origin::raw(vec![Step::Send(noise(200_000))]);
    let secure = TlsFront::before(&greeting, &authority, "127.0.0.1");
    let server =
        front([secure.address()], TLS).serve_in(Site::new().file("ca.pem", authority.pem()));
    assert!(RawClient::connect(port(&server)).read_to_end() == noise(200_000));
}

/// Bytes of every length through an echo, then its end.
fn check_tunnel(client: &mut RawClient) {
    for size in [1, 1_000, 300_000] {
        client.send(noise(size));
        expect_bytes(client, &noise(size));
    }
    client.send("last words").close_write();
    assert_eq!(client.read_to_end(), b"last words");
}

#[test]
fn a_server_with_another_certificate_gets_no_request() {
    let (origin, authority) = (Origin::named("a"), TestAuthority::new("Servers"));
    let front = TlsFront::before(&origin, &authority, "b.example");
    let server = serve(&front, &authority, "");
    assert_eq!(server.get("/").status, 502);
    server.wait_log("the certificate is for b.example, not for 127.0.0.1: set `tls.server_name`");
    assert_eq!(origin.requests().len(), 0);
}

/// What `penstock reload` prints.
fn reload(server: &Server) -> (String, String) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    texts(&server.site().run(&["reload", "--admin", &admin]))
}

#[test]
fn a_reload_reads_the_authorities_again() {
    let (origin, wrong, authority) = (
        Origin::named("a"),
        TestAuthority::new("Wrong"),
        TestAuthority::new("Servers"),
    );
    let front = TlsFront::before(&origin, &authority, "127.0.0.1");
    let server = serve(&front, &wrong, "");
    assert_eq!(server.get("/").status, 502);
    server.site().write("ca.pem", "not a certificate");
    let (out, error) = reload(&server);
    assert!(error.contains("upstreams.b.tls.ca: "), "{out}{error}");
    server.site().write("ca.pem", authority.pem());
    assert_eq!(reload(&server), ("reloaded\n".to_owned(), String::new()));
    assert_eq!(server.get("/").text(), "a");
}

#[test]
fn check_names_the_file_that_cannot_be_used() {
    let authority = TestAuthority::new("Servers");
    let own = authority.issue(&["client.example"]);
    let other = authority.issue(&["other.example"]);
    let rows = [
        ("{ ca = \"ca.pem\" }", ""),
        (
            "{ ca = \"ca.pem\", certificate = \"c.pem\", key = \"c.key\" }",
            "",
        ),
        ("{ ca = \"gone.pem\" }", "upstreams.b.tls.ca: "),
        ("{ ca = \"c.key\" }", "upstreams.b.tls.ca: "),
        (
            "{ ca = \"ca.pem\", certificate = \"c.pem\", key = \"other.key\" }",
            "upstreams.b.tls.certificate: ",
        ),
        (
            "{ ca = \"ca.pem\", certificate = \"c.pem\" }",
            "upstreams.b.tls.certificate: ",
        ),
    ];
    for (tls, expected) in rows {
        let setup =
            ProxySetup::to([crate::support::Address::Tcp(1)]).upstream(&format!("tls = {tls}"));
        let site = Site::new()
            .file("ca.pem", authority.pem())
            .file("c.pem", &own.chain)
            .file("c.key", &own.key)
            .file("other.key", &other.key)
            .config(&setup.toml());
        let output = site.run(&["check", "--config-only"]);
        let (out, error) = texts(&output);
        match expected {
            "" => assert!(output.status.success(), "{tls}: {out}{error}"),
            expected => assert!(error.contains(expected), "{tls}: {out}{error}"),
        }
    }
}

#[test]
fn a_listener_passes_tls_on_by_its_name() {
    let origins = ["one", "two", "other"]
        .map(|name| Origin::raw(vec![Step::Send(name.as_bytes().to_vec()), Step::Echo]));
    let authority = TestAuthority::new("Servers");
    let names = ["a.example", "x.b.example", "c.example"];
    let fronts = [0, 1, 2].map(|at| TlsFront::before(&origins[at], &authority, names[at]));
    let [one, two, other] = [0, 1, 2].map(|at| fronts[at].address());
    let toml = |default: &str| {
        format!(
            "[server]\nadmin = \"127.0.0.1:0\"\n[limits]\ntls_handshake_timeout = \"300ms\"\n\
             [upstreams.one]\nservers = [\"{one}\"]\n[upstreams.two]\nservers = [\"{two}\"]\n\
             [upstreams.other]\nservers = [\"{other}\"]\n\
             [[tcp]]\nlisten = \"127.0.0.1:0\"\n{default}\
             sni = {{ \"a.example\" = \"one\", \"*.b.example\" = \"two\", \
             \"d.example\" = \"other\" }}\n"
        )
    };
    let client = authority.client();
    let server = Site::new()
        .config(&toml("upstream = \"other\"\n"))
        .serve(&[]);
    for (name, expected) in names.into_iter().zip(["one", "two", "other"]) {
        let mut session = client.try_connect(port(&server), name).unwrap();
        session.write_all(b"!").unwrap();
        let mut received = vec![0; expected.len() + 1];
        session.read_exact(&mut received).unwrap();
        assert_eq!(String::from_utf8(received).unwrap(), format!("{expected}!"));
    }
    // What is no first message, or not whole in time, reaches no server.
    let before: Vec<_> = fronts.iter().map(TlsFront::accepted).collect();
    for bytes in [
        "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "\u{16}\u{3}\u{1}",
        "",
    ] {
        let mut client = RawClient::connect(port(&server));
        client.send(bytes);
        client.expect_closed();
    }
    assert_eq!(
        fronts.iter().map(TlsFront::accepted).collect::<Vec<_>>(),
        before
    );
    let closed = Site::new().config(&toml("")).serve(&[]);
    assert!(client.try_connect(port(&closed), "c.example").is_err());
    closed.wait_log("no upstream for the server name \"c.example\"");
}
