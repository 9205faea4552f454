//! Real Python workers that use too much, take too long or are too few.
//!
//! Each test drives one [`App`] on a loop of its own and drains it at the end.

#![allow(clippy::disallowed_methods, reason = "tests may wait for a disk")]

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use penstock_config::{self as config, AppKind, MemoryLimit};
use penstock_exchange::buffering::BufferingSettings;
use penstock_exchange::{Body, Fault, FaultKind, Handler, HandlerProgress, Reply};
use penstock_runtime::blocking::Pool;
use penstock_runtime::loops::spawn_here;
use penstock_runtime::{EventLoops, clock, loops};
use tokio::sync::oneshot;

use super::*;
use crate::{App, AppResources, testing};

/// How long anything may take on a machine that has much to do.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Does what its path says and answers with its process's number.
const APP: &str = r#"
import asyncio, os, threading, time
hoard = []
met = threading.Event()

def rest_for_long():
    time.sleep(3600)

def stream():
    yield b"begin"
    while True:
        time.sleep(0.01)
        yield b"."

def app(environ, start_response):
    what = environ["PATH_INFO"]
    if what == "/grow":
        hoard.append(bytearray(os.urandom(1 << 20) * 80))
    elif what == "/rest":
        rest_for_long()
    elif what == "/grow-and-rest":
        hoard.append(bytearray(os.urandom(1 << 20) * 80))
        rest_for_long()
    elif what == "/held":
        environ["penstock.extend_timeout"](60)
        while not os.path.exists("go"):
            time.sleep(0.02)
    elif what == "/work":
        time.sleep(0.3)
    elif what == "/wait":
        environ["penstock.mark_as_io_bound"]()
        met.wait(60)
    elif what == "/meet":
        met.set()
    elif what == "/long":
        environ["penstock.extend_timeout"](60)
        time.sleep(1)
    start_response("200 OK", [("X-Accel-Buffering", "no")])
    if what == "/stream":
        return stream()
    return [b"%d" % os.getpid()]

async def reactor(scope, receive, send):
    if scope["type"] == "lifespan":
        raise RuntimeError("none")
    while scope["path"] == "/hang":
        await receive()
        await asyncio.sleep(3600)
    length = [(b"content-length", b"%d" % len(str(os.getpid())))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": b"%d" % os.getpid()})
"#;

/// An application with its folder and its loop.
struct LimitsHarness {
    app: Arc<App>,
    dir: PathBuf,
    loops: Option<EventLoops>,
}

impl LimitsHarness {
    async fn start(name: &str, change: impl FnOnce(&mut config::App)) -> Self {
        let dir = format!("penstock-limits-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        std::fs::create_dir_all(dir.join("tmp")).unwrap();
        std::fs::write(dir.join("code.py"), APP).unwrap();
        let mut about = config::App::new("shop", dir.clone(), AppKind::Wsgi, "code:app");
        about.processes = config::Processes::exactly(1);
        change(&mut about);
        let loops = EventLoops::start(1).unwrap();
        let setup = AppResources {
            loops: loops.handles().to_vec(),
            launcher: None,
            account: None,
            cgroup: None,
            buffering_settings: BufferingSettings {
                max_body_memory: 1 << 20,
                max_response_memory: 1 << 16,
                max_response_spool: 1 << 20,
                min_busy_rate: 0,
                rate_grace: Duration::ZERO,
                temp_dir: dir.clone(),
                temp_space: Arc::default(),
                pool: Pool::new("default", 2, 100),
            },
            yields_cpu_at_boot: false,
            is_development: false,
            initial_size: None,
            owner: None,
        };
        let app = App::start(about, &setup);
        within(app.wait_until_up()).await.expect("it boots");
        Self {
            app,
            dir,
            loops: Some(loops),
        }
    }

    /// A request's answer: its body, or where it begins when it has no end.
    async fn ask(&self, path: &str) -> Result<Body, Fault> {
        ask(Arc::clone(&self.app), path.to_owned()).await
    }

    /// The process that serves now.
    async fn pid(&self) -> u32 {
        number(self.ask("/").await.unwrap())
    }

    /// Waits until `is_so`; requests are served all the while.
    async fn until(&self, is_so: impl Fn(&App) -> bool) {
        let mut pace = clock::PollInterval::new(Duration::from_millis(10));
        within(async {
            while !is_so(&self.app) {
                pace.tick().await;
                let _ = self.pid().await;
            }
        })
        .await;
    }

    async fn end(mut self) {
        within(self.app.drain(clock::now() + Duration::from_secs(1))).await;
        assert_eq!(self.app.snapshot().workers.len(), 0);
        if let Some(loops) = self.loops.take() {
            loops.stop();
        }
    }
}

impl Drop for LimitsHarness {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

async fn ask(app: Arc<App>, path: String) -> Result<Body, Fault> {
    let reply = match app.handle(testing::get(&path)) {
        HandlerProgress::Ready(reply) => reply,
        HandlerProgress::Pending(later) => within(later).await,
    };
    match reply? {
        Reply::Response(response) => Ok(response.body),
        other => panic!("{other:?}"),
    }
}

fn number(body: Body) -> u32 {
    let Body::Bytes(text) = body else {
        panic!("{body:?}");
    };
    std::str::from_utf8(&text).unwrap().parse().unwrap()
}

async fn next(body: &mut Body) -> Option<Result<Bytes, Fault>> {
    let Body::Stream(stream) = body else {
        panic!("{body:?}");
    };
    within(std::future::poll_fn(|cx| stream.poll_chunk(cx))).await
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = clock::timeout(TEST_TIMEOUT, work).await;
    done.expect("it comes to something in time")
}

fn on_a_loop(test: impl Future<Output = ()>) {
    // It hears of children that ended through tokio.
    let tokio = penstock_runtime::start_tokio().unwrap();
    let _entered = tokio.enter();
    loops::block_on(test).unwrap();
}

fn mebibytes(soft: u64, hard: u64) -> Option<MemoryLimit> {
    Some(MemoryLimit {
        soft: soft << 20,
        hard: hard << 20,
        samples: 1,
    })
}

#[test]
fn a_worker_above_its_soft_limit_is_replaced_without_errors() {
    on_a_loop(async {
        let harness =
            LimitsHarness::start("soft", |about| about.max_memory = mebibytes(70, 10_000)).await;
        let before = number(harness.ask("/grow").await.unwrap());
        harness
            .until(|app| app.metrics().recycled_workers[0].value() == 1)
            .await;
        assert_ne!(harness.pid().await, before);
        let killed: u64 = harness
            .app
            .metrics()
            .killed_workers
            .iter()
            .map(|k| k.value())
            .sum();
        assert_eq!(
            (killed, harness.app.metrics().worker_deaths.value()),
            (0, 0)
        );
        let measured = |app: &App| {
            let workers = app.snapshot().workers;
            workers
                .iter()
                .all(|w| w.proportional_bytes.is_some_and(|b| b < 70 << 20))
        };
        harness.until(measured).await;
        harness.end().await;
    });
}

#[test]
fn a_worker_above_its_hard_limit_is_killed_with_a_request_inside() {
    on_a_loop(async {
        let harness = LimitsHarness::start("hard", |about| {
            (about.min_threads, about.threads) = (2, 2);
            about.max_memory = mebibytes(75, 75);
        })
        .await;
        let fault = harness.ask("/grow-and-rest").await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::WorkerDied);
        assert_eq!(harness.app.metrics().killed_workers[4].value(), 1);
        let _ = harness.pid().await;
        harness.end().await;
    });
}

#[test]
fn a_request_that_asked_for_time_has_it_beside_a_stuck_one() {
    on_a_loop(async {
        let harness = LimitsHarness::start("beside", |about| {
            (about.min_threads, about.threads) = (2, 2);
            about.response_timeout = Duration::from_secs(1);
            about.boot_timeout = Duration::from_secs(5);
        })
        .await;
        let held = loops::spawn_with_handle(ask(Arc::clone(&harness.app), "/held".to_owned()));
        let is_begun = |app: &App| app.snapshot().workers.iter().any(|w| w.in_progress > 0);
        harness.until(is_begun).await;
        let fault = harness.ask("/rest").await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::AppTimeout);
        // By now a stuck worker would have been killed, whatever else it does.
        let nothing = std::future::pending::<()>();
        clock::timeout(Duration::from_secs(8), nothing).await;
        assert_eq!(harness.app.metrics().worker_deaths.value(), 0);
        std::fs::write(harness.dir.join("go"), "").unwrap();
        let body = within(held).await.unwrap();
        assert!(body.is_ok(), "{body:?}");
        harness.end().await;
    });
}

#[test]
fn workers_are_replaced_after_so_many_requests_and_at_their_age() {
    on_a_loop(async {
        let harness = LimitsHarness::start("requests", |about| about.max_requests = Some(20)).await;
        let mut pids = HashSet::new();
        let mut pace = clock::PollInterval::new(Duration::from_millis(1));
        within(async {
            while pids.len() < 4 {
                pace.tick().await;
                pids.insert(harness.pid().await);
            }
        })
        .await;
        assert!(harness.app.metrics().recycled_workers[1].value() >= 3);
        harness.end().await;
        let harness =
            LimitsHarness::start("age", |about| about.max_age = Some(Duration::from_secs(1))).await;
        harness
            .until(|app| app.metrics().recycled_workers[2].value() >= 2)
            .await;
        assert_eq!(harness.app.metrics().worker_deaths.value(), 0);
        harness.end().await;
    });
}

#[test]
fn a_stuck_worker_shows_where_it_is_stuck_and_is_killed() {
    on_a_loop(async {
        let harness = LimitsHarness::start("stuck", |about| {
            about.response_timeout = Duration::from_millis(300);
        })
        .await;
        let before = harness.pid().await;
        let fault = harness.ask("/rest").await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::AppTimeout);
        assert_ne!(harness.pid().await, before);
        assert_eq!(harness.app.metrics().killed_workers[1].value(), 1);
        let output = harness.app.output(Some(before), 0).join("\n");
        assert!(output.contains("rest_for_long"), "{output}");
        harness.end().await;
    });
}

#[test]
fn a_stuck_threads_neighbour_finishes_before_its_worker_is_killed() {
    on_a_loop(async {
        let harness = LimitsHarness::start("neighbour", |about| {
            (about.min_threads, about.threads) = (2, 2);
            about.response_timeout = Duration::from_secs(1);
        })
        .await;
        let before = harness.pid().await;
        let stuck = spawn(ask(Arc::clone(&harness.app), "/rest".into()));
        let mut pace = clock::PollInterval::new(Duration::from_millis(10));
        // The other thread is at work until the stuck request is reported, and then still finishes.
        while harness.app.metrics().timed_out_requests.value() == 0 {
            pace.tick().await;
            assert_eq!(number(harness.ask("/work").await.unwrap()), before);
        }
        let fault = within(stuck).await.unwrap().unwrap_err();
        assert_eq!(fault.kind, FaultKind::AppTimeout);
        harness
            .until(|app| app.metrics().recycled_workers[3].value() == 1)
            .await;
        harness
            .until(|app| app.metrics().killed_workers[1].value() == 1)
            .await;
        assert_ne!(harness.pid().await, before);
        assert_eq!(harness.app.metrics().worker_deaths.value(), 0);
        harness.end().await;
    });
}

fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> oneshot::Receiver<T> {
    let (give, result) = oneshot::channel();
    spawn_here(async move {
        let _ = give.send(work.await);
    });
    result
}

#[test]
fn a_request_that_waits_for_another_lets_it_in() {
    on_a_loop(async {
        let harness = LimitsHarness::start("io", |about| about.io_threads = 2).await;
        let pid = harness.pid().await;
        let waiting = spawn(ask(Arc::clone(&harness.app), "/wait".into()));
        let mut pace = clock::PollInterval::new(Duration::from_millis(5));
        while harness.app.metrics().io_bound_requests.value() == 0 {
            pace.tick().await;
        }
        assert_eq!(number(harness.ask("/meet").await.unwrap()), pid);
        assert_eq!(number(within(waiting).await.unwrap().unwrap()), pid);
        assert_eq!(harness.app.metrics().io_bound_without_spare_slot.value(), 0);
        harness
            .until(|app| app.snapshot().queue.usage.slots == 1)
            .await;
        harness.end().await;
    });
}

#[test]
fn a_request_may_ask_for_more_time_and_garbage_is_collected_beside_requests() {
    on_a_loop(async {
        let harness = LimitsHarness::start("extend", |about| {
            about.response_timeout = Duration::from_millis(400);
            about.gc_when_idle = true;
        })
        .await;
        let pid = harness.pid().await;
        assert_eq!(number(harness.ask("/long").await.unwrap()), pid);
        harness
            .until(|app| app.metrics().gc_runs.value() >= 2)
            .await;
        assert_eq!(harness.pid().await, pid);
        assert_eq!(
            harness
                .app
                .snapshot()
                .workers
                .iter()
                .filter_map(|w| w.requests)
                .count(),
            1
        );
        assert_eq!(harness.app.metrics().timed_out_requests.value(), 0);
        harness.end().await;
    });
}

#[test]
fn a_touched_file_restarts_and_new_code_that_does_not_boot_leaves_the_old() {
    on_a_loop(async {
        let harness = LimitsHarness::start("touch", |_| {}).await;
        let touch = |text: &str| std::fs::write(harness.dir.join("tmp/restart.txt"), text).unwrap();
        let before = harness.pid().await;
        touch("1");
        harness
            .until(|app| app.snapshot().generation == 2 && !app.snapshot().is_restarting)
            .await;
        let after = harness.pid().await;
        assert_ne!(after, before);
        std::fs::write(harness.dir.join("code.py"), "raise ValueError('new')").unwrap();
        std::fs::remove_file(harness.dir.join("tmp/restart.txt")).unwrap();
        let mut round = clock::PollInterval::new(Duration::from_millis(1100));
        // It is seen to be gone, which is no wish.
        round.tick().await;
        round.tick().await;
        assert_eq!(harness.app.snapshot().restart_error, None);
        touch("2");
        harness
            .until(|app| app.snapshot().restart_error.is_some())
            .await;
        let error = harness.app.snapshot().restart_error.unwrap();
        assert!(error.contains("ValueError: new"), "{error}");
        assert_eq!(harness.pid().await, after);
        harness.end().await;
    });
}

#[test]
fn who_asks_while_a_restart_is_under_way_hears_of_the_next_one() {
    on_a_loop(async {
        let harness = LimitsHarness::start("twice", |_| {}).await;
        let (one, other) = within(async {
            tokio::join!(harness.app.restart(), async {
                let mut pace = clock::PollInterval::new(Duration::from_millis(1));
                while !harness.app.snapshot().is_restarting {
                    pace.tick().await;
                }
                let done = harness.app.restart().await;
                (done, harness.app.snapshot().generation)
            })
        })
        .await;
        assert_eq!((one, other), (Ok(()), (Ok(()), 3)));
        harness.end().await;
    });
}

#[test]
fn streams_go_on_while_their_worker_is_replaced_until_their_time_is_over() {
    on_a_loop(async {
        let harness = LimitsHarness::start("streams", |about| {
            about.stream_timeout = Duration::from_secs(1);
            about.response_timeout = TEST_TIMEOUT;
        })
        .await;
        let mut body = harness.ask("/stream").await.unwrap();
        assert!(next(&mut body).await.unwrap().is_ok());
        within(harness.app.restart()).await.unwrap();
        assert!(next(&mut body).await.unwrap().is_ok(), "it goes on");
        let fault = loop {
            match next(&mut body).await.expect("it does not end well") {
                Ok(_) => {}
                Err(fault) => break fault,
            }
        };
        assert!(fault.cause.contains("stream_timeout"), "{}", fault.cause);
        harness
            .until(|app| app.snapshot().workers.iter().all(|w| w.generation == 2))
            .await;
        harness.end().await;
    });
}

#[test]
fn the_number_of_workers_follows_the_load() {
    on_a_loop(async {
        let harness = LimitsHarness::start("scale", |about| {
            about.processes = config::Processes { min: 1, max: 3 };
            about.scaling.up_after = Duration::from_millis(50);
            about.scaling.idle_timeout = Duration::from_secs(1);
        })
        .await;
        let asked: Vec<_> = (0..20)
            .map(|_| spawn(ask(Arc::clone(&harness.app), "/work".into())))
            .collect();
        let mut pids = HashSet::new();
        for answer in asked {
            pids.insert(number(within(answer).await.unwrap().unwrap()));
        }
        assert!(pids.len() > 1, "{pids:?}");
        let now = harness.app.snapshot();
        assert!(now.last_scaling.is_some(), "it is said why");
        assert!(harness.app.metrics().scale_ups.value() >= 1);
        // There is no load.
        watch(&harness, |now| {
            (now.processes.target, now.processes.ready) == (1, 1)
        })
        .await;
        assert!(harness.app.metrics().scale_downs.value() >= 1);
        harness.end().await;
    });
}

/// Waits until an application is so, without asking anything of it.
async fn watch(harness: &LimitsHarness, is_so: impl Fn(&crate::AppSnapshot) -> bool) {
    let mut pace = clock::PollInterval::new(Duration::from_millis(10));
    within(async {
        while !is_so(&harness.app.snapshot()) {
            pace.tick().await;
        }
    })
    .await;
}

#[test]
fn the_number_of_threads_follows_the_load() {
    on_a_loop(async {
        let harness = LimitsHarness::start("threads", |about| {
            (about.min_threads, about.threads) = (1, 6);
            about.scaling.up_after = Duration::from_millis(50);
            about.scaling.idle_timeout = Duration::from_secs(3);
        })
        .await;
        let pid = harness.pid().await;
        let before = harness.app.snapshot();
        assert_eq!((before.threads, before.queue.usage.slots), (1, 1));
        assert_eq!((before.min_threads, before.max_threads), (1, 6));
        let asked: Vec<_> = (0..30)
            .map(|_| spawn(ask(Arc::clone(&harness.app), "/work".into())))
            .collect();
        watch(&harness, |now| now.threads > 2).await;
        for answer in asked {
            assert_eq!(
                number(within(answer).await.unwrap().unwrap()),
                pid,
                "the same process"
            );
        }
        let now = harness.app.snapshot();
        let why = now.last_scaling.expect("it is said why");
        assert!(why.starts_with("threads from "), "{why}");
        // There is no load.
        watch(&harness, |now| {
            (now.threads, now.queue.usage.slots) == (1, 1)
        })
        .await;
        assert_eq!(harness.pid().await, pid);
        harness.end().await;
    });
}

#[test]
fn a_reactor_full_of_requests_that_never_end_is_replaced() {
    on_a_loop(async {
        let harness = LimitsHarness::start("reactor", |about| {
            about.kind = AppKind::Asgi;
            about.entry = "code:reactor".to_owned();
            about.max_concurrent = 2;
            about.response_timeout = Duration::from_millis(500);
        })
        .await;
        let first = harness.pid().await;
        let hang = || spawn(ask(Arc::clone(&harness.app), "/hang".into()));
        for hangs in [hang(), hang()] {
            let fault = within(hangs).await.unwrap().expect_err("no answer");
            assert_eq!(fault.kind, FaultKind::AppTimeout);
        }
        // Dropped requests hold all its slots.
        assert_ne!(harness.pid().await, first);
        harness.end().await;
    });
}
