//! Runs `acme.dns_hook`, which publishes and removes the records of challenges.
//!
//! # Invariants
//!
//! - The launcher starts it, as the server may start no program.
//! - One that does not end is killed when its caller gives up.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_acme::{CallbackError, CallbackFuture, DnsHook, DnsHookCall};
use penstock_config::{Config, split_command};
use penstock_runtime::{LoopHandle, loops, process};
use penstock_sys::isolation::AccessRules;
use penstock_sys::process::{Launcher, ProcessExit, ProcessSpec, SpawnedProcess};
use tokio::sync::oneshot;

use super::acme::AcmeEnvironment;

/// The name of the hook in messages.
const HOOK: &str = "acme.dns_hook";

/// The hook's command.
pub(super) struct HookCommand {
    words: Vec<OsString>,
    folder: PathBuf,
    launcher: Arc<Launcher>,
    event_loop: LoopHandle,
}

impl HookCommand {
    pub(super) fn new(command: &str, config: &Config, environment: &AcmeEnvironment) -> Self {
        let words = split_command(command).unwrap_or_default();
        Self {
            words: words.into_iter().map(OsString::from).collect(),
            folder: config.base_dir.clone(),
            launcher: Arc::clone(&environment.launcher),
            event_loop: environment.event_loop.clone(),
        }
    }

    fn spec(&self, call: &DnsHookCall) -> Option<ProcessSpec> {
        let (program, fixed) = self.words.split_first()?;
        let arguments = call.arguments().map(OsString::from);
        Some(ProcessSpec {
            program: program.clone(),
            args: fixed.iter().cloned().chain(arguments).collect(),
            dir: self.folder.clone(),
            env: Vec::new(),
            account: None,
            group: None,
            inherited_fds: Vec::new(),
            placed_fds: Vec::new(),
            // The operator's own program, which may need anything.
            sandbox: None,
            access: AccessRules::default(),
            app: HOOK.to_owned(),
        })
    }
}

impl DnsHook for HookCommand {
    fn call(&self, call: DnsHookCall) -> CallbackFuture<()> {
        let (done, outcome) = oneshot::channel();
        if let Some(spec) = self.spec(&call) {
            let launcher = Arc::clone(&self.launcher);
            self.event_loop.spawn(run(launcher, spec, done));
        }
        Box::pin(async move {
            let ended = outcome.await;
            ended.unwrap_or_else(|_| Err(CallbackError(format!("{HOOK} was not run"))))
        })
    }
}

/// Runs the hook to its end, or until its caller has given up.
async fn run(
    launcher: Arc<Launcher>,
    spec: ProcessSpec,
    mut done: oneshot::Sender<Result<(), CallbackError>>,
) {
    let mut started = match process::launch(&launcher, spec).await {
        Ok(started) => started,
        Err(error) => {
            let _ = done.send(Err(CallbackError(format!("{HOOK} cannot be run: {error}"))));
            return;
        }
    };
    let outcome = tokio::select! {
        outcome = follow(&mut started) => outcome,
        () = done.closed() => {
            // It may have ended in this moment.
            let _ = started.handle().kill_group();
            process::wait_for_exit(&started.exit_fd).await;
            let _ = started.try_exit();
            return;
        }
    };
    let _ = done.send(outcome);
}

/// Awaits the end; the last line of its errors says why it failed.
async fn follow(started: &mut SpawnedProcess) -> Result<(), CallbackError> {
    let failed = |cause: String| CallbackError(format!("{HOOK} failed: {cause}"));
    let mut last_line = String::new();
    // Read, so that a hook that prints much does not wait for a reader.
    let printed = started
        .stdout
        .try_clone()
        .map_err(|error| failed(error.to_string()))?;
    loops::spawn_here(process::read_output(printed, |_| {}, |_| {}));
    let errors = started
        .stderr
        .try_clone()
        .map_err(|error| failed(error.to_string()))?;
    process::read_output(errors, |line| line.clone_into(&mut last_line), |_| {}).await;
    process::wait_for_exit(&started.exit_fd).await;
    match started.try_exit() {
        Ok(Some(ProcessExit::Code(0))) => Ok(()),
        Ok(Some(exit)) if last_line.is_empty() => Err(failed(exit.to_string())),
        Ok(Some(exit)) => Err(failed(format!("{exit}: {last_line}"))),
        Ok(None) => Err(failed("its end is not known".to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}
