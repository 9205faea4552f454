//! The way to a shard from any thread.
//!
//! What must stay true: its lock is held for a push or a swap only; it comes last of all locks, so that a
//! publisher may push under its channel's. What is in it is bounded by those who push: publications by
//! `pending_bytes`, arrivals by the connections that there may be.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use penstock_exchange::HeldConnectionGuard;
use penstock_runtime::Stream;

use crate::channel::{Channel, Message, Shape};
use crate::hub::{Answerer, Wanted};

/// Everything that can be asked of a shard.
#[derive(Debug)]
pub(crate) enum Command {
    /// A stream comes.
    Arrive(Box<Arrival>),
    /// A message is for a channel's subscribers.
    Deliver(Delivery),
    /// Many long polls are answered.
    Answer(Answers),
    /// All streams end, spread over this time.
    Drain(Duration),
}

/// A stream that comes to its shard.
pub(crate) struct Arrival {
    pub(crate) client: Arc<Stream>,
    /// Bytes of its client that were read behind the request.
    pub(crate) early_bytes: usize,
    pub(crate) shape: Shape,
    pub(crate) place: HeldConnectionGuard,
    pub(crate) wanted: Box<Wanted>,
    /// How often the connection's task still had the socket.
    pub(crate) tries: u32,
}

/// A message for the subscribers of the channel that the shard keeps at `slot`, if it still does.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) slot: u32,
    pub(crate) channel: Arc<Channel>,
    pub(crate) message: Arc<Message>,
}

/// A message for many long polls.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) channel: Arc<Channel>,
    pub(crate) message: Arc<Message>,
    pub(crate) waiting: Vec<Arc<Answerer>>,
}

/// Commands that a shard has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Guards the commands and who is woken for the first of them.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    commands: VecDeque<Command>,
    waker: Option<Waker>,
}

impl Arrival {
    pub(crate) fn new(
        client: Arc<Stream>,
        early_bytes: usize,
        shape: Shape,
        place: HeldConnectionGuard,
        wanted: Box<Wanted>,
    ) -> Self {
        Self {
            client,
            early_bytes,
            shape,
            place,
            wanted,
            tries: 0,
        }
    }
}

impl Inbox {
    /// Adds a command; whom to wake, once no lock is held.
    #[must_use]
    pub(crate) fn push(&self, command: Command) -> Option<Waker> {
        let mut state = self.lock();
        state.commands.push_back(command);
        state.waker.take()
    }

    /// Moves all commands to the end of `into`, and registers the task to be woken by the next.
    pub(super) fn take(&self, cx: &Context<'_>, into: &mut VecDeque<Command>) {
        let mut state = self.lock();
        if into.is_empty() {
            std::mem::swap(&mut state.commands, into);
        } else {
            into.append(&mut state.commands);
        }
        if !state
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            state.waker = Some(cx.waker().clone());
        }
    }

    /// A panic under the lock leaves a list that is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrival").finish_non_exhaustive()
    }
}
