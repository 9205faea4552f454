//! The streams of one channel: their states, their ids and their deadlines.
//!
//! A stream's id is its index and how often the index was used, so that frames for an ended stream
//! do not match the next one. Streams with a running clock are on one list in the order in which
//! their clocks were started: all have the same time-out, so the first is the next to time out, and
//! a step costs the same with thousands.
//!
//! # Invariants
//! - An index is free only when the worker has ended its stream.
//! - A request's frame is kept until it is wholly sent, even if the request is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use penstock_exchange::buffering::SlowResponseGuard;
use penstock_exchange::buffering::SpoolWriter;
use penstock_queue::DispatchedJob;
use penstock_wire::channel::{OPEN_STREAM_ID_OFFSET, WINDOW_BYTES};

use super::body_pump::BodyPump;
use super::wake_list::WakeList;
use super::websocket::ChannelWebSocket;
use crate::dispatch::Job;
use crate::driver::hijack::HijackProgress;
use crate::upload::UploadReader;

/// Bits of an id that are the stream's index; the others count its uses.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const NO_INDEX: u32 = u32::MAX;

pub(super) fn index_of(id: u32) -> u32 {
    id & INDEX_MASK
}

#[derive(Debug)]
pub(super) struct StreamTable {
    entries: Vec<StreamEntry>,
    free_indices: Vec<u32>,
    open_count: usize,
    /// Dropped streams that their worker has not ended in time.
    stuck_count: usize,
    /// The ends of the list of streams with a running clock.
    first_timed: u32,
    last_timed: u32,
    wake_list: Arc<WakeList>,
    /// Request bodies that still arrive, by index: a few streams have one.
    uploads: HashMap<u32, UploadReader>,
    /// Slow responses that were cut, by index; released at their ends.
    slow_responses: HashMap<u32, Box<SlowResponseGuard>>,
}

/// One index, and the stream that has it.
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) id: u32,
    is_open: bool,
    /// Its request's `response_timeout` in milliseconds: a stream is small.
    timeout_millis: u32,
    /// Whether its clock runs, until when, and its neighbours on the list.
    is_timed: bool,
    expires_at: Instant,
    prev_timed: u32,
    next_timed: u32,
    waker: Waker,
    pub(super) opened_at: Instant,
    /// Bytes that the worker may still send before it gets more window.
    pub(super) receive_window: u32,
    /// Bytes that were taken and not given back as window yet.
    pub(super) window_owed: u32,
    pub(super) is_window_update_pending: bool,
    /// Whether the body uses the window.
    pub(super) uses_window: bool,
    pub(super) input: RequestBodyState,
    /// Whether it may be silent for any time.
    pub(super) is_unbuffered: bool,
    /// Whether the kernel has taken the whole frame of its request.
    pub(super) is_sent: bool,
    is_stuck: bool,
    pub(super) state: StreamState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestBodyState {
    /// The worker has all of it, or gets no more.
    Complete,
    /// More of it arrives.
    Arriving,
    /// The worker has asked for more.
    Requested,
}

#[derive(Debug)]
pub(super) enum StreamState {
    AwaitingResponse(Box<DispatchedJob<Job>>),
    /// A body that its client takes as fast as it comes.
    Spooling(SpoolWriter),
    /// A body that comes faster than its client takes it.
    Pumping(Arc<BodyPump>),
    WebSocket(Box<ChannelWebSocket>),
    /// The application answers by itself, and its call is not over.
    Hijacked(Arc<HijackProgress>),
    /// The stream is dropped, but the frame of its request was begun.
    AbandonedUnsent(Box<DispatchedJob<Job>>),
    Discarding,
}

impl StreamTable {
    pub(super) fn new(wake_list: Arc<WakeList>) -> Self {
        Self {
            entries: Vec::new(),
            free_indices: Vec::new(),
            open_count: 0,
            stuck_count: 0,
            first_timed: NO_INDEX,
            last_timed: NO_INDEX,
            wake_list,
            uploads: HashMap::new(),
            slow_responses: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open_count == 0
    }

    pub(super) fn len(&self) -> usize {
        self.open_count
    }

    /// Whether a client waits for any of them.
    pub(super) fn has_waiting_clients(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.is_open && !entry.is_abandoned())
    }

    /// How many dropped streams their worker has not ended in time.
    pub(super) fn stuck_count(&self) -> usize {
        self.stuck_count
    }

    /// Marks a dropped stream that its worker has not ended in time.
    pub(super) fn mark_stuck(&mut self, id: u32) {
        let Some(entry) = self.entry(id) else {
            return;
        };
        if !std::mem::replace(&mut entry.is_stuck, true) {
            self.stuck_count += 1;
        }
    }

    pub(super) fn ids(&self) -> Vec<u32> {
        let open = self.entries.iter().filter(|entry| entry.is_open);
        open.map(|entry| entry.id).collect()
    }

    /// Opens a stream for a job, writes its id into the job's frame and starts its clock.
    /// It has `timeout` for a response, unless its route says otherwise.
    pub(super) fn open_stream(
        &mut self,
        mut start: DispatchedJob<Job>,
        now: Instant,
        timeout: Duration,
    ) -> u32 {
        let timeout = start.job.response_timeout.unwrap_or(timeout);
        let upload = start.job.upload.take();
        let input = match upload {
            Some(_) => RequestBodyState::Arriving,
            None => RequestBodyState::Complete,
        };
        // More than a million at once is above any `max_concurrent`.
        let new_index = || u32::try_from(self.entries.len()).unwrap_or(NO_INDEX) & INDEX_MASK;
        let index = self.free_indices.pop().unwrap_or_else(new_index);
        let before = self.entries.get_mut(index as usize);
        let (id, waker) = match before {
            Some(entry) => (
                entry.id.wrapping_add(1 << INDEX_BITS),
                std::mem::replace(&mut entry.waker, Waker::noop().clone()),
            ),
            None => (index, self.wake_list.waker(index)),
        };
        if let Some(place) = start
            .job
            .frame
            .get_mut(OPEN_STREAM_ID_OFFSET..OPEN_STREAM_ID_OFFSET + 4)
        {
            place.copy_from_slice(&id.to_le_bytes());
        }
        let entry = StreamEntry {
            id,
            is_open: true,
            is_timed: false,
            timeout_millis: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            expires_at: now,
            prev_timed: NO_INDEX,
            next_timed: NO_INDEX,
            waker,
            opened_at: now,
            receive_window: WINDOW_BYTES,
            window_owed: 0,
            is_window_update_pending: false,
            uses_window: false,
            input,
            is_unbuffered: false,
            is_sent: false,
            is_stuck: false,
            state: StreamState::AwaitingResponse(Box::new(start)),
        };
        match self.entries.get_mut(index as usize) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.open_count += 1;
        if let Some(upload) = upload {
            self.uploads.insert(index, upload);
        }
        self.start_clock(id, now);
        id
    }

    pub(super) fn entry(&mut self, id: u32) -> Option<&mut StreamEntry> {
        let entry = self.entries.get_mut(index_of(id) as usize)?;
        (entry.is_open && entry.id == id).then_some(entry)
    }

    /// The request of a stream, while its frame may be sent.
    pub(super) fn pending_job(&self, id: u32) -> Option<&Job> {
        let entry = self.entries.get(index_of(id) as usize)?;
        match &entry.state {
            StreamState::AwaitingResponse(start) | StreamState::AbandonedUnsent(start)
                if entry.is_open && entry.id == id =>
            {
                Some(&start.job)
            }
            _ => None,
        }
    }

    /// Notes that the kernel has taken the whole frame of a stream's request.
    pub(super) fn mark_sent(&mut self, id: u32) {
        if let Some(entry) = self.entry(id) {
            entry.is_sent = true;
            if matches!(entry.state, StreamState::AbandonedUnsent(_)) {
                entry.state = StreamState::Discarding;
            }
        }
    }

    /// The body of a stream's request, while more of it arrives.
    pub(super) fn upload(&self, id: u32) -> Option<&UploadReader> {
        self.uploads.get(&index_of(id))
    }

    /// Records that the worker has all of the request's body, or gets no more.
    pub(super) fn end_request_body(&mut self, id: u32) {
        let Some(entry) = self.entry(id) else {
            return;
        };
        if std::mem::replace(&mut entry.input, RequestBodyState::Complete)
            != RequestBodyState::Complete
        {
            self.uploads.remove(&index_of(id));
        }
    }

    /// The stream that has this index now.
    pub(super) fn entry_at(&mut self, index: u32) -> Option<&mut StreamEntry> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.is_open.then_some(entry)
    }

    /// The waker of the stream that has this index now.
    pub(super) fn waker(&self, index: u32) -> Option<Waker> {
        let entry = self.entries.get(index as usize)?;
        entry.is_open.then(|| entry.waker.clone())
    }

    pub(super) fn close(&mut self, id: u32) -> Option<StreamState> {
        self.stop_clock(id);
        let entry = self.entry(id)?;
        entry.is_open = false;
        let was_stuck = entry.is_stuck;
        let had_input = std::mem::replace(&mut entry.input, RequestBodyState::Complete)
            != RequestBodyState::Complete;
        let mut state = std::mem::replace(&mut entry.state, StreamState::Discarding);
        let upload = had_input
            .then(|| self.uploads.remove(&index_of(id)))
            .flatten();
        if let StreamState::AwaitingResponse(start) = &mut state {
            // It may go back to the queue.
            start.job.upload = upload;
        }
        if !self.slow_responses.is_empty() {
            self.slow_responses.remove(&index_of(id));
        }
        self.free_indices.push(index_of(id));
        self.open_count -= 1;
        self.stuck_count -= usize::from(was_stuck);
        Some(state)
    }

    /// Keeps the guard of a slow response that was cut, until its stream ends.
    pub(super) fn retain_slow_response(&mut self, id: u32, guard: Box<SlowResponseGuard>) {
        self.slow_responses.insert(index_of(id), guard);
    }

    /// Starts a stream's clock at `now`. Its place on the list is found from the end: requests
    /// with the same time limit are in the order of their starts.
    pub(super) fn start_clock(&mut self, id: u32, now: Instant) {
        self.stop_clock(id);
        let Some(expires_at) = self.entry(id).map(|entry| now + entry.timeout()) else {
            return;
        };
        let (mut before, mut behind) = (self.last_timed, NO_INDEX);
        while let Some(entry) = self.entries.get(before as usize)
            && entry.expires_at > expires_at
        {
            (before, behind) = (entry.prev_timed, before);
        }
        let index = index_of(id);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.next_timed = index,
            None => self.first_timed = index,
        }
        match self.entries.get_mut(behind as usize) {
            Some(entry) => entry.prev_timed = index,
            None => self.last_timed = index,
        }
        if let Some(entry) = self.entry(id) {
            (entry.is_timed, entry.expires_at) = (true, expires_at);
            (entry.prev_timed, entry.next_timed) = (before, behind);
        }
    }

    pub(super) fn stop_clock(&mut self, id: u32) {
        let Some(entry) = self.entry(id).filter(|entry| entry.is_timed) else {
            return;
        };
        entry.is_timed = false;
        let (prev, next) = (entry.prev_timed, entry.next_timed);
        match self.entries.get_mut(prev as usize) {
            Some(before) => before.next_timed = next,
            None => self.first_timed = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(behind) => behind.prev_timed = prev,
            None => self.last_timed = prev,
        }
    }

    /// Restarts the clock of a body, if it has one and does not wait for its client.
    pub(super) fn restart_body_clock(&mut self, id: u32, now: Instant) {
        let is_due = |entry: &mut StreamEntry| {
            !entry.is_unbuffered && entry.input != RequestBodyState::Requested
        };
        if self.entry(id).is_some_and(is_due) {
            self.start_clock(id, now);
        }
    }

    /// The stream whose time is over first, and when.
    pub(super) fn first_expiry(&self) -> Option<(u32, Instant)> {
        let entry = self.entries.get(self.first_timed as usize)?;
        Some((entry.id, entry.expires_at))
    }
}

impl StreamEntry {
    /// Its request's `response_timeout`.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.timeout_millis))
    }

    pub(super) fn is_timed(&self) -> bool {
        self.is_timed
    }

    pub(super) fn is_abandoned(&self) -> bool {
        matches!(
            self.state,
            StreamState::AbandonedUnsent(_) | StreamState::Discarding
        )
    }

    /// The request, while it has no response.
    pub(super) fn unanswered_job(&self) -> Option<&DispatchedJob<Job>> {
        match &self.state {
            StreamState::AwaitingResponse(start) => Some(start),
            _ => None,
        }
    }

    /// How long the worker has had the request.
    pub(super) fn app_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.opened_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(300);

    fn start_with(response_timeout: Option<Duration>) -> DispatchedJob<Job> {
        let mut queue = penstock_queue::Queue::new(penstock_queue::QueueLimits {
            max_len: 1,
            timeout: Duration::from_secs(1),
        });
        let spec = penstock_queue::SlotSpec {
            generation: 1,
            group: 0,
            loop_index: 0,
            request_capacity: 1,
        };
        let now = Instant::now();
        let _ = queue.add_slot(now, spec);
        let job = Job {
            frame: Vec::new(),
            body_file: None,
            upload: None,
            is_head: false,
            reply_sender: None,
            client: Arc::default(),
            websocket: None,
            upgrades: false,
            sendfile: None,
            affinity: None,
            response_timeout,
        };
        match queue.submit(now, job, 0) {
            penstock_queue::QueueOutcome::Dispatched(start) => start,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ids_of_ended_streams_do_not_match_new_ones() {
        let mut streams = StreamTable::new(Arc::default());
        let now = Instant::now();
        let first = streams.open_stream(start_with(None), now, USUAL);
        assert!(streams.entry(first).is_some());
        assert!(streams.entry(first + 1).is_none());
        assert!(streams.close(first).is_some());
        assert!(streams.close(first).is_none());
        let second = streams.open_stream(start_with(None), now, USUAL);
        assert_eq!(index_of(first), index_of(second));
        assert!(streams.entry(first).is_none());
        assert!(streams.entry(second).is_some());
        assert_eq!(streams.len(), 1);
    }

    #[test]
    fn the_stream_whose_time_is_over_first_is_first_whatever_happened() {
        // Compared with a list that is sorted each time.
        let mut streams = StreamTable::new(Arc::default());
        let begin = Instant::now();
        let mut model: Vec<(Instant, u32)> = Vec::new();
        let mut timeouts: HashMap<u32, Duration> = HashMap::new();
        let mut state = 88_172_645_463_325_252_u64;
        for step in 0..20_000_u64 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let now = begin + Duration::from_millis(step);
            let add = |model: &mut Vec<(Instant, u32)>, id: u32, timeout: Duration| {
                model.push((now + timeout, id));
                // Stable: of two that end together the first stays first.
                model.sort_by_key(|(at, _)| *at);
            };
            let ids = streams.ids();
            let chosen = ids.get(usize::try_from(state >> 8).unwrap() % ids.len().max(1));
            match (state % 5, chosen) {
                (0, _) | (_, None) => {
                    // Some routes give more time, and some less.
                    let own = [None, Some(7), Some(900)][usize::try_from(state >> 40).unwrap() % 3];
                    let own = own.map(Duration::from_millis);
                    let id = streams.open_stream(start_with(own), now, USUAL);
                    timeouts.insert(id, own.unwrap_or(USUAL));
                    add(&mut model, id, timeouts[&id]);
                }
                (1, Some(id)) => {
                    streams.close(*id);
                    model.retain(|(_, of)| of != id);
                }
                (2, Some(id)) => {
                    streams.stop_clock(*id);
                    model.retain(|(_, of)| of != id);
                }
                (3, Some(id)) => {
                    streams.start_clock(*id, now);
                    model.retain(|(_, of)| of != id);
                    add(&mut model, *id, timeouts[id]);
                }
                (_, Some(id)) => {
                    streams.restart_body_clock(*id, now);
                    model.retain(|(_, of)| of != id);
                    add(&mut model, *id, timeouts[id]);
                }
            }
            let first = streams.first_expiry().map(|(id, at)| (at, id));
            assert_eq!(first, model.first().copied(), "step {step}");
        }
    }
}
