//! The hub's counters, as atomics that any thread may read.
//!
//! A shard counts for itself and adds its counts at the end of each turn, so that event loops do
//! not contend for a counter with each write.
//!
//! # Invariants
//! - A permit is acquired before anything is held, and released when that is gone, for whatever
//!   reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use penstock_exchange::{AddressPrefix, ClientPermit, ClientPermits};
use penstock_runtime::OncePerSecondThrottle;

use crate::HubError;
use crate::channel::Channel;
use crate::hub::HubShared;
use crate::namespace_usages::NamespaceUsage;

#[derive(Debug, Default)]
pub(crate) struct HubMetrics {
    /// Streams and polls, also those on their way.
    held_connection_count: AtomicUsize,
    pub(crate) client_permits: Arc<ClientPermits>,
    /// Limits log lines about refused streams.
    pub(crate) refusal_log: OncePerSecondThrottle,
    /// Refusals because of `max_streams`.
    pub(crate) refused_streams: AtomicU64,
    pub(crate) long_polls: AtomicUsize,
    pub(crate) opened_streams: AtomicU64,
    pub(crate) closed_streams: AtomicU64,
    pub(crate) closed_slow_streams: AtomicU64,
    pub(crate) published_messages: AtomicU64,
    pub(crate) delivered_messages: AtomicU64,
    pub(crate) dropped_messages: AtomicU64,
    pub(crate) sent_heartbeats: AtomicU64,
    /// Bytes that wait for slow subscribers.
    pub(crate) backlog_bytes: AtomicUsize,
    pub(crate) history_bytes: AtomicUsize,
    /// Bytes of messages that are undelivered or parked.
    pub(crate) pending_bytes: AtomicUsize,
    /// Bytes of all shards for their streams.
    pub(crate) shard_bytes: AtomicUsize,
}

impl HubMetrics {
    pub(crate) fn held_connection_count(&self) -> usize {
        self.held_connection_count.load(Ordering::Acquire)
    }

    /// Adds bytes of a channel's messages that wait for delivery.
    pub(crate) fn add_pending_bytes(&self, channel: &Channel, bytes: usize) {
        for count in self.pending_counters(channel) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Subtracts bytes that no longer wait.
    pub(crate) fn subtract_pending_bytes(&self, channel: &Channel, bytes: usize) {
        for count in self.pending_counters(channel) {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn pending_counters<'a>(&'a self, channel: &'a Channel) -> [&'a AtomicUsize; 3] {
        let namespace_bytes = &channel.namespace_usage().pending_bytes;
        [&self.pending_bytes, namespace_bytes, &channel.pending_bytes]
    }

    /// Updates the history bytes of the hub and of a namespace.
    pub(crate) fn update_history_bytes(&self, usage: &NamespaceUsage, before: usize, after: usize) {
        adjust_counter(&self.history_bytes, before, after);
        adjust_counter(&usage.history_bytes, before, after);
    }
}

/// Adds a difference that may be negative.
pub(crate) fn adjust_counter(number: &AtomicUsize, before: usize, after: usize) {
    if after >= before {
        number.fetch_add(after - before, Ordering::Relaxed);
    } else {
        number.fetch_sub(before - after, Ordering::Relaxed);
    }
}

/// A permit counted towards `max_streams` and its client's limit; dropping it releases it.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    shared: Option<Arc<HubShared>>,
    client_permit: Option<ClientPermit>,
}

/// The part of `max_streams` beyond it that refused streams may use. By default `max_streams` is
/// three quarters of the connections, which leaves pages a sixteenth.
const REFUSED_SHARE: usize = 4;

impl StreamPermit {
    pub(crate) fn acquire(
        shared: &Arc<HubShared>,
        client: Option<AddressPrefix>,
    ) -> Result<Self, HubError> {
        let max = shared.settings.load().max_streams.unwrap_or(usize::MAX);
        let acquired = Self::acquire_below(shared, client, max);
        if matches!(acquired, Err(HubError::TooManyStreams(_))) {
            let refused = &shared.metrics.refused_streams;
            refused.fetch_add(1, Ordering::Relaxed);
        }
        acquired
    }

    /// For a stream that was refused and is held until its client may return: it may use more than
    /// `max_streams`, by a part of them.
    pub(crate) fn acquire_for_refused(
        shared: &Arc<HubShared>,
        client: Option<AddressPrefix>,
    ) -> Result<Self, HubError> {
        let max = shared.settings.load().max_streams.unwrap_or(usize::MAX);
        Self::acquire_below(shared, client, max.saturating_add(max / REFUSED_SHARE))
    }

    fn acquire_below(
        shared: &Arc<HubShared>,
        client: Option<AddressPrefix>,
        max: usize,
    ) -> Result<Self, HubError> {
        if shared.refuses_streams() {
            return Err(HubError::Draining);
        }
        let settings = shared.settings.load();
        let max_of_client = settings.max_streams_per_client.unwrap_or(usize::MAX);
        let client_permit = client.map(|client| {
            let permit = shared.metrics.client_permits.claim(client, max_of_client);
            permit.ok_or(HubError::TooManyClientStreams(client, max_of_client))
        });
        let client_permit = client_permit.transpose()?;
        // Counted before the bound is looked at: the drop takes it back.
        let permit = Self {
            shared: Some(shared.clone()),
            client_permit,
        };
        if shared
            .metrics
            .held_connection_count
            .fetch_add(1, Ordering::AcqRel)
            >= max
        {
            return Err(HubError::TooManyStreams(max));
        }
        // A drain that began meanwhile may not have seen this permit.
        if shared.refuses_streams() {
            return Err(HubError::Draining);
        }
        Ok(permit)
    }

    /// Leaves it acquired: the caller calls [`StreamPermit::release`] later, and drops the client's
    /// part.
    pub(crate) fn into_client_permit(mut self) -> Option<ClientPermit> {
        self.shared = None;
        self.client_permit.take()
    }

    /// A permit that was left acquired, with its client's part.
    pub(crate) fn from_client_permit(
        shared: &Arc<HubShared>,
        client_permit: Option<ClientPermit>,
    ) -> Self {
        Self {
            shared: Some(shared.clone()),
            client_permit,
        }
    }

    /// The client that it counts for.
    pub(crate) fn client(&self) -> Option<AddressPrefix> {
        self.client_permit.as_ref().map(ClientPermit::client)
    }

    /// Releases a permit that was left acquired.
    pub(crate) fn release(shared: &HubShared) {
        if shared
            .metrics
            .held_connection_count
            .fetch_sub(1, Ordering::AcqRel)
            == 1
        {
            shared.all_streams_ended.notify_waiters();
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            Self::release(&shared);
        }
    }
}
