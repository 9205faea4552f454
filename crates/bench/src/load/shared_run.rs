//! The shared state of one execution: the loads, the count of a limited window, and each loop's own
//! state.
//!
//! `engine` makes it and changes it at the window's two ends; `connection` takes requests from it
//! and records results.
//!
//! # Invariants
//!
//! - A limited window begins when no request is active (the server would still be busy with
//!   requests that do not count), and no more requests begin in it than were asked for.
//! - In a timed window a closed loop's requests count when they end in it, an open loop's when they
//!   were due in it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use penstock_runtime::PerLoop;

use super::arrivals::{Arrival, ArrivalSchedule, SendPermission};
use super::picker::RequestPicker;
use super::recorder::Recorder;
use super::response_reader::ResponseFailure;
use super::tls_recorder::TlsRecorder;
use super::{Address, Load, TlsTarget};

/// The state shared by all tasks of one execution.
#[derive(Debug)]
pub(super) struct SharedRun {
    pub(super) loads: Vec<LoadState>,
    /// The number of requests of the window; `None` for a timed one.
    limit: Option<u64>,
    /// Requests of a limited window that have begun, and ended.
    begun_requests: AtomicU64,
    ended_requests: AtomicU64,
    /// Woken when the last one ended.
    engine_thread: Thread,
    /// Open-loop connections that have tried to open before the schedule starts.
    pub(super) ready_connections: AtomicUsize,
    /// Closed-loop connections that rest before the window.
    pub(super) resting_connections: AtomicUsize,
    /// For the live line, one per loop.
    pub(super) progress: Vec<LoopProgress>,
    pub(super) state: PerLoop<LoopState>,
}

/// A load, and the state that its connections on all loops share.
#[derive(Debug)]
pub(super) struct LoadState {
    pub(super) load: Load,
    /// The distinct servers of its requests, and each request's index into them.
    pub(super) servers: Vec<LoadServer>,
    pub(super) server_of: Vec<usize>,
    pub(super) in_order: AtomicUsize,
}

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoadServer {
    pub(super) address: Address,
    pub(super) tls: Option<TlsTarget>,
}

/// Written by one loop, read by the engine; alone in its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct LoopProgress {
    pub(super) requests: AtomicU64,
    pub(super) errors: AtomicU64,
}

/// One loop's own state.
#[derive(Debug, Default)]
pub(super) struct LoopState {
    pub(super) phase: LoopPhase,
    pub(super) loads: Vec<LoopLoad>,
    /// Closed-loop connections that rest until the window begins.
    pub(super) resting: Vec<Waker>,
    /// When the last counted request ended.
    pub(super) last_ended: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LoopPhase {
    /// Before the window.
    #[default]
    WarmUp,
    /// Before a limited window: active requests finish, and closed loops rest.
    Settling,
    Measured,
    /// After the window: no request begins any more.
    Ended,
}

#[derive(Debug)]
pub(super) struct LoopLoad {
    pub(super) recorder: Recorder,
    pub(super) picker: RequestPicker,
    /// Of an open loop only.
    pub(super) arrivals: Option<ArrivalSchedule>,
    /// The start of each connection's active request, if it counts.
    pub(super) in_progress_since: Vec<Option<Instant>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ScheduledRequest {
    /// The connection's number among the load's on this loop.
    pub(super) slot: usize,
    pub(super) request_index: usize,
    /// Its intended start, in an open loop.
    pub(super) due: Option<Instant>,
    pub(super) is_counted: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RequestResult {
    pub(super) request: ScheduledRequest,
    pub(super) outcome: Result<u16, ResponseFailure>,
    /// The start of `first_byte` and `total`, and that of `service`.
    pub(super) start: Instant,
    pub(super) sent: Instant,
    pub(super) first_byte: Instant,
    pub(super) now: Instant,
    pub(super) bytes: u64,
    pub(super) body_bytes: u64,
}

impl RequestResult {
    /// The result of a request that found no connection.
    pub(super) fn new_unsent(
        request: ScheduledRequest,
        failure: ResponseFailure,
        now: Instant,
    ) -> Self {
        Self {
            request,
            outcome: Err(failure),
            start: now,
            sent: now,
            first_byte: now,
            now,
            bytes: 0,
            body_bytes: 0,
        }
    }
}

impl LoadState {
    pub(super) fn new(load: &Load) -> Self {
        let mut servers: Vec<LoadServer> = Vec::new();
        let server_of = load
            .requests
            .iter()
            .map(|shape| {
                let server = LoadServer {
                    address: shape.address.clone(),
                    tls: shape.tls.clone(),
                };
                let known = servers.iter().position(|it| *it == server);
                known.unwrap_or_else(|| {
                    servers.push(server);
                    servers.len() - 1
                })
            })
            .collect();
        Self {
            load: load.clone(),
            servers,
            server_of,
            in_order: AtomicUsize::new(0),
        }
    }
}

impl SharedRun {
    pub(super) fn new(loads: &[Load], limit: Option<u64>, loops: usize) -> Self {
        let mut progress = Vec::new();
        progress.resize_with(loops, LoopProgress::default);
        Self {
            loads: loads.iter().map(LoadState::new).collect(),
            limit,
            begun_requests: AtomicU64::new(0),
            ended_requests: AtomicU64::new(0),
            engine_thread: std::thread::current(),
            ready_connections: AtomicUsize::new(0),
            resting_connections: AtomicUsize::new(0),
            progress,
            state: PerLoop::new(),
        }
    }

    /// Whether all requests of a limited window have ended.
    pub(super) fn is_complete(&self) -> bool {
        self.limit
            .is_some_and(|limit| self.ended_requests.load(Ordering::Acquire) >= limit)
    }

    /// The next request of a closed-loop connection: now, or when the window begins; `None` when no
    /// request begins any more.
    pub(super) fn poll_next_request(
        &self,
        load: usize,
        slot: usize,
        now: Instant,
        waker: &Waker,
    ) -> Poll<Option<ScheduledRequest>> {
        self.state.with(|state| {
            if state.phase == LoopPhase::Settling {
                state.resting.push(waker.clone());
                return Poll::Pending;
            }
            let is_counted = match self.send_permission(state.phase) {
                SendPermission::Ended => return Poll::Ready(None),
                SendPermission::Counted => true,
                // A request that ends within a timed window counts there.
                SendPermission::Uncounted => self.limit.is_none(),
            };
            Poll::Ready(state.loads.get_mut(load).map(|it| {
                it.in_progress_since[slot] = is_counted.then_some(now);
                ScheduledRequest {
                    slot,
                    request_index: it.picker.next(&self.loads[load].in_order),
                    due: None,
                    is_counted,
                }
            }))
        })
    }

    /// Works on a load's state on this loop; `None` after the window.
    pub(super) fn with_load<T>(
        &self,
        load: usize,
        work: impl FnOnce(LoopPhase, &mut LoopLoad) -> Option<T>,
    ) -> Option<T> {
        self.state.with(|state| {
            let phase = state.phase;
            work(phase, state.loads.get_mut(load)?)
        })
    }

    /// Assigns an open loop's due arrivals; returns the time until the next, `None` at the end.
    pub(super) fn assign_due_arrivals(&self, load: usize, now: Instant) -> Option<Duration> {
        self.with_load(load, |phase, it| {
            let is_counted = phase == LoopPhase::Measured;
            let arrivals = it.arrivals.as_mut()?;
            arrivals.assign_due_arrivals(now, is_counted, &mut it.recorder, || {
                self.send_permission(phase)
            })
        })
    }

    /// The request of an arrival that its connection begins now.
    pub(super) fn begin_arrival(
        &self,
        load: usize,
        slot: usize,
        arrival: Arrival,
        now: Instant,
    ) -> Option<ScheduledRequest> {
        self.with_load(load, |phase, it| {
            it.in_progress_since[slot] = arrival.is_counted.then_some(arrival.due);
            if arrival.is_counted && phase == LoopPhase::Measured {
                it.recorder
                    .record_lag(now.saturating_duration_since(arrival.due));
            }
            Some(ScheduledRequest {
                slot,
                request_index: it.picker.next(&self.loads[load].in_order),
                due: Some(arrival.due),
                is_counted: arrival.is_counted,
            })
        })
    }

    /// Records something if the window is open.
    pub(super) fn with_recorder(&self, load: usize, take: impl FnOnce(&mut Recorder)) {
        self.with_load(load, |phase, it| {
            (phase == LoopPhase::Measured).then(|| take(&mut it.recorder))
        });
    }

    /// Works on a load's record of TLS, also outside the window.
    pub(super) fn with_tls_recorder(&self, load: usize, take: impl FnOnce(&mut TlsRecorder)) {
        self.with_load(load, |_, it| it.recorder.tls.as_mut().map(take));
    }

    /// Whether a request may begin, and whether it counts.
    fn send_permission(&self, phase: LoopPhase) -> SendPermission {
        match (phase, self.limit) {
            (LoopPhase::WarmUp | LoopPhase::Settling, _) => SendPermission::Uncounted,
            (LoopPhase::Measured, None) => SendPermission::Counted,
            (LoopPhase::Measured, Some(limit)) => {
                if self.begun_requests.fetch_add(1, Ordering::Relaxed) < limit {
                    SendPermission::Counted
                } else {
                    SendPermission::Ended
                }
            }
            (LoopPhase::Ended, _) => SendPermission::Ended,
        }
    }

    pub(super) fn record_result(&self, load: usize, ended: &RequestResult) {
        if !ended.request.is_counted {
            return;
        }
        self.state.with(|state| {
            if state.phase != LoopPhase::Measured {
                return;
            }
            state.last_ended = Some(ended.now);
            let Some(it) = state.loads.get_mut(load) else {
                return;
            };
            it.in_progress_since[ended.request.slot] = None;
            it.recorder.counts.bytes += ended.bytes;
            it.recorder.counts.body_bytes += ended.body_bytes;
            let progress = &self.progress[penstock_runtime::loops::current_loop_index()];
            match ended.outcome {
                Ok(status) => {
                    let first_byte = ended.first_byte.saturating_duration_since(ended.start);
                    let total = ended.now.saturating_duration_since(ended.start);
                    it.recorder.record_response(status, first_byte, total);
                    if ended.request.due.is_some() {
                        it.recorder
                            .record_service_time(ended.now.saturating_duration_since(ended.sent));
                    }
                    increment(&progress.requests);
                    if status >= 400 {
                        increment(&progress.errors);
                    }
                }
                Err(failure) => {
                    it.recorder.record_failure(failure);
                    increment(&progress.errors);
                }
            }
            if let Some(limit) = self.limit
                && self.ended_requests.fetch_add(1, Ordering::AcqRel) + 1 == limit
            {
                self.engine_thread.unpark();
            }
        });
    }
}

/// Only the loop itself writes: no locked instruction is needed.
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
