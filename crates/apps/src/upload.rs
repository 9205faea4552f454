//! A request's body that arrives while a worker has the request.
//!
//! `handler` makes one for an incomplete body. A task beside the connection reads it, and a driver
//! (on any loop) takes a piece for each PULL of the worker. So a client is read no faster than its
//! application reads, but for one piece ahead.
//!
//! # Invariants
//! - At most [`READ_AHEAD_BYTES`] and one read are kept here, however large the body is.
//! - The client's time is charged only while the worker waits for a piece.
//! - The end of a body and a body that is cut are never mistaken for one another.
//! - The connection has its reading side back before the end is visible.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use penstock_exchange::{ClientState, Fault, FaultKind, IncomingBody};
use penstock_runtime::loops;
use penstock_wire::MAX_INPUT_BYTES;

/// Bytes that are read before the worker asks for them: its next piece.
const READ_AHEAD_BYTES: usize = MAX_INPUT_BYTES;

/// A body that arrives while its request is in progress.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Held for a move of bytes only.
    state: Mutex<UploadState>,
    client: Arc<ClientState>,
}

#[derive(Default)]
struct UploadState {
    /// The connection's side; out while it is read, gone when nothing is left to read.
    body: Option<Box<dyn IncomingBody>>,
    /// Read and not taken yet.
    bytes: Vec<u8>,
    end: Option<Result<(), Fault>>,
    is_piece_wanted: bool,
    is_closed: bool,
    reader_waker: Option<Waker>,
    driver_waker: Option<Waker>,
    caller_waker: Option<Waker>,
}

/// The driver's side; dropped when its worker wants no more.
#[derive(Debug)]
pub(crate) struct UploadReader(Arc<Upload>);

#[derive(Debug)]
pub(crate) enum UploadPiece {
    /// The next bytes; none only at the end.
    Bytes { bytes: Vec<u8>, is_last: bool },
    /// The rest never comes.
    Failed(Fault),
}

/// Reads the available part of a body, up to a piece; `true` if the body is complete then.
///
/// # Errors
/// The body's.
pub(crate) fn read_available(
    body: &mut dyn IncomingBody,
    cx: &mut Context<'_>,
    into: &mut Vec<u8>,
) -> Result<bool, Fault> {
    while !body.is_at_end() {
        if into.len() >= READ_AHEAD_BYTES {
            return Ok(false);
        }
        match body.poll_prefetch(cx, into) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(true)) => {}
            Poll::Ready(Ok(false)) => return Ok(true),
            Poll::Ready(Err(fault)) => return Err(fault),
        }
    }
    Ok(true)
}

impl Upload {
    /// Begins to read the rest of a body, on this loop, which is the connection's.
    pub(crate) fn spawn(body: Box<dyn IncomingBody>, client: Arc<ClientState>) -> Arc<Self> {
        let upload = Arc::new(Self {
            state: Mutex::new(UploadState {
                body: Some(body),
                ..UploadState::default()
            }),
            client,
        });
        let task = Arc::clone(&upload);
        loops::spawn_here(async move { std::future::poll_fn(|cx| task.poll_read(cx)).await });
        upload
    }

    /// The side for the driver of the request's worker.
    pub(crate) fn reader(self: &Arc<Self>) -> UploadReader {
        UploadReader(Arc::clone(self))
    }

    /// Gives the connection its reading side back at once. To be called on its loop.
    pub(crate) fn release_connection(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        // A worker that still reads learns that there is no more.
        state.end.get_or_insert_with(|| Err(body_cut_fault()));
        let (body, reader, driver) = (
            state.body.take(),
            state.reader_waker.take(),
            state.driver_waker.take(),
        );
        drop(state);
        drop(body);
        reader.into_iter().chain(driver).for_each(Waker::wake);
    }

    /// Whether the body has failed; otherwise the task is polled when it does, or when the client
    /// is to be invited to send.
    pub(crate) fn poll_failed(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state.lock();
        if matches!(state.end, Some(Err(_))) {
            return true;
        }
        store_waker(&mut state.caller_waker, cx);
        false
    }

    /// Why the body failed, for the first caller.
    pub(crate) fn take_failure(&self) -> Option<Fault> {
        let mut state = self.state.lock();
        match state.end.take() {
            Some(Err(fault)) => {
                state.end = Some(Err(body_cut_fault()));
                Some(fault)
            }
            end => {
                state.end = end;
                None
            }
        }
    }

    /// The task: reads while there is room, or the worker waits.
    fn poll_read(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut state = self.state.lock();
            store_waker(&mut state.reader_waker, cx);
            if state.is_closed || state.end.is_some() {
                let body = state.body.take();
                drop(state);
                drop(body);
                return Poll::Ready(());
            }
            if state.bytes.len() >= READ_AHEAD_BYTES {
                return Poll::Pending;
            }
            let is_awaited = state.is_piece_wanted && state.bytes.is_empty();
            let Some(mut body) = state.body.take() else {
                return Poll::Ready(());
            };
            drop(state);
            let mut bytes = Vec::new();
            let read = match is_awaited {
                true => body.poll_fill(cx, &mut bytes),
                false => body.poll_prefetch(cx, &mut bytes),
            };
            let end = match read {
                Poll::Pending => {
                    self.store_pending_body(body, is_awaited);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(true)) if !body.is_at_end() => {
                    self.record_read(Some(body), &bytes, None);
                    continue;
                }
                Poll::Ready(Ok(_)) => Ok(()),
                Poll::Ready(Err(fault)) => Err(fault),
            };
            // Before the end is visible: the connection is in order when the reply is sent.
            drop(body);
            if matches!(&end, Err(fault) if fault.kind == FaultKind::ClientDisconnected) {
                self.client.mark_disconnected();
            }
            self.record_read(None, &bytes, Some(end));
            return Poll::Ready(());
        }
    }

    /// Keeps a body of which nothing is available now.
    fn store_pending_body(&self, body: Box<dyn IncomingBody>, is_awaited: bool) {
        let mut state = self.state.lock();
        let body = match state.is_closed {
            true => Some(body),
            false => {
                state.body = Some(body);
                None
            }
        };
        // The client may have to be invited to send, which its connection does.
        let caller = state.caller_waker.take_if(|_| is_awaited);
        drop(state);
        drop(body);
        caller.into_iter().for_each(Waker::wake);
    }

    fn record_read(
        &self,
        body: Option<Box<dyn IncomingBody>>,
        bytes: &[u8],
        end: Option<Result<(), Fault>>,
    ) {
        let mut state = self.state.lock();
        state.body = body;
        if matches!(end, Some(Err(_))) {
            state.bytes = Vec::new();
        } else {
            state.bytes.extend_from_slice(bytes);
        }
        let caller = state.caller_waker.take_if(|_| matches!(end, Some(Err(_))));
        state.end = end;
        let driver = state.driver_waker.take();
        drop(state);
        driver.into_iter().chain(caller).for_each(Waker::wake);
    }
}

impl UploadReader {
    /// The next piece, if `is_wanted`; a failed body is returned in any case. Otherwise the task is
    /// polled when there is one.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>, is_wanted: bool) -> Poll<UploadPiece> {
        if let Some(fault) = self.0.take_failure() {
            return Poll::Ready(UploadPiece::Failed(fault));
        }
        let mut state = self.0.state.lock();
        if is_wanted && (state.end.is_some() || !state.bytes.is_empty()) {
            let bytes = match state.bytes.len() > MAX_INPUT_BYTES {
                true => state.bytes.drain(..MAX_INPUT_BYTES).collect(),
                false => std::mem::take(&mut state.bytes),
            };
            state.is_piece_wanted = false;
            let is_last = state.end.is_some() && state.bytes.is_empty();
            let reader = state.reader_waker.take();
            drop(state);
            reader.into_iter().for_each(Waker::wake);
            return Poll::Ready(UploadPiece::Bytes { bytes, is_last });
        }
        store_waker(&mut state.driver_waker, cx);
        let is_news = is_wanted && !std::mem::replace(&mut state.is_piece_wanted, is_wanted);
        let reader = state.reader_waker.take_if(|_| is_news);
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

impl Drop for UploadReader {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        state.bytes = Vec::new();
        let reader = state.reader_waker.take();
        drop(state);
        // The connection's side is dropped on its loop.
        reader.into_iter().for_each(Waker::wake);
    }
}

/// The fault when the failure was already taken.
fn body_cut_fault() -> Fault {
    Fault::new(FaultKind::ClientDisconnected, "the request body was cut")
}

/// Has the task woken by a later [`Waker::wake`] of this one.
pub(crate) fn store_waker(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        none => *none = Some(cx.waker().clone()),
    }
}

impl std::fmt::Debug for UploadState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("bytes", &self.bytes.len())
            .field("end", &self.end)
            .field("is_wanted", &self.is_piece_wanted)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
