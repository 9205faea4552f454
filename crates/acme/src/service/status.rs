//! The state of each name, for the status page and for handshakes that wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use penstock_runtime::clock;
use serde::Serialize;
use tokio::sync::watch;

use super::OnDemandError;
use crate::name::CertificateName;

/// The state of one name's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertificateStatus {
    /// The name.
    pub name: String,
    /// What there is.
    pub state: CertificateState,
    /// Whether a client's request brought the name, not the configuration.
    pub is_on_demand: bool,
    /// URL of the directory of the authority that issued the certificate.
    pub directory: Option<String>,
    /// When the certificate expires, in seconds since 1970.
    pub not_after: Option<u64>,
    /// When the certificate is to be renewed, in seconds since 1970.
    pub renew_at: Option<u64>,
    /// When the next order is tried after a failure, in seconds since 1970.
    pub retry_at: Option<u64>,
    /// Consecutive failed attempts.
    pub failed_attempts: u32,
    /// Certificates obtained from an authority by this server.
    pub issued_total: u64,
    /// Failed attempts since the name was added.
    pub failed_total: u64,
    /// Why the last attempt failed; none after a success.
    pub last_error: Option<String>,
}

/// What there is of a name's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateState {
    /// The storage has not been read yet, or an order waits for its turn.
    Pending,
    /// It is being ordered for the first time.
    Ordering,
    /// Another server with the same storage orders it.
    OrderedElsewhere,
    /// There is one.
    Valid,
    /// There is one, and its successor is being ordered.
    Renewing,
    /// There is one, and attempts to renew it fail.
    RenewalFailing,
    /// There is none, and attempts fail.
    Failing,
}

impl CertificateState {
    /// Whether there is a certificate.
    #[must_use]
    pub fn has_certificate(self) -> bool {
        matches!(self, Self::Valid | Self::Renewing | Self::RenewalFailing)
    }
}

/// The states of all names.
#[derive(Debug)]
pub(super) struct StatusTable {
    /// Locked for one name's change or for a copy.
    rows: Mutex<StatusRows>,
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct StatusRows {
    known: BTreeMap<CertificateName, CertificateStatus>,
    /// Names on demand that were dropped: why, and until when that holds.
    dropped: BTreeMap<CertificateName, (OnDemandError, Instant)>,
}

impl Default for StatusTable {
    fn default() -> Self {
        Self {
            rows: Mutex::default(),
            version: watch::Sender::new(0),
        }
    }
}

impl StatusTable {
    pub(super) fn set(&self, name: &CertificateName, status: CertificateStatus) {
        let mut rows = self.rows.lock();
        rows.dropped.remove(name);
        rows.known.insert(name.clone(), status);
        drop(rows);
        self.announce();
    }

    pub(super) fn remove(&self, name: &CertificateName) {
        self.rows.lock().known.remove(name);
        self.announce();
    }

    /// Removes a name on demand, and refuses it for this time.
    pub(super) fn drop_name(&self, name: &CertificateName, reason: OnDemandError, hold: Duration) {
        let now = clock::now();
        let mut rows = self.rows.lock();
        rows.known.remove(name);
        if rows.dropped.len() >= MAX_DROPPED {
            rows.dropped.retain(|_, (_, until)| *until > now);
        }
        if rows.dropped.len() < MAX_DROPPED {
            rows.dropped.insert(name.clone(), (reason, now + hold));
        }
        drop(rows);
        self.announce();
    }

    /// Why a name on demand is refused now.
    pub(super) fn refusal(&self, name: &CertificateName) -> Option<OnDemandError> {
        let (reason, until) = *self.rows.lock().dropped.get(name)?;
        (clock::now() < until).then_some(reason)
    }

    pub(super) fn is_known(&self, name: &CertificateName) -> bool {
        self.rows.lock().known.contains_key(name)
    }

    pub(super) fn find(&self, name: &CertificateName) -> Option<CertificateStatus> {
        self.rows.lock().known.get(name).cloned()
    }

    pub(super) fn snapshot(&self) -> Vec<CertificateStatus> {
        self.rows.lock().known.values().cloned().collect()
    }

    /// The outcome for a name on demand; `None` while it is not decided.
    pub(super) fn on_demand_outcome(
        &self,
        name: &CertificateName,
    ) -> Option<Result<(), OnDemandError>> {
        let status = self.find(name);
        match status {
            Some(status) if status.state.has_certificate() => Some(Ok(())),
            Some(status) if status.state == CertificateState::Failing => {
                Some(Err(OnDemandError::Failed))
            }
            Some(_) => None,
            None => self.refusal(name).map(Err),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn announce(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}

/// Bound of the names whose refusal is remembered: strangers choose them.
const MAX_DROPPED: usize = 4096;

pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
