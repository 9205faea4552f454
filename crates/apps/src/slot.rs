//! The driver of one slot: one task that owns one worker thread's socket.
//!
//! Takes jobs from its mailbox, writes their frames, reads the responses and gives each to whoever
//! waits for it. What must stay true: responses belong to requests in order; a request is given
//! back to the queue only when its worker cannot have begun it; a worker that breaks the protocol,
//! stalls or dies costs the request at the head of the line and nobody else; nothing is read from
//! the worker that has no place to go.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_exchange::bodies::{SpoolWriter, spool};
use penstock_exchange::{Body, Fault, FaultKind, FileBody, Response, Timing};
use penstock_queue::{SlotId, Start};
use penstock_runtime::{DiskFile, LazyDeadline, Stream, buffers, clock};
use penstock_sys::pages;
use penstock_wire::{Decoder, Event, encode_cancel};

use crate::app::AppShared;
use crate::dispatch::{Job, Mailbox};
use crate::reply::{self, ReplyHead};

/// A slot whose recent requests took less than this may be handed the next one before it has
/// answered: then the hand-over costs more than the wait behind another request.
const QUICK: Duration = Duration::from_micros(200);

/// How long after its worker's end what it wrote may take to be read here.
const LAST_BYTES: Duration = Duration::from_millis(50);

/// Most requests that a quick slot has at once. Those behind the first wait for it should it turn out
/// to be slow, and cannot be taken back: so they are few.
const BATCH_MAX: u32 = 4;

/// Length of a whole cancel frame: 8 of header, 4 of number.
const CANCEL_BYTES: usize = 12;

/// Drives one slot; see [`Driver::run`].
#[derive(Debug)]
pub(crate) struct Driver {
    app: Arc<AppShared>,
    slot: SlotId,
    pid: u32,
    mailbox: Arc<Mailbox>,
    stream: Stream,
    decoder: Decoder,
    /// Received and not decoded yet: part of a frame.
    partial: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Requests in the order in which they are answered.
    line: VecDeque<InFlight>,
    /// A cancel frame that is to be sent, or its rest.
    cancel: Vec<u8>,
    open: Option<Open>,
    /// A head whose body may be a file: the next frame says so.
    held: Option<ReplyHead>,
    /// When the worker last got on with the request at the head of the line.
    progress_at: Instant,
    deadline: LazyDeadline,
    retire: bool,
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
    start: Start<Job>,
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
            app,
            slot,
            pid,
            mailbox,
            stream,
            decoder: Decoder::new(),
            partial: Vec::new(),
            descriptors: Vec::new(),
            line: VecDeque::new(),
            cancel: Vec::new(),
            open: None,
            held: None,
            progress_at: now,
            deadline: LazyDeadline::new(now),
            retire: false,
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
                self.retire |= delivery.retire;
                if delivery.lost && self.lost_at.is_none() {
                    self.lost_at = Some(clock::now() + LAST_BYTES);
                }
                self.take_jobs(delivery.jobs);
                self.take_turn(0);
            }
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
                return match (self.retire, self.lost_at) {
                    (true, _) => Poll::Ready(Step::End(End::Retired)),
                    (false, Some(_)) => Poll::Ready(Step::End(End::Died)),
                    (false, None) => Poll::Pending,
                };
            }
            if self.poll_abandoned(cx) {
                continue;
            }
            let (at, end) = match self.lost_at {
                Some(at) => (at, End::Died),
                None => (self.progress_at + self.app.response_timeout, End::TimedOut),
            };
            self.deadline.set(at);
            return self.deadline.poll(cx).map(|()| Step::End(end));
        }
    }

    fn take_jobs(&mut self, jobs: VecDeque<Start<Job>>) {
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
        let may_batch = self.app.recent_app_time() < QUICK
            && self.open.is_none()
            && self
                .line
                .iter()
                .all(|entry| entry.start.job.body_file.is_none());
        let batch_max = if may_batch && !self.retire {
            BATCH_MAX
        } else {
            1
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

    /// Writes what may be written, frames in order.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        self.drop_abandoned();
        // What a dead worker is not sent, another one gets.
        while !self.write_broken && self.lost_at.is_none() {
            let all_sent = self.line.back().is_none_or(InFlight::is_sent);
            if all_sent && self.cancel.is_empty() {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); BATCH_MAX as usize + 1];
            let mut count = 0;
            // Only the first is being answered, and a cancel frame must come before the next request.
            let is_mid_frame = self.line.iter().any(|e| e.sent > 0 && !e.is_sent());
            if !self.cancel.is_empty() && !is_mid_frame {
                slices[0] = IoSlice::new(&self.cancel);
                count = 1;
            }
            for (place, entry) in self.line.iter().enumerate() {
                let has_file = entry.start.job.body_file.is_some();
                // A worker that waits for a descriptor must find nothing else: a request with a body
                // file is sent when it is the first, and nothing is sent behind it.
                if has_file && place > 0 {
                    break;
                }
                if !entry.is_sent() && count < slices.len() {
                    slices[count] = IoSlice::new(&entry.start.job.frame[entry.sent..]);
                    count += 1;
                }
                if has_file {
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
                job.answer(Err(Fault::new(FaultKind::ClientGone, cause)));
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
        if !is_mid_frame {
            let cancelled = written.min(self.cancel.len());
            self.cancel.drain(..cancelled);
            written -= cancelled;
            self.frame_is_last &= cancelled == 0;
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
                    .request_sent(entry.start.job.body_file.is_some());
            }
            if written == 0 {
                return;
            }
        }
    }

    /// Reads once and handles what came.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Step>, End>> {
        buffers::with_receive(|buffer| {
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
            if matches!(decoded.event, Event::FdPlease) {
                step = Some(Step::SendFile);
            } else {
                self.handle_event(decoded.event)?;
            }
            if is_last {
                self.open = None;
                self.line.pop_front();
                ended += 1;
                if self.cancel.len() == CANCEL_BYTES {
                    // There is nothing left to cancel, and none of it has been sent.
                    self.cancel.clear();
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
            self.begin_stream(head);
        }
        let is_hoard = self.descriptors.len() > BATCH_MAX as usize;
        let is_unclaimed = !self.descriptors.is_empty() && self.partial.is_empty();
        if is_hoard || is_unclaimed && self.held.is_none() {
            return Err(End::Broken("a descriptor that no frame claims".into()));
        }
        if ended > 0 {
            self.mailbox.show_in_progress(self.line.len());
            self.take_turn(ended);
        }
        if matches!(&self.open, Some(Open::Spool(spool)) if spool.is_over()) {
            step = Some(Step::Settle);
        }
        Ok(step)
    }

    fn handle_event(&mut self, event: Event<'_>) -> Result<(), End> {
        match event {
            Event::FdPlease => {}
            Event::Head {
                head,
                app_time_us,
                body,
                body_len,
                end,
            } => {
                let timing = self.timing(app_time_us);
                let is_head = self
                    .line
                    .front()
                    .is_some_and(|entry| entry.start.job.is_head);
                let head = match head {
                    Ok(parts) => reply::head(&parts, is_head, timing),
                    Err(error) => Err(broken(format!("response head: {error}")).timed(timing)),
                };
                self.begin(head, body, body_len, end);
            }
            Event::Body { bytes, .. } => {
                if let Some(head) = self.held.take() {
                    self.begin_stream(head);
                }
                if let Some(Open::Spool(spool)) = &mut self.open {
                    spool.push(bytes);
                }
                if let (true, Some(Open::Spool(_))) = (event.is_last(), &self.open)
                    && let Some(Open::Spool(spool)) = self.open.take()
                {
                    self.finish_spool(spool);
                }
            }
            Event::File { offset, len, end } => {
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
            Event::Abort { reason } => {
                let fault = Fault::new(FaultKind::AppRaised, format!("mid-response: {reason}"));
                if let Some(head) = self.held.take() {
                    self.answer(Err(fault.timed(head.response.timing)));
                } else if let Some(Open::Spool(spool)) = self.open.take() {
                    self.app.metrics.failed.increment();
                    spool.finish(Err(fault));
                }
            }
            Event::Failed {
                reason,
                is_protocol,
            } => {
                let kind = if is_protocol {
                    FaultKind::AppBroken
                } else {
                    FaultKind::AppRaised
                };
                let timing = self.timing(0);
                self.answer(Err(Fault::new(kind, reason.to_owned()).timed(timing)));
            }
        }
        Ok(())
    }

    /// A head has come: answers if it is all, holds it back if a file may follow.
    fn begin(
        &mut self,
        head: Result<ReplyHead, Fault>,
        body: &[u8],
        body_len: Option<u32>,
        end: bool,
    ) {
        let head = match head {
            Ok(head) => head,
            Err(fault) => {
                self.answer(Err(fault));
                self.discard(end);
                return;
            }
        };
        if !head.wants_body {
            let ReplyHead {
                mut response,
                declared,
                ..
            } = head;
            let length = declared.or_else(|| body_len.filter(|len| *len > 0).map(u64::from));
            response.body = Body::Omitted(length);
            self.answer(Ok(response));
            self.discard(end);
            return;
        }
        let whole = body_len.filter(|len| end && *len as usize == body.len());
        if whole.is_some() {
            self.answer(reply::with_whole_body(head, body));
        } else if body.is_empty() && body_len.is_none() {
            self.held = Some(head);
        } else {
            let length = body_len.map(u64::from);
            match reply::check_declared(&head, length) {
                Err(fault) => {
                    self.answer(Err(fault));
                    self.discard(end);
                }
                Ok(()) => {
                    self.begin_stream_of(head, length);
                    if let Some(Open::Spool(spool)) = &mut self.open {
                        spool.push(body);
                    }
                }
            }
        }
    }

    fn begin_stream(&mut self, head: ReplyHead) {
        self.begin_stream_of(head, None);
    }

    fn begin_stream_of(&mut self, head: ReplyHead, length: Option<u64>) {
        let ReplyHead {
            mut response,
            declared,
            is_unbuffered,
            ..
        } = head;
        let store = self.app.store.load_full();
        let (writer, reader) = spool(store, is_unbuffered, declared.or(length));
        response.body = Body::Stream(Box::new(reader));
        self.open = Some(Open::Spool(writer));
        self.answer(Ok(response));
    }

    /// The rest of this response is read and dropped; the worker is asked to stop making it, unless
    /// the next request is on its way already: a worker may look for nothing but a descriptor then.
    fn discard(&mut self, end: bool) {
        if end {
            return;
        }
        self.open = Some(Open::Discard);
        if self.cancel.is_empty() && self.line.iter().skip(1).all(|entry| entry.sent == 0) {
            encode_cancel(&mut self.cancel, self.decoder.seq());
        }
    }

    fn answer(&mut self, answer: Result<Response, Fault>) {
        let Some(entry) = self.line.front_mut() else {
            return;
        };
        if let Err(fault) = &answer
            && matches!(fault.kind, FaultKind::AppRaised | FaultKind::AppBroken)
        {
            self.app.metrics.failed.increment();
        }
        entry.start.job.answer(answer);
    }

    fn finish_spool(&mut self, spool: SpoolWriter) {
        if spool.is_over() {
            // What is not in memory yet is brought to the file beside this driver, which is free for
            // the next request.
            penstock_runtime::loops::spawn_here(async move {
                let mut spool = spool;
                let end = spool.settle().await;
                spool.finish(end.map(|()| None));
            });
        } else {
            spool.finish(Ok(None));
        }
    }

    fn timing(&mut self, app_time_us: u32) -> Timing {
        let app = Duration::from_micros(u64::from(app_time_us));
        self.app.note_app_time(app);
        let mut timing = Timing {
            app,
            handler: Some((&self.app.name).into()),
            worker: self.pid,
            ..Timing::default()
        };
        if let Some(entry) = self.line.front() {
            timing.queue = entry.start.waited;
            if entry.is_behind {
                let held = self.progress_at.saturating_duration_since(entry.handed_at);
                timing.queue += held.saturating_sub(app);
            }
            timing.queue_position = u32::try_from(entry.start.position).unwrap_or(u32::MAX);
        }
        self.app.metrics.app_time.record(app);
        self.app.metrics.queue_time.record(timing.queue);
        timing
    }

    /// Notices that the client of a streamed response has left; `true` when something is to be sent.
    fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> bool {
        match &self.open {
            Some(Open::Spool(spool)) if spool.poll_gone(cx) => {
                self.discard(false);
                true
            }
            _ => false,
        }
    }

    async fn send_file(&mut self) -> Result<(), End> {
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

    /// Brings the spool's overflow to its file. Nothing is read from the worker meanwhile.
    async fn settle(&mut self) {
        if let Some(Open::Spool(spool)) = &mut self.open
            && let Err(fault) = spool.settle().await
            && let Some(Open::Spool(spool)) = self.open.take()
        {
            spool.finish(Err(fault));
            self.discard(false);
        }
        // The time spent waiting for the client is not the worker's.
        self.progress_at = clock::now();
    }

    /// Leaves nobody waiting: the head of the line learns what happened, the rest goes back.
    fn close(&mut self, end: &End) {
        let mut unbegun: Vec<Start<Job>> = Vec::new();
        let mut line = std::mem::take(&mut self.line).into_iter();
        if let Some(first) = line.next() {
            // A frame alone in a socket that was not read to its end: nobody has begun it.
            let was_unread = self.left_unread && self.frame_is_last && line.len() == 0;
            let was_sent = first.is_sent() && !was_unread;
            if was_sent || self.open.is_some() || *end == End::TimedOut {
                self.fail(first, end);
            } else {
                unbegun.push(first.start);
            }
        }
        unbegun.extend(line.map(|entry| entry.start));
        self.mailbox.show_in_progress(0);
        self.app
            .dispatch
            .remove(clock::now(), self.slot, &self.mailbox, unbegun);
    }

    fn fail(&mut self, mut entry: InFlight, end: &End) {
        let app = clock::now().saturating_duration_since(entry.handed_at);
        let timing = Timing {
            queue: entry.start.waited,
            queue_position: u32::try_from(entry.start.position).unwrap_or(u32::MAX),
            app,
            handler: Some((&self.app.name).into()),
            worker: self.pid,
            ..Timing::default()
        };
        let (kind, cause) = match end {
            End::TimedOut => {
                self.app.metrics.timed_out.increment();
                let limit = self.app.response_timeout;
                (
                    FaultKind::AppTimeout,
                    format!("no answer within response_timeout ({limit:?})"),
                )
            }
            End::Broken(why) => {
                self.app.metrics.failed.increment();
                (
                    FaultKind::AppBroken,
                    format!("worker {} broke the protocol: {why}", self.pid),
                )
            }
            End::Died | End::Retired => {
                self.app.metrics.worker_died.increment();
                (
                    FaultKind::WorkerDied,
                    format!("worker {} ended with the request inside", self.pid),
                )
            }
        };
        let fault = Fault::new(kind, cause).timed(timing);
        match self.open.take() {
            Some(Open::Spool(spool)) => spool.finish(Err(fault)),
            Some(Open::Discard) => {}
            None => entry.start.job.answer(Err(fault)),
        }
    }
}

fn broken(cause: String) -> Fault {
    Fault::new(FaultKind::AppBroken, cause)
}

/// A response whose body is a part of a file that the application opened.
fn file_response(
    head: ReplyHead,
    file: File,
    offset: u64,
    len: Option<u64>,
    app: &AppShared,
) -> Result<Response, Fault> {
    let timing = head.response.timing.clone();
    // Its worker has just opened it: what is known of it in memory is true, wherever it lies.
    let size = match pages::regular_bytes(&file) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(broken("the body file is not a regular file".into()).timed(timing)),
        Err(error) => return Err(broken(format!("the body file: {error}")).timed(timing)),
    };
    let there = size.saturating_sub(offset);
    let len = len.map_or(there, |len| len.min(there));
    reply::check_declared(&head, Some(len))?;
    let ReplyHead { mut response, .. } = head;
    response.body = Body::File(FileBody {
        file: Arc::new(DiskFile::new(file, app.store.load().pool.clone())),
        start: offset,
        len,
    });
    Ok(response)
}
