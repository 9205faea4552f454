//! The steps of an exchange of the test origin.
//!
//! A `Script` is made for the head of a request; `connection` plays its steps.
//!
//! # Invariants
//!
//! - A step contains every byte itself; nothing is added.
//! - Steps wait only for the peer or a gate.

use super::ReceivedRequest;

#[derive(Clone)]
pub(crate) enum Step {
    /// Reads the request body to its end.
    ReadBody,
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits until the test opens the gate.
    Gate(String),
    /// Sends the same again and again until the peer stops reading, at most this many bytes.
    Flood(Vec<u8>, usize),
    /// Waits for one more byte of the peer and leaves it unread.
    AwaitByte,
    /// Closes the sending side.
    CloseWrite,
    Reset,
    /// Waits at the gate; then, or when the origin stops, resets the connection.
    ResetAt(String),
    /// Reads and discards until the peer closes.
    Hang,
    /// Echoes until the peer closes.
    Echo,
}

/// The steps for one request.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(super) steps: Vec<Step>,
    /// Steps after the exchange.
    pub(super) after: Vec<Step>,
    /// Whether the connection then waits for another request.
    pub(super) keep: bool,
}

impl Script {
    /// Reads the request whole, sends these bytes and closes.
    pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self::early().then(Step::ReadBody).send(bytes)
    }

    /// No step yet: later steps run before the body is read.
    pub(crate) fn early() -> Self {
        Self::default()
    }

    pub(crate) fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds these bytes.
    pub(crate) fn send(self, bytes: impl AsRef<[u8]>) -> Self {
        self.then(Step::Send(bytes.as_ref().to_vec()))
    }

    /// Adds a wait at this gate.
    pub(crate) fn gate(self, gate: &str) -> Self {
        self.then(Step::Gate(gate.to_owned()))
    }

    /// The connection waits for another request.
    pub(crate) fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// The connection is closed, whatever its bytes said.
    pub(crate) fn unkept(mut self) -> Self {
        self.keep = false;
        self
    }

    /// The connection stays open, idle, until the step is done, and then closes.
    pub(crate) fn idle_until(mut self, step: Step) -> Self {
        self.keep = false;
        self.after.push(step);
        self
    }
}

/// A response with a length: head, then the body.
pub(crate) fn head_of(status: &str, fields: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n{fields}Content-Length: {length}\r\n\r\n"
    )
}

/// A 200 with this body that announces the end of its connection, and closes it.
pub(crate) fn last_page(body: impl AsRef<[u8]>) -> Script {
    let body = body.as_ref();
    let head = head_of("200 OK", "Connection: close\r\n", body.len());
    Script::raw([head.as_bytes(), body].concat())
}

/// A 200 with this body (none for HEAD) on a connection that is kept.
pub(crate) fn page(seen: &ReceivedRequest, body: impl AsRef<[u8]>) -> Script {
    let body = body.as_ref();
    let mut bytes = head_of("200 OK", "", body.len()).into_bytes();
    if seen.method != "HEAD" {
        bytes.extend_from_slice(body);
    }
    Script::raw(bytes).keep()
}
