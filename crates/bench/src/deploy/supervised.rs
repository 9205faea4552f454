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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cgroup::Cgroup;
use super::keeper_link::KeeperLink;
use super::keeper_protocol::{CommandExit, KeeperOrder, OutputDestination};
use super::probe::{ReadinessResult, check_readiness};
use super::resource_usage::{CpuTime, ProcessTree, ResourceUsage};
use super::{DeployError, Testbed, file_error, send_signal};
use crate::load::EncodedRequest;
use crate::scenario::{ExpectedResponse, PlaceholderValues, Scenario};
use crate::target::{RequestTemplate, Target};
use crate::tls::TlsClient;

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
    /// The address to connect to.
    pub(super) target: Target,
    /// Everything below the keeper.
    pub(super) processes: ProcessTree,
    commands: Vec<String>,
    log: PathBuf,
    /// Why it no longer runs as started.
    unexpected_exit: Option<String>,
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
        testbed: &Testbed,
        wanted: &LaunchSpec<'_>,
        group: Cgroup,
        scenario: &Scenario,
    ) -> Result<Self, DeployError> {
        let values = wanted.values;
        write_launch_files(wanted)?;
        let client = TlsClient::new(scenario.tls.settings(values)?);
        let target = Target::from_url(&values.fill(wanted.url), None, &client)?;
        let commands: Vec<String> = wanted.start.iter().map(|text| values.fill(text)).collect();
        let log = testbed.new_file_path("log");
        let mut env = testbed.command_env();
        let own = wanted.env.iter();
        env.extend(own.map(|(name, value)| (name.clone(), values.fill(value))));
        let order = KeeperOrder {
            commands: commands.clone(),
            env,
            dir: wanted.dir.to_owned(),
            output: OutputDestination::LogFile(log.clone()),
            core: wanted.core,
            is_detached: true,
            groups: group.dirs.clone(),
            dirs: vec![wanted.dir.to_owned()],
            dirs_if_orphaned: vec![testbed.temp_dir.path().to_owned()],
        };
        let link = KeeperLink::start(&testbed.values.penstock, &order)?;
        let kept = Self {
            target,
            processes: ProcessTree::from_keeper(link.pid())
                .ok_or_else(|| DeployError::Keeper("it ended".to_owned()))?,
            commands,
            log,
            unexpected_exit: None,
            link,
            group,
        };
        let load = &scenario.loads[0];
        let paths = load.read_paths(values)?;
        let template = RequestTemplate {
            headers: load.headers.clone(),
            keep_alive: false,
            ..RequestTemplate::default()
        };
        let probe = kept.target.with_path(&paths[0]);
        let probe = (&probe.encode_request(&template, 1)?, &load.expect);
        kept.wait_until_ready(probe, scenario.ready_timeout, &testbed.stop)?;
        Ok(kept)
    }

    /// Which of its commands ended unexpectedly, and how. A command that left a daemon does not
    /// count.
    pub(super) fn unexpected_exit(&mut self) -> Option<String> {
        while self.unexpected_exit.is_none() && !self.link.is_stopped() {
            self.unexpected_exit = match self.link.next_exit(Duration::ZERO) {
                Ok(None) => break,
                Ok(Some(exit)) => self
                    .counted_exit(&exit)
                    .map(|it| format!("`{it}` ended with {}", exit.how())),
                Err(_) => Some("its keeper was killed".to_owned()),
            };
        }
        self.unexpected_exit.clone()
    }

    /// The end of its commands' output.
    pub(super) fn log_tail(&self) -> String {
        read_tail(&self.log).unwrap_or_default()
    }

    /// Stops it; no process of it is left afterwards. Further calls do nothing.
    pub(super) fn stop(&mut self) {
        if !self.link.stop() {
            // The keeper was killed; its group still knows the remaining processes.
            for pid in self.group.processes() {
                send_signal(pid, Signal::KILL);
            }
        }
    }

    /// CPU time so far.
    pub(super) fn cpu_time(&self) -> CpuTime {
        let seconds = self.group.cpu_seconds();
        seconds.map_or_else(|| self.processes.cpu_time(), CpuTime::from_seconds)
    }

    /// The command that ended, unless it left a daemon.
    fn counted_exit(&self, exit: &CommandExit) -> Option<&str> {
        let is_daemon = exit.how().success() && exit.is_any_left;
        let command = self.commands.get(exit.command);
        (!is_daemon).then(|| command.map_or("", String::as_str))
    }

    fn wait_until_ready(
        &self,
        (request, expect): (&EncodedRequest, &ExpectedResponse),
        within: Duration,
        stop: &AtomicBool,
    ) -> Result<(), DeployError> {
        let deadline = Instant::now() + within;
        let mut last = "not probed yet".to_owned();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(DeployError::Interrupted);
            }
            if let Some(exit) = self.link.next_exit(PROBE_INTERVAL)?
                && let Some(command) = self.counted_exit(&exit)
            {
                return Err(DeployError::Exited {
                    command: command.to_owned(),
                    how: exit.how(),
                    log: self.log_tail(),
                });
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(DeployError::NotReady {
                    within,
                    last,
                    log: self.log_tail(),
                });
            }
            let timeout = PROBE_TIMEOUT.min(deadline - now);
            match check_readiness(request, expect, timeout) {
                ReadinessResult::Ready => return Ok(()),
                ReadinessResult::NotYet(why) => last = why,
                ReadinessResult::Wrong(what) => {
                    let log = self.log_tail();
                    return Err(DeployError::WrongAnswer { what, log });
                }
            }
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
