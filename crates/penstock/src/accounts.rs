//! The user and group that the server runs as, those of its applications, and checks of what they
//! can use.
//!
//! `cli` looks them up before anything is opened; `server` switches to them between opening the
//! sockets and starting the first serving thread.
//!
//! # Invariants
//!
//! - No application code runs before the switch, and the switch cannot be undone.

use std::collections::BTreeMap;
use std::path::Path;

use penstock_config::{App, Config, Server, SiteTls};
use penstock_sys::account::{self, Account, User};
use penstock_sys::cgroup::AppCgroup;
use penstock_sys::net::{SocketAccess, set_socket_access};
use penstock_sys::process::{CommandLine, Privileges};

use crate::tls_service::give_system_folder_to;

/// The account that the server switches to.
#[derive(Debug)]
pub(crate) struct ServerAccount {
    account: Account,
    /// Whether the server must still be able to signal applications' processes of other users.
    pub(crate) keeps_signal_right: bool,
}

/// The account that the server must switch to; `None` if it runs as that user already. May block.
///
/// # Errors
/// The user or group does not exist, or this process cannot switch to it.
pub(crate) fn account_to_switch_to(server: &Server) -> Result<Option<ServerAccount>, String> {
    let Some(server_account) = configured_account(server)? else {
        return Ok(None);
    };
    let (uid, gid) = account::effective_ids();
    if (server_account.account.user.uid, server_account.account.gid) == (uid, gid) {
        return Ok(None);
    }
    if uid != 0 {
        let user_name = &server_account.account.name;
        return Err(format!(
            "server.user: only root can become `{user_name}`, and this is user {uid}, group {gid}"
        ));
    }
    Ok(Some(server_account))
}

/// The configured user and group, if any. May block.
pub(crate) fn configured_account(server: &Server) -> Result<Option<ServerAccount>, String> {
    let account = resolve_account("server", server.user.as_deref(), server.group.as_deref())?;
    Ok(account.map(|account| ServerAccount {
        account,
        keeps_signal_right: false,
    }))
}

/// Looks up the `user` and `group` of a section, if set. May block.
fn resolve_account(
    section: &str,
    named: Option<&str>,
    group: Option<&str>,
) -> Result<Option<Account>, String> {
    let name = match (named, group) {
        (None, None) => return Ok(None),
        (Some(user), Some(group)) => format!("{user}:{group}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
    };
    let user = match named {
        Some(named) => account::find_user(named)
            .map_err(|error| format!("{section}.user: `{named}`: {error}"))?
            .ok_or_else(|| format!("{section}.user: there is no user `{named}`"))?,
        None => User {
            name: None,
            uid: account::effective_ids().0,
            gid: None,
            home: None,
        },
    };
    let gid = match group {
        Some(group) => account::find_group_id(group)
            .map_err(|error| format!("{section}.group: `{group}`: {error}"))?
            .ok_or_else(|| format!("{section}.group: there is no group `{group}`"))?,
        None => user.gid.ok_or_else(|| {
            format!(
                "{section}.user: user {name} has no account entry with a group: set {section}.group"
            )
        })?,
    };
    Ok(Some(Account { name, user, gid }))
}

/// Users that applications have for themselves, by their configured names.
#[derive(Debug, Default)]
pub(crate) struct AppAccounts {
    /// By name; `None` is the server's own user.
    by_name: BTreeMap<String, Option<Account>>,
    /// Users with applications that may run without isolation; `None` is the server's.
    without_isolation: Vec<Option<String>>,
}

impl AppAccounts {
    /// Resolves the users of a configuration, for a server that switches to `server` or keeps its
    /// user. May block.
    ///
    /// # Errors
    /// The user or group does not exist, or this process cannot switch to it.
    pub(crate) fn resolve(config: &Config, server: Option<&ServerAccount>) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        let (uid, gid) = account::effective_ids();
        let own = server.map_or((uid, gid), |it| (it.account.user.uid, it.account.gid));
        let mut unconfined = Vec::new();
        if config.acme.dns_hook.is_some() {
            unconfined.push(None);
        }
        for app in config.programs() {
            let section = app.table_name();
            let found = resolve_account(&section, app.user.as_deref(), app.group.as_deref())?;
            let is_own = (found.as_ref()).is_none_or(|it| (it.user.uid, it.gid) == own);
            if !app.isolation {
                let name = found.as_ref().filter(|_| !is_own).map(|it| it.name.clone());
                unconfined.push(name);
            }
            let Some(account) = found else { continue };
            if !is_own && uid != 0 {
                let user_name = &account.name;
                return Err(format!(
                    "{section}.user: only root can start programs as `{user_name}`, and this is user \
                     {uid}, group {gid}"
                ));
            }
            all.insert(account.name.clone(), (!is_own).then_some(account));
        }
        Ok(Self {
            by_name: all,
            without_isolation: unconfined,
        })
    }

    /// The account of an application; `None` is the server's user.
    ///
    /// # Errors
    /// No application had that user when the server was started.
    pub(crate) fn account_of(&self, app: &App) -> Result<Option<&Account>, String> {
        let Some(user) = &app.user else {
            return Ok(None);
        };
        let name = match &app.group {
            Some(group) => format!("{user}:{group}"),
            None => user.clone(),
        };
        let known = self.by_name.get(&name).map(Option::as_ref);
        known.ok_or_else(|| {
            format!(
                "apps.{}.user: `{name}` was no user of an application when the server was started: \
                 restart the server",
                app.name
            )
        })
    }

    /// The privileges of a launcher that starts programs as these users.
    pub(crate) fn launcher_privileges(
        &self,
        server: Option<&ServerAccount>,
        successor: Option<CommandLine>,
        groups: Vec<AppCgroup>,
    ) -> Privileges {
        Privileges {
            server: server.map(|it| it.account.clone()),
            accounts: self.by_name.values().flatten().cloned().collect(),
            successor: successor
                .map(|command| (command, crate::upgrade_protocol::UPGRADE_FD_VAR.into())),
            unconfined: self.without_isolation.clone(),
            groups,
        }
    }

    /// Whether any application has another user than the server.
    pub(crate) fn has_separate_users(&self) -> bool {
        self.by_name.values().any(Option::is_some)
    }
}

impl ServerAccount {
    /// Environment variables that describe the user.
    pub(crate) fn env_vars(&self) -> Vec<(&'static str, String)> {
        self.account.env_vars()
    }

    /// Gives the user the folder of certificates, if the server keeps some there: as itself it
    /// cannot make it.
    ///
    /// # Errors
    /// The path that could not be given.
    pub(crate) fn give_certificate_folder(&self, config: &Config) -> Result<(), String> {
        let keeps_any = config.sites.iter().any(|site| match site.tls {
            SiteTls::Local => true,
            SiteTls::Auto => config.acme.storage.is_none(),
            SiteTls::Off | SiteTls::Files(_) => false,
        });
        if !keeps_any {
            return Ok(());
        }
        give_system_folder_to(&self.account.user, self.account.gid)
            .map_err(|error| format!("server.user: {error}"))
    }

    /// Switches the user for good, without any check.
    fn switch_user(&self) -> std::io::Result<()> {
        match self.keeps_signal_right {
            true => self.account.switch_to_keeping_cap_kill(),
            false => self.account.switch_to(),
        }
    }

    /// Switches the user for good and checks that it can use the configured paths and `cwd`, the
    /// directory of the start. Unix sockets of this process (`made`) are given to the user.
    ///
    /// # Errors
    /// Why the switch failed, or the path that the user cannot use.
    pub(crate) fn switch_user_and_check<'p>(
        &self,
        config: &Config,
        cwd: &Path,
        made: impl Iterator<Item = &'p Path>,
    ) -> Result<(), String> {
        let user_name = &self.account.name;
        let access = SocketAccess {
            mode: None,
            user: Some(self.account.user.uid),
            group: Some(self.account.gid),
        };
        for path in made {
            set_socket_access(path, access)
                .map_err(|error| format!("{} for `{user_name}`: {error}", path.display()))?;
        }
        self.switch_user()
            .map_err(|error| format!("server.user: cannot become `{user_name}`: {error}"))?;
        log::info!(
            "server: running as {user_name} (uid={} gid={})",
            self.account.user.uid,
            self.account.gid
        );
        self.warn_of_unreadable_files(config, cwd);
        self.check_directories(config)
    }

    /// Warns of files that root could read but the new user cannot: later reads will fail.
    fn warn_of_unreadable_files(&self, config: &Config, cwd: &Path) {
        let user_name = &self.account.name;
        let key_file = config
            .join_target
            .as_ref()
            .and_then(|joins| joins.key_file.as_ref());
        // With users of their own for applications, the next server begins as root again.
        let lost = match self.keeps_signal_right {
            true => "Reloads will fail",
            false => "Reloads and upgrades will fail",
        };
        for path in config.sources.files.iter().chain(key_file) {
            if let Err(error) = account::check_file_readable(path) {
                let path = path.display();
                log::warn!("server: user {user_name} cannot read {path}: {error}. {lost}");
            }
        }
        if let Err(error) = account::check_dir_enterable(cwd) {
            let cwd = cwd.display();
            log::warn!(
                "server: user {user_name} cannot enter {cwd}: {error}. Upgrades will fail: start the server in \
                     another directory"
            );
        }
    }

    fn check_directories(&self, config: &Config) -> Result<(), String> {
        for app in config.programs().filter(|app| app.user.is_none()) {
            account::check_dir_enterable(&app.dir).map_err(|error| {
                let (user_name, dir) = (&self.account.name, app.dir.display());
                format!(
                    "{}: `{user_name}` cannot enter {dir}: {error}",
                    app.table_name()
                )
            })?;
        }
        let caches = config.caches.iter();
        let caches = caches.map(|(name, cache)| (format!("caches.{name}"), cache.path.as_deref()));
        let temporary = ("limits.temp_dir".to_owned(), Some(&*config.limits.temp_dir));
        for (key, path) in caches.chain([temporary]) {
            let Some(path) = path else { continue };
            account::check_dir_writable(nearest_existing_dir(path)).map_err(|error| {
                format!(
                    "{key}: `{}` cannot write {}: {error}",
                    self.account.name,
                    path.display()
                )
            })?;
        }
        Ok(())
    }
}

/// The nearest existing directory; missing ones are created when needed.
fn nearest_existing_dir(path: &Path) -> &Path {
    let there = path.ancestors().find(|folder| folder.exists());
    there.unwrap_or(path)
}
