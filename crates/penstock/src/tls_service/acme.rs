//! Certificates by ACME: starts the service of `penstock-acme`, gives it the hosts of sites with
//! `tls = "auto"`, and puts what it gets into the store.
//!
//! # Invariants
//!
//! - The service runs on tokio's thread; event loops only look into what it has published.
//! - A configuration with another `[acme]` gets another service.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_acme::{
    AcmeSettings, Callbacks, CertificateName, CertificateReady, CertificateService,
    CertificateSink, ChallengeStore, Directory, ExternalAccount, FolderStorage, RedisStorage,
    ServiceOptions, Storage,
};
use penstock_config::{Acme, AcmeStorage, ChallengeKind, Config, Secret, SiteTls};
use penstock_exchange::{HttpChallenges, SharedChallenges};
use penstock_runtime::LoopHandle;
use penstock_runtime::blocking::Pool;
use penstock_sys::process::Launcher;
use penstock_tls::certificate_file;
use penstock_tls::{CertificateSource, ChallengeCertificates, OnDemandNames, read_pem_file};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::sign::CertifiedKey;

use super::TlsService;
use super::dns_hook::HookCommand;
use super::on_demand::AskUrl;
use super::paths::default_certificate_folder;
use super::site_certificates::SiteEntry;
use crate::hub_service::read_authorities;

/// How long a start waits for certificates that are stored already.
const STORED_CERTIFICATES_TIMEOUT: Duration = Duration::from_secs(2);

/// How long orders in progress may take at a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What handshakes and requests of validations look into.
#[derive(Debug, Default)]
pub(super) struct AcmeHooks {
    pub(super) challenges: Arc<ChallengeStore>,
    /// Held for a copy only.
    running: Mutex<Option<RunningService>>,
}

/// The service and what it was started with.
#[derive(Debug, Clone)]
struct RunningService {
    service: CertificateService,
    settings: Acme,
    redis: RedisSettings,
    runtime: tokio::runtime::Handle,
}

/// What the service needs of the server.
#[derive(Debug)]
pub(crate) struct AcmeEnvironment {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) pool: Pool,
    /// Runs what needs an event loop: the DNS hook and requests to `ask`.
    pub(crate) event_loop: LoopHandle,
}

impl ChallengeCertificates for AcmeHooks {
    fn challenge_certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let found = self.challenges.tls_alpn_certificate(name)?;
        let key = PrivatePkcs8KeyDer::from(found.key_pkcs8.to_vec());
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&PrivateKeyDer::from(key));
        let chain: Vec<CertificateDer<'static>> = vec![found.certificate.clone()];
        Some(Arc::new(CertifiedKey::new(chain, key.ok()?)))
    }
}

impl OnDemandNames for AcmeHooks {
    fn name_requested(&self, name: &str) {
        let running = self.running.lock().clone();
        if let Some(running) = running.filter(|it| it.settings.on_demand.is_some())
            && let Ok(name) = CertificateName::parse(name)
            && let Err(error) = running.service.request_on_demand(&name)
        {
            log::debug!("acme: no certificate on demand: {error} (name={name})");
        }
    }
}

impl HttpChallenges for AcmeHooks {
    fn key_authorization(&self, token: &str) -> Option<String> {
        self.challenges
            .http_response(token)
            .map(|it| it.to_string())
    }
}

impl SharedChallenges for AcmeHooks {
    fn find_key_authorization(
        &self,
        token: String,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send>> {
        let running = self.running.lock().clone();
        Box::pin(async move {
            let RunningService {
                service, runtime, ..
            } = running?;
            // Its timers need tokio's thread.
            let lookup = runtime.spawn(async move { service.find_http_response(&token).await });
            lookup.await.ok().flatten()
        })
    }
}

impl TlsService {
    /// Starts to get certificates for the sites of `config`, which is in place, and waits a moment
    /// for those that are stored. Returns why there is no service.
    ///
    /// # Errors
    /// Storage or external account cannot be used.
    pub(crate) async fn configure_acme(
        self: &Arc<Self>,
        config: &Config,
        environment: &AcmeEnvironment,
    ) -> Result<(), String> {
        let uses_acme = config.sites.iter().any(|site| site.tls == SiteTls::Auto)
            && config.uses_site_certificates();
        let old = self.hooks.running.lock().clone();
        let is_same =
            |old: &RunningService| old.settings == config.acme && old.redis == redis_of(config);
        let service = match old {
            Some(old) if uses_acme && is_same(&old) => old.service,
            old => {
                if let Some(old) = old {
                    *self.hooks.running.lock() = None;
                    old.service.stop(STOP_TIMEOUT).await;
                }
                if !uses_acme {
                    return Ok(());
                }
                self.start_acme(config, environment).await?
            }
        };
        let hosts = config.sites.iter().filter(|site| site.tls == SiteTls::Auto);
        let hosts = hosts.flat_map(|site| &site.hosts).map(ToString::to_string);
        let mut names = Vec::new();
        for host in hosts {
            match CertificateName::parse(&host) {
                Ok(name) => names.push(name),
                Err(error) => log::error!("acme: no certificate for {host}: {error}"),
            }
        }
        service.set_names(names.iter().cloned());
        let has_looked = |service: &CertificateService| {
            names.iter().all(|name| {
                let state = service.status(name).map(|status| status.state);
                state.is_some_and(|state| state != penstock_acme::CertificateState::Pending)
            })
        };
        service
            .wait_until(STORED_CERTIFICATES_TIMEOUT, has_looked)
            .await;
        Ok(())
    }

    async fn start_acme(
        self: &Arc<Self>,
        config: &Config,
        environment: &AcmeEnvironment,
    ) -> Result<CertificateService, String> {
        let acme = &config.acme;
        let callbacks = Callbacks {
            sink: Arc::new(StoreSink(Arc::downgrade(self))),
            dns_hook: acme
                .dns_hook
                .as_ref()
                .map(|command| Arc::new(HookCommand::new(command, config, environment)) as Arc<_>),
            on_demand: acme
                .on_demand
                .as_ref()
                .map(|on_demand| Arc::new(AskUrl::new(&on_demand.ask, environment)) as Arc<_>),
        };
        let options = ServiceOptions {
            settings: service_settings(acme)?,
            storage: open_storage(config, &environment.pool).await?,
            callbacks,
            challenges: Arc::clone(&self.hooks.challenges),
            pool: environment.pool.clone(),
        };
        let service = CertificateService::start(&tokio::runtime::Handle::current(), options);
        *self.hooks.running.lock() = Some(RunningService {
            service: service.clone(),
            settings: acme.clone(),
            redis: redis_of(config),
            runtime: tokio::runtime::Handle::current(),
        });
        Ok(service)
    }

    /// Stops to order certificates.
    pub(crate) async fn stop_acme(&self) {
        let running = self.hooks.running.lock().take();
        if let Some(running) = running {
            running.service.stop(STOP_TIMEOUT).await;
        }
    }

    /// The states of certificates by ACME.
    pub(super) fn acme_states(&self) -> Vec<penstock_acme::CertificateStatus> {
        let running = self.hooks.running.lock().clone();
        running.map(|it| it.service.snapshot()).unwrap_or_default()
    }
}

/// Puts certificates into the store.
struct StoreSink(Weak<TlsService>);

impl CertificateSink for StoreSink {
    fn install(&self, certificate: CertificateReady) {
        let Some(service) = self.0.upgrade() else {
            return;
        };
        let (chain, key) = (&certificate.chain_pem, certificate.key_pem.expose());
        let source = CertificateSource::Acme;
        let now = UnixTime::now();
        match certificate_file::parse(chain.as_bytes(), key.as_bytes(), source, now) {
            Ok(loaded) => {
                for name in &certificate.names {
                    service.install(name.as_str(), &loaded.certificate);
                }
            }
            Err(error) => log::error!(
                "acme: a certificate cannot be used: {error} (directory={})",
                certificate.directory
            ),
        }
    }

    fn remove(&self, name: &CertificateName) {
        if let Some(service) = self.0.upgrade() {
            service.remove_on_demand(name.as_str());
        }
    }
}

impl TlsService {
    /// Puts a certificate by ACME in place for one host.
    pub(super) fn install(&self, host: &str, certificate: &penstock_tls::ServerCertificate) {
        let mut current = self.current.lock();
        let is_host = |entry: &&mut SiteEntry| entry.is_automatic() && entry.hosts == [host];
        match current.entries.iter_mut().find(is_host) {
            Some(entry) => entry.replace(certificate.clone()),
            None => {
                // A name on demand: of the site for any host.
                let open = current
                    .entries
                    .iter()
                    .find(|it| it.is_automatic_for_any_host());
                let Some(open) = open else { return };
                let entry = open.on_demand(host, certificate.clone());
                current.entries.push(entry);
            }
        }
        current.publish(&self.store);
    }

    /// Takes the certificate of a name on demand away.
    fn remove_on_demand(&self, host: &str) {
        let mut current = self.current.lock();
        let before = current.entries.len();
        current
            .entries
            .retain(|entry| !entry.is_on_demand_for(host));
        if current.entries.len() != before {
            current.publish(&self.store);
        }
    }
}

fn service_settings(acme: &Acme) -> Result<AcmeSettings, String> {
    let mut directories = Vec::new();
    for text in &acme.directory {
        let mut directory = Directory::parse(text).map_err(|error| format!("acme: {error}"))?;
        directory.ca_file.clone_from(&acme.ca);
        directory.profile.clone_from(&acme.profile);
        if let Some(account) = &acme.external_account {
            let file = &account.key_file;
            let name = file.display();
            let key = read_pem_file(file)
                .map_err(|error| format!("acme.external_account: {name}: {error}"))?;
            let key = String::from_utf8_lossy(&key);
            let account = ExternalAccount::new(&account.key_id, &key)
                .map_err(|error| format!("acme.external_account: {name}: {error}"))?;
            directory.external_account = Some(account);
        }
        directories.push(directory);
    }
    let mut settings = AcmeSettings::new(directories);
    settings.email.clone_from(&acme.email);
    let challenges = acme.challenges.iter().map(|kind| match kind {
        ChallengeKind::Http01 => penstock_acme::ChallengeKind::Http01,
        ChallengeKind::TlsAlpn01 => penstock_acme::ChallengeKind::TlsAlpn01,
        ChallengeKind::Dns01 => penstock_acme::ChallengeKind::Dns01,
        ChallengeKind::DnsPersist01 => penstock_acme::ChallengeKind::DnsPersist01,
    });
    settings.challenges = challenges.collect();
    if acme.storage == Some(AcmeStorage::Redis) {
        // A validation may reach any server, and only answers over HTTP are shared.
        settings
            .challenges
            .sort_by_key(|kind| *kind == penstock_acme::ChallengeKind::TlsAlpn01);
    }
    if let Some(on_demand) = &acme.on_demand {
        settings.limits.max_on_demand_orders =
            u32::try_from(on_demand.max_orders).unwrap_or(u32::MAX);
        settings.limits.on_demand_interval = on_demand.interval;
    }
    Ok(settings)
}

/// The shared Redis, and the file of its authorities.
type RedisSettings = (Option<Secret>, Option<PathBuf>);

fn redis_of(config: &Config) -> RedisSettings {
    (config.server.redis.clone(), config.server.redis_ca.clone())
}

async fn open_storage(config: &Config, pool: &Pool) -> Result<Arc<dyn Storage>, String> {
    let folder = match &config.acme.storage {
        Some(AcmeStorage::Redis) => {
            let (url, authorities) = redis_of(config);
            let authorities = match authorities {
                Some(path) => {
                    let read = pool.run(move || read_authorities(&path)).await;
                    Some(read.map_err(|error| error.to_string()).flatten()?)
                }
                None => None,
            };
            let url = url.as_ref().map(Secret::expose).unwrap_or_default();
            let storage = RedisStorage::new(url, authorities);
            let storage = storage.map_err(|error| format!("acme.storage: {error}"))?;
            return Ok(Arc::new(storage));
        }
        Some(AcmeStorage::Folder(folder)) => folder.clone(),
        None => default_certificate_folder(),
    };
    Ok(Arc::new(FolderStorage::new(folder, pool.clone())))
}
