//! A test's surroundings: an authority, a front end that answers it, a service, a sink.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_acme::{
    AcmeSettings, Callbacks, CertificateName, CertificateReady, CertificateService,
    CertificateSink, CertificateState, CertificateStatus, ChallengeStore, DnsHook, FolderStorage,
    OnDemandPolicy, ServiceOptions, Storage,
};
use penstock_runtime::blocking::Pool;
use tempfile::TempDir;
use tokio::runtime::Handle;

mod fake_authority;
mod front_end;
mod logged_lines;
mod pebble;
mod process;
mod redis_server;

pub(crate) use self::fake_authority::FakeAuthority;
pub(crate) use self::front_end::FrontEnd;
pub(crate) use self::logged_lines::{assert_never_logged, is_logged};
pub(crate) use self::pebble::{Pebble, PebbleOptions, manage_dns as pebble_dns};
pub(crate) use self::redis_server::RedisServer;

/// Longer than any wait of a test that passes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) fn name(text: &str) -> CertificateName {
    CertificateName::parse(text).unwrap()
}

/// Certificates as a listener has them.
#[derive(Default)]
pub(crate) struct InstalledCertificates(Mutex<BTreeMap<CertificateName, CertificateReady>>);

impl InstalledCertificates {
    pub(crate) fn chain(&self, name: &CertificateName) -> Option<Arc<str>> {
        let installed = self.0.lock().unwrap();
        installed
            .get(name)
            .map(|ready| Arc::clone(&ready.chain_pem))
    }

    pub(crate) fn find(&self, name: &CertificateName) -> Option<CertificateReady> {
        self.0.lock().unwrap().get(name).cloned()
    }
}

impl CertificateSink for InstalledCertificates {
    fn install(&self, certificate: CertificateReady) {
        let mut installed = self.0.lock().unwrap();
        for name in &certificate.names {
            installed.insert(name.clone(), certificate.clone());
        }
    }

    fn remove(&self, name: &CertificateName) {
        self.0.lock().unwrap().remove(name);
    }
}

/// A service with its sink.
pub(crate) struct TestService {
    pub(crate) service: CertificateService,
    pub(crate) installed: Arc<InstalledCertificates>,
}

/// What differs between tests.
pub(crate) struct TestOptions {
    pub(crate) settings: AcmeSettings,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) challenges: Arc<ChallengeStore>,
    pub(crate) dns_hook: Option<Arc<dyn DnsHook>>,
    pub(crate) on_demand: Option<Arc<dyn OnDemandPolicy>>,
}

impl TestOptions {
    pub(crate) fn new(settings: AcmeSettings, storage: Arc<dyn Storage>) -> Self {
        logged_lines::collect();
        Self {
            settings,
            storage,
            challenges: Arc::default(),
            dns_hook: None,
            on_demand: None,
        }
    }

    pub(crate) fn start(self) -> TestService {
        let installed = Arc::new(InstalledCertificates::default());
        let callbacks = Callbacks {
            sink: installed.clone(),
            dns_hook: self.dns_hook,
            on_demand: self.on_demand,
        };
        let options = ServiceOptions {
            settings: self.settings,
            storage: self.storage,
            callbacks,
            challenges: self.challenges,
            pool: Pool::new("test", 2, 64),
        };
        TestService {
            service: CertificateService::start(&Handle::current(), options),
            installed,
        }
    }
}

impl TestService {
    /// Waits until a name's state satisfies `is_met`.
    pub(crate) async fn await_status(
        &self,
        name: &CertificateName,
        is_met: impl Fn(&CertificateStatus) -> bool,
    ) -> CertificateStatus {
        let is_there =
            |service: &CertificateService| service.status(name).is_some_and(|s| is_met(&s));
        let is_there = self.service.wait_until(PATIENCE, is_there).await;
        let status = self.service.status(name);
        assert!(is_there, "{status:?}");
        status.unwrap()
    }

    /// Waits until a name has a certificate, and returns its chain.
    pub(crate) async fn await_certificate(&self, name: &CertificateName) -> Arc<str> {
        self.await_status(name, |status| status.state == CertificateState::Valid)
            .await;
        self.installed.chain(name).unwrap()
    }

    /// Waits until a name has another certificate than `old`.
    pub(crate) async fn await_successor(&self, name: &CertificateName, old: &str) -> Arc<str> {
        let is_other = |_: &CertificateService| {
            self.installed
                .chain(name)
                .is_some_and(|chain| *chain != *old)
        };
        let is_there = self.service.wait_until(PATIENCE, is_other).await;
        assert!(is_there, "{:?}", self.service.status(name));
        self.installed.chain(name).unwrap()
    }

    /// Waits until an attempt has failed, and returns the error.
    pub(crate) async fn await_error(&self, name: &CertificateName) -> String {
        let status = self.await_status(name, |status| status.last_error.is_some());
        status.await.last_error.unwrap()
    }

    pub(crate) async fn stop(&self) {
        self.service.stop(Duration::from_secs(5)).await;
    }
}

pub(crate) fn folder_storage(folder: &Path) -> Arc<dyn Storage> {
    Arc::new(FolderStorage::new(folder, Pool::new("storage", 2, 256)))
}

pub(crate) fn temporary_storage() -> (TempDir, Arc<dyn Storage>) {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder_storage(&folder.path().join("certificates"));
    (folder, storage)
}

/// Settings for one authority, with short waits.
pub(crate) fn settings(pebble: &Pebble) -> AcmeSettings {
    quick(AcmeSettings::new(vec![pebble.directory()]))
}

pub(crate) fn quick(mut settings: AcmeSettings) -> AcmeSettings {
    settings.renewal.min_retry = Duration::from_millis(200);
    settings.renewal.peer_retry = Duration::from_millis(100);
    settings.limits.request_timeout = Duration::from_secs(10);
    settings.limits.validation_timeout = Duration::from_secs(30);
    settings
}

/// Starts Pebble and a front end that answers it, or says that the test is skipped.
#[macro_export]
macro_rules! require_pebble {
    ($front:expr, $options:expr) => {
        match $crate::support::Pebble::start(&$front, $options).await {
            Some(pebble) => pebble,
            None => {
                eprintln!("skipped: Pebble is not installed: run scripts/setup test");
                return;
            }
        }
    };
}
