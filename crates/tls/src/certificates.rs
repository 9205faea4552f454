//! The certificates of all sites: which one serves a host, and what may be asked over a connection.
//!
//! The resolver asks for a certificate in each handshake, `edge` asks for each request whether the
//! connection may carry it. Start, reload and each renewal replace the whole contents at once;
//! connections and handshakes in progress continue with what they have.
//!
//! # Invariants
//!
//! - A look-up takes one or two hashes, no lock and no allocation, however many sites there are.
//! - A host that is not in the contents has no certificate, whatever names the certificates have: a
//!   site that was removed is not served.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::digest;
use parking_lot::Mutex;
use rustls::SignatureScheme;
use rustls::sign::CertifiedKey;

mod host;
mod identity;
mod status;
#[cfg(test)]
mod tests;

pub use identity::{ConnectionIdentity, PolicyId};
pub use status::CertificateStatus;

use crate::certificate::ServerCertificate;
use crate::resolver::{ChallengeCertificates, OnDemandNames};

/// The certificates of all sites.
pub struct CertificateStore {
    contents: ArcSwap<StoreContents>,
    /// Answers challenges of TLS-ALPN-01 (RFC 8737).
    pub(crate) challenges: Option<Arc<dyn ChallengeCertificates>>,
    /// Learns which names are asked for and have no certificate.
    pub(crate) on_demand: Option<Arc<dyn OnDemandNames>>,
}

/// The certificates of the hosts of one site.
#[derive(Debug, Clone)]
pub struct SiteCertificates {
    /// The hosts, as `example.com` or `*.example.com`. A wildcard stands for one label, as in
    /// certificates (RFC 9525 §6.3).
    pub hosts: Vec<String>,
    /// One or several, of different kinds of keys; a client gets the first that it can verify, in
    /// the order of `KeyKind`.
    pub certificates: Vec<ServerCertificate>,
    /// What clients must prove (`ClientCertificates::policy`).
    pub policy: PolicyId,
    /// Why the last attempt to replace the certificates failed, for snapshots.
    pub last_error: Option<String>,
}

/// What a client gets that asks for a host without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownHosts {
    /// The alert `unrecognized_name` and no certificate (RFC 6066 §3): scanners learn no names.
    #[default]
    Refuse,
    /// The default certificate, as nginx does it.
    ServeDefault,
}

/// Names the certificates of a site by the hosts that they cover. A renewal keeps the id, so that
/// connections from before it go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CertificateId(u64);

/// One state of the store, built whole and never changed.
#[derive(Default)]
pub struct StoreContents {
    exact: HashMap<Box<str>, Arc<SiteEntry>>,
    /// By the name behind `*.`.
    wildcard: HashMap<Box<str>, Arc<SiteEntry>>,
    default: Option<Arc<SiteEntry>>,
    unknown: UnknownHosts,
    /// Each entry once, for snapshots.
    entries: Vec<Arc<SiteEntry>>,
}

/// The certificates of a site in the order of preference; at least one.
#[derive(Debug)]
struct SiteEntry {
    site: SiteCertificates,
    id: CertificateId,
    /// Why the last attempt to replace the certificates failed. Held for a copy only, by the
    /// snapshot and by renewals.
    last_error: Mutex<Option<String>>,
}

impl CertificateStore {
    /// An empty store: every handshake fails until `replace`.
    pub fn new(
        challenges: Option<Arc<dyn ChallengeCertificates>>,
        on_demand: Option<Arc<dyn OnDemandNames>>,
    ) -> Self {
        let contents = ArcSwap::from_pointee(StoreContents::default());
        Self {
            contents,
            challenges,
            on_demand,
        }
    }

    /// Replaces the contents. Handshakes that begin from now on use the new ones.
    pub fn replace(&self, contents: StoreContents) {
        self.contents.store(Arc::new(contents));
    }

    /// The certificates that serve a host: `None` if it has none of its own and the default is not
    /// for unknown hosts. `host` is without a port; case and a final dot do not matter.
    pub fn certificate_for(&self, host: &str) -> Option<CertificateId> {
        self.contents.load().serving(host).map(|entry| entry.id)
    }

    /// Whether the host has certificates of its own.
    pub(crate) fn knows(&self, host: &str) -> bool {
        self.contents.load().find(host).is_some()
    }

    /// The certificate for a handshake. Clients that name no host get the default.
    pub(crate) fn choose(
        &self,
        server_name: Option<&str>,
        offered: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let contents = self.contents.load();
        let entry = match server_name {
            Some(name) => contents.serving(name),
            None => contents.default.as_ref(),
        };
        entry.map(|entry| entry.choose(offered))
    }
}

impl StoreContents {
    /// Builds contents from the certificates of sites. Sites without a certificate are left out; of
    /// two sites with one host, the first has it. `default` is the index of the site whose
    /// certificate clients get that name no host; it may be a site without hosts.
    pub fn new(
        sites: Vec<SiteCertificates>,
        default: Option<usize>,
        unknown: UnknownHosts,
    ) -> Self {
        let mut contents = Self {
            unknown,
            ..Self::default()
        };
        for (index, site) in sites.into_iter().enumerate() {
            let Some(entry) = SiteEntry::new(site) else {
                continue;
            };
            contents.add_hosts(&entry);
            if default == Some(index) {
                contents.default = Some(Arc::clone(&entry));
            }
            contents.entries.push(entry);
        }
        contents
    }

    fn add_hosts(&mut self, entry: &Arc<SiteEntry>) {
        for host in &entry.site.hosts {
            let (map, name) = match host.strip_prefix("*.") {
                Some(parent) => (&mut self.wildcard, parent),
                None => (&mut self.exact, host.as_str()),
            };
            let key = host::normalize(name, |name| Box::<str>::from(name));
            if let Some(key) = key {
                map.entry(key).or_insert_with(|| Arc::clone(entry));
            }
        }
    }

    /// The entry of a host: of its name, else of the wildcard for its first label.
    fn find(&self, host: &str) -> Option<&Arc<SiteEntry>> {
        host::normalize(host, |host| {
            let wildcard = || self.wildcard.get(host.split_once('.')?.1);
            self.exact.get(host).or_else(wildcard)
        })?
    }

    /// The entry that a client is served with that asks for a host.
    fn serving(&self, host: &str) -> Option<&Arc<SiteEntry>> {
        let default = || match self.unknown {
            UnknownHosts::Refuse => None,
            UnknownHosts::ServeDefault => self.default.as_ref(),
        };
        self.find(host).or_else(default)
    }
}

impl SiteEntry {
    fn new(mut site: SiteCertificates) -> Option<Arc<Self>> {
        site.certificates
            .sort_by_key(|certificate| certificate.facts.key);
        let id = CertificateId::new(&site.certificates);
        let last_error = Mutex::new(site.last_error.take());
        (!site.certificates.is_empty()).then(|| {
            Arc::new(Self {
                site,
                id,
                last_error,
            })
        })
    }

    /// The first certificate that the client can verify. Without one the first of all: rustls then
    /// refuses the handshake with the alert that says so.
    fn choose(&self, offered: &[SignatureScheme]) -> Arc<CertifiedKey> {
        let certificates = &self.site.certificates;
        let suiting = certificates
            .iter()
            .find(|certificate| certificate.suits(offered));
        Arc::clone(&suiting.unwrap_or(&certificates[0]).certified_key)
    }
}

impl CertificateId {
    fn new(certificates: &[ServerCertificate]) -> Self {
        let names = certificates
            .iter()
            .flat_map(|certificate| &certificate.facts.names);
        let mut names: Vec<&str> = names.map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        Self(short_digest(&[names.join("\n").as_bytes()]))
    }
}

/// The first eight bytes of the SHA-256 of some parts: an id that is the same in every process.
pub(crate) fn short_digest(parts: &[&[u8]]) -> u64 {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&context.finish().as_ref()[..8]);
    u64::from_be_bytes(first)
}

impl fmt::Debug for CertificateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contents = self.contents.load();
        f.debug_struct("CertificateStore")
            .field("contents", &contents)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StoreContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreContents")
            .field("sites", &self.entries.len())
            .field("unknown", &self.unknown)
            .finish_non_exhaustive()
    }
}
