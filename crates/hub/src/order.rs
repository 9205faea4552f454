//! The order that publishers ask for: messages that wait for the one before them, and ids seen already.
//!
//! Pure: `now` is an argument. [`Parked`] lives under its channel's lock, [`Seen`] under a lock of the
//! registry's. What must stay true: both are bounded; what waited too long is sent all the same, in the
//! order in which it came.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::Publication;

/// Messages of one channel whose `prev_id` has not come yet.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    waiting: VecDeque<(Instant, Publication)>,
}

/// The most that wait in one channel: what GRIP proxies agree on.
const PARKED_MAX: usize = 100;

/// How long one waits.
pub(crate) const PARKED_FOR: Duration = Duration::from_secs(5);

impl Parked {
    /// Puts one aside. Above the bound the one that has waited longest comes back, to be sent.
    pub(crate) fn park(&mut self, now: Instant, publication: Publication) -> Option<Publication> {
        self.waiting.push_back((now + PARKED_FOR, publication));
        if self.waiting.len() <= PARKED_MAX {
            return None;
        }
        self.waiting.pop_front().map(|(_, oldest)| oldest)
    }

    /// One that waited for the message with this id.
    pub(crate) fn take_after(&mut self, id: &str) -> Option<Publication> {
        let is_next = |(_, parked): &(Instant, Publication)| parked.prev_id.as_deref() == Some(id);
        let found = self.waiting.iter().position(is_next)?;
        self.waiting.remove(found).map(|(_, parked)| parked)
    }

    /// One that has waited long enough.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Option<Publication> {
        let (until, _) = self.waiting.front()?;
        if now < *until {
            return None;
        }
        self.waiting.pop_front().map(|(_, parked)| parked)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Ids of the last minute, as digests of channel and id.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    digests: HashSet<u128>,
    by_age: VecDeque<(Instant, u128)>,
}

/// The most that are remembered by one [`Seen`]; the oldest are forgotten first. A registry has 64 of
/// them, which is a million ids in some 60 MB at worst.
const SEEN_MAX: usize = 16_384;

/// How long an id is remembered.
const SEEN_FOR: Duration = Duration::from_secs(60);

impl Seen {
    /// Whether this was seen within a minute; from now on it was.
    pub(crate) fn is_repeated(&mut self, digest: u128, now: Instant) -> bool {
        while let Some((at, oldest)) = self.by_age.front() {
            let is_fresh = now.saturating_duration_since(*at) < SEEN_FOR;
            if is_fresh && self.by_age.len() < SEEN_MAX {
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
        let mut parked = Parked::default();
        assert!(parked.park(now, publication("4", "3")).is_none());
        assert!(parked.park(now, publication("3", "2")).is_none());
        assert_eq!(id(parked.take_after("1")), None);
        assert_eq!(id(parked.take_after("2")), Some("3".into()));
        assert_eq!(id(parked.take_after("3")), Some("4".into()));
        assert!(parked.is_empty());
    }

    #[test]
    fn what_waited_too_long_or_is_too_much_is_sent_all_the_same() {
        let now = Instant::now();
        let mut parked = Parked::default();
        for number in 0..PARKED_MAX {
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
        assert_eq!(id(parked.take_overdue(now + PARKED_FOR)), Some("1".into()));
        let mut rest = 0;
        while parked.take_overdue(now + PARKED_FOR).is_some() {
            rest += 1;
        }
        assert_eq!(rest, PARKED_MAX - 2, "the last came later");
        assert_eq!(
            id(parked.take_overdue(later + PARKED_FOR)),
            Some("one more".into())
        );
    }

    #[test]
    fn an_id_is_repeated_for_a_minute_and_few_enough_are_remembered() {
        let now = Instant::now();
        let mut seen = Seen::default();
        assert!(!seen.is_repeated(7, now));
        assert!(seen.is_repeated(7, now + Duration::from_secs(59)));
        assert!(!seen.is_repeated(7, now + Duration::from_secs(60)));
        for digest in 100..100 + 2 * SEEN_MAX as u128 {
            assert!(!seen.is_repeated(digest, now));
            assert!(seen.digests.len() <= SEEN_MAX);
            assert_eq!(seen.digests.len(), seen.by_age.len());
        }
        assert!(seen.is_repeated(99 + 2 * SEEN_MAX as u128, now));
    }
}
