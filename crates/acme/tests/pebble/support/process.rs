//! Child processes that listen on ports of the system's choice, found in `/proc`.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::PATIENCE;

/// A child process, killed when it is dropped.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Waits until the process listens on `address`, by TCP or UDP, and returns the port.
    pub(crate) async fn await_port(&mut self, table: &str, address: Ipv4Addr) -> u16 {
        let mut port = None;
        until("a child listens", || {
            assert!(self.0.try_wait().unwrap().is_none(), "the child has ended");
            port = self.find_port(table, address);
            port.is_some()
        })
        .await;
        port.unwrap()
    }

    fn find_port(&self, table: &str, address: Ipv4Addr) -> Option<u16> {
        let own = self.sockets();
        let sockets = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap();
        let local = format!("{:08X}:", u32::from_ne_bytes(address.octets()));
        // Listening, in TCP's table and in UDP's.
        let states = ["0A", "07"];
        sockets.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = fields[1].strip_prefix(&local)?;
            let is_own = states.contains(&fields[3]) && own.contains(fields[9]);
            is_own.then(|| u16::from_str_radix(port, 16).unwrap())
        })
    }

    /// The inodes of the process's sockets.
    fn sockets(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let inode = |link: PathBuf| {
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.strip_suffix(']')?.to_owned())
        };
        links.filter_map(inode).collect()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut is_met: impl FnMut() -> bool) {
    let mut interval = tokio::time::interval(Duration::from_millis(10));
    let polled = async {
        while !is_met() {
            interval.tick().await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, polled).await;
    assert!(done.is_ok(), "in vain: {what}");
}
