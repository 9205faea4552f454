//! What a slot's driver reads: bytes to events, events to their effect on the first request.
//!
//! # Invariants
//! - A descriptor belongs to the frame that it came with.
//! - Any breach of the protocol ends the driver.

use std::fs::File;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_exchange::Reply;
use penstock_runtime::{buffers, clock};
use penstock_wire::SlotEvent;

use super::response::file_response;
use super::{CANCEL_FRAME_LEN, DriverEnd, DriverStep, OpenResponse, SlotDriver};
use crate::dispatch::MAX_BATCH_REQUESTS;
use crate::driver::response::{HeadFrame, count_fault, incomplete_response_fault};

impl SlotDriver {
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

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Option<DriverStep>, DriverEnd> {
        let mut rest = bytes;
        let mut ended = 0;
        let mut step = None;
        self.progress_at = clock::now();
        loop {
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
                self.open_response = None;
                (self.cut_deadline, self.discarding_since) = (None, None);
                self.slow_response = None;
                self.end_request_body();
                if self.deadline_extension.take().is_some() {
                    *self.core.mailbox.deadline_extension.lock() = None;
                }
                self.in_flight.pop_front();
                ended += 1;
                if self.control_frames.len() == CANCEL_FRAME_LEN {
                    // There is nothing left to cancel, and none of it has been sent.
                    self.control_frames.clear();
                }
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

    fn handle_event(&mut self, event: SlotEvent<'_>) -> Result<(), DriverEnd> {
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
}
