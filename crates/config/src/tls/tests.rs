//! Keys of TLS: values, defaults, and the checks between tables.

use super::*;
use crate::testing::{TestDir, parse_in_dir, parse_valid};

#[test]
fn reads_certificates_and_defaults() {
    let text = r#"
[server]
listen = [":80", { address = ":443", tls = true }]
[upstreams.a]
servers = ["127.0.0.1:1"]
[[sites]]
hosts = ["a.example"]
tls = "auto"
hsts = "1y"
routes = [{ path = "/*", upstream = "a" }]
[[sites]]
hosts = ["b.example"]
tls = { certificate = "/etc/b.pem", key = "/etc/b.key" }
hsts = { max_age = "2y", include_subdomains = true }
client_certificates = { ca = "/etc/ca.pem", mode = "request" }
redirect_to_https = false
routes = [{ path = "/*", upstream = "a" }]
"#;
    let config = parse_valid(&TestDir::with_files(&[]), text);
    let with_tls: Vec<bool> = config.server.listen.iter().map(|it| it.has_tls).collect();
    assert_eq!(with_tls, [false, true]);
    let [automatic, from_files] = &config.sites[..] else {
        panic!("two sites");
    };
    assert_eq!(automatic.tls, SiteTls::Auto);
    assert!(
        automatic
            .hsts
            .as_ref()
            .is_some_and(|it| it.max_age.as_secs() == 365 * 86400)
    );
    let files = CertificateFiles::new("/etc/b.pem".into(), "/etc/b.key".into());
    assert_eq!(from_files.tls, SiteTls::Files(files));
    assert!(
        from_files
            .hsts
            .as_ref()
            .is_some_and(|it| it.include_subdomains && it.max_age.as_secs() == 63_072_000)
    );
    assert_eq!(from_files.redirect_to_https, Some(false));
    assert_eq!(config.acme.directory, ["letsencrypt"]);
}

#[test]
fn a_port_that_becomes_ipv4_keeps_its_tls() {
    let text = r#"
[server]
listen = [{ address = ":443", tls = true }, { address = "[::]:443", tls = true }]
[upstreams.a]
servers = ["127.0.0.1:1"]
[[sites]]
tls = "local"
routes = [{ path = "/*", upstream = "a" }]
"#;
    let server = parse_valid(&TestDir::with_files(&[]), text).server;
    assert!(server.listen.iter().all(|it| it.has_tls));
}

#[test]
fn names_what_does_not_fit() {
    let with = |server: &str, site: &str, rest: &str| {
        format!(
            "[server]\nlisten = [{server}]\n[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n{rest}\n\
             [[sites]]\n{site}\nroutes = [{{ path = \"/*\", upstream = \"a\" }}]\n"
        )
    };
    let folder = TestDir::with_files(&[]);
    let tls = "{ address = \":443\", tls = true }";
    for (text, expected) in [
        (with(tls, "", ""), "no site has a certificate"),
        (
            with("\":80\"", "tls = \"local\"", ""),
            "no listener has TLS",
        ),
        (with(tls, "tls = \"auto\"", ""), "name its `hosts`"),
        (
            with(tls, "hosts = [\"*.a.example\"]\ntls = \"auto\"", ""),
            "needs the challenge \"dns-01\" or",
        ),
        (
            with(tls, "tls = \"on\"", ""),
            "expected \"auto\", \"local\" or \"off\"",
        ),
        (with(tls, "tls = { key = \"k.pem\" }", ""), "`certificate`"),
        (
            with(tls, "tls = \"local\"", "[acme]\nstorage = \"redis\""),
            "needs `redis` in [server]",
        ),
        (
            with(tls, "tls = \"local\"", "[acme]\nchallenges = [\"dns-01\"]"),
            "needs a `dns_hook`",
        ),
        (
            with(tls, "tls = \"local\"", "[acme]\ndirectory = \"lets\""),
            "expected \"letsencrypt\"",
        ),
        (
            with(tls, "tls = \"local\"\nhsts = \"11y\"", ""),
            "`hsts` cannot be \"11y\": expected at most 10y",
        ),
        (
            with("\":80\"", "hsts = \"1d\"", ""),
            "only for a site with `tls`",
        ),
    ] {
        let errors = parse_in_dir(&folder, &text).unwrap_err().to_string();
        assert!(errors.contains(expected), "{text}: {errors}");
    }
}
