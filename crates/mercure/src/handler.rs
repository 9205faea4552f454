//! The handler of a route with `mercure`, and the Mercure hubs that outlive a reload.
//!
//! `penstock`'s wiring makes a [`MercureHandler`] for each such route through [`MercureHubs`]. GET
//! subscribes (`subscribe`), POST publishes (`publish`), and `/subscriptions` below the route lists
//! the subscribers (`subscriptions`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use penstock_config::{KeySetSource, PathPattern, RouteMercure};
use penstock_exchange::{
    Body, Fault, Handler, HandlerName, HandlerProgress, Reply, Request, Response,
};
use penstock_http::{Method, RequestHead, Status};
use penstock_hub::Hub;
use penstock_tokens::SharedKeySet;

use crate::access::MercureAccess;
use crate::broker::Broker;
use crate::{publish, responses, subscribe, subscriptions_api};

/// The Mercure hubs of a process, by route: what they know outlives a reload.
#[derive(Debug)]
pub struct MercureHubs {
    hub: Hub,
    /// Those that some handler or subscriber still uses. Held for a look only.
    brokers: Mutex<HashMap<String, Weak<Broker>>>,
}

/// Answers the requests of one route.
#[derive(Debug, Clone)]
pub struct MercureHandler {
    pub(crate) shared: Arc<MercureShared>,
    /// What the paths of its requests begin with.
    base_path: Arc<str>,
}

#[derive(Debug)]
pub(crate) struct MercureShared {
    pub(crate) broker: Arc<Broker>,
    pub(crate) access: MercureAccess,
    pub(crate) heartbeat_interval: Option<Duration>,
    pub(crate) heartbeat_event: Option<Box<str>>,
    pub(crate) has_subscriptions_api: bool,
}

impl MercureHubs {
    /// None yet.
    #[must_use]
    pub fn new(hub: Hub) -> Self {
        Self {
            hub,
            brokers: Mutex::default(),
        }
    }

    /// The handler of the route that is called `route`, which goes on where the last one of that
    /// name stands, as long as that is in use. `set_of` gives the keys of a set (JWKS).
    ///
    /// # Errors
    /// Which key cannot be used, and why.
    pub fn handler_for_route(
        &self,
        route: &str,
        settings: &RouteMercure,
        set_of: impl Fn(&KeySetSource) -> Arc<SharedKeySet>,
    ) -> Result<MercureHandler, String> {
        let access = MercureAccess::new(settings, set_of)?;
        let mut brokers = self.brokers.lock().unwrap_or_else(PoisonError::into_inner);
        brokers.retain(|_, broker| broker.strong_count() > 0);
        let known = brokers.get(route).and_then(Weak::upgrade);
        let broker = known.unwrap_or_else(|| {
            let broker = Broker::new(self.hub.clone(), route);
            brokers.insert(route.to_owned(), Arc::downgrade(&broker));
            broker
        });
        Ok(MercureHandler::with_broker(broker, access, settings))
    }
}

impl MercureHubs {
    /// The hubs in use, by route.
    pub(crate) fn brokers(&self) -> Vec<(String, Arc<Broker>)> {
        let brokers = self.brokers.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = brokers
            .iter()
            .filter_map(|(route, broker)| Some((route.clone(), broker.upgrade()?)));
        in_use.collect()
    }

    /// The hub of a route.
    pub(crate) fn broker_of(&self, route: &str) -> Result<Arc<Broker>, String> {
        let brokers = self.brokers.lock().unwrap_or_else(PoisonError::into_inner);
        let broker = brokers.get(route).and_then(Weak::upgrade);
        broker.ok_or_else(|| format!("there is no Mercure hub at {route} here"))
    }
}

impl MercureHandler {
    /// The handler for a route with such paths: `subscriptions` in the fixed part of the path is
    /// not the subscriptions API.
    #[must_use]
    pub fn with_base_path(self, path: &PathPattern) -> Self {
        let base = match path {
            PathPattern::Exact(base) | PathPattern::Prefix(base) => base.trim_end_matches('/'),
            PathPattern::Suffix(_) | PathPattern::Regex(_) => "",
        };
        let base = base.into();
        Self {
            base_path: base,
            ..self
        }
    }

    fn with_broker(broker: Arc<Broker>, access: MercureAccess, settings: &RouteMercure) -> Self {
        Self {
            shared: Arc::new(MercureShared {
                broker,
                access,
                heartbeat_interval: settings.heartbeat_interval,
                heartbeat_event: settings.heartbeat_event.as_deref().map(Box::from),
                has_subscriptions_api: settings.subscriptions,
            }),
            base_path: "".into(),
        }
    }

    fn publish(&self, request: Request) -> HandlerProgress {
        let shared = Arc::clone(&self.shared);
        let grants = match publish::authorize(&shared, &request.head) {
            Ok(grants) => grants,
            Err(refused) => {
                return HandlerProgress::Ready(shared.finish_response(&request.head, Ok(*refused)));
            }
        };
        HandlerProgress::Pending(Box::pin(async move {
            let head = Arc::clone(&request.head);
            let answer = publish::handle_publish(Arc::clone(&shared), grants, request).await;
            shared.finish_response(&head, answer)
        }))
    }
}

impl Handler for MercureHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let shared = &self.shared;
        let head = Arc::clone(&request.head);
        let below =
            subscriptions_api::path_below_subscriptions(head.target_path_query(), &self.base_path);
        let answer = match (head.method(), below) {
            (Method::Options, _) => Ok(Response::new(Status::NO_CONTENT, Body::Empty)),
            (Method::Get | Method::Head, Some(below)) if shared.has_subscriptions_api => {
                subscriptions_api::handle_subscriptions(shared, &request, below)
            }
            (_, Some(_)) if shared.has_subscriptions_api => {
                Ok(responses::method_not_allowed("GET, HEAD, OPTIONS"))
            }
            (_, Some(_)) => Ok(responses::text_line_response(
                Status::NOT_FOUND,
                "Not Found",
            )),
            (Method::Get | Method::Head, None) => subscribe::handle_subscribe(shared, &request),
            (Method::Post, None) => return self.publish(request),
            (_, None) => Ok(responses::method_not_allowed("GET, HEAD, POST, OPTIONS")),
        };
        HandlerProgress::Ready(shared.finish_response(&head, answer))
    }
}

impl MercureShared {
    fn finish_response(
        &self,
        head: &RequestHead,
        answer: Result<Response, Fault>,
    ) -> Result<Reply, Fault> {
        let mut response = answer?;
        self.access.add_cors_headers(head, &mut response.fields);
        response.timing.handler = Some(HandlerName::Component("mercure"));
        Ok(response.into())
    }
}
