//! Pebble and its DNS server as child processes.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use penstock_acme::Directory;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::FrontEnd;
use super::process::ChildProcess;

/// A running Pebble. It forgets everything when it is dropped.
pub(crate) struct Pebble {
    folder: TempDir,
    programs: PathBuf,
    options: PebbleOptions,
    process: Option<ChildProcess>,
    _dns: ChildProcess,
    pub(crate) port: u16,
    management_port: u16,
    dns_port: u16,
    dns_management_port: u16,
    http_port: u16,
    tls_port: u16,
}

/// How Pebble behaves.
#[derive(Default, Clone)]
pub(crate) struct PebbleOptions {
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    /// Key of the external account `kid-1`, which is then required.
    pub(crate) external_key: Option<&'static str>,
}

impl PebbleOptions {
    pub(crate) fn with(name: &'static str, value: &'static str) -> Self {
        let environment = vec![(name, value)];
        Self {
            environment,
            external_key: None,
        }
    }
}

/// Its two listeners have addresses of their own, so that their ports can be told apart.
const MAIN: Ipv4Addr = Ipv4Addr::LOCALHOST;
const MANAGEMENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

impl Pebble {
    /// Starts it, with names that resolve to the front end; `None` if it is not installed.
    pub(crate) async fn start(front: &FrontEnd, options: PebbleOptions) -> Option<Self> {
        let programs = find_programs()?;
        let mut dns_command = Command::new(programs.join("pebble-challtestsrv"));
        dns_command.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]);
        dns_command.args(["-dnsserver", "127.0.0.1:0", "-management", "127.0.0.2:0"]);
        dns_command.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]);
        let mut dns = ChildProcess::spawn(dns_command.stdout(Stdio::null()));
        let folder = tempfile::tempdir().unwrap();
        write_tls_files(folder.path());
        let mut pebble = Self {
            // Pebble asks over TCP.
            dns_port: dns.await_port("tcp", MAIN).await,
            dns_management_port: dns.await_port("tcp", MANAGEMENT).await,
            folder,
            programs,
            options,
            process: None,
            _dns: dns,
            port: 0,
            management_port: 0,
            http_port: front.http_port,
            tls_port: front.tls_port,
        };
        pebble.run().await;
        Some(pebble)
    }

    /// Runs it, on the same port as before if it has run.
    pub(crate) async fn run(&mut self) {
        let path = self.folder.path().join("pebble.json");
        std::fs::write(&path, self.configuration().to_string()).unwrap();
        let mut command = Command::new(self.programs.join("pebble"));
        command.arg("-config").arg(path);
        let dns = format!("127.0.0.1:{}", self.dns_port);
        command.args(["-strict", "-dnsserver", &dns]);
        command.env("PEBBLE_VA_NOSLEEP", "1");
        command.env("PEBBLE_AUTHZREUSE", "0");
        for (name, value) in &self.options.environment {
            if *name == "PEBBLE_VA_SLEEPTIME" {
                command.env_remove("PEBBLE_VA_NOSLEEP");
            }
            command.env(name, value);
        }
        let log = File::create(self.folder.path().join("log")).unwrap();
        let mut process = ChildProcess::spawn(command.stdout(log));
        self.port = process.await_port("tcp", MAIN).await;
        self.management_port = process.await_port("tcp", MANAGEMENT).await;
        self.process = Some(process);
    }

    /// Ends it.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    fn configuration(&self) -> Value {
        let mut keys = serde_json::Map::new();
        if let Some(key) = self.options.external_key {
            keys.insert("kid-1".to_owned(), key.into());
        }
        json!({ "pebble": {
            "listenAddress": format!("{MAIN}:{}", self.port),
            "managementListenAddress": format!("{MANAGEMENT}:0"),
            "certificate": self.folder.path().join("cert.pem"),
            "privateKey": self.folder.path().join("key.pem"),
            "httpPort": self.http_port,
            "tlsPort": self.tls_port,
            "externalAccountBindingRequired": self.options.external_key.is_some(),
            "externalAccountMACKeys": keys,
            "domainBlocklist": ["blocked.acme.lan"],
            "retryAfter": { "authz": 1, "order": 1 },
            "keyAlgorithm": "ecdsa",
            "profiles": {
                "default": { "description": "the default", "validityPeriod": 7_776_000 },
                "shortlived": { "description": "six days", "validityPeriod": 518_400 },
            },
        }})
    }

    pub(crate) fn directory(&self) -> Directory {
        let mut directory = Directory::parse(&format!("https://{MAIN}:{}/dir", self.port)).unwrap();
        directory.ca_file = Some(self.ca_file());
        directory
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Sends a request to the management interface and returns the body.
    pub(crate) async fn manage(&self, method: &str, path: &str, body: &str) -> String {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.ca_file()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let socket = TcpStream::connect((MANAGEMENT, self.management_port))
            .await
            .unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::from(std::net::IpAddr::from(MANAGEMENT));
        let stream = connector.connect(name, socket).await.unwrap();
        exchange(stream, method, path, body).await
    }

    /// Sends a request to the DNS server's management interface.
    pub(crate) async fn manage_dns(&self, path: &str, body: Value) {
        manage_dns(self.dns_management_port, path, body).await;
    }

    pub(crate) fn dns_management_port(&self) -> u16 {
        self.dns_management_port
    }
}

pub(crate) async fn manage_dns(port: u16, path: &str, body: Value) {
    let socket = TcpStream::connect((MANAGEMENT, port)).await.unwrap();
    exchange(socket, "POST", path, &body.to_string()).await;
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    body: &str,
) -> String {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: test\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    // Go closes the connection without close_notify.
    let _ = stream.read_to_end(&mut response).await;
    let response = String::from_utf8(response).unwrap();
    assert!(response.contains(" 200 OK\r\n"), "{path}: {response}");
    response.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The folder with Pebble's programs: `.tools/bin`, or one of the PATH.
fn find_programs() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::iter::once(own).chain(std::env::split_paths(&path));
    folders.find(|folder| {
        ["pebble", "pebble-challtestsrv"]
            .iter()
            .all(|program| folder.join(program).exists())
    })
}

/// A private root, and a certificate for Pebble's two addresses.
pub(crate) fn write_tls_files(folder: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let names = [MAIN.to_string(), MANAGEMENT.to_string()];
    let params = CertificateParams::new(names).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(folder.join("ca.pem"), ca_pem).unwrap();
    std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}
