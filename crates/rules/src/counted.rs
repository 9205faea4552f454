//! Counts what a rule of a route decides, whichever rule it is.
//!
//! `penstock`'s wiring puts it around each rule. A request that the rule lets pass is
//! not counted: it costs one more call.

use std::sync::Arc;

use penstock_exchange::metrics::{RuleCountTable, RuleCounts};
use penstock_exchange::{
    Fault, FaultKind, Handler, HandlerProgress, InlineResponse, Reply, Request, RequestView,
};

use crate::admission::{AdmissionRule, Decision, Refusal, Verdict};

/// What a rule decides of a request that it does not let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleOutcome {
    /// It has the response: a redirect, a preflight.
    Answered,
    /// It refuses the client.
    Refused,
    /// It could not decide: a service that is down, a full pool. The client is refused.
    Unavailable,
    /// It lets it pass later.
    Delayed,
}

/// A rule's handler with its counts.
#[derive(Debug)]
pub struct CountedHandler {
    inner: Arc<dyn Handler>,
    counter: OutcomeCounter,
}

/// A rule of admission with its counts.
#[derive(Debug)]
pub struct CountedRule {
    inner: Arc<dyn AdmissionRule>,
    counter: OutcomeCounter,
}

#[derive(Debug, Clone)]
struct OutcomeCounter {
    outcomes: &'static [RuleOutcome],
    counts: Arc<RuleCounts>,
}

impl RuleOutcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::Delayed => "delayed",
        }
    }
}

impl CountedHandler {
    /// Counts the `outcomes` of a rule of a route, by their names.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Handler>,
        table: &RuleCountTable,
        (route, rule): (&str, &str),
        outcomes: &'static [RuleOutcome],
    ) -> Self {
        Self {
            inner,
            counter: OutcomeCounter::new(table, (route, rule), outcomes),
        }
    }

    /// The counts, for a usage of the rule.
    #[must_use]
    pub fn counts(&self) -> &Arc<RuleCounts> {
        &self.counter.counts
    }
}

impl CountedRule {
    /// Counts the refusals of a rule of a route.
    #[must_use]
    pub fn new(inner: Arc<dyn AdmissionRule>, table: &RuleCountTable, route: &str) -> Self {
        let outcomes = &[RuleOutcome::Refused, RuleOutcome::Unavailable];
        Self {
            counter: OutcomeCounter::new(table, (route, inner.name()), outcomes),
            inner,
        }
    }
}

impl AdmissionRule for CountedRule {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn decide(&self, request: &Request) -> Decision {
        match self.inner.decide(request) {
            Decision::Ready(verdict) => {
                self.counter.count_verdict(&verdict);
                Decision::Ready(verdict)
            }
            Decision::Pending(work) => {
                let counter = self.counter.clone();
                Decision::Pending(Box::pin(async move {
                    let verdict = work.await;
                    counter.count_verdict(&verdict);
                    verdict
                }))
            }
        }
    }

    fn own_fields(&self) -> &[String] {
        self.inner.own_fields()
    }
}

impl OutcomeCounter {
    fn new(
        table: &RuleCountTable,
        (route, rule): (&str, &str),
        outcomes: &'static [RuleOutcome],
    ) -> Self {
        let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.as_str()).collect();
        let counts = table.counts(route, rule, &names);
        Self { outcomes, counts }
    }

    fn count_verdict(&self, verdict: &Verdict) {
        match verdict {
            Ok(_) => {}
            Err(Refusal::Response(_)) => self.count(RuleOutcome::Refused),
            Err(Refusal::Fault(fault)) => self.count_fault(fault),
        }
    }

    fn count_fault(&self, fault: &Fault) {
        match fault.kind {
            FaultKind::ClientDisconnected => {}
            kind if kind.status().code() < 500 => self.count(RuleOutcome::Refused),
            _ => self.count(RuleOutcome::Unavailable),
        }
    }

    fn count(&self, outcome: RuleOutcome) {
        let index = self.outcomes.iter().position(|known| *known == outcome);
        if let Some(index) = index {
            self.counts.increment(index);
        }
    }

    fn count_reply(&self, reply: &Result<Reply, Fault>) {
        match reply {
            Ok(Reply::Pass(_)) => {}
            Ok(Reply::Response(_) | Reply::Redirect(_)) => self.count(RuleOutcome::Answered),
            Err(fault) => self.count_fault(fault),
        }
    }
}

impl Handler for CountedHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        match self.inner.handle(request) {
            HandlerProgress::Ready(reply) => {
                self.counter.count_reply(&reply);
                HandlerProgress::Ready(reply)
            }
            HandlerProgress::Pending(work) => {
                self.counter.count(RuleOutcome::Delayed);
                let counter = self.counter.clone();
                HandlerProgress::Pending(Box::pin(async move {
                    let reply = work.await;
                    counter.count_reply(&reply);
                    reply
                }))
            }
        }
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.inner.try_inline(request, &mut |response| {
            self.counter.count(RuleOutcome::Answered);
            take(response);
        });
    }
}

#[cfg(test)]
mod tests {
    use penstock_config::Satisfy;
    use penstock_exchange::{Body, Response};
    use penstock_http::Status;

    use super::*;
    use crate::access::AccessRule;
    use crate::admission::AdmissionHandler;
    use crate::testing::{request, run};

    /// Replies as the path says, at once or, below `/late/`, when it is polled.
    #[derive(Debug)]
    struct Scripted;

    impl Handler for Scripted {
        fn handle(&self, request: Request) -> HandlerProgress {
            let path = String::from_utf8(request.path().to_vec()).unwrap();
            let (is_late, path) = match path.strip_prefix("/late") {
                Some(rest) => (true, rest.to_owned()),
                None => (false, path),
            };
            let reply = match &*path {
                "/pass" => Ok(Reply::Pass(Box::new(request))),
                "/answer" => Ok(Reply::from(Response::new(Status::OK, Body::Empty))),
                "/refuse" => Err(Fault::new(FaultKind::Forbidden, "no")),
                "/gone" => Err(Fault::new(FaultKind::ClientDisconnected, "gone")),
                _ => Err(Fault::new(FaultKind::Unavailable, "down")),
            };
            match is_late {
                false => HandlerProgress::Ready(reply),
                true => HandlerProgress::Pending(Box::pin(std::future::ready(reply))),
            }
        }
    }

    #[test]
    fn what_a_rule_decides_is_counted_and_what_passes_is_not() {
        use RuleOutcome::*;
        let table = RuleCountTable::default();
        let all = &[Answered, Refused, Unavailable, Delayed];
        let rule = CountedHandler::new(Arc::new(Scripted), &table, ("* /", "all"), all);
        for path in ["/pass", "/answer", "/refuse", "/gone", "/down"] {
            for path in [path.to_owned(), format!("/late{path}")] {
                let done = run(&rule, request(&path, ""));
                let is_fine = path.ends_with("pass") || path.ends_with("answer");
                assert_eq!(done.is_ok(), is_fine, "{path}");
            }
        }
        let values: Vec<_> = (0..4).map(|outcome| rule.counts().value(outcome)).collect();
        assert_eq!(values, [2, 2, 2, 5]);
    }

    #[test]
    fn refusals_of_a_rule_are_counted_whichever_rule_is_asked_next() {
        let table = RuleCountTable::default();
        let access = |deny: &str| {
            let rule = AccessRule::new(&[], &[deny.to_owned()]).unwrap().unwrap();
            Arc::new(CountedRule::new(Arc::new(rule), &table, "* /")) as Arc<dyn AdmissionRule>
        };
        let rules = vec![access("203.0.113.0/24"), access("10.0.0.0/8")];
        let handler = AdmissionHandler::new(rules, Satisfy::Any);
        assert!(run(&handler, request("/", "")).is_ok());
        let now = table.snapshot();
        assert_eq!((now.len(), now[0].rule.as_str()), (1, "access"));
        assert_eq!(now[0].counts[0].requests, 1);
    }
}
