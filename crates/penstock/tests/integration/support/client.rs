//! A client of raw bytes: sends exact bytes and reads responses strictly.
//!
//! Tests connect with it to listeners and the admin interface.
//!
//! # Invariants
//!
//! - A response with doubtful framing, or one that violates RFC 9112, fails the test.
//! - Bytes after a response stay in `received`.
//! - No read waits longer than the client's patience.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::PATIENCE;

/// One GET on its own connection; any status.
pub(crate) fn get(port: u16, path: &str) -> Response {
    let mut client = RawClient::connect(port);
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    ));
    client.response()
}

/// A connection on which the test sends exact bytes.
pub(crate) struct RawClient {
    channel: Box<dyn ClientStream>,
    /// Received bytes that belong to no response yet.
    pub(crate) received: Vec<u8>,
    patience: Duration,
}

/// A response, read whole.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) line: String,
    /// Names as sent, values as Latin-1.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// Why there is no whole response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponseError {
    /// Closed before the first byte of a response.
    Closed,
    /// Closed or reset inside a response; has the bytes so far, a body decoded.
    Truncated(Vec<u8>),
    /// Nothing more arrived in time; has the raw bytes so far.
    TimedOut(Vec<u8>),
}

impl Response {
    /// The value of a header; names are case-insensitive.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(crate) trait ClientStream: Read + Write + Send {
    fn set_patience(&self, patience: Duration);
    fn close_write(&self);
    /// Makes the next close a reset.
    fn reset_on_close(&self);
}

impl ClientStream for TcpStream {
    fn set_patience(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
        self.set_write_timeout(Some(patience)).unwrap();
    }
    fn close_write(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
    fn reset_on_close(&self) {
        rustix::net::sockopt::set_socket_linger(self, Some(Duration::ZERO)).unwrap();
    }
}

impl ClientStream for UnixStream {
    fn set_patience(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
        self.set_write_timeout(Some(patience)).unwrap();
    }
    fn close_write(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
    fn reset_on_close(&self) {}
}

impl RawClient {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(Box::new(stream))
    }

    /// From an address of this machine, which stands for another client.
    pub(crate) fn connect_from(source: [u8; 4], port: u16) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((source, 0))).unwrap();
        connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).unwrap();
        Self::over(Box::new(stream))
    }

    pub(crate) fn connect_unix(path: &Path) -> Self {
        Self::over(Box::new(UnixStream::connect(path).unwrap()))
    }

    pub(crate) fn over(channel: Box<dyn ClientStream>) -> Self {
        channel.set_patience(PATIENCE);
        Self {
            channel,
            received: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// Sets the timeout of each read.
    pub(crate) fn patience(&mut self, patience: Duration) -> &mut Self {
        self.channel.set_patience(patience);
        self.patience = patience;
        self
    }

    /// Sends exact bytes; panics if the server no longer accepts them.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.try_send(bytes).unwrap();
        self
    }

    /// Sends bytes; an error if the server no longer accepts them.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.channel.write_all(bytes.as_ref())
    }

    /// Closes the sending side.
    pub(crate) fn close_write(&mut self) -> &mut Self {
        self.channel.close_write();
        self
    }

    /// Closes with a reset, so that the peer notices at once.
    pub(crate) fn reset(self) {
        self.channel.reset_on_close();
    }

    /// One read: appended to `received` and returned; empty at the end or after a reset, `None`
    /// after a timeout.
    pub(crate) fn read_some(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match self.channel.read(&mut buffer) {
                Ok(count) => {
                    buffer.truncate(count);
                    self.received.extend_from_slice(&buffer);
                    return Some(buffer);
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return None;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(Vec::new()),
            }
        }
    }

    /// Reads the next response (to anything but HEAD) and expects this status.
    pub(crate) fn expect_status(&mut self, status: u16) -> Response {
        let response = self.response();
        assert_eq!(
            response.status,
            status,
            "{}\n{}",
            response.line,
            response.text()
        );
        response
    }

    /// Reads the next response to a HEAD request: no body, whatever its headers say.
    pub(crate) fn expect_head(&mut self, status: u16) -> Response {
        let response = self.try_response(true).unwrap();
        assert_eq!(response.status, status, "{}", response.line);
        response
    }

    /// Reads the next response, whatever its status; interim ones (1xx) are responses of their own.
    pub(crate) fn response(&mut self) -> Response {
        self.try_response(false).unwrap()
    }

    /// Expects the server to close, without another byte.
    pub(crate) fn expect_closed(&mut self) {
        let rest = self.read_to_end();
        assert!(
            rest.is_empty(),
            "more came: {}",
            String::from_utf8_lossy(&rest)
        );
    }

    /// Everything up to the end of the connection; panics if it is not closed in time.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        loop {
            match self.read_some() {
                Some(bytes) if bytes.is_empty() => return std::mem::take(&mut self.received),
                Some(_) => {}
                None => panic!("not closed within {:?}", self.patience),
            }
        }
    }

    /// Reads the next response; bytes after it stay in `received`.
    pub(crate) fn try_response(&mut self, to_head: bool) -> Result<Response, ResponseError> {
        let end = loop {
            match find(&self.received, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.more(&[])?,
            }
        };
        let head: Vec<u8> = self.received.drain(..end).collect();
        let mut response = parse_head(&head);
        if to_head || matches!(response.status, 100..=199 | 204 | 304) {
            return Ok(response);
        }
        let length = response
            .header("content-length")
            .map(|v| v.parse::<usize>().unwrap());
        let chunked = response.header("transfer-encoding").map(str::to_owned);
        let body = match (length, chunked.as_deref()) {
            (Some(length), None) => self.take(length, &[]),
            (None, Some("chunked")) => self.chunks(),
            (None, None) => Ok(self.read_to_end()),
            both => panic!("doubtful framing: {both:?}"),
        };
        response.body = body.map_err(|broken| match broken {
            ResponseError::Closed => ResponseError::Truncated(Vec::new()),
            other => other,
        })?;
        Ok(response)
    }

    fn chunks(&mut self) -> Result<Vec<u8>, ResponseError> {
        let mut body = Vec::new();
        loop {
            let line = self.line(&body)?;
            let size =
                usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("chunk {line:?}"));
            if size == 0 {
                assert_eq!(self.line(&body)?, "", "a trailer was sent");
                return Ok(body);
            }
            let data = self.take(size, &body)?;
            body.extend_from_slice(&data);
            assert_eq!(self.line(&body)?, "", "behind the data of a chunk");
        }
    }

    fn line(&mut self, so_far: &[u8]) -> Result<String, ResponseError> {
        loop {
            if let Some(end) = find(&self.received, b"\r\n") {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.more(so_far)?;
        }
    }

    fn take(&mut self, count: usize, so_far: &[u8]) -> Result<Vec<u8>, ResponseError> {
        while self.received.len() < count {
            self.more(so_far)?;
        }
        Ok(self.received.drain(..count).collect())
    }

    /// One more read, or why a response will not be whole.
    fn more(&mut self, so_far: &[u8]) -> Result<(), ResponseError> {
        let read = self.read_some();
        let known = || [so_far, &self.received].concat();
        match read {
            None => Err(ResponseError::TimedOut(known())),
            Some(bytes) if !bytes.is_empty() => Ok(()),
            Some(_) if self.received.is_empty() && so_far.is_empty() => Err(ResponseError::Closed),
            Some(_) => Err(ResponseError::Truncated(known())),
        }
    }
}

fn parse_head(head: &[u8]) -> Response {
    let text: String = head[..head.len() - 4]
        .iter()
        .map(|&b| char::from(b))
        .collect();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
    assert!(line.starts_with("HTTP/1.1 "), "{line:?}");
    let headers = lines.map(|line| {
        let (name, value) = line
            .split_once(": ")
            .unwrap_or_else(|| panic!("header {line:?}"));
        assert!(!line.contains(['\r', '\n']), "header {line:?}");
        (name.to_owned(), value.to_owned())
    });
    Response {
        status,
        headers: headers.collect(),
        line,
        body: Vec::new(),
    }
}

/// Where `needle` begins in `bytes`.
pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}
