//! A WebSocket as the driver has it: messages between the channel and the pipe to its client's session.
//!
//! What must stay true: messages stay in order and whole; each way at most a window of them is under way
//! (one that is longer stands for the whole window); a client's close comes behind its messages.

use std::sync::Arc;

use penstock_http::websocket::code;
use penstock_runtime::clock;
use penstock_wire::channel::{MESSAGE_OVERHEAD, WINDOW_BYTES};
use penstock_wire::{AcceptHeadView, WireError};

use penstock_exchange::{Fault, FaultKind};

use super::pipe::{Message, Pipe, Taken};
use super::receive::unexpected;
use super::session::Agreed;
use super::streams::{State, index_of};
use super::{ChannelDriver, handshake};
use crate::slot::End;

/// An accepted WebSocket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) pipe: Arc<Pipe>,
    /// Bytes of messages that the worker still takes.
    room: u32,
    /// A message from the worker, as far as it has come.
    incoming: Vec<u8>,
    /// Its messages wait until the worker has read more, and it is on the driver's list of those.
    is_stalled: bool,
}

/// A piece of a message from the worker.
#[derive(Debug)]
pub(super) struct Piece<'b> {
    pub(super) is_text: bool,
    pub(super) bytes: &'b [u8],
    pub(super) end: bool,
}

/// What a message takes of a window: also one without a byte must be kept somewhere.
pub(super) fn cost(len: usize) -> u32 {
    let cost = u32::try_from(len.saturating_add(MESSAGE_OVERHEAD)).unwrap_or(u32::MAX);
    cost.min(WINDOW_BYTES)
}

impl ChannelDriver {
    /// The application takes a WebSocket: its client gets the 101.
    pub(super) fn accepted(
        &mut self,
        id: u32,
        head: Result<AcceptHeadView<'_>, WireError>,
    ) -> Result<(), End> {
        let timing = self.timing(id, 0);
        let Some(waker) = self.streams.waker(index_of(id)) else {
            return Ok(());
        };
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        let start = match &mut entry.state {
            State::Asked(start) => start,
            State::Leaving(_) | State::Discard => {
                // The client has left meanwhile: GONE has crossed this.
                self.close_socket(id, code::ABNORMAL_CLOSURE, "");
                return Ok(());
            }
            _ => return Err(unexpected("a second answer", id)),
        };
        let Some(handshake) = start.job.websocket.take() else {
            return Err(unexpected("a WebSocket that nobody asked for", id));
        };
        let parts = match head {
            Ok(parts) => parts,
            Err(error) => {
                let cause = format!("response head: {error}");
                let fault = Fault::new(FaultKind::AppProtocolError, cause).with_timing(timing);
                self.answer(id, Err(fault));
                self.close_socket(id, code::INTERNAL_ERROR, "");
                return Ok(());
            }
        };
        let client = start.job.client.limit_prefix();
        let pipe = Pipe::new(waker);
        let agreed = Agreed::new(Arc::clone(&pipe), handshake.deflate, &self.app);
        let agreed = agreed.of_client(client);
        let answer = handshake::accepted(&handshake, &parts, agreed, timing);
        let is_sent = answer.is_ok();
        self.answer(id, answer);
        if !is_sent {
            self.close_socket(id, code::INTERNAL_ERROR, "");
            return Ok(());
        }
        if let Some(entry) = self.streams.entry(id) {
            entry.state = State::Socket(Box::new(Socket {
                pipe,
                room: WINDOW_BYTES,
                incoming: Vec::new(),
                is_stalled: false,
            }));
        }
        self.streams.clock_off(id);
        Ok(())
    }

    /// The worker begins a message of `len` bytes.
    ///
    /// # Errors
    /// When it may not.
    pub(super) fn message_begins(&mut self, id: u32, len: u32) -> Result<(), End> {
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        match entry.state {
            State::Socket(_) => {}
            State::Leaving(_) | State::Discard => return Ok(()),
            _ => return Err(unexpected("a message without a WebSocket", id)),
        }
        let cost = cost(usize::try_from(len).unwrap_or(usize::MAX));
        let Some(room) = entry.room.checked_sub(cost) else {
            return Err(unexpected("more than its window", id));
        };
        entry.room = room;
        Ok(())
    }

    pub(super) fn message_piece(&mut self, id: u32, piece: Piece<'_>) {
        let Piece {
            is_text,
            bytes,
            end,
        } = piece;
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let State::Socket(socket) = &mut entry.state else {
            return;
        };
        socket.incoming.extend_from_slice(bytes);
        if !end {
            return;
        }
        let payload = std::mem::take(&mut socket.incoming);
        if is_text && std::str::from_utf8(&payload).is_err() {
            // RFC 6455 §5.6: no client may get it.
            log::error!(
                "{}[{}]: a WebSocket closed: the application sent text that is not UTF-8",
                self.app.name,
                self.pid
            );
            self.app.metrics.failed_requests.increment();
            socket.pipe.close_by_worker(code::INTERNAL_ERROR, "");
            return self.close_socket(id, code::INVALID_PAYLOAD, "text that is not UTF-8");
        }
        socket.pipe.send_to_client(Message { is_text, payload });
    }

    pub(super) fn closed_by_worker(&mut self, id: u32, code: u16, reason: &str) {
        match self.end_stream(id) {
            Some(State::Socket(socket)) => socket.pipe.close_by_worker(code, reason),
            Some(State::Asked(mut start)) => {
                let cause = "closed a WebSocket that it had not accepted";
                start
                    .job
                    .answer(Err(Fault::new(FaultKind::AppProtocolError, cause)));
            }
            // What it was told before, or nobody is there any more.
            _ => {}
        }
    }

    /// The worker takes more messages.
    pub(super) fn widen(&mut self, id: u32, bytes: u32) {
        if let Some(entry) = self.streams.entry(id)
            && let State::Socket(socket) = &mut entry.state
        {
            socket.room = socket.room.saturating_add(bytes).min(WINDOW_BYTES);
            self.tend_socket(id);
        }
    }

    /// The worker has read enough for more messages.
    pub(super) fn resume_socket(&mut self, id: u32) {
        if let Some(entry) = self.streams.entry(id)
            && let State::Socket(socket) = &mut entry.state
        {
            socket.is_stalled = false;
            self.tend_socket(id);
        }
    }

    /// The client's side of a WebSocket got on.
    pub(super) fn tend_socket(&mut self, id: u32) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let State::Socket(socket) = &mut entry.state else {
            return;
        };
        entry.owed = entry.owed.saturating_add(socket.pipe.take_credit());
        let mut has_sent = false;
        loop {
            if !self.outbox.takes_messages() {
                if !std::mem::replace(&mut socket.is_stalled, true) {
                    self.stalled.push(id);
                }
                break;
            }
            match socket.pipe.take_for_worker(socket.room) {
                Taken::Message(message) => {
                    socket.room -= cost(message.payload.len());
                    self.outbox.message(id, message.is_text, message.payload);
                    has_sent = true;
                }
                Taken::Close(code, reason) => {
                    return self.close_socket(id, code, &reason);
                }
                Taken::Nothing => break,
            }
        }
        // What a client had said before it closed its worker has so long to take.
        if socket.pipe.has_left() && (has_sent || !entry.is_timed()) {
            self.streams.clock_on(id, clock::now());
        }
        self.return_window(id, false);
    }
}
