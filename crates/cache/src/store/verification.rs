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
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use penstock_runtime::{DiskFile, clock, loops};
use tokio::sync::{Semaphore, watch};

use super::disk::{DiskError, DiskOperationKind};
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
    permits: Semaphore,
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
            permits: Semaphore::new(MAX_RUNNING),
        }
    }

    /// Pending verifications.
    #[cfg(test)]
    pub(super) fn pending_count(&self) -> usize {
        self.pending.lock().len()
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
    let mut outcome = {
        let mut pending = object.disk.verifications.pending.lock();
        let number = object.item.body.name.number;
        match pending.get(&number) {
            Some(outcome) => outcome.clone(),
            None if pending.len() >= MAX_PENDING => return Err(DiskError::OutOfService),
            None => {
                let (outcome_sender, outcome) = watch::channel(VerificationOutcome::Pending);
                pending.insert(number, outcome.clone());
                let object = object.clone();
                let task = VerificationTask {
                    object,
                    outcome_sender,
                };
                loops::spawn_here(task.run(file));
                outcome
            }
        }
    };
    let is_over = |outcome: &VerificationOutcome| !matches!(outcome, VerificationOutcome::Pending);
    let outcome = clock::timeout(WAIT_TIMEOUT, outcome.wait_for(is_over)).await;
    // Otherwise it failed, is late, or its event loop has ended.
    match outcome.and_then(Result::ok).as_deref() {
        Some(VerificationOutcome::Verified(file)) => Ok(Arc::clone(file)),
        _ => Err(DiskError::OutOfService),
    }
}

/// One verification. Its drop removes the pending entry, however it ends.
struct VerificationTask {
    object: DiskObject,
    outcome_sender: watch::Sender<VerificationOutcome>,
}

impl VerificationTask {
    async fn run(self, file: Arc<DiskFile>) {
        let disk = &self.object.disk;
        // Never closed.
        let permit = disk.verifications.permits.acquire().await;
        let verified = self.verify(&file).await;
        drop(permit);
        self.outcome_sender.send_replace(match verified {
            Ok(()) => {
                disk.keep_open(&self.object.item.body, &file);
                VerificationOutcome::Verified(file)
            }
            Err(error) => {
                let _ = self.object.handle_failure(&error);
                VerificationOutcome::Failed
            }
        });
    }

    async fn verify(&self, file: &Arc<DiskFile>) -> Result<(), DiskError> {
        let DiskObject { disk, item } = &self.object;
        for _ in 0..MAX_TRIES {
            let (for_work, preamble) = (Arc::clone(file), item.body.preamble);
            let begin = move || Verification::new(for_work, preamble)?.step();
            let mut step = disk.run(DiskOperationKind::Read, begin).await?;
            while let VerificationStep::More(rest) = step {
                step = disk
                    .run(DiskOperationKind::Read, move || rest.step())
                    .await?;
            }
            if let VerificationStep::Verified(stamp) = step {
                item.body.set_trusted_stamp(stamp);
                return Ok(());
            }
        }
        Err(DiskError::OutOfService)
    }
}

impl Drop for VerificationTask {
    fn drop(&mut self) {
        let DiskObject { disk, item } = &self.object;
        (disk.verifications.pending.lock()).remove(&item.body.name.number);
    }
}
