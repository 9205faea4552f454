//! The handler in front of an application or upstream, which obeys what its answers say to the hub.
//!
//! `penstock`'s wiring puts a [`Grip`] right around each back end; edge or a cache asks it. It signs the
//! request ([`crate::token::Signer`]), asks the back end, and looks at one flag of the answer; without a
//! signer `edge` looks at it ([`Handler::begin`]), and ordinary requests leave no trace here. An answer that
//! speaks to the hub becomes a `session`: `session` decides, `origin` asks the back end again, `whole` reads
//! bodies, `notices` tells of clients that are gone, `follower` asks for what follows.
//!
//! What must stay true: an ordinary answer is passed on as it came, body unread; a request that another
//! handler gets (`Pass`) is the one that came; whoever is held has no part of the back end any more.

mod follower;
mod notices;
pub(super) mod origin;
mod session;
pub(super) mod whole;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::grip::remove_grip_fields;
use penstock_exchange::{
    Body, Fault, FaultKind, GripResponse, Handler, HandlerFuture, HandlerProgress, InlineResponse,
    Reply, Request, RequestView, Response,
};

use super::sockets;
use crate::origins::Origins;
use crate::token::Signer;
use crate::{Hub, Namespace, Subscription};
use notices::Notices;
use origin::Origin;
use session::Session;

/// Holds the clients of a back end as its answers say.
#[derive(Debug)]
pub struct Grip {
    shared: Arc<Shared>,
}

/// What all requests of one handler share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) hub: Hub,
    pub(super) inner: Arc<dyn Handler>,
    namespace: Namespace,
    pub(super) origins: Origins,
    signer: Option<Arc<Signer>>,
    front: Option<Arc<Signer>>,
    sockets: OwnSockets,
    /// What nearly all requests are vouched for with.
    vouched: TrustedHeaders,
    notices: Notices,
}

/// What a [`Grip`] is made of.
#[derive(Debug)]
pub struct GripSetup {
    /// The hub that holds.
    pub hub: Hub,
    /// The back end.
    pub inner: Arc<dyn Handler>,
    /// Whose channels the back end names.
    pub namespace: Namespace,
    /// Origins whose pages may open WebSockets that come as requests, beside the host's own; `*` is any.
    pub origins: Vec<String>,
    /// Tells the back end what the hub can do, and that the request came through it.
    pub signer: Option<Arc<Signer>>,
    /// The key by which another server in front, which holds its clients itself, is known.
    pub front: Option<Arc<Signer>>,
    /// How the back end has its WebSockets.
    pub sockets: OwnSockets,
}

/// What a back end can do with a client's WebSocket by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnSockets {
    /// It speaks the protocol, or relays it.
    Speaks,
    /// It may take the connection over (`rack.hijack`): it gets the client's own request first. Else
    /// clients' WebSockets end here, and it gets what happens on them as requests (WebSocket-over-HTTP).
    MayTake,
    /// It knows only requests.
    None,
}

impl Grip {
    /// Stands in front of a back end.
    #[must_use]
    pub fn new(setup: GripSetup) -> Self {
        let GripSetup {
            hub,
            inner,
            namespace,
            origins,
            signer,
            front,
            sockets,
        } = setup;
        let shared = Shared {
            hub,
            inner,
            namespace,
            origins: Origins::new(&origins),
            signer,
            front,
            sockets,
            vouched: origin::vouched(&TrustedHeaders::default()),
            notices: Notices::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl Handler for Grip {
    fn handle(&self, request: Request) -> HandlerProgress {
        let shared = &self.shared;
        let origin = Origin::of(&request);
        let mut fallback = None;
        if shared.sockets != OwnSockets::Speaks
            && request.head.is_upgrade()
            && let Some(handling) = sockets::asked(shared, &origin)
        {
            match handling {
                HandlerProgress::Pending(asking) if shared.sockets == OwnSockets::MayTake => {
                    fallback = Some(asking);
                }
                handling => return handling,
            }
        }
        let is_for_front = shared.is_from_front(&request);
        let request = match origin.signed(request, shared) {
            Ok(request) => request,
            Err(fault) => return HandlerProgress::Ready(Err(fault)),
        };
        if let Some(asking) = fallback {
            let first = shared.inner.handle(request);
            return HandlerProgress::Pending(Box::pin(taken_or(first, asking, origin)));
        }
        if is_for_front {
            return passed_on(shared.inner.handle(request), origin);
        }
        match shared.inner.handle(request) {
            HandlerProgress::Ready(answered) => match settled(answered, &origin) {
                Settled::Done(answered) => HandlerProgress::Ready(answered),
                Settled::Told(response) => {
                    let session = Session::new(Arc::clone(shared), origin);
                    HandlerProgress::Pending(Box::pin(session.conclude(*response)))
                }
            },
            HandlerProgress::Pending(work) => {
                let shared = Arc::clone(shared);
                HandlerProgress::Pending(Box::pin(async move {
                    match settled(work.await, &origin) {
                        Settled::Done(answered) => answered,
                        Settled::Told(response) => {
                            // In a box of its own, so that others do not carry its room.
                            Box::pin(Session::new(shared, origin).conclude(*response)).await
                        }
                    }
                }))
            }
        }
    }

    fn handle_deferring_grip(&self, request: Request) -> HandlerProgress {
        let shared = &self.shared;
        // Who signs changes the request, and an upgrade may end here.
        let may_end_here = shared.sockets != OwnSockets::Speaks && request.head.is_upgrade();
        if shared.signer.is_some() || may_end_here {
            return self.handle(request);
        }
        shared.inner.handle(request)
    }

    fn apply_grip(&self, spoken: GripResponse) -> HandlerProgress {
        let (origin, response) = Origin::of_spoken(spoken);
        let session = Session::new(Arc::clone(&self.shared), origin);
        HandlerProgress::Pending(Box::pin(session.conclude(response)))
    }

    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.shared.inner.try_inline(asked, take);
    }
}

impl Shared {
    /// Waits, where there are other nodes, until the hub has what they know of the channels that somebody is
    /// about to subscribe to.
    pub(super) async fn prepare(&self, subscriptions: &[Subscription]) {
        let names = subscriptions.iter().map(|each| Arc::clone(&each.channel));
        if let Some(prepared) = self.hub.prepare(&names.collect::<Vec<_>>()) {
            prepared.await;
        }
    }

    /// The same subscriptions with the keys of their channels in the place of the back end's names.
    pub(super) fn keyed(&self, mut subscriptions: Vec<Subscription>) -> Vec<Subscription> {
        for subscription in &mut subscriptions {
            subscription.channel = self.key(&subscription.channel);
        }
        subscriptions
    }

    /// The key of a channel that the back end names.
    pub(super) fn key(&self, channel: &str) -> Arc<str> {
        self.namespace.key(channel)
    }

    /// Whether another server of the house stands in front of this one and holds its clients itself: a
    /// trusted peer, with a token that is signed with the same secret.
    fn is_from_front(&self, request: &Request) -> bool {
        let Some(signer) = &self.front else {
            return false;
        };
        let token = request.head.field(origin::SIGNATURE);
        token.is_some_and(|token| request.is_from_trusted_proxy() && signer.is_shared_by(token))
    }
}

/// The answer to the client's own request where it takes the connection over, else what `asking` makes of the
/// WebSocket; and where that is nothing either, the answer to the client's own request after all.
async fn taken_or(
    first: HandlerProgress,
    asking: HandlerFuture,
    origin: Origin,
) -> Result<Reply, Fault> {
    let first = match first {
        HandlerProgress::Ready(answered) => answered,
        HandlerProgress::Pending(work) => work.await,
    };
    let first = match first {
        Ok(Reply::Response(response)) if matches!(response.body, Body::Takeover(_)) => {
            return Ok(Reply::Response(response));
        }
        Ok(Reply::Response(response)) => response,
        Ok(Reply::Pass(request)) => return Ok(Reply::Pass(origin.restored(request))),
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
            first.has_grip = false;
            Ok(Reply::Response(first))
        }
        (second, None) => second,
    }
}

/// The answer for a front end that obeys it.
fn passed_on(handling: HandlerProgress, origin: Origin) -> HandlerProgress {
    let pass_on = move |answered| {
        answered_for_front(match settled(answered, &origin) {
            Settled::Done(answered) => answered,
            Settled::Told(response) => Ok(Reply::Response(response)),
        })
    };
    match handling {
        HandlerProgress::Ready(answered) => HandlerProgress::Ready(pass_on(answered)),
        HandlerProgress::Pending(work) => {
            HandlerProgress::Pending(Box::pin(async move { pass_on(work.await) }))
        }
    }
}

fn answered_for_front(mut answered: Result<Reply, Fault>) -> Result<Reply, Fault> {
    if let Ok(Reply::Response(response)) = &mut answered {
        response.passes_grip = response.has_grip;
    }
    answered
}

/// What came of a request.
enum Settled {
    /// Nothing for the hub.
    Done(Result<Reply, Fault>),
    /// An answer that speaks to it.
    Told(Box<Response>),
}

fn settled(answered: Result<Reply, Fault>, origin: &Origin) -> Settled {
    match answered {
        Ok(Reply::Response(response)) if response.has_grip => Settled::Told(response),
        Ok(Reply::Pass(request)) => Settled::Done(Ok(Reply::Pass(origin.restored(request)))),
        answered => Settled::Done(answered),
    }
}

/// A name that nobody can guess: the keys of tables' hashes come from the kernel.
pub(super) fn unguessable() -> String {
    let half = |salt: u8| RandomState::new().hash_one(salt);
    format!("{:016x}{:016x}", half(0), half(1))
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
