//! The front end's decoder of a control socket: a process identifies itself, then reports that it
//! is ready or why not; a template gets orders to fork, a forked worker its sockets.
//!
//! Inputs: bytes received and not yet consumed. Outputs: HELLO, then READY or BOOT_FAILED; of a
//! template FORK_FAILED after that, of a worker that is promoted another READY. The supervisor's
//! executor in `apps` drives one for each process, and writes what the functions here encode; when
//! it closes the socket the process ends.

use crate::WireError;
use crate::frame::{
    FLAG_END, FrameHeader, FrameKind, HEADER_LEN, PROTOCOL_VERSION, encode_header, parse_text,
    read_u32, read_u64,
};

/// The largest READY or BOOT_FAILED payload: a traceback can be long.
pub const MAX_BOOT_TEXT_BYTES: u32 = 1 << 20;

/// Most descriptors that travel with one SLOTS frame.
pub const MAX_SLOTS_PER_FRAME: usize = 64;

/// Length of a FORK frame.
pub const FORK_FRAME_LEN: usize = HEADER_LEN + 8;

/// One message of a process on its control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlEvent<'b> {
    /// The script runs and speaks this protocol.
    Hello,
    /// The application is loaded; a JSON object that describes process and interpreter.
    Ready { json: &'b str },
    /// The application did not load; the interpreter's own traceback. The process exits.
    BootFailed { traceback: &'b str },
    /// A template could not fork this worker.
    ForkFailed { worker: u64, reason: &'b str },
}

/// What a descriptor that travels with a SLOTS frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SocketKind {
    /// The socket of a thread.
    Slot = b's',
    /// The socket of a thread for requests beside those that are bound by I/O.
    Spare = b'i',
    /// A reactor's socket.
    Channel = b'c',
    /// Where a reactor gets bodies that are files.
    Files = b'f',
}

/// FORK: the template is to fork this worker. Its control socket, standard output and standard
/// error travel with the first byte.
pub fn encode_fork(worker: u64) -> [u8; FORK_FRAME_LEN] {
    let mut out = [0; FORK_FRAME_LEN];
    out[..HEADER_LEN].copy_from_slice(&encode_header(FrameKind::Fork, 0, 8));
    out[HEADER_LEN..].copy_from_slice(&worker.to_le_bytes());
    out
}

/// SLOTS: what the descriptors are that travel with the frame, at most [`MAX_SLOTS_PER_FRAME`] of
/// them.
pub fn encode_slots(kinds: &[SocketKind], is_last: bool) -> Vec<u8> {
    let flags = if is_last { FLAG_END } else { 0 };
    let mut out = encode_header(FrameKind::Slots, flags, kinds.len()).to_vec();
    out.extend(kinds.iter().map(|kind| *kind as u8));
    out
}

/// PROMOTE: a worker whose slots are closed becomes a template.
pub fn encode_promote() -> [u8; HEADER_LEN] {
    encode_header(FrameKind::Promote, 0, 0)
}

/// DISMISS: a worker whose slots are closed ends once all its threads have.
pub fn encode_dismiss() -> [u8; HEADER_LEN] {
    encode_header(FrameKind::Dismiss, 0, 0)
}

/// The state of one control socket.
#[derive(Debug, Default)]
pub struct ControlDecoder {
    stage: Stage,
    is_template: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Hello,
    Booting,
    Ready,
    Failed,
}

impl ControlDecoder {
    /// Creates a decoder for a worker's fresh socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a decoder for a template's fresh socket.
    pub fn for_template() -> Self {
        Self {
            stage: Stage::Hello,
            is_template: true,
        }
    }

    /// PROMOTE is being sent: READY may come once more, then what a template sends.
    pub fn expect_promotion(&mut self) {
        if self.stage == Stage::Ready {
            self.stage = Stage::Booting;
            self.is_template = true;
        }
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
        let lens = match (header.kind, self.stage) {
            (FrameKind::Hello, Stage::Hello) => 4..=4,
            (FrameKind::Ready | FrameKind::BootFailed, Stage::Booting) => 0..=MAX_BOOT_TEXT_BYTES,
            (FrameKind::ForkFailed, Stage::Ready) if self.is_template => {
                8..=8 + MAX_BOOT_TEXT_BYTES
            }
            (kind, _) => return Err(WireError::UnexpectedFrameKind(kind as u8)),
        };
        let Some(payload) = header.split_payload(&input[HEADER_LEN..], lens)? else {
            return Ok(None);
        };
        let event = match header.kind {
            FrameKind::Hello => {
                let version = read_u32(payload);
                if version != PROTOCOL_VERSION {
                    return Err(WireError::UnsupportedVersion(version));
                }
                self.stage = Stage::Booting;
                ControlEvent::Hello
            }
            FrameKind::Ready => {
                self.stage = Stage::Ready;
                ControlEvent::Ready {
                    json: parse_text(payload)?,
                }
            }
            FrameKind::BootFailed => {
                self.stage = Stage::Failed;
                ControlEvent::BootFailed {
                    traceback: parse_text(payload)?,
                }
            }
            _ => ControlEvent::ForkFailed {
                worker: read_u64(payload, 0),
                reason: parse_text(&payload[8..])?,
            },
        };
        Ok(Some((event, HEADER_LEN + payload.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker_encoder::{encode_current_hello, encode_hello, encode_text};

    #[test]
    fn says_hello_then_ready() {
        let mut bytes = encode_hello(PROTOCOL_VERSION).to_vec();
        encode_text(&mut bytes, FrameKind::Ready, 0, "{}");
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
        let hello = encode_hello(PROTOCOL_VERSION).to_vec();
        let mut ready_first = Vec::new();
        encode_text(&mut ready_first, FrameKind::Ready, 0, "{}");
        let mut response = hello.clone();
        response.extend_from_slice(&[16, 0, 0, 0, 0, 0, 0, 0]);
        let mut not_text = hello.clone();
        not_text.extend_from_slice(&[34, 0, 0, 0, 1, 0, 0, 0, 0xff]);
        let rows = [
            (
                "another version",
                encode_hello(PROTOCOL_VERSION + 1).to_vec(),
                WireError::UnsupportedVersion(PROTOCOL_VERSION + 1),
            ),
            (
                "ready before hello",
                ready_first,
                WireError::UnexpectedFrameKind(33),
            ),
            (
                "hello twice",
                [hello.clone(), hello].concat(),
                WireError::UnexpectedFrameKind(32),
            ),
            (
                "a slot's frame",
                response,
                WireError::UnexpectedFrameKind(16),
            ),
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

    /// All events of `bytes`, each as it is printed, and the error at their end.
    fn events(mut decoder: ControlDecoder, bytes: &[u8]) -> (Vec<String>, Option<WireError>) {
        let mut at = 0;
        let mut seen = Vec::new();
        loop {
            match decoder.decode(&bytes[at..]) {
                Ok(Some((event, used))) => {
                    at += used;
                    seen.push(format!("{event:?}"));
                }
                Ok(None) => return (seen, None),
                Err(error) => return (seen, Some(error)),
            }
        }
    }

    #[test]
    fn only_a_template_reports_failed_forks() {
        let mut bytes = encode_hello(PROTOCOL_VERSION).to_vec();
        encode_text(&mut bytes, FrameKind::Ready, 0, "{}");
        encode_text(
            &mut bytes,
            FrameKind::ForkFailed,
            0,
            "\u{7}\0\0\0\0\0\0\0no memory",
        );
        for cut in 0..bytes.len() {
            let (seen, error) = events(ControlDecoder::for_template(), &bytes[..cut]);
            assert!(seen.len() < 3 && error.is_none(), "{cut}: {seen:?}");
        }
        let (seen, error) = events(ControlDecoder::for_template(), &bytes);
        assert_eq!(seen[2], r#"ForkFailed { worker: 7, reason: "no memory" }"#);
        assert_eq!(error, None);
        let (_, error) = events(ControlDecoder::new(), &bytes);
        assert_eq!(error, Some(WireError::UnexpectedFrameKind(35)));
        let mut short = encode_hello(PROTOCOL_VERSION).to_vec();
        encode_text(&mut short, FrameKind::Ready, 0, "{}");
        encode_text(&mut short, FrameKind::ForkFailed, 0, "1234567");
        let (_, error) = events(ControlDecoder::for_template(), &short);
        assert_eq!(error, Some(WireError::BadPayloadLength));
    }

    #[test]
    fn a_worker_that_is_promoted_is_ready_once_more() {
        let mut ready = Vec::new();
        encode_text(&mut ready, FrameKind::Ready, 0, "{}");
        let mut decoder = ControlDecoder::new();
        decoder.decode(&encode_current_hello()).unwrap();
        decoder.decode(&ready).unwrap();
        let again = decoder.decode(&ready);
        assert_eq!(again, Err(WireError::UnexpectedFrameKind(33)), "unasked");
        decoder.expect_promotion();
        assert!(decoder.decode(&ready).unwrap().is_some());
        let again = decoder.decode(&ready);
        assert_eq!(again, Err(WireError::UnexpectedFrameKind(33)), "once");
    }
}
