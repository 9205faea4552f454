//! Connections with a layer that reports the last byte of each write late, as TLS does when the
//! socket is full: whatever follows must begin with that byte.

use std::any::Any;
use std::io::{self, IoSlice};
use std::sync::Mutex;
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{Body, BodyStream, Fault};
use penstock_runtime::{LayerSocket, Stream, StreamLayer};
use penstock_sys::net::PeerAddress;
use tokio::sync::mpsc;

use super::*;
use crate::serve_connection;

/// Passes bytes on at once, and reports all but the last.
#[derive(Debug, Default)]
struct LateLayer(Arc<Mutex<LayerLog>>);

#[derive(Debug, Default)]
struct LayerLog {
    unreported: Option<u8>,
    /// A write that went on with another byte than that.
    substituted: Option<(u8, u8)>,
    /// Waits for the end to be with the kernel.
    end_waits: u32,
    has_ended: bool,
    is_closed: bool,
}

impl StreamLayer for LateLayer {
    fn poll_read(
        &self,
        socket: LayerSocket<'_>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        socket.poll_read(cx, buffer)
    }

    fn try_write(&self, socket: LayerSocket<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap();
        let bytes: Vec<u8> = buffers.iter().flat_map(|it| it.iter().copied()).collect();
        let Some(first) = bytes.first() else {
            return Ok(0);
        };
        let repeated = log.unreported.take();
        if let Some(expected) = repeated.filter(|expected| expected != first) {
            log.substituted = Some((expected, *first));
        }
        let new = &bytes[usize::from(repeated.is_some())..];
        let Some(last) = new.last() else {
            return Ok(1);
        };
        assert_eq!(socket.try_write(new)?, new.len(), "few bytes for a socket");
        log.unreported = Some(*last);
        match bytes.len() - 1 {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            reported => Ok(reported),
        }
    }

    fn poll_peer_activity(&self, _: LayerSocket<'_>, _: &mut Context<'_>) -> Poll<bool> {
        Poll::Pending
    }

    fn is_open(&self, _: LayerSocket<'_>) -> bool {
        true
    }

    fn has_unread(&self) -> bool {
        false
    }

    fn pending_bytes(&self) -> u64 {
        0
    }

    fn shutdown_write(&self, socket: LayerSocket<'_>) {
        socket.shutdown_write();
    }

    fn poll_shutdown_write(&self, socket: LayerSocket<'_>, cx: &mut Context<'_>) -> Poll<()> {
        let mut log = self.0.lock().unwrap();
        log.end_waits += 1;
        if log.end_waits < 3 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        log.has_ended = true;
        socket.shutdown_write();
        Poll::Ready(())
    }

    fn abort(&self) {}

    fn close(&self, _: LayerSocket<'_>) {
        self.0.lock().unwrap().is_closed = true;
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Pieces as the test sends them.
struct ChannelBody(mpsc::UnboundedReceiver<Bytes>);

impl BodyStream for ChannelBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(Ok))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

/// A connection with the layer to a handler whose body the test sends.
struct LateConnection {
    client: Client,
    pieces: Option<mpsc::UnboundedSender<Bytes>>,
    log: Arc<Mutex<LayerLog>>,
    edge: TestEdge,
}

impl LateConnection {
    fn new() -> Self {
        let (pieces, body) = mpsc::unbounded_channel();
        let body = Mutex::new(Some(ChannelBody(body)));
        let handler = handler_fn(move |_| {
            let body = body.lock().unwrap().take().unwrap();
            ready(Response::new(Status::OK, Body::Stream(Box::new(body))))
        });
        let (edge, socket) = TestEdge::without_acceptor(vec![route("/", handler)], |_| {});
        let client = edge.connect();
        let (accepted, _) = std::net::TcpListener::from(socket).accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let layer = LateLayer::default();
        let (log, front, info) = (
            Arc::clone(&layer.0),
            Arc::clone(&edge.edge),
            edge.info(false),
        );
        edge.spawn(async move {
            let stream = Stream::new(accepted.into()).unwrap();
            let stream = Arc::new(stream.with_layer(Box::new(layer)));
            serve_connection(&front, stream, PeerAddress::Unix, info, Vec::new());
        });
        Self {
            client,
            pieces: Some(pieces),
            log,
            edge,
        }
    }

    fn send(&self, piece: &'static str) {
        let pieces = self.pieces.as_ref().unwrap();
        pieces.send(Bytes::from_static(piece.as_bytes())).unwrap();
    }

    fn expect_no_substitution(&self) {
        assert_eq!(self.log.lock().unwrap().substituted, None);
    }
}

/// A client that closed its sending side is sent zeros between two chunks, to find out whether it is
/// still there. One that a layer has, but could not send, is part of the next chunk's size.
#[test]
fn a_zero_that_was_refused_belongs_to_the_next_chunk() {
    for ends_there in [false, true] {
        let mut connection = LateConnection::new();
        connection.client.get("/");
        connection.send("first");
        connection.client.head();
        connection.client.expect("5\r\nfirst\r\n");
        (connection.client.0)
            .shutdown(std::net::Shutdown::Write)
            .unwrap();
        connection.client.expect("0");
        if ends_there {
            connection.pieces = None;
            connection.client.expect("0\r\n\r\n");
        } else {
            connection.send("a piece that is longer");
            connection.client.expect("16\r\na piece that is longer\r\n");
            connection.pieces = None;
            connection.client.expect("0\r\n\r\n");
        }
        connection.client.expect_end();
        connection.expect_no_substitution();
    }
}

/// HTTP/1.0 without a length: a client would take a cut body for a whole one, so the end of a session
/// must reach it.
#[test]
fn a_body_that_ends_with_the_connection_waits_for_its_end_to_be_sent() {
    let mut connection = LateConnection::new();
    connection.client.send("GET / HTTP/1.0\r\n\r\n");
    connection.send("all there is");
    connection.pieces = None;
    connection.client.head();
    assert_eq!(connection.client.rest(), b"all there is");
    connection.edge.wait_for_connections(0);
    connection.expect_no_substitution();
    let log = connection.log.lock().unwrap();
    assert!(
        log.has_ended && log.is_closed && log.end_waits >= 3,
        "{log:?}"
    );
}
