//! Asks the table for each request of a route, and passes it on, holds it back or refuses it.

use std::sync::Arc;

use penstock_config::{RateKey, RateLimitRule};
use penstock_exchange::{
    AddressPrefix, Fault, FaultKind, Handler, HandlerProgress, Reply, Request,
};
use penstock_runtime::clock;

use super::{RateDecision, RateLimit, RateTable};

/// Bounds how often the clients of a route may ask.
#[derive(Debug)]
pub struct RateLimitHandler {
    table: Arc<RateTable>,
    limit: RateLimit,
    keys: Box<[RateKey]>,
    /// Tells the keys of this rule from those of others.
    rule: Box<[u8]>,
    /// `RateLimit-Policy` of a refusal.
    policy: Box<str>,
}

impl RateLimitHandler {
    /// The handler for a rule. Rules with the same `name` share their rates, also over a reload.
    #[must_use]
    pub fn new(rule: &RateLimitRule, name: &str, table: Arc<RateTable>) -> Self {
        let (count, per) = (rule.rate.count, rule.rate.per);
        let burst = rule.burst.unwrap_or(count);
        Self {
            table,
            limit: RateLimit::new(count, per, burst, rule.max_delay),
            keys: rule.keys.clone().into(),
            rule: name.as_bytes().into(),
            policy: format!("\"rate\";q={count};w={}", per.as_secs()).into(),
        }
    }

    /// The key of a request; `None` where it lacks a part of it: such requests are not counted.
    fn key(&self, request: &Request) -> Option<Vec<u8>> {
        let mut key = self.rule.to_vec();
        for part in &self.keys {
            key.push(0);
            match part {
                RateKey::Client => {
                    let prefix = AddressPrefix::from_address(request.client_address());
                    key.extend_from_slice(&prefix.to_bits().to_le_bytes());
                }
                RateKey::Host => key.extend_from_slice(request.host().as_bytes()),
                RateKey::Path => key.extend_from_slice(request.path()),
                RateKey::Header(name) => key.extend_from_slice(request.head.field(name)?),
                RateKey::Cookie(name) => key.extend_from_slice(request.head.cookie(name)?),
                RateKey::Route => {}
            }
        }
        Some(key)
    }

    /// A refusal with the fields of draft-ietf-httpapi-ratelimit-headers.
    fn refusal(&self, wait: std::time::Duration) -> Fault {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Fault::new(
            FaultKind::TooManyRequests,
            "above `rate_limit` of the route",
        )
        .with_field("Retry-After", &seconds.to_string())
        .with_field("RateLimit-Policy", &self.policy)
        .with_field("RateLimit", &format!("\"rate\";r=0;t={seconds}"))
    }
}

impl Handler for RateLimitHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let pass = |request| Ok(Reply::Pass(Box::new(request)));
        let Some(key) = self.key(&request) else {
            return HandlerProgress::Ready(pass(request));
        };
        match self.table.count(&key, &self.limit, request.arrived_at) {
            RateDecision::Allow => HandlerProgress::Ready(pass(request)),
            RateDecision::Refuse(wait) => HandlerProgress::Ready(Err(self.refusal(wait))),
            RateDecision::Delay(wait) => HandlerProgress::Pending(Box::pin(async move {
                clock::sleep(wait).await;
                pass(request)
            })),
        }
    }
}
