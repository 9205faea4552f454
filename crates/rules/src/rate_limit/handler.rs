//! Asks the table for each request of a route, and passes it on, holds it back or refuses it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_config::{RateKey, RateLimitRule};
use penstock_exchange::{
    Fault, FaultKind, Handler, HandlerProgress, RateSharers as _, Reply, Request,
};
use penstock_runtime::clock;

use super::request_key::request_key;
use super::shared::{SharedAnswer, SharedDecision, SharedKey, SharedRates, shared_key};
use super::{RateDecision, RateLimit, RateTable};
use crate::key_counts::KeyCounts;

/// Bounds how often the clients of a route may ask.
#[derive(Debug)]
pub struct RateLimitHandler(Arc<RateRule>);

/// A limit with what it counts.
#[derive(Debug)]
struct RateRule {
    table: Arc<RateTable>,
    limit: RateLimit,
    max_delay: Duration,
    keys: Box<[RateKey]>,
    /// `RateLimit-Policy` of a refusal.
    policy: Box<str>,
    shared: Option<SharedLimit>,
    /// The requests of each key that wait for their turn, where the limit is shared.
    waiting: Arc<KeyCounts>,
}

/// A limit that several servers share.
#[derive(Debug)]
pub struct SharedLimit {
    /// The shared rates of the server.
    pub rates: Arc<SharedRates>,
    /// The rule, by a name that is the same on all servers.
    pub rule: String,
}

/// How long a request waits for the answer of Redis. Then this server decides alone.
const MAX_ANSWER_TIME: Duration = Duration::from_millis(250);

impl RateLimitHandler {
    /// The handler for a rule, with its table; several servers may share its limit.
    #[must_use]
    pub fn new(rule: &RateLimitRule, table: Arc<RateTable>, shared: Option<SharedLimit>) -> Self {
        let (count, per) = (rule.rate.count, rule.rate.per);
        let burst = rule.burst.unwrap_or(count);
        Self(Arc::new(RateRule {
            table,
            limit: RateLimit::new(count, per, burst, rule.max_delay),
            max_delay: rule.max_delay,
            keys: rule.keys.clone().into(),
            policy: format!("\"rate\";q={count};w={}", per.as_secs()).into(),
            shared,
            waiting: Arc::default(),
        }))
    }
}

impl RateRule {
    /// A refusal with the fields of draft-ietf-httpapi-ratelimit-headers.
    fn refusal(&self, wait: Duration) -> Fault {
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

impl RateRule {
    /// Decides by the requests of this server.
    fn decide_alone(&self, key: &[u8], request: Request) -> HandlerProgress {
        match self.table.count(key, &self.limit, request.arrived_at) {
            RateDecision::Allow => HandlerProgress::Ready(pass(request)),
            RateDecision::Refuse(wait) => HandlerProgress::Ready(Err(self.refusal(wait))),
            RateDecision::Delay(wait) => HandlerProgress::Pending(Box::pin(async move {
                clock::sleep(wait).await;
                pass(request)
            })),
        }
    }

    /// How many requests of a key may wait: as many as the rate lets through meanwhile.
    fn max_waiting(&self) -> u32 {
        let interval = self.limit.time_of(1).as_nanos().max(1);
        u32::try_from(self.max_delay.as_nanos() / interval).unwrap_or(u32::MAX)
    }

    /// Notes a request that Redis has let through, so that this server can go on alone.
    fn note_allowed(&self, key: &[u8], now: Instant) {
        let _ = self.table.count(key, &self.limit, now);
    }

    /// Waits for what Redis says of a request, and for the turn of the request.
    async fn decide_shared(
        self: Arc<Self>,
        rates: Arc<SharedRates>,
        (key, shared_key): (Vec<u8>, SharedKey),
        mut decision: SharedDecision,
        request: Request,
    ) -> Result<Reply, Fault> {
        let deadline = request.arrived_at + self.max_delay;
        let mut turn = None;
        loop {
            let answer = match decision {
                SharedDecision::Known(answer) => answer,
                SharedDecision::Pending(answer) => {
                    match clock::timeout(MAX_ANSWER_TIME, answer).await {
                        Some(Ok(answer)) => answer,
                        Some(Err(_)) | None => {
                            rates.note_decided_alone();
                            SharedAnswer::Alone
                        }
                    }
                }
            };
            match answer {
                SharedAnswer::Allow => {
                    self.note_allowed(&key, clock::now());
                    return pass(request);
                }
                SharedAnswer::Alone => {
                    return self.decide_alone(&key, request).wait_for_reply().await;
                }
                SharedAnswer::Refuse(wait) => {
                    // Those that wait already come first.
                    let (permit, before) = match turn.take() {
                        Some(permit) => (permit, 0),
                        None => match self.waiting.acquire(&key, self.max_waiting()) {
                            Some(permit) => {
                                let before = permit.count().saturating_sub(1);
                                (permit, before)
                            }
                            None => return Err(self.refusal(wait)),
                        },
                    };
                    let wait = wait + self.limit.time_of(before);
                    if clock::now() + wait > deadline {
                        return Err(self.refusal(wait));
                    }
                    clock::sleep(wait).await;
                    turn = Some(permit);
                    decision = rates.take(shared_key, &self.limit, clock::now());
                }
            }
        }
    }
}

fn pass(request: Request) -> Result<Reply, Fault> {
    Ok(Reply::Pass(Box::new(request)))
}

impl Handler for RateLimitHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let Self(rule) = self;
        let Some(key) = request_key(&rule.keys, &request) else {
            return HandlerProgress::Ready(pass(request));
        };
        let Some(shared) = &rule.shared else {
            return rule.decide_alone(&key, request);
        };
        let shared_key = shared_key(&shared.rule, &key);
        match shared
            .rates
            .take(shared_key, &rule.limit, request.arrived_at)
        {
            SharedDecision::Known(SharedAnswer::Allow) => {
                rule.note_allowed(&key, request.arrived_at);
                HandlerProgress::Ready(pass(request))
            }
            SharedDecision::Known(SharedAnswer::Alone) => rule.decide_alone(&key, request),
            SharedDecision::Known(SharedAnswer::Refuse(wait)) if rule.max_delay.is_zero() => {
                HandlerProgress::Ready(Err(rule.refusal(wait)))
            }
            decision => {
                let (rule, rates) = (Arc::clone(rule), Arc::clone(&shared.rates));
                let decided = rule.decide_shared(rates, (key, shared_key), decision, request);
                HandlerProgress::Pending(Box::pin(decided))
            }
        }
    }
}
