//! A tokio runtime on a thread of its own, for libraries that require one.
//!
//! DNS (`hickory`), Redis and signals use tokio's sockets and timers. Their futures are awaited on
//! our loops; their resources are registered with the runtime that a thread has entered, which
//! wakes them from there. `penstock` starts one for its control loop.
//!
//! # Invariants
//! - Only requests that need Redis pass through here, since each wait involves two threads.

use std::fmt;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

/// The runtime; it ends when this is dropped.
pub struct TokioThread {
    handle: Handle,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl TokioThread {
    /// Starts the runtime.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("tokio".into());
        let thread = thread.spawn(move || {
            // An error also means that the runtime shall stop.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self {
            handle,
            running: Some((stop, thread)),
        })
    }

    /// Makes this the runtime that the thread's tokio types use, until the guard is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }
}

impl Drop for TokioThread {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for TokioThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioThread").finish_non_exhaustive()
    }
}
