//! The rest of a response that was not there at once: off the server as fast as it comes.
//!
//! Started by `call` behind the head: a task of its own reads on and pushes into a spool, from which edge
//! takes at the client's pace. So a slow client holds memory and then a file, never the server. What
//! must stay true: a body that is cut is seen as cut; a client that leaves frees the place at once; the
//! clock between bytes stands still while it is the client who is waited for.

use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use penstock_exchange::buffering::{SpoolSpec, SpoolWriter, spool};
use penstock_exchange::{AddressPrefix, Body, Fault};
use penstock_runtime::{clock, loops};

use crate::call::outcome;
use crate::claim::Lease;
use crate::failure::{Failure, Stage};
use crate::roster::Outcome;
use crate::source::Source;
use crate::talk::{End, Talk};
use crate::upstream::ServerPlace;

/// A response after its head.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) talk: Talk,
    pub(crate) lease: Lease,
    /// What is left of the request's body.
    pub(crate) source: Source,
    /// Its end, if that is known: then only trailers are left.
    pub(crate) end: Option<End>,
    /// Not held back for the client: an event stream or the like, which may well be quiet.
    pub(crate) is_unbuffered: bool,
    pub(crate) total_deadline: Option<Instant>,
    pub(crate) client: Option<AddressPrefix>,
    /// What its request is known by, should the response turn out to be malformed.
    pub(crate) request: u64,
}

/// Relays the rest behind `begun`, in a task of its own; gives the body for the client.
pub(crate) fn start(rest: Rest, begun: Vec<u8>, length: Option<u64>) -> Body {
    let upstream = rest.lease.shared();
    let store = upstream.store.load_full();
    let spec = SpoolSpec {
        client: rest.client,
        producer: Some(ServerPlace::new(upstream, rest.lease.key())),
        is_unbuffered: rest.is_unbuffered,
        length,
    };
    let (mut writer, reader) = spool(store, spec);
    writer.push(&begun);
    loops::spawn_here(run(rest, writer));
    Body::Stream(Box::new(reader))
}

/// Reads a response without a body to its end, for which the client does not wait: so the server is not
/// given another request before it is done with this one.
pub(crate) fn drain(mut rest: Rest) {
    loops::spawn_here(async move {
        let step = match rest.end.take() {
            Some(end) => Step::Ended(end),
            None => next(&mut rest, None).await,
        };
        let Rest { talk, lease, .. } = rest;
        match step {
            Step::Ended(end) => lease.finish(talk.into_connection(&end), Outcome::Success),
            Step::Failed(failure) => lease.finish(None, outcome(&failure, || rest.request)),
            Step::Full | Step::Left => lease.finish(None, Outcome::Neutral),
        }
    });
}

/// What the relay waits for.
enum Step {
    Ended(End),
    /// The spool is full: the client is waited for.
    Full,
    Left,
    Failed(Failure),
}

async fn run(mut rest: Rest, mut writer: SpoolWriter) {
    let mut end = rest.end.take();
    let step = loop {
        if let Some(end) = end.take() {
            break Step::Ended(end);
        }
        if writer.has_overflow()
            && let Err(fault) = writer.flush().await
        {
            break Step::Failed(fault.into());
        }
        match next(&mut rest, Some(&mut writer)).await {
            Step::Full => {}
            step => break step,
        }
    };
    let Rest { talk, lease, .. } = rest;
    match step {
        Step::Ended(mut end) => {
            let trailers = end.trailers.take();
            // The server is done; what the client has not taken may still be on its way to the file.
            lease.finish(talk.into_connection(&end), Outcome::Success);
            writer.release_place();
            let settled = writer.flush().await;
            writer.finish(settled.map(|()| trailers));
        }
        Step::Full | Step::Left => {
            talk.cut();
            lease.finish(None, Outcome::Neutral);
        }
        Step::Failed(failure) => {
            let server = &lease.server().name;
            let cause = format!("{server}: {}", failure.cause);
            let kind = failure.kind;
            talk.cut();
            lease.finish(None, outcome(&failure, || rest.request));
            writer.finish(Err(Fault::new(kind, cause)));
        }
    }
}

/// Reads until the spool is full or the response ends; without a spool nobody wants a body.
async fn next(rest: &mut Rest, mut writer: Option<&mut SpoolWriter>) -> Step {
    let config = Arc::clone(&rest.lease.shared().config);
    let mut stalled_at = clock::now() + config.stall_timeout;
    std::future::poll_fn(|cx| {
        loop {
            let mut take = |piece: &[u8]| {
                if let Some(writer) = &mut writer {
                    writer.push(piece);
                }
            };
            let server = &rest.lease.server().name;
            let source = &mut rest.source;
            match rest.talk.poll_read(cx, source, None, server, &mut take) {
                Poll::Ready(Ok(said)) => {
                    if let Some(end) = said.end {
                        return Poll::Ready(Step::Ended(end));
                    }
                    if writer.as_ref().is_some_and(|writer| writer.has_overflow()) {
                        return Poll::Ready(Step::Full);
                    }
                    stalled_at = clock::now() + config.stall_timeout;
                }
                Poll::Ready(Err(failure)) => return Poll::Ready(Step::Failed(failure)),
                Poll::Pending => break,
            }
        }
        if writer
            .as_ref()
            .is_some_and(|writer| writer.poll_reader_gone(cx))
        {
            return Poll::Ready(Step::Left);
        }
        if let Some(at) = rest.talk.take_progress() {
            stalled_at = at + config.stall_timeout;
        }
        // A client that is slow to send is watched by those who read it.
        let is_clients_turn = rest.talk.waits_for_client() && !rest.talk.is_sent();
        let (at, name) = match rest.total_deadline {
            Some(total) if is_clients_turn || total < stalled_at => (total, "total_timeout"),
            None if is_clients_turn => return Poll::Pending,
            _ => (stalled_at, "stall_timeout"),
        };
        let deadline = &mut rest.talk.connection().deadline;
        deadline.set(at);
        deadline.poll(cx).map(|()| {
            let cause = format!("{name}: the response did not go on in time");
            // A stream that is quiet, or a client that was slow, is no fault of the server.
            let stage = match name {
                "stall_timeout" if !rest.is_unbuffered => Stage::Answered,
                _ => Stage::Ours,
            };
            Step::Failed(Failure::late(stage, cause))
        })
    })
    .await
}
