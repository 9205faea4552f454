//! What an event loop guarantees to tasks, to other threads and to itself.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use penstock_sys::net;

use super::*;
use crate::{Stream, clock};

/// Upper bound for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn run<F: Future>(test: F) -> F::Output {
    block_on(clock::timeout(PATIENCE, test))
        .unwrap()
        .expect("in time")
}

#[test]
fn a_task_runs_on_its_loop_and_its_outcome_is_awaited() {
    let here = std::thread::current().id();
    let there = run(spawned_thread());
    assert_eq!(there, here);
    let loops = EventLoops::start(2).unwrap();
    for handle in loops.handles() {
        let (tell, told) = oneshot::channel();
        let index = handle.index();
        handle.spawn(async move {
            let _ = tell.send((current_loop_index(), spawned_thread().await));
        });
        let (runs_at, thread) = run(told).unwrap();
        assert_eq!(runs_at, index);
        assert_ne!(thread, here);
    }
    loops.stop();
}

#[test]
fn message_bursts_leave_a_small_queue() {
    let loops = EventLoops::start(1).unwrap();
    let handle = &loops.handles()[0];
    // The loop's list and the mailbox's are swapped: each has had its burst, and has come back.
    for _ in 0..4 {
        let (go_on, held_up) = std::sync::mpsc::sync_channel::<()>(1);
        handle.spawn(async move {
            let _ = held_up.recv_timeout(PATIENCE);
        });
        for _ in 0..8 * event_loop::MAX_KEPT_MESSAGES {
            handle.spawn(async {});
        }
        let (tell, told) = oneshot::channel();
        handle.spawn(async move {
            let _ = tell.send(());
        });
        drop(go_on);
        run(told).unwrap();
        let (tell, told) = oneshot::channel();
        handle.spawn(async move {
            let _ = tell.send(());
        });
        run(told).unwrap();
        let room = handle.mailbox.message_capacity();
        assert!(room <= event_loop::MAX_KEPT_MESSAGES, "{room}");
    }
    loops.stop();
}

async fn spawned_thread() -> std::thread::ThreadId {
    spawn_with_handle(async { std::thread::current().id() })
        .await
        .unwrap()
}

#[test]
fn a_waker_of_another_thread_is_never_lost() {
    run(async {
        for round in 0..2_000_u32 {
            let shared = Arc::new((AtomicU32::new(0), Mutex::new(None::<Waker>)));
            let theirs = Arc::clone(&shared);
            // It may come before, within and after the poll that returns pending.
            let other = std::thread::spawn(move || {
                for _ in 0..round % 50 {
                    std::hint::spin_loop();
                }
                theirs.0.store(1, Ordering::Release);
                let waker = theirs.1.lock().unwrap().take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            });
            spawn_with_handle(poll_fn(move |cx| {
                *shared.1.lock().unwrap() = Some(cx.waker().clone());
                match shared.0.load(Ordering::Acquire) {
                    1 => Poll::Ready(()),
                    _ => Poll::Pending,
                }
            }))
            .await
            .unwrap();
            other.join().unwrap();
        }
    });
}

#[test]
fn wakes_of_many_threads_are_all_received() {
    const THREADS: usize = 4;
    const EACH: usize = 5_000;
    let heard = Arc::new(AtomicUsize::new(0));
    run(async {
        let here = LoopHandle::current().unwrap();
        let senders: Vec<_> = (0..THREADS)
            .map(|_| {
                let (here, heard) = (here.clone(), Arc::clone(&heard));
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        let heard = Arc::clone(&heard);
                        here.spawn(async move {
                            heard.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                })
            })
            .collect();
        let mut pace = clock::PollInterval::new(Duration::from_millis(1));
        while heard.load(Ordering::Relaxed) < THREADS * EACH {
            pace.tick().await;
        }
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_task_that_panics_ends_and_nothing_else_does() {
    run(async {
        let mut other = spawn_with_handle(clock::sleep_until(
            Instant::now() + Duration::from_millis(5),
        ));
        let panics =
            spawn_with_handle(async { assert_eq!(current_loop_index(), usize::MAX, "on purpose") });
        assert!(panics.await.is_err());
        assert!(!other.is_finished());
        (&mut other).await.unwrap();
    });
}

#[test]
fn tasks_that_wake_each_other_do_not_delay_kernel_events() {
    run(async {
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let stream = Stream::new(ours).unwrap();
        let busy = spawn_with_handle(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let heard = spawn_with_handle(async move {
            let mut buffer = [0; 8];
            poll_fn(|cx| stream.poll_read(cx, &mut buffer))
                .await
                .unwrap()
        });
        yield_now().await;
        net::send(theirs.as_fd(), b"news").unwrap();
        assert_eq!(heard.await.unwrap(), 4);
        assert!(!busy.is_finished());
    });
}

#[test]
fn an_always_ready_task_yields_to_others() {
    run(async {
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let stream = Stream::new(ours).unwrap();
        let stop = Arc::new(AtomicUsize::new(0));
        let is_stopped = Arc::clone(&stop);
        // It sends again whatever it reads: there is always something.
        net::send(theirs.as_fd(), b"x").unwrap();
        let greedy = spawn_with_handle(async move {
            let mut reads = 0_u64;
            while is_stopped.load(Ordering::Relaxed) == 0 {
                let mut buffer = [0; 1];
                poll_fn(|cx| {
                    let read = stream.poll_read(cx, &mut buffer);
                    net::send(theirs.as_fd(), b"x").unwrap();
                    read
                })
                .await
                .unwrap();
                reads += 1;
            }
            reads
        });
        // The timer fires between its polls.
        clock::sleep_until(Instant::now() + Duration::from_millis(2)).await;
        stop.store(1, Ordering::Relaxed);
        assert!(greedy.await.unwrap() > 0);
    });
}

#[test]
fn a_yielding_task_runs_after_others_and_kernel_events() {
    run(async {
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks = ["a", "b"].map(|name| {
            let order = Arc::clone(&order);
            spawn_with_handle(async move {
                order.lock().unwrap().push(name);
                yield_now().await;
                order.lock().unwrap().push(name);
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["a", "b", "a", "b"]);
    });
}

#[test]
fn timers_fire_in_order_and_not_early() {
    run(async {
        let start = Instant::now();
        let order = Arc::new(Mutex::new(Vec::new()));
        let sleepers = [30, 5, 20, 10].map(|after| {
            let (order, after) = (Arc::clone(&order), Duration::from_millis(after));
            spawn_with_handle(async move {
                clock::sleep_until(start + after).await;
                assert!(start.elapsed() >= after);
                order.lock().unwrap().push(after.as_millis());
            })
        });
        // A timer dropped early must not affect the others.
        let given_up = clock::timeout(
            Duration::from_millis(1),
            clock::sleep_until(start + PATIENCE),
        )
        .await;
        assert!(given_up.is_none());
        for sleeper in sleepers {
            sleeper.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [5, 10, 20, 30]);
    });
}

#[test]
fn tasks_are_dropped_on_their_loop_when_it_ends() {
    thread_local! { static DROPPED: Cell<u32> = const { Cell::new(0) }; }
    struct Noted(bool);
    impl Drop for Noted {
        fn drop(&mut self) {
            DROPPED.set(DROPPED.get() + 1);
            if self.0 {
                let begun = Self(false);
                spawn_here(async move {
                    let _begun = begun;
                    std::future::pending::<()>().await;
                });
            }
        }
    }
    block_on(async {
        for _ in 0..3 {
            let noted = Noted(true);
            spawn_here(async move {
                let _noted = noted;
                clock::sleep_until(Instant::now() + PATIENCE).await;
            });
        }
        yield_now().await;
    })
    .unwrap();
    assert_eq!(DROPPED.get(), 6);
    // The thread may run another loop.
    assert_eq!(run(async { 7 }), 7);
}

#[test]
fn a_stream_may_be_dropped_or_used_on_another_thread() {
    let loops = EventLoops::start(1).unwrap();
    run(async {
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let stream = Stream::new(ours).unwrap();
        let (tell, told) = oneshot::channel();
        loops.handles()[0].spawn(async move {
            let refused = poll_fn(|cx| stream.poll_read(cx, &mut [0; 8])).await;
            let moved = Stream::new(stream.into_socket()).unwrap();
            let mut buffer = [0; 8];
            let read = poll_fn(|cx| moved.poll_read(cx, &mut buffer)).await;
            let _ = tell.send((refused.is_err(), read.unwrap()));
        });
        net::send(theirs.as_fd(), b"hello").unwrap();
        let (is_refused, count) = told.await.unwrap();
        assert!(is_refused, "elsewhere it cannot be waited for");
        assert_eq!(count, 5);
        // Entries of descriptors closed elsewhere are reused.
        for _ in 0..100 {
            let (ours, _theirs) = net::worker_socket_pair().unwrap();
            let stream = Stream::new(ours).unwrap();
            std::thread::spawn(move || drop(stream)).join().unwrap();
            yield_now().await;
        }
        assert!(
            event_loop::fd_entry_count() <= 3,
            "{}",
            event_loop::fd_entry_count()
        );
    });
    loops.stop();
}

#[test]
fn aborted_tasks_are_dropped_and_detached_ones_go_on() {
    run(async {
        let (alive, gone) = oneshot::channel::<()>();
        let mut task = spawn_with_handle(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        task.abort();
        assert!(task.await.is_err());
        assert!(gone.await.is_err());
        let (tell, told) = oneshot::channel();
        drop(spawn_with_handle(async move {
            yield_now().await;
            let _ = tell.send(3);
        }));
        assert_eq!(told.await, Ok(3));
    });
}
