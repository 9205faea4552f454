//! Commands below one keeper, in their control group: start, readiness and end.
//!
//! `running` has one for the deployment and one for its companion, so that their costs are
//! separate.
//!
//! # Invariants
//!
//! - It exists only if it has responded as its scenario expects.
//! - After [`SupervisedCommands::stop`] or drop, none of its processes is left.

#![allow(
    clippy::disallowed_methods,
    reason = "files are read and written between loads"
)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;
use super::keeper_link::{KeeperEvent, KeeperLink, kill_process_now};
use super::keeper_protocol::{CommandOutput, KeeperMessage, KeeperOrder};
use super::probe::{ReadinessProbe, ReadinessResult};
use super::resource_usage::{self, CpuTime, MemoryUsage};
use super::{DeployError, ExitReason, StartConditions, Testbed, file_error};
use crate::scenario::PlaceholderValues;
use crate::target::Target;

/// Between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(30);
/// Of a single probe; a server that accepts a connection and never responds is probed again.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The size of the shown end of a log.
const LOG_TAIL_BYTES: u64 = 3000;

/// The commands to start, from the scenario.
#[derive(Debug)]
pub(super) struct LaunchSpec<'a> {
    pub(super) files: &'a [(String, String)],
    pub(super) start: &'a [String],
    pub(super) env: &'a [(String, String)],
    pub(super) url: &'a str,
    pub(super) core: Option<usize>,
    /// The placeholder values, including those of this start.
    pub(super) values: &'a PlaceholderValues,
    /// `{{dir}}`.
    pub(super) dir: &'a Path,
}

/// Commands that run and respond; stopped on drop.
#[derive(Debug)]
pub(super) struct SupervisedCommands {
    target: Target,
    commands: Vec<String>,
    log: PathBuf,
    /// Why it no longer runs as started.
    unexpected_exit: Option<String>,
    is_stopped: bool,
    // In drop order: processes, then their groups.
    link: KeeperLink,
    group: Cgroup,
}

impl SupervisedCommands {
    /// Writes the files, starts the commands in the group, and waits until they respond.
    ///
    /// # Errors
    /// They do not respond, or not as expected; nothing of them is left then.
    pub(super) fn start(
        workshop: &Testbed,
        wanted: &LaunchSpec<'_>,
        group: Cgroup,
        conditions: &StartConditions<'_>,
    ) -> Result<Self, DeployError> {
        let values = wanted.values;
        write_launch_files(wanted)?;
        let target = Target::read(&values.fill(wanted.url), None)?;
        let commands: Vec<String> = wanted.start.iter().map(|text| values.fill(text)).collect();
        let log = workshop.new_file("log");
        let mut env = workshop.env();
        let own = wanted.env.iter();
        env.extend(own.map(|(name, value)| (name.clone(), values.fill(value))));
        let order = KeeperOrder {
            commands: commands.clone(),
            env,
            dir: wanted.dir.to_owned(),
            output: CommandOutput::LogFile(log.clone()),
            core: wanted.core,
            is_detached: true,
            groups: group.folders().to_vec(),
            dirs: vec![wanted.dir.to_owned()],
            dirs_if_orphaned: vec![workshop.folder().to_owned()],
        };
        let mut kept = Self {
            target,
            commands,
            log,
            unexpected_exit: None,
            is_stopped: false,
            link: KeeperLink::start(workshop.keeper_program(), &order)?,
            group,
        };
        kept.wait_until_ready(conditions)?;
        Ok(kept)
    }

    /// The address to connect to.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Which of its commands ended unexpectedly, and how. A command that left a daemon does not
    /// count.
    pub(super) fn ended(&mut self) -> Option<String> {
        while self.unexpected_exit.is_none() && !self.is_stopped {
            match self.link.next_event(Duration::ZERO) {
                KeeperEvent::Nothing => break,
                KeeperEvent::Ended => {
                    self.unexpected_exit = Some("its keeper was killed".to_owned());
                }
                KeeperEvent::Message(word) => {
                    let exit = self.counted_exit(&word);
                    self.unexpected_exit = exit.map(|(command, how)| format!("`{command}` {how}"));
                }
            }
        }
        self.unexpected_exit.clone()
    }

    /// The end of its commands' output.
    pub(super) fn log_tail(&self) -> String {
        read_tail(&self.log).unwrap_or_default()
    }

    /// Stops it; no process of it is left afterwards. Further calls do nothing.
    pub(super) fn stop(&mut self) {
        if self.is_stopped {
            return;
        }
        self.is_stopped = true;
        if !self.link.stop() {
            // The keeper was killed; its group still knows the remaining processes.
            for pid in self.group.processes() {
                kill_process_now(pid);
            }
        }
    }

    /// CPU time so far.
    pub(super) fn cpu_time(&self) -> CpuTime {
        match self.group.cpu_seconds() {
            Some(seconds) => CpuTime::now(seconds),
            None => resource_usage::cpu_time_below(self.link.pid()),
        }
    }

    pub(super) fn memory_usage(&self) -> MemoryUsage {
        resource_usage::memory_usage_below(self.link.pid())
    }

    /// Bytes that its living processes have read from disks.
    pub(super) fn disk_read_bytes(&self) -> Option<u64> {
        resource_usage::disk_read_bytes_below(self.link.pid())
    }

    /// The end of a command, if it counts.
    fn counted_exit(&self, word: &KeeperMessage) -> Option<(String, ExitReason)> {
        let KeeperMessage::Exited {
            command,
            how,
            is_any_left,
        } = word
        else {
            return None;
        };
        let is_daemon = *how == ExitReason::Status(0) && *is_any_left;
        let command = self.commands.get(*command).cloned().unwrap_or_default();
        (!is_daemon).then_some((command, *how))
    }

    fn wait_until_ready(&mut self, conditions: &StartConditions<'_>) -> Result<(), DeployError> {
        let deadline = Instant::now() + conditions.ready_timeout;
        let mut last = "not probed yet".to_owned();
        loop {
            if conditions.stop.load(Ordering::Relaxed) {
                return Err(DeployError::Interrupted);
            }
            self.check_keeper()?;
            let now = Instant::now();
            if now >= deadline {
                return Err(DeployError::NotReady {
                    within: conditions.ready_timeout,
                    last,
                    log: self.log_tail(),
                });
            }
            match self
                .readiness_probe(conditions)
                .run(deadline.min(now + PROBE_TIMEOUT))
            {
                ReadinessResult::Ready => return Ok(()),
                ReadinessResult::NotYet(why) => last = why,
                ReadinessResult::Wrong(what) => {
                    let log = self.log_tail();
                    return Err(DeployError::WrongAnswer { what, log });
                }
            }
        }
    }

    /// Handles the keeper's events for one interval; an error if a command ended.
    fn check_keeper(&mut self) -> Result<(), DeployError> {
        match self.link.next_event(PROBE_INTERVAL) {
            KeeperEvent::Nothing => Ok(()),
            KeeperEvent::Ended => Err(DeployError::Keeper("it ended".to_owned())),
            KeeperEvent::Message(KeeperMessage::Failed(why)) => Err(DeployError::Keeper(why)),
            KeeperEvent::Message(word) => match self.counted_exit(&word) {
                None => Ok(()),
                Some((command, how)) => Err(DeployError::Exited {
                    command,
                    how,
                    log: self.log_tail(),
                }),
            },
        }
    }

    fn readiness_probe<'a>(&'a self, conditions: &StartConditions<'a>) -> ReadinessProbe<'a> {
        ReadinessProbe {
            address: &self.target.address,
            host: &self.target.host,
            path: conditions.path,
            headers: conditions.headers,
            expect: conditions.expect,
        }
    }
}

impl Drop for SupervisedCommands {
    fn drop(&mut self) {
        self.stop();
    }
}

fn write_launch_files(wanted: &LaunchSpec<'_>) -> Result<(), DeployError> {
    for (name, content) in wanted.files {
        let path = wanted.dir.join(wanted.values.fill(name));
        let parent = path.parent().unwrap_or(wanted.dir);
        std::fs::create_dir_all(parent).map_err(file_error(parent))?;
        std::fs::write(&path, wanted.values.fill(content)).map_err(file_error(&path))?;
    }
    Ok(())
}

/// Reads the end of a file, from the start of a line if truncated.
fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(LOG_TAIL_BYTES);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = match text.split_once('\n') {
        Some((_, whole)) if begin > 0 => whole,
        _ => &text,
    };
    Ok(text.to_owned())
}
