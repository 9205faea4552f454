//! The variables of a program that runs beside an application, in its place: a job, its
//! `release_command`, `penstock run`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use penstock_config::{App, AppKind};

use super::{Surroundings, find_interpreter_in, python};
use crate::executor::workers::rack_env;

/// The variables by which a program finds the interpreter of an application first, as where its
/// environment is activated: `PATH`, and `VIRTUAL_ENV` or `RACK_ENV`. Those that the application
/// sets itself are not among them. *Blocking*: looks files up.
#[must_use]
pub fn program_environment(app: &App, is_development: bool) -> BTreeMap<String, String> {
    program_environment_in(app, is_development, &Surroundings::of_process())
}

pub(super) fn program_environment_in(
    app: &App,
    is_development: bool,
    around: &Surroundings,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    if app.kind == AppKind::Rack
        && let Ok(name) = rack_env(app, is_development).into_string()
    {
        all.insert("RACK_ENV".to_owned(), name);
    }
    let interpreter = match app.kind {
        AppKind::Wsgi | AppKind::Asgi | AppKind::Rack => find_interpreter_in(app, around).ok(),
        AppKind::Command | AppKind::FastCgi | AppKind::Job => {
            let (env, _) = python::find_env(&app.dir, around);
            env.map(|env| env.dir.join("bin/python"))
        }
    };
    let Some(folder) = interpreter.as_deref().and_then(Path::parent) else {
        return all;
    };
    let own = app.env.get("PATH").cloned();
    let path = own.or_else(|| around.text("PATH"));
    let path = path.unwrap_or_else(|| "/usr/bin:/bin".to_owned());
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if !folders.iter().any(|it| it == folder) {
        folders.insert(0, folder.to_owned());
        // A folder with a colon in its name cannot be in it at all.
        let joined = std::env::join_paths(folders).ok();
        if let Some(path) = joined.and_then(|path| path.into_string().ok()) {
            all.insert("PATH".to_owned(), path);
        }
    }
    let env = folder.parent().filter(|it| it.join("pyvenv.cfg").is_file());
    if let Some(text) = env.and_then(Path::to_str) {
        all.insert("VIRTUAL_ENV".to_owned(), text.to_owned());
    }
    all
}
