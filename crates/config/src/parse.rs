//! Text to [`Config`]: the order in which the tables are read, and the checks between them.
//!
//! Called for every start, `check` and reload. Each table has its reader (`server`, `app`, `site`);
//! this file opens the text, hands the tables out and builds the whole. What must stay true: reading
//! goes on after a mistake, and a `Config` comes out only when there was none.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use crate::error::{ConfigError, Problem, Report};
use crate::model::{App, BlockingPool, Config, Limits, Site, TcpStream};
use crate::place::{At, Findings, absolute};
use crate::section::Section;
use crate::{app, cache, development, disk, hub, join, server, site, stream, upstream};

/// Reads, parses and checks a file.
///
/// *Blocking*: reads the file and looks at the folders and files it names; not for an event loop.
pub fn load(path: &Path) -> Result<Config, Report> {
    load_as(path, false)
}

/// The same, for a server in development or not.
pub(crate) fn load_as(path: &Path, development: bool) -> Result<Config, Report> {
    let bytes = disk::read(path).map_err(|error| unreadable(path, &error))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| unreadable(path, &io::Error::from(io::ErrorKind::InvalidData)))?;
    parse_as(&text, path, development)
}

/// Parses and checks a text; messages name `origin`, relative paths resolve against its folder.
///
/// *Blocking*: looks at the folders and files that the text names.
pub fn parse(text: &str, origin: &Path) -> Result<Config, Report> {
    parse_as(text, origin, false)
}

fn parse_as(text: &str, origin: &Path, development: bool) -> Result<Config, Report> {
    let found = Findings::new(text, origin, folder_of(origin)).in_development(development);
    let (root, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        // What was recovered would only give errors that follow from these.
        for error in &syntax {
            let message = error.message().lines().collect::<Vec<_>>().join("; ");
            found.add(
                error.span().map_or(0, |span| span.start),
                Problem::Syntax(message),
            );
        }
        return found.finish(None);
    }
    let config = read(&found, root.get_ref(), origin);
    found.finish(config)
}

/// The absolute folder of a file.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    let file = absolute(Path::new(""), file);
    file.parent().map_or_else(|| file.clone(), Path::to_owned)
}

fn read<'a>(found: &'a Findings<'a>, root: &'a DeTable<'a>, origin: &Path) -> Option<Config> {
    let top = Section::open(found, "", String::new(), At::new(root, 0));
    let mut server = server::read(&top);
    if found.is_development() {
        development::server(&mut server.value, Some(root));
    }
    let limits = read_limits(&top);
    let hub = hub::read(&top, &limits);
    let mut blocking = read_blocking(&top);
    let (app_names, apps) = read_named(&top, "apps", app::read);
    let (upstream_names, upstreams) = read_named(&top, "upstreams", |name, table| {
        Some(upstream::read(name, table, &apps))
    });
    let caches = cache::read(&top, &blocking);
    for cache in caches.values() {
        blocking.entry(cache.blocking.clone()).or_default();
    }
    let streams = stream::read(&top, &upstream_names, &upstreams);
    let mut sites = site::read(
        &top,
        &site::Known {
            names: &app_names,
            apps: &apps,
            upstreams: &upstream_names,
            upstream_tables: &upstreams,
            caches: &caches,
            hub: &hub,
            hide: &server.value.hide,
            blocking: &blocking,
        },
    );
    if !top.has("sites") {
        sites = default_sites(&top, &app_names, &apps, &upstream_names, &streams);
        let routes = sites.iter_mut().flat_map(|site| &mut site.routes);
        for files in routes.filter_map(|route| route.files.as_mut()) {
            files.hide.clone_from(&server.value.hide);
        }
        if sites.is_empty() && !streams.is_empty() {
            server.leave_out_default();
        }
    }
    server.check_admin(&top);
    server.check_probes(&top);
    server.check_control(&top);
    stream::check(&top, &streams, &server);
    let joined = upstreams.values();
    join::check(&top, server.join.as_ref(), &streams, &server, joined);
    Some(Config {
        path: Some(absolute(Path::new(""), origin)),
        base: found.base().to_owned(),
        server: server.value,
        limits,
        blocking,
        apps,
        hub,
        caches,
        upstreams,
        sites,
        streams: streams.into_iter().map(|stream| stream.value).collect(),
        joins: None,
    })
}

/// The tables under free names: every name, and what could be read. The names count even where the
/// rest is wrong: a route that says one of them is right.
fn read_named<T>(
    top: &Section<'_>,
    key: &str,
    read: impl Fn(&At<String>, &Section<'_>) -> Option<T>,
) -> (Vec<String>, BTreeMap<String, T>) {
    let tables = top.named(key);
    let names = tables.iter().map(|(name, _)| name.value.clone()).collect();
    let values = tables
        .iter()
        .filter_map(|(name, table)| Some((name.value.clone(), read(name, table)?)));
    (names, values.collect())
}

/// What a worker takes in one frame, with much to spare.
const WEBSOCKET_MESSAGE_MAX: usize = 32 << 20;

fn read_limits(top: &Section<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(table) = top.table("limits") else {
        return limits;
    };
    table.count("connections", &mut limits.connections);
    limits.connections_per_client = table.count_said("connections_per_client");
    table.size("target_bytes", &mut limits.target_bytes);
    table.size("header_bytes", &mut limits.header_bytes);
    table.count("headers", &mut limits.headers);
    table.size("body_bytes", &mut limits.body_bytes);
    table.duration("header_timeout", &mut limits.header_timeout);
    table.duration("idle_timeout", &mut limits.idle_timeout);
    table.duration("body_stall", &mut limits.body_stall);
    table.rate("body_rate_min", &mut limits.body_rate_min);
    table.duration("body_rate_grace", &mut limits.body_rate_grace);
    table.size("body_memory", &mut limits.body_memory);
    table.size("response_memory", &mut limits.response_memory);
    table.size("response_spool", &mut limits.response_spool);
    table.rate("min_busy_rate", &mut limits.min_busy_rate);
    limits.temp_bytes = table.size_said("temp_bytes");
    let key = "websocket_message_bytes";
    table.size(key, &mut limits.websocket_message_bytes);
    if limits.websocket_message_bytes > WEBSOCKET_MESSAGE_MAX {
        let value = format!("{} bytes", limits.websocket_message_bytes);
        table.bad_item(key, &value, table.key_at(&[key]), "a size of at most 32MiB");
    }
    if let Some(folder) = table.path("temp_dir") {
        check_folder(&table, "temp_dir", &folder);
        limits.temp_dir = folder.value;
    }
    table.check_order(
        ("target_bytes", limits.target_bytes as u64),
        ("header_bytes", limits.header_bytes as u64),
    );
    limits
}

fn read_blocking(top: &Section<'_>) -> BTreeMap<String, BlockingPool> {
    let mut pools = BTreeMap::from([("default".to_owned(), BlockingPool::default())]);
    for (name, table) in top.named("blocking") {
        let mut pool = BlockingPool::default();
        table.count("threads", &mut pool.threads);
        table.count("max_queue", &mut pool.max_queue);
        pools.insert(name.value, pool);
    }
    pools
}

/// The site that a file without `[[sites]]` means. An upstream that a stream relays to is in use
/// already.
fn default_sites(
    top: &Section<'_>,
    apps: &[String],
    read: &BTreeMap<String, App>,
    upstreams: &[String],
    streams: &[At<TcpStream>],
) -> Vec<Site> {
    let is_free = |name: &&String| !streams.iter().any(|s| s.value.upstream == **name);
    let free: Vec<&String> = upstreams.iter().filter(is_free).collect();
    match (apps, free.as_slice()) {
        // With errors, the application may be among them.
        ([], []) if streams.is_empty() && top.found.is_clean() => {
            top.add(0, Problem::NothingConfigured);
        }
        ([], []) => {}
        ([name], []) => return read.get(name).map(site::of_app).into_iter().collect(),
        ([], [name]) => return vec![site::of_upstream(name)],
        _ => {
            let names = apps.iter().chain(free).cloned().collect();
            let at = top.key_at(&["apps", "upstreams"]);
            let apps = apps.len();
            top.add(at, Problem::SitesNeeded { names, apps });
        }
    }
    Vec::new()
}

/// Reports a folder that is not there.
pub(crate) fn check_folder(section: &Section<'_>, key: &'static str, path: &At<PathBuf>) -> bool {
    match disk::check_folder(key, &path.value) {
        Ok(()) => true,
        Err(problem) => {
            section.add(path.at, problem);
            false
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Report {
    Report::new(vec![ConfigError::nowhere(
        path,
        Problem::Unreadable(error.kind()),
    )])
}

/// Every option that reading a text asks for.
#[cfg(test)]
pub(crate) fn reads_of(text: &str, base: &Path) -> Vec<(&'static str, String)> {
    let found = Findings::new(text, Path::new("penstock.toml"), base.to_owned());
    let (root, _) = DeTable::parse_recoverable(text);
    read(&found, root.get_ref(), Path::new("penstock.toml"));
    found.reads()
}

#[cfg(test)]
mod tests;
