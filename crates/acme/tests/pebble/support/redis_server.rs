//! A real `redis-server` on a Unix socket in a temporary folder, and on a port if it has TLS.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::process::{ChildProcess, until};

pub(crate) struct RedisServer {
    folder: TempDir,
    process: Option<ChildProcess>,
    tls: Option<RedisTls>,
}

/// The port and the authority of a server with TLS.
struct RedisTls {
    port: u16,
    authority: String,
}

impl RedisServer {
    /// Starts it; `scripts/setup test` installs it.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self {
            folder,
            process: None,
            tls: None,
        };
        server.run().await;
        server
    }

    /// With TLS on a port, and a certificate for 127.0.0.1.
    pub(crate) async fn start_with_tls() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("own.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("own.key"), key.serialize_pem()).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tls = RedisTls {
            port: free.local_addr().unwrap().port(),
            authority: certificate.pem(),
        };
        drop(free);
        let mut server = Self {
            folder,
            process: None,
            tls: Some(tls),
        };
        server.run().await;
        server
    }

    pub(crate) async fn run(&mut self) {
        let mut command = Command::new("redis-server");
        command.current_dir(self.folder.path());
        command.args(["--port", "0", "--unixsocket", "redis.sock"]);
        command.args(["--save", "", "--appendonly", "no"]);
        if let Some(tls) = &self.tls {
            command
                .args(["--tls-port", &tls.port.to_string()])
                .args(["--tls-cert-file", "own.pem", "--tls-key-file", "own.key"])
                .args(["--tls-ca-cert-file", "own.pem", "--tls-auth-clients", "no"]);
        }
        self.process = Some(ChildProcess::spawn(command.stdout(Stdio::null())));
        let socket = self.folder.path().join("redis.sock");
        until("redis-server listens", || {
            UnixStream::connect(&socket).is_ok()
        })
        .await;
    }

    /// Ends it; its data is lost.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.folder.path().join("redis.sock").display())
    }

    /// The address with TLS, and the authority in PEM.
    pub(crate) fn tls_url(&self) -> (String, Vec<u8>) {
        let tls = self.tls.as_ref().unwrap();
        let url = format!("rediss://127.0.0.1:{}/", tls.port);
        (url, tls.authority.clone().into_bytes())
    }
}
