//! The driver of one slot: one task that owns one worker thread's socket.
//!
//! Takes jobs from its mailbox, writes their frames (`send`), reads the responses (`receive`) and gives
//! each to whoever waits for it (`answer`); when it ends, `close` leaves nobody waiting. What must stay true: responses belong to requests in order; a request is given
//! back to the queue only when its worker cannot have begun it; a worker that breaks the protocol,
//! stalls or dies costs the request at the head of the line and nobody else; nothing is read from
//! the worker that has no place to go; a slot is the queue's again only when its worker is at rest.

mod answer;
mod close;
pub(crate) mod hijack;
mod input;
mod receive;
mod send;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_exchange::buffering::{HeldPlace, SpoolWriter};
use penstock_exchange::{Fault, FaultKind};
use penstock_queue::{DispatchedJob, SlotId};
use penstock_runtime::{LazyDeadline, Stream, clock};
use penstock_wire::{SlotDecoder, encode_collect_garbage};

use crate::app::{AppShared, SlotPlace};
use crate::dispatch::{Delivery, Job, Mailbox};
use crate::reply::ReplyHead;

use self::hijack::{Hijacks, Stage};

/// How long after its worker's end what it wrote may take to be read here.
const LAST_BYTES: Duration = Duration::from_millis(50);

/// How long a worker may take to end a stream that was cut, before its socket is closed.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Length of a whole cancel frame: 8 of header, 4 of number.
const CANCEL_BYTES: usize = 12;

/// Drives one slot; see [`Driver::run`].
#[derive(Debug)]
pub(crate) struct Driver {
    app: Arc<AppShared>,
    slot: SlotId,
    /// What its responses hold while their clients take them.
    place: Arc<SlotPlace>,
    pid: u32,
    mailbox: Arc<Mailbox>,
    stream: Stream,
    decoder: SlotDecoder,
    /// Received and not decoded yet: part of a frame.
    partial: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Requests in the order in which they are answered.
    line: VecDeque<InFlight>,
    /// A cancel or collect frame that is to be sent, or its rest.
    control: Vec<u8>,
    /// Pieces of the body of the request at the head of the line that are to be sent, from
    /// `input_sent` on.
    input: Vec<u8>,
    input_sent: usize,
    /// The worker waits for such a piece.
    is_pulling: bool,
    /// The rest of that body never comes.
    is_input_cut: bool,
    open: Option<Open>,
    /// Connections that the application has taken over.
    hijacks: Hijacks,
    /// The body in `open` is one that may be silent for as long as it likes.
    is_unbuffered: bool,
    /// A head whose body may be a file: the next frame says so.
    held: Option<ReplyHead>,
    /// When the worker last got on with the request at the head of the line.
    progress_at: Instant,
    /// What the request at the head of the line has asked for.
    extended_until: Option<Instant>,
    /// The request at the head of the line is bound by I/O, and a spare slot takes others instead.
    is_lent: bool,
    /// When a collection that is under way must be over: nobody waits for it, so it may take as long as a
    /// request may.
    collecting_until: Option<Instant>,
    /// Since when the rest of the response at the head of the line is read for nobody.
    discarding_since: Option<Instant>,
    /// What that response held when it was cut for its client: free at its end.
    cut_place: Option<HeldPlace>,
    deadline: LazyDeadline,
    /// When the first of those behind a response that goes on has waited too long.
    behind_deadline: LazyDeadline,
    retire: bool,
    /// Streams have had their time.
    is_cut: bool,
    /// When to give up the stream that was cut.
    cut_until: Option<Instant>,
    /// When to give up a worker whose process has ended.
    lost_at: Option<Instant>,
    write_broken: bool,
    /// Nothing was sent behind the last request's frame.
    frame_is_last: bool,
    /// The worker closed the socket with bytes of ours unread in it.
    left_unread: bool,
}

/// A request that the slot has.
#[derive(Debug)]
struct InFlight {
    start: DispatchedJob<Job>,
    /// Bytes of its frame that are with the kernel.
    sent: usize,
    handed_at: Instant,
    /// It was handed over behind another one.
    is_behind: bool,
}

impl InFlight {
    /// Whether its whole frame is with the kernel.
    fn is_sent(&self) -> bool {
        self.sent == self.start.job.frame.len()
    }
}

/// A response in progress after its head.
#[derive(Debug)]
enum Open {
    /// Its pieces go to the client through a spool.
    Spool(SpoolWriter),
    /// Nobody wants the rest.
    Discard,
    /// The application answers by itself, and its call is not over.
    Hijacked(Arc<Stage>),
}

/// Why a driver ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked to, and nothing was in progress.
    Retired,
    /// The worker closed the socket.
    Died,
    /// The worker broke the protocol.
    Broken(String),
    /// A request took longer than `response_timeout`.
    TimedOut,
}

/// What to do next, outside of a poll.
enum Step {
    /// The worker asked for the body file.
    SendFile,
    /// The spool has more than its memory.
    Settle,
    End(End),
}

impl Driver {
    pub(crate) fn new(
        app: Arc<AppShared>,
        slot: SlotId,
        mailbox: Arc<Mailbox>,
        pid: u32,
        stream: Stream,
    ) -> Self {
        let now = clock::now();
        Self {
            place: SlotPlace::new(&app, slot),
            app,
            slot,
            pid,
            mailbox,
            stream,
            decoder: SlotDecoder::new(),
            partial: Vec::new(),
            descriptors: Vec::new(),
            line: VecDeque::new(),
            control: Vec::new(),
            input: Vec::new(),
            input_sent: 0,
            is_pulling: false,
            is_input_cut: false,
            open: None,
            hijacks: Hijacks::default(),
            is_unbuffered: false,
            held: None,
            progress_at: now,
            extended_until: None,
            is_lent: false,
            collecting_until: None,
            discarding_since: None,
            cut_place: None,
            deadline: LazyDeadline::new(now),
            behind_deadline: LazyDeadline::new(now),
            retire: false,
            is_cut: false,
            cut_until: None,
            lost_at: None,
            write_broken: false,
            frame_is_last: false,
            left_unread: false,
        }
    }

    /// Serves until the slot is retired or its worker is lost; leaves nobody waiting.
    pub(crate) async fn run(mut self) -> End {
        let end = loop {
            let step = std::future::poll_fn(|cx| self.poll_step(cx)).await;
            match step {
                Step::End(end) => break end,
                Step::SendFile => {
                    if let Err(end) = self.send_file().await {
                        break end;
                    }
                }
                Step::Settle => self.settle().await,
            }
        };
        self.close(&end);
        end
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        loop {
            while let Some(delivery) = self.mailbox.poll_take(cx) {
                self.take_delivery(delivery);
            }
            self.poll_input(cx);
            if let Err(end) = self.poll_send(cx) {
                return Poll::Ready(Step::End(end));
            }
            match self.poll_receive(cx) {
                Poll::Ready(Ok(Some(step))) => return Poll::Ready(step),
                // More jobs may have come, and more bytes.
                Poll::Ready(Ok(None)) => continue,
                Poll::Ready(Err(end)) => return Poll::Ready(Step::End(end)),
                Poll::Pending => {}
            }
            if self.line.is_empty() {
                return self.poll_rest(cx).map(Step::End);
            }
            if self.poll_abandoned(cx) || self.cut_stream() {
                continue;
            }
            if self.open.is_some() && self.line.len() > 1 {
                self.give_back_unsent();
                self.poll_behind(cx);
            }
            let (at, end) = match (self.lost_at, self.cut_until) {
                (Some(at), _) => (at, End::Died),
                (None, Some(at)) => (at, End::Retired),
                (None, None) => match self.response_deadline(cx) {
                    Some(at) => (at, End::TimedOut),
                    None => return Poll::Pending,
                },
            };
            self.deadline.set(at);
            return self.deadline.poll(cx).map(|()| Step::End(end));
        }
    }

    /// Nothing is in progress: whether that is the end.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        match (self.retire, self.lost_at, self.collecting_until) {
            (true, None, _) if self.hijacks.poll_count(cx) > 0 => {
                if !self.is_cut {
                    return Poll::Pending;
                }
                self.hijacks.cut();
                Poll::Ready(End::Retired)
            }
            (true, _, _) => Poll::Ready(End::Retired),
            (false, Some(_), _) => Poll::Ready(End::Died),
            (false, None, None) => Poll::Pending,
            (false, None, Some(at)) => {
                self.deadline.set(at);
                let limit = self.app.response_timeout;
                let overdue = || End::Broken(format!("no COLLECTED within {limit:?}"));
                self.deadline.poll(cx).map(|()| overdue())
            }
        }
    }

    /// When the request at the head of the line has had its time; never in a stream of events, unless
    /// others were handed over behind it.
    fn response_deadline(&self, cx: &mut Context<'_>) -> Option<Instant> {
        if self.is_pulling && self.discarding_since.is_none() {
            // It waits for its client, who has the limits of bodies.
            return None;
        }
        // What nobody wants may not go on for ever because it goes on.
        let mut since = self.discarding_since.unwrap_or(self.progress_at);
        let is_streaming = match &self.open {
            Some(Open::Spool(_)) => self.is_unbuffered,
            Some(Open::Hijacked(stage)) => {
                // Woken at its end, from when on the call has its time.
                self.hijacks.poll_count(cx);
                let overdue_since = stage.overdue_since(since);
                since = overdue_since.unwrap_or(since);
                overdue_since.is_none()
            }
            Some(Open::Discard) | None => false,
        };
        if is_streaming && self.line.len() == 1 {
            return None;
        }
        let usual = since + self.app.response_timeout;
        Some(self.extended_until.map_or(usual, |at| at.max(usual)))
    }

    /// Answers requests that have waited for `queue.timeout` behind a response that goes on. Their
    /// worker has them and may run them yet.
    fn poll_behind(&mut self, cx: &mut Context<'_>) {
        let limit = self.app.queue_timeout();
        for entry in self.line.iter_mut().skip(1) {
            let job = &mut entry.start.job;
            if job.reply.is_none() {
                continue;
            }
            self.behind_deadline.set(entry.handed_at + limit);
            if self.behind_deadline.poll(cx).is_pending() {
                return;
            }
            self.app.metrics.queue_timeout.increment();
            let cause = format!(
                "worker {} had a response before it that took longer than queue.timeout ({limit:?})",
                self.pid
            );
            job.answer(Err(Fault::new(FaultKind::AppTimeout, cause)));
            self.place.set_behind(None);
        }
    }

    /// What was handed over behind a response that lasts, and not sent yet, goes back to the queue.
    fn give_back_unsent(&mut self) {
        let Some(behind) = self.line.iter().skip(1).position(|entry| entry.sent == 0) else {
            return;
        };
        let unsent = self.line.split_off(behind + 1).into_iter();
        let jobs = unsent.map(|entry| entry.start).collect();
        self.app.dispatch.give_back(clock::now(), self.slot, jobs);
        self.mailbox.show_in_progress(self.line.len());
    }

    fn take_delivery(&mut self, delivery: Delivery) {
        self.retire |= delivery.retire;
        self.is_cut |= delivery.cut;
        if delivery.lost && self.lost_at.is_none() {
            self.lost_at = Some(clock::now() + LAST_BYTES);
        }
        self.take_jobs(delivery.jobs);
        self.take_turn(0);
    }

    fn take_jobs(&mut self, jobs: VecDeque<DispatchedJob<Job>>) {
        let now = clock::now();
        if self.line.is_empty() {
            self.progress_at = now;
        }
        for start in jobs {
            let is_behind = !self.line.is_empty();
            self.line.push_back(InFlight {
                start,
                sent: 0,
                handed_at: now,
                is_behind,
            });
        }
        self.mailbox.show_in_progress(self.line.len());
    }

    /// Tells the queue that `ended` requests have ended, and takes the next.
    fn take_turn(&mut self, ended: usize) {
        let may_batch = !self.retire
            && !self.is_lent
            && self.open.is_none()
            && !self.app.model.streams_bodies()
            && !self.line.iter().any(|entry| entry.start.job.is_alone());
        let batch_max = match may_batch {
            true => self.app.pace.batch_max(),
            false => 1,
        };
        if ended == 0 && batch_max == 1 {
            return;
        }
        let mut jobs = VecDeque::new();
        self.app
            .dispatch
            .turn(clock::now(), self.slot, ended, batch_max, &mut jobs);
        self.take_jobs(jobs);
    }

    /// Notices that the client of a streamed response has left; `true` when something is to be sent.
    fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> bool {
        match &self.open {
            Some(Open::Spool(spool)) if spool.poll_reader_gone(cx) => {
                self.discard(false);
                true
            }
            _ => false,
        }
    }

    /// `ended` responses have ended: what their requests had goes back, and the next are taken.
    fn finish_requests(&mut self, ended: usize) {
        self.mailbox.show_in_progress(self.line.len());
        // What was handed over behind a request that is bound by I/O has this slot's place first.
        if self.is_lent && self.line.is_empty() {
            self.is_lent = false;
            self.app.dispatch.park(clock::now(), self.slot);
        }
        self.take_turn(ended);
        let is_idle = self.line.is_empty() && !self.retire && self.lost_at.is_none();
        if is_idle
            && self.app.collect_when_idle
            && self.app.dispatch.begin_collection(clock::now(), self.slot)
        {
            encode_collect_garbage(&mut self.control);
            self.decoder.record_collect();
            self.collecting_until = Some(clock::now() + self.app.response_timeout);
            self.app.metrics.gc_runs.increment();
        }
    }

    /// The collection is over: the slot takes requests again.
    fn finish_collection(&mut self) {
        self.collecting_until = None;
        let mut jobs = VecDeque::new();
        self.app
            .dispatch
            .end_collection(clock::now(), self.slot, &mut jobs);
        self.take_jobs(jobs);
    }

    /// Another request may have the place of the one at the head of the line.
    fn lend(&mut self) {
        if self.is_lent {
            return;
        }
        self.app.metrics.io_bound_requests.increment();
        self.is_lent = self.app.dispatch.lend(clock::now(), self.slot);
        if !self.is_lent {
            self.app.metrics.io_bound_without_spare_slot.increment();
        }
    }

    /// Cuts a stream whose time is over, also one that nobody reads; `true` when it did.
    fn cut_stream(&mut self) -> bool {
        let is_uploading = self.is_uploading();
        if !self.is_cut || self.cut_until.is_some() || self.open.is_none() && !is_uploading {
            return false;
        }
        if is_uploading {
            self.cut_upload();
        }
        if !matches!(self.open, Some(Open::Spool(_))) {
            self.hijacks.cut();
            self.cut_until = Some(clock::now() + CUT_GRACE);
            return true;
        }
        if let Some(Open::Spool(spool)) = self.open.take() {
            let limit = self.app.stream_timeout;
            let cause = format!(
                "worker {} is being replaced and stream_timeout ({limit:?}) is over",
                self.pid
            );
            spool.finish(Err(Fault::new(FaultKind::AppTimeout, cause)));
        }
        self.discard(false);
        self.cut_until = Some(clock::now() + CUT_GRACE);
        true
    }

    /// Brings the spool's overflow to its file. Nothing is read from the worker meanwhile.
    async fn settle(&mut self) {
        self.give_back_unsent();
        let behind_since = self.line.get(1).map(|entry| entry.handed_at);
        self.place.set_behind(behind_since);
        let Some(Open::Spool(mut spool)) = self.open.take() else {
            return;
        };
        // What comes meanwhile has time, but for the word that this has had its own.
        let mut mail = Vec::new();
        let settled = {
            let mut settling = std::pin::pin!(spool.flush());
            std::future::poll_fn(|cx| {
                while let Some(delivery) = self.mailbox.poll_take(cx) {
                    mail.push(delivery);
                }
                self.poll_behind(cx);
                if mail.iter().any(|delivery| delivery.cut) {
                    return Poll::Ready(Ok(()));
                }
                settling.as_mut().poll(cx)
            })
            .await
        };
        match settled {
            Ok(()) => self.open = Some(Open::Spool(spool)),
            Err(fault) => {
                self.cut_place = spool.take_held_place();
                spool.finish(Err(fault));
                self.discard(false);
            }
        }
        // The time spent waiting for the client is not the worker's.
        self.progress_at = clock::now();
        mail.into_iter()
            .for_each(|delivery| self.take_delivery(delivery));
    }
}
