//! The operations that the admin API needs from the rest of the server.
//!
//! Implemented by the `penstock` crate, and by a made-up server in tests.
//!
//! # Invariants
//! - `snapshot` never waits: it runs on an event loop.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use penstock_http::Status;
use penstock_hub::{ChannelFilter, ChannelPresence};
use penstock_rules::BackEndName;

use crate::{
    HistorySnapshot, MaintenanceChange, PublishError, PurgeRequest, ServerChangeRequest, Snapshot,
};

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ChangeError {
    /// The status of the response.
    pub status: Status,
    /// The mistake, or the reason.
    pub text: String,
}

impl ChangeError {
    /// The request is malformed.
    pub fn bad_request(text: String) -> Self {
        let status = Status::BAD_REQUEST;
        Self { status, text }
    }

    /// What the request names does not exist.
    pub fn not_found(text: String) -> Self {
        let status = Status::NOT_FOUND;
        Self { status, text }
    }

    /// The change is not possible.
    pub fn conflict(text: String) -> Self {
        let status = Status::CONFLICT;
        Self { status, text }
    }

    /// The change cannot be made now.
    pub fn unavailable(text: String) -> Self {
        let status = Status::SERVICE_UNAVAILABLE;
        Self { status, text }
    }
}

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The server behind the admin API.
pub trait AdminOperations: Send + Sync + Debug {
    /// The server now; cheap enough for one call per second.
    fn snapshot(&self) -> Snapshot;

    /// The samples of the last hour.
    fn history(&self) -> HistorySnapshot;

    /// Reloads the configuration and returns a sentence on the changes.
    ///
    /// Cancel safety: the reload continues if the future is dropped.
    ///
    /// # Errors
    /// All errors; the old configuration stays in use.
    fn reload(&self) -> BoxFuture<'static, Result<String, String>>;

    /// Restarts an application with its current code and returns a sentence if its configuration
    /// is not that of the file; `None` if there is no such application.
    ///
    /// Cancel safety: as `reload`.
    ///
    /// # Errors
    /// Why the restart was aborted; the old code stays in use.
    fn restart_app(&self, app: &str) -> BoxFuture<'static, Option<Result<Option<String>, String>>>;

    /// Changes the servers of an upstream and returns a sentence on the result.
    ///
    /// # Errors
    /// There is no such upstream or server, or the change is not possible; nothing has changed.
    fn change_servers(
        &self,
        upstream: &str,
        change: ServerChangeRequest,
    ) -> BoxFuture<'static, Result<String, ChangeError>>;

    /// Lets new requests to a back end wait, for at most this time each, and returns a sentence on
    /// the result.
    ///
    /// # Errors
    /// There is no such back end.
    fn pause(&self, name: BackEndName, max_wait: Duration) -> Result<String, ChangeError>;

    /// Ends the pause of a back end and returns a sentence on the result.
    ///
    /// # Errors
    /// There is no such back end, or it is not paused.
    fn resume(&self, name: BackEndName) -> Result<String, ChangeError>;

    /// Takes sites out of service or serves them again, and returns a sentence on the result.
    ///
    /// # Errors
    /// There is no such site or network, or it is not in maintenance.
    fn set_maintenance(&self, change: MaintenanceChange) -> Result<String, ChangeError>;

    /// Purges caches and returns the number of objects. None of them is served any more when the
    /// future is done.
    ///
    /// Cancel safety: a purge continues if the future is dropped.
    ///
    /// # Errors
    /// There is no such cache, or nothing was purged.
    fn purge(&self, wanted: PurgeRequest) -> BoxFuture<'static, Result<u64, ChangeError>>;

    /// The namespace whose publish key signed this token. Never waits.
    ///
    /// # Errors
    /// Why the token is refused.
    fn verify_publish_token(&self, token: &str) -> Result<String, PublishError>;

    /// Publishes the items of the JSON `body` in their order, only in `namespace` if there is one.
    /// Never waits.
    ///
    /// # Errors
    /// The namespace is gone or the body is malformed, and nothing was published; or an item was
    /// refused, and those before it were published.
    fn publish(&self, body: &[u8], namespace: Option<&str>) -> Result<(), PublishError>;

    /// The channels with subscribers on this server that pass the filter, at most `max`.
    fn list_channels(
        &self,
        filter: ChannelFilter,
        max: usize,
    ) -> BoxFuture<'static, Vec<ChannelPresence>>;

    /// The maximum size of such a body.
    fn max_publish_bytes(&self) -> usize;

    /// Starts a new process of the server, from `binary` if it is given, hands over the listeners
    /// and returns a sentence with the new process. Then the new process serves and this one drains.
    ///
    /// Cancel safety: as `reload`.
    ///
    /// # Errors
    /// Why the upgrade was aborted; this process continues.
    fn upgrade(&self, binary: Option<String>) -> BoxFuture<'static, Result<String, String>>;

    /// Reopens the log files, as after a rotation, and returns a sentence with their names.
    ///
    /// # Errors
    /// The files that could not be opened; the old files stay in use.
    fn reopen_logs(&self) -> BoxFuture<'static, Result<String, String>>;

    /// The control socket, as printed at the start.
    fn control_socket(&self) -> Option<String>;

    /// Begins the graceful shutdown and returns at once.
    fn stop(&self);

    /// Waits until a shutdown has ended all processes; what to tell the operator about those that
    /// did not end by themselves, a sentence each.
    fn stop_report(&self) -> BoxFuture<'static, Vec<String>>;

    /// Checks whether the server accepts new requests.
    ///
    /// # Errors
    /// Why not, in a sentence for the log of a load balancer.
    fn check_ready(&self) -> Result<(), String>;
}
