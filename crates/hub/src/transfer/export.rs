//! The old process's side: hands over the channels, then the streams, then forwards what is still
//! published here.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_runtime::{clock, loops};
use tokio::sync::{Notify, mpsc};

use super::records::{PredecessorMessage, StreamsMessage, SuccessorMessage};
use super::successor::{ForwardedItem, OutboxItem, SuccessorLink};
use super::{
    SEND_TIMEOUT, SHARED_TRANSFER_VERSION, TRANSFER_VERSION, TransferError, TransferSocket,
};
use crate::Hub;
use crate::hub::HubShared;
use crate::shard::{ShardCommand, TransferBatch, TransferEvent};

/// How long the new process may take to have all channels: it waits for the word to serve.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(8);

/// A hub that moves to another process. Dropped before its end, it takes back what did not move.
#[derive(Debug)]
pub struct HubTransfer {
    task: Arc<TransferTask>,
    /// Until the task has it.
    events: Option<mpsc::UnboundedReceiver<TransferEvent>>,
}

#[derive(Debug)]
struct TransferTask {
    shared: Arc<HubShared>,
    link: Arc<SuccessorLink>,
    socket: TransferSocket,
    /// For shards.
    event_sender: mpsc::UnboundedSender<TransferEvent>,
    in_flight: Mutex<InFlight>,
    /// The other process has the authority, or is given it; or it takes the streams of shared
    /// channels.
    is_begun: AtomicBool,
    /// Every stream that can move has moved, or no more will.
    is_settled: AtomicBool,
    settled: Notify,
    cancelled: Notify,
}

/// Batches that were sent and not taken yet.
#[derive(Debug, Default)]
struct InFlight {
    batches: HashMap<u64, Arc<TransferBatch>>,
    last_number: u64,
    /// Shards that have no more streams to move.
    idle_shards: Vec<u16>,
    moved: usize,
}

impl Hub {
    /// Begins the transfer to the process at the other end of `socket`, from the current loop.
    ///
    /// # Errors
    /// When no loop runs here, or the kernel does not watch the socket.
    pub fn transfer_to(&self, socket: OwnedFd) -> io::Result<HubTransfer> {
        let (event_sender, events) = mpsc::unbounded_channel();
        let task = TransferTask {
            shared: self.shared.clone(),
            link: Arc::new(SuccessorLink::new(
                self.settings().max_backlog_total,
                &self.shared.id_prefix.load(),
            )),
            socket: TransferSocket::new(socket)?,
            event_sender,
            in_flight: Mutex::default(),
            is_begun: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
            settled: Notify::new(),
            cancelled: Notify::new(),
        };
        Ok(HubTransfer {
            task: Arc::new(task),
            events: Some(events),
        })
    }
}

impl HubTransfer {
    /// Hands over the channels; from then on the other process has the authority over them. To be
    /// called before it accepts connections.
    ///
    /// # Errors
    /// Why not: this hub goes on alone.
    pub async fn hand_over_channels(&mut self) -> Result<(), TransferError> {
        let handed = clock::timeout(IMPORT_TIMEOUT, self.task.send_channels()).await;
        if let Err(error) = handed.unwrap_or(Err(TransferError::NoAnswer)) {
            self.task.take_back();
            return Err(error);
        }
        if let Some(events) = self.events.take() {
            let task = Arc::clone(&self.task);
            loops::spawn_here(async move { task.run(events).await });
        }
        Ok(())
    }

    /// Lets the streams move. To be called when the other process serves.
    pub fn hand_over_streams(&self) {
        self.task
            .command_shards(|| ShardCommand::StartTransfer(self.task.event_sender.clone()));
    }

    /// Waits until every stream that can move has moved, or the transfer has ended. Cancel safety:
    /// it may be called again.
    pub async fn wait_until_streams_moved(&self) {
        loop {
            let settled = self.task.settled.notified();
            if self.task.is_settled.load(Ordering::Acquire) {
                return;
            }
            settled.await;
        }
    }

    /// Lets no more streams move: what is left ends with this server.
    pub fn stop_streams(&self) {
        self.task.command_shards(|| ShardCommand::StopTransfer);
    }

    /// How many streams have moved.
    #[must_use]
    pub fn moved_streams(&self) -> usize {
        self.task.lock().moved
    }
}

impl Drop for HubTransfer {
    fn drop(&mut self) {
        match self.events {
            // No task runs that could.
            Some(_) => self.task.take_back(),
            None => self.task.cancelled.notify_one(),
        }
    }
}

impl TransferTask {
    async fn send_channels(&self) -> Result<(), TransferError> {
        let is_shared = self.shared.bus_of_shared_channels().is_some();
        // First, so that this hub gives no number behind the last one but in the channels' records.
        self.is_begun.store(true, Ordering::Release);
        self.shared
            .begin_handing_over((!is_shared).then_some(&self.link));
        let hello = PredecessorMessage::Hello {
            version: match is_shared {
                true => SHARED_TRANSFER_VERSION,
                false => TRANSFER_VERSION,
            },
            id_prefix: self.shared.id_prefix.load().to_string(),
            last_sequence: self.shared.last_sequence.load(Ordering::SeqCst),
            removed_up_to: self.shared.registry.removed_up_to(),
            is_shared,
        };
        self.socket.send(&hello, &[]).await?;
        if !is_shared {
            self.send_channel_records().await?;
        }
        self.send_participants().await?;
        self.socket
            .send(&PredecessorMessage::ChannelsEnd, &[])
            .await?;
        match self.socket.receive().await?.message {
            SuccessorMessage::Imported => Ok(()),
            other => Err(TransferError::BadMessage(format!("{other:?}"))),
        }
    }

    async fn send_channel_records(&self) -> Result<(), TransferError> {
        for channel in self.shared.registry.all_by_partition().flatten() {
            let record = self.shared.export_channel(&channel, &self.link);
            if let Some(record) = record {
                if record.is_followed {
                    self.link.mark_followed(&record.name);
                }
                self.socket
                    .send(&PredecessorMessage::Channel(record), &[])
                    .await?;
            }
        }
        Ok(())
    }

    async fn send_participants(&self) -> Result<(), TransferError> {
        for participant in self.shared.participants.all() {
            let (link, name) = (Arc::clone(&self.link), participant.name());
            let forward = move |item| link.forward(ForwardedItem::Participant(name, item));
            for state in participant.begin_transfer(Arc::new(forward)) {
                let message = PredecessorMessage::ParticipantState {
                    participant: name.to_owned(),
                    state,
                };
                self.socket.send(&message, &[]).await?;
            }
        }
        Ok(())
    }

    /// Sends and receives until the other process has ended.
    async fn run(self: Arc<Self>, mut events: mpsc::UnboundedReceiver<TransferEvent>) {
        let ended = tokio::select! {
            ended = self.send_all(&mut events) => ended,
            ended = self.receive_all() => ended,
            () = self.cancelled.notified() => Ok(()),
        };
        if let Err(error) = ended {
            log::warn!("hub: transfer to the next process ended: {error}");
        }
        // The other process takes nothing more from here on. What it took before is in its answers,
        // and no socket may have two owners.
        self.socket.shutdown();
        let answers = clock::timeout(SEND_TIMEOUT, self.receive_all());
        if answers.await.is_none() {
            log::error!("hub: the next process does not end the transfer: its last streams end");
            let batches = std::mem::take(&mut self.lock().batches);
            for batch in batches.into_values().filter_map(Arc::into_inner) {
                self.send_to_shard(batch.shard, ShardCommand::ReleaseMoved(batch.streams));
            }
        }
        // Shards keep what they cannot send any more.
        events.close();
        while let Ok(event) = events.try_recv() {
            if let TransferEvent::Batch(TransferBatch { shard, streams }) = event {
                self.send_to_shard(shard, ShardCommand::AddDetached(streams, false));
            }
        }
        self.take_back();
    }

    async fn send_all(
        &self,
        events: &mut mpsc::UnboundedReceiver<TransferEvent>,
    ) -> Result<(), TransferError> {
        loop {
            while let Some(item) = self.link.next_item() {
                self.socket
                    .send(&PredecessorMessage::from(item), &[])
                    .await?;
            }
            tokio::select! {
                () = self.link.wakeup.notified() => {}
                event = events.recv() => match event {
                    Some(TransferEvent::Batch(batch)) => self.send_batch(batch).await?,
                    Some(TransferEvent::Idle(shard)) => {
                        self.lock().idle_shards.push(shard);
                        self.settle_if_done();
                    }
                    // This has a sender itself.
                    None => return Ok(()),
                },
            }
        }
    }

    async fn send_batch(&self, batch: TransferBatch) -> Result<(), TransferError> {
        let batch = Arc::new(batch);
        let number = {
            let mut in_flight = self.lock();
            in_flight.last_number += 1;
            let number = in_flight.last_number;
            in_flight.batches.insert(number, Arc::clone(&batch));
            number
        };
        let message = StreamsMessage::Streams {
            batch: number,
            streams: batch.streams.iter().map(|stream| &stream.record).collect(),
        };
        let sockets = batch.streams.iter();
        let sockets: Vec<_> = sockets
            .map(|stream| stream.connection.socket.as_fd())
            .collect();
        self.socket.send(&message, &sockets).await
    }

    async fn receive_all(&self) -> Result<(), TransferError> {
        loop {
            match self.socket.receive().await?.message {
                SuccessorMessage::Taken {
                    batch,
                    refused,
                    is_postponed,
                } => {
                    self.finish_batch(batch, &refused, is_postponed);
                    self.settle_if_done();
                }
                SuccessorMessage::Accepted(number) => self.link.mark_accepted(number),
                SuccessorMessage::Message {
                    sequence,
                    channel,
                    mut publication,
                } => {
                    publication.channel = channel.clone();
                    let id = publication.id.clone();
                    self.shared.deliver_mirrored(sequence, publication);
                    self.link.mark_delivered(&channel, id.as_ref());
                }
                SuccessorMessage::Channel(record) => {
                    let name = record.name.clone();
                    self.shared.apply_channel_record(record);
                    self.link.mark_followed(&name);
                }
                other @ SuccessorMessage::Imported => {
                    return Err(TransferError::BadMessage(format!("{other:?}")));
                }
            }
        }
    }

    /// Lets go of the streams of a batch that were taken, and keeps the others.
    fn finish_batch(&self, number: u64, refused: &[usize], is_postponed: bool) {
        let batch = self
            .lock()
            .batches
            .remove(&number)
            .and_then(Arc::into_inner);
        let Some(TransferBatch { shard, streams }) = batch else {
            return log::error!("hub: batch {number} of streams is not known");
        };
        let mut taken = Vec::with_capacity(streams.len());
        let mut kept = Vec::new();
        for (place, stream) in streams.into_iter().enumerate() {
            match refused.contains(&place) {
                false => taken.push(stream),
                true => kept.push(stream),
            }
        }
        self.lock().moved += taken.len();
        if !kept.is_empty() && !is_postponed {
            log::warn!(
                "hub: {} streams stay here until this process stops: the next one refuses them",
                kept.len()
            );
        }
        self.send_to_shard(shard, ShardCommand::ReleaseMoved(taken));
        self.send_to_shard(shard, ShardCommand::AddDetached(kept, !is_postponed));
    }

    fn settle_if_done(&self) {
        let is_done = {
            let in_flight = self.lock();
            in_flight.batches.is_empty()
                && in_flight.idle_shards.len() >= self.shared.shard_inboxes.len()
        };
        if is_done {
            self.settle();
        }
    }

    fn settle(&self) {
        if !self.is_settled.swap(true, Ordering::AcqRel) {
            self.link.mark_streams_moved(&self.shared);
            self.settled.notify_waiters();
        }
    }

    /// Ends the transfer: what did not move stays here, and this hub is its own authority again.
    fn take_back(&self) {
        if !self.is_begun.swap(false, Ordering::AcqRel) {
            return self.settle();
        }
        self.command_shards(|| ShardCommand::StopTransfer);
        let batches = std::mem::take(&mut self.lock().batches);
        for batch in batches.into_values().filter_map(Arc::into_inner) {
            let kept = ShardCommand::AddDetached(batch.streams, false);
            self.send_to_shard(batch.shard, kept);
        }
        // In this order: what was accepted before comes before what is published from here on.
        self.link.take_back_authority(&self.shared);
        for participant in self.shared.participants.all() {
            participant.cancel_transfer();
        }
        self.settle();
    }

    fn command_shards(&self, command: impl Fn() -> ShardCommand) {
        for number in 0..self.shared.shard_inboxes.len() {
            self.send_to_shard(u16::try_from(number).unwrap_or(0), command());
        }
    }

    fn send_to_shard(&self, shard: u16, command: ShardCommand) {
        let inbox = &self.shared.shard_inboxes[usize::from(shard)];
        if let Some(waker) = inbox.push(command) {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<OutboxItem> for PredecessorMessage {
    fn from(item: OutboxItem) -> Self {
        match item {
            OutboxItem::Forward(number, ForwardedItem::Publication(publication)) => Self::Publish {
                number,
                channel: publication.channel.clone(),
                publication: *publication,
            },
            OutboxItem::Forward(number, ForwardedItem::Participant(name, item)) => Self::Forward {
                number,
                participant: name.to_owned(),
                item,
            },
            OutboxItem::Subscribe(channel) => Self::Subscribe(channel),
            OutboxItem::Unsubscribe(channel) => Self::Unsubscribe(channel),
            OutboxItem::StreamsMoved => Self::StreamsMoved,
        }
    }
}
