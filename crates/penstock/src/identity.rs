//! Whom the server runs as: the user and the group of the configuration, and what these must be able to use.
//!
//! Looked up by `cli` before anything is opened, assumed by `server` between opening the sockets and the
//! first thread that serves. What must stay true: nothing of an application runs before, and there is no way
//! back.

use std::path::Path;

use penstock_config::{Config, Server};
use penstock_sys::identity::{self, User};

/// A user to become.
#[derive(Debug)]
pub(crate) struct Identity {
    user: User,
    gid: u32,
    /// As the configuration has it.
    shown: String,
}

/// Whom the configuration wants the server to be; `None` is whoever it is already. May block.
///
/// # Errors
/// There is no such user or group, or this process cannot become that one.
pub(crate) fn wanted(server: &Server) -> Result<Option<Identity>, String> {
    let Some(identity) = found(server)? else {
        return Ok(None);
    };
    let (uid, gid) = identity::current();
    if (identity.user.uid, identity.gid) == (uid, gid) {
        return Ok(None);
    }
    if uid != 0 {
        let shown = &identity.shown;
        return Err(format!(
            "server.user: only root can become `{shown}`, and this is user {uid}, group {gid}"
        ));
    }
    Ok(Some(identity))
}

/// The user and group of the configuration, if it names any. May block.
///
/// # Errors
/// There is no such user or group.
pub(crate) fn found(server: &Server) -> Result<Option<Identity>, String> {
    let (named, group) = (server.user.as_deref(), server.group.as_deref());
    let shown = match (named, group) {
        (None, None) => return Ok(None),
        (Some(user), Some(group)) => format!("{user}:{group}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
    };
    let user = match named {
        Some(named) => identity::user(named)
            .map_err(|error| format!("server.user: `{named}`: {error}"))?
            .ok_or_else(|| format!("server.user: there is no user `{named}`"))?,
        None => User {
            name: None,
            uid: identity::current().0,
            gid: None,
            home: None,
        },
    };
    let gid = match group {
        Some(group) => identity::group(group)
            .map_err(|error| format!("server.group: `{group}`: {error}"))?
            .ok_or_else(|| format!("server.group: there is no group `{group}`"))?,
        None => user.gid.ok_or_else(|| {
            format!("server.user: user {shown} has no entry that says its group: set server.group")
        })?,
    };
    Ok(Some(Identity { user, gid, shown }))
}

impl Identity {
    /// Variables that programs look at to find who they are.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let (name, home) = (self.user.name.clone(), self.user.home.clone());
        let user = name
            .iter()
            .flat_map(|name| [("USER", name), ("LOGNAME", name)]);
        let home = home.iter().map(|home| ("HOME", home));
        user.chain(home)
            .map(|(key, value)| (key, value.clone()))
            .collect()
    }

    /// Becomes it, for good, without a look at anything.
    ///
    /// # Errors
    /// What the calls say.
    pub(crate) fn become_it(&self) -> std::io::Result<()> {
        identity::become_user(&self.user, self.gid)
    }

    /// Becomes it, for good, and looks whether it can use what the configuration names, and `cwd`, where the
    /// server was started. Unix sockets that this process has `made` go with it.
    ///
    /// # Errors
    /// Why it cannot be, or what it may not use.
    pub(crate) fn assume<'p>(
        &self,
        config: &Config,
        cwd: &Path,
        made: impl Iterator<Item = &'p Path>,
    ) -> Result<(), String> {
        let shown = &self.shown;
        for path in made {
            let given = identity::give_socket(path, self.user.uid, self.gid);
            given.map_err(|error| format!("{} for `{shown}`: {error}", path.display()))?;
        }
        self.become_it()
            .map_err(|error| format!("server.user: cannot become `{shown}`: {error}"))?;
        log::info!(
            "from now on {shown} (user {}, group {})",
            self.user.uid,
            self.gid
        );
        self.warn_of_later(config, cwd);
        self.check_folders(config)
    }

    /// What works now and will not when it is asked for: the configuration was read by root.
    fn warn_of_later(&self, config: &Config, cwd: &Path) {
        let shown = &self.shown;
        let key_file = config
            .joins
            .as_ref()
            .and_then(|joins| joins.key_file.as_ref());
        for path in config.path.iter().chain(key_file) {
            if let Err(error) = identity::may_read(path) {
                let path = path.display();
                log::warn!("`{shown}` cannot read {path}: {error}; no reload or upgrade will work");
            }
        }
        if let Err(error) = identity::may_enter(cwd) {
            let cwd = cwd.display();
            log::warn!(
                "`{shown}` cannot enter {cwd}: {error}; no upgrade will work: start elsewhere"
            );
        }
    }

    fn check_folders(&self, config: &Config) -> Result<(), String> {
        for (name, app) in &config.apps {
            identity::may_enter(&app.dir).map_err(|error| {
                let (shown, dir) = (&self.shown, app.dir.display());
                format!("apps.{name}: `{shown}` cannot enter {dir}: {error}")
            })?;
        }
        let caches = config.caches.iter();
        let caches = caches.map(|(name, cache)| (format!("caches.{name}"), cache.path.as_deref()));
        let temporary = ("limits.temp_dir".to_owned(), Some(&*config.limits.temp_dir));
        for (key, path) in caches.chain([temporary]) {
            let Some(path) = path else { continue };
            identity::may_write(existing(path)).map_err(|error| {
                format!(
                    "{key}: `{}` cannot write {}: {error}",
                    self.shown,
                    path.display()
                )
            })?;
        }
        Ok(())
    }
}

/// The nearest folder that is there: the others are made when they are needed.
fn existing(path: &Path) -> &Path {
    let there = path.ancestors().find(|folder| folder.exists());
    there.unwrap_or(path)
}
