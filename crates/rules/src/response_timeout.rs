//! How long the back end of a route may take to respond: `response_timeout` of a route, in place of
//! that of the application or upstream.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Handler, HandlerProgress, InlineResponse, Request, RequestView};

/// A back end with another time limit than its own.
#[derive(Debug)]
pub struct ResponseTimeoutHandler {
    inner: Arc<dyn Handler>,
    timeout: Duration,
}

impl ResponseTimeoutHandler {
    /// Gives requests to `inner` this time for a response.
    #[must_use]
    pub fn new(inner: Arc<dyn Handler>, timeout: Duration) -> Self {
        Self { inner, timeout }
    }
}

impl Handler for ResponseTimeoutHandler {
    fn handle(&self, mut request: Request) -> HandlerProgress {
        request.set_response_timeout(self.timeout);
        self.inner.handle(request)
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.inner.try_inline(request, take);
    }
}
