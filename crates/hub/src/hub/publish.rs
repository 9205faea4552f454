//! A publication on its way to its subscribers.
//!
//! Called by whoever publishes, on any thread; everything that takes long is left to the shards.
//! What must stay true: under the channel's lock a message gets its number, its place in the
//! history and in every shard's inbox, so that all see one order; wakers, long polls and bounds are
//! seen to when the lock is free again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Instant;

use penstock_runtime::clock;

use super::{Answerer, Feed, Shared};
use crate::channel::{Channel, Concern, Message, State, bytes_of, is_internal};
use crate::order::PARKED_FOR;
use crate::shard::{Answers, Command, Delivery};
use crate::shares::{Share, take_largest};
use crate::{Publication, Refused, Settings};

/// What is left to do when a channel's lock is free again.
#[derive(Debug)]
struct Aftermath<'a> {
    channel: &'a Arc<Channel>,
    wakers: Vec<Waker>,
    polls: Vec<(Arc<Message>, Vec<Arc<Answerer>>)>,
    feeds: Vec<Arc<Feed>>,
    /// It had no history before.
    gains_history: bool,
    is_parked: bool,
}

impl<'a> Aftermath<'a> {
    fn of(channel: &'a Arc<Channel>) -> Self {
        Self {
            channel,
            wakers: Vec::new(),
            polls: Vec::new(),
            feeds: Vec::new(),
            gains_history: false,
            is_parked: false,
        }
    }
}

/// One channel may have such a part of what may wait to be delivered, so that others have some as well.
const CHANNEL_PART: usize = 4;

/// How many channels are looked at for one that no message waits in.
const FORGET_TRIES: usize = 16;

/// Long polls that the publisher answers itself; of more a shard takes care.
const ANSWERED_AT_ONCE: usize = 64;

impl Shared {
    /// Looks whether there is room for a publication.
    pub(super) fn check(&self, publication: &Publication) -> Result<(), Refused> {
        let settings = self.settings.load();
        if bytes_of(publication) > settings.message_bytes {
            return Err(Refused::Message(settings.message_bytes));
        }
        if self.tally.pending_bytes.load(Ordering::Relaxed) > settings.backlogs_bytes {
            return Err(Refused::Behind(settings.backlogs_bytes));
        }
        Ok(())
    }

    /// Publishes on this node.
    pub(crate) fn deliver(&self, publication: Publication) -> Result<(), Refused> {
        let settings = self.settings.load();
        let now = clock::now();
        let mut is_checked = false;
        loop {
            let keeps = settings.history.count > 0 && !is_internal(&publication.channel);
            let channel = if !keeps {
                self.registry.find(&publication.channel)
            } else {
                Some(self.open_unheard(&publication.channel, settings.channels_max)?)
            };
            let Some(channel) = channel else {
                // Nobody is there, and nothing is kept.
                self.tally.published.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            };
            let most = settings.backlogs_bytes / CHANNEL_PART;
            if channel.pending.load(Ordering::Relaxed) > most {
                self.registry.release(&channel);
                return Err(Refused::Behind(most));
            }
            let own = channel.share().pending_bytes.load(Ordering::Relaxed);
            let pending = self.tally.pending_bytes.load(Ordering::Relaxed);
            let shares = &self.registry.shares;
            if shares.is_used_up(own, pending, settings.backlogs_bytes) {
                self.registry.release(&channel);
                return Err(Refused::BehindOfNamespace(own));
            }
            if let Some(id) = &publication.id
                && !std::mem::replace(&mut is_checked, true)
                && self.registry.is_repeated(&publication.channel, id, now)
            {
                self.registry.release(&channel);
                return Ok(());
            }
            let mut aftermath = Aftermath::of(&channel);
            {
                let Some(mut state) = channel.lock_alive() else {
                    continue;
                };
                self.accept(&mut state, &settings, publication, now, &mut aftermath);
            }
            self.settle(aftermath, &settings, now);
            return Ok(());
        }
    }

    /// Sends what has waited long enough for the message before it.
    pub(super) fn release_parked(&self, channel: &Arc<Channel>, now: Instant) {
        let settings = self.settings.load();
        let mut aftermath = Aftermath::of(channel);
        {
            let mut state = channel.lock();
            while let Some(overdue) = state.parked.as_mut().and_then(|p| p.take_overdue(now)) {
                self.unpark(channel, &overdue);
                self.admit_all(&mut state, &settings, overdue, now, &mut aftermath);
            }
            forget_empty(&mut state);
        }
        self.settle(aftermath, &settings, now);
        self.registry.release(channel);
    }

    /// The channel of a publication, which need not have subscribers. Whoever may publish may name
    /// ever new channels: a quarter of all is for those who listen, and each namespace has a share
    /// of the rest.
    fn open_unheard(&self, name: &Arc<str>, channels_max: usize) -> Result<Arc<Channel>, Refused> {
        if let Some(channel) = self.registry.find(name) {
            return Ok(channel);
        }
        let max = channels_max - channels_max / 4;
        let shares = &self.registry.shares;
        let share = shares.of(name);
        loop {
            let unheard = shares.unheard();
            let heard = self.registry.len().saturating_sub(unheard);
            // Those who listen may have more than their quarter.
            let room = max.min(channels_max.saturating_sub(heard));
            let own = share.unheard.len();
            // With the one that is to come.
            let is_full = unheard >= room;
            let is_used_up = shares.is_used_up(own + 1, unheard + 1, room);
            let has_freed = match (is_full, is_used_up) {
                (false, false) => break,
                (false, true) => self.forget_oldest(&share),
                (true, _) => shares.has_several() && self.forget_of_largest(&share),
            };
            if !has_freed {
                return Err(match is_full {
                    true => Refused::Unheard(room),
                    false => Refused::UnheardOfNamespace(own),
                });
            }
        }
        let opened = self.registry.open(name, channels_max);
        opened.map_err(|_| Refused::Unheard(max))
    }

    /// Lets go of a channel of the namespace that has most of them, for one more of `share`;
    /// whether there is one less.
    fn forget_of_largest(&self, share: &Arc<Share>) -> bool {
        let mut shares = self.registry.shares.all();
        let count = |each: &Share| {
            let is_own = std::ptr::eq(each, &**share);
            // With the one that is to come, so that of two that have the same it is the own.
            2 * each.unheard.len() + usize::from(is_own)
        };
        while let Some(largest) = take_largest(&mut shares, count) {
            if self.forget_oldest(&largest) {
                return true;
            }
            if Arc::ptr_eq(&largest, share) {
                break;
            }
        }
        false
    }

    /// Lets go of the channel of a namespace that is there for its history alone and whose last
    /// message is the oldest; whether there is one less.
    fn forget_oldest(&self, share: &Share) -> bool {
        let mut from = 0;
        for _ in 0..FORGET_TRIES {
            let Some((place, channel)) = share.unheard.first_from(from) else {
                return false;
            };
            let is_forgotten = {
                let mut state = channel.lock();
                let is_unheard = !state.has_subscribers() && state.expected == 0;
                let may_go = is_unheard && state.parked.is_none() && !state.history.is_empty();
                while may_go && !state.history.is_empty() {
                    let freed = state.history.drop_oldest();
                    self.tally.change_history(share, freed, 0);
                }
                state.update_places(&channel);
                may_go
            };
            if is_forgotten {
                self.registry.release(&channel);
                return true;
            }
            from = place + 1;
        }
        false
    }

    /// Lets channels lose messages, one each in turn, until all histories are within their bound:
    /// first those of the namespace that has most, then those of the one that has just taken more,
    /// if it has more than its share.
    pub(super) fn evict(&self, share: &Share, bytes_all: usize) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let used = || load(&self.tally.history_bytes);
        let shares = &self.registry.shares;
        if used() > bytes_all {
            let mut all = shares.all();
            let count = |share: &Share| load(&share.history_bytes);
            while used() > bytes_all
                && let Some(largest) = take_largest(&mut all, count)
            {
                if self.drop_one(&largest) {
                    all.push(largest);
                }
            }
        }
        while shares.is_used_up(load(&share.history_bytes), used(), bytes_all) {
            if !self.drop_one(share) {
                break;
            }
        }
    }

    /// Drops a message of the channel that is next; `false` when there is none.
    fn drop_one(&self, share: &Share) -> bool {
        let Some((_, channel)) = share.histories.first_from(0) else {
            return false;
        };
        let is_empty = {
            let mut state = channel.lock();
            let freed = state.history.drop_oldest();
            self.tally.change_history(share, freed, 0);
            state.move_back(&channel);
            state.history.is_empty()
        };
        if is_empty {
            self.registry.release(&channel);
        }
        true
    }

    /// Puts a publication in its place in the channel, or aside until its turn has come.
    fn accept(
        &self,
        state: &mut State,
        settings: &Settings,
        publication: Publication,
        now: Instant,
        aftermath: &mut Aftermath<'_>,
    ) {
        let waits = !publication.in_any_order
            && publication.prev_id.is_some()
            && state.last_id.is_some()
            && publication.prev_id != state.last_id;
        if !waits {
            self.admit_all(state, settings, publication, now, aftermath);
            forget_empty(state);
            return;
        }
        let parked = state.parked.get_or_insert_default();
        let bytes = bytes_of(&publication);
        self.tally.add_pending(aftermath.channel, bytes);
        aftermath.is_parked = true;
        if let Some(oldest) = parked.park(now, publication) {
            self.unpark(aftermath.channel, &oldest);
            self.admit_all(state, settings, oldest, now, aftermath);
            forget_empty(state);
        }
    }

    fn unpark(&self, channel: &Channel, publication: &Publication) {
        self.tally.take_pending(channel, bytes_of(publication));
    }

    /// Admits a publication and what waited for it.
    fn admit_all(
        &self,
        state: &mut State,
        settings: &Settings,
        publication: Publication,
        now: Instant,
        aftermath: &mut Aftermath<'_>,
    ) {
        let mut next = Some(publication);
        while let Some(publication) = next {
            let id = self.admit(state, settings, publication, now, aftermath);
            let parked = state.parked.as_mut();
            next = parked.and_then(|parked| parked.take_after(&id));
            if let Some(next) = &next {
                self.unpark(aftermath.channel, next);
            }
        }
    }

    /// Gives a publication its number and hands it to history, shards and long polls; its id.
    fn admit(
        &self,
        state: &mut State,
        settings: &Settings,
        mut publication: Publication,
        now: Instant,
        aftermath: &mut Aftermath<'_>,
    ) -> Arc<str> {
        let order = self.next_order();
        let id = publication.id.take().unwrap_or_else(|| self.id_of(order));
        publication.id = Some(id.clone());
        let message = Arc::new(Message::new(order, id.clone(), publication, now));
        state.last = order;
        state.last_id = Some(id.clone());
        self.tally.published.fetch_add(1, Ordering::Relaxed);
        if message.concern() != Concern::None {
            for home in &state.homes {
                self.tally.add_pending(aftermath.channel, message.cost);
                let delivery = Delivery {
                    slot: home.slot,
                    channel: aftermath.channel.clone(),
                    message: message.clone(),
                };
                let shard = &self.shards[usize::from(home.shard)];
                aftermath
                    .wakers
                    .extend(shard.push(Command::Deliver(delivery)));
            }
        }
        if message.publication.response.is_some() && !state.polls.is_empty() {
            let waiting = state.polls.values().cloned().collect();
            aftermath.polls.push((message.clone(), waiting));
        }
        for feed in state.listeners.values() {
            feed.push(message.clone(), settings.backlog_bytes);
            aftermath.feeds.push(feed.clone());
        }
        let bounds = Self::bounds(&settings.history, state);
        let (added, freed) = state.history.push(message, bounds, now);
        self.tally.change_history(&state.share, freed, added);
        aftermath.gains_history |= state.history_place.is_none() && !state.history.is_empty();
        state.update_places(aftermath.channel);
        id
    }

    /// Sees to what could not be done under the lock.
    fn settle(&self, aftermath: Aftermath<'_>, settings: &Settings, now: Instant) {
        let channel = aftermath.channel;
        aftermath.wakers.into_iter().for_each(Waker::wake);
        aftermath.feeds.iter().for_each(|feed| feed.tell());
        if aftermath.gains_history {
            self.keeper.notify_one();
        }
        if aftermath.is_parked {
            let until = now + PARKED_FOR;
            self.parked().push_back((until, channel.clone()));
            self.keeper.notify_one();
        }
        for (message, waiting) in aftermath.polls {
            self.answer(channel, message, waiting);
        }
        self.evict(channel.share(), settings.history.bytes_all);
    }

    fn answer(&self, channel: &Arc<Channel>, message: Arc<Message>, waiting: Vec<Arc<Answerer>>) {
        if waiting.len() <= ANSWERED_AT_ONCE {
            let answered = waiting.iter().filter(|poll| poll.answer(channel, &message));
            let answered = answered.count() as u64;
            self.tally.delivered.fetch_add(answered, Ordering::Relaxed);
            return;
        }
        let number = usize::try_from(message.order).unwrap_or(0);
        let shard = &self.shards[number % self.shards.len()];
        let answers = Answers {
            channel: channel.clone(),
            message,
            waiting,
        };
        if let Some(waker) = shard.push(Command::Answer(answers)) {
            waker.wake();
        }
    }
}

fn forget_empty(state: &mut State) {
    if state
        .parked
        .as_ref()
        .is_some_and(|parked| parked.is_empty())
    {
        state.parked = None;
    }
}
