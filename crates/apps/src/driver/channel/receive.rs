//! From the worker to whoever waits: answers, bodies, WebSockets.
//!
//! What must stay true: each request gets one answer; a declared length is kept or the client is cut;
//! what comes for a stream that nobody wants is dropped; a frame for a stream that is not open, or more
//! than its window allows, ends the worker: nobody can say what else it has wrong.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use penstock_exchange::buffering::{SpoolSpec, spool};
use penstock_exchange::{Body as ResponseBody, Fault, FaultKind, RequestTiming, Response};
use penstock_http::websocket::code;
use penstock_runtime::{Stream, buffers, clock, loops};
use penstock_wire::channel::{WINDOW_BYTES, encode_window};
use penstock_wire::{ChannelEvent, ResponseHeadView, WireError};

use super::pump::BodyPump;
use super::stream_table::{StreamState, index_of};
use super::websocket::MessagePiece;
use super::{ChannelDriver, WINDOW_UPDATE_INTERVAL};
use crate::driver::{DriverEnd, hijack};
use crate::reply::{self, ReplyHead};
use crate::shared::SlotPlace;

/// So much window is worth a frame of its own at once.
const MIN_WINDOW_UPDATE: u32 = WINDOW_BYTES / 4;

/// What an ANSWER says of its body.
#[derive(Debug, Clone, Copy)]
struct ResponseBodyStart<'b> {
    body: &'b [u8],
    /// Of the whole body, when this frame has it.
    body_len: Option<u32>,
    end: bool,
}

impl ChannelDriver {
    /// Reads once and handles what came.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DriverEnd>> {
        let stream = Arc::clone(&self.stream);
        buffers::with_receive_buffer(|buffer| match stream.poll_read(cx, buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0)) => Poll::Ready(Err(DriverEnd::WorkerDied)),
            Poll::Ready(Err(error)) => {
                // unix(7): what the other side had not read makes its close a reset.
                self.has_unread_frame = error.kind() == std::io::ErrorKind::ConnectionReset;
                Poll::Ready(Err(DriverEnd::WorkerDied))
            }
            Poll::Ready(Ok(count)) if self.partial_frame.is_empty() => {
                Poll::Ready(self.handle_bytes(&buffer[..count]))
            }
            Poll::Ready(Ok(count)) => {
                let mut whole = std::mem::take(&mut self.partial_frame);
                whole.extend_from_slice(&buffer[..count]);
                Poll::Ready(self.handle_bytes(&whole))
            }
        })
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), DriverEnd> {
        let mut rest = bytes;
        // Whatever it says: it is not stuck.
        self.check_reading_at = None;
        loop {
            match self.decoder.decode(rest) {
                Ok(Some(decoded)) => {
                    rest = &rest[decoded.consumed..];
                    self.handle_event(decoded.event)?;
                }
                Ok(None) => break,
                Err(error) => return Err(DriverEnd::ProtocolBroken(error.to_string())),
            }
        }
        self.partial_frame.extend_from_slice(rest);
        Ok(())
    }

    fn handle_event(&mut self, event: ChannelEvent<'_>) -> Result<(), DriverEnd> {
        let id = event.stream_id();
        // What was not wholly sent it cannot know.
        if !self.streams.entry(id).is_some_and(|entry| entry.is_sent) {
            let why = format!("a frame for stream {id}, which is not open");
            return Err(DriverEnd::ProtocolBroken(why));
        }
        match event {
            ChannelEvent::Response {
                head,
                app_time_us,
                body,
                body_len,
                end,
                ..
            } => {
                let answered = ResponseBodyStart {
                    body,
                    body_len,
                    end,
                };
                self.handle_response(id, head, app_time_us, answered)
            }
            ChannelEvent::Data { bytes, end, .. } => self.handle_data(id, bytes, end),
            ChannelEvent::Reset {
                reason,
                is_protocol,
                ..
            } => {
                self.handle_reset(id, reason, is_protocol);
                Ok(())
            }
            ChannelEvent::Accept { head, .. } => self.handle_accept(id, head),
            ChannelEvent::Message {
                is_text,
                len,
                bytes,
                is_first,
                end,
                ..
            } => {
                if is_first {
                    self.handle_message_start(id, len)?;
                }
                let piece = MessagePiece {
                    is_text,
                    bytes,
                    end,
                };
                self.handle_message_piece(id, piece);
                Ok(())
            }
            ChannelEvent::Close { code, reason, .. } => {
                self.handle_worker_close(id, code, reason);
                Ok(())
            }
            ChannelEvent::Window { bytes, .. } => {
                self.handle_window_update(id, bytes);
                Ok(())
            }
            ChannelEvent::Pull { .. } => self.handle_pull(id),
            ChannelEvent::Hijack { .. } => self.handle_hijack(id),
        }
    }

    /// A head has come, with some of its body.
    fn handle_response(
        &mut self,
        id: u32,
        head: Result<ResponseHeadView<'_>, WireError>,
        app_time_us: u32,
        answered: ResponseBodyStart<'_>,
    ) -> Result<(), DriverEnd> {
        let timing = self.response_timing(id, app_time_us);
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let (is_head, grant) = match &entry.state {
            StreamState::AwaitingResponse(start) => {
                (start.job.is_head, start.job.sendfile.as_deref())
            }
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => {
                if answered.end {
                    self.end_stream(id);
                }
                return Ok(());
            }
            _ => return Err(unexpected_frame("a second answer", id)),
        };
        entry.uses_window = answered.body_len.is_none();
        let length = answered.body_len.map(u64::from);
        let head = match head {
            Ok(parts) => reply::client_head(&parts, is_head, timing, grant),
            Err(error) => {
                let cause = format!("response head: {error}");
                Err(Fault::new(FaultKind::AppProtocolError, cause).with_timing(timing))
            }
        };
        let mut head = match head {
            Ok(head) => head,
            Err(fault) => {
                self.answer_request(id, Err(fault));
                self.discard_response(id, answered.end);
                return Ok(());
            }
        };
        if let Some(redirect) = head.redirect.take() {
            if let Some(StreamState::AwaitingResponse(start)) =
                self.streams.entry(id).map(|e| &mut e.state)
            {
                start.job.redirect(redirect);
            }
            self.discard_response(id, answered.end);
            return Ok(());
        }
        if !head.wants_body {
            let ReplyHead {
                mut response,
                declared,
                ..
            } = head;
            let length = declared.or_else(|| length.filter(|len| *len > 0));
            response.body = ResponseBody::Omitted(length);
            self.answer_request(id, Ok(response));
            self.discard_response(id, answered.end);
        } else if answered.end && length == Some(answered.body.len() as u64) {
            self.answer_request(id, reply::with_whole_body(head, answered.body));
            self.end_stream(id);
        } else if let Err(fault) = reply::check_declared(&head, length) {
            self.answer_request(id, Err(fault));
            self.discard_response(id, answered.end);
        } else {
            self.begin_body(id, head, length, answered.body)?;
        }
        Ok(())
    }

    /// Answers with a body that goes on. What has come of it is there before the answer is: both leave in
    /// one piece, whichever loop sends them.
    fn begin_body(
        &mut self,
        id: u32,
        head: ReplyHead,
        length: Option<u64>,
        first: &[u8],
    ) -> Result<(), DriverEnd> {
        let ReplyHead {
            mut response,
            declared,
            is_unbuffered,
            ..
        } = head;
        let store = self.app.body_store.load_full();
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let client = match &entry.state {
            StreamState::AwaitingResponse(start) => start.job.client.limit_prefix(),
            _ => None,
        };
        let spec = SpoolSpec {
            client,
            producer: Some(Arc::<SlotPlace>::clone(&self.place)),
            is_unbuffered,
            length: declared.or(length),
        };
        let (writer, reader) = spool(store, spec);
        response.body = ResponseBody::Stream(Box::new(reader));
        entry.is_unbuffered = is_unbuffered;
        let asked = std::mem::replace(&mut entry.state, StreamState::Spooling(writer));
        // From the head on an event stream may say nothing for as long as it likes.
        self.streams.stop_clock(id);
        self.streams.restart_body_clock(id, clock::now());
        // The notice of a client that leaves.
        self.poll_stream(index_of(id));
        self.handle_data(id, first, false)?;
        if let StreamState::AwaitingResponse(mut start) = asked {
            start.job.answer(Ok(response));
        }
        Ok(())
    }

    /// The application answers by itself, on a socket that was sent before.
    fn handle_hijack(&mut self, id: u32) -> Result<(), DriverEnd> {
        let Some(socket) = self.outbox.take_socket(id) else {
            return Err(unexpected_frame("a hijack without its socket", id));
        };
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let app_time = clock::now().saturating_duration_since(entry.opened_at);
        let timing =
            self.response_timing(id, u32::try_from(app_time.as_micros()).unwrap_or(u32::MAX));
        let waker = self.streams.waker(index_of(id));
        let (Some(entry), Some(waker)) = (self.streams.entry(id), waker) else {
            return Ok(());
        };
        let mut job = match &mut entry.state {
            StreamState::AwaitingResponse(start) => start.job.split_reply(),
            // Its client has left: so the socket is closed.
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => return Ok(()),
            _ => return Err(unexpected_frame("a hijack behind an answer", id)),
        };
        let hijacked = self.hijacked_connections.register();
        hijacked.progress().set_end_waker(waker);
        entry.state = StreamState::Hijacked(hijacked.progress());
        // From now on the clock is the connection's, until its end.
        self.streams.stop_clock(id);
        match Stream::from_received(socket) {
            Ok(socket) => {
                let app = Arc::clone(&self.app);
                loops::spawn_here(hijack::serve_hijacked(app, job, socket, hijacked, timing));
            }
            Err(error) => {
                let cause = format!("its hijacked connection: {error}");
                job.answer(Err(
                    Fault::new(FaultKind::AppProtocolError, cause).with_timing(timing)
                ));
            }
        }
        Ok(())
    }

    /// A hijacked connection has ended: from now on the application's call has its time.
    pub(super) fn check_hijacked(&mut self, id: u32) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        if let StreamState::Hijacked(stage) = &entry.state
            && stage.has_ended()
            && !entry.is_timed()
        {
            self.streams.start_clock(id, clock::now());
        }
    }

    /// A piece of a body.
    fn handle_data(&mut self, id: u32, bytes: &[u8], end: bool) -> Result<(), DriverEnd> {
        let now = clock::now();
        let Some(waker) = self.streams.waker(index_of(id)) else {
            return Ok(());
        };
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if entry.uses_window {
            let Some(room) = entry.receive_window.checked_sub(len) else {
                return Err(unexpected_frame("more than its window", id));
            };
            entry.receive_window = room;
        }
        match &mut entry.state {
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => {}
            StreamState::Spooling(writer) => {
                writer.push(bytes);
                if writer.has_overflow() {
                    if let StreamState::Spooling(writer) =
                        std::mem::replace(&mut entry.state, StreamState::Discarding)
                    {
                        entry.state = StreamState::Pumping(BodyPump::start(writer, len, waker));
                    }
                    self.streams.stop_clock(id);
                } else {
                    entry.window_owed += if entry.uses_window { len } else { 0 };
                    self.streams.restart_body_clock(id, now);
                    self.return_window(id, false);
                }
            }
            StreamState::Pumping(pump) => {
                // Until it is taken the client is to blame for what does not come.
                pump.push(bytes);
                self.streams.stop_clock(id);
            }
            StreamState::AwaitingResponse(_) => {
                return Err(unexpected_frame("a body before its head", id));
            }
            StreamState::WebSocket(_) => return Err(unexpected_frame("a body in a WebSocket", id)),
            StreamState::Hijacked(_) if bytes.is_empty() && end => {}
            StreamState::Hijacked(_) => return Err(unexpected_frame("a body behind a hijack", id)),
        }
        if end {
            match self.end_stream(id) {
                Some(StreamState::Spooling(writer)) => writer.finish(Ok(None)),
                Some(StreamState::Pumping(pump)) => pump.end(Ok(())),
                _ => {}
            }
        }
        Ok(())
    }

    /// The task beside this one got on with a body.
    pub(super) fn check_pump(&mut self, id: u32) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let StreamState::Pumping(pump) = &entry.state else {
            return;
        };
        let progress = pump.progress();
        if progress.is_client_disconnected {
            if let Some(place) = pump.take_cut_place() {
                self.streams.keep_cut_place(id, place);
            }
            return self.abandon_stream(id);
        }
        if entry.uses_window {
            entry.window_owed += progress.taken_bytes;
        }
        self.return_window(id, false);
        if progress.is_idle {
            self.streams.restart_body_clock(id, clock::now());
        }
    }

    /// Lets the worker send as much as was taken, once that is worth a frame, or has waited long enough.
    pub(super) fn return_window(&mut self, id: u32, is_due: bool) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        entry.is_window_update_pending &= !is_due;
        if entry.window_owed == 0 {
            return;
        }
        if entry.window_owed >= MIN_WINDOW_UPDATE || is_due {
            let owed = std::mem::take(&mut entry.window_owed);
            entry.receive_window = entry.receive_window.saturating_add(owed);
            self.outbox.push(&encode_window(id, owed));
        } else if matches!(entry.state, StreamState::WebSocket(_))
            && !entry.is_window_update_pending
        {
            // A long message waits for the whole window, so none of it may be kept back for ever.
            entry.is_window_update_pending = true;
            self.window_owed.push(id);
            if self.window_update_at.is_none() {
                self.window_update_at = Some(clock::now() + WINDOW_UPDATE_INTERVAL);
            }
        }
    }

    fn handle_reset(&mut self, id: u32, reason: &str, is_protocol: bool) {
        let kind = match is_protocol {
            true => FaultKind::AppProtocolError,
            false => FaultKind::AppRaised,
        };
        let timing = self.response_timing(id, 0);
        match self.end_stream(id) {
            Some(StreamState::AwaitingResponse(mut start)) => {
                self.app.metrics.failed_requests.increment();
                let fault = Fault::new(kind, reason.to_owned()).with_timing(timing);
                start.job.answer(Err(fault));
            }
            Some(StreamState::Spooling(writer)) => {
                self.app.metrics.failed_requests.increment();
                let fault = Fault::new(kind, format!("mid-response: {reason}"));
                writer.finish(Err(fault));
            }
            Some(StreamState::Pumping(pump)) => {
                self.app.metrics.failed_requests.increment();
                let fault = Fault::new(kind, format!("mid-response: {reason}"));
                pump.end(Err(fault));
            }
            Some(StreamState::WebSocket(socket)) => {
                self.app.metrics.failed_requests.increment();
                log::error!(
                    "{}[{}]: a WebSocket ended: {reason}",
                    self.app.name,
                    self.pid
                );
                socket.pipe.close_by_worker(code::INTERNAL_ERROR, "");
            }
            Some(
                StreamState::Hijacked(_)
                | StreamState::AbandonedUnsent(_)
                | StreamState::Discarding,
            )
            | None => {}
        }
    }

    /// Answers a request that is still asked.
    pub(super) fn answer_request(&mut self, id: u32, answer: Result<Response, Fault>) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let StreamState::AwaitingResponse(start) = &mut entry.state else {
            return;
        };
        if let Err(fault) = &answer
            && matches!(
                fault.kind,
                FaultKind::AppRaised | FaultKind::AppProtocolError
            )
        {
            self.app.metrics.failed_requests.increment();
        }
        start.job.answer(answer);
    }

    /// The rest of this response is dropped, and its worker asked not to make it.
    pub(super) fn discard_response(&mut self, id: u32, is_ended: bool) {
        if is_ended {
            self.end_stream(id);
        } else {
            self.abandon_stream(id);
        }
    }

    pub(super) fn response_timing(&mut self, id: u32, app_time_us: u32) -> RequestTiming {
        let app = Duration::from_micros(u64::from(app_time_us));
        let Some(entry) = self.streams.entry(id) else {
            return RequestTiming::default();
        };
        let mut timing = entry.timing(&self.app.name, self.pid, entry.opened_at);
        timing.app_time = app;
        if matches!(entry.state, StreamState::AwaitingResponse(_)) {
            self.app.metrics.app_time.record(app);
            self.app.metrics.queue_time.record(timing.queue_time);
        }
        timing
    }
}

pub(super) fn unexpected_frame(what: &str, id: u32) -> DriverEnd {
    DriverEnd::ProtocolBroken(format!("{what} on stream {id}"))
}
