//! The coordinator's end of an agent: starts it, sends its order, receives its messages, and
//! reliably ends it.
//!
//! # Invariants
//!
//! - An agent's standard input stays open exactly as long as the [`AgentLink`] lives, and no other
//!   process has its other end. So an agent ends with the coordinator, however that ends.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::agent_protocol::{AgentMessage, AgentOrder, AgentRequest, MAX_LINE_BYTES};
use super::json_lines::write_json_line;

#[derive(Debug)]
pub(super) struct AgentLink {
    child: Child,
    /// Closing it ends the agent.
    input: Option<ChildStdin>,
}

/// The number of an agent, and its message; `None` when it sends nothing more.
pub(super) type AgentEvent = (usize, Option<AgentMessage>);

impl AgentLink {
    /// Starts `program bench hold-agent` and sends its order; its messages go to `words` with its
    /// number.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        program: &Path,
        number: usize,
        order: &AgentOrder,
        words: SyncSender<AgentEvent>,
    ) -> Result<Self, String> {
        let wrong = |why: std::io::Error| format!("agent {number}: {}: {why}", program.display());
        let mut child = Command::new(program)
            .args(["bench", "hold-agent"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(wrong)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut link = Self { child, input };
        if let Some(output) = output {
            std::thread::spawn(move || forward_messages(output, number, &words));
        }
        link.send_line(order).map_err(wrong)?;
        Ok(link)
    }

    /// Sends a request. An agent that cannot be reached has ended, which its end event reports.
    pub(super) fn send_request(&mut self, ask: AgentRequest) {
        let _ = self.send_line(&ask);
    }

    /// Closes its input, which ends it; several agents can end at the same time.
    pub(super) fn close(&mut self) {
        self.input = None;
    }

    /// How it ended, after its last message.
    pub(super) fn exit_description(&mut self) -> String {
        self.close();
        match self.wait_for_exit() {
            Some(how) => how.to_string(),
            None => "it did not end in time".to_owned(),
        }
    }

    /// Waits for the end of a process with closed input.
    fn wait_for_exit(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::park_timeout(EXIT_POLL_INTERVAL);
                }
                _ => return None,
            }
        }
    }

    fn send_line(&mut self, what: &impl serde::Serialize) -> std::io::Result<()> {
        let input = self.input.as_mut();
        write_json_line(input.ok_or(std::io::ErrorKind::BrokenPipe)?, what)
    }
}

impl Drop for AgentLink {
    fn drop(&mut self) {
        self.close();
        if self.wait_for_exit().is_none() {
            // It may be ending at this moment.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Forwards an agent's messages until it ends or the receiver is gone.
fn forward_messages(output: impl Read, number: usize, words: &SyncSender<AgentEvent>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut output).take(MAX_LINE_BYTES as u64);
        let read = bounded.read_until(b'\n', &mut line);
        let message = read.ok().and_then(|_| serde_json::from_slice(&line).ok());
        let is_over = message.is_none();
        if words.send((number, message)).is_err() || is_over {
            return;
        }
    }
}

/// An agent closes some ten thousand sockets within this time.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
