//! Streams that arrive at their shard, which watches their sockets in one set.
//!
//! # Invariants
//! - A stream subscribes and reads the history under the channel's lock: earlier messages are in
//!   the history, later ones find the subscriber.
//! - A stream gets its initial data before any message.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{HeldConnection, HeldConnectionMut};
use penstock_runtime::clock;
use penstock_runtime::pollset::Interest;

use super::backlog::{Backlog, BacklogPiece, PieceKind};
use super::closing::CloseReason;
use super::delivery::ShardChannel;
use super::heartbeats::HeartbeatRingPosition;
use super::live_stream::{ChannelLink, LiveStream, OwnHeartbeat, StreamExtras};
use super::shard_inbox::{ArrivedStream, ArrivingConnection};
use super::writing::send_backlog;
use super::{BYTES_PER_WRITE, MAX_INPUT_BYTES, NO_GAP_NOTICE, Shard, TICKS_PER_SECOND};
use crate::channel::{ChannelState, DeliveryKind, Message, StreamFormat, SubscribedShard};
use crate::counters;
use crate::hub::{HubShared, PendingSubscription, StreamRequest};
use crate::{StreamForm, StreamKeepAlive};

/// The last message that a resuming client had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ResumePoint {
    pub(crate) sequence: u64,
    /// Which of its channels has it.
    channel_index: Option<usize>,
    /// Its number says nothing of other channels.
    is_restored: bool,
}

/// What a stream begins with, before what it missed.
#[derive(Debug)]
struct InitialBytes<'a> {
    /// Framed, from its last owner.
    unsent: Vec<BacklogPiece>,
    initial: Bytes,
    /// The message that its client named.
    known: Option<&'a str>,
}

/// What a stream finds of its channels.
#[derive(Debug, Default)]
struct SubscribeResult {
    links: Vec<ChannelLink>,
    /// What it missed, of all channels.
    missed_messages: Vec<(u32, Arc<Message>)>,
    /// Some of what it missed is no longer kept.
    has_gap: bool,
    /// Some of the messages published since its response are no longer kept.
    has_arrival_gap: bool,
    /// An end was published while it was on its way.
    is_ended: bool,
}

impl Shard {
    /// Accepts arrived streams, at most `budget`.
    pub(super) fn accept_arrivals(&mut self, budget: usize) {
        let sent_before = self.sent_bytes;
        for used in 1..=budget.min(self.arrivals.len()) {
            // Initial data counts by its bytes.
            if used + (self.sent_bytes - sent_before) / BYTES_PER_WRITE > budget {
                return;
            }
            let Some(arrival) = self.arrivals.pop_front() else {
                return;
            };
            let ArrivedStream {
                client,
                pipelined_bytes: early_bytes,
                is_probed,
                is_pinned,
                format,
                connection,
                unsent,
                request,
            } = *arrival;
            let connection_guard = match connection {
                ArrivingConnection::Counted(guard) => guard,
                ArrivingConnection::Adopted(adopter) => {
                    adopter.adopt_held_connection(request.permit.client())
                }
            };
            let keep_alive = request.stream.keep_alive.as_ref();
            let is_silent = keep_alive.is_none_or(|beat| beat.bytes.is_empty());
            let HeldConnection { socket, records } = client;
            socket.set_dead_peer_timeout(self.settings.send_timeout, is_silent);
            let held = LiveStream {
                socket,
                records,
                generation: self.next_generation(),
                connection_guard,
                first_link: ChannelLink::NONE,
                heartbeat_position: HeartbeatRingPosition::NONE,
                last_sent_tick: self.now_tick,
                input_bytes: u32::try_from(early_bytes).unwrap_or(u32::MAX),
                format,
                gap_notice: NO_GAP_NOTICE,
                is_ending: false,
                is_stall_checked: false,
                is_probed,
                is_pinned,
                backlog: None,
                extras: None,
                client_permit: None,
            };
            self.add_stream(held, *request, unsent);
        }
    }

    fn add_stream(
        &mut self,
        mut held: LiveStream,
        wanted: StreamRequest,
        unsent: Vec<BacklogPiece>,
    ) {
        let StreamRequest {
            subscriptions: expected,
            permit,
            stream: wanted,
        } = wanted;
        let mut extra = StreamExtras {
            other_links: Vec::new(),
            filters: Vec::new(),
            subscriber_meta: wanted.subscriber_meta.into(),
            on_end: wanted.on_end,
            gap_notice: None,
            own_heartbeat: None,
        };
        let format = held.format;
        debug_assert_eq!(format.message_format, wanted.message_format);
        let gap = wanted.gap_notice.filter(|gap| !gap.is_empty());
        if let Some(gap) = &gap {
            match self.acquire_gap_notice(gap) {
                Some(known) => held.gap_notice = known,
                None => extra.gap_notice = Some(format.apply_framing(gap.clone())),
            }
        }
        if expected.iter().any(|each| !each.filters.is_empty()) {
            let filters = expected.iter().map(|each| each.filters.clone());
            extra.filters = filters.collect();
        }
        held.client_permit = permit.into_client_permit();
        self.list_bytes += held.session_bytes();
        let stream = self.streams.insert(held);
        self.note_transfer_arrival(stream);
        let mut found = self.subscribe_all(stream, &expected, wanted.resume_after.as_deref());
        if found.has_arrival_gap && gap.is_none() {
            // A loss that cannot be announced ends the stream, before any message behind it.
            found.missed_messages.clear();
            found.is_ended = true;
        }
        let prev_id = || expected.iter().find_map(|each| each.prev_id.clone());
        let known = wanted.resume_after.or_else(prev_id);
        drop(expected);
        let mut links = found.links.iter().copied();
        let first = links.next().unwrap_or(ChannelLink::NONE);
        extra.other_links = links.collect();
        if let Some(keep_alive) = &wanted.keep_alive {
            let (at, own) = self.join_heartbeat_ring(stream, keep_alive, format);
            extra.own_heartbeat = own;
            if let Some(held) = self.streams.get_mut(stream) {
                held.heartbeat_position = at;
            }
        }
        if let Some(held) = self.streams.get_mut(stream) {
            held.first_link = first;
            if extra.is_needed() {
                self.list_bytes += extra.memory_bytes();
                held.extras = Some(Box::new(extra));
            }
        }
        self.shared
            .metrics
            .opened_streams
            .fetch_add(1, Ordering::Relaxed);
        let initial = InitialBytes {
            unsent,
            initial: wanted.initial_bytes,
            known: known.as_deref(),
        };
        self.send_initial(stream, initial, found);
        if let Some(lifetime) = wanted.max_lifetime {
            self.schedule_end(stream, lifetime);
        }
    }

    /// Subscribes to all channels, each under its lock.
    fn subscribe_all(
        &mut self,
        stream: u32,
        expected: &[PendingSubscription],
        after: Option<&str>,
    ) -> SubscribeResult {
        let mut found = SubscribeResult::default();
        // A client that comes back names one message of one of its channels: everything of all of
        // them that came after it is news.
        let base = after.map(|id| ResumePoint::find(&self.shared, expected, id));
        found.has_gap = base == Some(None);
        let resume_point = base.map(Option::unwrap_or_default);
        for (index, each) in expected.iter().enumerate() {
            let resume_point = resume_point.map(|base| base.in_channel(index));
            let link = self.subscribe_channel(stream, each, resume_point, &mut found);
            found.links.push(link);
        }
        found
            .missed_messages
            .sort_by_key(|(_, message)| message.sequence);
        let held = self.streams.get(stream);
        if held.is_some_and(|held| held.format.message_format == StreamForm::Bytes) {
            let mut all = found.missed_messages.iter();
            found.is_ended |= all.any(|(_, message)| message.delivery_kind() == DeliveryKind::Gap);
        }
        self.shared.bus_notifier.notify();
        found
    }

    fn subscribe_channel(
        &mut self,
        stream: u32,
        expected: &PendingSubscription,
        resume_point: Option<ResumePoint>,
        found: &mut SubscribeResult,
    ) -> ChannelLink {
        let channel = &expected.channel;
        let mut state = channel.lock();
        let was_there = state.has_subscribers();
        let number = self.number;
        let subscribed_shard = state
            .subscribed_shards
            .iter_mut()
            .find(|subscribed_shard| subscribed_shard.shard == number);
        let slot = match subscribed_shard {
            Some(subscribed_shard) => {
                subscribed_shard.subscriber_count += 1;
                subscribed_shard.channel_slot
            }
            None => {
                let slot = self.channels.insert(ShardChannel::new(channel.clone()));
                if state.subscribed_shards.is_empty() {
                    state.subscribed_shards.reserve_exact(1);
                }
                state.subscribed_shards.push(SubscribedShard {
                    shard: number,
                    channel_slot: slot,
                    subscriber_count: 1,
                });
                slot
            }
        };
        self.shared
            .report_subscription_change(channel, was_there, &mut state);
        let from = resume_sequence(&state, (expected, slot), resume_point, found);
        if from < expected.last_sequence && !state.history.is_empty() {
            self.shared.trim_history(&mut state, clock::now());
        }
        found.has_gap |= state.history.has_gap_after(from);
        let start = match expected.shared_place {
            // It was there before.
            Some(_) => from,
            None => expected.last_sequence.max(state.restored_up_to),
        };
        found.has_arrival_gap |= state.history.has_gap_after(start);
        for message in state.history.messages_after(from) {
            found.add_message(slot, message, start);
        }
        let next = state.last_sequence + 1;
        drop(state);
        let position = self.join_subscriber_list(slot, stream);
        ChannelLink {
            channel_slot: slot,
            position,
            next_sequence: next,
        }
    }

    /// Adds a stream to a channel's list of subscribers; returns its position.
    fn join_subscriber_list(&mut self, slot: u32, stream: u32) -> u32 {
        let Some(local) = self.channels.get_mut(slot) else {
            return 0;
        };
        let before = local.subscribers.capacity();
        if before == 0 {
            local.subscribers.reserve_exact(1);
        }
        local.subscribers.push(stream);
        self.list_bytes += (local.subscribers.capacity() - before) * size_of::<u32>();
        u32::try_from(local.subscribers.len() - 1).unwrap_or(0)
    }

    fn join_heartbeat_ring(
        &mut self,
        stream: u32,
        keep_alive: &StreamKeepAlive,
        format: StreamFormat,
    ) -> (HeartbeatRingPosition, Option<OwnHeartbeat>) {
        if keep_alive.bytes.is_empty() {
            return (HeartbeatRingPosition::NONE, None);
        }
        let every = keep_alive.interval.max(Duration::from_secs(1));
        let ticks = u128::from(TICKS_PER_SECOND) * every.as_millis() / 1000;
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX / 4);
        let (at, has_same_bytes) = self
            .heartbeats
            .insert(stream, keep_alive, ticks, self.now_tick);
        let own = (!has_same_bytes).then(|| OwnHeartbeat {
            framed_bytes: format.apply_framing(keep_alive.bytes.clone()),
            is_unconditional: keep_alive.is_unconditional,
        });
        (at, own)
    }

    /// Sends the initial data of a stream, and lets the loop watch its socket.
    fn send_initial(&mut self, stream: u32, initial: InitialBytes<'_>, found: SubscribeResult) {
        let mut backlog = self.initial_backlog(stream, initial, &found);
        let (now, room) = (self.now_tick, self.backlog_room());
        let held = self.streams.get(stream);
        let gap = held.and_then(|held| self.gap_notice_of(held)).cloned();
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if held.input_bytes as usize > MAX_INPUT_BYTES {
            self.close_stream(stream, CloseReason::ClientDisconnected);
            return;
        }
        let whole = backlog.memory_bytes();
        let mut connection = HeldConnectionMut::new(&held.socket, &mut held.records);
        let sent = send_backlog(&mut connection, &mut backlog, now);
        self.sent_bytes += whole.saturating_sub(backlog.memory_bytes());
        // Where too much waits for all together already, what was missed is missing for good.
        if backlog.memory_bytes() > room.total_bytes {
            self.turn_counts.dropped += u64::from(backlog.drop_messages(gap.as_ref()));
        }
        let waits = !backlog.is_done();
        let interest = if waits {
            Interest::Both
        } else {
            Interest::Read
        };
        let token = held.poll_token(stream);
        let added = held.socket.add_to_pollset(&self.pollset, token, interest);
        if waits {
            counters::adjust_counter(
                &self.shared.metrics.backlog_bytes,
                0,
                backlog.memory_bytes(),
            );
            held.backlog = Some(Box::new(backlog));
        }
        if let Err(e) = &added {
            log::error!("hub: a stream is not held: the kernel does not watch its socket: {e}");
        }
        let (Ok(completed), Ok(())) = (sent, added) else {
            self.close_stream(stream, CloseReason::ConnectionError);
            return;
        };
        self.turn_counts.delivered += completed;
        if waits {
            self.schedule_stall_check(stream);
        }
        let stays = self.shared.is_draining() && !self.moves_to_other_process(stream);
        if found.is_ended || stays {
            self.end_stream_gracefully(stream);
        }
    }

    /// What a stream begins with: its own, a notice if something behind the message that its client
    /// named (`known`) is missing, and what it missed.
    fn initial_backlog(
        &mut self,
        stream: u32,
        initial: InitialBytes<'_>,
        found: &SubscribeResult,
    ) -> Backlog {
        let mut backlog = Backlog::new(self.now_tick);
        let Some(held) = self.streams.get(stream) else {
            return backlog;
        };
        let format = held.format;
        let gap = found
            .has_gap
            .then(|| self.resume_gap_notice(held, initial.known));
        for piece in initial.unsent {
            backlog.push(piece, 0);
        }
        let mut push = |bytes: Bytes, messages| {
            if !bytes.is_empty() {
                let kind = PieceKind::Initial;
                let piece = BacklogPiece {
                    bytes,
                    messages,
                    kind,
                };
                backlog.push(piece, 0);
            }
        };
        push(format.apply_framing(initial.initial), 0);
        push(gap.flatten().unwrap_or_default(), 0);
        for (channel, message) in &found.missed_messages {
            let held = self.streams.get_mut(stream);
            let link = held.and_then(|held| held.channel_link_mut(*channel));
            let has_filters = link.is_some_and(|(_, filters)| !filters.is_empty());
            let is_each = has_filters && message.delivery_kind() != DeliveryKind::Gap;
            if is_each || message.delivery_kind() == DeliveryKind::PerStream {
                push(
                    self.render_for_stream(stream, *channel, message)
                        .unwrap_or_default(),
                    1,
                );
            } else {
                push(message.framed_payload(format).clone(), 1);
            }
        }
        backlog
    }
}

impl SubscribeResult {
    /// Adds a message for the stream, or ends it if the message came after `start`.
    fn add_message(&mut self, channel: u32, message: &Arc<Message>, start: u64) {
        match message.delivery_kind() {
            DeliveryKind::Shared | DeliveryKind::PerStream | DeliveryKind::Gap => {
                self.missed_messages.push((channel, message.clone()));
            }
            DeliveryKind::Close if message.sequence > start => self.is_ended = true,
            DeliveryKind::Close | DeliveryKind::Ignored => {}
        }
    }
}

impl ResumePoint {
    /// The message with this id: one that got it here, or one in the history of these channels.
    pub(crate) fn find(
        shared: &HubShared,
        expected: &[PendingSubscription],
        id: &str,
    ) -> Option<Self> {
        let here = shared.sequence_of_id(id).map(|order| Self {
            sequence: order,
            channel_index: None,
            is_restored: false,
        });
        // One that got its number here may have another by now, in a history that was restored.
        let found = expected.iter().enumerate().find_map(|(index, each)| {
            let state = each.channel.lock();
            if here.is_some() && state.restored_up_to == 0 {
                return None;
            }
            let order = state.sequence_of(id)?;
            Some(Self {
                sequence: order,
                channel_index: Some(index),
                is_restored: order <= state.restored_up_to,
            })
        });
        found.or(here)
    }

    /// What it says of the channel at `index`.
    pub(crate) fn in_channel(self, index: usize) -> Self {
        Self {
            is_restored: self.is_restored && self.channel_index != Some(index),
            channel_index: self.channel_index.filter(|&own| own == index),
            ..self
        }
    }

    /// Whether its number says which messages of this channel came before it.
    pub(crate) fn is_comparable_in(self, state: &ChannelState) -> bool {
        self.channel_index.is_some() || !self.is_restored && self.sequence > state.restored_up_to
    }
}

/// Finds what was published since the stream was answered and is in the history no more. From where
/// on the history is for it.
fn resume_sequence(
    state: &ChannelState,
    (expected, slot): (&PendingSubscription, u32),
    resume_point: Option<ResumePoint>,
    found: &mut SubscribeResult,
) -> u64 {
    let from = match (resume_point, &expected.prev_id) {
        (Some(base), _) if base.is_comparable_in(state) => Some(base.sequence),
        // It is unknown which of the channel's messages came before it.
        (Some(_), _) => {
            found.has_gap = true;
            Some(0)
        }
        (None, Some(id)) => match (state.sequence_of(id), &state.last_id) {
            (Some(order), _) => Some(order),
            (None, None) => None,
            // The channel has continued after a message that is no longer known.
            (None, Some(_)) => {
                found.has_gap = true;
                Some(0)
            }
        },
        (None, None) => None,
    };
    let from = match &expected.shared_place {
        Some(place) => {
            let known = place.last_sequence_in(state);
            found.has_gap |= known.is_none();
            found.has_arrival_gap |= known.is_none();
            known
        }
        None => from,
    };
    let is_new = from.is_none();
    if let Some(before) = &state.arriving_stream_history {
        let is_incomplete = before.has_gap_after(expected.last_sequence);
        found.has_arrival_gap |= is_incomplete;
        found.has_gap |= is_new && is_incomplete;
        for message in before.messages_after(expected.last_sequence) {
            // A client that resumes finds it in the history, if it is there as well.
            if is_new || state.history.find_sequence(&message.id).is_none() {
                found.add_message(slot, message, expected.last_sequence);
            }
        }
    }
    from.unwrap_or_else(|| expected.last_sequence.max(state.restored_up_to))
}
