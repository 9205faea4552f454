//! A WebSocket in the driver: messages between the channel and the pipe to its client's session.
//!
//! # Invariants
//! - Messages stay in order and complete.
//! - Each way at most a window of them is under way; a longer one counts as the whole window.
//! - A client's close comes behind its messages.

use std::sync::Arc;

use penstock_http::websocket::close_code;
use penstock_runtime::clock;
use penstock_wire::channel::{MESSAGE_OVERHEAD, WINDOW_BYTES};
use penstock_wire::{AcceptHeadView, WireError};

use penstock_exchange::Reply;

use super::ChannelDriver;
use super::receive::unexpected_frame;
use super::stream_table::{StreamState, index_of};
use super::websocket_pipe::{WebSocketMessage, WebSocketPipe, WebSocketPipeItem};
use super::websocket_session::AcceptedWebSocket;
use crate::driver::DriverEnd;
use crate::reply::app_protocol_error;
use crate::websocket_handshake::build_accept_response;

#[derive(Debug)]
pub(super) struct ChannelWebSocket {
    pub(super) pipe: Arc<WebSocketPipe>,
    /// Bytes of messages that the worker still accepts.
    window: u32,
    /// The part of a worker's message that has come.
    incoming_message: Vec<u8>,
    /// Its messages wait until the worker has read more; it is on the driver's list of those.
    is_stalled: bool,
}

#[derive(Debug)]
pub(super) struct MessagePiece<'b> {
    pub(super) is_text: bool,
    pub(super) bytes: &'b [u8],
    pub(super) end: bool,
}

/// The window that a message uses: an empty one must be stored, too.
pub(super) fn window_cost(len: usize) -> u32 {
    let cost = u32::try_from(len.saturating_add(MESSAGE_OVERHEAD)).unwrap_or(u32::MAX);
    cost.min(WINDOW_BYTES)
}

impl ChannelDriver {
    /// Accepts a WebSocket: its client gets the 101.
    pub(super) fn handle_accept(
        &mut self,
        id: u32,
        head: Result<AcceptHeadView<'_>, WireError>,
    ) -> Result<(), DriverEnd> {
        let timing = self.record_response_timing(id, 0);
        let Some(waker) = self.streams.waker(index_of(id)) else {
            return Ok(());
        };
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let start = match &mut entry.state {
            StreamState::AwaitingResponse(start) => start,
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => {
                // The client has left: STREAM_CANCEL and this frame have crossed.
                self.close_socket(id, close_code::ABNORMAL_CLOSURE, "");
                return Ok(());
            }
            _ => return Err(unexpected_frame("a second answer", id)),
        };
        let Some(handshake) = start.job.websocket.take() else {
            return Err(unexpected_frame("a WebSocket that nobody asked for", id));
        };
        let parts = match head {
            Ok(parts) => parts,
            Err(error) => {
                let fault = app_protocol_error(format!("response head: {error}"));
                self.answer_request(id, Err(fault.with_timing(timing)));
                self.close_socket(id, close_code::INTERNAL_ERROR, "");
                return Ok(());
            }
        };
        let client = start.job.client.counted_address_prefix();
        let pipe = WebSocketPipe::new(waker);
        let agreed = AcceptedWebSocket::new(Arc::clone(&pipe), handshake.deflate, &self.core.app);
        let agreed = agreed.with_client_prefix(client);
        let answer = build_accept_response(&handshake, &parts, Box::new(agreed), timing);
        let is_sent = answer.is_ok();
        self.answer_request(id, answer.map(Reply::from));
        if !is_sent {
            self.close_socket(id, close_code::INTERNAL_ERROR, "");
            return Ok(());
        }
        if let Some(entry) = self.streams.entry(id) {
            entry.state = StreamState::WebSocket(Box::new(ChannelWebSocket {
                pipe,
                window: WINDOW_BYTES,
                incoming_message: Vec::new(),
                is_stalled: false,
            }));
        }
        self.streams.stop_clock(id);
        Ok(())
    }

    /// Checks a message of `len` bytes that the worker begins.
    ///
    /// # Errors
    /// If the stream is in another state, or the window is too small.
    pub(super) fn handle_message_start(&mut self, id: u32, len: u32) -> Result<(), DriverEnd> {
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        match entry.state {
            StreamState::WebSocket(_) => {}
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => return Ok(()),
            _ => return Err(unexpected_frame("a message without a WebSocket", id)),
        }
        let cost = window_cost(usize::try_from(len).unwrap_or(usize::MAX));
        let Some(room) = entry.receive_window.checked_sub(cost) else {
            return Err(unexpected_frame("more than its window", id));
        };
        entry.receive_window = room;
        Ok(())
    }

    pub(super) fn handle_message_piece(&mut self, id: u32, piece: MessagePiece<'_>) {
        let MessagePiece {
            is_text,
            bytes,
            end,
        } = piece;
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let StreamState::WebSocket(socket) = &mut entry.state else {
            return;
        };
        socket.incoming_message.extend_from_slice(bytes);
        if !end {
            return;
        }
        let payload = std::mem::take(&mut socket.incoming_message);
        if is_text && std::str::from_utf8(&payload).is_err() {
            // RFC 6455 §5.6: no client may get it.
            log::error!(
                "{}[{}]: a WebSocket closed: the application sent text that is not UTF-8",
                self.core.app.name,
                self.core.pid
            );
            self.core.app.metrics.failed_requests.increment();
            socket.pipe.close_by_worker(close_code::INTERNAL_ERROR, "");
            return self.close_socket(id, close_code::INVALID_PAYLOAD, "text that is not UTF-8");
        }
        socket
            .pipe
            .send_to_client(WebSocketMessage { is_text, payload });
    }

    pub(super) fn handle_worker_close(&mut self, id: u32, code: u16, reason: &str) {
        match self.end_stream(id) {
            Some(StreamState::WebSocket(socket)) => socket.pipe.close_by_worker(code, reason),
            Some(StreamState::AwaitingResponse(mut start)) => {
                let cause = "closed a WebSocket that it had not accepted";
                start.job.answer(Err(app_protocol_error(cause)));
            }
            // The socket is closed.
            _ => {}
        }
    }

    /// Adds to the window of messages that the worker accepts.
    pub(super) fn handle_window_update(&mut self, id: u32, bytes: u32) {
        if let Some(entry) = self.streams.entry(id)
            && let StreamState::WebSocket(socket) = &mut entry.state
        {
            socket.window = socket.window.saturating_add(bytes).min(WINDOW_BYTES);
            self.pump_websocket(id);
        }
    }

    /// Sends messages that waited until the worker had read more.
    pub(super) fn resume_websocket(&mut self, id: u32) {
        if let Some(entry) = self.streams.entry(id)
            && let StreamState::WebSocket(socket) = &mut entry.state
        {
            socket.is_stalled = false;
            self.pump_websocket(id);
        }
    }

    /// Sends the client's messages, and its close.
    pub(super) fn pump_websocket(&mut self, id: u32) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let StreamState::WebSocket(socket) = &mut entry.state else {
            return;
        };
        entry.window_owed = entry
            .window_owed
            .saturating_add(socket.pipe.take_freed_window());
        let mut has_sent = false;
        loop {
            if !self.outbox.has_message_room() {
                if !std::mem::replace(&mut socket.is_stalled, true) {
                    self.stalled_sockets.push(id);
                }
                break;
            }
            match socket.pipe.take_for_worker(socket.window) {
                WebSocketPipeItem::Message(message) => {
                    socket.window -= window_cost(message.payload.len());
                    self.outbox
                        .push_message(id, message.is_text, message.payload);
                    has_sent = true;
                }
                WebSocketPipeItem::Close(code, reason) => {
                    return self.close_socket(id, code, &reason);
                }
                WebSocketPipeItem::Nothing => break,
            }
        }
        // The worker has this long to take the messages before the client's close.
        if socket.pipe.has_client_closed() && (has_sent || !entry.is_timed()) {
            self.streams.start_clock(id, clock::now());
        }
        self.return_window(id, false);
    }
}
