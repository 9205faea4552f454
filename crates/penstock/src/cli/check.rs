//! `penstock check`: everything that a start would need, without starting.
//!
//! [`resolve`] runs at every start and reload too; what only this verb does is in `preflight`.

use std::path::Path;
use std::process::ExitCode;

use penstock_config::{Config, Invocation};

use super::{CheckArguments, USAGE, complain, count, say};
use crate::preflight::Findings;
use crate::{boundary, bounds, control, held, identity, temporary};

pub(super) fn run(arguments: &CheckArguments) -> ExitCode {
    // It loads the code of applications.
    if let Err(error) = boundary::protect_process() {
        complain(&error);
        return ExitCode::FAILURE;
    }
    let cwd = match std::env::current_dir() {
        Ok(cwd) => cwd,
        Err(error) => {
            complain(&format!("the current folder: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let config = match resolve(&Invocation {
        target: arguments.target.clone(),
        config: arguments.config.clone(),
        cwd: cwd.clone(),
        ..Invocation::default()
    }) {
        Ok(config) => config,
        Err(text) => {
            complain(&text);
            return ExitCode::from(USAGE);
        }
    };
    let mut findings = Findings {
        warnings: [held::warnings(&config), control::warnings(&config)].concat(),
        ..Findings::default()
    };
    if !arguments.config_only
        && let Err(error) = check_machine(&mut findings, &config, &cwd)
    {
        complain(&error);
        return ExitCode::FAILURE;
    }
    for text in &findings.warnings {
        complain(&format!("warning: {text}"));
    }
    for text in &findings.errors {
        complain(text);
    }
    if !findings.errors.is_empty() {
        return ExitCode::from(USAGE);
    }
    let from = config.path.as_ref().map(|path| path.display().to_string());
    let name = from.unwrap_or_else(|| "this folder".to_owned());
    say(&format!("{name}: good ({})", contents(&config)));
    ExitCode::SUCCESS
}

/// Everything that a start would need from this machine; what needs root comes first.
fn check_machine(findings: &mut Findings, config: &Config, cwd: &Path) -> std::io::Result<()> {
    findings.check_addresses(config);
    findings.check_token(config);
    findings.check_descriptors(config);
    findings.warnings.extend(temporary::warning(&config.limits));
    findings.check_names(config)?;
    findings.check_links(config);
    findings.warnings.extend(bounds::probe(config));
    let launcher = findings.start_launcher(config)?;
    findings.check_user(config, cwd);
    findings.warnings.extend(boundary::warnings(config));
    // As whom it will run.
    findings.check_applications(config, launcher.as_ref())
}

/// What a configuration has, in numbers: upstreams and streams where there are any.
fn contents(config: &Config) -> String {
    let all = [
        (config.apps.len(), "application", true),
        (config.upstreams.len(), "upstream", false),
        (config.sites.len(), "site", true),
        (config.tcp.len(), "stream", false),
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
    let mut config = penstock_config::resolve(invocation)
        .map_err(|report| report.to_string().trim_end().to_owned())?;
    temporary::set_default(&mut config.limits);
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
