//! `penstock run`: a command in the place of an application, as its processes run: folder,
//! variables, interpreter first in `PATH`.
//!
//! A Python file of the folder that is no program by itself, such as `manage.py`, is run by the
//! interpreter of the application. The command takes the place of this process, so that it has the terminal and its status is the
//! status of the verb.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use penstock_config::{App, AppKind, Config, Invocation};
use penstock_sys::account;

use super::{CliError, RunArguments};
use crate::accounts::AppAccounts;
use crate::jobs;

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
    let mut config =
        config.map_err(|report| CliError::Usage(report.to_string().trim_end().into()))?;
    jobs::add_environments(&mut config, false);
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
    let mut error = command.exec();
    if let Some(script) = python_script(app, Path::new(program), &error) {
        let interpreter = penstock_apps::find_interpreter(app);
        let interpreter = interpreter.map_err(|error| CliError::Failed(format!("run: {error}")))?;
        let mut command = Command::new(interpreter);
        command
            .arg(script)
            .args(rest)
            .current_dir(&app.dir)
            .envs(variables.iter());
        error = command.exec();
    }
    Err(CliError::Failed(format!(
        "run: {}: {error} (looked up in the PATH of application `{}`)",
        Path::new(program).display(),
        app.name
    )))
}

/// The Python file of the application's folder that a command names which is no program by itself,
/// such as `manage.py`.
fn python_script<'p>(app: &App, program: &'p Path, error: &io::Error) -> Option<&'p Path> {
    let is_no_program = matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    );
    let is_python = program.extension().is_some_and(|ending| ending == "py");
    let is_script = is_no_program && is_python && app.dir.join(program).is_file();
    (is_script && matches!(app.kind, AppKind::Wsgi | AppKind::Asgi)).then_some(program)
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
fn environment(app: &App) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("PENSTOCK_APP".to_owned(), app.name.clone())]);
    let own = app.env.iter();
    all.extend(own.map(|(name, value)| (name.clone(), value.clone())));
    all.extend(penstock_apps::program_environment(app, false));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_file_of_the_folder_has_the_interpreter() {
        let folder = std::env::temp_dir().join(format!("penstock-run-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        for file in ["manage.py", "tool.rb", "bin/x.py"] {
            let made = std::fs::File::create(folder.join(file));
            made.unwrap();
        }
        let app = |kind| App::new("shop", folder.clone(), kind, "");
        let absent = || io::Error::from(io::ErrorKind::NotFound);
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        for (kind, program, error, expected) in [
            (AppKind::Wsgi, "manage.py", absent(), true),
            (AppKind::Asgi, "./manage.py", denied(), true),
            (AppKind::Wsgi, "bin/x.py", absent(), true),
            (AppKind::Wsgi, "other.py", absent(), false),
            (AppKind::Wsgi, "tool.rb", absent(), false),
            (AppKind::Rack, "manage.py", absent(), false),
            (AppKind::Wsgi, "manage.py", io::Error::other("x"), false),
        ] {
            let found = python_script(&app(kind), Path::new(program), &error);
            assert_eq!(found.is_some(), expected, "{kind:?} {program} {error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
