//! The jobs that belong to an application: they find its interpreter, and are restarted with it.

use std::sync::Arc;

use penstock_apps::{App, program_environment};
use penstock_config::{self as config, AppKind, Config};

use crate::components::Apps;

/// Gives each job the variables by which its programs find the interpreter of its application, or
/// of its folder; what it sets itself stays. *Blocking*.
pub(crate) fn add_environments(config: &mut Config, is_development: bool) {
    let owners = config.apps.clone();
    let lasting = config.apps.values_mut();
    let lasting = lasting.filter(|app| app.kind == AppKind::Job);
    let scheduled = config.jobs.values_mut().map(|job| &mut job.program);
    for program in lasting.chain(scheduled) {
        let owner = program.owner.as_ref().and_then(|name| owners.get(name));
        let found = match owner {
            Some(owner) => config::App {
                env: program.env.clone(),
                ..owner.clone()
            },
            None => program.clone(),
        };
        let mut env = (*program.env).clone();
        for (name, value) in program_environment(&found, is_development) {
            // What is found comes before what it has in `PATH`.
            match name == "PATH" {
                true => env.insert(name, value),
                false => Some(env.entry(name).or_insert(value).clone()),
            };
        }
        program.env = env.into();
    }
}

/// An application with the jobs that belong to it.
#[derive(Debug)]
pub(crate) struct AppWithJobs {
    app: Arc<App>,
    jobs: Vec<Arc<App>>,
}

impl AppWithJobs {
    pub(crate) fn find(app: &Arc<App>, all: &Apps) -> Self {
        let is_own = |job: &&Arc<App>| job.config().owner.as_deref() == Some(app.name());
        Self {
            app: Arc::clone(app),
            jobs: all.values().filter(is_own).cloned().collect(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.app.name()
    }

    /// Restarts the application, and its jobs if that serves.
    ///
    /// # Errors
    /// Why new code failed; what could not be restarted goes on with its old code.
    pub(crate) async fn restart(&self) -> Result<(), String> {
        let kept = |error| {
            let name = self.name();
            format!("application `{name}` continues to serve with its old code\n{error}")
        };
        self.app.restart().await.map_err(kept)?;
        let mut failed = Vec::new();
        for job in &self.jobs {
            if let Err(error) = job.restart().await {
                failed.push(format!(
                    "application `{}` serves, but its job `{}` goes on with its old code\n{error}",
                    self.name(),
                    job.name()
                ));
            }
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(failed.join("\n")),
        }
    }
}
