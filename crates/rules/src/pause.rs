//! Back ends that get no new requests for a while: `penstock pause` and `penstock resume`.
//!
//! Each application and upstream has a gate in front of its handler, behind the caches. While it is
//! paused, requests wait here, with their bodies unread; those in progress finish. Resumed, all go
//! on in their order to the queue of the back end.
//!
//! # Invariants
//! - The number of waiting requests has a bound, and no request waits beyond the deadline of the
//!   pause. After it they are refused until `resume`: a pause that ends by itself could send
//!   requests to a back end that is not ready.
//! - The gates live as long as the server: a reload changes none.
//! - A back end that is not paused costs a request one load.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_exchange::metrics::Counter;
use penstock_exchange::{
    Fault, FaultKind, Handler, HandlerProgress, InlineResponse, Request, RequestView,
};
use penstock_runtime::clock;
use serde::Serialize;
use tokio::sync::Notify;

/// The gates of all back ends, by kind and name.
#[derive(Debug, Default)]
pub struct PauseGates(Mutex<BTreeMap<BackEndName, Arc<PauseGate>>>);

/// An application or an upstream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackEndName {
    /// The application of this name.
    App(String),
    /// The upstream of this name.
    Upstream(String),
}

/// The gate in front of one back end.
#[derive(Debug, Default)]
pub struct PauseGate {
    /// Whether there is a deadline: read for each request, without the lock.
    is_paused: AtomicBool,
    /// Guards the pause alone; never held across an await.
    pause: Mutex<Option<Pause>>,
    changed: Notify,
    waiting: AtomicUsize,
    max_waiting: AtomicUsize,
    refused: Counter,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    begun: Instant,
    deadline: Instant,
    /// Another process has it now, and this one hears of no end.
    is_elsewhere: bool,
}

/// A paused back end.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PauseSnapshot {
    /// `app` or `upstream`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Time since the pause began.
    pub paused_seconds: f64,
    /// Time for which requests still wait; 0 once they are refused.
    pub remaining_seconds: f64,
    /// Requests that wait.
    pub waiting: usize,
    /// Most requests that may.
    pub max_waiting: usize,
    /// Requests that were refused because of pauses.
    pub refused: u64,
}

/// The handler of a back end behind its gate.
#[derive(Debug)]
pub struct PauseHandler {
    inner: Arc<dyn Handler>,
    gate: Arc<PauseGate>,
}

/// Seconds after which a client may try again.
const RETRY_AFTER: &str = "5";

impl BackEndName {
    /// `app` or `upstream`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::App(_) => "app",
            Self::Upstream(_) => "upstream",
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::App(name) | Self::Upstream(name) => name,
        }
    }
}

impl PauseGates {
    /// The gate of a back end, which lets so many requests wait from now on.
    #[must_use]
    pub fn gate(&self, name: BackEndName, max_waiting: usize) -> Arc<PauseGate> {
        let mut gates = self.lock();
        let gate = gates.entry(name).or_default();
        gate.max_waiting.store(max_waiting, Ordering::Relaxed);
        Arc::clone(gate)
    }

    /// Pauses a back end for at most this time, or sets the time of its pause anew.
    pub fn pause(&self, name: BackEndName, max_wait: Duration) {
        let gate = Arc::clone(self.lock().entry(name).or_default());
        gate.pause(clock::now(), max_wait);
    }

    /// Ends the pause of a back end; the number of requests that have waited, or `None` if there was
    /// none.
    #[must_use]
    pub fn resume(&self, name: &BackEndName) -> Option<usize> {
        let gate = self.lock().get(name).cloned()?;
        gate.resume()
    }

    /// The pauses with the time that is left of each, for another process.
    #[must_use]
    pub fn pauses(&self) -> Vec<(BackEndName, Duration)> {
        let now = clock::now();
        let gates = self.lock();
        let pauses = gates.iter().filter_map(|(name, gate)| {
            let pause = (*gate.lock())?;
            Some((name.clone(), pause.deadline.saturating_duration_since(now)))
        });
        pauses.collect()
    }

    /// Refuses what waits, as another process has the pauses now: its `resume` is not heard here.
    pub fn leave_to_successor(&self) {
        for gate in self.lock().values() {
            if let Some(pause) = &mut *gate.lock() {
                pause.is_elsewhere = true;
            }
            gate.changed.notify_waiters();
        }
    }

    /// The paused back ends.
    #[must_use]
    pub fn snapshot(&self) -> Vec<PauseSnapshot> {
        let now = clock::now();
        let gates = self.lock();
        let paused = gates.iter();
        paused
            .filter_map(|(name, gate)| gate.snapshot(name, now))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<BackEndName, Arc<PauseGate>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PauseGate {
    fn lock(&self) -> MutexGuard<'_, Option<Pause>> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self, now: Instant, max_wait: Duration) {
        let mut pause = self.lock();
        *pause = Some(Pause {
            begun: pause.map_or(now, |before| before.begun),
            deadline: now + max_wait,
            is_elsewhere: false,
        });
        self.is_paused.store(true, Ordering::Release);
        drop(pause);
        // Those that wait have another deadline.
        self.changed.notify_waiters();
    }

    fn resume(&self) -> Option<usize> {
        let mut pause = self.lock();
        pause.take()?;
        self.is_paused.store(false, Ordering::Release);
        drop(pause);
        let waiting = self.waiting.load(Ordering::Relaxed);
        self.changed.notify_waiters();
        Some(waiting)
    }

    /// Waits until the back end is not paused.
    async fn wait(self: Arc<Self>, _permit: WaitPermit) -> Result<(), Fault> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Before the pause is read: no change in between is missed.
            changed.as_mut().enable();
            let Some(pause) = *self.lock() else {
                return Ok(());
            };
            if pause.is_elsewhere || clock::now() >= pause.deadline {
                return Err(self.refusal(FaultKind::QueueTimeout, "the back end is paused"));
            }
            let _ = clock::timeout_at(pause.deadline, changed).await;
        }
    }

    fn refusal(&self, kind: FaultKind, cause: &'static str) -> Fault {
        self.refused.increment();
        Fault::new(kind, cause).with_field("Retry-After", RETRY_AFTER)
    }

    fn snapshot(&self, name: &BackEndName, now: Instant) -> Option<PauseSnapshot> {
        let pause = (*self.lock())?;
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        Some(PauseSnapshot {
            kind: name.kind(),
            name: name.name().to_owned(),
            paused_seconds: seconds(pause.begun, now),
            remaining_seconds: seconds(now, pause.deadline),
            waiting: self.waiting.load(Ordering::Relaxed),
            max_waiting: self.max_waiting.load(Ordering::Relaxed),
            refused: self.refused.value(),
        })
    }
}

/// Counts a request as waiting until it is dropped.
#[derive(Debug)]
struct WaitPermit(Arc<PauseGate>);

impl WaitPermit {
    fn acquire(gate: &Arc<PauseGate>) -> Option<Self> {
        // Counted by the guard, which takes back one that is too many.
        let before = gate.waiting.fetch_add(1, Ordering::Relaxed);
        let permit = Self(Arc::clone(gate));
        (before < gate.max_waiting.load(Ordering::Relaxed)).then_some(permit)
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PauseHandler {
    /// The handler `inner` behind a gate.
    #[must_use]
    pub fn new(inner: Arc<dyn Handler>, gate: Arc<PauseGate>) -> Self {
        Self { inner, gate }
    }
}

impl Handler for PauseHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        if !self.gate.is_paused.load(Ordering::Acquire) {
            return self.inner.handle(request);
        }
        let Some(permit) = WaitPermit::acquire(&self.gate) else {
            let cause =
                "the back end is paused, and as many requests wait as its queue has room for";
            return HandlerProgress::Ready(Err(self.gate.refusal(FaultKind::QueueFull, cause)));
        };
        let (gate, inner) = (Arc::clone(&self.gate), Arc::clone(&self.inner));
        HandlerProgress::Pending(Box::pin(async move {
            gate.wait(permit).await?;
            inner.handle(request).wait_for_reply().await
        }))
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        if !self.gate.is_paused.load(Ordering::Acquire) {
            self.inner.try_inline(request, take);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use penstock_exchange::{HandlerFuture, Reply};
    use penstock_runtime::loops::block_on;

    use super::*;
    use crate::testing::{NamedBackEnd, request};

    struct Fixture {
        gates: PauseGates,
        name: BackEndName,
        handler: PauseHandler,
        back_end: Arc<NamedBackEnd>,
    }

    impl Fixture {
        fn new(max_waiting: usize) -> Self {
            let gates = PauseGates::default();
            let name = BackEndName::App("shop".to_owned());
            let back_end = NamedBackEnd::new("shop");
            let gate = gates.gate(name.clone(), max_waiting);
            Self {
                handler: PauseHandler::new(Arc::clone(&back_end) as _, gate),
                gates,
                name,
                back_end,
            }
        }

        fn pause(&self, max_wait: Duration) {
            self.gates.pause(self.name.clone(), max_wait);
        }

        fn ask(&self) -> HandlerProgress {
            self.handler.handle(request("/", ""))
        }

        /// A request that waits.
        fn begin(&self) -> HandlerFuture {
            let HandlerProgress::Pending(mut work) = self.ask() else {
                panic!("it does not wait");
            };
            let mut cx = Context::from_waker(Waker::noop());
            assert!(work.as_mut().poll(&mut cx).is_pending());
            work
        }
    }

    fn kind(reply: Result<Reply, Fault>) -> Option<FaultKind> {
        let fault = reply.err()?;
        let fields = fault.fields.as_ref().unwrap();
        assert_eq!(fields.get("Retry-After"), Some(&b"5"[..]));
        Some(fault.kind)
    }

    #[test]
    fn requests_wait_for_the_end_of_a_pause() {
        block_on(async {
            let fixture = Fixture::new(2);
            assert!(matches!(fixture.ask(), HandlerProgress::Ready(Ok(_))));
            fixture.pause(Duration::from_secs(60));
            let waiting = [fixture.begin(), fixture.begin()];
            let HandlerProgress::Ready(refused) = fixture.ask() else {
                panic!("there is no room");
            };
            assert_eq!(kind(refused), Some(FaultKind::QueueFull));
            let now = fixture.gates.snapshot();
            assert_eq!((now[0].kind, now[0].name.as_str()), ("app", "shop"));
            assert_eq!(
                (now[0].waiting, now[0].max_waiting, now[0].refused),
                (2, 2, 1)
            );
            assert!(now[0].remaining_seconds > 50.0, "{now:?}");
            let [first, gone] = waiting;
            drop(gone);
            assert_eq!(fixture.back_end.request_count(), 1);
            assert_eq!(fixture.gates.resume(&fixture.name), Some(1));
            assert!(first.await.is_ok());
            assert_eq!(fixture.back_end.request_count(), 2);
            assert_eq!(fixture.gates.resume(&fixture.name), None);
            assert_eq!(fixture.gates.snapshot(), []);
            assert!(matches!(fixture.ask(), HandlerProgress::Ready(Ok(_))));
        })
        .unwrap();
    }

    #[test]
    fn after_the_deadline_requests_are_refused_until_resume() {
        block_on(async {
            let fixture = Fixture::new(10);
            fixture.pause(Duration::from_secs(60));
            let first = fixture.begin();
            // Another command sets another deadline, also for those that wait.
            fixture.pause(Duration::from_millis(20));
            assert_eq!(kind(first.await), Some(FaultKind::QueueTimeout));
            let late = fixture.ask().wait_for_reply().await;
            assert_eq!(kind(late), Some(FaultKind::QueueTimeout));
            assert_eq!(fixture.gates.resume(&fixture.name), Some(0));
            assert!(fixture.ask().wait_for_reply().await.is_ok());
        })
        .unwrap();
    }

    #[test]
    fn a_pause_moves_to_another_process_and_its_requests_do_not() {
        block_on(async {
            let fixture = Fixture::new(10);
            fixture.pause(Duration::from_secs(60));
            let waiting = fixture.begin();
            let moved = fixture.gates.pauses();
            assert_eq!(moved[0].0, fixture.name);
            assert!(moved[0].1 > Duration::from_secs(50), "{moved:?}");
            fixture.gates.leave_to_successor();
            assert_eq!(kind(waiting.await), Some(FaultKind::QueueTimeout));
            let mut cx = Context::from_waker(Waker::noop());
            let HandlerProgress::Pending(mut late) = fixture.ask() else {
                panic!("it is decided when it is polled");
            };
            assert!(matches!(late.as_mut().poll(&mut cx), Poll::Ready(Err(_))));
        })
        .unwrap();
    }
}
