//! The protocol of one connection, behind one enum.
//!
//! `upstream_exchange` has it write the request and feeds it received bytes. It returns
//! [`ResponseEvent`]s whatever the protocol, so one relay loop serves all.
//!
//! # Invariants
//!
//! - A codec returns `End` exactly once.
//! - Bytes behind the end, or any doubt about framing, close the connection.

mod gateway;
mod http;

use penstock_config::{self as config, Protocol};
use penstock_exchange::Request;
use penstock_http::{FieldBlock, Status};

use self::gateway::GatewayDecoder;
use self::http::HttpDecoder;
use crate::body_source::RequestBodyFraming;
use crate::failure::{AttemptFailure, AttemptStage};
use crate::request_head;
use crate::response_head::UpstreamResponseHead;

#[derive(Debug)]
pub(crate) enum Codec {
    Http(HttpDecoder),
    Gateway(Box<GatewayDecoder>),
}

#[derive(Debug)]
pub(crate) enum ResponseEvent<'a> {
    /// An interim response to forward to the client.
    Interim(Status, FieldBlock),
    Head(UpstreamResponseHead),
    /// The server switched protocols; the bytes that follow are not HTTP.
    SwitchedProtocols(UpstreamResponseHead),
    Data(&'a [u8]),
    /// Lines for the log; their total size is bounded.
    LogLines(&'a [u8]),
    /// The server accepts this many bytes of the request body now.
    BodyRequested(usize),
    End(ResponseEnd),
}

#[derive(Debug, Default)]
pub(crate) struct ResponseEnd {
    pub(crate) is_reusable: bool,
    pub(crate) trailers: Option<FieldBlock>,
}

#[derive(Debug, Default)]
pub(crate) struct DecodedEvent<'a> {
    pub(crate) consumed: usize,
    /// `None` when more bytes are needed.
    pub(crate) event: Option<ResponseEvent<'a>>,
}

/// Encoding of the pieces of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEncoding {
    /// Unchanged, after a length or without a body.
    Plain,
    Chunked,
    FastCgi,
    /// AJP packets, only on request of the server.
    Ajp,
}

impl Codec {
    /// Writes the request head into `out` and returns the decoder of its response.
    ///
    /// # Errors
    /// A head that does not fit the protocol.
    pub(crate) fn encode_request(
        config: &config::Upstream,
        request: &Request,
        framing: RequestBodyFraming,
        server: &str,
        out: &mut Vec<u8>,
    ) -> Result<(Self, BodyEncoding), AttemptFailure> {
        match config.protocol {
            Protocol::Http => {
                let upgrades =
                    request_head::encode_request_head(out, config, request, framing, server);
                let encoding = match framing {
                    RequestBodyFraming::Chunked => BodyEncoding::Chunked,
                    RequestBodyFraming::None | RequestBodyFraming::Length(_) => BodyEncoding::Plain,
                };
                let mut decoder = HttpDecoder::new(request.head.method(), config.strict);
                decoder.may_upgrade = upgrades;
                Ok((Self::Http(decoder), encoding))
            }
            _ => gateway::encode_request(config, request, framing, server, out),
        }
    }

    /// Decodes received bytes; call it again with the rest while it returns events.
    ///
    /// # Errors
    /// The server violates the protocol.
    pub(crate) fn decode<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<DecodedEvent<'a>, AttemptFailure> {
        match self {
            Self::Http(decoder) => decoder.decode(input),
            Self::Gateway(gateway) => gateway.decode(input),
        }
    }

    /// Handles the server's end of stream: the end of the response, if it may end so.
    ///
    /// # Errors
    /// The response may not end here.
    pub(crate) fn finish_at_eof(&mut self) -> Result<ResponseEvent<'static>, AttemptFailure> {
        match self {
            Self::Http(decoder) => decoder.finish_at_eof(),
            Self::Gateway(gateway) => gateway.finish_at_eof(),
        }
    }
}

/// The stage of a failure, by whether the head has arrived.
pub(crate) fn attempt_stage(has_head: bool) -> AttemptStage {
    match has_head {
        true => AttemptStage::ResponseStarted,
        false => AttemptStage::Sent,
    }
}
