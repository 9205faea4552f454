//! The work for one name: storage, authority and callbacks. `worker` decides when it runs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::RevocationReason;

use super::{ServiceOptions, now};
use crate::ca::{CertificateAuthority, OrderContext, OrderRequest, TokenRecord, is_token};
use crate::callbacks::{CallbackError, Callbacks};
use crate::certificate::{Certificate, CertificateFacts};
use crate::challenge::ChallengeStore;
use crate::error::AcmeError;
use crate::name::CertificateName;
use crate::schedule::RenewalWindow;
use crate::settings::AcmeSettings;
use crate::storage::{
    Storage, StorageError, StorageLock, is_newer, keys, load_newest, store_certificate,
};

/// What all jobs share.
#[derive(Debug)]
pub(super) struct JobContext {
    pub(super) settings: AcmeSettings,
    pub(super) callbacks: Callbacks,
    storage: Arc<dyn Storage>,
    challenges: Arc<ChallengeStore>,
    authorities: Vec<CertificateAuthority>,
}

/// The certificate in use, as far as a job needs it.
#[derive(Debug, Clone)]
pub(super) struct CurrentCertificate {
    pub(super) facts: CertificateFacts,
    pub(super) directory: Arc<str>,
}

/// How an order ended.
#[derive(Debug)]
pub(super) enum OrderOutcome {
    /// The authority issued a certificate.
    Issued(Box<Certificate>),
    /// Another server had obtained one.
    Found(Box<Certificate>),
    /// Another server is ordering it.
    Elsewhere,
}

/// What a look at a certificate showed.
#[derive(Debug, Default)]
pub(super) struct CheckOutcome {
    pub(super) newer: Option<Box<Certificate>>,
    pub(super) answer: Option<(RenewalWindow, Duration)>,
}

/// How long the decision about a name on demand may take.
const PERMISSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Tokens of validations that ended with their server.
const MAX_TOKEN_AGE: Duration = Duration::from_secs(3600);

impl JobContext {
    pub(super) fn new(options: ServiceOptions) -> Self {
        let settings = options.settings;
        let authority = |directory: &crate::settings::Directory| {
            CertificateAuthority::new(directory.clone(), &settings, options.pool.clone())
        };
        Self {
            authorities: settings.directories.iter().map(authority).collect(),
            callbacks: options.callbacks,
            storage: options.storage,
            challenges: options.challenges,
            settings,
        }
    }

    /// Whether a client's request may bring this name.
    pub(super) fn allows_on_demand(&self, name: &CertificateName) -> bool {
        let is_possible =
            |authority: &CertificateAuthority| !authority.directory.is_public() || name.is_public();
        self.callbacks.on_demand.is_some() && self.authorities.iter().any(is_possible)
    }

    pub(super) async fn ask_permission(
        &self,
        name: &CertificateName,
    ) -> Result<bool, CallbackError> {
        let Some(policy) = &self.callbacks.on_demand else {
            return Ok(false);
        };
        let asked = tokio::time::timeout(PERMISSION_TIMEOUT, policy.is_allowed(name));
        let late = |_| CallbackError(format!("no answer within {PERMISSION_TIMEOUT:?}"));
        asked.await.map_err(late)?
    }

    pub(super) async fn load(
        &self,
        name: &CertificateName,
    ) -> Result<Option<Certificate>, StorageError> {
        load_newest(&*self.storage, &self.settings.directories, name, now()).await
    }

    /// Compares with the storage, and asks the authority for the renewal window. Neither is needed
    /// at once: an error is logged, and the next look is in an hour.
    pub(super) async fn check(
        &self,
        name: &CertificateName,
        current: &CurrentCertificate,
        asks_authority: bool,
    ) -> CheckOutcome {
        let mut outcome = CheckOutcome::default();
        match self.load(name).await {
            Ok(found) => {
                let newer = found.filter(|found| is_newer(&found.facts, &current.facts));
                outcome.newer = newer.map(Box::new);
            }
            Err(error) => {
                log::warn!("acme: a certificate cannot be looked at: {error} (name={name})");
            }
        }
        let authority = self.authority_of(current);
        if let (true, None, Some(authority), Some(id)) = (
            asks_authority,
            &outcome.newer,
            authority,
            &current.facts.ari_id,
        ) {
            match authority.renewal_info(&self.storage, id).await {
                Ok(info) => {
                    outcome.answer = info.map(|info| {
                        let (start, end) = (info.start, info.end);
                        (RenewalWindow { start, end }, info.retry_after)
                    });
                }
                Err(error) => log::warn!("acme: no renewal window: {error} (name={name})"),
            }
        }
        outcome
    }

    /// Orders a certificate under the lock of its name, unless another server has or does.
    pub(super) async fn order(
        &self,
        name: &CertificateName,
        directory: usize,
        attempt: u32,
        current: Option<&CurrentCertificate>,
    ) -> Result<OrderOutcome, AcmeError> {
        let segment = keys::certificate_lock(name);
        let Some(lock) = StorageLock::try_acquire(&self.storage, &segment).await? else {
            return Ok(OrderOutcome::Elsewhere);
        };
        let ordered = tokio::select! {
            result = self.order_locked(name, directory, attempt, current) => result,
            () = lock.wait_lost() => Err(AcmeError::LockLost),
        };
        lock.release().await;
        ordered
    }

    async fn order_locked(
        &self,
        name: &CertificateName,
        directory: usize,
        attempt: u32,
        current: Option<&CurrentCertificate>,
    ) -> Result<OrderOutcome, AcmeError> {
        let found = self.load(name).await?;
        let is_news = |found: &Certificate| {
            current.is_none_or(|current| is_newer(&found.facts, &current.facts))
        };
        if let Some(found) = found.filter(is_news) {
            return Ok(OrderOutcome::Found(Box::new(found)));
        }
        let authority = self.authorities.get(directory);
        let authority = authority.ok_or(AcmeError::NoAuthority)?;
        let of_authority =
            |current: &&CurrentCertificate| *current.directory == *authority.directory.url;
        let replaced = current.filter(of_authority);
        let request = OrderRequest {
            name,
            attempt: usize::try_from(attempt).unwrap_or(usize::MAX),
            replaces: replaced.and_then(|current| current.facts.ari_id.as_deref()),
        };
        let context = OrderContext {
            settings: &self.settings,
            storage: &self.storage,
            challenges: &self.challenges,
            callbacks: &self.callbacks,
        };
        // Validation, issuance and the hook twice have a deadline each; this is for their sum.
        let after = self.settings.limits.validation_timeout * 4;
        let ordering = tokio::time::timeout(after, authority.order(context, request));
        let step = "the order";
        let certificate = ordering
            .await
            .map_err(|_| AcmeError::Timeout { step, after })??;
        // It is used although it is not stored: another order would cost the authority's patience.
        if let Err(error) = store_certificate(&*self.storage, name, &certificate).await {
            log::error!("acme: a new certificate is used but not stored: {error} (name={name})");
        }
        Ok(OrderOutcome::Issued(Box::new(certificate)))
    }

    pub(super) async fn revoke(
        &self,
        name: &CertificateName,
        reason: Option<RevocationReason>,
    ) -> Result<bool, AcmeError> {
        let Some(certificate) = self.load(name).await? else {
            return Ok(false);
        };
        let current = CurrentCertificate {
            facts: certificate.facts.clone(),
            directory: Arc::clone(&certificate.ready.directory),
        };
        let Some(authority) = self.authority_of(&current) else {
            return Ok(false);
        };
        let leaf = certificate.leaf()?;
        authority.revoke(&self.storage, &leaf, reason).await?;
        log::info!(
            "acme: certificate revoked (name={name}, directory={})",
            current.directory
        );
        Ok(true)
    }

    /// Finds the response to a validation that another server has begun.
    pub(super) async fn find_token(&self, token: &str) -> Option<String> {
        if !is_token(token) {
            return None;
        }
        for directory in &self.settings.directories {
            let key = keys::challenge_token(&directory.url, token);
            let record = self.storage.load(&key).await.ok()??;
            let record: TokenRecord = serde_json::from_slice(&record).ok()?;
            if record.token == token {
                return Some(record.key_authorization);
            }
        }
        None
    }

    /// Removes tokens that a server left behind when it ended during a validation.
    pub(super) async fn remove_old_tokens(&self) {
        if self.storage.removes_temporary_values() {
            return;
        }
        for directory in &self.settings.directories {
            let folder = keys::challenge_tokens(&directory.url);
            for key in self.storage.list(&folder).await.unwrap_or_default() {
                let info = self.storage.stat(&key).await.ok().flatten();
                let modified = info.and_then(|info| info.modified);
                let is_old = |modified: SystemTime| {
                    now()
                        .duration_since(modified)
                        .is_ok_and(|age| age > MAX_TOKEN_AGE)
                };
                if modified.is_some_and(is_old)
                    && let Err(error) = self.storage.delete(&key).await
                {
                    log::debug!("acme: an old token stays: {error}");
                }
            }
        }
    }

    fn authority_of(&self, current: &CurrentCertificate) -> Option<&CertificateAuthority> {
        let mut authorities = self.authorities.iter();
        authorities.find(|authority| *authority.directory.url == *current.directory)
    }
}
