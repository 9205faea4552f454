//! An application as a handler: body in, environment built, a turn in the queue, the answer.
//!
//! First the whole body is read (a worker never waits for a client), then the job joins the
//! application's queue. [`Call`] waits for the answer; while the job is still in line it also has a
//! deadline (`queue.timeout`) and gives up when the client leaves. Once a slot has it, the response
//! clock is the slot driver's; the client of a reactor's request may still leave.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use penstock_exchange::bodies::{Collected, collect};
use penstock_exchange::{
    ClientState, Fault, FaultKind, Handler, Handling, Reply, Request, RequestBody, Timing,
};
use penstock_http::Method;
use penstock_queue::Ticket;
use penstock_runtime::{LazyDeadline, clock, loops};
use penstock_wire::{
    EnvironEncoder, RequestBody as FrameBody, ScopeEncoder, channel, encode_request,
};
use tokio::sync::oneshot;

use crate::app::{App, AppShared, Way};
use crate::channel::{Form, Handshake, handshake};
use crate::dispatch::{Job, Placed};
use crate::environ::{self, asgi};

impl Handler for App {
    fn handle(&self, mut request: Request) -> Handling {
        if let Some(fault) = self.shared.refusal() {
            return Handling::Now(Err(fault));
        }
        let shared = &self.shared;
        if matches!(request.body, RequestBody::Empty) {
            let websocket = match handshake::asked(shared, &request.head) {
                Ok(websocket) => websocket,
                Err(refused) => return Handling::Now(*refused),
            };
            return match submit(shared, &request, Collected::Empty, websocket) {
                Ok(call) => Handling::Later(Box::pin(call)),
                Err(fault) => Handling::Now(Err(fault)),
            };
        }
        let shared = Arc::clone(shared);
        Handling::Later(Box::pin(async move {
            let body = std::mem::replace(&mut request.body, RequestBody::Empty);
            let body = collect(body, &shared.store.load_full()).await?;
            // It may have begun to stop while the body came.
            if let Some(fault) = shared.refusal() {
                return Err(fault);
            }
            submit(&shared, &request, body, None)?.await
        }))
    }
}

/// Encodes the request and puts it in line.
pub(crate) fn submit(
    shared: &Arc<AppShared>,
    request: &Request,
    body: Collected,
    websocket: Option<Box<Handshake>>,
) -> Result<Call, Fault> {
    let Way::Workers(dialect) = shared.way else {
        let cause = "its requests go to the upstream of its processes";
        return Err(Fault::new(FaultKind::House, cause));
    };
    let now = clock::now();
    let since = now.saturating_duration_since(request.arrived);
    let arrived = clock::wall().saturating_sub(since);
    let mut frame = Vec::with_capacity(1024);
    let content = match &body {
        Collected::Empty => FrameBody::Inline(b""),
        Collected::Memory(bytes) => FrameBody::Inline(bytes),
        Collected::File { .. } => FrameBody::File,
    };
    let length = body.length();
    match shared.reactor {
        None => encode_request(&mut frame, dialect, content, |encoder| {
            environ::encode(encoder, request, length, arrived);
        }),
        Some(Form::Environ) => channel::open(&mut frame, false, content, |out| {
            let mut encoder = EnvironEncoder::new(out, dialect);
            environ::encode(&mut encoder, request, length, arrived);
            encoder.finish()
        }),
        Some(Form::Scope) => {
            let is_websocket = websocket.is_some();
            channel::open(&mut frame, is_websocket, content, |out| {
                let mut encoder = ScopeEncoder::new(out);
                asgi::encode(&mut encoder, request, is_websocket, length, arrived);
                encoder.finish()
            })
        }
    }
    .map_err(|error| Fault::new(FaultKind::House, format!("environment: {error}")))?;
    let body_file = match body {
        Collected::File { file, .. } => Some(file),
        Collected::Empty | Collected::Memory(_) => None,
    };
    let (reply, answer) = oneshot::channel();
    let is_head = request.head.method() == Method::Head;
    let job = Job {
        frame,
        body_file,
        is_head,
        reply: Some(reply),
        client: Arc::clone(&request.client),
        websocket,
        affinity: shared
            .stickiness
            .as_ref()
            .and_then(|sticky| sticky.affinity(request)),
    };
    shared.metrics.requests.increment();
    let mut call = Call {
        shared: Arc::clone(shared),
        answer,
        client: Arc::clone(&request.client),
        waiting: None,
    };
    match shared.dispatch.submit(now, job, loops::current_index()) {
        Placed::Started => {}
        Placed::Waiting { ticket, position } => {
            let deadline = LazyDeadline::new(now + shared.queue_timeout());
            call.waiting = Some(Waiting {
                ticket,
                position,
                since: now,
                deadline,
            });
        }
        Placed::Full { len } => {
            shared.metrics.queue_full.increment();
            let cause = format!("the queue is full: queue.max = {len} requests wait");
            return Err(Fault::new(FaultKind::QueueFull, cause).timed(call.timing(0, now)));
        }
    }
    Ok(call)
}

/// A submitted request. Dropping it takes the job out of the line, if it is still there.
#[derive(Debug)]
pub(crate) struct Call {
    shared: Arc<AppShared>,
    answer: oneshot::Receiver<Result<Reply, Fault>>,
    client: Arc<ClientState>,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    position: usize,
    since: Instant,
    deadline: LazyDeadline,
}

impl Call {
    fn timing(&self, position: usize, since: Instant) -> Timing {
        Timing {
            queue: clock::now().saturating_duration_since(since),
            queue_position: u32::try_from(position).unwrap_or(u32::MAX),
            handler: Some((&self.shared.name).into()),
            ..Timing::default()
        }
    }

    /// Gives up waiting, for one of two reasons; `None` when the job has been started meanwhile.
    fn poll_give_up(&mut self, cx: &mut Context<'_>) -> Option<Fault> {
        let is_gone = self.client.is_gone();
        let waiting = self.waiting.as_mut()?;
        if !is_gone && waiting.deadline.poll(cx).is_pending() {
            return None;
        }
        let waiting = self.waiting.take()?;
        if !self.shared.dispatch.cancel(waiting.ticket) {
            return None;
        }
        let timing = self.timing(waiting.position, waiting.since);
        let fault = if is_gone {
            self.shared.metrics.queue_abandoned.increment();
            Fault::new(FaultKind::ClientGone, "left while waiting for a worker")
        } else {
            self.shared.metrics.queue_timeout.increment();
            let limit = self.shared.queue_timeout();
            Fault::new(
                FaultKind::QueueTimeout,
                format!("no free worker within {limit:?}"),
            )
        };
        self.shared.metrics.queue_time.record(timing.queue);
        Some(fault.timed(timing))
    }
}

impl Future for Call {
    type Output = Result<Reply, Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(cx) {
            self.waiting = None;
            return Poll::Ready(match answer {
                Ok(answer) => answer,
                Err(_) => Err(Fault::new(
                    FaultKind::Unavailable,
                    "the application stopped",
                )),
            });
        }
        if let Some(fault) = self.poll_give_up(cx) {
            return Poll::Ready(Err(fault));
        }
        // A reactor's worker hears of it as soon as nobody waits here; edge asks again when it is so.
        if self.shared.reactor.is_some() && self.client.is_gone() {
            let cause = "left before its answer";
            return Poll::Ready(Err(Fault::new(FaultKind::ClientGone, cause)));
        }
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            self.shared.dispatch.cancel(waiting.ticket);
        }
    }
}
