//! Streams over HTTPS, with `rustls` as the client: held, slow, moved by an upgrade and ended.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use super::*;
use crate::support::{is_alive, kill};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// A server of `localhost` with a certificate of the local authority, and a route with streams.
fn serve_https() -> Server {
    let site = Site::new().config(
        "[server]\nthreads = 2\nlisten = [{ address = \"127.0.0.1:0\", tls = true }]\n\
         [hub]\ndrain_timeout = \"100ms\"\nhistory = 100\n\
         [[sites]]\nhosts = [\"localhost\"]\ntls = \"local\"\n\
         [[sites.routes]]\npath = \"/events/*\"\nhub = { channel = \"{path.2}\" }\n",
    );
    let state = site.runtime_dir().join("state");
    site.serve_with(&[], &[("STATE_DIRECTORY", state.to_str().unwrap())])
}

struct TlsStream {
    stream: StreamOwned<ClientConnection, TcpStream>,
    text: String,
}

impl TlsStream {
    /// A stream of this channel, whose head has arrived.
    fn open(server: &Server, version: &'static SupportedProtocolVersion, channel: &str) -> Self {
        let root = server.site().runtime_dir();
        let root = root.join("state/local-authority/root.pem");
        let told = format!("local authority {} ", root.display());
        eventually(PATIENCE, "the start names the authority", || {
            server
                .announced()
                .iter()
                .any(|line| line.starts_with(&told))
        });
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(root).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = Self {
            stream: StreamOwned::new(session, socket),
            text: String::new(),
        };
        let request = format!("GET /events/{channel} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.stream.write_all(request.as_bytes()).unwrap();
        stream.hear("\r\n\r\n");
        assert!(stream.text.starts_with("HTTP/1.1 200 "), "{}", stream.text);
        stream
    }

    /// Reads until these words have come.
    fn hear(&mut self, words: &str) {
        while !self.text.contains(words) {
            assert!(self.read() > 0, "the end before {words:?}: {}", self.text);
        }
    }

    fn read(&mut self) -> usize {
        let mut buffer = [0; 16 << 10];
        let count = self.stream.read(&mut buffer).unwrap();
        self.text
            .push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        count
    }

    /// Asks the server for its next key, at the next write.
    fn update_keys(&mut self) {
        if self.stream.conn.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3) {
            self.stream.conn.refresh_traffic_keys().unwrap();
            self.stream.conn.complete_io(&mut self.stream.sock).unwrap();
        }
    }
}

fn open_all(server: &Server, count: usize) -> Vec<TlsStream> {
    let versions = VERSIONS.into_iter().cycle().take(count);
    let open = |version| TlsStream::open(server, version, "news");
    let streams = versions.map(open).collect();
    wait_held(server, count as u64);
    streams
}

#[test]
fn streams_are_held_over_https_and_end_properly() {
    let server = serve_https();
    let mut streams = open_all(&server, 6);
    publish(&server, "news", "first");
    for stream in &mut streams {
        stream.hear("data: first\n");
        stream.update_keys();
    }
    publish(&server, "news", "second");
    for stream in &mut streams {
        stream.hear("data: second\n");
    }
    drop(streams.pop());
    wait_held(&server, 5);
    server.signal(Signal::TERM);
    for stream in &mut streams {
        // An end without a `close_notify` would be an error.
        while stream.read() > 0 {}
        assert!(stream.text.ends_with("0\r\n\r\n"), "{}", stream.text);
    }
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
}

#[test]
fn a_slow_client_gets_everything_over_https() {
    let server = serve_https();
    let mut streams = open_all(&server, 2);
    let event = "x".repeat(10_000);
    for number in 0..60 {
        publish(&server, "news", &format!("{number}:{event}"));
    }
    for stream in &mut streams {
        stream.hear("data: 59:");
        let heard = stream.text.matches(&event).count();
        assert!(heard >= 59, "{heard}");
    }
}

#[test]
fn an_upgrade_moves_streams_over_https() {
    let server = serve_https();
    let mut streams = open_all(&server, 20);
    let silent = TlsStream::open(&server, VERSIONS[0], "silent");
    publish(&server, "news", "before");
    for stream in streams.iter_mut().step_by(3) {
        stream.hear("data: before\n");
        stream.update_keys();
    }
    let mut pid = server.pid();
    for round in 0..2 {
        let (code, stdout, stderr) = verb(&server, &["upgrade"], "");
        assert_eq!(code, 0, "{stdout}{stderr}\n{}", server.log());
        match round {
            0 => assert_eq!(server.wait_exit(PATIENCE).code(), Some(0)),
            _ => eventually(PATIENCE, "the old process ends", || !is_alive(pid)),
        }
        pid = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
        wait_held(&server, 21);
        let word = format!("after {round}");
        publish(&server, "news", &word);
        for stream in &mut streams {
            stream.hear(&format!("data: {word}\n"));
            stream.update_keys();
        }
    }
    for stream in &streams {
        let data = stream
            .text
            .lines()
            .filter(|line| line.starts_with("data: "));
        let data: Vec<_> = data.collect();
        let expected = ["data: before", "data: after 0", "data: after 1"];
        assert_eq!(data, expected, "{}", stream.text);
    }
    drop(silent);
    wait_held(&server, 20);
    kill(pid, Signal::TERM);
    for stream in &mut streams {
        while stream.read() > 0 {}
        assert!(stream.text.ends_with("0\r\n\r\n"), "{}", stream.text);
    }
    eventually(PATIENCE, "the last one ends", || !is_alive(pid));
}
