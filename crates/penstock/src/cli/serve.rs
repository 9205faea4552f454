//! `penstock serve` and `penstock work`: resolves the configuration, starts the server, prints its
//! addresses, and serves until it is stopped.
//!
//! Steps that only a single-threaded process can do are here: the service manager's variables are
//! removed from the environment, passed sockets are taken, and the process goes to the background.
//! All errors of the configuration are reported before that.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use penstock_config::{self as config, Invocation, ServerLogFormat};
use penstock_runtime::logger::{self, LineFormat, LogOutput, LogWriter};
use penstock_sys::confine;
use penstock_sys::daemon::{self, ForkSide};
use penstock_sys::process::{self, Launcher};

use super::{CliError, ProcessArguments, check};
use crate::accounts::{self, AppAccounts};
use crate::app_resource_limits::AppResourceLimits;
use crate::django_files::DjangoFiles;
use crate::hardening;
use crate::server::{self, Options, ReadyFd, StartInput};
use crate::service_manager::ManagerEnvironment;
use crate::upgrade_protocol::{self, Predecessor};
use crate::wiring;

/// Serves until the server is stopped; prints nothing at the end.
pub(super) fn run(
    invocation: std::io::Result<Invocation>,
    process: &ProcessArguments,
    daemonizes: bool,
) -> Result<String, CliError> {
    let failed = |what: &str, error: std::io::Error| CliError::Failed(format!("{what}: {error}"));
    process::reset_inherited_signals();
    hardening::harden_process()?;
    let words = ManagerEnvironment::take_from_environment()
        .map_err(|error| failed("the environment", error))?;
    let met = connect_to_predecessor()?;
    let invocation = invocation.map_err(|error| CliError::Usage(error.to_string()))?;
    // Not that of `--chdir`, which a successor goes to as this process did.
    let start_dir = std::env::current_dir();
    let start_dir = start_dir.map_err(|error| failed("the current directory", error))?;
    let program = program_path(&start_dir);
    let mut config = check::resolve_and_validate(&invocation).map_err(CliError::Usage)?;
    let django_files = DjangoFiles::ask(&config, invocation.development);
    django_files.apply(&mut config);
    let mut server_account =
        accounts::account_to_switch_to(&config.server).map_err(CliError::Usage)?;
    let accounts =
        AppAccounts::resolve(&config, server_account.as_ref()).map_err(CliError::Usage)?;
    if let Some(server_account) = &server_account {
        daemon::set_env_vars(&server_account.env_vars())
            .map_err(|error| failed("the environment", error))?;
    }
    let (predecessor, sockets) = match met {
        Some((old, sockets)) => (Some(old), sockets),
        None => (None, words.take_inherited_listeners()?),
    };
    let ready_fd = process.ready_fd.filter(|_| predecessor.is_none());
    let ready = ready_fd.map(ReadyFd::claim);
    // The successor of a daemon is in the background already.
    let goes = daemonizes && predecessor.is_none();
    let word = goes.then(go_to_background).transpose()?;
    let manager = words.into_notifier();
    let successor = server::successor_command(&program, &start_dir, &manager);
    // After a fork the parent waits, in this process's cgroup, until the server is ready.
    let app_limits = AppResourceLimits::create_cgroups(&config, &accounts, goes);
    let groups = app_limits.cgroups().cloned().collect();
    let privileges = accounts.launcher_privileges(server_account.as_ref(), Some(successor), groups);
    let launcher = Launcher::start(&privileges, || configure_launcher(&config.server));
    if let Some(server_account) = server_account
        .as_mut()
        .filter(|_| accounts.has_separate_users())
    {
        server_account.keeps_signal_right = true;
    }
    let launcher = launcher.map_err(|error| failed("cannot fork the launcher", error))?;
    let confined = confine::confine_front_end();
    let level = if process.verbose {
        log::LevelFilter::Debug
    } else {
        log::LevelFilter::Info
    };
    let format = match config.server.log_format {
        ServerLogFormat::Text => LineFormat::Text,
        ServerLogFormat::Json => LineFormat::Json,
    };
    let log = logger::install(level, format, wiring::log_mask(&config.server))
        .map_err(|error| failed("the log", error))?;
    if let Err(error) = confined {
        log::warn!("server: cannot give up the permission to start programs: {error}");
    }
    let announce = LogWriter::start("terminal", LogOutput::Stdout);
    let announce = announce.map_err(|error| failed("the log", error))?;
    let options = Options {
        development: invocation.development,
        // The previous server has used it already.
        ready_fd: Mutex::new(ready),
        log: log.clone(),
        launcher: Arc::new(launcher),
        announce: announce.clone(),
        accounts: Arc::new(accounts),
        app_limits: Arc::new(app_limits),
        manager,
        django_files,
        program_path: program,
        start_dir,
        daemonize: daemonizes,
        pid_file: None,
        exposures: Vec::new(),
    };
    let beginning = StartInput {
        inherited: sockets,
        predecessor,
        server_account,
        daemon_parent: word,
    };
    let result = server::run(invocation, config, options, beginning);
    announce.flush();
    log.flush();
    result?;
    Ok(String::new())
}

/// Sets the limits and rights that programs inherit, in the process that starts them.
fn configure_launcher(server: &config::Server) -> std::io::Result<()> {
    // The server logs the limit; the descriptor limits are the same here.
    match server.max_open_files {
        Some(wanted) => penstock_sys::account::set_max_open_files(wanted)?,
        None => drop(process::raise_open_files_limit()),
    }
    process::allow_priority_restore();
    if let Some(mask) = server.umask {
        penstock_sys::account::set_umask(mask);
    }
    Ok(())
}

/// The previous server and the sockets it hands over, if it started this process.
fn connect_to_predecessor()
-> Result<Option<(Predecessor, crate::inherited_listeners::InheritedListeners)>, CliError> {
    let taken = daemon::take_env_vars(&[upgrade_protocol::UPGRADE_FD_VAR]);
    let taken = taken.map_err(|error| CliError::Failed(format!("the environment: {error}")))?;
    let Some(number) = taken.into_iter().next().flatten() else {
        return Ok(None);
    };
    let met = Predecessor::connect(&number.to_string_lossy());
    met.map(Some).map_err(CliError::Failed)
}

/// Forks: the parent waits until the child is ready, and exits.
fn go_to_background() -> Result<daemon::ReadinessSender, CliError> {
    match daemon::fork() {
        Ok(ForkSide::Child(word)) => Ok(word),
        Ok(ForkSide::Parent(waiting)) => Err(CliError::Reported(match waiting.wait() {
            Ok(()) => ExitCode::SUCCESS,
            // The child has printed the cause and exited.
            Err(_) => ExitCode::FAILURE,
        })),
        Err(error) => Err(CliError::Failed(format!("--daemonize: {error}"))),
    }
}

/// The path by which this program was started, for upgrades: a link may point to another version by
/// then.
fn program_path(cwd: &Path) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let Some(name) = std::env::args_os().next().map(PathBuf::from) else {
        return own;
    };
    let folders = match name.components().count() {
        1 => std::env::var_os("PATH").unwrap_or_default(),
        _ => cwd.as_os_str().to_owned(),
    };
    let is_own = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == own);
    std::env::split_paths(&folders)
        .map(|folder| cwd.join(folder).join(&name))
        .find(is_own)
        .unwrap_or(own)
}
