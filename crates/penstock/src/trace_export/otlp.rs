//! Spans as OTLP (OpenTelemetry Protocol 1.x): the messages that this server sends, with the field
//! numbers of `opentelemetry/proto/trace/v1/trace.proto`, and their attributes by the semantic
//! conventions for HTTP.
//!
//! # Invariants
//! - One span a request, of kind server.
//! - Attributes and events that a request does not have are left out.

use std::time::Duration;

use penstock_exchange::CacheOutcome;
use penstock_exchange::spans::SpanRecord;
use prost::Message;

/// The body of a request for `/v1/traces`.
pub(super) fn encode_spans(service: &str, spans: &[SpanRecord]) -> Vec<u8> {
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: vec![
                    text("service.name", service),
                    text("service.version", env!("CARGO_PKG_VERSION")),
                    number("process.pid", u64::from(std::process::id())),
                ],
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: "penstock".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans: spans.iter().map(Span::from_record).collect(),
            }],
        }],
    };
    request.encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
    #[prost(message, optional, tag = "15")]
    status: Option<SpanStatus>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct SpanStatus {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "AttributeValue", tags = "1, 3, 4")]
    value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AttributeValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Decimal(f64),
}

/// `SPAN_KIND_SERVER`.
const KIND_SERVER: i32 = 2;
/// `STATUS_CODE_ERROR`.
const STATUS_ERROR: i32 = 2;
/// The sampled flag of W3C, and whether it is known that the parent is remote, and that it is.
const FLAG_SAMPLED: u32 = 1;
const FLAG_HAS_IS_REMOTE: u32 = 0x100;
const FLAG_IS_REMOTE: u32 = 0x200;

impl Span {
    fn from_record(record: &SpanRecord) -> Self {
        let context = &record.context;
        let remote = match context.parent_id {
            Some(_) => FLAG_HAS_IS_REMOTE | FLAG_IS_REMOTE,
            None => FLAG_HAS_IS_REMOTE,
        };
        let is_error = record.status >= 500;
        Self {
            trace_id: context.trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            trace_state: context.state.as_deref().unwrap_or_default().to_owned(),
            parent_span_id: context.parent_id.map(Vec::from).unwrap_or_default(),
            name: match &record.route {
                Some((_, route)) => format!("{} {route}", record.method),
                None => record.method.to_string(),
            },
            kind: KIND_SERVER,
            start_time_unix_nano: nanos(record.started_at),
            end_time_unix_nano: nanos(record.ended_at),
            attributes: attributes(record),
            events: events(record),
            status: is_error.then_some(SpanStatus { code: STATUS_ERROR }),
            flags: FLAG_SAMPLED | remote,
        }
    }
}

fn attributes(record: &SpanRecord) -> Vec<KeyValue> {
    let (path, query) = match record.target.split_once('?') {
        Some((path, query)) => (path, query),
        None => (&*record.target, ""),
    };
    let timing = &record.timing;
    let (site, route) = match &record.route {
        Some((site, route)) => (&**site, &**route),
        None => ("", ""),
    };
    let error = match record.status >= 500 {
        true => record.status.to_string(),
        false => String::new(),
    };
    let texts = [
        ("http.request.method", &*record.method),
        ("url.path", path),
        ("url.query", query),
        ("url.scheme", record.scheme),
        ("server.address", &*record.host),
        ("http.route", route),
        ("client.address", &*record.client),
        ("network.peer.address", &*record.peer),
        ("network.protocol.version", record.version),
        ("user_agent.original", &*record.user_agent),
        ("error.type", &*error),
        ("penstock.site", site),
        ("penstock.request_id", &*record.request_id),
        (
            "penstock.handler",
            timing.handler.as_deref().unwrap_or_default(),
        ),
        (
            "penstock.cache",
            timing.cache.map_or("", CacheOutcome::as_str),
        ),
        (
            "penstock.server",
            timing.server.as_deref().unwrap_or_default(),
        ),
    ];
    let texts = texts.into_iter().filter(|(_, value)| !value.is_empty());
    let mut all: Vec<KeyValue> = texts.map(|(key, value)| text(key, value)).collect();
    all.push(number(
        "http.response.status_code",
        u64::from(record.status),
    ));
    all.push(number("http.response.body.size", record.body_bytes));
    let numbers = [
        ("server.port", u64::from(record.port.unwrap_or(0))),
        ("penstock.queue_position", u64::from(timing.queue_position)),
        ("penstock.retries", u64::from(timing.retries)),
        ("penstock.worker", u64::from(timing.worker_pid)),
    ];
    let numbers = numbers.into_iter().filter(|(_, value)| *value > 0);
    all.extend(numbers.map(|(key, value)| number(key, value)));
    let times = [
        ("penstock.queue_time", timing.queue_time),
        ("penstock.connect_time", timing.connect_time),
        ("penstock.app_time", timing.app_time),
    ];
    let times = times.into_iter().filter(|(_, time)| !time.is_zero());
    all.extend(
        times.map(|(key, time)| attribute(key, AttributeValue::Decimal(time.as_secs_f64()))),
    );
    all
}

/// The stages of a request behind the rules of its route, each at its end: the cache was asked, a
/// slot was free, the server was connected, the back end had begun its response.
fn events(record: &SpanRecord) -> Vec<Event> {
    let timing = &record.timing;
    let mut at = record.started_at;
    let event = |name: &str, at| Event {
        time_unix_nano: nanos(at),
        name: name.to_owned(),
    };
    let looked_up = timing.cache.map(|_| event("cache", at));
    let stages = [
        ("queue", timing.queue_time),
        ("connect", timing.connect_time),
        ("application", timing.app_time),
    ];
    let stages = stages.into_iter().filter(|(_, time)| !time.is_zero());
    let ended = stages.map(|(name, time)| {
        at += time;
        event(name, at)
    });
    looked_up.into_iter().chain(ended).collect()
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, AttributeValue::Text(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    attribute(key, AttributeValue::Number(value))
}

fn attribute(key: &str, value: AttributeValue) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use penstock_exchange::{RequestTiming, TraceContext};

    use super::*;

    #[test]
    fn a_request_is_a_span_of_the_semantic_conventions() {
        let context = TraceContext {
            trace_id: [1; 16],
            span_id: [2; 8],
            parent_id: Some([3; 8]),
            is_sampled: true,
            state: Some("a=1".into()),
        };
        let record = SpanRecord {
            context: Arc::new(context),
            started_at: Duration::from_secs(5),
            ended_at: Duration::from_millis(5250),
            method: "POST".into(),
            target: "/cart?x=1".into(),
            scheme: "https",
            host: "shop.test".into(),
            port: Some(8443),
            version: "1.1",
            client: "203.0.113.9".into(),
            peer: "10.0.0.1".into(),
            user_agent: "".into(),
            route: Some(("shop.test".into(), "/*".into())),
            request_id: "7".into(),
            status: 503,
            body_bytes: 12,
            timing: RequestTiming {
                queue_time: Duration::from_millis(250),
                app_time: Duration::from_millis(50),
                cache: Some(CacheOutcome::Hit),
                ..RequestTiming::default()
            },
        };
        let bytes = encode_spans("front", &[record]);
        let read = ExportTraceServiceRequest::decode(&*bytes).unwrap();
        let of_resource = &read.resource_spans[0].resource.as_ref().unwrap().attributes;
        assert_eq!(of_resource[0], text("service.name", "front"));
        let span = &read.resource_spans[0].scope_spans[0].spans[0];
        assert_eq!(
            (&span.trace_id[..], &span.span_id[..]),
            (&[1; 16][..], &[2; 8][..])
        );
        assert_eq!(
            (&*span.name, &*span.trace_state, span.kind),
            ("POST /*", "a=1", 2)
        );
        assert_eq!(span.parent_span_id, [3; 8]);
        assert_eq!(span.start_time_unix_nano, 5_000_000_000);
        assert_eq!(span.end_time_unix_nano, 5_250_000_000);
        assert_eq!((span.status.as_ref().unwrap().code, span.flags), (2, 0x301));
        for wanted in [
            text("url.path", "/cart"),
            text("url.query", "x=1"),
            text("server.address", "shop.test"),
            number("server.port", 8443),
            number("http.response.status_code", 503),
            text("error.type", "503"),
            text("penstock.cache", "hit"),
            attribute("penstock.queue_time", AttributeValue::Decimal(0.25)),
        ] {
            assert!(span.attributes.contains(&wanted), "{wanted:?}");
        }
        let has = |key: &str| span.attributes.iter().any(|it| it.key == key);
        assert!(!has("user_agent.original") && !has("penstock.server"));
        let events = span.events.iter();
        let events: Vec<_> = events
            .map(|event| (&*event.name, event.time_unix_nano))
            .collect();
        let expected = [
            ("cache", 5_000_000_000),
            ("queue", 5_250_000_000),
            ("application", 5_300_000_000),
        ];
        assert_eq!(events, expected);
    }
}
