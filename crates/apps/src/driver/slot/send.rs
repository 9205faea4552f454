//! What a slot's driver writes: frames in order, CANCELs between them, a body's descriptor or
//! pieces.
//!
//! # Invariants
//! - Nothing is sent behind a request whose body is a file, still arrives, or may be an upgrade.
//! - A request whose client leaves before any of it is sent is not sent at all.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::clock;
use penstock_wire::encode_cancel;

use super::{InFlightRequest, OpenResponse, SlotDriver};
use crate::dispatch::MAX_BATCH_REQUESTS;
use crate::driver::DriverEnd;

impl SlotDriver {
    /// Writes what the worker does not have yet, as far as its socket takes it.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), DriverEnd> {
        self.drop_abandoned();
        while self.core.is_writable() {
            let all_sent = self.in_flight.back().is_none_or(InFlightRequest::is_sent);
            if all_sent && self.control_frames.is_empty() && self.input_frames.is_empty() {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); MAX_BATCH_REQUESTS as usize + 2];
            let mut count = 0;
            // It belongs to the first request, whose frame was sent before, or to one that has
            // ended.
            if !self.input_frames.is_empty() {
                slices[0] = IoSlice::new(&self.input_frames[self.input_sent_bytes..]);
                count = 1;
            }
            // Only the first request is being answered, and a CANCEL must precede the next one.
            let is_mid_frame = self
                .in_flight
                .iter()
                .any(|e| e.sent_bytes > 0 && !e.is_sent());
            if !self.control_frames.is_empty() && !is_mid_frame {
                slices[count] = IoSlice::new(&self.control_frames);
                count += 1;
            }
            for (place, entry) in self.in_flight.iter().enumerate() {
                let is_alone = entry.start.job.must_be_sent_alone();
                // A worker that waits for a descriptor must find nothing else, so a request with a
                // body file is sent first and alone. So is one whose body still arrives, and one
                // that may be upgraded: that can last for hours.
                if is_alone && place > 0 {
                    break;
                }
                if !entry.is_sent() && count < slices.len() {
                    slices[count] = IoSlice::new(&entry.start.job.frame[entry.sent_bytes..]);
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
                // The worker's last bytes are still to be read.
                Poll::Ready(Err(_)) => self.core.is_write_broken = true,
            }
        }
        Ok(())
    }

    /// Drops unsent requests whose clients have left.
    fn drop_abandoned(&mut self) {
        let before = self.in_flight.len();
        self.in_flight.retain_mut(|entry| {
            let job = &mut entry.start.job;
            let is_wanted = entry.sent_bytes > 0 || !job.is_abandoned();
            if !is_wanted {
                let cause = "left before a worker had its request";
                job.answer(Err(Fault::new(FaultKind::ClientDisconnected, cause)));
            }
            is_wanted
        });
        let dropped = before - self.in_flight.len();
        if dropped > 0 {
            self.core.app.metrics.queue_abandoned.add(dropped as u64);
            self.finish_and_take(dropped);
        }
    }

    fn count_written(&mut self, mut written: usize, is_mid_frame: bool) {
        let input = written.min(self.input_frames.len() - self.input_sent_bytes);
        self.input_sent_bytes += input;
        written -= input;
        self.is_frame_last &= input == 0;
        if self.input_sent_bytes == self.input_frames.len() {
            self.input_frames.clear();
            self.input_sent_bytes = 0;
        }
        if !is_mid_frame {
            let control = written.min(self.control_frames.len());
            self.control_frames.drain(..control);
            written -= control;
            self.is_frame_last &= control == 0;
        }
        for entry in &mut self.in_flight {
            let left = entry.start.job.frame.len() - entry.sent_bytes;
            if left == 0 {
                continue;
            }
            let now_sent = written.min(left);
            entry.sent_bytes += now_sent;
            written -= now_sent;
            if now_sent == left {
                self.is_frame_last = true;
                self.decoder
                    .record_sent_request(entry.start.job.body_file.is_some());
            }
            if written == 0 {
                return;
            }
        }
    }

    /// Drops the rest of this response, and asks the worker to stop. The worker finds the CANCEL
    /// behind requests that it has already; none of them has a descriptor (`poll_send`).
    pub(super) fn discard_response(&mut self, end: bool) {
        if end {
            return;
        }
        self.open_response = Some(OpenResponse::Discarding);
        // Its time to end begins now, however long it was silent.
        self.progress_at = clock::now();
        self.discarding_since = Some(self.progress_at);
        if self.control_frames.is_empty() {
            encode_cancel(&mut self.control_frames, self.decoder.current_request_seq());
        }
    }

    pub(super) async fn send_body_file(&mut self) -> Result<(), DriverEnd> {
        let Some(file) = self
            .in_flight
            .front()
            .and_then(|entry| entry.start.job.body_file.clone())
        else {
            return Err(DriverEnd::ProtocolBroken(
                "asked for a body file that there is not".into(),
            ));
        };
        let descriptor = file.as_fd();
        self.is_frame_last = false;
        self.stream
            .send_descriptor(b"\0", descriptor)
            .await
            .map_err(|_| DriverEnd::WorkerDied)
    }
}
