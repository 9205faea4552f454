//! The driver of one slot: a task that owns the socket of one worker thread.
//!
//! It takes jobs from its mailbox, writes their frames, reads the responses and replies to the
//! requests (`receive`, and `answer_ring` for answers that come without a system call). What ends by
//! time is in `deadlines`; `closing` is the driver's end.
//!
//! # Invariants
//! - Responses belong to requests in the order in which these were sent.
//! - A worker that breaks the protocol, stalls or dies fails the first request only.
//! - Nothing is read from the worker that cannot be stored.
//! - Nothing is sent behind a request whose body is a file, still arrives, or may be an upgrade.
//! - A request whose client leaves before any of it is sent is not sent at all.
//! - The queue gets a slot back only when its worker is at rest.

mod answer_ring;
mod closing;
mod deadlines;
mod receive;
mod request_body;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use penstock_exchange::buffering::{SlowResponseGuard, SpoolWriter};
use penstock_exchange::{Fault, FaultKind};
use penstock_queue::{DispatchedJob, SlotId};
use penstock_runtime::{LazyDeadline, Stream, clock};
use penstock_wire::{SlotDecoder, encode_cancel, encode_collect_garbage};

use crate::dispatch::{Job, MAX_BATCH_REQUESTS, Mailbox, MailboxDelivery};
use crate::reply::ReplyHead;
use crate::shared::AppShared;

use self::answer_ring::AnswerRing;
use super::hijack::HijackProgress;
use super::{DriverCore, DriverEnd};

/// Length of a CANCEL frame: 8 bytes of header, 4 of number.
const CANCEL_FRAME_LEN: usize = 12;

#[derive(Debug)]
pub(crate) struct SlotDriver {
    core: DriverCore,
    stream: Stream,
    decoder: SlotDecoder,
    descriptors: Vec<OwnedFd>,
    /// Memory through which the worker also sends answers.
    answer_ring: Option<AnswerRing>,
    /// Requests in the order in which they are answered.
    in_flight: VecDeque<InFlightRequest>,
    /// Empty: room for the jobs that a call takes.
    taken_jobs: VecDeque<DispatchedJob<Job>>,
    /// A CANCEL or COLLECT_GARBAGE frame, or its rest, that is not sent yet.
    control_frames: Vec<u8>,
    /// Pieces of the first request's body that are not sent yet, from `input_sent_bytes` on.
    input_frames: Vec<u8>,
    input_sent_bytes: usize,
    /// The worker has asked for such a piece.
    is_pulling: bool,
    /// The rest of that body never comes.
    is_body_cut: bool,
    open_response: Option<OpenResponse>,
    /// The body of `open_response` may be silent for any time.
    is_unbuffered: bool,
    /// A head whose body may be a file: the next frame decides.
    held_head: Option<ReplyHead>,
    /// When the worker last made progress with the first request.
    progress_at: Instant,
    /// The deadline that the first request has asked for.
    deadline_extension: Option<Instant>,
    /// The first request is I/O-bound, and a spare slot takes other requests meanwhile.
    has_lent_slot: bool,
    /// When a garbage collection must be over. No request waits for it, so it may take as long as a
    /// request may.
    gc_deadline: Option<Instant>,
    /// Since when the rest of the first response is read and dropped.
    discarding_since: Option<Instant>,
    /// The guard of a slow response that was cut; released at the response's end.
    slow_response: Option<SlowResponseGuard>,
    deadline: LazyDeadline,
    /// When the first request behind a long response has waited too long.
    behind_deadline: LazyDeadline,
    /// When to give up a stream that was cut.
    cut_deadline: Option<Instant>,
    /// The last request's frame is the last that was sent.
    is_frame_last: bool,
}

#[derive(Debug)]
struct InFlightRequest {
    start: DispatchedJob<Job>,
    /// Bytes of its frame that the kernel has taken.
    sent_bytes: usize,
    handed_over_at: Instant,
    /// It was handed over behind another request.
    is_batched: bool,
}

impl InFlightRequest {
    /// Whether the kernel has taken its whole frame.
    fn is_sent(&self) -> bool {
        self.sent_bytes == self.start.job.frame.len()
    }
}

#[derive(Debug)]
enum OpenResponse {
    /// Its bytes go to the client through a spool.
    Spooling(SpoolWriter),
    /// Its rest is dropped.
    Discarding,
    /// The application answers by itself, and its call is not over.
    Hijacked(Arc<HijackProgress>),
}

/// The next step that cannot be taken within a poll.
enum DriverStep {
    /// The worker asked for the body file.
    SendBodyFile,
    /// The spool is over its memory.
    SettleSpool,
    End(DriverEnd),
}

impl SlotDriver {
    pub(crate) fn new(
        app: Arc<AppShared>,
        slot: SlotId,
        mailbox: Arc<Mailbox>,
        pid: u32,
        stream: Stream,
    ) -> Self {
        let now = clock::now();
        Self {
            core: DriverCore::new(app, slot, mailbox, pid),
            stream,
            decoder: SlotDecoder::new(),
            descriptors: Vec::new(),
            answer_ring: None,
            in_flight: VecDeque::new(),
            taken_jobs: VecDeque::new(),
            control_frames: Vec::new(),
            input_frames: Vec::new(),
            input_sent_bytes: 0,
            is_pulling: false,
            is_body_cut: false,
            open_response: None,
            is_unbuffered: false,
            held_head: None,
            progress_at: now,
            deadline_extension: None,
            has_lent_slot: false,
            gc_deadline: None,
            discarding_since: None,
            slow_response: None,
            deadline: LazyDeadline::new(now),
            behind_deadline: LazyDeadline::new(now),
            cut_deadline: None,
            is_frame_last: false,
        }
    }

    /// Serves until the slot is retired or its worker is lost.
    pub(crate) async fn run(mut self) -> DriverEnd {
        let end = loop {
            let step = std::future::poll_fn(|cx| self.poll_step(cx)).await;
            match step {
                DriverStep::End(end) => break end,
                DriverStep::SendBodyFile => {
                    if let Err(end) = self.send_body_file().await {
                        break end;
                    }
                }
                DriverStep::SettleSpool => self.settle_spool().await,
            }
        };
        self.requeue_or_fail_all(&end);
        end
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<DriverStep> {
        loop {
            while let Some(delivery) = self.core.mailbox.poll_delivery(cx) {
                self.handle_delivery(delivery);
            }
            self.poll_input(cx);
            if let Err(end) = self.poll_send(cx) {
                return Poll::Ready(DriverStep::End(end));
            }
            match self.poll_receive(cx) {
                Poll::Ready(Ok(Some(step))) => return Poll::Ready(step),
                // More jobs may have come, and more bytes.
                Poll::Ready(Ok(None)) => continue,
                Poll::Ready(Err(end)) => return Poll::Ready(DriverStep::End(end)),
                Poll::Pending => {}
            }
            match self.poll_answer_ring(cx) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(end) => return Poll::Ready(DriverStep::End(end)),
            }
            if self.in_flight.is_empty() {
                return self.poll_idle(cx).map(DriverStep::End);
            }
            if self.poll_client_disconnected(cx) || self.cut_stream() {
                continue;
            }
            if self.open_response.is_some() && self.in_flight.len() > 1 {
                self.give_back_unsent();
                self.poll_behind(cx);
            }
            let (at, end) = match (self.core.worker_lost_at, self.cut_deadline) {
                (Some(at), _) => (at, DriverEnd::WorkerDied),
                (None, Some(at)) => (at, DriverEnd::Retired),
                (None, None) => match self.response_deadline(cx) {
                    Some(at) => (at, DriverEnd::TimedOut),
                    None => return Poll::Pending,
                },
            };
            self.deadline.set(at);
            return self.deadline.poll(cx).map(|()| DriverStep::End(end));
        }
    }

    /// Gives unsent requests behind a long response back to the queue.
    fn give_back_unsent(&mut self) {
        let Some(behind) = self
            .in_flight
            .iter()
            .skip(1)
            .position(|entry| entry.sent_bytes == 0)
        else {
            return;
        };
        let unsent = self.in_flight.split_off(behind + 1).into_iter();
        let jobs = unsent.map(|entry| entry.start).collect();
        self.core
            .app
            .dispatch
            .requeue(clock::now(), self.core.slot, jobs);
        self.core.mailbox.set_in_progress(self.in_flight.len());
    }

    fn handle_delivery(&mut self, delivery: MailboxDelivery) {
        self.core.note_state(&delivery);
        self.push_jobs(delivery.jobs);
        self.finish_and_take(0);
    }

    fn push_jobs(&mut self, jobs: impl IntoIterator<Item = DispatchedJob<Job>>) {
        let now = clock::now();
        if self.in_flight.is_empty() {
            self.progress_at = now;
        }
        for start in jobs {
            let is_behind = !self.in_flight.is_empty();
            self.in_flight.push_back(InFlightRequest {
                start,
                sent_bytes: 0,
                handed_over_at: now,
                is_batched: is_behind,
            });
        }
        self.core.mailbox.set_in_progress(self.in_flight.len());
    }

    /// Tells the queue that `ended` requests have ended, and takes the next.
    fn finish_and_take(&mut self, ended: usize) {
        let may_batch = !self.core.is_retiring
            && !self.has_lent_slot
            && self.open_response.is_none()
            && !self.core.app.model.streams_request_bodies()
            && !self
                .in_flight
                .iter()
                .any(|entry| entry.start.job.must_be_sent_alone());
        let batch_max = match may_batch {
            true => self.core.app.recent_latency.max_batch(),
            false => 1,
        };
        if ended == 0 && batch_max == 1 {
            return;
        }
        let mut jobs = std::mem::take(&mut self.taken_jobs);
        self.core.app.dispatch.finish_and_take(
            clock::now(),
            self.core.slot,
            ended,
            batch_max,
            &mut jobs,
        );
        self.push_jobs(jobs.drain(..));
        self.taken_jobs = jobs;
    }

    /// Writes what the worker does not have yet, as far as its socket takes it.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), DriverEnd> {
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

    async fn send_body_file(&mut self) -> Result<(), DriverEnd> {
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

    /// Drops the rest of this response, and asks the worker to stop. The worker finds the CANCEL
    /// behind requests that it has already; none of them has a descriptor (`poll_send`).
    fn discard_response(&mut self, end: bool) {
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

    /// Notices that the client of a streamed response has left; `true` if a frame is to be sent.
    fn poll_client_disconnected(&mut self, cx: &mut Context<'_>) -> bool {
        match &self.open_response {
            Some(OpenResponse::Spooling(spool)) if spool.poll_reader_gone(cx) => {
                self.discard_response(false);
                true
            }
            _ => false,
        }
    }

    /// Ends `ended` requests, and takes the next.
    fn finish_requests(&mut self, ended: usize) {
        self.core.mailbox.set_in_progress(self.in_flight.len());
        // The requests behind an I/O-bound one come first.
        if self.has_lent_slot && self.in_flight.is_empty() {
            self.has_lent_slot = false;
            self.core
                .app
                .dispatch
                .park_slot(clock::now(), self.core.slot);
        }
        self.finish_and_take(ended);
        let is_idle = self.in_flight.is_empty()
            && !self.core.is_retiring
            && self.core.worker_lost_at.is_none();
        if is_idle
            && self.core.app.gc_when_idle
            && self
                .core
                .app
                .dispatch
                .begin_gc(clock::now(), self.core.slot)
        {
            encode_collect_garbage(&mut self.control_frames);
            self.decoder.record_gc_sent();
            self.gc_deadline = Some(clock::now() + self.core.app.response_timeout);
            self.core.app.metrics.gc_runs.increment();
        }
    }

    /// The slot takes requests again after a garbage collection.
    fn finish_gc(&mut self) {
        self.gc_deadline = None;
        let mut jobs = VecDeque::new();
        self.core
            .app
            .dispatch
            .end_gc(clock::now(), self.core.slot, &mut jobs);
        self.push_jobs(jobs);
    }

    /// Opens a spare slot while the first request waits for I/O.
    fn lend_spare_slot(&mut self) {
        if self.has_lent_slot {
            return;
        }
        self.core.app.metrics.io_bound_requests.increment();
        self.has_lent_slot = self
            .core
            .app
            .dispatch
            .lend_spare_slot(clock::now(), self.core.slot);
        if !self.has_lent_slot {
            self.core
                .app
                .metrics
                .io_bound_without_spare_slot
                .increment();
        }
    }

    /// Writes the spool's overflow to its file. Nothing is read from the worker meanwhile.
    async fn settle_spool(&mut self) {
        self.give_back_unsent();
        let behind_since = self.in_flight.get(1).map(|entry| entry.handed_over_at);
        self.core.producer.set_pipelined_since(behind_since);
        let Some(OpenResponse::Spooling(mut spool)) = self.open_response.take() else {
            return;
        };
        // Deliveries wait until then, but for the one that cuts streams.
        let mut mail = Vec::new();
        let settled = {
            let mut settling = std::pin::pin!(spool.flush());
            std::future::poll_fn(|cx| {
                while let Some(delivery) = self.core.mailbox.poll_delivery(cx) {
                    mail.push(delivery);
                }
                self.poll_behind(cx);
                if mail.iter().any(|delivery| delivery.are_streams_cut) {
                    return Poll::Ready(Ok(()));
                }
                settling.as_mut().poll(cx)
            })
            .await
        };
        match settled {
            Ok(()) => self.open_response = Some(OpenResponse::Spooling(spool)),
            Err(fault) => {
                self.slow_response = spool.take_slow_response();
                spool.finish(Err(fault));
                self.discard_response(false);
            }
        }
        // The worker is not charged for the client's time.
        self.progress_at = clock::now();
        mail.into_iter()
            .for_each(|delivery| self.handle_delivery(delivery));
    }
}
