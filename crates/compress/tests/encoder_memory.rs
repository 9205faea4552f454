//! What a stream that is compressed takes: no more than the encoders are counted with.
//!
//! Alone in its process, with an allocator that counts. `zstd` allocates in C; a test beside it asks
//! it.
#![allow(
    clippy::unwrap_used,
    reason = "tests: a failure is a panic, helpers are no test functions"
)]

use std::alloc::System;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use penstock_compress::{BodySecrecy, CompressHandler, Compressor};
use penstock_config::{Compression, ContentCoding};
use penstock_exchange::request::RequestEnvironment;
use penstock_exchange::{
    Body, BodyStream, Fault, Handler, HandlerProgress, ListenerInfo, Mount, Reply, Request,
    RequestBody, RequestPath, Response,
};
use penstock_http::{HeadLimits, ParseProgress, Status, parse_head};
use penstock_runtime::{clock, loops};
use penstock_sys::net::PeerAddress;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Streams at a time: what they share does not count for one.
const STREAMS: usize = 4;

/// Bytes that each stream has had: more than any window.
const STREAM_BYTES: usize = 1 << 20;

/// Text that is not alike for long, then no more for now.
struct UnfinishedText {
    left: usize,
    seed: u64,
}

impl BodyStream for UnfinishedText {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if self.left == 0 {
            return Poll::Pending;
        }
        let mut letter = || {
            self.seed = self
                .seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            b"etaoin shrdlu\n"[(self.seed >> 60) as usize % 14]
        };
        let piece: Vec<u8> = (0..8192).map(|_| letter()).collect();
        self.left -= piece.len();
        Poll::Ready(Some(Ok(piece.into())))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

/// Responds with text of this type.
#[derive(Debug)]
struct TextHandler(&'static str);

impl Handler for TextHandler {
    fn handle(&self, _: Request) -> HandlerProgress {
        let text = UnfinishedText {
            left: STREAM_BYTES,
            seed: 1,
        };
        let mut response = Response::new(Status::OK, Body::Stream(Box::new(text)));
        response.fields.push_static("Content-Type", self.0);
        HandlerProgress::Ready(Ok(response.into()))
    }
}

fn request(coding: ContentCoding) -> Request {
    let text = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {}\r\n\r\n",
        coding.as_str()
    );
    let parsed = parse_head(text.as_bytes(), &HeadLimits::default()).unwrap();
    let ParseProgress::Complete((head, _)) = parsed else {
        panic!("no head");
    };
    let path = RequestPath::from_head(&head).unwrap();
    let environment = RequestEnvironment {
        peer: PeerAddress::Unix,
        listener: Arc::new(ListenerInfo {
            scheme: "http",
            address: None,
            name: "test".to_owned(),
            proxy_protocol: false,
            has_tls: false,
        }),
        client_state: Arc::default(),
        arrived_at: clock::now(),
        trusted_proxies: Arc::default(),
        forwarded: None,
        mount: Mount::default(),
    };
    Request::new(Arc::new(head), path, RequestBody::Empty, environment)
}

fn live_bytes() -> usize {
    let now = ALLOCATOR.stats();
    now.bytes_allocated - now.bytes_deallocated
}

/// A stream whose source pauses, with all before that taken by its client.
async fn paused_stream(handler: &CompressHandler, coding: ContentCoding) -> Box<dyn BodyStream> {
    let HandlerProgress::Ready(Ok(Reply::Response(response))) = handler.handle(request(coding))
    else {
        panic!("no response");
    };
    let Body::Stream(mut stream) = response.body else {
        panic!("no stream");
    };
    // A pause is as long as no timer of the stream runs.
    while clock::timeout(
        Duration::from_millis(200),
        poll_fn(|cx| stream.poll_chunk(cx)),
    )
    .await
    .is_some()
    {}
    stream
}

#[test]
fn streams_take_no_more_than_they_are_counted_with() {
    for (coding, levels, content_type) in [
        (ContentCoding::Gzip, &[1, 5, 9][..], "text/plain"),
        (ContentCoding::Brotli, &[0, 4, 5, 6], "text/plain"),
        (ContentCoding::Brotli, &[4, 5, 6], "text/event-stream"),
    ] {
        for &level in levels {
            let config = Compression {
                algorithms: vec![coding],
                gzip_level: level.max(1),
                br_level: level,
                ..Compression::default()
            };
            let compressor = Compressor::default();
            let handler = CompressHandler::new(
                Arc::new(TextHandler(content_type)),
                &config,
                BodySecrecy::Public,
                compressor.clone(),
            );
            loops::block_on(async {
                // Threads and buffers of the first are there for all.
                drop(paused_stream(&handler, coding).await);
                let before = live_bytes();
                let mut streams = Vec::new();
                for _ in 0..STREAMS {
                    streams.push(paused_stream(&handler, coding).await);
                }
                let taken = live_bytes().saturating_sub(before) as u64;
                let counted = compressor.snapshot().memory_bytes;
                assert!(
                    taken <= counted,
                    "{coding:?} {level} {content_type}: {taken} of {counted} for {STREAMS}"
                );
            })
            .unwrap();
        }
    }
}
