//! How many requests of a key are in progress at a time: `max_concurrent` of a route.
//!
//! A request that passes leaves a permit with the state of its client, which gives it back when the
//! request has ended, however it ended.

use std::sync::Arc;

use penstock_config::{ConcurrencyRule, RateKey};
use penstock_exchange::metrics::RuleUsage;
use penstock_exchange::{Fault, FaultKind, Handler, HandlerProgress, Reply, Request};

use crate::key_counts::KeyCounts;
use crate::rate_limit::request_key;

/// Bounds the requests of a route that are in progress.
#[derive(Debug)]
pub struct ConcurrencyHandler {
    max: u32,
    keys: Box<[RateKey]>,
    counts: Arc<KeyCounts>,
}

impl ConcurrencyHandler {
    /// The handler of a route; `counts` has what is in progress now.
    #[must_use]
    pub fn new(rule: &ConcurrencyRule, counts: Arc<KeyCounts>) -> Self {
        Self {
            max: rule.max,
            keys: rule.keys.clone().into(),
            counts,
        }
    }

    /// The requests in progress, for the status.
    #[must_use]
    pub fn usage(&self) -> Arc<dyn RuleUsage> {
        Arc::clone(&self.counts) as _
    }

    fn refusal(&self) -> Fault {
        let cause = "above `max_concurrent` of the route";
        let kind = match self.keys.contains(&RateKey::Route) {
            true => FaultKind::Overloaded,
            false => FaultKind::TooManyRequests,
        };
        Fault::new(kind, cause).with_field("Retry-After", "1")
    }
}

impl Handler for ConcurrencyHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        if let Some(key) = request_key(&self.keys, &request) {
            match self.counts.acquire(&key, self.max) {
                Some(permit) => request.client_state.hold_permit(Arc::new(permit)),
                None => return HandlerProgress::Ready(Err(self.refusal())),
            }
        }
        HandlerProgress::Ready(Ok(Reply::Pass(Box::new(request))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{request, run};

    fn handler(max: u32, keys: &[RateKey]) -> ConcurrencyHandler {
        let rule = ConcurrencyRule {
            keys: keys.to_vec(),
            ..ConcurrencyRule::new(max)
        };
        ConcurrencyHandler::new(&rule, Arc::default())
    }

    #[test]
    fn a_key_has_so_many_requests_at_a_time_and_no_more() {
        let handler = handler(2, &[RateKey::Header("X-Key".to_owned())]);
        let one = |key: &str| run(&handler, request("/", &format!("X-Key: {key}\r\n")));
        let state = |reply: Result<Reply, Fault>| match reply {
            Ok(Reply::Pass(request)) => Arc::clone(&request.client_state),
            other => panic!("it passes: {other:?}"),
        };
        let first = state(one("a"));
        let second = state(one("a"));
        let refused = one("a").expect_err("the third is refused");
        assert_eq!(refused.kind, FaultKind::TooManyRequests);
        let other = state(one("b"));
        assert_eq!(handler.usage().in_use(), 3);
        // The request has ended, or its connection is gone.
        first.release_permits();
        first.release_permits();
        let third = state(one("a"));
        drop(second);
        let fourth = state(one("a"));
        assert!(one("a").is_err());
        drop((third, fourth, other));
        assert_eq!(handler.usage().in_use(), 0);
        // Without the field a request is not counted.
        let uncounted: Vec<_> = (0..5)
            .map(|_| state(run(&handler, request("/", ""))))
            .collect();
        assert_eq!((uncounted.len(), handler.usage().in_use()), (5, 0));
    }

    #[test]
    fn a_whole_route_that_is_busy_is_overloaded() {
        let handler = handler(1, &[RateKey::Route]);
        let held = run(&handler, request("/", ""));
        let refused = run(&handler, request("/", "")).expect_err("it is refused");
        assert_eq!(refused.kind, FaultKind::Overloaded);
        drop(held);
        assert!(run(&handler, request("/", "")).is_ok());
    }
}
