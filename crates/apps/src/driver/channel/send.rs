//! What a channel's driver writes: frames in order, many with one system call.
//!
//! A request's frame stays with its stream, so that an unsent request can be dropped or given back.
//!
//! # Invariants
//! - A frame that was begun is finished, even if its request is dropped; so is one whose descriptor
//!   was sent.
//! - The descriptor of a body file is sent before its OPEN, and in the order of the OPENs.
//! - Messages of WebSockets are taken from their clients only while little waits here.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use penstock_exchange::buffering::SpoolFile;
use penstock_runtime::Stream;
use penstock_wire::channel::{MESSAGE_HEAD_LEN, MESSAGE_OVERHEAD, encode_message_head};

use super::ChannelDriver;
use super::stream_table::{StreamState, StreamTable, index_of};
use crate::driver::DriverEnd;

/// Slices that are written with one call.
const MAX_SLICES: usize = 64;

/// Cost of the messages, of all WebSockets together, that may wait for the worker before no more
/// are taken.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct ChannelOutbox {
    items: VecDeque<OutboxItem>,
    /// Bytes of the first frame that the kernel has taken.
    sent_bytes: usize,
    /// Cost of the messages among them.
    message_bytes: usize,
    /// The request whose frame was written last, with nothing behind it.
    last_sent_request: Option<u32>,
    files_socket: Option<Arc<Stream>>,
    descriptor_transfer: Option<DescriptorTransfer>,
}

struct DescriptorTransfer {
    id: u32,
    /// `None` once the kernel has taken it.
    work: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>,
}

#[derive(Debug)]
enum OutboxItem {
    Request(u32),
    /// A small frame, kept without an allocation.
    SmallFrame {
        bytes: [u8; MAX_SMALL_FRAME],
        len: usize,
    },
    Frame(Vec<u8>),
    Message {
        head: [u8; MESSAGE_HEAD_LEN],
        payload: Vec<u8>,
    },
    Removed,
}

/// Fits STREAM_CANCEL and WINDOW, the common ones.
const MAX_SMALL_FRAME: usize = 16;

impl ChannelOutbox {
    pub(super) fn set_files_socket(&mut self, files: Stream) {
        self.files_socket = Some(Arc::new(files));
    }

    /// Takes the socket that was sent for this stream, before the frame that announces it.
    pub(super) fn take_hijacked_socket(&self, id: u32) -> Option<OwnedFd> {
        let (mut bytes, mut sockets) = ([0; 4], Vec::new());
        let files = self.files_socket.as_ref()?;
        let read = files
            .try_read_with_descriptors(&mut bytes, &mut sockets)
            .ok()?;
        let is_its_own = read == bytes.len() && u32::from_le_bytes(bytes) == id;
        sockets.pop().filter(|_| is_its_own && sockets.is_empty())
    }

    pub(super) fn push_request(&mut self, id: u32) {
        self.items.push_back(OutboxItem::Request(id));
    }

    pub(super) fn push(&mut self, frame: &[u8]) {
        let mut bytes = [0; MAX_SMALL_FRAME];
        self.items.push_back(match bytes.get_mut(..frame.len()) {
            Some(start) => {
                start.copy_from_slice(frame);
                let len = frame.len();
                OutboxItem::SmallFrame { bytes, len }
            }
            None => OutboxItem::Frame(frame.to_vec()),
        });
    }

    /// Adds a frame that is not small.
    pub(super) fn push_frame(&mut self, frame: Vec<u8>) {
        self.items.push_back(OutboxItem::Frame(frame));
    }

    /// Adds a message. Those of clients are no longer than a frame may be.
    pub(super) fn push_message(&mut self, id: u32, is_text: bool, payload: Vec<u8>) {
        if let Ok(head) = encode_message_head(id, is_text, payload.len()) {
            self.message_bytes += payload.len() + MESSAGE_OVERHEAD;
            self.items.push_back(OutboxItem::Message { head, payload });
        }
    }

    pub(super) fn has_message_room(&self) -> bool {
        self.message_bytes < MAX_MESSAGE_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The requests that are not wholly sent, oldest first, and the request whose frame was written
    /// last.
    pub(super) fn drain_unsent(&mut self) -> (Vec<u32>, Option<u32>) {
        let is_begun = self.sent_bytes > 0;
        let ids = self.items.drain(..).filter_map(|item| match item {
            OutboxItem::Request(id) => Some(id),
            _ => None,
        });
        (ids.collect(), self.last_sent_request.filter(|_| !is_begun))
    }

    /// Takes back a request whose sending has not begun; false if it has.
    fn remove_unsent(&mut self, id: u32) -> bool {
        if self
            .descriptor_transfer
            .as_ref()
            .is_some_and(|passing| passing.id == id)
        {
            return false;
        }
        let mut items = self.items.iter().enumerate();
        let index = items.find(|(_, item)| matches!(item, OutboxItem::Request(of) if *of == id));
        let index = index.map(|(index, _)| index);
        match index.filter(|index| *index > 0 || self.sent_bytes == 0) {
            Some(index) => {
                self.items[index] = OutboxItem::Removed;
                true
            }
            None => false,
        }
    }

    /// Fills `slices` with the bytes that may be written now; returns how many slices those are.
    fn gather_slices<'s>(
        &'s self,
        streams: &'s StreamTable,
        slices: &mut [IoSlice<'s>; MAX_SLICES],
    ) -> usize {
        let mut count = 0;
        let mut skip = self.sent_bytes;
        for item in &self.items {
            let parts: [&[u8]; 2] = match item {
                OutboxItem::Request(id) => {
                    let Some(job) = streams.pending_job(*id) else {
                        debug_assert!(skip == 0, "a frame that was begun is kept");
                        continue;
                    };
                    let passed = matches!(&self.descriptor_transfer,
                        Some(DescriptorTransfer { id: of, work: None }) if of == id);
                    if job.body_file.is_some() && !passed {
                        break;
                    }
                    [&job.frame, b""]
                }
                OutboxItem::SmallFrame { bytes, len } => [&bytes[..*len], b""],
                OutboxItem::Frame(bytes) => [bytes, b""],
                OutboxItem::Message { head, payload } => [head, payload],
                OutboxItem::Removed => continue,
            };
            for part in parts {
                let left = &part[skip.min(part.len())..];
                skip = skip.saturating_sub(part.len());
                if !left.is_empty() {
                    slices[count] = IoSlice::new(left);
                    count += 1;
                }
            }
            if count + 1 >= slices.len() {
                break;
            }
        }
        count
    }

    fn mark_written(&mut self, streams: &mut StreamTable, mut written: usize) {
        written += std::mem::take(&mut self.sent_bytes);
        while let Some(item) = self.items.front() {
            let len = match item {
                OutboxItem::Request(id) => {
                    streams.pending_job(*id).map_or(0, |job| job.frame.len())
                }
                OutboxItem::SmallFrame { len, .. } => *len,
                OutboxItem::Frame(bytes) => bytes.len(),
                OutboxItem::Message { head, payload } => head.len() + payload.len(),
                OutboxItem::Removed => 0,
            };
            if written < len || written == 0 {
                self.sent_bytes = written;
                return;
            }
            written -= len;
            self.last_sent_request = None;
            match self.items.pop_front() {
                Some(OutboxItem::Request(id)) => {
                    self.last_sent_request = Some(id);
                    self.descriptor_transfer.take_if(|passing| passing.id == id);
                    streams.mark_sent(id);
                }
                Some(OutboxItem::Message { payload, .. }) => {
                    self.message_bytes -= payload.len() + MESSAGE_OVERHEAD;
                }
                _ => {}
            }
        }
    }

    /// Sends the descriptor of the first request's body file; pending until the kernel has taken
    /// it.
    ///
    /// # Errors
    /// The socket's.
    fn poll_send_descriptor(
        &mut self,
        cx: &mut Context<'_>,
        streams: &StreamTable,
    ) -> Poll<io::Result<()>> {
        let Some(OutboxItem::Request(id)) = self.items.front() else {
            return Poll::Ready(Ok(()));
        };
        let file = streams
            .pending_job(*id)
            .and_then(|job| job.body_file.as_ref());
        let (Some(file), Some(files)) = (file, &self.files_socket) else {
            return Poll::Ready(Ok(()));
        };
        let passing = self
            .descriptor_transfer
            .get_or_insert_with(|| DescriptorTransfer {
                id: *id,
                work: Some(Box::pin(send_body_descriptor(
                    *id,
                    Arc::clone(files),
                    Arc::clone(file),
                ))),
            });
        if let Some(work) = &mut passing.work {
            std::task::ready!(work.as_mut().poll(cx))?;
            passing.work = None;
        }
        Poll::Ready(Ok(()))
    }
}

/// The stream's id goes with the descriptor: the worker compares it with the OPEN's.
async fn send_body_descriptor(id: u32, files: Arc<Stream>, file: Arc<SpoolFile>) -> io::Result<()> {
    let bytes = id.to_le_bytes();
    files.send_descriptor(&bytes, file.as_fd()).await
}

impl ChannelDriver {
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), DriverEnd> {
        while self.core.is_writable() && !self.outbox.is_empty() {
            while let Some(OutboxItem::Removed) = self.outbox.items.front() {
                self.outbox.items.pop_front();
            }
            match self.outbox.poll_send_descriptor(cx, &self.streams) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => {
                    self.core.is_write_broken = true;
                    break;
                }
                Poll::Pending => break,
            }
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = self.outbox.gather_slices(&self.streams, &mut slices);
            if count == 0 {
                break;
            }
            match self.stream.poll_write(cx, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(written)) => self.outbox.mark_written(&mut self.streams, written),
                // The worker's last bytes are still to be read.
                Poll::Ready(Err(_)) => self.core.is_write_broken = true,
            }
            if self.outbox.has_message_room() {
                for id in std::mem::take(&mut self.stalled_sockets) {
                    self.resume_websocket(id);
                }
            }
        }
        Ok(())
    }

    /// Takes back an unsent request; false if it was begun.
    pub(super) fn take_back_unsent(&mut self, id: u32) -> bool {
        let is_unsent = self.streams.entry(id).is_some_and(|entry| {
            !entry.is_sent && matches!(entry.state, StreamState::AwaitingResponse(_))
        });
        is_unsent && self.outbox.remove_unsent(id)
    }
}

impl fmt::Debug for DescriptorTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing")
            .field("stream", &index_of(self.id))
            .finish_non_exhaustive()
    }
}
