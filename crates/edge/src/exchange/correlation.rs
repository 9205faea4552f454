//! The id of a request and its place in a trace: made here, or kept where a proxy or client that is
//! trusted has given them; and its span, once it has ended.

use std::sync::Arc;
use std::time::Instant;

use penstock_config::{RequestIdMode, SampleShare, TraceParents};
use penstock_exchange::TraceContext;
use penstock_exchange::correlation::{Correlation, REQUEST_ID_FIELD, RequestId, random_word};
use penstock_exchange::spans::{SpanQueue, SpanRecord};
use penstock_http::{RequestHead, strip_port};
use penstock_runtime::{clock, loops};

use super::ConnectionContext;
use crate::Settings;
use crate::access_log::{AccessRecord, format_peer};

/// How requests are traced.
#[derive(Debug)]
pub struct TracePolicy {
    /// Whose traces go on here.
    pub parents: TraceParents,
    /// The share of new traces that are recorded.
    pub sample: SampleShare,
    /// Where the spans of recorded traces go; `None` if they are not exported.
    pub queue: Option<Arc<SpanQueue>>,
}

impl ConnectionContext<'_> {
    /// What ties a request to its records elsewhere; nothing where that is off.
    pub(super) fn correlate(self, settings: &Settings, head: &RequestHead) -> Correlation {
        Correlation {
            request_id: (settings.request_id != RequestIdMode::Off)
                .then(|| self.request_id(settings, head)),
            trace: (settings.tracing.as_ref())
                .map(|tracing| Arc::new(self.trace_context(tracing, settings, head))),
        }
    }

    fn request_id(self, settings: &Settings, head: &RequestHead) -> RequestId {
        let is_trusted = self.source.is_trusted_proxy(&settings.trusted_proxies);
        let given = head.field(REQUEST_ID_FIELD).filter(|_| is_trusted);
        given
            .and_then(RequestId::from_field)
            .unwrap_or_else(|| RequestId::generate(clock::wall_time()))
    }

    fn trace_context(
        self,
        tracing: &TracePolicy,
        settings: &Settings,
        head: &RequestHead,
    ) -> TraceContext {
        let is_continued = match tracing.parents {
            TraceParents::None => false,
            TraceParents::Any => true,
            TraceParents::Trusted => self.source.is_trusted_proxy(&settings.trusted_proxies),
        };
        let parent = is_continued.then(|| TraceContext::continue_from(head));
        parent
            .flatten()
            .unwrap_or_else(|| TraceContext::start(tracing.sample.includes(random_word())))
    }

    /// Records the span of a request that has ended, if its trace is recorded.
    pub(super) fn record_span(
        self,
        settings: &Settings,
        record: &AccessRecord<'_>,
        (started, ended): (Instant, Instant),
    ) {
        let Some(context) = record.trace.filter(|it| it.is_sampled) else {
            return;
        };
        let at = loops::current_loop_index();
        let metrics = self.edge.metrics();
        (metrics.total_time).add_exemplar(record.total_time, context.trace_id);
        if let Some(counts) = record.route.and_then(|route| route.counts.as_ref()) {
            counts.add_exemplar(at, record.total_time, context.trace_id);
        }
        let queue = settings.tracing.as_ref().and_then(|it| it.queue.as_ref());
        if let Some(queue) = queue {
            let started_at = clock::wall_time_at(started);
            queue.push(SpanRecord {
                started_at,
                ended_at: started_at + ended.saturating_duration_since(started),
                ..span_of(settings, record, context)
            });
        }
    }
}

/// The span of a request, without its times.
fn span_of(
    settings: &Settings,
    record: &AccessRecord<'_>,
    context: &Arc<TraceContext>,
) -> SpanRecord {
    let head = record.head;
    let agent = head.field("user-agent").unwrap_or_default();
    let version = head.version().as_str();
    let host = strip_port(record.host);
    let port = record.host[host.len()..].strip_prefix(':');
    SpanRecord {
        context: Arc::clone(context),
        started_at: std::time::Duration::ZERO,
        ended_at: std::time::Duration::ZERO,
        method: head.method_str().into(),
        target: settings
            .log_mask
            .apply_url_str(head.target_path_query())
            .into(),
        scheme: record.scheme,
        host: host.into(),
        port: port.and_then(|port| port.parse().ok()),
        version: version.strip_prefix("HTTP/").unwrap_or(version),
        client: format_peer(record.client).into(),
        peer: format_peer(record.peer).into(),
        user_agent: String::from_utf8_lossy(agent).into(),
        route: (record.route).map(|route| (route.site.clone(), route.route.clone())),
        request_id: record
            .request_id
            .map(ToString::to_string)
            .unwrap_or_default()
            .into(),
        status: record.status,
        body_bytes: record.body_bytes,
        timing: record.timing.clone(),
    }
}
