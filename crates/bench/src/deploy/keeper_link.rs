//! The bench's end of a keeper: starts it, receives its messages, and asks it to stop.
//!
//! `supervised` has one per deployment, `testbed` one per set-up command.
//!
//! # Invariants
//!
//! - The keeper's standard input stays open exactly as long as the link lives.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::keeper_protocol::{CommandExit, KeeperMessage, KeeperOrder, STOP_LINE};
use super::{DeployError, resource_usage, send_signal};

/// More than a keeper needs for its own timeouts.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct KeeperLink {
    child: Child,
    /// Closing it ends the keeper.
    input: Option<ChildStdin>,
    messages: Receiver<KeeperMessage>,
}

impl KeeperLink {
    /// Starts `program bench keeper` and sends it an order.
    pub(super) fn start(program: &Path, order: &KeeperOrder) -> Result<Self, DeployError> {
        let wrong = |what: &str, error: &dyn std::fmt::Display| {
            DeployError::Keeper(format!("{}: {what}: {error}", program.display()))
        };
        let mut child = Command::new(program)
            .args(["bench", "keeper"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| wrong("not started", &error))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, words) = sync_channel(64);
        std::thread::spawn(move || {
            let lines = BufReader::new(output?).lines().map_while(Result::ok);
            let words = lines.filter_map(|line| serde_json::from_str(&line).ok());
            // Ends when the keeper does, or when the receiver is gone.
            words.map_while(|word| sender.send(word).ok()).last()
        });
        let mut link = Self {
            child,
            input,
            messages: words,
        };
        let line = serde_json::to_vec(order).map_err(|error| wrong("order", &error))?;
        link.send_line(&line)
            .map_err(|error| wrong("order", &error))?;
        Ok(link)
    }

    /// The keeper's process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next end of a command, if one ends within a time.
    ///
    /// # Errors
    /// The keeper failed or ended.
    pub(super) fn next_exit(&self, within: Duration) -> Result<Option<CommandExit>, DeployError> {
        match self.messages.recv_timeout(within) {
            Ok(KeeperMessage::Exited(exit)) => Ok(Some(exit)),
            Ok(KeeperMessage::Failed(why)) => Err(DeployError::Keeper(why)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(DeployError::Keeper("it ended".to_owned())),
        }
    }

    /// Whether it was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.input.is_none()
    }

    /// Ends everything below the keeper and the keeper; returns whether it could do its work.
    /// Further calls do nothing.
    pub(super) fn stop(&mut self) -> bool {
        if self.is_stopped() {
            return true;
        }
        // Left open, so that the keeper can distinguish this from the end of the bench.
        let _ = self.send_line(STOP_LINE.as_bytes());
        let deadline = Instant::now() + STOP_TIMEOUT;
        let is_gone = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(_) => {}
                Err(error) => break error == RecvTimeoutError::Disconnected,
            }
        };
        self.input = None;
        if !is_gone {
            self.kill();
        }
        self.child.wait().is_ok_and(|how| how.signal().is_none())
    }

    /// Kills a keeper that does not react, its descendants first.
    fn kill(&mut self) {
        for pid in resource_usage::descendants(self.pid()) {
            send_signal(pid, Signal::KILL);
        }
        // It may be ending at this moment.
        let _ = self.child.kill();
    }

    fn send_line(&mut self, line: &[u8]) -> std::io::Result<()> {
        match &mut self.input {
            Some(input) => input.write_all(&[line, b"\n"].concat()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for KeeperLink {
    fn drop(&mut self) {
        self.stop();
    }
}
