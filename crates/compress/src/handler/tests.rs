//! Replies before and behind the handler.

use penstock_config::ContentCoding;
use penstock_exchange::{HeldConnection, HeldConnectionGuard, HeldFraming, Hold};
use penstock_http::FieldBlock;
use penstock_runtime::loops;

use super::*;
use crate::testing::{BodyControl, decode, fields, json, request};

fn shared() -> CompressShared {
    CompressShared {
        policy: Policy::new(&Compression::default(), true),
        compressor: Compressor::default(),
    }
}

fn response(body: Body) -> Response {
    let mut response = Response::new(Status::OK, body);
    response.fields = fields(&[("Content-Type", "application/json"), ("ETag", "\"a\"")]);
    response
}

fn head(method: &str) -> RequestHead {
    request(method, &[("Accept-Encoding", "gzip")])
}

/// The response behind the handler.
fn pass(head: &RequestHead, response: Response) -> Response {
    let shared = shared();
    match shared.handle_reply(head, Ok(response.into())) {
        Ok(Reply::Response(response)) => *response,
        other => panic!("another reply: {other:?}"),
    }
}

fn read_all(body: Body) -> Vec<u8> {
    match body {
        Body::Bytes(bytes) => bytes.to_vec(),
        Body::Stream(mut stream) => loops::block_on(async {
            let mut all = Vec::new();
            while let Some(piece) = std::future::poll_fn(|cx| stream.poll_chunk(cx)).await {
                all.extend_from_slice(&piece.unwrap());
            }
            all
        })
        .unwrap(),
        other => panic!("no such body: {other:?}"),
    }
}

fn encoded_fields() -> FieldBlock {
    fields(&[
        ("Content-Type", "application/json"),
        ("Accept-Ranges", "none"),
        ("Content-Encoding", "gzip"),
        ("ETag", "W/\"a\""),
        ("Vary", "Accept-Encoding"),
    ])
}

#[test]
fn small_and_large_bodies_are_encoded() {
    for len in [1024, 65_536, 65_537, 2 << 20] {
        let body = json(len);
        let answer = pass(&head("GET"), response(Body::Bytes(body.clone().into())));
        assert_eq!(answer.fields, encoded_fields());
        // A small one has its length.
        assert_eq!(answer.body.length().is_some(), len <= 65_536, "{len}");
        assert!(
            decode(ContentCoding::Gzip, &read_all(answer.body)) == body,
            "{len}"
        );
    }
}

#[test]
fn a_stream_is_encoded_and_counted() {
    let control = BodyControl::default();
    control.push_bytes(json(3000));
    control.push(None);
    let shared = shared();
    let mut answer = response(Body::Stream(control.body(Some(3000))));
    shared.handle_response(&head("GET"), &mut answer);
    assert_eq!(answer.fields, encoded_fields());
    let encoded = read_all(answer.body);
    assert!(decode(ContentCoding::Gzip, &encoded) == json(3000));
    let now = shared.compressor.snapshot();
    assert_eq!((now.gzip, now.zstd, now.br, now.skipped), (1, 0, 0, 0));
    assert_eq!(now.input_bytes, 3000);
    assert_eq!(now.output_bytes, encoded.len() as u64);
    assert_eq!(now.memory_bytes, 0);
}

#[test]
fn head_has_the_header_of_get_and_takes_no_encoder() {
    let shared = shared();
    let mut answer = response(Body::Omitted(Some(5000)));
    shared.handle_response(&head("HEAD"), &mut answer);
    assert_eq!(answer.fields, encoded_fields());
    assert_eq!(answer.body.length(), None);
    assert_eq!(shared.compressor.snapshot().gzip, 0);
    let small = pass(&head("HEAD"), response(Body::Omitted(Some(5))));
    assert_eq!(small.body.length(), Some(5));
    assert!(!small.fields.contains("content-encoding"));
}

#[test]
fn what_is_not_compressed_is_passed_on() {
    let plain = request("GET", &[]);
    let answer = pass(&plain, response(Body::Bytes(json(2000).into())));
    assert_eq!(answer.fields.get("vary"), Some(&b"Accept-Encoding"[..]));
    assert_eq!(answer.fields.get("etag"), Some(&b"\"a\""[..]));
    assert!(read_all(answer.body) == json(2000));
    // A cache must not send it to the clients of other requests.
    let asked = [
        ("Accept-Encoding", "gzip"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Cookie", "a=b"),
    ];
    let guarded = request("GET", &asked);
    let answer = pass(&guarded, response(Body::Bytes(json(2000).into())));
    let expected = &b"Accept-Encoding, Sec-Fetch-Site"[..];
    assert_eq!(answer.fields.get("vary"), Some(expected));
    assert!(read_all(answer.body) == json(2000));
    let small = pass(&head("GET"), response(Body::Bytes(json(20).into())));
    assert!(!small.fields.contains("vary"));
    let empty = pass(&head("GET"), response(Body::Empty));
    assert!(!empty.fields.contains("content-encoding"));
    assert!(matches!(empty.body, Body::Empty));
}

#[test]
fn without_memory_a_response_is_sent_as_it_is() {
    let shared = shared();
    let settings = EncoderSettings {
        coding: ContentCoding::Gzip,
        level: 5,
        size: EncoderSize::Full,
    };
    let purpose = EncoderUse::KnownLength;
    let acquire = || shared.compressor.acquire(settings, None, purpose);
    let leases: Vec<_> = std::iter::from_fn(acquire).collect();
    assert!(leases.len() > 100);
    let mut small = response(Body::Bytes(json(2000).into()));
    shared.handle_response(&head("GET"), &mut small);
    assert!(small.fields.contains("content-encoding"));
    let mut answer = response(Body::Bytes(json(200_000).into()));
    shared.handle_response(&head("GET"), &mut answer);
    assert!(!answer.fields.contains("content-encoding"));
    assert_eq!(answer.fields.get("vary"), Some(&b"Accept-Encoding"[..]));
    assert_eq!(shared.compressor.snapshot().skipped, 1);
}

#[derive(Debug)]
struct HeldForever;

impl Hold for HeldForever {
    fn hold(self: Box<Self>, _: HeldConnection, _: usize, _: HeldFraming, _: HeldConnectionGuard) {
        unreachable!("it is only passed on");
    }
}

#[test]
fn held_connections_and_instructions_are_not_touched() {
    let held = pass(&head("GET"), response(Body::Hold(Box::new(HeldForever))));
    assert!(matches!(held.body, Body::Hold(_)));
    assert!(!held.fields.contains("content-encoding"));
    // The hub of the front end reads it.
    let mut instructed = response(Body::Bytes(json(5000).into()));
    instructed.fields.push("Grip-Hold", b"stream").unwrap();
    instructed.instructions = FrontEndInstructions::ForFrontEnd;
    let passed = pass(&head("GET"), instructed);
    assert!(!passed.fields.contains("content-encoding"));
    assert!(read_all(passed.body) == json(5000));
}

#[test]
fn events_and_unbuffered_bodies_are_flushed_at_each_piece() {
    let policy_of = |list: &[(&str, &str)], instructions| {
        let mut response = Response::new(Status::OK, Body::Empty);
        response.fields = fields(list);
        response.instructions = instructions;
        flush_policy(&response)
    };
    let here = FrontEndInstructions::ForThisServer;
    let none = FrontEndInstructions::None;
    for (list, instructions, expected) in [
        (
            &[("Content-Type", "text/event-stream; charset=utf-8")][..],
            none,
            FlushPolicy::EachPiece,
        ),
        (&[("Content-Type", "text/html")], none, FlushPolicy::OnPause),
        (&[("X-Accel-Buffering", "no")], here, FlushPolicy::EachPiece),
        (&[("X-Accel-Buffering", "yes")], here, FlushPolicy::OnPause),
    ] {
        assert_eq!(policy_of(list, instructions), expected, "{list:?}");
    }
}

#[test]
fn a_304_confirms_what_the_client_has() {
    let mut response = Response::new(Status::NOT_MODIFIED, Body::Empty);
    response.fields = fields(&[("ETag", "\"a\"")]);
    let head = request("GET", &[("If-None-Match", "W/\"a\"")]);
    let passed = pass(&head, response);
    assert_eq!(passed.fields.get("etag"), Some(&b"W/\"a\""[..]));
}

/// Lends one response.
#[derive(Debug)]
struct Lender {
    fields: FieldBlock,
    status: Status,
}

impl Handler for Lender {
    fn handle(&self, _: Request) -> HandlerProgress {
        unreachable!("only lent from")
    }

    fn try_inline(&self, _: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        take(InlineResponse {
            status: self.status,
            fields: &self.fields,
            body: penstock_exchange::InlineBody::Bytes(&[b'a'; 2000]),
            handler: "lender",
        });
    }
}

#[test]
fn only_responses_that_stay_as_they_are_are_lent() {
    let html = ("Content-Type", "text/html");
    let varies = ("Vary", "Accept-Encoding");
    let gzip = ("Accept-Encoding", "gzip");
    let weak = ("If-None-Match", "W/\"a\"");
    let strong = ("If-None-Match", "\"a\"");
    let (ok, not_modified) = (Status::OK, Status::NOT_MODIFIED);
    for (status, sent, asked, is_lent) in [
        (ok, &[html][..], &[gzip][..], false),
        (ok, &[html], &[], false),
        (ok, &[html, varies], &[], true),
        (ok, &[html, varies], &[gzip], false),
        (ok, &[html, ("Content-Encoding", "gzip")], &[gzip], true),
        (ok, &[("Content-Type", "image/png")], &[gzip], true),
        (not_modified, &[("ETag", "\"a\"")], &[strong], true),
        (not_modified, &[("ETag", "\"a\"")], &[weak], false),
    ] {
        let inner = Arc::new(Lender {
            fields: fields(sent),
            status,
        });
        let handler = CompressHandler::new(
            inner,
            &Compression::default(),
            BodySecrecy::Public,
            Compressor::default(),
        );
        let head = request("GET", asked);
        let view = RequestView {
            head: &head,
            path: b"/",
            scheme: "http",
            arrived_at: penstock_runtime::clock::now(),
        };
        let mut was_lent = false;
        handler.try_inline(&view, &mut |_| was_lent = true);
        assert_eq!(was_lent, is_lent, "{status} {sent:?} {asked:?}");
    }
}
