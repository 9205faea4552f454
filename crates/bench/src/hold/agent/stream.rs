//! One held stream: its few words of state, and the decoding of its bytes.
//!
//! `agent` has a million of them in a table and feeds each what it received from the shared buffer.
//! A stream keeps bytes only while a head or a line arrives in pieces. Pure, except for the socket,
//! which it only owns.
//!
//! # Invariants
//!
//! - Its size, asserted by a test and below.
//! - Only its own framing ends a response.
//! - Message numbers are compared with the next expected number.

use std::os::fd::OwnedFd;

use penstock_http::{BodyDecoder, ParseProgress, ResponseHeadLimits, ResponseHeadScanner};

use super::tally::{LossCause, StreamCounters};
use crate::hold::numbered_message::NumberedMessage;

#[derive(Debug, Default)]
pub(super) struct HeldStream {
    /// `None` before it is begun and after it is lost.
    pub(super) socket: Option<OwnedFd>,
    /// When it was begun and, once open, when it last received bytes: tenths of a millisecond since
    /// the agent's start.
    pub(super) last_activity: u32,
    /// The number of the next expected message; 0 while any may come first.
    next_message: u32,
    /// Whether the current event has data.
    has_data: bool,
    /// Whether the rest of a long line is being skipped.
    is_skipping: bool,
    /// Whether it is never read behind its head.
    has_stopped_reading: bool,
    stage: StreamStage,
    partial: Option<Box<PartialInput>>,
}

/// The target is 700 bytes of memory per stream, including this entry.
const _: () = assert!(size_of::<HeldStream>() <= 96);

#[derive(Debug, Default)]
enum StreamStage {
    #[default]
    Connecting,
    /// The TLS handshake.
    Handshake,
    Head,
    Body(BodyDecoder),
    UntilClose,
}

/// A partly received head or line.
#[derive(Debug)]
struct PartialInput {
    bytes: Vec<u8>,
    scanner: ResponseHeadScanner,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiptTime {
    /// Tenths of a millisecond since the agent's start.
    pub(super) tenths: u32,
    /// Microseconds of the clock used in messages.
    pub(super) us: u64,
}

impl HeldStream {
    /// A connection that was begun now.
    pub(super) fn new_connecting(socket: OwnedFd, tenths: u32) -> Self {
        Self {
            socket: Some(socket),
            last_activity: tenths,
            ..Self::default()
        }
    }

    /// Marks that the connection is open and the handshake begun.
    pub(super) fn mark_handshake_begun(&mut self) {
        self.stage = StreamStage::Handshake;
    }

    /// Marks that the request was sent.
    pub(super) fn mark_request_sent(&mut self) {
        self.stage = StreamStage::Head;
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.stage, StreamStage::Connecting)
    }

    /// Whether it is held: the head of its response has arrived.
    pub(super) fn is_open(&self) -> bool {
        use StreamStage::{Connecting, Handshake, Head};
        self.socket.is_some() && !matches!(self.stage, Connecting | Handshake | Head)
    }

    /// Stops reading; no messages are expected from now on.
    pub(super) fn stop_reading(&mut self) {
        self.has_stopped_reading = true;
        self.next_message = 0;
    }

    pub(super) fn has_stopped_reading(&self) -> bool {
        self.has_stopped_reading
    }

    /// Every message, from number 1 on, is expected from now on.
    pub(super) fn expect_all_messages(&mut self) {
        self.next_message = u32::from(!self.has_stopped_reading);
    }

    /// Expected messages up to number `last` that it did not get.
    pub(super) fn missing_messages(&self, last: u32) -> u64 {
        match self.is_open() && self.next_message > 0 {
            true => u64::from((last + 1).saturating_sub(self.next_message)),
            false => 0,
        }
    }

    /// Decodes received bytes. [`HeldStream::is_open`] is true once the head is complete.
    ///
    /// # Errors
    /// Why the stream is lost.
    pub(super) fn receive(
        &mut self,
        received: &[u8],
        at: ReceiptTime,
        tally: &mut StreamCounters,
    ) -> Result<(), LossCause> {
        tally.counts.bytes += received.len() as u64;
        if self.is_open() {
            return self.receive_body(received, at, tally);
        }
        let mut rest = self.partial.take();
        let mut fresh = ResponseHeadScanner::new();
        let (bytes, scanner) = match &mut rest {
            Some(rest) => {
                rest.bytes.extend_from_slice(received);
                (&rest.bytes[..], &mut rest.scanner)
            }
            None => (received, &mut fresh),
        };
        let (taken, is_open) = self.read_heads(bytes, scanner)?;
        if is_open {
            // Rounded up: no stream opens in no time.
            let took = u64::from(at.tenths.saturating_sub(self.last_activity)) + 1;
            tally.record_open(took * 100);
            return self.receive_body(&bytes[taken..], at, tally);
        }
        self.partial = Some(match rest {
            Some(mut rest) => {
                rest.bytes.drain(..taken);
                rest
            }
            None => Box::new(PartialInput {
                bytes: received[taken..].to_vec(),
                scanner: fresh,
            }),
        });
        Ok(())
    }

    /// The cause of a loss when the server ends the connection.
    pub(super) fn end_cause(&self) -> LossCause {
        match self.stage {
            // An end without another sign (RFC 9112 §6.3 case 8).
            StreamStage::UntilClose => LossCause::Ended,
            _ => LossCause::Closed,
        }
    }

    /// Decodes interim heads (RFC 9110 §15.2) and the final one; returns the bytes consumed and
    /// whether the final one was among them.
    fn read_heads(
        &mut self,
        bytes: &[u8],
        scanner: &mut ResponseHeadScanner,
    ) -> Result<(usize, bool), LossCause> {
        let mut taken = 0;
        loop {
            let head = match scanner.scan(&bytes[taken..], false, &RESPONSE_LIMITS) {
                Ok(ParseProgress::Partial) => return Ok((taken, false)),
                Ok(ParseProgress::Complete(head)) => head,
                Err(_) => return Err(LossCause::Malformed),
            };
            taken += head.len;
            if matches!(head.status, 100 | 102..=199) {
                continue;
            }
            if head.status != 200 {
                return Err(LossCause::Status(head.status));
            }
            let body = BodyDecoder::for_response(head.framing);
            self.stage = body.map_or(StreamStage::UntilClose, StreamStage::Body);
            return Ok((taken, true));
        }
    }

    /// Decodes bytes behind the head.
    fn receive_body(
        &mut self,
        bytes: &[u8],
        at: ReceiptTime,
        tally: &mut StreamCounters,
    ) -> Result<(), LossCause> {
        self.last_activity = at.tenths;
        if !bytes.is_empty() {
            tally.counts.receipts += 1;
        }
        // Taken out, since the lines need the rest of the stream.
        let mut stage = std::mem::take(&mut self.stage);
        let done = self.decode(&mut stage, bytes, at, tally);
        self.stage = stage;
        done
    }

    fn decode(
        &mut self,
        stage: &mut StreamStage,
        bytes: &[u8],
        at: ReceiptTime,
        tally: &mut StreamCounters,
    ) -> Result<(), LossCause> {
        match stage {
            StreamStage::Connecting | StreamStage::Handshake | StreamStage::Head => Ok(()),
            StreamStage::UntilClose => {
                self.read_lines(bytes, at, tally);
                Ok(())
            }
            StreamStage::Body(decoder) => {
                let mut rest = bytes;
                while !rest.is_empty() && !decoder.is_done() {
                    let decoded = decoder.decode(rest).map_err(|_| LossCause::Malformed)?;
                    self.read_lines(&rest[decoded.content], at, tally);
                    rest = &rest[decoded.consumed..];
                }
                match decoder.is_done() {
                    true if rest.is_empty() => Err(LossCause::Ended),
                    true => Err(LossCause::Malformed),
                    false => Ok(()),
                }
            }
        }
    }

    /// Reads content line by line (WHATWG HTML, "Server-sent events"; a carriage return alone ends
    /// no line here).
    fn read_lines(&mut self, mut content: &[u8], at: ReceiptTime, tally: &mut StreamCounters) {
        while let Some(end) = memchr::memchr(b'\n', content) {
            let (line, behind) = (&content[..end], &content[end + 1..]);
            content = behind;
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            match self.partial.take() {
                Some(mut rest) => {
                    rest.bytes.extend_from_slice(line);
                    self.read_line(&rest.bytes, at, tally);
                }
                None => self.read_line(line, at, tally),
            }
        }
        if content.is_empty() || self.is_skipping {
            return;
        }
        let kept = self.partial.as_ref().map_or(0, |rest| rest.bytes.len());
        if kept + content.len() > MAX_LINE_BYTES {
            // Only its beginning is examined, without waiting for its end.
            let mut line = self.partial.take().map_or_else(Vec::new, |rest| rest.bytes);
            line.extend_from_slice(&content[..content.len().min(MAX_LINE_BYTES)]);
            self.read_line(&line, at, tally);
            self.is_skipping = true;
            return;
        }
        let rest = self.partial.get_or_insert_with(|| {
            Box::new(PartialInput {
                bytes: Vec::new(),
                scanner: ResponseHeadScanner::new(),
            })
        });
        rest.bytes.extend_from_slice(content);
    }

    fn read_line(&mut self, line: &[u8], at: ReceiptTime, tally: &mut StreamCounters) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line.first() {
            None => {
                tally.counts.events += u64::from(std::mem::take(&mut self.has_data));
            }
            Some(b':') => tally.counts.comments += 1,
            Some(_) => {
                self.has_data |= line.starts_with(b"data");
                if let Some(message) = tally.reader.find(line) {
                    self.record_message(message, at, tally);
                }
            }
        }
    }

    fn record_message(
        &mut self,
        message: NumberedMessage,
        at: ReceiptTime,
        tally: &mut StreamCounters,
    ) {
        tally.record_message(message, at.us);
        let behind = message.number.saturating_add(1);
        match self.next_message {
            0 => self.next_message = behind,
            next if message.number >= next => {
                tally.counts.missed += u64::from(message.number - next);
                self.next_message = behind;
            }
            _ => tally.counts.repeated += 1,
        }
    }
}

/// The limits of a response.
const RESPONSE_LIMITS: ResponseHeadLimits = ResponseHeadLimits {
    max_head_bytes: 16 << 10,
    max_fields: 128,
};

/// Only the beginning of a longer line is examined: a million streams with a partial line each must
/// not exhaust the memory.
const MAX_LINE_BYTES: usize = 1 << 10;

#[cfg(test)]
mod tests;
