//! Loads an application once, in a process that serves nothing and ends at once.
//!
//! `penstock check` asks it whether the code boots. The process is a template that forks no worker:
//! the code is loaded, and nothing of it is started (no lifespan, no threads of the worker's).
//!
//! # Invariants
//! - The process has ended when [`check_boot`] returns, whatever the code does.
//! - It waits no longer than the application's `boot_timeout`.

use penstock_config as config;
use penstock_runtime::{clock, loops, process as watch_process};
use penstock_sys::account::Account;
use penstock_sys::process;
use penstock_sys::process::Launcher;
use tokio::sync::mpsc;

use super::access;
use super::control;
use super::process_task::OutputTail;
use super::workers::{WorkerCommand, error_context};
use super::{ControlMessage, ExecutorInput, ProcessKey};
use crate::interpreter::missing_packages_hint;
use crate::worker_scripts::LaunchRole;

/// Messages of one process that serves nothing: READY or the traceback.
const MAX_MESSAGES: usize = 8;

/// Loads the code of an application of kind `wsgi`, `asgi` or `rack`; as another user by a launcher
/// that may.
///
/// # Errors
/// The traceback, or a sentence and the last lines that the process wrote.
pub async fn check_boot(
    config: &config::App,
    account: Option<(&Launcher, &Account)>,
) -> Result<(), String> {
    let command = WorkerCommand {
        config,
        account: account.map(|(_, account)| account),
        cgroup: None,
        interface_is_guess: config.kind_is_guess,
        is_development: false,
    };
    let role = LaunchRole::Template {
        ignores_threads: true,
    };
    let (mut launch, kept, connection) = command.build_process_spec(&role)?;
    let found = access::find_program_files(config)?;
    found.add_to_rules(&mut launch.access);
    launch.program = found.program.into();
    let started = match account {
        Some((launcher, _)) => watch_process::launch(launcher, launch).await,
        None => process::spawn_process(&launch),
    };
    let mut started = started.map_err(error_context("cannot be started"))?;
    let tail = OutputTail::default();
    for pipe in [started.stdout.try_clone(), started.stderr.try_clone()] {
        let (pipe, tail) = (pipe.map_err(error_context("output"))?, tail.clone());
        loops::spawn_here(async move {
            watch_process::read_output(pipe, |line| tail.push_line(line), |_| {}).await;
        });
    }
    let (inputs, mut messages) = mpsc::channel(MAX_MESSAGES);
    loops::spawn_here(async move {
        control::serve_control(connection, ProcessKey::Template(0), &inputs).await;
    });
    let outcome = clock::timeout(config.boot_timeout, messages.recv()).await;
    // Closes its control socket; whatever it does now, it ends.
    drop(kept);
    let _ = started.handle().kill_group();
    watch_process::wait_for_exit(&started.exit_fd).await;
    let exit = started.try_exit().ok().flatten();
    let with_tail = |text: String| match tail.joined_lines() {
        lines if lines.is_empty() => text,
        lines => format!("{text}\n{lines}"),
    };
    match outcome {
        Some(Some(ExecutorInput::Control { message, .. })) => match message {
            ControlMessage::Ready { .. } => Ok(()),
            ControlMessage::BootFailed { traceback } => {
                Err(match missing_packages_hint(config, &traceback) {
                    Some(hint) => format!("{}\n{hint}", traceback.trim_end()),
                    None => traceback,
                })
            }
            ControlMessage::ProtocolBroken(why) => Err(format!("broke the worker protocol: {why}")),
            ControlMessage::ForkFailed { reason, .. } => Err(reason),
            ControlMessage::NoAnswer => Err("does not answer".to_owned()),
        },
        Some(_) => Err(with_tail(match exit {
            Some(exit) => format!("the process ended before it was loaded ({exit})"),
            None => "the process ended before it was loaded".to_owned(),
        })),
        None => Err(with_tail(format!(
            "was not loaded within boot_timeout ({:?})",
            config.boot_timeout
        ))),
    }
}
