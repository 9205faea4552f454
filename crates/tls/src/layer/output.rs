//! Sealed bytes on their way to the socket.
//!
//! # Invariants
//! - Behind a failed write nothing is sent: a record may be lost.

use std::io;
use std::task::{Context, Poll, ready};

use penstock_runtime::LayerSocket;

/// Sealed bytes on their way to the socket.
#[derive(Default)]
pub(super) struct Output {
    /// Not with the kernel yet.
    pub(super) pending: Vec<u8>,
    /// Bytes of plaintext that were sealed and not reported as written: 0 or 1. The writer repeats
    /// them.
    pub(super) unreported: usize,
    /// The sending side of the socket closes behind `pending`: no writer waits for it.
    pub(super) ends_behind: bool,
    /// Why the socket takes no more. A record may be lost, so that none may follow.
    pub(super) failure: Option<io::ErrorKind>,
}

impl Output {
    /// Sends what is pending.
    ///
    /// # Errors
    /// `WouldBlock` if a part is still pending, or the connection's error.
    pub(super) fn flush(&mut self, socket: LayerSocket<'_>) -> io::Result<()> {
        if let Some(kind) = self.failure {
            return Err(kind.into());
        }
        if !self.pending.is_empty() {
            let sent = socket.try_write(&self.pending);
            self.remove_sent(sent)?;
            if !self.pending.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        self.close_if_ended(socket);
        Ok(())
    }

    /// As [`Output::flush`]; ready when nothing is pending, or nothing can be sent any more.
    pub(super) fn poll_flush(&mut self, socket: LayerSocket<'_>, cx: &mut Context<'_>) -> Poll<()> {
        while !self.pending.is_empty() {
            let sent = ready!(socket.poll_write(cx, &self.pending));
            let _ = self.remove_sent(sent);
        }
        self.close_if_ended(socket);
        Poll::Ready(())
    }

    fn close_if_ended(&mut self, socket: LayerSocket<'_>) {
        if std::mem::take(&mut self.ends_behind) {
            socket.shutdown_write();
        }
    }

    /// Sends `sealed` behind what is pending; returns whether all of it is with the kernel.
    pub(super) fn send(&mut self, socket: LayerSocket<'_>, sealed: &[u8]) -> io::Result<bool> {
        let mut sent = 0;
        if self.pending.is_empty() {
            sent = match self.note_failure(socket.try_write(sealed)) {
                Err(error) if is_temporary(&error) => 0,
                sent => sent?,
            };
        }
        self.pending.extend_from_slice(&sealed[sent..]);
        Ok(self.pending.is_empty())
    }

    fn remove_sent(&mut self, sent: io::Result<usize>) -> io::Result<()> {
        let sent = self.note_failure(sent)?;
        self.pending.drain(..sent);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        Ok(())
    }

    /// Keeps the error of a socket that takes no more: what was sealed for it is lost.
    fn note_failure(&mut self, sent: io::Result<usize>) -> io::Result<usize> {
        sent.inspect_err(|error| {
            if !is_temporary(error) {
                self.failure = Some(error.kind());
                self.pending = Vec::new();
            }
        })
    }
}

/// Whether a write may succeed later.
fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
