//! Where accounts, certificates and locks are kept, so that servers share them and a start needs no
//! authority: a folder ([`FolderStorage`]) or Redis ([`RedisStorage`]).
//!
//! The verbs and the layout are those of Caddy's storage (certmagic): see [`keys`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use zeroize::Zeroizing;

mod certificates;
mod folder;
pub mod keys;
mod lock;
mod redis_store;

pub(crate) use self::certificates::{is_newer, load_newest, store_certificate};
pub use self::folder::FolderStorage;
pub(crate) use self::lock::StorageLock;
pub use self::redis_store::RedisStorage;

/// The future of a storage's verb.
pub type StorageFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StorageError>> + Send + 'a>>;

/// A stored value; erased from memory when dropped, since it may be a key.
pub type StoredValue = Zeroizing<Vec<u8>>;

/// A store of values under keys such as `certificates/ca/example.com/example.com.crt`, with locks.
///
/// Every verb ends within a few seconds, with an error if need be. A value is replaced as a whole:
/// a reader sees the old one or the new one.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Stores a value; replaces the one under the same key.
    fn store<'a>(&'a self, key: &'a str, value: StoredValue) -> StorageFuture<'a, ()>;

    /// Stores a value that is of no use after `lifetime`. A storage that cannot remove it by itself
    /// keeps it.
    fn store_temporary<'a>(
        &'a self,
        key: &'a str,
        value: StoredValue,
        lifetime: Duration,
    ) -> StorageFuture<'a, ()> {
        let _ = lifetime;
        self.store(key, value)
    }

    /// Whether it removes temporary values by itself.
    fn removes_temporary_values(&self) -> bool {
        false
    }

    /// Loads a value; `None` if there is none.
    fn load<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<StoredValue>>;

    /// Deletes a value, if there is one.
    fn delete<'a>(&'a self, key: &'a str) -> StorageFuture<'a, ()>;

    /// Size and age of a value; `None` if there is none.
    fn stat<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<ValueInfo>>;

    /// Lists the keys below `prefix`, which ends between two segments.
    fn list<'a>(&'a self, prefix: &'a str) -> StorageFuture<'a, Vec<String>>;

    /// Takes the lock `name` for the holder `token` if it is free or stale; returns whether it did.
    fn try_lock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, bool>;

    /// Refreshes the holder's time stamp; returns whether it still holds the lock.
    fn refresh_lock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, bool>;

    /// Releases the lock if `token` still holds it.
    fn unlock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, ()>;
}

/// A value's size and age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueInfo {
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was stored; `None` where the storage does not tell.
    pub modified: Option<SystemTime>,
}

/// How often a holder refreshes its lock, and after how long without that the lock is free.
pub const LOCK_REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// See [`LOCK_REFRESH_INTERVAL`].
pub const LOCK_STALE_AFTER: Duration = Duration::from_secs(10);

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The file system refuses.
    #[error("certificate storage: cannot {action} `{path}`: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Redis refuses or is not there. The text has no password.
    #[error("certificate storage in Redis: {0}")]
    Redis(String),
    /// It did not answer in time.
    #[error("certificate storage: no answer within {0:?}")]
    Timeout(Duration),
    /// The pool of threads for the folder is full or has ended.
    #[error("certificate storage: {0}")]
    Pool(#[from] penstock_runtime::blocking::PoolError),
    /// Another process is changing a lock at this moment.
    #[error("certificate storage: another process is changing a lock")]
    Busy,
    /// A key that no file can have.
    #[error("certificate storage: `{0}` is no valid key")]
    Key(String),
}
