//! Certificates from certificate authorities by ACME (RFC 8555): ordered, stored, renewed.
//!
//! `penstock` starts one [`CertificateService`] on its tokio runtime and gives it the names of
//! the sites. Certificates arrive at a [`CertificateSink`]; listeners answer validations from
//! the [`ChallengeStore`]. A start loads certificates from the storage and never waits for an
//! authority.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `schedule` | when a name is ordered, renewed and tried again: pure |
//! | `service`, `service/worker`, `service/jobs` | the task with all names; the work for one name |
//! | `ca` | an authority: HTTPS, account, orders, challenges |
//! | `storage` | a folder or Redis, with locks between servers |
//! | `challenge` | what listeners answer during a validation |
//!
//! # Invariants
//! - One certificate has one name. Several servers with one storage get it once: the order is made
//!   under a lock, after another look at the storage.
//! - A certificate stays in use until its successor is there.
//! - Every request, validation and lock has a deadline; orders in progress, names on demand and
//!   their rate have bounds ([`IssuanceLimits`]).
//! - No private key, HMAC key or password gets into a log line, an error or a status.

mod ca;
mod callbacks;
mod certificate;
mod challenge;
mod error;
mod name;
mod schedule;
mod service;
mod settings;
mod storage;

pub use instant_acme::RevocationReason;

pub use self::callbacks::{
    CallbackError, CallbackFuture, Callbacks, CertificateSink, DnsHook, DnsHookCall, DnsHookVerb,
    OnDemandPolicy,
};
pub use self::certificate::{CertificateError, CertificateReady, PrivateKeyPem};
pub use self::challenge::{ChallengeStore, HTTP_PATH, TLS_ALPN_PROTOCOL, TlsAlpnCertificate};
pub use self::error::{AcmeError, CallError, SharedFailure};
pub use self::name::{CertificateName, NameError};
pub use self::service::{
    CertificateService, CertificateState, CertificateStatus, OnDemandError, ServiceOptions,
};
pub use self::settings::{
    AcmeSettings, ChallengeKind, Directory, DirectoryError, ExternalAccount, ExternalAccountError,
    IssuanceLimits, RenewalBounds,
};
pub use self::storage::{
    FolderStorage, LOCK_REFRESH_INTERVAL, LOCK_STALE_AFTER, RedisStorage, Storage, StorageError,
    StorageFuture, StoredValue, ValueInfo, keys,
};
