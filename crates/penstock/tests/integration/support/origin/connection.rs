//! Sockets of the test origin, and one of its connections: reads requests strictly, plays their
//! scripts.
//!
//! `origin` starts a thread with `OriginConnection::run` for each accepted connection.
//!
//! # Invariants
//!
//! - Every received byte is recorded before it is judged.
//! - The table of open connections holds the only other handle of a socket, so that a close is a
//!   close.
//! - No read or write waits for ever.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use super::{OriginBehaviour, ReceivedRequest, Script, SharedOrigin, Step};
use crate::support::{PATIENCE, find};

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
    None,
}

impl Listener {
    pub(super) fn accept(&self) -> Option<OriginStream> {
        match self {
            Self::Tcp(listener) => listener.accept().ok().map(|(s, _)| OriginStream::Tcp(s)),
            Self::Unix(listener) => listener.accept().ok().map(|(s, _)| OriginStream::Unix(s)),
            Self::None => None,
        }
    }

    /// Ends a waiting `accept`.
    pub(super) fn stop(&self) {
        let both = rustix::net::Shutdown::Both;
        let _ = match self {
            Self::Tcp(listener) => rustix::net::shutdown(listener, both),
            Self::Unix(listener) => rustix::net::shutdown(listener, both),
            Self::None => Ok(()),
        };
    }
}

pub(super) enum OriginStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl OriginStream {
    pub(super) fn duplicate(&self) -> Self {
        match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone().unwrap()),
            Self::Unix(stream) => Self::Unix(stream.try_clone().unwrap()),
        }
    }

    /// Ends both directions, for every handle.
    pub(super) fn cut(&self) {
        self.shutdown(Shutdown::Both);
    }

    fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }

    fn set_patience(&self, patience: Duration) {
        let patience = Some(patience);
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(patience).unwrap();
                stream.set_write_timeout(patience).unwrap();
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(patience).unwrap();
                stream.set_write_timeout(patience).unwrap();
            }
        }
    }

    /// Makes the next close a reset (a Unix socket has none).
    fn reset_on_close(&self) {
        if let Self::Tcp(stream) = self {
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }
}

/// The connection has ended: closed, aborted, or not worth continuing.
struct ConnectionOver;

pub(super) struct OriginConnection {
    link: OriginStream,
    number: usize,
    shared: Arc<SharedOrigin>,
    /// Received and not yet consumed.
    buffer: Vec<u8>,
    /// The request in progress, while it counts as such.
    current: Option<usize>,
}

impl OriginConnection {
    pub(super) fn new(link: OriginStream, number: usize, shared: Arc<SharedOrigin>) -> Self {
        link.set_patience(PATIENCE * 2);
        Self {
            link,
            number,
            shared,
            buffer: Vec::new(),
            current: None,
        }
    }

    pub(super) fn run(mut self) {
        let _ = self.exchanges();
        self.finish();
        let other = self.shared.state.lock().unwrap().open.remove(&self.number);
        drop(other);
    }

    fn exchanges(&mut self) -> Result<(), ConnectionOver> {
        let shared = Arc::clone(&self.shared);
        match &shared.behaviour {
            OriginBehaviour::Raw(steps) => steps.iter().try_for_each(|step| self.play(step)),
            OriginBehaviour::Http(script) => {
                while self.exchange(script.as_ref())? {}
                Ok(())
            }
        }
    }

    /// One request and its script; returns whether another may follow.
    fn exchange(
        &mut self,
        script: &dyn Fn(&ReceivedRequest) -> Script,
    ) -> Result<bool, ConnectionOver> {
        let head = self.take_until(b"\r\n\r\n")?;
        let seen = match parse(&head) {
            Ok(seen) => ReceivedRequest {
                connection: self.number,
                complete: framing(&seen) == RequestFraming::None,
                ..seen
            },
            Err(why) => {
                let text = String::from_utf8_lossy(&head);
                return self.wrong(&format!("{why}: {text:?}"));
            }
        };
        let Script { steps, after, keep } = script(&seen);
        self.current = Some(self.shared.begin(seen));
        let last = steps.len().saturating_sub(1);
        let index = self.current;
        for (at, step) in steps.iter().enumerate() {
            // The peer may see the end before this thread continues.
            if at == last && matches!(step, Step::Send(_)) {
                self.finish();
            }
            self.play_for(step, index)?;
        }
        self.finish();
        after.iter().try_for_each(|step| self.play(step))?;
        Ok(keep)
    }

    fn finish(&mut self) {
        if self.current.take().is_some() {
            self.shared.state.lock().unwrap().in_progress -= 1;
        }
    }

    fn play(&mut self, step: &Step) -> Result<(), ConnectionOver> {
        self.play_for(step, None)
    }

    fn play_for(&mut self, step: &Step, request: Option<usize>) -> Result<(), ConnectionOver> {
        match step {
            Step::ReadBody => return self.read_body(request.ok_or(ConnectionOver)?),
            Step::Send(bytes) => return self.send(bytes),
            Step::Gate(gate) => {
                return self
                    .shared
                    .pass_gate(gate)
                    .then_some(())
                    .ok_or(ConnectionOver);
            }
            Step::Flood(bytes, most) => {
                let mut sent = 0;
                while sent < *most {
                    self.send(bytes)?;
                    sent += bytes.len();
                }
            }
            Step::AwaitByte => {
                if self.buffer.is_empty() {
                    self.more()?;
                }
            }
            Step::CloseWrite => self.link.shutdown(Shutdown::Write),
            Step::Reset => {
                self.link.reset_on_close();
                return Err(ConnectionOver);
            }
            Step::ResetAt(gate) => {
                self.shared.pass_gate(gate);
                self.link.reset_on_close();
                return Err(ConnectionOver);
            }
            Step::Hang => loop {
                self.more()?;
                self.buffer.clear();
            },
            Step::Echo => loop {
                let bytes = std::mem::take(&mut self.buffer);
                self.send(&bytes)?;
                self.more()?;
            },
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionOver> {
        self.link.write_all(bytes).map_err(|_| ConnectionOver)
    }

    fn read_body(&mut self, request: usize) -> Result<(), ConnectionOver> {
        let how = framing(&self.shared.state.lock().unwrap().seen[request]);
        match how {
            RequestFraming::None => {}
            RequestFraming::Length(mut left) => {
                while left > 0 {
                    if self.buffer.is_empty() {
                        self.more()?;
                    }
                    let count = self.buffer.len().min(left);
                    let bytes = self.buffer.drain(..count).collect();
                    left -= count;
                    self.note(request, bytes);
                }
            }
            RequestFraming::Chunked => self.read_chunks(request)?,
        }
        self.shared.state.lock().unwrap().seen[request].complete = true;
        Ok(())
    }

    fn read_chunks(&mut self, request: usize) -> Result<(), ConnectionOver> {
        loop {
            let line = self.take_until(b"\r\n")?;
            let text = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let Ok(size) = usize::from_str_radix(&text, 16) else {
                return self.wrong(&format!("a chunk of size {text:?}"));
            };
            if size == 0 {
                break;
            }
            while self.buffer.len() < size + 2 {
                self.more()?;
            }
            let bytes: Vec<u8> = self.buffer.drain(..size).collect();
            if self.buffer.drain(..2).collect::<Vec<_>>() != b"\r\n" {
                return self.wrong("a chunk longer than it says");
            }
            self.note(request, bytes);
        }
        loop {
            let line = self.take_until(b"\r\n")?;
            if line == b"\r\n" {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let Some((name, value)) = text.split_once(": ") else {
                return self.wrong(&format!("a trailer {text:?}"));
            };
            let trailer = (name.to_owned(), value.to_owned());
            let mut state = self.shared.state.lock().unwrap();
            state.seen[request].trailers.push(trailer);
        }
    }

    fn note(&self, request: usize, bytes: Vec<u8>) {
        let mut state = self.shared.state.lock().unwrap();
        state.seen[request].body.extend_from_slice(&bytes);
    }

    fn wrong<T>(&self, what: &str) -> Result<T, ConnectionOver> {
        let mut state = self.shared.state.lock().unwrap();
        state.wrong.push(what.to_owned());
        Err(ConnectionOver)
    }

    fn take_until(&mut self, end: &[u8]) -> Result<Vec<u8>, ConnectionOver> {
        loop {
            if let Some(at) = find(&self.buffer, end) {
                return Ok(self.buffer.drain(..at + end.len()).collect());
            }
            self.more()?;
        }
    }

    fn more(&mut self) -> Result<(), ConnectionOver> {
        let mut bytes = [0; 64 << 10];
        let count = loop {
            match self.link.read(&mut bytes) {
                Ok(count) => break count,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break 0,
            }
        };
        let mut state = self.shared.state.lock().unwrap();
        if count == 0 || state.stopped {
            return Err(ConnectionOver);
        }
        state.received[self.number].extend_from_slice(&bytes[..count]);
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum RequestFraming {
    None,
    Length(usize),
    Chunked,
}

fn framing(seen: &ReceivedRequest) -> RequestFraming {
    if seen.field("transfer-encoding").is_some() {
        return RequestFraming::Chunked;
    }
    let length = seen.field("content-length");
    match length.and_then(|value| value.parse().ok()).unwrap_or(0) {
        0 => RequestFraming::None,
        length => RequestFraming::Length(length),
    }
}

/// Parses a head strictly; returns the error otherwise.
fn parse(head: &[u8]) -> Result<ReceivedRequest, &'static str> {
    let text: String = head[..head.len() - 4]
        .iter()
        .map(|&b| char::from(b))
        .collect();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else {
        return Err("a request line");
    };
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if method.is_empty() || !method.chars().all(is_token) || target.is_empty() {
        return Err("a request line");
    }
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a line without a colon")?;
        let value = value.strip_prefix(' ').unwrap_or(value);
        let is_control = |c: char| (c < ' ' && c != '\t') || c == '\x7f';
        if name.is_empty() || !name.chars().all(is_token) || value.chars().any(is_control) {
            return Err("a field");
        }
        fields.push((name.to_owned(), value.to_owned()));
    }
    let all = |name: &str| {
        let found = fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    match (&lengths[..], &codings[..]) {
        ([], []) | ([], ["chunked"]) => {}
        ([one], []) if one.bytes().all(|b| b.is_ascii_digit()) && !one.is_empty() => {}
        _ => return Err("framed in doubt"),
    }
    if all("host").len() != 1 {
        return Err("not one host");
    }
    Ok(ReceivedRequest {
        method: method.to_owned(),
        target: target.to_owned(),
        head: head.to_vec(),
        fields,
        ..ReceivedRequest::default()
    })
}
