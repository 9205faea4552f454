//! The new process's side: takes the channels, then the streams, and sends the old process the
//! messages of the channels that it still has subscribers of.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_exchange::{AddressPrefix, ConnectionAdopter};
use tokio::sync::Notify;

use super::link::Received;
use super::records::{ChannelRecord, PredecessorMessage, SuccessorMessage};
use super::{
    AdoptedStream, OwnerRecord, StreamPlaces, StreamRecord, TRANSFER_VERSION, TransferError,
    TransferSocket,
};
use crate::channel::Message;
use crate::counters::StreamPermit;
use crate::hub::{HubShared, MessageSink, PendingSubscription, PublicationSource};
use crate::shard::{ArrivedStream, ArrivingConnection, ShardCommand};
use crate::{Hub, Publication};

/// Takes a hub over from another process.
#[derive(Debug)]
pub struct HubReceiver {
    shared: Arc<HubShared>,
    socket: TransferSocket,
    adopter: Arc<dyn ConnectionAdopter>,
    replies: Arc<ReplyQueue>,
    /// This listener of the channels that the old process follows.
    listener_id: u64,
}

/// Channels that stay, with their messages, while the transfer needs them.
#[derive(Debug, Default)]
struct KeptChannels {
    /// All, until the streams have moved.
    imported: Vec<PendingSubscription>,
    /// Those that the old process has subscribers of.
    followed: HashMap<Arc<str>, PendingSubscription>,
}

/// What the old process is to be sent, in order.
#[derive(Debug)]
struct ReplyQueue {
    state: Mutex<ReplyState>,
    wakeup: Notify,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct ReplyState {
    replies: VecDeque<Reply>,
    bytes: usize,
    has_overflowed: bool,
}

#[derive(Debug)]
enum Reply {
    Message(Arc<Message>),
    /// With the streams of the batch that go to a shard once this is sent.
    Taken {
        batch: u64,
        refused: Vec<usize>,
        arrivals: Vec<ArrivedStream>,
    },
    Other(Box<SuccessorMessage>),
}

impl Hub {
    /// Prepares to take over a hub from the process at the other end of `socket`, on the current
    /// loop. `adopter` counts the connections that come.
    ///
    /// # Errors
    /// When no loop runs here, or the kernel does not watch the socket.
    pub fn receive_transfer(
        &self,
        socket: OwnedFd,
        adopter: Arc<dyn ConnectionAdopter>,
    ) -> io::Result<HubReceiver> {
        Ok(HubReceiver {
            shared: self.shared.clone(),
            socket: TransferSocket::new(socket)?,
            adopter,
            replies: Arc::new(ReplyQueue {
                state: Mutex::default(),
                wakeup: Notify::new(),
                max_bytes: self.settings().max_backlog_total,
            }),
            listener_id: self.shared.next_sequence(),
        })
    }
}

impl HubReceiver {
    /// Takes everything over until the old process ends.
    ///
    /// # Errors
    /// Why the transfer ended before: what was taken stays here.
    pub async fn run(self) -> Result<(), TransferError> {
        let mut kept = KeptChannels::default();
        let ended = tokio::select! {
            ended = self.receive_all(&mut kept) => ended,
            ended = self.send_replies() => ended,
        };
        self.replies.drop_unsent();
        self.finish_import();
        for channel in kept.followed.values() {
            self.unfollow(channel);
        }
        match ended {
            Err(TransferError::Closed) => Ok(()),
            ended => ended,
        }
    }

    async fn receive_all(&self, kept: &mut KeptChannels) -> Result<(), TransferError> {
        match self.socket.receive().await?.message {
            PredecessorMessage::Hello { version, .. } if version != TRANSFER_VERSION => {
                return Err(TransferError::Version(version));
            }
            PredecessorMessage::Hello {
                id_prefix,
                last_sequence,
                removed_up_to,
                ..
            } => {
                self.shared.set_importing(true);
                self.shared
                    .continue_ids(&id_prefix, last_sequence, removed_up_to);
            }
            other => return Err(TransferError::BadMessage(format!("{other:?}"))),
        }
        loop {
            let Received { message, fds } = self.socket.receive().await?;
            match message {
                PredecessorMessage::Channel(record) => self.import_channel(record, kept),
                PredecessorMessage::ChannelsEnd => {
                    self.reply(Reply::other(SuccessorMessage::Imported));
                }
                PredecessorMessage::Streams { batch, streams } => {
                    self.take_streams(batch, streams, fds);
                }
                PredecessorMessage::StreamsMoved => {
                    self.finish_import();
                    kept.imported.clear();
                }
                PredecessorMessage::ParticipantState { participant, state } => {
                    let taken = self.shared.participants.find(&participant);
                    if let Err(error) = taken.and_then(|it| it.import_state(state)) {
                        log::warn!("hub: state of {participant} is not taken over: {error}");
                    }
                }
                PredecessorMessage::Forward {
                    number,
                    participant,
                    item,
                } => {
                    let taken = self.shared.participants.find(&participant);
                    if let Err(error) = taken.and_then(|it| it.receive(item)) {
                        log::warn!("{participant}: an update is lost: {error}");
                    }
                    self.reply(Reply::other(SuccessorMessage::Accepted(number)));
                }
                PredecessorMessage::Publish {
                    number,
                    channel,
                    mut publication,
                } => {
                    publication.channel = channel;
                    self.publish(publication);
                    self.reply(Reply::other(SuccessorMessage::Accepted(number)));
                }
                PredecessorMessage::Subscribe(channel) => self.follow(&channel, kept),
                PredecessorMessage::Unsubscribe(channel) => {
                    if let Some(channel) = kept.followed.remove(&channel) {
                        self.unfollow(&channel);
                    }
                }
                hello @ PredecessorMessage::Hello { .. } => {
                    return Err(TransferError::BadMessage(format!("{hello:?}")));
                }
            }
        }
    }

    async fn send_replies(&self) -> Result<(), TransferError> {
        let mut next_shard = 0;
        loop {
            while let Some(reply) = self.replies.pop()? {
                let (message, arrivals) = match reply {
                    Reply::Message(message) => {
                        let message = SuccessorMessage::Message {
                            sequence: message.sequence,
                            channel: message.publication.channel.clone(),
                            publication: message.publication.clone(),
                        };
                        (message, Vec::new())
                    }
                    Reply::Taken {
                        batch,
                        refused,
                        arrivals,
                    } => (SuccessorMessage::Taken { batch, refused }, arrivals),
                    Reply::Other(message) => (*message, Vec::new()),
                };
                let arrivals = UnconfirmedStreams(arrivals);
                self.socket.send(&message, &[]).await?;
                // Only now is a byte written to them.
                let shard = &self.shared.shard_inboxes[next_shard];
                for arrival in arrivals.confirm() {
                    if let Some(waker) = shard.push(ShardCommand::AddStream(Box::new(arrival))) {
                        waker.wake();
                    }
                }
                next_shard = (next_shard + 1) % self.shared.shard_inboxes.len();
            }
            self.replies.wakeup.notified().await;
        }
    }

    fn finish_import(&self) {
        self.shared.set_importing(false);
        for participant in self.shared.participants.all() {
            participant.finish_import();
        }
    }

    fn import_channel(&self, record: ChannelRecord, kept: &mut KeptChannels) {
        let (name, is_followed) = (record.name.clone(), record.is_followed);
        match self.shared.import_channel(record) {
            Ok(pending) => kept.imported.push(pending),
            Err(refused) => {
                return log::warn!("hub: channel {name:?} is not taken over: {refused}");
            }
        }
        if is_followed {
            self.attach(&name, kept, false);
        }
    }

    /// Lets the old process have the state of a channel and its messages from then on.
    fn follow(&self, name: &Arc<str>, kept: &mut KeptChannels) {
        self.attach(name, kept, true);
    }

    fn attach(&self, name: &Arc<str>, kept: &mut KeptChannels, sends_state: bool) {
        let channel = match PendingSubscription::for_channel(&self.shared, name) {
            Ok(channel) => channel,
            Err(refused) => {
                log::warn!("hub: channel {name:?} is not followed by the old process: {refused}");
                // It has what it waits for.
                let empty = ChannelRecord {
                    name: name.clone(),
                    ..ChannelRecord::default()
                };
                return self.reply(Reply::other(SuccessorMessage::Channel(empty)));
            }
        };
        self.shared.attach_listener(
            &channel,
            self.listener_id,
            &(self.replies.clone() as _),
            |state| {
                if sends_state {
                    let record = self.shared.channel_record(name, state);
                    self.reply(Reply::other(SuccessorMessage::Channel(record)));
                }
            },
        );
        kept.followed.insert(name.clone(), channel);
    }

    fn unfollow(&self, channel: &PendingSubscription) {
        self.shared.remove_subscriber(&channel.channel, |state| {
            state.listeners.remove(&self.listener_id);
        });
        self.shared.bus_notifier.notify();
    }

    /// Publishes what the old process has accepted.
    fn publish(&self, publication: Publication) {
        let name = publication.channel.clone();
        let source = PublicationSource::Forwarded;
        if let Err(error) = self.shared.deliver_from(publication, source) {
            log::warn!("hub: channel {name:?}: a message is lost: {error}");
        }
    }

    fn take_streams(&self, batch: u64, streams: Vec<StreamRecord>, fds: Vec<OwnedFd>) {
        let count = streams.len();
        // Descriptors beyond what this process may open did not arrive.
        let mut refused: Vec<usize> = (fds.len()..count).collect();
        let mut arrivals = Vec::with_capacity(count);
        for (place, (record, socket)) in streams.into_iter().zip(fds).enumerate() {
            match self.adopt(record, socket) {
                Ok(arrival) => arrivals.push(arrival),
                Err(error) => {
                    log::debug!("hub: a stream is not taken over: {error}");
                    refused.push(place);
                }
            }
        }
        self.reply(Reply::Taken {
            batch,
            refused,
            arrivals,
        });
    }

    fn adopt(&self, mut record: StreamRecord, socket: OwnedFd) -> Result<ArrivedStream, String> {
        let client = record.client.map(AddressPrefix::from_bits);
        let permit = StreamPermit::acquire(&self.shared, client);
        let permit = permit.map_err(|error| error.to_string())?;
        let mut adopted = match record.owner.take() {
            Some(OwnerRecord { participant, data }) => self
                .shared
                .participants
                .find(&participant)?
                .adopt_stream(data)?,
            None => AdoptedStream::default(),
        };
        if adopted.places.is_none() {
            match record.places_in_channels(&self.shared) {
                Ok(places) => adopted.places = Some(StreamPlaces(places)),
                Err(error) => {
                    // The old process keeps the stream: it has not ended.
                    if let Some(on_end) = adopted.on_end {
                        on_end.disarm();
                    }
                    return Err(error.to_string());
                }
            }
        }
        let connection = ArrivingConnection::Adopted(Arc::clone(&self.adopter));
        Ok(record.into_arrival(adopted, (socket.into(), connection), permit))
    }

    fn reply(&self, reply: Reply) {
        self.replies.lock().replies.push_back(reply);
        self.replies.wakeup.notify_one();
    }
}

impl Reply {
    fn other(message: SuccessorMessage) -> Self {
        Self::Other(Box::new(message))
    }
}

/// Streams that the old process has still: dropped, they do not end.
#[derive(Debug)]
struct UnconfirmedStreams(Vec<ArrivedStream>);

impl UnconfirmedStreams {
    fn confirm(mut self) -> Vec<ArrivedStream> {
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
    fn drop_unsent(&self) {
        for reply in std::mem::take(&mut self.lock().replies) {
            if let Reply::Taken { arrivals, .. } = reply {
                drop(UnconfirmedStreams(arrivals));
            }
        }
    }

    fn pop(&self) -> Result<Option<Reply>, TransferError> {
        let mut state = self.lock();
        if state.has_overflowed {
            return Err(TransferError::Overflow);
        }
        let reply = state.replies.pop_front();
        if let Some(Reply::Message(message)) = &reply {
            state.bytes -= message.memory_bytes;
        }
        Ok(reply)
    }

    fn lock(&self) -> MutexGuard<'_, ReplyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MessageSink for ReplyQueue {
    fn push(&self, message: Arc<Message>, _: usize) {
        let mut state = self.lock();
        if state.bytes + message.memory_bytes > self.max_bytes {
            state.has_overflowed = true;
            return;
        }
        state.bytes += message.memory_bytes;
        state.replies.push_back(Reply::Message(message));
    }

    fn wake(&self) {
        self.wakeup.notify_one();
    }
}
