//! Which requests an access log has: by conditions, status, time and a share.
//!
//! # Invariants
//! - A refused request, and a response of 500 and above that the conditions and statuses allow, is
//!   never left out by the share.

use std::time::Duration;

use penstock_config::{SampleShare, StatusPattern};
use penstock_exchange::{RequestPath, correlation};
use penstock_rules::{RequestConditions, RequestFacts};

/// What a request must be to be logged.
#[derive(Debug)]
pub struct LogFilter {
    /// Conditions on its head and client; `None` for any.
    pub conditions: Option<Box<RequestConditions>>,
    /// The statuses of its response; empty for any.
    pub statuses: Box<[StatusPattern]>,
    /// How long it must have taken.
    pub min_time: Duration,
    /// The share of those that are left.
    pub sample: SampleShare,
}

impl Default for LogFilter {
    fn default() -> Self {
        Self {
            conditions: None,
            statuses: Box::default(),
            min_time: Duration::ZERO,
            sample: SampleShare::ALL,
        }
    }
}

impl LogFilter {
    pub(super) fn admits(&self, facts: &RequestFacts<'_>, status: u16, time: Duration) -> bool {
        time >= self.min_time
            && self.admits_status(status)
            && self.admits_head(facts)
            && self.is_sampled(status)
    }

    /// Whether a request is logged that was refused before it could be read: not where only slow
    /// ones are.
    pub(super) fn admits_refused(&self, status: u16) -> bool {
        self.min_time.is_zero() && self.admits_status(status)
    }

    fn admits_status(&self, status: u16) -> bool {
        self.statuses.is_empty() || self.statuses.iter().any(|it| it.matches(status))
    }

    fn admits_head(&self, facts: &RequestFacts<'_>) -> bool {
        let Some(conditions) = &self.conditions else {
            return true;
        };
        match RequestPath::from_head(facts.head) {
            Ok(path) => conditions.match_request(facts, path.bytes(facts.head)),
            // As it was sent: it is no path that a route could be for.
            Err(_) => conditions.match_request(facts, facts.head.path_query_bytes()),
        }
    }

    fn is_sampled(&self, status: u16) -> bool {
        status >= 500
            || self.sample == SampleShare::ALL
            || self.sample.includes(correlation::random_word())
    }
}
