//! The seam between a stream and a protocol below its bytes, such as TLS.
//!
//! A [`Stream`] with a layer has the methods of one without: the layer transforms bytes on their way
//! from and to the socket, which it sees as a [`LayerSocket`].

use std::any::Any;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use penstock_sys::net;

use super::Stream;

/// Transforms the bytes of one stream.
///
/// # Invariants
/// - A write reports its last byte only when everything accepted so far is with the kernel. A writer
///   that repeats until all is reported leaves nothing behind, as with a plain socket.
/// - After `WouldBlock`, and after a partial write, the writer goes on with the bytes that were not
///   reported.
/// - An idle layer owns no buffer.
pub trait StreamLayer: Send + Sync + Debug {
    /// As [`Stream::poll_read`]. An end that the peer has not announced is an error.
    fn poll_read(
        &self,
        socket: LayerSocket<'_>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>>;

    /// As [`Stream::try_write`].
    ///
    /// # Errors
    /// `WouldBlock` while earlier output waits for the socket, or the connection's error.
    fn try_write(&self, socket: LayerSocket<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize>;

    /// As [`Stream::poll_peer_activity`], for bytes that [`StreamLayer::poll_read`] would return.
    fn poll_peer_activity(&self, socket: LayerSocket<'_>, cx: &mut Context<'_>) -> Poll<bool>;

    /// As [`Stream::is_open`]; handles what the layer below has to say meanwhile.
    fn is_open(&self, socket: LayerSocket<'_>) -> bool;

    /// Whether bytes that were received wait to be read, or the stream has ended: what the socket's
    /// own events do not show.
    fn has_unread(&self) -> bool;

    /// Bytes that the layer has accepted and the kernel has not.
    fn pending_bytes(&self) -> u64;

    /// Announces the end and closes the sending side. What the socket does not take now is sent when
    /// it has room, by the reads that follow.
    fn shutdown_write(&self, socket: LayerSocket<'_>);

    /// As [`Stream::poll_shutdown_write`].
    fn poll_shutdown_write(&self, socket: LayerSocket<'_>, cx: &mut Context<'_>) -> Poll<()>;

    /// The stream will be closed so that its peer sees that the message was cut: no end is announced.
    fn abort(&self);

    /// Called as the stream is dropped: announces the end if nothing was cut. Must not wait.
    fn close(&self, socket: LayerSocket<'_>);

    /// The layer itself, for its maker.
    fn as_any(&self) -> &dyn Any;

    /// The layer itself, for its maker.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// The socket below a layer.
#[derive(Debug, Clone, Copy)]
pub struct LayerSocket<'a>(pub(super) &'a Stream);

impl LayerSocket<'_> {
    /// Reads available bytes; 0 is the end.
    pub fn poll_read(self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_read_socket(cx, buffer)
    }

    /// Reads available bytes without waiting, on any loop; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub fn try_read(self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = net::receive(self.0.socket_fd(), buffer);
        let is_empty = match &read {
            Ok(count) => 0 < *count && *count < buffer.len(),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if is_empty && self.0.is_on_current_loop() {
            self.0.clear_readable();
        }
        read
    }

    /// Writes a prefix of `bytes` now.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub fn try_write(self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write_socket(&[IoSlice::new(bytes)])
    }

    /// Writes a prefix of `bytes`; pending when the socket is full. For one task only: it takes the
    /// place of another that waits for room.
    pub fn poll_write(self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write_by(cx, || self.try_write(bytes))
    }

    /// Closes the sending side of the socket.
    pub fn shutdown_write(self) {
        self.0.shutdown_socket();
    }
}
