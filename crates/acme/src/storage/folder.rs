//! Storage in a folder, also one that several machines share.
//!
//! # Invariants
//! - Files have mode 0600 and folders 0700 from the moment they exist.
//! - A value is written to a temporary file, synced and renamed. The folder is synced too.
//! - A lock changes hands under a `flock` of `locks/.guard`, which no call waits for. Its age is
//!   the difference of two file times, so that the clocks of machines need not agree.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use penstock_runtime::blocking::Pool;
use zeroize::Zeroizing;

use super::{LOCK_STALE_AFTER, Storage, StorageError, StorageFuture, StoredValue, ValueInfo};

/// Storage in a folder.
#[derive(Debug, Clone)]
pub struct FolderStorage {
    root: Arc<Path>,
    pool: Pool,
}

/// How long a disk may take. A disk that takes longer is failing.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// Larger files are no keys and no certificates.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

impl FolderStorage {
    /// Creates a storage in the folder `root`, which is created when it is first needed. File calls
    /// run in `pool`.
    pub fn new(root: impl Into<PathBuf>, pool: Pool) -> Self {
        Self {
            root: root.into().into(),
            pool,
        }
    }

    fn run<'a, R: Send + 'static>(
        &'a self,
        work: impl FnOnce(&Path) -> Result<R, StorageError> + Send + 'static,
    ) -> StorageFuture<'a, R> {
        let root = Arc::clone(&self.root);
        Box::pin(async move {
            let job = self.pool.run(move || work(&root));
            match tokio::time::timeout(DISK_TIMEOUT, job).await {
                Ok(done) => done?,
                Err(_) => Err(StorageError::Timeout(DISK_TIMEOUT)),
            }
        })
    }
}

impl Storage for FolderStorage {
    fn store<'a>(&'a self, key: &'a str, value: StoredValue) -> StorageFuture<'a, ()> {
        let key = key.to_owned();
        self.run(move |root| {
            let path = path_of(root, &key)?;
            create_parent(root, &path)?;
            write_file(&path, &value).map_err(failed("write", &path))
        })
    }

    fn load<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<StoredValue>> {
        let key = key.to_owned();
        self.run(move |root| {
            let path = path_of(root, &key)?;
            present(read_file(&path)).map_err(failed("read", &path))
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StorageFuture<'a, ()> {
        let key = key.to_owned();
        self.run(move |root| {
            let path = path_of(root, &key)?;
            let removed = present(std::fs::remove_file(&path));
            removed.map(drop).map_err(failed("remove", &path))
        })
    }

    fn stat<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<ValueInfo>> {
        let key = key.to_owned();
        self.run(move |root| {
            let path = path_of(root, &key)?;
            let metadata = present(std::fs::metadata(&path)).map_err(failed("read", &path))?;
            Ok(metadata.map(|metadata| ValueInfo {
                bytes: metadata.len(),
                modified: metadata.modified().ok(),
            }))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> StorageFuture<'a, Vec<String>> {
        let prefix = prefix.to_owned();
        self.run(move |root| {
            let path = path_of(root, &prefix)?;
            let mut keys = Vec::new();
            list_folder(&path, &prefix, &mut keys).map_err(failed("list", &path))?;
            Ok(keys)
        })
    }

    fn try_lock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, bool> {
        let taken = self.with_lock_file(name, token, "take", |lock, now, token| {
            if lock.is_held(now)? {
                return Ok(false);
            }
            write_file(&lock.path, token.as_bytes())?;
            Ok(true)
        });
        Box::pin(async move {
            match taken.await {
                Err(StorageError::Busy) => Ok(false),
                taken => taken,
            }
        })
    }

    fn refresh_lock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, bool> {
        self.with_lock_file(name, token, "refresh", |lock, _, token| {
            if lock.holder()?.is_none_or(|holder| holder != token) {
                return Ok(false);
            }
            write_file(&lock.path, token.as_bytes())?;
            Ok(true)
        })
    }

    fn unlock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, ()> {
        let released = self.with_lock_file(name, token, "release", |lock, _, token| {
            if lock.holder()?.is_some_and(|holder| holder == token) {
                std::fs::remove_file(&lock.path)?;
            }
            Ok(true)
        });
        Box::pin(async move { released.await.map(drop) })
    }
}

impl FolderStorage {
    /// Runs `work` on the lock's file while no other process changes a lock.
    ///
    /// # Errors
    /// [`StorageError::Busy`] while another does.
    fn with_lock_file<'a>(
        &'a self,
        name: &'a str,
        token: &'a str,
        action: &'static str,
        work: impl FnOnce(&LockFile, SystemTime, &str) -> io::Result<bool> + Send + 'static,
    ) -> StorageFuture<'a, bool> {
        let (name, token) = (name.to_owned(), token.to_owned());
        self.run(move |root| {
            let path = path_of(root, &format!("locks/{name}.lock"))?;
            create_parent(root, &path)?;
            let guard_path = path.with_file_name(".guard");
            let mut guard = open_guard(&guard_path).map_err(failed("open", &guard_path))?;
            match guard.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(StorageError::Busy),
                Err(TryLockError::Error(error)) => {
                    return Err(failed("lock", &guard_path)(error));
                }
            }
            let now = touch(&mut guard).map_err(failed("write", &guard_path))?;
            let lock = LockFile { path };
            let done = work(&lock, now, &token).map_err(failed(action, &lock.path));
            // Closing would do, unless a child process of this moment has a copy until it executes.
            guard.unlock().map_err(failed("unlock", &guard_path))?;
            done
        })
    }
}

/// A lock's file: it contains the holder's token, and its time is the time stamp.
struct LockFile {
    path: PathBuf,
}

impl LockFile {
    fn is_held(&self, now: SystemTime) -> io::Result<bool> {
        // Opened, because a network file system answers `stat` from its cache.
        let Some(file) = present(open(&self.path))? else {
            return Ok(false);
        };
        let age = now.duration_since(file.metadata()?.modified()?);
        Ok(age.unwrap_or_default() < LOCK_STALE_AFTER)
    }

    fn holder(&self) -> io::Result<Option<String>> {
        let content = present(read_file(&self.path))?;
        Ok(content.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn open_guard(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path)
}

/// Writes to the guard and returns its time: the present by the file system's clock.
fn touch(guard: &mut File) -> io::Result<SystemTime> {
    guard.write_all(b".")?;
    guard.metadata()?.modified()
}

fn path_of(root: &Path, key: &str) -> Result<PathBuf, StorageError> {
    let is_segment = |segment: &str| {
        (1..=255).contains(&segment.len())
            && !matches!(segment, "." | "..")
            && !segment.contains(['\0', '\\'])
    };
    if !key.split('/').all(is_segment) {
        return Err(StorageError::Key(key.to_owned()));
    }
    Ok(root.join(key))
}

fn create_parent(root: &Path, path: &Path) -> Result<(), StorageError> {
    let folder = path.parent().unwrap_or(root);
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(folder).map_err(failed("create", folder))
}

/// Replaces a file as a whole, durably.
fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let random = fastrand::u32(..);
    let temporary = path.with_file_name(format!(".{name}.{number}-{random:08x}.tmp"));
    let written = write_new(&temporary, content).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Nothing more can be done about a file that cannot be removed either.
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    sync_folder(path.parent().unwrap_or(path))
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[expect(clippy::disallowed_methods, reason = "runs in a blocking pool")]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    open(path)?.sync_all()
}

fn read_file(path: &Path) -> io::Result<StoredValue> {
    let file = open(path)?;
    // The buffer never grows: a growing one would leave copies of a key behind.
    let bytes = file.metadata()?.len().min(MAX_FILE_BYTES);
    let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(bytes).unwrap_or(0) + 1));
    file.take(bytes + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it is larger than 1 MiB",
        ));
    }
    Ok(content)
}

fn list_folder(path: &Path, prefix: &str, keys: &mut Vec<String>) -> io::Result<()> {
    let Some(entries) = present(std::fs::read_dir(path))? else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let key = format!("{prefix}/{name}");
        if entry.file_type()?.is_dir() {
            list_folder(&entry.path(), &key, keys)?;
        } else if !name.starts_with('.') {
            keys.push(key);
        }
    }
    Ok(())
}

/// Turns "not found" into a value.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    let path = path.display().to_string();
    move |source| StorageError::File {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests;
