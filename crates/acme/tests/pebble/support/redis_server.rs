//! A real `redis-server` on a Unix socket in a temporary folder.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::process::{ChildProcess, until};

pub(crate) struct RedisServer {
    folder: TempDir,
    process: Option<ChildProcess>,
}

impl RedisServer {
    /// Starts it; `scripts/setup test` installs it.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self {
            folder,
            process: None,
        };
        server.run().await;
        server
    }

    pub(crate) async fn run(&mut self) {
        let mut command = Command::new("redis-server");
        command.current_dir(self.folder.path());
        command.args(["--port", "0", "--unixsocket", "redis.sock"]);
        command.args(["--save", "", "--appendonly", "no"]);
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
}
