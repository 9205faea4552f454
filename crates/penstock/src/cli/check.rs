//! `penstock check`: everything that a start would need, without starting.
//!
//! The same checks run at every start and reload; this verb only prints them all.

use std::process::ExitCode;

use penstock_config::{Config, Invocation};

use super::{USAGE, complain, say};

pub(super) fn run(target: Option<String>) -> ExitCode {
    let cwd = match std::env::current_dir() {
        Ok(cwd) => cwd,
        Err(error) => {
            complain(&format!("the current folder: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match resolve(&Invocation {
        target,
        cwd,
        ..Invocation::default()
    }) {
        Ok(config) => {
            let from = config.path.as_ref().map(|path| path.display().to_string());
            let apps = config.apps.len();
            let sites = config.sites.len();
            let name = from.unwrap_or_else(|| "this folder".to_owned());
            say(&format!(
                "{name}: good ({apps} applications, {sites} sites)"
            ));
            ExitCode::SUCCESS
        }
        Err(text) => {
            complain(&text);
            ExitCode::from(USAGE)
        }
    }
}

/// Resolves a configuration and checks what lies outside of its text. May block.
///
/// # Errors
/// All that is wrong, as text, a line each.
pub(crate) fn resolve(invocation: &Invocation) -> Result<Config, String> {
    let config = penstock_config::resolve(invocation)
        .map_err(|report| report.to_string().trim_end().to_owned())?;
    let mut wrong = Vec::new();
    for app in config.apps.values() {
        if let Err(error) = penstock_apps::find_interpreter(app) {
            wrong.push(format!("application `{}`: {error}", app.name));
        }
    }
    if wrong.is_empty() {
        Ok(config)
    } else {
        Err(wrong.join("\n"))
    }
}
