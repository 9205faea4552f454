//! A TLS server on threads, by rustls' buffered interface, and certificates by rcgen.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::{TlsMaterial, UpstreamTls};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// An authority that signs certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(super) struct Issued {
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(super) fn issue(&self, name: &str) -> Issued {
        self.issue_with(name, |_| {})
    }

    pub(super) fn issue_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued {
            chain: vec![certificate.der().clone()],
            key: key.serialize_der(),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }

    /// Trust in this authority and nothing else.
    pub(super) fn trust(&self, server_name: Option<&str>) -> UpstreamTls {
        let config = ClientConfig::builder()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        self.upstream_tls(config, server_name, Vec::new())
    }

    /// The same, with a certificate to show.
    pub(super) fn trust_and_show(&self, shown: Issued) -> UpstreamTls {
        let (chain, key) = shown.into_parts();
        let config = ClientConfig::builder()
            .with_root_certificates(self.roots())
            .with_client_auth_cert(chain.clone(), key)
            .unwrap();
        self.upstream_tls(config, None, chain)
    }

    fn upstream_tls(
        &self,
        config: ClientConfig,
        server_name: Option<&str>,
        own_chain: Vec<CertificateDer<'static>>,
    ) -> UpstreamTls {
        let name = server_name.map(|name| name.to_owned().try_into().unwrap());
        UpstreamTls {
            config: Arc::new(config),
            server_name: name,
            material: TlsMaterial {
                authorities: Some(Arc::new(self.roots())),
                own_chain,
            },
        }
    }

    /// A server that wants certificates of this authority.
    pub(super) fn server_for_clients(&self, own: Issued) -> ServerConfig {
        let verifier = WebPkiClientVerifier::builder(Arc::new(self.roots()));
        let (chain, key) = own.into_parts();
        ServerConfig::builder()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap()
    }
}

impl Issued {
    fn into_parts(self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain, PrivateKeyDer::try_from(self.key).unwrap())
    }

    pub(super) fn server(self) -> ServerConfig {
        let (chain, key) = self.into_parts();
        let builder = ServerConfig::builder().with_no_client_auth();
        builder.with_single_cert(chain, key).unwrap()
    }
}

/// Accepts connections until it is dropped; each is served on its own thread.
pub(super) struct TestServer {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

/// A connection with TLS, as its server sees it.
pub(super) type TlsConnection = StreamOwned<ServerConnection, TcpStream>;

impl TestServer {
    /// Serves plain connections; `serve` gets each with its number.
    pub(super) fn plain(serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, serve) = (Arc::clone(&is_over), Arc::new(serve));
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                std::thread::spawn(move || serve(stream, number));
            }
        });
        Self { address, is_over }
    }

    /// Serves connections with TLS.
    pub(super) fn tls(
        config: ServerConfig,
        serve: impl Fn(TlsConnection, usize) + Send + Sync + 'static,
    ) -> Self {
        let config = Arc::new(config);
        Self::plain(move |stream, number| {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut connection = StreamOwned::new(session, stream);
            // A client may have reasons to refuse it.
            if connection.conn.complete_io(&mut connection.sock).is_ok() {
                serve(connection, number);
            }
        })
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

/// Reads a request without a body; empty at the end of the connection.
pub(super) fn read_request(connection: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match connection.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8(head).unwrap()
}

pub(super) fn respond(connection: &mut impl Write, body: &str) {
    let length = body.len();
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
    // The client may be gone.
    let _ = connection.write_all(text.as_bytes());
}

/// Answers every request with the number of the connection and of the request.
pub(super) fn answer_all(mut connection: TlsConnection, number: usize) {
    for request in 0.. {
        if read_request(&mut connection).is_empty() {
            return;
        }
        respond(&mut connection, &format!("{number} {request}"));
    }
}
