//! What the status room asks of the rest of the server.
//!
//! Implemented once by `penstock`'s wiring, which knows edge, applications and configuration, and by
//! a made-up server in tests. What must stay true: `snapshot` never waits, since it runs on a loop.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use penstock_exchange::metrics::{AppMetrics, EdgeMetrics};

use crate::{
    PublishError, PurgeError, PurgeRequest, ServerChangeRequest, ServerChangeRequestError, Snapshot,
};

/// Work that answers later.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The server as the status room sees it.
pub trait AdminOperations: Send + Sync + Debug {
    /// How everything is now; cheap enough for once a second.
    fn snapshot(&self) -> Snapshot;

    /// What edge counts.
    fn edge_metrics(&self) -> Arc<EdgeMetrics>;

    /// What each application counts, by its name.
    fn app_metrics(&self) -> Vec<(String, Arc<AppMetrics>)>;

    /// Reads the configuration again and goes over to it; gives a sentence on what changed.
    ///
    /// Cancel safety: a client that leaves drops the future, and the reload must go on without it.
    ///
    /// # Errors
    /// A text with all errors; the old configuration stays.
    fn reload(&self) -> BoxFuture<'static, Result<String, String>>;

    /// Rolls one application to its code as it is now; `None` when there is no such application.
    ///
    /// Cancel safety: as `reload`.
    ///
    /// # Errors
    /// Why the new code was given up; the old code serves on.
    fn restart_app(&self, app: &str) -> BoxFuture<'static, Option<Result<(), String>>>;

    /// Changes the servers of one upstream; gives a sentence on what is true now.
    ///
    /// # Errors
    /// That there is no such upstream or server, or why the change cannot be; nothing has changed.
    fn change_servers(
        &self,
        upstream: &str,
        change: ServerChangeRequest,
    ) -> BoxFuture<'static, Result<String, ServerChangeRequestError>>;

    /// Takes out of the caches what `wanted` says; gives the number of objects. Nothing of it is served
    /// any more when the future is done.
    ///
    /// Cancel safety: a purge that has begun is made whole.
    ///
    /// # Errors
    /// That there is no such cache, or why nothing was purged.
    fn purge(&self, wanted: PurgeRequest) -> BoxFuture<'static, Result<u64, PurgeError>>;

    /// The namespace whose publish key signed this token. Never waits.
    ///
    /// # Errors
    /// Why the token is not accepted.
    fn verify_publish_token(&self, token: &str) -> Result<String, PublishError>;

    /// Publishes the items that `body` has as JSON, in their order. Never waits. A publisher of a
    /// `namespace` publishes in no other.
    ///
    /// # Errors
    /// That this namespace is gone, that the body is not understood, and nothing of it was published; or which item was refused and why:
    /// those before it were published.
    fn publish(&self, body: &[u8], namespace: Option<&str>) -> Result<(), PublishError>;

    /// How many bytes such a body may have.
    fn max_publish_bytes(&self) -> usize;

    /// Starts the server's program anew, `binary` if one is named, and hands it the listeners; gives a
    /// sentence with the new process. When it is done the new one serves and this one drains.
    ///
    /// Cancel safety: as `reload`.
    ///
    /// # Errors
    /// Why the new one was given up; this one serves on.
    fn upgrade(&self, binary: Option<String>) -> BoxFuture<'static, Result<String, String>>;

    /// Opens the files of the logs anew, as after a rename; gives a sentence with them.
    ///
    /// # Errors
    /// Which could not be opened, and why; their old files are written on.
    fn reopen_logs(&self) -> BoxFuture<'static, Result<String, String>>;

    /// Where the control socket is, as printed at the start.
    fn control_socket(&self) -> Option<String>;

    /// Begins the graceful shutdown and returns at once.
    fn stop(&self);

    /// Whether new requests are welcome here.
    ///
    /// # Errors
    /// Why not, in a sentence for a load balancer's log.
    fn check_ready(&self) -> Result<(), String>;
}
