//! The handler around an application or upstream that applies the GRIP instructions of its
//! responses.
//!
//! `penstock`'s wiring puts a [`GripHandler`] around each back end whose route has `grip`, inside a
//! cache: a cache meets the response, not the instructions. The handler signs the request
//! ([`penstock_tokens::Signer`]), runs the back end and checks one flag of the response. A
//! response with instructions becomes a `session`, which holds the client, or asks the back end
//! again.
//!
//! # Invariants
//! - A response without instructions is passed on as it came, body unread.
//! - The next handler (`Pass`) gets the request that came.
//! - A held client uses no part of the back end.

pub(super) mod body_reader;
mod disconnect_notices;
mod link_follower;
pub(super) mod original_request;
mod session;
mod stream_owner;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disconnect_notices::DisconnectNotices;
use original_request::OriginalRequest;
use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::grip::remove_grip_fields;
use penstock_exchange::{
    Body, Fault, FaultKind, FrontEndInstructions, Handler, HandlerFuture, HandlerProgress,
    InlineResponse, Reply, Request, RequestView, Response, TrustedProxies, is_accel_field,
};
use penstock_http::is_media_type;
use penstock_hub::{AllowedOrigins, Hub, Namespace, Subscription};
use penstock_tokens::Signer;
use session::GripSession;
pub use stream_owner::GripStreams;

use super::websockets;

/// Holds the clients of a back end as its answers say.
#[derive(Debug)]
pub struct GripHandler {
    shared: Arc<GripShared>,
}

#[derive(Debug)]
pub(super) struct GripShared {
    name: String,
    pub(super) hub: Hub,
    pub(super) backend: Arc<dyn Handler>,
    namespace: Namespace,
    pub(super) allowed_origins: AllowedOrigins,
    signer: Option<Arc<Signer>>,
    front_signer: Option<Arc<Signer>>,
    websocket_support: WebSocketSupport,
    /// The trusted headers of nearly all requests.
    trusted_headers: TrustedHeaders,
    trusted_proxies: Arc<TrustedProxies>,
    disconnect_notices: DisconnectNotices,
    /// Whether a stream that the back end holds itself has been logged.
    has_logged_own_stream: AtomicBool,
}

/// What a [`GripHandler`] is made of.
#[derive(Debug)]
pub struct GripOptions {
    /// Its name, by which another process finds the handler for the same back end.
    pub name: String,
    /// The hub that holds.
    pub hub: Hub,
    /// The back end.
    pub backend: Arc<dyn Handler>,
    /// The namespace of the back end's channels.
    pub namespace: Namespace,
    /// Origins that may open WebSockets over HTTP, beside the host's own; `*` is any.
    pub allowed_origins: Vec<String>,
    /// Tells the back end what the hub can do, and that the request came through it.
    pub signer: Option<Arc<Signer>>,
    /// The key by which another server in front, which holds its clients itself, is known.
    pub front_signer: Option<Arc<Signer>>,
    /// How the back end has its WebSockets.
    pub websocket_support: WebSocketSupport,
    /// For requests to the links of streams that another process held first.
    pub trusted_proxies: Arc<TrustedProxies>,
}

/// What a back end can do with a client's WebSocket by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebSocketSupport {
    /// It speaks the protocol, or relays it.
    Native,
    /// It may take the connection over (`rack.hijack`): it gets the client's own request first.
    /// Else clients' WebSockets end here, and it gets what happens on them as requests
    /// (WebSocket-over-HTTP).
    MayHijack,
    /// It knows only requests.
    RequestsOnly,
}

impl GripHandler {
    /// Stands in front of a back end.
    #[must_use]
    pub fn new(setup: GripOptions) -> Self {
        let shared = GripShared {
            name: setup.name,
            hub: setup.hub,
            backend: setup.backend,
            namespace: setup.namespace,
            allowed_origins: AllowedOrigins::new(&setup.allowed_origins),
            signer: setup.signer,
            front_signer: setup.front_signer,
            websocket_support: setup.websocket_support,
            trusted_headers: original_request::trust_grip_headers(&TrustedHeaders::default()),
            trusted_proxies: setup.trusted_proxies,
            disconnect_notices: DisconnectNotices::default(),
            has_logged_own_stream: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl Handler for GripHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let shared = &self.shared;
        let origin = OriginalRequest::from_request(&request);
        let mut fallback = None;
        if shared.websocket_support != WebSocketSupport::Native
            && request.head.is_upgrade()
            && let Some(handling) = websockets::handle_upgrade(shared, &origin)
        {
            match handling {
                HandlerProgress::Pending(asking)
                    if shared.websocket_support == WebSocketSupport::MayHijack =>
                {
                    fallback = Some(asking);
                }
                handling => return handling,
            }
        }
        let is_for_front = shared.is_from_trusted_front(&request);
        let request = match origin.sign_request(request, shared) {
            Ok(request) => request,
            Err(fault) => return HandlerProgress::Ready(Err(fault)),
        };
        if let Some(asking) = fallback {
            let first = shared.backend.handle(request);
            return HandlerProgress::Pending(Box::pin(hijack_or_websocket(first, asking, origin)));
        }
        if is_for_front {
            return pass_to_front(shared.backend.handle(request), origin);
        }
        match shared.backend.handle(request) {
            HandlerProgress::Ready(answered) => match shared.classify_reply(answered, &origin) {
                GripOutcome::Passed(answered) => HandlerProgress::Ready(answered),
                GripOutcome::Instructed(response) => {
                    let session = GripSession::new(Arc::clone(shared), origin);
                    HandlerProgress::Pending(Box::pin(session.run(*response)))
                }
            },
            HandlerProgress::Pending(work) => {
                let shared = Arc::clone(shared);
                HandlerProgress::Pending(Box::pin(async move {
                    match shared.classify_reply(work.await, &origin) {
                        GripOutcome::Passed(answered) => answered,
                        GripOutcome::Instructed(response) => {
                            // In a box of its own, so that others do not carry its room.
                            Box::pin(GripSession::new(shared, origin).run(*response)).await
                        }
                    }
                }))
            }
        }
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.shared.backend.try_inline(request, take);
    }
}

impl GripShared {
    /// Waits, where there are other servers, until the hub has what they know of the channels that
    /// a client is about to subscribe to.
    pub(super) async fn prepare_channels(&self, subscriptions: &[Subscription]) {
        let names = subscriptions.iter().map(|each| Arc::clone(&each.channel));
        if let Some(prepared) = self.hub.prepare_channels(&names.collect::<Vec<_>>()) {
            prepared.await;
        }
    }

    /// The same subscriptions, with channel keys in place of the back end's names.
    pub(super) fn with_channel_keys(
        &self,
        mut subscriptions: Vec<Subscription>,
    ) -> Vec<Subscription> {
        for subscription in &mut subscriptions {
            subscription.channel = self.channel_key(&subscription.channel);
        }
        subscriptions
    }

    pub(super) fn channel_key(&self, channel: &str) -> Arc<str> {
        self.namespace.channel_key(channel)
    }

    fn classify_reply(
        &self,
        answered: Result<Reply, Fault>,
        origin: &OriginalRequest,
    ) -> GripOutcome {
        match answered {
            Ok(Reply::Response(response)) if response.has_grip() => {
                GripOutcome::Instructed(response)
            }
            answered => {
                if let Ok(Reply::Response(response)) = &answered {
                    self.log_own_stream(response, origin);
                }
                GripOutcome::Passed(restore_passed(answered, origin))
            }
        }
    }

    /// Logs once that the back end holds a stream of events itself: libraries do so where they
    /// cannot verify `Grip-Sig`.
    fn log_own_stream(&self, response: &Response, origin: &OriginalRequest) {
        let media_type = response.fields.get("content-type").unwrap_or_default();
        if matches!(response.body, Body::Stream(_))
            && is_media_type(media_type, "text/event-stream")
            && !self.has_logged_own_stream.swap(true, Ordering::Relaxed)
        {
            let path = origin.head.target_path_query();
            let path = path.split('?').next().unwrap_or_default();
            log::warn!(
                "grip: {}: the back end holds a stream of events itself, which occupies it: if it \
                 uses a library of GRIP, that found no Grip-Sig that it can verify: give it \
                 GRIP_URL of its environment, or set hub.grip_key to the key that it verifies with \
                 (path={path})",
                self.namespace.name()
            );
        }
    }

    /// Whether another Penstock is in front of this one and holds its clients itself: a
    /// trusted peer, with a token that is signed with the same secret.
    fn is_from_trusted_front(&self, request: &Request) -> bool {
        let Some(signer) = &self.front_signer else {
            return false;
        };
        let token = request.head.field(original_request::SIGNATURE_HEADER);
        token.is_some_and(|token| {
            request.is_from_trusted_proxy() && signer.is_signed_with_same_secret(token)
        })
    }
}

/// The answer to the client's own request where it takes the connection over, else what `asking`
/// makes of the WebSocket; and where that is nothing either, the answer to the client's own request
/// after all.
async fn hijack_or_websocket(
    first: HandlerProgress,
    asking: HandlerFuture,
    origin: OriginalRequest,
) -> Result<Reply, Fault> {
    let first = match first.wait_for_reply().await {
        Ok(Reply::Response(response)) if matches!(response.body, Body::Takeover(_)) => {
            return Ok(Reply::Response(response));
        }
        Ok(Reply::Response(response)) => response,
        Ok(Reply::Pass(request)) => return Ok(Reply::Pass(origin.restore_request(request))),
        other => return other,
    };
    // A body that is still being made would keep the place that the next request may need.
    let first = (!matches!(first.body, Body::Stream(_))).then_some(first);
    match (asking.await, first) {
        (Err(fault), _) if fault.kind == FaultKind::Forbidden => Err(fault),
        (Ok(Reply::Response(response)), _) if matches!(response.body, Body::Takeover(_)) => {
            Ok(Reply::Response(response))
        }
        (_, Some(mut first)) => {
            remove_grip_fields(&mut first.fields);
            Ok(Reply::Response(first))
        }
        (second, None) => second,
    }
}

/// The answer for a front end that obeys it.
fn pass_to_front(handling: HandlerProgress, origin: OriginalRequest) -> HandlerProgress {
    let pass_on = move |mut answered: Result<Reply, Fault>| {
        if let Ok(Reply::Response(response)) = &mut answered {
            if response.has_grip() {
                // It obeys these fields, and no others.
                let is_removed = |name: &str| is_accel_field(name.as_bytes());
                response.fields.remove_where(is_removed);
                response.instructions = FrontEndInstructions::ForFrontEnd;
            }
            return answered;
        }
        restore_passed(answered, &origin)
    };
    match handling {
        HandlerProgress::Ready(answered) => HandlerProgress::Ready(pass_on(answered)),
        HandlerProgress::Pending(work) => {
            HandlerProgress::Pending(Box::pin(async move { pass_on(work.await) }))
        }
    }
}

enum GripOutcome {
    /// Nothing for the hub.
    Passed(Result<Reply, Fault>),
    /// An answer that speaks to it.
    Instructed(Box<Response>),
}

/// The next handler gets the request that came.
fn restore_passed(
    answered: Result<Reply, Fault>,
    origin: &OriginalRequest,
) -> Result<Reply, Fault> {
    answered.map(|reply| match reply {
        Reply::Pass(request) => Reply::Pass(origin.restore_request(request)),
        reply => reply,
    })
}

fn backend_fault(cause: String) -> Fault {
    Fault::new(FaultKind::BackendProtocolError, cause)
}

/// A name that cannot be guessed: the keys of hash tables come from the kernel.
pub(super) fn random_name() -> String {
    let half = |salt: u8| RandomState::new().hash_one(salt);
    format!("{:016x}{:016x}", half(0), half(1))
}

#[cfg(test)]
pub(super) mod tests;
