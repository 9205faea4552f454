//! What the hub counts, as atomics that everybody may read.
//!
//! Shards count for themselves and add at the end of each turn, so that loops do not meet at a number for
//! each write. What must stay true: a seat is taken before anything is held and given back when it is
//! gone, whatever became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use penstock_exchange::{AddressPrefix, ClientPermit, ClientPermits};
use penstock_runtime::log_throttle::LogThrottle;

use crate::Refused;
use crate::channel::Channel;
use crate::hub::Shared;
use crate::shares::Share;

/// The numbers of a hub.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Streams and polls, also those on their way.
    seats: AtomicUsize,
    /// Of each client.
    pub(crate) clients: Arc<ClientPermits>,
    /// What the log was told of streams that were sent away.
    pub(crate) repeats: LogThrottle,
    /// How often there was none of all.
    pub(crate) refused: AtomicU64,
    pub(crate) polls: AtomicUsize,
    pub(crate) opened: AtomicU64,
    pub(crate) closed: AtomicU64,
    pub(crate) closed_slow: AtomicU64,
    pub(crate) published: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) beats: AtomicU64,
    /// Bytes that wait for slow subscribers.
    pub(crate) backlog_bytes: AtomicUsize,
    /// Bytes of histories.
    pub(crate) history_bytes: AtomicUsize,
    /// Bytes of messages that shards have not got to, or whose turn has not come.
    pub(crate) pending_bytes: AtomicUsize,
    /// Bytes of all shards for their streams.
    pub(crate) shard_bytes: AtomicUsize,
}

impl Tally {
    /// Streams and polls, also those on their way.
    pub(crate) fn seats(&self) -> usize {
        self.seats.load(Ordering::Acquire)
    }
}

impl Tally {
    /// So many bytes of a channel's messages wait to be delivered.
    pub(crate) fn add_pending(&self, channel: &Channel, bytes: usize) {
        let all = [
            &self.pending_bytes,
            &channel.share().pending_bytes,
            &channel.pending,
        ];
        for count in all {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// They wait no more.
    pub(crate) fn take_pending(&self, channel: &Channel, bytes: usize) {
        let all = [
            &self.pending_bytes,
            &channel.share().pending_bytes,
            &channel.pending,
        ];
        for count in all {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// The histories of a namespace have changed by so much.
    pub(crate) fn change_history(&self, share: &Share, before: usize, after: usize) {
        change(&self.history_bytes, before, after);
        change(&share.history_bytes, before, after);
    }
}

/// Adds a difference that may be negative.
pub(crate) fn change(number: &AtomicUsize, before: usize, after: usize) {
    if after >= before {
        number.fetch_add(after - before, Ordering::Relaxed);
    } else {
        number.fetch_sub(before - after, Ordering::Relaxed);
    }
}

/// A place among `streams_max`, and among those of its client; its drop gives it back.
#[derive(Debug)]
pub(crate) struct Seat {
    shared: Option<Arc<Shared>>,
    permit: Option<ClientPermit>,
}

impl Seat {
    /// Takes one.
    ///
    /// # Errors
    /// When there is none, or the server stops.
    pub(crate) fn take(
        shared: &Arc<Shared>,
        client: Option<AddressPrefix>,
    ) -> Result<Self, Refused> {
        if shared.is_draining() {
            return Err(Refused::Draining);
        }
        let settings = shared.settings.load();
        let max = settings.streams_max.unwrap_or(usize::MAX);
        let max_of_client = settings.max_streams_per_client.unwrap_or(usize::MAX);
        let permit = match client {
            Some(client) => {
                let permit = shared.tally.clients.claim(client, max_of_client);
                Some(permit.ok_or(Refused::StreamsOfClient(client, max_of_client))?)
            }
            None => None,
        };
        // Counted before the bound is looked at: the drop takes it back.
        let seat = Self {
            shared: Some(shared.clone()),
            permit,
        };
        if shared.tally.seats.fetch_add(1, Ordering::AcqRel) >= max {
            shared.tally.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refused::Streams(max));
        }
        // Begun meanwhile, it may have seen no seat taken.
        if shared.is_draining() {
            return Err(Refused::Draining);
        }
        Ok(seat)
    }

    /// Leaves it taken: [`Seat::give_back`] is now somebody's to call, and its client's part to drop.
    pub(crate) fn keep(mut self) -> Option<ClientPermit> {
        self.shared = None;
        self.permit.take()
    }

    /// Gives back one that was kept.
    pub(crate) fn give_back(shared: &Shared) {
        if shared.tally.seats.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.emptied.notify_waiters();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            Self::give_back(&shared);
        }
    }
}
