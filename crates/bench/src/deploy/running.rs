//! A running deployment and its companion, from their start to their end.
//!
//! Made by `Testbed::start`; `compare` puts a load on its address, reads its resource usage and
//! stops it.
//!
//! # Invariants
//!
//! - It exists only if it has responded as its scenario expects.
//! - The companion responded before the deployment was started, ends after it, and never counts as
//!   its cost.
//! - After [`RunningDeployment::stop`] or drop, no process of either is left.

use std::path::Path;

use super::cgroup::{Cgroup, CgroupLimits};
use super::resource_usage::{CpuTime, MemoryUsage, ResourceUsage};
use super::supervised::{LaunchSpec, SupervisedCommands};
use super::temp_dir::TempDir;
use super::{DeployError, StartConditions, Testbed, file_error};
use crate::load::Address;
use crate::scenario::{Deployment, PlaceholderValues, StartValues};

/// A deployment that runs and responds; stopped on drop.
#[derive(Debug)]
pub struct RunningDeployment {
    values: PlaceholderValues,
    // In stop order.
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

    /// The address to connect to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.own.target().address
    }

    /// The `Host` of its requests.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.own.target().host
    }

    /// The placeholder values of this start.
    #[must_use]
    pub fn values(&self) -> &PlaceholderValues {
        &self.values
    }

    /// Whether it still runs as started.
    #[must_use]
    pub fn is_alive(&mut self) -> bool {
        self.unexpected_exit().is_none()
    }

    /// Which of its commands, or of its companion's, ended unexpectedly, and how. A command that
    /// left a daemon does not count.
    pub fn unexpected_exit(&mut self) -> Option<String> {
        let own = self.own.ended();
        own.or_else(|| self.companion.as_mut()?.ended())
    }

    /// The end of its commands' output.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.own.log_tail()
    }

    /// Stops it; no process of it is left afterwards. Further calls do nothing.
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

/// The directory's name is unique on this machine, and so are the groups' names.
fn dir_name(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
