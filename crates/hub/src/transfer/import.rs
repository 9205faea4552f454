//! The new process's side: takes the channels, then the streams, and sends the old process the
//! messages of the channels that it still has subscribers of.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_exchange::{AddressPrefix, ConnectionAdopter, HeldConnection};
use tokio::sync::Notify;

use super::link::Received;
use super::records::{ChannelRecord, PredecessorMessage, SuccessorMessage};
use super::reply_queue::{Reply, ReplyQueue, UnconfirmedStreams};
use super::{
    AdoptedStream, OwnerRecord, SHARED_TRANSFER_VERSION, SessionRecord, StreamPlaces, StreamRecord,
    TRANSFER_VERSION, TransferError, TransferSocket,
};
use crate::counters::StreamPermit;
use crate::hub::{HubShared, PendingSubscription, PublicationSource};
use crate::shard::{ArrivedStream, ArrivingConnection, ShardCommand};
use crate::{Hub, HubError, Publication};

/// Takes a hub over from another process.
#[derive(Debug)]
pub struct HubReceiver {
    shared: Arc<HubShared>,
    socket: TransferSocket,
    adopter: Arc<dyn ConnectionAdopter>,
    replies: Arc<ReplyQueue>,
    /// This listener of the channels that the old process follows.
    listener_id: u64,
    /// Streams of channels that other servers share.
    shared_batches: SharedBatches,
}

/// Channels that stay, with their messages, while the transfer needs them.
#[derive(Debug, Default)]
struct KeptChannels {
    /// All, until the streams have moved.
    imported: Vec<PendingSubscription>,
    /// Those that the old process has subscribers of.
    followed: HashMap<Arc<str>, PendingSubscription>,
}

/// Streams that have come together, with the sockets that there was room for.
#[derive(Debug)]
struct StreamsBatch {
    number: u64,
    streams: Vec<StreamRecord>,
    fds: Vec<OwnedFd>,
}

/// Batches that wait until this process has caught up: the old one sends few at a time.
#[derive(Debug, Default)]
struct SharedBatches {
    batches: Mutex<Vec<StreamsBatch>>,
    wakeup: Notify,
}

/// How a stream's places in its channels are found.
type FindPlaces<'a> =
    &'a dyn Fn(&StreamRecord, &Arc<HubShared>) -> Result<Vec<PendingSubscription>, HubError>;

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
            replies: Arc::new(ReplyQueue::new(self.settings().max_backlog_total)),
            listener_id: self.shared.next_sequence(),
            shared_batches: SharedBatches::default(),
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
            () = self.take_shared_batches() => Ok(()),
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
        let is_shared = self.receive_hello().await?;
        loop {
            let Received { message, fds } = self.socket.receive().await?;
            match message {
                PredecessorMessage::Channel(record) => self.import_channel(record, kept),
                PredecessorMessage::ChannelsEnd => {
                    self.reply(Reply::other(SuccessorMessage::Imported));
                }
                PredecessorMessage::Streams { batch, streams } => {
                    let batch = StreamsBatch {
                        number: batch,
                        streams,
                        fds,
                    };
                    match is_shared {
                        true => self.shared_batches.push(batch),
                        false => self.take_streams(batch, &StreamRecord::places_in_channels),
                    }
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

    /// Whether other servers share the channels.
    async fn receive_hello(&self) -> Result<bool, TransferError> {
        let (version, is_shared) = match self.socket.receive().await?.message {
            PredecessorMessage::Hello {
                version: TRANSFER_VERSION,
                id_prefix,
                last_sequence,
                removed_up_to,
                is_shared: false,
            } => {
                self.shared
                    .continue_ids(&id_prefix, last_sequence, removed_up_to);
                (TRANSFER_VERSION, false)
            }
            PredecessorMessage::Hello {
                version, is_shared, ..
            } => (version, is_shared),
            other => return Err(TransferError::BadMessage(format!("{other:?}"))),
        };
        let is_shared_here = self.shared.bus_of_shared_channels().is_some();
        match (version, is_shared) {
            (TRANSFER_VERSION, false) | (SHARED_TRANSFER_VERSION, true) => {}
            _ => return Err(TransferError::Version(version)),
        }
        if is_shared != is_shared_here {
            return Err(TransferError::OtherServers);
        }
        self.shared.set_importing(true);
        Ok(is_shared)
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
                        (message, UnconfirmedStreams(Vec::new()))
                    }
                    Reply::Taken {
                        batch,
                        refused,
                        arrivals,
                    } => {
                        let taken = SuccessorMessage::Taken {
                            batch,
                            refused,
                            is_postponed: false,
                        };
                        (taken, arrivals)
                    }
                    Reply::Other(message) => (*message, UnconfirmedStreams(Vec::new())),
                };
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

    /// Takes batches of streams whose channels other servers share.
    async fn take_shared_batches(&self) {
        loop {
            let batches = self.shared_batches.take_all().await;
            // Kept until the streams have their places: they tell what the channels have.
            let channels = self.open_channels(&batches);
            if self.catch_up(&batches).await {
                for batch in batches {
                    self.take_streams(batch, &StreamRecord::places_in_shared_channels);
                }
                drop(channels);
                continue;
            }
            log::debug!("hub: streams wait until the messages of other servers have come");
            for batch in batches {
                self.reply(Reply::other(SuccessorMessage::Taken {
                    batch: batch.number,
                    refused: (0..batch.streams.len()).collect(),
                    is_postponed: true,
                }));
            }
        }
    }

    /// The channels of these batches. One for which there is no room refuses its streams later.
    fn open_channels(&self, batches: &[StreamsBatch]) -> Vec<PendingSubscription> {
        let channels = shared_channels(batches).into_iter();
        let opened = channels.map(|name| PendingSubscription::for_channel(&self.shared, name));
        opened.flatten().collect()
    }

    /// Waits until this process has every message that a stream of these batches has.
    async fn catch_up(&self, batches: &[StreamsBatch]) -> bool {
        let Some(bus) = self.shared.bus_of_shared_channels() else {
            return false;
        };
        let channels = shared_channels(batches).into_iter().cloned();
        bus.catch_up(channels.collect()).await
    }

    /// `places` finds a stream's places in its channels.
    fn take_streams(&self, batch: StreamsBatch, places: FindPlaces<'_>) {
        let StreamsBatch {
            number: batch,
            streams,
            fds,
        } = batch;
        let count = streams.len();
        // Descriptors beyond what this process may open did not arrive.
        let mut refused: Vec<usize> = (fds.len()..count).collect();
        let mut arrivals = Vec::with_capacity(count);
        for (place, (record, socket)) in streams.into_iter().zip(fds).enumerate() {
            match self.adopt(record, socket, places) {
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
            arrivals: UnconfirmedStreams(arrivals),
        });
    }

    fn adopt(
        &self,
        mut record: StreamRecord,
        socket: OwnedFd,
        find_places: FindPlaces<'_>,
    ) -> Result<ArrivedStream, String> {
        let client = record.client.map(AddressPrefix::from_bits);
        let permit = StreamPermit::acquire(&self.shared, client);
        let permit = permit.map_err(|error| error.to_string())?;
        let session = match record.tls.take() {
            None => None,
            Some(SessionRecord { session, unsent }) => {
                let layer = self.adopter.restore_record_layer(&session.0);
                let layer = layer.map_err(|error| error.to_string())?;
                Some((layer, unsent.0.to_vec()))
            }
        };
        let mut adopted = match record.owner.take() {
            Some(OwnerRecord {
                participant, data, ..
            }) => self
                .shared
                .participants
                .find(&participant)?
                .adopt_stream(data)?,
            None => AdoptedStream::default(),
        };
        if adopted.places.is_none() {
            match find_places(&record, &self.shared) {
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
        let client = match session {
            None => HeldConnection::from(socket),
            Some((layer, unsent)) => HeldConnection::sealed(socket, layer, unsent),
        };
        let connection = ArrivingConnection::Adopted(Arc::clone(&self.adopter));
        Ok(record.into_arrival(adopted, (client, connection), permit))
    }

    fn reply(&self, reply: Reply) {
        self.replies.push_reply(reply);
        self.replies.wakeup.notify_one();
    }
}

fn shared_channels(batches: &[StreamsBatch]) -> HashSet<&Arc<str>> {
    let streams = batches.iter().flat_map(|batch| &batch.streams);
    streams.flat_map(StreamRecord::followed_channels).collect()
}

impl SharedBatches {
    fn push(&self, batch: StreamsBatch) {
        self.lock().push(batch);
        self.wakeup.notify_one();
    }

    /// Waits for at least one. Cancel safety: nothing is lost.
    async fn take_all(&self) -> Vec<StreamsBatch> {
        loop {
            let batches = std::mem::take(&mut *self.lock());
            if !batches.is_empty() {
                return batches;
            }
            self.wakeup.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StreamsBatch>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
