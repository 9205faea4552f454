//! A deployment that runs, and what runs beside it: from their start to their surely being gone.
//!
//! `Workshop::start` makes it; `compare` puts a load on its address, asks what it spends and stops it.
//! What must stay true: it exists only if it has answered as its scenario expects; what runs beside it
//! answered before it was started and ends after it, and is never counted as its cost; after
//! [`Running::stop`], or its drop, no process of either is left.

use std::path::Path;

use super::account::{Account, Memory, Spent};
use super::cgroup::{Group, Limits};
use super::folder::Folder;
use super::kept::{Kept, Wanted};
use super::{Conditions, DeployError, Workshop, at};
use crate::load::Address;
use crate::scenario::{Deployment, StartValues, Values};

/// A deployment that runs and answers; stopped on drop.
#[derive(Debug)]
pub struct Running {
    values: Values,
    // In the order of their ends.
    own: Kept,
    beside: Option<Kept>,
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
        let beside = beside(workshop, &values, dir.path(), conditions);
        let beside = beside.map_err(|error| match error {
            DeployError::Interrupted => error,
            error => DeployError::Beside(Box::new(error)),
        })?;
        let wanted = Wanted {
            files: &deployment.files,
            start: &deployment.start,
            env: &deployment.env,
            url: &deployment.url,
            core: conditions.core,
            values: &values,
            dir: dir.path(),
        };
        let group = group(deployment, &values, dir.path())?;
        let own = Kept::start(workshop, &wanted, group, conditions)?;
        Ok(Self {
            values,
            own,
            beside,
            _dir: dir,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.own.target().address
    }

    /// The value of its requests' `Host` field.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.own.target().host
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

    /// Which of its commands, or of those beside it, ended, and how, if one did unasked; a command that
    /// left a daemon is none.
    pub fn ended(&mut self) -> Option<String> {
        let own = self.own.ended();
        own.or_else(|| self.beside.as_mut()?.ended())
    }

    /// The end of what its commands wrote.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.own.log_tail()
    }

    /// Ends it; no process of it is left afterwards. Once is enough.
    pub fn stop(&mut self) {
        self.own.stop();
        if let Some(beside) = &mut self.beside {
            beside.stop();
        }
    }
}

impl Account for Running {
    fn spent(&self) -> Spent {
        self.own.spent()
    }

    fn memory(&self) -> Memory {
        self.own.memory()
    }

    fn disk_read(&self) -> Option<u64> {
        self.own.disk_read()
    }

    fn beside(&self) -> f64 {
        let beside = self.beside.as_ref();
        beside.map_or(0.0, |beside| beside.spent().cpu_seconds)
    }
}

fn beside(
    workshop: &Workshop,
    values: &Values,
    dir: &Path,
    conditions: &Conditions<'_>,
) -> Result<Option<Kept>, DeployError> {
    let Some((beside, core)) = conditions.beside else {
        return Ok(None);
    };
    let wanted = Wanted {
        files: &beside.files,
        start: &beside.start,
        env: &[],
        url: &beside.url,
        core,
        values,
        dir,
    };
    let limits = Limits {
        memory: None,
        disk_read: None,
    };
    let group = Group::make(&format!("{}-beside", name(dir)), &limits)?;
    Kept::start(workshop, &wanted, group, conditions).map(Some)
}

fn group(deployment: &Deployment, values: &Values, dir: &Path) -> Result<Group, DeployError> {
    let paths = [dir, &values.here, &values.cache];
    let limits = Limits {
        memory: deployment.memory,
        disk_read: deployment.disk_read.map(|rate| (rate, &paths[..])),
    };
    Group::make(&name(dir), &limits)
}

/// The folder's name is unique on this machine, and so are the groups'.
fn name(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
