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
use super::disk::{Disk, DiskError, DiskItem, Kind};
use super::file::{Step, Verification};
use super::object::DiskObject;

/// Files that are verified or wait for it, at most: who comes for another one is not served from it now.
const UNDER_WAY_MAX: usize = 1024;

/// Of those at work at once: the pool has others to serve.
const AT_WORK_MAX: usize = 8;

/// Waited for one, at most.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A file that is written to all the time is given up after so many tries.
const TRIES: usize = 3;

/// The verifications of a store.
#[derive(Debug)]
pub(super) struct Verifying {
    /// By the files' numbers; held for a look.
    under_way: Mutex<HashMap<u64, watch::Receiver<Outcome>>>,
    at_work: Arc<Semaphore>,
}

/// What came of one.
#[derive(Debug, Clone)]
enum Outcome {
    UnderWay,
    Verified(Arc<DiskFile>),
    /// What follows from it was done.
    Failed,
}

impl Verifying {
    pub(super) fn new() -> Self {
        Self {
            under_way: Mutex::default(),
            at_work: Arc::new(Semaphore::new(AT_WORK_MAX)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, watch::Receiver<Outcome>>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
/// [`DiskError::Out`]: it may not, or not in time.
pub(super) async fn verified(
    object: &DiskObject,
    file: Arc<DiskFile>,
) -> Result<Arc<DiskFile>, DiskError> {
    let disk = object.store.disk().ok_or(DiskError::Out)?;
    let mut outcome = {
        let mut under_way = object.store.verifying.lock();
        let number = object.item.body.name.number;
        match under_way.get(&number) {
            Some(outcome) => outcome.clone(),
            None if under_way.len() >= UNDER_WAY_MAX => return Err(DiskError::Out),
            None => {
                let (tell, outcome) = watch::channel(Outcome::UnderWay);
                under_way.insert(number, outcome.clone());
                let task = Task {
                    store: Arc::downgrade(&object.store),
                    item: Arc::clone(&object.item),
                    tell,
                };
                let at_work = Arc::clone(&object.store.verifying.at_work);
                loops::spawn_here(task.run(Arc::clone(disk), at_work, file));
                outcome
            }
        }
    };
    let is_over = |outcome: &Outcome| !matches!(outcome, Outcome::UnderWay);
    let deadline = clock::now() + WAIT_MAX;
    match clock::timeout_at(deadline, outcome.wait_for(is_over)).await {
        Some(Ok(outcome)) => match &*outcome {
            Outcome::Verified(file) => Ok(Arc::clone(file)),
            Outcome::UnderWay | Outcome::Failed => Err(DiskError::Out),
        },
        // Too late, or its loop has ended.
        _ => Err(DiskError::Out),
    }
}

/// One verification. It is not under way any more with its end, however it ends.
struct Task {
    /// It does not keep its store.
    store: Weak<Store>,
    item: Arc<DiskItem>,
    tell: watch::Sender<Outcome>,
}

impl Task {
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
                Outcome::Verified(file)
            }
            Err(error) => {
                let item = Arc::clone(&self.item);
                let _ = DiskObject { store, item }.failed(&error);
                Outcome::Failed
            }
        };
        self.tell.send_replace(outcome);
    }

    async fn verify(&self, disk: &Arc<Disk>, file: &Arc<DiskFile>) -> Result<(), DiskError> {
        let object = &self.item.body;
        for _ in 0..TRIES {
            let (for_work, preamble) = (Arc::clone(file), object.preamble);
            let begin = move || Verification::new(for_work, preamble)?.step();
            let mut step = disk.run(Kind::Read, begin).await?;
            loop {
                match step {
                    Step::More(rest) => step = disk.run(Kind::Read, move || rest.step()).await?,
                    Step::Whole(identity) => {
                        object.trust(identity);
                        return Ok(());
                    }
                    Step::Changed => break,
                }
            }
        }
        Err(DiskError::Out)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.verifying.lock().remove(&self.item.body.name.number);
        }
    }
}
