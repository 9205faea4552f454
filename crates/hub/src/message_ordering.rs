//! The order that publishers ask for: messages that wait for the one before them, and recent ids.
//!
//! Pure: `now` is an argument. [`ParkedMessages`] lives under the lock of its channel,
//! [`RecentMessageIds`] under a lock of the registry.
//!
//! # Invariants
//! - Both are bounded.
//! - A message that waited too long is sent all the same, in the order of arrival.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::Publication;

/// Messages of one channel that wait for their `prev_id`.
#[derive(Debug, Default)]
pub(crate) struct ParkedMessages {
    messages: VecDeque<(Instant, Publication)>,
}

/// The most that wait in one channel: what GRIP proxies agree on.
const MAX_PARKED: usize = 100;

pub(crate) const PARK_TIMEOUT: Duration = Duration::from_secs(5);

impl ParkedMessages {
    /// Parks a message. Above the limit, returns the one that waited longest, to be sent.
    pub(crate) fn park(&mut self, now: Instant, publication: Publication) -> Option<Publication> {
        self.messages.push_back((now + PARK_TIMEOUT, publication));
        if self.messages.len() <= MAX_PARKED {
            return None;
        }
        self.messages.pop_front().map(|(_, oldest)| oldest)
    }

    /// The message that waited for the message with this id.
    pub(crate) fn take_successor(&mut self, id: &str) -> Option<Publication> {
        let is_next = |(_, parked): &(Instant, Publication)| parked.prev_id.as_deref() == Some(id);
        let found = self.messages.iter().position(is_next)?;
        self.messages.remove(found).map(|(_, parked)| parked)
    }

    /// A message that waited longer than [`PARK_TIMEOUT`].
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Option<Publication> {
        let (until, _) = self.messages.front()?;
        if now < *until {
            return None;
        }
        self.messages.pop_front().map(|(_, parked)| parked)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// All of them, in the order of arrival.
    pub(crate) fn into_publications(self) -> impl Iterator<Item = Publication> {
        self.messages.into_iter().map(|(_, parked)| parked)
    }
}

/// Ids of the last minute, as digests of channel and id.
#[derive(Debug, Default)]
pub(crate) struct RecentMessageIds {
    digests: HashSet<u128>,
    by_age: VecDeque<(Instant, u128)>,
}

/// The most ids that one [`RecentMessageIds`] remembers; the oldest are forgotten first. A registry
/// has 64 of these: a million ids in some 60 MB at worst.
const MAX_RECENT_IDS: usize = 16_384;

const RECENT_ID_TTL: Duration = Duration::from_secs(60);

impl RecentMessageIds {
    /// Records an id and returns whether it was recorded within the last minute.
    pub(crate) fn record_and_check_duplicate(&mut self, digest: u128, now: Instant) -> bool {
        while let Some((at, oldest)) = self.by_age.front() {
            let is_fresh = now.saturating_duration_since(*at) < RECENT_ID_TTL;
            if is_fresh && self.by_age.len() < MAX_RECENT_IDS {
                break;
            }
            self.digests.remove(oldest);
            self.by_age.pop_front();
        }
        if !self.digests.insert(digest) {
            return true;
        }
        self.by_age.push_back((now, digest));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(id: &str, prev_id: &str) -> Publication {
        Publication {
            id: Some(id.into()),
            prev_id: Some(prev_id.into()),
            ..Publication::default()
        }
    }

    fn id(publication: Option<Publication>) -> Option<String> {
        publication.and_then(|p| p.id).map(|id| id.to_string())
    }

    #[test]
    fn what_waits_comes_when_its_turn_has_come() {
        let now = Instant::now();
        let mut parked = ParkedMessages::default();
        assert!(parked.park(now, publication("4", "3")).is_none());
        assert!(parked.park(now, publication("3", "2")).is_none());
        assert_eq!(id(parked.take_successor("1")), None);
        assert_eq!(id(parked.take_successor("2")), Some("3".into()));
        assert_eq!(id(parked.take_successor("3")), Some("4".into()));
        assert!(parked.is_empty());
    }

    #[test]
    fn what_waited_too_long_or_is_too_much_is_sent_all_the_same() {
        let now = Instant::now();
        let mut parked = ParkedMessages::default();
        for number in 0..MAX_PARKED {
            assert!(
                parked
                    .park(now, publication(&number.to_string(), "no"))
                    .is_none()
            );
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(
            id(parked.park(later, publication("one more", "no"))),
            Some("0".into())
        );
        assert_eq!(id(parked.take_overdue(later)), None);
        assert_eq!(
            id(parked.take_overdue(now + PARK_TIMEOUT)),
            Some("1".into())
        );
        let mut rest = 0;
        while parked.take_overdue(now + PARK_TIMEOUT).is_some() {
            rest += 1;
        }
        assert_eq!(rest, MAX_PARKED - 2, "the last came later");
        assert_eq!(
            id(parked.take_overdue(later + PARK_TIMEOUT)),
            Some("one more".into())
        );
    }

    #[test]
    fn an_id_is_repeated_for_a_minute_and_few_enough_are_remembered() {
        let now = Instant::now();
        let mut seen = RecentMessageIds::default();
        assert!(!seen.record_and_check_duplicate(7, now));
        assert!(seen.record_and_check_duplicate(7, now + Duration::from_secs(59)));
        assert!(!seen.record_and_check_duplicate(7, now + Duration::from_secs(60)));
        for digest in 100..100 + 2 * MAX_RECENT_IDS as u128 {
            assert!(!seen.record_and_check_duplicate(digest, now));
            assert!(seen.digests.len() <= MAX_RECENT_IDS);
            assert_eq!(seen.digests.len(), seen.by_age.len());
        }
        assert!(seen.record_and_check_duplicate(99 + 2 * MAX_RECENT_IDS as u128, now));
    }
}
