//! TLS 1.2 and 1.3: handshakes over a socket, records, certificates and tickets.
//!
//! `edge` makes sessions with clients, `proxy`, `client` and `bench` with servers. The handshakes are
//! rustls', and the records with servers; those with clients are ours ([`records`]).

mod bound_sessions;
mod certificate;
pub mod certificate_file;
mod certificates;
mod client_certificates;
mod client_config;
mod client_facts;
mod client_offer;
mod client_session;
pub mod fuzzing;
mod handshake;
mod layer;
pub mod local_authority;
mod pem_file;
mod profile;
pub mod records;
mod resolver;
mod server_config;
mod server_sessions;
mod server_trust;
mod session;
mod stand_in;
#[cfg(test)]
mod testing;
pub mod tickets;
mod x509;

pub use bound_sessions::{BoundSessionError, bound_client_config, bound_sessions};
pub use certificate::{CertificateSource, ServerCertificate};
pub use certificates::{
    CertificateId, CertificateStatus, CertificateStore, ConnectionIdentity, PolicyId,
    SiteCertificates, StoreContents, UnknownHosts,
};
pub use client_certificates::{ClientCertificateMode, ClientCertificates, ClientCertificatesError};
pub use client_config::{
    ClientTlsError, ClientTlsOptions, InvalidServerName, client_config, client_config_offering,
    server_name,
};
pub use client_offer::{ClientOffer, UnknownAlgorithm};
pub use client_session::ClientSession;
pub use handshake::{
    EstablishedSession, HandshakeError, accept, channel_binding, connect, connection_identity,
    read_server_name, session_info,
};
pub use layer::hold;
pub use local_authority::{LocalAuthority, LocalAuthorityError};
pub use pem_file::{PemError, read_pem_file};
pub use profile::TlsProfile;
pub use resolver::{ACME_TLS_ALPN, ChallengeCertificates, OnDemandNames};
pub use server_config::{ServerTls, ServerTlsOptions, TlsConfigError, server_config};
pub use server_sessions::ServerSessions;
pub use server_trust::{
    Fingerprint, InvalidFingerprint, RootsError, ServerTrust, roots_from_file, roots_from_pem,
    system_roots,
};
pub use stand_in::{IssueError, stand_in};
pub use tickets::TicketKeys;
pub use x509::{CertificateFacts, InvalidCertificate, KeyKind};
