//! Requests that bypass the cache, and what their responses change in it.
//!
//! Called by `handler` for requests that may not use the cache, and by `lookup` for requests
//! without a storable response or without time to wait. The back end gets the request unchanged,
//! and its response keeps its body.
//!
//! # Invariants
//!
//! - A successful write removes the objects that it invalidates before the client gets the response
//!   (RFC 9111 §4.4).
//! - Nothing is stored here.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Fault, ForwardedInfo, HandlerProgress, Mount, Reply, Request, Response};
use penstock_http::caching::{
    CacheStatus, OriginExchange, check_storable, invalidated_targets, invalidates_stored,
};
use penstock_http::{Method, RequestHead};
use penstock_runtime::clock;

use super::SharedCache;
use crate::route_rules::KeySource;
use crate::store::{ObjectKey, PurgeRule};

/// The `Cache-Status` detail for a key that is marked as uncacheable.
pub(super) const RECENTLY_UNCACHEABLE: &str = "not-stored-lately";

/// Handles the response to a bypassed request.
#[derive(Debug)]
pub(super) struct BypassedRequest {
    shared: Arc<SharedCache>,
    head: Arc<RequestHead>,
    scheme: &'static str,
    is_trusted: bool,
    forwarded: Option<Arc<ForwardedInfo>>,
    mount: Mount,
    cache_status: CacheStatus<'static>,
    /// When the request was sent, since the epoch.
    sent_at: Duration,
    /// The mark of this key ends if the response could have been stored.
    uncacheable_key: Option<ObjectKey>,
}

pub(super) fn bypass(
    shared: &Arc<SharedCache>,
    request: Request,
    told: CacheStatus<'static>,
) -> HandlerProgress {
    call_backend(BypassedRequest::new(shared, &request, told), request)
}

/// Sends a request for a key marked as uncacheable past the cache.
pub(super) fn bypass_uncacheable(
    shared: &Arc<SharedCache>,
    request: Request,
    told: CacheStatus<'static>,
    key: ObjectKey,
) -> HandlerProgress {
    let after = BypassedRequest::new(shared, &request, told);
    call_backend(after.with_uncacheable_key(Some(key)), request)
}

fn call_backend(after: BypassedRequest, request: Request) -> HandlerProgress {
    match after.shared.backend.handle(request) {
        HandlerProgress::Ready(answered) => HandlerProgress::Ready(after.finish(answered)),
        HandlerProgress::Pending(work) => {
            HandlerProgress::Pending(Box::pin(async move { after.finish(work.await) }))
        }
    }
}

impl BypassedRequest {
    pub(super) fn new(
        shared: &Arc<SharedCache>,
        request: &Request,
        told: CacheStatus<'static>,
    ) -> Self {
        shared.counters.bypassed.increment();
        Self {
            shared: Arc::clone(shared),
            head: Arc::clone(&request.head),
            scheme: request.scheme(),
            is_trusted: request.is_from_trusted_proxy(),
            forwarded: request.forwarded.clone(),
            mount: request.mount.clone(),
            cache_status: told,
            sent_at: clock::wall_at(request.arrived),
            uncacheable_key: None,
        }
    }

    /// Sets the key to clear if the response could have been stored.
    pub(super) fn with_uncacheable_key(self, marked: Option<ObjectKey>) -> Self {
        Self {
            uncacheable_key: marked,
            ..self
        }
    }

    pub(super) fn finish(self, answered: Result<Reply, Fault>) -> Result<Reply, Fault> {
        let mut answered = answered?;
        match &mut answered {
            Reply::Response(response) => self.observe_response(response),
            // The write is done, though the response is still to come.
            Reply::Redirect(redirect) if !self.head.method().is_safe() => {
                self.invalidate(&redirect.fields);
            }
            Reply::Redirect(_) | Reply::Pass(_) => {}
        }
        Ok(answered)
    }

    fn observe_response(&self, response: &mut Response) {
        if invalidates_stored(self.head.method(), response.status) {
            self.invalidate(&response.fields);
        }
        if let Some(key) = &self.uncacheable_key
            && self.head.method() == Method::Get
        {
            let exchange = OriginExchange {
                request: &self.head,
                status: response.status,
                fields: &response.fields,
                request_time: self.sent_at,
                response_time: clock::wall(),
            };
            if check_storable(&exchange, &self.shared.rules.policy).is_ok() {
                self.shared.fetches.clear_uncacheable(key);
            }
        }
        self.shared.annotate_response(response, &self.cache_status);
    }

    fn invalidate(&self, fields: &penstock_http::FieldBlock) {
        let shared = &self.shared;
        let asker = KeySource {
            head: &self.head,
            scheme: self.scheme,
            is_trusted: self.is_trusted,
            forwarded: self.forwarded.as_deref(),
            mount: &self.mount,
        };
        let has_parts = shared.rules.has_extra_key_parts(&asker);
        let told_host = asker.forwarded_host();
        let targets = invalidated_targets(&self.head, self.scheme, told_host, fields);
        let mut below = Vec::new();
        // An application that knows its mount includes it in targets; keys do not.
        for target in targets.iter().skip(1).filter(|_| !self.mount.is_root()) {
            let stripped = self.mount.strip_from(target);
            below.extend(stripped.map(|rest| match rest.starts_with('/') {
                true => rest.to_owned(),
                false => format!("/{rest}"),
            }));
        }
        for target in targets.into_iter().chain(below) {
            let mut text = Vec::new();
            shared.rules.write_key_for(&asker, &target, &mut text);
            let key = ObjectKey::new(&text);
            shared.fetches.mark_outdated(&key);
            // In all stores: one that is out of service may return with its old objects.
            for store in shared.stores.stores() {
                store.remove_key(&key);
            }
            if has_parts {
                let mut url = Vec::new();
                shared.rules.write_url_for(&asker, &target, &mut url);
                shared.fetches.mark_url_outdated(&url);
                if let Ok(url) = String::from_utf8(url) {
                    for store in shared.stores.stores() {
                        store.purge_in_background(PurgeRule::Url(url.clone()));
                    }
                }
            }
        }
    }
}
