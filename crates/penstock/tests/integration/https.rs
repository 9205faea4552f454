//! HTTPS by the real binary: certificates from files, sites by name, redirects, clients with
//! certificates, and all that an application does over it.
//!
//! Each server has a listener without TLS beside the one with it. Certificates are made for each
//! test.

mod applications;
mod certificates;
mod changes;
mod client_certificates;
mod connections;
mod listeners;
mod tcp_listeners;

use crate::support::{
    PATIENCE, RawClient, Server, Site, TestAuthority, TestCertificate, TlsClient, eventually, get,
};

/// Listeners without and with TLS.
const LISTEN: &str = "[server]\nthreads = 1\n\
    listen = [\"unix:plain.sock\", { address = \"127.0.0.1:0\", tls = true }]\n";

/// A site's `tls`, of the files that [`write_certificate`] writes.
fn tls_of(name: &str) -> String {
    format!("tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\" }}\n")
}

/// Writes a pair, the key first: a server that looks in between finds a pair that does not fit.
fn write_certificate(site: &Site, name: &str, certificate: &TestCertificate) {
    site.write(&format!("{name}.key"), &certificate.key);
    site.write(&format!("{name}.pem"), &certificate.chain);
}

/// A running server with the certificate of `a.test`, and what its clients trust.
struct HttpsServer {
    server: Server,
    authority: TestAuthority,
    client: TlsClient,
}

impl HttpsServer {
    /// `site` with that configuration behind the listeners and `a.test`'s certificate `a`.
    fn start(site: Site, toml: &str) -> Self {
        let authority = TestAuthority::new("Sites");
        write_certificate(&site, "a", &authority.issue(&["a.test"]));
        let server = site.config(&format!("{LISTEN}{toml}")).serve(&[]);
        let client = authority.client();
        Self {
            server,
            authority,
            client,
        }
    }

    /// The port of the listener with TLS.
    fn port(&self) -> u16 {
        self.server.port()
    }

    /// A connection to the listener without TLS.
    fn connect_plain(&self) -> RawClient {
        RawClient::connect_unix(&self.server.site().dir().join("plain.sock"))
    }
}

/// The files of `public` for `a.test`.
fn file_site() -> (Site, String) {
    let site = Site::new()
        .file("public/index.html", "home")
        .file("public/a.txt", "a file");
    (site, file_toml(""))
}

fn file_toml(more: &str) -> String {
    let tls = tls_of("a");
    format!(
        "[[sites]]\nhosts = [\"a.test\"]\n{tls}{more}\n\
         [[sites.routes]]\nfiles = {{ root = \"public\" }}\n"
    )
}

#[test]
fn plain_requests_are_redirected_and_hsts_is_for_tls_alone() {
    let (site, _) = file_site();
    let https = HttpsServer::start(site, &file_toml("hsts = \"1h\""));
    let answer = https.client.get(https.port(), "a.test", "/a.txt");
    assert_eq!((answer.status, answer.text().as_str()), (200, "a file"));
    let hsts = "strict-transport-security";
    assert_eq!(answer.header(hsts), Some("max-age=3600"));
    let mut plain = https.connect_plain();
    plain.send("GET /a.txt?b=c HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let answer = plain.expect_status(308);
    let expected = format!("https://a.test:{}/a.txt?b=c", https.port());
    assert_eq!(answer.header("location"), Some(expected.as_str()));
    assert_eq!(answer.header(hsts), None);
}

#[test]
fn a_site_may_answer_without_tls_too() {
    let (site, _) = file_site();
    let https = HttpsServer::start(site, &file_toml("redirect_to_https = false"));
    let mut plain = https.connect_plain();
    plain.send("GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(plain.expect_status(200).text(), "a file");
    let answer = https.client.get(https.port(), "a.test", "/a.txt");
    assert_eq!(answer.status, 200);
}

#[test]
fn a_plain_request_on_the_port_of_tls_is_told_so() {
    let (site, toml) = file_site();
    let https = HttpsServer::start(site, &toml);
    let answer = get(https.port(), "/");
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("speaks HTTPS"), "{}", answer.text());
    https.server.wait_log("a plain HTTP request on a TLS port");
}

#[test]
fn the_access_log_has_the_session() {
    let (site, toml) = file_site();
    let log = "access_log = { path = \"access.log\", format = \"json\" }\n";
    let https = HttpsServer::start(site, &format!("{log}{toml}"));
    https.client.get(https.port(), "a.test", "/a.txt");
    let line = eventually(PATIENCE, "a line is written", || {
        let text = https.server.site().read("access.log");
        text.lines().next().map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["tls_version"], "TLSv1.3");
    assert_eq!(line["server_name"], "a.test");
    let cipher = line["tls_cipher"].as_str().unwrap();
    assert!(cipher.starts_with("AES_"), "{cipher}");
}
