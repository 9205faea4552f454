//! What the service needs from its owner: where certificates go, the DNS hook, and the decision
//! about names on demand.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::certificate::CertificateReady;
use crate::name::CertificateName;

/// The future of a callback.
pub type CallbackFuture<T> = Pin<Box<dyn Future<Output = Result<T, CallbackError>> + Send>>;

/// Why a callback failed, in words for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallbackError(pub String);

/// Receives certificates. Called from the service's task: it must not block.
pub trait CertificateSink: Send + Sync {
    /// Uses this certificate from now on, instead of an earlier one for the same names.
    fn install(&self, certificate: CertificateReady);

    /// Stops using the certificate for a name that the service no longer has.
    fn remove(&self, name: &CertificateName);
}

/// Creates and removes the records of DNS-01 challenges.
pub trait DnsHook: Send + Sync {
    /// Runs the hook. It returns once the record can be seen at the domain's name servers. It is
    /// dropped after [`crate::IssuanceLimits::validation_timeout`].
    fn call(&self, call: DnsHookCall) -> CallbackFuture<()>;
}

/// Decides whether a name that a client asked for may get a certificate.
pub trait OnDemandPolicy: Send + Sync {
    /// Returns whether the name may have one. Dropped after ten seconds, which counts as an error.
    fn is_allowed(&self, name: &CertificateName) -> CallbackFuture<bool>;
}

/// One call of the DNS hook: `hook present|cleanup DOMAIN NAME VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsHookCall {
    /// What to do.
    pub verb: DnsHookVerb,
    /// The domain that is validated, such as `example.com`.
    pub domain: String,
    /// Name of the `TXT` record, such as `_acme-challenge.example.com`.
    pub record: String,
    /// Its value.
    pub value: String,
}

impl DnsHookCall {
    /// The arguments of the hook's program, in order.
    #[must_use]
    pub fn arguments(&self) -> [&str; 4] {
        [self.verb.as_str(), &self.domain, &self.record, &self.value]
    }
}

/// What a DNS hook does with the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsHookVerb {
    /// Create it.
    Present,
    /// Remove it.
    Cleanup,
}

impl DnsHookVerb {
    /// The first argument of the hook.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Cleanup => "cleanup",
        }
    }
}

/// The callbacks of a service.
#[derive(Clone)]
pub struct Callbacks {
    /// Where certificates go.
    pub sink: Arc<dyn CertificateSink>,
    /// The DNS hook; without it DNS-01 is not used.
    pub dns_hook: Option<Arc<dyn DnsHook>>,
    /// The decision about names on demand; without it there are none.
    pub on_demand: Option<Arc<dyn OnDemandPolicy>>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("dns_hook", &self.dns_hook.is_some())
            .field("on_demand", &self.on_demand.is_some())
            .finish_non_exhaustive()
    }
}
