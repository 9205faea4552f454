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

use penstock_exchange::{Fault, HandlerProgress, Reply, Request, Response};
use penstock_http::Method;
use penstock_http::caching::{
    CacheStatus, OriginExchange, check_storable, invalidated_targets, invalidates_stored,
};
use penstock_runtime::clock;

use super::SharedCache;
use crate::backend_request::ClientRequest;
use crate::store::{ObjectKey, PurgeRule};

/// The `Cache-Status` detail for a key that is marked as uncacheable.
pub(super) const RECENTLY_UNCACHEABLE_DETAIL: &str = "not-stored-lately";

/// Handles the response to a bypassed request.
#[derive(Debug)]
pub(super) struct BypassedRequest {
    pub(super) shared: Arc<SharedCache>,
    pub(super) client: ClientRequest,
    pub(super) cache_status: CacheStatus<'static>,
    /// The mark of this key ends if the response could have been stored.
    pub(super) uncacheable_key: Option<ObjectKey>,
}

/// Sends a request past the cache, with `uncacheable_key` because that is marked.
pub(super) fn bypass(
    shared: &Arc<SharedCache>,
    request: Request,
    cache_status: CacheStatus<'static>,
    uncacheable_key: Option<ObjectKey>,
) -> HandlerProgress {
    shared.counters.bypassed.increment();
    let bypassed = BypassedRequest {
        shared: Arc::clone(shared),
        client: ClientRequest::from_request(&request),
        cache_status,
        uncacheable_key,
    };
    match shared.backend.handle(request) {
        HandlerProgress::Ready(reply) => HandlerProgress::Ready(bypassed.handle_reply(reply)),
        HandlerProgress::Pending(work) => {
            HandlerProgress::Pending(Box::pin(async move { bypassed.handle_reply(work.await) }))
        }
    }
}

impl BypassedRequest {
    pub(super) fn handle_reply(self, answered: Result<Reply, Fault>) -> Result<Reply, Fault> {
        let mut answered = answered?;
        match &mut answered {
            Reply::Response(response) => self.observe_response(response),
            // The write is done, though the response is still to come.
            Reply::Redirect(redirect) if !self.client.head.method().is_safe() => {
                self.invalidate(&redirect.fields);
            }
            Reply::Redirect(_) | Reply::Pass(_) => {}
        }
        Ok(answered)
    }

    fn observe_response(&self, response: &mut Response) {
        if invalidates_stored(self.client.head.method(), response.status) {
            self.invalidate(&response.fields);
        }
        if let Some(key) = &self.uncacheable_key
            && self.client.head.method() == Method::Get
        {
            let exchange = OriginExchange {
                request: &self.client.head,
                is_authenticated: self.client.is_authenticated(),
                status: response.status,
                fields: &response.fields,
                request_time: clock::wall_time_at(self.client.origin.arrived_at),
                response_time: clock::wall_time(),
            };
            if check_storable(&exchange, &self.shared.rules.policy).is_ok() {
                self.shared.fetches.clear_uncacheable(key);
            }
        }
        self.shared.annotate_response(response, &self.cache_status);
    }

    fn invalidate(&self, fields: &penstock_http::FieldBlock) {
        let shared = &self.shared;
        let key_source = self.client.key_source();
        let has_parts = shared.rules.has_extra_key_parts(&key_source);
        let told_host = key_source.forwarded_host();
        let targets = invalidated_targets(&self.client.head, key_source.scheme, told_host, fields);
        let mut below = Vec::new();
        // An application that knows its mount includes it in targets; keys do not.
        for target in targets
            .iter()
            .skip(1)
            .filter(|_| !key_source.mount.is_root())
        {
            let stripped = key_source.mount.strip_from(target);
            below.extend(stripped.map(|rest| match rest.starts_with('/') {
                true => rest.to_owned(),
                false => format!("/{rest}"),
            }));
        }
        for target in targets.into_iter().chain(below) {
            let mut text = Vec::new();
            shared.rules.write_key_for(&key_source, &target, &mut text);
            let key = ObjectKey::new(&text);
            shared.fetches.mark_outdated(&key);
            // In all stores: one that is out of service may return with its old objects.
            for store in shared.stores.stores() {
                store.remove_key(&key);
            }
            if has_parts {
                let mut url = Vec::new();
                shared.rules.write_url_for(&key_source, &target, &mut url);
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
