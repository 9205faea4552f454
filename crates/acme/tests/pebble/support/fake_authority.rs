//! An HTTPS server that gives one answer to every request, or none.

use std::path::PathBuf;
use std::sync::Arc;

use penstock_acme::Directory;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::pebble::write_tls_files;

pub(crate) struct FakeAuthority {
    folder: TempDir,
    port: u16,
    _task: JoinSet<()>,
}

impl FakeAuthority {
    /// Starts one; it never answers if the answer is empty.
    pub(crate) async fn start(answer: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_tls_files(folder.path());
        let certificate = CertificateDer::from_pem_file(folder.path().join("cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(folder.path().join("key.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut task = JoinSet::new();
        task.spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), answer));
        Self {
            folder,
            port,
            _task: task,
        }
    }

    pub(crate) fn directory(&self) -> Directory {
        let url = format!("https://127.0.0.1:{}/dir", self.port);
        let mut directory = Directory::parse(&url).unwrap();
        directory.ca_file = Some(self.ca_file());
        directory
    }

    fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, answer: &'static str) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        connections.spawn(async move { answer_once(socket, acceptor, answer).await });
    }
}

async fn answer_once(socket: TcpStream, acceptor: TlsAcceptor, answer: &str) -> Option<()> {
    let mut stream = acceptor.accept(socket).await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    if answer.is_empty() {
        // The client leaves.
        stream.read_u8().await.ok()?;
    }
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}
