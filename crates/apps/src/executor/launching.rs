//! Processes that are being started and do not run yet.
//!
//! Between `Spawn` and the program there is the launcher, and the kernel, which may wait for a
//! disk. The parts of a process are prepared at once (`workers`, `servers`); its program is looked
//! up in a pool, as that reads the disk too; a task of its own awaits the start.
//!
//! # Invariants
//! - No start delays the executor, or another start.
//! - Each start has a result, a process or an error, unless it was given up; then its process is
//!   ended, also if the application ends before it hears of it.
//! - One application has one look-up of its program in progress, so that a lost disk blocks one
//!   thread of the pool and not all of them.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_config as config;
use penstock_exchange::buffering::BufferingSettings;
use penstock_runtime::loops::{self, TaskHandle};
use penstock_runtime::{clock, process as watch_process};
use penstock_sys::process::{self, Launcher, SpawnedProcess};
use tokio::sync::Mutex;

use super::access::{self, ProgramFiles};
use super::process_task::PendingProcess;
use super::{ChildProcess, Executor, ExecutorInput, PreparedProcess, ProcessKey, ProcessRole};
use crate::shared::DispatchMode;
use crate::supervisor::{SupervisorEvent, WorkerId};

/// How long the look for a program may take, before the start itself.
pub(super) const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Held by the look for the program of an application; what it found for this generation, if its
/// files are limited.
pub(crate) type ProgramLookup = Arc<Mutex<Option<(u64, ProgramFiles)>>>;

/// A process that is being started. Dropped, the start is given up.
#[derive(Debug)]
pub(super) struct PendingLaunch {
    pending: PendingProcess,
    /// What it offers, once there is such a process; `None` of a template.
    pub(super) role: Option<ProcessRole>,
    _start: StartTask,
}

/// The task that awaits a start, ended when this is dropped.
#[derive(Debug)]
struct StartTask(TaskHandle<()>);

/// A process that was started and that nothing follows yet. Unless it is taken it is ended, with
/// its group.
#[derive(Debug)]
pub(super) struct UnclaimedProcess(Option<SpawnedProcess>);

impl UnclaimedProcess {
    pub(super) fn new(started: SpawnedProcess) -> Self {
        Self(Some(started))
    }

    /// Takes the process, to follow it to its end.
    fn take(mut self) -> Option<SpawnedProcess> {
        self.0.take()
    }
}

impl Drop for UnclaimedProcess {
    fn drop(&mut self) {
        if let Some(started) = &self.0 {
            // An ended process needs no signal.
            let _ = started.handle().kill();
        }
    }
}

impl Drop for StartTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Executor {
    /// Begins to start a process of its own for a worker.
    pub(super) fn spawn_unforked_worker(
        &mut self,
        worker: WorkerId,
        generation: u64,
    ) -> Result<(), String> {
        let prepared = match self.shared.dispatch_mode {
            DispatchMode::Workers(_) => self.prepare_worker(worker),
            DispatchMode::Servers(_) => self.prepare_server(worker),
        };
        let PreparedProcess {
            launch,
            role,
            readiness,
            control,
            reserved_port: reserved,
        } = prepared?;
        let pending = PendingProcess {
            generation,
            started_at: clock::now(),
            readiness,
            control,
        };
        let key = ProcessKey::Worker(worker);
        self.launch(key, pending, Some(role), (launch, reserved));
        Ok(())
    }

    /// Begins to start a process; `handle_launched` gets its outcome. A port that is kept
    /// for it is free from its start on.
    pub(super) fn launch(
        &mut self,
        key: ProcessKey,
        pending: PendingProcess,
        role: Option<ProcessRole>,
        (mut launch, reserved): (process::ProcessSpec, Option<TcpListener>),
    ) {
        let generation = pending.generation;
        let (launcher, inputs) = (self.launcher.clone(), self.inputs.clone());
        let (config, program_lookup) = (self.config.clone(), Arc::clone(&self.program_lookup));
        let settings = self.shared.buffering_settings.load_full();
        let task = loops::spawn_with_handle(async move {
            let started = match find_program(config, generation, program_lookup, &settings).await {
                Ok(found) => {
                    found.add_to_rules(&mut launch.access);
                    if launch.program.is_empty() {
                        launch.program = found.program.into();
                    }
                    drop(reserved);
                    let started = start(launcher.as_deref(), launch).await;
                    started.map(UnclaimedProcess::new)
                }
                Err(why) => Err(why),
            };
            // The executor may have ended first: then the process ends as well.
            let call = ExecutorInput::call(move |it| it.handle_launched(key, started));
            let _ = inputs.send(call).await;
        });
        let pending_launch = PendingLaunch {
            pending,
            role,
            _start: StartTask(task),
        };
        self.pending_launches.insert(key, pending_launch);
    }

    pub(super) fn handle_launched(
        &mut self,
        key: ProcessKey,
        started: Result<UnclaimedProcess, String>,
    ) {
        if started.is_ok() {
            self.shared.metrics.started_workers.increment();
        }
        let Some(PendingLaunch { pending, role, .. }) = self.pending_launches.remove(&key) else {
            // It was given up in the same moment.
            return;
        };
        let Some(started) = started.map(UnclaimedProcess::take).transpose() else {
            return;
        };
        let process = started.map(|started| {
            let mut process = self.spawn_process_task(key, started, pending);
            process.has_low_priority = self.lower_boot_priority(&process);
            process
        });
        match (key, role, process) {
            (ProcessKey::Worker(worker), Some(role), Ok(process)) => {
                let child = ChildProcess::new(process, role, None);
                let pid = child.pid();
                self.children.insert(worker, child);
                self.handle_event(SupervisorEvent::Spawned { worker, pid });
            }
            (ProcessKey::Worker(worker), _, Err(why)) => {
                self.fail_spawn(worker, format!("cannot start a worker: {why}"));
            }
            (_, _, Ok(process)) => self.handle_template_started(key, process),
            (_, _, Err(why)) => {
                log::error!("{}: cannot start a worker: {why}", self.shared.name);
                self.fail_template(key, why);
            }
        }
    }
}

/// Looks for the program of an application, whose disk may not answer, and for its files: once for
/// each generation if they are limited, so that what the application does in between changes
/// nothing.
pub(crate) async fn find_program(
    config: config::App,
    generation: u64,
    program_lookup: ProgramLookup,
    settings: &BufferingSettings,
) -> Result<ProgramFiles, String> {
    let dir = config.dir.clone();
    let look = async {
        // Kept until the look-up ends, also if its caller has left.
        let mut known = program_lookup.lock_owned().await;
        if let Some((of, found)) = &*known
            && *of == generation
        {
            return Ok(Ok(found.clone()));
        }
        let work = move || {
            let found = access::find_program_files(&config)?;
            if found.has_file_limits() {
                *known = Some((generation, found.clone()));
            }
            Ok(found)
        };
        settings.pool.run_priority(work).await
    };
    match clock::timeout(LOOK_TIMEOUT, look).await {
        Some(Ok(found)) => found,
        Some(Err(full)) => Err(full.to_string()),
        None => Err(format!(
            "its program was not found within {} s (does the disk of {} answer?)",
            LOOK_TIMEOUT.as_secs(),
            dir.display()
        )),
    }
}

pub(crate) async fn start(
    launcher: Option<&Launcher>,
    launch: process::ProcessSpec,
) -> Result<SpawnedProcess, String> {
    let program = launch.program.clone();
    let started = match launcher {
        Some(launcher) => watch_process::launch(launcher, launch).await,
        // In tests.
        None => process::spawn_process(&launch),
    };
    started.map_err(|error| format!("{}: {error}", Path::new(&program).display()))
}
