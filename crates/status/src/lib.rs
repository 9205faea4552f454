//! The status page, its JSON, the metrics and the admin API.
//!
//! [`AdminHandler`] is the handler of the admin listener. It gets a [`Snapshot`], or makes a
//! change, through [`AdminOperations`], which the `penstock` crate implements. `browser_guard`
//! refuses requests that a foreign web page could have sent, `api` routes, `authorization` decides
//! whether a change is permitted.
//!
//! # Invariants
//! - Reading the status costs little and is bounded, however many clients read it.

mod api;
mod authorization;
mod browser_guard;
mod certificates;
mod event_stream;
#[cfg(test)]
mod fake;
pub mod fuzzing;
mod history;
mod metrics_text;
mod operations;
mod page;
mod probes;
mod problems;
mod publish;
mod purge;
mod server_changes;
mod snapshot;
mod traffic_changes;

pub use api::{AdminHandler, ForbiddenHandler};
pub use authorization::{AdminToken, ChangeAuthorization};
pub use certificates::{CertificateHealth, CertificateSnapshot, CertificatesSnapshot, format_date};
pub use history::{HISTORY_INTERVAL, History, HistorySnapshot};
pub use operations::{AdminOperations, BoxFuture, ChangeError};
pub use probes::ProbeHandler;
pub use problems::{Problem, Severity};
pub use publish::PublishError;
pub use purge::PurgeRequest;
pub use server_changes::{NewServer, ServerChangeRequest};
pub use snapshot::{
    FrontEndStatus, HubStatus, LimitStatus, LimitUnit, MachineStatus, ServerState, Snapshot,
    TopEntryStatus, TopStatus, Traffic,
};
pub use traffic_changes::MaintenanceChange;
