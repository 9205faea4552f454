//! The tasks of one event loop, and how they are woken; `event_loop` polls them.
//!
//! Pure except for the wakers. A task's future never moves to another thread. A waker knows only
//! the task's key, so a waker that is kept for long keeps no future alive.
//!
//! # Invariants
//! - A task that is woken while it is polled, or by another thread at any moment, is polled again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::event_loop;
use super::mailbox::{LoopMessage, Mailbox};
use super::slots::{SlotKey, Slots};

pub(super) type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug)]
pub(super) struct TaskTable {
    /// `None` while a task is polled.
    tasks: Slots<Option<Task>>,
}

/// The key of the future that a thread runs its loop for.
pub(super) const MAIN_TASK: SlotKey = SlotKey::NONE;

pub(super) struct Task {
    pub(super) future: TaskFuture,
    pub(super) waker: Waker,
    header: Arc<TaskHeader>,
}

/// The target of a task's wakers.
#[derive(Debug)]
pub(super) struct TaskHeader {
    mailbox: Arc<Mailbox>,
    key: SlotKey,
    /// Whether it is in the loop's run queue. Used only by its loop.
    is_queued: AtomicBool,
    /// Whether a wake message of it is still unhandled.
    is_posted: AtomicBool,
}

impl TaskTable {
    pub(super) const fn new() -> Self {
        Self {
            tasks: Slots::new(),
        }
    }

    /// Adds a task; the caller schedules the returned key.
    pub(super) fn add(&mut self, future: TaskFuture, home: &Arc<Mailbox>) -> SlotKey {
        let key = self.tasks.add();
        let header = TaskHeader::new(home, key);
        let waker = Waker::from(Arc::clone(&header));
        self.put_back(
            key,
            Task {
                future,
                waker,
                header,
            },
        );
        key
    }

    /// Takes a task to poll it; `None` when it has ended.
    pub(super) fn take(&mut self, key: SlotKey) -> Option<Task> {
        self.tasks.get_mut(key)?.take()
    }

    pub(super) fn put_back(&mut self, key: SlotKey, task: Task) {
        if let Some(place) = self.tasks.get_mut(key) {
            debug_assert!(place.is_none());
            *place = Some(task);
        }
    }

    /// Frees the slot of a task that was taken and has ended.
    pub(super) fn release(&mut self, key: SlotKey) {
        self.tasks.remove(key);
    }

    pub(super) fn drain(&mut self) -> Vec<Task> {
        self.tasks.take_all().flatten().collect()
    }
}

impl Task {
    /// Marks the task as being polled: a wake from here on schedules it again.
    pub(super) fn mark_polled(&self) {
        self.header.mark_polled();
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

impl TaskHeader {
    /// The header of a loop's main future.
    pub(super) fn main(home: &Arc<Mailbox>) -> Arc<Self> {
        Self::new(home, MAIN_TASK)
    }

    /// A header whose task the caller schedules.
    fn new(home: &Arc<Mailbox>, key: SlotKey) -> Arc<Self> {
        Arc::new(Self {
            mailbox: Arc::clone(home),
            key,
            is_queued: AtomicBool::new(true),
            is_posted: AtomicBool::new(false),
        })
    }

    /// Marks the task as being polled: a wake from here on schedules it again.
    pub(super) fn mark_polled(&self) {
        self.is_queued.store(false, Ordering::Relaxed);
    }

    /// Handles a wake message on the task's loop. This is an exchange: writes by threads that found
    /// the message posted must be visible to the poll that follows.
    pub(super) fn handle_wake(&self) {
        self.is_posted.swap(false, Ordering::AcqRel);
        self.enqueue();
    }

    /// Runs on its loop, hence without a locked instruction.
    fn enqueue(&self) {
        if !self.is_queued.load(Ordering::Relaxed) {
            self.is_queued.store(true, Ordering::Relaxed);
            event_loop::schedule_task(self.key);
        }
    }
}

impl Wake for TaskHeader {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if event_loop::is_current_loop(&self.mailbox) {
            self.enqueue();
        } else if !self.is_posted.swap(true, Ordering::AcqRel) {
            self.mailbox.post(LoopMessage::Wake(Arc::clone(self)));
        }
    }
}
