//! Requests and fields for tests, and bodies whose pieces a test hands out.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use penstock_config::ContentCoding;
use penstock_exchange::{BodyStream, Fault};
use penstock_http::{FieldBlock, HeadLimits, ParseProgress, RequestHead, parse_head};

pub(crate) fn fields(list: &[(&str, &str)]) -> FieldBlock {
    let mut block = FieldBlock::new();
    for (name, value) in list {
        block.push(name, value.as_bytes()).unwrap();
    }
    block
}

pub(crate) fn request(method: &str, fields: &[(&str, &str)]) -> RequestHead {
    let mut text = format!("{method} / HTTP/1.1\r\nHost: a\r\n");
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let parsed = parse_head(text.as_bytes(), &HeadLimits::default());
    let Ok(ParseProgress::Complete((head, _))) = parsed else {
        panic!("no valid head: {text}");
    };
    head
}

/// JSON of `len` bytes, about as compressible as that of an API.
pub(crate) fn json(len: usize) -> Vec<u8> {
    let mut text = b"[".to_vec();
    let mut seed = 1_u32;
    while text.len() < len {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (id, share) = (seed >> 12, seed >> 25);
        let row = format!(
            "{{\"id\":{id},\"name\":\"user {share}\",\"email\":\"user{id}@example.com\",\
             \"active\":{},\"score\":{share}.5}},",
            share % 2 == 0
        );
        text.extend_from_slice(row.as_bytes());
    }
    text.truncate(len);
    text
}

/// The hand that a test has on a [`ScriptedBody`].
#[derive(Debug, Clone, Default)]
pub(crate) struct BodyControl(Arc<Mutex<ScriptState>>);

#[derive(Debug, Default)]
struct ScriptState {
    pieces: VecDeque<Option<Result<Bytes, &'static str>>>,
    waker: Option<Waker>,
    polls: usize,
}

impl BodyControl {
    /// Lets the body have a piece, an error, or with `None` its end.
    pub(crate) fn push(&self, piece: Option<Result<Bytes, &'static str>>) {
        let mut state = self.0.lock().unwrap();
        state.pieces.push_back(piece);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn push_bytes(&self, piece: impl Into<Bytes>) {
        self.push(Some(Ok(piece.into())));
    }

    /// How often the body was asked for a piece that it had.
    pub(crate) fn taken(&self) -> usize {
        self.0.lock().unwrap().polls
    }

    pub(crate) fn body(&self, length: Option<u64>) -> Box<dyn BodyStream> {
        Box::new(ScriptedBody {
            control: self.clone(),
            length,
        })
    }
}

struct ScriptedBody {
    control: BodyControl,
    length: Option<u64>,
}

impl BodyStream for ScriptedBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        let mut state = self.control.0.lock().unwrap();
        match state.pieces.pop_front() {
            Some(piece) => {
                state.polls += 1;
                let fault =
                    |cause| Fault::new(penstock_exchange::FaultKind::BackendDisconnected, cause);
                Poll::Ready(piece.map(|piece| piece.map_err(fault)))
            }
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn length(&self) -> Option<u64> {
        self.length
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        Some(fields(&[("X-Checksum", "1")]))
    }
}

/// All bytes of a whole body.
pub(crate) fn decode(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    match coding {
        ContentCoding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut text),
        ContentCoding::Zstd => zstd::stream::read::Decoder::new(bytes)
            .unwrap()
            .read_to_end(&mut text),
        ContentCoding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut text),
    }
    .unwrap();
    text
}

/// What a decoder has of a body that goes on.
pub(crate) fn decode_so_far(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
    match coding {
        ContentCoding::Gzip => {
            let mut decoder = flate2::write::GzDecoder::new(Vec::new());
            decoder.write_all(bytes).unwrap();
            decoder.flush().unwrap();
            decoder.get_ref().clone()
        }
        ContentCoding::Zstd => {
            let mut decoder = zstd::stream::write::Decoder::new(Vec::new()).unwrap();
            decoder.write_all(bytes).unwrap();
            decoder.flush().unwrap();
            decoder.get_ref().clone()
        }
        ContentCoding::Brotli => {
            let mut decoder = brotli::DecompressorWriter::new(Vec::new(), 4096);
            decoder.write_all(bytes).unwrap();
            decoder.flush().unwrap();
            decoder.get_ref().clone()
        }
    }
}
