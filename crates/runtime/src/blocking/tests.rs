//! Pools with real threads: what runs, what waits, what is refused and what is counted.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::*;

fn block_on<F: Future>(future: F) -> F::Output {
    crate::loops::block_on(future).unwrap()
}

const SOON: Duration = Duration::from_secs(20);

/// A job that says when it begins and goes on until it is let.
struct Held {
    begun: Receiver<()>,
    go_on: SyncSender<()>,
}

impl Held {
    fn new() -> (Self, impl FnOnce() + Send + 'static) {
        let (begin, begun) = sync_channel(1);
        let (go_on, held) = sync_channel::<()>(1);
        let job = move || {
            begin.send(()).ok();
            held.recv_timeout(SOON).ok();
        };
        (Self { begun, go_on }, job)
    }

    /// Starts one in `pool` and waits until it runs.
    fn start(pool: &Pool) -> Self {
        let (held, job) = Self::new();
        pool.start(job).unwrap();
        held.await_begin();
        held
    }

    fn await_begin(&self) {
        self.begun.recv_timeout(SOON).expect("the job begins");
    }

    fn let_go(self) {
        self.go_on.send(()).unwrap();
    }
}

fn await_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
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
    await_until("the threads end", || pool.usage().threads == 0);
    // What comes too late is done all the same.
    assert_eq!(block_on(pool.run(|| 8)), Ok(8));
}

#[test]
fn a_full_queue_is_an_error_that_names_the_pool() {
    let pool = Pool::new("disk", 1, 1);
    let first = Held::start(&pool);
    let (second, job) = Held::new();
    pool.start(job).unwrap();
    assert_eq!((pool.usage().active, pool.usage().queued), (1, 1));
    for _ in 0..3 {
        let third = block_on(pool.run(|| ()));
        assert_eq!(
            third.unwrap_err().to_string(),
            "blocking pool `disk` is full (1 jobs wait)"
        );
    }
    first.let_go();
    second.await_begin();
    second.let_go();
    await_until("both are done", || pool.usage().worked.count == 2);
    let usage = pool.usage();
    assert_eq!((usage.active, usage.queued, usage.refused), (0, 0, 3));
    pool.close();
}

#[test]
fn without_a_queue_a_job_is_taken_at_once_or_refused() {
    let pool = Pool::new("disk", 1, 0);
    for _ in 0..3 {
        let held = Held::start(&pool);
        for refused in [block_on(pool.run(|| ())), block_on(pool.run_ahead(|| ()))] {
            assert!(matches!(refused, Err(PoolError::Full { max_queue: 0, .. })));
        }
        held.let_go();
        await_until("the thread is free", || pool.usage().active == 0);
    }
    assert_eq!(pool.usage().refused, 6);
    pool.close();
}

#[test]
fn a_thread_is_kept_for_what_goes_ahead() {
    let pool = Pool::new("disk", 3, 10);
    let held = [Held::start(&pool), Held::start(&pool)];
    let (waiting, job) = Held::new();
    pool.start(job).unwrap();
    assert_eq!(pool.usage().queued, 1);
    for _ in 0..100 {
        assert_eq!(block_on(pool.run_ahead(|| 7)), Ok(7));
    }
    await_until("the third is free", || pool.usage().active == 2);
    assert_eq!(pool.usage().queued, 1);
    let [one, two] = held;
    one.let_go();
    waiting.await_begin();
    two.let_go();
    waiting.let_go();
    await_until("all are done", || pool.usage().worked.count == 103);
    pool.close();
}

#[test]
fn all_that_waits_runs_when_threads_are_free_again() {
    for threads in [1, 2, 5] {
        let pool = Pool::new("disk", threads, 100);
        let held = Held::start(&pool);
        for _ in 0..50 {
            pool.start(|| ()).unwrap();
            pool.run_detached(|| ());
        }
        held.let_go();
        await_until("all are done", || pool.usage().worked.count == 101);
        assert_eq!(pool.usage().waited.count, 101);
        assert!(pool.usage().threads <= threads);
        pool.close();
    }
}

#[test]
fn what_is_detached_may_wait_beyond_the_bound() {
    let pool = Pool::new("disk", 1, 0);
    let held = Held::start(&pool);
    let here = std::thread::current().id();
    let (told, ran_on) = sync_channel(1);
    pool.run_detached(move || told.send(std::thread::current().id()).unwrap());
    assert_eq!(pool.usage().queued, 1);
    held.let_go();
    assert_ne!(ran_on.recv_timeout(SOON).unwrap(), here);
    pool.close();
}

#[test]
fn reads_go_by_their_waiters_and_each_file_has_its_turn() {
    let pool = Pool::new("disk", 1, 100);
    let held = Held::start(&pool);
    let (ran, order) = sync_channel(100);
    let note = |name: &'static str| {
        let ran = ran.clone();
        move || ran.send(name).unwrap()
    };
    let id = |file, number| ReadId {
        file: FileKey::Handle(file),
        number,
    };
    pool.start(note("write")).unwrap();
    pool.start_read(id(1, 1), 1, note("cold")).unwrap();
    for (number, name) in [(2, "hot 2"), (3, "hot 3"), (4, "hot 4"), (5, "hot 5")] {
        pool.start_read(id(2, number), 1, note(name)).unwrap();
        pool.count_waiter(id(2, number), true);
    }
    pool.count_waiter(id(2, 5), true);
    pool.count_waiter(id(2, 4), true);
    pool.count_waiter(id(2, 4), false);
    held.let_go();
    await_until("all are done", || pool.usage().worked.count == 7);
    let order: Vec<_> = order.try_iter().collect();
    assert_eq!(order, ["hot 5", "hot 2", "write", "hot 3", "hot 4", "cold"]);
    pool.close();
}

#[test]
fn the_oldest_running_job_and_the_times_are_told() {
    let pool = Pool::new("disk", 4, 10);
    assert_eq!(pool.oldest_running(), None);
    let first = Held::start(&pool);
    await_until("the job gets older", || {
        pool.oldest_running() > Some(Duration::from_millis(3))
    });
    let second = Held::start(&pool);
    assert!(pool.oldest_running() > Some(Duration::from_millis(3)));
    second.let_go();
    first.let_go();
    await_until("both are done", || pool.usage().worked.count == 2);
    let usage = pool.usage();
    assert_eq!(usage.oldest_running, None);
    assert!(usage.worked.max_us >= 3000 && usage.worked.sum_us >= usage.worked.max_us);
    assert_eq!(usage.waited.count, 2);
    pool.close();
}
