//! A held stream: the socket and a few words.
//!
//! There are a million of these, so what few of them need is behind a pointer ([`Extra`], the backlog), and
//! their size is asserted. What must stay true: a stream's places (in its channels' lists, in its ring of
//! heart-beats) name it as it names them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::{ClientPermit, HeldConnectionGuard};

use super::backlog::Backlog;
use super::beats::BeatAt;
use super::delivery::Local;
use super::slab::Slab;
use crate::Filter;
use crate::channel::Shape;
use crate::filters::{Meta, Reader};
use crate::hub::AtEnd;
use crate::namespace::channel_name;

/// A held stream.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) socket: OwnedFd,
    /// Which of the streams that this slot has had.
    pub(super) generation: u32,
    /// Its drop tells the front end.
    pub(super) _place: HeldConnectionGuard,
    /// Its first channel.
    pub(super) first: Link,
    pub(super) beat: BeatAt,
    /// The tick in which something was last sent to it.
    pub(super) sent: u32,
    /// Bytes of its client that were read and dropped.
    pub(super) input_bytes: u32,
    pub(super) shape: Shape,
    /// Which notice of the shard's stands for what is missing.
    pub(super) gap: u8,
    pub(super) is: Flags,
    pub(super) backlog: Option<Box<Backlog>>,
    pub(super) extra: Option<Box<Extra>>,
    /// Its drop gives it back to its client.
    pub(super) permit: Option<ClientPermit>,
}

const _: () = assert!(size_of::<Option<Held>>() <= 96);

/// The slot that a token is of.
pub(super) fn slot_of(token: u64) -> u32 {
    u32::try_from(token & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// What is so of a stream; a byte.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flags(u8);

impl Flags {
    /// Its end is written or waits to be.
    pub(super) const ENDING: u8 = 1;
    /// It stands in the line of those that are looked at for taking nothing.
    pub(super) const WATCHED: u8 = 2;
    /// Its client closed its sending side, and was sent something to learn whether it has left.
    pub(super) const PROBED: u8 = 4;

    pub(super) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8) {
        self.0 |= flag;
    }

    pub(super) fn clear(&mut self, flag: u8) {
        self.0 &= !flag;
    }
}

/// A stream's place in a channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// Where the shard keeps the channel.
    pub(super) channel: u32,
    /// The stream's place in its list.
    pub(super) position: u32,
    /// The first message that is for it.
    pub(super) next: u64,
}

impl Link {
    pub(super) const NONE: Self = Self {
        channel: u32::MAX,
        position: 0,
        next: 0,
    };
}

/// What few streams have.
#[derive(Debug)]
pub(super) struct Extra {
    /// Its channels but the first.
    pub(super) others: Vec<Link>,
    /// For each channel, in the links' order; empty when no channel has any.
    pub(super) filters: Vec<Box<[Filter]>>,
    pub(super) meta: Box<Meta>,
    /// Its drop tells that the stream has ended.
    pub(super) ended: AtEnd,
    /// Its own notice, framed, where the shard has too many.
    pub(super) gap: Option<Bytes>,
    /// Its own heart-beat, where there are too many rings.
    pub(super) beat: Option<OwnBeat>,
}

/// A heart-beat of a stream in a ring of others.
#[derive(Debug)]
pub(super) struct OwnBeat {
    pub(super) framed: Bytes,
    pub(super) regardless: bool,
}

impl Extra {
    pub(super) fn is_needed(&self) -> bool {
        !self.others.is_empty()
            || !self.filters.is_empty()
            || !self.meta.is_empty()
            || !self.ended.is_none()
            || self.gap.is_some()
            || self.beat.is_some()
    }

    /// What it takes of memory.
    pub(super) fn bytes(&self) -> usize {
        let filters: usize = self.filters.iter().map(|f| f.len()).sum();
        let meta = self.meta.iter();
        let meta: usize = meta
            .map(|(name, value)| name.len() + value.len() + 32)
            .sum();
        let gap = self.gap.as_ref().map_or(0, Bytes::len);
        let beat = self.beat.as_ref().map_or(0, |beat| beat.framed.len());
        size_of::<Self>()
            + self.others.capacity() * size_of::<Link>()
            + self.filters.capacity() * size_of::<Box<[Filter]>>()
            + filters
            + meta
            + gap
            + beat
    }
}

impl Held {
    /// The number that it is watched under, which no other stream of its slot has.
    pub(super) fn token(&self, slot: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(slot)
    }

    /// Its places in its channels.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        let others = self.extra.iter().flat_map(|extra| &extra.others);
        let first = (self.first.channel != u32::MAX).then_some(&self.first);
        first.into_iter().chain(others)
    }

    /// Its place in the channel that the shard keeps at `channel`, with what each message must pass.
    pub(super) fn link_mut(&mut self, channel: u32) -> Option<(&mut Link, &[Filter])> {
        if self.first.channel == channel {
            let extra = self.extra.as_ref();
            let filters = extra.and_then(|extra| extra.filters.first());
            return Some((&mut self.first, filters.map_or(&[], |filters| filters)));
        }
        let extra = self.extra.as_mut()?;
        let found = extra
            .others
            .iter()
            .position(|link| link.channel == channel)?;
        let filters = extra.filters.get(found + 1);
        Some((
            &mut extra.others[found],
            filters.map_or(&[], |filters| filters),
        ))
    }
}

/// The subscriber that filters look at.
pub(super) struct StreamReader<'a> {
    pub(super) held: &'a Held,
    pub(super) locals: &'a Slab<Local>,
}

impl Reader for StreamReader<'_> {
    fn meta(&self) -> &Meta {
        self.held.extra.as_ref().map_or(&[], |extra| &*extra.meta)
    }

    fn last_id(&self, channel: &str) -> Option<Arc<str>> {
        let mut locals = self
            .held
            .links()
            .filter_map(|link| self.locals.get(link.channel));
        let found = locals.find(|local| channel_name(local.channel.name()) == channel)?;
        Some(found.channel.lock().last_id.clone().unwrap_or_default())
    }
}
