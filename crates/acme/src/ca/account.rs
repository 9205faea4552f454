//! The account at an authority: loaded from the storage, or created once for all servers; renewal
//! information and revocation.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::{
    Account, CertificateIdentifier, NewAccount, RevocationReason, RevocationRequest,
};
use penstock_runtime::blocking::Pool;
use rcgen::KeyPair;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::transport::Transport;
use crate::error::{AcmeError, SharedFailure};
use crate::settings::{AcmeSettings, Directory};
use crate::storage::{Storage, StorageLock, keys};

/// An authority of the settings. It is contacted when it is first needed.
#[derive(Debug)]
pub(crate) struct CertificateAuthority {
    pub(crate) directory: Directory,
    email: Option<String>,
    request_timeout: Duration,
    is_chain_preferred: bool,
    pool: Pool,
    /// How long the names that wait for the account share its failure.
    failure_hold: Duration,
    /// The account in use; held while it is loaded or created, so that this happens once.
    session: Mutex<SessionSlot>,
}

/// The account, or why there is none.
#[derive(Debug, Default)]
struct SessionSlot {
    session: Option<Session>,
    failed: Option<(Instant, SharedFailure)>,
}

/// An account and the connections that it uses. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) account: Account,
    pub(crate) transport: Transport,
    opened: Instant,
}

/// When to renew, as the authority suggests it (RFC 9773 §4.2), and when to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RenewalInfo {
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) retry_after: Duration,
}

/// The content of the account's `.json` file, as far as certmagic's is needed.
#[derive(Debug, Serialize, Deserialize)]
struct AccountRecord {
    status: String,
    contact: Vec<String>,
    location: String,
}

/// The directory is read again after this time: an authority may move its resources.
const MAX_SESSION_AGE: Duration = Duration::from_secs(86_400);

/// How long another server may take to create the account.
const ACCOUNT_LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const ACCOUNT_LOCK_RETRY: Duration = Duration::from_millis(500);

impl CertificateAuthority {
    pub(crate) fn new(directory: Directory, settings: &AcmeSettings, pool: Pool) -> Self {
        Self {
            directory,
            email: settings.email.clone(),
            request_timeout: settings.limits.request_timeout,
            is_chain_preferred: settings.preferred_chain.is_some(),
            pool,
            failure_hold: settings.renewal.min_retry / 2,
            session: Mutex::default(),
        }
    }

    /// The account, loaded or created. After a failure the names that wait for it fail as well:
    /// they do not all wait for an authority that is down.
    pub(crate) async fn session(&self, storage: &Arc<dyn Storage>) -> Result<Session, AcmeError> {
        let mut slot = self.session.lock().await;
        if let Some(session) = &slot.session
            && session.opened.elapsed() < MAX_SESSION_AGE
        {
            return Ok(session.clone());
        }
        if let Some((at, failure)) = &slot.failed
            && at.elapsed() < self.failure_hold
        {
            return Err(AcmeError::Account(failure.clone()));
        }
        match self.open_session(storage).await {
            Ok(session) => {
                slot.failed = None;
                Ok(slot.session.insert(session).clone())
            }
            Err(error) => {
                let failure = SharedFailure::new(&error);
                slot.failed = Some((Instant::now(), failure));
                Err(error)
            }
        }
    }

    async fn open_session(&self, storage: &Arc<dyn Storage>) -> Result<Session, AcmeError> {
        let transport = self.connect().await?;
        let account = match self.load_account(storage, &transport).await? {
            Some(account) => account,
            None => self.create_account(storage, &transport).await?,
        };
        let opened = Instant::now();
        Ok(Session {
            account,
            transport,
            opened,
        })
    }

    /// Drops an account that the authority does not know any longer; the next session creates one.
    pub(crate) async fn forget_account(
        &self,
        storage: &Arc<dyn Storage>,
        session: &Session,
    ) -> Result<(), AcmeError> {
        self.session.lock().await.session = None;
        let record = self.load_record(storage).await?;
        // Another server may have created a new one in the meantime.
        if record.is_some_and(|record| record.location == session.account.id()) {
            log::warn!(
                "acme: the authority does not know the account any longer: a new one is created \
                 (directory={})",
                self.directory.url
            );
            storage.delete(&self.account_key("json")).await?;
            storage.delete(&self.account_key("key")).await?;
        }
        Ok(())
    }

    /// Asks when the certificate with this identifier should be renewed; `None` if the authority
    /// has no opinion.
    pub(crate) async fn renewal_info(
        &self,
        storage: &Arc<dyn Storage>,
        ari_id: &str,
    ) -> Result<Option<RenewalInfo>, AcmeError> {
        let Some(id) = certificate_identifier(ari_id) else {
            return Ok(None);
        };
        let session = self.session(storage).await?;
        match session.account.renewal_info(&id).await {
            Ok((info, retry_after)) => Ok(Some(RenewalInfo {
                start: info.suggested_window.start.into(),
                end: info.suggested_window.end.into(),
                retry_after,
            })),
            Err(instant_acme::Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Revokes a certificate (RFC 8555 §7.6). One that is revoked already counts as success.
    pub(crate) async fn revoke(
        &self,
        storage: &Arc<dyn Storage>,
        leaf: &CertificateDer<'_>,
        reason: Option<RevocationReason>,
    ) -> Result<(), AcmeError> {
        let session = self.session(storage).await?;
        let request = RevocationRequest {
            certificate: leaf,
            reason,
        };
        match with_fresh_nonces!(session.account.revoke(&request)) {
            Err(error) if error.is_problem("alreadyRevoked") => Ok(()),
            result => result,
        }
    }

    async fn connect(&self) -> Result<Transport, AcmeError> {
        let ca_file = self.directory.ca_file.clone();
        let job = self.pool.run(move || read_roots(ca_file.as_deref()));
        let roots = job
            .await
            .map_err(|error| AcmeError::Roots(error.to_string()))?;
        let transport = Transport::new(roots?, self.request_timeout, self.is_chain_preferred);
        transport.map_err(|error| AcmeError::Roots(error.to_string()))
    }

    async fn load_record(
        &self,
        storage: &Arc<dyn Storage>,
    ) -> Result<Option<AccountRecord>, AcmeError> {
        let record = storage.load(&self.account_key("json")).await?;
        Ok(record.and_then(|record| serde_json::from_slice(&record).ok()))
    }

    /// Loads the account. One that cannot be read is replaced: an account is no asset.
    async fn load_account(
        &self,
        storage: &Arc<dyn Storage>,
        transport: &Transport,
    ) -> Result<Option<Account>, AcmeError> {
        let Some(record) = self.load_record(storage).await? else {
            return Ok(None);
        };
        let Some(key) = storage.load(&self.account_key("key")).await? else {
            return Ok(None);
        };
        let Ok(key) = PrivatePkcs8KeyDer::from_pem_slice(&key) else {
            let place = self.account_key("key");
            log::warn!(
                "acme: the stored account key is not PKCS#8 in PEM and is replaced (key={place})"
            );
            return Ok(None);
        };
        let builder = Account::builder_with_http(Box::new(transport.clone()));
        let url = self.directory.url.clone();
        Ok(Some(builder.from_parts(record.location, key, url).await?))
    }

    async fn create_account(
        &self,
        storage: &Arc<dyn Storage>,
        transport: &Transport,
    ) -> Result<Account, AcmeError> {
        let name = format!("account_{}", keys::authority_segment(&self.directory.url));
        let deadline = Instant::now() + ACCOUNT_LOCK_TIMEOUT;
        let lock = loop {
            if let Some(lock) = StorageLock::try_acquire(storage, &name).await? {
                break lock;
            }
            if Instant::now() >= deadline {
                let step = "waiting for another server to create the account";
                let after = ACCOUNT_LOCK_TIMEOUT;
                return Err(AcmeError::Timeout { step, after });
            }
            sleep(ACCOUNT_LOCK_RETRY).await;
        };
        // Another server may have created it before the lock was free.
        let account = match self.load_account(storage, transport).await {
            Ok(Some(account)) => Ok(account),
            Ok(None) => self.register(storage, transport).await,
            Err(error) => Err(error),
        };
        lock.release().await;
        account
    }

    async fn register(
        &self,
        storage: &Arc<dyn Storage>,
        transport: &Transport,
    ) -> Result<Account, AcmeError> {
        let contact = self.email.iter().map(|email| format!("mailto:{email}"));
        let contact: Vec<String> = contact.collect();
        let new_account = NewAccount {
            contact: &contact.iter().map(String::as_str).collect::<Vec<_>>(),
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let external = self.directory.external_account.as_ref();
        let external = external.map(crate::settings::ExternalAccount::key);
        let builder = || Account::builder_with_http(Box::new(transport.clone()));
        let url = &self.directory.url;
        let external = external.as_ref();
        let (account, credentials) =
            with_fresh_nonces!(builder().create(&new_account, url.clone(), external))?;
        let record = AccountRecord {
            status: "valid".to_owned(),
            contact,
            location: account.id().to_owned(),
        };
        let record = serde_json::to_vec_pretty(&record).unwrap_or_default();
        let key = KeyPair::try_from(credentials.private_key())?;
        let key = Zeroizing::new(key.serialize_pem().into_bytes());
        storage.store(&self.account_key("key"), key).await?;
        let record = Zeroizing::new(record);
        storage.store(&self.account_key("json"), record).await?;
        log::info!(
            "acme: account created (directory={}, account={})",
            self.directory.url,
            account.id()
        );
        Ok(account)
    }

    fn account_key(&self, extension: &str) -> String {
        keys::account(&self.directory.url, self.email.as_deref(), extension)
    }
}

pub(super) fn certificate_identifier(ari_id: &str) -> Option<CertificateIdentifier<'_>> {
    let (authority, serial) = ari_id.split_once('.')?;
    Some(CertificateIdentifier {
        authority_key_identifier: authority.into(),
        serial: serial.into(),
    })
}

/// Reads the roots of a file, or the system's.
fn read_roots(ca_file: Option<&Path>) -> Result<RootCertStore, AcmeError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca_file else {
        let found = rustls_native_certs::load_native_certs();
        // Some systems ship roots that rustls does not accept; the others remain.
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(AcmeError::Roots(
                "this system has no root certificates: install ca-certificates, or name a file \
                 with them for the authority"
                    .to_owned(),
            ));
        }
        return Ok(roots);
    };
    let broken = |cause: String| AcmeError::Roots(format!("{}: {cause}", path.display()));
    let certificates = CertificateDer::pem_file_iter(path).map_err(|e| broken(e.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| broken(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| broken(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(broken("the file has no certificate in PEM".to_owned()));
    }
    Ok(roots)
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}
