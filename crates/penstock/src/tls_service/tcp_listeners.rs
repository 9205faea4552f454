//! TLS that ends at TCP listeners: with a certificate of their own, or with those of the sites.
//!
//! # Invariants
//!
//! - A listener asks clients for what itself requires, whatever name they ask for: the requirements
//!   of a site are for its requests.

use std::sync::Arc;

use penstock_config::{CertificateFiles, Config, TcpFrontend, TcpTls};
use penstock_tls::{CertificateStore, ServerSessions, StoreContents, UnknownHosts};
use rustls::pki_types::UnixTime;

use super::site_certificates::{SiteEntry, SiteProblem};
use super::{TlsService, read_requirements};

/// Where a TCP listener finds the certificate that it alone has.
#[derive(Debug, Clone)]
pub(super) struct ListenerStore {
    /// The listener, for people.
    pub(super) name: String,
    pub(super) store: Arc<CertificateStore>,
}

/// What TLS needs at one TCP listener.
#[derive(Debug)]
pub(super) struct PreparedListener {
    pub(super) sessions: Arc<ServerSessions>,
    /// Its own certificate, and what clients may hold against it.
    pub(super) own: Option<(SiteEntry, Vec<SiteProblem>)>,
}

impl ListenerStore {
    fn new(frontend: &TcpFrontend) -> Self {
        Self {
            name: frontend.listen.to_string().replacen("http://", "tls://", 1),
            store: Arc::new(CertificateStore::new(None, None)),
        }
    }

    /// Puts the certificate of its entry in place: it is for any name.
    pub(super) fn replace(&self, entry: &SiteEntry) {
        let contents = StoreContents::new(
            vec![entry.to_certificates()],
            Some(0),
            UnknownHosts::ServeDefault,
        );
        self.store.replace(contents);
    }
}

impl TlsService {
    /// Builds what a TCP listener needs; `None` if TLS does not end there. Blocks: reads files.
    pub(super) fn prepare_listener(
        &self,
        config: &Config,
        frontend: &TcpFrontend,
        now: UnixTime,
    ) -> Result<Option<PreparedListener>, String> {
        let own = match &frontend.tls {
            TcpTls::Off => return Ok(None),
            TcpTls::Sites => None,
            TcpTls::Files(files) => Some(load_own(frontend, files, now)?),
        };
        let of_listener = own.as_ref().and_then(|(entry, _)| entry.listener.as_ref());
        let store = of_listener.map_or(&self.store, |own| &own.store);
        let alpn = frontend.alpn.iter().map(|it| it.as_bytes().to_vec());
        let clients = read_requirements(frontend.client_certificates.as_ref())?;
        let tls = self.build_config(config, (store, alpn.collect()), clients)?;
        let sessions = ServerSessions::new(Arc::clone(store), tls, Vec::new());
        Ok(Some(PreparedListener {
            sessions: Arc::new(sessions),
            own,
        }))
    }

    /// The sessions of a TCP listener in place, by its index in the configuration; `None` if TLS does
    /// not end there.
    pub(crate) fn tcp_sessions(&self, index: usize) -> Option<Arc<ServerSessions>> {
        self.current.lock().tcp.get(index).cloned().flatten()
    }
}

fn load_own(
    frontend: &TcpFrontend,
    files: &CertificateFiles,
    now: UnixTime,
) -> Result<(SiteEntry, Vec<SiteProblem>), String> {
    let entry = SiteEntry::for_listener(ListenerStore::new(frontend), files);
    entry
        .load(None, None, now)
        .map_err(|error| error.to_string())
}
