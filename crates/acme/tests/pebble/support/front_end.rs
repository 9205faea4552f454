//! A front end that does nothing but answer validations, from the stores of one or more services.

use std::fmt;
use std::sync::{Arc, Mutex};

use penstock_acme::{CertificateService, ChallengeStore, HTTP_PATH, TLS_ALPN_PROTOCOL};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(crate) struct FrontEnd {
    pub(crate) http_port: u16,
    pub(crate) tls_port: u16,
    sources: Arc<Sources>,
    _tasks: JoinSet<()>,
}

/// Where responses come from.
#[derive(Default)]
struct Sources {
    stores: Mutex<Vec<Arc<ChallengeStore>>>,
    /// Asked for what other servers have begun.
    peer: Mutex<Option<CertificateService>>,
    requests: Mutex<usize>,
}

impl FrontEnd {
    pub(crate) async fn start() -> Self {
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tls = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sources = Arc::new(Sources::default());
        let ports = [&http, &tls].map(|listener| listener.local_addr().unwrap().port());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_http(http, sources.clone()));
        tasks.spawn(serve_tls(tls, sources.clone()));
        Self {
            http_port: ports[0],
            tls_port: ports[1],
            sources,
            _tasks: tasks,
        }
    }

    /// Answers from the challenges of a service, too.
    pub(crate) fn add(&self, store: &Arc<ChallengeStore>) {
        self.sources.stores.lock().unwrap().push(store.clone());
    }

    /// Answers with what this service finds in its storage.
    pub(crate) fn set_peer(&self, peer: &CertificateService) {
        *self.sources.peer.lock().unwrap() = Some(peer.clone());
    }

    /// The HTTP requests so far.
    pub(crate) fn requests(&self) -> usize {
        *self.sources.requests.lock().unwrap()
    }
}

impl Sources {
    fn stores(&self) -> Vec<Arc<ChallengeStore>> {
        self.stores.lock().unwrap().clone()
    }

    async fn http_response(&self, token: &str) -> Option<String> {
        *self.requests.lock().unwrap() += 1;
        for store in self.stores() {
            if let Some(response) = store.http_response(token) {
                return Some(response.to_string());
            }
        }
        let peer = self.peer.lock().unwrap().clone();
        peer?.find_http_response(token).await
    }
}

async fn serve_http(listener: TcpListener, sources: Arc<Sources>) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let sources = sources.clone();
        connections.spawn(async move { answer_http(socket, &sources).await });
        while connections.try_join_next().is_some() {}
    }
}

/// Answers one request. Pebble may leave at any time.
async fn answer_http(mut socket: TcpStream, sources: &Sources) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = socket.read_u8().await.ok()?;
        head.push(byte);
    }
    let head = String::from_utf8(head).ok()?;
    let token = head
        .strip_prefix("GET ")?
        .split(' ')
        .next()?
        .strip_prefix(HTTP_PATH)?;
    let response = match sources.http_response(token).await {
        Some(body) => {
            let length = body.len();
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
        }
        None => {
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned()
        }
    };
    socket.write_all(response.as_bytes()).await.ok()
}

async fn serve_tls(listener: TcpListener, sources: Arc<Sources>) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ChallengeResolver(sources)));
    config.alpn_protocols = vec![TLS_ALPN_PROTOCOL.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let accepting = acceptor.accept(socket);
        connections.spawn(async move { drop(accepting.await) });
        while connections.try_join_next().is_some() {}
    }
}

struct ChallengeResolver(Arc<Sources>);

impl ResolvesServerCert for ChallengeResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        let stores = self.0.stores();
        let found = stores
            .iter()
            .find_map(|store| store.tls_alpn_certificate(name))?;
        let key = PrivatePkcs8KeyDer::from(found.key_pkcs8.to_vec()).into();
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        Some(Arc::new(CertifiedKey::new(
            vec![found.certificate.clone()],
            key,
        )))
    }
}

impl fmt::Debug for ChallengeResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChallengeResolver")
    }
}
