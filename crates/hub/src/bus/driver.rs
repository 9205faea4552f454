//! The task that drives one node: it feeds [`Machine`] and does what comes out.
//!
//! One task on the control loop, the only owner of the machine and of the connections. Publishers and
//! subscribers reach it through [`super::inbox`]; what is for this node's subscribers goes to [`Local`].
//! What must stay true: nothing here waits for Redis without a deadline; of each kind of question one is
//! under way at a time; what the machine wants done at the hub is done in its order.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use penstock_runtime::{clock, loops};
use tokio::sync::oneshot;

use super::backoff::Backoff;
use super::entry::{Channel, NodeId};
use super::follow::{PREPARED_WITHIN, Part};
use super::follows::Effect;
use super::inbox::{Inbox, Order, Status};
use super::link::{Keeping, Link, LinkError, Target};
use super::machine::{ANSWERS_WITHIN, Machine, Mode};
use super::outbox::Outgoing;
use super::totals::{self, Totals};
use crate::{Publication, ResponsePart, SocketPart, StreamPart};

/// This node's hub, as the bus sees it. Nothing of it waits.
pub(super) trait Local: Send + Sync + 'static {
    /// To the subscribers, and into the history. False when there was no room for it.
    fn deliver(&self, publication: Publication) -> bool;
    /// This is the channel's history from now on, each with its age; none of it goes to subscribers.
    fn restore(&self, channel: &Channel, history: Vec<(Publication, Duration)>);
    /// Whether anybody subscribes to it, or is about to.
    fn is_in_use(&self, channel: &str) -> bool;
    /// How much Redis is to keep.
    fn keeping(&self) -> Keeping;
    /// What this node has and has done, by name.
    fn numbers(&self) -> Vec<(String, u64)>;
}

/// Messages from Redis that are taken in before anything else gets its turn.
const AT_ONCE: usize = 256;

/// Between two questions whether Redis is there, and two looks at what is idle.
const TICK: Duration = Duration::from_secs(1);

/// How long the end waits for what is not with the others yet.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Channels that missed a message and are told one by one; with more, all are.
const MISSED_MAX: usize = 1000;

/// The code of a WebSocket's close.
const TRY_AGAIN_LATER: u16 = 1013;

/// What Redis has answered.
enum Answer {
    Connected(Box<Link>),
    Taken(Vec<Outgoing>),
    Parts(Vec<Part>),
    Subscribed(Vec<Channel>),
    Unsubscribed,
    Ping(Instant),
    Totals(Totals),
}

/// A question that is under way.
type Asked = Pin<Box<dyn Future<Output = Result<Answer, LinkError>> + Send>>;

/// One question of each kind.
#[derive(Default)]
struct Questions {
    connecting: Option<Asked>,
    publishing: Option<Asked>,
    reading: Option<Asked>,
    hearing: Option<Asked>,
    beating: Option<Asked>,
}

/// The task's state.
pub(super) struct Driver<L> {
    local: L,
    me: NodeId,
    target: Target,
    inbox: Arc<Inbox>,
    machine: Machine,
    link: Option<Link>,
    questions: Questions,
    backoff: Backoff,
    /// Who waits for channels to be live.
    waiters: HashMap<Channel, Vec<Arc<Waiter>>>,
    /// Channels that missed a message, since there was no room for it here.
    missed: HashSet<Channel>,
    /// More than are told apart: all of them may have.
    have_all_missed: bool,
    /// When this task meant to run again at the latest.
    wake_at: Instant,
    next_tick: Instant,
    is_ping_due: bool,
    next_beat: Instant,
    stop: Option<(Instant, oneshot::Sender<()>)>,
}

/// Somebody who waits for several channels; told when the last of them lets go of it.
#[derive(Debug)]
struct Waiter {
    _told: oneshot::Sender<()>,
    until: Instant,
}

impl<L: Local> Driver<L> {
    pub(super) fn new(local: L, me: NodeId, target: Target, inbox: Arc<Inbox>) -> Self {
        let now = clock::now();
        Self {
            local,
            me,
            target,
            inbox,
            machine: Machine::new(me, now),
            link: None,
            questions: Questions::default(),
            backoff: Backoff::new(me.0),
            waiters: HashMap::new(),
            missed: HashSet::new(),
            have_all_missed: false,
            wake_at: now,
            next_tick: now,
            is_ping_due: false,
            next_beat: now,
            stop: None,
        }
    }

    /// Runs until it is told to stop.
    pub(super) async fn run(mut self) {
        while !self.is_done() {
            let now = clock::now();
            self.take_orders(now);
            self.hear(now);
            self.tick(now);
            self.perform();
            self.ask(now);
            let wake_at = self.wake_at(now);
            self.wake_at = wake_at;
            let inbox = self.inbox.clone();
            tokio::select! {
                answer = next_answer(&mut self.questions) => self.apply(answer),
                () = inbox.bell.notified() => {}
                () = clock::sleep(wake_at.saturating_duration_since(now)) => {}
            }
            // What Redis sends is read on another thread, and may never end.
            loops::yield_now().await;
        }
        if let Some(link) = self.link.take() {
            let left = clock::timeout(ANSWERS_WITHIN, link.leave()).await;
            if !matches!(left, Some(Ok(()))) {
                log::debug!("hub: Redis was not told that this server stops");
            }
        }
        self.inbox.close();
    }

    /// Whether it is to stop, and all is with the others or nothing more can be done.
    fn is_done(&mut self) -> bool {
        let is_over = |until: Instant| {
            let is_empty = self.machine.outbox().is_empty();
            (is_empty && !self.inbox.has_orders()) || clock::now() >= until
        };
        if !self.stop.as_ref().is_some_and(|(until, _)| is_over(*until)) {
            return false;
        }
        let waiting = self.machine.outbox().waiting();
        if waiting > 0 {
            log::warn!("hub: {waiting} messages did not reach the other servers");
        }
        true
    }

    fn take_orders(&mut self, now: Instant) {
        for order in self.inbox.take() {
            match order {
                Order::Publish(publication) => self.machine.publish(now, *publication),
                Order::Subscribed(channel) => self.machine.subscribed(now, &channel),
                Order::Unsubscribed(channel) => self.machine.unsubscribed(now, &channel),
                Order::Prepare(channels, told) => self.prepare(now, channels, told),
                Order::Stop(told) => self.stop = Some((now + STOP_WITHIN, told)),
            }
        }
    }

    fn prepare(&mut self, now: Instant, channels: Vec<Channel>, told: oneshot::Sender<()>) {
        let waiter = Arc::new(Waiter {
            _told: told,
            until: now + PREPARED_WITHIN,
        });
        for channel in channels {
            if !self.machine.prepare(now, &channel) && self.link.is_some() {
                self.waiters
                    .entry(channel)
                    .or_default()
                    .push(waiter.clone());
            }
        }
    }

    /// Takes in what Redis has published.
    fn hear(&mut self, now: Instant) {
        if let Err(error) = self.hear_some(now, AT_ONCE) {
            self.lost(&error);
        }
    }

    fn hear_some(&mut self, now: Instant, max: usize) -> Result<(), LinkError> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        for pushed in link.pushes.take(max)? {
            if let Some(entry) = link.answers.entry(&pushed)? {
                self.machine.heard(now, entry);
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Instant) {
        // That this thread was busy says nothing of Redis.
        self.machine
            .was_late(now.saturating_duration_since(self.wake_at));
        let (local, inbox) = (&self.local, &self.inbox);
        let before = self.machine.mode();
        let in_use = |channel: &str| local.is_in_use(channel) || inbox.is_expected(channel, now);
        self.machine.tick(now, in_use);
        if before == Mode::Shared && self.machine.mode() == Mode::Alone {
            self.backoff
                .note(now, &self.target.address, "it does not answer in time");
        }
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        self.waiters.retain(|_, waiters| {
            waiters.retain(|waiter| now < waiter.until);
            !waiters.is_empty()
        });
        self.machine.bound_channels(self.local.keeping().channels);
        self.announce_missed();
        self.is_ping_due = true;
    }

    /// Does what the machine wants done here.
    fn perform(&mut self) {
        for effect in self.machine.take_effects() {
            match effect {
                Effect::Deliver(publication) => self.deliver(*publication),
                Effect::Restore(channel, history) => self.local.restore(&channel, history),
                Effect::Announce(channel) => self.announce(channel),
                Effect::Ready(channel) => {
                    self.waiters.remove(&channel);
                    self.inbox.is_ready(channel);
                }
                Effect::Cold(channel) => self.inbox.is_cold(&channel),
                // The machine has kept these for itself.
                Effect::CutEverywhere { .. } | Effect::Torn(_) | Effect::Delivered(_) => {}
            }
        }
        self.inbox.set_status(Status {
            is_connected: self.link.is_some(),
            is_alone: self.machine.mode() == Mode::Alone,
            waiting: self.machine.outbox().waiting(),
            lost: self.machine.outbox().dropped(),
            channels: self.machine.follows().len(),
        });
    }

    fn deliver(&mut self, publication: Publication) {
        let channel = publication.channel.clone();
        if !self.local.deliver(publication) {
            // Nobody goes on from what came before it.
            self.local.restore(&channel, Vec::new());
            self.has_missed(channel);
        }
    }

    /// Tells a channel's subscribers that they may have missed something, now or when there is room.
    fn announce(&mut self, channel: Channel) {
        if self.local.deliver(gap(&channel)) {
            self.missed.remove(&channel);
        } else {
            self.has_missed(channel);
        }
    }

    fn has_missed(&mut self, channel: Channel) {
        if self.missed.len() < MISSED_MAX {
            self.missed.insert(channel);
        } else {
            self.missed.clear();
            self.have_all_missed = true;
        }
    }

    /// Tells those that could not be told yet.
    fn announce_missed(&mut self) {
        let mut missed = std::mem::take(&mut self.missed);
        if std::mem::take(&mut self.have_all_missed) {
            missed.extend(self.machine.follows().loaded().cloned());
            for channel in &missed {
                self.local.restore(channel, Vec::new());
            }
        }
        for channel in missed {
            // Who comes later has missed nothing of it.
            if self.local.is_in_use(&channel) {
                self.announce(channel);
            }
        }
    }

    /// Asks Redis what is to be asked next.
    fn ask(&mut self, now: Instant) {
        let Some(link) = &self.link else {
            if self.questions.connecting.is_none() && self.backoff.is_due(now) {
                let fresh = format!("{}-{:x}", self.me, clock::wall().as_micros());
                let bell = self.inbox.bell.clone();
                let kept = self.local.keeping().age;
                let asked = self.target.clone().connect(self.me, fresh, kept, bell);
                self.questions.connecting = ask(asked, |link| Answer::Connected(Box::new(link)));
            }
            return;
        };
        let questions = &mut self.questions;
        if questions.publishing.is_none()
            && let Some(batch) = self.machine.next_batch(now)
        {
            let asked = link.clone().publish(batch, self.local.keeping());
            questions.publishing = ask(asked, Answer::Taken);
        }
        // First, so that the coming and going of channels cannot hold it up.
        if questions.hearing.is_none() && std::mem::take(&mut self.is_ping_due) {
            questions.hearing = ask(link.clone().ping(now), Answer::Ping);
        }
        if questions.hearing.is_none() {
            let leaving = self.machine.next_unsubscriptions();
            if leaving.is_empty() {
                let coming = self.machine.next_subscriptions();
                if !coming.is_empty() {
                    questions.hearing = ask(link.clone().subscribe(coming), Answer::Subscribed);
                }
            } else {
                let asked = link.clone().unsubscribe(leaving);
                questions.hearing = ask(asked, |()| Answer::Unsubscribed);
            }
        }
        if questions.reading.is_none() {
            let reads = self.machine.next_reads(now);
            if !reads.is_empty() {
                let asked = link.clone().read(reads, self.local.keeping());
                questions.reading = ask(asked, Answer::Parts);
            }
        }
        if questions.beating.is_none() && now >= self.next_beat {
            self.next_beat = now + totals::EVERY;
            let asked = link.clone().beat(self.local.numbers());
            questions.beating = ask(asked, Answer::Totals);
        }
    }

    fn apply(&mut self, answer: Result<Answer, LinkError>) {
        let now = clock::now();
        match answer {
            Ok(Answer::Connected(link)) => self.connected(now, *link),
            Ok(Answer::Taken(batch)) => self.machine.taken(now, &batch),
            Ok(Answer::Parts(parts)) => {
                for part in parts {
                    self.machine.read(now, part);
                }
            }
            Ok(Answer::Subscribed(channels)) => self.machine.are_subscribed(&channels),
            Ok(Answer::Unsubscribed) => {}
            Ok(Answer::Ping(at)) => {
                // All that came before the answer, first.
                match self.hear_some(now, usize::MAX) {
                    Ok(()) => self.machine.whole(at),
                    Err(error) => self.lost(&error),
                }
                self.is_well(now);
            }
            Ok(Answer::Totals(totals)) => self.inbox.set_totals(Totals {
                at: Some(now),
                ..totals
            }),
            Err(error) => self.lost(&error),
        }
    }

    fn is_well(&mut self, now: Instant) {
        if let Some(away) = self.backoff.is_well(now) {
            let outbox = self.machine.outbox();
            log::info!(
                "hub: Redis at {} answers again after {} s: {} messages wait for it, {} were dropped since \
                 the start",
                self.target.address,
                away.as_secs(),
                outbox.waiting(),
                outbox.dropped()
            );
        }
    }

    fn connected(&mut self, now: Instant, link: Link) {
        self.backoff.connected(now);
        let kept = self.local.keeping().age;
        self.machine.connected(now, &link.data, kept);
        self.link = Some(link);
        self.next_beat = now;
        // The first question tells from when on everything came.
        self.next_tick = now;
    }

    /// The connection is of no use any more, or there was none.
    fn lost(&mut self, error: &LinkError) {
        let now = clock::now();
        self.link = None;
        self.questions = Questions::default();
        self.backoff.failed(now);
        let cause = error.to_string();
        self.backoff.note(now, &self.target.address, &cause);
        self.machine.disconnected(now);
        self.waiters.clear();
        self.inbox.is_cold_everywhere();
        self.inbox.set_totals(Totals::default());
    }

    fn wake_at(&self, now: Instant) -> Instant {
        let mut wake_at = self.next_tick;
        if self.machine.is_waiting() {
            wake_at = wake_at.min(now + ANSWERS_WITHIN / 4);
        }
        if self.link.is_none() && self.questions.connecting.is_none() {
            wake_at = wake_at.min(self.backoff.due_at());
        }
        if self
            .link
            .as_ref()
            .is_some_and(|link| link.pushes.is_waiting())
        {
            wake_at = now;
        }
        wake_at
    }
}

/// A question, and what its answer is for the driver.
fn ask<T>(
    asked: impl Future<Output = Result<T, LinkError>> + Send + 'static,
    answer: impl FnOnce(T) -> Answer + Send + 'static,
) -> Option<Asked> {
    Some(Box::pin(async move { asked.await.map(answer) }))
}

/// The next answer to any of them.
async fn next_answer(questions: &mut Questions) -> Result<Answer, LinkError> {
    poll_fn(|cx| {
        for slot in [
            &mut questions.connecting,
            &mut questions.hearing,
            &mut questions.publishing,
            &mut questions.reading,
            &mut questions.beating,
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

/// What subscribers are told when they may have missed something: streams of events get one of type `gap`, long
/// polls ask the back end again, streams of bytes and WebSockets end, so that their clients come back.
fn gap(channel: &Channel) -> Publication {
    Publication {
        channel: channel.clone(),
        in_any_order: true,
        stream: Some(StreamPart::Gap),
        response: Some(ResponsePart::Hint),
        websocket: Some(SocketPart::Close {
            code: TRY_AGAIN_LATER,
            reason: "messages may be missing".into(),
        }),
        ..Publication::default()
    }
}

#[cfg(test)]
mod tests;
