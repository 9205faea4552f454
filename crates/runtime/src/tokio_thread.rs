//! A tokio runtime on a thread of its own, for libraries that were written for one.
//!
//! Names (`hickory`), Redis and signals are waited for through tokio's sockets and timers. They are awaited on
//! our loops like everything else; what they register, they register with the runtime that a thread has
//! entered, and it wakes them from there. `penstock` starts one for its control loop. What must stay true:
//! no request goes through here but one that asks Redis, since each wait of it is two threads'.

use std::fmt;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

/// The runtime; it ends with this.
pub struct TokioThread {
    handle: Handle,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl TokioThread {
    /// Starts it.
    ///
    /// # Errors
    /// When threads or descriptors ran out.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("tokio".into());
        let thread = thread.spawn(move || {
            // An error means the same.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self {
            handle,
            running: Some((stop, thread)),
        })
    }

    /// Makes it the one that this thread's tokio types find, until the guard is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }
}

impl Drop for TokioThread {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            // One that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for TokioThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioThread").finish_non_exhaustive()
    }
}
