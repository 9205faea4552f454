//! `penstock run`: a command in the place of an application, as its processes run: folder,
//! variables, interpreter first in `PATH`.
//!
//! The command takes the place of this process, so that it has the terminal and its status is the
//! status of the verb.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use penstock_config::{App, AppKind, Config, Invocation};
use penstock_sys::account;

use super::{CliError, RunArguments};
use crate::accounts::AppAccounts;

/// Runs the command; returns only where that fails.
pub(super) fn run(arguments: &RunArguments) -> Result<String, CliError> {
    let cwd = std::env::current_dir();
    let cwd = cwd.map_err(|error| format!("the current directory: {error}"))?;
    let invocation = Invocation {
        config: arguments.config.clone(),
        cwd,
        ..Invocation::default()
    };
    let config = penstock_config::resolve_config(&invocation);
    let config = config.map_err(|report| CliError::Usage(report.to_string().trim_end().into()))?;
    let app = find_app(&config, arguments.app.as_deref()).map_err(CliError::Usage)?;
    check_user(&config, app)?;
    let (program, rest) = (arguments.command.split_first())
        .ok_or_else(|| CliError::Usage("run: which command?".to_owned()))?;
    let variables = environment(app);
    let mut command = Command::new(program);
    command
        .args(rest)
        .current_dir(&app.dir)
        .envs(variables.iter());
    let error = command.exec();
    Err(CliError::Failed(format!(
        "run: {}: {error} (looked up in the PATH of application `{}`)",
        Path::new(program).display(),
        app.name
    )))
}

/// The application that is meant: the one that is named, or the only one.
fn find_app<'c>(config: &'c Config, name: Option<&str>) -> Result<&'c App, String> {
    let mut apps = config.programs();
    if let Some(name) = name {
        let found = apps.find(|app| app.name == name);
        return found.ok_or_else(|| format!("run: there is no application or job `{name}`"));
    }
    let mut apps = apps.filter(|app| app.kind != AppKind::Job);
    match (apps.next(), apps.next()) {
        (Some(app), None) => Ok(app),
        (None, _) => Err("run: there is no application here".to_owned()),
        (Some(one), Some(other)) => Err(format!(
            "run: which application? `--app {}`, `--app {}`",
            one.name, other.name
        )),
    }
}

/// Refuses another user than that of the application: its files would be this one's.
fn check_user(config: &Config, app: &App) -> Result<(), CliError> {
    if app.user.is_none() {
        return Ok(());
    }
    let accounts = AppAccounts::resolve(config, None);
    let account = accounts
        .as_ref()
        .ok()
        .and_then(|it| it.account_of(app).ok())
        .flatten();
    let (uid, _) = account::effective_ids();
    match account {
        Some(account) if account.user.uid != uid => Err(CliError::Failed(format!(
            "run: application `{}` runs as another user: sudo -u {} penstock run ...",
            app.name,
            app.user.as_deref().unwrap_or_default()
        ))),
        _ => Ok(()),
    }
}

/// What is added to the variables of this process.
fn environment(app: &App) -> BTreeMap<OsString, OsString> {
    let mut all: BTreeMap<OsString, OsString> = BTreeMap::new();
    all.insert("PENSTOCK_APP".into(), app.name.as_str().into());
    if app.kind == AppKind::Rack {
        all.insert("RACK_ENV".into(), penstock_apps::rack_env(app, false));
    }
    let own = app.env.iter();
    all.extend(own.map(|(name, value)| (name.into(), value.into())));
    let has_interpreter = matches!(app.kind, AppKind::Wsgi | AppKind::Asgi | AppKind::Rack);
    let interpreter = has_interpreter.then(|| penstock_apps::find_interpreter(app).ok());
    if let Some(folder) = interpreter.flatten().as_deref().and_then(Path::parent) {
        let path = all.get(&OsString::from("PATH")).cloned();
        let path = path
            .or_else(|| std::env::var_os("PATH"))
            .unwrap_or_default();
        let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
        // Folders with a colon in their name cannot be in it at all.
        if let Ok(path) = std::env::join_paths(folders) {
            all.insert("PATH".into(), path);
        }
        if let Some(venv) = folder.parent().filter(|it| it.join("pyvenv.cfg").is_file()) {
            all.insert("VIRTUAL_ENV".into(), venv.into());
        }
    }
    all
}
