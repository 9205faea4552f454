//! A held stream: the socket and a few words.
//!
//! There are up to a million of these, so rare state is behind a pointer ([`StreamExtras`], the
//! backlog), and their size is asserted.
//!
//! # Invariants
//! - The entries of a stream in the lists of its channels and in its ring of heartbeats name it as
//!   it names them.

use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::{
    ClientPermit, HeldConnectionGuard, HeldConnectionMut, HeldSocket, SealedRecords,
};

use super::backlog::Backlog;
use super::delivery::ShardChannel;
use super::heartbeats::HeartbeatRingPosition;
use super::slab::Slab;
use crate::channel::StreamFormat;
use crate::filters::{FilterSubscriber, MetaPairs};
use crate::namespace::channel_name;
use crate::{EndCallback, MessageFilter};

#[derive(Debug)]
pub(super) struct LiveStream {
    pub(super) socket: HeldSocket,
    /// The session of TLS over the socket.
    pub(super) records: Option<Box<SealedRecords>>,
    /// Which of the streams that this slot has had.
    pub(super) generation: u32,
    /// Its drop tells the front end.
    pub(super) connection_guard: HeldConnectionGuard,
    pub(super) first_link: ChannelLink,
    pub(super) heartbeat_position: HeartbeatRingPosition,
    pub(super) last_sent_tick: u32,
    /// Bytes of its client that were read and dropped.
    pub(super) input_bytes: u32,
    pub(super) format: StreamFormat,
    /// The index of its gap notice in the shard.
    pub(super) gap_notice: u8,
    /// Its end is written or waits to be.
    pub(super) is_ending: bool,
    /// It is in the queue of streams that are checked for a stalled client.
    pub(super) is_stall_checked: bool,
    /// Its client closed its sending side, and was sent something to learn whether it has left.
    pub(super) is_probed: bool,
    /// No other process took it.
    pub(super) is_pinned: bool,
    pub(super) backlog: Option<Box<Backlog>>,
    pub(super) extras: Option<Box<StreamExtras>>,
    /// Its drop gives it back to its client.
    pub(super) client_permit: Option<ClientPermit>,
}

const _: () = assert!(size_of::<Option<LiveStream>>() <= 96);

/// The slot that a token is of.
pub(super) fn slot_of_token(token: u64) -> u32 {
    u32::try_from(token & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// A stream's entry in a channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChannelLink {
    /// Where the shard keeps the channel.
    pub(super) channel_slot: u32,
    /// The stream's position in its list.
    pub(super) position: u32,
    /// The first message that is for it.
    pub(super) next_sequence: u64,
}

impl ChannelLink {
    pub(super) const NONE: Self = Self {
        channel_slot: u32::MAX,
        position: 0,
        next_sequence: 0,
    };
}

/// What few streams have.
#[derive(Debug)]
pub(super) struct StreamExtras {
    /// Its channels but the first.
    pub(super) other_links: Vec<ChannelLink>,
    /// For each channel, in the links' order; empty when no channel has any.
    pub(super) filters: Vec<Box<[MessageFilter]>>,
    pub(super) subscriber_meta: Box<MetaPairs>,
    /// Its drop tells that the stream has ended.
    pub(super) on_end: Option<EndCallback>,
    /// Its own notice, framed, where the shard has too many.
    pub(super) gap_notice: Option<Bytes>,
    /// Its own heartbeat, where there are too many rings.
    pub(super) own_heartbeat: Option<OwnHeartbeat>,
}

/// A stream's own heartbeat, in a ring with other bytes.
#[derive(Debug)]
pub(super) struct OwnHeartbeat {
    pub(super) framed_bytes: Bytes,
    pub(super) is_unconditional: bool,
}

impl StreamExtras {
    pub(super) fn is_needed(&self) -> bool {
        !self.other_links.is_empty()
            || !self.filters.is_empty()
            || !self.subscriber_meta.is_empty()
            || self.on_end.is_some()
            || self.gap_notice.is_some()
            || self.own_heartbeat.is_some()
    }

    /// Memory of the extras.
    pub(super) fn memory_bytes(&self) -> usize {
        let filters: usize = self.filters.iter().map(|f| f.len()).sum();
        let meta = self.subscriber_meta.iter();
        let meta: usize = meta
            .map(|(name, value)| name.len() + value.len() + 32)
            .sum();
        let gap = self.gap_notice.as_ref().map_or(0, Bytes::len);
        let beat = self
            .own_heartbeat
            .as_ref()
            .map_or(0, |beat| beat.framed_bytes.len());
        size_of::<Self>()
            + self.other_links.capacity() * size_of::<ChannelLink>()
            + self.filters.capacity() * size_of::<Box<[MessageFilter]>>()
            + filters
            + meta
            + gap
            + beat
    }
}

impl LiveStream {
    /// Its connection, for reading and writing.
    pub(super) fn connection(&mut self) -> HeldConnectionMut<'_> {
        HeldConnectionMut::new(&self.socket, &mut self.records)
    }

    /// Memory of the session over its socket, while that is idle.
    pub(super) fn session_bytes(&self) -> usize {
        self.records
            .as_ref()
            .map_or(0, |records| records.memory_bytes())
    }

    /// The token of its socket in the poll set, unique among the streams of its slot.
    pub(super) fn poll_token(&self, slot: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(slot)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &ChannelLink> {
        let others = self.extras.iter().flat_map(|extra| &extra.other_links);
        let first = (self.first_link.channel_slot != u32::MAX).then_some(&self.first_link);
        first.into_iter().chain(others)
    }

    /// Its link to the channel that the shard keeps at `channel`, with its filters.
    pub(super) fn channel_link_mut(
        &mut self,
        channel: u32,
    ) -> Option<(&mut ChannelLink, &[MessageFilter])> {
        if self.first_link.channel_slot == channel {
            let extra = self.extras.as_ref();
            let filters = extra.and_then(|extra| extra.filters.first());
            return Some((&mut self.first_link, filters.map_or(&[], |filters| filters)));
        }
        let extra = self.extras.as_mut()?;
        let found = extra
            .other_links
            .iter()
            .position(|link| link.channel_slot == channel)?;
        let filters = extra.filters.get(found + 1);
        Some((
            &mut extra.other_links[found],
            filters.map_or(&[], |filters| filters),
        ))
    }
}

pub(super) struct StreamSubscriber<'a> {
    pub(super) stream: &'a LiveStream,
    pub(super) channels: &'a Slab<ShardChannel>,
}

impl FilterSubscriber for StreamSubscriber<'_> {
    fn subscriber_meta(&self) -> &MetaPairs {
        self.stream
            .extras
            .as_ref()
            .map_or(&[], |extra| &*extra.subscriber_meta)
    }

    fn last_id(&self, channel: &str) -> Option<Arc<str>> {
        let mut locals = self
            .stream
            .links()
            .filter_map(|link| self.channels.get(link.channel_slot));
        let found = locals.find(|local| channel_name(local.channel.name()) == channel)?;
        Some(found.channel.lock().last_id.clone().unwrap_or_default())
    }
}
