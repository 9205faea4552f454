//! A small HTTP/1.1 client: one connection, one request at a time.
//!
//! The command line, health checks and `bench` use it for their own requests. Proxied requests and
//! measured loads have connections of their own, which relay or count and keep no body.
//!
//! # Invariants
//!
//! - An exchange has one deadline, from connecting to the last byte of the body.
//! - A response is complete only by its own framing, and its body has a bound.
//! - A connection is used again only if the server has neither closed it nor sent unsolicited
//!   bytes.

mod tls_target;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock_http::{
    BodyDecoder, BodyError, ParseProgress, ResponseHead, ResponseHeadError, ResponseHeadLimits,
    ResponseHeadScanner,
};
use penstock_runtime::{Stream, clock};
use penstock_tls::HandshakeError;
use thiserror::Error;

pub use tls_target::TlsTarget;

/// A server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Connects; the caller bounds the wait.
    ///
    /// # Errors
    /// The connection could not be made.
    pub async fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(address) => Stream::connect_tcp(*address).await,
            Self::Unix(path) => Stream::connect_unix(path).await,
        }
    }
}

/// Why there is no response.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// There is no TLS session; nothing was sent.
    #[error("TLS handshake failed: {0}")]
    Handshake(HandshakeError),
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("closed without a response")]
    Closed,
    #[error("closed within the response")]
    Incomplete,
    #[error("malformed response: {0}")]
    Head(#[from] ResponseHeadError),
    #[error("malformed response: {0}")]
    Body(#[from] BodyError),
    #[error("more interim responses than {MAX_INTERIM_RESPONSES}")]
    TooManyInterim,
    #[error("response body above {0} bytes")]
    BodyTooLarge(usize),
}

/// A complete response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub body: Vec<u8>,
}

/// A connection to one server, opened when a request needs it, and kept.
#[derive(Debug)]
pub struct Client {
    address: Address,
    tls: Option<TlsTarget>,
    stream: Option<Stream>,
}

impl Client {
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            tls: None,
            stream: None,
        }
    }

    /// Makes each connection with TLS, if `tls` has a server.
    #[must_use]
    pub fn with_tls(self, tls: Option<TlsTarget>) -> Self {
        Self { tls, ..self }
    }

    /// Opens the connection before the first request.
    ///
    /// # Errors
    /// The connection could not be made within `timeout`.
    pub async fn connect(&mut self, timeout: Duration) -> Result<(), ClientError> {
        let stream = self.open_stream(clock::now() + timeout).await?;
        self.stream = Some(stream);
        Ok(())
    }

    /// Sends a request other than `HEAD` and reads the response, with a body of at most `max_body`
    /// bytes, within `timeout`.
    ///
    /// # Errors
    /// Why there is no complete response. Only after [`ClientError::Connect`] and
    /// [`ClientError::Handshake`] is it certain that the server has not read the request.
    pub async fn exchange(
        &mut self,
        request: &[u8],
        timeout: Duration,
        max_body: usize,
    ) -> Result<Response, ClientError> {
        let deadline = clock::now() + timeout;
        // Kept again only if nothing about it is in doubt (RFC 9112 §9.3.1).
        let stream = match self.stream.take().filter(Stream::is_open) {
            Some(stream) => stream,
            None => self.open_stream(deadline).await?,
        };
        let exchange = async {
            stream.write_all(request).await?;
            let mut received = Vec::new();
            let head = read_head(&stream, &mut received, ResponseHeadScanner::new()).await?;
            let mut body = Vec::new();
            read_body(&stream, &mut received, &head, max_body, &mut body).await?;
            let status = head.status;
            let is_reusable = head.keep_alive && received.is_empty();
            Ok((Response { status, body }, is_reusable))
        };
        let (response, is_reusable) = clock::timeout_at(deadline, exchange)
            .await
            .unwrap_or(Err(ClientError::Timeout(timeout)))?;
        self.stream = is_reusable.then_some(stream);
        Ok(response)
    }

    async fn open_stream(&self, deadline: Instant) -> Result<Stream, ClientError> {
        let opened = clock::timeout_at(deadline, open_stream(&self.address, self.tls.as_ref()));
        let timed_out = || Err(ClientError::Connect(io::ErrorKind::TimedOut.into()));
        opened.await.unwrap_or_else(timed_out)
    }
}

/// Connects, with TLS if `tls` has a server. The caller bounds the wait.
///
/// # Errors
/// [`ClientError::Connect`] or [`ClientError::Handshake`].
pub async fn open_stream(
    address: &Address,
    tls: Option<&TlsTarget>,
) -> Result<Stream, ClientError> {
    let stream = address.connect().await.map_err(ClientError::Connect)?;
    let Some(tls) = tls else {
        return Ok(stream);
    };
    // Boxed: the state of a handshake takes 16 KiB, and plain connections need none of it.
    let session = Box::pin(tls.connect(&stream)).await;
    Ok(session.map_err(ClientError::Handshake)?.over(stream))
}

/// Reads the head of the final response and removes it from `received`, which may begin with bytes
/// of it. The caller bounds the wait.
///
/// # Errors
/// The connection's error, or why the bytes are no response head; they remain in `received`.
pub async fn read_head(
    stream: &Stream,
    received: &mut Vec<u8>,
    mut scanner: ResponseHeadScanner,
) -> Result<ResponseHead, ClientError> {
    let limits = ResponseHeadLimits::default();
    let mut interim = 0;
    loop {
        match scanner.scan(received, false, &limits)? {
            ParseProgress::Partial => read_more(stream, received).await?,
            ParseProgress::Complete(head) => {
                received.drain(..head.len);
                if head.status >= 200 || head.status == 101 {
                    return Ok(head);
                }
                interim += 1;
                if interim > MAX_INTERIM_RESPONSES {
                    return Err(ClientError::TooManyInterim);
                }
            }
        }
    }
}

/// Appends the body that follows `head` to `body`, at most `max_body` bytes. The caller bounds the
/// wait.
///
/// # Errors
/// The connection's error, or why the body is not complete; `body` has the part that was read.
pub async fn read_body(
    stream: &Stream,
    received: &mut Vec<u8>,
    head: &ResponseHead,
    max_body: usize,
    body: &mut Vec<u8>,
) -> Result<(), ClientError> {
    let mut decoder = BodyDecoder::for_response(head.framing);
    loop {
        match &mut decoder {
            Some(decoder) => {
                let mut taken = 0;
                while taken < received.len() && !decoder.is_done() {
                    let rest = &received[taken..];
                    let decoded = decoder.decode(rest)?;
                    body.extend_from_slice(&rest[decoded.content]);
                    taken += decoded.consumed;
                }
                received.drain(..taken);
            }
            None => body.append(received),
        }
        if body.len() > max_body {
            body.truncate(max_body);
            return Err(ClientError::BodyTooLarge(max_body));
        }
        if decoder.as_ref().is_some_and(BodyDecoder::is_done) {
            return Ok(());
        }
        match read_more(stream, received).await {
            Err(ClientError::Closed) if decoder.is_none() => return Ok(()),
            Err(ClientError::Closed) => return Err(ClientError::Incomplete),
            other => other?,
        }
    }
}

/// Appends the bytes that arrive next. The caller bounds the wait.
///
/// # Errors
/// The connection's error; also its end.
pub async fn read_more(stream: &Stream, received: &mut Vec<u8>) -> Result<(), ClientError> {
    let len = received.len();
    received.resize(len + READ_BYTES, 0);
    let count = poll_fn(|cx| stream.poll_read(cx, &mut received[len..])).await;
    received.truncate(len + *count.as_ref().unwrap_or(&0));
    match count? {
        0 => Err(ClientError::Closed),
        _ => Ok(()),
    }
}

/// More interim responses than any server sends.
const MAX_INTERIM_RESPONSES: usize = 16;

const READ_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests;
