//! FastCGI, SCGI, uwsgi and AJP: encodes requests as variables and maps `wire`'s responses to
//! [`ResponseEvent`]s.
//!
//! # Invariants
//!
//! - The variables come from the table in `environ`, so an application sees the same in every
//!   protocol.

use penstock_config::{self as config, Protocol};
use penstock_exchange::{FaultKind, Request};
use penstock_http::Method;
use penstock_wire::gateway::{
    EncodeError, GatewayError, GatewayEvent, GatewayHead, GatewayHeadLimits, ResponseDecoder,
};
use penstock_wire::{ajp, cgi, fastcgi, scgi, uwsgi};

use super::http::HttpDecoder;
use super::{BodyEncoding, Codec, DecodedEvent, ResponseEnd, ResponseEvent, attempt_stage};
use crate::body_source::RequestBodyFraming;
use crate::environ;
use crate::failure::{AttemptFailure, AttemptStage};
use crate::request_head;
use crate::response_head::{ResponseHeadBuilder, UpstreamResponseHead};

/// WSGI; other servers of the protocol take it for the default.
const UWSGI_MODIFIER: u8 = 0;

/// Maximum log bytes per request, so that one request cannot fill a disk.
const MAX_LOG_BYTES: usize = 64 * 1024;
/// Logged once the limit is reached.
const LOG_TRUNCATED: &[u8] = b"more than 64 KiB for the log from one request; the rest is left out";

#[derive(Debug)]
pub(crate) struct GatewayDecoder {
    decoder: ResponseDecoder,
    /// The connection may be kept open, if the server agrees.
    keeps_alive: bool,
    has_head: bool,
    is_finished: bool,
    log_bytes_left: usize,
    is_log_truncated: bool,
}

/// Writes the head of `request` into `out`.
///
/// # Errors
/// A head that does not fit the format.
pub(super) fn encode_request(
    config: &config::Upstream,
    request: &Request,
    framing: RequestBodyFraming,
    server: &str,
    out: &mut Vec<u8>,
) -> Result<(Codec, BodyEncoding), AttemptFailure> {
    let answers_head = request.head.method() == Method::Head;
    let limits = GatewayHeadLimits::default();
    let length = match framing {
        RequestBodyFraming::Length(length) => length,
        RequestBodyFraming::None => 0,
        // A body of unknown length is read whole before the request is sent (`proxied_request`).
        RequestBodyFraming::Chunked => {
            let cause = "a body without a length cannot be sent in a gateway protocol";
            return Err(AttemptFailure::local(FaultKind::Internal, cause));
        }
    };
    let keeps = request_head::uses_keep_alive(config);
    let (decoder, form) = match config.protocol {
        Protocol::FastCgi => {
            fastcgi::encode_begin(out, keeps);
            let mut params = fastcgi::FastCgiParamsWriter::new(out);
            environ::encode_variables(&mut params, config, request, framing, server);
            params.finish().map_err(encode_failure)?;
            let decoder = fastcgi::FastCgiDecoder::new(limits, answers_head);
            (ResponseDecoder::FastCgi(decoder), BodyEncoding::FastCgi)
        }
        Protocol::Scgi => {
            let mut vars = scgi::ScgiVariableWriter::new(out, length);
            environ::encode_variables(&mut vars, config, request, framing, server);
            vars.finish().map_err(encode_failure)?;
            let decoder = cgi::CgiDecoder::new(limits, answers_head);
            (ResponseDecoder::Cgi(decoder), BodyEncoding::Plain)
        }
        Protocol::Ajp => {
            environ::encode_ajp_request(out, config, request, framing, server)
                .map_err(encode_failure)?;
            let decoder = ajp::AjpDecoder::new(limits, answers_head);
            (ResponseDecoder::Ajp(decoder), BodyEncoding::Ajp)
        }
        // `Codec::encode_request` never calls this for HTTP.
        Protocol::Uwsgi | Protocol::Http => {
            let mut vars = uwsgi::UwsgiVariableWriter::new(out, UWSGI_MODIFIER);
            environ::encode_variables(&mut vars, config, request, framing, server);
            vars.finish().map_err(encode_failure)?;
            let mut decoder = HttpDecoder::new(request.head.method(), config.strict);
            decoder.must_close = true;
            return Ok((Codec::Http(decoder), BodyEncoding::Plain));
        }
    };
    let gateway = GatewayDecoder {
        decoder,
        keeps_alive: keeps,
        has_head: false,
        is_finished: false,
        log_bytes_left: MAX_LOG_BYTES,
        is_log_truncated: false,
    };
    Ok((Codec::Gateway(Box::new(gateway)), form))
}

impl GatewayDecoder {
    pub(crate) fn decode<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<DecodedEvent<'a>, AttemptFailure> {
        let mut consumed = 0;
        let mut event = None;
        // Skipped events must not look like the end of the input.
        while event.is_none() && !self.is_finished {
            let decoded = self.decoder.decode(&input[consumed..]);
            let decoded = decoded.map_err(|error| self.failure(error))?;
            consumed += decoded.consumed;
            let Some(found) = decoded.event else { break };
            event = self.translate(found)?;
        }
        Ok(DecodedEvent { consumed, event })
    }

    pub(crate) fn finish_at_eof(&mut self) -> Result<ResponseEvent<'static>, AttemptFailure> {
        self.is_finished = true;
        match self.decoder.decode_eof() {
            Ok(_) => Ok(ResponseEvent::End(ResponseEnd::default())),
            Err(error) => {
                let stage = attempt_stage(self.has_head);
                Err(AttemptFailure::server_disconnected(
                    stage,
                    error.to_string(),
                ))
            }
        }
    }

    fn translate<'a>(
        &mut self,
        event: GatewayEvent<'a>,
    ) -> Result<Option<ResponseEvent<'a>>, AttemptFailure> {
        Ok(Some(match event {
            GatewayEvent::Head(head) => {
                self.has_head = true;
                ResponseEvent::Head(convert_head(&head)?)
            }
            GatewayEvent::Body(piece) => ResponseEvent::Data(piece),
            GatewayEvent::Log(piece) => return Ok(self.limit_log(piece)),
            GatewayEvent::BodyRequested(count) => ResponseEvent::BodyRequested(count),
            GatewayEvent::End { reusable } => {
                self.is_finished = true;
                ResponseEvent::End(ResponseEnd {
                    is_reusable: reusable && self.keeps_alive,
                    trailers: None,
                })
            }
        }))
    }

    /// The part of `piece` that is logged.
    fn limit_log<'a>(&mut self, piece: &'a [u8]) -> Option<ResponseEvent<'a>> {
        if let Some(left) = self.log_bytes_left.checked_sub(piece.len()) {
            self.log_bytes_left = left;
            return Some(ResponseEvent::LogLines(piece));
        }
        self.log_bytes_left = 0;
        let was_cut = std::mem::replace(&mut self.is_log_truncated, true);
        (!was_cut).then_some(ResponseEvent::LogLines(LOG_TRUNCATED))
    }

    fn failure(&self, error: GatewayError) -> AttemptFailure {
        // A server that refuses before the head has not begun the request.
        let stage = match error.is_refusal() && !self.has_head {
            true => AttemptStage::Unsent,
            false => attempt_stage(self.has_head),
        };
        AttemptFailure::protocol_error(stage, error.to_string())
    }
}

fn convert_head(head: &GatewayHead) -> Result<UpstreamResponseHead, AttemptFailure> {
    let broken = |cause: String| AttemptFailure::protocol_error(AttemptStage::Sent, cause);
    let mut builder = ResponseHeadBuilder::new(head.fields.as_bytes().len());
    for (name, value) in head.fields.iter() {
        let pushed = builder.push(name, value);
        pushed.map_err(|error| broken(error.to_string()))?;
    }
    let head = builder.finish(head.status);
    head.ok_or_else(|| broken("malformed content-length".to_owned()))
}

fn encode_failure(error: EncodeError) -> AttemptFailure {
    let kind = match error {
        EncodeError::TooLarge => FaultKind::HeadTooLarge,
        EncodeError::NulInText => FaultKind::BadRequest,
    };
    AttemptFailure::local(kind, error.to_string())
}

#[cfg(test)]
mod tests;
