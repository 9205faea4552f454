//! Traces: `traceparent` from client to upstream, and spans at a collector.
//!
//! The collector is an origin that keeps what it is sent; a small reader of protobuf takes the
//! messages apart, by the field numbers of OTLP.

use super::{APP, json_lines};
use crate::support::{Origin, PATIENCE, Response, Server, Site, eventually, page};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A span as a collector reads it.
#[derive(Debug, Clone, Default)]
struct Span {
    service: String,
    trace_id: String,
    span_id: String,
    parent_id: String,
    state: String,
    name: String,
    kind: u64,
    nanos: u64,
    texts: Vec<(String, String)>,
    numbers: Vec<(String, u64)>,
}

/// The fields of a message: their numbers, and their bytes or values.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = message.split_first().expect("a whole number");
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        unreachable!("a number ends")
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, Vec::new(), varint(&mut message)));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)).unwrap(),
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (bytes, rest) = message.split_at(length);
        message = rest;
        let mut fixed = [0; 8];
        fixed[..length.min(8)].copy_from_slice(&bytes[..length.min(8)]);
        found.push((key >> 3, bytes.to_vec(), u64::from_le_bytes(fixed)));
    }
    found
}

fn children(message: &[u8], number: u64) -> Vec<Vec<u8>> {
    let fields = fields(message).into_iter();
    let named = fields.filter(|(found, ..)| *found == number);
    named.map(|(_, bytes, _)| bytes).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Adds an attribute to a span.
fn add_attribute(span: &mut Span, attribute: &[u8]) {
    let key = text(children(attribute, 1).remove(0));
    let value = children(attribute, 2).remove(0);
    for (number, bytes, value) in fields(&value) {
        match number {
            1 => span.texts.push((key.clone(), text(bytes))),
            _ => span.numbers.push((key.clone(), value)),
        }
    }
}

fn read_span(service: &str, message: &[u8]) -> Span {
    let mut span = Span {
        service: service.to_owned(),
        ..Span::default()
    };
    let mut times = [0; 2];
    for (number, bytes, value) in fields(message) {
        match number {
            1 => span.trace_id = hex(&bytes),
            2 => span.span_id = hex(&bytes),
            3 => span.state = text(bytes),
            4 => span.parent_id = hex(&bytes),
            5 => span.name = text(bytes),
            6 => span.kind = value,
            7 => times[0] = value,
            8 => times[1] = value,
            9 => add_attribute(&mut span, &bytes),
            _ => {}
        }
    }
    span.nanos = times[1]
        .checked_sub(times[0])
        .expect("it ends after its start");
    span
}

/// The spans of an export.
fn read_export(body: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource in children(body, 1) {
        let mut of_resource = Span::default();
        for attribute in children(&children(&resource, 1).remove(0), 1) {
            add_attribute(&mut of_resource, &attribute);
        }
        let service = of_resource
            .texts
            .iter()
            .find(|(key, _)| key == "service.name");
        let service = service.expect("service.name").1.clone();
        for scope in children(&resource, 2) {
            let found = children(&scope, 2);
            spans.extend(found.iter().map(|span| read_span(&service, span)));
        }
    }
    spans
}

impl Span {
    fn text(&self, key: &str) -> &str {
        let found = self.texts.iter().find(|(known, _)| known == key);
        found.map_or("", |(_, value)| value)
    }

    fn number(&self, key: &str) -> Option<u64> {
        let found = self.numbers.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| *value)
    }
}

/// The spans of a collector, once there are `count`.
fn exported(collector: &Origin, count: usize) -> Vec<Span> {
    eventually(PATIENCE, &format!("{count} spans"), || {
        let exports = collector.requests();
        let exports = exports.iter().filter(|it| it.complete);
        let spans: Vec<Span> = exports.flat_map(|it| read_export(&it.body)).collect();
        (spans.len() >= count).then_some(spans)
    })
}

fn ask(server: &Server, target: &str, fields: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: a.test:81\r\n{fields}\r\n"
    ));
    client.response()
}

#[test]
fn a_trace_joins_client_two_servers_and_their_back_ends() {
    let collector = Origin::start(|seen| page(seen, ""));
    let last = Origin::start(|seen| page(seen, "last"));
    let tracing = |service: &str| {
        format!(
            "[tracing]\notlp = \"http://{}/in\"\nservice = \"{service}\"\n\
             headers = {{ X-Key = \"k1\" }}\n",
            collector.address()
        )
    };
    let back = Site::new().config(&format!(
        "[server]\nthreads = 1\n[upstreams.last]\nservers = [\"{}\"]\n{}\
         [[sites]]\n[[sites.routes]]\npath = \"/x/*\"\nupstream = \"last\"\n",
        last.address(),
        tracing("back")
    ));
    let back = back.serve(&[]);
    let front = Site::new().file("app.py", APP).config(&format!(
        "[server]\nthreads = 1\naccess_log = {{ path = \"access.log\", format = \"json\" }}\n\
         [apps.shop]\nkind = \"wsgi\"\nentry = \"app:app\"\nprocesses = 1\n\
         [upstreams.back]\nservers = [\"127.0.0.1:{}\"]\n{}\
         [[sites]]\n[[sites.routes]]\npath = \"/x/*\"\nupstream = \"back\"\n\
         [[sites.routes]]\napp = \"shop\"\n",
        back.port(),
        tracing("front")
    ));
    let front = front.serve(&[]);
    front.wait_ready("shop");
    let sent = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=1\r\n");
    assert_eq!(ask(&front, "/x/1?token=s3cret", &sent).text(), "last");
    let spans = exported(&collector, 2);
    let of = |service: &str| spans.iter().find(|it| it.service == service).unwrap();
    let (front_span, back_span) = (of("front"), of("back"));
    for span in [front_span, back_span] {
        assert_eq!(
            (&*span.trace_id, &*span.state, span.kind),
            (TRACE, "a=1", 2)
        );
        assert_eq!(span.name, "GET /x/*");
        assert_eq!(span.number("http.response.status_code"), Some(200));
        assert_eq!(
            (span.text("url.path"), span.text("url.query")),
            ("/x/1", "token=***")
        );
        assert!(span.nanos > 0 && span.number("penstock.app_time").is_some());
    }
    assert_eq!(
        (
            front_span.text("server.address"),
            front_span.number("server.port")
        ),
        ("a.test", Some(81))
    );
    assert_eq!(front_span.parent_id, PARENT);
    assert_eq!(back_span.parent_id, front_span.span_id);
    let arrived = last.last();
    let expected = format!("00-{TRACE}-{}-01", back_span.span_id);
    assert_eq!(arrived.field("traceparent"), Some(expected));
    assert_eq!(arrived.field("tracestate").as_deref(), Some("a=1"));
    let export = &collector.requests()[0];
    assert_eq!(export.line(), "POST /in/v1/traces");
    assert_eq!(
        export.field("content-type").as_deref(),
        Some("application/x-protobuf")
    );
    assert_eq!(export.field("x-key").as_deref(), Some("k1"));
    let line = &json_lines(&front, "access.log", 1)[0];
    assert_eq!(
        (&line["trace_id"], &line["span_id"]),
        (&TRACE.into(), &(*front_span.span_id).into())
    );
    // A broken parent begins a new trace; an application gets it.
    let given = ask(&front, "/?HTTP_TRACEPARENT", "traceparent: 00-0-0-01\r\n").text();
    let parts: Vec<&str> = given.split('-').collect();
    assert_eq!(
        (parts.len(), parts[1].len(), parts[3]),
        (4, 32, "01"),
        "{given}"
    );
    assert_eq!(ask(&front, "/fail", "").status, 500);
    let spans = exported(&collector, 4);
    let failed = spans
        .iter()
        .find(|it| it.text("url.path") == "/fail")
        .unwrap();
    assert_eq!(
        (failed.text("error.type"), failed.text("http.route")),
        ("500", "/*")
    );
    assert_eq!(
        (failed.text("penstock.handler"), &*failed.parent_id),
        ("shop", "")
    );
    assert!(spans.iter().any(|it| it.trace_id == parts[1]), "{given}");
    // Exemplars lead from a bucket to a trace.
    let mut admin = crate::support::RawClient::connect(front.admin_port());
    admin.send(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n",
    );
    let metrics = admin.response().text();
    let is_shown = |span: &Span| metrics.contains(&format!("# {{trace_id=\"{}\"}}", span.trace_id));
    assert!(spans.iter().any(is_shown), "{metrics}");
    eventually(PATIENCE, "exports are counted", || {
        front.metric("penstock_trace_spans_exported_total") == Some(3.0)
    });
    // A stop sends what waits.
    let before = exported(&collector, 4).len();
    assert_eq!(ask(&front, "/last", "").status, 200);
    front.signal(rustix::process::Signal::TERM);
    front.wait_exit(PATIENCE);
    let spans = exported(&collector, before + 1);
    assert!(
        spans.iter().any(|it| it.text("url.path") == "/last"),
        "{spans:#?}"
    );
}

#[test]
fn a_collector_that_is_away_costs_a_line() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let origin = Origin::start(|seen| page(seen, "origin"));
    let server = Site::new().config(&format!(
        "[server]\nthreads = 1\ntrusted_proxies = [\"10.0.0.1\"]\n\
         [tracing]\notlp = \"http://{address}\"\n\
         [upstreams.b]\nservers = [\"{}\"]\n[[sites]]\n[[sites.routes]]\nupstream = \"b\"\n",
        origin.address()
    ));
    let server = server.serve(&[]);
    let dropped = |count: f64| {
        eventually(PATIENCE, &format!("{count} spans are dropped"), || {
            server.metric("penstock_trace_spans_dropped_total") == Some(count)
        });
    };
    let sent = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n");
    assert_eq!(ask(&server, "/", &sent).status, 200);
    let arrived = origin.last().field("traceparent").unwrap();
    assert!(
        !arrived.contains(TRACE),
        "an untrusted client has no trace here: {arrived}"
    );
    dropped(1.0);
    ask(&server, "/", "");
    dropped(2.0);
    let log = server.log();
    assert_eq!(
        log.matches("spans are dropped until it accepts them")
            .count(),
        1,
        "{log}"
    );
}
