//! Connections that begin with a PROXY protocol header, which names their client.
//!
//! `accept` sends connections of listeners with `proxy_protocol` here, once the peer is known as
//! trusted. Behind the header they continue as any connection, with the address in it.
//!
//! # Invariants
//! - The header is whole and well formed within `limits.header_timeout`, or the connection ends
//!   without a response.
//! - Bytes behind the header belong to the connection.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use penstock_exchange::ListenerInfo;
use penstock_runtime::{LazyDeadline, Stream, buffers, clock};
use penstock_sys::net::PeerAddress;
use penstock_wire::proxy_protocol::{ProxyHeader, ProxyProtocolError, parse_header};

use crate::accept::{self, ConnectionSource};
use crate::handover::ConnectionGuard;
use crate::tunnel_switch::TunnelSwitch;

/// Reads the header, then starts to serve the connection.
pub(crate) async fn read_header_and_serve(
    mut edge: ConnectionGuard,
    stream: Stream,
    peer: PeerAddress,
    info: Arc<ListenerInfo>,
    tunnel: Option<Arc<TunnelSwitch>>,
) {
    let guard = edge.drain.guard();
    let mut draining = pin!(guard.drain().wait_until_begun());
    let mut timer = LazyDeadline::new(clock::now() + edge.settings().limits.header_timeout);
    let mut received = Vec::new();
    let mut idle_until = None;
    let header = std::future::poll_fn(|cx| {
        if let Poll::Ready(header) = poll_header(cx, &stream, &mut received) {
            return Poll::Ready(header);
        }
        let may_begin = received.is_empty() && idle_until.is_none();
        if may_begin && draining.as_mut().poll(cx).is_ready() {
            idle_until = guard.drain().idle_deadline();
            let until = idle_until.unwrap_or_else(clock::now);
            timer.set(until.min(timer.at()));
        }
        let is_over = received.is_empty() && idle_until.is_some();
        timer.poll(cx).map(|()| match is_over {
            true => Err(HeaderError::Closed),
            false => Err(HeaderError::TimedOut),
        })
    })
    .await;
    match header {
        Ok((header, len)) => {
            received.drain(..len);
            let sender = connection_source(header, peer);
            let address = sender.client_address();
            if let Err(max) = edge.admit_client(address) {
                return edge.log_client_limit(&info, address, max);
            }
            accept::begin(edge, stream, sender, info, tunnel, received);
        }
        Err(HeaderError::Closed) => {}
        Err(HeaderError::TimedOut) => {
            edge.metrics().slow_clients.increment();
            log::debug!("{}: no PROXY protocol header in time", info.name);
        }
        Err(HeaderError::Malformed(why)) => {
            edge.metrics().malformed_requests.increment();
            log::warn!("{}: {why}", info.name);
        }
    }
}

/// The reason why a connection ends before it has begun.
enum HeaderError {
    /// The peer closed, or the server drains.
    Closed,
    TimedOut,
    Malformed(ProxyProtocolError),
}

/// Reads until the header is whole; returns it with its length in `received`.
fn poll_header(
    cx: &mut Context<'_>,
    stream: &Stream,
    received: &mut Vec<u8>,
) -> Poll<Result<(ProxyHeader, usize), HeaderError>> {
    loop {
        let read = buffers::with_receive_buffer(|buffer| {
            let read = stream.poll_read(cx, buffer);
            if let Poll::Ready(Ok(count)) = &read {
                received.extend_from_slice(&buffer[..*count]);
            }
            read
        });
        match read {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(HeaderError::Closed)),
            // Bounded: the codec refuses a header that is too long.
            Poll::Ready(Ok(_)) => match parse_header(received) {
                Ok(Some(header)) => return Poll::Ready(Ok(header)),
                Ok(None) => {}
                Err(why) => return Poll::Ready(Err(HeaderError::Malformed(why))),
            },
        }
    }
}

/// The client of the connection. A balancer's own connection (a health check) has the balancer as
/// its client; a client that the balancer does not name has its address, but not its trust.
fn connection_source(header: ProxyHeader, balancer: PeerAddress) -> ConnectionSource {
    match header {
        ProxyHeader::Tcp { source, .. } => {
            ConnectionSource::proxied(balancer, Some(PeerAddress::tcp(source)))
        }
        ProxyHeader::Local => ConnectionSource::Peer(balancer),
        ProxyHeader::Unknown | ProxyHeader::Unix => ConnectionSource::proxied(balancer, None),
    }
}
