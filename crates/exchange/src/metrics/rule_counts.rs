//! Counts of the rules of routes: how many requests each has refused, answered, sent elsewhere.
//!
//! `penstock`'s wiring gets a [`RuleCounts`] for each rule of each route from the table of the
//! server and gives it to the rule's handler, which counts. `status` shows all of them.
//!
//! # Invariants
//! - A rule that a reload keeps goes on counting: its route and its name find the same counts.
//! - Nothing is counted for a request that a rule lets pass.
//! - The number of counts is that of the configuration, whatever clients send.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::Serialize;

use super::{Counter, MetricValue};

/// The counts of one rule of one route, or of another part that counts by outcome.
#[derive(Debug)]
pub struct RuleCounts {
    route: Box<str>,
    rule: Box<str>,
    outcomes: Box<[(Box<str>, Counter)]>,
    /// Guards the place alone; never held while the usage is read.
    usage: Mutex<Option<Weak<dyn RuleUsage>>>,
}

/// Something of which a rule has a number at any time: the keys of a rate, copies in progress.
pub trait RuleUsage: fmt::Debug + Send + Sync {
    /// The number now. Called about once a second while the status is read.
    fn in_use(&self) -> u64;
}

impl RuleCounts {
    /// Counts one request with the outcome of this index.
    pub fn increment(&self, outcome: usize) {
        self.add(outcome, 1);
    }

    /// Adds to the outcome of this index; nothing for an index that there is not.
    pub fn add(&self, outcome: usize, count: u64) {
        if let Some((_, counter)) = self.outcomes.get(outcome) {
            counter.add(count);
        }
    }

    /// The number of the outcome of this index; 0 for one that there is not.
    #[must_use]
    pub fn value(&self, outcome: usize) -> u64 {
        let counter = self.outcomes.get(outcome);
        counter.map_or(0, |(_, counter)| counter.value())
    }

    /// Shows the number of `usage` beside the counts while it lives.
    pub fn set_usage(&self, usage: &Arc<dyn RuleUsage>) {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(usage));
    }

    fn in_use(&self) -> Option<u64> {
        let usage = {
            let place = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
            place.as_ref().and_then(Weak::upgrade)
        };
        usage.map(|usage| usage.in_use())
    }

    fn is_of(&self, route: &str, rule: &str) -> bool {
        *self.route == *route && *self.rule == *rule
    }

    fn has_outcomes(&self, outcomes: &[&str]) -> bool {
        let own = self.outcomes.iter().map(|(name, _)| &**name);
        own.eq(outcomes.iter().copied())
    }

    fn snapshot(&self) -> RuleCountsSnapshot {
        let counts = self.outcomes.iter();
        RuleCountsSnapshot {
            route: self.route.clone().into(),
            rule: self.rule.clone().into(),
            counts: counts
                .map(|(name, counter)| OutcomeCount {
                    outcome: name.clone().into(),
                    requests: counter.value(),
                })
                .collect(),
            in_use: self.in_use(),
        }
    }
}

/// The counts of all rules of a server, for its whole life.
#[derive(Debug, Default)]
pub struct RuleCountTable(Mutex<Vec<Weak<RuleCounts>>>);

impl RuleCountTable {
    /// The counts of a rule, by the names of its outcomes. The same ones as long as a handler has
    /// them; where the outcomes differ from before, new ones that go on from the old numbers.
    #[must_use]
    pub fn counts(&self, route: &str, rule: &str, outcomes: &[&str]) -> Arc<RuleCounts> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|counts| counts.strong_count() > 0);
        let known = table.iter().position(|counts| {
            let counts = counts.upgrade();
            counts.is_some_and(|counts| counts.is_of(route, rule))
        });
        let old = known.and_then(|at| table[at].upgrade());
        if let Some(old) = &old
            && old.has_outcomes(outcomes)
        {
            return Arc::clone(old);
        }
        let cell = |name: &&str| {
            let counter = Counter::default();
            let before = old.iter().flat_map(|old| old.outcomes.iter());
            if let Some((_, value)) = before.clone().find(|(known, _)| **known == **name) {
                counter.add(value.value());
            }
            ((*name).into(), counter)
        };
        let counts = Arc::new(RuleCounts {
            route: route.into(),
            rule: rule.into(),
            outcomes: outcomes.iter().map(cell).collect(),
            usage: Mutex::default(),
        });
        let place = Arc::downgrade(&counts);
        match known {
            Some(at) => table[at] = place,
            None => table.push(place),
        }
        counts
    }

    /// All counts now, in the order in which their rules came.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RuleCountsSnapshot> {
        let table: Vec<_> = {
            let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            table.iter().filter_map(Weak::upgrade).collect()
        };
        table.iter().map(|counts| counts.snapshot()).collect()
    }
}

/// The counts of a rule at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RuleCountsSnapshot {
    /// The route, by its hosts and path.
    pub route: String,
    /// The rule, by its key in the configuration.
    pub rule: String,
    /// The number of requests by outcome.
    pub counts: Vec<OutcomeCount>,
    /// What it uses now: the keys of a rate, copies in progress.
    pub in_use: Option<u64>,
}

/// The requests with one outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OutcomeCount {
    /// The outcome, such as `refused`, or the part of a `split`.
    pub outcome: String,
    /// The number of requests since the start.
    pub requests: u64,
}

crate::metric_table! {
    /// Metrics of each rule of each route.
    pub static RULE_METRICS: |rule: RuleCountsSnapshot| {
        counter rule_requests_total = MetricValue::by_label("outcome",
            rule.counts.iter().map(|it| (it.outcome.as_str(), it.requests))),
            "Requests that a rule of a route has decided, by outcome.";
        gauge rule_in_use = rule.in_use, "What a rule uses now: the keys of a rate, copies in progress.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Seven;

    impl RuleUsage for Seven {
        fn in_use(&self) -> u64 {
            7
        }
    }

    fn named(counts: &[(&str, u64)]) -> Vec<OutcomeCount> {
        let owned = |(name, count): &(&str, u64)| OutcomeCount {
            outcome: (*name).to_owned(),
            requests: *count,
        };
        counts.iter().map(owned).collect()
    }

    #[test]
    fn a_rule_that_stays_goes_on_counting() {
        let table = RuleCountTable::default();
        let first = table.counts("* /a", "access", &["refused"]);
        first.increment(0);
        first.increment(1);
        let again = table.counts("* /a", "access", &["refused"]);
        again.add(0, 2);
        assert!(Arc::ptr_eq(&first, &again));
        let other = table.counts("* /b", "access", &["refused"]);
        assert_eq!((first.value(0), other.value(0), first.value(9)), (3, 0, 0));
        drop((first, again));
        let left: Vec<_> = table.snapshot().into_iter().map(|it| it.route).collect();
        assert_eq!(left, ["* /b"]);
    }

    #[test]
    fn new_outcomes_go_on_from_the_old_numbers_in_their_place() {
        let table = RuleCountTable::default();
        let first = table.counts("* /", "split", &["app a", "app b"]);
        let _next = table.counts("* /", "access", &["refused"]);
        first.add(1, 5);
        let second = table.counts("* /", "split", &["app b", "app c"]);
        second.increment(1);
        let now = table.snapshot();
        assert_eq!(now.len(), 2);
        assert_eq!(now[0].counts, named(&[("app b", 5), ("app c", 1)]));
    }

    #[test]
    fn a_snapshot_has_the_usage_while_it_lives() {
        let table = RuleCountTable::default();
        let counts = table.counts("* /", "rate_limit", &["refused"]);
        let usage: Arc<dyn RuleUsage> = Arc::new(Seven);
        counts.set_usage(&usage);
        let json = serde_json::to_value(table.snapshot()).unwrap();
        let expected = serde_json::json!([
            { "route": "* /", "rule": "rate_limit", "counts": [{ "outcome": "refused", "requests": 0 }], "in_use": 7 }
        ]);
        assert_eq!(json, expected);
        drop(usage);
        assert_eq!(table.snapshot()[0].in_use, None);
    }
}
