//! A held lock of a storage: refreshed until it is released, and known to be lost when it is.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{LOCK_REFRESH_INTERVAL, LOCK_STALE_AFTER, Storage, StorageError};

/// A lock that this server holds. Without [`StorageLock::release`] it expires.
#[derive(Debug)]
pub(crate) struct StorageLock {
    storage: Arc<dyn Storage>,
    name: String,
    token: String,
    is_lost: watch::Receiver<bool>,
    refresher: JoinHandle<()>,
}

impl StorageLock {
    /// Takes the lock; `None` while another server holds it.
    pub(crate) async fn try_acquire(
        storage: &Arc<dyn Storage>,
        name: &str,
    ) -> Result<Option<Self>, StorageError> {
        let token = format!("{:032x}", fastrand::u128(..));
        if !storage.try_lock(name, &token).await? {
            return Ok(None);
        }
        let (lose, is_lost) = watch::channel(false);
        let refresh = refresh(Arc::clone(storage), name.to_owned(), token.clone(), lose);
        Ok(Some(Self {
            storage: Arc::clone(storage),
            name: name.to_owned(),
            token,
            is_lost,
            refresher: tokio::spawn(refresh),
        }))
    }

    /// Waits until the lock is lost: another server may hold it from then on.
    pub(crate) async fn wait_lost(&self) {
        // The refresher ends only after it has set the flag.
        let _ = self.is_lost.clone().wait_for(|is_lost| *is_lost).await;
    }

    /// Releases the lock. If that fails it expires by itself.
    pub(crate) async fn release(self) {
        self.refresher.abort();
        let mut attempts = 0;
        let released = loop {
            attempts += 1;
            match self.storage.unlock(&self.name, &self.token).await {
                Err(StorageError::Busy) if attempts < 10 => sleep(BUSY_DELAY).await,
                released => break released,
            }
        };
        if let Err(error) = released {
            let name = &self.name;
            log::warn!("acme: a lock is not released and expires: {error} (lock={name})");
        }
    }
}

impl Drop for StorageLock {
    fn drop(&mut self) {
        self.refresher.abort();
    }
}

/// Refreshes a lock until it is lost: another server has it, or no refresh succeeded in time.
async fn refresh(
    storage: Arc<dyn Storage>,
    name: String,
    token: String,
    lose: watch::Sender<bool>,
) {
    let mut refreshed_at = Instant::now();
    let mut delay = LOCK_REFRESH_INTERVAL;
    loop {
        sleep(delay).await;
        let began = Instant::now();
        match storage.refresh_lock(&name, &token).await {
            Ok(true) => (refreshed_at, delay) = (began, LOCK_REFRESH_INTERVAL),
            Ok(false) => break,
            // A folder's guard may be in use, and Redis may come back: there is time to try again.
            Err(_) if refreshed_at.elapsed() < LOCK_STALE_AFTER - RETRY_DELAY => {
                delay = RETRY_DELAY;
            }
            Err(_) => break,
        }
    }
    lose.send_replace(true);
}

/// The guard of a folder's locks is in use for less.
const BUSY_DELAY: Duration = Duration::from_millis(20);

const RETRY_DELAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
