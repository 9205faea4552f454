//! One request from the cache to its back end, and the storing of the response.
//!
//! `handler` starts a fetch as its own task on the event loop of the leading request. So the fetch
//! outlives that client as long as others wait or the response is stored, and ends as soon as the
//! result is of no use. The fetch completes when the response head is judged; the body of a stored
//! response is then copied into the store's [`ObjectWriter`]. The back end's handler sets the
//! deadlines.
//!
//! # Invariants
//!
//! - A truncated response is never stored.
//! - A response that may not be shared reaches only the leader.
//! - A failure of the back end removes nothing that may still be served stale.

mod slice;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::field_policy::remove_internal_fields;
use penstock_exchange::{Body, BodyStream, Fault, FaultKind, Reply, RequestTiming, Response};
use penstock_http::caching::{
    Lifetime, OriginExchange, RevalidationFields, StoreRefusal, VaryFields, check_storable,
    freshen, is_304_for, parse_vary, revalidation_fields, storable_fields, variant_key,
};
use penstock_http::{FieldBlock, Status};
use penstock_runtime::log_throttle::suppressed_suffix;
use penstock_runtime::{clock, loops};

use crate::backend_request::{self, ClientRequest};
use crate::coalesced_fetch::{FetchCompleter, FetchOutcome, LeaderResult};
use crate::handler::SharedCache;
use crate::slices::{self, SliceFetch};
use crate::store::{Hit, HitBody, ObjectKey, ObjectMeta, ObjectWriter, PartialObject, Store};

/// A request to the back end for one key.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) shared: Arc<SharedCache>,
    pub(crate) store: Arc<Store>,
    pub(crate) key: ObjectKey,
    /// The client's request that led to the fetch.
    pub(crate) client: ClientRequest,
    pub(crate) stale_hit: Option<Hit>,
    /// Set if only this slice is requested, which is stored as its own object.
    pub(crate) slice: Option<SliceFetch>,
}

/// When the request was sent and when the response head arrived, since the epoch.
#[derive(Debug, Clone, Copy)]
struct FetchTimes {
    request_time: Duration,
    response_time: Duration,
}

impl Fetch {
    /// Starts the fetch on the current event loop.
    pub(crate) fn start(self, completer: FetchCompleter) {
        loops::spawn_here(self.run(completer));
    }

    fn validators(&self) -> RevalidationFields<'_> {
        match &self.stale_hit {
            // A partial body is not confirmed: it may yet fail.
            Some(base) if !matches!(base.body, HitBody::Partial(_)) => {
                revalidation_fields(&base.meta.fields)
            }
            _ => RevalidationFields::default(),
        }
    }

    async fn run(mut self, completer: FetchCompleter) {
        let mut purges = self.store.purge_count();
        let Some((mut answered, mut times)) = self.send_request(&completer).await else {
            return;
        };
        if is_not_modified(&answered) && self.stale_hit.is_some() {
            // A request that joins later could come after a purge that the check below misses.
            completer.close_to_joiners();
            match self.revalidate(&answered, times, purges, &completer) {
                Some(hit) => {
                    let lead = LeaderResult {
                        status: Some(Status::NOT_MODIFIED),
                        ..LeaderResult::default()
                    };
                    return completer.complete(FetchOutcome::Revalidated(hit), lead);
                }
                // The 304 is about another response or about a purged one: repeat without a
                // condition.
                None => {
                    completer.prepare_retry();
                    purges = self.store.purge_count();
                    match self.send_request(&completer).await {
                        Some(asked) => (answered, times) = asked,
                        None => return,
                    }
                }
            }
        }
        match answered {
            Ok(Reply::Response(response)) => match self.slice.take() {
                Some(slice) => {
                    slice
                        .store_or_refuse(self, *response, times, purges, completer)
                        .await;
                }
                None => {
                    self.store_or_refuse(*response, times, purges, completer)
                        .await;
                }
            },
            Ok(reply) => {
                if matches!(reply, Reply::Redirect(_)) {
                    self.mark_uncacheable(&self.key);
                    if self.slice.is_some() {
                        self.mark_uncacheable(&slices::unsliceable_key(&self.key));
                    }
                }
                complete_unstored(completer, Ok(reply), None, None);
            }
            Err(fault) => {
                self.shared.counters.fetch_failures.increment();
                (self.shared.fetches).renew_uncacheable(&self.key, clock::now());
                let throttle = &self.shared.log_throttle;
                if completer.is_background()
                    && let Some(count) = throttle.admit_line(&fault.cause, clock::now())
                {
                    let (target, suffix) = (self.client.head.target(), suppressed_suffix(count));
                    log::warn!("cache: cannot revalidate {target}: {}{suffix}", fault.cause);
                }
                complete_failed(completer, fault);
            }
        }
    }

    /// Sends the request. Returns `None` when no waiter is left.
    async fn send_request(
        &self,
        completer: &FetchCompleter,
    ) -> Option<(Result<Reply, Fault>, FetchTimes)> {
        let request_time = clock::wall_time();
        let request = backend_request::build_request(
            &self.shared.rules,
            &self.client,
            self.validators(),
            self.slice.as_ref().map(SliceFetch::byte_range),
        );
        let answered = match request {
            Ok(request) => tokio::select! {
                biased;
                answered = self.shared.backend.handle(request).wait_for_reply() => answered,
                () = completer.wait_until_abandoned() => return None,
            },
            Err(fault) => Err(fault),
        };
        let times = FetchTimes {
            request_time,
            response_time: clock::wall_time(),
        };
        Some((answered, times))
    }

    /// Lets requests for `key` not wait for each other for a while.
    fn mark_uncacheable(&self, key: &ObjectKey) {
        self.shared.fetches.mark_uncacheable(key, clock::now());
    }

    /// Returns the stored response after a 304. If the 304 is about another response, or the object
    /// was purged or outdated meanwhile, removes the object and returns `None`.
    fn revalidate(
        &mut self,
        answered: &Result<Reply, Fault>,
        times: FetchTimes,
        purges: u64,
        completer: &FetchCompleter,
    ) -> Option<Hit> {
        let base = self.stale_hit.take()?;
        let is_out = completer.is_outdated() || self.store.is_purged_since(purges, &base.meta);
        if !is_out
            && let Ok(Reply::Response(response)) = answered
            && is_304_for(&base.meta.fields, &response.fields)
        {
            return Some(self.freshened_hit(&base, &response.fields, times));
        }
        self.store.remove_hit(&base);
        None
    }

    /// Applies a 304 to the stored response.
    fn freshened_hit(&self, base: &Hit, of_304: &FieldBlock, times: FetchTimes) -> Hit {
        let mut fields = freshen(&base.meta.fields, of_304, times.response_time);
        self.shared.rules.remove_tag_fields(&mut fields);
        // The internal fields of a 304 are instructions for its own request, not for later clients.
        remove_internal_fields(&mut fields);
        // These fields are not stored, but count for the lifetime.
        let mut judged = fields.clone();
        for name in ["age", "x-accel-expires", "surrogate-control"] {
            if let Some(value) = of_304.get(name) {
                let pushed = judged.push(name, value);
                debug_assert!(pushed.is_ok(), "it was a field before");
            }
        }
        let lifetime = self.judge_storing(base.meta.status, &judged, times);
        let mut meta = ObjectMeta::clone(&base.meta);
        meta.fields = fields.freeze();
        let tags = self.shared.rules.tags_of(of_304);
        if !tags.is_empty() {
            meta.tags = tags;
        }
        let meta = match lifetime {
            Ok(lifetime) => {
                meta.lifetime = lifetime;
                meta.request_time = times.request_time;
                meta.response_time = times.response_time;
                self.store.freshen(base, meta)
            }
            // The response serves this request. The stored object is removed, unless only this
            // request's own fields (`Authorization`) forbid storing: then others keep it as it was.
            Err(reason) => {
                if is_likely_uncacheable(Some(reason)) {
                    self.store.remove_hit(base);
                }
                Arc::new(meta)
            }
        };
        Hit {
            meta,
            body: base.body.clone(),
        }
    }

    fn judge_storing(
        &self,
        status: Status,
        fields: &FieldBlock,
        times: FetchTimes,
    ) -> Result<Lifetime, StoreRefusal> {
        let exchange = OriginExchange {
            request: &self.client.head,
            is_authenticated: self.client.is_authenticated(),
            status,
            fields,
            request_time: times.request_time,
            response_time: times.response_time,
        };
        check_storable(&exchange, &self.shared.rules.policy)
    }

    /// Stores the response, or leaves it to the leader.
    async fn store_or_refuse(
        self,
        response: Response,
        times: FetchTimes,
        purges: u64,
        completer: FetchCompleter,
    ) {
        let is_error = is_backend_failure(response.status);
        if is_error && self.stale_hit.is_some() {
            // The stored response stays: it may be served stale for longer.
            return complete_unstored_response(completer, response, "error");
        }
        let judged = self.judge_storing(response.status, &response.fields, times);
        let mut refused = match judged {
            Err(reason) => Some(reason.as_str()),
            Ok(_) if completer.is_outdated() => Some("outdated"),
            Ok(_) => unstorable_reason(&response),
        };
        if let (None, Ok(lifetime)) = (refused, judged) {
            let meta = self.object_meta(&response, &lifetime, times);
            let declared = response.body.length();
            let begun = self.store.begin_object(&self.key, meta, declared);
            // Checked after `begin_object`: later purges find the partial object.
            if let Some((writer, partial)) = begun {
                if !completer.is_outdated() && !self.store.is_purged_since(purges, &partial.meta) {
                    self.evict_replaced(&partial.meta);
                    let body = complete_stored(completer, response, partial).await;
                    return self.write_body(body, writer).await;
                }
                refused = Some("outdated");
            }
        }
        let reason = refused.unwrap_or("store");
        // A failure of the back end tells nothing about the resource.
        if is_likely_uncacheable(judged.err()) && !is_error {
            self.mark_uncacheable(&self.key);
            if let Some(base) = &self.stale_hit {
                self.store.remove_hit(base);
            }
        }
        complete_unstored_response(completer, response, reason);
    }

    fn object_meta(
        &self,
        response: &Response,
        lifetime: &Lifetime,
        times: FetchTimes,
    ) -> ObjectMeta {
        let rules = &self.shared.rules;
        let mut fields = storable_fields(&response.fields, times.response_time);
        rules.remove_tag_fields(&mut fields);
        remove_internal_fields(&mut fields);
        if response.status == Status::OK && !fields.contains("accept-ranges") {
            fields.push_static("Accept-Ranges", "bytes");
        }
        let vary_names = match parse_vary(&response.fields) {
            VaryFields::Names(names) => names,
            // Is not stored.
            VaryFields::Any => Vec::new(),
        };
        ObjectMeta {
            key: Arc::clone(&self.key.text),
            status: response.status,
            fields: fields.freeze(),
            lifetime: *lifetime,
            request_time: times.request_time,
            response_time: times.response_time,
            variant: match vary_names.is_empty() {
                true => Vec::new(),
                false => variant_key(&self.client.head, &vary_names),
            },
            vary_names,
            tags: rules.tags_of(&response.fields),
            length: 0,
            slice_set: None,
        }
    }

    /// Removes what the new response does not replace by its key alone: the stale response, and
    /// variants selected by another set of fields than its `Vary`, which decides from now on (RFC
    /// 9111 §4.1).
    fn evict_replaced(&self, new: &ObjectMeta) {
        if let Some(base) = &self.stale_hit
            && !base.meta.is_same_variant(new)
        {
            self.store.remove_hit(base);
        }
        // Slices do not replace a whole response: a back end may leave `Vary` out of partial
        // responses.
        let is_other = |meta: &ObjectMeta| {
            meta.vary_names != new.vary_names
                && (new.slice_set.is_none() || meta.slice_set.is_some())
        };
        for _ in 0..MAX_REPLACED_VARIANTS {
            let Some(other) = self.store.find(&self.key, &mut |meta| is_other(meta)) else {
                break;
            };
            self.discard_hit(&other);
        }
    }

    /// Removes a found object. Current readers of a partial one continue.
    fn discard_hit(&self, hit: &Hit) {
        match &hit.body {
            HitBody::Partial(partial) => partial.discard(),
            HitBody::Memory(_) | HitBody::Disk(_) => self.store.remove_hit(hit),
        }
    }

    async fn write_body(&self, body: Body, mut writer: ObjectWriter) {
        let counts = &self.shared.counters;
        let key = writer.key.clone();
        let filled = match body {
            Body::Bytes(bytes) => {
                writer.push(&bytes);
                writer.wait_for_capacity().await;
                Ok(true)
            }
            Body::Stream(stream) => copy_stream(stream, &mut writer).await,
            // `unstorable_reason` has refused the other kinds.
            _ => Ok(true),
        };
        match filled {
            Ok(true) => match writer.finish().await {
                true => counts.stored.increment(),
                // Most likely too large: requests need not wait for the next one.
                false => self.mark_uncacheable(&key),
            },
            // No reader is left, and the object cannot be stored.
            Ok(false) => drop(writer),
            Err(fault) => {
                counts.fetch_failures.increment();
                log::debug!("cache: response not stored: aborted: {}", fault.cause);
                writer.abort(&fault);
            }
        }
    }
}

/// Variants removed at once when a resource changes its `Vary`. Later responses remove the rest.
const MAX_REPLACED_VARIANTS: usize = 64;

/// Copies a body into the store. Returns `false` once the object is not needed any more.
async fn copy_stream(
    mut stream: Box<dyn BodyStream>,
    writer: &mut ObjectWriter,
) -> Result<bool, Fault> {
    let declared = stream.length();
    let mut received = 0_u64;
    let mismatch = |received: u64, declared: u64| {
        let cause = format!("body has {received} bytes, Content-Length says {declared}");
        Err(Fault::new(FaultKind::BackendProtocolError, cause))
    };
    loop {
        let next = tokio::select! {
            biased;
            next = std::future::poll_fn(|cx| stream.poll_chunk(cx)) => next,
            () = writer.wait_until_unneeded() => return Ok(false),
        };
        let Some(chunk) = next.transpose()? else {
            break;
        };
        received += chunk.len() as u64;
        if let Some(declared) = declared.filter(|&declared| received > declared) {
            return mismatch(received, declared);
        }
        writer.push(&chunk);
        writer.wait_for_capacity().await;
    }
    match declared {
        Some(length) if length != received => mismatch(received, length),
        _ => Ok(true),
    }
}

fn is_not_modified(answered: &Result<Reply, Fault>) -> bool {
    matches!(answered, Ok(Reply::Response(response)) if response.status == Status::NOT_MODIFIED)
}

/// Whether the status is a back-end failure (RFC 5861 §4).
pub(crate) fn is_backend_failure(status: Status) -> bool {
    matches!(status.code(), 500 | 502 | 503 | 504)
}

/// Why a response cannot be stored although its fields allow it.
fn unstorable_reason(response: &Response) -> Option<&'static str> {
    match &response.body {
        Body::Empty | Body::Bytes(_) | Body::Stream(_) => {}
        Body::File(_) => return Some("file"),
        Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_) => return Some("body"),
    }
    if response.max_rate.is_some() {
        return Some("limit-rate");
    }
    // GRIP instructions are for this request's client only.
    if response.has_grip() {
        return Some("hub");
    }
    // An event stream never ends.
    let content_type = response.fields.get("content-type").unwrap_or_default();
    let start = content_type.get(..EVENT_STREAM.len());
    start
        .is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM))
        .then_some("event-stream")
}

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Whether the next response for the resource is likely not storable either. A refusal that only
/// this request caused tells nothing about others.
pub(crate) fn is_likely_uncacheable(reason: Option<StoreRefusal>) -> bool {
    !matches!(
        reason,
        Some(StoreRefusal::Authorization | StoreRefusal::RequestNoStore | StoreRefusal::Method)
    )
}

/// Publishes that the response is being stored, and returns its body, to be copied into the store.
async fn complete_stored(
    completer: FetchCompleter,
    response: Response,
    partial: Arc<PartialObject>,
) -> Body {
    let whole = match &response.body {
        Body::Bytes(bytes) => Some(bytes.clone()),
        Body::Empty => Some(Bytes::new()),
        _ => None,
    };
    let lead = LeaderResult {
        timing: response.timing,
        status: Some(response.status),
        ..LeaderResult::default()
    };
    completer.complete(FetchOutcome::Stored { partial, whole }, lead);
    // Lets the waiters on this loop begin to read before the body can fail.
    loops::yield_now().await;
    response.body
}

fn complete_unstored_response(completer: FetchCompleter, response: Response, detail: &'static str) {
    let status = response.status;
    complete_unstored(completer, Ok(response.into()), Some(status), Some(detail));
}

fn complete_unstored(
    completer: FetchCompleter,
    reply: Result<Reply, Fault>,
    status: Option<Status>,
    detail: Option<&'static str>,
) {
    let lead = LeaderResult {
        reply: Some(reply),
        timing: RequestTiming::default(),
        status,
        detail,
    };
    let is_error = status.is_some_and(is_backend_failure);
    completer.complete(FetchOutcome::NotStored { is_error }, lead);
}

fn complete_failed(completer: FetchCompleter, fault: Fault) {
    let told = FetchOutcome::Failed(fault.kind, fault.cause.clone().into_owned());
    let lead = LeaderResult {
        reply: Some(Err(fault)),
        ..LeaderResult::default()
    };
    completer.complete(told, lead);
}
