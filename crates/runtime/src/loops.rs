//! The event loops: one thread each, which polls its tasks and waits for its descriptors and
//! timers.
//!
//! `penstock` starts them; `edge` runs listeners and connections on them, `apps` the drivers of its
//! slots. A task stays on the loop where it starts. [`LoopHandle::spawn`] starts a task on a loop
//! from outside, [`spawn_here`] from inside. A task that always finds its descriptors ready yields
//! after a while; a task that only uses channels must call [`yield_now`] itself. This is not
//! tokio's runtime, although its primitives (channels, `select!`) are used everywhere: an iteration
//! of tokio's costs a request about as much as parsing it (docs/decisions/001-loops.md).

mod event_loop;
mod fd_table;
mod mailbox;
mod slots;
mod task_handle;
mod tasks;
mod timers;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;

use thread_local::ThreadLocal;
use tokio::sync::oneshot;

use self::event_loop::LoopResources;
use self::mailbox::{LoopMessage, Mailbox};

pub use self::task_handle::{TaskHandle, spawn_with_handle};

pub(crate) use self::event_loop::{Registration, Timer};
pub(crate) use self::fd_table::IoDirection;

thread_local! {
    static LOOP_INDEX: Cell<usize> = const { Cell::new(0) };
}

/// All event loops of the process.
#[derive(Debug)]
pub struct EventLoops {
    handles: Vec<LoopHandle>,
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// Handle of one event loop. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LoopHandle {
    index: usize,
    mailbox: Arc<Mailbox>,
}

impl EventLoops {
    /// Starts `count` loops (at least one).
    pub fn start(count: usize) -> io::Result<Self> {
        let mut loops = Self {
            handles: Vec::new(),
            threads: Vec::new(),
        };
        for index in 0..count.max(1) {
            let kernel = LoopResources::new()?;
            let mail = Arc::clone(&kernel.mailbox);
            let (stop, stopped) = oneshot::channel();
            let thread = std::thread::Builder::new()
                .name(format!("loop-{index}"))
                .spawn(move || {
                    LOOP_INDEX.set(index);
                    // An error means that `EventLoops` was dropped, which also ends the loop.
                    let _ = event_loop::run(kernel, stopped);
                })?;
            loops.handles.push(LoopHandle {
                index,
                mailbox: mail,
            });
            loops.threads.push((stop, thread));
        }
        Ok(loops)
    }

    /// The loops, by index.
    pub fn handles(&self) -> &[LoopHandle] {
        &self.handles
    }

    /// Ends all loops; tasks that still run are dropped at their next wait.
    pub fn stop(self) {
        for (stop, thread) in self.threads {
            let _ = stop.send(());
            // A loop that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

impl LoopHandle {
    /// The loop that this code runs on, if any.
    #[must_use]
    pub fn current() -> Option<Self> {
        Some(Self {
            index: current_loop_index(),
            mailbox: event_loop::current_mailbox()?,
        })
    }

    /// The loop's index, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Starts `task` on this loop, from any thread. Dropped if the loop has ended.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.mailbox.post(LoopMessage::Spawn(Box::pin(task)));
    }
}

/// Runs a loop on this thread until `main` is done and returns its output. Other tasks are dropped
/// then.
///
/// # Panics
/// Within another loop, and when `main` does.
pub fn block_on<F: Future>(main: F) -> io::Result<F::Output> {
    Ok(event_loop::run(LoopResources::new()?, main))
}

/// A value of which each loop (or other thread) has its own: access needs no lock and no locked
/// instruction. The value of a loop that has ended is dropped with the whole.
pub struct PerLoop<T: Send> {
    values: ThreadLocal<RefCell<T>>,
}

impl<T: Send + Default> PerLoop<T> {
    /// Creates values that begin as their type's default.
    pub fn new() -> Self {
        Self {
            values: ThreadLocal::new(),
        }
    }

    /// Runs `use_it` with this loop's own value.
    ///
    /// # Panics
    /// When `use_it` calls this again.
    pub fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        use_it(&mut self.values.get_or_default().borrow_mut())
    }
}

impl<T: Send + Default> Default for PerLoop<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send> fmt::Debug for PerLoop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerLoop").finish_non_exhaustive()
    }
}

/// The index of the loop this code runs on (0 outside of any).
#[must_use]
pub fn current_loop_index() -> usize {
    LOOP_INDEX.get()
}

/// Starts `task` on the loop this code runs on.
///
/// # Panics
/// Outside of a loop.
pub fn spawn_here<F>(task: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let spawned = event_loop::spawn(Box::pin(task));
    assert!(spawned.is_ok(), "tasks are started on loops");
}

/// The turn of the loop that this code runs on. It changes when everything that was ready has run
/// once; code that bounds its work per turn compares it.
#[must_use]
pub fn current_turn() -> u64 {
    event_loop::current_turn()
}

/// Counts work that took as long as `cost` reads of a descriptor. A task that has done much in one
/// poll finds no descriptor ready until the others have had their turn.
pub fn charge_task(cost: u32) {
    event_loop::charge_task(cost);
}

/// Lets everything else that is ready on this loop run first, including new events.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        event_loop::defer_wake(cx.waker());
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests;
