//! Request, Response, Body, Handler, Fault, Timing, metrics: the one interface between rooms.
//!
//! `edge` makes a [`Request`] from a connection and sends the [`Response`]; `files`, `apps` and
//! `status` are [`Handler`]s in between. Rooms never import one another: what two of them share is
//! here. What must stay true: a handler knows nothing of connections, and edge nothing of who made a
//! body.

pub mod accel;
pub mod address_prefix;
pub mod body;
pub mod buffering;
pub mod cgi;
pub mod client_state;
pub mod fault;
pub mod field_policy;
pub mod forwarded;
pub mod grip;
pub mod handler;
pub mod metrics;
pub mod mount;
pub mod multipart;
pub mod request;
pub mod response;
pub mod takeover;
pub mod trusted_proxies;

pub use accel::{AccelFields, SendfileGrant, is_accel_field};
pub use address_prefix::{AddressPrefix, ClientPermit, ClientPermits};
pub use body::{Body, BodyStream, FileBody, IncomingBody, RequestBody};
pub use client_state::ClientState;
pub use fault::{Fault, FaultKind, FaultSide};
pub use forwarded::{AddressSource, ForwardedInfo, InvalidForwardedField};
pub use handler::{
    Handler, HandlerFuture, HandlerProgress, InlineBody, InlineResponse, InternalRedirect, Reply,
    RequestView,
};
pub use mount::Mount;
pub use request::{ListenerInfo, Request, RequestPath};
pub use response::{HandlerName, RequestTiming, Response};
pub use takeover::{
    HeldConnection, HeldConnectionCounter, HeldConnectionGuard, HeldFraming, Hold, Takeover,
    TakeoverFuture, TunnelHandler,
};
pub use trusted_proxies::{IpNetwork, TrustedProxies};
