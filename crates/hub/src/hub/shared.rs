//! The state of a hub that all threads share.
//!
//! Handlers reach it through [`crate::Hub`], shards through the `Arc` that they were started with.
//!
//! # Invariants
//! - Each lock is short and guards one list.
//! - `parked_channels` has a channel once for each message that is parked in it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use penstock_runtime::clock;
use tokio::sync::Notify;

use super::bus::{Bus, BusNotifier, SubscriptionChange};
use super::presence::PresenceChanges;
use crate::channel::{Channel, ChannelState};
use crate::counters::HubMetrics;
use crate::history::{ChannelHistory, HistoryBounds};
use crate::registry::ChannelRegistry;
use crate::return_schedule::FractionSequence;
use crate::shard::ShardInbox;
use crate::transfer::TransferParticipants;
use crate::{DrainPlan, History, Settings};

#[derive(Debug)]
pub(crate) struct HubShared {
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) registry: ChannelRegistry,
    pub(crate) metrics: HubMetrics,
    pub(crate) bus_notifier: BusNotifier,
    /// The ways to the shards, by their numbers.
    pub(crate) shard_inboxes: Vec<ShardInbox>,
    pub(crate) all_streams_ended: Notify,
    pub(crate) drain_started: Notify,
    pub(crate) maintenance_due: Notify,
    pub(super) presence_changes: PresenceChanges,
    is_draining: AtomicBool,
    /// The drain, with the time of its begin; set right before it begins.
    drain_plan: OnceLock<(DrainPlan, Instant)>,
    /// Spreads the returns of clients.
    pub(crate) return_fractions: FractionSequence,
    pub(crate) last_sequence: AtomicU64,
    /// In front of the number in ids that the hub makes: no other start of a server has it, but
    /// the process that the hub was taken over from.
    pub(crate) id_prefix: ArcSwap<Box<str>>,
    /// Another process has the authority over the channels.
    pub(crate) is_mirror: AtomicBool,
    /// Another process takes the streams.
    pub(crate) is_handing_over: AtomicBool,
    /// The histories are written for the next start.
    pub(crate) takes_no_messages: AtomicBool,
    /// Streams of another process are on their way here.
    pub(crate) is_importing: AtomicBool,
    pub(crate) participants: TransferParticipants,
    /// Channels with parked messages, by when the next of these has waited long enough.
    parked_channels: Mutex<VecDeque<(Instant, Arc<Channel>)>>,
}

impl HubShared {
    pub(crate) fn new(settings: Settings, shards: usize) -> Self {
        let started = clock::wall_time().as_micros();
        Self {
            settings: ArcSwap::from_pointee(settings),
            registry: ChannelRegistry::new(),
            metrics: HubMetrics::default(),
            bus_notifier: BusNotifier::default(),
            shard_inboxes: (0..shards).map(|_| ShardInbox::default()).collect(),
            all_streams_ended: Notify::new(),
            drain_started: Notify::new(),
            maintenance_due: Notify::new(),
            presence_changes: PresenceChanges::default(),
            is_draining: AtomicBool::new(false),
            drain_plan: OnceLock::new(),
            return_fractions: FractionSequence::new(),
            last_sequence: AtomicU64::new(0),
            id_prefix: ArcSwap::from_pointee(
                format!("{started:x}.{:x}", std::process::id()).into(),
            ),
            is_mirror: AtomicBool::new(false),
            is_handing_over: AtomicBool::new(false),
            takes_no_messages: AtomicBool::new(false),
            is_importing: AtomicBool::new(false),
            participants: TransferParticipants::default(),
            parked_channels: Mutex::default(),
        }
    }

    /// The next message's number. Under the lock of its channel, so that numbers rise in each.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.last_sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The id of a message that has none of its publisher.
    pub(crate) fn message_id(&self, order: u64) -> Arc<str> {
        format!("{}-{order}", self.id_prefix.load()).into()
    }

    /// The number of a message that got its id here, since this start. None for a number that is
    /// forged: not yet used, or written otherwise than by [`HubShared::message_id`].
    pub(crate) fn sequence_of_id(&self, id: &str) -> Option<u64> {
        let prefix = self.id_prefix.load();
        let number = id.strip_prefix(&***prefix)?.strip_prefix('-')?;
        let sequence = number.parse().ok()?;
        let is_used = (1..=self.last_sequence.load(Ordering::Relaxed)).contains(&sequence);
        (is_used && !number.starts_with(['+', '0'])).then_some(sequence)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Whether this hub takes no streams any more: one that drains hands them on while another
    /// process takes them.
    pub(crate) fn refuses_streams(&self) -> bool {
        self.is_draining() && !self.is_handing_over.load(Ordering::SeqCst)
    }

    /// Whether it had begun already.
    pub(crate) fn begin_drain(&self, plan: DrainPlan) -> bool {
        let _ = self.drain_plan.set((plan, clock::now()));
        let had_begun = self.is_draining.swap(true, Ordering::AcqRel);
        self.drain_started.notify_waiters();
        had_begun
    }

    /// After how long the client of a stream that ends now, or cannot begin, is to return, if
    /// the hub drains.
    pub(crate) fn next_drain_return_delay(&self) -> Option<Duration> {
        let (plan, started_at) = self.drain_plan.get()?;
        let elapsed = clock::now().saturating_duration_since(*started_at);
        Some(plan.return_delay(elapsed, self.return_fractions.next_fraction()))
    }

    /// Puts a bus in place and tells it of what there is.
    pub(crate) fn set_bus(&self, bus: Option<Arc<dyn Bus>>) {
        self.bus_notifier.set_bus(bus);
        for channel in self.registry.all_by_partition().flatten() {
            let state = channel.lock();
            // A subscriber that comes at this moment is reported twice, which does no harm.
            if state.has_subscribers() {
                self.bus_notifier
                    .record_change(SubscriptionChange::Subscribed(channel.name().clone()));
            }
        }
        self.bus_notifier.notify();
    }

    /// Waits until the drain begins; returns a part of its time, another each time, so that clients
    /// do not come back all at once.
    pub(crate) async fn wait_for_drain_start(&self) -> Duration {
        loop {
            let begun = self.drain_started.notified();
            if self.is_draining() {
                let duration = self.drain_plan.get().map(|(plan, _)| plan.duration);
                let fraction = self.return_fractions.next_fraction();
                return duration.unwrap_or_default().mul_f64(fraction);
            }
            begun.await;
        }
    }

    /// What a channel may keep. A stream on its way is to find what was published meanwhile, also
    /// where nothing is kept for clients that resume.
    pub(crate) fn history_bounds(&self, history: &History, state: &ChannelState) -> HistoryBounds {
        if state.arriving_streams > 0 && self.is_importing.load(Ordering::Relaxed) {
            return HistoryBounds {
                max_count: usize::MAX,
                max_age: Duration::MAX,
                max_bytes: self.settings.load().max_backlog_total,
            };
        }
        let count = if state.is_internal {
            0
        } else {
            history.max_messages
        };
        let (count, age) = if state.arriving_streams > 0 {
            (
                count.max(MAX_ARRIVAL_MESSAGES),
                history.max_age.max(ARRIVAL_HISTORY_AGE),
            )
        } else {
            (count, history.max_age)
        };
        HistoryBounds {
            max_count: count,
            max_age: age,
            max_bytes: history.max_size,
        }
    }

    /// Lets go of what a channel may keep no more.
    pub(crate) fn trim_history(&self, state: &mut ChannelState, now: Instant) {
        let bounds = self.history_bounds(&self.settings.load().history, state);
        self.change_history(state, |history| history.trim(bounds, now));
    }

    /// Changes the history of a channel, and the counters with it.
    pub(crate) fn change_history(
        &self,
        state: &mut ChannelState,
        change: impl FnOnce(&mut ChannelHistory),
    ) {
        let before = state.history.memory_bytes();
        change(&mut state.history);
        let after = state.history.memory_bytes();
        self.metrics
            .update_history_bytes(&state.namespace_usage, before, after);
    }

    /// Notes that a channel's subscribers were `before` and are now what `state` says.
    pub(crate) fn report_subscription_change(
        &self,
        channel: &Arc<Channel>,
        was_there: bool,
        state: &mut ChannelState,
    ) {
        state.update_queue_positions(channel);
        self.record_presence_change(channel, state);
        let change = match (was_there, state.has_subscribers()) {
            (false, true) => SubscriptionChange::Subscribed,
            (true, false) => SubscriptionChange::Unsubscribed,
            (true, true) | (false, false) => return,
        };
        self.bus_notifier
            .record_change(change(channel.name().clone()));
    }

    /// Takes a subscriber out of a channel, which the registry then lets go of if it is idle.
    pub(crate) fn remove_subscriber(
        &self,
        channel: &Arc<Channel>,
        remove: impl FnOnce(&mut ChannelState),
    ) {
        let is_idle = {
            let mut state = channel.lock();
            let was_there = state.has_subscribers();
            remove(&mut state);
            self.report_subscription_change(channel, was_there, &mut state);
            state.is_idle()
        };
        if is_idle {
            self.registry.remove_if_idle(channel);
        }
    }

    pub(crate) fn parked_channels(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<Channel>)>> {
        self.parked_channels
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The least number of messages that is kept for streams on their way: a head is sent within
/// microseconds, or its client is slow.
const MAX_ARRIVAL_MESSAGES: usize = 256;

/// And for how long.
const ARRIVAL_HISTORY_AGE: Duration = Duration::from_secs(30);
