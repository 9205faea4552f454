//! Connections of listeners with TLS, until their handshake is complete.
//!
//! `accept` sends them here, behind a PROXY protocol header if there is one. With a session they
//! continue as any connection.
//!
//! # Invariants
//! - A handshake is complete within `limits.tls_handshake_timeout`, or the connection ends.
//! - At most `limits.max_tls_handshakes` run at once. One more ends that which began first, so that
//!   clients that send nothing shut none out.
//! - A request without TLS gets an error in plain HTTP where sites answer, and no session. A tunnel
//!   may refuse it in its own protocol.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use penstock_exchange::ListenerInfo;
use penstock_runtime::{LazyDeadline, Stream, clock};
use penstock_tls::{ACME_TLS_ALPN, EstablishedSession, HandshakeError, ServerSessions};

use crate::accept::{self, ConnectionSource};
use crate::handover::ConnectionGuard;
use crate::idle_connections::{IdleConnections, IdleEntry};
use crate::tunnel_switch::TunnelSwitch;
use crate::{access_log, http1};

/// The response to a request without TLS.
const PLAIN_HTTP_RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 58\r\n\
    Connection: close\r\n\r\n\
    This port speaks HTTPS: use an address with https:// here\n";

/// Handshakes in progress.
#[derive(Debug)]
pub(crate) struct Handshakes {
    count: AtomicUsize,
    /// By their begin, so that the oldest can be ended.
    pub(crate) running: IdleConnections,
}

impl Handshakes {
    pub(crate) fn new(running: IdleConnections) -> Self {
        Self {
            count: AtomicUsize::new(0),
            running,
        }
    }
}

/// One handshake in [`Handshakes`], until it is dropped.
struct RunningHandshake {
    edge: ConnectionGuard,
    entry: IdleEntry,
}

impl RunningHandshake {
    fn new(edge: ConnectionGuard) -> Self {
        let max = edge.settings().limits.max_tls_handshakes;
        let handshakes = &edge.handshakes;
        if handshakes.count.fetch_add(1, Ordering::Relaxed) >= max
            && handshakes.running.close_oldest(clock::now())
        {
            edge.metrics().evicted_connections.increment();
        }
        let entry = IdleEntry::new(&handshakes.running, clock::now());
        Self { edge, entry }
    }

    /// Ends the count, and gives the connection back.
    fn finish(mut self) -> ConnectionGuard {
        self.remove();
        self.edge.duplicate()
    }

    fn remove(&mut self) {
        self.edge.handshakes.running.remove(&mut self.entry);
    }
}

impl Drop for RunningHandshake {
    fn drop(&mut self) {
        self.remove();
        self.edge.handshakes.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The end of a handshake without a session.
enum HandshakeEnd {
    Failed(HandshakeError),
    TimedOut,
    /// It made room for another.
    Evicted,
}

/// Makes a session with the client, then starts to serve the connection.
pub(crate) async fn shake_hands_and_serve(
    edge: ConnectionGuard,
    stream: Stream,
    source: ConnectionSource,
    info: Arc<ListenerInfo>,
    tunnel: Option<Arc<TunnelSwitch>>,
    mut early: Vec<u8>,
) {
    let settings = edge.settings();
    let sessions = match &tunnel {
        Some(tunnel) => tunnel.target().tls.clone(),
        None => settings.tls.clone(),
    };
    let Some(sessions) = sessions else {
        return log::error!(
            "{}: connection closed: no certificate is configured",
            info.name
        );
    };
    let timeout = settings.limits.tls_handshake_timeout;
    drop(settings);
    let mut running = RunningHandshake::new(edge);
    match make_session(&mut running, &stream, (&sessions, timeout), &mut early).await {
        Ok(session) => {
            let edge = running.finish();
            let metrics = edge.metrics();
            metrics.tls_handshakes.increment();
            if session.info().is_resumed {
                metrics.tls_resumptions.increment();
            }
            let is_challenge = session.info().alpn.as_deref() == Some(ACME_TLS_ALPN);
            let stream = Arc::new(session.over(stream));
            // The handshake was the answer to a challenge (RFC 8737 §3).
            if is_challenge {
                return;
            }
            accept::serve_or_tunnel(edge, stream, source, info, tunnel.as_ref(), Vec::new());
        }
        // As one of plain HTTP that carries no request: nothing failed.
        Err(HandshakeEnd::Failed(HandshakeError::Unused)) => {}
        Err(end) => {
            let edge = running.finish();
            edge.metrics().tls_handshake_failures.increment();
            let is_plain = matches!(end, HandshakeEnd::Failed(HandshakeError::PlainHttp));
            if let Some(tunnel) = tunnel.as_ref().filter(|_| is_plain)
                && tunnel.target().handler.refuses_plaintext()
            {
                let stream = Arc::new(stream);
                return accept::serve_or_tunnel(edge, stream, source, info, Some(tunnel), early);
            }
            let has_http = tunnel.is_none();
            refuse(&edge, stream, &source, (&info, has_http), end).await;
        }
    }
}

async fn make_session(
    running: &mut RunningHandshake,
    stream: &Stream,
    (sessions, timeout): (&ServerSessions, Duration),
    early: &mut Vec<u8>,
) -> Result<EstablishedSession, HandshakeEnd> {
    let mut timer = LazyDeadline::new(clock::now() + timeout);
    let mut is_draining = false;
    let mut handshake = pin!(penstock_tls::accept(stream, sessions, early));
    let guard = running.edge.drain.guard();
    let mut draining = pin!(guard.drain().wait_until_begun());
    std::future::poll_fn(|cx| {
        if let Poll::Ready(made) = handshake.as_mut().poll(cx) {
            return Poll::Ready(made.map_err(HandshakeEnd::Failed));
        }
        // As long as a connection that waits for a request: a stop waits for no silent client.
        if !is_draining && draining.as_mut().poll(cx).is_ready() {
            is_draining = true;
            let until = guard.drain().idle_deadline().unwrap_or_else(clock::now);
            timer.set(until.min(timer.at()));
        }
        let RunningHandshake { edge, entry } = &mut *running;
        match edge.handshakes.running.mark_idle(entry, cx.waker()) {
            true => Poll::Ready(Err(HandshakeEnd::Evicted)),
            false => timer.poll(cx).map(|()| match is_draining {
                true => Err(HandshakeEnd::Failed(HandshakeError::Closed)),
                false => Err(HandshakeEnd::TimedOut),
            }),
        }
    })
    .await
}

/// Logs why there is no session, and tells a client that speaks plain HTTP.
async fn refuse(
    edge: &ConnectionGuard,
    stream: Stream,
    source: &ConnectionSource,
    (info, has_http): (&ListenerInfo, bool),
    end: HandshakeEnd,
) {
    let (why, is_plain_http) = match end {
        HandshakeEnd::Failed(HandshakeError::PlainHttp) if !has_http => {
            ("not TLS: its first byte is a letter".to_owned(), false)
        }
        HandshakeEnd::Failed(error) => {
            let is_plain = matches!(error, HandshakeError::PlainHttp);
            (error.to_string(), is_plain)
        }
        HandshakeEnd::TimedOut => ("limits.tls_handshake_timeout".to_owned(), false),
        HandshakeEnd::Evicted => ("limits.max_tls_handshakes".to_owned(), false),
    };
    if let Some(count) = edge.handshake_log.count_event(clock::now()) {
        log::info!(
            "{}: no TLS session with {}: {why} (failed={count})",
            info.name,
            access_log::format_peer(source.client_address()),
        );
    }
    if is_plain_http {
        // A client that takes nothing does not get it.
        let _ = stream.try_write(&[io::IoSlice::new(PLAIN_HTTP_RESPONSE)]);
        http1::linger(Arc::new(stream)).await;
    }
}
