//! A byte stream over a TCP or Unix stream socket, based on readiness.
//!
//! `edge` reads clients, `apps` its workers and `bench` servers through it. Reads fill a buffer of
//! the caller's, the loop's shared one ([`crate::buffers`]), so an idle stream owns no buffer. A
//! read that did not fill its buffer clears the readiness: the next poll waits in `epoll` without
//! another read, which saves a system call per request. A partial write does the same: the socket
//! is full, and an edge reports when it has room again. A stream may have a [`StreamLayer`] such as
//! TLS; its users see no difference.

mod detached;
mod layer;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_sys::net;
use penstock_sys::peer_process::PeerProcess;
use penstock_sys::poll::{self, Interest};

use crate::clock;
use crate::disk::DiskFile;
use crate::registered_fd::RegisteredFd;

pub use detached::DetachedStream;
pub use layer::{LayerSocket, StreamLayer};

/// When the peer of a half-closed connection is probed first; a multiple of any round-trip time.
const PROBE_IDLE: Duration = Duration::from_secs(5);

const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A host that leaves this many probes unanswered is gone.
const MAX_PROBES: u32 = 6;

/// Lets the kernel detect by TCP keepalive that the peer of a half-closed connection has left,
/// where nothing is sent that would reveal it. A peer that closed its socket completely refuses a
/// probe once its system has forgotten the connection (Linux: `tcp_fin_timeout`, a minute); a peer
/// whose host is gone does not answer. Either is detected after 75 seconds at most. Other sockets
/// than TCP report it without probes.
pub fn probe_peer(socket: BorrowedFd<'_>) {
    // Fails only for sockets of another kind.
    let _ = net::enable_keepalive(socket, PROBE_IDLE, PROBE_INTERVAL, MAX_PROBES);
}

/// Bytes from and to a peer: a socket, or a layer over one. The methods are those of [`Stream`].
pub trait ByteStream: Send + Sync + std::fmt::Debug {
    /// As [`Stream::poll_read`].
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// As [`Stream::poll_write`].
    fn poll_write(&self, cx: &mut Context<'_>, buffers: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// As [`Stream::try_write`].
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    fn try_write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize>;

    /// As [`Stream::poll_broken`].
    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// As [`Stream::is_ended`].
    fn is_ended(&self) -> bool;

    /// As [`Stream::probe_peer`].
    fn probe_peer(&self);

    /// As [`Stream::shutdown_write`].
    fn shutdown_write(&self);

    /// As [`Stream::poll_shutdown_write`].
    fn poll_shutdown_write(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// As [`Stream::abort`].
    fn abort(&self);
}

/// Writes all of `bytes` at the peer's pace. Cancel safety: none, a part may be out.
pub async fn write_all<S: ByteStream + ?Sized>(stream: &S, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)])).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// A non-blocking stream socket registered with the loop that created it.
#[derive(Debug)]
pub struct Stream {
    socket: RegisteredFd,
    layer: Option<Box<dyn StreamLayer>>,
}

impl Stream {
    /// Registers `socket`, which must be non-blocking, with the current loop.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: RegisteredFd::new(socket, Interest::Both)?,
            layer: None,
        })
    }

    /// Puts `layer` between the socket and the users of the stream.
    #[must_use]
    pub fn with_layer(mut self, layer: Box<dyn StreamLayer>) -> Self {
        self.layer = Some(layer);
        self
    }

    /// The layer, if there is one.
    pub fn layer(&self) -> Option<&dyn StreamLayer> {
        self.layer.as_deref()
    }

    /// The process at the other end of a Unix socket.
    ///
    /// # Errors
    /// When it is not a Unix socket, or the kernel's error.
    pub fn peer_process(&self) -> io::Result<PeerProcess> {
        PeerProcess::from_socket(self.socket.as_fd())
    }

    /// Connects to a TCP address. The caller bounds the wait.
    ///
    /// # Errors
    /// Why the connection failed, or that descriptors ran out.
    pub async fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = Self::new(net::connect_tcp(address)?)?;
        // Readiness stays set: the first write needs no other poll.
        poll_fn(|cx| stream.socket.poll_writable(cx)).await?;
        net::connect_result(stream.socket.as_fd())?;
        Ok(stream)
    }

    /// Connects to the Unix socket at `path`. The caller bounds the wait.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        loop {
            match net::connect_unix(path) {
                // The kernel does not report when a listener's queue has room again (connect(2)).
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    clock::sleep(FULL_QUEUE_RETRY_DELAY).await;
                }
                connected => return Self::new(connected?),
            }
        }
    }

    /// Reads available bytes; 0 is the end of the stream.
    pub fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match &self.layer {
            None => self.poll_read_socket(cx, buffer),
            Some(layer) => layer.poll_read(LayerSocket(self), cx, buffer),
        }
    }

    fn poll_read_socket(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_read_by(cx, buffer, |socket, buffer| {
            net::receive(socket, buffer).map(|count| (count, count < buffer.len()))
        })
    }

    /// Like [`Stream::poll_read`], collecting descriptors that come with the bytes.
    pub fn poll_read_with_descriptors(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Poll<io::Result<usize>> {
        self.poll_read_by(cx, buffer, |socket, buffer| {
            let before = descriptors.len();
            let count = net::receive_with_descriptors(socket, buffer, descriptors)?;
            // unix(7): a read ends behind the message that brought descriptors, whatever follows
            // it.
            let is_empty = count < buffer.len() && descriptors.len() == before;
            Ok((count, is_empty))
        })
    }

    /// Reads available bytes and descriptors; `WouldBlock` when there are none. Use it when data is
    /// known to have arrived, even if the loop has not seen the event.
    pub fn try_read_with_descriptors(
        &self,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        net::receive_with_descriptors(self.socket.as_fd(), buffer, descriptors)
    }

    /// Registers a socket that another process has sent, and may have made blocking.
    ///
    /// # Errors
    /// When it is not a stream socket, or the kernel refuses the registration.
    pub fn from_received(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Self::new(socket.into())
    }

    /// Like [`Stream::poll_read`], and returns which process sent the bytes
    /// (`sys::net::enable_sender_credentials`).
    pub fn poll_read_with_sender(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        sender: &mut Option<u32>,
    ) -> Poll<io::Result<usize>> {
        self.poll_read_by(cx, buffer, |socket, buffer| {
            let (count, pid) = net::receive_with_sender(socket, buffer)?;
            *sender = pid.or(*sender);
            // A read ends behind the bytes of one sender, whatever follows them (unix(7)).
            Ok((count, false))
        })
    }

    fn poll_read_by(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        mut read: impl FnMut(BorrowedFd<'_>, &mut [u8]) -> io::Result<(usize, bool)>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_readable(cx))?;
            match read(self.socket.as_fd(), buffer) {
                Ok((count, is_empty)) => {
                    // A short read emptied the socket: later bytes raise a new event. The end of
                    // the stream stays visible, so it is not cleared.
                    if count > 0 && is_empty {
                        self.socket.clear_readable();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.clear_readable(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    /// Writes a prefix of `buffers`.
    pub fn poll_write(
        &self,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by(cx, || self.try_write(buffers))
    }

    fn poll_write_by<T>(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(self.socket.poll_writable(cx))?;
            match write() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.clear_writable(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Writes a prefix of `buffers` now or returns `WouldBlock`; pair it with
    /// [`Stream::poll_write`].
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub fn try_write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.layer {
            None => self.try_write_socket(buffers),
            Some(layer) => layer.try_write(LayerSocket(self), buffers),
        }
    }

    fn try_write_socket(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match buffers {
            [one] => self.clear_writable_if_short(one.len(), net::send(self.socket.as_fd(), one)),
            many => {
                let len = many.iter().map(|slice| slice.len()).sum();
                let sent = net::send_vectored(self.socket.as_fd(), many);
                self.clear_writable_if_short(len, sent)
            }
        }
    }

    /// A non-blocking socket accepts less than all only when it is full, and then an edge reports
    /// when it has room (epoll(7), question 9): another attempt would only fail.
    fn clear_writable_if_short(&self, len: usize, sent: io::Result<usize>) -> io::Result<usize> {
        if sent.as_ref().is_ok_and(|sent| *sent < len) {
            self.socket.clear_writable();
        }
        sent
    }

    /// Writes a prefix of `bytes` now; the kernel may hold it back for what follows. The caller
    /// sends that in the same poll.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub fn try_write_with_more(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(layer) = &self.layer {
            return layer.try_write(LayerSocket(self), &[IoSlice::new(bytes)]);
        }
        let sent = net::send_with_more(self.socket.as_fd(), bytes);
        self.clear_writable_if_short(bytes.len(), sent)
    }

    /// Ready when the socket may accept bytes again after a write was refused.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_writable(cx)
    }

    /// Sends a part of a file that is known to be resident ([`DiskFile::resident_bytes`]), as far
    /// as the socket accepts it. 0 is the end of the file.
    ///
    /// # Errors
    /// `WouldBlock`, the connection's error, or the disk's.
    pub fn try_send_file(&self, file: &DiskFile, at: u64, len: usize) -> io::Result<usize> {
        if let Some(layer) = &self.layer {
            return file.with_piece(at, len, |piece| match piece {
                [] => Ok(0),
                piece => layer.try_write(LayerSocket(self), &[IoSlice::new(piece)]),
            });
        }
        let socket = self.socket.as_fd();
        let sent = file.send_to(socket, at, len)?;
        // A short send may have other reasons: the file became shorter, or a signal or system sleep
        // interrupted it (before Linux 6.5). Checking takes a fifth of the time of another attempt,
        // which fetches pages before it finds the socket full.
        if 0 < sent && sent < len && poll::is_write_full(socket) {
            self.socket.clear_writable();
        }
        Ok(sent)
    }

    /// Like [`Stream::try_send_file`]; pending when the socket is full.
    pub fn poll_send_file(
        &self,
        cx: &mut Context<'_>,
        file: &DiskFile,
        at: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by(cx, || self.try_send_file(file, at, len))
    }

    /// Writes all of `bytes`, waiting for the peer as needed. Not cancel safe: a part may have been
    /// sent.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        write_all(self, bytes).await
    }

    /// Sends `bytes` (few: they must fit at once) with a descriptor attached.
    pub async fn send_descriptor(&self, bytes: &[u8], descriptor: impl AsFd) -> io::Result<()> {
        self.send_descriptors(bytes, &[descriptor.as_fd()]).await
    }

    /// Like [`Stream::send_descriptor`], with up to `sys::net::MAX_DESCRIPTORS` of them.
    pub async fn send_descriptors(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let send = || net::send_descriptors(self.socket.as_fd(), bytes, descriptors);
        poll_fn(|cx| self.poll_write_by(cx, send)).await?;
        Ok(())
    }

    /// Shuts down the sending side; the peer reads the end of the stream.
    pub fn shutdown_write(&self) {
        match &self.layer {
            None => self.shutdown_socket(),
            Some(layer) => layer.shutdown_write(LayerSocket(self)),
        }
    }

    /// Shuts down the sending side; ready when the kernel has all that tells the peer. Call it before
    /// the stream is dropped where its end means something: a layer needs room in the socket for it.
    pub fn poll_shutdown_write(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.layer {
            None => {
                self.shutdown_socket();
                Poll::Ready(())
            }
            Some(layer) => layer.poll_shutdown_write(LayerSocket(self), cx),
        }
    }

    fn shutdown_socket(&self) {
        // A peer that is gone has seen a clearer end.
        let _ = net::shutdown(self.socket.as_fd(), net::Shutdown::Write);
    }

    /// Ready when the peer sent something, closed its side, or the connection broke; the last two
    /// are `true`. Peeks, so bytes that arrived stay unread.
    pub fn poll_peer_activity(&self, cx: &mut Context<'_>) -> Poll<bool> {
        if let Some(layer) = &self.layer {
            return layer.poll_peer_activity(LayerSocket(self), cx);
        }
        loop {
            if ready!(self.socket.poll_readable(cx)).is_err() {
                return Poll::Ready(true);
            }
            match net::peek(self.socket.as_fd()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.clear_readable(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                peeked => return Poll::Ready(!peeked.is_ok_and(|count| count > 0)),
            }
        }
    }

    /// Ready when the connection broke or the peer closed it completely. Used after the end of the
    /// stream was read, as a peer that has only closed its sending side still reads. Until then no
    /// read is ready, which would only find the end again; call [`Stream::resume_end_reporting`]
    /// before reading again.
    ///
    /// A TCP peer that closed completely looks half-closed until something is sent to it.
    pub fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.socket.is_broken() != Some(false) {
                return Poll::Ready(());
            }
            match ready!(self.socket.poll_readable(cx)) {
                Ok(()) => self.socket.set_end_reporting(false),
                Err(_) => return Poll::Ready(()),
            }
        }
    }

    /// As [`probe_peer`]: [`Stream::poll_broken`] is ready when the peer has left.
    pub fn probe_peer(&self) {
        probe_peer(self.socket.as_fd());
    }

    /// Lets reads find the end again that was read before [`Stream::poll_broken`].
    pub fn resume_end_reporting(&self) {
        self.socket.set_end_reporting(true);
    }

    /// Whether no event was reported since the last read: no bytes, no end. Costs no system call,
    /// except to find that an event was one of the layer below its bytes, such as a session ticket.
    pub fn has_no_event(&self) -> bool {
        match (self.socket.is_readable(), &self.layer) {
            (Some(is_readable), None) => !is_readable,
            (Some(false), Some(layer)) => !layer.has_unread(),
            (Some(true), Some(_)) | (None, _) => self.is_open(),
        }
    }

    /// Returns which of `streams`, of any loops, have bytes to read or have ended, with one system
    /// call. A stream that cannot be checked counts as one without an event.
    pub fn have_events<'s>(streams: impl Iterator<Item = &'s Self> + Clone) -> Vec<bool> {
        let fds = streams.clone().map(|stream| stream.socket.as_fd());
        let mut events = poll::have_events(fds).unwrap_or_default();
        for (has_event, stream) in events.iter_mut().zip(streams) {
            if let Some(layer) = &stream.layer {
                // An event of the layer below its bytes, such as a session ticket, is none.
                *has_event = layer.has_unread() || *has_event && !stream.is_open();
            }
        }
        events
    }

    /// Whether it belongs to the loop that this code runs on: elsewhere it cannot be awaited.
    pub fn is_on_current_loop(&self) -> bool {
        self.socket.is_on_current_loop()
    }

    /// Whether the peer is reported to have closed its side, or the connection to be broken, even
    /// while bytes wait to be read. Costs no system call. Use it for a stream that no task waits to
    /// read.
    pub fn is_ended(&self) -> bool {
        let known = self.socket.is_ended();
        known.unwrap_or_else(|| match net::peek(self.socket.as_fd()) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        })
    }

    /// Whether the stream is open and has nothing to read, by asking the kernel.
    pub fn is_open(&self) -> bool {
        if let Some(layer) = &self.layer {
            return layer.is_open(LayerSocket(self));
        }
        let peeked = net::peek(self.socket.as_fd());
        matches!(peeked, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Deregisters and returns the socket of a stream without layer, so that another loop may take
    /// it.
    pub fn into_socket(self) -> OwnedFd {
        debug_assert!(self.layer.is_none(), "its bytes are the layer's");
        self.into_parts().0
    }

    /// Deregisters and returns the socket, and the layer if there is one.
    pub fn into_parts(mut self) -> (OwnedFd, Option<Box<dyn StreamLayer>>) {
        let layer = self.layer.take();
        (self.socket.take_fd(), layer)
    }

    /// Moves the stream to the current loop.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn into_current_loop(self) -> io::Result<Self> {
        self.detach().attach()
    }

    fn socket_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Records that there is nothing more to read.
    fn clear_readable(&self) {
        self.socket.clear_readable();
    }

    /// Bytes written that the peer has not acknowledged yet; without those in the kernel when it
    /// cannot tell.
    pub fn unsent_bytes(&self) -> u64 {
        let layer = self.layer.as_ref().map_or(0, |layer| layer.pending_bytes());
        layer + net::unsent_bytes(self.socket.as_fd()).unwrap_or(0)
    }

    /// Makes the coming close a reset, so that the peer sees that the message was cut.
    pub fn abort(&self) {
        if let Some(layer) = &self.layer {
            layer.abort();
        }
        // Unix sockets have no reset: their peer sees the end of the stream.
        let _ = net::reset_on_close(self.socket.as_fd());
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(layer) = self.layer.take() {
            layer.close(LayerSocket(self));
        }
    }
}

/// Delay between two attempts at a Unix listener whose queue is full: the resolution of a timer.
const FULL_QUEUE_RETRY_DELAY: Duration = Duration::from_millis(1);

impl ByteStream for Stream {
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_read(cx, buffer)
    }

    fn poll_write(&self, cx: &mut Context<'_>, buffers: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_write(cx, buffers)
    }

    fn try_write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write(buffers)
    }

    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_broken(cx)
    }

    fn is_ended(&self) -> bool {
        self.is_ended()
    }

    fn probe_peer(&self) {
        self.probe_peer();
    }

    fn shutdown_write(&self) {
        self.shutdown_write();
    }

    fn poll_shutdown_write(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_shutdown_write(cx)
    }

    fn abort(&self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;

    use super::*;
    use std::sync::Arc;

    use crate::blocking::Pool;
    use crate::disk::Arena;
    use crate::loops;

    fn on_a_loop(test: impl Future<Output = ()>) {
        loops::block_on(test).unwrap();
    }

    #[test]
    fn bytes_arrive_in_order_and_the_end_is_seen_repeatedly() {
        on_a_loop(async {
            let (a, b) = net::worker_socket_pair().unwrap();
            let ours = Stream::new(a).unwrap();
            net::send(b.as_fd(), b"one").unwrap();
            let mut buffer = [0; 16];
            let n = poll_fn(|cx| ours.poll_read(cx, &mut buffer)).await.unwrap();
            assert_eq!(&buffer[..n], b"one");
            ours.write_all(b"back").await.unwrap();
            let n = net::receive(b.as_fd(), &mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"back");
            drop(b);
            for _ in 0..3 {
                assert_eq!(
                    poll_fn(|cx| ours.poll_read(cx, &mut buffer)).await.unwrap(),
                    0
                );
            }
        });
    }

    #[test]
    fn a_half_close_differs_from_a_full_close() {
        on_a_loop(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            for closes_all in [false, true] {
                let theirs = std::net::TcpStream::connect(address).unwrap();
                let (ours, _) = listener.accept().unwrap();
                ours.set_nonblocking(true).unwrap();
                let ours = Stream::new(ours.into()).unwrap();
                theirs.shutdown(std::net::Shutdown::Write).unwrap();
                let mut buffer = [0; 16];
                let end = poll_fn(|cx| ours.poll_read(cx, &mut buffer)).await;
                assert_eq!(end.unwrap(), 0);
                let broken = poll_fn(|cx| ours.poll_broken(cx));
                let early = clock::timeout(Duration::from_millis(50), broken).await;
                assert!(early.is_none(), "it still reads");
                ours.resume_end_reporting();
                let end = poll_fn(|cx| ours.poll_read(cx, &mut buffer)).await;
                assert_eq!(end.unwrap(), 0);
                if closes_all {
                    drop(theirs);
                    ours.write_all(b"x").await.unwrap();
                    let broken = poll_fn(|cx| ours.poll_broken(cx));
                    let late = clock::timeout(Duration::from_secs(10), broken).await;
                    late.expect("what is sent tells");
                } else {
                    ours.write_all(b"still there").await.unwrap();
                    let mut theirs = theirs;
                    let mut got = [0; 11];
                    io::Read::read_exact(&mut theirs, &mut got).unwrap();
                    assert_eq!(&got, b"still there");
                }
            }
        });
    }

    #[test]
    fn the_kernel_probes_a_peer_of_tcp() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        probe_peer(ours.as_fd());
        assert!(sockopt::socket_keepalive(&ours).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&ours).unwrap(), PROBE_IDLE);
        assert_eq!(sockopt::tcp_keepintvl(&ours).unwrap(), PROBE_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&ours).unwrap(), MAX_PROBES);
        assert!(!sockopt::socket_keepalive(&client).unwrap());
        // Other sockets are left alone.
        let (ours, _) = std::os::unix::net::UnixStream::pair().unwrap();
        probe_peer(ours.as_fd());
        assert!(!sockopt::socket_keepalive(&ours).unwrap());
    }

    #[test]
    fn bytes_after_a_descriptor_are_kept() {
        on_a_loop(async {
            let (a, b) = net::worker_socket_pair().unwrap();
            let ours = Stream::new(a).unwrap();
            net::send_descriptor(b.as_fd(), b"with", b.as_fd()).unwrap();
            net::send(b.as_fd(), b"behind").unwrap();
            let (mut buffer, mut got, mut descriptors) = ([0; 64], Vec::new(), Vec::new());
            while got.len() < 10 {
                let read = poll_fn(|cx| {
                    ours.poll_read_with_descriptors(cx, &mut buffer, &mut descriptors)
                });
                let read = clock::timeout(Duration::from_secs(10), read);
                let count = read.await.expect("all of it is there").unwrap();
                got.extend_from_slice(&buffer[..count]);
            }
            assert_eq!((&got[..], descriptors.len()), (&b"withbehind"[..], 1));
        });
    }

    #[test]
    fn connecting_succeeds_or_reports_the_error() {
        on_a_loop(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let ours = Stream::connect_tcp(address).await.unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            ours.write_all(b"hello").await.unwrap();
            let mut buffer = [0; 5];
            io::Read::read_exact(&mut theirs, &mut buffer).unwrap();
            assert_eq!(&buffer, b"hello");
            drop(listener);
            let refused = Stream::connect_tcp(address).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let nowhere = Stream::connect_unix(Path::new("/nonexistent/socket")).await;
            assert_eq!(nowhere.unwrap_err().kind(), io::ErrorKind::NotFound);
        });
    }

    #[test]
    fn send_file_stops_at_a_full_socket_and_at_the_end() {
        on_a_loop(async {
            let pool = Pool::new("stream", 1, 1);
            let content = vec![7; 4_000_000];
            let file = penstock_sys::file::memfd_with_content("test", &content).unwrap();
            let arena = Arena::new(4_000_000, pool.clone()).unwrap();
            for file in [
                Arc::new(DiskFile::new(file.into(), pool)),
                arena.store(&[content.into()]).unwrap(),
            ] {
                let (a, b) = net::worker_socket_pair().unwrap();
                let ours = Stream::new(a).unwrap();
                let send = async |at, len| {
                    poll_fn(|cx| Poll::Ready(ours.poll_send_file(cx, &file, at, len))).await
                };
                poll_fn(|cx| ours.poll_writable(cx)).await.unwrap();
                let mut count = 0;
                while let Poll::Ready(sent) = send(count as u64, 4_000_000).await {
                    count += sent.unwrap();
                }
                assert!(0 < count && count < 4_000_000, "{count}");
                // The socket is not tried again until there is room: otherwise the end would be
                // reported.
                assert!(send(4_000_000, 1).await.is_pending());
                let mut buffer = vec![0; 4_000_000];
                let mut left = count;
                while left > 0 {
                    left -= net::receive(b.as_fd(), &mut buffer).unwrap();
                }
                let room = poll_fn(|cx| ours.poll_writable(cx));
                let room = clock::timeout(Duration::from_secs(10), room).await;
                room.expect("room is noticed").unwrap();
                let end = send(3_999_000, 5000).await;
                assert!(matches!(end, Poll::Ready(Ok(1000))));
                assert!(matches!(send(4_000_000, 1).await, Poll::Ready(Ok(0))));
            }
        });
    }

    #[test]
    fn a_short_write_means_a_full_socket() {
        type Send = fn(&Stream, &DiskFile, &[u8]) -> io::Result<usize>;
        let ways: [Send; 4] = [
            |ours, _, bytes| ours.try_write(&[IoSlice::new(bytes)]),
            |ours, _, bytes| ours.try_write(&[IoSlice::new(b"head"), IoSlice::new(bytes)]),
            |ours, _, bytes| ours.try_write_with_more(bytes),
            |ours, file, bytes| ours.try_send_file(file, 0, bytes.len()),
        ];
        on_a_loop(async {
            let content = vec![7; 4_000_000];
            let file = penstock_sys::file::memfd_with_content("test", &content).unwrap();
            let file = DiskFile::new(file.into(), Pool::new("stream", 1, 1));
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let tcp = || {
                let theirs = std::net::TcpStream::connect(address).unwrap();
                let (ours, _) = listener.accept().unwrap();
                ours.set_nonblocking(true).unwrap();
                (OwnedFd::from(ours), OwnedFd::from(theirs))
            };
            let unix = || net::worker_socket_pair().unwrap();
            for (send, (a, b)) in ways.iter().flat_map(|send| [(send, unix()), (send, tcp())]) {
                let ours = Stream::new(a).unwrap();
                poll_fn(|cx| ours.poll_writable(cx)).await.unwrap();
                let is_full =
                    async || poll_fn(|cx| Poll::Ready(ours.poll_writable(cx).is_pending())).await;
                // While everything is accepted there may be more room.
                let mut left = send(&ours, &file, &content[..10]).unwrap();
                assert!(!is_full().await);
                // A buffer may grow while it is filled; the last send is partial.
                loop {
                    let sent = send(&ours, &file, &content).unwrap();
                    left += sent;
                    if sent < content.len() {
                        break;
                    }
                    assert!(left < 100 * content.len(), "it takes everything");
                }
                assert!(is_full().await, "{left}");
                let mut buffer = vec![0; 65536];
                while left > 0 {
                    left -= net::receive(b.as_fd(), &mut buffer).unwrap();
                }
                let room = poll_fn(|cx| ours.poll_writable(cx));
                let room = clock::timeout(Duration::from_secs(10), room).await;
                room.expect("room is noticed").unwrap();
            }
        });
    }

    #[test]
    fn a_write_larger_than_the_socket_buffer_completes() {
        on_a_loop(async {
            let (a, b) = net::worker_socket_pair().unwrap();
            let ours = Stream::new(a).unwrap();
            let reader = std::thread::spawn(move || {
                let mut all = 0;
                let mut buffer = vec![0; 65536];
                while all < 4_000_000 {
                    all += net::receive(b.as_fd(), &mut buffer).unwrap();
                }
                all
            });
            ours.write_all(&vec![7; 4_000_000]).await.unwrap();
            assert_eq!(reader.join().unwrap(), 4_000_000);
        });
    }
}
