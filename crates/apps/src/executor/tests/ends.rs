//! How workers and templates end, and what survives them, with real interpreters.

use penstock_config::{Concurrency, MemoryLimit};

use super::templates::{RunningApp, python_app_config};
use super::*;
use crate::executor::launching::UnclaimedProcess;
use crate::executor::start_gate::StartGate;
use crate::shared::DispatchMode;
use penstock_sys::isolation::AccessRules;

/// Writes its last steps to the file `ends`; a body's `close` and the end take their time.
const SLOW_END: &str = r#"
import atexit, os, time
def note(what):
    with open("ends", "a") as ends:
        ends.write(what + "\n")
def last():
    time.sleep(2)
    note("ended")
class Body(list):
    def close(self):
        atexit.register(last)
        time.sleep(0.5)
        note("closed")
def application(environ, start_response):
    body = f"{os.getpid()} x {os.getppid()} 1".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return Body([body])
"#;

const SLOW_SHUTDOWN: &str = r#"
import asyncio, os
async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.sleep(2)
        with open("ends", "a") as ends:
            ends.write("ended\n")
        return await send({"type": "lifespan.shutdown.complete"})
    body = f"{os.getpid()} x {os.getppid()} 1".encode()
    head = {"type": "http.response.start", "status": 200}
    await send({**head, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
"#;

#[test]
fn a_worker_that_left_its_group_is_ended_all_the_same() {
    on_a_loop(async {
        let dir = TempDir::new("escape");
        let config = python_app_config(&dir, 1);
        dir.put(
            "app.py",
            r#"
import os, signal, time
def application(environ, start_response):
    os.setpgid(0, os.getpgid(os.getppid()))
    open("away", "w").close()
    time.sleep(1000)
"#,
        );
        let running = RunningApp::start_until_ready(config, dir).await;
        let away = running.file("away");
        tokio::select! {
            answer = running.get("/") => panic!("it does not answer: {answer:?}"),
            () = until(|| away.exists()) => {}
        }
        // Its request is still in progress when its time is over.
        running.end().await;
    });
}

#[test]
fn a_worker_has_the_time_that_it_is_given_for_its_end() {
    on_a_loop(async {
        for (preload, threads) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
            let dir = TempDir::new(&format!("last-{preload}-{threads}"));
            let mut config = python_app_config(&dir, 1);
            (config.min_threads, config.threads) = (threads, threads);
            if !preload {
                config.preload = config::Preload::Never;
            }
            dir.put("app.py", SLOW_END);
            let running = RunningApp::start_until_ready(config, dir).await;
            running.get("/").await.unwrap();
            let ends = running.drain_and_read_file("ends").await;
            assert_eq!(
                ends, "closed\nended\n",
                "preload {preload}, {threads} threads"
            );
            running.end().await;
        }
    });
}

#[test]
fn a_reactor_has_the_time_that_it_is_given_for_its_end() {
    on_a_loop(async {
        let dir = TempDir::new("shutdown");
        let mut config = python_app_config(&dir, 1);
        config.kind = AppKind::Asgi;
        config.concurrency = Concurrency::Tasks;
        dir.put("app.py", SLOW_SHUTDOWN);
        let running = RunningApp::start_until_ready(config, dir).await;
        running.get("/").await.unwrap();
        assert_eq!(running.drain_and_read_file("ends").await, "ended\n");
        running.end().await;
    });
}

/// Has the first `count` forks of a template refused, as by a kernel that has no room.
fn refusing(dir: &TempDir, count: usize) {
    let more = format!(
        r#"
import penstock_worker.forks as forks
fork, left = forks._fork, [None] * {count}
def refuse():
    if left:
        left.pop()
        raise OSError(11, "no room")
    return fork()
forks._fork = refuse
"#
    );
    dir.put("more.py", &more);
}

#[test]
fn a_fork_that_fails_is_tried_again_from_the_same_template() {
    on_a_loop(async {
        let dir = TempDir::new("refused");
        let config = python_app_config(&dir, 2);
        refusing(&dir, 1);
        let running = RunningApp::start(config, dir);
        running.wait_for_pids(2, &[]).await;
        assert_eq!(running.imports(), 1);
        assert_eq!(running.app.metrics().failed_boots.value(), 1);
        running.end().await;
    });
}

#[test]
fn forks_beyond_the_order_limit_wait() {
    on_a_loop(async {
        let dir = TempDir::new("many");
        let mut config = python_app_config(&dir, 300);
        config.scaling.max_spawn_rate = 300;
        // None of them comes to life here: this is about those that wait.
        refusing(&dir, 1_000_000);
        let running = RunningApp::start(config, dir);
        until(|| running.app.metrics().failed_boots.value() >= 300).await;
        assert_eq!((running.templates().len(), running.imports()), (1, 1));
        running.end().await;
    });
}

#[test]
fn a_templates_memory_is_measured() {
    on_a_loop(async {
        let dir = TempDir::new("measured");
        let mut config = python_app_config(&dir, 1);
        let bytes = 1 << 40;
        config.max_memory = Some(MemoryLimit {
            soft: bytes,
            hard: bytes,
            samples: 1,
        });
        let running = RunningApp::start_until_ready(config, dir).await;
        until(|| {
            let templates = running.app.snapshot().templates;
            templates
                .iter()
                .any(|template| template.proportional_bytes > Some(1 << 20))
        })
        .await;
        running.end().await;
    });
}

#[test]
fn a_template_answers_for_its_own_workers_only() {
    on_a_loop(async {
        let dir = TempDir::new("liar");
        let mut config = python_app_config(&dir, 1);
        config.preload = config::Preload::Always;
        // The first template says of every worker that it could not fork it; the next one is slow.
        let more = r#"
import struct, threading
import penstock_worker.forks as forks
def lie():
    while not os.path.exists("go"):
        time.sleep(0.01)
    while True:
        for worker in range(1, 20):
            forks._sockets[0].sendall(struct.pack("<BBHIQ", 35, 0, 0, 8, worker))
        time.sleep(0.02)
fork = forks._fork
def slow():
    time.sleep(0.5)
    return fork()
if os.path.exists("first"):
    forks._fork = slow
else:
    open("first", "w").close()
    threading.Thread(target=lie, daemon=True).start()
"#;
        dir.put("more.py", more);
        let running = RunningApp::start_until_ready(config, dir).await;
        let first = running.wait_for_pids(1, &[]).await;
        let template = running.templates()[0];
        std::fs::write(running.file("go"), "").unwrap();
        within(running.app.restart()).await.unwrap();
        running.wait_for_pids(1, &first).await;
        until(|| !is_alive(template)).await;
        assert_eq!(running.imports(), 2);
        running.end().await;
    });
}

/// A process that nothing follows yet.
fn started() -> process::SpawnedProcess {
    let launch = process::ProcessSpec {
        program: "sleep".into(),
        args: vec!["1000".into()],
        dir: "/".into(),
        env: Vec::new(),
        account: None,
        group: None,
        inherited_fds: Vec::new(),
        placed_fds: Vec::new(),
        sandbox: None,
        access: AccessRules::default(),
        app: "shop".to_owned(),
    };
    process::spawn_process(&launch).unwrap()
}

#[test]
fn a_process_is_ended_if_its_application_ends_while_it_starts() {
    on_a_loop(async {
        // Which of the two is handled first is left to chance.
        for round in 0..16 {
            let (dir, servers) = (TempDir::new("unclaimed"), FakeServerSet::new());
            let config = app(&dir, AppKind::Command, &["sleep", "1000"]);
            let setup = setup(&dir);
            let shared = AppShared::new(
                &config,
                DispatchMode::Servers(servers),
                setup.buffering_settings.clone(),
            );
            let (boot, _boot) = watch::channel(BootStatus::Pending);
            let policy = quick_policy(&config);
            let executor = Executor::new(Arc::new(shared), config, boot, (policy, &setup));
            let process = started();
            let pid = process.pid;
            let (key, started) = (
                ProcessKey::Worker(WorkerId(1_000)),
                UnclaimedProcess::new(process),
            );
            let launched = ExecutorInput::call(move |it| it.handle_launched(key, Ok(started)));
            executor.inputs.try_send(launched).unwrap();
            let (commands, inbox) = mpsc::channel(1);
            let (done, is_done) = oneshot::channel();
            let deadline = Some(clock::now() + Duration::from_secs(1));
            commands
                .try_send(AppCommand::Drain { deadline, done })
                .unwrap();
            within(Box::pin(run(executor, StartGate::default(), inbox))).await;
            assert_eq!(is_done.await, Ok(()));
            until(|| !is_alive(pid)).await;
            assert!(!is_alive(pid), "round {round}");
        }
    });
}
