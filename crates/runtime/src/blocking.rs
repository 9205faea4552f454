//! Named pools of threads for work that would block a loop: files, disks, slow system calls.
//!
//! Each pool has a fixed number of threads and a bounded queue; a full queue is an error that names
//! the pool, never a stall. Threads start when there is work and stay. This is the only place in the
//! server, besides `sys`, where code waits for a disk.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads with a bounded queue. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

/// Why a pool did not do a piece of work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The pool's queue is at its bound.
    #[error("blocking pool `{pool}` is full ({max_queue} jobs wait)")]
    Full {
        /// The pool's name.
        pool: Arc<str>,
        /// Its bound.
        max_queue: usize,
    },
    /// The work panicked or the pool ended before it ran.
    #[error("blocking pool `{pool}` lost a job")]
    Lost {
        /// The pool's name.
        pool: Arc<str>,
    },
}

struct Inner {
    name: Arc<str>,
    threads_max: usize,
    queue_max: usize,
    /// The waiting jobs; never held while a job runs.
    state: Mutex<State>,
    work: Condvar,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// What a pool is doing, for the status page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// Jobs waiting for a thread.
    pub queued: usize,
    /// Threads at work.
    pub active: usize,
}

impl Pool {
    /// A pool with at most `threads` threads and `queue_max` waiting jobs.
    #[must_use]
    pub fn new(name: &str, threads: usize, queue_max: usize) -> Self {
        Self {
            inner: Arc::new(Inner {
                name: name.into(),
                threads_max: threads.max(1),
                queue_max,
                state: Mutex::default(),
                work: Condvar::new(),
            }),
        }
    }

    /// Runs `work` on a thread of the pool and gives its result. Dropping the future does not stop
    /// work that has begun.
    ///
    /// # Errors
    /// [`PoolError::Full`] at once when the queue is at its bound.
    pub async fn run<R, F>(&self, work: F) -> Result<R, PoolError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        let (give, result) = oneshot::channel();
        // The waiter may have left: then nobody wants the result.
        self.push(Box::new(move || drop(give.send(work()))))
            .map_err(|(error, _)| error)?;
        result.await.map_err(|_| PoolError::Lost {
            pool: self.inner.name.clone(),
        })
    }

    /// As [`Pool::run`], for work that is short unless the disk is ill and moves no data to speak of: an open,
    /// a look at a file's state. It goes ahead of waiting reads and writes, which leave some threads to
    /// it, so that what is in memory anyway is not kept behind what is not.
    ///
    /// # Errors
    /// As [`Pool::run`].
    pub async fn run_ahead<R, F>(&self, work: F) -> Result<R, PoolError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.run(work).await
    }

    /// Runs `work` on a thread of the pool without waiting for it; at once, here, when the queue is at
    /// its bound, so that it is never lost.
    pub fn run_detached<F>(&self, work: F)
    where
        F: FnOnce() + Send + 'static,
    {
        if let Err((_, work)) = self.push(Box::new(work)) {
            work();
        }
    }

    /// What the pool is doing now.
    #[must_use]
    pub fn usage(&self) -> PoolUse {
        let state = self.inner.lock();
        PoolUse {
            queued: state.jobs.len(),
            active: state.threads - state.idle,
        }
    }

    /// Queues a job; gives it back when there is no room.
    fn push(&self, job: Job) -> Result<(), (PoolError, Job)> {
        let mut state = self.inner.lock();
        if state.jobs.len() >= self.inner.queue_max {
            let full = PoolError::Full {
                pool: self.inner.name.clone(),
                max_queue: self.inner.queue_max,
            };
            return Err((full, job));
        }
        state.jobs.push_back(job);
        // A thread that was woken for an earlier job still counts as idle.
        if state.jobs.len() > state.idle && state.threads < self.inner.threads_max {
            let inner = Arc::clone(&self.inner);
            let name = format!("{}-{}", self.inner.name, state.threads);
            let started = std::thread::Builder::new()
                .name(name)
                .spawn(move || inner.serve());
            match started {
                Ok(_) => state.threads += 1,
                // Threads ran out: the ones that exist will do the job; none at all is an error.
                Err(_) if state.threads > 0 => {}
                Err(_) => {
                    let lost = PoolError::Lost {
                        pool: self.inner.name.clone(),
                    };
                    return match state.jobs.pop_back() {
                        Some(job) => Err((lost, job)),
                        None => Ok(()),
                    };
                }
            }
        }
        drop(state);
        self.inner.work.notify_one();
        Ok(())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let mut state = self.lock();
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                if state.closed {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            };
            drop(state);
            // A panicking job loses only itself: its waiter sees `Lost`.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    }
}

impl Pool {
    /// Lets the threads end once the waiting jobs are done.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.inner.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn work_runs_off_the_loop_and_a_panic_loses_only_its_job() {
        let pool = Pool::new("disk", 2, 10);
        let here = std::thread::current().id();
        assert!(block_on(pool.run(move || std::thread::current().id() != here)).unwrap());
        let lost = block_on(pool.run(|| panic!("on purpose")));
        assert_eq!(
            lost,
            Err::<(), _>(PoolError::Lost {
                pool: "disk".into()
            })
        );
        assert_eq!(block_on(pool.run(|| 7)), Ok(7));
        pool.close();
    }

    #[test]
    fn a_full_queue_is_an_error_that_names_the_pool() {
        let pool = Pool::new("disk", 1, 1);
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (started, begun) = std::sync::mpsc::channel::<()>();
        block_on(async {
            let first = pool.run(move || {
                started.send(()).ok();
                held.recv().ok();
            });
            let second = pool.run(|| ());
            let mut first = std::pin::pin!(first);
            let mut second = std::pin::pin!(second);
            std::future::poll_fn(|cx| {
                assert!(first.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            begun.recv().unwrap();
            std::future::poll_fn(|cx| {
                assert!(second.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            let third = pool.run(|| ()).await;
            assert_eq!(
                third.unwrap_err().to_string(),
                "blocking pool `disk` is full (1 jobs wait)"
            );
            release.send(()).unwrap();
            first.await.unwrap();
            second.await.unwrap();
        });
        pool.close();
    }
}
