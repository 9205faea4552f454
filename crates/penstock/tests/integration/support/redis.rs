//! A `redis-server` of a test.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, Site, eventually};

/// A `redis-server` in the folder of a site.
pub(crate) struct Redis {
    process: Child,
    pub(crate) socket: PathBuf,
}

impl Redis {
    pub(crate) fn start(site: &Site) -> Self {
        let process = Command::new("redis-server")
            .current_dir(site.dir())
            .args(["--port", "0", "--unixsocket", "redis.sock"])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: `scripts/setup test` installs it");
        let socket = site.dir().join("redis.sock");
        eventually(PATIENCE, "redis-server listens", || {
            UnixStream::connect(&socket).is_ok()
        });
        Self { process, socket }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
