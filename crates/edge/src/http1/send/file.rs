//! Sending the part of a file that was not out at once: from memory if it is there, otherwise read
//! in a pool.
//!
//! Decided right before each run of chunks, as pages come and go while a client reads slowly.
//!
//! # Invariants
//! - Nothing here waits for a disk on the event loop.
//! - A connection sends at most [`YIELD_BYTES`] before the others have their turn.
//! - Bytes read from the disk are sent from the buffer that they were read into: the pages may be
//!   gone already.
//! - A file that becomes shorter ends in a cut.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use penstock_exchange::{Fault, FaultKind, FileBody};
use penstock_runtime::disk::{CHUNK_BYTES, SMALL_READ_BYTES};
use penstock_runtime::{DiskFile, loops};

use super::writer::ResponseWriter;
use super::{SendError, written_bytes};

/// Bytes that one connection sends before the others have their turn: about a millisecond, and as
/// much as Linux lets a socket's buffer grow to (`tcp_wmem`), so that over a network the socket
/// ends the turn. A reader on the same machine is woken more often by shorter turns, which costs
/// more than the sending.
const YIELD_BYTES: u64 = 8 * CHUNK_BYTES;

/// Bytes looked up and sent at a time. For a client that makes us wait, no more than it took
/// between the last two waits: knowledge of the rest would be old by then.
const MAX_RUN_BYTES: u64 = 4 * CHUNK_BYTES;

/// How a piece was sent, and how many bytes of it.
enum PieceProgress {
    /// All of it.
    Sent(u64),
    /// As far as the socket took it, before a wait for more room.
    Blocked(u64),
    /// As [`PieceProgress::Blocked`], with the rest of the piece freed during the wait.
    Released(u64),
}

impl ResponseWriter<'_> {
    pub(super) async fn send_file(
        &mut self,
        head: Vec<u8>,
        body: FileBody,
    ) -> Result<(), SendError> {
        let mut head = Bytes::from(head);
        let file = &body.file;
        let (mut at, end) = (body.start, body.start + body.len);
        let mut has_let_go = false;
        let mut turn_ends = at + YIELD_BYTES;
        // Bytes sent since the last wait, and between it and the one before.
        let (mut burst, mut room) = (0, 0_u64);
        while at < end {
            let most = match burst {
                0 => (room.next_multiple_of(CHUNK_BYTES)).clamp(CHUNK_BYTES, MAX_RUN_BYTES),
                _ => MAX_RUN_BYTES,
            };
            let wanted = (end - at).min(most);
            // The head is not held back by a rate; it goes with the first piece.
            let allowed = self
                .wait_for_allowance(usize::try_from(wanted).unwrap_or(usize::MAX))
                .await;
            let resident = file.resident_bytes_across_chunks(at, allowed as u64);
            let progress = match resident {
                0 => {
                    // A slow client holds no more memory than that.
                    let is_small = self.is_throttled() || has_let_go && file.is_memory_scarce();
                    let len = if is_small {
                        SMALL_READ_BYTES.min(wanted)
                    } else {
                        wanted
                    };
                    let piece = self.read_piece(&mut head, file, at, len, end).await?;
                    self.send_piece(&mut head, piece, file).await?
                }
                resident => {
                    self.send_resident(&mut head, file, at, resident, end)
                        .await?
                }
            };
            match progress {
                PieceProgress::Sent(count) => {
                    at += count;
                    burst += count;
                    if at < end && at >= turn_ends {
                        loops::yield_now().await;
                        turn_ends = at + YIELD_BYTES;
                    }
                }
                PieceProgress::Blocked(count) => {
                    at += count;
                    (room, burst) = (burst + count, 0);
                    turn_ends = at + YIELD_BYTES;
                }
                PieceProgress::Released(count) => {
                    at += count;
                    (room, burst) = (burst + count, 0);
                    has_let_go = true;
                }
            }
        }
        match head.is_empty() {
            true => Ok(()),
            false => self.write(&mut [IoSlice::new(&head)]).await,
        }
    }

    /// Sends `len` bytes that are in memory, until the socket is full.
    async fn send_resident(
        &mut self,
        head: &mut Bytes,
        file: &DiskFile,
        at: u64,
        len: u64,
        end: u64,
    ) -> Result<PieceProgress, SendError> {
        if !self.send_head(head).await? {
            return Ok(PieceProgress::Blocked(0));
        }
        let (mut done, mut waited) = (0, false);
        let stopped = std::future::poll_fn(|cx| {
            while done < len && !waited {
                let left = usize::try_from(len - done).unwrap_or(usize::MAX);
                match self.stream.poll_send_file(cx, file, at + done, left) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(file_truncated(file, end))),
                    Poll::Ready(Ok(count)) => {
                        self.count_sent(count);
                        self.consume_allowance(count);
                        done += count as u64;
                    }
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(classify_send_error(file, &error)));
                    }
                    Poll::Pending => {
                        waited = true;
                        return self.poll_too_slow(cx).map(Err);
                    }
                }
            }
            Poll::Ready(Ok(()))
        });
        stopped.await?;
        Ok(match waited {
            true => PieceProgress::Blocked(done),
            false => PieceProgress::Sent(done),
        })
    }

    /// Sends the head so that the kernel joins it with the bytes that follow at once; `false` when
    /// that had to wait.
    async fn send_head(&mut self, head: &mut Bytes) -> Result<bool, SendError> {
        if head.is_empty() {
            return Ok(true);
        }
        let count = written_bytes(self.stream.try_write_with_more(head))?;
        self.count_sent(count);
        head.advance(count);
        if head.is_empty() {
            return Ok(true);
        }
        // A full socket has enough to send together.
        self.write(&mut [IoSlice::new(head)]).await?;
        head.clear();
        Ok(false)
    }

    async fn read_piece(
        &mut self,
        head: &mut Bytes,
        file: &Arc<DiskFile>,
        at: u64,
        len: u64,
        end: u64,
    ) -> Result<Bytes, SendError> {
        match self.wait_while_connected(file.read(at, len), head).await? {
            Ok(piece) if piece.is_empty() => Err(file_truncated(file, end)),
            Ok(piece) => Ok(piece),
            Err(error) => {
                let kind = match error.is_overload() {
                    true => FaultKind::Overloaded,
                    false => FaultKind::Internal,
                };
                Err(SendError::Body(Fault::new(kind, error.to_string())))
            }
        }
    }

    /// Sends bytes that were read. While memory is scarce, frees the rest when the client makes us
    /// wait, but for a small rest.
    async fn send_piece(
        &mut self,
        head: &mut Bytes,
        piece: Bytes,
        file: &DiskFile,
    ) -> Result<PieceProgress, SendError> {
        let len = piece.len() as u64;
        if self.is_throttled() {
            let slices = &mut [IoSlice::new(head), IoSlice::new(&piece)];
            self.write(slices).await?;
            head.clear();
            return Ok(PieceProgress::Sent(len));
        }
        let (mut piece, mut is_by_itself) = (piece, len <= SMALL_READ_BYTES);
        while !piece.is_empty() {
            // Keeping a small rest is no worse than reading it again.
            let is_small = piece.len() as u64 <= SMALL_READ_BYTES;
            let keeps = !head.is_empty() || is_small && is_by_itself;
            let mut waits = false;
            let written = std::future::poll_fn(|cx| {
                if waits && !keeps && file.is_memory_scarce() {
                    return Poll::Ready(Ok(None));
                }
                let slices = &[IoSlice::new(head), IoSlice::new(&piece)][..];
                let slices = if head.is_empty() {
                    &slices[1..]
                } else {
                    slices
                };
                match self.stream.poll_write(cx, slices) {
                    Poll::Ready(Ok(count)) => Poll::Ready(Ok(Some(count))),
                    Poll::Ready(Err(_)) => Poll::Ready(Err(SendError::ClientDisconnected)),
                    Poll::Pending if !keeps && file.is_memory_scarce() => Poll::Ready(Ok(None)),
                    Poll::Pending => {
                        waits = true;
                        self.poll_too_slow(cx).map(Err)
                    }
                }
            });
            let Some(count) = written.await? else {
                if is_small {
                    (piece, is_by_itself) = (file.compact_if_memory_scarce(piece), true);
                    continue;
                }
                let sent = len - piece.len() as u64;
                drop(piece);
                self.wait_writable().await?;
                return Ok(PieceProgress::Released(sent));
            };
            self.count_sent(count);
            let of_head = count.min(head.len());
            head.advance(of_head);
            piece.advance(count - of_head);
        }
        Ok(PieceProgress::Sent(len))
    }

    async fn wait_writable(&mut self) -> Result<(), SendError> {
        std::future::poll_fn(|cx| match self.stream.poll_writable(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(_)) => Poll::Ready(Err(SendError::ClientDisconnected)),
            Poll::Pending => self.poll_too_slow(cx).map(Err),
        })
        .await
    }
}

fn file_truncated(file: &DiskFile, end: u64) -> SendError {
    file.report_error(&io::ErrorKind::UnexpectedEof.into());
    let cause = format!("the file became shorter than {end} bytes while it was sent");
    SendError::Body(Fault::new(FaultKind::Internal, cause))
}

/// The cause of a failed send from memory: the socket, or else the disk.
fn classify_send_error(file: &DiskFile, error: &io::Error) -> SendError {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::BrokenPipe
        | Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::NotConnected
        | Kind::TimedOut
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown => SendError::ClientDisconnected,
        _ => {
            file.report_error(error);
            let cause = format!("cannot read the file: {error}");
            SendError::Body(Fault::new(FaultKind::Internal, cause))
        }
    }
}
