//! The handler that compresses the responses of the one that it stands around.
//!
//! A small body in memory is encoded at once; any other becomes a `stream`. What only passes is
//! passed on as it came.
//!
//! # Invariants
//! - Held connections, switches of protocols and instructions to a front end are never touched.
//! - HEAD gets the header of GET, without an encoder.

use std::sync::Arc;

use bytes::Bytes;
use penstock_config::Compression;
use penstock_exchange::{
    Body, Fault, FrontEndInstructions, Handler, HandlerProgress, InlineResponse, Reply, Request,
    RequestView, Response,
};
use penstock_http::{RequestHead, Status, is_media_type};

use crate::encoder::{EncoderSettings, EncoderSize, Flush};
use crate::encoders::{Compressor, EncoderLease, EncoderUse};
use crate::file_stream::FileStream;
use crate::policy::{Decision, IdentityCause, Policy, ResponseMeta};
use crate::response_fields::{
    add_vary, add_vary_name, confirm_weakened_tag, has_weak_condition, mark_encoded,
    varies_by_encoding,
};
use crate::stream::{CompressedStream, FlushPolicy, Source, max_loop_bytes};

/// Compresses the responses of a handler.
#[derive(Debug)]
pub struct CompressHandler {
    inner: Arc<dyn Handler>,
    shared: Arc<CompressShared>,
}

/// Whether bodies may have secrets of a user in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodySecrecy {
    /// Every user gets the same bytes: files.
    Public,
    /// An application makes them, for one user perhaps.
    PerUser,
}

#[derive(Debug)]
struct CompressShared {
    policy: Policy,
    compressor: Compressor,
}

impl CompressHandler {
    /// Stands around `inner`.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Handler>,
        config: &Compression,
        secrecy: BodySecrecy,
        compressor: Compressor,
    ) -> Self {
        let has_secrets = secrecy == BodySecrecy::PerUser;
        let shared = CompressShared {
            policy: Policy::new(config, has_secrets),
            compressor,
        };
        Self {
            inner,
            shared: Arc::new(shared),
        }
    }
}

impl Handler for CompressHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let head = Arc::clone(&request.head);
        match self.inner.handle(request) {
            HandlerProgress::Ready(reply) => {
                HandlerProgress::Ready(self.shared.handle_reply(&head, reply))
            }
            HandlerProgress::Pending(work) => {
                let shared = Arc::clone(&self.shared);
                HandlerProgress::Pending(Box::pin(async move {
                    let reply = work.await;
                    shared.handle_reply(&head, reply)
                }))
            }
        }
    }

    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        let policy = &self.shared.policy;
        self.inner.try_inline(asked, &mut |response| {
            let meta = ResponseMeta {
                status: response.status,
                fields: response.fields,
                length: Some(response.body.length()),
            };
            // A lent header cannot be changed.
            let is_as_it_is = match (response.status, policy.decide(asked.head, meta)) {
                (Status::NOT_MODIFIED, _) => !has_weak_condition(asked.head),
                (_, Decision::Unchanged) => true,
                (_, Decision::Identity(IdentityCause::Negotiation)) => {
                    varies_by_encoding(response.fields)
                }
                (_, Decision::Identity(_) | Decision::Compress(_)) => false,
            };
            if is_as_it_is {
                take(response);
            }
        });
    }
}

impl CompressShared {
    fn handle_reply(
        &self,
        head: &RequestHead,
        reply: Result<Reply, Fault>,
    ) -> Result<Reply, Fault> {
        let mut reply = reply?;
        if let Reply::Response(response) = &mut reply {
            self.handle_response(head, response);
        }
        Ok(reply)
    }

    fn handle_response(&self, head: &RequestHead, response: &mut Response) {
        // The hub of another front end reads the body of such a response.
        let is_plain = !matches!(response.body, Body::Takeover(_) | Body::Hold(_));
        if !is_plain || response.has_grip() {
            return;
        }
        if response.status == Status::NOT_MODIFIED {
            return confirm_weakened_tag(head, &mut response.fields);
        }
        let meta = ResponseMeta {
            status: response.status,
            fields: &response.fields,
            length: response.body.length(),
        };
        match self.policy.decide(head, meta) {
            Decision::Unchanged => {}
            Decision::Identity(cause) => {
                add_vary(&mut response.fields);
                if let IdentityCause::Field(name) = cause {
                    add_vary_name(&mut response.fields, name);
                }
            }
            Decision::Compress(settings) => self.compress(response, settings),
        }
    }

    fn compress(&self, response: &mut Response, settings: EncoderSettings) {
        if let Body::Omitted(length) = &mut response.body {
            *length = None;
            return mark_encoded(&mut response.fields, settings.coding);
        }
        let counters = self.compressor.counters();
        let length = response.body.length();
        let policy = flush_policy(response);
        let purpose = encoder_use(response, settings, policy);
        let settings = EncoderSettings {
            size: match purpose {
                EncoderUse::Events => EncoderSize::Small,
                _ => EncoderSize::Full,
            },
            ..settings
        };
        let Some(lease) = self.compressor.acquire(settings, length, purpose) else {
            counters.skipped.increment();
            return add_vary(&mut response.fields);
        };
        let body = match std::mem::replace(&mut response.body, Body::Empty) {
            Body::Bytes(bytes) if purpose == EncoderUse::AtOnce => {
                match self.encode_at_once(lease, &bytes) {
                    Some(encoded) => Body::Bytes(encoded),
                    None => {
                        response.body = Body::Bytes(bytes);
                        return add_vary(&mut response.fields);
                    }
                }
            }
            Body::Bytes(bytes) => self.encode_stream(lease, Source::Memory(bytes), policy),
            Body::File(file) => {
                let source = Source::Stream(Box::new(FileStream::new(file)));
                self.encode_stream(lease, source, policy)
            }
            Body::Stream(stream) => self.encode_stream(lease, Source::Stream(stream), policy),
            other => {
                response.body = other;
                return;
            }
        };
        response.body = body;
        counters.count_response(settings.coding);
        mark_encoded(&mut response.fields, settings.coding);
    }

    /// Encodes a small body; `None` if the encoder fails.
    fn encode_at_once(&self, mut lease: EncoderLease, body: &[u8]) -> Option<Bytes> {
        let mut output = Vec::with_capacity(body.len() / 4 + 64);
        let encoded = lease.encoder.encode(body, Flush::Finish, &mut output);
        encoded.ok()?;
        let counters = self.compressor.counters();
        counters.input_bytes.add(body.len() as u64);
        counters.output_bytes.add(output.len() as u64);
        Some(output.into())
    }

    fn encode_stream(&self, lease: EncoderLease, source: Source, policy: FlushPolicy) -> Body {
        let stream = CompressedStream::new(&self.compressor, lease, source, policy);
        Body::Stream(Box::new(stream))
    }
}

/// What the encoder of a response is for.
fn encoder_use(response: &Response, settings: EncoderSettings, policy: FlushPolicy) -> EncoderUse {
    match (&response.body, response.body.length()) {
        (Body::Bytes(bytes), _) if bytes.len() <= max_loop_bytes(settings) => EncoderUse::AtOnce,
        (_, Some(_)) => EncoderUse::KnownLength,
        (_, None) if policy == FlushPolicy::EachPiece => EncoderUse::Events,
        (_, None) => EncoderUse::UnknownLength,
    }
}

/// Events, and bodies that are not to be buffered (`X-Accel-Buffering: no`), are flushed at once.
fn flush_policy(response: &Response) -> FlushPolicy {
    let is_events = response
        .fields
        .get("content-type")
        .is_some_and(|value| is_media_type(value, "text/event-stream"));
    let is_unbuffered = response.instructions != FrontEndInstructions::None
        && response
            .fields
            .get("x-accel-buffering")
            .is_some_and(|value| value.eq_ignore_ascii_case(b"no"));
    match is_events || is_unbuffered {
        true => FlushPolicy::EachPiece,
        false => FlushPolicy::OnPause,
    }
}

#[cfg(test)]
mod tests;
