//! The application's one queue, shared by all loops, and the mailboxes of its slots.
//!
//! `handler` submits jobs, slot drivers (`slot`) take them. The decisions are `queue`'s, pure; this
//! file adds the lock and the wake-ups. What must stay true: a job goes from the line into a mailbox
//! under the one lock that chose its slot (a mailbox's own lock is inside it, never around it), so it
//! is always in exactly one place: the line, a mailbox, or a driver; no waker runs and nothing is
//! awaited under the lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use penstock_exchange::bodies::NamelessFile;
use penstock_exchange::{ClientState, Fault, Response};
use penstock_queue::{Queue, QueueLimits, SlotId, SlotSpec, Start, Submitted, Ticket};
use tokio::sync::oneshot;

/// One request on its way to a worker.
#[derive(Debug)]
pub(crate) struct Job {
    /// The whole REQUEST frame.
    pub(crate) frame: Vec<u8>,
    /// The body, when it is in a file.
    pub(crate) body_file: Option<Arc<NamelessFile>>,
    /// Whether the answer's body will not be sent (a HEAD request).
    pub(crate) is_head: bool,
    /// Takes the answer, once. Closed when nobody waits for it.
    pub(crate) reply: Option<oneshot::Sender<Result<Response, Fault>>>,
    /// Says when the client has left.
    pub(crate) client: Arc<ClientState>,
}

impl Job {
    /// Gives the answer to whoever waits for it.
    pub(crate) fn answer(&mut self, answer: Result<Response, Fault>) {
        if let Some(reply) = self.reply.take() {
            // The client may have left.
            let _ = reply.send(answer);
        }
    }

    /// Whether nobody waits for the answer any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.client.is_gone() || self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// The queue and its slots' mailboxes.
#[derive(Debug)]
pub(crate) struct Dispatch {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: Queue<Job>,
    /// By the slot's index, which the next slot takes over while a driver may still be ending.
    mailboxes: Vec<Option<(SlotId, Arc<Mailbox>)>>,
}

/// How one slot's driver hears of new jobs, of its retirement and of its worker's end.
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
    lost: bool,
    waker: Option<Waker>,
}

/// What a driver finds in its mailbox.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) jobs: VecDeque<Start<Job>>,
    pub(crate) retire: bool,
    /// Its worker's process has ended.
    pub(crate) lost: bool,
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
                let waker = inner.post(start);
                drop(inner);
                wake(waker);
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
        inner.mailboxes[index] = Some((slot, Arc::clone(&mailbox)));
        for start in starts {
            // Nobody waits at a mailbox that is new.
            inner.post(start);
        }
        drop(inner);
        (slot, mailbox)
    }

    /// Takes a slot out: no new jobs; its driver ends when nothing is in progress.
    pub(crate) fn retire(&self, slot: SlotId, mailbox: &Mailbox) {
        self.lock().queue.retire_slot(slot);
        mailbox.tell(|mail| mail.retire = true);
    }

    /// Takes a slot out whose worker's process has ended. Its driver may not see an end of its socket: a
    /// process that the worker left behind can hold the other side open.
    pub(crate) fn lose(&self, slot: SlotId, mailbox: &Mailbox) {
        self.lock().queue.retire_slot(slot);
        mailbox.tell(|mail| mail.lost = true);
    }

    /// Forgets a slot whose driver ends. `unbegun` are jobs that its worker never saw, oldest first:
    /// with those still in the mailbox they go back to the front of the line, or to another slot.
    pub(crate) fn remove(
        &self,
        now: Instant,
        slot: SlotId,
        mailbox: &Mailbox,
        mut unbegun: Vec<Start<Job>>,
    ) {
        let mut inner = self.lock();
        inner.queue.remove_slot(slot);
        if let Some(place) = inner.mailboxes.get_mut(slot.index())
            && place.as_ref().is_some_and(|(owner, _)| *owner == slot)
        {
            *place = None;
        }
        // Nothing is posted to a slot that the queue does not know, so this is all there will be.
        unbegun.extend(std::mem::take(&mut mailbox.lock().jobs));
        let mut wakers = Vec::new();
        for start in unbegun {
            let back = inner.queue.give_back(now, start.job, start.enqueued_at);
            // `give_back` never refuses: what was handed out has its place.
            if let Submitted::Start(start) = back {
                wakers.push(inner.post(start));
            }
        }
        drop(inner);
        wakers.into_iter().for_each(wake);
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

impl Inner {
    /// Leaves a started job with its slot; gives the driver's waker, to be used outside of the lock.
    fn post(&mut self, start: Start<Job>) -> Option<Waker> {
        let place = self.mailboxes.get(start.slot.index());
        let Some(Some((owner, mailbox))) = place else {
            debug_assert!(false, "a slot that the queue knows has its mailbox");
            return None;
        };
        debug_assert_eq!(*owner, start.slot);
        let mut mail = mailbox.lock();
        mail.jobs.push_back(start);
        mail.waker.take()
    }
}

impl Mailbox {
    fn tell(&self, change: impl FnOnce(&mut Mail)) {
        let mut mail = self.lock();
        change(&mut mail);
        let waker = mail.waker.take();
        drop(mail);
        wake(waker);
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is there; else arranges for the driver to be polled when something is.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Option<Delivery> {
        let mut mail = self.lock();
        if !mail.jobs.is_empty() || mail.retire || mail.lost {
            return Some(Delivery {
                jobs: std::mem::take(&mut mail.jobs),
                retire: std::mem::take(&mut mail.retire),
                lost: std::mem::take(&mut mail.lost),
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QueueLimits = QueueLimits {
        len_max: 10,
        timeout: Duration::from_secs(10),
    };
    const SPEC: SlotSpec = SlotSpec {
        generation: 1,
        home: 0,
        capacity: 1,
    };

    fn job(name: &str) -> Job {
        Job {
            frame: name.as_bytes().to_vec(),
            body_file: None,
            is_head: false,
            reply: None,
            client: Arc::default(),
        }
    }

    /// The frames that a driver finds in its mailbox now.
    fn taken(mailbox: &Mailbox) -> Vec<Vec<u8>> {
        let delivery = mailbox.poll_take(&mut Context::from_waker(Waker::noop()));
        let jobs = delivery.map(|delivery| delivery.jobs).unwrap_or_default();
        jobs.into_iter().map(|start| start.job.frame).collect()
    }

    #[test]
    fn a_driver_that_ends_late_does_not_take_away_the_mailbox_of_its_successor() {
        let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
        let (old, old_mailbox) = dispatch.add_slot(now, SPEC);
        dispatch.retire(old, &old_mailbox);
        let (new, new_mailbox) = dispatch.add_slot(now, SPEC);
        assert_eq!(old.index(), new.index(), "an idle slot's index is free");
        dispatch.remove(now, old, &old_mailbox, Vec::new());
        let placed = dispatch.submit(now, job("a"), 0);
        assert!(matches!(placed, Placed::Started), "{placed:?}");
        assert_eq!(taken(&new_mailbox), [b"a"]);
    }

    #[test]
    fn what_a_lost_slot_still_had_in_its_mailbox_goes_back_in_front() {
        let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
        let (old, old_mailbox) = dispatch.add_slot(now, SPEC);
        for name in ["a", "b"] {
            let _ = dispatch.submit(now, job(name), 0);
        }
        dispatch.lose(old, &old_mailbox);
        dispatch.remove(now, old, &old_mailbox, Vec::new());
        assert_eq!(dispatch.usage(now).waiting, 2);
        let (new, new_mailbox) = dispatch.add_slot(now, SPEC);
        assert_eq!(taken(&new_mailbox), [b"a"]);
        let mut next = VecDeque::new();
        dispatch.turn(now, new, 1, 1, &mut next);
        assert_eq!(next.len(), 1);
        assert_eq!(next[0].job.frame, b"b");
    }
}
