//! Relays the rest of a response that was not complete at once, as fast as the server sends it.
//!
//! Started by `response` after the head. A task reads on and pushes into a spool, from which
//! edge reads at the client's pace. A slow client holds memory and then a file, never the server.
//!
//! # Invariants
//!
//! - The client sees a truncated body as truncated.
//! - A client that disconnects frees the slot at once.
//! - The timeout between bytes does not run while the relay waits for the client.

use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use penstock_exchange::buffering::{SpoolSpec, SpoolWriter, create_spool};
use penstock_exchange::{AddressPrefix, Body, Fault};
use penstock_runtime::{clock, loops};

use crate::body_source::BodySource;
use crate::claim::SlotLease;
use crate::codec::ResponseEnd;
use crate::failure::{AttemptFailure, AttemptStage};
use crate::server_pool::AttemptOutcome;
use crate::upstream::ServerProducer;
use crate::upstream_exchange::UpstreamExchange;

/// A response after its head.
#[derive(Debug)]
pub(crate) struct RemainingResponse {
    pub(crate) exchange: UpstreamExchange,
    pub(crate) lease: SlotLease,
    /// The rest of the request body.
    pub(crate) body_source: BodySource,
    /// The end of the body, if known: only trailers are left.
    pub(crate) end: Option<ResponseEnd>,
    /// Not buffered: an event stream or the like, which may be silent for long.
    pub(crate) is_unbuffered: bool,
    pub(crate) total_deadline: Option<Instant>,
    pub(crate) client: Option<AddressPrefix>,
    /// Identifies the request should the response turn out to be malformed.
    pub(crate) request_hash: u64,
}

/// Relays the rest after `begun` in a task of its own; returns the body for the client.
pub(crate) fn start_relay(rest: RemainingResponse, begun: Vec<u8>, length: Option<u64>) -> Body {
    let upstream = &rest.lease.upstream;
    let store = upstream.buffering_settings.load_full();
    let spec = SpoolSpec {
        client: rest.client,
        producer: Some(Arc::new(ServerProducer {
            shared: Arc::clone(upstream),
            server: rest.lease.slot.server_id,
        })),
        is_unbuffered: rest.is_unbuffered,
        length,
    };
    let (mut writer, reader) = create_spool(store, spec);
    writer.push(&begun);
    loops::spawn_here(relay_body(rest, writer));
    Body::Stream(Box::new(reader))
}

/// Reads a response without a body to its end while the client does not wait, so that the server
/// gets no other request before it has finished this one.
pub(crate) fn drain_body(mut rest: RemainingResponse) {
    loops::spawn_here(async move {
        let step = match rest.end.take() {
            Some(end) => RelayStep::Ended(end),
            None => read_until_full(&mut rest, None).await,
        };
        let RemainingResponse {
            exchange, lease, ..
        } = rest;
        match step {
            RelayStep::Ended(end) => {
                lease.finish_attempt(
                    exchange.into_reusable_connection(&end),
                    AttemptOutcome::Success,
                );
            }
            RelayStep::Failed(failure) => {
                lease.finish_attempt(None, failure.outcome_for_server(|| rest.request_hash));
            }
            RelayStep::SpoolFull | RelayStep::ClientDisconnected => {
                lease.finish_attempt(None, AttemptOutcome::Neutral);
            }
        }
    });
}

enum RelayStep {
    Ended(ResponseEnd),
    /// The spool is full: the relay waits for the client.
    SpoolFull,
    ClientDisconnected,
    Failed(AttemptFailure),
}

async fn relay_body(mut rest: RemainingResponse, mut writer: SpoolWriter) {
    let step = loop {
        if let Some(end) = rest.end.take() {
            break RelayStep::Ended(end);
        }
        if writer.has_overflow()
            && let Err(fault) = writer.flush().await
        {
            break RelayStep::Failed(fault.into());
        }
        match read_until_full(&mut rest, Some(&mut writer)).await {
            RelayStep::SpoolFull => {}
            step => break step,
        }
    };
    let RemainingResponse {
        exchange, lease, ..
    } = rest;
    match step {
        RelayStep::Ended(mut end) => {
            let trailers = end.trailers.take();
            // The server has finished; bytes that the client has not read may still be on their way
            // to the file.
            lease.finish_attempt(
                exchange.into_reusable_connection(&end),
                AttemptOutcome::Success,
            );
            writer.release_capacity();
            let settled = writer.flush().await;
            writer.finish(settled.map(|()| trailers));
        }
        RelayStep::SpoolFull | RelayStep::ClientDisconnected => {
            exchange.abort_if_incomplete();
            lease.finish_attempt(None, AttemptOutcome::Neutral);
        }
        RelayStep::Failed(failure) => {
            let server = &lease.slot.server.name;
            let cause = format!("{server}: {}", failure.cause);
            let kind = failure.kind;
            exchange.abort_if_incomplete();
            lease.finish_attempt(None, failure.outcome_for_server(|| rest.request_hash));
            writer.finish(Err(Fault::new(kind, cause)));
        }
    }
}

/// Reads until the spool is full or the response ends; without a spool the body is discarded.
async fn read_until_full(
    rest: &mut RemainingResponse,
    mut writer: Option<&mut SpoolWriter>,
) -> RelayStep {
    let config = Arc::clone(&rest.lease.upstream.config);
    let mut stalled_at = clock::now() + config.body_idle_timeout;
    std::future::poll_fn(|cx| {
        loop {
            let mut take = |piece: &[u8]| {
                if let Some(writer) = &mut writer {
                    writer.push(piece);
                }
            };
            let server = &rest.lease.slot.server.name;
            let source = &mut rest.body_source;
            match rest
                .exchange
                .poll_exchange(cx, source, None, server, &mut take)
            {
                Poll::Ready(Ok(progress)) => {
                    if let Some(end) = progress.end {
                        return Poll::Ready(RelayStep::Ended(end));
                    }
                    if writer.as_ref().is_some_and(|writer| writer.has_overflow()) {
                        return Poll::Ready(RelayStep::SpoolFull);
                    }
                    stalled_at = clock::now() + config.body_idle_timeout;
                }
                Poll::Ready(Err(failure)) => return Poll::Ready(RelayStep::Failed(failure)),
                Poll::Pending => break,
            }
        }
        if writer
            .as_ref()
            .is_some_and(|writer| writer.poll_reader_gone(cx))
        {
            return Poll::Ready(RelayStep::ClientDisconnected);
        }
        if let Some(at) = rest.exchange.last_send_progress_at.take() {
            stalled_at = at + config.body_idle_timeout;
        }
        // The reader of the client's body watches for slow clients.
        let is_clients_turn = rest.exchange.waits_for_client && !rest.exchange.is_request_sent();
        let (at, name) = match rest.total_deadline {
            Some(total) if is_clients_turn || total < stalled_at => (total, "total_timeout"),
            None if is_clients_turn => return Poll::Pending,
            _ => (stalled_at, "body_idle_timeout"),
        };
        let deadline = &mut rest.exchange.connection.deadline;
        deadline.set(at);
        deadline.poll(cx).map(|()| {
            let cause = format!("{name}: timed out in the response body");
            // A silent stream or a slow client is not the server's fault.
            let stage = match name {
                "body_idle_timeout" if !rest.is_unbuffered => AttemptStage::ResponseStarted,
                _ => AttemptStage::Local,
            };
            RelayStep::Failed(AttemptFailure::timed_out(stage, cause))
        })
    })
    .await
}
