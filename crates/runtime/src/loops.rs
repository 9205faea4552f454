//! The loops: one thread each, one current-thread tokio runtime each.
//!
//! `penstock` starts them, `edge` runs listeners and connections on them, `apps` the drivers of its
//! slots. What starts on a loop stays there; [`LoopHandle::spawn`] is the way onto a loop from
//! outside, [`spawn_here`] from inside.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::thread::JoinHandle;

use thread_local::ThreadLocal;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

thread_local! {
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// All loops of the process.
#[derive(Debug)]
pub struct Loops {
    handles: Vec<LoopHandle>,
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// One loop, as seen from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LoopHandle {
    index: usize,
    handle: Handle,
}

impl Loops {
    /// Starts `count` loops (at least one).
    ///
    /// # Errors
    /// When threads or descriptors ran out.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut loops = Self {
            handles: Vec::new(),
            threads: Vec::new(),
        };
        for index in 0..count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let (stop, stopped) = oneshot::channel();
            let thread = std::thread::Builder::new()
                .name(format!("loop-{index}"))
                .spawn(move || {
                    INDEX.set(index);
                    let _kept = penstock_sys::alloc::keep_freed();
                    // An error means that `Loops` was dropped, which also ends the loop.
                    let _ = runtime.block_on(stopped);
                })?;
            loops.handles.push(LoopHandle { index, handle });
            loops.threads.push((stop, thread));
        }
        Ok(loops)
    }

    /// The loops, by index.
    #[must_use]
    pub fn handles(&self) -> &[LoopHandle] {
        &self.handles
    }

    /// Ends all loops; what still runs on them is dropped at its next wait.
    pub fn stop(self) {
        for (stop, thread) in self.threads {
            let _ = stop.send(());
            // A loop that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

impl LoopHandle {
    /// The loop's number, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Starts `task` on this loop, from any thread.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.handle.spawn(task);
    }
}

/// A value that each loop (each thread, outside of them) has for itself: nobody waits for it, and
/// reaching it is no locked instruction. What a loop leaves behind goes with the whole.
pub struct PerLoop<T: Send> {
    values: ThreadLocal<RefCell<T>>,
}

impl<T: Send + Default> PerLoop<T> {
    /// Values that begin as their type's default.
    #[must_use]
    pub fn new() -> Self {
        Self {
            values: ThreadLocal::new(),
        }
    }

    /// Runs `use_it` with this loop's own value.
    ///
    /// # Panics
    /// When `use_it` comes back here.
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

/// The number of the loop this code runs on (0 outside of any).
#[must_use]
pub fn current_index() -> usize {
    INDEX.get()
}

/// Starts `task` on the loop this code runs on.
pub fn spawn_here<F>(task: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(task);
}

/// Lets everything else that is ready on this loop run first.
pub async fn yield_now() {
    tokio::task::yield_now().await;
}
