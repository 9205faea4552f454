//! The tasks of one loop, and how they are woken.
//!
//! Pure but for the wakers: `turn` polls what is scheduled. A task's future stays in its place here and moves
//! to nobody; a waker knows only that place, so that one which is kept for long keeps no future. What must
//! stay true: a task that is woken while it is polled, or by another thread at any moment, is polled again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::event_loop;
use super::mailbox::{LoopMessage, Mailbox};

/// A task's future.
pub(super) type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks of a loop.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
}

/// A task's place. One that is used again has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TaskKey {
    index: u32,
    generation: u32,
}

#[derive(Debug, Default)]
struct TaskSlot {
    generation: u32,
    /// Away while it is polled.
    task: Option<Task>,
}

/// One task.
pub(super) struct Task {
    pub(super) future: TaskFuture,
    pub(super) waker: Waker,
    header: Arc<TaskHeader>,
}

/// What a task is woken by.
#[derive(Debug)]
pub(super) struct TaskHeader {
    mailbox: Arc<Mailbox>,
    key: TaskKey,
    /// Whether it stands in the loop's line. Only its loop looks at this.
    is_queued: AtomicBool,
    /// Whether a letter of it has not been opened.
    is_posted: AtomicBool,
}

impl TaskKey {
    /// The future that a thread runs its loop for.
    pub(super) const MAIN: Self = Self {
        index: u32::MAX,
        generation: 0,
    };
}

impl Tasks {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Keeps a new task; give its key to whoever polls.
    pub(super) fn add(&mut self, work: TaskFuture, home: &Arc<Mailbox>) -> TaskKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(TaskSlot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer tasks than fit in memory")
        });
        let place = &mut self.slots[index as usize];
        let key = TaskKey {
            index,
            generation: place.generation,
        };
        let head = TaskHeader::new(home, key);
        let waker = Waker::from(Arc::clone(&head));
        place.task = Some(Task {
            future: work,
            waker,
            header: head,
        });
        key
    }

    /// Takes a task to poll it; `None` when it has ended.
    pub(super) fn take(&mut self, key: TaskKey) -> Option<Task> {
        let place = self.slots.get_mut(key.index as usize)?;
        match place.generation == key.generation {
            true => place.task.take(),
            false => None,
        }
    }

    /// Puts one back that waits.
    pub(super) fn put_back(&mut self, key: TaskKey, task: Task) {
        if let Some(place) = self.slots.get_mut(key.index as usize) {
            debug_assert!(place.generation == key.generation && place.task.is_none());
            place.task = Some(task);
        }
    }

    /// Frees the place of one that was taken and has ended.
    pub(super) fn release(&mut self, key: TaskKey) {
        if let Some(place) = self.slots.get_mut(key.index as usize) {
            place.generation = place.generation.wrapping_add(1);
            self.free.push(key.index);
        }
    }

    /// Takes all that there are, for good.
    pub(super) fn drain(&mut self) -> Vec<Task> {
        self.free.clear();
        let places = std::mem::take(&mut self.slots);
        places.into_iter().filter_map(|place| place.task).collect()
    }
}

impl Task {
    /// From here on whoever wakes it schedules it anew.
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
    /// That of a loop's main future.
    pub(super) fn main(home: &Arc<Mailbox>) -> Arc<Self> {
        Self::new(home, TaskKey::MAIN)
    }

    /// One that is put in line by who makes it.
    fn new(home: &Arc<Mailbox>, key: TaskKey) -> Arc<Self> {
        Arc::new(Self {
            mailbox: Arc::clone(home),
            key,
            is_queued: AtomicBool::new(true),
            is_posted: AtomicBool::new(false),
        })
    }

    /// It is polled now: whoever wakes it from here on puts it in line anew.
    pub(super) fn mark_polled(&self) {
        self.is_queued.store(false, Ordering::Relaxed);
    }

    /// Its letter is opened, on its loop. An exchange: what those wrote who found it posted must be seen by
    /// the poll that follows.
    pub(super) fn handle_wake(&self) {
        self.is_posted.swap(false, Ordering::AcqRel);
        self.enqueue();
    }

    /// On its loop, and so without a locked instruction.
    fn enqueue(&self) {
        if !self.is_queued.load(Ordering::Relaxed) {
            self.is_queued.store(true, Ordering::Relaxed);
            event_loop::schedule(self.key);
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
