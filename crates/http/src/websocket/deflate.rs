//! Compressed messages: the server's side of `permessage-deflate` (RFC 7692).
//!
//! [`negotiate_deflate`] evaluates a client's offer, [`compress_message`] creates the payload of a
//! frame, and `decode` calls `inflate` for a complete message.
//!
//! # Invariants
//!
//! - No connection owns a compressor or a window. Both sides use `no_context_takeover`, so each
//!   message stands alone, and one compressor and one decompressor per thread serve all
//!   connections. With context takeover an idle connection would cost up to 300 KiB on this side,
//!   typically 70 KiB.
//! - A message never inflates beyond the limit: it is refused at the first byte beyond.
//! - A client's window limit is never exceeded: longer messages are sent uncompressed.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::WebSocketError;
use crate::RequestHead;

/// The negotiated parameters of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeflateParams {
    /// Bits of the client's window: 8 to 15.
    window_bits: u8,
    /// Whether the client requested the limit, which the response then confirms.
    echoes_window: bool,
}

impl DeflateParams {
    /// The value of `Sec-WebSocket-Extensions` in the response.
    #[must_use]
    pub fn extension_header(self) -> String {
        let base = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        match self.echoes_window {
            false => base.to_owned(),
            true => format!("{base}; server_max_window_bits={}", self.window_bits),
        }
    }

    /// Whether to compress a message of `len` bytes: a short one gains little, a long one would
    /// delay the other connections of its event loop, and references must not exceed the client's
    /// window.
    #[must_use]
    pub fn should_compress(self, len: usize) -> bool {
        let window = 1_usize << self.window_bits;
        (MIN_COMPRESSED_LEN..=MAX_COMPRESSED_LEN).contains(&len)
            && (len <= window || self.window_bits == MAX_WINDOW_BITS)
    }
}

/// Shorter messages hardly shrink and fit into one packet anyway.
const MIN_COMPRESSED_LEN: usize = 512;

/// About two milliseconds of work at `COMPRESSION_LEVEL`.
const MAX_COMPRESSED_LEN: usize = 256 * 1024;

/// The largest deflate window: 32 KiB.
const MAX_WINDOW_BITS: u8 = 15;

/// Accepts the first offer of a client that can be fulfilled (RFC 7692 §5.1). `None` without one.
#[must_use]
pub fn negotiate_deflate(head: &RequestHead) -> Option<DeflateParams> {
    let lines = head.field_values("sec-websocket-extensions");
    let mut offers = lines.flat_map(|line| line.split(|&byte| byte == b','));
    offers.find_map(parse_offer)
}

/// Parses one offer. `None` for another extension, or for a parameter that is unknown, repeated or
/// has a wrong value: such an offer is declined (RFC 7692 §7).
fn parse_offer(offer: &[u8]) -> Option<DeflateParams> {
    let offer = std::str::from_utf8(offer).ok()?;
    let mut parts = offer.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case("permessage-deflate") {
        return None;
    }
    let mut seen = [false; 4];
    let mut deflate = DeflateParams {
        window_bits: MAX_WINDOW_BITS,
        echoes_window: false,
    };
    for part in parts {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
            None => (part, None),
        };
        let place = PARAMETERS
            .iter()
            .position(|known| name.eq_ignore_ascii_case(known))?;
        if std::mem::replace(&mut seen[place], true) {
            return None;
        }
        match (place, value) {
            // Both are this side's behaviour anyway.
            (SERVER_NO_CONTEXT | CLIENT_NO_CONTEXT, None) => {}
            (SERVER_WINDOW, Some(value)) => {
                deflate.window_bits = parse_window_bits(value)?;
                deflate.echoes_window = true;
            }
            // A hint that the server may set a limit: any window size can be inflated here.
            (CLIENT_WINDOW, None) => {}
            (CLIENT_WINDOW, Some(value)) => {
                parse_window_bits(value)?;
            }
            _ => return None,
        }
    }
    Some(deflate)
}

const PARAMETERS: [&str; 4] = [
    "server_no_context_takeover",
    "client_no_context_takeover",
    "server_max_window_bits",
    "client_max_window_bits",
];
const SERVER_NO_CONTEXT: usize = 0;
const CLIENT_NO_CONTEXT: usize = 1;
const SERVER_WINDOW: usize = 2;
const CLIENT_WINDOW: usize = 3;

/// 8 to 15 without leading zeros (RFC 7692 §7.1.2.1), optionally quoted.
fn parse_window_bits(value: &str) -> Option<u8> {
    let quoted = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    let value = quoted.unwrap_or(value);
    (8..=MAX_WINDOW_BITS).find(|bits| bits.to_string() == value)
}

/// Compresses a whole message. `None` if the result is not shorter.
#[must_use]
pub fn compress_message(payload: &[u8]) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.reset();
        // Capacity of the payload only: a longer result is useless.
        let mut out = Vec::with_capacity(payload.len());
        let done = compressor.compress_vec(payload, &mut out, FlushCompress::Sync);
        // A flush that filled its buffer may have more output.
        let is_whole = matches!(done, Ok(Status::Ok))
            && compressor.total_in() == payload.len() as u64
            && out.len() < out.capacity()
            && out.ends_with(&FLUSH_TAIL);
        if !is_whole {
            return None;
        }
        out.truncate(out.len() - FLUSH_TAIL.len());
        out.shrink_to_fit();
        Some(out)
    })
}

/// Inflates a message to at most `max` bytes.
pub(super) fn inflate(compressed: &[u8], max: usize) -> Result<Vec<u8>, WebSocketError> {
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        decompressor.reset(false);
        let mut out = Vec::new();
        for input in [compressed, &FLUSH_TAIL] {
            // A final block ends the message; the removed tail is not needed then.
            if inflate_chunk(decompressor, input, &mut out, max)? == Status::StreamEnd {
                break;
            }
        }
        Ok(out)
    })
}

/// Inflates all of `input`, or up to the end of a final block.
fn inflate_chunk(
    decompressor: &mut Decompress,
    mut input: &[u8],
    out: &mut Vec<u8>,
    max: usize,
) -> Result<Status, WebSocketError> {
    loop {
        if out.len() == out.capacity() {
            // One byte above the limit shows that there is more.
            let room = (out.len().max(input.len()) * 2).max(256).min(max + 1);
            out.reserve_exact(room.saturating_sub(out.len()));
        }
        let (before, taken) = (out.len(), decompressor.total_in());
        let status = decompressor
            .decompress_vec(input, out, FlushDecompress::Sync)
            .map_err(|_| WebSocketError::InvalidDeflate)?;
        let taken = decompressor.total_in() - taken;
        input = &input[usize::try_from(taken)
            .unwrap_or(usize::MAX)
            .min(input.len())..];
        if out.len() > max {
            return Err(WebSocketError::MessageTooBig);
        }
        match status {
            Status::StreamEnd => return Ok(status),
            // Output left in the decompressor appears once there is capacity.
            _ if input.is_empty() && out.len() < out.capacity() => return Ok(Status::Ok),
            // No progress is possible.
            _ if taken == 0 && out.len() == before && out.len() < out.capacity() => {
                return Err(WebSocketError::InvalidDeflate);
            }
            _ => {}
        }
    }
}

/// Ends each flush and is not sent (RFC 7692 §7.2.1).
const FLUSH_TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Fast: the first pass brings most of the gain, and the event loop has other connections. Level 1
/// of zlib-rs has fixed codes and gains much less.
const COMPRESSION_LEVEL: u32 = 2;

thread_local! {
    static COMPRESSOR: RefCell<Compress> =
        RefCell::new(Compress::new(Compression::new(COMPRESSION_LEVEL), false));
    static DECOMPRESSOR: RefCell<Decompress> = RefCell::new(Decompress::new(false));
}

#[cfg(test)]
mod tests;
