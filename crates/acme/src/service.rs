//! The service as its owner sees it: names in, certificates and states out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::RevocationReason;
use penstock_runtime::blocking::Pool;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::callbacks::Callbacks;
use crate::challenge::ChallengeStore;
use crate::error::AcmeError;
use crate::name::CertificateName;
use crate::settings::AcmeSettings;
use crate::storage::Storage;

mod inbox;
mod jobs;
mod on_demand;
mod status;
mod worker;

use self::inbox::Inbox;
use self::jobs::JobContext;
use self::status::StatusTable;
pub use self::status::{CertificateState, CertificateStatus};
use self::worker::Worker;

/// Obtains certificates and keeps them valid. Cheap to clone; all clones are one service.
#[derive(Debug, Clone)]
pub struct CertificateService {
    inner: Arc<ServiceInner>,
}

/// What a service is started with.
#[derive(Debug)]
pub struct ServiceOptions {
    /// Authorities, challenges, bounds.
    pub settings: AcmeSettings,
    /// Where accounts and certificates are kept.
    pub storage: Arc<dyn Storage>,
    /// Where certificates go, and who decides.
    pub callbacks: Callbacks,
    /// Responses to challenges, shared with the listeners.
    pub challenges: Arc<ChallengeStore>,
    /// Runs file calls.
    pub pool: Pool,
}

#[derive(Debug)]
struct ServiceInner {
    inbox: Arc<Inbox>,
    status: Arc<StatusTable>,
    jobs: Arc<JobContext>,
    token_lookups: Semaphore,
}

/// Why a name on demand gets no certificate now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum OnDemandError {
    /// There is no decision about names on demand, or it has refused this name.
    #[error("the name is not allowed")]
    NotAllowed,
    /// Certificates of this kind are only for exact names that public authorities accept.
    #[error("no certificate on demand is possible for this name")]
    NotPossible,
    /// Too many names wait, or are known already.
    #[error("too many names on demand")]
    Full,
    /// Attempts have failed; the next one is later.
    #[error("attempts have failed")]
    Failed,
    /// It did not arrive in time. It may arrive later.
    #[error("the certificate did not arrive in time")]
    Timeout,
}

/// Bounds of [`CertificateService::find_http_response`], which strangers can cause.
const MAX_TOKEN_LOOKUPS: usize = 16;
const TOKEN_LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

impl CertificateService {
    /// Starts the service on a tokio runtime, without names. Returns at once.
    #[must_use]
    pub fn start(runtime: &Handle, options: ServiceOptions) -> Self {
        let inbox = Arc::new(Inbox::default());
        let status = Arc::new(StatusTable::default());
        let jobs = Arc::new(JobContext::new(options));
        let worker = Worker::new(Arc::clone(&inbox), Arc::clone(&status), Arc::clone(&jobs));
        runtime.spawn(worker.run());
        Self {
            inner: Arc::new(ServiceInner {
                inbox,
                status,
                jobs,
                token_lookups: Semaphore::new(MAX_TOKEN_LOOKUPS),
            }),
        }
    }

    /// Sets the names that need a certificate, instead of the earlier ones. Names that are no
    /// longer in the set are not renewed any longer, and the sink removes their certificates.
    pub fn set_names(&self, names: impl IntoIterator<Item = CertificateName>) {
        let names: BTreeSet<CertificateName> = names.into_iter().collect();
        self.inner.inbox.push(|queue| queue.names = Some(names));
    }

    /// Requests a certificate for a name that a client asked for. Returns at once; the certificate
    /// arrives at the sink.
    ///
    /// # Errors
    /// When the name cannot have one, or not now.
    pub fn request_on_demand(&self, name: &CertificateName) -> Result<(), OnDemandError> {
        let is_supported = self.inner.jobs.allows_on_demand(name);
        if !is_supported || name.is_wildcard() || name.ip().is_some() {
            return Err(OnDemandError::NotPossible);
        }
        if self.inner.status.is_known(name) {
            return Ok(());
        }
        if let Some(reason) = self.inner.status.refusal(name) {
            return Err(reason);
        }
        let max = self.inner.jobs.settings.limits.max_on_demand_waiting;
        self.inner.inbox.try_push(|queue| {
            if queue.on_demand.len() >= max && !queue.on_demand.contains(name) {
                return Err(OnDemandError::Full);
            }
            queue.on_demand.insert(name.clone());
            Ok(())
        })
    }

    /// Requests a certificate like [`CertificateService::request_on_demand`] and waits until the
    /// sink has it. A handshake that waits here needs a bound of its own on how many do.
    ///
    /// # Errors
    /// When the name gets none within `timeout`.
    pub async fn obtain_on_demand(
        &self,
        name: &CertificateName,
        timeout: Duration,
    ) -> Result<(), OnDemandError> {
        let mut changes = self.inner.status.subscribe();
        self.request_on_demand(name)?;
        let deadline = Instant::now() + timeout;
        loop {
            changes.borrow_and_update();
            if let Some(outcome) = self.inner.status.on_demand_outcome(name) {
                return outcome;
            }
            let changed = tokio::time::timeout_at(deadline, changes.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return Err(OnDemandError::Timeout);
            }
        }
    }

    /// Looks at a certificate now: storage and renewal window; a failed attempt is repeated now.
    pub fn check(&self, name: &CertificateName) {
        let name = name.clone();
        self.inner.inbox.push(|queue| queue.checks.extend([name]));
    }

    /// Replaces a certificate now, although it is valid.
    pub fn renew(&self, name: &CertificateName) {
        let name = name.clone();
        self.inner.inbox.push(|queue| queue.renewals.extend([name]));
    }

    /// Revokes the certificate of a name (RFC 8555 §7.6), and replaces it.
    ///
    /// # Errors
    /// When the authority or the storage refuses. `Ok(false)` without a certificate.
    pub async fn revoke(
        &self,
        name: &CertificateName,
        reason: Option<RevocationReason>,
    ) -> Result<bool, AcmeError> {
        let is_revoked = self.inner.jobs.revoke(name, reason).await?;
        if is_revoked {
            self.renew(name);
        }
        Ok(is_revoked)
    }

    /// Finds the response to an HTTP-01 validation that another server with the same storage has
    /// begun. Ask the [`ChallengeStore`] first. Anybody can cause this lookup, so it has bounds.
    pub async fn find_http_response(&self, token: &str) -> Option<String> {
        let _permit = self.inner.token_lookups.try_acquire().ok()?;
        let lookup = self.inner.jobs.find_token(token);
        let found = tokio::time::timeout(TOKEN_LOOKUP_TIMEOUT, lookup).await;
        found.ok().flatten()
    }

    /// The state of every name, in order.
    #[must_use]
    pub fn snapshot(&self) -> Vec<CertificateStatus> {
        self.inner.status.snapshot()
    }

    /// The state of one name.
    #[must_use]
    pub fn status(&self, name: &CertificateName) -> Option<CertificateStatus> {
        self.inner.status.find(name)
    }

    /// Waits until a state satisfies `is_met`; `false` if that takes longer than `timeout`.
    pub async fn wait_until(
        &self,
        timeout: Duration,
        mut is_met: impl FnMut(&Self) -> bool,
    ) -> bool {
        let mut changes = self.inner.status.subscribe();
        let deadline = Instant::now() + timeout;
        loop {
            changes.borrow_and_update();
            if is_met(self) {
                return true;
            }
            let changed = tokio::time::timeout_at(deadline, changes.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return is_met(self);
            }
        }
    }

    /// Stops: nothing new begins, and orders in progress get `grace` to end.
    pub async fn stop(&self, grace: Duration) {
        let stopped = self.inner.inbox.request_stop(grace);
        // A little longer than the worker needs; it may also have ended before.
        let _ = tokio::time::timeout(grace + Duration::from_secs(1), stopped).await;
    }
}

/// The present, for the schedules.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + penstock_runtime::clock::wall_time()
}
