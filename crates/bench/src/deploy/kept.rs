//! Commands below one keeper, in their control group: from their start, over their readiness, to their
//! surely being gone.
//!
//! `running` has one for the deployment and one for what runs beside it, so that their costs are told
//! apart. What must stay true: it exists only if it has answered as its scenario expects; after
//! [`Kept::stop`], or its drop, none of its processes is left.

#![allow(
    clippy::disallowed_methods,
    reason = "files are read and written between loads"
)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::account::{self, Memory, Spent};
use super::cgroup::Group;
use super::link::{Heard, Link, kill};
use super::order::{Order, Output, Word};
use super::probe::{Finding, Probe};
use super::{Conditions, DeployError, Ended, Workshop, at};
use crate::scenario::Values;
use crate::target::Target;

/// Between two attempts of the probe.
const PAUSE: Duration = Duration::from_millis(30);
/// A single attempt; a server that takes a connection and never answers is asked again.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The end of a log that is shown.
const TAIL_BYTES: u64 = 3000;

/// What is kept, as the scenario has it.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) files: &'a [(String, String)],
    pub(super) start: &'a [String],
    pub(super) env: &'a [(String, String)],
    pub(super) url: &'a str,
    pub(super) core: Option<usize>,
    /// What placeholders stand for, those of this start included.
    pub(super) values: &'a Values,
    /// `{{dir}}`.
    pub(super) dir: &'a Path,
}

/// Commands that run and answer; stopped on drop.
#[derive(Debug)]
pub(super) struct Kept {
    target: Target,
    commands: Vec<String>,
    log: PathBuf,
    /// Why it is no longer as it was started.
    ended: Option<String>,
    is_stopped: bool,
    // In the order of their ends: processes, their groups.
    link: Link,
    group: Group,
}

impl Kept {
    /// Writes the files, starts the commands in the group, and waits until they answer.
    ///
    /// # Errors
    /// When they do not, or not as expected; nothing of them is left then.
    pub(super) fn start(
        workshop: &Workshop,
        wanted: &Wanted<'_>,
        group: Group,
        conditions: &Conditions<'_>,
    ) -> Result<Self, DeployError> {
        let values = wanted.values;
        write_files(wanted)?;
        let target = Target::read(&values.fill(wanted.url), None)?;
        let commands: Vec<String> = wanted.start.iter().map(|text| values.fill(text)).collect();
        let log = workshop.new_file("log");
        let mut env = workshop.env();
        let own = wanted.env.iter();
        env.extend(own.map(|(name, value)| (name.clone(), values.fill(value))));
        let order = Order {
            commands: commands.clone(),
            env,
            dir: wanted.dir.to_owned(),
            output: Output::Log(log.clone()),
            core: wanted.core,
            is_detached: true,
            groups: group.folders().to_vec(),
            folders: vec![wanted.dir.to_owned()],
            orphaned: vec![workshop.folder().to_owned()],
        };
        let mut kept = Self {
            target,
            commands,
            log,
            ended: None,
            is_stopped: false,
            link: Link::start(workshop.keeper(), &order)?,
            group,
        };
        kept.until_ready(conditions)?;
        Ok(kept)
    }

    /// Where it listens.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Which of its commands ended, and how, if one did unasked; a command that left a daemon is none.
    pub(super) fn ended(&mut self) -> Option<String> {
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
    pub(super) fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_default()
    }

    /// Ends it; no process of it is left afterwards. Once is enough.
    pub(super) fn stop(&mut self) {
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

    /// CPU time so far.
    pub(super) fn spent(&self) -> Spent {
        match self.group.cpu_seconds() {
            Some(seconds) => Spent::now(seconds),
            None => account::spent_below(self.link.pid()),
        }
    }

    /// Memory now.
    pub(super) fn memory(&self) -> Memory {
        account::memory_below(self.link.pid())
    }

    /// Bytes that its living processes have read from disks.
    pub(super) fn disk_read(&self) -> Option<u64> {
        account::disk_read_below(self.link.pid())
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

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop();
    }
}

fn write_files(wanted: &Wanted<'_>) -> Result<(), DeployError> {
    for (name, content) in wanted.files {
        let path = wanted.dir.join(wanted.values.fill(name));
        let parent = path.parent().unwrap_or(wanted.dir);
        std::fs::create_dir_all(parent).map_err(at(parent))?;
        std::fs::write(&path, wanted.values.fill(content)).map_err(at(&path))?;
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
