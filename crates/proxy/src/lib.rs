//! Upstreams: servers behind one name, their slots and one queue, the connections to them, and the
//! relay of requests and bytes.
//!
//! [`Upstream`] is a handler. For each request `proxied_request` reads the body
//! (`exchange::buffering`), claims a slot at a server from `server_pool` or waits in its queue,
//! takes an idle connection or opens one, sends the head that `request_head` encodes anew, and
//! reads the response through the `codec` of the server's protocol. A response that is not complete
//! at once continues in a `relay` task through a spool, so that a slow client never holds a slot.
//!
//! # Invariants
//!
//! - A server never has more active requests than its limit.
//! - A connection carries one request at a time and closes after any doubt about framing.
//! - A request is repeated only where that is safe.
//! - Bytes of one response never reach another client.

mod affinity;
mod balance;
mod body_source;
mod claim;
mod codec;
mod connection;
mod environ;
mod failure;
mod health;
mod join;
mod location_rewrite;
mod maintenance;
mod probe;
mod proxied_request;
mod relay;
mod request_head;
mod resolve;
mod response;
mod response_head;
mod retry_budget;
mod saturation;
mod server_changes;
mod server_pool;
mod snapshot;
mod sni_router;
#[cfg(test)]
mod testing;
mod tunnel;
mod upstream;
mod upstream_exchange;
mod upstream_tls;

pub use environ::is_script_path;
pub use join::{JoinListener, Joiner, JoinerSetup, JoinerState, ServeConnectionFn};
pub use resolve::count_addresses;
pub use server_changes::{ServerChange, ServerChangeError};
pub use snapshot::{
    QueueSnapshot, SERVER_METRICS, ServerCounters, ServerSnapshot, UPSTREAM_METRICS,
    UpstreamCounters, UpstreamSnapshot,
};
pub use sni_router::SniRouter;
pub use upstream::{BufferingMode, Upstream, UpstreamSetup};
pub use upstream_tls::{TlsMaterial, UpstreamTls, UpstreamTlsCounters};
