//! `/events`: one `status` event per second for each open page.
//!
//! Edge pulls events at the client's pace. An event is made when it is due and asked for, so a slow
//! client skips events. All streams share the last snapshot.
//!
//! # Invariants
//! - There are at most [`MAX_EVENT_STREAMS`] streams, each with at most one event in flight.
//! - When the server drains, each stream gets a last event and ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_exchange::{BodyStream, Fault, FaultKind};
use penstock_http::sse;
use penstock_runtime::{LazyDeadline, clock};

use crate::{AdminOperations, ServerState};

/// The source of all event streams of a server.
#[derive(Debug)]
pub(crate) struct EventFeed {
    operations: Arc<dyn AdminOperations>,
    interval: Duration,
    open_streams: AtomicUsize,
    /// The last event. The lock is held only to copy it.
    cached_event: Mutex<Option<CachedEvent>>,
}

#[derive(Debug, Clone)]
struct CachedEvent {
    made_at: Instant,
    bytes: Bytes,
    is_last: bool,
}

impl EventFeed {
    /// A feed with one event per `interval`.
    pub(crate) fn new(source: Arc<dyn AdminOperations>, interval: Duration) -> Arc<Self> {
        Arc::new(Self {
            operations: source,
            interval,
            open_streams: AtomicUsize::new(0),
            cached_event: Mutex::default(),
        })
    }

    /// Opens a stream; `None` at the limit.
    pub(crate) fn open(self: &Arc<Self>) -> Option<EventStream> {
        let free = |open| (open < MAX_EVENT_STREAMS).then_some(open + 1);
        self.open_streams
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, free)
            .ok()?;
        let timer = LazyDeadline::new(clock::now());
        Some(EventStream {
            feed: Arc::clone(self),
            timer,
            stream_stage: StreamStage::Initial,
        })
    }

    /// The event for `now`, shared with other streams within the interval.
    fn event_at(&self, now: Instant) -> Result<CachedEvent, Fault> {
        let shared = self.latest().clone();
        if let Some(latest) = shared
            && now.saturating_duration_since(latest.made_at) < self.interval / 2
        {
            return Ok(latest);
        }
        // Made outside the lock: two event loops may both do it, and neither waits.
        let snapshot = self.operations.snapshot();
        let json = serde_json::to_string(&snapshot)
            .map_err(|error| Fault::new(FaultKind::Internal, format!("status as json: {error}")))?;
        let mut event = Vec::new();
        sse::encode_event(&mut event, Some("status"), None, &json);
        let is_last = snapshot.state == ServerState::Draining;
        let latest = CachedEvent {
            made_at: now,
            bytes: event.into(),
            is_last,
        };
        *self.latest() = Some(latest.clone());
        Ok(latest)
    }

    fn latest(&self) -> std::sync::MutexGuard<'_, Option<CachedEvent>> {
        self.cached_event
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream of one client.
#[derive(Debug)]
pub(crate) struct EventStream {
    feed: Arc<EventFeed>,
    timer: LazyDeadline,
    stream_stage: StreamStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamStage {
    Initial,
    Running,
    Ended,
}

impl BodyStream for EventStream {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        match self.stream_stage {
            StreamStage::Ended => return Poll::Ready(None),
            StreamStage::Running if self.timer.poll(cx).is_pending() => return Poll::Pending,
            StreamStage::Initial | StreamStage::Running => {}
        }
        let now = clock::now();
        let latest = match self.feed.event_at(now) {
            Ok(latest) => latest,
            Err(fault) => {
                self.stream_stage = StreamStage::Ended;
                return Poll::Ready(Some(Err(fault)));
            }
        };
        self.timer.set(now + self.feed.interval);
        self.stream_stage = if latest.is_last {
            StreamStage::Ended
        } else {
            StreamStage::Running
        };
        Poll::Ready(Some(Ok(latest.bytes)))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.feed.open_streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Maximum number of open streams: enough for all readers, few enough to cost little.
pub(crate) const MAX_EVENT_STREAMS: usize = 32;

/// The time between two events of a stream.
pub(crate) const EVENT_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeServer;
    use std::future::poll_fn;
    use std::task::Waker;

    const FOREVER: Duration = Duration::from_secs(3600);

    fn feed(interval: Duration) -> (Arc<FakeServer>, Arc<EventFeed>) {
        let source = Arc::new(FakeServer::default());
        let feed = EventFeed::new(Arc::clone(&source) as Arc<dyn AdminOperations>, interval);
        (source, feed)
    }

    /// Reads the stream without waiting.
    fn poll(events: &mut EventStream) -> Poll<Option<String>> {
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
        assert_eq!(source.snapshot_count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_stream_that_ends_admits_another() {
        let (_, feed) = feed(FOREVER);
        let mut streams: Vec<_> = (0..MAX_EVENT_STREAMS)
            .map(|_| feed.open().unwrap())
            .collect();
        assert!(feed.open().is_none());
        streams.pop();
        assert!(feed.open().is_some());
    }
}
