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

use super::answer::{broken, file_response};
use super::{CANCEL_BYTES, Driver, End, Open, Step};
use crate::dispatch::BATCH_MAX;
use crate::reply;

impl Driver {
    /// Reads once and handles what came.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Step>, End>> {
        buffers::with_receive_buffer(|buffer| {
            let read = self
                .stream
                .poll_read_descriptors(cx, buffer, &mut self.descriptors);
            match read {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(0)) => Poll::Ready(Err(End::Died)),
                Poll::Ready(Err(error)) => {
                    // unix(7): what the other side had not read makes its close a reset.
                    self.left_unread = error.kind() == std::io::ErrorKind::ConnectionReset;
                    Poll::Ready(Err(End::Died))
                }
                Poll::Ready(Ok(count)) if self.partial.is_empty() => {
                    Poll::Ready(self.handle_bytes(&buffer[..count]))
                }
                Poll::Ready(Ok(count)) => {
                    let mut whole = std::mem::take(&mut self.partial);
                    whole.extend_from_slice(&buffer[..count]);
                    Poll::Ready(self.handle_bytes(&whole))
                }
            }
        })
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Option<Step>, End> {
        let mut rest = bytes;
        let mut ended = 0;
        let mut step = None;
        self.progress_at = clock::now();
        loop {
            let decoded = match self.decoder.decode(rest) {
                Ok(Some(decoded)) => decoded,
                Ok(None) => break,
                Err(error) => return Err(End::Broken(error.to_string())),
            };
            rest = &rest[decoded.consumed..];
            let is_last = decoded.event.is_last();
            if matches!(decoded.event, SlotEvent::FdRequest) {
                step = Some(Step::SendFile);
            } else {
                self.handle_event(decoded.event)?;
            }
            if is_last {
                self.open = None;
                (self.cut_until, self.discarding_since) = (None, None);
                self.cut_place = None;
                self.end_input();
                if self.extended_until.take().is_some() {
                    self.mailbox.show_extended(None);
                }
                self.line.pop_front();
                ended += 1;
                if self.control.len() == CANCEL_BYTES {
                    // There is nothing left to cancel, and none of it has been sent.
                    self.control.clear();
                }
            }
        }
        self.partial.extend_from_slice(rest);
        // A file frame comes with its descriptor right behind its head. With neither a descriptor nor
        // the beginning of a frame here it is not one: the client gets the head now.
        if self.partial.is_empty()
            && self.descriptors.is_empty()
            && let Some(head) = self.held.take()
        {
            self.begin_stream(head, b"");
        }
        let is_hoard = self.descriptors.len() > BATCH_MAX as usize;
        let is_unclaimed = !self.descriptors.is_empty() && self.partial.is_empty();
        if is_hoard || is_unclaimed && self.held.is_none() {
            return Err(End::Broken("a descriptor that no frame claims".into()));
        }
        if ended > 0 {
            self.finish_requests(ended);
        }
        if matches!(&self.open, Some(Open::Spool(spool)) if spool.has_overflow()) {
            step = Some(Step::Settle);
        }
        Ok(step)
    }

    fn handle_event(&mut self, event: SlotEvent<'_>) -> Result<(), End> {
        match event {
            SlotEvent::FdRequest => {}
            SlotEvent::IoBound => self.lend(),
            SlotEvent::Pull => self.pulled()?,
            SlotEvent::ExtendDeadline { seconds } => {
                let until = clock::now() + Duration::from_secs(u64::from(seconds));
                self.extended_until = self.extended_until.max(Some(until));
                self.mailbox.show_extended(self.extended_until);
            }
            SlotEvent::GarbageCollected => self.finish_collection(),
            SlotEvent::Head {
                head,
                app_time_us,
                body,
                body_len,
                end,
            } => {
                let timing = self.timing(app_time_us);
                let job = self.line.front().map(|entry| &entry.start.job);
                let is_head = job.is_some_and(|job| job.is_head);
                let grant = job.and_then(|job| job.sendfile.as_deref());
                let head = match head {
                    Ok(parts) => reply::head(&parts, is_head, timing, grant),
                    Err(error) => {
                        Err(broken(format!("response head: {error}")).with_timing(timing))
                    }
                };
                self.begin(head, body, body_len, end);
            }
            SlotEvent::Body { bytes, .. } => {
                if let Some(head) = self.held.take() {
                    self.begin_stream(head, bytes);
                } else if let Some(Open::Spool(spool)) = &mut self.open {
                    spool.push(bytes);
                }
                if let (true, Some(Open::Spool(_))) = (event.is_last(), &self.open)
                    && let Some(Open::Spool(spool)) = self.open.take()
                {
                    self.finish_spool(spool);
                }
            }
            SlotEvent::File { offset, len, end } => {
                if self.descriptors.is_empty() {
                    return Err(End::Broken("a file frame without its descriptor".into()));
                }
                let file = File::from(self.descriptors.remove(0));
                match self.held.take() {
                    Some(head) if end => {
                        self.answer(file_response(head, file, offset, len, &self.app));
                    }
                    _ if matches!(self.open, Some(Open::Discard)) => {}
                    _ => return Err(End::Broken("a file frame in the middle of a body".into())),
                }
            }
            SlotEvent::Hijack => {
                if self.descriptors.is_empty() {
                    return Err(End::Broken(
                        "a hijacked connection without its socket".into(),
                    ));
                }
                let socket = self.descriptors.remove(0);
                self.hijack(socket);
            }
            SlotEvent::Abort { reason } => {
                let fault = Fault::new(FaultKind::AppRaised, format!("mid-response: {reason}"));
                if let Some(head) = self.held.take() {
                    self.answer(Err(fault.with_timing(head.response.timing)));
                } else if let Some(Open::Spool(spool)) = self.open.take() {
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
                let timing = self.timing(0);
                self.answer(Err(Fault::new(kind, reason.to_owned()).with_timing(timing)));
            }
        }
        Ok(())
    }
}
