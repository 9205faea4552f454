//! A child process that runs a hidden verb of this program, with lines of JSON in both directions:
//! a keeper of `deploy`, or an agent of `hold`.
//!
//! # Invariants
//!
//! - The child's standard input stays open exactly as long as the [`ChildLink`] does, and no other
//!   process has its other end. So the child ends with this process, however that ends.
//! - No child is left after the link is dropped.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a line: an order for a million streams names some hundred addresses, a report
/// of an agent some thousand distinct latencies.
pub(crate) const MAX_LINE_BYTES: usize = 4 << 20;
/// The time for a child to end after its input was closed: an agent closes some ten thousand
/// sockets within it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct ChildLink {
    child: Child,
    /// Closing it ends the child.
    input: Option<ChildStdin>,
}

impl ChildLink {
    /// Starts `program bench VERB` and sends its order. Its messages go to `forward` until that
    /// returns false; `None` is the last one.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start<M: DeserializeOwned>(
        program: &Path,
        verb: &str,
        order: &impl Serialize,
        forward: impl FnMut(Option<M>) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", program.display()))
        };
        let mut child = Command::new(program)
            .args(["bench", verb])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(named)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut link = Self { child, input };
        if let Some(output) = output {
            std::thread::spawn(move || forward_messages(output, forward));
        }
        link.send(order).map_err(named)?;
        Ok(link)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a value as one line.
    ///
    /// # Errors
    /// The child has closed its input, or [`ChildLink::close`] was called.
    pub(crate) fn send(&mut self, value: &impl Serialize) -> io::Result<()> {
        let input = self.input.as_mut();
        write_json_line(input.ok_or(io::ErrorKind::BrokenPipe)?, value)
    }

    /// Closes its input, which ends it; several children can end at the same time.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.input.is_none()
    }

    pub(crate) fn kill(&mut self) {
        // It may be ending at this moment.
        let _ = self.child.kill();
    }

    /// Closes its input and waits for its end; `None` if it does not end in time.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        self.close();
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
}

impl Drop for ChildLink {
    fn drop(&mut self) {
        if self.wait().is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Forwards a child's messages until it ends or the receiver is gone.
fn forward_messages<M: DeserializeOwned>(
    output: ChildStdout,
    mut forward: impl FnMut(Option<M>) -> bool,
) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut output).take(MAX_LINE_BYTES as u64);
        let read = bounded.read_until(b'\n', &mut line);
        let message = read.ok().and_then(|_| serde_json::from_slice(&line).ok());
        let is_last = message.is_none();
        if !forward(message) || is_last {
            return;
        }
    }
}

/// Writes a value as one line.
///
/// # Errors
/// The other end is closed.
pub(crate) fn write_json_line(output: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}
