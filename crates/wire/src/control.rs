//! The front end's machine for a control socket: a worker process says who it is, then that it is
//! ready or why it could not start.
//!
//! Inputs: bytes received and not yet consumed. Outputs: HELLO, then READY or BOOT_FAILED, then
//! nothing. The supervisor's executor in `apps` drives it once per process; the front end itself
//! never writes on this socket, it only closes it.

use crate::WireError;
use crate::frame::{FrameHeader, HEADER_LEN, Kind, VERSION};
use crate::server::text;

/// The largest READY or BOOT_FAILED payload: a traceback can be long.
pub const BOOT_TEXT_BYTES_MAX: u32 = 1 << 20;

/// What a worker process says while it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlEvent<'b> {
    /// The script runs and speaks this protocol.
    Hello,
    /// The application is loaded; a JSON object that describes process and interpreter.
    Ready { json: &'b str },
    /// The application did not load; the interpreter's own traceback. The process exits.
    BootFailed { traceback: &'b str },
}

/// The state of one control socket.
#[derive(Debug, Default)]
pub struct ControlDecoder {
    stage: Stage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Hello,
    Booting,
    Done,
}

impl ControlDecoder {
    /// A machine for a fresh socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event and its length off the front of `input`; `None` when more is needed.
    ///
    /// # Errors
    /// Any breach of the protocol, also a foreign version. The process must be ended.
    pub fn decode<'b>(
        &mut self,
        input: &'b [u8],
    ) -> Result<Option<(ControlEvent<'b>, usize)>, WireError> {
        let Some(header) = FrameHeader::parse(input)? else {
            return Ok(None);
        };
        let rest = &input[HEADER_LEN..];
        let (event, payload_len) = match (header.kind, self.stage) {
            (Kind::Hello, Stage::Hello) => {
                let Some(()) = check_version(header, rest)? else {
                    return Ok(None);
                };
                self.stage = Stage::Booting;
                (ControlEvent::Hello, 4)
            }
            (Kind::Ready, Stage::Booting) => {
                let Some(json) = text(header, rest, BOOT_TEXT_BYTES_MAX)? else {
                    return Ok(None);
                };
                self.stage = Stage::Done;
                (ControlEvent::Ready { json }, json.len())
            }
            (Kind::BootFailed, Stage::Booting) => {
                let Some(traceback) = text(header, rest, BOOT_TEXT_BYTES_MAX)? else {
                    return Ok(None);
                };
                self.stage = Stage::Done;
                (ControlEvent::BootFailed { traceback }, traceback.len())
            }
            (kind, _) => return Err(WireError::UnexpectedKind(kind as u8)),
        };
        Ok(Some((event, HEADER_LEN + payload_len)))
    }
}

fn check_version(header: FrameHeader, rest: &[u8]) -> Result<Option<()>, WireError> {
    if header.payload_len != 4 {
        return Err(WireError::BadPayloadLength);
    }
    match rest
        .first_chunk::<4>()
        .map(|bytes| u32::from_le_bytes(*bytes))
    {
        None => Ok(None),
        Some(VERSION) => Ok(Some(())),
        Some(other) => Err(WireError::Version(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{encode_hello, encode_text};

    #[test]
    fn says_hello_then_ready() {
        let mut bytes = encode_hello(VERSION).to_vec();
        encode_text(&mut bytes, Kind::Ready, 0, "{}");
        for cut in 0..bytes.len() {
            let mut decoder = ControlDecoder::new();
            let mut at = 0;
            let mut seen = Vec::new();
            for end in [cut, bytes.len()] {
                while let Some((event, used)) = decoder.decode(&bytes[at..end]).unwrap() {
                    at += used;
                    seen.push(event);
                }
            }
            assert_eq!(
                seen,
                [ControlEvent::Hello, ControlEvent::Ready { json: "{}" }],
                "{cut}"
            );
        }
    }

    #[test]
    fn refuses_what_is_out_of_place() {
        let hello = encode_hello(VERSION).to_vec();
        let mut ready_first = Vec::new();
        encode_text(&mut ready_first, Kind::Ready, 0, "{}");
        let mut response = hello.clone();
        response.extend_from_slice(&[16, 0, 0, 0, 0, 0, 0, 0]);
        let mut not_text = hello.clone();
        not_text.extend_from_slice(&[34, 0, 0, 0, 1, 0, 0, 0, 0xff]);
        let rows = [
            (
                "another version",
                encode_hello(VERSION + 1).to_vec(),
                WireError::Version(VERSION + 1),
            ),
            (
                "ready before hello",
                ready_first,
                WireError::UnexpectedKind(33),
            ),
            (
                "hello twice",
                [hello.clone(), hello].concat(),
                WireError::UnexpectedKind(32),
            ),
            ("a slot's frame", response, WireError::UnexpectedKind(16)),
            ("not text", not_text, WireError::NotUtf8),
        ];
        for (name, bytes, error) in rows {
            let mut decoder = ControlDecoder::new();
            let mut at = 0;
            let seen = loop {
                match decoder.decode(&bytes[at..]) {
                    Ok(Some((_, used))) => at += used,
                    Ok(None) => panic!("{name}: wants more"),
                    Err(seen) => break seen,
                }
            };
            assert_eq!(seen, error, "{name}");
        }
    }
}
