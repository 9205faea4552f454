//! Which certificate a client gets, how it is replaced, and what is said about it.

use std::io::Write;

use rcgen::date_time_ymd;

use super::{HttpsServer, LISTEN, file_site, file_toml, tls_of, write_certificate};
use crate::support::{PATIENCE, Site, TestAuthority, eventually, is_resumed, texts};

/// Sites with the certificates `a`, `b` and `wild`, each with a file that names it.
fn three_sites() -> String {
    let site = |hosts: &str, name: &str| {
        let tls = tls_of(name);
        format!(
            "[[sites]]\nhosts = [{hosts}]\n{tls}\
             [[sites.routes]]\nfiles = {{ root = \"{name}\" }}\n"
        )
    };
    [
        site("\"a.test\"", "a"),
        site("\"b.test\", \"www.b.test\"", "b"),
        site("\"*.c.test\"", "wild"),
    ]
    .concat()
}

fn write_three(site: &Site, authority: &TestAuthority) {
    for (name, hosts) in [
        ("a", &["a.test"][..]),
        ("b", &["b.test", "www.b.test"]),
        ("wild", &["*.c.test"]),
    ] {
        site.write(&format!("{name}/index.html"), name);
        write_certificate(site, name, &authority.issue(hosts));
    }
}

#[test]
fn each_name_gets_the_certificate_of_its_site() {
    let authority = TestAuthority::new("Sites");
    let site = Site::new();
    write_three(&site, &authority);
    for unknown in ["default", "refuse"] {
        let tls = format!("[tls]\nunknown_names = \"{unknown}\"\n");
        let site = site
            .clone()
            .config(&format!("{LISTEN}{tls}{}", three_sites()));
        let server = site.serve(&[]);
        let (port, client) = (server.port(), authority.client());
        for (host, name) in [
            ("a.test", "a"),
            ("b.test", "b"),
            ("www.b.test", "b"),
            ("x.c.test", "wild"),
        ] {
            assert_eq!(client.get(port, host, "/").text(), name, "{host}");
        }
        let error = client.refusal(port, "unknown.test");
        match unknown {
            // The client gets a certificate, and finds that it is for another name.
            "default" => assert!(error.contains("not valid for name"), "{error}"),
            _ => assert!(error.contains("UnrecognisedName"), "{error}"),
        }
        // A connection serves the hosts of its certificate, and no others.
        let mut client = client.connect(port, "b.test");
        for (host, status) in [("www.b.test", 200), ("a.test", 421), ("b.test", 200)] {
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            client.expect_status(status);
        }
    }
}

/// Changed files are looked for every five seconds: one test has all that happens to them.
#[test]
fn changed_files_are_picked_up_and_a_broken_pair_keeps_the_old_one() {
    let (site, toml) = file_site();
    let https = HttpsServer::start(site, &toml);
    let port = https.port();
    let shown = || https.client.shown_certificate(port, "a.test");
    let first = shown();
    // Held over all changes.
    let mut kept = https.client.connect(port, "a.test");
    let mut ask_kept = || {
        kept.send("GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n");
        kept.expect_status(200);
    };
    let second = https.authority.issue(&["a.test"]);
    write_certificate(https.server.site(), "a", &second);
    eventually(PATIENCE, "the new certificate is shown", || {
        shown() == second.der()
    });
    assert_ne!(first, second.der());
    ask_kept();
    https
        .server
        .wait_log("certificate replaced (hosts=\"a.test\")");
    let other = https.authority.issue(&["a.test"]);
    https.server.site().write("a.pem", &other.chain);
    https.server.wait_log("the old certificate stays in use");
    let log = https.server.log();
    assert!(log.contains("a.key: the key does not belong"), "{log}");
    assert_eq!(shown(), second.der());
    let status = https.server.admin_json();
    let certificate = &status["certificates"]["list"][0];
    let problem = certificate["problem"].as_str().unwrap();
    assert!(problem.contains("the key does not belong"), "{problem}");
    assert_eq!(certificate["state"], "warning");
    ask_kept();
}

#[test]
fn a_reload_takes_changed_certificates_at_once_or_not_at_all() {
    let (site, toml) = file_site();
    let https = HttpsServer::start(site, &toml);
    let port = https.port();
    let shown = || https.client.shown_certificate(port, "a.test");
    let mut kept = https.client.connect(port, "a.test");
    let second = https.authority.issue(&["a.test"]);
    write_certificate(https.server.site(), "a", &second);
    let answer = https.server.admin("POST", "/reload");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(shown(), second.der());
    https.server.site().write("a.pem", "none");
    let answer = https.server.admin("POST", "/reload");
    assert_ne!(answer.status, 200);
    assert!(
        answer.text().contains("a.pem: has no certificate"),
        "{}",
        answer.text()
    );
    assert_eq!(shown(), second.der());
    for _ in 0..2 {
        kept.send("GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n");
        kept.expect_status(200);
    }
}

#[test]
fn check_names_what_is_wrong_with_certificates() {
    let authority = TestAuthority::new("Sites");
    let valid = authority.issue(&["a.test"]);
    let expired = authority.issue_with(&["a.test"], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    for (row, chain, key, expected) in [
        (
            "expired",
            &expired.chain,
            &expired.key,
            "expired on 2021-01-01",
        ),
        (
            "mismatch",
            &valid.chain,
            &expired.key,
            "the key does not belong to",
        ),
        (
            "wrong host",
            &valid.chain,
            &valid.key,
            "the certificate is not for b.test",
        ),
        (
            "no key",
            &valid.chain,
            &String::new(),
            "a.key: has no private key",
        ),
    ] {
        let host = match row {
            "wrong host" => "b.test",
            _ => "a.test",
        };
        let toml = file_toml("").replace("a.test", host);
        let site = Site::new()
            .file("public/a.txt", "a")
            .file("a.pem", chain)
            .file("a.key", key)
            .config(&format!("{LISTEN}{toml}"));
        let output = site.run(&["check"]);
        let (_, error) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{row}: {error}");
        assert!(error.contains(expected), "{row}: {error}");
    }
    let site = Site::new()
        .file("public/a.txt", "a")
        .config(&format!("{LISTEN}{}", file_toml("")));
    let (_, error) = texts(&site.run(&["check"]));
    assert!(error.contains("a.pem: cannot be read"), "{error}");
}

#[test]
fn certificates_are_in_status_metrics_and_a_table() {
    let (site, toml) = file_site();
    let authority = TestAuthority::new("Sites");
    let old = authority.issue_with(&["old.test"], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    write_certificate(&site, "old", &old);
    let tls = tls_of("old");
    let old_site = format!(
        "[[sites]]\nhosts = [\"old.test\"]\n{tls}\
         [[sites.routes]]\nfiles = {{ root = \"public\" }}\n"
    );
    let https = HttpsServer::start(site, &format!("{toml}{old_site}"));
    let server = &https.server;
    https.client.get(https.port(), "a.test", "/a.txt");
    let status = server.admin_json();
    let list = &status["certificates"]["list"];
    assert_eq!(list[0]["hosts"][0], "old.test");
    assert_eq!(list[0]["state"], "invalid");
    assert_eq!(list[1]["hosts"][0], "a.test");
    assert_eq!(list[1]["issuer"], "CN=Sites");
    assert_eq!(list[1]["source"], "file");
    assert_eq!(status["traffic"]["tls_handshakes"], 1);
    let expiry = "penstock_certificate_expiry_seconds{host=\"old.test\",source=\"file\"}";
    assert_eq!(server.metric(expiry), Some(1_609_459_200.0));
    let invalid = "penstock_certificates{state=\"invalid\"}";
    assert_eq!(server.metric(invalid), Some(1.0));
    assert_eq!(server.metric("penstock_tls_handshakes_total"), Some(1.0));
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let (table, error) = texts(&server.site().run(&["certificates", "--admin", &admin]));
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[1].starts_with("old.test  invalid  2021-01-01"),
        "{table}{error}"
    );
    assert!(lines[2].contains("expired "), "{table}");
    let (json, _) = texts(
        &server
            .site()
            .run(&["certificates", "--json", "--admin", &admin]),
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["total"], 2);
}

#[test]
fn an_upgrade_keeps_tickets_and_loses_no_request() {
    let (site, toml) = file_site();
    let https = HttpsServer::start(site, &format!("keep_alive_drain = \"5s\"\n{toml}"));
    let port = https.port();
    let ask = |host: &str| https.client.get(port, host, "/a.txt").status;
    assert_eq!(ask("a.test"), 200);
    let resumed = || is_resumed(&https.client.try_connect(port, "a.test").unwrap());
    assert!(resumed());
    assert_eq!(ask("a.test"), 200);
    let mut kept = https.client.connect(port, "a.test");
    kept.send("GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n");
    kept.expect_status(200);
    let before = https.server.admin_json()["pid"].clone();
    let admin = format!("127.0.0.1:{}", https.server.admin_port());
    let site = https.server.site().clone();
    let upgrade = std::thread::spawn(move || site.run(&["upgrade", "--admin", &admin]));
    let mut answered = 0;
    while !upgrade.is_finished() {
        assert_eq!(ask("a.test"), 200);
        answered += 1;
    }
    let (_, error) = texts(&upgrade.join().unwrap());
    let now = https.server.admin_json()["pid"].clone();
    assert_ne!(now, before, "{error}");
    assert!(answered > 0);
    assert!(resumed(), "the ticket of the old process");
    // The kept connection gets its response, the last.
    kept.send("GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let last = kept.expect_status(200);
    assert_eq!(last.header("connection"), Some("close"));
    let successor = i32::try_from(now.as_i64().unwrap()).unwrap();
    crate::support::kill(successor, rustix::process::Signal::TERM);
    eventually(PATIENCE, "the successor ends", || {
        !crate::support::is_alive(successor)
    });
}

#[test]
fn a_drain_closes_with_close_notify() {
    let (site, toml) = file_site();
    let https = HttpsServer::start(site, &toml);
    let mut session = https.client.try_connect(https.port(), "a.test").unwrap();
    let request = "GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n";
    session.write_all(request.as_bytes()).unwrap();
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while !received.ends_with(b"a file") {
        let count = std::io::Read::read(&mut session, &mut buffer).unwrap();
        assert!(count > 0, "closed early");
        received.extend_from_slice(&buffer[..count]);
    }
    https.server.signal(rustix::process::Signal::TERM);
    // rustls reports an end without close_notify as an error.
    assert_eq!(std::io::Read::read(&mut session, &mut buffer).unwrap(), 0);
    https.server.wait_exit(PATIENCE);
}

/// The authority is in a folder of the user's: nothing is there to remove from a store.
#[test]
fn trust_without_an_authority_removes_nothing() {
    let site = Site::new();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(["trust", "--remove"])
        .env("STATE_DIRECTORY", site.dir())
        .env_remove("SUDO_USER")
        .output()
        .unwrap();
    let (text, error) = texts(&output);
    assert!(output.status.success(), "{error}");
    assert!(text.contains("nothing to remove"), "{text}");
    assert!(!site.dir().join("local-authority").exists());
}
