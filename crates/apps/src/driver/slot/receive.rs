//! What a slot's driver reads: bytes to events, events to what they mean for the request at hand.
//!
//! What must stay true: a descriptor belongs to the file frame that it came with; whatever breaks the
//! protocol ends the driver.

use std::fs::File;
use std::task::{Context, Poll};
use std::time::Duration;

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::{buffers, clock};
use penstock_wire::SlotEvent;

use super::response::file_response;
use super::{CANCEL_FRAME_LEN, DriverEnd, DriverStep, OpenResponse, SlotDriver};
use crate::dispatch::MAX_BATCH;
use crate::reply::{self, app_protocol_error};

impl SlotDriver {
    /// Reads once and handles what came.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<DriverStep>, DriverEnd>> {
        buffers::with_receive_buffer(|buffer| {
            let read = self
                .stream
                .poll_read_descriptors(cx, buffer, &mut self.descriptors);
            match read {
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
            }
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
                self.cut_place = None;
                self.end_input();
                if self.deadline_extension.take().is_some() {
                    self.mailbox.set_deadline_extension(None);
                }
                self.in_flight.pop_front();
                ended += 1;
                if self.control_frames.len() == CANCEL_FRAME_LEN {
                    // There is nothing left to cancel, and none of it has been sent.
                    self.control_frames.clear();
                }
            }
        }
        self.partial_frame.extend_from_slice(rest);
        // A file frame comes with its descriptor right behind its head. With neither a descriptor nor
        // the beginning of a frame here it is not one: the client gets the head now.
        if self.partial_frame.is_empty()
            && self.descriptors.is_empty()
            && let Some(head) = self.held_head.take()
        {
            self.begin_stream(head, b"");
        }
        let is_hoard = self.descriptors.len() > MAX_BATCH as usize;
        let is_unclaimed = !self.descriptors.is_empty() && self.partial_frame.is_empty();
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
                self.mailbox.set_deadline_extension(self.deadline_extension);
            }
            SlotEvent::GarbageCollected => self.finish_gc(),
            SlotEvent::Head {
                head,
                app_time_us,
                body,
                body_len,
                end,
            } => {
                let timing = self.response_timing(app_time_us);
                let job = self.in_flight.front().map(|entry| &entry.start.job);
                let is_head = job.is_some_and(|job| job.is_head);
                let grant = job.and_then(|job| job.sendfile.as_deref());
                let head =
                    match head {
                        Ok(parts) => reply::client_head(&parts, is_head, timing, grant),
                        Err(error) => Err(app_protocol_error(format!("response head: {error}"))
                            .with_timing(timing)),
                    };
                self.begin_response(head, body, body_len, end);
            }
            SlotEvent::Body { bytes, .. } => {
                if let Some(head) = self.held_head.take() {
                    self.begin_stream(head, bytes);
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
                        self.answer_request(file_response(head, file, offset, len, &self.app));
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
                let fault = Fault::new(FaultKind::AppRaised, format!("mid-response: {reason}"));
                if let Some(head) = self.held_head.take() {
                    self.answer_request(Err(fault.with_timing(head.response.timing)));
                } else if let Some(OpenResponse::Spooling(spool)) = self.open_response.take() {
                    self.app.metrics.failed_requests.increment();
                    spool.finish(Err(fault));
                }
            }
            SlotEvent::Failed {
                reason,
                is_protocol,
            } => {
                let kind = if is_protocol {
                    FaultKind::AppProtocolError
                } else {
                    FaultKind::AppRaised
                };
                let timing = self.response_timing(0);
                self.answer_request(Err(Fault::new(kind, reason.to_owned()).with_timing(timing)));
            }
        }
        Ok(())
    }
}
