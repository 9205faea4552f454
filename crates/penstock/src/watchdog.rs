//! Checks once a second that the event loops and the control loop respond, on a thread of its own.
//!
//! Started by `server`. It notifies the service manager that the server is alive, only while all
//! loops respond.
//!
//! # Invariants
//!
//! - The watchdog never waits for a loop.
//! - A stalled loop is logged once, not once a second.
//! - Nothing is killed: a stalled loop may recover, and only an operator or the service manager can
//!   judge that it will not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use penstock_runtime::{LoopHandle, clock};

use crate::service_manager::ServiceNotifier;

/// How often loops are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a loop may take to respond before it is logged.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The watchdog's thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stall_count: Arc<AtomicU64>,
    _stop_sender: SyncSender<()>,
}

impl Watchdog {
    /// Watches `loops` and the current one.
    pub(crate) fn start(loops: &[LoopHandle], manager: ServiceNotifier) -> std::io::Result<Self> {
        let control = LoopHandle::current().map(|control| ("control".to_owned(), control));
        let loops = (loops.iter()).map(|it| (format!("loop-{}", it.index()), it.clone()));
        let loops = control.into_iter().chain(loops);
        let mut watched: Vec<_> = loops
            .map(|(name, it)| WatchedLoop::new(&name, move |beat| it.spawn(beat)))
            .collect();
        let stalls = Arc::new(AtomicU64::new(0));
        let (end, ended) = sync_channel(1);
        let counted = Arc::clone(&stalls);
        let thread = std::thread::Builder::new().name("watchdog".into());
        thread.spawn(move || {
            let often = manager
                .watchdog_interval()
                .map(|often| (often / 2).min(CHECK_INTERVAL));
            let pause = often
                .unwrap_or(CHECK_INTERVAL)
                .max(Duration::from_millis(10));
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let now = clock::now();
                let stalled = watched.iter_mut().filter_map(|one| one.check(now));
                let stalled = stalled.fold(0, |count, is_new| count + u64::from(is_new));
                counted.fetch_add(stalled, Ordering::Relaxed);
                if often.is_some() && watched.iter().all(|one| !one.is_reported) {
                    manager.notify_watchdog();
                }
            }
        })?;
        Ok(Self {
            stall_count: stalls,
            _stop_sender: end,
        })
    }

    /// How often a loop did not respond in time.
    pub(crate) fn stall_count(&self) -> u64 {
        self.stall_count.load(Ordering::Relaxed)
    }
}

/// The task that a loop runs to respond.
type CheckTask = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

struct WatchedLoop {
    name: String,
    spawn_check: Box<dyn Fn(CheckTask) + Send>,
    /// Set by the loop.
    answered: Arc<AtomicBool>,
    asked_at: Option<Instant>,
    /// Whether the stall is in the log.
    is_reported: bool,
}

impl WatchedLoop {
    fn new(name: &str, ask: impl Fn(CheckTask) + Send + 'static) -> Self {
        Self {
            name: name.to_owned(),
            spawn_check: Box::new(ask),
            answered: Arc::default(),
            asked_at: None,
            is_reported: false,
        }
    }

    /// Sends the next check if the loop has responded. Returns `None` unless the loop stalls, and
    /// otherwise whether the stall is new.
    fn check(&mut self, now: Instant) -> Option<bool> {
        let waited = self
            .asked_at
            .map(|asked| now.saturating_duration_since(asked));
        let has_answered = self.answered.swap(false, Ordering::Relaxed);
        match waited {
            Some(waited) if !has_answered => {
                let is_stalled = waited >= STALL_TIMEOUT;
                let is_new = is_stalled && !std::mem::replace(&mut self.is_reported, is_stalled);
                if is_new {
                    let (name, waited) = (&self.name, waited.as_secs());
                    log::error!(
                        "{name}: event loop stalled for {waited} s: a call blocks its thread"
                    );
                }
                return is_stalled.then_some(is_new);
            }
            Some(waited) if std::mem::take(&mut self.is_reported) => {
                log::warn!(
                    "{}: event loop running again after {} s",
                    self.name,
                    waited.as_secs()
                );
            }
            Some(_) | None => {}
        }
        self.asked_at = Some(now);
        let answered = Arc::clone(&self.answered);
        (self.spawn_check)(Box::pin(async move {
            answered.store(true, Ordering::Relaxed);
        }));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_runtime::loops;
    use std::sync::Mutex;

    #[test]
    fn a_loop_that_stands_still_is_named_once_and_again_only_after_it_turned() {
        let beats: Arc<Mutex<Vec<CheckTask>>> = Arc::default();
        let asked = Arc::clone(&beats);
        let mut one = WatchedLoop::new("loop-0", move |beat| asked.lock().unwrap().push(beat));
        let answer = || {
            let waiting: Vec<CheckTask> = beats.lock().unwrap().drain(..).collect();
            let count = waiting.len();
            waiting
                .into_iter()
                .for_each(|beat| loops::block_on(beat).unwrap());
            count
        };
        let start = clock::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(one.check(at(0)), None);
        assert_eq!(answer(), 1);
        assert_eq!(one.check(at(1)), None);
        assert_eq!(one.check(at(5)), None);
        assert_eq!(one.check(at(6)), Some(true));
        assert_eq!(one.check(at(7)), Some(false));
        assert_eq!(answer(), 1, "a stalled loop gets no further check");
        assert_eq!(one.check(at(8)), None);
        assert!(!one.is_reported);
        assert_eq!(one.check(at(20)), Some(true));
    }
}
