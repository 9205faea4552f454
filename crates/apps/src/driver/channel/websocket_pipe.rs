//! The pipe between the driver of a channel and the session of one WebSocket's client, on any loop.
//!
//! Each side puts messages and its close here and wakes the other.
//!
//! # Invariants
//! - The driver respects the windows, and the session stops reading while the pipe is full, so each
//!   direction is bounded.
//! - No waker runs under the lock.
//! - An idle pipe owns no buffer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Waker};

use parking_lot::{Mutex, MutexGuard};
use penstock_http::websocket::close_code;
use penstock_wire::channel::WINDOW_BYTES;

use super::websocket::window_cost;
use crate::upload::store_waker;

/// Bytes, and number, of a client's messages that may wait before it is no longer read. One read
/// may come on top.
const MAX_BYTES: usize = 64 * 1024;
const MAX_MESSAGES: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct WebSocketMessage {
    pub(super) is_text: bool,
    pub(super) payload: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum WebSocketPipeItem {
    Message(WebSocketMessage),
    /// The other side has closed, and all its messages are taken.
    Close(u16, String),
    Nothing,
}

#[derive(Debug)]
pub(super) struct WebSocketPipe {
    /// Held for a move of messages only.
    state: Mutex<PipeState>,
    driver: Waker,
}

#[derive(Debug, Default)]
struct PipeState {
    to_worker: VecDeque<WebSocketMessage>,
    to_worker_bytes: usize,
    to_client: VecDeque<WebSocketMessage>,
    client_closed: Option<(u16, String)>,
    worker_closed: Option<(u16, String)>,
    /// Window that the client has freed.
    freed_window: u32,
    session: Option<Waker>,
}

impl WebSocketPipe {
    pub(super) fn new(driver: Waker) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            driver,
        })
    }

    // The driver's side.

    pub(super) fn send_to_client(&self, message: WebSocketMessage) {
        let mut state = self.state.lock();
        if state.client_closed.is_none() {
            state.to_client.push_back(message);
        }
        wake_session(state);
    }

    /// Closes from the application's side. Only the first close counts.
    pub(super) fn close_by_worker(&self, code: u16, reason: &str) {
        let mut state = self.state.lock();
        if state.worker_closed.is_none() {
            state.worker_closed = Some((code, reason.to_owned()));
        }
        wake_session(state);
    }

    /// The next item for the worker, whose window is `room`.
    pub(super) fn take_for_worker(&self, room: u32) -> WebSocketPipeItem {
        let mut state = self.state.lock();
        let Some(first) = state.to_worker.front() else {
            return match &state.client_closed {
                Some((code, reason)) => WebSocketPipeItem::Close(*code, reason.clone()),
                None => WebSocketPipeItem::Nothing,
            };
        };
        if window_cost(first.payload.len()) > room {
            return WebSocketPipeItem::Nothing;
        }
        let was_full = state.is_full();
        let Some(message) = state.to_worker.pop_front() else {
            return WebSocketPipeItem::Nothing;
        };
        state.to_worker_bytes -= message.payload.len();
        if state.to_worker.is_empty() {
            state.to_worker = VecDeque::new();
        }
        if was_full && !state.is_full() {
            wake_session(state);
        }
        WebSocketPipeItem::Message(message)
    }

    pub(super) fn has_client_closed(&self) -> bool {
        self.state.lock().client_closed.is_some()
    }

    pub(super) fn client_close_reason(&self) -> (u16, String) {
        let closed = self.state.lock().client_closed.clone();
        closed.unwrap_or((close_code::ABNORMAL_CLOSURE, String::new()))
    }

    /// Takes the freed window, to be given back to the worker.
    pub(super) fn take_freed_window(&self) -> u32 {
        std::mem::take(&mut self.state.lock().freed_window)
    }

    // The session's side.

    pub(super) fn send_to_worker(&self, message: WebSocketMessage) {
        let mut state = self.state.lock();
        state.to_worker_bytes += message.payload.len();
        state.to_worker.push_back(message);
        drop(state);
        self.driver.wake_by_ref();
    }

    /// Closes from the client's side. Only the first close counts.
    pub(super) fn close_by_client(&self, code: u16, reason: &str) {
        self.close_client_with(code, reason, |_| {});
    }

    /// As [`Self::close_by_client`], and drops the client's messages: the worker does not take
    /// them.
    pub(super) fn abort_by_client(&self, code: u16, reason: &str) {
        self.close_client_with(code, reason, |state| {
            (state.to_worker, state.to_worker_bytes) = (VecDeque::new(), 0);
        });
    }

    fn close_client_with(&self, code: u16, reason: &str, also: impl FnOnce(&mut PipeState)) {
        let mut state = self.state.lock();
        if state.client_closed.is_none() {
            state.client_closed = Some((code, reason.to_owned()));
            state.to_client = VecDeque::new();
        }
        also(&mut state);
        drop(state);
        self.driver.wake_by_ref();
    }

    pub(super) fn is_full_now(&self) -> bool {
        self.state.lock().is_full()
    }

    /// Whether the client must not be read now; the task is woken when it may be.
    pub(super) fn poll_is_full(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state.lock();
        let is_full = state.is_full();
        if is_full {
            store_waker(&mut state.session, cx);
        }
        is_full
    }

    /// The next item for the client; without one the task is woken when there is one. `credit` is
    /// the cost of the messages that the client has taken since.
    pub(super) fn take_for_client(&self, cx: &mut Context<'_>, credit: u32) -> WebSocketPipeItem {
        let mut state = self.state.lock();
        state.freed_window = state.freed_window.saturating_add(credit).min(WINDOW_BYTES);
        let given = match state.to_client.pop_front() {
            Some(message) => {
                if state.to_client.is_empty() {
                    state.to_client = VecDeque::new();
                }
                WebSocketPipeItem::Message(message)
            }
            None => match state.worker_closed.take() {
                Some((code, reason)) => {
                    state.worker_closed = Some((code, String::new()));
                    WebSocketPipeItem::Close(code, reason)
                }
                None => WebSocketPipeItem::Nothing,
            },
        };
        store_waker(&mut state.session, cx);
        drop(state);
        if credit > 0 {
            self.driver.wake_by_ref();
        }
        given
    }
}

impl PipeState {
    fn is_full(&self) -> bool {
        self.to_worker_bytes >= MAX_BYTES || self.to_worker.len() >= MAX_MESSAGES
    }
}

/// Wakes the session, outside of the lock.
fn wake_session(mut state: MutexGuard<'_, PipeState>) {
    let session = state.session.take();
    drop(state);
    session.into_iter().for_each(Waker::wake);
}
