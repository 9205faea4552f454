//! An application as a handler: from a request to its reply.
//!
//! The body is read completely first, so that a worker does not wait for a client. If the
//! application takes bodies as they arrive, only the available part is read, and the rest is an
//! [`Upload`]. Then the environment is encoded and the job joins the application's queue.
//! [`AppCall`] waits for the reply; while the job is queued it has a deadline (`queue.timeout`) and
//! gives up when the client leaves. Once a driver has the job, the deadline is the driver's; the
//! client of a reactor's request may still leave.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use penstock_exchange::buffering::{CollectedBody, collect_body};
use penstock_exchange::{
    Body, ClientState, Fault, FaultKind, Handler, HandlerProgress, IncomingBody, Reply, Request,
    RequestBody, RequestTiming,
};
use penstock_http::{BodyFraming, Method, RequestHead};
use penstock_queue::Ticket;
use penstock_runtime::{LazyDeadline, clock, loops};
use penstock_wire::{
    EnvironEncoder, MAX_INPUT_BYTES, RequestBodySource as FrameBody, ScopeEncoder, channel,
    encode_request,
};
use tokio::sync::oneshot;

use crate::app::App;
use crate::dispatch::{Job, SubmitOutcome};
use crate::environ::{self, AnnouncedLength, asgi};
use crate::shared::{AppShared, DispatchMode, RequestEncoding, WorkerModel};
use crate::upload::{self, Upload};
use crate::websocket_handshake::{Handshake, read_handshake};

impl Handler for App {
    fn handle(&self, request: Request) -> HandlerProgress {
        if let Some(fault) = self.shared.refusal_fault() {
            return HandlerProgress::Ready(Err(fault));
        }
        let shared = &self.shared;
        if shared.model.get().is_none() {
            let shared = Arc::clone(shared);
            return HandlerProgress::Pending(Box::pin(async move {
                shared.wait_for_model(&request.client_state).await?;
                match dispatch_request(&shared, request) {
                    HandlerProgress::Ready(answered) => answered,
                    HandlerProgress::Pending(work) => work.await,
                }
            }));
        }
        dispatch_request(shared, request)
    }
}

/// Serves a request whose workers' model is known.
fn dispatch_request(shared: &Arc<AppShared>, mut request: Request) -> HandlerProgress {
    if matches!(request.body, RequestBody::Empty) {
        let websocket = match requested_handshake(shared, &request.head) {
            Ok(websocket) => websocket,
            Err(refused) => return HandlerProgress::Ready(*refused),
        };
        return match submit(shared, &request, CollectedBody::Empty.into(), websocket) {
            Ok(call) => HandlerProgress::Pending(Box::pin(call)),
            Err(fault) => HandlerProgress::Ready(Err(fault)),
        };
    }
    let shared = Arc::clone(shared);
    HandlerProgress::Pending(Box::pin(async move {
        let body = std::mem::replace(&mut request.body, RequestBody::Empty);
        let content = match body {
            RequestBody::Incoming(body) if shared.model.streams_request_bodies() => {
                begin_upload(body, Arc::clone(&request.client_state)).await?
            }
            body => {
                let client = request.client_state.counted_address_prefix();
                collect_body(body, client, &shared.buffering_settings.load_full())
                    .await?
                    .into()
            }
        };
        // The application may have begun to stop meanwhile.
        if let Some(fault) = shared.refusal_fault() {
            return Err(fault);
        }
        submit(&shared, &request, content, None)?.await
    }))
}

/// Whether a request asks for a WebSocket that its application can accept. Only ASGI applications
/// have WebSockets; for all others such a request is an ordinary one.
///
/// # Errors
/// The response to one that breaks the rules of the handshake (RFC 6455 §4.2.2).
pub(crate) fn requested_handshake(
    shared: &AppShared,
    head: &RequestHead,
) -> Result<Option<Box<Handshake>>, Box<Result<Reply, Fault>>> {
    match shared.model.get() {
        Some(WorkerModel::Reactor(RequestEncoding::Scope)) => {
            read_handshake(head, shared.websocket_compression)
        }
        _ => Ok(None),
    }
}

/// A request's body when the request joins the queue.
#[derive(Debug)]
pub(crate) enum RequestContent {
    Whole(CollectedBody),
    /// The first bytes; the rest arrives while the request is in progress.
    Streaming {
        first: Vec<u8>,
        length: Option<u64>,
        rest: Arc<Upload>,
    },
}

impl From<CollectedBody> for RequestContent {
    fn from(body: CollectedBody) -> Self {
        Self::Whole(body)
    }
}

impl RequestContent {
    fn announced_length(&self, head: &RequestHead) -> AnnouncedLength {
        match self {
            // The client sent it (RFC 9110 §8.6), and some applications want the field.
            Self::Whole(CollectedBody::Empty) if head.framing() == BodyFraming::Length(0) => {
                AnnouncedLength::Length(0)
            }
            Self::Whole(body) => body
                .length()
                .map_or(AnnouncedLength::NoBody, AnnouncedLength::Length),
            Self::Streaming { length, .. } => {
                length.map_or(AnnouncedLength::Chunked, AnnouncedLength::Length)
            }
        }
    }

    fn frame_body(&self) -> FrameBody<'_> {
        match self {
            Self::Whole(CollectedBody::Empty) => FrameBody::Inline(b""),
            Self::Whole(CollectedBody::Memory(bytes)) => FrameBody::Inline(bytes),
            Self::Whole(CollectedBody::File { .. }) => FrameBody::File,
            Self::Streaming { first, .. } => FrameBody::Streamed(first),
        }
    }
}

/// Takes the available part of a body: all of it, as a rule, if it is small.
async fn begin_upload(
    mut body: Box<dyn IncomingBody>,
    client: Arc<ClientState>,
) -> Result<RequestContent, Fault> {
    let length = body.length();
    let expected = length.and_then(|length| usize::try_from(length).ok());
    let mut first = Vec::with_capacity(expected.unwrap_or(0).min(MAX_INPUT_BYTES));
    let read =
        std::future::poll_fn(|cx| Poll::Ready(upload::read_available(&mut *body, cx, &mut first)));
    if read.await? {
        return Ok(CollectedBody::Memory(first).into());
    }
    let rest = Upload::spawn(body, client);
    Ok(RequestContent::Streaming {
        first,
        length,
        rest,
    })
}

/// Encodes the request and submits it to the queue.
pub(crate) fn submit(
    shared: &Arc<AppShared>,
    request: &Request,
    content: RequestContent,
    websocket: Option<Box<Handshake>>,
) -> Result<AppCall, Fault> {
    let DispatchMode::Workers(dialect) = shared.dispatch_mode else {
        let cause = "its requests go to the upstream of its processes";
        return Err(Fault::new(FaultKind::Internal, cause));
    };
    let now = clock::now();
    let since = now.saturating_duration_since(request.arrived_at);
    let arrived = clock::wall_time().saturating_sub(since);
    let mut frame = Vec::with_capacity(1024);
    let announced = content.announced_length(&request.head);
    let body = content.frame_body();
    let Some(model) = shared.model.get() else {
        let cause = "it is not known yet whether it is WSGI or ASGI";
        return Err(Fault::new(FaultKind::Internal, cause));
    };
    match model {
        WorkerModel::Threads => encode_request(&mut frame, dialect, body, |encoder| {
            environ::encode_environ(encoder, request, announced, arrived, true);
        }),
        WorkerModel::Reactor(RequestEncoding::Environ) => {
            channel::encode_open(&mut frame, false, body, |out| {
                let mut encoder = EnvironEncoder::new(out, dialect);
                environ::encode_environ(&mut encoder, request, announced, arrived, true);
                encoder.finish()
            })
        }
        WorkerModel::Reactor(RequestEncoding::Scope) => {
            let is_websocket = websocket.is_some();
            channel::encode_open(&mut frame, is_websocket, body, |out| {
                let mut encoder = ScopeEncoder::new(out);
                asgi::encode_scope(&mut encoder, request, is_websocket, announced, arrived);
                encoder.finish();
                Ok(())
            })
        }
    }
    .map_err(|error| Fault::new(FaultKind::Internal, format!("environment: {error}")))?;
    let (body_file, upload) = match content {
        RequestContent::Whole(CollectedBody::File { file, .. }) => (Some(file), None),
        RequestContent::Whole(CollectedBody::Empty | CollectedBody::Memory(_)) => (None, None),
        RequestContent::Streaming { rest, .. } => (None, Some(rest)),
    };
    let (reply, answer) = oneshot::channel();
    let is_head = request.head.method() == Method::Head;
    let job = Job {
        frame,
        body_file,
        upload: upload.as_ref().map(Upload::reader),
        is_head,
        reply_sender: Some(reply),
        client: Arc::clone(&request.client_state),
        websocket,
        upgrades: model != WorkerModel::Reactor(RequestEncoding::Scope)
            && request.head.is_upgrade(),
        sendfile: request.sendfile_grant.clone(),
        affinity: shared
            .stickiness
            .as_ref()
            .and_then(|sticky| sticky.affinity(request)),
        response_timeout: request.response_timeout(),
    };
    shared.metrics.requests.increment();
    let mut call = AppCall {
        shared: Arc::clone(shared),
        answer,
        client: Arc::clone(&request.client_state),
        upload,
        queue_wait: None,
    };
    match shared
        .dispatch
        .submit(now, job, loops::current_loop_index())
    {
        SubmitOutcome::Started => {}
        SubmitOutcome::Waiting { ticket, position } => {
            let deadline = LazyDeadline::new(now + shared.queue_timeout());
            call.queue_wait = Some(QueueWait {
                ticket,
                position,
                queued_at: now,
                deadline,
            });
        }
        SubmitOutcome::QueueFull { len } => {
            shared.metrics.queue_full.increment();
            let cause = format!("the queue is full: queue.max = {len} requests wait");
            return Err(Fault::new(FaultKind::QueueFull, cause).with_timing(call.timing(0, now)));
        }
    }
    Ok(call)
}

/// A submitted request. Dropping it takes the job out of the queue, if it is still there.
#[derive(Debug)]
pub(crate) struct AppCall {
    shared: Arc<AppShared>,
    answer: oneshot::Receiver<Result<Reply, Fault>>,
    client: Arc<ClientState>,
    /// The rest of its body, while it arrives.
    upload: Option<Arc<Upload>>,
    queue_wait: Option<QueueWait>,
}

#[derive(Debug)]
struct QueueWait {
    ticket: Ticket,
    position: usize,
    queued_at: Instant,
    deadline: LazyDeadline,
}

impl AppCall {
    fn timing(&self, position: usize, since: Instant) -> RequestTiming {
        let waited = clock::now().saturating_duration_since(since);
        RequestTiming {
            queue_position: u32::try_from(position).unwrap_or(u32::MAX),
            ..self.shared.wait_timing(waited)
        }
    }

    /// Stops waiting, for one of three reasons; `None` if the job has been started meanwhile.
    fn poll_give_up(&mut self, cx: &mut Context<'_>) -> Option<Fault> {
        let is_gone = self.client.is_disconnected();
        let waiting = self.queue_wait.as_mut()?;
        let upload = self.upload.as_ref();
        let has_failed = upload.is_some_and(|upload| upload.poll_failed(cx));
        if !is_gone && !has_failed && waiting.deadline.poll(cx).is_pending() {
            return None;
        }
        let waiting = self.queue_wait.take()?;
        if !self.shared.dispatch.cancel(waiting.ticket) {
            return None;
        }
        let timing = self.timing(waiting.position, waiting.queued_at);
        let failure = self.upload.as_ref().and_then(|it| it.take_failure());
        let fault = if let Some(failure) = failure.filter(|_| !is_gone) {
            failure
        } else if is_gone {
            self.shared.metrics.queue_abandoned.increment();
            Fault::new(
                FaultKind::ClientDisconnected,
                "left while waiting for a worker",
            )
        } else {
            self.shared.metrics.queue_timeout.increment();
            let limit = self.shared.queue_timeout();
            Fault::new(
                FaultKind::QueueTimeout,
                format!("no free worker within {limit:?}"),
            )
        };
        self.shared.metrics.queue_time.record(timing.queue_time);
        Some(fault.with_timing(timing))
    }
}

impl Future for AppCall {
    type Output = Result<Reply, Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(cx) {
            self.queue_wait = None;
            let answer = answer.unwrap_or_else(|_| {
                let cause = "the application stopped";
                Err(Fault::new(FaultKind::Unavailable, cause))
            });
            // Its request has ended, so the body is not read on. The connection learns of that
            // before it answers.
            if !is_streaming_reply(&answer)
                && let Some(upload) = self.upload.take()
            {
                upload.release_connection();
            }
            return Poll::Ready(answer);
        }
        if let Some(upload) = &self.upload {
            // Polled again when its client is to be invited to send.
            upload.poll_failed(cx);
        }
        if let Some(fault) = self.poll_give_up(cx) {
            return Poll::Ready(Err(fault));
        }
        // A reactor's worker hears of it as soon as this future ends; edge polls it when the client
        // leaves.
        if self.shared.model.has_reactor() && self.client.is_disconnected() {
            let cause = "left before its answer";
            return Poll::Ready(Err(Fault::new(FaultKind::ClientDisconnected, cause)));
        }
        Poll::Pending
    }
}

/// Whether the application continues behind this reply, and may read on.
fn is_streaming_reply(answer: &Result<Reply, Fault>) -> bool {
    matches!(answer, Ok(Reply::Response(response))
        if matches!(response.body, Body::Stream(_) | Body::Takeover(_)))
}

impl Drop for AppCall {
    fn drop(&mut self) {
        if let Some(waiting) = self.queue_wait.take() {
            self.shared.dispatch.cancel(waiting.ticket);
        }
    }
}
