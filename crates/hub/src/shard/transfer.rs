//! Streams that leave a shard for another process, and those that come back from there.
//!
//! # Invariants
//! - A stream on its way is in no list, and neither written to nor watched.
//! - Few batches are on their way at a time.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::HeldConnection;
use tokio::sync::mpsc;

use super::backlog::{BacklogPiece, PieceKind};
use super::live_stream::LiveStream;
use super::shard_inbox::{ArrivedStream, ArrivingConnection};
use super::{Shard, TICKS_PER_SECOND, TransferBatch, TransferEvent};
use crate::channel::is_internal_channel;
use crate::counters::{self, StreamPermit};
use crate::hub::{HubShared, PendingSubscription, StreamRequest};
use crate::transfer::{
    AdoptedStream, ByteRecord, DetachedStream, KeepAliveRecord, OwnerTransfer, SessionRecord,
    SharedPlace, StreamChannelRecord, StreamPlaces, StreamRecord, UnsentRecord,
};
use crate::{Bus, HeldStream, HubError, StreamKeepAlive, Subscription};

/// Streams of a batch: their sockets go in one packet.
const BATCH_STREAMS: usize = 64;

/// Streams that are looked at in a turn.
const LOOKS_PER_TURN: usize = 256;

/// Batches on their way.
const MAX_BATCHES: usize = 4;

/// A transfer of this shard's streams.
#[derive(Debug)]
pub(super) struct ShardTransfer {
    events: mpsc::UnboundedSender<TransferEvent>,
    /// To other servers that share the channels.
    shared_by: Option<Arc<dyn Bus>>,
    next_slot: u32,
    batches: usize,
    has_reported_idle: bool,
    /// When streams end by themselves, by their tokens.
    lifetimes: HashMap<u64, u32>,
    /// The first stream that could not move yet.
    later_slot: u32,
    /// When these are tried again.
    retry_tick: Option<u32>,
}

/// Whether a stream can go on in another process.
enum StreamTransfer {
    Never,
    Later,
    Ready(Box<StreamRecord>),
}

impl Shard {
    pub(super) fn start_transfer(&mut self, events: mpsc::UnboundedSender<TransferEvent>) {
        self.transfer = Some(ShardTransfer {
            events,
            shared_by: self.shared.bus_of_shared_channels(),
            next_slot: 0,
            batches: 0,
            has_reported_idle: false,
            lifetimes: self
                .lifetimes
                .iter()
                .map(|Reverse((due, token))| (*token, *due))
                .collect(),
            later_slot: u32::MAX,
            retry_tick: None,
        });
    }

    /// Sends no more streams on their way. Where the server stops, the rest ends now.
    pub(super) fn stop_transfer(&mut self) {
        if self.transfer.take().is_none() {
            return;
        }
        let mut next_slot = 0;
        while let Some(stream) = self.streams.next_occupied_from(next_slot) {
            next_slot = stream + 1;
            let extras = self
                .streams
                .get(stream)
                .and_then(|held| held.extras.as_ref());
            if let Some(on_end) = extras.and_then(|extra| extra.on_end.as_ref()) {
                on_end.cancel_transfer();
            }
        }
        if self.shared.is_draining() {
            self.begin_drain(Duration::ZERO);
        }
    }

    /// Whether the next turn has streams to send on their way.
    pub(super) fn has_streams_to_detach(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| {
            transfer.batches < MAX_BATCHES
                && self
                    .streams
                    .next_occupied_from(transfer.next_slot)
                    .is_some()
        })
    }

    /// When streams that could not move are tried again.
    pub(super) fn next_transfer_tick(&self) -> Option<u32> {
        let transfer = self.transfer.as_ref();
        let transfer = transfer.filter(|transfer| transfer.batches < MAX_BATCHES);
        transfer?.retry_tick
    }

    /// Whether a stream waits for its place in a batch.
    pub(super) fn moves_to_other_process(&self, stream: u32) -> bool {
        self.transfer.is_some() && !matches!(self.stream_record(stream), StreamTransfer::Never)
    }

    /// A stream that may move ends by itself at this tick.
    pub(super) fn note_transfer_lifetime(&mut self, token: u64, due: u32) {
        if let Some(transfer) = &mut self.transfer {
            transfer.lifetimes.insert(token, due);
        }
    }

    /// A stream has come while others move.
    pub(super) fn note_transfer_arrival(&mut self, stream: u32) {
        if let Some(transfer) = &mut self.transfer {
            transfer.next_slot = transfer.next_slot.min(stream);
        }
    }

    /// Sends a batch of streams on its way.
    pub(super) fn detach_streams(&mut self) {
        let can_send = |transfer: &ShardTransfer| transfer.batches < MAX_BATCHES;
        if !self.transfer.as_ref().is_some_and(can_send) {
            return;
        }
        let streams = self.next_batch();
        let (shard, now) = (self.number, self.now_tick);
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        if !streams.is_empty() {
            transfer.batches += 1;
            let batch = TransferEvent::Batch(TransferBatch { shard, streams });
            // Without a receiver the transfer has ended, and its end is on its way here.
            if let Err(mpsc::error::SendError(TransferEvent::Batch(batch))) =
                transfer.events.send(batch)
            {
                self.add_detached(batch.streams, false);
            }
            return;
        }
        if self
            .streams
            .next_occupied_from(transfer.next_slot)
            .is_some()
        {
            return;
        }
        match (transfer.later_slot, transfer.retry_tick) {
            (u32::MAX, _) if !transfer.has_reported_idle => {
                transfer.has_reported_idle = true;
                let _ = transfer.events.send(TransferEvent::Idle(shard));
            }
            (u32::MAX, _) => {}
            (_, None) => transfer.retry_tick = Some(now + 1),
            (slot, Some(tick)) if tick <= now => {
                transfer.next_slot = slot;
                transfer.later_slot = u32::MAX;
                transfer.retry_tick = None;
            }
            (_, Some(_)) => {}
        }
    }

    fn next_batch(&mut self) -> Vec<DetachedStream> {
        let mut streams = Vec::new();
        let mut looks = 0;
        while streams.len() < BATCH_STREAMS
            && looks < LOOKS_PER_TURN
            && let Some(transfer) = &mut self.transfer
            && let Some(stream) = self.streams.next_occupied_from(transfer.next_slot)
        {
            transfer.next_slot = stream + 1;
            looks += 1;
            match self.stream_record(stream) {
                StreamTransfer::Ready(record) => {
                    streams.extend(self.detach_stream(stream, *record));
                }
                StreamTransfer::Later => {
                    if let Some(transfer) = &mut self.transfer {
                        transfer.later_slot = transfer.later_slot.min(stream);
                    }
                }
                StreamTransfer::Never => {}
            }
        }
        streams
    }

    /// Another process has these: they end here without a word to their clients.
    pub(super) fn release_moved(&mut self, streams: Vec<DetachedStream>) {
        self.end_batch();
        for on_end in streams.into_iter().filter_map(|stream| stream.on_end) {
            on_end.mark_moved();
        }
    }

    /// Takes streams back.
    pub(super) fn add_detached(&mut self, streams: Vec<DetachedStream>, is_refused: bool) {
        for stream in streams {
            let DetachedStream {
                record,
                places,
                connection,
                permit,
                guard,
                on_end,
            } = stream;
            if let Some(on_end) = &on_end {
                on_end.cancel_transfer();
            }
            let connection = (connection, ArrivingConnection::Counted(guard));
            let adopted = AdoptedStream {
                places: Some(StreamPlaces(places)),
                initial_bytes: Bytes::new(),
                on_end,
            };
            let mut arrival = record.into_arrival(adopted, connection, permit);
            arrival.is_pinned = is_refused;
            self.arrivals.push_back(Box::new(arrival));
        }
    }

    fn end_batch(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.batches = transfer.batches.saturating_sub(1);
        }
    }

    /// Takes a stream out of everything, if it can go on elsewhere.
    fn detach_stream(&mut self, stream: u32, record: StreamRecord) -> Option<DetachedStream> {
        let places = record.places_in_channels(&self.shared).ok()?;
        self.leave_channels(stream);
        let held = self.streams.remove(stream)?;
        self.list_bytes -= held.session_bytes();
        let LiveStream {
            socket,
            records,
            connection_guard: guard,
            backlog,
            extras,
            gap_notice,
            client_permit,
            ..
        } = held;
        socket.remove_from_pollset(&self.pollset);
        if let Some(backlog) = backlog {
            let bytes = backlog.memory_bytes();
            counters::adjust_counter(&self.shared.metrics.backlog_bytes, bytes, 0);
        }
        let on_end = extras.and_then(|extra| {
            self.list_bytes -= extra.memory_bytes();
            extra.on_end
        });
        self.release_gap_notice(gap_notice);
        self.count_closed();
        Some(DetachedStream {
            record,
            places,
            connection: HeldConnection { socket, records },
            permit: StreamPermit::from_client_permit(&self.shared, client_permit),
            guard,
            on_end,
        })
    }

    /// Whether a stream can go on in another process now, and if so what it needs there.
    fn stream_record(&self, stream: u32) -> StreamTransfer {
        let can_move = |held: &&LiveStream| !held.is_ending && !held.is_pinned;
        let Some(held) = self.streams.get(stream).filter(can_move) else {
            return StreamTransfer::Never;
        };
        let extra = held.extras.as_ref();
        let shared_by = self.transfer.as_ref();
        let shared_by = shared_by.and_then(|transfer| transfer.shared_by.as_ref());
        if self.has_pending_messages(held, shared_by.is_some()) {
            return StreamTransfer::Later;
        }
        let owner = match extra.and_then(|extra| extra.on_end.as_ref()) {
            None => None,
            Some(on_end) => match on_end.transfer() {
                OwnerTransfer::Never => return StreamTransfer::Never,
                OwnerTransfer::Later => return StreamTransfer::Later,
                OwnerTransfer::Ready(record) => Some(record),
            },
        };
        let mut channels = Vec::with_capacity(1);
        for (index, link) in held.links().enumerate() {
            let Some(local) = self.channels.get(link.channel_slot) else {
                return StreamTransfer::Never;
            };
            let name = local.channel.name();
            // The other process knows no such channel: its owner has another for it there.
            if is_internal_channel(name) && owner.is_none() {
                return StreamTransfer::Never;
            }
            let shared_place = match shared_by {
                Some(_) if !is_internal_channel(name) => {
                    let place = SharedPlace::before(&local.channel.lock(), link.next_sequence);
                    let Some(place) = place else {
                        return StreamTransfer::Later;
                    };
                    Some(place)
                }
                _ => None,
            };
            let filters = extra.and_then(|extra| extra.filters.get(index));
            channels.push(StreamChannelRecord {
                name: name.clone(),
                next_sequence: link.next_sequence,
                filters: filters.map_or(Vec::new(), |filters| filters.to_vec()),
                shared_place,
            });
        }
        if let Some(bus) = shared_by {
            for channel in &mut channels {
                let Some(place) = channel.shared_place.take() else {
                    continue;
                };
                let shared_state = bus.shared_state(&channel.name);
                channel.shared_place = place.confirmed_by(shared_state);
                if channel.shared_place.is_none() {
                    return StreamTransfer::Later;
                }
            }
        }
        let token = held.poll_token(stream);
        let gap_notice = self.gap_notice_of(held).cloned();
        let unsent = held
            .backlog
            .iter()
            .flat_map(|backlog| backlog.unsent_pieces());
        StreamTransfer::Ready(Box::new(StreamRecord {
            channels,
            is_bytes: held.format.message_format == crate::StreamForm::Bytes,
            is_unchunked: !held.format.is_chunked,
            keep_alive: self.keep_alive_of(held),
            gap_notice: gap_notice.map(|gap| ByteRecord(held.format.remove_framing(gap))),
            subscriber_meta: extra.map_or(Vec::new(), |extra| extra.subscriber_meta.to_vec()),
            unsent: unsent
                .map(|piece| UnsentRecord {
                    is_kept: piece.kind != PieceKind::Message,
                    bytes: ByteRecord(piece.bytes),
                    messages: piece.messages,
                })
                .collect(),
            input_bytes: held.input_bytes,
            is_probed: held.is_probed,
            lifetime_ms: self.remaining_lifetime_ms(token),
            client: held
                .client_permit
                .as_ref()
                .map(|permit| permit.client().to_bits()),
            owner,
            tls: held.records.as_ref().map(|records| SessionRecord {
                session: ByteRecord(records.session_bytes().into()),
                unsent: ByteRecord(Bytes::copy_from_slice(records.unsent())),
            }),
        }))
    }

    /// Whether messages are on their way to a stream that the other process does not have. It has
    /// those of shared channels.
    fn has_pending_messages(&self, held: &LiveStream, is_shared: bool) -> bool {
        held.links().any(|link| {
            let Some(local) = self.channels.get(link.channel_slot) else {
                return false;
            };
            let state = local.channel.lock();
            match state.is_internal {
                true => link.next_sequence <= state.last_sequence,
                false if is_shared => false,
                false => state.history.has_gap_after(link.next_sequence - 1),
            }
        })
    }

    fn keep_alive_of(&self, held: &LiveStream) -> Option<KeepAliveRecord> {
        let ring = self.heartbeats.keep_alive_at(held.heartbeat_position)?;
        let own = held.extras.as_ref();
        let own = own.and_then(|extra| extra.own_heartbeat.as_ref());
        Some(match own {
            None => KeepAliveRecord::from(ring),
            Some(own) => KeepAliveRecord::from(&StreamKeepAlive {
                bytes: held.format.remove_framing(own.framed_bytes.clone()),
                interval: ring.interval,
                is_unconditional: own.is_unconditional,
            }),
        })
    }

    fn remaining_lifetime_ms(&self, token: u64) -> Option<u64> {
        let due = self.transfer.as_ref()?.lifetimes.get(&token)?;
        let ticks = u64::from(due.saturating_sub(self.now_tick));
        Some(ticks * 1000 / u64::from(TICKS_PER_SECOND))
    }
}

impl StreamRecord {
    /// The stream's places in its channels, from its next message on.
    ///
    /// # Errors
    /// There are too many channels.
    pub(crate) fn places_in_channels(
        &self,
        shared: &Arc<HubShared>,
    ) -> Result<Vec<PendingSubscription>, HubError> {
        let max_channels = shared.settings.load().max_channels;
        let channels = self.channels.iter();
        channels
            .map(|channel| {
                let subscription = Subscription {
                    channel: channel.name.clone(),
                    filters: channel.filters.clone(),
                    ..Subscription::default()
                };
                let mut place = PendingSubscription::new(shared, subscription, max_channels)?;
                place.last_sequence = channel.next_sequence.saturating_sub(1);
                Ok(place)
            })
            .collect()
    }

    /// The same in a process that shares the channels with the one that the stream comes from, and
    /// has caught up with it.
    ///
    /// # Errors
    /// There are too many channels.
    pub(crate) fn places_in_shared_channels(
        &self,
        shared: &Arc<HubShared>,
    ) -> Result<Vec<PendingSubscription>, HubError> {
        let mut places = self.places_in_channels(shared)?;
        for (place, channel) in places.iter_mut().zip(&self.channels) {
            // Later messages are kept for it.
            place.last_sequence = place.channel.lock().last_sequence;
            place.shared_place = Some(channel.shared_place.clone().unwrap_or(SharedPlace::Unknown));
        }
        Ok(places)
    }

    /// The stream as one that arrives, with its places in its channels.
    pub(crate) fn into_arrival(
        self,
        adopted: AdoptedStream,
        (client, connection): (HeldConnection, ArrivingConnection),
        permit: StreamPermit,
    ) -> ArrivedStream {
        let format = self.format();
        let unsent = self.unsent.into_iter().map(|piece| BacklogPiece {
            bytes: piece.bytes.0,
            messages: piece.messages,
            kind: match piece.is_kept {
                true => PieceKind::Initial,
                false => PieceKind::Message,
            },
        });
        let stream = HeldStream {
            message_format: format.message_format,
            keep_alive: self.keep_alive.as_ref().map(StreamKeepAlive::from),
            gap_notice: self.gap_notice.map(|gap| gap.0),
            subscriber_meta: self.subscriber_meta,
            max_lifetime: self.lifetime_ms.map(Duration::from_millis),
            initial_bytes: adopted.initial_bytes,
            on_end: adopted.on_end,
            ..HeldStream::default()
        };
        ArrivedStream {
            client,
            pipelined_bytes: self.input_bytes as usize,
            is_probed: self.is_probed,
            is_pinned: false,
            format,
            connection,
            unsent: unsent.collect(),
            request: Box::new(StreamRequest {
                subscriptions: adopted.places.map_or_else(Vec::new, |places| places.0),
                permit,
                stream,
            }),
        }
    }
}
