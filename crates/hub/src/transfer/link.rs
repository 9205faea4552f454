//! One end of the packet socket between the two processes.
//!
//! A message is JSON in one or more packets; the first byte of each says whether more follow.
//! Descriptors come with the last.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use penstock_runtime::{RegisteredFd, clock};
use penstock_sys::poll::Interest;
use penstock_sys::{fd_packets, net};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{SEND_TIMEOUT, TransferError};

/// Bytes of a packet: a few of them fit into the socket's buffer.
const PACKET_BYTES: usize = 32 << 10;

/// Bytes of a message: a channel with all of its history.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

const LAST: u8 = b'.';
const MORE: u8 = b'+';

/// The socket. One task sends, one receives.
#[derive(Debug)]
pub(crate) struct TransferSocket {
    fd: RegisteredFd,
    /// The packets of a message that has not come whole.
    received: Mutex<Vec<u8>>,
}

/// A message with the descriptors that there was room for.
#[derive(Debug)]
pub(super) struct Received<T> {
    pub(super) message: T,
    pub(super) fds: Vec<OwnedFd>,
}

impl TransferSocket {
    /// The socket on the current loop.
    ///
    /// # Errors
    /// When no loop runs here, or the kernel does not watch it.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            fd: RegisteredFd::new(socket, Interest::Both)?,
            received: Mutex::default(),
        })
    }

    /// Ends it in both directions; what has come already can be received.
    pub(super) fn shutdown(&self) {
        // It may be closed at the other end.
        let _ = net::shutdown(self.fd.as_fd(), net::Shutdown::Both);
    }

    pub(super) async fn send(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), TransferError> {
        let text = serde_json::to_vec(message);
        let text = text.map_err(|error| TransferError::BadMessage(error.to_string()))?;
        let count = text.len().div_ceil(PACKET_BYTES);
        let mut packet = Vec::with_capacity(text.len().min(PACKET_BYTES) + 1);
        for (number, piece) in text.chunks(PACKET_BYTES).enumerate() {
            let is_last = number + 1 == count;
            packet.clear();
            packet.push(if is_last { LAST } else { MORE });
            packet.extend_from_slice(piece);
            let fds = if is_last { fds } else { &[] };
            let sent = clock::timeout(SEND_TIMEOUT, self.send_packet(&packet, fds)).await;
            sent.ok_or(TransferError::Stalled)??;
        }
        Ok(())
    }

    async fn send_packet(
        &self,
        packet: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), TransferError> {
        loop {
            poll_fn(|cx| self.fd.poll_writable(cx)).await?;
            match fd_packets::send_packet_with_fds(self.fd.as_fd(), packet, fds) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.fd.clear_writable(),
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(TransferError::Closed);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits for a message. Cancel safety: nothing is lost.
    pub(super) async fn receive<T: DeserializeOwned>(&self) -> Result<Received<T>, TransferError> {
        let mut buffer = vec![0; PACKET_BYTES + 1];
        loop {
            poll_fn(|cx| self.fd.poll_readable(cx)).await?;
            let received =
                match fd_packets::receive_packet_with_available_fds(self.fd.as_fd(), &mut buffer) {
                    Ok(received) => received,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        self.fd.clear_readable();
                        continue;
                    }
                    // The other end is closed; what it sent before can still be received.
                    Err(e) if e.kind() == io::ErrorKind::ConnectionReset => continue,
                    Err(e) => return Err(e.into()),
                };
            let Some((kind, piece)) = buffer[..received.length].split_first() else {
                return Err(TransferError::Closed);
            };
            let mut text = self.received.lock().unwrap_or_else(PoisonError::into_inner);
            if text.len() + piece.len() > MAX_MESSAGE_BYTES {
                return Err(TransferError::BadMessage("it is too long".to_owned()));
            }
            text.extend_from_slice(piece);
            if *kind == LAST {
                let message = serde_json::from_slice(&std::mem::take(&mut *text));
                let message = message.map_err(|e| TransferError::BadMessage(e.to_string()))?;
                return Ok(Received {
                    message,
                    fds: received.fds,
                });
            }
        }
    }
}
