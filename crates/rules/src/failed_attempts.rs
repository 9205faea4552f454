//! Failed attempts of clients to sign in: wrong passwords and forged tokens.
//!
//! # Invariants
//! - An attempt counts before it is verified and is given back when it succeeds, so that attempts
//!   at the same time are bounded, too.
//! - All routes count together.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{AddressPrefix, Fault, FaultKind, Request};

use crate::rate_limit::{RateDecision, RateLimit, RateTable};

/// Attempts of one client that may fail: 20 at once, 10 a minute.
const FAILED_ATTEMPTS: (u32, Duration, u32) = (10, Duration::from_secs(60), 20);

/// The failed attempts of all clients. Clones share them.
#[derive(Debug, Clone)]
pub struct FailedAttempts(Arc<RateTable>);

/// An attempt that counts as failed unless it is given back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Attempt {
    attempts: FailedAttempts,
    client: AddressPrefix,
}

impl FailedAttempts {
    /// Counts in a table of its own.
    #[must_use]
    pub fn new(table: Arc<RateTable>) -> Self {
        Self(table)
    }

    /// Counts an attempt of the client of a request; `what` is what it has sent too often.
    ///
    /// # Errors
    /// 429 for a client with too many failed attempts.
    pub(crate) fn begin(&self, request: &Request, what: &'static str) -> Result<Attempt, Fault> {
        let client = AddressPrefix::from_address(request.client_address());
        let key = client.to_bits().to_le_bytes();
        match self.0.count(&key, &limit(), request.arrived_at) {
            RateDecision::Allow | RateDecision::Delay(_) => Ok(Attempt {
                attempts: self.clone(),
                client,
            }),
            RateDecision::Refuse(wait) => {
                let seconds = wait.as_secs() + 1;
                let cause = format!("too many wrong {what} of this client");
                let fault = Fault::new(FaultKind::TooManyRequests, cause);
                Err(fault.with_field("Retry-After", &seconds.to_string()))
            }
        }
    }
}

impl Attempt {
    /// Gives it back: it has not failed.
    pub(crate) fn give_back(self) {
        let key = self.client.to_bits().to_le_bytes();
        self.attempts.0.give_back(&key, &limit());
    }
}

fn limit() -> RateLimit {
    let (count, per, burst) = FAILED_ATTEMPTS;
    RateLimit::new(count, per, burst, Duration::ZERO)
}
