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

use crate::failure::{Failure, Stage};
use crate::forward;
use crate::head::ReplyHead;
use crate::source::Framing;

/// Reads one response.
#[derive(Debug)]
pub(crate) enum Codec {
    Http(http::Decoder),
    Gateway(Box<gateway::Gateway>),
}

/// What a server said.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// An interim response that goes on to the client.
    Interim(Status, FieldBlock),
    /// The final head.
    Head(ReplyHead),
    /// The protocol is switched; what follows is not HTTP.
    Switched(ReplyHead),
    /// A piece of the body.
    Data(&'a [u8]),
    /// Lines for the log, of a bounded size in all.
    Log(&'a [u8]),
    /// The server takes so many bytes of the request's body now.
    BodyWanted(usize),
    /// The response is complete.
    End {
        /// The connection may carry another request.
        reusable: bool,
        trailers: Option<FieldBlock>,
    },
}

/// What one look at the bytes gave.
#[derive(Debug)]
pub(crate) struct Decoded<'a> {
    /// Bytes that are dealt with.
    pub(crate) consumed: usize,
    /// None when more bytes are needed.
    pub(crate) event: Option<Event<'a>>,
}

/// Pieces of a request's body, as the protocol has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyForm {
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
    pub(crate) fn begin(
        config: &config::Upstream,
        request: &Request,
        framing: Framing,
        server: &str,
        out: &mut Vec<u8>,
    ) -> Result<(Self, BodyForm), Failure> {
        match config.protocol {
            Protocol::Http => {
                let upgrades = forward::encode(out, config, request, framing, server);
                let form = match framing {
                    Framing::Chunked => BodyForm::Chunked,
                    Framing::None | Framing::Length(_) => BodyForm::Plain,
                };
                let decoder =
                    http::Decoder::new(request.head.method(), upgrades).configured_by(config);
                Ok((Self::Http(decoder), form))
            }
            _ => gateway::begin(config, request, framing, server, out),
        }
    }

    /// Looks at what was received; call it again with the rest while there are events.
    ///
    /// # Errors
    /// When the server breaks the rules of the protocol.
    pub(crate) fn decode<'a>(&mut self, input: &'a [u8]) -> Result<Decoded<'a>, Failure> {
        match self {
            Self::Http(decoder) => decoder.decode(input),
            Self::Gateway(gateway) => gateway.decode(input),
        }
    }

    /// The server closed its side: the end of the response, if it may end so.
    ///
    /// # Errors
    /// When it may not.
    pub(crate) fn eof(&mut self) -> Result<Event<'static>, Failure> {
        match self {
            Self::Http(decoder) => decoder.eof(),
            Self::Gateway(gateway) => gateway.eof(),
        }
    }
}

/// How far a response is, for a failure.
pub(crate) fn stage(has_head: bool) -> Stage {
    if has_head {
        Stage::Answered
    } else {
        Stage::Sent
    }
}
