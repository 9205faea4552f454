//! The live stream: one `status` event a second for each page that is open.
//!
//! `api` opens a stream for a client, edge pulls events from it at the client's pace: an event is
//! made when it is asked for and due, so a slow client skips events instead of collecting them.
//! Streams share the last snapshot. What must stay true: at most [`STREAMS_MAX`] streams, each with
//! at most one event in flight; when the server drains, each gets a last event and ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_exchange::{BodyStream, Fault, FaultKind};
use penstock_http::sse;
use penstock_runtime::{LazyDeadline, clock};

use crate::{ServerState, Source};

/// Where all streams of a server come from.
#[derive(Debug)]
pub(crate) struct Feed {
    source: Arc<dyn Source>,
    interval: Duration,
    open: AtomicUsize,
    /// The last event that was made; held only to copy it.
    latest: Mutex<Option<Latest>>,
}

#[derive(Debug, Clone)]
struct Latest {
    made: Instant,
    event: Bytes,
    is_last: bool,
}

impl Feed {
    /// A feed with one event an `interval`.
    pub(crate) fn new(source: Arc<dyn Source>, interval: Duration) -> Arc<Self> {
        Arc::new(Self {
            source,
            interval,
            open: AtomicUsize::new(0),
            latest: Mutex::default(),
        })
    }

    /// A new stream; `None` when there are as many as there may be.
    pub(crate) fn open(self: &Arc<Self>) -> Option<Events> {
        let free = |open| (open < STREAMS_MAX).then_some(open + 1);
        self.open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, free)
            .ok()?;
        let timer = LazyDeadline::new(clock::now());
        Some(Events {
            feed: Arc::clone(self),
            timer,
            stage: Stage::First,
        })
    }

    /// The event for `now`, made anew unless another stream just did.
    fn event(&self, now: Instant) -> Result<Latest, Fault> {
        let shared = self.latest().clone();
        if let Some(latest) = shared
            && now.saturating_duration_since(latest.made) < self.interval / 2
        {
            return Ok(latest);
        }
        // Made outside the lock: two loops may both do it, and neither waits for the other.
        let snapshot = self.source.snapshot();
        let json = serde_json::to_string(&snapshot)
            .map_err(|error| Fault::new(FaultKind::Internal, format!("status as json: {error}")))?;
        let mut event = Vec::new();
        sse::encode_event(&mut event, Some("status"), None, &json);
        let is_last = snapshot.state == ServerState::Draining;
        let latest = Latest {
            made: now,
            event: event.into(),
            is_last,
        };
        *self.latest() = Some(latest.clone());
        Ok(latest)
    }

    fn latest(&self) -> std::sync::MutexGuard<'_, Option<Latest>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client's stream.
#[derive(Debug)]
pub(crate) struct Events {
    feed: Arc<Feed>,
    timer: LazyDeadline,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    First,
    Waiting,
    Ended,
}

impl BodyStream for Events {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        match self.stage {
            Stage::Ended => return Poll::Ready(None),
            Stage::Waiting if self.timer.poll(cx).is_pending() => return Poll::Pending,
            Stage::First | Stage::Waiting => {}
        }
        let now = clock::now();
        let latest = match self.feed.event(now) {
            Ok(latest) => latest,
            Err(fault) => {
                self.stage = Stage::Ended;
                return Poll::Ready(Some(Err(fault)));
            }
        };
        self.timer.set(now + self.feed.interval);
        self.stage = if latest.is_last {
            Stage::Ended
        } else {
            Stage::Waiting
        };
        Poll::Ready(Some(Ok(latest.event)))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.feed.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Streams open at once: far more than people look at one server, far less than would be felt.
pub(crate) const STREAMS_MAX: usize = 32;

/// Between two events of a stream.
pub(crate) const EVENT_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeSource;
    use std::future::poll_fn;
    use std::task::Waker;

    const FOREVER: Duration = Duration::from_secs(3600);

    fn feed(interval: Duration) -> (Arc<FakeSource>, Arc<Feed>) {
        let source = Arc::new(FakeSource::default());
        let feed = Feed::new(Arc::clone(&source) as Arc<dyn Source>, interval);
        (source, feed)
    }

    /// What the stream gives without waiting.
    fn poll(events: &mut Events) -> Poll<Option<String>> {
        let mut cx = Context::from_waker(Waker::noop());
        events.poll_chunk(&mut cx).map(|piece| piece.map(text))
    }

    fn text(piece: Result<Bytes, Fault>) -> String {
        String::from_utf8(piece.unwrap().to_vec()).unwrap()
    }

    fn on_a_loop(test: impl Future<Output = ()>) {
        penstock_runtime::loops::block_on(test).unwrap();
    }

    #[test]
    fn the_first_event_comes_at_once_and_the_second_waits() {
        on_a_loop(async {
            let (_, feed) = feed(FOREVER);
            let mut events = feed.open().unwrap();
            let Poll::Ready(Some(first)) = poll(&mut events) else {
                panic!("no first event")
            };
            let json = first.strip_prefix("event: status\ndata: ").unwrap();
            let json: serde_json::Value = serde_json::from_str(json.trim_end()).unwrap();
            assert_eq!(json["pid"], 42);
            assert!(first.ends_with("\n\n") && poll(&mut events).is_pending());
        });
    }

    #[test]
    fn events_go_on_until_the_server_drains_then_a_last_one_ends_the_stream() {
        on_a_loop(async {
            let (source, feed) = feed(Duration::ZERO);
            let mut events = feed.open().unwrap();
            for _ in 0..3 {
                let piece = poll_fn(|cx| events.poll_chunk(cx)).await.map(text);
                assert!(piece.unwrap().contains("\"state\":\"running\""));
            }
            source.is_draining.store(true, Ordering::Relaxed);
            let last = poll_fn(|cx| events.poll_chunk(cx)).await.map(text);
            assert!(last.unwrap().contains("\"state\":\"draining\""));
            assert_eq!(poll(&mut events), Poll::Ready(None));
        });
    }

    #[test]
    fn streams_share_one_snapshot() {
        let (source, feed) = feed(FOREVER);
        let mut streams: Vec<_> = (0..5).map(|_| feed.open().unwrap()).collect();
        for events in &mut streams {
            assert!(poll(events).is_ready());
        }
        assert_eq!(source.snapshots.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_stream_that_ends_leaves_its_place_to_another() {
        let (_, feed) = feed(FOREVER);
        let mut streams: Vec<_> = (0..STREAMS_MAX).map(|_| feed.open().unwrap()).collect();
        assert!(feed.open().is_none());
        streams.pop();
        assert!(feed.open().is_some());
    }
}
