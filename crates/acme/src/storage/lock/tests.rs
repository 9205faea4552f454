//! A lock's refreshes and its loss, on a storage in memory and with tokio's paused clock.

use std::sync::Mutex;

use super::super::{StorageFuture, StoredValue, ValueInfo};
use super::*;

/// A storage that has one lock and nothing else.
#[derive(Debug, Default)]
struct LockOnly(Mutex<LockState>);

#[derive(Debug, Default)]
struct LockState {
    holder: Option<String>,
    refreshes: Vec<Instant>,
    is_down: bool,
}

impl LockOnly {
    fn state(&self) -> std::sync::MutexGuard<'_, LockState> {
        self.0.lock().unwrap()
    }
}

fn ready<'a, T: Send + 'a>(result: Result<T, StorageError>) -> StorageFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Storage for LockOnly {
    fn store<'a>(&'a self, _: &'a str, _: StoredValue) -> StorageFuture<'a, ()> {
        ready(Ok(()))
    }
    fn load<'a>(&'a self, _: &'a str) -> StorageFuture<'a, Option<StoredValue>> {
        ready(Ok(None))
    }
    fn delete<'a>(&'a self, _: &'a str) -> StorageFuture<'a, ()> {
        ready(Ok(()))
    }
    fn stat<'a>(&'a self, _: &'a str) -> StorageFuture<'a, Option<ValueInfo>> {
        ready(Ok(None))
    }
    fn list<'a>(&'a self, _: &'a str) -> StorageFuture<'a, Vec<String>> {
        ready(Ok(Vec::new()))
    }
    fn try_lock<'a>(&'a self, _: &'a str, token: &'a str) -> StorageFuture<'a, bool> {
        let mut state = self.state();
        let is_free = state.holder.is_none();
        if is_free {
            state.holder = Some(token.to_owned());
        }
        ready(Ok(is_free))
    }
    fn refresh_lock<'a>(&'a self, _: &'a str, token: &'a str) -> StorageFuture<'a, bool> {
        let mut state = self.state();
        state.refreshes.push(Instant::now());
        if state.is_down {
            return ready(Err(StorageError::Busy));
        }
        ready(Ok(state.holder.as_deref() == Some(token)))
    }
    fn unlock<'a>(&'a self, _: &'a str, token: &'a str) -> StorageFuture<'a, ()> {
        let mut state = self.state();
        if state.holder.as_deref() == Some(token) {
            state.holder = None;
        }
        ready(Ok(()))
    }
}

async fn acquire(state: &Arc<LockOnly>) -> Option<StorageLock> {
    let storage: Arc<dyn Storage> = state.clone();
    StorageLock::try_acquire(&storage, "name").await.unwrap()
}

/// How long after now the lock is known to be lost.
async fn time_to_loss(lock: &StorageLock) -> Duration {
    let began = Instant::now();
    lock.wait_lost().await;
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_is_refreshed_until_it_is_released() {
    let state = Arc::new(LockOnly::default());
    let lock = acquire(&state).await.unwrap();
    assert!(acquire(&state).await.is_none());
    let minute = Duration::from_secs(62);
    assert!(
        tokio::time::timeout(minute, lock.wait_lost())
            .await
            .is_err()
    );
    assert_eq!(state.state().refreshes.len(), 12);
    lock.release().await;
    assert_eq!(state.state().holder, None);
    let next = acquire(&state).await.unwrap();
    assert!(
        tokio::time::timeout(minute, next.wait_lost())
            .await
            .is_err()
    );
    // The released one is no longer refreshed.
    assert_eq!(state.state().refreshes.len(), 24);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_another_server_has_is_lost_at_the_next_refresh() {
    let state = Arc::new(LockOnly::default());
    let lock = acquire(&state).await.unwrap();
    state.state().holder = Some("another".to_owned());
    assert_eq!(time_to_loss(&lock).await.as_secs(), 5);
    lock.release().await;
    assert_eq!(state.state().holder.as_deref(), Some("another"));
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_is_down_loses_the_lock_before_it_is_stale() {
    let state = Arc::new(LockOnly::default());
    let lock = acquire(&state).await.unwrap();
    state.state().is_down = true;
    assert_eq!(time_to_loss(&lock).await.as_secs(), 9);
    lock.release().await;
    // A short absence does no harm.
    let lock = acquire(&state).await.unwrap();
    let seconds = Duration::from_secs(7);
    assert!(
        tokio::time::timeout(seconds, lock.wait_lost())
            .await
            .is_err()
    );
    state.state().is_down = false;
    assert!(
        tokio::time::timeout(seconds, lock.wait_lost())
            .await
            .is_err()
    );
    lock.release().await;
}
