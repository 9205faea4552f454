//! Sending one response: in one call where it fits, else piece by piece at the client's transfer
//! rate.
//!
//! Usually [`try_send`] writes head and body in one system call (a file in memory, in two) and
//! allocates nothing. The rest, files on a disk and streams go through [`send_remaining`], a future
//! that is boxed so that idle connections do not carry its size. `writer` keeps to the client's
//! transfer rate; `file` and `stream` send what is left of a file or a stream.
//!
//! # Invariants
//! - A body that cannot be completed ends in a cut connection, never in a clean end.
//! - Declared lengths are exact.
//! - A client is judged by the bytes that it acknowledged, not by those in the kernel's buffer.

mod file;
mod stream;
mod writer;

use std::io::{self, IoSlice};
use std::sync::Arc;

use penstock_exchange::{Body, BodyRate, FileBody};
use penstock_http::{ResponseFraming, ResponseHeadParts, encode_head};
use penstock_runtime::{Stream, buffers};

use self::writer::ResponseWriter;
use super::client_watch::ClientWatch;
use crate::exchange::SendError;
use crate::transfer_rate::TransferLimits;

/// Files and parts up to this size are copied behind their head, for one send: sending them from
/// the page cache costs more than the copy.
const MAX_COPIED_FILE_BYTES: u64 = 16 * 1024;

/// Bodies up to this size are copied behind their head: one `send` of one buffer is cheaper than a
/// vectored one.
const MAX_COPY_BYTES: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) enum SendProgress {
    /// All bytes are with the kernel.
    Done(SentBytes),
    Partial(UnsentResponse),
}

/// Bytes that are with the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SentBytes {
    /// The head's length, whether it is out or not.
    pub(crate) head_len: u64,
    /// Head and body together.
    pub(crate) total: u64,
}

impl SentBytes {
    /// Those of the body, framing included.
    pub(crate) fn body_bytes(self) -> u64 {
        self.total.saturating_sub(self.head_len)
    }
}

/// One response, ready to be sent; only its head, if the connection is handed over behind it.
#[derive(Debug)]
pub(crate) struct OutgoingResponse<'a> {
    /// Bytes of the head, or of the interim responses before it, that are out already.
    pub(crate) status_bytes_sent: usize,
    /// Interim responses that are not out yet.
    pub(crate) unsent_interim: &'a [u8],
    pub(crate) head: ResponseHeadParts<'a>,
    pub(crate) body: Body,
    /// The rate of the body, if bounded.
    pub(crate) max_rate: Option<Box<BodyRate>>,
}

#[derive(Debug)]
pub(crate) struct UnsentResponse {
    head: Vec<u8>,
    body: Body,
    framing: ResponseFraming,
    sent: SentBytes,
    max_rate: Option<Box<BodyRate>>,
}

/// Encodes the head and sends as much as the socket takes at once.
pub(crate) fn try_send(
    stream: &Stream,
    outgoing: OutgoingResponse<'_>,
) -> Result<SendProgress, SendError> {
    let OutgoingResponse {
        status_bytes_sent,
        unsent_interim,
        head,
        mut body,
        max_rate,
    } = outgoing;
    let framing = head.framing;
    buffers::with_output_buffer(|out| {
        out.extend_from_slice(unsent_interim);
        encode_head(out, &head);
        out.drain(..status_bytes_sent);
        let mut first = FirstWrite::new(out.len(), framing);
        body = match body {
            // A throttled body waits for its rate, and a stream for its first piece.
            Body::Bytes(_) | Body::File(_) if max_rate.is_some() => body,
            Body::Stream(_) => body,
            Body::File(body) => return try_send_file(stream, out, body, framing),
            Body::Bytes(bytes) if bytes.len() <= MAX_COPY_BYTES => {
                out.extend_from_slice(&bytes);
                first.count(stream.try_write(&[IoSlice::new(out)]))?;
                Body::Empty
            }
            Body::Bytes(bytes) => {
                let count =
                    first.count(stream.try_write(&[IoSlice::new(out), IoSlice::new(&bytes)]))?;
                match bytes.slice(count.saturating_sub(out.len())..) {
                    rest if rest.is_empty() => Body::Empty,
                    rest => Body::Bytes(rest),
                }
            }
            Body::Empty | Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_) => {
                first.count(stream.try_write(&[IoSlice::new(out)]))?;
                Body::Empty
            }
        };
        Ok(first.progress(out, body, max_rate))
    })
}

/// A response in a buffer, but for a body by reference.
#[derive(Debug)]
pub(crate) struct BufferedResponse {
    pub(crate) head_len: usize,
    /// The body behind the buffer's bytes.
    pub(crate) file: Option<FileBody>,
    pub(crate) framing: ResponseFraming,
}

/// Sends what `fill` puts into the empty buffer; `None` when there is nothing to send.
pub(crate) fn try_send_buffered(
    stream: &Stream,
    fill: impl FnOnce(&mut Vec<u8>) -> Option<BufferedResponse>,
) -> Option<Result<SendProgress, SendError>> {
    buffers::with_output_buffer(|out| {
        let BufferedResponse {
            head_len,
            file,
            framing,
        } = fill(out)?;
        if let Some(file) = file {
            return Some(try_send_file(stream, out, file, framing));
        }
        let mut first = FirstWrite::new(head_len, framing);
        let written = first.count(stream.try_write(&[IoSlice::new(out)]));
        Some(written.map(|_| first.progress(out, Body::Empty, None)))
    })
}

/// Sends as much of the head in `out` and of the file as the socket takes, if the file's first
/// piece is in memory. Otherwise sends nothing, so that a file that cannot be read becomes an error
/// response.
fn try_send_file(
    stream: &Stream,
    out: &mut Vec<u8>,
    mut body: FileBody,
    framing: ResponseFraming,
) -> Result<SendProgress, SendError> {
    let mut first = FirstWrite::new(out.len(), framing);
    if body.len <= MAX_COPIED_FILE_BYTES {
        let len = usize::try_from(body.len).unwrap_or(usize::MAX);
        if !body.file.append_resident(body.start, len, out) {
            return Ok(first.progress(out, Body::File(body), None));
        }
        first.count(stream.try_write(&[IoSlice::new(out)]))?;
        return Ok(first.progress(out, Body::Empty, None));
    }
    let resident = body.file.resident_bytes(body.start, body.len);
    if resident == 0 {
        return Ok(first.progress(out, Body::File(body), None));
    }
    if first.count(stream.try_write_with_more(out))? < out.len() {
        return Ok(first.progress(out, Body::File(body), None));
    }
    let piece = usize::try_from(resident).unwrap_or(usize::MAX);
    // An error is met again by `send_remaining`, which handles it.
    let sent = stream.try_send_file(&body.file, body.start, piece).ok();
    let count = first.count(Ok(sent.unwrap_or(0)))? as u64;
    body.start += count;
    body.len -= count;
    let rest = match body.len {
        0 => Body::Empty,
        _ => Body::File(body),
    };
    Ok(first.progress(out, rest, None))
}

/// The first write of a response, from the loop's output buffer.
struct FirstWrite {
    framing: ResponseFraming,
    sent: SentBytes,
}

impl FirstWrite {
    fn new(head_len: usize, framing: ResponseFraming) -> Self {
        let sent = SentBytes {
            head_len: head_len as u64,
            total: 0,
        };
        Self { framing, sent }
    }

    /// Counts written bytes, and returns their number.
    fn count(&mut self, written: io::Result<usize>) -> Result<usize, SendError> {
        let count = written_bytes(written)?;
        self.sent.total += count as u64;
        Ok(count)
    }

    /// The state behind the write of `out`; `body` is the rest of the body behind it.
    fn progress(self, out: &[u8], body: Body, max_rate: Option<Box<BodyRate>>) -> SendProgress {
        let written = usize::try_from(self.sent.total).unwrap_or(usize::MAX);
        match (out.get(written..), body) {
            (None | Some([]), Body::Empty) => SendProgress::Done(self.sent),
            (head, body) => SendProgress::Partial(UnsentResponse {
                head: head.unwrap_or_default().to_vec(),
                body,
                framing: self.framing,
                sent: self.sent,
                max_rate,
            }),
        }
    }
}

fn written_bytes(written: io::Result<usize>) -> Result<usize, SendError> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written.map_err(|_| SendError::ClientDisconnected),
    }
}

/// Sends the rest, and returns the number of bytes sent in all. Ends when the client leaves while
/// the body is awaited. Cancel safety: none.
pub(crate) async fn send_remaining(
    stream: Arc<Stream>,
    rest: UnsentResponse,
    limits: TransferLimits,
    watch: ClientWatch<'_>,
) -> (SentBytes, Result<(), SendError>) {
    let mut sender = ResponseWriter::new(stream, limits, watch, rest.sent, rest.max_rate);
    let done = match rest.body {
        Body::Empty | Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_) => {
            sender.write(&mut [IoSlice::new(&rest.head)]).await
        }
        Body::Bytes(bytes) => {
            sender
                .write(&mut [IoSlice::new(&rest.head), IoSlice::new(&bytes)])
                .await
        }
        Body::File(file) => sender.send_file(rest.head, file).await,
        Body::Stream(stream) => sender.send_stream(rest.head, stream, rest.framing).await,
    };
    (sender.sent, done)
}
