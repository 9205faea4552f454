//! The application's one queue, shared by all loops, and the mailboxes of its slots.
//!
//! `handler` submits jobs, slot drivers (`slot`) take them. The decisions are `queue`'s, pure; this
//! file adds the lock and the wake-ups. What must stay true: the lock is held for a decision only,
//! never while a waker runs or anything is awaited; a job is in exactly one place: the line, a
//! mailbox, or a driver.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use penstock_exchange::{Fault, Response};
use penstock_queue::{Queue, QueueLimits, SlotId, SlotSpec, Start, Submitted, Ticket};
use tokio::sync::oneshot;

/// One request on its way to a worker.
#[derive(Debug)]
pub(crate) struct Job {
    /// The whole REQUEST frame.
    pub(crate) frame: Vec<u8>,
    /// The body, when it is in a file.
    pub(crate) body_file: Option<Arc<File>>,
    /// Whether the answer's body will not be sent (a HEAD request).
    pub(crate) is_head: bool,
    /// Takes the answer. Closed when the client is gone.
    pub(crate) reply: oneshot::Sender<Result<Response, Fault>>,
}

/// The queue and its slots' mailboxes.
#[derive(Debug)]
pub(crate) struct Dispatch {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: Queue<Job>,
    /// By the slot's index.
    mailboxes: Vec<Option<Arc<Mailbox>>>,
}

/// How one slot's driver hears of new jobs and of its retirement.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    /// Requests that the driver has in progress, for the status page.
    pub(crate) in_progress: AtomicU32,
}

#[derive(Debug, Default)]
struct Mail {
    jobs: VecDeque<Start<Job>>,
    retire: bool,
    closed: bool,
    waker: Option<Waker>,
}

/// What a driver finds in its mailbox.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) jobs: VecDeque<Start<Job>>,
    pub(crate) retire: bool,
}

/// What became of a submitted job.
#[derive(Debug)]
pub(crate) enum Placed {
    Started,
    Waiting { ticket: Ticket, position: usize },
    Full { len: usize },
}

/// The queue's numbers at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueUse {
    /// Requests waiting.
    pub waiting: usize,
    /// Slots there are.
    pub slots: usize,
    /// Requests in progress.
    pub in_progress: usize,
    /// How long the oldest has waited.
    pub oldest_wait: Duration,
}

impl Dispatch {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        let inner = Inner {
            queue: Queue::new(limits),
            mailboxes: Vec::new(),
        };
        Self {
            inner: Mutex::new(inner),
        }
    }

    pub(crate) fn submit(&self, now: Instant, job: Job, home: usize) -> Placed {
        let mut inner = self.lock();
        match inner.queue.submit(now, job, home) {
            Submitted::Start(start) => {
                drop(inner);
                self.post(now, start);
                Placed::Started
            }
            Submitted::Waiting { ticket, position } => Placed::Waiting { ticket, position },
            Submitted::Full(_) => Placed::Full {
                len: inner.queue.len(),
            },
        }
    }

    /// Takes a waiting job out of the line; `false` when it is not in line any more.
    pub(crate) fn cancel(&self, ticket: Ticket) -> bool {
        self.lock().queue.cancel(ticket).is_some()
    }

    /// Adds a slot; jobs that waited are in its mailbox already.
    pub(crate) fn add_slot(&self, now: Instant, spec: SlotSpec) -> (SlotId, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox::default());
        let mut inner = self.lock();
        let (slot, starts) = inner.queue.add_slot(now, spec);
        let index = slot.index();
        if inner.mailboxes.len() <= index {
            inner.mailboxes.resize(index + 1, None);
        }
        inner.mailboxes[index] = Some(Arc::clone(&mailbox));
        drop(inner);
        for start in starts {
            self.post(now, start);
        }
        (slot, mailbox)
    }

    /// Brings a started job to its slot; when that slot has just died, to another or back into line.
    fn post(&self, now: Instant, start: Start<Job>) {
        let mut next = Some(start);
        while let Some(start) = next.take() {
            let mut inner = self.lock();
            let mailbox = inner.mailbox(start.slot);
            let refused = match mailbox {
                Some(mailbox) => {
                    drop(inner);
                    mailbox.post(start).err().map(|start| *start)
                }
                None => {
                    next = started(inner.queue.give_back(now, start.job, start.enqueued_at));
                    continue;
                }
            };
            if let Some(start) = refused {
                let back = self
                    .lock()
                    .queue
                    .give_back(now, start.job, start.enqueued_at);
                next = started(back);
            }
        }
    }

    /// Takes a slot out: no new jobs; its driver ends when nothing is in progress.
    pub(crate) fn retire(&self, slot: SlotId, mailbox: &Mailbox) {
        self.lock().queue.retire_slot(slot);
        mailbox.retire();
    }

    /// Forgets a slot whose worker is gone. `unbegun` are jobs that its worker never saw, oldest
    /// first: they go back to the front of the line, or to another slot at once.
    pub(crate) fn remove(&self, now: Instant, slot: SlotId, unbegun: Vec<Start<Job>>) {
        let mut again = Vec::new();
        let mut inner = self.lock();
        inner.queue.remove_slot(slot);
        if let Some(mailbox) = inner.mailboxes.get_mut(slot.index()) {
            *mailbox = None;
        }
        for start in unbegun {
            let back = inner.queue.give_back(now, start.job, start.enqueued_at);
            again.extend(started(back));
        }
        drop(inner);
        for start in again {
            self.post(now, start);
        }
    }

    /// A driver's turn: `ended` of its requests have ended; it has `in_progress` left and would take
    /// up to `batch_max` in all. Gives the jobs it gets.
    pub(crate) fn turn(
        &self,
        now: Instant,
        slot: SlotId,
        ended: usize,
        batch_max: u32,
        into: &mut VecDeque<Start<Job>>,
    ) {
        let mut inner = self.lock();
        for _ in 0..ended {
            into.extend(inner.queue.finish(now, slot));
        }
        if batch_max > 1 && !inner.queue.is_empty() {
            // A fair share: jobs must not pile up behind this slot while others run dry.
            let slots = inner.queue.slots().max(1);
            let share = u32::try_from(inner.queue.len().div_ceil(slots)).unwrap_or(u32::MAX);
            let most = batch_max.min(share.saturating_add(1));
            while let Some(start) = inner.queue.extend(now, slot, most) {
                into.push_back(start);
            }
        }
    }

    /// Takes the jobs whose time in line is over. Whoever submitted a job has a timer of its own; this
    /// is for those that were given back after their worker died.
    pub(crate) fn expire(&self, now: Instant) -> Vec<(Job, Duration)> {
        let mut inner = self.lock();
        let expired = std::iter::from_fn(|| inner.queue.expire(now));
        expired.map(|(_, job, waited)| (job, waited)).collect()
    }

    /// Empties the line: the server stops or the application cannot run.
    pub(crate) fn clear(&self) -> Vec<Job> {
        self.lock().queue.clear()
    }

    pub(crate) fn usage(&self, now: Instant) -> QueueUse {
        let inner = self.lock();
        QueueUse {
            waiting: inner.queue.len(),
            slots: inner.queue.slots(),
            in_progress: inner.queue.in_progress(),
            oldest_wait: inner.queue.oldest_wait(now).unwrap_or_default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn started(submitted: Submitted<Job>) -> Option<Start<Job>> {
    match submitted {
        Submitted::Start(start) => Some(start),
        // `give_back` never refuses: what was handed out has its place.
        Submitted::Waiting { .. } | Submitted::Full(_) => None,
    }
}

impl Inner {
    fn mailbox(&self, slot: SlotId) -> Option<Arc<Mailbox>> {
        self.mailboxes.get(slot.index()).cloned().flatten()
    }
}

impl Mailbox {
    /// Leaves a job for the driver; gives it back when the driver has ended.
    fn post(&self, start: Start<Job>) -> Result<(), Box<Start<Job>>> {
        let mut mail = self.lock();
        if mail.closed {
            return Err(Box::new(start));
        }
        mail.jobs.push_back(start);
        let waker = mail.waker.take();
        drop(mail);
        wake(waker);
        Ok(())
    }

    fn retire(&self) {
        let mut mail = self.lock();
        mail.retire = true;
        let waker = mail.waker.take();
        drop(mail);
        wake(waker);
    }

    /// Takes no more jobs, and gives those not taken yet.
    pub(crate) fn close(&self) -> VecDeque<Start<Job>> {
        let mut mail = self.lock();
        mail.closed = true;
        std::mem::take(&mut mail.jobs)
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is there; else arranges for the driver to be polled when something is.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Option<Delivery> {
        let mut mail = self.lock();
        if !mail.jobs.is_empty() || mail.retire {
            let retire = std::mem::take(&mut mail.retire);
            return Some(Delivery {
                jobs: std::mem::take(&mut mail.jobs),
                retire,
            });
        }
        match &mut mail.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            other => *other = Some(cx.waker().clone()),
        }
        None
    }

    /// Shows how many requests the driver has.
    pub(crate) fn show_in_progress(&self, count: usize) {
        self.in_progress
            .store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}
