//! The certificates of the server's sites over its whole life: from files, the local authority or
//! ACME, into the store that handshakes look into.
//!
//! Start and reload build a [`PreparedTls`] and put it in place once everything else works. In
//! between, changed files are picked up and renewed certificates arrive.
//!
//! # Invariants
//!
//! - A certificate that cannot be used replaces none: the old one stays, and log, status and
//!   metrics say why.
//! - No start waits for a certificate authority: a self-signed certificate stands in.

mod acme;
mod dns_hook;
mod on_demand;
mod paths;
mod site_certificates;
mod tcp_listeners;
mod watch;

use std::sync::Arc;

use parking_lot::Mutex;
use penstock_config::{
    AcmeStorage, ClientCertificateMode, Config, SiteTls, TlsProfile, UnknownNames,
};
use penstock_edge::{Route, shared_challenge_route};
use penstock_exchange::HttpChallenges;
use penstock_tls::{
    CertificateStatus, CertificateStore, ChallengeCertificates, ClientCertificates, LocalAuthority,
    OnDemandNames, PolicyId, ServerCertificate, ServerSessions, ServerTls, ServerTlsOptions,
    StoreContents, TicketKeys, UnknownHosts, read_pem_file, server_config,
};
use rustls::pki_types::UnixTime;
use rustls::time_provider::DefaultTimeProvider;

pub(crate) use self::acme::AcmeEnvironment;
use self::acme::AcmeHooks;
pub(crate) use self::paths::{
    give_system_folder_to, local_authority_folder, local_authority_folder_of,
};
use self::site_certificates::SiteEntry;
pub(crate) use self::site_certificates::SiteProblem;

/// TLS for clients; one for the whole life of the process.
#[derive(Debug)]
pub(crate) struct TlsService {
    store: Arc<CertificateStore>,
    tickets: Arc<TicketKeys>,
    hooks: Arc<AcmeHooks>,
    /// Held for the change of a certificate, never across an await.
    current: Mutex<CurrentSites>,
}

/// The sites in place, and the TCP listeners.
#[derive(Debug, Default)]
struct CurrentSites {
    entries: Vec<SiteEntry>,
    unknown: UnknownHosts,
    /// Of TCP listeners, in the order of the configuration; `None` where TLS does not end.
    tcp: Vec<Option<Arc<ServerSessions>>>,
}

/// The answers to challenges over HTTP, for the front end.
#[derive(Debug)]
pub(crate) struct AcmeChallenges {
    /// Those of this server.
    pub(crate) pending: Arc<dyn HttpChallenges>,
    /// Those of others with the same storage.
    pub(crate) shared: Option<Route>,
}

/// What a configuration means, built and not yet in place.
#[derive(Debug)]
pub(crate) struct PreparedTls {
    pub(crate) sessions: Arc<ServerSessions>,
    sites: CurrentSites,
    /// What clients may hold against certificates. A start goes on.
    pub(crate) problems: Vec<SiteProblem>,
}

impl TlsService {
    pub(crate) fn new() -> Arc<Self> {
        let hooks = Arc::new(AcmeHooks::default());
        let challenges: Arc<dyn ChallengeCertificates> = Arc::clone(&hooks) as _;
        let on_demand: Arc<dyn OnDemandNames> = Arc::clone(&hooks) as _;
        Arc::new(Self {
            store: Arc::new(CertificateStore::new(Some(challenges), Some(on_demand))),
            hooks,
            tickets: Arc::new(TicketKeys::new(Arc::new(DefaultTimeProvider))),
            current: Mutex::default(),
        })
    }

    /// Builds what `config` says; `None` if no listener has TLS. Blocks: reads files.
    ///
    /// # Errors
    /// Certificates that cannot be used, a line each.
    pub(crate) fn prepare(&self, config: &Config) -> Result<Option<PreparedTls>, String> {
        if !config.has_tls_listener() {
            return Ok(None);
        }
        let (mut errors, mut problems) = (Vec::new(), Vec::new());
        let (mut entries, mut requirements) = (Vec::new(), Vec::new());
        let now = UnixTime::now();
        let uses_local = config.sites.iter().any(|site| site.tls == SiteTls::Local);
        let local = match uses_local {
            true => Some(LocalAuthority::open(&local_authority_folder(), now))
                .transpose()
                .map_err(|error| error.to_string())?,
            false => None,
        };
        for site in &config.sites {
            let policy = match read_requirements(site.client_certificates.as_ref()) {
                Ok(read) => {
                    let policy = read
                        .as_ref()
                        .map_or(PolicyId::NONE, ClientCertificates::policy);
                    requirements.extend(read);
                    policy
                }
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            for entry in SiteEntry::for_site(site, policy) {
                let known = self.current.lock().find(&entry);
                let entry = entry.load(local.as_ref(), known, now);
                match entry {
                    Ok((entry, found)) => {
                        problems.extend(found);
                        entries.push(entry);
                    }
                    Err(error) => errors.push(error.to_string()),
                }
            }
        }
        let mut tcp = Vec::new();
        for frontend in &config.tcp {
            match self.prepare_listener(config, frontend, now) {
                Ok(prepared) => tcp.push(prepared.map(|prepared| {
                    if let Some((entry, found)) = prepared.own {
                        problems.extend(found);
                        entries.push(entry);
                    }
                    prepared.sessions
                })),
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Err(errors.join("\n"));
        }
        let unknown = match config.tls.unknown_names {
            UnknownNames::Default => UnknownHosts::ServeDefault,
            UnknownNames::Refuse => UnknownHosts::Refuse,
        };
        let of_sites = || (&self.store, vec![b"http/1.1".to_vec()]);
        let default = self.build_config(config, of_sites(), None)?;
        let others = requirements
            .into_iter()
            .map(|clients| self.build_config(config, of_sites(), Some(clients)))
            .collect::<Result<_, _>>()?;
        let sessions = ServerSessions::new(Arc::clone(&self.store), default, others);
        Ok(Some(PreparedTls {
            sessions: Arc::new(sessions),
            sites: CurrentSites {
                entries,
                unknown,
                tcp,
            },
            problems,
        }))
    }

    fn build_config(
        &self,
        config: &Config,
        (store, alpn): (&Arc<CertificateStore>, Vec<Vec<u8>>),
        client_certificates: Option<ClientCertificates>,
    ) -> Result<ServerTls, String> {
        let options = ServerTlsOptions {
            profile: match config.tls.profile {
                TlsProfile::Intermediate => penstock_tls::TlsProfile::Intermediate,
                TlsProfile::Modern => penstock_tls::TlsProfile::Modern,
            },
            certificates: Arc::clone(store),
            tickets: Arc::clone(&self.tickets),
            alpn,
            client_certificates,
        };
        server_config(options).map_err(|error| format!("tls: {error}"))
    }

    /// Puts a configuration in place: handshakes from now on find its certificates.
    pub(crate) fn apply(&self, prepared: Option<PreparedTls>) {
        for problem in prepared.iter().flat_map(|prepared| &prepared.problems) {
            log::warn!("tls: {problem}");
        }
        let sites = prepared.map(|prepared| prepared.sites).unwrap_or_default();
        let mut current = self.current.lock();
        let old = std::mem::replace(&mut *current, sites);
        current.keep_acme_certificates(old);
        current.publish(&self.store);
    }

    /// The answers to challenges over HTTP.
    pub(crate) fn challenges(&self, config: &Config) -> AcmeChallenges {
        AcmeChallenges {
            pending: Arc::clone(&self.hooks) as _,
            shared: (config.acme.storage == Some(AcmeStorage::Redis))
                .then(|| shared_challenge_route(Arc::clone(&self.hooks) as _)),
        }
    }

    /// The keys of tickets, for the next process of an upgrade.
    pub(crate) fn tickets(&self) -> &TicketKeys {
        &self.tickets
    }

    /// Every certificate that is in use, with the last error of its authority.
    pub(crate) fn snapshot(&self) -> Vec<CertificateStatus> {
        let mut certificates = self.store.snapshot();
        for ordered in self.acme_states() {
            let is_for = |it: &&mut CertificateStatus| it.hosts == [&*ordered.name];
            if let Some(certificate) = certificates.iter_mut().find(is_for) {
                certificate.last_error = ordered.last_error;
            }
        }
        for entry in &self.current.lock().entries {
            certificates.extend(entry.listener_statuses());
        }
        certificates
    }
}

impl CurrentSites {
    /// Puts the certificates in place: handshakes from now on find them.
    fn publish(&self, store: &CertificateStore) {
        let mut sites = Vec::new();
        for entry in &self.entries {
            match &entry.listener {
                Some(listener) => listener.replace(entry),
                None => sites.push(entry.to_certificates()),
            }
        }
        store.replace(StoreContents::new(sites, Some(0), self.unknown));
    }

    /// Keeps the certificates by ACME that `old` has at this moment: one may have arrived since this
    /// was prepared. Names on demand stay while a site for any host has them.
    fn keep_acme_certificates(&mut self, old: Self) {
        let open = self
            .entries
            .iter()
            .find(|entry| entry.is_automatic_for_any_host())
            .cloned();
        for entry in old.entries.iter().filter(|entry| entry.is_automatic()) {
            match self.entries.iter_mut().find(|new| new.is_same(entry)) {
                Some(new) => new.take_certificates(entry),
                None => self
                    .entries
                    .extend(open.iter().filter_map(|open| entry.moved_to(open))),
            }
        }
    }

    /// The certificates that are in use for the same hosts from the same origin.
    fn find(&self, wanted: &SiteEntry) -> Option<Vec<ServerCertificate>> {
        let found = self.entries.iter().find(|entry| entry.is_same(wanted))?;
        Some(found.certificates().to_vec())
    }
}

/// What a site or a listener requires of its clients.
fn read_requirements(
    clients: Option<&penstock_config::ClientCertificates>,
) -> Result<Option<ClientCertificates>, String> {
    let Some(clients) = clients else {
        return Ok(None);
    };
    let read = |path: &std::path::Path| {
        read_pem_file(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let authorities = read(&clients.ca)?;
    let revoked = clients.crl.as_deref().map(read).transpose()?;
    let mode = match clients.mode {
        ClientCertificateMode::Require => penstock_tls::ClientCertificateMode::Require,
        ClientCertificateMode::Request => penstock_tls::ClientCertificateMode::Request,
    };
    ClientCertificates::from_pem(
        mode,
        &authorities,
        revoked.as_ref().map(|text| text.as_slice()),
    )
    .map(Some)
    .map_err(|error| format!("{}: {error}", clients.ca.display()))
}

#[cfg(test)]
mod tests;
