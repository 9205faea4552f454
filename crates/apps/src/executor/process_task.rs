//! The task beside one process: how it becomes ready, its output line by line, its exit.
//!
//! # Invariants
//! - Its output comes before its exit.
//! - Its group is killed while its process id is certainly its own.
//! - A descendant that holds its pipes open does not hide its end.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use penstock_runtime::multiline_output::{OutputEvent, OutputKind};
use penstock_runtime::{clock, logger, loops, process as watch_process};
use penstock_sys::process::{self, ProcessExit, SpawnedProcess};
use tokio::sync::{mpsc, watch};

use super::control::{self, ControlConnection, ControlHandle};
use super::limits::cgroup_limits;
use super::probe::ReadinessProbe;
use super::{ControlMessage, Executor, ExecutorInput, ProcessKey, RunningProcess};
use crate::shared::AppShared;

/// Lines of a worker's output kept for the report of a boot that fails without a traceback.
const TAIL_LINES: usize = 40;

/// How long after a process's end its last words may take to arrive: something it started may hold
/// its pipes open for ever.
pub(crate) const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) enum ReadinessSource {
    Control(ControlConnection),
    Probe(ReadinessProbe),
}

/// What is known of a process before it runs.
#[derive(Debug)]
pub(super) struct PendingProcess {
    pub(super) generation: u64,
    pub(super) started_at: Instant,
    pub(super) readiness: ReadinessSource,
    pub(super) control: Option<ControlHandle>,
}

/// Waits until the rest of an ended process's group may be ended too.
async fn wait_until_released(is_held: &mut watch::Receiver<bool>, pid: u32) {
    let is_held_now = *is_held.borrow();
    let is_of = |orphan: &process::Orphan| orphan.group == pid && !orphan.has_ended;
    if is_held_now
        && process::list_orphans()
            .unwrap_or_default()
            .iter()
            .any(is_of)
    {
        // A process that is not kept any more holds nothing back.
        let _ = is_held.wait_for(|is_held| !is_held).await;
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct OutputTail(Arc<Mutex<VecDeque<String>>>);

/// SIGKILL, by which the kernel ends processes when memory is short.
const KILLED: i32 = 9;

/// Bytes kept of each line.
const MAX_LINE_BYTES: usize = 16 * 1024;

impl OutputTail {
    pub(crate) fn joined_lines(&self) -> String {
        let mut lines = self.0.lock();
        lines.make_contiguous().join("\n")
    }

    /// Keeps the beginning of a line.
    pub(crate) fn push_line(&self, text: &str) {
        let text = truncate_line(text);
        let mut lines = self.0.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(text.to_owned());
    }
}

impl Executor {
    /// Follows a process to its end: readiness, output lines, exit, in this order at the end.
    pub(super) fn spawn_process_task(
        &self,
        key: ProcessKey,
        mut started: SpawnedProcess,
        pending: PendingProcess,
    ) -> RunningProcess {
        let (is_group_held, mut is_held) = watch::channel(false);
        let tail = OutputTail::default();
        let has_booted = Arc::new(AtomicBool::new(false));
        let process = RunningProcess {
            handle: started.handle(),
            is_group_held,
            started_at: pending.started_at,
            generation: pending.generation,
            has_low_priority: false,
            output_tail: tail.clone(),
            has_booted: Arc::clone(&has_booted),
            control: pending.control,
        };
        let (readiness, inputs) = (pending.readiness, self.inputs.clone());
        let shared = Arc::clone(&self.shared);
        loops::spawn_here(async move {
            let pid = started.pid;
            let output = ProcessOutput {
                pid,
                shared: &shared,
                tail: &tail,
                has_booted: &has_booted,
            };
            follow_process(key, &started, readiness, output, &inputs).await;
            wait_until_released(&mut is_held, pid).await;
            // Whatever it started in its group ends with it, or after it; before it is reaped its
            // number is certainly still its own.
            let _ = started.handle().kill_group();
            let exit = started.try_exit().ok().flatten();
            let reading = match exit {
                // It may have been killed for all that its application takes.
                Some(ProcessExit::Signal(KILLED)) => cgroup_limits::read_cgroup(&shared).await,
                _ => None,
            };
            // The executor ends only after this message.
            let call = ExecutorInput::call(move |it| it.handle_exited(key, exit, reading));
            let _ = inputs.send(call).await;
        });
        process
    }
}

#[derive(Clone, Copy)]
struct ProcessOutput<'a> {
    pid: u32,
    shared: &'a AppShared,
    tail: &'a OutputTail,
    has_booted: &'a AtomicBool,
}

impl ProcessOutput<'_> {
    async fn read(self, pipe: OwnedFd) {
        let line = |text: &str| {
            self.shared
                .output_log
                .push_line(self.pid, truncate_line(text));
            self.tail.push_line(text);
        };
        let log = |event: OutputEvent| {
            if self.is_news(&event) {
                log_output(&self.shared.name, self.pid, &event);
            }
        };
        watch_process::read_output(pipe, line, log).await;
    }

    /// Whether the log has not just shown the same failure of another boot.
    fn is_news(self, event: &OutputEvent) -> bool {
        event.kind != OutputKind::Traceback
            || self.has_booted.load(Ordering::Relaxed)
            || self.shared.boot_failures.lock().admit_output(&event.text)
    }
}

/// Logs what a process has written.
pub(crate) fn log_output(app: &str, pid: u32, OutputEvent { text, kind }: &OutputEvent) {
    match kind {
        // An application that logs JSON has chosen its form.
        OutputKind::Json => log::info!(target: logger::VERBATIM_TARGET, "{text}"),
        OutputKind::Text => log::info!(app, pid; "{text}"),
        OutputKind::Traceback => log::error!(app, pid; "{text}"),
    }
}

/// The beginning of a line that is kept in memory: a JSON object may be much longer.
fn truncate_line(line: &str) -> &str {
    let end = (0..=line.len().min(MAX_LINE_BYTES)).rev();
    let mut end = end.skip_while(|&at| !line.is_char_boundary(at));
    &line[..end.next().unwrap_or(0)]
}

/// Waits for a process's end, and for its last words.
async fn follow_process(
    key: ProcessKey,
    started: &SpawnedProcess,
    readiness: ReadinessSource,
    output: ProcessOutput<'_>,
    inputs: &mpsc::Sender<ExecutorInput>,
) {
    let pipes = (started.stdout.try_clone(), started.stderr.try_clone());
    let words = async {
        let boot = follow_boot(key, started, readiness, inputs);
        let (Ok(stdout), Ok(stderr)) = pipes else {
            return boot.await;
        };
        tokio::join!(boot, output.read(stdout), output.read(stderr),);
    };
    let mut words = std::pin::pin!(words);
    tokio::select! {
        () = &mut words => watch_process::wait_for_exit(&started.exit_fd).await,
        () = watch_process::wait_for_exit(&started.exit_fd) => {
            // A template has no slots to give up. The executor ends only after the process.
            if let ProcessKey::Worker(worker) = key {
                let call = ExecutorInput::call(move |it| it.remove_lost_worker(worker));
                let _ = inputs.send(call).await;
            }
            clock::timeout(LAST_OUTPUT_TIMEOUT, &mut words).await;
        }
    }
}

/// Waits until a process is ready or reports that it will never be, and for what its control socket
/// is used for later; ends with it.
async fn follow_boot(
    key: ProcessKey,
    started: &SpawnedProcess,
    readiness: ReadinessSource,
    inputs: &mpsc::Sender<ExecutorInput>,
) {
    match readiness {
        ReadinessSource::Control(connection) => {
            control::serve_control(connection, key, inputs).await;
        }
        ReadinessSource::Probe(probe) => tokio::select! {
            answered = clock::timeout_at(probe.deadline, probe.wait_until_ready()) => {
                let interpreter = probe.program;
                let message = match answered {
                    Some(()) => ControlMessage::Ready {
                        kind: None,
                        interpreter,
                        prevents_fork: None,
                        leaves_threads: None,
                    },
                    None => ControlMessage::NoAnswer,
                };
                // The executor ends only after the process.
                let _ = inputs.send(ExecutorInput::Control { key, message }).await;
            }
            () = watch_process::wait_for_exit(&started.exit_fd) => {}
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_keeps_the_last_lines_and_the_beginning_of_each() {
        let tail = OutputTail::default();
        for number in 0..=TAIL_LINES {
            tail.push_line(&number.to_string());
        }
        assert!(tail.joined_lines().starts_with("1\n2\n"));
        // A character is not cut in two.
        let long = format!("a{}", "\u{e9}".repeat(MAX_LINE_BYTES));
        tail.push_line(&long);
        let text = tail.joined_lines();
        let last = text.lines().last().unwrap();
        assert_eq!(last.len(), MAX_LINE_BYTES - 1);
        assert!(long.starts_with(last));
    }
}
