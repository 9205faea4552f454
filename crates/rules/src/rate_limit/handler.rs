//! Asks the table for each request of a route, and passes it on, holds it back or refuses it.

use std::sync::Arc;

use penstock_config::{RateKey, RateLimitRule};
use penstock_exchange::{
    AddressPrefix, Fault, FaultKind, Handler, HandlerProgress, Reply, Request,
};
use penstock_http::strip_port;
use penstock_runtime::clock;

use super::{RateDecision, RateLimit, RateTable};

/// Bounds how often the clients of a route may ask.
#[derive(Debug)]
pub struct RateLimitHandler {
    table: Arc<RateTable>,
    limit: RateLimit,
    keys: Box<[RateKey]>,
    /// `RateLimit-Policy` of a refusal.
    policy: Box<str>,
}

impl RateLimitHandler {
    /// The handler for a rule, with its table.
    #[must_use]
    pub fn new(rule: &RateLimitRule, table: Arc<RateTable>) -> Self {
        let (count, per) = (rule.rate.count, rule.rate.per);
        let burst = rule.burst.unwrap_or(count);
        Self {
            table,
            limit: RateLimit::new(count, per, burst, rule.max_delay),
            keys: rule.keys.clone().into(),
            policy: format!("\"rate\";q={count};w={}", per.as_secs()).into(),
        }
    }

    /// The key of a request; `None` where it lacks a part of it: such requests are not counted.
    fn key(&self, request: &Request) -> Option<Vec<u8>> {
        let mut key = Vec::with_capacity(32);
        for part in &self.keys {
            key.push(0);
            match part {
                RateKey::Client => {
                    let prefix = AddressPrefix::from_address(request.client_address());
                    key.extend_from_slice(&prefix.to_bits().to_le_bytes());
                }
                RateKey::Host => {
                    let host = strip_port(request.host());
                    let host = host.strip_suffix('.').unwrap_or(host);
                    key.extend(host.bytes().map(|byte| byte.to_ascii_lowercase()));
                }
                RateKey::Path => key.extend_from_slice(request.path()),
                // All of them: a back end may read another than the first.
                RateKey::Header(name) => append_all(&mut key, request.head.field_values(name))?,
                RateKey::Cookie(name) => {
                    let cookies = request.head.cookies();
                    let named = cookies.filter(|(found, _)| *found == name.as_bytes());
                    append_all(&mut key, named.map(|(_, value)| value))?;
                }
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

/// Appends values; `None` if there is none.
fn append_all<'v>(key: &mut Vec<u8>, values: impl Iterator<Item = &'v [u8]>) -> Option<()> {
    let before = key.len();
    for value in values {
        key.push(b',');
        key.extend_from_slice(value);
    }
    (key.len() > before).then_some(())
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
