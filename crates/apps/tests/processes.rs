//! Leaks of an application in the process that ran it: children and descriptors.
//!
//! Alone in its process, and one test at a time, as both count all that there is. Real interpreters
//! run a small application. What must stay true: restarts leave no descriptor open, and nothing
//! that a worker started outlives the server.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_apps::{App, AppResources, BootStatus};
use penstock_config::{self as config, AppKind, Processes};
use penstock_exchange::buffering::BufferingSettings;
use penstock_runtime::blocking::Pool;
use penstock_runtime::loops::EventLoops;
use penstock_runtime::{clock, loops};

/// How long anything may take on a machine that has much to do.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Keeps a test that counts from another one.
static ALONE: Mutex<()> = Mutex::new(());

const APP: &str = r#"
def application(environ, start_response):
    start_response("200 OK", [])
    return []
"#;

/// Each load starts a daemon, which leaves its group and its session.
const DAEMON: &str = r#"
import subprocess
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with open(f"daemon-{child.pid}", "w"):
    pass
"#;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str, app: &str) -> Self {
        let name = format!("penstock-processes-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("app.py"), app).unwrap();
        Self(path)
    }

    /// The process ids of the daemons that were started.
    fn daemons(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(&self.0).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let pids = names.filter_map(|name| name.strip_prefix("daemon-")?.parse().ok());
        pids.collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn on_a_loop(test: impl Future<Output = ()>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // It hears of children that ended through tokio.
    let tokio = penstock_runtime::start_tokio().unwrap();
    let _entered = tokio.enter();
    loops::block_on(test).unwrap();
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = clock::timeout(TEST_TIMEOUT, work).await;
    done.expect("it comes to something in time")
}

/// Looks again and again.
async fn until(is_so: impl Fn() -> bool) {
    let mut pace = clock::PollInterval::new(Duration::from_millis(10));
    within(async {
        while !is_so() {
            pace.tick().await;
        }
    })
    .await;
}

async fn start(dir: &Dir, loops: &EventLoops, is_preloaded: bool) -> Arc<App> {
    let entry = "app:application";
    let mut app = config::App::new("shop", dir.0.clone(), AppKind::Wsgi, entry);
    app.processes = Processes::exactly(2);
    (app.min_threads, app.threads) = (2, 2);
    app.preload = match is_preloaded {
        true => config::Preload::Auto,
        false => config::Preload::Never,
    };
    let setup = AppResources {
        launcher: None,
        account: None,
        cgroup: None,
        yields_cpu_at_boot: false,
        is_development: false,
        initial_size: None,
        owner: None,
        loops: loops.handles().to_vec(),
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
    };
    let app = App::start(app, &setup);
    let boot = within(app.wait_for_boot()).await;
    assert!(matches!(boot, BootStatus::Ready { .. }), "{boot:?}");
    app
}

/// Waits until the old processes have gone.
async fn calm(app: &App, templates: usize) {
    until(|| {
        let snapshot = app.snapshot();
        snapshot.workers.len() == 2 && snapshot.templates.len() == templates
    })
    .await;
}

async fn end(app: &App) {
    within(app.drain(clock::now() + Duration::from_secs(5))).await;
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn restarts_leave_no_descriptor_open() {
    for (is_preloaded, templates) in [(true, 1), (false, 0)] {
        on_a_loop(async {
            let dir = Dir::new("restarts", APP);
            let loops = EventLoops::start(1).unwrap();
            let app = start(&dir, &loops, is_preloaded).await;
            within(app.restart()).await.unwrap();
            calm(&app, templates).await;
            let before = descriptors();
            // Both ways are the same but for templates.
            let restarts = if is_preloaded { 20 } else { 5 };
            for _ in 0..restarts {
                within(app.restart()).await.unwrap();
            }
            calm(&app, templates).await;
            // What tasks close is closed a moment later.
            until(|| descriptors() <= before).await;
            end(&app).await;
            loops.stop();
        });
    }
}

#[test]
fn what_a_worker_left_behind_ends_with_the_server() {
    for (is_preloaded, loads) in [(true, 1), (false, 2)] {
        on_a_loop(async {
            let dir = Dir::new("daemon", &format!("{DAEMON}\n{APP}"));
            let loops = EventLoops::start(1).unwrap();
            let app = start(&dir, &loops, is_preloaded).await;
            end(&app).await;
            let daemons = dir.daemons();
            assert_eq!(daemons.len(), loads, "one a load");
            let is_left = |pid: &u32| is_alive(*pid);
            assert!(daemons.iter().all(is_left), "they left their groups");
            penstock_apps::end_orphans(&[]);
            assert!(!daemons.iter().any(is_left));
            loops.stop();
        });
    }
}

#[test]
fn a_daemon_that_ends_before_the_server_is_reaped() {
    on_a_loop(async {
        let dir = Dir::new("reaped", &format!("{DAEMON}\n{APP}"));
        let loops = EventLoops::start(1).unwrap();
        let app = start(&dir, &loops, true).await;
        let daemon = dir.daemons()[0];
        // With the end of its parent it becomes a child of this process.
        within(app.restart()).await.unwrap();
        calm(&app, 1).await;
        penstock_sys::process::kill_group(daemon).unwrap();
        until(|| !is_alive(daemon)).await;
        end(&app).await;
        penstock_apps::end_orphans(&[]);
        loops.stop();
    });
}
