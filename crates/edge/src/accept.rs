//! Accepting connections on one loop's listener.
//!
//! One task per listener and loop. When descriptors or `limits.connections` run out it waits instead
//! of spinning; the kernel's backlog holds the newcomers meanwhile. When the drain begins it still
//! takes whoever already waits in the backlog, so that no connection is reset, then closes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use penstock_exchange::ListenerInfo;
use penstock_runtime::{Drain, Listener, Stream, clock, loops};
use penstock_sys::net::PeerAddress;

use crate::Edge;
use crate::connection::Connection;

/// How long to wait for a descriptor or a connection slot to come free.
const PAUSE: Duration = Duration::from_millis(20);

/// How long the same warning is not repeated.
const QUIET: Duration = Duration::from_secs(10);

/// Accepts on `socket` until `stop` (this listener's own drain) or the whole edge drains.
///
/// # Errors
/// When the socket cannot be registered with the loop.
pub async fn accept(
    edge: Arc<Edge>,
    socket: OwnedFd,
    info: Arc<ListenerInfo>,
    stop: Drain,
) -> io::Result<()> {
    let listener = Listener::new(socket)?;
    let _running = stop.guard();
    let mut warnings = Warnings::default();
    let mut stopped = std::pin::pin!(stop.begun());
    loop {
        if edge.open.load(Ordering::Relaxed) >= edge.settings().limits.connections {
            if warnings.is_due() {
                log::warn!(
                    "{}: limits.connections reached, not accepting for now",
                    info.name
                );
            }
            clock::sleep(PAUSE).await;
            if !stop.is_draining() {
                continue;
            }
        }
        let next = std::future::poll_fn(|cx| match listener.poll_accept(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            Poll::Pending => stopped.as_mut().poll(cx).map(|()| None),
        })
        .await;
        match next {
            None => break,
            Some(Ok((socket, peer))) => serve(&edge, socket, peer, &info),
            Some(Err(error)) => {
                if warnings.is_due() {
                    log::error!("{}: cannot accept: {error}", info.name);
                }
                clock::sleep(PAUSE).await;
            }
        }
    }
    while let Some((socket, peer)) = listener.try_accept() {
        serve(&edge, socket, peer, &info);
    }
    Ok(())
}

/// Keeps a condition that lasts from filling the log.
#[derive(Debug, Default)]
struct Warnings {
    last: Option<Instant>,
}

impl Warnings {
    fn is_due(&mut self) -> bool {
        let now = clock::now();
        let is_due = self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) > QUIET);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

fn serve(edge: &Arc<Edge>, socket: OwnedFd, peer: PeerAddress, info: &Arc<ListenerInfo>) {
    let stream = match Stream::new(socket) {
        Ok(stream) => stream,
        Err(error) => {
            log::error!("{}: cannot watch a connection: {error}", info.name);
            return;
        }
    };
    edge.metrics().accepted.increment();
    let connection = Connection::new(Arc::clone(edge), stream, peer, Arc::clone(info));
    loops::spawn_here(connection.run());
}
