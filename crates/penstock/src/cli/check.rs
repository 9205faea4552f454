//! `penstock check`: checks everything that a start needs, without starting.
//!
//! [`resolve_and_validate`] runs at every start and reload too; the checks of this verb alone are
//! in `preflight`.

use std::path::Path;
use std::process::ExitCode;

use penstock_config::{App, AppKind, Config, Invocation};

use super::{
    CheckArguments, CliError, USAGE_EXIT_CODE, foreign_file, pluralize, print_error, start_report,
};
use crate::django_files::DjangoFiles;
use crate::preflight::PreflightReport;
use crate::{
    accounts, admission, app_resource_limits, control, hardening, hub_service, jobs, route_hints,
    temp_limit, upstream_tls, wiring, work,
};

pub(super) fn run(arguments: &CheckArguments) -> Result<String, CliError> {
    // The check loads applications' code.
    hardening::harden_process()?;
    let cwd = std::env::current_dir();
    let cwd = cwd.map_err(|error| format!("the current directory: {error}"))?;
    let invocation = Invocation {
        target: arguments.target.clone(),
        config: arguments.config.clone(),
        ignores_env_file: arguments.no_env_file,
        cwd,
        ..Invocation::default()
    };
    let mut config = resolve_and_validate(&invocation).map_err(CliError::Usage)?;
    if !arguments.config_only {
        DjangoFiles::ask(&config, invocation.development).apply(&mut config);
    }
    let mut findings = PreflightReport {
        warnings: [
            hub_service::hub_warnings(&config),
            wiring::rate_limit_warnings(&config),
            control::exposure_warnings(&config),
            upstream_tls::warnings(&config),
            work::plaintext_warnings(&config),
        ]
        .concat(),
        ..PreflightReport::default()
    };
    if !arguments.config_only {
        findings.warnings.extend(route_hints::warnings(&config));
        let checked = check_machine(&mut findings, &config, &invocation.cwd);
        checked.map_err(|error| error.to_string())?;
    }
    for text in &findings.warnings {
        print_error(&format!("warning: {text}"));
    }
    for text in &findings.errors {
        print_error(text);
    }
    if !findings.errors.is_empty() {
        return Err(CliError::Reported(ExitCode::from(USAGE_EXIT_CODE)));
    }
    let from = config.path.as_ref().map(|path| path.display().to_string());
    let name = from.unwrap_or_else(|| "this folder".to_owned());
    let mut lines = config.start_notes.clone();
    lines.extend(findings.notes);
    lines.push(format!("{name}: good ({})", describe_contents(&config)));
    Ok(lines.join("\n"))
}

/// Checks everything that a start needs from this machine; checks that need root come first.
fn check_machine(
    findings: &mut PreflightReport,
    config: &Config,
    cwd: &Path,
) -> std::io::Result<()> {
    findings.check_addresses(config, cwd);
    findings.check_token(config);
    findings.check_certificates(config);
    findings.check_descriptors(config);
    findings
        .warnings
        .extend(temp_limit::tmpfs_warning(&config.limits));
    findings.check_host_names(config)?;
    findings.check_symlinks(config);
    findings
        .warnings
        .extend(app_resource_limits::unenforceable_limits(config));
    let launcher = findings.start_launcher(config)?;
    findings.check_user(config, cwd);
    findings.warnings.extend(hardening::warnings(config));
    // As the user that will run them.
    findings.check_applications(config, launcher.as_ref())
}

/// Counts the components of a configuration: upstreams and TCP listeners only if there are any.
fn describe_contents(config: &Config) -> String {
    let is_job = |app: &&App| app.kind == AppKind::Job;
    let jobs = config.programs().filter(is_job).count();
    let all = [
        (config.programs().count() - jobs, "application", true),
        (jobs, "job", false),
        (config.upstreams.len(), "upstream", false),
        (config.sites.len(), "site", true),
        (config.tcp.len(), "stream", false),
    ];
    let parts = all
        .iter()
        .filter(|(number, _, is_always)| *is_always || *number > 0);
    let parts: Vec<String> = parts
        .map(|(number, thing, _)| pluralize(*number as u64, thing))
        .collect();
    parts.join(", ")
}

/// Resolves a configuration and checks the files and keys that it names. May block.
///
/// # Errors
/// All errors as text, a line each.
pub(crate) fn resolve_and_validate(invocation: &Invocation) -> Result<Config, String> {
    foreign_file::refuse(invocation)?;
    let mut config = penstock_config::resolve_config(invocation)
        .map_err(|report| report.to_string().trim_end().to_owned())?;
    temp_limit::set_default_max_temp_size(&mut config.limits);
    jobs::add_environments(&mut config, invocation.development);
    let mut wrong = Vec::new();
    wrong.extend(accounts::configured_account(&config.server).err());
    wrong.extend(hub_service::validate_signing_keys(&config));
    wrong.extend(admission::validate_token_keys(&config));
    wrong.extend(admission::validate_passwords(&config));
    wrong.extend(upstream_tls::load(&config).err());
    let redis_ca = config.server.redis_ca.as_deref();
    wrong.extend(redis_ca.and_then(|path| hub_service::read_authorities(path).err()));
    for app in config.programs() {
        if let Err(error) = penstock_apps::find_interpreter(app) {
            let what = match app.kind {
                AppKind::Job => "job",
                _ => "application",
            };
            wrong.push(format!("{what} `{}`: {error}", app.name));
        }
    }
    if wrong.is_empty() {
        start_report::add_serving_notes(&mut config, &invocation.cwd, invocation.development);
        Ok(config)
    } else {
        Err(wrong.join("\n"))
    }
}
