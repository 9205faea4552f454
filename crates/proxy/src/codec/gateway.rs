//! FastCGI, SCGI, uwsgi and AJP: a request as variables, a response as the format has it.
//!
//! The formats are `wire`'s; here they become the one kind of [`Event`]. What must stay true: the
//! variables come from `environ`'s table, so that all formats tell an application the same.

use penstock_config::{self as config, Protocol};
use penstock_exchange::{FaultKind, Request};
use penstock_http::Method;
use penstock_wire::gateway::{EncodeError, GatewayError, GatewayHeadLimits, ResponseDecoder};
use penstock_wire::{ajp, cgi, fastcgi, gateway, scgi, uwsgi};

use super::{BodyForm, Codec, Decoded, Event, http};
use crate::environ;
use crate::failure::{Failure, Stage};
use crate::forward;
use crate::head::{HeadBuilder, ReplyHead};
use crate::source::Framing;

/// The number of WSGI, and what other servers of the protocol take for "the usual".
const UWSGI_MODIFIER: u8 = 0;

/// What a request may say to the log, so that one cannot fill a disk.
const LOG_BYTES: usize = 64 * 1024;
/// The line after the last.
const LOG_CUT: &[u8] = b"more than 64 KiB for the log from one request; the rest is left out";

/// Reads one response.
#[derive(Debug)]
pub(crate) struct Gateway {
    decoder: ResponseDecoder,
    /// The connection may be kept, if the server does.
    keeps: bool,
    has_head: bool,
    is_over: bool,
    log_left: usize,
    is_log_cut: bool,
}

/// Writes the head of `request` into `out`.
///
/// # Errors
/// A head that the format has no room for.
pub(super) fn begin(
    config: &config::Upstream,
    request: &Request,
    framing: Framing,
    server: &str,
    out: &mut Vec<u8>,
) -> Result<(Codec, BodyForm), Failure> {
    let answers_head = request.head.method() == Method::Head;
    let limits = GatewayHeadLimits::default();
    let length = match framing {
        Framing::Length(length) => length,
        Framing::None => 0,
        Framing::Chunked => return Err(no_length()),
    };
    let keeps = forward::keeps_connections(config);
    let (decoder, form) = match config.protocol {
        Protocol::FastCgi => {
            fastcgi::encode_begin(out, keeps);
            let mut params = fastcgi::FastCgiParamsWriter::new(out);
            environ::tell(&mut params, config, request, framing, server);
            params.finish().map_err(too_large)?;
            let decoder = fastcgi::FastCgiDecoder::new(limits, answers_head);
            (ResponseDecoder::FastCgi(decoder), BodyForm::FastCgi)
        }
        Protocol::Scgi => {
            let mut vars = scgi::ScgiVariableWriter::new(out, length);
            environ::tell(&mut vars, config, request, framing, server);
            vars.finish().map_err(too_large)?;
            let decoder = cgi::CgiDecoder::new(limits, answers_head);
            (ResponseDecoder::Cgi(decoder), BodyForm::Plain)
        }
        Protocol::Ajp => {
            environ::ajp(out, config, request, framing, server).map_err(too_large)?;
            let decoder = ajp::AjpDecoder::new(limits, answers_head);
            (ResponseDecoder::Ajp(decoder), BodyForm::Ajp)
        }
        // `Codec::begin` asks here for the others only.
        Protocol::Uwsgi | Protocol::Http => {
            let mut vars = uwsgi::UwsgiVariableWriter::new(out, UWSGI_MODIFIER);
            environ::tell(&mut vars, config, request, framing, server);
            vars.finish().map_err(too_large)?;
            let decoder = http::Decoder::closing(request.head.method()).configured_by(config);
            return Ok((Codec::Http(decoder), BodyForm::Plain));
        }
    };
    let gateway = Gateway {
        decoder,
        keeps,
        has_head: false,
        is_over: false,
        log_left: LOG_BYTES,
        is_log_cut: false,
    };
    Ok((Codec::Gateway(Box::new(gateway)), form))
}

impl Gateway {
    pub(crate) fn decode<'a>(&mut self, input: &'a [u8]) -> Result<Decoded<'a>, Failure> {
        let mut consumed = 0;
        let mut event = None;
        // Events that are left out must not look like the end of what was received.
        while event.is_none() && !self.is_over {
            let decoded = self.decoder.decode(&input[consumed..]);
            let decoded = decoded.map_err(|error| self.failure(error))?;
            consumed += decoded.consumed;
            let Some(found) = decoded.event else { break };
            event = self.translate(found)?;
        }
        Ok(Decoded { consumed, event })
    }

    pub(crate) fn eof(&mut self) -> Result<Event<'static>, Failure> {
        self.is_over = true;
        match self.decoder.eof() {
            Ok(_) => Ok(Event::End {
                reusable: false,
                trailers: None,
            }),
            Err(error) => {
                let stage = super::stage(self.has_head);
                Err(Failure::died(stage, error.to_string()))
            }
        }
    }

    fn translate<'a>(
        &mut self,
        event: gateway::GatewayEvent<'a>,
    ) -> Result<Option<Event<'a>>, Failure> {
        Ok(Some(match event {
            gateway::GatewayEvent::Head(head) => {
                self.has_head = true;
                Event::Head(reply(&head)?)
            }
            gateway::GatewayEvent::Body(piece) => Event::Data(piece),
            gateway::GatewayEvent::Log(piece) => return Ok(self.log(piece)),
            gateway::GatewayEvent::BodyRequested(count) => Event::BodyWanted(count),
            gateway::GatewayEvent::End { reusable } => {
                self.is_over = true;
                Event::End {
                    reusable: reusable && self.keeps,
                    trailers: None,
                }
            }
        }))
    }

    /// What of `piece` is logged.
    fn log<'a>(&mut self, piece: &'a [u8]) -> Option<Event<'a>> {
        if let Some(left) = self.log_left.checked_sub(piece.len()) {
            self.log_left = left;
            return Some(Event::Log(piece));
        }
        self.log_left = 0;
        let was_cut = std::mem::replace(&mut self.is_log_cut, true);
        (!was_cut).then_some(Event::Log(LOG_CUT))
    }

    fn failure(&self, error: GatewayError) -> Failure {
        // One that refuses has not begun with the request; behind a head it only says so.
        let stage = match error.is_refusal() && !self.has_head {
            true => Stage::Unsent,
            false => super::stage(self.has_head),
        };
        Failure::broken(stage, error.to_string())
    }
}

/// The head for the client.
fn reply(head: &gateway::GatewayHead) -> Result<ReplyHead, Failure> {
    let mut builder = HeadBuilder::new(head.fields.as_bytes().len());
    for (name, value) in head.fields.iter() {
        builder
            .take(name, value)
            .map_err(|error| Failure::broken(Stage::Sent, error.to_string()))?;
    }
    builder
        .finish(head.status)
        .ok_or_else(|| Failure::broken(Stage::Sent, "malformed content-length"))
}

/// `call` reads a body of unknown length whole before it begins.
fn no_length() -> Failure {
    let cause = "a body without a length cannot be sent in a gateway protocol";
    Failure::new(FaultKind::Internal, Stage::Ours, cause)
}

fn too_large(error: EncodeError) -> Failure {
    let kind = match error {
        EncodeError::TooLarge => FaultKind::HeadTooLarge,
        EncodeError::NulInText => FaultKind::BadRequest,
    };
    Failure::new(kind, Stage::Ours, error.to_string())
}

#[cfg(test)]
mod tests;
