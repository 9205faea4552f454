//! The counters of all servers together.
//!
//! Each server reports its own every [`REPORT_INTERVAL`] and gets the sums (`redis_scripts`) for
//! the status page.
//!
//! # Invariants
//! - Counters of a server that is gone are left out after ten seconds.

use std::collections::BTreeMap;
use std::time::Duration;

/// How often.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// What all servers have and have done, as they said lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClusterTotals {
    pub(super) servers: u64,
    /// The sums of what the servers count, by name: `streams`, `polls`, `opened`, `closed`,
    /// `published`, `delivered`, `dropped`, and what else they were given to count.
    pub(super) sums: BTreeMap<String, u64>,
}

impl ClusterTotals {
    /// What the script answers: how many servers, then names and sums in turn.
    pub(super) fn parse(servers: &str, sums: &[String]) -> Option<Self> {
        let pairs = sums.chunks_exact(2);
        Some(Self {
            servers: servers.parse().ok()?,
            sums: pairs
                .map(|pair| Some((pair[0].clone(), pair[1].parse().ok()?)))
                .collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_by_name() {
        let sums = ["streams", "12", "opened", "0"].map(str::to_owned);
        let totals = ClusterTotals::parse("2", &sums).unwrap();
        assert_eq!((totals.servers, totals.sums["streams"]), (2, 12));
        assert_eq!(ClusterTotals::parse("x", &[]), None);
        let bad = ["streams", "many"].map(str::to_owned);
        assert_eq!(ClusterTotals::parse("1", &bad), None);
    }
}
