//! What a slot's driver reads: bytes to events, events to the response of the first request, which
//! is a whole body, a stream, a file or a fault.
//!
//! # Invariants
//! - A descriptor belongs to the frame that it came with.
//! - Any breach of the protocol ends the driver.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_exchange::buffering::SpoolWriter;
use penstock_exchange::{Body, Fault, FileBody, Reply, RequestTiming, Response};
use penstock_runtime::{DiskFile, buffers, clock, loops};
use penstock_sys::page_cache;
use penstock_wire::SlotEvent;

use super::{CANCEL_FRAME_LEN, DriverEnd, DriverStep, OpenResponse, SlotDriver};
use crate::dispatch::MAX_BATCH_REQUESTS;
use crate::driver::{count_fault, incomplete_response_fault, open_spool, send_and_count_reply};
use crate::reply::{self, HeadFrame, ReplyHead, ResponseStart, app_protocol_error};
use crate::shared::{AppShared, SlotProducer};

impl SlotDriver {
    /// Reads once, and acts on the whole frames that have come.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<DriverStep>, DriverEnd>> {
        buffers::with_receive_buffer(|buffer| {
            let read = self
                .stream
                .poll_read_with_descriptors(cx, buffer, &mut self.descriptors);
            let bytes = self.core.received.take(ready!(read), buffer);
            Poll::Ready(bytes.and_then(|bytes| self.handle_bytes(&bytes)))
        })
    }

    pub(super) fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Option<DriverStep>, DriverEnd> {
        let mut rest = bytes;
        let mut ended = 0;
        let mut step = None;
        self.progress_at = clock::now();
        loop {
            // They were sent before what follows here, if it is their turn.
            ended += self.take_ring_answers()?;
            let decoded = match self.decoder.decode(rest) {
                Ok(Some(decoded)) => decoded,
                Ok(None) => break,
                Err(error) => return Err(DriverEnd::ProtocolBroken(error.to_string())),
            };
            rest = &rest[decoded.consumed..];
            let is_last = decoded.event.is_last();
            if matches!(decoded.event, SlotEvent::FdRequest) {
                step = Some(DriverStep::SendBodyFile);
            } else {
                self.handle_event(decoded.event)?;
            }
            if is_last {
                self.end_response();
                ended += 1;
            }
        }
        self.core.received.partial_frame.extend_from_slice(rest);
        // A FILE frame and its descriptor come right behind their head. Without a descriptor and
        // without the start of a frame it is no file, and the client gets the head now.
        if self.core.received.partial_frame.is_empty()
            && self.descriptors.is_empty()
            && let Some(head) = self.held_head.take()
        {
            self.begin_stream(head, None, b"");
        }
        let is_hoard = self.descriptors.len() > MAX_BATCH_REQUESTS as usize;
        let is_unclaimed =
            !self.descriptors.is_empty() && self.core.received.partial_frame.is_empty();
        if is_hoard || is_unclaimed && self.held_head.is_none() {
            return Err(DriverEnd::ProtocolBroken(
                "a descriptor that no frame claims".into(),
            ));
        }
        if ended > 0 {
            self.finish_requests(ended);
        }
        if matches!(&self.open_response, Some(OpenResponse::Spooling(spool)) if spool.has_overflow())
        {
            step = Some(DriverStep::SettleSpool);
        }
        Ok(step)
    }

    /// The first request is answered.
    pub(super) fn end_response(&mut self) {
        self.open_response = None;
        (self.cut_deadline, self.discarding_since) = (None, None);
        self.slow_response = None;
        self.end_request_body();
        if self.deadline_extension.take().is_some() {
            *self.core.mailbox.deadline_extension.lock() = None;
        }
        self.in_flight.pop_front();
        if self.control_frames.len() == CANCEL_FRAME_LEN {
            // There is nothing left to cancel, and none of it has been sent.
            self.control_frames.clear();
        }
    }

    pub(super) fn handle_event(&mut self, event: SlotEvent<'_>) -> Result<(), DriverEnd> {
        match event {
            SlotEvent::FdRequest => {}
            SlotEvent::IoBound => self.lend_spare_slot(),
            SlotEvent::Pull => self.handle_pull()?,
            SlotEvent::ExtendDeadline { seconds } => {
                let until = clock::now() + Duration::from_secs(u64::from(seconds));
                self.deadline_extension = self.deadline_extension.max(Some(until));
                *self.core.mailbox.deadline_extension.lock() = self.deadline_extension;
            }
            SlotEvent::GarbageCollected => self.finish_gc(),
            SlotEvent::AnswerRing => self.open_answer_ring()?,
            SlotEvent::Head {
                head,
                app_time_us,
                body,
                body_len,
                end,
            } => {
                let frame = HeadFrame {
                    head,
                    body,
                    body_len,
                    end,
                };
                self.begin_response(&frame, app_time_us);
            }
            SlotEvent::Body { bytes, .. } => {
                if let Some(head) = self.held_head.take() {
                    self.begin_stream(head, None, bytes);
                } else if let Some(OpenResponse::Spooling(spool)) = &mut self.open_response {
                    spool.push(bytes);
                }
                if let (true, Some(OpenResponse::Spooling(_))) =
                    (event.is_last(), &self.open_response)
                    && let Some(OpenResponse::Spooling(spool)) = self.open_response.take()
                {
                    self.finish_spool(spool);
                }
            }
            SlotEvent::File { offset, len, end } => {
                if self.descriptors.is_empty() {
                    return Err(DriverEnd::ProtocolBroken(
                        "a file frame without its descriptor".into(),
                    ));
                }
                let file = File::from(self.descriptors.remove(0));
                match self.held_head.take() {
                    Some(head) if end => {
                        let response = file_response(head, file, offset, len, &self.core.app);
                        self.answer_request(response.map(Reply::from));
                    }
                    _ if matches!(self.open_response, Some(OpenResponse::Discarding)) => {}
                    _ => {
                        return Err(DriverEnd::ProtocolBroken(
                            "a file frame in the middle of a body".into(),
                        ));
                    }
                }
            }
            SlotEvent::Hijack => {
                if self.descriptors.is_empty() {
                    return Err(DriverEnd::ProtocolBroken(
                        "a hijacked connection without its socket".into(),
                    ));
                }
                let socket = self.descriptors.remove(0);
                self.hand_over_hijacked(socket);
            }
            SlotEvent::Abort { reason } => {
                let fault = incomplete_response_fault(false, format!("mid-response: {reason}"));
                if let Some(head) = self.held_head.take() {
                    self.answer_request(Err(fault.with_timing(head.response.timing)));
                } else if let Some(OpenResponse::Spooling(spool)) = self.open_response.take() {
                    count_fault(&self.core.app, fault.kind);
                    spool.finish(Err(fault));
                }
            }
            SlotEvent::Failed {
                reason,
                is_protocol,
            } => {
                let timing = self.record_response_timing(0);
                let fault = incomplete_response_fault(is_protocol, reason.to_owned());
                self.answer_request(Err(fault.with_timing(timing)));
            }
        }
        Ok(())
    }

    /// Begins the first response. Its reply waits for the next frame if that may be a file.
    fn begin_response(&mut self, frame: &HeadFrame<'_>, app_time_us: u32) {
        let timing = self.record_response_timing(app_time_us);
        let Some(entry) = self.in_flight.front() else {
            return;
        };
        let job = &entry.start.job;
        match frame.start_response(job.is_head, timing, job.sendfile.as_deref()) {
            ResponseStart::Complete(reply) => {
                self.answer_request(reply);
                self.discard_response(frame.end);
            }
            ResponseStart::Streamed(head, None) if frame.body.is_empty() => {
                self.held_head = Some(head);
            }
            ResponseStart::Streamed(head, length) => self.begin_stream(head, length, frame.body),
        }
    }

    /// Replies with a streamed body. Its first bytes are in the spool before that, so that head and
    /// body leave in one write, whichever loop sends them.
    fn begin_stream(&mut self, head: ReplyHead, length: Option<u64>, first: &[u8]) {
        let Some(entry) = self.in_flight.front() else {
            return;
        };
        self.is_unbuffered = head.is_unbuffered;
        let producer = Arc::<SlotProducer>::clone(&self.core.producer);
        let (app, job) = (&self.core.app, &entry.start.job);
        let (mut writer, response) = open_spool(app, job, head, length, Some(producer));
        writer.push(first);
        self.open_response = Some(OpenResponse::Spooling(writer));
        self.answer_request(Ok(response.into()));
    }

    fn answer_request(&mut self, reply: Result<Reply, Fault>) {
        if let Some(entry) = self.in_flight.front_mut() {
            send_and_count_reply(&self.core.app, &mut entry.start.job, reply);
        }
    }

    /// Hands over a hijacked connection; `socket` is its other end.
    fn hand_over_hijacked(&mut self, socket: OwnedFd) {
        let hijacked = self.core.hijacked_connections.register();
        self.open_response = Some(OpenResponse::Hijacked(hijacked.shared_progress()));
        let app_time = clock::now().saturating_duration_since(self.progress_at);
        let timing =
            self.record_response_timing(u32::try_from(app_time.as_micros()).unwrap_or(u32::MAX));
        let Some(entry) = self.in_flight.front_mut() else {
            return;
        };
        let job = entry.start.job.split_reply();
        self.core.spawn_hijacked(job, socket, hijacked, timing);
        // None of the requests behind it has been sent.
        self.give_back_unsent();
    }

    fn finish_spool(&mut self, spool: SpoolWriter) {
        if spool.has_overflow() {
            // A task writes the rest to the spool's file, so that this driver is free for the next
            // request.
            loops::spawn_here(async move {
                let mut spool = spool;
                spool.release_capacity();
                let end = spool.flush().await;
                spool.finish(end.map(|()| None));
            });
        } else {
            spool.finish(Ok(None));
        }
    }

    fn record_response_timing(&mut self, app_time_us: u32) -> RequestTiming {
        let app_time = Duration::from_micros(u64::from(app_time_us));
        self.core.app.recent_latency.record(app_time);
        let entry = self.in_flight.front();
        let start = entry.map(|entry| &entry.start);
        let mut timing = self.core.request_timing(start, app_time);
        if let Some(entry) = entry.filter(|entry| entry.is_batched) {
            let held = self
                .progress_at
                .saturating_duration_since(entry.handed_over_at);
            timing.queue_time += held.saturating_sub(app_time);
        }
        self.core.app.metrics.app_time.record(app_time);
        self.core.app.metrics.queue_time.record(timing.queue_time);
        timing
    }
}

/// A response whose body is part of a file that the application opened.
fn file_response(
    head: ReplyHead,
    file: File,
    offset: u64,
    len: Option<u64>,
    app: &AppShared,
) -> Result<Response, Fault> {
    let timing = head.response.timing.clone();
    // The worker has just opened the file, so its metadata is in memory whatever the disk.
    let size = match page_cache::regular_file_size(&file) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return Err(
                app_protocol_error("the body file is not a regular file").with_timing(timing)
            );
        }
        Err(error) => {
            return Err(app_protocol_error(format!("the body file: {error}")).with_timing(timing));
        }
    };
    let there = size.saturating_sub(offset);
    let len = len.map_or(there, |len| len.min(there));
    reply::check_declared_length(&head, Some(len))?;
    let ReplyHead { mut response, .. } = head;
    response.body = Body::File(FileBody {
        file: Arc::new(DiskFile::new(
            file,
            app.buffering_settings.load().pool.clone(),
        )),
        start: offset,
        len,
    });
    Ok(response)
}
