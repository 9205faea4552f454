//! What a slot's driver writes: frames in order, cancels between them, a body's descriptor or
//! pieces.
//!
//! What must stay true: nothing is sent behind a request whose body is a file or still comes; a
//! request whose client
//! has left before any of it was sent is not sent at all.

use std::io::IoSlice;
use std::task::{Context, Poll};

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::clock;
use penstock_wire::encode_cancel;

use super::{Driver, End, InFlight, Open};
use crate::dispatch::BATCH_MAX;

impl Driver {
    /// Writes what may be written, frames in order.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        self.drop_abandoned();
        // What a dead worker is not sent, another one gets.
        while !self.write_broken && self.lost_at.is_none() {
            let all_sent = self.line.back().is_none_or(InFlight::is_sent);
            if all_sent && self.control.is_empty() && self.input.is_empty() {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); BATCH_MAX as usize + 2];
            let mut count = 0;
            // Of the request at hand, whose frame was sent before; or of one that has ended.
            if !self.input.is_empty() {
                slices[0] = IoSlice::new(&self.input[self.input_sent..]);
                count = 1;
            }
            // Only the first is being answered, and a cancel frame must come before the next request.
            let is_mid_frame = self.line.iter().any(|e| e.sent > 0 && !e.is_sent());
            if !self.control.is_empty() && !is_mid_frame {
                slices[count] = IoSlice::new(&self.control);
                count += 1;
            }
            for (place, entry) in self.line.iter().enumerate() {
                let is_alone = entry.start.job.is_alone();
                // A worker that waits for a descriptor must find nothing else: a request with a body
                // file is sent when it is the first, and nothing is sent behind it. So is one whose
                // body still comes, and one whose connection may be taken over: that could last for hours.
                if is_alone && place > 0 {
                    break;
                }
                if !entry.is_sent() && count < slices.len() {
                    slices[count] = IoSlice::new(&entry.start.job.frame[entry.sent..]);
                    count += 1;
                }
                if is_alone {
                    break;
                }
            }
            if count == 0 {
                return Ok(());
            }
            match self.stream.poll_write(cx, &slices[..count]) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(written)) => self.count_written(written, is_mid_frame),
                // Whatever the worker said before it left is still to be read.
                Poll::Ready(Err(_)) => self.write_broken = true,
            }
        }
        Ok(())
    }

    /// Drops requests that were not sent yet and whose clients have left.
    fn drop_abandoned(&mut self) {
        let before = self.line.len();
        self.line.retain_mut(|entry| {
            let job = &mut entry.start.job;
            let is_wanted = entry.sent > 0 || !job.is_abandoned();
            if !is_wanted {
                let cause = "left before a worker had its request";
                job.answer(Err(Fault::new(FaultKind::ClientDisconnected, cause)));
            }
            is_wanted
        });
        let dropped = before - self.line.len();
        if dropped > 0 {
            self.app.metrics.queue_abandoned.add(dropped as u64);
            self.take_turn(dropped);
        }
    }

    fn count_written(&mut self, mut written: usize, is_mid_frame: bool) {
        let input = written.min(self.input.len() - self.input_sent);
        self.input_sent += input;
        written -= input;
        self.frame_is_last &= input == 0;
        if self.input_sent == self.input.len() {
            self.input.clear();
            self.input_sent = 0;
        }
        if !is_mid_frame {
            let control = written.min(self.control.len());
            self.control.drain(..control);
            written -= control;
            self.frame_is_last &= control == 0;
        }
        for entry in &mut self.line {
            let left = entry.start.job.frame.len() - entry.sent;
            if left == 0 {
                continue;
            }
            let now_sent = written.min(left);
            entry.sent += now_sent;
            written -= now_sent;
            if now_sent == left {
                self.frame_is_last = true;
                self.decoder
                    .record_request(entry.start.job.body_file.is_some());
            }
            if written == 0 {
                return;
            }
        }
    }

    /// The rest of this response is read and dropped; the worker is asked to stop making it. It finds
    /// that behind requests that it has already: none of them has a descriptor (`poll_send`).
    pub(super) fn discard(&mut self, end: bool) {
        if end {
            return;
        }
        self.open = Some(Open::Discard);
        // However long it has been silent, it has time to end.
        self.progress_at = clock::now();
        self.discarding_since = Some(self.progress_at);
        if self.control.is_empty() {
            encode_cancel(&mut self.control, self.decoder.seq());
        }
    }

    pub(super) async fn send_file(&mut self) -> Result<(), End> {
        let Some(file) = self
            .line
            .front()
            .and_then(|entry| entry.start.job.body_file.clone())
        else {
            return Err(End::Broken(
                "asked for a body file that there is not".into(),
            ));
        };
        let descriptor = file.descriptor().map_err(|_| End::Died)?;
        self.frame_is_last = false;
        self.stream
            .send_descriptor(b"\0", descriptor)
            .await
            .map_err(|_| End::Died)
    }
}
