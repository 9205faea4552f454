//! TLS that ends at TCP listeners, before servers of any protocol.

use std::io::{Read, Write};

use super::{tls_of, write_certificate};
use crate::support::{
    Origin, PATIENCE, RawClient, Server, Site, Step, TestAuthority, TlsSession, eventually, texts,
};

/// An origin that greets by its name and sends back what it gets.
fn greeter(name: &str) -> Origin {
    Origin::raw(vec![Step::Send(name.as_bytes().to_vec()), Step::Echo])
}

/// What a session gets for some bytes, with the greeting before them.
fn exchange(session: &mut TlsSession, bytes: &str, expected: &str) {
    session.write_all(bytes.as_bytes()).unwrap();
    let mut received = vec![0; expected.len()];
    session.read_exact(&mut received).unwrap();
    assert_eq!(String::from_utf8(received).unwrap(), expected);
}

/// Two listeners at the same address: one with the certificates of two sites, one with its own.
fn start(site: Site, first: &Origin, second: &Origin, more: &str) -> Server {
    let site_with = |name: &str| {
        let tls = tls_of(name);
        format!(
            "[[sites]]\nhosts = [\"{name}.test\"]\n{tls}\
             [[sites.routes]]\nfiles = {{ root = \"public\" }}\n"
        )
    };
    let (own, a, b) = (tls_of("own"), site_with("a"), site_with("b"));
    let (first, second) = (first.address(), second.address());
    let server = site
        .config(&format!(
            "[server]\nthreads = 1\nlisten = [\"unix:plain.sock\"]\nadmin = \"127.0.0.1:0\"\n\
             [upstreams.one]\nservers = [\"{first}\"]\n[upstreams.two]\nservers = [\"{second}\"]\n\
             [[tcp]]\nlisten = \"127.0.0.1:0\"\nupstream = \"one\"\ntls = true\nalpn = [\"mqtt\"]\n\
             [[tcp]]\nlisten = \"127.0.0.1:0\"\nupstream = \"two\"\n{own}{more}{a}{b}"
        ))
        .serve(&[]);
    eventually(PATIENCE, "both are announced", || server.ports().len() == 2);
    server
}

fn site_with_certificates(authority: &TestAuthority) -> Site {
    let site = Site::new().file("public/index.html", "home");
    for name in ["a", "b", "own"] {
        let host = format!("{name}.test");
        write_certificate(&site, name, &authority.issue(&[&host]));
    }
    site
}

#[test]
fn each_listener_has_its_certificates_and_its_upstream() {
    let authority = TestAuthority::new("Services");
    let (one, two) = (greeter("one"), greeter("two"));
    let server = start(site_with_certificates(&authority), &one, &two, "");
    let (client, ports) = (authority.client(), server.ports());
    assert!(
        server.log().contains("listening tls://127.0.0.1:"),
        "{}",
        server.log()
    );
    // Without TLS there is no answer in any protocol.
    let mut plain = RawClient::connect(ports[0]);
    plain.send("PING\r\n");
    plain.expect_closed();
    server.wait_log("not TLS: its first byte is a letter");
    for (port, host, greeting) in [
        (ports[0], "a.test", "one"),
        (ports[0], "b.test", "one"),
        (ports[1], "own.test", "two"),
    ] {
        let mut session = client.try_connect(port, host).unwrap();
        exchange(&mut session, "*1\r\n", &format!("{greeting}*1\r\n"));
        // The end is announced, in both directions.
        session.conn.send_close_notify();
        session.flush().unwrap();
        session.read_exact(&mut [0; 1]).unwrap_err();
        let mut rest = Vec::new();
        assert_eq!(session.read_to_end(&mut rest).unwrap(), 0, "{host}");
    }
    // Protocols are agreed on where the listener has some.
    let offers = |protocol: &str| client.offering(&[protocol]);
    let session = offers("mqtt").try_connect(ports[0], "a.test").unwrap();
    assert_eq!(session.conn.alpn_protocol(), Some(&b"mqtt"[..]));
    let error = offers("http/1.1").refusal(ports[0], "a.test");
    assert!(error.contains("NoApplicationProtocol"), "{error}");
    let session = offers("http/1.1").try_connect(ports[1], "own.test");
    assert_eq!(session.unwrap().conn.alpn_protocol(), None);
}

#[test]
fn changed_certificates_are_for_new_connections() {
    let authority = TestAuthority::new("Services");
    let (one, two) = (greeter("one"), greeter("two"));
    let server = start(site_with_certificates(&authority), &one, &two, "");
    let (client, port) = (authority.client(), server.ports()[1]);
    let mut kept = client.try_connect(port, "own.test").unwrap();
    exchange(&mut kept, "", "two");
    let shown = || client.shown_certificate(port, "own.test");
    let second = authority.issue(&["own.test"]);
    write_certificate(server.site(), "own", &second);
    eventually(PATIENCE, "the new certificate is shown", || {
        shown() == second.der()
    });
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let run = |verb: &str| texts(&server.site().run(&[verb, "--admin", &admin]));
    let third = authority.issue(&["own.test"]);
    write_certificate(server.site(), "own", &third);
    let (stdout, stderr) = run("reload");
    assert!(stdout.contains("reloaded"), "{stdout}{stderr}");
    assert_eq!(shown(), third.der());
    exchange(&mut kept, "still", "still");
    let (table, _) = run("certificates");
    let mut rows = table.lines();
    let row = rows.find(|row| row.starts_with("tls://127.0.0.1:"));
    assert!(row.is_some_and(|row| row.contains("own.pem")), "{table}");
}

#[test]
fn a_listener_asks_for_certificates_of_clients_by_itself() {
    let (authority, clients) = (
        TestAuthority::new("Services"),
        TestAuthority::new("Clients"),
    );
    let (one, two) = (greeter("one"), greeter("two"));
    let site = site_with_certificates(&authority);
    site.write("clients.pem", clients.pem());
    let more = "client_certificates = { ca = \"clients.pem\" }\n";
    let server = start(site, &one, &two, more);
    let ports = server.ports();
    let error = authority.client().refusal(ports[1], "own.test");
    assert!(error.contains("CertificateRequired"), "{error}");
    let own = clients.issue_client("anna", 7);
    let mut session = authority
        .client_with(Some(&own))
        .try_connect(ports[1], "own.test")
        .unwrap();
    exchange(&mut session, "!", "two!");
    // The other asks for none.
    let mut session = authority.client().try_connect(ports[0], "a.test").unwrap();
    exchange(&mut session, "!", "one!");
}
