//! How fast the responses of a route are sent: `response_rate`. Around the handlers that respond;
//! `edge` sends at the rate, with one timer for each response that waits.
//!
//! # Invariants
//! - The smaller of this rate and that of a back end counts.

use std::sync::Arc;

use penstock_config::{RateKey, ResponseRate};
use penstock_exchange::{BodyRate, Fault, Handler, HandlerProgress, Reply, Request, SharedRate};

use crate::key_counts::KeyCounts;
use crate::rate_limit::request_key;

/// A handler whose responses have a rate. It lends none that are in memory: those have no rate.
#[derive(Debug)]
pub struct ResponseRateHandler {
    inner: Arc<dyn Handler>,
    limits: RateLimits,
}

/// The rates of a route.
#[derive(Debug, Clone)]
struct RateLimits {
    rule: ResponseRate,
    /// The responses in progress of each client.
    clients: Arc<KeyCounts>,
}

impl ResponseRateHandler {
    /// Gives the responses of some handlers the rates of a route: they share its clients, whose
    /// responses in progress `clients` has.
    pub fn wrap_all(
        rule: &ResponseRate,
        clients: Arc<KeyCounts>,
        handlers: &mut [Arc<dyn Handler>],
    ) {
        let limits = RateLimits {
            rule: rule.clone(),
            clients,
        };
        for handler in handlers {
            *handler = Arc::new(Self {
                inner: Arc::clone(handler),
                limits: limits.clone(),
            });
        }
    }
}

impl Handler for ResponseRateHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let is_shared = self.limits.rule.client_rate.is_some();
        let client = is_shared.then(|| request_key(&[RateKey::Client], &request));
        let (client, limits) = (client.flatten(), self.limits.clone());
        match self.inner.handle(request) {
            HandlerProgress::Ready(reply) => HandlerProgress::Ready(limits.apply(reply, client)),
            HandlerProgress::Pending(work) => {
                HandlerProgress::Pending(Box::pin(async move { limits.apply(work.await, client) }))
            }
        }
    }
}

impl RateLimits {
    /// Sets the rate of a response to `client`.
    fn apply<K: AsRef<[u8]>>(
        &self,
        reply: Result<Reply, Fault>,
        client: Option<K>,
    ) -> Result<Reply, Fault> {
        let mut reply = reply?;
        let place = match &mut reply {
            Reply::Response(response) => &mut response.max_rate,
            Reply::Redirect(redirect) => &mut redirect.max_rate,
            Reply::Pass(_) => return Ok(reply),
        };
        let own = place.take().and_then(|rate| rate.of_response);
        let rule = &self.rule;
        // A back end that sets a smaller rate of its own means it from the first byte.
        let has_smaller = own.is_some_and(|own| rule.rate.is_none_or(|rate| own <= rate));
        let shared = rule.client_rate.zip(client);
        let shared = shared.and_then(|(bytes_per_second, client)| {
            let sharer = self.clients.acquire(client.as_ref(), u32::MAX)?;
            Some(SharedRate {
                bytes_per_second,
                sharers: Arc::new(sharer),
            })
        });
        let of_response = own.into_iter().chain(rule.rate).min();
        if of_response.is_some() || shared.is_some() {
            *place = Some(Box::new(BodyRate {
                of_response,
                shared,
                unthrottled: if has_smaller { 0 } else { rule.after },
            }));
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use penstock_exchange::{Body, Response};
    use penstock_http::Status;

    use super::*;
    use crate::testing::{request, run};

    /// Responds with a rate of its own.
    #[derive(Debug)]
    struct Fixed(Option<u64>);

    impl Handler for Fixed {
        fn handle(&self, _: Request) -> HandlerProgress {
            let mut response = Response::new(Status::OK, Body::Empty);
            response.max_rate = self.0.map(BodyRate::of_response).map(Box::new);
            HandlerProgress::Ready(Ok(Reply::from(response)))
        }
    }

    /// The rate of the response to a request with these fields.
    fn rate_of(handler: &dyn Handler, fields: &str) -> BodyRate {
        let Ok(Reply::Response(mut response)) = run(handler, request("/", fields)) else {
            panic!("it responds");
        };
        *response.max_rate.take().expect("it has a rate")
    }

    fn handler(rule: &ResponseRate, own: Option<u64>) -> Arc<dyn Handler> {
        let mut handlers: [Arc<dyn Handler>; 1] = [Arc::new(Fixed(own))];
        ResponseRateHandler::wrap_all(rule, Arc::default(), &mut handlers);
        let [handler] = handlers;
        handler
    }

    #[test]
    fn the_smaller_rate_counts() {
        for (own, expected) in [
            (None, (Some(1000), 50)),
            (Some(2000), (Some(1000), 50)),
            (Some(10), (Some(10), 0)),
        ] {
            let rule = ResponseRate {
                rate: Some(1000),
                after: 50,
                ..ResponseRate::default()
            };
            let rate = rate_of(&*handler(&rule, own), "");
            assert_eq!((rate.of_response, rate.unthrottled), expected, "{own:?}");
            assert!(rate.shared.is_none());
        }
    }

    #[test]
    fn the_responses_to_a_client_share_its_rate() {
        let rule = ResponseRate {
            client_rate: Some(1000),
            ..ResponseRate::default()
        };
        let handler = handler(&rule, Some(400));
        let first = rate_of(&*handler, "");
        assert_eq!((first.current(), first.unthrottled), (400, 0));
        let others: Vec<_> = (0..3).map(|_| rate_of(&*handler, "")).collect();
        assert_eq!((first.current(), others[2].current()), (250, 250));
        drop(others);
        assert_eq!(first.current(), 400);
    }
}
