//! Traces of requests: the `[tracing]` table.

use std::collections::BTreeMap;

use super::SampleShare;
use crate::forward_auth::ServiceUrl;
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::redacted::Secret;

section! {
    /// Traces of requests by W3C Trace Context, and their export by OpenTelemetry. Without the table
    /// `traceparent` is a field like any other.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TraceConfig
    in "tracing", "[tracing]", "# [tracing]" {
        /// The collector that spans are sent to, by OTLP over HTTP: `/v1/traces` below this URL.
        otlp: Option<ServiceUrl> = None, Text(COLLECTOR_URL), default "none: spans are not sent",
            example r#""http://127.0.0.1:4318""#, by parse(ServiceUrl::parse);
        /// The share of traces that are recorded, from 0 to 1, of those that begin here. A trace
        /// that goes on here is recorded if it was before.
        sample: SampleShare = SampleShare::ALL, Fraction, shows "1.0", example "0.05", by hand;
        /// Whose traces go on here: those of `"trusted"` proxies (`server.trusted_proxies`), of
        /// `"any"` client, or of `"none"`. Other requests begin a new trace.
        parents: TraceParents = TraceParents::default(), Choice(TraceParents::WORDS),
            example r#""any""#;
        /// The name of this server in traces (`service.name`).
        service: String = "penstock".to_owned(), Text("a name"),
            by check(crate::tracing::is_service_name);
        /// Fields of the requests to the collector, such as its key.
        headers: BTreeMap<String, Secret> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ Authorization = "Bearer KEY" }"#, by hand;
    }
}

choice! {
    /// Whose traces a request continues.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum TraceParents {
        /// Those of trusted proxies.
        #[default]
        Trusted = "trusted",
        /// Those of any client.
        Any = "any",
        /// No client's.
        None = "none",
    }
}
