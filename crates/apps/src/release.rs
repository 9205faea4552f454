//! The `release_command` of an application: what runs to its end before new code serves.
//!
//! [`App`](crate::App) runs it before a restart, the executor before the first process.
//!
//! # Invariants
//! - One run at a time.
//! - A run ends: by itself, at `release_timeout`, or when the application ends.

use penstock_config::{App as AppConfig, AppKind};
use tokio::sync::Mutex;

use crate::executor::setup::AppResources;
use crate::interpreter::program_environment;
use crate::program::ProgramRunner;
use crate::stop_timeout;

/// Runs the command.
#[derive(Debug)]
pub(crate) struct ReleaseCommand {
    config: AppConfig,
    resources: AppResources,
    /// Held while it runs.
    only: Mutex<()>,
}

impl ReleaseCommand {
    /// That of an application; `None` if it has none, and in development.
    pub(crate) fn of(config: &AppConfig, resources: &AppResources) -> Option<Self> {
        let has_any = !config.release_command.is_empty() && !resources.is_development;
        has_any.then(|| Self {
            config: config.clone(),
            resources: resources.clone(),
            only: Mutex::default(),
        })
    }

    /// Runs it, after the run in progress if there is one. It is ended when `stop` is ready.
    ///
    /// # Errors
    /// What went wrong, with its last lines.
    pub(crate) async fn run(&self, stop: impl Future<Output = ()>) -> Result<(), String> {
        let mut stop = std::pin::pin!(stop);
        let _only = tokio::select! {
            biased;
            // The run before has been ended by the same.
            () = &mut stop => return Err("the application ends".to_owned()),
            only = self.only.lock() => only,
        };
        let name = &self.config.name;
        let line = self.config.release_command.join(" ");
        let runner = self.runner().await?;
        log::info!("{name}: release command begins: {line}");
        let limit = self.config.release_timeout;
        let run = runner.run(Some(limit), stop, |_| {}).await;
        let run = run.map_err(|error| format!("release command `{line}`: {error}"))?;
        let (how, succeeded) = run.outcome(("release_timeout", Some(limit)));
        if succeeded {
            log::info!("{name}: release command has ended");
            return Ok(());
        }
        Err(format!(
            "release command `{line}` failed: {how}\n{}",
            run.last_lines
        ))
    }

    /// The command as a program of the application.
    async fn runner(&self) -> Result<ProgramRunner, String> {
        let (app, development) = (self.config.clone(), self.resources.is_development);
        let pool = &self.resources.buffering_settings.pool;
        let found = pool.run(move || program_environment(&app, development));
        let found = found.await.map_err(|error| error.to_string())?;
        let mut env = (*self.config.env).clone();
        env.extend(found);
        let program = AppConfig {
            kind: AppKind::Job,
            command: self.config.release_command.clone(),
            env: env.into(),
            upstream: None,
            ..self.config.clone()
        };
        let stop_option = stop_timeout::option_name(&self.config);
        Ok(ProgramRunner::new(
            program,
            stop_option,
            self.resources.clone(),
        ))
    }
}
