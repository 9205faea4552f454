//! The configuration of `penstock work`: of all that a file says, one application, for a front end
//! elsewhere.
//!
//! Called by `resolve`.
//!
//! # Invariants
//! - Nothing listens that the command line does not ask for, and what the front end has judged
//!   already (how long a connection may wait, how large a body may be) is not judged again here.

use std::path::Path;
use std::time::Duration;

use crate::findings::make_absolute;
use crate::model::{Acme, AppKind, Config, Hub, JoinTarget, Server, Tls};
use crate::values::MAX_UNIX_PATH_BYTES;
use crate::{ConfigErrors, Invocation, join, section, site};

/// What the command line of `penstock work` says besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkOptions {
    /// Where a front end listens for those that join: `HOST:PORT` or `unix:PATH`.
    pub front_end: String,
    /// The upstream there; none is the application's name.
    pub upstream: Option<String>,
    /// The file with the key; none is the configuration's own: `join_key` of the upstream, or the
    /// key of `server.join`.
    pub key_file: Option<std::path::PathBuf>,
    /// Whether connections have no TLS. Without it they have, unless `server.join` of the
    /// configuration gives the key and says `tls = false`.
    pub plain: bool,
}

/// How long a connection to a front end may wait for a request, or for more of one: that one
/// closes it when it is not wanted, or its client is too slow.
const UNLIMITED_IDLE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// More than a front end can be told to let through, and what it adds.
const MAX_HEADERS: usize = 20_000;
const MAX_HEAD_BYTES: usize = 16 << 20;

/// Whether a configuration has an application of that name.
pub(crate) fn has_app(config: &Config, name: &str) -> bool {
    config.apps.contains_key(name)
}

/// Leaves of a configuration what serves one application.
///
/// # Errors
/// No such application, or no key.
pub(crate) fn keep_only_app(
    config: Config,
    name: Option<&str>,
    work: &WorkOptions,
    invocation: &Invocation,
) -> Result<Config, ConfigErrors> {
    let refuse = |problem: String| Err(ConfigErrors::single("work", problem));
    let apps = config.apps.values().filter(|app| app.kind != AppKind::Job);
    let names: Vec<String> = apps.map(|app| app.name.clone()).collect();
    let name = match (name, names.as_slice()) {
        (Some(name), _) if has_app(&config, name) => name.to_owned(),
        (None, [only]) => only.clone(),
        (_, []) => return refuse("say which application: there is none here".to_owned()),
        (_, names) => return refuse(format!("say which application: {}", names.join(", "))),
    };
    let Some(address) = parse_join_address(&work.front_end, &invocation.cwd) else {
        return refuse(format!(
            "--join cannot be {:?}: expected HOST:PORT, such as \"front.example:7000\", or \
             unix:PATH",
            work.front_end
        ));
    };
    let upstream = work.upstream.clone().unwrap_or_else(|| name.clone());
    if !section::is_valid_name(&upstream) {
        return refuse(format!(
            "--upstream cannot be {upstream:?}: expected the name of an upstream"
        ));
    }
    let (key, tls) = match (&work.key_file, &config.server.join) {
        (Some(file), _) => {
            let key = read_key_file(&make_absolute(&invocation.cwd, file))?;
            (key.into(), true)
        }
        (None, Some(join)) => {
            let own = config.upstreams.get(&upstream);
            let own = own.and_then(|upstream| upstream.join_key.as_ref());
            (own.unwrap_or(&join.key).clone(), join.tls)
        }
        (None, None) => {
            let problem =
                "there is no key: say --key-file, or `join` in [server] of the configuration";
            return refuse(problem.to_owned());
        }
    };
    let mut config = config;
    config.apps.retain(|other, _| *other == name);
    config.sites = config
        .apps
        .values()
        .map(site::default_site_for_app)
        .collect();
    config.tcp.clear();
    config.upstreams.clear();
    config.caches.clear();
    config.hub = Hub::default();
    config.tls = Tls::default();
    config.acme = Acme::default();
    config.server = Server {
        listen: Vec::new(),
        reuse_port: false,
        admin: config.server.admin.filter(|_| invocation.admin.is_some()),
        redis: None,
        trusted_proxies: None,
        client_ip_header: None,
        join: None,
        ..config.server
    };
    let limits = &mut config.limits;
    limits.idle_timeout = UNLIMITED_IDLE;
    limits.body_idle_timeout = UNLIMITED_IDLE;
    limits.min_body_rate = 0;
    limits.min_busy_rate = 0;
    limits.max_body_size = u64::MAX >> 1;
    limits.max_headers = MAX_HEADERS;
    limits.max_header_size = MAX_HEAD_BYTES;
    limits.max_uri_size = MAX_HEAD_BYTES;
    config.join_target = Some(JoinTarget {
        address,
        upstream,
        key,
        key_file: work
            .key_file
            .as_ref()
            .map(|file| make_absolute(&invocation.cwd, file)),
        tls: tls && !work.plain,
    });
    Ok(config)
}

/// `HOST:PORT`, or `unix:` and a path, seen from `cwd`: the server may work in another directory.
fn parse_join_address(text: &str, cwd: &Path) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let is_path = !path.is_empty() && !path.contains('\0');
        let path = make_absolute(cwd, Path::new(path));
        let fits = is_path && path.as_os_str().len() <= MAX_UNIX_PATH_BYTES;
        return Some(format!("unix:{}", path.to_str().filter(|_| fits)?));
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == '/';
    let is_host = !host.is_empty() && !host.contains(is_odd);
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    (is_host && is_port).then(|| text.to_owned())
}

#[allow(
    clippy::disallowed_methods,
    reason = "a configuration is resolved in a pool"
)]
fn read_key_file(file: &Path) -> Result<String, ConfigErrors> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| ConfigErrors::unreadable(file, error.kind()))?;
    let key = text.trim_end_matches(['\r', '\n']);
    match join::is_join_key(key) {
        true => Ok(key.to_owned()),
        false => {
            let problem = section::invalid_secret_message("key", join::JOIN_KEY_EXPECTED);
            Err(ConfigErrors::single(file, problem))
        }
    }
}

#[cfg(test)]
mod tests;
