//! A connection that carries lines of text. Cancel safety: a line that was read in part is
//! completed by the next read.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use penstock_runtime::{Stream, buffers, clock};
use penstock_wire::join::{JoinError, MAX_LINE_BYTES};

use super::{JoinFailure, WRITE_TIMEOUT};

/// Maximum wait for a refused peer to close its side.
const LAST_LINE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct LineStream {
    stream: Stream,
    /// Bytes read but not returned.
    buffered: Vec<u8>,
}

impl LineStream {
    /// Creates a stream; `early` was read from it already.
    pub(super) fn new(stream: Stream, early: Vec<u8>) -> Self {
        Self {
            stream,
            buffered: early,
        }
    }

    /// Reads the next line, without its end.
    pub(super) async fn next_line(&mut self) -> Result<String, JoinFailure> {
        loop {
            let end = memchr::memchr(b'\n', &self.buffered);
            match end {
                Some(end) if end < MAX_LINE_BYTES => {
                    let mut line: Vec<u8> = self.buffered.drain(..=end).collect();
                    line.pop();
                    let line = String::from_utf8(line);
                    return line.map_err(|_| JoinError::Malformed.into());
                }
                None if self.buffered.len() < MAX_LINE_BYTES => {}
                _ => return Err(JoinError::Malformed.into()),
            }
            self.fill().await?;
        }
    }

    /// Whether the peer begins a TLS handshake (RFC 8446 §5.1). Waits for its first byte.
    pub(super) async fn begins_with_tls(&mut self) -> Result<bool, JoinFailure> {
        const HANDSHAKE_RECORD: u8 = 22;
        while self.buffered.is_empty() {
            self.fill().await?;
        }
        Ok(self.buffered.first() == Some(&HANDSHAKE_RECORD))
    }

    /// Sends the last line. Reads on until the peer has closed: bytes that stay unread would make
    /// the kernel reset the connection, and the peer might lose the line.
    pub(super) async fn send_last(&mut self, text: &str) -> Result<(), JoinFailure> {
        self.send(text).await?;
        self.stream.shutdown_write();
        let until_end = async {
            while self.fill().await.is_ok() {
                self.buffered.clear();
            }
        };
        clock::timeout(LAST_LINE_TIMEOUT, until_end).await;
        Ok(())
    }

    async fn fill(&mut self) -> Result<(), JoinFailure> {
        poll_fn(|cx| {
            buffers::with_receive_buffer(|buffer| {
                Poll::Ready(match ready!(self.stream.poll_read(cx, buffer))? {
                    0 => Err(JoinFailure::Closed),
                    count => {
                        self.buffered.extend_from_slice(&buffer[..count]);
                        Ok(())
                    }
                })
            })
        })
        .await
    }

    /// Writes `text`, which includes its line end.
    pub(super) async fn send(&self, text: &str) -> Result<(), JoinFailure> {
        match clock::timeout(WRITE_TIMEOUT, self.stream.write_all(text.as_bytes())).await {
            Some(said) => Ok(said?),
            None => Err(JoinFailure::Timeout),
        }
    }

    /// The connection, and the bytes read behind the last line.
    pub(super) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.buffered)
    }
}
