//! The task that drives this server's bus: it feeds [`BusStateMachine`] and applies its effects.
//!
//! It runs on the control loop and alone owns the machine and the connections. Publishers and
//! subscribers reach it through [`BusInbox`]; messages for this server's subscribers go to a
//! [`LocalHub`].
//!
//! # Invariants
//! - Each wait for Redis has a deadline.
//! - At most one request of each kind is in progress.
//! - Effects on the hub are applied in the order of the machine.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use penstock_hub::{LongPollAction, Publication, SharedHistory, StreamAction, WebSocketAction};
use penstock_runtime::{clock, loops};
use tokio::sync::oneshot;

use crate::backoff::ReconnectBackoff;
use crate::bus_inbox::{BusCommand, BusInbox};
use crate::bus_state_machine::{BusStateMachine, DeliveryMode, REPLY_TIMEOUT};
use crate::catch_ups::CatchUps;
use crate::cluster_totals::{self, ClusterTotals};
use crate::entry::{ChannelName, NodeId};
use crate::followed_channel::{FollowedChannel, PREPARE_TIMEOUT, StreamPage};
use crate::followed_channels::BusEffect;
use crate::outbox::OutgoingEntry;
use crate::redis_link::{RedisLink, RedisLinkError, RedisTarget, StreamRetention};

/// The hub of this server, as the bus sees it. No method waits.
pub(super) trait LocalHub: Send + Sync + 'static {
    /// Delivers to the subscribers and into the history. Returns false if there was no room.
    fn deliver_locally(&self, publication: Publication) -> bool;
    /// Replaces the history of the channel; subscribers get none of it.
    fn replace_history(&self, channel: &ChannelName, history: SharedHistory);
    /// Whether the channel has a subscriber, or one is about to come.
    fn is_channel_in_use(&self, channel: &str) -> bool;
    fn stream_retention(&self) -> StreamRetention;
    /// The counters of this server, by name.
    fn counters(&self) -> Vec<(String, u64)>;
}

/// Messages from Redis that are taken in before anything else gets its turn.
const PUSH_BATCH: usize = 256;

/// Between two pings, and between two searches for idle channels.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a stop waits for publications that Redis does not have yet.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Channels with missed messages that get a gap of their own; with more, all channels get one.
const MAX_MISSED_CHANNELS: usize = 1000;

/// The code of a WebSocket's close.
const TRY_AGAIN_LATER: u16 = 1013;

enum RedisReply {
    Connected(Box<RedisLink>),
    Published(Vec<OutgoingEntry>),
    Pages(Vec<StreamPage>),
    Subscribed(Vec<ChannelName>),
    Unsubscribed,
    Pong(Instant),
    Totals(ClusterTotals),
}

/// A question that is under way.
type PendingReply = Pin<Box<dyn Future<Output = Result<RedisReply, RedisLinkError>> + Send>>;

/// One question of each kind.
#[derive(Default)]
struct PendingRequests {
    connect: Option<PendingReply>,
    publish: Option<PendingReply>,
    read: Option<PendingReply>,
    subscribe: Option<PendingReply>,
    report: Option<PendingReply>,
}

pub(super) struct BusDriver<L> {
    local: L,
    node_id: NodeId,
    target: RedisTarget,
    inbox: Arc<BusInbox>,
    machine: BusStateMachine,
    link: Option<RedisLink>,
    pending: PendingRequests,
    backoff: ReconnectBackoff,
    /// Waiters for channels to be live.
    readiness_waiters: HashMap<ChannelName, Vec<Arc<ReadinessWaiter>>>,
    /// Channels that missed a message, since there was no room for it here.
    missed_channels: HashSet<ChannelName>,
    /// More than [`MAX_MISSED_CHANNELS`] missed a message: each channel may have.
    has_all_missed: bool,
    /// The latest time at which this task planned to run again.
    wake_at: Instant,
    next_tick: Instant,
    is_ping_due: bool,
    catch_ups: CatchUps,
    /// Live channels to which nothing was ever published.
    empty_channels: HashSet<ChannelName>,
    next_report_at: Instant,
    stop_request: Option<(Instant, oneshot::Sender<()>)>,
}

/// Waits for several channels; notified when the last of them drops it.
#[derive(Debug)]
struct ReadinessWaiter {
    _ready_sender: oneshot::Sender<()>,
    deadline: Instant,
}

impl<L: LocalHub> BusDriver<L> {
    pub(super) fn new(local: L, me: NodeId, target: RedisTarget, inbox: Arc<BusInbox>) -> Self {
        let now = clock::now();
        Self {
            local,
            node_id: me,
            target,
            inbox,
            machine: BusStateMachine::new(me, now),
            link: None,
            pending: PendingRequests::default(),
            backoff: ReconnectBackoff::new(me.0),
            readiness_waiters: HashMap::new(),
            missed_channels: HashSet::new(),
            has_all_missed: false,
            wake_at: now,
            next_tick: now,
            is_ping_due: false,
            catch_ups: CatchUps::default(),
            empty_channels: HashSet::new(),
            next_report_at: now,
            stop_request: None,
        }
    }

    /// Runs until a stop is requested.
    pub(super) async fn run(mut self) {
        while !self.is_done() {
            let now = clock::now();
            self.handle_commands(now);
            self.handle_pushes(now);
            self.tick(now);
            self.apply_effects();
            self.is_ping_due |= self.catch_ups.advance(now, &self.machine);
            self.send_due_requests(now);
            let wake_at = self.wake_at(now);
            self.wake_at = wake_at;
            let inbox = self.inbox.clone();
            tokio::select! {
                answer = next_reply(&mut self.pending) => self.handle_reply(answer),
                () = inbox.wakeup.notified() => {}
                () = clock::sleep(wake_at.saturating_duration_since(now)) => {}
            }
            // What Redis sends is read on another thread, and may never end.
            loops::yield_now().await;
        }
        if let Some(link) = self.link.take() {
            let left = clock::timeout(REPLY_TIMEOUT, link.remove_node()).await;
            if !matches!(left, Some(Ok(()))) {
                log::debug!("hub: Redis was not told that this server stops");
            }
        }
        self.inbox.close();
    }

    /// Whether to stop: it was requested, and all is sent or nothing more can be done.
    fn is_done(&mut self) -> bool {
        let is_over = |until: Instant| {
            let is_empty = self.machine.outbox.is_empty();
            (is_empty && !self.inbox.has_commands()) || clock::now() >= until
        };
        if !self
            .stop_request
            .as_ref()
            .is_some_and(|(until, _)| is_over(*until))
        {
            return false;
        }
        let waiting = self.machine.outbox.unsent_messages();
        if waiting > 0 {
            log::warn!("hub: {waiting} messages did not reach the other servers");
        }
        true
    }

    fn handle_commands(&mut self, now: Instant) {
        for command in self.inbox.take_commands() {
            match command {
                BusCommand::Publish(publication) => self.machine.publish(now, *publication),
                BusCommand::Subscribed(channel) => self.machine.on_subscribed(now, &channel),
                BusCommand::Unsubscribed(channel) => {
                    self.machine
                        .followed_channels
                        .on_unsubscribed(now, &channel);
                }
                BusCommand::Prepare(channels, sender) => self.prepare(now, channels, sender),
                BusCommand::CatchUp(channels, sender) => {
                    for channel in &channels {
                        self.machine.follow_channel(now, channel);
                    }
                    self.catch_ups.add(channels, sender);
                }
                BusCommand::Stop(sender) => self.stop_request = Some((now + FLUSH_TIMEOUT, sender)),
            }
        }
    }

    fn prepare(&mut self, now: Instant, channels: Vec<ChannelName>, sender: oneshot::Sender<()>) {
        let waiter = Arc::new(ReadinessWaiter {
            _ready_sender: sender,
            deadline: now + PREPARE_TIMEOUT,
        });
        for channel in channels {
            if !self.machine.prepare_channel(now, &channel) && self.link.is_some() {
                self.readiness_waiters
                    .entry(channel)
                    .or_default()
                    .push(waiter.clone());
            }
        }
    }

    fn handle_pushes(&mut self, now: Instant) {
        if let Err(error) = self.handle_pushes_up_to(now, PUSH_BATCH) {
            self.on_disconnected(&error);
        }
    }

    fn handle_pushes_up_to(&mut self, now: Instant, max: usize) -> Result<(), RedisLinkError> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        for pushed in link.push_queue.take(max)? {
            if let Some(entry) = link.decoder.decode_push(&pushed)? {
                self.machine.on_entry(now, entry);
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Instant) {
        // That this thread was busy says nothing of Redis.
        self.machine
            .extend_reply_deadline(now.saturating_duration_since(self.wake_at));
        let (local, inbox) = (&self.local, &self.inbox);
        let before = self.machine.mode;
        let in_use = |channel: &str| {
            local.is_channel_in_use(channel) || inbox.was_requested_recently(channel, now)
        };
        self.machine.tick(now, in_use);
        if before == DeliveryMode::Clustered && self.machine.mode == DeliveryMode::Standalone {
            self.backoff
                .log_failure(now, &self.target.address, "it does not answer in time");
        }
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK_INTERVAL;
        self.readiness_waiters.retain(|_, waiters| {
            waiters.retain(|waiter| now < waiter.deadline);
            !waiters.is_empty()
        });
        self.machine
            .set_max_channels(self.local.stream_retention().max_channels);
        self.announce_missed();
        self.is_ping_due = true;
    }

    fn apply_effects(&mut self) {
        self.inbox.set_in_step(self.machine.is_in_step());
        for effect in self.machine.take_effects() {
            match effect {
                BusEffect::Deliver(publication) => {
                    if self.empty_channels.remove(&publication.channel) {
                        self.inbox.mark_not_empty(&publication.channel);
                    }
                    self.deliver(*publication);
                }
                BusEffect::RestoreHistory(channel, history) => {
                    self.local.replace_history(&channel, history);
                }
                BusEffect::AnnounceGap(channel) => self.announce_gap(channel),
                BusEffect::ChannelLive(channel) => {
                    self.readiness_waiters.remove(&channel);
                    let follow = self.machine.followed_channels.get(&channel);
                    let is_empty = follow.is_some_and(FollowedChannel::is_empty);
                    if is_empty {
                        self.empty_channels.insert(channel.clone());
                    }
                    self.inbox.mark_live(channel, is_empty);
                }
                BusEffect::ChannelNotLive(channel) => {
                    self.empty_channels.remove(&channel);
                    self.inbox.mark_not_live(&channel);
                }
                // The machine has kept these for itself.
                BusEffect::InvalidateAllHistories { .. }
                | BusEffect::HistoriesIncompleteUpTo(_)
                | BusEffect::OwnMessageDelivered(_) => {}
            }
        }
        let (outbox, followed) = (&self.machine.outbox, &self.machine.followed_channels);
        self.inbox.update_snapshot(|snapshot| {
            snapshot.connected = self.link.is_some();
            snapshot.standalone = self.machine.mode == DeliveryMode::Standalone;
            snapshot.queued = outbox.unsent_messages() as u64;
            snapshot.lost = outbox.dropped_messages();
            snapshot.channels = followed.len() as u64;
        });
    }

    fn deliver(&mut self, publication: Publication) {
        let channel = publication.channel.clone();
        if !self.local.deliver_locally(publication) {
            // No client resumes from a message before it.
            self.local
                .replace_history(&channel, SharedHistory::default());
            self.record_missed(channel);
        }
    }

    /// Announces a gap to a channel's subscribers, now or when there is room.
    fn announce_gap(&mut self, channel: ChannelName) {
        if self.local.deliver_locally(gap_publication(&channel)) {
            self.missed_channels.remove(&channel);
        } else {
            self.record_missed(channel);
        }
    }

    fn record_missed(&mut self, channel: ChannelName) {
        if self.missed_channels.len() < MAX_MISSED_CHANNELS {
            self.missed_channels.insert(channel);
        } else {
            self.missed_channels.clear();
            self.has_all_missed = true;
        }
    }

    /// Announces gaps for which there was no room before.
    fn announce_missed(&mut self) {
        let mut missed = std::mem::take(&mut self.missed_channels);
        if std::mem::take(&mut self.has_all_missed) {
            missed.extend(self.machine.followed_channels.loaded_channels().cloned());
            for channel in &missed {
                self.local
                    .replace_history(channel, SharedHistory::default());
            }
        }
        for channel in missed {
            // Later subscribers have missed nothing of it.
            if self.local.is_channel_in_use(&channel) {
                self.announce_gap(channel);
            }
        }
    }

    fn send_due_requests(&mut self, now: Instant) {
        let Some(link) = &self.link else {
            if self.pending.connect.is_none() && self.backoff.is_due(now) {
                let fresh = format!("{}-{:x}", self.node_id, clock::wall_time().as_micros());
                let wakeup = self.inbox.wakeup.clone();
                let kept = self.local.stream_retention().max_age;
                let asked = self
                    .target
                    .clone()
                    .connect(self.node_id, fresh, kept, wakeup);
                self.pending.connect =
                    pending_reply(asked, |link| RedisReply::Connected(Box::new(link)));
            }
            return;
        };
        let questions = &mut self.pending;
        if questions.publish.is_none()
            && let Some(batch) = self.machine.next_batch(now)
        {
            let asked = link.clone().publish(batch, self.local.stream_retention());
            questions.publish = pending_reply(asked, RedisReply::Published);
        }
        // First, so that the coming and going of channels cannot hold it up.
        if questions.subscribe.is_none() && std::mem::take(&mut self.is_ping_due) {
            self.catch_ups.note_ping(now);
            questions.subscribe = pending_reply(link.clone().ping(now), RedisReply::Pong);
        }
        if questions.subscribe.is_none() {
            let leaving = self.machine.followed_channels.next_unsubscriptions();
            if leaving.is_empty() {
                let subscriptions = self.machine.followed_channels.next_subscriptions();
                if !subscriptions.is_empty() {
                    questions.subscribe = pending_reply(
                        link.clone().subscribe(subscriptions),
                        RedisReply::Subscribed,
                    );
                }
            } else {
                let asked = link.clone().unsubscribe(leaving);
                questions.subscribe = pending_reply(asked, |()| RedisReply::Unsubscribed);
            }
        }
        if questions.read.is_none() {
            let reads = self.machine.next_reads(now);
            if !reads.is_empty() {
                let asked = link
                    .clone()
                    .read_streams(reads, self.local.stream_retention());
                questions.read = pending_reply(asked, RedisReply::Pages);
            }
        }
        if questions.report.is_none() && now >= self.next_report_at {
            self.next_report_at = now + cluster_totals::REPORT_INTERVAL;
            let asked = link.clone().report_counters(self.local.counters());
            questions.report = pending_reply(asked, RedisReply::Totals);
        }
    }

    fn handle_reply(&mut self, answer: Result<RedisReply, RedisLinkError>) {
        let now = clock::now();
        match answer {
            Ok(RedisReply::Connected(link)) => self.on_connected(now, *link),
            Ok(RedisReply::Published(batch)) => self.machine.on_batch_accepted(now, &batch),
            Ok(RedisReply::Pages(parts)) => {
                for part in parts {
                    self.machine.apply_page(now, part);
                }
            }
            Ok(RedisReply::Subscribed(channels)) => {
                self.machine.followed_channels.confirm_subscribed(&channels);
            }
            Ok(RedisReply::Unsubscribed) => {}
            Ok(RedisReply::Pong(at)) => {
                // All that came before the answer, first.
                match self.handle_pushes_up_to(now, usize::MAX) {
                    Ok(()) => {
                        self.machine.mark_complete_until(at);
                        self.catch_ups.note_pong(at);
                    }
                    Err(error) => self.on_disconnected(&error),
                }
                self.record_reply(now);
            }
            Ok(RedisReply::Totals(totals)) => self.set_totals(totals),
            Err(error) => self.on_disconnected(&error),
        }
    }

    fn record_reply(&mut self, now: Instant) {
        if let Some(away) = self.backoff.record_reply(now) {
            let outbox = &self.machine.outbox;
            log::info!(
                "hub: Redis at {} answers again after {} s: {} messages wait for it, {} were dropped since \
                 the start",
                self.target.address,
                away.as_secs(),
                outbox.unsent_messages(),
                outbox.dropped_messages()
            );
        }
    }

    fn on_connected(&mut self, now: Instant, link: RedisLink) {
        self.backoff.record_connected(now);
        let kept = self.local.stream_retention().max_age;
        self.machine.on_connected(now, &link.dataset, kept);
        self.link = Some(link);
        self.next_report_at = now;
        // The first question tells from when on everything came.
        self.next_tick = now;
    }

    /// The connection is of no use any more, or there was none.
    fn on_disconnected(&mut self, error: &RedisLinkError) {
        let now = clock::now();
        self.link = None;
        self.pending = PendingRequests::default();
        self.backoff.record_failure(now);
        let cause = error.to_string();
        self.backoff.log_failure(now, &self.target.address, &cause);
        self.machine.on_disconnected(now);
        self.readiness_waiters.clear();
        self.catch_ups.clear();
        self.empty_channels.clear();
        self.inbox.clear_live_channels();
        self.set_totals(ClusterTotals::default());
    }

    fn set_totals(&self, totals: ClusterTotals) {
        self.inbox.update_snapshot(|snapshot| {
            (snapshot.servers, snapshot.totals) = (totals.servers, totals.sums);
        });
    }

    fn wake_at(&self, now: Instant) -> Instant {
        let mut wake_at = self.next_tick;
        if self.machine.is_awaiting_reply() {
            wake_at = wake_at.min(now + REPLY_TIMEOUT / 4);
        }
        if self.link.is_none() && self.pending.connect.is_none() {
            wake_at = wake_at.min(self.backoff.due_at());
        }
        if self
            .link
            .as_ref()
            .is_some_and(|link| link.push_queue.has_messages_or_ended())
        {
            wake_at = now;
        }
        wake_at
    }
}

/// A question, and what its answer is for the driver.
fn pending_reply<T>(
    asked: impl Future<Output = Result<T, RedisLinkError>> + Send + 'static,
    answer: impl FnOnce(T) -> RedisReply + Send + 'static,
) -> Option<PendingReply> {
    Some(Box::pin(async move { asked.await.map(answer) }))
}

async fn next_reply(questions: &mut PendingRequests) -> Result<RedisReply, RedisLinkError> {
    poll_fn(|cx| {
        for slot in [
            &mut questions.connect,
            &mut questions.subscribe,
            &mut questions.publish,
            &mut questions.read,
            &mut questions.report,
        ] {
            if let Some(asked) = slot
                && let Poll::Ready(answer) = asked.as_mut().poll(cx)
            {
                *slot = None;
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

/// What subscribers are told when they may have missed something: streams of events get one of type
/// `gap`, long polls ask the back end again, streams of bytes and WebSockets end, so that their
/// clients come back.
fn gap_publication(channel: &ChannelName) -> Publication {
    Publication {
        channel: channel.clone(),
        allows_any_order: true,
        stream: Some(StreamAction::Gap),
        response: Some(LongPollAction::Hint),
        websocket: Some(WebSocketAction::Close {
            code: TRY_AGAIN_LATER,
            reason: "messages may be missing".into(),
        }),
        ..Publication::default()
    }
}

#[cfg(test)]
mod tests;
