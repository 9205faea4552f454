//! Request, Response, Body, Handler, Fault, metrics: the interface between components.
//!
//! `edge` makes a [`Request`] from a connection and sends the [`Response`]; `files`, `apps` and
//! `status` are [`Handler`]s in between. Components never import one another: what two of them
//! share is here.
//!
//! # Invariants
//! - A handler does not depend on connections, nor edge on the maker of a body.

pub mod accel;
pub mod address_prefix;
pub mod address_set;
pub mod body;
mod body_rate;
pub mod buffering;
pub mod cgi;
pub mod client_certificate;
pub mod client_state;
pub mod correlation;
pub mod development;
pub mod fault;
pub mod field_policy;
pub mod forwarded;
pub mod grip;
pub mod handler;
pub mod held_connection;
pub mod http_challenges;
pub mod metrics;
pub mod mount;
pub mod multipart;
pub mod request;
pub mod response;
pub mod spans;
pub mod stream_refusal;
pub mod takeover;
pub mod tls_info;
pub mod trace_context;
pub mod trusted_proxies;

pub use accel::{AccelFields, SendfileGrant, is_accel_field};
pub use address_prefix::{AddressPrefix, ClientPermit, ClientPermits};
pub use address_set::{AddressSet, parse_network};
pub use body::{Body, BodyStream, FileBody, IncomingBody, RequestBody};
pub use body_rate::{BodyRate, RateSharers, SharedRate};
pub use client_certificate::{ClientCertificate, ClientVerification};
pub use client_state::{ClientState, RequestPermit};
pub use correlation::{Correlation, RequestId};
pub use fault::{Fault, FaultKind, FaultSide};
pub use forwarded::{AddressSource, ForwardedInfo, InvalidForwardedField};
pub use handler::{
    Handler, HandlerFuture, HandlerProgress, InlineBody, InlineResponse, InternalRedirect, Reply,
    RequestView,
};
pub use held_connection::{
    HeldConnection, HeldConnectionMut, HeldSocket, RecordLayer, SealedRecords,
};
pub use http_challenges::{HttpChallenges, SharedChallenges};
pub use mount::Mount;
pub use request::{ListenerInfo, Request, RequestPath};
pub use response::{CacheOutcome, FrontEndInstructions, HandlerName, RequestTiming, Response};
pub use stream_refusal::StreamRefusal;
pub use takeover::{
    ConnectionAdopter, HeldConnectionCounter, HeldConnectionGuard, HeldFraming, Hold, Takeover,
    TakeoverFuture, TunnelHandler,
};
pub use tls_info::TlsInfo;
pub use trace_context::TraceContext;
pub use trusted_proxies::TrustedProxies;
