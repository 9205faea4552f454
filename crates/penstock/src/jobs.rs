//! The jobs that belong to an application and are restarted with it.

use std::sync::Arc;

use penstock_apps::App;

use crate::components::Apps;

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
        self.app.restart().await?;
        let mut failed = Vec::new();
        for job in &self.jobs {
            if let Err(error) = job.restart().await {
                failed.push(format!(
                    "the application serves, but its job `{}` goes on with its old code\n{error}",
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
