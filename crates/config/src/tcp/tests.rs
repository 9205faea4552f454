//! TCP listeners, and what a file without sites means.

use crate::model::{CertificateFiles, Server, TcpFrontend, TcpTls};
use crate::testing::{TestDir, check_error_table, parse_valid};
use crate::{Config, ListenAddr};

const UPSTREAM: &str = "[upstreams.b]\nservers = [\"127.0.0.1:80\"]\n";

fn read(lines: &str) -> Config {
    parse_valid(&TestDir::with_sample_site(), &format!("{UPSTREAM}{lines}"))
}

#[test]
fn a_file_with_nothing_but_streams_is_complete() {
    let config = read(
        "[[tcp]]\nlisten = \"127.0.0.1:8080\"\nupstream = \"b\"\n[[tcp]]\nlisten = \":0\"\nupstream = \"b\"\nproxy_protocol = true\n",
    );
    let stream = |listen: &str, proxy_protocol| TcpFrontend {
        listen: listen.parse().unwrap(),
        upstream: Some("b".to_owned()),
        sni: Vec::new(),
        proxy_protocol,
        tls: TcpTls::Off,
        alpn: Vec::new(),
        client_certificates: None,
    };
    let expected = [stream("127.0.0.1:8080", false), stream(":0", true)];
    assert_eq!(config.tcp, expected);
    assert_eq!(config.sites, []);
    assert_eq!(config.server.listen, []);
    assert_eq!(config.server.admin, Server::default().admin);
}

#[test]
fn listens_for_sites_where_the_file_says_so() {
    let config = read(
        "[[tcp]]\nlisten = \":9000\"\nupstream = \"b\"\n[server]\nlisten = [\":0\"]\nadmin = \"127.0.0.1:8080\"\n",
    );
    assert_eq!(
        config.server.listen,
        [":0".parse::<ListenAddr>().unwrap().into()]
    );
}

#[test]
fn one_upstream_and_nothing_else_answers_every_path() {
    let config = read("");
    assert_eq!(config.server, Server::default());
    let routes = &config.sites[0].routes;
    assert_eq!(routes[0].upstream.as_deref(), Some("b"));
    assert_eq!((config.sites.len(), routes.len()), (1, 1));
    // One that no stream uses is the sites', beside one that a stream does.
    let config = read(
        "[upstreams.web]\nservers = [\"a:80\"]\n[[tcp]]\nlisten = \":9000\"\nupstream = \"b\"\n",
    );
    let route = &config.sites[0].routes[0];
    assert_eq!(route.upstream.as_deref(), Some("web"));
    assert_eq!(config.server.listen, Server::default().listen);
}

#[test]
fn reports_what_no_site_chooses_between() {
    let two = format!("{UPSTREAM}[upstreams.c]\nservers = [\"a:80\"]\n");
    check_error_table(&[
        (
            "two upstreams",
            &two,
            &[
                "penstock.toml:1:2: 2 upstreams (b, c) and no [[sites]]: say which one answers which path",
            ],
        ),
        (
            "an application and an upstream",
            &format!("[apps.a]\n{UPSTREAM}"),
            &[
                "penstock.toml:1:2: 2 applications and upstreams (a, b) and no [[sites]]: say which one answers which path",
            ],
        ),
        (
            "no stream",
            "tcp = []\n",
            &[
                "penstock.toml:1:1: nothing to serve: there is no [apps.NAME], [upstreams.NAME], [[sites]] or [[tcp]] table",
            ],
        ),
    ]);
}

#[test]
fn reports_streams_that_cannot_work() {
    let at = |listen: &str| format!("{UPSTREAM}[[tcp]]\nlisten = \"{listen}\"\nupstream = \"b\"\n");
    let site = "[[sites]]\n[[sites.routes]]\nupstream = \"b\"\n";
    const ADDRESS: &str = ListenAddr::EXPECTED;
    check_error_table(&[
        (
            "nothing said",
            &format!("{UPSTREAM}[[tcp]]\n"),
            &[
                &format!("penstock.toml:3:1: `listen` is missing in [[tcp]]: expected {ADDRESS}"),
                "penstock.toml:3:1: `upstream` is missing in [[tcp]]: expected the name of an [upstreams.NAME] table",
            ],
        ),
        (
            "address and name",
            &format!("{UPSTREAM}[[tcp]]\nlisten = \"x\"\nupstream = \"c\"\n"),
            &[
                &format!("penstock.toml:4:10: `listen` cannot be \"x\": expected {ADDRESS}"),
                "penstock.toml:5:12: there is no upstream `c`; did you mean `b`?",
            ],
        ),
        (
            "two at one address",
            &format!(
                "{}[[tcp]]\nlisten = \"127.0.0.1:9000\"\nupstream = \"b\"\n",
                at(":9000")
            ),
            &[
                "penstock.toml:7:10: http://127.0.0.1:9000 is already taken by http://*:9000 on line 4",
            ],
        ),
        (
            "the server's",
            &format!(
                "{}[server]\nlisten = [\"127.0.0.1:9000\"]\n{site}",
                at(":9000")
            ),
            &[
                "penstock.toml:4:10: http://*:9000 is already taken by http://127.0.0.1:9000 on line 7",
            ],
        ),
        (
            "the server's by default",
            &format!("{}{site}", at(":8080")),
            &["penstock.toml:4:10: http://*:8080 is already taken by http://127.0.0.1:8080"],
        ),
        (
            "the admin interface's",
            &at(":8090"),
            &[
                "penstock.toml:4:10: admin (http://127.0.0.1:8090) and the listener http://*:8090 are the same address: move one, or set admin = \"off\"",
            ],
        ),
    ]);
}

#[test]
fn names_choose_upstreams() {
    let config = read(
        "[[tcp]]\nlisten = \":443\"\nsni = { \"A.example\" = \"b\", \"*.c.example\" = \"b\" }\n",
    );
    let names: Vec<_> = config.tcp[0]
        .sni
        .iter()
        .map(|(pattern, upstream)| format!("{pattern} {upstream}"))
        .collect();
    assert_eq!(names, ["*.c.example b", "a.example b"]);
    assert_eq!(config.tcp[0].upstream, None);
    assert_eq!(config.sites, []);
}

#[test]
fn reports_names_that_choose_nothing() {
    let sni = |table: &str| format!("{UPSTREAM}[[tcp]]\nlisten = \":9000\"\nsni = {table}\n");
    let expected = |name: &str| {
        format!(
            "penstock.toml:5:9: `sni` cannot be {name:?}: expected a host name such as \"a.example\" or \"*.b.example\""
        )
    };
    check_error_table(&[
        (
            "an address",
            &sni("{ \"127.0.0.1\" = \"b\" }"),
            &[&expected("127.0.0.1")],
        ),
        (
            "an address in brackets",
            &sni("{ \"[::1]\" = \"b\" }"),
            &[&expected("[::1]")],
        ),
        (
            "no upstream",
            &sni("{ a = \"c\" }"),
            &["penstock.toml:5:9: there is no upstream `c`; did you mean `b`?"],
        ),
        (
            "twice",
            &sni("{ a = \"b\", A = \"b\" }"),
            &["penstock.toml:5:9: `sni` names a twice"],
        ),
        (
            "TLS in TLS",
            "[upstreams.b]\nservers = [\"127.0.0.1:80\"]\ntls = true\n[[tcp]]\nlisten = \":9000\"\nsni = { a = \"b\" }\n",
            &[
                "penstock.toml:6:7: upstream `b` has `tls`, and with `sni` the clients' own TLS is passed on: remove one of them",
            ],
        ),
    ]);
}

#[test]
fn tls_ends_at_a_listener_with_certificates_of_sites_or_its_own() {
    let site = "[server]\nlisten = [\":0\"]\n[[sites]]\nhosts = [\"a.example\"]\ntls = \"local\"\n\
                routes = [{ path = \"/*\", upstream = \"b\" }]\n";
    let config = read(&format!(
        "[[tcp]]\nlisten = \":9000\"\nupstream = \"b\"\ntls = true\nalpn = [\"mqtt\"]\n{site}"
    ));
    assert_eq!(config.tcp[0].tls, TcpTls::Sites);
    assert_eq!(config.tcp[0].alpn, ["mqtt"]);
    let config = read(
        "[[tcp]]\nlisten = \":9000\"\nsni = { a = \"b\" }\n\
         tls = { certificate = \"/etc/c.pem\" }\nclient_certificates = { ca = \"/etc/ca.pem\" }\n",
    );
    let files = CertificateFiles::new("/etc/c.pem".into(), "/etc/c.pem".into());
    assert_eq!(config.tcp[0].tls, TcpTls::Files(files));
    assert!(config.tcp[0].client_certificates.is_some());
}

#[test]
fn reports_tls_that_cannot_work() {
    let with =
        |keys: &str| format!("{UPSTREAM}[[tcp]]\nlisten = \":9000\"\nupstream = \"b\"\n{keys}\n");
    check_error_table(&[
        (
            "no certificate",
            &with("tls = true"),
            &[
                "penstock.toml:3:1: a listener has `tls = true`, and no site has a certificate: set `tls` of a site to \"auto\", \"local\" or a table with `certificate` and `key`",
            ],
        ),
        (
            "a protocol without TLS",
            &with("alpn = [\"mqtt\"]"),
            &["penstock.toml:6:8: `alpn` is only for a listener with `tls`"],
        ),
        (
            "clients' certificates without TLS",
            &with("tls = false\nclient_certificates = { ca = \"ca.pem\" }"),
            &["penstock.toml:7:23: `client_certificates` is only for a listener with `tls`"],
        ),
        (
            "the protocol of challenges",
            &with("tls = { certificate = \"c.pem\" }\nalpn = [\"acme-tls/1\"]"),
            &[
                "penstock.toml:7:9: `alpn` cannot be \"acme-tls/1\": expected a protocol such as \"postgresql\" or \"mqtt\"",
            ],
        ),
    ]);
}
