//! A deployment that runs: from its start, over its readiness, to its surely being gone.
//!
//! `Workshop::start` makes it; `compare` puts a load on its address, asks what it spends and stops it.
//! What must stay true: it exists only if it has answered as its scenario expects; after
//! [`Running::stop`], or its drop, none of its processes is left.

#![allow(
    clippy::disallowed_methods,
    reason = "files are read and written between loads"
)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::account::{self, Account, Memory, Spent};
use super::cgroup::{Group, Limits};
use super::folder::Folder;
use super::link::{Heard, Link, kill};
use super::order::{Order, Output, Word};
use super::probe::{Finding, Probe};
use super::{Conditions, DeployError, Ended, Workshop, at};
use crate::load::Address;
use crate::scenario::{Deployment, StartValues, Values};
use crate::target::Target;

/// Between two attempts of the probe.
const PAUSE: Duration = Duration::from_millis(30);
/// A single attempt; a server that takes a connection and never answers is asked again.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The end of a log that is shown.
const TAIL_BYTES: u64 = 3000;

/// A deployment that runs and answers; stopped on drop.
#[derive(Debug)]
pub struct Running {
    target: Target,
    values: Values,
    commands: Vec<String>,
    log: PathBuf,
    /// Why it is no longer as it was started.
    ended: Option<String>,
    is_stopped: bool,
    // In the order of their ends: processes, their groups, their folder.
    link: Link,
    group: Group,
    _dir: Folder,
}

impl Running {
    pub(super) fn start(
        workshop: &Workshop,
        deployment: &Deployment,
        conditions: &Conditions<'_>,
    ) -> Result<Self, DeployError> {
        let dir = Folder::new().map_err(at(&std::env::temp_dir()))?;
        let ports = workshop.free_ports().map_err(at(Path::new("127.0.0.1")))?;
        let mut values = workshop.values().clone();
        values.start = Some(StartValues {
            dir: dir.path().to_owned(),
            ports,
        });
        write_files(deployment, &values, dir.path())?;
        let target = Target::read(&values.fill(&deployment.url), None)?;
        let group = group(deployment, &values, dir.path())?;
        let fill = |text: &String| values.fill(text);
        let commands: Vec<String> = deployment.start.iter().map(fill).collect();
        let log = workshop.new_file("log");
        let mut env = workshop.env();
        let own = deployment.env.iter();
        env.extend(own.map(|(name, value)| (name.clone(), values.fill(value))));
        let order = Order {
            commands: commands.clone(),
            env,
            dir: dir.path().to_owned(),
            output: Output::Log(log.clone()),
            core: conditions.core,
            is_detached: true,
            groups: group.folders().to_vec(),
            folders: vec![dir.path().to_owned()],
            orphaned: vec![workshop.folder().to_owned()],
        };
        let mut running = Self {
            target,
            values,
            commands,
            log,
            ended: None,
            is_stopped: false,
            link: Link::start(workshop.keeper(), &order)?,
            group,
            _dir: dir,
        };
        running.until_ready(conditions)?;
        Ok(running)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.target.address
    }

    /// The value of its requests' `Host` field.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.target.host
    }

    /// What the placeholders stand for in this start.
    #[must_use]
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Whether it runs as it was started.
    #[must_use]
    pub fn is_alive(&mut self) -> bool {
        self.ended().is_none()
    }

    /// Which of its commands ended, and how, if one did unasked; a command that left a daemon is none.
    pub fn ended(&mut self) -> Option<String> {
        while self.ended.is_none() && !self.is_stopped {
            match self.link.hear(Duration::ZERO) {
                Heard::Nothing => break,
                Heard::Gone => self.ended = Some("its keeper was ended".to_owned()),
                Heard::Word(word) => {
                    let exit = self.exit(&word);
                    self.ended = exit.map(|(command, how)| format!("`{command}` {how}"));
                }
            }
        }
        self.ended.clone()
    }

    /// The end of what its commands wrote.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_default()
    }

    /// Ends it; no process of it is left afterwards. Once is enough.
    pub fn stop(&mut self) {
        if self.is_stopped {
            return;
        }
        self.is_stopped = true;
        if !self.link.stop() {
            // Somebody killed the keeper; its group still knows who is left.
            for pid in self.group.processes() {
                kill(pid);
            }
        }
    }

    /// The end of a command that counts as one.
    fn exit(&self, word: &Word) -> Option<(String, Ended)> {
        let Word::Exited {
            command,
            how,
            is_any_left,
        } = word
        else {
            return None;
        };
        let is_daemon = *how == Ended::Status(0) && *is_any_left;
        let command = self.commands.get(*command).cloned().unwrap_or_default();
        (!is_daemon).then_some((command, *how))
    }

    fn until_ready(&mut self, conditions: &Conditions<'_>) -> Result<(), DeployError> {
        let deadline = Instant::now() + conditions.ready_timeout;
        let mut last = "not asked yet".to_owned();
        loop {
            if conditions.stop.load(Ordering::Relaxed) {
                return Err(DeployError::Interrupted);
            }
            self.hear_before_ready()?;
            let now = Instant::now();
            if now >= deadline {
                return Err(DeployError::NotReady {
                    within: conditions.ready_timeout,
                    last,
                    log: self.log_tail(),
                });
            }
            match self.probe(conditions).ask(deadline.min(now + ATTEMPT)) {
                Finding::Ready => return Ok(()),
                Finding::NotYet(why) => last = why,
                Finding::Wrong(what) => {
                    let log = self.log_tail();
                    return Err(DeployError::WrongAnswer { what, log });
                }
            }
        }
    }

    /// What the keeper says within a pause; an error if a command ended.
    fn hear_before_ready(&mut self) -> Result<(), DeployError> {
        match self.link.hear(PAUSE) {
            Heard::Nothing => Ok(()),
            Heard::Gone => Err(DeployError::Keeper("it ended".to_owned())),
            Heard::Word(Word::Failed(why)) => Err(DeployError::Keeper(why)),
            Heard::Word(word) => match self.exit(&word) {
                None => Ok(()),
                Some((command, how)) => Err(DeployError::Exited {
                    command,
                    how,
                    log: self.log_tail(),
                }),
            },
        }
    }

    fn probe<'a>(&'a self, conditions: &Conditions<'a>) -> Probe<'a> {
        Probe {
            address: &self.target.address,
            host: &self.target.host,
            path: conditions.path,
            headers: conditions.headers,
            expect: conditions.expect,
        }
    }
}

impl Account for Running {
    fn spent(&self) -> Spent {
        match self.group.cpu_seconds() {
            Some(seconds) => Spent::now(seconds),
            None => account::spent_below(self.link.pid()),
        }
    }

    fn memory(&self) -> Memory {
        account::memory_below(self.link.pid())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn group(deployment: &Deployment, values: &Values, dir: &Path) -> Result<Group, DeployError> {
    let paths = [dir, &values.here, &values.cache];
    let limits = Limits {
        memory: deployment.memory,
        disk_read: deployment.disk_read.map(|rate| (rate, &paths[..])),
    };
    // The folder's name is unique on this machine, and so is the group's.
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    Group::make(&name, &limits)
}

fn write_files(deployment: &Deployment, values: &Values, dir: &Path) -> Result<(), DeployError> {
    for (name, content) in &deployment.files {
        let path = dir.join(values.fill(name));
        let parent = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent).map_err(at(parent))?;
        std::fs::write(&path, values.fill(content)).map_err(at(&path))?;
    }
    Ok(())
}

/// The end of a file, from the beginning of a line if it has to be cut.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = match text.split_once('\n') {
        Some((_, whole)) if begin > 0 => whole,
        _ => &text,
    };
    Ok(text.to_owned())
}
