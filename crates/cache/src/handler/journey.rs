//! The way of a request that is not answered at once: from a disk, after a question to the back end, or
//! with what another request brings.
//!
//! Runs in the task of its connection and may be dropped at any wait: what it leads goes on by itself
//! (`fetch`), as long as that is of use to somebody. What must stay true: it ends, by `lock_timeout` for what
//! it waits for others, and by the deadlines of the handler behind for what it waits for itself; a client
//! gets what was made for all, or what was made for it alone.

mod sliced;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use penstock_exchange::{
    ClientState, Fault, FaultKind, Handling, Name, Reply, Request, Response, Side, Timing,
};
use penstock_http::caching::{
    CacheStatus, ForwardReason, ReuseDecision, decide_reuse_with, evaluate_condition,
    head_matches_stored, variant_key,
};
use penstock_http::{Method, PreconditionResult, RequestHead, Status};
use penstock_runtime::clock;
use penstock_runtime::log_throttle::suppressed_suffix;

use self::sliced::Sliced;
use super::{Found, Shared, Stale, Usable, pass, passed, selects, unsatisfiable};
use crate::ask::Client;
use crate::fetch::{Fetch, is_failure, lifetime_of};
use crate::flight::{Joined, Lead, Outcome};
use crate::rules::Asked;
use crate::serve::{self, Note};
use crate::store::{Gone, Growing, Hit, HitBody, Key, Meta, Store};

/// Looks for what others brought meanwhile; beyond that a request goes to the back end itself. More than two
/// are needed only where variants multiply while it waits. Rounds that end in the failure of another request do
/// not count: `lock_timeout` bounds these.
const ROUNDS: u32 = 4;

/// One request on its way.
#[derive(Debug)]
pub(super) struct Journey {
    shared: Arc<Shared>,
    store: Arc<Store>,
    key: Key,
    asked: Asked,
    client: Client,
    /// Whether that is still there.
    state: Arc<ClientState>,
    /// When it stops waiting for others.
    deadline: Instant,
}

/// How far one round got.
enum Step {
    Done(Result<Reply, Fault>),
    /// Another look.
    Again,
    /// Another look, which is not counted: the request of another client failed, and takes no part any more.
    NextLeader,
    /// To the handler behind, as it is.
    Pass(CacheStatus<'static>),
}

/// Who gets an outcome.
struct Getter<'a> {
    stale: Option<&'a Stale>,
    fwd: ForwardReason,
    /// The request itself led to it.
    lead: Option<Lead>,
}

impl Journey {
    pub(super) fn new(
        shared: Arc<Shared>,
        store: Arc<Store>,
        key: Key,
        asked: Asked,
        request: &Request,
    ) -> Self {
        let deadline = request.arrived + shared.rules.lock_timeout;
        Self {
            shared,
            store,
            key,
            asked,
            client: Client::of(request),
            state: Arc::clone(&request.client),
            deadline,
        }
    }

    /// Goes it to its end.
    pub(super) async fn answer(self, request: Request, found: Found) -> Result<Reply, Fault> {
        let mut found = found;
        // One that slices may answer is counted when that is known.
        let is_far = serve::wants_far_part(&self.client.head);
        let mut is_counted = !(is_far && matches!(found, Found::Missing { .. }));
        let mut rounds = 0;
        while rounds < ROUNDS {
            rounds += 1;
            let stale = match found {
                Found::Usable(usable) if self.is_far(&usable) => {
                    let answered = self.sliced(Some(&usable.hit.meta)).await;
                    found = self.look();
                    match answered {
                        Sliced::Answered(answered) => return answered.map(|(reply, _)| reply),
                        Sliced::NextLeader => {
                            rounds -= 1;
                            continue;
                        }
                        Sliced::Unfit => {}
                    }
                    match &found {
                        // All of it is there by now.
                        Found::Usable(usable) if !self.is_far(usable) => continue,
                        _ => {}
                    }
                    return self
                        .pass(request, passed(ForwardReason::Partial, "range"), None)
                        .await;
                }
                Found::Usable(usable) => match self.send(&usable).await {
                    Ok(response) => return Ok(response.into()),
                    // Its file has gone; the store knows by now.
                    Err(Gone) => None,
                },
                Found::Unsatisfiable => {
                    let mut response = unsatisfiable();
                    let told = CacheStatus {
                        detail: Some("only-if-cached"),
                        ..CacheStatus::default()
                    };
                    self.shared.tell(&mut response, &told);
                    return Ok(response.into());
                }
                Found::Stale(stale) => Some((Some(stale), None)),
                Found::Missing { names } => {
                    if is_far {
                        let answered = self.sliced(None).await;
                        if !std::mem::replace(&mut is_counted, true) {
                            let is_hit = matches!(answered, Sliced::Answered(Ok((_, true))));
                            self.store.count(is_hit);
                        }
                        let is_anothers = match answered {
                            Sliced::Answered(answered) => return answered.map(|(reply, _)| reply),
                            Sliced::NextLeader => true,
                            Sliced::Unfit => false,
                        };
                        found = self.look();
                        if is_anothers {
                            rounds -= 1;
                            continue;
                        }
                        match found {
                            Found::Missing { .. } => {}
                            // It came meanwhile.
                            _ => continue,
                        }
                    }
                    Some((None, names))
                }
            };
            let step = match stale {
                Some((stale, names)) => {
                    let step = self.ask(stale.as_ref(), names).await;
                    match step {
                        Step::Pass(told) => return self.pass(request, told, stale).await,
                        step => step,
                    }
                }
                None => Step::Again,
            };
            match step {
                Step::Done(answered) => return answered,
                Step::Again | Step::Pass(_) => {}
                Step::NextLeader => rounds -= 1,
            }
            found = self.look();
        }
        self.pass(request, passed(ForwardReason::Miss, "rounds"), None)
            .await
    }

    fn look(&self) -> Found {
        let shared = &self.shared;
        let head = &self.client.head;
        shared.look(&self.store, &self.key, head, &self.asked, clock::wall())
    }

    /// Whether it would wait too long for the part that it wants.
    fn is_far(&self, usable: &Usable) -> bool {
        let is_growing = matches!(usable.hit.body, HitBody::Growing(_));
        is_growing && serve::wants_far_part(&self.client.head)
    }

    /// Sends what is stored, and has it revalidated.
    async fn send(&self, usable: &Usable) -> Result<Response, Gone> {
        let note = self.shared.note(usable);
        let response = serve::answer(&self.client.head, &usable.hit, &note).await?;
        self.shared.count_hit(usable, response.body.length());
        if usable.is_revalidated {
            self.revalidate(&usable.hit);
        }
        Ok(response)
    }

    /// Asks the back end about a stored response, behind the client's back.
    fn revalidate(&self, hit: &Hit) {
        let guess = self.guess(Some(&hit.meta.vary_names));
        let flights = &self.shared.flights;
        if let Some(landing) = flights.begin_background(&self.key, guess) {
            self.fetch(Some(hit)).start(landing);
        }
    }

    fn fetch(&self, base: Option<&Hit>) -> Fetch {
        Fetch {
            shared: Arc::clone(&self.shared),
            store: Arc::clone(&self.store),
            key: self.key.clone(),
            client: self.client.clone(),
            base: base.cloned(),
            slice: None,
        }
    }

    /// What tells its flight from those for other variants, as far as their names are known.
    fn guess(&self, names: Option<&Vec<String>>) -> Vec<u8> {
        names.map_or_else(Vec::new, |names| variant_key(&self.client.head, names))
    }

    /// Asks the back end, or waits for somebody who does.
    async fn ask(&self, stale: Option<&Stale>, names: Option<Vec<String>>) -> Step {
        let fwd = match (stale, &names) {
            (Some(stale), _) if stale.ttl > 0 => ForwardReason::Request,
            (Some(_), _) => ForwardReason::Stale,
            (None, Some(_)) => ForwardReason::VaryMiss,
            (None, None) => ForwardReason::UriMiss,
        };
        if let Some(detail) = self.passes(stale) {
            return Step::Pass(passed(fwd, detail));
        }
        let base = stale.map(|stale| &stale.hit);
        let is_alone = self.client.head.field("authorization").is_some()
            || stale.is_some_and(|stale| !stale.is_shared);
        let (ticket, leads) = if is_alone {
            let (ticket, landing) = self.shared.flights.begin_alone(&self.key);
            self.fetch(base).start(landing);
            (ticket, true)
        } else {
            let names = base.map(|hit| &hit.meta.vary_names).or(names.as_ref());
            // One that began before would bring what this request does not take.
            let since = self.is_reload().then_some(self.client.arrived());
            let flights = &self.shared.flights;
            match flights.join(&self.key, self.guess(names), since) {
                Joined::Waits(ticket) => (ticket, false),
                Joined::Leads(ticket, landing) => {
                    // A flight may have landed between the look and the join.
                    if stale.is_none() && !matches!(self.look(), Found::Missing { .. }) {
                        landing.land(Outcome::Again, Lead::default());
                        return Step::Again;
                    }
                    self.fetch(base).start(landing);
                    (ticket, true)
                }
            }
        };
        let landed = async {
            match leads {
                true => Some(ticket.outcome().await),
                false => clock::timeout_at(self.deadline, ticket.outcome()).await,
            }
        };
        let outcome = match self.state.unless_gone(landed).await {
            Some(Some(outcome)) => outcome,
            // The last failure would do for all of them, but whoever provokes failures would cause errors for
            // others. How many are sent at once is bounded by the queue of what is behind.
            Some(None) => return Step::Pass(passed(fwd, "lock-timeout")),
            None => return Step::Done(Err(left())),
        };
        let lead = leads.then(|| ticket.take_lead());
        drop(ticket);
        self.get(outcome, Getter { stale, fwd, lead }).await
    }

    /// Why the request goes to the back end by itself, and nothing of it is stored.
    fn passes(&self, stale: Option<&Stale>) -> Option<&'static str> {
        let head = &self.client.head;
        let rules = &self.shared.rules;
        if head.method() == Method::Head {
            return Some("head");
        }
        if !self.asked.may_store {
            return Some("request-no-store");
        }
        if serve::wants_far_part(head) {
            return Some("range");
        }
        if stale.is_some() {
            return None;
        }
        if self.shared.flights.is_marked(&self.key, clock::now()) {
            return Some(pass::MARKED);
        }
        (rules.min_uses > 1 && self.store.uses(&self.key) < rules.min_uses).then_some("min-uses")
    }

    /// What a flight brought, for this request.
    async fn get(&self, outcome: Outcome, getter: Getter<'_>) -> Step {
        match outcome {
            Outcome::Stored { growing, whole } => self.get_stored(growing, whole, getter).await,
            Outcome::Validated(hit) => self.get_validated(&hit, getter).await,
            Outcome::Again => Step::Again,
            Outcome::Refused { is_error } => {
                if is_error && let Some(response) = self.stale(getter.stale, None).await {
                    return Step::Done(Ok(response.into()));
                }
                match getter.lead {
                    Some(lead) => self.get_refused(lead, getter.fwd),
                    None => Step::Pass(CacheStatus {
                        collapsed: true,
                        ..passed(getter.fwd, "not-stored")
                    }),
                }
            }
            Outcome::Failed(kind, cause) => {
                if kind.side() != Side::Client
                    && let Some(response) = self.stale(getter.stale, Some(&cause)).await
                {
                    return Step::Done(Ok(response.into()));
                }
                let leads = getter.lead.is_some();
                match getter.lead.and_then(|lead| lead.reply) {
                    Some(answered) => Step::Done(answered),
                    None if kind.is_before_sending() => Step::Done(Err(Fault::new(kind, cause))),
                    None if leads => Step::Again,
                    // The request that led may have provoked it: one of those that waited is the next to lead, and
                    // the others wait for it.
                    None => Step::NextLeader,
                }
            }
        }
    }

    async fn get_stored(
        &self,
        growing: Arc<Growing>,
        whole: Option<Bytes>,
        getter: Getter<'_>,
    ) -> Step {
        let meta = Arc::clone(growing.meta());
        if getter.lead.is_none() && !self.may_use(&meta) {
            return Step::Again;
        }
        let head = &self.client.head;
        let note = self.note_of(&meta, &getter, true);
        let answered = match whole {
            Some(whole) => serve::answer_whole(head, &meta, whole, &note),
            None => {
                let body = HitBody::Growing(growing);
                serve::answer(head, &Hit { meta, body }, &note).await
            }
        };
        let Ok(mut response) = answered else {
            return Step::Pass(passed(getter.fwd, "too-late"));
        };
        match getter.lead {
            Some(lead) => {
                self.shared.counts.misses.increment();
                response.timing = lead.timing;
            }
            None => {
                self.shared.counts.collapsed.increment();
                let bytes = response.body.length();
                self.shared.counts.bytes.add(bytes.unwrap_or_default());
            }
        }
        Step::Done(Ok(response.into()))
    }

    async fn get_validated(&self, hit: &Hit, getter: Getter<'_>) -> Step {
        if getter.lead.is_none() && !self.may_use(&hit.meta) {
            return Step::Again;
        }
        let note = self.note_of(&hit.meta, &getter, false);
        match serve::answer(&self.client.head, hit, &note).await {
            Ok(response) => {
                let counts = &self.shared.counts;
                counts.validated.increment();
                counts.bytes.add(response.body.length().unwrap_or_default());
                Step::Done(Ok(response.into()))
            }
            Err(Gone) => Step::Pass(passed(getter.fwd, "gone")),
        }
    }

    async fn stale(&self, stale: Option<&Stale>, cause: Option<&str>) -> Option<Response> {
        stale_on_error(&self.shared, &self.client.head, stale, cause).await
    }

    /// The response that is for this request alone.
    fn get_refused(&self, lead: Lead, fwd: ForwardReason) -> Step {
        let answered = match lead.reply {
            Some(Ok(Reply::Response(response))) => response,
            // As it came: the next handler must not see what the cache asked.
            Some(Ok(Reply::Pass(_))) | None => return Step::Pass(passed(fwd, "not-stored")),
            Some(answered) => return Step::Done(answered),
        };
        let head = &self.client.head;
        // The question was for the whole.
        if answered.status == Status::OK && head.field("range").is_some() {
            return Step::Pass(passed(fwd, "range"));
        }
        self.shared.counts.misses.increment();
        let mut response = answered;
        let told = CacheStatus {
            fwd: Some(fwd),
            fwd_status: lead.status,
            detail: lead.detail,
            ..CacheStatus::default()
        };
        self.shared.tell(&mut response, &told);
        let had = evaluate_condition(head, response.status, &response.fields, clock::wall());
        if had == PreconditionResult::NotModified {
            *response = serve::not_modified(*response);
        }
        Step::Done(Ok(Reply::Response(response)))
    }

    /// Whether it takes only what the back end says after it came.
    fn is_reload(&self) -> bool {
        let directives = &self.asked.directives;
        directives.no_cache || directives.max_age.is_some_and(|max_age| max_age.is_zero())
    }

    /// Whether a response that another request brought may be used for this one.
    fn may_use(&self, meta: &Meta) -> bool {
        let lifetime = lifetime_of(meta).filter(|_| selects(&self.client.head, meta));
        if self.is_reload() {
            // It joined only what was asked after it came.
            return lifetime.is_some();
        }
        let reuse = lifetime.map(|lifetime| {
            let now = clock::wall();
            decide_reuse_with(&self.asked.directives, &lifetime, meta.response_time, now)
        });
        matches!(
            reuse,
            Some(
                ReuseDecision::Fresh { .. }
                    | ReuseDecision::Stale { .. }
                    | ReuseDecision::StaleWhileRevalidate { .. }
            )
        )
    }

    /// What is told with a response that has just come.
    fn note_of(&self, meta: &Meta, getter: &Getter<'_>, stored: bool) -> Note<'static> {
        let lifetime = lifetime_of(meta);
        let came = meta.response_time;
        let status = CacheStatus {
            fwd: Some(getter.fwd),
            fwd_status: getter.lead.as_ref().and_then(|lead| lead.status),
            ttl: lifetime.map(|lifetime| lifetime.ttl(came, came)),
            stored,
            collapsed: getter.lead.is_none(),
            ..CacheStatus::default()
        };
        let age = lifetime.map(|lifetime| lifetime.age(came, came));
        let is_own = getter.lead.is_some();
        Note {
            // One that caches nearer to the origin gave it stays.
            age: age.filter(|age| !is_own || age.as_secs() > 0),
            status: self.shared.rules.tells.then_some(status),
        }
    }

    /// Passes the request on; what is stale serves if that fails.
    async fn pass(
        self,
        request: Request,
        told: CacheStatus<'static>,
        stale: Option<Stale>,
    ) -> Result<Reply, Fault> {
        let Self {
            shared, store, key, ..
        } = self;
        let is_marked = told.detail == Some(pass::MARKED);
        let after = pass::After::new(&shared, &request, told);
        let after = after.unmarking(is_marked.then_some(key));
        let Some(stale) = stale else {
            return after.finish(handled(&shared, request).await);
        };
        let head = Arc::clone(&request.head);
        let answered = handled(&shared, request).await;
        match &answered {
            Ok(Reply::Response(response)) if !is_failure(response.status) => {
                let (meta, fields) = (&stale.hit.meta, &response.fields);
                if head.method() == Method::Head
                    && !head_matches_stored(&meta.fields, meta.length, fields)
                {
                    store.forget_hit(&stale.hit);
                }
            }
            Err(fault) if fault.kind.side() == Side::Client => {}
            Ok(Reply::Pass(_) | Reply::Redirect(_)) => {}
            Ok(Reply::Response(_)) | Err(_) => {
                let cause = answered.as_ref().err();
                let cause = cause.map(|fault| fault.cause.clone().into_owned());
                let cause = cause.as_deref();
                if let Some(response) = stale_on_error(&shared, &head, Some(&stale), cause).await {
                    return Ok(response.into());
                }
            }
        }
        after.finish(answered)
    }
}

/// A client is gone. The flight hears of it from the ticket's drop, and ends if nobody else waits.
fn left() -> Fault {
    let cause = "left while the cache waited for the back end";
    let timing = Timing {
        handler: Some(Name::Room(serve::HANDLER)),
        ..Timing::default()
    };
    Fault::new(FaultKind::ClientGone, cause).timed(timing)
}

/// What is stored, if it may be sent when the back end fails (RFC 5861 §4).
async fn stale_on_error(
    shared: &Shared,
    head: &RequestHead,
    stale: Option<&Stale>,
    cause: Option<&str>,
) -> Option<Response> {
    let stale = stale.filter(|stale| stale.is_for_errors)?;
    let status = CacheStatus {
        hit: true,
        ttl: Some(stale.ttl),
        detail: Some("stale-if-error"),
        ..CacheStatus::default()
    };
    let note = Note {
        age: Some(stale.age),
        status: shared.rules.tells.then_some(status),
    };
    let response = serve::answer(head, &stale.hit, &note).await.ok()?;
    if let Some(cause) = cause
        && let Some(count) = shared.repeats.admit_line(cause, clock::now())
    {
        let target = head.target();
        log::warn!(
            "cache: {target} is served stale: {cause}{}",
            suppressed_suffix(count)
        );
    }
    shared.counts.stale.increment();
    let bytes = response.body.length();
    shared.counts.bytes.add(bytes.unwrap_or_default());
    Some(response)
}

async fn handled(shared: &Shared, request: Request) -> Result<Reply, Fault> {
    match shared.inner.handle(request) {
        Handling::Now(answered) => answered,
        Handling::Later(work) => work.await,
    }
}
