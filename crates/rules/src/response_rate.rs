//! How fast the responses of a route are sent: `response_rate`. Around the handlers that respond;
//! `edge` sends at the rate, with one timer for each response that waits.
//!
//! # Invariants
//! - The smaller of this rate and that of a back end counts.

use std::sync::Arc;

use penstock_config::ResponseRate;
use penstock_exchange::{Fault, Handler, HandlerProgress, Reply, Request};

/// A handler whose responses have a rate. It lends none that are in memory: those have no rate.
#[derive(Debug)]
pub struct ResponseRateHandler {
    inner: Arc<dyn Handler>,
    rate: u64,
    after: u64,
}

impl ResponseRateHandler {
    /// Gives the responses of `inner` the rate of a route.
    #[must_use]
    pub fn new(rule: &ResponseRate, inner: Arc<dyn Handler>) -> Self {
        let ResponseRate { rate, after } = *rule;
        Self { inner, rate, after }
    }
}

impl Handler for ResponseRateHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let (rate, after) = (self.rate, self.after);
        let apply = move |reply| with_rate(reply, rate, after);
        match self.inner.handle(request) {
            HandlerProgress::Ready(reply) => HandlerProgress::Ready(apply(reply)),
            HandlerProgress::Pending(work) => {
                HandlerProgress::Pending(Box::pin(async move { apply(work.await) }))
            }
        }
    }
}

fn with_rate(reply: Result<Reply, Fault>, rate: u64, after: u64) -> Result<Reply, Fault> {
    let mut reply = reply?;
    match &mut reply {
        // A back end that sets a rate of its own means it from the first byte.
        Reply::Response(response) if response.max_rate.is_some_and(|own| own <= rate) => {}
        Reply::Response(response) => {
            response.max_rate = Some(rate);
            response.unthrottled_bytes = after;
        }
        Reply::Redirect(redirect) => {
            redirect.max_rate = Some(redirect.max_rate.map_or(rate, |own| own.min(rate)));
        }
        Reply::Pass(_) => {}
    }
    Ok(reply)
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
            response.max_rate = self.0;
            HandlerProgress::Ready(Ok(Reply::from(response)))
        }
    }

    #[test]
    fn the_smaller_rate_counts() {
        for (own, expected) in [
            (None, (Some(1000), 50)),
            (Some(2000), (Some(1000), 50)),
            (Some(10), (Some(10), 0)),
        ] {
            let rule = ResponseRate {
                after: 50,
                ..ResponseRate::new(1000)
            };
            let handler = ResponseRateHandler::new(&rule, Arc::new(Fixed(own)));
            let Ok(Reply::Response(response)) = run(&handler, request("/", "")) else {
                panic!("it responds");
            };
            let found = (response.max_rate, response.unthrottled_bytes);
            assert_eq!(found, expected, "{own:?}");
        }
    }
}
