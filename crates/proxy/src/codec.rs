//! What is spoken on one connection: the protocols' differences, behind one enum.
//!
//! `talk` asks it to write a request and feeds it what was received; what comes back is one kind of
//! [`Event`] whatever the protocol, so there is one relay loop for all. What must stay true: a codec
//! says `End` exactly once, and whatever is behind an end, or doubtful, ends the connection.

mod gateway;
mod http;

use penstock_config::{self as config, Protocol};
use penstock_exchange::Request;
use penstock_http::{FieldBlock, Status};

use crate::body_source::Framing;
use crate::failure::{AttemptFailure, AttemptStage};
use crate::request_head;
use crate::response_head::UpstreamResponseHead;

/// Reads one response.
#[derive(Debug)]
pub(crate) enum Codec {
    Http(http::HttpDecoder),
    Gateway(Box<gateway::GatewayDecoder>),
}

/// What a server said.
#[derive(Debug)]
pub(crate) enum ResponseEvent<'a> {
    /// An interim response that goes on to the client.
    Interim(Status, FieldBlock),
    /// The final head.
    Head(UpstreamResponseHead),
    /// The protocol is switched; what follows is not HTTP.
    SwitchedProtocols(UpstreamResponseHead),
    /// A piece of the body.
    Data(&'a [u8]),
    /// Lines for the log, of a bounded size in all.
    Log(&'a [u8]),
    /// The server takes so many bytes of the request's body now.
    BodyRequested(usize),
    /// The response is complete.
    End {
        /// The connection may carry another request.
        is_reusable: bool,
        trailers: Option<FieldBlock>,
    },
}

/// What one look at the bytes gave.
#[derive(Debug)]
pub(crate) struct DecodedEvent<'a> {
    /// Bytes that are dealt with.
    pub(crate) consumed: usize,
    /// None when more bytes are needed.
    pub(crate) event: Option<ResponseEvent<'a>>,
}

/// Pieces of a request's body, as the protocol has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEncoding {
    /// As they are, behind a length or nothing.
    Plain,
    /// HTTP chunks.
    Chunked,
    /// FastCGI records.
    FastCgi,
    /// AJP packets, only as they are asked for.
    Ajp,
}

impl Codec {
    /// For one request, and the request's head in `out`.
    ///
    /// # Errors
    /// A head that the protocol has no room for.
    pub(crate) fn encode_request(
        config: &config::Upstream,
        request: &Request,
        framing: Framing,
        server: &str,
        out: &mut Vec<u8>,
    ) -> Result<(Self, BodyEncoding), AttemptFailure> {
        match config.protocol {
            Protocol::Http => {
                let upgrades =
                    request_head::encode_request_head(out, config, request, framing, server);
                let form = match framing {
                    Framing::Chunked => BodyEncoding::Chunked,
                    Framing::None | Framing::Length(_) => BodyEncoding::Plain,
                };
                let decoder =
                    http::HttpDecoder::new(request.head.method(), upgrades).with_config(config);
                Ok((Self::Http(decoder), form))
            }
            _ => gateway::encode_request(config, request, framing, server, out),
        }
    }

    /// Looks at what was received; call it again with the rest while there are events.
    ///
    /// # Errors
    /// When the server breaks the rules of the protocol.
    pub(crate) fn decode<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<DecodedEvent<'a>, AttemptFailure> {
        match self {
            Self::Http(decoder) => decoder.decode(input),
            Self::Gateway(gateway) => gateway.decode(input),
        }
    }

    /// The server closed its side: the end of the response, if it may end so.
    ///
    /// # Errors
    /// When it may not.
    pub(crate) fn finish_at_eof(&mut self) -> Result<ResponseEvent<'static>, AttemptFailure> {
        match self {
            Self::Http(decoder) => decoder.finish_at_eof(),
            Self::Gateway(gateway) => gateway.finish_at_eof(),
        }
    }
}

/// How far a response is, for a failure.
pub(crate) fn attempt_stage(has_head: bool) -> AttemptStage {
    if has_head {
        AttemptStage::ResponseStarted
    } else {
        AttemptStage::Sent
    }
}
