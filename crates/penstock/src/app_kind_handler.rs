//! Routes WebSockets of an application while its kind is a guess: to ASGI natively, to other kinds
//! as requests (WebSocket-over-HTTP). The handler must wait until the kind is known.
//!
//! `wiring` puts it between a route and the two GRIP handlers of such an application. Other
//! requests do not wait: both handlers treat them alike.

use std::sync::Arc;

use penstock_apps::App;
use penstock_config::AppKind;
use penstock_exchange::{Handler, HandlerProgress, InlineResponse, Request, RequestView};

/// Chooses between two handlers by the kind that the application turns out to have.
#[derive(Debug, Clone)]
pub(crate) struct AppKindHandler {
    pub(crate) app: Arc<App>,
    /// Passes WebSockets on.
    pub(crate) native_handler: Arc<dyn Handler>,
    /// Turns WebSockets into requests.
    pub(crate) websocket_over_http_handler: Arc<dyn Handler>,
}

impl AppKindHandler {
    fn current_handler(&self) -> &Arc<dyn Handler> {
        match self.app.kind() {
            AppKind::Asgi => &self.native_handler,
            _ => &self.websocket_over_http_handler,
        }
    }

    fn must_wait(&self, request: &Request) -> bool {
        request.head.is_upgrade() && !self.app.is_kind_settled()
    }

    fn handle_when_known(&self, request: Request) -> HandlerProgress {
        let this = self.clone();
        HandlerProgress::Pending(Box::pin(async move {
            this.app.wait_for_kind(&request.client_state).await?;
            match this.current_handler().handle(request) {
                HandlerProgress::Ready(answered) => answered,
                HandlerProgress::Pending(work) => work.await,
            }
        }))
    }
}

impl Handler for AppKindHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        match self.must_wait(&request) {
            true => self.handle_when_known(request),
            false => self.current_handler().handle(request),
        }
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.current_handler().try_inline(request, take);
    }
}
