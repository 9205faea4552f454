//! Responses of HTTP/1.1 servers, and of uwsgi servers, which answer in HTTP too.
//!
//! Heads are checked by `http`'s scanner and bodies by its decoder. What must stay true: interim
//! responses are bounded; 101 is believed only where it was asked for; bytes behind a response are
//! never taken for another one. What old servers write is read unless the upstream is `strict`:
//! nobody sees it, for heads and bodies are framed anew; it is the last response of its connection.

use penstock_config as config;
use penstock_http::{
    BodyDecoder, BodyFraming, CheckedField, FieldBlock, Method, ParseProgress, ResponseBodyFraming,
    ResponseHead, ResponseLimits, ResponseScanner, Status,
};

use super::{Decoded, Event};
use crate::failure::{Failure, Stage};
use crate::head::HeadBuilder;

/// Interim responses before a final one; a server that sends more is not going to answer.
const INTERIM_MAX: u8 = 64;

/// Room for the fields of the usual head.
const FIELDS_BYTES: usize = 512;

/// Reads one response.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    scanner: ResponseScanner,
    is_strict: bool,
    /// The fields of a head that is not whole yet.
    building: Option<Box<HeadBuilder>>,
    answers_head: bool,
    /// The request asked for another protocol.
    upgrades: bool,
    interim: u8,
    keep_alive: bool,
    closes: bool,
}

#[derive(Debug)]
enum State {
    Head,
    Length(u64),
    Chunked(Box<BodyDecoder>),
    UntilClose,
    /// Complete, and not yet told.
    Done(Option<FieldBlock>),
    /// Told; or the connection is a tunnel.
    Over,
}

impl Decoder {
    /// Reads the response to a request of `method`, strictly.
    pub(crate) fn new(method: Method, upgrades: bool) -> Self {
        Self {
            state: State::Head,
            scanner: ResponseScanner::new(),
            is_strict: true,
            building: None,
            answers_head: method == Method::Head,
            upgrades,
            interim: 0,
            keep_alive: false,
            closes: false,
        }
    }

    /// For a server that closes behind its response, whatever its head says.
    pub(crate) fn closing(method: Method) -> Self {
        Self {
            closes: true,
            ..Self::new(method, false)
        }
    }

    /// The same, reading what old servers write unless the upstream is `strict`.
    pub(crate) fn configured_by(mut self, config: &config::Upstream) -> Self {
        if !config.strict {
            self.is_strict = false;
            self.scanner = ResponseScanner::lenient();
        }
        self
    }

    pub(crate) fn decode<'a>(&mut self, input: &'a [u8]) -> Result<Decoded<'a>, Failure> {
        match &mut self.state {
            State::Head => self.decode_head(input),
            State::Length(left) => {
                let count = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= count as u64;
                if *left == 0 {
                    self.state = State::Done(None);
                }
                Ok(data(&input[..count], count))
            }
            State::Chunked(decoder) => {
                let decoded = decoder
                    .decode(input)
                    .map_err(|error| Failure::broken(Stage::Answered, error.to_string()))?;
                if decoded.is_done {
                    self.keep_alive &= !decoder.needed_leniency();
                    let trailers = trailers(decoder.trailers());
                    self.state = State::Done(trailers);
                    if decoded.content.is_empty() {
                        return Ok(self.end(decoded.consumed));
                    }
                }
                Ok(data(&input[decoded.content], decoded.consumed))
            }
            State::UntilClose => Ok(data(input, input.len())),
            State::Done(_) => Ok(self.end(0)),
            State::Over => Ok(Decoded {
                consumed: 0,
                event: None,
            }),
        }
    }

    pub(crate) fn eof(&mut self) -> Result<Event<'static>, Failure> {
        match self.state {
            State::UntilClose | State::Done(_) | State::Over => {
                self.state = State::Over;
                Ok(Event::End {
                    reusable: false,
                    trailers: None,
                })
            }
            State::Head => Err(Failure::died(
                Stage::Sent,
                "the server closed before a whole response head",
            )),
            State::Length(_) | State::Chunked(_) => Err(Failure::died(
                Stage::Answered,
                "the server closed within the response body",
            )),
        }
    }

    fn decode_head<'a>(&mut self, input: &'a [u8]) -> Result<Decoded<'a>, Failure> {
        let limits = ResponseLimits::default();
        // Kept over pieces of a head: the scanner gives each field once.
        let mut building = match self.building.take() {
            Some(building) => *building,
            None => HeadBuilder::new(FIELDS_BYTES),
        };
        let mut take = |field: CheckedField<'_>| building.take_checked(field);
        let scanned = (self.scanner).scan_with(input, self.answers_head, &limits, &mut take);
        let scanned = scanned.map_err(|error| Failure::broken(Stage::Sent, error.to_string()))?;
        let ParseProgress::Complete(head) = scanned else {
            self.building = Some(Box::new(building));
            return Ok(Decoded {
                consumed: 0,
                event: None,
            });
        };
        let broken = |cause: String| Failure::broken(Stage::Sent, cause);
        let Some(status) = Status::new(head.status) else {
            return Err(broken(format!("status {}", head.status)));
        };
        let reply = building.finish(status);
        let mut reply = reply.ok_or_else(|| broken("malformed content-length".to_owned()))?;
        if head.framing == ResponseBodyFraming::Chunked {
            // The coding overrides a length beside it (RFC 9112 §6.3 case 3).
            reply.length = None;
        }
        let event = match head.status {
            101 if self.upgrades => {
                self.state = State::Over;
                Event::Switched(reply)
            }
            101 => {
                return Err(broken(
                    "a switch of protocols that nobody asked for".to_owned(),
                ));
            }
            100..=199 => {
                if !head.keep_alive && self.is_strict {
                    return Err(broken("an interim response with a close".to_owned()));
                }
                self.closes |= !head.keep_alive;
                self.interim += 1;
                if self.interim > INTERIM_MAX {
                    return Err(broken(format!("more than {INTERIM_MAX} interim responses")));
                }
                Event::Interim(status, reply.fields)
            }
            _ => {
                self.begin_body(&head);
                Event::Head(reply)
            }
        };
        Ok(Decoded {
            consumed: head.len,
            event: Some(event),
        })
    }

    fn begin_body(&mut self, head: &ResponseHead) {
        self.keep_alive = head.keep_alive && !self.closes;
        self.state = match head.framing {
            ResponseBodyFraming::None | ResponseBodyFraming::Length(0) => State::Done(None),
            ResponseBodyFraming::Length(length) => State::Length(length),
            ResponseBodyFraming::Chunked => State::Chunked(Box::new(match self.is_strict {
                true => BodyDecoder::new(BodyFraming::Chunked),
                false => BodyDecoder::lenient(),
            })),
            ResponseBodyFraming::UntilClose => State::UntilClose,
        };
    }

    fn end<'a>(&mut self, consumed: usize) -> Decoded<'a> {
        let trailers = match std::mem::replace(&mut self.state, State::Over) {
            State::Done(trailers) => trailers,
            _ => None,
        };
        Decoded {
            consumed,
            event: Some(Event::End {
                reusable: self.keep_alive,
                trailers,
            }),
        }
    }
}

/// A piece of a body; none when there is nothing in it.
fn data(piece: &[u8], consumed: usize) -> Decoded<'_> {
    Decoded {
        consumed,
        event: (!piece.is_empty()).then_some(Event::Data(piece)),
    }
}

/// The fields behind a chunked body, which the decoder has checked.
fn trailers(lines: &[u8]) -> Option<FieldBlock> {
    let mut fields = FieldBlock::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(colon) = memchr::memchr(b':', line)
            && let Ok(name) = std::str::from_utf8(&line[..colon])
        {
            // Checked once; whatever is not a field again is left out.
            let _ = fields.push(name, &line[colon + 1..]);
        }
    }
    (!fields.is_empty()).then_some(fields)
}

#[cfg(test)]
mod tests;
