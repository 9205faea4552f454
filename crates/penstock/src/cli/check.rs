//! `penstock check`: everything that a start would need, without starting.
//!
//! The same checks run at every start and reload; this verb only prints them all.

use std::process::ExitCode;

use penstock_config::{Config, Invocation};

use super::{USAGE, complain, count, say};
use crate::{held, identity};

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
            let name = from.unwrap_or_else(|| "this folder".to_owned());
            for warning in held::warnings(&config) {
                complain(&warning);
            }
            say(&format!("{name}: good ({})", contents(&config)));
            ExitCode::SUCCESS
        }
        Err(text) => {
            complain(&text);
            ExitCode::from(USAGE)
        }
    }
}

/// What a configuration has, in numbers: upstreams and streams where there are any.
fn contents(config: &Config) -> String {
    let all = [
        (config.apps.len(), "application", true),
        (config.upstreams.len(), "upstream", false),
        (config.sites.len(), "site", true),
        (config.streams.len(), "stream", false),
    ];
    let told = all
        .iter()
        .filter(|(number, _, is_always)| *is_always || *number > 0);
    let told: Vec<String> = told
        .map(|(number, thing, _)| count(*number as u64, thing))
        .collect();
    told.join(", ")
}

/// Resolves a configuration and checks what lies outside of its text. May block.
///
/// # Errors
/// All that is wrong, as text, a line each.
pub(crate) fn resolve(invocation: &Invocation) -> Result<Config, String> {
    let config = penstock_config::resolve(invocation)
        .map_err(|report| report.to_string().trim_end().to_owned())?;
    let mut wrong = Vec::new();
    wrong.extend(identity::found(&config.server).err());
    wrong.extend(held::check_keys(&config));
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
