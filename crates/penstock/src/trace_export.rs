//! The export of traces: sends the spans of requests to a collector by OTLP over HTTP.
//!
//! `wiring` asks for the queue of a configuration; `edge` fills it. One task on the control loop
//! sends batches, and ends when no configuration uses its queue any more.
//!
//! # Invariants
//! - No request waits for an export, and a collector that is away costs one line in the log until
//!   it answers again.
//! - An export has a deadline. Spans that a collector does not accept are dropped and counted.

mod otlp;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use penstock_config::{ServiceUrl, TraceConfig};
use penstock_exchange::spans::{SpanCounts, SpanQueue, SpanRecord};
use penstock_runtime::blocking::Pool;
use penstock_runtime::{clock, loops};

use crate::web_request;

/// The queues of spans.
#[derive(Debug)]
pub(crate) struct TraceExport {
    /// The queue of the present configuration, with the settings that it is sent by. Held for a
    /// look only.
    current: Mutex<Option<(TraceConfig, Weak<SpanQueue>)>>,
    /// Looks names up: that may take long.
    pool: Pool,
}

/// The time between two exports.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of the server waits for the last export.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Spans of one request to a collector: about 1 MiB.
const MAX_BATCH_SPANS: usize = 1024;
/// Of a collector's answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

impl Default for TraceExport {
    fn default() -> Self {
        Self {
            current: Mutex::default(),
            pool: Pool::new("traces", 1, 16),
        }
    }
}

impl TraceExport {
    /// The queue of a configuration; `None` where spans are not sent. Called on the control loop.
    pub(crate) fn queue_of(&self, tracing: &TraceConfig) -> Option<Arc<SpanQueue>> {
        let exporter = Exporter::new(tracing, self.pool.clone())?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, queue)) = &*current
            && known == tracing
            && let Some(queue) = queue.upgrade()
        {
            return Some(queue);
        }
        let queue = Arc::<SpanQueue>::default();
        *current = Some((tracing.clone(), Arc::downgrade(&queue)));
        loops::spawn_here(exporter.run(Arc::downgrade(&queue)));
        Some(queue)
    }

    /// Sends the spans that wait, at the end of the server: for [`FLUSH_TIMEOUT`] at most.
    pub(crate) async fn flush(&self) {
        let current = {
            let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            current.clone()
        };
        let Some((tracing, queue)) = current else {
            return;
        };
        let exporter = Exporter::new(&tracing, self.pool.clone());
        if let (Some(mut exporter), Some(queue)) = (exporter, queue.upgrade()) {
            clock::timeout(FLUSH_TIMEOUT, exporter.export_all(&queue)).await;
        }
    }

    /// What became of spans so far; `None` where traces are not exported.
    pub(crate) fn counts(&self) -> Option<SpanCounts> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, queue) = current.as_ref()?;
        Some(queue.upgrade()?.counts())
    }
}

impl Drop for TraceExport {
    fn drop(&mut self) {
        self.pool.close();
    }
}

/// Sends the spans of one queue.
struct Exporter {
    collector: ServiceUrl,
    service: String,
    headers: Vec<(String, String)>,
    pool: Pool,
    /// Whether the last export failed, which the log has then.
    is_failing: bool,
}

impl Exporter {
    /// `None` where spans are not sent.
    fn new(tracing: &TraceConfig, pool: Pool) -> Option<Self> {
        let headers = tracing.headers.iter();
        Some(Self {
            collector: tracing.otlp.clone()?,
            service: tracing.service.clone(),
            headers: headers
                .map(|(name, value)| (name.clone(), value.expose().to_owned()))
                .collect(),
            pool,
            is_failing: false,
        })
    }

    async fn run(mut self, queue: Weak<SpanQueue>) {
        loop {
            clock::sleep(EXPORT_INTERVAL).await;
            let Some(queue) = queue.upgrade() else {
                return;
            };
            self.export_all(&queue).await;
        }
    }

    async fn export_all(&mut self, queue: &SpanQueue) {
        for batch in queue.take().chunks(MAX_BATCH_SPANS) {
            let outcome = self.export(batch).await;
            let count = batch.len() as u64;
            match &outcome {
                Ok(()) => queue.count_exported(count, 0),
                Err(_) => queue.count_exported(0, count),
            }
            self.log_outcome(outcome);
        }
    }

    async fn export(&self, batch: &[SpanRecord]) -> Result<(), String> {
        let body = otlp::encode_spans(&self.service, batch);
        let request = self.encode_request(&body);
        let url = &self.collector;
        let server = (url.is_https, &*url.authority);
        // Boxed: a connection with TLS takes room that a task has only while it sends.
        let answer = Box::pin(web_request::send(
            server,
            &request,
            &self.pool,
            EXPORT_TIMEOUT,
            MAX_ANSWER_BYTES,
        ));
        let answer = clock::timeout(EXPORT_TIMEOUT, answer).await;
        let answer =
            answer.unwrap_or_else(|| Err(format!("no answer within {EXPORT_TIMEOUT:?}")))?;
        match answer.status {
            200..=299 => Ok(()),
            status => Err(format!("status {status}, and 200 is expected")),
        }
    }

    /// A POST of `/v1/traces` below the URL (OTLP/HTTP).
    fn encode_request(&self, body: &[u8]) -> Vec<u8> {
        let url = &self.collector;
        let (authority, target) = (&url.authority, url.target.trim_end_matches('/'));
        let length = body.len();
        let mut head = format!(
            "POST {target}/v1/traces HTTP/1.1\r\nHost: {authority}\r\n\
             Content-Type: application/x-protobuf\r\nContent-Length: {length}\r\n\
             User-Agent: penstock/{}\r\nConnection: close\r\n",
            env!("CARGO_PKG_VERSION")
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        [head.as_bytes(), b"\r\n", body].concat()
    }

    /// One line when exports begin to fail, and one when they work again.
    fn log_outcome(&mut self, outcome: Result<(), String>) {
        let name = self.collector.upstream_name();
        match &outcome {
            Ok(()) if self.is_failing => log::info!("tracing: {name} accepts spans again"),
            Err(error) if !self.is_failing => log::warn!(
                "tracing: {name}: {error}: spans are dropped until it accepts them (tracing.otlp)"
            ),
            _ => {}
        }
        self.is_failing = outcome.is_err();
    }
}
