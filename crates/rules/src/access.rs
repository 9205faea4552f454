//! `allow` and `deny` of a route: which clients may ask at all.
//!
//! The first rule of a route. It refuses requests with 403 before any body is read and any
//! application runs.
//!
//! # Invariants
//! - The client's address comes from trusted proxies; the fields of an untrusted peer do not count.
//! - A client that is in no list passes only if there is no `allow`.

use penstock_exchange::{AddressSet, Fault, FaultKind, Request};

use crate::admission::{AdmissionRule, Decision};

/// Admits the clients of a route, refuses others.
#[derive(Debug)]
pub struct AccessRule {
    allow: Option<AddressSet>,
    deny: Option<AddressSet>,
}

impl AccessRule {
    /// The rule for the lists of a route; `None` if both are empty.
    ///
    /// # Errors
    /// The item that the configuration should have refused.
    pub fn new(allow: &[String], deny: &[String]) -> Result<Option<Self>, String> {
        let set = |items: &[String]| match items.is_empty() {
            true => Ok(None),
            false => AddressSet::parse(items).map(Some),
        };
        let (allow, deny) = (set(allow)?, set(deny)?);
        let is_needed = allow.is_some() || deny.is_some();
        Ok(is_needed.then_some(Self { allow, deny }))
    }

    fn refusal(&self, request: &Request) -> Option<&'static str> {
        let client = request.client_address();
        let is_denied = |set: &AddressSet| set.covers(client);
        if self.deny.as_ref().is_some_and(is_denied) {
            return Some("the client is in `deny` of the route");
        }
        let is_stranger = |set: &AddressSet| !set.covers(client);
        let refusal = "the client is not in `allow` of the route";
        self.allow
            .as_ref()
            .is_some_and(is_stranger)
            .then_some(refusal)
    }
}

impl AdmissionRule for AccessRule {
    fn name(&self) -> &'static str {
        "access"
    }

    fn decide(&self, request: &Request) -> Decision {
        match self.refusal(request) {
            None => Decision::admit(),
            Some(cause) => Decision::refuse(Fault::new(FaultKind::Forbidden, cause)),
        }
    }
}
