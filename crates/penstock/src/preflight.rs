//! Checks what a start needs from the machine besides a valid configuration: addresses, host names,
//! rights of `server.user`, descriptors, code that loads.
//!
//! Used by `penstock check` after the configuration was read.
//!
//! # Invariants
//!
//! - Nothing is served, created or removed, and a running server is not disturbed: an address is
//!   bound without listening, and only when no other process has it. Control sockets of killed
//!   servers are removed, as by every command.

mod addresses;

use std::path::Path;
use std::{io, iter};

use penstock_config::{App, AppKind, Config, Limits, ServerAddr, SiteTls};
use penstock_edge::DescriptorBudget;
use penstock_runtime::{loops, start_tokio};
use penstock_sys::process::Launcher;
use penstock_sys::{daemon, process};

pub(crate) use self::addresses::{explain_listen_error, suggest_other_address};
use crate::accounts::{self, AppAccounts};
use crate::admin_token;
use crate::cli::RunningServer;
use crate::tls_service::TlsService;

#[derive(Debug, Default)]
pub(crate) struct PreflightReport {
    /// Reasons for a start to fail, a line each.
    pub(crate) errors: Vec<String>,
    /// Warnings for the operator, a line each.
    pub(crate) warnings: Vec<String>,
    /// What is fine although it looks wrong, a line each.
    pub(crate) notes: Vec<String>,
    /// The servers that run, once an address was in use.
    pub(crate) running: Option<Vec<RunningServer>>,
}

/// The expected number of clients, if none is configured.
const EXPECTED_MIN_CONNECTIONS: usize = 1024;

impl PreflightReport {
    /// Reads the token for changes over TCP as the start does: before the switch to another user.
    pub(crate) fn check_token(&mut self, config: &Config) {
        let read = admin_token::load_admin_token(config.server.admin_token.as_deref(), None);
        self.errors.extend(read.err());
    }

    /// Reads the certificates of all sites, as a start does. The local authority is left to the start,
    /// which may have to make it.
    pub(crate) fn check_certificates(&mut self, config: &Config) {
        let mut config = config.clone();
        config.sites.retain(|site| site.tls != SiteTls::Local);
        match TlsService::new().prepare(&config) {
            Ok(prepared) => {
                for problem in prepared.into_iter().flat_map(|prepared| prepared.problems) {
                    let findings = match problem.is_error {
                        true => &mut self.errors,
                        false => &mut self.warnings,
                    };
                    findings.push(problem.to_string());
                }
            }
            Err(errors) => self.errors.extend(errors.lines().map(str::to_owned)),
        }
    }

    /// Looks up the host names of upstreams. Blocks, at most a few seconds per name.
    pub(crate) fn check_host_names(&mut self, config: &Config) -> io::Result<()> {
        let servers = config.upstreams.iter().flat_map(|(name, upstream)| {
            let servers = upstream.servers.iter();
            servers.map(move |server| (name, &server.address))
        });
        let is_name =
            |address: &ServerAddr| matches!(address, ServerAddr::Name { .. } | ServerAddr::Srv(_));
        let names: Vec<_> = servers.filter(|(_, address)| is_name(address)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let tokio = start_tokio()?;
        let _entered = tokio.enter();
        for (upstream, address) in names {
            if let Err(error) = loops::block_on(penstock_proxy::count_addresses(address))? {
                let text = format!("upstreams.{upstream}.servers: {address}: {error}");
                self.errors.push(text);
            }
        }
        Ok(())
    }

    /// Switches to `server.user`, if this is root, and checks that it can use the configured paths.
    /// The switch cannot be undone: checks that need root come before. Blocks.
    pub(crate) fn check_user(&mut self, config: &Config, cwd: &Path) {
        let account = match accounts::account_to_switch_to(&config.server) {
            Ok(Some(account)) => account,
            Ok(None) => return,
            Err(error) => return self.warnings.push(format!("{error}: not checked")),
        };
        let variables = daemon::set_env_vars(&account.env_vars());
        let variables = variables.map_err(|error| format!("the environment: {error}"));
        let assumed =
            variables.and_then(|()| account.switch_user_and_check(config, cwd, iter::empty()));
        self.errors.extend(assumed.err());
    }

    /// Starts the launcher that runs programs as applications' own users, if there are any; before
    /// this process switches to the server's user.
    pub(crate) fn start_launcher(
        &mut self,
        config: &Config,
    ) -> io::Result<Option<(Launcher, AppAccounts)>> {
        let server = accounts::configured_account(&config.server).ok().flatten();
        let accounts = match AppAccounts::resolve(config, server.as_ref()) {
            Ok(accounts) if accounts.has_separate_users() => accounts,
            Ok(_) => return Ok(None),
            Err(error) if penstock_sys::account::effective_ids().0 != 0 => {
                self.warnings.push(format!("{error}: not checked"));
                return Ok(None);
            }
            Err(error) => {
                self.errors.push(error);
                return Ok(None);
            }
        };
        // Without cgroups: the service's own bounds apply while code is loaded.
        let launcher = Launcher::start(
            &accounts.launcher_privileges(server.as_ref(), None, Vec::new()),
            || Ok(()),
        )?;
        Ok(Some((launcher, accounts)))
    }

    /// Finds symbolic links in served directories that are not followed: their targets get 404
    /// although they are plainly there.
    pub(crate) fn check_symlinks(&mut self, config: &Config) {
        let routes = config.sites.iter().flat_map(|site| &site.routes);
        let mut folders: Vec<_> = routes.filter_map(|route| route.files.as_ref()).collect();
        folders.sort_by(|one, other| one.root.cmp(&other.root));
        folders.dedup_by(|one, other| one.root == other.root && one.symlinks == other.symlinks);
        for files in folders {
            // An unreadable directory is no link; access is checked elsewhere.
            for link in penstock_files::find_unfollowed_links(files).unwrap_or_default() {
                let text = penstock_files::explain_unfollowed_link(&files.root, &link);
                self.warnings.push(format!("404 for {text}"));
            }
        }
    }

    /// Loads the code of each application in a process that serves nothing and ends at once.
    /// Blocks, at most the application's `boot_timeout` for each.
    pub(crate) fn check_applications(
        &mut self,
        config: &Config,
        launcher: Option<&(Launcher, AppAccounts)>,
    ) -> io::Result<()> {
        let is_program =
            |app: &&App| matches!(app.kind, AppKind::Command | AppKind::FastCgi | AppKind::Job);
        for app in config.apps.values().filter(|app| !is_program(app)) {
            let account = match launcher
                .map(|(_, accounts)| accounts.account_of(app))
                .transpose()
            {
                Ok(account) => account.flatten(),
                Err(error) => {
                    self.errors.push(error);
                    continue;
                }
            };
            let launcher = launcher.map(|(launcher, _)| launcher);
            if let Err(report) =
                loops::block_on(penstock_apps::check_boot(app, launcher.zip(account)))?
            {
                let report = report.trim_end();
                let text = format!("apps.{}: the code does not load\n{report}", app.name);
                self.errors.push(text);
            }
        }
        Ok(())
    }

    /// Compares `limits.connections` with the descriptors that this process may open. The
    /// default, which most systems cannot reach, is compared only when there are very few.
    pub(crate) fn check_descriptors(&mut self, config: &Config) {
        let Some(allowed) = config
            .server
            .max_open_files
            .or_else(process::max_open_files)
        else {
            return;
        };
        let budget = DescriptorBudget::new(Some(allowed));
        let wanted = match config.limits.max_connections {
            default if default == Limits::default().max_connections => EXPECTED_MIN_CONNECTIONS,
            wanted => wanted,
        };
        if let Some(most) = budget.max_connections().filter(|most| *most < wanted) {
            self.warnings.push(format!(
                "limits.connections: {} clients, but this process may open {allowed} \
                 files and connections, and keeps {} of them for servers, workers and files: \
                 {most} clients at most. Raise the limit (LimitNOFILE= in systemd, `ulimit -Hn`, \
                 server.max_open_files) or lower limits.connections",
                config.limits.max_connections,
                budget.reserved(),
            ));
        }
    }
}
