//! Pools with real threads: running, waiting, refused and counted jobs.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::*;

fn block_on<F: Future>(future: F) -> F::Output {
    crate::loops::block_on(future).unwrap()
}

const TIMEOUT: Duration = Duration::from_secs(20);

/// A job that reports when it begins and runs until it is released.
struct BlockedJob {
    begun_receiver: Receiver<()>,
    release_sender: SyncSender<()>,
}

impl BlockedJob {
    fn new() -> (Self, impl FnOnce() + Send + 'static) {
        let (begin, begun) = sync_channel(1);
        let (go_on, held) = sync_channel::<()>(1);
        let job = move || {
            begin.send(()).ok();
            held.recv_timeout(TIMEOUT).ok();
        };
        (
            Self {
                begun_receiver: begun,
                release_sender: go_on,
            },
            job,
        )
    }

    /// Starts one in `pool` and waits until it runs.
    fn start(pool: &Pool) -> Self {
        let (held, job) = Self::new();
        pool.spawn(job).unwrap();
        held.await_begin();
        held
    }

    fn await_begin(&self) {
        self.begun_receiver
            .recv_timeout(TIMEOUT)
            .expect("the job begins");
    }

    fn release(self) {
        self.release_sender.send(()).unwrap();
    }
}

fn await_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
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
    await_until("the threads end", || pool.snapshot().threads == 0);
    // A job that arrives after `close` is still run.
    assert_eq!(block_on(pool.run(|| 8)), Ok(8));
}

#[test]
fn a_full_queue_is_an_error_that_names_the_pool() {
    let pool = Pool::new("disk", 1, 1);
    let first = BlockedJob::start(&pool);
    let (second, job) = BlockedJob::new();
    pool.spawn(job).unwrap();
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (1, 1));
    for _ in 0..3 {
        let third = block_on(pool.run(|| ()));
        assert_eq!(
            third.unwrap_err().to_string(),
            "blocking pool `disk` is full (1 jobs wait)"
        );
    }
    first.release();
    second.await_begin();
    second.release();
    await_until("both are done", || pool.snapshot().run_time.count == 2);
    let usage = pool.snapshot();
    assert_eq!((usage.active, usage.queued, usage.refused), (0, 0, 3));
    pool.close();
}

#[test]
fn without_a_queue_a_job_runs_at_once_or_is_refused() {
    let pool = Pool::new("disk", 1, 0);
    for _ in 0..3 {
        let held = BlockedJob::start(&pool);
        for refused in [
            block_on(pool.run(|| ())),
            block_on(pool.run_priority(|| ())),
        ] {
            assert!(matches!(refused, Err(PoolError::Full { max_queue: 0, .. })));
        }
        held.release();
        await_until("the thread is free", || pool.snapshot().active == 0);
    }
    assert_eq!(pool.snapshot().refused, 6);
    pool.close();
}

#[test]
fn a_thread_is_reserved_for_priority_jobs() {
    let pool = Pool::new("disk", 3, 10);
    let held = [BlockedJob::start(&pool), BlockedJob::start(&pool)];
    let (waiting, job) = BlockedJob::new();
    pool.spawn(job).unwrap();
    assert_eq!(pool.snapshot().queued, 1);
    for _ in 0..100 {
        assert_eq!(block_on(pool.run_priority(|| 7)), Ok(7));
    }
    await_until("the third is free", || pool.snapshot().active == 2);
    assert_eq!(pool.snapshot().queued, 1);
    let [one, two] = held;
    one.release();
    waiting.await_begin();
    two.release();
    waiting.release();
    await_until("all are done", || pool.snapshot().run_time.count == 103);
    pool.close();
}

#[test]
fn queued_jobs_run_once_threads_are_free() {
    for threads in [1, 2, 5] {
        let pool = Pool::new("disk", threads, 100);
        let held = BlockedJob::start(&pool);
        for _ in 0..50 {
            pool.spawn(|| ()).unwrap();
            pool.run_detached(|| ());
        }
        held.release();
        await_until("all are done", || pool.snapshot().run_time.count == 101);
        assert_eq!(pool.snapshot().queue_time.count, 101);
        assert!(pool.snapshot().threads <= threads);
        pool.close();
    }
}

#[test]
fn detached_jobs_may_exceed_the_queue_limit() {
    let pool = Pool::new("disk", 1, 0);
    let held = BlockedJob::start(&pool);
    let here = std::thread::current().id();
    let (told, ran_on) = sync_channel(1);
    pool.run_detached(move || told.send(std::thread::current().id()).unwrap());
    assert_eq!(pool.snapshot().queued, 1);
    held.release();
    assert_ne!(ran_on.recv_timeout(TIMEOUT).unwrap(), here);
    pool.close();
}

#[test]
fn reads_are_ordered_by_waiters_and_fair_between_files() {
    let pool = Pool::new("disk", 1, 100);
    let held = BlockedJob::start(&pool);
    let (ran, order) = sync_channel(100);
    let note = |name: &'static str| {
        let ran = ran.clone();
        move || ran.send(name).unwrap()
    };
    let id = |file, number| ReadId {
        file: FileKey::Handle(file),
        number,
    };
    pool.spawn(note("write")).unwrap();
    pool.spawn_read(id(1, 1), 1, note("cold")).unwrap();
    for (number, name) in [(2, "hot 2"), (3, "hot 3"), (4, "hot 4"), (5, "hot 5")] {
        pool.spawn_read(id(2, number), 1, note(name)).unwrap();
        pool.update_waiters(id(2, number), true);
    }
    pool.update_waiters(id(2, 5), true);
    pool.update_waiters(id(2, 4), true);
    pool.update_waiters(id(2, 4), false);
    held.release();
    await_until("all are done", || pool.snapshot().run_time.count == 7);
    let order: Vec<_> = order.try_iter().collect();
    assert_eq!(order, ["hot 5", "hot 2", "write", "hot 3", "hot 4", "cold"]);
    pool.close();
}

#[test]
fn snapshots_show_the_oldest_job_and_the_times() {
    let pool = Pool::new("disk", 4, 10);
    assert_eq!(pool.oldest_job_time(), None);
    let first = BlockedJob::start(&pool);
    await_until("the job gets older", || {
        pool.oldest_job_time() > Some(Duration::from_millis(3))
    });
    let second = BlockedJob::start(&pool);
    assert!(pool.oldest_job_time() > Some(Duration::from_millis(3)));
    second.release();
    first.release();
    await_until("both are done", || pool.snapshot().run_time.count == 2);
    let usage = pool.snapshot();
    assert_eq!(usage.oldest_running, Duration::ZERO);
    assert!(usage.run_time.max_us >= 3000 && usage.run_time.sum_us >= usage.run_time.max_us);
    assert_eq!(usage.queue_time.count, 2);
    pool.close();
}
