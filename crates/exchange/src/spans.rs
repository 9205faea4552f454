//! Spans of requests on their way to a collector: a bounded queue between event loops and export.
//!
//! `edge` pushes a span when a sampled request ends; `penstock` takes them in batches and sends
//! them.
//!
//! # Invariants
//! - A full queue drops the new span and counts it. No loop waits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::metrics::Counter;
use crate::{RequestTiming, TraceContext};

/// Spans that wait for export: at about 1 KiB each, 8 MiB.
const MAX_QUEUED_SPANS: usize = 8192;

/// A request as a span.
#[derive(Debug, Clone)]
pub struct SpanRecord {
    /// Its place in its trace.
    pub context: Arc<TraceContext>,
    /// When its head was complete, since 1970.
    pub started_at: Duration,
    /// When the last byte of its response was sent, since 1970.
    pub ended_at: Duration,
    /// The method.
    pub method: Box<str>,
    /// Path and query, with secrets masked.
    pub target: Box<str>,
    /// The scheme that the client used.
    pub scheme: &'static str,
    /// The host that the client asked for, without its port.
    pub host: Box<str>,
    /// The port that the client has named.
    pub port: Option<u16>,
    /// The version of HTTP: `1.1`.
    pub version: &'static str,
    /// The client's address, without its port.
    pub client: Box<str>,
    /// The other end of the connection.
    pub peer: Box<str>,
    /// `User-Agent`, empty without one.
    pub user_agent: Box<str>,
    /// The first host of the site and the path of the route; empty where there was none.
    pub route: Option<(Box<str>, Box<str>)>,
    /// The id of the request, empty where requests have none.
    pub request_id: Box<str>,
    /// The status.
    pub status: u16,
    /// Bytes of the response's body.
    pub body_bytes: u64,
    /// Where the time went.
    pub timing: RequestTiming,
}

/// The queue of spans.
#[derive(Debug, Default)]
pub struct SpanQueue {
    /// Held for a push or a swap only.
    spans: Mutex<Vec<SpanRecord>>,
    exported: Counter,
    dropped: Counter,
}

/// What became of spans so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpanCounts {
    /// Spans that wait.
    pub queued: u64,
    /// Spans that a collector has accepted.
    pub exported: u64,
    /// Spans that were lost: the queue was full, or the collector did not accept them.
    pub dropped: u64,
}

impl SpanQueue {
    /// Adds a span, or drops it when the queue is full.
    pub fn push(&self, span: SpanRecord) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        match spans.len() < MAX_QUEUED_SPANS {
            true => spans.push(span),
            false => self.dropped.increment(),
        }
    }

    /// Takes all spans.
    #[must_use]
    pub fn take(&self) -> Vec<SpanRecord> {
        std::mem::take(&mut self.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts spans that a collector has accepted, and others that it has not.
    pub fn count_exported(&self, accepted: u64, lost: u64) {
        self.exported.add(accepted);
        self.dropped.add(lost);
    }

    /// What became of spans so far.
    #[must_use]
    pub fn counts(&self) -> SpanCounts {
        let queued = self
            .spans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        SpanCounts {
            queued: queued as u64,
            exported: self.exported.value(),
            dropped: self.dropped.value(),
        }
    }
}

crate::metric_table! {
    /// Metrics of the export of traces.
    pub static SPAN_METRICS: |spans: SpanCounts| {
        gauge trace_spans_queued = spans.queued, "Spans that wait for their export.";
        counter trace_spans_exported_total = spans.exported, "Spans that a collector has accepted.";
        counter trace_spans_dropped_total = spans.dropped,
            "Spans lost because the queue was full or the collector did not accept them.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> SpanRecord {
        SpanRecord {
            context: Arc::new(TraceContext::start(true)),
            started_at: Duration::ZERO,
            ended_at: Duration::ZERO,
            method: "GET".into(),
            target: "/".into(),
            scheme: "http",
            host: "h".into(),
            port: None,
            version: "1.1",
            client: "127.0.0.1".into(),
            peer: "127.0.0.1".into(),
            user_agent: "".into(),
            route: None,
            request_id: "".into(),
            status: 200,
            body_bytes: 0,
            timing: RequestTiming::default(),
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = SpanQueue::default();
        for _ in 0..MAX_QUEUED_SPANS + 3 {
            queue.push(span());
        }
        assert_eq!((queue.counts().queued, queue.counts().dropped), (8192, 3));
        assert_eq!(queue.take().len(), MAX_QUEUED_SPANS);
        queue.push(span());
        queue.count_exported(5, 2);
        let counts = SpanCounts {
            queued: 1,
            exported: 5,
            dropped: 5,
        };
        assert_eq!(queue.counts(), counts);
    }
}
