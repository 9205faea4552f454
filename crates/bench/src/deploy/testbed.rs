//! The testbed: shared by all deployments of one comparison.
//!
//! `compare` makes one and runs the set-up and every deployment in it. It has the directory for
//! copies and logs, the copy of the binary used for `{{penstock}}` and the keepers, and the cache
//! directory that persists between runs, and it assigns free ports.
//!
//! # Invariants
//!
//! - A build during a comparison changes nothing of it.
//! - No port is assigned twice in a row, so that no two starts interfere.

#![allow(
    clippy::disallowed_methods,
    reason = "files are read and written between loads"
)]

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::keeper_link::KeeperLink;
use super::keeper_protocol::{KeeperOrder, OutputDestination};
use super::{DeployError, file_error, new_temp_dir};
use crate::scenario::{Deployment, PlaceholderValues, find_root};

/// Below the range of ephemeral ports, of which a load uses many.
const PORT_RANGE: std::ops::Range<u16> = 20_000..32_000;
/// A program reports its version at once, or loads a whole interpreter for it.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// Between checks of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Shared by all deployments of one comparison; removed with all its files on drop.
#[derive(Debug)]
pub struct Testbed {
    /// The placeholder values outside of a start.
    pub values: PlaceholderValues,
    /// A keeper removes it if this process is killed.
    pub(super) temp_dir: TempDir,
    next_port: AtomicU16,
    next_log: AtomicU16,
    /// Aborts every wait when it is set.
    pub(super) stop: Arc<AtomicBool>,
}

impl Testbed {
    /// Creates a testbed for a scenario in the directory `here`; `stop` aborts its work.
    ///
    /// # Errors
    /// Its directories or the copy of this program cannot be made.
    pub fn new(here: &Path, stop: Arc<AtomicBool>) -> Result<Self, DeployError> {
        let here = std::path::absolute(here).map_err(file_error(here))?;
        let root = find_root(&here);
        let cache = match std::env::var_os("PENSTOCK_BENCH_CACHE") {
            Some(cache) if !cache.is_empty() => PathBuf::from(cache),
            _ => root.join("target/bench"),
        };
        let cache = std::path::absolute(&cache).map_err(file_error(&cache))?;
        std::fs::create_dir_all(&cache).map_err(file_error(&cache))?;
        let temp_dir = new_temp_dir()?;
        let program = std::env::current_exe().map_err(file_error(Path::new("/proc/self/exe")))?;
        let penstock = temp_dir.path().join("penstock");
        std::fs::copy(&program, &penstock).map_err(file_error(&penstock))?;
        Ok(Self {
            values: PlaceholderValues {
                here,
                root,
                cache,
                penstock,
                start: None,
            },
            temp_dir,
            // Two comparisons at the same time begin at different ports.
            next_port: AtomicU16::new(fastrand::u16(PORT_RANGE)),
            next_log: AtomicU16::new(0),
            stop,
        })
    }

    /// Runs set-up commands one after the other in the scenario's directory. They write to the
    /// terminal, and processes that they leave running are ended.
    ///
    /// # Errors
    /// A command fails, or the work is aborted.
    pub fn run_setup(&self, commands: &[String]) -> Result<(), DeployError> {
        for command in commands {
            if self.stop.load(Ordering::Relaxed) {
                return Err(DeployError::Interrupted);
            }
            let command = self.values.fill(command);
            // In our session, so that a command may ask for a password.
            let order = KeeperOrder {
                is_detached: false,
                ..self.keeper_order(&command, OutputDestination::Terminal)
            };
            let mut link = KeeperLink::start(&self.values.penstock, &order)?;
            let how = self.wait_for_exit(&link, None)?;
            link.stop();
            if !how.success() {
                return Err(DeployError::Setup { command, how });
            }
        }
        Ok(())
    }

    /// The versions of the deployment's programs: the first line of each command, in order, without
    /// empty ones, and without those after the work was aborted.
    #[must_use]
    pub fn versions(&self, deployment: &Deployment) -> Vec<String> {
        let commands = deployment.versions.iter();
        commands
            .take_while(|_| !self.stop.load(Ordering::Relaxed))
            .filter_map(|command| self.program_version(&self.values.fill(command)))
            .collect()
    }

    pub(super) fn new_file_path(&self, kind: &str) -> PathBuf {
        let number = self.next_log.fetch_add(1, Ordering::Relaxed);
        self.temp_dir.path().join(format!("{kind}-{number}"))
    }

    /// The environment of every command.
    pub(super) fn command_env(&self) -> Vec<(String, String)> {
        let cache = self.values.cache.to_string_lossy().into_owned();
        vec![
            ("PENSTOCK_BENCH_CACHE".to_owned(), cache),
            // A run must not change the source tree, and all runs must find the same there.
            ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
        ]
    }

    /// Ports that are free now, each a different one.
    pub(super) fn find_free_ports(&self) -> io::Result<[u16; 9]> {
        // Held until all are found, so that none is found twice.
        let (mut ports, mut held) = (Vec::new(), Vec::new());
        for _ in PORT_RANGE {
            let next = self.next_port.fetch_add(1, Ordering::Relaxed)
                % (PORT_RANGE.end - PORT_RANGE.start);
            let port = PORT_RANGE.start + next;
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                ports.push(port);
                held.push(listener);
            }
            if let Ok(ports) = ports[..].try_into() {
                return Ok(ports);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn keeper_order(&self, command: &str, output: OutputDestination) -> KeeperOrder {
        KeeperOrder {
            commands: vec![command.to_owned()],
            env: self.command_env(),
            dir: self.values.here.clone(),
            output,
            core: None,
            is_detached: true,
            groups: Vec::new(),
            dirs: Vec::new(),
            dirs_if_orphaned: vec![self.temp_dir.path().to_owned()],
        }
    }

    fn program_version(&self, command: &str) -> Option<String> {
        let (out, error) = (self.new_file_path("version"), self.new_file_path("version"));
        let order = self.keeper_order(
            command,
            OutputDestination::SeparateFiles(out.clone(), error.clone()),
        );
        let mut link = KeeperLink::start(&self.values.penstock, &order).ok()?;
        let deadline = Instant::now() + VERSION_TIMEOUT;
        // A missing program is reported on standard error, which is shown too.
        let _ = self.wait_for_exit(&link, Some(deadline));
        link.stop();
        first_line(&out).or_else(|| first_line(&error))
    }

    /// How the only command of a keeper ended.
    fn wait_for_exit(
        &self,
        link: &KeeperLink,
        deadline: Option<Instant>,
    ) -> Result<ExitStatus, DeployError> {
        loop {
            if let Some(exit) = link.next_exit(POLL_INTERVAL)? {
                return Ok(exit.how());
            }
            let is_late = deadline.is_some_and(|deadline| Instant::now() > deadline);
            if is_late || self.stop.load(Ordering::Relaxed) {
                return Err(DeployError::Interrupted);
            }
        }
    }
}

/// The first non-empty line.
fn first_line(file: &Path) -> Option<String> {
    let mut begin = Vec::new();
    File::open(file)
        .ok()?
        .take(4096)
        .read_to_end(&mut begin)
        .ok()?;
    let text = String::from_utf8_lossy(&begin);
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| !line.is_empty()).map(str::to_owned)
}
