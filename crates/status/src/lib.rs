//! What the server says of itself: live page, snapshot as JSON, metrics text, and the admin API.
//!
//! [`Admin`] is a handler like any other, put on the admin listener by `penstock`'s wiring, which
//! also implements [`AdminOperations`]: this room asks it for a [`Snapshot`] or for a change, and knows no
//! other room. The way of a request: `browser_guard` refuses what a foreign web page could have sent, `api`
//! routes it, `authority` says whether it may change things, `manage` and `purge` read what it wants changed, `publish` takes messages for the hub, `events`, `metrics_text` and `page` make the answer. What must stay true: a look at the
//! status costs little and is bounded, whoever looks and however often.

mod api;
mod authority;
mod browser_guard;
mod event_stream;
#[cfg(test)]
mod fake;
pub mod fuzzing;
mod metrics_text;
mod operations;
mod page;
mod probes;
mod publish;
mod purge;
mod server_changes;
mod snapshot;

pub use api::{Admin, RefuseAll};
pub use authority::{AdminToken, Authority};
pub use operations::{AdminOperations, BoxFuture};
pub use probes::Probes;
pub use publish::PublishError;
pub use purge::{PurgeError, PurgeRequest, PurgeSelector};
pub use server_changes::{NewServer, ServerChangeRequest, ServerChangeRequestError};
pub use snapshot::{
    AppCounters, AppQueueStatus, AppStatus, BoundsStatus, CacheCounters, CacheStatus,
    CachedRouteCounters, CachedRouteStatus, ClusterStatus, FrontEndStatus, HubCounters, HubStatus,
    LimitStatus, LimitUnit, MachineStatus, PoolStatus, ProcessesStatus, ServerState, ServerStatus,
    Snapshot, TimeSum, Traffic, UpstreamCounters, UpstreamQueueStatus, UpstreamStatus, Usage,
    WorkerStatus,
};
