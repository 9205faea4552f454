//! The order of a route's updates: which update goes to which audiences when, and what a new
//! subscriber has missed.
//!
//! `broker` keeps it behind its lock. An update gets its place in the order, goes into the
//! history, and waits until all earlier ones have gone to all audiences that take them. Pure: the
//! caller delivers, and passes the time; simulated with seeds.
//!
//! # Invariants
//! - All audiences get updates in one order.
//! - The history that a new subscriber gets, and the updates that its audience gets from then on,
//!   are together each update after its last one exactly once, even while an update is partly
//!   delivered. (A subscriber that knows from another audience an update that its audience has not
//!   had yet gets it again.)

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use penstock_exchange::AddressPrefix;
use penstock_hub::History as Bounds;
use thiserror::Error;

use crate::audiences::{Audience, AudienceKey, Audiences};
use crate::history::UpdateHistory;
use crate::update::{EARLIEST_ID, Update};

/// Updates that wait until earlier ones have been dispatched.
const MAX_WAITING_UPDATES: usize = 1000;

/// Bytes of these; one update may always wait.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// Updates, audiences, and how far the updates have been dispatched.
#[derive(Debug, Default)]
pub(super) struct UpdateDispatcher {
    pub(super) audiences: Audiences,
    pub(super) history: UpdateHistory,
    /// In order; each with its position.
    waiting: VecDeque<(u64, Arc<Update>)>,
    waiting_bytes: usize,
    /// The update that some of its audiences have.
    in_progress: Option<UpdateInProgress>,
}

#[derive(Debug)]
struct UpdateInProgress {
    position: u64,
    update: Arc<Update>,
    /// Audiences that still have to get it, the next one last.
    remaining: Vec<u64>,
}

/// A newcomer's place.
#[derive(Debug)]
pub(crate) struct JoinedSubscriber {
    /// Its audience.
    pub audience: u64,
    /// Its audience's channel.
    pub channel: Arc<str>,
    /// The id before the first update of `replay`, if history was asked for.
    pub previous_id: Option<Arc<str>>,
    /// The events that it missed.
    pub replay: Vec<u8>,
    /// Whether these are all.
    pub is_complete: bool,
}

/// What a subscriber has already.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ResumeAfter<'a> {
    /// The update with this id, and all before it.
    Update(&'a str),
    /// All before this position.
    Position(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DispatchProgress {
    /// All of them.
    Done,
    /// There are more.
    More,
    /// Their audiences have enough to deliver.
    Blocked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BrokerFullError {
    #[error(
        "{MAX_WAITING_UPDATES} updates or {MAX_WAITING_BYTES} bytes of them wait to be handed out"
    )]
    TooManyUpdates,
    #[error("subscribers use too many different templates")]
    TooManyTemplates,
    #[error("the hub moves to the next process, which takes subscribers")]
    Moving,
}

impl UpdateDispatcher {
    /// Appends an update to the order.
    pub(super) fn publish(
        &mut self,
        update: Arc<Update>,
        now: Instant,
        bounds: &Bounds,
    ) -> Result<(), BrokerFullError> {
        let bytes = self.waiting_bytes + update.memory_bytes();
        let is_first = self.waiting.is_empty();
        if self.waiting.len() >= MAX_WAITING_UPDATES || (bytes > MAX_WAITING_BYTES && !is_first) {
            return Err(BrokerFullError::TooManyUpdates);
        }
        self.append(update, now, bounds);
        Ok(())
    }

    /// Appends an update to the order, however many wait.
    pub(super) fn append(&mut self, update: Arc<Update>, now: Instant, bounds: &Bounds) {
        self.waiting_bytes += update.memory_bytes();
        let position = self.history.push(&update, now, bounds);
        self.waiting.push_back((position, update));
    }

    /// Whether all audiences have all updates.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.in_progress.is_none()
    }

    /// Adds a subscriber that has what `after` says; `channel` names a new audience's channel.
    pub(super) fn join(
        &mut self,
        (audience_key, client): (AudienceKey, Option<AddressPrefix>),
        after: Option<ResumeAfter<'_>>,
        replay_bytes_max: usize,
        channel: impl FnOnce(u64) -> Arc<str>,
    ) -> Result<JoinedSubscriber, BrokerFullError> {
        let from = after.map(|after| match after {
            ResumeAfter::Update(id) => self.missed_from(id, &audience_key),
            ResumeAfter::Position(position) => (position, EARLIEST_ID.into()),
        });
        // An audience that is made now is not among those of the current update.
        let settled = self.dispatched_up_to();
        let covered = settled + u64::from(self.in_progress.is_some());
        let audience = self
            .audiences
            .join((audience_key, client), covered, channel)
            .ok_or(BrokerFullError::TooManyTemplates)?;
        let mut joined = JoinedSubscriber {
            audience: audience.number,
            channel: Arc::clone(&audience.channel),
            previous_id: None,
            replay: Vec::new(),
            is_complete: true,
        };
        let Some((from, before)) = from else {
            return Ok(joined);
        };
        joined.previous_id = Some(before);
        let missed = self
            .history
            .range(from, audience.delivered_up_to.max(settled));
        for update in missed.filter(|update| audience.key.receives(update)) {
            let bytes = joined.replay.len() + update.encoded_event.len();
            if bytes > replay_bytes_max && !joined.replay.is_empty() {
                joined.is_complete = false;
                break;
            }
            joined.replay.extend_from_slice(&update.encoded_event);
        }
        Ok(joined)
    }

    /// Dispatches updates to at most so many audiences by `deliver`, which may refuse for now.
    pub(super) fn dispatch(
        &mut self,
        portion: usize,
        mut deliver: impl FnMut(&Audience, &Update) -> bool,
    ) -> DispatchProgress {
        for _ in 0..portion {
            if self.in_progress.is_none() {
                self.in_progress = self.start_next();
            }
            let Some(current) = &mut self.in_progress else {
                return DispatchProgress::Done;
            };
            let Some(&number) = current.remaining.last() else {
                self.in_progress = None;
                continue;
            };
            // Without its last member an audience is gone.
            if let Some(audience) = self.audiences.audience_mut(number) {
                let update = &*current.update;
                if audience.key.can_see(update) && !deliver(audience, update) {
                    return DispatchProgress::Blocked;
                }
                audience.delivered_up_to = audience.delivered_up_to.max(current.position + 1);
            }
            current.remaining.pop();
        }
        DispatchProgress::More
    }

    fn start_next(&mut self) -> Option<UpdateInProgress> {
        let (position, update) = self.waiting.pop_front()?;
        self.waiting_bytes -= update.memory_bytes();
        let left = self.audiences.audiences_for_topics(&update.topics);
        Some(UpdateInProgress {
            position,
            update,
            remaining: left,
        })
    }

    /// The position of the first update after `after`, and the id of the one before it.
    fn missed_from(&self, after: &str, audience_key: &AudienceKey) -> (u64, Arc<str>) {
        // No update has `EARLIEST_ID`. An unknown id is older than all that is kept, or from
        // elsewhere: it gets what there is, and hears that there is nothing before.
        let Some((position, update)) = self.history.find(after) else {
            return (0, EARLIEST_ID.into());
        };
        let is_seen = audience_key.can_see(update);
        let before = if is_seen { &*update.id } else { EARLIEST_ID };
        (position + 1, before.into())
    }

    /// The position before which all updates have been dispatched to all audiences.
    fn dispatched_up_to(&self) -> u64 {
        let current = self.in_progress.as_ref().map(|current| current.position);
        let waiting = self.waiting.front().map(|(position, _)| *position);
        current
            .or(waiting)
            .unwrap_or_else(|| self.history.next_position())
    }
}

#[cfg(test)]
mod tests;
