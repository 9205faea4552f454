//! What an exchange of the test origin is made of.
//!
//! A `Script` is made for the head of a request; `link` plays its steps. What must stay true: a step
//! says every byte itself, nothing is added, and nothing waits but for the peer or a gate.

use super::ReceivedRequest;

/// One thing that an origin does.
#[derive(Clone)]
pub(crate) enum Step {
    /// Reads the request's body to its end.
    ReadBody,
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits until the test lets it pass.
    Gate(String),
    /// Sends the same again and again until nobody takes it, at most so many bytes.
    Flood(Vec<u8>, usize),
    /// Waits for one more byte of the peer and leaves it unread.
    AwaitByte,
    /// Says that nothing more will be sent.
    CloseWrite,
    /// Ends the connection by a reset.
    Reset,
    /// Waits until the test lets it pass; then, or when the origin stops, ends by a reset.
    ResetAt(String),
    /// Reads and throws away until the peer closes.
    Hang,
    /// Sends back what comes until the peer closes.
    Echo,
}

/// What an origin does about one request.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(super) steps: Vec<Step>,
    /// Done when the exchange is over.
    pub(super) after: Vec<Step>,
    /// Whether the connection then waits for another request.
    pub(super) keep: bool,
}

impl Script {
    /// Reads the request whole, sends these bytes and closes.
    pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self::early().then(Step::ReadBody).send(bytes)
    }

    /// No step yet: what follows is done before the body is read.
    pub(crate) fn early() -> Self {
        Self::default()
    }

    /// The same, and one more step.
    pub(crate) fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The same, and these bytes.
    pub(crate) fn send(self, bytes: impl AsRef<[u8]>) -> Self {
        self.then(Step::Send(bytes.as_ref().to_vec()))
    }

    /// The same, and a wait at this gate.
    pub(crate) fn gate(self, gate: &str) -> Self {
        self.then(Step::Gate(gate.to_owned()))
    }

    /// The same; the connection waits for another request.
    pub(crate) fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// The same; the connection is closed, whatever its bytes said.
    pub(crate) fn unkept(mut self) -> Self {
        self.keep = false;
        self
    }

    /// The same; the connection is kept, idle, until the step is done, and then closed.
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

/// A 200 with this body that says that its connection ends, and ends it.
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
