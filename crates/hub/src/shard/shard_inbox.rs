//! The inbox of a shard, for commands from any thread.
//!
//! # Invariants
//! - Its lock is held for a push or a swap only. It comes last of all locks, so that a publisher
//!   may push under the lock of a channel.
//! - Its content is bounded by the senders: publications by `pending_bytes`, arrivals by the
//!   number of connections.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use penstock_exchange::{ConnectionAdopter, HeldConnection, HeldConnectionGuard};
use tokio::sync::mpsc;

use crate::channel::{Channel, Message, StreamFormat};
use crate::hub::{LongPollWaiter, StreamRequest};
use crate::transfer::DetachedStream;

use super::backlog::BacklogPiece;

#[derive(Debug)]
pub(crate) enum ShardCommand {
    AddStream(Box<ArrivedStream>),
    Deliver(ShardDelivery),
    AnswerLongPolls(LongPollAnswers),
    /// All streams end, spread over this time.
    Drain(Duration),
    /// All streams go to another process by way of this.
    StartTransfer(mpsc::UnboundedSender<TransferEvent>),
    /// No more streams go there.
    StopTransfer,
    /// These have gone.
    ReleaseMoved(Vec<DetachedStream>),
    /// These have not; `true`: the other process refused them.
    AddDetached(Vec<DetachedStream>, bool),
}

/// From a shard to the transfer.
#[derive(Debug)]
pub(crate) enum TransferEvent {
    Batch(TransferBatch),
    /// This shard has no more streams that can move.
    Idle(u16),
}

/// Streams of one shard on their way to another process.
#[derive(Debug)]
pub(crate) struct TransferBatch {
    pub(crate) shard: u16,
    pub(crate) streams: Vec<DetachedStream>,
}

/// The front end's count of an arriving stream's connection.
#[derive(Debug)]
pub(crate) enum ArrivingConnection {
    Counted(HeldConnectionGuard),
    /// It comes from another process: the shard has it counted.
    Adopted(Arc<dyn ConnectionAdopter>),
}

#[derive(Debug)]
pub(crate) struct ArrivedStream {
    pub(crate) client: HeldConnection,
    /// Bytes of its client that were read after the request.
    pub(crate) pipelined_bytes: usize,
    /// It was found to have closed its sending side.
    pub(crate) is_probed: bool,
    /// No other process took it.
    pub(crate) is_pinned: bool,
    pub(crate) format: StreamFormat,
    pub(crate) connection: ArrivingConnection,
    /// What its socket did not take elsewhere, framed.
    pub(crate) unsent: Vec<BacklogPiece>,
    pub(crate) request: Box<StreamRequest>,
}

/// A message for the subscribers of the channel that the shard keeps at `channel_slot`, if it
/// still does.
#[derive(Debug)]
pub(crate) struct ShardDelivery {
    pub(crate) channel_slot: u32,
    pub(crate) channel: Arc<Channel>,
    pub(crate) message: Arc<Message>,
}

#[derive(Debug)]
pub(crate) struct LongPollAnswers {
    pub(crate) channel: Arc<Channel>,
    pub(crate) message: Arc<Message>,
    pub(crate) waiters: Vec<Arc<LongPollWaiter>>,
}

/// Commands that a shard has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct ShardInbox {
    /// Guards the commands and the waker for the first of them.
    state: Mutex<ShardInboxState>,
}

#[derive(Debug, Default)]
struct ShardInboxState {
    commands: VecDeque<ShardCommand>,
    waker: Option<Waker>,
}

impl ShardInbox {
    /// Adds a command; returns the waker to call once no lock is held.
    #[must_use]
    pub(crate) fn push(&self, command: ShardCommand) -> Option<Waker> {
        let mut state = self.lock();
        state.commands.push_back(command);
        state.waker.take()
    }

    /// Moves all commands to the end of `into`, and registers the task to be woken by the next.
    pub(super) fn take_commands(&self, cx: &Context<'_>, into: &mut VecDeque<ShardCommand>) {
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
    fn lock(&self) -> MutexGuard<'_, ShardInboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
