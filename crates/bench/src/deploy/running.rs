//! A running deployment and its companion, from their start to their end.
//!
//! `compare` starts it, puts a load on its address, reads its resource usage and
//! stops it.
//!
//! # Invariants
//!
//! - It exists only if it has responded as its scenario expects.
//! - The companion responded before the deployment was started, ends after it, and never counts as
//!   its cost.
//! - After [`RunningDeployment::stop`] or drop, no process of either is left.

use std::path::Path;

use tempfile::TempDir;

use super::cgroup::{Cgroup, CgroupLimits};
use super::resource_usage::{CpuTime, MemoryUsage, ResourceUsage};
use super::supervised::{LaunchSpec, SupervisedCommands};
use super::{DeployError, Testbed, file_error, new_temp_dir};
use crate::scenario::{Deployment, PerStartValues, PlaceholderValues, Scenario};
use crate::target::Target;

/// A deployment that runs and responds; stopped on drop.
#[derive(Debug)]
pub struct RunningDeployment {
    /// The placeholder values of this start.
    pub values: PlaceholderValues,
    // In stop order.
    own: SupervisedCommands,
    companion: Option<SupervisedCommands>,
    _temp_dir: TempDir,
}

impl RunningDeployment {
    /// Starts a deployment of a scenario, and its companion, and waits until it responds.
    ///
    /// # Errors
    /// It does not respond, or not as expected; nothing of it is left then.
    pub fn start(
        testbed: &Testbed,
        scenario: &Scenario,
        deployment: &Deployment,
    ) -> Result<Self, DeployError> {
        let temp_dir = new_temp_dir()?;
        let dir = temp_dir.path();
        // The directory's name is unique on this machine, and so are the groups' names.
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let ports = testbed.find_free_ports();
        let mut values = testbed.values.clone();
        values.start = Some(PerStartValues {
            dir: dir.to_owned(),
            ports: ports.map_err(file_error(Path::new("127.0.0.1")))?,
        });
        let companion = scenario.companion.as_ref().map(|companion| {
            let commands = LaunchSpec {
                files: &companion.files,
                start: &companion.start,
                env: &[],
                url: &companion.url,
                // The deployment keeps its core to itself.
                core: scenario.cores.map(|cores| cores.load),
                values: &values,
                dir,
            };
            let group = Cgroup::create(&format!("{name}-companion"), &CgroupLimits::default())?;
            SupervisedCommands::start(testbed, &commands, group, scenario)
        });
        let companion = companion.transpose().map_err(|error| match error {
            DeployError::Interrupted => error,
            error => DeployError::CompanionFailed(Box::new(error)),
        })?;
        let commands = LaunchSpec {
            files: &deployment.files,
            start: &deployment.start,
            env: &deployment.env,
            url: &deployment.url,
            core: scenario.cores.map(|cores| cores.server),
            values: &values,
            dir,
        };
        let paths = [dir, &values.here, &values.cache];
        let limits = CgroupLimits {
            memory: deployment.memory,
            disk_read: deployment.disk_read.map(|rate| (rate, &paths[..])),
        };
        let group = Cgroup::create(&name, &limits)?;
        let own = SupervisedCommands::start(testbed, &commands, group, scenario)?;
        drop(name);
        Ok(Self {
            values,
            own,
            companion,
            _temp_dir: temp_dir,
        })
    }

    /// Where its requests go.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.own.target
    }

    /// Which of its commands, or of its companion's, ended unexpectedly, and how. A command that
    /// left a daemon does not count.
    pub fn unexpected_exit(&mut self) -> Option<String> {
        let own = self.own.unexpected_exit();
        own.or_else(|| self.companion.as_mut()?.unexpected_exit())
    }

    /// The end of its commands' output.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.own.log_tail()
    }

    /// Stops it; no process of it is left afterwards. Further calls do nothing.
    pub fn stop(&mut self) {
        self.own.stop();
        self.companion.iter_mut().for_each(SupervisedCommands::stop);
    }
}

impl ResourceUsage for RunningDeployment {
    fn cpu_time(&self) -> CpuTime {
        self.own.cpu_time()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.own.processes.memory_usage()
    }

    fn disk_read_bytes(&self) -> Option<u64> {
        self.own.processes.disk_read_bytes()
    }

    fn companion_cpu_seconds(&self) -> f64 {
        let spent = self.companion.iter().map(SupervisedCommands::cpu_time);
        spent.map(|spent| spent.cpu_seconds).sum()
    }
}
