//! Workers that are forked from templates, and templates that fail, with real interpreters.
//!
//! Each application notes in the file `imports` that it was loaded, and answers which process
//! serves and by which load. What must stay true in all of them: nothing is left when the
//! application has ended.

use std::collections::HashSet;
use std::path::Path;

use penstock_config::Processes;
use penstock_exchange::{Body, Handler, HandlerProgress, Reply};
use penstock_runtime::loops::EventLoops;

use super::*;
use crate::testing;

/// Answers `pid load parent requests`. Other files of its folder say what else it does.
const PYTHON: &str = r#"
import os, sys, time
with open("imports", "a") as imports:
    imports.write(f"{os.getpid()}\n")
LOAD = os.urandom(8).hex()
served = 0
exec(open("more.py").read() if os.path.exists("more.py") else "")
def application(environ, start_response):
    global served
    served += 1
    if environ["PATH_INFO"] == "/exit":
        os._exit(7)
    if environ["PATH_INFO"] == "/thread":
        import threading
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    body = f"{os.getpid()} {LOAD} {os.getppid()} {served}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"#;

const RUBY: &str = r##"
File.write("imports", "#{Process.pid}\n", mode: "a")
LOAD = Random.urandom(8).unpack1("H*")
SERVED = [0]
run(lambda do |env|
  SERVED[0] += 1
  body = "#{Process.pid} #{LOAD} #{Process.ppid} #{SERVED[0]}"
  [200, { "content-length" => body.bytesize.to_s }, [body]]
end)
"##;

/// The same for ASGI.
const REACTOR: &str = r#"
import os
with open("imports", "a") as imports:
    imports.write(f"{os.getpid()}\n")
LOAD = os.urandom(8).hex()
async def application(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    body = f"{os.getpid()} {LOAD} {os.getppid()} 1".encode()
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})
"#;

/// A running application with the loops of its slots.
pub(super) struct RunningApp {
    pub(super) app: Arc<App>,
    loops: Option<EventLoops>,
    dir: TempDir,
}

/// What a worker answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkerAnswer {
    pub(super) pid: u32,
    load: String,
    parent: u32,
    pub(super) served: u64,
}

pub(super) fn python_app_config(dir: &TempDir, processes: usize) -> config::App {
    dir.put("app.py", PYTHON);
    let mut app = config::App::new("shop", dir.0.clone(), AppKind::Wsgi, "app:application");
    app.processes = Processes::exactly(processes);
    app.boot_timeout = TEST_TIMEOUT;
    app
}

impl RunningApp {
    pub(super) fn start(config: config::App, dir: TempDir) -> Self {
        let loops = EventLoops::start(1).unwrap();
        let setup = AppResources {
            loops: loops.handles().to_vec(),
            launcher: None,
            account: None,
            cgroup: None,
            buffering_settings: BufferingSettings {
                max_body_memory: 1 << 16,
                max_response_memory: 1 << 16,
                max_response_spool: 1 << 20,
                min_busy_rate: 0,
                rate_grace: Duration::ZERO,
                temp_dir: dir.0.clone(),
                temp_space: Arc::default(),
                pool: Pool::new("default", 1, 100),
            },
            yields_cpu_at_boot: false,
            is_development: false,
            initial_size: None,
            owner: None,
        };
        let policy = SupervisorPolicy {
            stop_timeout: Duration::from_secs(5),
            min_backoff: Duration::from_millis(20),
            ..App::supervisor_policy(&config)
        };
        let servers = FakeServerSet::new() as Arc<dyn ServerSet>;
        Self {
            app: App::start_with_policy(policy, config, &setup, servers),
            loops: Some(loops),
            dir,
        }
    }

    pub(super) async fn start_until_ready(config: config::App, dir: TempDir) -> Self {
        let running = Self::start(config, dir);
        let boot = within(running.app.wait_for_boot()).await;
        assert!(matches!(boot, BootStatus::Ready { .. }), "{boot:?}");
        running
    }

    pub(super) async fn wait_for_boot_failure(&self) -> String {
        match within(self.app.wait_for_boot()).await {
            BootStatus::Failed { report } => report,
            other => panic!("it cannot have booted: {other:?}"),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Result<WorkerAnswer, Fault> {
        let handling = self.app.handle(testing::get(path));
        let reply = match handling {
            HandlerProgress::Ready(reply) => reply,
            HandlerProgress::Pending(reply) => within(reply).await,
        };
        let Reply::Response(response) = reply? else {
            panic!("an application answers itself");
        };
        let Body::Bytes(body) = response.body else {
            panic!("a short answer: {:?}", response.body);
        };
        let text = String::from_utf8(body.to_vec()).unwrap();
        let words: Vec<&str> = text.split(' ').collect();
        Ok(WorkerAnswer {
            pid: words[0].parse().unwrap(),
            load: words[1].to_owned(),
            parent: words[2].parse().unwrap(),
            served: words[3].parse().unwrap(),
        })
    }

    /// The process ids of the workers that serve, in order.
    pub(super) fn pids(&self) -> Vec<u32> {
        let workers = self.app.snapshot().workers.into_iter();
        let ready = workers.filter(|worker| worker.state == "ready");
        let mut pids: Vec<u32> = ready.filter_map(|worker| worker.pid).collect();
        pids.sort_unstable();
        pids
    }

    pub(super) fn templates(&self) -> Vec<u32> {
        let templates = self.app.snapshot().templates.into_iter();
        let ready = templates.filter(|template| template.state == "template");
        ready.filter_map(|template| template.pid).collect()
    }

    pub(super) fn imports(&self) -> usize {
        let text = std::fs::read_to_string(self.dir.0.join("imports"));
        text.unwrap_or_default().lines().count()
    }

    /// A file of its folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.0.join(name)
    }

    /// Drains the application; then reads a file of its folder.
    pub(super) async fn drain_and_read_file(&self, name: &str) -> String {
        within(self.app.drain(clock::now() + Duration::from_secs(2))).await;
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Waits until so many workers serve, none of them in `but`.
    pub(super) async fn wait_for_pids(&self, count: usize, but: &[u32]) -> Vec<u32> {
        until(|| {
            let pids = self.pids();
            pids.len() == count
                && self.app.snapshot().workers.len() == count
                && pids.iter().all(|pid| !but.contains(pid))
        })
        .await;
        self.pids()
    }

    /// Ends it; no process of it may be left.
    pub(super) async fn end(mut self) {
        let snapshot = self.app.snapshot();
        let all = snapshot.workers.iter().chain(&snapshot.templates);
        let pids: Vec<u32> = all.filter_map(|process| process.pid).collect();
        within(self.app.drain(clock::now() + Duration::from_secs(2))).await;
        let snapshot = self.app.snapshot();
        assert_eq!(snapshot.workers.len() + snapshot.templates.len(), 0);
        for pid in pids {
            assert!(!is_alive(pid), "process {pid} is left");
        }
        // Also of those that were never known.
        assert_eq!(processes_in(&self.dir.0), [0; 0]);
        if let Some(loops) = self.loops.take() {
            loops.stop();
        }
    }
}

/// All processes whose working directory this is.
fn processes_in(dir: &Path) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_in = |pid: &u32| {
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
        cwd.is_ok_and(|cwd| cwd == dir)
    };
    pids.filter(is_in).collect()
}

#[test]
fn the_application_is_loaded_once_for_all_workers() {
    for kind in [AppKind::Wsgi, AppKind::Rack] {
        on_a_loop(async {
            let dir = TempDir::new(&format!("once-{kind}"));
            let mut config = python_app_config(&dir, 4);
            if kind == AppKind::Rack {
                dir.put("config.ru", RUBY);
                config.kind = kind;
                config.entry = "config.ru".to_owned();
            }
            (config.min_threads, config.threads) = (2, 2);
            let running = RunningApp::start_until_ready(config, dir).await;
            let pids = running.wait_for_pids(4, &[]).await;
            let templates = running.templates();
            assert_eq!(templates.len(), 1);
            assert!(!pids.contains(&templates[0]));
            let mut loads = HashSet::new();
            for _ in 0..20 {
                let answer = running.get("/").await.unwrap();
                assert!(pids.contains(&answer.pid), "{answer:?}");
                assert_eq!(
                    answer.parent,
                    std::process::id(),
                    "it is the server's child"
                );
                loads.insert(answer.load);
            }
            assert_eq!((loads.len(), running.imports()), (1, 1));
            let spawning = running.app.snapshot().start_method;
            assert_eq!(spawning, "forking");
            running.end().await;
        });
    }
}

#[test]
fn a_reactor_gets_its_sockets_in_both_ways_of_starting_it() {
    for (way, is_preloaded, imports) in [("forked", true, 1), ("spawned", false, 2)] {
        on_a_loop(async {
            let dir = TempDir::new(&format!("reactor-{way}"));
            let mut config = python_app_config(&dir, 2);
            dir.put("app.py", REACTOR);
            config.kind = AppKind::Asgi;
            config.concurrency = config::Concurrency::default_for(config.kind);
            config.preload = match is_preloaded {
                true => config::Preload::Auto,
                false => config::Preload::Never,
            };
            let running = RunningApp::start_until_ready(config, dir).await;
            let first = running.wait_for_pids(2, &[]).await;
            for _ in 0..10 {
                let answer = running.get("/").await.unwrap();
                assert!(first.contains(&answer.pid), "{way}: {answer:?}");
            }
            process::kill_group(first[0]).unwrap();
            let second = running.wait_for_pids(2, &first[..1]).await;
            assert!(second.contains(&running.get("/").await.unwrap().pid));
            let expected = if is_preloaded { imports } else { imports + 1 };
            assert_eq!(running.imports(), expected, "{way}");
            running.end().await;
        });
    }
}

#[test]
fn without_preload_each_worker_loads_the_application_itself() {
    on_a_loop(async {
        let dir = TempDir::new("plain");
        let mut config = python_app_config(&dir, 2);
        config.preload = config::Preload::Never;
        let running = RunningApp::start_until_ready(config, dir).await;
        running.wait_for_pids(2, &[]).await;
        assert_eq!((running.imports(), running.templates().len()), (2, 0));
        running.end().await;
    });
}

#[test]
fn a_worker_with_more_sockets_than_fit_one_message_gets_them_all() {
    on_a_loop(async {
        let dir = TempDir::new("sockets");
        let mut config = python_app_config(&dir, 1);
        (config.min_threads, config.threads, config.io_threads) = (70, 70, 3);
        let running = RunningApp::start_until_ready(config, dir).await;
        for _ in 0..80 {
            running.get("/").await.unwrap();
        }
        running.end().await;
    });
}

#[test]
fn a_worker_that_dies_is_forked_anew_without_another_load() {
    on_a_loop(async {
        let dir = TempDir::new("dies");
        let running = RunningApp::start_until_ready(python_app_config(&dir, 2), dir).await;
        let first = running.wait_for_pids(2, &[]).await;
        process::kill_group(first[0]).unwrap();
        let second = running.wait_for_pids(2, &first[..1]).await;
        assert!(second.contains(&first[1]), "the other one serves on");
        let fault = running.get("/exit").await.unwrap_err();
        assert!(
            fault.cause.contains("ended with the request inside"),
            "{}",
            fault.cause
        );
        until(|| running.app.metrics().crashed_workers.value() == 2).await;
        running.wait_for_pids(2, &first[..1]).await;
        assert_eq!(running.imports(), 1);
        running.end().await;
    });
}

#[test]
fn a_template_that_dies_costs_nothing_but_the_next_load() {
    on_a_loop(async {
        let dir = TempDir::new("template");
        let running = RunningApp::start_until_ready(python_app_config(&dir, 2), dir).await;
        let pids = running.wait_for_pids(2, &[]).await;
        let template = running.templates()[0];
        process::kill_group(template).unwrap();
        until(|| running.templates().is_empty() && !is_alive(template)).await;
        assert_eq!(running.wait_for_pids(2, &[]).await, pids, "they serve on");
        running.get("/").await.unwrap();
        process::kill_group(pids[0]).unwrap();
        running.wait_for_pids(2, &pids[..1]).await;
        assert_eq!((running.imports(), running.templates().len()), (2, 1));
        running.end().await;
    });
}

#[test]
fn code_that_does_not_load_is_reported_with_its_traceback_and_tried_again() {
    on_a_loop(async {
        let dir = TempDir::new("broken");
        dir.put("more.py", "raise ValueError('not today')");
        let running = RunningApp::start(python_app_config(&dir, 3), dir);
        let report = running.wait_for_boot_failure().await;
        assert!(report.contains("ValueError: not today"), "{report}");
        assert!(
            running.app.refusal_fault().is_some(),
            "requests need not wait"
        );
        let before = running.imports();
        until(|| running.imports() > before).await;
        running.dir.put("more.py", "");
        running.wait_for_pids(3, &[]).await;
        assert!(running.app.refusal_fault().is_none());
        running.end().await;
    });
}

#[test]
fn a_template_that_ends_or_hangs_while_it_loads_is_reported() {
    let rows = [
        (
            "ends",
            "os._exit(5)",
            "ended with exit code 5 before it was ready",
        ),
        (
            "hangs",
            "print('so far', flush=True); time.sleep(1000)",
            "was not loaded after 5s",
        ),
        (
            "cannot fork",
            "os.register_at_fork(after_in_child=lambda: os._exit(3))",
            "a worker was not forked: it ended before it said hello",
        ),
    ];
    for (name, more, expected) in rows {
        on_a_loop(async {
            let dir = TempDir::new(name);
            dir.put("more.py", more);
            let mut config = python_app_config(&dir, 2);
            config.boot_timeout = match name {
                "hangs" => Duration::from_secs(5),
                _ => TEST_TIMEOUT,
            };
            let running = RunningApp::start(config, dir);
            let report = running.wait_for_boot_failure().await;
            assert!(report.contains(expected), "{name}: {report}");
            if name == "hangs" {
                assert!(report.contains("so far"), "{name}: {report}");
            }
            running.end().await;
        });
    }
}

#[test]
fn an_application_that_cannot_be_forked_is_loaded_by_each_worker() {
    on_a_loop(async {
        let dir = TempDir::new("threads");
        let more = "import threading\n\
                    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()";
        dir.put("more.py", more);
        let running = RunningApp::start_until_ready(python_app_config(&dir, 2), dir).await;
        let pids = running.wait_for_pids(2, &[]).await;
        until(|| running.app.snapshot().templates.is_empty()).await;
        let spawning = running.app.snapshot().start_method;
        assert!(spawning.starts_with("plain: "), "{spawning}");
        process::kill_group(pids[0]).unwrap();
        running.wait_for_pids(2, &pids[..1]).await;
        assert_eq!(
            running.imports(),
            4,
            "the template, two workers, their successor"
        );
        running.end().await;
    });
}

#[test]
fn preload_true_forks_an_application_with_threads() {
    on_a_loop(async {
        let dir = TempDir::new("anyway");
        let more = "import threading\n\
                    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()";
        dir.put("more.py", more);
        let mut config = python_app_config(&dir, 2);
        config.preload = config::Preload::Always;
        let running = RunningApp::start_until_ready(config, dir).await;
        running.wait_for_pids(2, &[]).await;
        running.get("/").await.unwrap();
        assert_eq!((running.imports(), running.templates().len()), (1, 1));
        assert_eq!(running.app.snapshot().start_method, "forking");
        running.end().await;
    });
}

#[test]
fn a_template_that_still_loads_does_not_keep_the_application_from_ending() {
    on_a_loop(async {
        let dir = TempDir::new("loading");
        dir.put("more.py", "time.sleep(1000)");
        let running = RunningApp::start(python_app_config(&dir, 2), dir);
        until(|| running.imports() == 1).await;
        let template = running.app.snapshot().templates[0].pid.unwrap();
        running.end().await;
        assert!(!is_alive(template));
    });
}

#[test]
fn workers_that_are_being_forked_when_the_application_ends_are_not_left_behind() {
    on_a_loop(async {
        let dir = TempDir::new("forking");
        dir.put(
            "more.py",
            "os.register_at_fork(before=lambda: time.sleep(0.2))",
        );
        let running = RunningApp::start(python_app_config(&dir, 4), dir);
        until(|| !running.templates().is_empty()).await;
        assert!(running.pids().len() < 4, "they take their time");
        running.end().await;
    });
}

#[test]
fn new_code_that_is_asked_for_while_the_old_loads_replaces_it() {
    on_a_loop(async {
        let dir = TempDir::new("impatient");
        dir.put("more.py", "time.sleep(1000)");
        let running = RunningApp::start(python_app_config(&dir, 2), dir);
        until(|| running.imports() == 1).await;
        running.dir.put("more.py", "");
        within(running.app.restart()).await.unwrap();
        running.wait_for_pids(2, &[]).await;
        until(|| running.app.snapshot().templates.len() == 1).await;
        assert_eq!(running.imports(), 2);
        running.end().await;
    });
}

#[test]
fn each_version_of_the_code_has_its_own_template() {
    on_a_loop(async {
        let dir = TempDir::new("versions");
        let running = RunningApp::start_until_ready(python_app_config(&dir, 2), dir).await;
        let first = running.wait_for_pids(2, &[]).await;
        let template = running.templates();
        let load = running.get("/").await.unwrap().load;
        within(running.app.restart()).await.unwrap();
        let second = running.wait_for_pids(2, &first).await;
        assert_ne!(running.get("/").await.unwrap().load, load);
        until(|| running.app.snapshot().templates.len() == 1).await;
        let successor = running.templates();
        assert_ne!(successor, template);
        assert!(!is_alive(template[0]));

        running
            .dir
            .put("more.py", "raise ValueError('half of an upload')");
        let why = within(running.app.restart()).await.unwrap_err();
        assert!(why.contains("half of an upload"), "{why}");
        assert_eq!(
            running.wait_for_pids(2, &[]).await,
            second,
            "the old code serves on"
        );
        process::kill_group(second[0]).unwrap();
        running.wait_for_pids(2, &second[..1]).await;
        assert_eq!(running.templates(), successor, "and is not loaded again");
        assert_eq!(running.imports(), 3);
        running.end().await;
    });
}
