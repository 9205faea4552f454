//! Streams that leave a shard for another process, and those that come back from there.
//!
//! # Invariants
//! - A stream on its way is in no list, and neither written to nor watched.
//! - Few batches are on their way at a time.

use std::sync::Arc;
use std::time::Duration;

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
    ByteRecord, DetachedStream, KeepAliveRecord, StreamChannelRecord, StreamRecord, UnsentRecord,
};
use crate::{HeldStream, HubError, StreamKeepAlive, Subscription};

/// Streams of a batch: their sockets go in one packet.
const BATCH_STREAMS: usize = 64;

/// Batches on their way.
const MAX_BATCHES: usize = 4;

/// A transfer of this shard's streams.
#[derive(Debug)]
pub(super) struct ShardTransfer {
    events: mpsc::UnboundedSender<TransferEvent>,
    next_slot: u32,
    batches: usize,
    has_reported_idle: bool,
}

impl Shard {
    pub(super) fn start_transfer(&mut self, events: mpsc::UnboundedSender<TransferEvent>) {
        self.transfer = Some(ShardTransfer {
            events,
            next_slot: 0,
            batches: 0,
            has_reported_idle: false,
        });
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

    /// Whether a stream waits for its place in a batch.
    pub(super) fn moves_to_other_process(&self, stream: u32) -> bool {
        self.transfer.is_some() && self.stream_record(stream).is_some()
    }

    /// A stream has come while others move.
    pub(super) fn note_transfer_arrival(&mut self, stream: u32) {
        if let Some(transfer) = &mut self.transfer {
            transfer.next_slot = transfer.next_slot.min(stream);
        }
    }

    /// Sends a batch of streams on its way.
    pub(super) fn detach_streams(&mut self) {
        let Some(mut transfer) = self.transfer.take() else {
            return;
        };
        if transfer.batches < MAX_BATCHES {
            let mut streams = Vec::new();
            while streams.len() < BATCH_STREAMS
                && let Some(stream) = self.streams.next_occupied_from(transfer.next_slot)
            {
                transfer.next_slot = stream + 1;
                streams.extend(self.detach_stream(stream));
            }
            let shard = self.number;
            // Without a receiver the transfer has ended, and its end is on its way here.
            if !streams.is_empty() {
                transfer.batches += 1;
                let batch = TransferEvent::Batch(TransferBatch { shard, streams });
                if let Err(mpsc::error::SendError(TransferEvent::Batch(batch))) =
                    transfer.events.send(batch)
                {
                    self.add_detached(batch.streams);
                }
            } else if !transfer.has_reported_idle {
                transfer.has_reported_idle = true;
                let _ = transfer.events.send(TransferEvent::Idle(shard));
            }
        }
        self.transfer = Some(transfer);
    }

    /// Another process has these: they end here without a word to their clients.
    pub(super) fn release_moved(&mut self, streams: Vec<DetachedStream>) {
        self.end_batch();
        drop(streams);
    }

    /// Takes streams back.
    pub(super) fn add_detached(&mut self, streams: Vec<DetachedStream>) {
        for stream in streams {
            let DetachedStream {
                record,
                places,
                connection,
                permit,
                guard,
            } = stream;
            let connection = (connection, ArrivingConnection::Counted(guard));
            let arrival = record.into_arrival(places, connection, permit);
            self.arrivals.push_back(Box::new(arrival));
        }
    }

    fn end_batch(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.batches = transfer.batches.saturating_sub(1);
        }
    }

    /// Takes a stream out of everything, if it can go on elsewhere.
    fn detach_stream(&mut self, stream: u32) -> Option<DetachedStream> {
        let record = self.stream_record(stream)?;
        let places = record.places_in_channels(&self.shared).ok()?;
        self.leave_channels(stream);
        let held = self.streams.remove(stream)?;
        let LiveStream {
            connection,
            connection_guard: guard,
            backlog,
            extras,
            gap_notice,
            client_permit,
            ..
        } = held;
        connection.remove_from_pollset(&self.pollset);
        if let Some(backlog) = backlog {
            let bytes = backlog.memory_bytes();
            counters::adjust_counter(&self.shared.metrics.backlog_bytes, bytes, 0);
        }
        if let Some(extra) = extras {
            self.list_bytes -= extra.memory_bytes();
        }
        self.release_gap_notice(gap_notice);
        self.count_closed();
        Some(DetachedStream {
            record,
            places,
            connection,
            permit: StreamPermit::from_client_permit(&self.shared, client_permit),
            guard,
        })
    }

    /// What another process needs to continue a stream; `None` if it cannot.
    fn stream_record(&self, stream: u32) -> Option<StreamRecord> {
        let held = self.streams.get(stream)?;
        let extra = held.extras.as_ref();
        if held.is_ending || extra.is_some_and(|extra| extra.on_end.is_some()) {
            return None;
        }
        let mut channels = Vec::with_capacity(1);
        for (index, link) in held.links().enumerate() {
            let name = self.channels.get(link.channel_slot)?.channel.name();
            if is_internal_channel(name) {
                return None;
            }
            let filters = extra.and_then(|extra| extra.filters.get(index));
            channels.push(StreamChannelRecord {
                name: name.clone(),
                next_sequence: link.next_sequence,
                filters: filters.map_or(Vec::new(), |filters| filters.to_vec()),
            });
        }
        let token = held.poll_token(stream);
        let gap_notice = self.gap_notice_of(held).cloned();
        let unsent = held
            .backlog
            .iter()
            .flat_map(|backlog| backlog.unsent_pieces());
        Some(StreamRecord {
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
        // Few streams have one.
        let due = self
            .lifetimes
            .iter()
            .find_map(|each| (each.0.1 == token).then_some(each.0.0))?;
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

    /// The stream as one that arrives, with its places in its channels.
    pub(crate) fn into_arrival(
        self,
        subscriptions: Vec<PendingSubscription>,
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
            ..HeldStream::default()
        };
        ArrivedStream {
            client,
            pipelined_bytes: self.input_bytes as usize,
            is_probed: self.is_probed,
            format,
            connection,
            unsent: unsent.collect(),
            request: Box::new(StreamRequest {
                subscriptions,
                permit,
                stream,
            }),
        }
    }
}
