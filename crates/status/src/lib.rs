//! What the server says of itself: live page, snapshot as JSON, metrics text, and the admin API.
//!
//! [`Admin`] is a handler like any other, put on the admin listener by `penstock`'s wiring, which
//! also implements [`Source`]: this room asks it for a [`Snapshot`] or for a change, and knows no
//! other room. The way of a request: `guard` refuses what a foreign web page could have sent, `api`
//! routes it, `authority` says whether it may change things, `manage` and `purge` read what it wants changed, `publish` takes messages for the hub, `events`, `exposition` and `page` make the answer. What must stay true: a look at the
//! status costs little and is bounded, whoever looks and however often.

mod api;
mod authority;
mod events;
mod exposition;
#[cfg(test)]
mod fake;
pub mod fuzzing;
mod guard;
mod manage;
mod page;
mod probes;
mod publish;
mod purge;
mod snapshot;
mod source;

pub use api::{Admin, Refusing};
pub use authority::{AdminToken, Authority};
pub use manage::{ManageError, ManageRequest, NewServer};
pub use probes::Probes;
pub use publish::PublishError;
pub use purge::{PurgeError, PurgeRequest, PurgeWhat};
pub use snapshot::{
    AppCounters, AppStatus, BoundsStatus, Buckets, CacheCounters, CacheStatus, CachedRouteCounters,
    CachedRouteStatus, HubCounters, HubStatus, JoinStatus, Limit, LineStatus, MachineStatus,
    NodesStatus, PoolStatus, ProcessesStatus, QueueStatus, ServerState, ServerStatus, Snapshot,
    Spent, Times, Traffic, Unit, UpstreamCounters, UpstreamStatus, Use, WorkerStatus,
};
pub use source::{BoxFuture, Source};
