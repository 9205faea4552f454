//! Rules about the clients of a route, and the handler that asks them: `satisfy` of a route.
//!
//! An [`AdmissionRule`] looks at a request without owning it, so that several rules can be asked
//! about one request. [`AdmissionHandler`] passes a request on when all of its rules admit it, or
//! one of them, as the route says.
//!
//! # Invariants
//! - A rule that cannot decide admits no request.
//! - Fields that a rule sets are never the client's own, whichever rule has admitted the request.
//! - The user is the one that the admitting rule has verified.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use penstock_config::Satisfy;
use penstock_exchange::field_policy::is_same_cgi_variable;
use penstock_exchange::{Fault, FaultKind, Handler, HandlerProgress, Reply, Request, Response};
use penstock_http::{HeadWriter, Status};

/// A rule about the clients of a route.
pub trait AdmissionRule: Send + Sync + fmt::Debug {
    /// Its key in the configuration, for its counts.
    fn name(&self) -> &'static str;

    /// Decides about a request. The future may be dropped when the client leaves.
    fn decide(&self, request: &Request) -> Decision;

    /// Names of the fields that only this rule may set.
    fn own_fields(&self) -> &[String] {
        &[]
    }
}

/// How far a rule got at once.
pub enum Decision {
    /// It has decided.
    Ready(Verdict),
    /// To be awaited.
    Pending(Pin<Box<dyn Future<Output = Verdict> + Send>>),
}

/// The decision of a rule.
pub type Verdict = Result<Admission, Refusal>;

/// What a rule knows of a request that it admits.
#[derive(Debug, Default)]
pub struct Admission {
    /// Whether it passes because of who its client is: no response to it is another client's.
    pub is_authenticated: bool,
    /// The user that the client has proved to be.
    pub user: Option<Arc<str>>,
    /// Fields that the request goes on with; valid, and named in [`AdmissionRule::own_fields`].
    pub fields: Vec<(String, Vec<u8>)>,
}

/// What the client of a refused request gets.
#[derive(Debug)]
pub enum Refusal {
    /// A page of this server.
    Fault(Fault),
    /// The response of a service.
    Response(Box<Response>),
}

/// Asks the rules of a route.
#[derive(Debug)]
pub struct AdmissionHandler {
    rules: Arc<[Arc<dyn AdmissionRule>]>,
    satisfy: Satisfy,
}

/// The rules of one request while they are asked.
struct Inquiry {
    rules: Arc<[Arc<dyn AdmissionRule>]>,
    satisfy: Satisfy,
    request: Request,
    next_rule: usize,
    refusals: Vec<Refusal>,
}

/// Whether more rules are to be asked.
enum Step {
    Continue,
    Done,
}

impl AdmissionHandler {
    /// The handler for these rules, which are asked in this order.
    #[must_use]
    pub fn new(rules: Vec<Arc<dyn AdmissionRule>>, satisfy: Satisfy) -> Self {
        let rules = rules.into();
        Self { rules, satisfy }
    }
}

impl Handler for AdmissionHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let mut inquiry = Inquiry {
            rules: Arc::clone(&self.rules),
            satisfy: self.satisfy,
            request,
            next_rule: 0,
            refusals: Vec::new(),
        };
        while let Some(decision) = inquiry.ask_next() {
            let verdict = match decision {
                Decision::Ready(verdict) => verdict,
                Decision::Pending(verdict) => {
                    return HandlerProgress::Pending(Box::pin(inquiry.wait(verdict)));
                }
            };
            match inquiry.add(verdict) {
                Ok(Step::Continue) => {}
                Ok(Step::Done) => break,
                Err(fault) => return HandlerProgress::Ready(Err(fault)),
            }
        }
        HandlerProgress::Ready(inquiry.finish())
    }
}

impl Inquiry {
    /// Asks the next rule, if there is one.
    fn ask_next(&mut self) -> Option<Decision> {
        let rule = self.rules.get(self.next_rule)?;
        self.next_rule += 1;
        Some(rule.decide(&self.request))
    }

    /// Asks the rules behind one that was not ready.
    async fn wait(
        mut self,
        first: Pin<Box<dyn Future<Output = Verdict> + Send>>,
    ) -> Result<Reply, Fault> {
        let mut decision = Some(Decision::Pending(first));
        while let Some(asked) = decision {
            let verdict = match asked {
                Decision::Ready(verdict) => verdict,
                Decision::Pending(verdict) => verdict.await,
            };
            match self.add(verdict)? {
                Step::Continue => decision = self.ask_next(),
                Step::Done => break,
            }
        }
        self.finish()
    }

    /// Notes what a rule has decided.
    fn add(&mut self, verdict: Verdict) -> Result<Step, Fault> {
        match verdict {
            // Without its client a request needs no other rule.
            Err(Refusal::Fault(fault)) if fault.kind == FaultKind::ClientDisconnected => Err(fault),
            Err(refusal) => {
                self.refusals.push(refusal);
                Ok(match self.satisfy {
                    Satisfy::All => Step::Done,
                    Satisfy::Any => Step::Continue,
                })
            }
            Ok(admission) => match self.satisfy {
                Satisfy::All => {
                    let asked = self.next_rule - 1..self.next_rule;
                    self.admit(admission, asked).map(|()| Step::Continue)
                }
                Satisfy::Any => {
                    self.refusals.clear();
                    let all = 0..self.rules.len();
                    self.admit(admission, all).map(|()| Step::Done)
                }
            },
        }
    }

    /// Changes the request to what a rule says of it. The client's fields that only these rules may
    /// set are removed.
    fn admit(&mut self, admission: Admission, of: std::ops::Range<usize>) -> Result<(), Fault> {
        let client = &self.request.client_state;
        if admission.user.is_some() {
            client.set_user(admission.user);
        }
        if admission.is_authenticated {
            client.set_authenticated();
        }
        let owned: Vec<&String> = self.rules[of]
            .iter()
            .flat_map(|rule| rule.own_fields())
            .collect();
        let is_owned = |name: &str| owned.iter().any(|own| is_same_cgi_variable(name, own));
        let head = &self.request.head;
        let has_owned = head.fields().any(|(name, _)| is_owned(name));
        if admission.fields.is_empty() && !has_owned {
            return Ok(());
        }
        let (method, target) = (head.method_str(), head.target_path_query());
        let mut writer = HeadWriter::with_kept_fields(head, method, target, |name| !is_owned(name));
        for (name, value) in &admission.fields {
            writer.push_field(name, value);
        }
        let changed = writer.finish().map_err(|error| {
            let cause = format!("the rules of the route make the request invalid: {error}");
            Fault::new(FaultKind::Internal, cause)
        })?;
        let names: Vec<String> = owned.into_iter().cloned().collect();
        self.request.replace_head(Arc::new(changed), names);
        Ok(())
    }

    fn finish(self) -> Result<Reply, Fault> {
        match combine(self.refusals) {
            None => Ok(Reply::Pass(Box::new(self.request))),
            Some(Refusal::Response(response)) => Ok(Reply::Response(response)),
            Some(Refusal::Fault(fault)) => Err(fault),
        }
    }
}

/// The refusal that helps the client most; `None` if nothing refuses. All ways to sign in are in
/// it where it is a 401 (RFC 9110 §15.5.2).
fn combine(refusals: Vec<Refusal>) -> Option<Refusal> {
    let challenges: Vec<Vec<u8>> = refusals.iter().flat_map(challenges_of).collect();
    let causes: Vec<String> = refusals.iter().filter_map(cause_of).collect();
    let is_alone = refusals.len() == 1;
    let mut chosen = refusals.into_iter().reduce(|best, next| {
        match helpfulness(&next) > helpfulness(&best) {
            true => next,
            false => best,
        }
    })?;
    if is_alone {
        return Some(chosen);
    }
    let fields = match &mut chosen {
        Refusal::Fault(fault) => {
            fault.cause = causes.join("; ").into();
            let is_challenged = fault.kind == FaultKind::Unauthorized;
            is_challenged.then(|| &mut **fault.fields.get_or_insert_default())
        }
        Refusal::Response(response) => {
            (response.status == Status::UNAUTHORIZED).then_some(&mut response.fields)
        }
    };
    if let Some(fields) = fields {
        fields.remove(CHALLENGE);
        for challenge in challenges {
            // They were in fields before.
            let _ = fields.push(CHALLENGE, &challenge);
        }
    }
    Some(chosen)
}

/// A service may lead to its login page, unless it has failed; a client that is too fast must not
/// try again at once.
fn helpfulness(refusal: &Refusal) -> u8 {
    match refusal {
        Refusal::Response(response) if response.status.code() >= 500 => 1,
        Refusal::Response(_) => 4,
        Refusal::Fault(fault) => match fault.kind {
            FaultKind::TooManyRequests => 3,
            FaultKind::Unauthorized => 2,
            kind if kind.is_transient() => 1,
            _ => 0,
        },
    }
}

fn challenges_of(refusal: &Refusal) -> Vec<Vec<u8>> {
    let fields = match refusal {
        Refusal::Fault(fault) => fault.fields.as_deref(),
        Refusal::Response(response) => Some(&response.fields),
    };
    let fields = fields.into_iter().flat_map(|fields| fields.iter());
    let challenges = fields.filter(|(name, _)| name.eq_ignore_ascii_case(CHALLENGE));
    challenges.map(|(_, value)| value.to_vec()).collect()
}

fn cause_of(refusal: &Refusal) -> Option<String> {
    match refusal {
        Refusal::Fault(fault) => Some(fault.cause.to_string()),
        Refusal::Response(_) => None,
    }
}

impl Decision {
    /// A request that goes on as it is.
    #[must_use]
    pub fn admit() -> Self {
        Self::Ready(Ok(Admission::default()))
    }

    /// A request that is refused by a page of this server.
    #[must_use]
    pub fn refuse(fault: Fault) -> Self {
        Self::Ready(Err(fault.into()))
    }
}

impl Admission {
    /// That of a user.
    #[must_use]
    pub fn of_user(user: Arc<str>) -> Self {
        Self {
            user: Some(user),
            is_authenticated: true,
            ..Self::default()
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(verdict) => f.debug_tuple("Ready").field(verdict).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// Names a way to sign in (RFC 9110 §11.6.1).
const CHALLENGE: &str = "WWW-Authenticate";

#[cfg(test)]
mod tests;
