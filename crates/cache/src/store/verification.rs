//! Verifications of objects' files under way: each file's once, whoever waits for it.
//!
//! `object` comes here with an open file that is not trusted: one of a former process, or one that somebody
//! changed. A task of its own reads it whole, a part at a time in the pool, and goes on when those who
//! wait have left. What must stay true: one verification of a file at a time, a bounded number of them
//! under way, fewer still at work; nobody waits for one without a deadline, and who has waited in vain
//! goes to the back end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock_runtime::{DiskFile, clock, loops};
use tokio::sync::{Semaphore, watch};

use super::Store;
use super::disk::{Disk, DiskError, DiskItem, OperationKind};
use super::object_file::{Verification, VerificationStep};
use super::stored_object::DiskObject;

/// Files that are verified or wait for it, at most: who comes for another one is not served from it now.
const MAX_PENDING: usize = 1024;

/// Of those at work at once: the pool has others to serve.
const MAX_RUNNING: usize = 8;

/// Waited for one, at most.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A file that is written to all the time is given up after so many tries.
const MAX_TRIES: usize = 3;

/// The verifications of a store.
#[derive(Debug)]
pub(super) struct Verifications {
    /// By the files' numbers; held for a look.
    pending: Mutex<HashMap<u64, watch::Receiver<VerificationOutcome>>>,
    permits: Arc<Semaphore>,
}

/// What came of one.
#[derive(Debug, Clone)]
enum VerificationOutcome {
    Pending,
    Verified(Arc<DiskFile>),
    /// What follows from it was done.
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

    /// How many are under way.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}

/// Waits until `file`, just opened, or the one that is being verified already may be trusted.
///
/// # Errors
/// [`DiskError::OutOfService`]: it may not, or not in time.
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
        // Too late, or its loop has ended.
        _ => Err(DiskError::OutOfService),
    }
}

/// One verification. It is not under way any more with its end, however it ends.
struct VerificationTask {
    /// It does not keep its store.
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
