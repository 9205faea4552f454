//! A deployment that runs, and what runs beside it: from their start to their surely being gone.
//!
//! `Testbed::start` makes it; `compare` puts a load on its address, asks what it spends and stops it.
//! What must stay true: it exists only if it has answered as its scenario expects; what runs beside it
//! answered before it was started and ends after it, and is never counted as its cost; after
//! [`RunningDeployment::stop`], or its drop, no process of either is left.

use std::path::Path;

use super::cgroup::{Cgroup, CgroupLimits};
use super::resource_usage::{CpuTime, MemoryUsage, ResourceUsage};
use super::supervised::{LaunchSpec, SupervisedCommands};
use super::temp_dir::TempDir;
use super::{DeployError, StartConditions, Testbed, file_error};
use crate::load::Address;
use crate::scenario::{Deployment, PlaceholderValues, StartValues};

/// A deployment that runs and answers; stopped on drop.
#[derive(Debug)]
pub struct RunningDeployment {
    values: PlaceholderValues,
    // In the order of their ends.
    own: SupervisedCommands,
    companion: Option<SupervisedCommands>,
    _temp_dir: TempDir,
}

impl RunningDeployment {
    pub(super) fn start(
        workshop: &Testbed,
        deployment: &Deployment,
        conditions: &StartConditions<'_>,
    ) -> Result<Self, DeployError> {
        let dir = TempDir::new().map_err(file_error(&std::env::temp_dir()))?;
        let ports = workshop
            .free_ports()
            .map_err(file_error(Path::new("127.0.0.1")))?;
        let mut values = workshop.values().clone();
        values.start = Some(StartValues {
            dir: dir.path().to_owned(),
            ports,
        });
        let beside = start_companion(workshop, &values, dir.path(), conditions);
        let beside = beside.map_err(|error| match error {
            DeployError::Interrupted => error,
            error => DeployError::CompanionFailed(Box::new(error)),
        })?;
        let wanted = LaunchSpec {
            files: &deployment.files,
            start: &deployment.start,
            env: &deployment.env,
            url: &deployment.url,
            core: conditions.core,
            values: &values,
            dir: dir.path(),
        };
        let group = deployment_cgroup(deployment, &values, dir.path())?;
        let own = SupervisedCommands::start(workshop, &wanted, group, conditions)?;
        Ok(Self {
            values,
            own,
            companion: beside,
            _temp_dir: dir,
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
    pub fn values(&self) -> &PlaceholderValues {
        &self.values
    }

    /// Whether it runs as it was started.
    #[must_use]
    pub fn is_alive(&mut self) -> bool {
        self.unexpected_exit().is_none()
    }

    /// Which of its commands, or of those beside it, ended, and how, if one did unasked; a command that
    /// left a daemon is none.
    pub fn unexpected_exit(&mut self) -> Option<String> {
        let own = self.own.ended();
        own.or_else(|| self.companion.as_mut()?.ended())
    }

    /// The end of what its commands wrote.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.own.log_tail()
    }

    /// Ends it; no process of it is left afterwards. Once is enough.
    pub fn stop(&mut self) {
        self.own.stop();
        if let Some(beside) = &mut self.companion {
            beside.stop();
        }
    }
}

impl ResourceUsage for RunningDeployment {
    fn cpu_time(&self) -> CpuTime {
        self.own.cpu_time()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.own.memory_usage()
    }

    fn disk_read_bytes(&self) -> Option<u64> {
        self.own.disk_read_bytes()
    }

    fn companion_cpu_seconds(&self) -> f64 {
        let beside = self.companion.as_ref();
        beside.map_or(0.0, |beside| beside.cpu_time().cpu_seconds)
    }
}

fn start_companion(
    workshop: &Testbed,
    values: &PlaceholderValues,
    dir: &Path,
    conditions: &StartConditions<'_>,
) -> Result<Option<SupervisedCommands>, DeployError> {
    let Some((beside, core)) = conditions.companion else {
        return Ok(None);
    };
    let wanted = LaunchSpec {
        files: &beside.files,
        start: &beside.start,
        env: &[],
        url: &beside.url,
        core,
        values,
        dir,
    };
    let limits = CgroupLimits {
        memory: None,
        disk_read: None,
    };
    let group = Cgroup::create(&format!("{}-beside", dir_name(dir)), &limits)?;
    SupervisedCommands::start(workshop, &wanted, group, conditions).map(Some)
}

fn deployment_cgroup(
    deployment: &Deployment,
    values: &PlaceholderValues,
    dir: &Path,
) -> Result<Cgroup, DeployError> {
    let paths = [dir, &values.here, &values.cache];
    let limits = CgroupLimits {
        memory: deployment.memory,
        disk_read: deployment.disk_read.map(|rate| (rate, &paths[..])),
    };
    Cgroup::create(&dir_name(dir), &limits)
}

/// The folder's name is unique on this machine, and so are the groups'.
fn dir_name(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
