//! In front of an application whose kind is a guess: WebSockets go to ASGI as they are, and to all others
//! as requests (WebSocket-over-HTTP), which is the handler's choice and must wait until it is known.
//!
//! `wiring` puts it between a route and the two GRIP handlers of such an application. All other requests
//! do not wait here: both handlers treat them alike.

use std::sync::Arc;

use penstock_apps::App;
use penstock_config::AppKind;
use penstock_exchange::{
    GripResponse, Handler, HandlerProgress, InlineResponse, Request, RequestView,
};

/// Chooses between two handlers of an application by what it turns out to be.
#[derive(Debug)]
pub(crate) struct ByKind {
    pub(crate) app: Arc<App>,
    /// Hands on WebSockets.
    pub(crate) with_websockets: Arc<dyn Handler>,
    /// Makes requests of them.
    pub(crate) with_requests: Arc<dyn Handler>,
}

impl ByKind {
    fn handler(&self) -> &Arc<dyn Handler> {
        match self.app.kind() {
            AppKind::Asgi => &self.with_websockets,
            _ => &self.with_requests,
        }
    }

    fn is_open_for(&self, request: &Request) -> bool {
        request.head.is_upgrade() && !self.app.is_kind_settled()
    }

    fn wait(&self, request: Request) -> HandlerProgress {
        let app = Arc::clone(&self.app);
        let (asgi, other) = (
            Arc::clone(&self.with_websockets),
            Arc::clone(&self.with_requests),
        );
        HandlerProgress::Pending(Box::pin(async move {
            app.wait_for_kind(&request.client_state).await?;
            let handler = match app.kind() {
                AppKind::Asgi => asgi,
                _ => other,
            };
            match handler.handle(request) {
                HandlerProgress::Ready(answered) => answered,
                HandlerProgress::Pending(work) => work.await,
            }
        }))
    }
}

impl Handler for ByKind {
    fn handle(&self, request: Request) -> HandlerProgress {
        match self.is_open_for(&request) {
            true => self.wait(request),
            false => self.handler().handle(request),
        }
    }

    fn handle_deferring_grip(&self, request: Request) -> HandlerProgress {
        match self.is_open_for(&request) {
            true => self.wait(request),
            false => self.handler().handle_deferring_grip(request),
        }
    }

    fn apply_grip(&self, spoken: GripResponse) -> HandlerProgress {
        self.handler().apply_grip(spoken)
    }

    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.handler().try_inline(asked, take);
    }
}
