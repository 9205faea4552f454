//! What a channel's driver reads: responses, bodies, WebSockets.
//!
//! # Invariants
//! - Frames for a dropped stream are dropped.
//! - A frame for a stream that is not open, or above its window, ends the worker: its other frames
//!   cannot be trusted either.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_exchange::{Fault, Reply, RequestTiming};
use penstock_http::websocket::close_code;
use penstock_runtime::{buffers, clock};
use penstock_wire::ChannelEvent;
use penstock_wire::channel::{WINDOW_BYTES, encode_window};

use super::body_pump::BodyPump;
use super::stream_table::{StreamState, index_of};
use super::websocket::MessagePiece;
use super::{ChannelDriver, WINDOW_UPDATE_INTERVAL};
use crate::driver::{
    DriverEnd, count_fault, incomplete_response_fault, open_spool, send_and_count_reply,
};
use crate::reply::{HeadFrame, ReplyHead, ResponseStart};
use crate::shared::SlotProducer;

/// Window that is worth a frame of its own at once.
const MIN_WINDOW_UPDATE: u32 = WINDOW_BYTES / 4;

impl ChannelDriver {
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DriverEnd>> {
        buffers::with_receive_buffer(|buffer| {
            let read = ready!(self.stream.poll_read(cx, buffer));
            let bytes = self.core.received.take(read, buffer);
            Poll::Ready(bytes.and_then(|bytes| self.handle_bytes(&bytes)))
        })
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), DriverEnd> {
        let mut rest = bytes;
        // A worker that sends is not stuck.
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
        self.core.received.partial_frame.extend_from_slice(rest);
        Ok(())
    }

    fn handle_event(&mut self, event: ChannelEvent<'_>) -> Result<(), DriverEnd> {
        let id = event.stream_id();
        // A worker cannot know a stream before its frame is sent.
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
                let frame = HeadFrame {
                    head,
                    body,
                    body_len,
                    end,
                };
                self.handle_response(id, &frame, app_time_us)
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

    fn handle_response(
        &mut self,
        id: u32,
        frame: &HeadFrame<'_>,
        app_time_us: u32,
    ) -> Result<(), DriverEnd> {
        let timing = self.record_response_timing(id, app_time_us);
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let job = match &entry.state {
            StreamState::AwaitingResponse(start) => &start.job,
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => {
                if frame.end {
                    self.end_stream(id);
                }
                return Ok(());
            }
            _ => return Err(unexpected_frame("a second answer", id)),
        };
        entry.uses_window = frame.body_len.is_none();
        match frame.start_response(job.is_head, timing, job.sendfile.as_deref()) {
            ResponseStart::Complete(reply) => {
                self.answer_request(id, reply);
                self.discard_response(id, frame.end);
                Ok(())
            }
            ResponseStart::Streamed(head, length) => self.begin_body(id, head, length, frame.body),
        }
    }

    /// Replies with a streamed body. Its first bytes are in the spool before that, so that head and
    /// body leave in one write, whichever loop sends them.
    fn begin_body(
        &mut self,
        id: u32,
        head: ReplyHead,
        length: Option<u64>,
        first: &[u8],
    ) -> Result<(), DriverEnd> {
        let producer = Arc::<SlotProducer>::clone(&self.core.producer);
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let StreamState::AwaitingResponse(start) = &entry.state else {
            return Ok(());
        };
        entry.is_unbuffered = head.is_unbuffered;
        let (app, job) = (&self.core.app, &start.job);
        let (writer, response) = open_spool(app, job, head, length, Some(producer));
        let start = std::mem::replace(&mut entry.state, StreamState::Spooling(writer));
        // From the head on an event stream may be silent for any time.
        self.streams.stop_clock(id);
        self.streams.restart_body_clock(id, clock::now());
        // The driver is woken when the client leaves.
        self.poll_stream(index_of(id));
        self.handle_data(id, first, false)?;
        if let StreamState::AwaitingResponse(mut start) = start {
            start.job.answer(Ok(response));
        }
        Ok(())
    }

    /// Hands over a hijacked connection, whose socket was sent before.
    fn handle_hijack(&mut self, id: u32) -> Result<(), DriverEnd> {
        let Some(socket) = self.outbox.take_hijacked_socket(id) else {
            return Err(unexpected_frame("a hijack without its socket", id));
        };
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let app_time = entry.app_time(clock::now());
        let timing = self
            .record_response_timing(id, u32::try_from(app_time.as_micros()).unwrap_or(u32::MAX));
        let waker = self.streams.waker(index_of(id));
        let (Some(entry), Some(waker)) = (self.streams.entry(id), waker) else {
            return Ok(());
        };
        let job = match &mut entry.state {
            StreamState::AwaitingResponse(start) => start.job.split_reply(),
            // Its client has left, so the socket is closed.
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => return Ok(()),
            _ => return Err(unexpected_frame("a hijack behind an answer", id)),
        };
        let hijacked = self.core.hijacked_connections.register();
        hijacked.shared_progress().set_end_waker(waker);
        entry.state = StreamState::Hijacked(hijacked.shared_progress());
        // From now on the deadline is the connection's, until its end.
        self.streams.stop_clock(id);
        self.core.spawn_hijacked(job, socket, hijacked, timing);
        Ok(())
    }

    /// Starts the clock of the application's call when its hijacked connection has ended.
    pub(super) fn handle_hijack_progress(&mut self, id: u32) {
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
                // Until the client takes it the worker is not charged for silence.
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
                Some(StreamState::Pumping(pump)) => pump.end_body(Ok(())),
                _ => {}
            }
        }
        Ok(())
    }

    /// Handles the progress of the task that has a body.
    pub(super) fn handle_pump_progress(&mut self, id: u32) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let StreamState::Pumping(pump) = &entry.state else {
            return;
        };
        let progress = pump.take_progress();
        if progress.is_client_disconnected {
            if let Some(guard) = pump.take_slow_response() {
                self.streams.retain_slow_response(id, guard);
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

    /// Gives the worker the window that is owed, once that is worth a frame or has waited long
    /// enough.
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
            // A long message needs the whole window, so none of it may be kept back for ever.
            entry.is_window_update_pending = true;
            self.window_owed.push(id);
            if self.window_update_at.is_none() {
                self.window_update_at = Some(clock::now() + WINDOW_UPDATE_INTERVAL);
            }
        }
    }

    fn handle_reset(&mut self, id: u32, reason: &str, is_protocol: bool) {
        let timing = self.record_response_timing(id, 0);
        let Some(state) = self.end_stream(id) else {
            return;
        };
        let cause = match state {
            StreamState::AwaitingResponse(_) => reason.to_owned(),
            _ => format!("mid-response: {reason}"),
        };
        let fault = incomplete_response_fault(is_protocol, cause);
        let kind = fault.kind;
        match state {
            StreamState::AwaitingResponse(mut start) => {
                start.job.answer(Err(fault.with_timing(timing)));
            }
            StreamState::Spooling(writer) => writer.finish(Err(fault)),
            StreamState::Pumping(pump) => pump.end_body(Err(fault)),
            StreamState::WebSocket(socket) => {
                let (app, pid) = (&self.core.app.name, self.core.pid);
                log::error!("{app}[{pid}]: a WebSocket ended: {reason}");
                socket.pipe.close_by_worker(close_code::INTERNAL_ERROR, "");
            }
            StreamState::Hijacked(_)
            | StreamState::AbandonedUnsent(_)
            | StreamState::Discarding => return,
        }
        count_fault(&self.core.app, kind);
    }

    /// Gives a request its reply, if it has none.
    pub(super) fn answer_request(&mut self, id: u32, reply: Result<Reply, Fault>) {
        let entry = self.streams.entry(id);
        if let Some(StreamState::AwaitingResponse(start)) = entry.map(|entry| &mut entry.state) {
            send_and_count_reply(&self.core.app, &mut start.job, reply);
        }
    }

    /// Drops the rest of a response, and asks the worker to stop.
    pub(super) fn discard_response(&mut self, id: u32, is_ended: bool) {
        if is_ended {
            self.end_stream(id);
        } else {
            self.abandon_stream(id);
        }
    }

    pub(super) fn record_response_timing(&mut self, id: u32, app_time_us: u32) -> RequestTiming {
        let app_time = Duration::from_micros(u64::from(app_time_us));
        let start = self
            .streams
            .entry(id)
            .and_then(|entry| entry.unanswered_job());
        let timing = self.core.request_timing(start, app_time);
        if start.is_some() {
            self.core.app.metrics.app_time.record(app_time);
            self.core.app.metrics.queue_time.record(timing.queue_time);
        }
        timing
    }
}

pub(super) fn unexpected_frame(what: &str, id: u32) -> DriverEnd {
    DriverEnd::ProtocolBroken(format!("{what} on stream {id}"))
}
