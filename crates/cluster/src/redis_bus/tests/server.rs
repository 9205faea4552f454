//! A real `redis-server` in a temporary folder, on a Unix socket: gone, with its folder, when it is
//! dropped.

#![allow(clippy::disallowed_methods, reason = "tests may wait for a disk")]

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use super::until;

/// The server.
pub(super) struct RedisServer {
    dir: PathBuf,
    process: Option<Child>,
    password: Option<&'static str>,
    tls: Option<RedisTls>,
}

/// The port and the authority of a server with TLS.
struct RedisTls {
    port: u16,
    authority: String,
}

impl RedisServer {
    pub(super) async fn start() -> Self {
        Self::with_password(None).await
    }

    pub(super) async fn with_password(password: Option<&'static str>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("penstock-hub-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let mut server = Self {
            dir: folder,
            process: None,
            password,
            tls: None,
        };
        server.run().await;
        server
    }

    /// With TLS on a port, and a certificate for 127.0.0.1.
    pub(super) async fn with_tls() -> Self {
        let mut server = Self::start().await;
        server.kill();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(server.dir.join("own.pem"), certificate.pem()).unwrap();
        fs::write(server.dir.join("own.key"), key.serialize_pem()).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        server.tls = Some(RedisTls {
            port: free.local_addr().unwrap().port(),
            authority: certificate.pem(),
        });
        drop(free);
        server.run().await;
        server
    }

    /// Runs it, without the data of an earlier run.
    pub(super) async fn run(&mut self) {
        let mut command = Command::new("redis-server");
        command
            .current_dir(&self.dir)
            .args(["--port", "0", "--unixsocket", "redis.sock"])
            .args(["--save", "", "--appendonly", "no"])
            .args(
                self.password
                    .map(|word| ["--requirepass", word])
                    .as_slice()
                    .concat(),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(tls) = &self.tls {
            command
                .args(["--tls-port", &tls.port.to_string()])
                .args(["--tls-cert-file", "own.pem", "--tls-key-file", "own.key"])
                .args(["--tls-ca-cert-file", "own.pem", "--tls-auth-clients", "no"]);
        }
        let process = command
            .spawn()
            .expect("redis-server is needed: `scripts/setup test` installs it");
        self.process = Some(process);
        let path = self.socket();
        until("redis-server listens", || {
            UnixStream::connect(&path).is_ok()
        })
        .await;
    }

    /// Ends it at once; its data is gone.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(super) fn url(&self) -> String {
        let pass = self.password.map(|word| format!("?pass={word}"));
        format!(
            "unix:{}{}",
            self.socket().display(),
            pass.unwrap_or_default()
        )
    }

    /// The address with TLS, and the authority in PEM.
    pub(super) fn tls_url(&self) -> (String, Vec<u8>) {
        let tls = self.tls.as_ref().unwrap();
        let url = format!("rediss://127.0.0.1:{}/", tls.port);
        (url, tls.authority.clone().into_bytes())
    }

    /// Carries out one command.
    pub(super) async fn command(&self, words: &[&str]) {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd(words[0]);
        let answer = command.arg(&words[1..]).query_async(&mut connection).await;
        let _: redis::Value = answer.unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().unwrap();
        kill_process(Pid::from_child(process), signal).unwrap();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        fs::remove_dir_all(&self.dir).unwrap();
    }
}
