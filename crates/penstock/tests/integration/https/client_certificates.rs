//! Clients with certificates: asked for, required and revoked, and what applications and servers
//! behind learn of them.

use super::{HttpsServer, tls_of, write_certificate};
use crate::rack::rack_site;
use crate::support::{
    Origin, RawClient, Server, Site, TestAuthority, TestCertificate, TlsClient, page,
};

/// Answers with the variables of a request, one a line.
const WSGI: &str = r#"
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    pairs = (f"{key}={value}" for key, value in environ.items() if isinstance(value, str))
    return ["\n".join(pairs).encode("latin-1")]
"#;

const ASGI: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    tls = scope["extensions"].get("tls")
    headers = [name.decode() for name, value in scope["headers"]]
    body = f"scheme={scope['scheme']}\n{tls}\n{headers}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
"#;

const RACK: &str = r##"
run(lambda do |env|
  pairs = env.select { |_, value| value.is_a?(String) }.map { |key, value| "#{key}=#{value}" }
  [200, { "content-type" => "text/plain" }, [pairs.join("\n")]]
end)
"##;

/// A request with fields that only the server may set.
const FORGED: &str = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\
    X-Client-Cert: forged\r\nX-Client-Cert-Verify: SUCCESS\r\nX_Client_Cert: forged\r\n\
    Client-Cert: :Zm9yZ2Vk:\r\n\r\n";

/// A server that asks for certificates of `clients`.
struct MutualTls {
    https: HttpsServer,
    clients: TestAuthority,
    anna: TestCertificate,
}

impl MutualTls {
    /// `mode` and a list of revoked certificates, for the site of `routes`.
    fn start(site: Site, mode: &str, routes: &str) -> Self {
        let clients = TestAuthority::new("Clients");
        let anna = clients.issue_client("anna", 0x0a);
        site.write("clients.pem", clients.pem());
        site.write("revoked.pem", clients.revoke(&[0x0b]));
        let tls = tls_of("a");
        let toml = format!(
            "[[sites]]\nhosts = [\"a.test\"]\n{tls}client_certificates = {{ mode = \"{mode}\", \
             ca = \"clients.pem\", crl = \"revoked.pem\" }}\n{routes}"
        );
        let https = HttpsServer::start(site, &toml);
        Self {
            https,
            clients,
            anna,
        }
    }

    /// A client with a certificate.
    fn client_of(&self, own: &TestCertificate) -> TlsClient {
        self.https.authority.client_with(Some(own))
    }

    fn ask(&self, client: &TlsClient, request: &str) -> String {
        let mut client: RawClient = client.connect(self.https.port(), "a.test");
        client.send(request);
        client.expect_status(200).text()
    }

    fn server(&self) -> &Server {
        &self.https.server
    }
}

const APP_ROUTE: &str = "[[sites.routes]]\napp = \"app\"\n";

fn app_table(entry: &str) -> String {
    format!("{APP_ROUTE}[apps.app]\nentry = \"{entry}\"\nprocesses = 1\n")
}

/// The lines about the session in an environment, in order.
fn lines_of_tls(environ: &str) -> Vec<&str> {
    let is_about = |line: &&str| {
        let name = line.split('=').next().unwrap_or_default();
        name.starts_with("SSL_") || name.starts_with("HTTPS") || name.contains("url_scheme")
    };
    let mut lines: Vec<&str> = environ.lines().filter(is_about).collect();
    lines.sort_unstable();
    lines
}

fn expect_environment(environ: &str, scheme_key: &str, anna: &TestCertificate) {
    let lines = lines_of_tls(environ);
    let expected = [
        "HTTPS=on".to_owned(),
        format!("{scheme_key}=https"),
        "SSL_PROTOCOL=TLSv1.3".to_owned(),
        "SSL_TLS_SNI=a.test".to_owned(),
        "SSL_CLIENT_VERIFY=SUCCESS".to_owned(),
        "SSL_CLIENT_S_DN=CN=anna".to_owned(),
        "SSL_CLIENT_I_DN=CN=Clients".to_owned(),
        "SSL_CLIENT_SERIAL=0A".to_owned(),
    ];
    for line in &expected {
        assert!(lines.contains(&line.as_str()), "{line} in {lines:#?}");
    }
    let value = |name: &str| {
        let found = lines.iter().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{name} in {lines:#?}"))
    };
    assert_eq!(value("SSL_CLIENT_FINGERPRINT=").len(), 64);
    let pem = value("SSL_CLIENT_CERT=")
        .replace("%0A", "\n")
        .replace("%20", " ");
    let pem = pem
        .replace("%2B", "+")
        .replace("%2F", "/")
        .replace("%3D", "=");
    assert_eq!(pem, anna.chain.replace("\r\n", "\n"));
    assert!(
        !environ.contains("forged") && !environ.contains("Zm9y"),
        "{environ}"
    );
}

#[test]
fn a_wsgi_application_learns_which_client_asks() {
    let site = Site::new().file("app.py", WSGI);
    let tls = MutualTls::start(site, "request", &app_table("app:app"));
    tls.server().wait_ready("app");
    let environ = tls.ask(&tls.client_of(&tls.anna), FORGED);
    expect_environment(&environ, "wsgi.url_scheme", &tls.anna);
    let environ = tls.ask(&tls.https.client, FORGED);
    let of_client: Vec<_> = lines_of_tls(&environ)
        .into_iter()
        .filter(|line| line.starts_with("SSL_CLIENT_"))
        .collect();
    assert_eq!(of_client, ["SSL_CLIENT_VERIFY=NONE"]);
}

#[test]
fn a_rack_application_learns_which_client_asks() {
    let site = rack_site(RACK);
    let tls = MutualTls::start(site, "request", &app_table("config.ru"));
    tls.server().wait_ready("app");
    let environ = tls.ask(&tls.client_of(&tls.anna), FORGED);
    expect_environment(&environ, "rack.url_scheme", &tls.anna);
}

#[test]
fn an_asgi_application_has_the_extension_of_tls() {
    let site = Site::new().file("app.py", ASGI);
    let tls = MutualTls::start(site, "request", &app_table("app:app"));
    tls.server().wait_ready("app");
    let scope = tls.ask(&tls.client_of(&tls.anna), FORGED);
    let chain = format!("{:?}", tls.anna.chain.replace("\r\n", "\n"));
    let chain = chain.trim_matches('"');
    for expected in [
        "scheme=https\n",
        "'server_cert': None",
        &format!("'client_cert_chain': ['{chain}']"),
        "'client_cert_name': 'CN=anna'",
        "'client_cert_error': None",
        "'tls_version': 772",
    ] {
        assert!(scope.contains(expected), "{expected} in {scope}");
    }
    assert!(!scope.contains("client-cert"), "{scope}");
}

#[test]
fn a_server_behind_gets_fields_that_no_client_sets() {
    let origin = Origin::start(|seen| page(seen, "behind"));
    let routes = format!(
        "[[sites.routes]]\nupstream = \"behind\"\n[upstreams.behind]\nservers = [\"{}\"]\n",
        origin.address()
    );
    let tls = MutualTls::start(Site::new(), "request", &routes);
    assert_eq!(tls.ask(&tls.client_of(&tls.anna), FORGED), "behind");
    assert_eq!(tls.ask(&tls.https.client, FORGED), "behind");
    let [known, unknown] = &origin.requests()[..] else {
        panic!("two requests");
    };
    for (name, value) in [
        ("X-Client-Cert-Verify", Some("SUCCESS")),
        ("X-Client-Cert-Subject", Some("CN=anna")),
        ("X-Client-Cert-Serial", Some("0A")),
        ("X-Forwarded-Proto", Some("https")),
        ("Client-Cert", None),
        ("X_Client_Cert", None),
    ] {
        assert_eq!(known.field(name).as_deref(), value, "{name}");
    }
    let certificate = known.field("X-Client-Cert").unwrap();
    assert!(
        certificate.starts_with("-----BEGIN%20CERTIFICATE-----%0A"),
        "{certificate}"
    );
    let verify = unknown.field("X-Client-Cert-Verify");
    assert_eq!(verify.as_deref(), Some("NONE"));
    assert_eq!(unknown.field("X-Client-Cert"), None);
}

#[test]
fn only_clients_with_a_valid_certificate_reach_a_site_that_requires_one() {
    let site = Site::new().file("public/index.html", "inside");
    let routes = "[[sites.routes]]\nfiles = { root = \"public\" }\n";
    let open = format!(
        "{routes}[[sites]]\nhosts = [\"open.test\"]\n{}{routes}",
        tls_of("open")
    );
    let (sites, clients) = (TestAuthority::new("Open"), TestAuthority::new("Others"));
    write_certificate(&site, "open", &sites.issue(&["open.test", "a.test"]));
    let tls = MutualTls::start(site, "require", &open);
    let port = tls.https.port();
    let inside = tls.client_of(&tls.anna).get(port, "a.test", "/");
    assert_eq!((inside.status, inside.text().as_str()), (200, "inside"));
    let none = tls.https.client.refusal(port, "a.test");
    assert!(none.contains("CertificateRequired"), "{none}");
    let revoked = tls.clients.issue_client("berta", 0x0b);
    let error = tls.client_of(&revoked).refusal(port, "a.test");
    assert!(error.contains("CertificateRevoked"), "{error}");
    let stranger = clients.issue_client("carl", 1);
    let error = tls.client_of(&stranger).refusal(port, "a.test");
    assert!(
        error.contains("UnknownCA") || error.contains("DecryptError"),
        "{error}"
    );
    // A connection without a certificate reaches no site that requires one.
    let mut outside = sites.client().connect(port, "open.test");
    outside.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    outside.expect_status(421);
    tls.server().wait_log("no TLS session with 127.0.0.1");
}
