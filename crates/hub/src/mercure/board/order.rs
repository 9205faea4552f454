//! The order of a route's updates: what is published when, to whom, and what a newcomer has missed.
//!
//! `board` keeps it behind its lock. An update gets its place in the order, goes into the history, and
//! waits until those before it have been handed to all audiences that take them. Pure: whoever calls hands
//! out, and says the time; simulated with seeds.
//!
//! What must stay true: all audiences are handed updates in the one order; what a newcomer is told from
//! history and what its audience is handed from then on is, together, each update after the one that it
//! knew exactly once, also while an update is half handed out. (Who knows one that its audience is still to
//! be handed, from another audience, hears of it again.)

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use penstock_exchange::AddressPrefix;
use thiserror::Error;

use crate::History as Bounds;
use crate::mercure::audiences::{Audience, Audiences, Wish};
use crate::mercure::history::History;
use crate::mercure::update::{EARLIEST, Update};

/// Updates that wait until the ones before them have been handed out.
const WAITING_MAX: usize = 1000;

/// Bytes of these; one update may always wait.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Updates, audiences, and how far the ones have come to the others.
#[derive(Debug, Default)]
pub(super) struct Order {
    audiences: Audiences,
    history: History,
    /// In order; each with its position.
    waiting: VecDeque<(u64, Arc<Update>)>,
    waiting_bytes: usize,
    /// The update that some of its audiences have.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    position: u64,
    update: Arc<Update>,
    /// Who still has to get it, the next one last.
    left: Vec<u64>,
}

/// A newcomer's place.
#[derive(Debug)]
pub(super) struct Joined {
    /// Its audience.
    pub audience: u64,
    /// Its audience's channel.
    pub channel: Arc<str>,
    /// The id before the first update of `replay`, if history was asked for.
    pub before: Option<Arc<str>>,
    /// The events that it missed.
    pub replay: Vec<u8>,
    /// Whether these are all.
    pub is_whole: bool,
}

/// How far updates were handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of them.
    Done,
    /// There are more.
    More,
    /// Who takes them has enough to do.
    Behind,
}

/// Why something is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Full {
    /// Too many updates, or too many bytes of them.
    #[error("{WAITING_MAX} updates or {WAITING_BYTES_MAX} bytes of them wait to be handed out")]
    Updates,
    /// More than the index takes.
    #[error("subscribers use too many different templates")]
    Templates,
}

impl Order {
    /// Gives an update its place.
    ///
    /// # Errors
    /// When too many wait.
    pub(super) fn publish(
        &mut self,
        update: Arc<Update>,
        now: Instant,
        bounds: &Bounds,
    ) -> Result<(), Full> {
        let bytes = self.waiting_bytes + update.bytes();
        let is_first = self.waiting.is_empty();
        if self.waiting.len() >= WAITING_MAX || (bytes > WAITING_BYTES_MAX && !is_first) {
            return Err(Full::Updates);
        }
        let position = self.history.push(&update, now, bounds);
        self.waiting_bytes = bytes;
        self.waiting.push_back((position, update));
        Ok(())
    }

    /// Takes a newcomer in, who knows the update `after`; `channel` names a new audience's channel.
    ///
    /// # Errors
    /// When its templates are too many.
    pub(super) fn join(
        &mut self,
        (wish, client): (Wish, Option<AddressPrefix>),
        after: Option<&str>,
        replay_bytes_max: usize,
        channel: impl FnOnce(u64) -> Arc<str>,
    ) -> Result<Joined, Full> {
        let from = after.map(|after| self.missed_from(after, &wish));
        // An audience that is made now is not among those of the current update.
        let settled = self.settled();
        let covered = settled + u64::from(self.current.is_some());
        let audience = self
            .audiences
            .join((wish, client), covered, channel)
            .ok_or(Full::Templates)?;
        let mut joined = Joined {
            audience: audience.number,
            channel: Arc::clone(&audience.channel),
            before: None,
            replay: Vec::new(),
            is_whole: true,
        };
        let Some((from, before)) = from else {
            return Ok(joined);
        };
        joined.before = Some(before);
        let missed = self.history.range(from, audience.covered.max(settled));
        for update in missed.filter(|update| audience.wish.takes(update)) {
            let bytes = joined.replay.len() + update.event.len();
            if bytes > replay_bytes_max && !joined.replay.is_empty() {
                joined.is_whole = false;
                break;
            }
            joined.replay.extend_from_slice(&update.event);
        }
        Ok(joined)
    }

    /// One member of that audience less.
    pub(super) fn leave(&mut self, audience: u64) {
        self.audiences.leave(audience);
    }

    /// Forgets what is too old.
    pub(super) fn prune(&mut self, now: Instant, bounds: &Bounds) {
        self.history.prune(now, bounds);
    }

    /// The id of the last update.
    pub(super) fn last_id(&self) -> Option<&Arc<str>> {
        self.history.last_id()
    }

    /// How many audiences there are.
    #[cfg(test)]
    pub(super) fn audiences(&self) -> usize {
        self.audiences.count()
    }

    /// Hands updates to at most so many audiences by `hand`, which may refuse for now.
    pub(super) fn hand_out(
        &mut self,
        portion: usize,
        mut hand: impl FnMut(&Audience, &Update) -> bool,
    ) -> Progress {
        for _ in 0..portion {
            if self.current.is_none() {
                self.current = self.next();
            }
            let Some(current) = &mut self.current else {
                return Progress::Done;
            };
            let Some(&number) = current.left.last() else {
                self.current = None;
                continue;
            };
            // Without its last member an audience is gone.
            if let Some(audience) = self.audiences.audience_mut(number) {
                let update = &*current.update;
                if audience.wish.may_see(update) && !hand(audience, update) {
                    return Progress::Behind;
                }
                audience.covered = audience.covered.max(current.position + 1);
            }
            current.left.pop();
        }
        Progress::More
    }

    fn next(&mut self) -> Option<Current> {
        let (position, update) = self.waiting.pop_front()?;
        self.waiting_bytes -= update.bytes();
        let left = self.audiences.that_want(&update.topics);
        Some(Current {
            position,
            update,
            left,
        })
    }

    /// The position of the first update that who knows `after` missed, and what to call the one before it.
    fn missed_from(&self, after: &str, wish: &Wish) -> (u64, Arc<str>) {
        // `EARLIEST` is nobody's id. What is not known is older than all that is kept, or from elsewhere:
        // it gets what there is, and hears that there is nothing before.
        let Some((position, update)) = self.history.find(after) else {
            return (0, EARLIEST.into());
        };
        let is_seen = wish.may_see(update);
        let before = if is_seen { &*update.id } else { EARLIEST };
        (position + 1, before.into())
    }

    /// The position before which all updates have been handed to all audiences.
    fn settled(&self) -> u64 {
        let current = self.current.as_ref().map(|current| current.position);
        let waiting = self.waiting.front().map(|(position, _)| *position);
        current.or(waiting).unwrap_or_else(|| self.history.next())
    }
}

#[cfg(test)]
mod tests;
