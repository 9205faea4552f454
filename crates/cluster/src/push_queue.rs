//! The messages that Redis pushes to this server, between its connection and the task that takes
//! them.
//!
//! Filled by the task of the Redis client, emptied by `bus_driver`.
//!
//! # Invariants
//! - The queue is bounded. Once it was full nothing more gets in, and its reader learns of that,
//!   since messages are missing from there on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

/// Messages that may wait.
const MAX_MESSAGES: usize = 50_000;

/// Bytes of these.
const MAX_BYTES: usize = 64 << 20;

/// The queue of one connection.
#[derive(Debug)]
pub(super) struct PushQueue {
    state: Mutex<PushQueueState>,
    wakeup: Arc<Notify>,
}

#[derive(Debug, Default)]
struct PushQueueState {
    messages: VecDeque<PushMessage>,
    bytes: usize,
    end: Option<PushQueueEnd>,
}

/// One message: its topic and what was published to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PushMessage {
    pub(super) topic: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

/// Why no more come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PushQueueEnd {
    #[error("more was published than this server could take in")]
    Full,
    #[error("the connection was closed")]
    Closed,
}

impl PushQueue {
    /// An empty queue that notifies `wakeup` when something comes.
    pub(super) fn new(wakeup: Arc<Notify>) -> Self {
        Self {
            state: Mutex::default(),
            wakeup,
        }
    }

    pub(super) fn push(&self, info: PushInfo) {
        let mut waiting = self.lock();
        match info.kind {
            PushKind::Message => {
                let mut data = info.data.into_iter();
                if let (Some(Value::BulkString(topic)), Some(Value::BulkString(payload))) =
                    (data.next(), data.next())
                    && waiting.end.is_none()
                {
                    waiting.push(PushMessage { topic, payload });
                }
            }
            PushKind::Disconnection => {
                waiting.end.get_or_insert(PushQueueEnd::Closed);
            }
            _ => return,
        }
        drop(waiting);
        self.wakeup.notify_one();
    }

    /// The next messages, at most `max`.
    ///
    /// # Errors
    /// Why there will be no more, once all that came before was taken.
    pub(super) fn take(&self, max: usize) -> Result<Vec<PushMessage>, PushQueueEnd> {
        let mut waiting = self.lock();
        if waiting.messages.is_empty()
            && let Some(end) = waiting.end
        {
            return Err(end);
        }
        let count = waiting.messages.len().min(max);
        let taken: Vec<PushMessage> = waiting.messages.drain(..count).collect();
        waiting.bytes -= taken.iter().map(PushMessage::cost).sum::<usize>();
        Ok(taken)
    }

    pub(super) fn has_messages_or_ended(&self) -> bool {
        let waiting = self.lock();
        !waiting.messages.is_empty() || waiting.end.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, PushQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PushQueueState {
    fn push(&mut self, pushed: PushMessage) {
        if self.messages.len() >= MAX_MESSAGES || self.bytes + pushed.cost() > MAX_BYTES {
            self.end = Some(PushQueueEnd::Full);
            return;
        }
        self.bytes += pushed.cost();
        self.messages.push_back(pushed);
    }
}

impl PushMessage {
    fn cost(&self) -> usize {
        size_of::<Self>() + self.topic.len() + self.payload.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: &[u8]) -> PushInfo {
        PushInfo {
            kind: PushKind::Message,
            data: vec![
                Value::BulkString(b"t".to_vec()),
                Value::BulkString(payload.to_vec()),
            ],
        }
    }

    fn queue() -> PushQueue {
        PushQueue::new(Arc::new(Notify::new()))
    }

    #[test]
    fn what_comes_is_taken_in_its_order() {
        let pushes = queue();
        for payload in [b"1", b"2", b"3"] {
            pushes.push(message(payload));
        }
        pushes.push(PushInfo {
            kind: PushKind::Subscribe,
            data: vec![],
        });
        let taken = |max| -> Vec<Vec<u8>> {
            let taken = pushes.take(max).unwrap();
            taken.into_iter().map(|pushed| pushed.payload).collect()
        };
        assert_eq!(taken(2), [b"1", b"2"]);
        assert_eq!(taken(2), [b"3"]);
        assert!(!pushes.has_messages_or_ended());
    }

    #[test]
    fn what_came_before_the_end_is_taken_first() {
        let pushes = queue();
        pushes.push(message(b"1"));
        pushes.push(PushInfo {
            kind: PushKind::Disconnection,
            data: vec![],
        });
        pushes.push(message(b"2"));
        assert_eq!(pushes.take(10).unwrap().len(), 1);
        assert_eq!(pushes.take(10), Err(PushQueueEnd::Closed));
    }

    #[test]
    fn a_full_queue_reports_its_end() {
        let pushes = queue();
        let large = vec![b'x'; MAX_BYTES / 2];
        pushes.push(message(&large));
        pushes.push(message(&large));
        pushes.push(message(b"small"));
        assert_eq!(pushes.take(10).unwrap().len(), 1);
        assert_eq!(pushes.take(10), Err(PushQueueEnd::Full));
        assert!(pushes.has_messages_or_ended());
    }
}
