//! Named thread pools for work that would block an event loop: files, disks, slow system calls.
//!
//! Each pool has a fixed number of threads and a bounded queue; a full queue is an error that names
//! the pool. Threads start when there is work, and stay. Besides `sys`, this is the only place in
//! the server where code waits for a disk.
//!
//! There are two lanes. Priority work ([`Pool::run_priority`]) is taken first, and some threads are
//! never given to normal work: opening a file in memory does not wait behind reads that wait for a
//! disk. As many threads are reserved for waiting normal work. Each lane has its own queue bound.
//!
//! File reads (`Pool::spawn_read`) are normal work, ordered by `fair_queue`.

mod fair_queue;
mod lanes;
mod snapshot;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub(crate) use self::fair_queue::ReadId;
use self::lanes::{Admission, Job, Lane, Lanes, NewJob};
use self::snapshot::PoolCounters;
pub use self::snapshot::{DurationStats, PoolSnapshot};
use crate::clock;
use crate::disk::{FileKey, InFlightReads};
use crate::log_throttle::OncePerSecondThrottle;

/// A pool of threads with a bounded queue. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

/// Why a pool did not run a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The pool's queue is at its bound.
    #[error("blocking pool `{pool}` is full ({max_queue} jobs wait)")]
    Full {
        /// The pool's name.
        pool: Arc<str>,
        /// Its bound.
        max_queue: usize,
    },
    /// The job panicked or the pool ended before it ran.
    #[error("blocking pool `{pool}` lost a job")]
    Lost {
        /// The pool's name.
        pool: Arc<str>,
    },
}

struct PoolInner {
    name: Arc<str>,
    max_queue: usize,
    /// Queued and running jobs; never held while a job runs.
    state: Mutex<PoolState>,
    job_available: Condvar,
    reads: InFlightReads,
    compute_permits: Arc<Semaphore>,
    refusal_log: OncePerSecondThrottle,
}

impl std::fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

struct PoolState {
    lanes: Lanes,
    /// Threads that have been started and did not end.
    threads: usize,
    /// Start time of each thread's job; `None` for an idle thread.
    busy_since: Vec<Option<Instant>>,
    /// Threads that wait for work, or were woken for it and do not yet hold the lock.
    idle_threads: usize,
    is_closed: bool,
    counters: PoolCounters,
}

impl Pool {
    /// Creates a pool with at most `threads` threads and `queue_max` waiting jobs in each lane.
    /// With a `queue_max` of 0 a job is taken by an idle thread or refused.
    pub fn new(name: &str, threads: usize, queue_max: usize) -> Self {
        let state = PoolState {
            lanes: Lanes::new(threads.max(1)),
            threads: 0,
            busy_since: Vec::new(),
            idle_threads: 0,
            is_closed: false,
            counters: PoolCounters::default(),
        };
        Self {
            inner: Arc::new(PoolInner {
                name: name.into(),
                max_queue: queue_max,
                state: Mutex::new(state),
                job_available: Condvar::new(),
                reads: InFlightReads::default(),
                compute_permits: Arc::new(Semaphore::new((threads / COMPUTING_SHARE).max(1))),
                refusal_log: OncePerSecondThrottle::default(),
            }),
        }
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &Arc<str> {
        &self.inner.name
    }

    /// Runs `work` on a thread of the pool and returns its result. Dropping the future does not
    /// stop work that has begun.
    ///
    /// # Errors
    /// [`PoolError::Full`] at once when the queue is at its bound.
    pub async fn run<R, F>(&self, work: F) -> Result<R, PoolError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.run_in(Lane::Normal, work).await
    }

    /// Like [`Pool::run`], for work that is short unless the disk is failing and moves little data,
    /// such as opening a file or reading its metadata. It is taken before waiting reads and writes,
    /// and some threads are reserved for it.
    pub async fn run_priority<R, F>(&self, work: F) -> Result<R, PoolError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.run_in(Lane::Priority, work).await
    }

    async fn run_in<R, F>(&self, lane: Lane, work: F) -> Result<R, PoolError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        let (give, result) = oneshot::channel();
        // The receiver may have been dropped: then the result is discarded.
        let job = Box::new(move || drop(give.send(work())));
        self.push_job(lane, job)?;
        result.await.map_err(|_| self.lost_error())
    }

    /// Starts `work` on a thread of the pool without waiting for it.
    ///
    /// # Errors
    /// As [`Pool::run`]; the work is dropped.
    pub fn spawn<F>(&self, work: F) -> Result<(), PoolError>
    where
        F: FnOnce() + Send + 'static,
    {
        self.push_job(Lane::Normal, Box::new(work))
    }

    /// Like [`Pool::spawn`], for the read `id` with this number of waiters: more waiters are served
    /// sooner.
    ///
    /// # Errors
    /// As [`Pool::run`]; the work is dropped.
    pub(crate) fn spawn_read<F>(
        &self,
        id: ReadId<FileKey>,
        waiters: usize,
        work: F,
    ) -> Result<(), PoolError>
    where
        F: FnOnce() + Send + 'static,
    {
        let arrival = NewJob {
            lane: Lane::Normal,
            read: Some((id, waiters)),
            job: Box::new(work),
        };
        self.push(arrival, self.inner.max_queue)
            .map_err(|(error, _)| error)
    }

    /// Counts a waiter of a read in, or out unless `has_come`, if the read has not begun.
    pub(crate) fn update_waiters(&self, id: ReadId<FileKey>, has_come: bool) {
        self.inner.lock().lanes.update_waiters(id, has_come);
    }

    /// Runs `work`, which must not be lost, on a thread of the pool without waiting for it. It
    /// closes or removes something, so the number of such jobs is bounded. They take no queue
    /// capacity from others: up to [`MAX_DETACHED_JOBS`] of them wait; beyond that the work runs at
    /// once on the calling thread.
    pub fn run_detached<F>(&self, work: F)
    where
        F: FnOnce() + Send + 'static,
    {
        let arrival = NewJob {
            lane: Lane::Detached,
            read: None,
            job: Box::new(work),
        };
        if let Err((_, work)) = self.push(arrival, MAX_DETACHED_JOBS) {
            work();
        }
    }

    /// Records that a read has many waiters: for some time the pool sends fewer requests to the
    /// disk at once.
    pub(crate) fn record_crowded_read(&self) {
        let now = clock::now();
        self.inner.lock().lanes.record_crowded_read(now);
    }

    /// What the pool is doing now.
    pub fn snapshot(&self) -> PoolSnapshot {
        let state = self.inner.lock();
        PoolSnapshot {
            name: self.inner.name.to_string(),
            queued: state.lanes.total_waiting_count(),
            max_queued: self.inner.max_queue,
            active: state.lanes.total_running_count(),
            threads: state.threads,
            max_threads: state.lanes.max_threads(),
            refused: state.counters.refused,
            queue_time: state.counters.queue_time,
            max_queue_time: Duration::from_micros(state.counters.queue_time.max_us),
            run_time: state.counters.run_time,
            oldest_running: state.oldest_running().unwrap_or_default(),
        }
    }

    /// How long the longest running job has run; `None` when none runs. A stalled disk shows here
    /// first.
    pub fn oldest_job_time(&self) -> Option<Duration> {
        self.inner.lock().oldest_running()
    }

    /// Lets the threads end once the waiting jobs are done.
    pub fn close(&self) {
        self.inner.lock().is_closed = true;
        self.inner.job_available.notify_all();
    }

    /// Acquires one of the few permits for work that computes for long, such as compression: the
    /// other threads stay available for disks. `None` while all are in use.
    #[must_use]
    pub fn try_acquire_compute_permit(&self) -> Option<ComputePermit> {
        Arc::clone(&self.inner.compute_permits)
            .try_acquire_owned()
            .ok()
    }

    /// The file reads in flight in this pool.
    pub(crate) fn in_flight_reads(&self) -> &InFlightReads {
        &self.inner.reads
    }

    pub(crate) fn lost_error(&self) -> PoolError {
        PoolError::Lost {
            pool: self.inner.name.clone(),
        }
    }

    fn push_job(&self, lane: Lane, job: Job) -> Result<(), PoolError> {
        let read = None;
        let pushed = self.push(NewJob { lane, read, job }, self.inner.max_queue);
        pushed.map_err(|(error, _)| error)
    }

    /// Queues a job; returns it when there is no room.
    fn push(&self, arrival: NewJob, queue_max: usize) -> Result<(), (PoolError, Job)> {
        let (now, lane) = (clock::now(), arrival.lane);
        let mut state = self.inner.lock();
        state.lanes.update_time(now);
        match state.lanes.admit(arrival, now, queue_max) {
            Admission::Refused(job) => {
                state.counters.refused += 1;
                drop(state);
                self.log_refused(now);
                let full = PoolError::Full {
                    pool: self.inner.name.clone(),
                    max_queue: self.inner.max_queue,
                };
                return Err((full, job));
            }
            Admission::Queued => {}
            Admission::Runnable(position) => {
                match PoolInner::wake_or_start_thread(&self.inner, &mut state) {
                    WakeOutcome::Woken => self.inner.job_available.notify_one(),
                    WakeOutcome::Started => {}
                    // No thread could be started: existing ones will run the job; without any it is
                    // an error.
                    WakeOutcome::Failed if state.threads == 0 => {
                        return match state.lanes.take_back_last(lane, position) {
                            Some(job) => Err((self.lost_error(), job)),
                            None => Ok(()),
                        };
                    }
                    WakeOutcome::Failed => {}
                }
            }
        }
        Ok(())
    }

    fn log_refused(&self, now: Instant) {
        if let Some(count) = self.inner.refusal_log.count_event(now) {
            let (name, queue_max) = (&self.inner.name, self.inner.max_queue);
            log::warn!(
                "blocking pool `{name}` is full (max_queue={queue_max}): {count} jobs refused"
            );
        }
    }
}

/// Maximum number of detached jobs that wait, besides the queue's bound: as many as a process
/// usually may have descriptors.
pub const MAX_DETACHED_JOBS: usize = 65_536;

/// One thread in this many may compute, but at least one. Several directories may use one pool.
const COMPUTING_SHARE: usize = 4;

/// A permit to compute; dropping it releases it.
pub type ComputePermit = OwnedSemaphorePermit;

/// Which thread takes an admitted job.
enum WakeOutcome {
    Woken,
    Started,
    Failed,
}

impl PoolState {
    fn oldest_running(&self) -> Option<Duration> {
        let oldest = self.busy_since.iter().flatten().min()?;
        Some(clock::now().saturating_duration_since(*oldest))
    }
}

impl PoolInner {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a thread for a job that could run now: an idle one, else a new one.
    fn wake_or_start_thread(inner: &Arc<Self>, state: &mut PoolState) -> WakeOutcome {
        // A thread that was woken for an earlier job still counts as idle.
        if state.lanes.startable_count() <= state.idle_threads
            || state.threads >= state.lanes.max_threads()
        {
            return WakeOutcome::Woken;
        }
        let number = state.busy_since.len();
        let this = Arc::clone(inner);
        let started = std::thread::Builder::new()
            .name(format!("{}-{number}", inner.name))
            .spawn(move || Self::run_thread(&this, number));
        match started {
            Ok(_) => {
                state.threads += 1;
                state.busy_since.push(None);
                WakeOutcome::Started
            }
            Err(_) => WakeOutcome::Failed,
        }
    }

    fn run_thread(this: &Arc<Self>, number: usize) {
        let mut state = this.lock();
        loop {
            state.lanes.update_time(clock::now());
            let Some((lane, job, queued_at)) = state.lanes.take_next() else {
                if state.is_closed {
                    state.threads -= 1;
                    return;
                }
                state.idle_threads += 1;
                state = (this.job_available.wait(state)).unwrap_or_else(PoisonError::into_inner);
                state.idle_threads -= 1;
                continue;
            };
            let began = clock::now();
            state.busy_since[number] = Some(began);
            (state.counters.queue_time).add(began.saturating_duration_since(queued_at));
            // The job that ended made room for more than this thread takes: another thread
            // continues.
            if state.lanes.startable_count() > 0
                && let WakeOutcome::Woken = Self::wake_or_start_thread(this, &mut state)
            {
                this.job_available.notify_one();
            }
            drop(state);
            // A panicking job loses only itself: its waiter receives `Lost`.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            let ended = clock::now();
            state = this.lock();
            state.busy_since[number] = None;
            state.lanes.finish_job(lane);
            (state.counters.run_time).add(ended.saturating_duration_since(began));
        }
    }
}

#[cfg(test)]
mod tests;
