//! Requests that go past the cache, and what it learns from their answers all the same.
//!
//! Called by `handler` for what is not for the cache, and by `journey` for what could not wait or is not
//! stored. The handler behind gets the request as it is, and its answer keeps its body. What must stay
//! true: a write that succeeded takes out what it made worthless before the client hears of it
//! (RFC 9111 §4.4); nothing is stored here.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Fault, ForwardedInfo, Handling, Mount, Reply, Request, Response};
use penstock_http::caching::{
    CacheStatus, OriginExchange, check_storable, invalidated_targets, invalidates_stored,
};
use penstock_http::{Method, RequestHead};
use penstock_runtime::clock;

use super::Shared;
use crate::rules::Asker;
use crate::store::{Key, Rule};

/// What is told of a request whose resource was not stored lately.
pub(super) const MARKED: &str = "not-stored-lately";

/// What is done when the answer is there.
#[derive(Debug)]
pub(super) struct After {
    shared: Arc<Shared>,
    head: Arc<RequestHead>,
    scheme: &'static str,
    is_trusted: bool,
    forwarded: Option<Arc<ForwardedInfo>>,
    mount: Mount,
    told: CacheStatus<'static>,
    /// When it was asked, since the epoch.
    asked_at: Duration,
    /// A key to be unmarked when the answer could have been stored.
    marked: Option<Key>,
}

/// Passes a request on.
pub(super) fn pass(shared: &Arc<Shared>, request: Request, told: CacheStatus<'static>) -> Handling {
    pass_after(After::new(shared, &request, told), request)
}

/// Passes on a request for a key that is marked as not stored.
pub(super) fn pass_marked(
    shared: &Arc<Shared>,
    request: Request,
    told: CacheStatus<'static>,
    key: Key,
) -> Handling {
    let after = After::new(shared, &request, told);
    pass_after(after.unmarking(Some(key)), request)
}

fn pass_after(after: After, request: Request) -> Handling {
    match after.shared.inner.handle(request) {
        Handling::Now(answered) => Handling::Now(after.finish(answered)),
        Handling::Later(work) => Handling::Later(Box::pin(async move { after.finish(work.await) })),
    }
}

impl After {
    pub(super) fn new(shared: &Arc<Shared>, request: &Request, told: CacheStatus<'static>) -> Self {
        shared.counts.passed.increment();
        Self {
            shared: Arc::clone(shared),
            head: Arc::clone(&request.head),
            scheme: request.scheme(),
            is_trusted: request.is_from_proxy(),
            forwarded: request.forwarded.clone(),
            mount: request.mount.clone(),
            told,
            asked_at: clock::wall_at(request.arrived),
            marked: None,
        }
    }

    /// Ends the mark of a key when the answer could have been stored.
    pub(super) fn unmarking(self, marked: Option<Key>) -> Self {
        Self { marked, ..self }
    }

    pub(super) fn finish(self, answered: Result<Reply, Fault>) -> Result<Reply, Fault> {
        let mut answered = answered?;
        match &mut answered {
            Reply::Response(response) => self.see(response),
            // The response is still to come, but the write is done.
            Reply::Redirect(redirect) if !self.head.method().is_safe() => {
                self.invalidate(&redirect.fields);
            }
            Reply::Redirect(_) | Reply::Pass(_) => {}
        }
        Ok(answered)
    }

    fn see(&self, response: &mut Response) {
        if invalidates_stored(self.head.method(), response.status) {
            self.invalidate(&response.fields);
        }
        if let Some(key) = &self.marked
            && self.head.method() == Method::Get
        {
            let exchange = OriginExchange {
                request: &self.head,
                status: response.status,
                fields: &response.fields,
                request_time: self.asked_at,
                response_time: clock::wall(),
            };
            if check_storable(&exchange, &self.shared.rules.policy).is_ok() {
                self.shared.flights.unmark(key);
            }
        }
        self.shared.tell(response, &self.told);
    }

    /// Takes out what a write made worthless.
    fn invalidate(&self, fields: &penstock_http::FieldBlock) {
        let shared = &self.shared;
        let asker = Asker {
            head: &self.head,
            scheme: self.scheme,
            is_trusted: self.is_trusted,
            told: self.forwarded.as_deref(),
            mount: &self.mount,
        };
        let has_parts = shared.rules.has_parts(&asker);
        let told_host = asker.told_host();
        let targets = invalidated_targets(&self.head, self.scheme, told_host, fields);
        let mut below = Vec::new();
        // An application that knows its mount names targets with it, keys have none.
        for target in targets.iter().skip(1).filter(|_| !self.mount.is_root()) {
            let stripped = self.mount.strip(target);
            below.extend(stripped.map(|rest| match rest.starts_with('/') {
                true => rest.to_owned(),
                false => format!("/{rest}"),
            }));
        }
        for target in targets.into_iter().chain(below) {
            let mut text = Vec::new();
            shared.rules.write_key_of(&asker, &target, &mut text);
            let key = Key::new(&text);
            shared.flights.outdate(&key);
            // In all stores: one that is out now may come back with what it had.
            for store in shared.shelf.stores() {
                store.forget(&key);
            }
            if has_parts {
                let mut url = Vec::new();
                shared.rules.write_url_of(&asker, &target, &mut url);
                shared.flights.outdate_url(&url);
                if let Ok(url) = String::from_utf8(url) {
                    for store in shared.shelf.stores() {
                        store.purge_soon(Rule::Url(url.clone()));
                    }
                }
            }
        }
    }
}
