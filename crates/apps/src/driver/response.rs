//! From the frames of a response to the reply of its request, for both drivers.
//!
//! # Invariants
//! - Each request gets one reply.
//! - A declared length is kept, or the client's connection is cut.

use std::sync::Arc;

use penstock_exchange::buffering::{ResponseProducer, SpoolSpec, SpoolWriter, create_spool};
use penstock_exchange::{Body, Fault, FaultKind, Reply, RequestTiming, Response};
use penstock_wire::{ResponseHeadView, WireError};

use crate::dispatch::Job;
use crate::reply::{self, ReplyHead, app_protocol_error};
use crate::shared::AppShared;

#[derive(Debug)]
pub(super) struct HeadFrame<'b> {
    pub(super) head: Result<ResponseHeadView<'b>, WireError>,
    pub(super) body: &'b [u8],
    /// Length of the whole body, when this frame has it.
    pub(super) body_len: Option<u32>,
    /// The whole frame is here, and no other follows.
    pub(super) end: bool,
}

/// What the head of a response leads to.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack, between two calls"
)]
pub(super) enum ResponseStart {
    /// A reply without further bytes; what still comes of the response is dropped.
    Complete(Result<Reply, Fault>),
    /// A body that still comes, with its length if the frames say it.
    Streamed(ReplyHead, Option<u64>),
}

impl HeadFrame<'_> {
    pub(super) fn start_response(&self, job: &Job, timing: RequestTiming) -> ResponseStart {
        self.try_begin(job, timing)
            .unwrap_or_else(|fault| ResponseStart::Complete(Err(fault)))
    }

    fn try_begin(&self, job: &Job, timing: RequestTiming) -> Result<ResponseStart, Fault> {
        let parts = match &self.head {
            Ok(parts) => parts,
            Err(error) => {
                let fault = app_protocol_error(format!("response head: {error}"));
                return Err(fault.with_timing(timing));
            }
        };
        let mut head =
            reply::build_reply_head(parts, job.is_head, timing, job.sendfile.as_deref())?;
        let length = self.body_len.map(u64::from);
        if let Some(redirect) = head.redirect.take() {
            return Ok(ResponseStart::Complete(Ok(Reply::Redirect(redirect))));
        }
        if !head.wants_body {
            let length = head.declared.or_else(|| length.filter(|len| *len > 0));
            head.response.body = Body::Omitted(length);
            return Ok(ResponseStart::Complete(Ok(head.response.into())));
        }
        if self.end && length == Some(self.body.len() as u64) {
            let response = reply::build_whole_response(head, self.body)?;
            return Ok(ResponseStart::Complete(Ok(response.into())));
        }
        reply::check_declared_length(&head, length)?;
        Ok(ResponseStart::Streamed(head, length))
    }
}

/// Sends a request its reply, and counts a fault of the application's.
pub(super) fn send_and_count_reply(app: &AppShared, job: &mut Job, reply: Result<Reply, Fault>) {
    if let Err(fault) = &reply {
        count_fault(app, fault.kind);
    }
    job.send_reply(reply);
}

/// Counts a request that its worker failed.
pub(super) fn count_fault(app: &AppShared, kind: FaultKind) {
    match kind {
        FaultKind::AppRaised | FaultKind::AppProtocolError => {
            app.metrics.failed_requests.increment();
        }
        FaultKind::AppTimeout => app.metrics.timed_out_requests.increment(),
        FaultKind::WorkerDied => app.metrics.worker_deaths.increment(),
        _ => {}
    }
}

/// The fault of a response that its worker does not complete, or of none.
pub(super) fn incomplete_response_fault(is_protocol: bool, cause: String) -> Fault {
    let kind = match is_protocol {
        true => FaultKind::AppProtocolError,
        false => FaultKind::AppRaised,
    };
    Fault::new(kind, cause)
}

/// Begins a body that its client takes at its own pace. `producer` is the worker's place that the
/// body holds until it has come.
pub(super) fn open_spool(
    app: &AppShared,
    job: &Job,
    head: ReplyHead,
    length: Option<u64>,
    producer: Option<Arc<dyn ResponseProducer>>,
) -> (SpoolWriter, Response) {
    let spec = SpoolSpec {
        client: job.client.counted_address_prefix(),
        producer,
        is_unbuffered: head.is_unbuffered,
        length: head.declared.or(length),
    };
    let (writer, reader) = create_spool(app.buffering_settings.load_full(), spec);
    let mut response = head.response;
    response.body = Body::Stream(Box::new(reader));
    (writer, response)
}
