//! Request, Response, Body, Handler, Fault, Timing, metrics: the one interface between rooms.
//!
//! `edge` makes a [`Request`] from a connection and sends the [`Response`]; `files`, `apps` and
//! `status` are [`Handler`]s in between. Rooms never import one another: what two of them share is
//! here. What must stay true: a handler knows nothing of connections, and edge nothing of who made a
//! body.

pub mod accel;
pub mod address_prefix;
pub mod bodies;
pub mod body;
pub mod cgi;
pub mod client;
pub mod fault;
pub mod fields;
pub mod forwarded;
pub mod grip;
pub mod handler;
pub mod metrics;
pub mod mount;
pub mod parts;
pub mod request;
pub mod response;
pub mod takeover;
pub mod trust;

pub use accel::{Accel, SendfileGrant, is_to_front};
pub use address_prefix::{AddressPrefix, ClientPermit, ClientPermits};
pub use body::{Body, BodyStream, FileBody, IncomingBody, RequestBody};
pub use client::ClientState;
pub use fault::{Fault, FaultKind, Side};
pub use forwarded::{AddressSource, BrokenField, ForwardedInfo};
pub use handler::{
    Asked, AtHand, Handler, HandlerFuture, Handling, InternalRedirect, Lent, Reply, Spoken,
};
pub use mount::Mount;
pub use request::{ListenerInfo, Request, RequestPath};
pub use response::{Name, Response, Timing};
pub use takeover::{Front, HeldFraming, Hold, Place, Takeover, TakeoverFuture, TunnelHandler};
pub use trust::{Network, Trust};
