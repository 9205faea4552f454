//! Verification of objects' files, shared by all requests that wait for one.
//!
//! `stored_object` comes here with an open file that is not trusted: written by an earlier process,
//! or changed since. A separate task reads the whole file in the pool, a part at a time, and
//! continues without waiters.
//!
//! # Invariants
//!
//! - A file has at most one verification at a time.
//! - The number of pending verifications is bounded, and that of running ones is smaller still.
//! - Every wait has a deadline. After that the request goes to the back end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock_runtime::{DiskFile, clock, loops};
use tokio::sync::{Semaphore, watch};

use super::Store;
use super::disk::{Disk, DiskError, DiskItem, OperationKind};
use super::object_file::{Verification, VerificationStep};
use super::stored_object::DiskObject;

/// Pending verifications, at most. A request for a further file is a miss.
const MAX_PENDING: usize = 1024;

/// Running verifications, at most: the pool has other work.
const MAX_RUNNING: usize = 8;

/// How long a request waits for a verification.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts for a file that is being written to.
const MAX_TRIES: usize = 3;

#[derive(Debug)]
pub(super) struct Verifications {
    /// By the files' numbers. Locked for a look-up only.
    pending: Mutex<HashMap<u64, watch::Receiver<VerificationOutcome>>>,
    permits: Arc<Semaphore>,
}

#[derive(Debug, Clone)]
enum VerificationOutcome {
    Pending,
    Verified(Arc<DiskFile>),
    /// The failure has been handled.
    Failed,
}

impl Verifications {
    pub(super) fn new() -> Self {
        Self {
            pending: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_RUNNING)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, watch::Receiver<VerificationOutcome>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pending verifications.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}

/// Waits until `file`, just opened, is verified. Joins a pending verification of the same object
/// and returns its file.
///
/// # Errors
/// [`DiskError::OutOfService`] if the verification fails or takes too long.
pub(super) async fn verify_once(
    object: &DiskObject,
    file: Arc<DiskFile>,
) -> Result<Arc<DiskFile>, DiskError> {
    let disk = object.store.disk().ok_or(DiskError::OutOfService)?;
    let mut outcome = {
        let mut under_way = object.store.verifications.lock();
        let number = object.item.body.name.number;
        match under_way.get(&number) {
            Some(outcome) => outcome.clone(),
            None if under_way.len() >= MAX_PENDING => return Err(DiskError::OutOfService),
            None => {
                let (tell, outcome) = watch::channel(VerificationOutcome::Pending);
                under_way.insert(number, outcome.clone());
                let task = VerificationTask {
                    store: Arc::downgrade(&object.store),
                    item: Arc::clone(&object.item),
                    outcome_sender: tell,
                };
                let at_work = Arc::clone(&object.store.verifications.permits);
                loops::spawn_here(task.run(Arc::clone(disk), at_work, file));
                outcome
            }
        }
    };
    let is_over = |outcome: &VerificationOutcome| !matches!(outcome, VerificationOutcome::Pending);
    let deadline = clock::now() + WAIT_TIMEOUT;
    match clock::timeout_at(deadline, outcome.wait_for(is_over)).await {
        Some(Ok(outcome)) => match &*outcome {
            VerificationOutcome::Verified(file) => Ok(Arc::clone(file)),
            VerificationOutcome::Pending | VerificationOutcome::Failed => {
                Err(DiskError::OutOfService)
            }
        },
        // Too late, or its event loop has ended.
        _ => Err(DiskError::OutOfService),
    }
}

/// One verification. Its drop removes the pending entry, however it ends.
struct VerificationTask {
    /// Weak: the task does not keep the store alive.
    store: Weak<Store>,
    item: Arc<DiskItem>,
    outcome_sender: watch::Sender<VerificationOutcome>,
}

impl VerificationTask {
    async fn run(self, disk: Arc<Disk>, at_work: Arc<Semaphore>, file: Arc<DiskFile>) {
        // Never closed.
        let permit = at_work.acquire().await;
        let verified = self.verify(&disk, &file).await;
        drop(permit);
        let Some(store) = self.store.upgrade() else {
            return;
        };
        let outcome = match verified {
            Ok(()) => {
                store.keep_open(&self.item.body, &file);
                VerificationOutcome::Verified(file)
            }
            Err(error) => {
                let item = Arc::clone(&self.item);
                let _ = DiskObject { store, item }.handle_failure(&error);
                VerificationOutcome::Failed
            }
        };
        self.outcome_sender.send_replace(outcome);
    }

    async fn verify(&self, disk: &Arc<Disk>, file: &Arc<DiskFile>) -> Result<(), DiskError> {
        let object = &self.item.body;
        for _ in 0..MAX_TRIES {
            let (for_work, preamble) = (Arc::clone(file), object.preamble);
            let begin = move || Verification::new(for_work, preamble)?.step();
            let mut step = disk.run(OperationKind::Read, begin).await?;
            loop {
                match step {
                    VerificationStep::More(rest) => {
                        step = disk.run(OperationKind::Read, move || rest.step()).await?;
                    }
                    VerificationStep::Verified(identity) => {
                        object.trust(identity);
                        return Ok(());
                    }
                    VerificationStep::Changed => break,
                }
            }
        }
        Err(DiskError::OutOfService)
    }
}

impl Drop for VerificationTask {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store
                .verifications
                .lock()
                .remove(&self.item.body.name.number);
        }
    }
}
