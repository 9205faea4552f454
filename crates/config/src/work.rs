//! The configuration of `penstock work`: of all that a file says, one application, for a front end elsewhere.
//!
//! Called by `resolve`. What must stay true: nothing listens that the command line does not ask for, and what the front end
//! has judged already (how long a connection may wait, how large a body may be) is not judged again here.

use std::path::Path;
use std::time::Duration;

use crate::error::Problem;
use crate::model::{Config, Hub, Joins, Server};
use crate::place::absolute;
use crate::values::UNIX_PATH_BYTES;
use crate::{Invocation, Report, join, section, site};

/// What the command line of `penstock work` says besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Where a front end listens for those that join: `HOST:PORT` or `unix:PATH`.
    pub join: String,
    /// The upstream there; none is the application's name.
    pub upstream: Option<String>,
    /// The file with the key; none is the configuration's own: `join_key` of the upstream, or the key
    /// of `server.join`.
    pub key_file: Option<std::path::PathBuf>,
}

/// How long a connection to a front end may wait for a request, or for more of one: that one closes it when it is not wanted,
/// or its client is too slow.
const IDLE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// More than a front end can be told to let through, and what it adds.
const HEADERS: usize = 20_000;
const HEAD_BYTES: usize = 16 << 20;

/// Whether a configuration has an application of that name.
pub(crate) fn has(config: &Config, name: &str) -> bool {
    config.apps.contains_key(name)
}

/// Leaves of a configuration what serves one application.
///
/// # Errors
/// No such application, or no key.
pub(crate) fn reduce(
    config: Config,
    name: Option<&str>,
    work: &Work,
    invocation: &Invocation,
) -> Result<Config, Report> {
    let refuse = |what| Err(Report::one("work", what));
    let names: Vec<String> = config.apps.keys().cloned().collect();
    let name = match (name, names.as_slice()) {
        (Some(name), _) if has(&config, name) => name.to_owned(),
        (None, [only]) => only.clone(),
        _ => return refuse(Problem::WorkForWhom(names)),
    };
    let Some(address) = address(&work.join, &invocation.cwd) else {
        return refuse(Problem::BadJoin(work.join.clone()));
    };
    let upstream = work.upstream.clone().unwrap_or_else(|| name.clone());
    if !section::is_name(&upstream) {
        return refuse(Problem::BadUpstreamName(upstream));
    }
    let key = match (&work.key_file, &config.server.join) {
        (Some(file), _) => read_key(&absolute(&invocation.cwd, file))?.into(),
        (None, Some(join)) => {
            let own = config.upstreams.get(&upstream);
            let own = own.and_then(|upstream| upstream.join_key.as_ref());
            own.unwrap_or(&join.key).clone()
        }
        (None, None) => return refuse(Problem::NoJoinKey),
    };
    let mut config = config;
    config.apps.retain(|other, _| *other == name);
    config.sites = config.apps.values().map(site::of_app).collect();
    config.streams.clear();
    config.upstreams.clear();
    config.caches.clear();
    config.hub = Hub::default();
    config.server = Server {
        listen: Vec::new(),
        proxy_protocol: Vec::new(),
        reuse_port: false,
        admin: config.server.admin.filter(|_| invocation.admin.is_some()),
        redis: None,
        trusted_proxies: None,
        client_address: None,
        join: None,
        ..config.server
    };
    let limits = &mut config.limits;
    limits.idle_timeout = IDLE;
    limits.body_stall = IDLE;
    limits.body_rate_min = 0;
    limits.min_busy_rate = 0;
    limits.body_bytes = u64::MAX >> 1;
    limits.headers = HEADERS;
    limits.header_bytes = HEAD_BYTES;
    limits.target_bytes = HEAD_BYTES;
    config.joins = Some(Joins {
        address,
        upstream,
        key,
        key_file: work
            .key_file
            .as_ref()
            .map(|file| absolute(&invocation.cwd, file)),
    });
    Ok(config)
}

/// `HOST:PORT`, or `unix:` and a path, seen from `cwd`: the server may work in another folder.
fn address(text: &str, cwd: &Path) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let is_path = !path.is_empty() && !path.contains('\0');
        let path = absolute(cwd, Path::new(path));
        let fits = is_path && path.as_os_str().len() <= UNIX_PATH_BYTES;
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
fn read_key(file: &Path) -> Result<String, Report> {
    let refuse = |what| Report::one(file, what);
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| refuse(Problem::Unreadable(error.kind())))?;
    let key = text.trim_end_matches(['\r', '\n']);
    match join::is_key(key) {
        true => Ok(key.to_owned()),
        false => Err(refuse(Problem::BadSecret {
            key: "key",
            expected: join::KEY_EXPECTED,
        })),
    }
}

#[cfg(test)]
mod tests;
