//! What the new process has to send to the old one, in order.
//!
//! `import` fills it, and channels do under their locks; one task sends.
//!
//! # Invariants
//! - Messages and histories that wait are bounded.
//! - Streams that the old process was not told of are its own: dropped here, they do not end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::TransferError;
use super::records::SuccessorMessage;
use crate::channel::Message;
use crate::hub::MessageSink;
use crate::shard::ArrivedStream;

#[derive(Debug)]
pub(super) struct ReplyQueue {
    state: Mutex<ReplyState>,
    pub(super) wakeup: Notify,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct ReplyState {
    replies: VecDeque<Reply>,
    bytes: usize,
    has_overflowed: bool,
}

#[derive(Debug)]
pub(super) enum Reply {
    Message(Arc<Message>),
    /// With the streams of the batch that go to a shard once this is sent.
    Taken {
        batch: u64,
        refused: Vec<usize>,
        arrivals: UnconfirmedStreams,
    },
    Other(Box<SuccessorMessage>),
}

/// Streams that the old process has still.
#[derive(Debug)]
pub(super) struct UnconfirmedStreams(pub(super) Vec<ArrivedStream>);

impl Reply {
    pub(super) fn other(message: SuccessorMessage) -> Self {
        Self::Other(Box::new(message))
    }

    /// What it counts for while it waits. Streams are bounded by the batches on their way.
    fn memory_bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.memory_bytes,
            Self::Taken { .. } => 0,
            Self::Other(message) => message.content_bytes(),
        }
    }
}

impl UnconfirmedStreams {
    /// The old process has none of them any more.
    pub(super) fn confirm(mut self) -> Vec<ArrivedStream> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for UnconfirmedStreams {
    fn drop(&mut self) {
        for arrival in &mut self.0 {
            if let Some(on_end) = arrival.request.stream.on_end.take() {
                on_end.disarm();
            }
        }
    }
}

impl ReplyQueue {
    /// At most `max_bytes` of messages and histories may wait.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            wakeup: Notify::new(),
            max_bytes,
        }
    }

    /// Adds a reply. Above the bound the transfer ends.
    pub(super) fn push_reply(&self, reply: Reply) {
        let mut state = self.lock();
        let bytes = state.bytes + reply.memory_bytes();
        if bytes > self.max_bytes {
            state.has_overflowed = true;
            return;
        }
        state.bytes = bytes;
        state.replies.push_back(reply);
    }

    /// The next reply, if there is one.
    ///
    /// # Errors
    /// More waited than may.
    pub(super) fn pop(&self) -> Result<Option<Reply>, TransferError> {
        let mut state = self.lock();
        if state.has_overflowed {
            return Err(TransferError::Overflow);
        }
        let reply = state.replies.pop_front();
        state.bytes -= reply.as_ref().map_or(0, Reply::memory_bytes);
        Ok(reply)
    }

    pub(super) fn drop_unsent(&self) {
        self.lock().replies.clear();
    }

    fn lock(&self) -> MutexGuard<'_, ReplyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MessageSink for ReplyQueue {
    fn push(&self, message: Arc<Message>, _: usize) {
        self.push_reply(Reply::Message(message));
    }

    fn wake(&self) {
        self.wakeup.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::channel::tests::message;
    use crate::transfer::records::{ChannelRecord, MessageRecord};

    #[test]
    fn messages_and_histories_that_wait_are_bounded_together() {
        let now = Instant::now();
        let message = message(1, now);
        let record = || {
            let publication = crate::Publication {
                event: Some(crate::PublishedEvent {
                    data: "x".repeat(500).into(),
                    ..crate::PublishedEvent::default()
                }),
                ..crate::Publication::default()
            };
            let history = vec![MessageRecord {
                sequence: 1,
                age_ms: 0,
                publication,
            }];
            Reply::other(SuccessorMessage::Channel(ChannelRecord {
                history,
                ..ChannelRecord::default()
            }))
        };
        let bytes = record().memory_bytes();
        assert!(bytes >= 500);
        let queue = ReplyQueue::new(bytes + message.memory_bytes);
        for _ in 0..3 {
            queue.push_reply(record());
            queue.push(message.clone(), 0);
            assert!(matches!(queue.pop(), Ok(Some(Reply::Other(_)))));
            assert!(matches!(queue.pop(), Ok(Some(Reply::Message(_)))));
        }
        queue.push_reply(record());
        queue.push_reply(Reply::other(SuccessorMessage::Accepted(1)));
        queue.push_reply(record());
        assert!(matches!(queue.pop(), Err(TransferError::Overflow)));
    }
}
