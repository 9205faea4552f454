//! One request to the handler behind a cache, and what becomes of its response.
//!
//! `handler` starts it, in a task of its own on the loop of the request that led to it: so it goes on when
//! that client leaves, as long as others wait or the response is stored, and ends when nobody would have
//! anything of it. It lands its flight when the head is there; what is stored it goes on reading into the
//! store's [`Filler`]. Its deadlines are those of the handler behind.
//!
//! What must stay true: a response that was cut is never stored; what is not for everybody reaches only
//! the one who led; a failure of the back end takes nothing away that may still be served stale.

mod slice;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::fields::remove_internal;
use penstock_exchange::{Body, BodyStream, Fault, FaultKind, Handling, Reply, Response, Timing};
use penstock_http::caching::{
    Lifetime, OriginExchange, RevalidationFields, StoreRefusal, VaryFields, check_storable,
    freshen, is_304_for, parse_vary, revalidation_fields, stored_fields, variant_key,
};
use penstock_http::{FieldBlock, Status};
use penstock_runtime::log_throttle::suppressed_suffix;
use penstock_runtime::{clock, loops};

use crate::ask::{self, Client};
use crate::flight::{Landing, Lead, Outcome};
use crate::handler::Shared;
use crate::slices::{self, Slice};
use crate::store::{Filler, Growing, Hit, HitBody, Key, LIFETIME_WORDS, Meta, Store};

/// What is to be fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Arc<Store>,
    pub(crate) key: Key,
    /// Whose request led to it.
    pub(crate) client: Client,
    /// What is stored and stale.
    pub(crate) base: Option<Hit>,
    /// Only this slice of it, which is stored by itself.
    pub(crate) slice: Option<Slice>,
}

/// When the question went out and when the head of its answer came, since the epoch.
#[derive(Debug, Clone, Copy)]
struct Times {
    request: Duration,
    response: Duration,
}

impl Fetch {
    /// Starts it, on this loop.
    pub(crate) fn start(self, landing: Landing) {
        loops::spawn_here(self.run(landing));
    }

    fn validators(&self) -> RevalidationFields<'_> {
        match &self.base {
            // A body on its way in has nothing to be kept for yet.
            Some(base) if !matches!(base.body, HitBody::Growing(_)) => {
                revalidation_fields(&base.meta.fields)
            }
            _ => RevalidationFields::default(),
        }
    }

    async fn run(mut self, landing: Landing) {
        let mut purges = self.store.purges();
        let Some((mut answered, mut times)) = self.ask(&landing).await else {
            return;
        };
        if is_not_modified(&answered) && self.base.is_some() {
            // Who joins from here on would come after a purge that is not seen below.
            landing.close();
            match self.validate(&answered, times, purges, &landing) {
                Some(hit) => {
                    let lead = Lead {
                        status: Some(Status::NOT_MODIFIED),
                        ..Lead::default()
                    };
                    return landing.land(Outcome::Validated(hit), lead);
                }
                // It is about another response, or about one that was purged: ask again, without a condition.
                None => {
                    landing.renew();
                    purges = self.store.purges();
                    match self.ask(&landing).await {
                        Some(asked) => (answered, times) = asked,
                        None => return,
                    }
                }
            }
        }
        match answered {
            Ok(Reply::Response(response)) => match self.slice.take() {
                Some(slice) => slice.take(self, *response, times, purges, landing).await,
                None => self.take(*response, times, purges, landing).await,
            },
            Ok(reply) => {
                if matches!(reply, Reply::Redirect(_)) {
                    self.shared.flights.mark(&self.key, clock::now());
                    if self.slice.is_some() {
                        let mark = slices::mark_of(&self.key);
                        self.shared.flights.mark(&mark, clock::now());
                    }
                }
                refuse(landing, Ok(reply), None, None);
            }
            Err(fault) => {
                self.shared.counts.failures.increment();
                self.shared.flights.renew_mark(&self.key, clock::now());
                if landing.is_background()
                    && let Some(count) = self.shared.repeats.admit_line(&fault.cause, clock::now())
                {
                    let (target, left_out) = (self.client.head.target(), suppressed_suffix(count));
                    log::warn!(
                        "cache: {target} is not revalidated: {}{left_out}",
                        fault.cause
                    );
                }
                land_failure(landing, fault);
            }
        }
    }

    /// Asks; nothing when nobody waits for it any more.
    async fn ask(&self, landing: &Landing) -> Option<(Result<Reply, Fault>, Times)> {
        let request = clock::wall();
        let question = match ask::question(
            &self.shared.rules,
            &self.client,
            self.validators(),
            self.slice.as_ref().map(Slice::span),
        ) {
            Ok(question) => question,
            Err(fault) => {
                let response = request;
                return Some((Err(fault), Times { request, response }));
            }
        };
        let answered = match self.shared.inner.handle(question) {
            Handling::Now(answered) => answered,
            Handling::Later(work) => tokio::select! {
                biased;
                answered = work => answered,
                () = landing.abandoned() => return None,
            },
        };
        let response = clock::wall();
        Some((answered, Times { request, response }))
    }

    /// What is stored, after a 304; none if that is about something else or somebody took it out meanwhile,
    /// and it is gone then.
    fn validate(
        &mut self,
        answered: &Result<Reply, Fault>,
        times: Times,
        purges: u64,
        landing: &Landing,
    ) -> Option<Hit> {
        let base = self.base.take()?;
        let is_out = landing.is_outdated() || self.store.is_purged_since(purges, &base.meta);
        if !is_out
            && let Ok(Reply::Response(response)) = answered
            && is_304_for(&base.meta.fields, &response.fields)
        {
            return Some(self.validated(&base, &response.fields, times));
        }
        self.store.forget_hit(&base);
        None
    }

    /// What is stored, after a 304 about it.
    fn validated(&self, base: &Hit, of_304: &FieldBlock, times: Times) -> Hit {
        let mut fields = freshen(&base.meta.fields, of_304, times.response);
        self.shared.rules.remove_tags(&mut fields);
        // A 304 speaks to the front end and the hub for its own request, not for later clients.
        remove_internal(&mut fields);
        // These are not stored, but count.
        let mut judged = fields.clone();
        for name in ["age", "x-accel-expires", "surrogate-control"] {
            if let Some(value) = of_304.get(name) {
                let pushed = judged.push(name, value);
                debug_assert!(pushed.is_ok(), "it was a field before");
            }
        }
        let lifetime = self.judge(base.meta.status, &judged, times);
        let mut meta = Meta::clone(&base.meta);
        meta.fields = fields.freeze();
        let tags = self.shared.rules.tags_of(of_304);
        if !tags.is_empty() {
            meta.tags = tags;
        }
        let meta = match lifetime {
            Ok(lifetime) => {
                meta.lifetime = words(&lifetime);
                meta.request_time = times.request;
                meta.response_time = times.response;
                self.store.freshen(base, meta)
            }
            // Current for the one who asked, and for nobody after, if it was not only this request's own
            // (`Authorization`) that spoke against it: others have what is stored as it was.
            Err(reason) => {
                if is_of_resource(Some(reason)) {
                    self.store.forget_hit(base);
                }
                Arc::new(meta)
            }
        };
        Hit {
            meta,
            body: base.body.clone(),
        }
    }

    fn judge(
        &self,
        status: Status,
        fields: &FieldBlock,
        times: Times,
    ) -> Result<Lifetime, StoreRefusal> {
        let exchange = OriginExchange {
            request: &self.client.head,
            status,
            fields,
            request_time: times.request,
            response_time: times.response,
        };
        check_storable(&exchange, &self.shared.rules.policy)
    }

    /// Stores a response, or leaves it to the one who led.
    async fn take(self, response: Response, times: Times, purges: u64, landing: Landing) {
        let is_error = is_failure(response.status);
        if is_error && self.base.is_some() {
            // What is stored stays: it may be served for longer than this.
            return refuse_response(landing, response, "error");
        }
        let judged = self.judge(response.status, &response.fields, times);
        let mut refused = match judged {
            Err(reason) => Some(reason.as_str()),
            Ok(_) if landing.is_outdated() => Some("outdated"),
            Ok(_) => unstorable(&response),
        };
        if let (None, Ok(lifetime)) = (refused, judged) {
            let meta = self.meta(&response, &lifetime, times);
            let declared = response.body.length();
            let begun = self.store.begin(&self.key, meta, declared);
            // Asked behind `begin`: what is taken out from then on is found on its way in.
            let is_out = |growing: &Growing| {
                landing.is_outdated() || self.store.is_purged_since(purges, growing.meta())
            };
            if begun.as_ref().is_some_and(|(_, growing)| is_out(growing)) {
                refused = Some("outdated");
            } else if let Some((filler, growing)) = begun {
                self.replace(growing.meta());
                let body = land_stored(landing, response, growing).await;
                return self.fill(body, filler).await;
            }
        }
        let reason = refused.unwrap_or("store");
        // A back end that failed says nothing about the resource.
        if is_of_resource(judged.err()) && !is_error {
            self.shared.flights.mark(&self.key, clock::now());
            if let Some(base) = &self.base {
                self.store.forget_hit(base);
            }
        }
        refuse_response(landing, response, reason);
    }

    fn meta(&self, response: &Response, lifetime: &Lifetime, times: Times) -> Meta {
        let rules = &self.shared.rules;
        let mut fields = stored_fields(&response.fields, times.response);
        rules.remove_tags(&mut fields);
        remove_internal(&mut fields);
        if response.status == Status::OK && !fields.contains("accept-ranges") {
            fields.push_static("Accept-Ranges", "bytes");
        }
        let vary_names = match parse_vary(&response.fields) {
            VaryFields::Names(names) => names,
            // Is not stored.
            VaryFields::Any => Vec::new(),
        };
        Meta {
            key: Arc::clone(&self.key.text),
            status: response.status,
            fields: fields.freeze(),
            lifetime: words(lifetime),
            request_time: times.request,
            response_time: times.response,
            variant: match vary_names.is_empty() {
                true => Vec::new(),
                false => variant_key(&self.client.head, &vary_names),
            },
            vary_names,
            tags: rules.tags_of(&response.fields),
            length: 0,
            sliced: None,
        }
    }

    /// Takes out what the new response does not take the place of by itself: what was found stale, and what
    /// is selected by other fields than those of its `Vary`, which from now on decides (RFC 9111 §4.1).
    fn replace(&self, new: &Meta) {
        if let Some(base) = &self.base
            && !base.meta.is_same_variant(new)
        {
            self.store.forget_hit(base);
        }
        // A whole is not for slices to take out: a back end may well leave `Vary` out of parts.
        let is_other = |meta: &Meta| {
            meta.vary_names != new.vary_names && (new.sliced.is_none() || meta.sliced.is_some())
        };
        for _ in 0..OTHERS_MAX {
            let Some(other) = self.store.find(&self.key, &mut |meta| is_other(meta)) else {
                break;
            };
            match &other.body {
                // Who reads it goes on; it is not kept, and not found from here on.
                HitBody::Growing(growing) => growing.doom(),
                HitBody::Memory(_) | HitBody::Disk(_) => self.store.forget_hit(&other),
            }
        }
    }

    /// Reads the body into the store.
    async fn fill(&self, body: Body, mut filler: Filler) {
        let counts = &self.shared.counts;
        let key = filler.key().clone();
        let filled = match body {
            Body::Bytes(bytes) => {
                filler.push(&bytes);
                filler.settle().await;
                Ok(true)
            }
            Body::Stream(stream) => pour(stream, &mut filler).await,
            // `unstorable` has refused the others.
            _ => Ok(true),
        };
        match filled {
            Ok(true) => {
                match filler.finish().await {
                    true => counts.stored.increment(),
                    // Too large, most likely: the next one need not be waited for.
                    false => self.shared.flights.mark(&key, clock::now()),
                }
            }
            // Nobody wants it.
            Ok(false) => drop(filler),
            Err(fault) => {
                counts.failures.increment();
                log::debug!(
                    "cache: a response was cut and is not stored: {}",
                    fault.cause
                );
                filler.abort(&fault);
            }
        }
    }
}

/// Variants taken out at once when a resource changes its `Vary`; what is left goes with the next ones.
const OTHERS_MAX: usize = 64;

/// Moves a body into the store; false when nobody wants it any more.
async fn pour(mut stream: Box<dyn BodyStream>, filler: &mut Filler) -> Result<bool, Fault> {
    let declared = stream.length();
    let mut taken = 0_u64;
    loop {
        let next = std::future::poll_fn(|cx| stream.poll_chunk(cx));
        let next = tokio::select! {
            biased;
            next = next => next,
            () = filler.pointless() => return Ok(false),
        };
        let Some(chunk) = next.transpose()? else {
            break;
        };
        taken += chunk.len() as u64;
        if declared.is_some_and(|declared| taken > declared) {
            return Err(wrong_length(declared, taken));
        }
        filler.push(&chunk);
        filler.settle().await;
    }
    match declared {
        Some(length) if length != taken => Err(wrong_length(declared, taken)),
        _ => Ok(true),
    }
}

fn wrong_length(declared: Option<u64>, taken: u64) -> Fault {
    let declared = declared.unwrap_or_default();
    let cause = format!("{declared} bytes were announced and {taken} came");
    Fault::new(FaultKind::BackendBroken, cause)
}

fn is_not_modified(answered: &Result<Reply, Fault>) -> bool {
    matches!(answered, Ok(Reply::Response(response)) if response.status == Status::NOT_MODIFIED)
}

/// Whether it says that the back end failed (RFC 5861 §4).
pub(crate) fn is_failure(status: Status) -> bool {
    matches!(status.code(), 500 | 502 | 503 | 504)
}

/// What speaks against storing a response that its fields allow to store.
fn unstorable(response: &Response) -> Option<&'static str> {
    match &response.body {
        Body::Empty | Body::Bytes(_) | Body::Stream(_) => {}
        Body::File(_) => return Some("file"),
        Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_) => return Some("body"),
    }
    if response.rate_max.is_some() {
        return Some("limit-rate");
    }
    // What it says is for this request's client alone.
    if response.speaks_to_hub {
        return Some("hub");
    }
    // It never ends.
    let content_type = response.fields.get("content-type").unwrap_or_default();
    let is_stream = content_type
        .get(..EVENT_STREAM.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM));
    is_stream.then_some("event-stream")
}

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Whether the next response for the resource will likely not be stored either: what only this request
/// brought about says nothing about others.
pub(crate) fn is_of_resource(reason: Option<StoreRefusal>) -> bool {
    !matches!(
        reason,
        Some(StoreRefusal::Authorization | StoreRefusal::RequestNoStore | StoreRefusal::Method)
    )
}

fn words(lifetime: &Lifetime) -> [i64; LIFETIME_WORDS] {
    let mut words = [0; LIFETIME_WORDS];
    for (word, value) in words.iter_mut().zip(lifetime.to_words()) {
        *word = value.cast_signed();
    }
    words
}

/// What the rules said of a stored response; none if they never did.
pub(crate) fn lifetime_of(meta: &Meta) -> Option<Lifetime> {
    let mut words = [0; penstock_http::caching::LIFETIME_WORDS];
    for (word, value) in words.iter_mut().zip(meta.lifetime) {
        *word = value.cast_unsigned();
    }
    Lifetime::from_words(words)
}

/// Tells all who wait that the response is being stored; gives its body, which is to be read into the store.
async fn land_stored(landing: Landing, response: Response, growing: Arc<Growing>) -> Body {
    let whole = match &response.body {
        Body::Bytes(bytes) => Some(bytes.clone()),
        Body::Empty => Some(Bytes::new()),
        _ => None,
    };
    let lead = Lead {
        timing: response.timing,
        status: Some(response.status),
        ..Lead::default()
    };
    landing.land(Outcome::Stored { growing, whole }, lead);
    // Those who wait here begin to read before anything can go wrong with the body.
    loops::yield_now().await;
    response.body
}

fn refuse_response(landing: Landing, response: Response, detail: &'static str) {
    let status = response.status;
    refuse(landing, Ok(response.into()), Some(status), Some(detail));
}

fn refuse(
    landing: Landing,
    reply: Result<Reply, Fault>,
    status: Option<Status>,
    detail: Option<&'static str>,
) {
    let lead = Lead {
        reply: Some(reply),
        timing: Timing::default(),
        status,
        detail,
    };
    let is_error = status.is_some_and(is_failure);
    landing.land(Outcome::Refused { is_error }, lead);
}

fn land_failure(landing: Landing, fault: Fault) {
    let told = Outcome::Failed(fault.kind, fault.cause.clone().into_owned());
    let lead = Lead {
        reply: Some(Err(fault)),
        ..Lead::default()
    };
    landing.land(told, lead);
}
