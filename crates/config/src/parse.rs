//! Text to [`Config`]: the order in which the tables are read, and the checks between them.
//!
//! Called for every start, `check` and reload. Each table has its reader (`server`, `app`,
//! `site`); this file opens the text, hands the tables out and builds the whole.
//!
//! # Invariants
//! - Reading goes on after a mistake, and a `Config` comes out only when there was none.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use crate::error::ConfigErrors;
use crate::findings::{Findings, LocatedValue, ReadFlags, make_absolute};
use crate::job::Job;
use crate::model::{App, BlockingPool, Config, Limits, ScheduledJob, Server, Site, TcpFrontend};
use crate::section::{Keys as _, Section};
use crate::source_files::{ConfigSources, SourceFiles};
use crate::variables::Variables;
use crate::{
    access_log, app, cache, conditions, dev_defaults, disk, forward_auth, hub, job, join, jwt,
    rate_limit, server, site, source_tree, tcp, tls, tracing, upstream,
};

/// Reads, parses and checks a file.
///
/// *Blocking*: reads the file and looks at the directories and files it names; not for an event
/// loop.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    load_with_flags(path, ReadFlags::default())
}

/// The same, beside words of the command line.
pub(crate) fn load_with_flags(path: &Path, flags: ReadFlags) -> Result<Config, ConfigErrors> {
    let bytes =
        disk::read_file(path).map_err(|error| ConfigErrors::unreadable(path, error.kind()))?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| ConfigErrors::unreadable(path, io::ErrorKind::InvalidData))?;
    parse_with_flags(&text, path, flags)
}

/// Parses and checks a text; messages name `origin`, relative paths resolve against its directory.
///
/// *Blocking*: looks at the directories and files that the text names.
pub fn parse(text: &str, origin: &Path) -> Result<Config, ConfigErrors> {
    parse_with_flags(text, origin, ReadFlags::default())
}

fn parse_with_flags(text: &str, origin: &Path, flags: ReadFlags) -> Result<Config, ConfigErrors> {
    parse_with_variables(text, origin, flags, Variables::of_process())
}

/// The same with these variables.
pub(crate) fn parse_with_variables(
    text: &str,
    origin: &Path,
    flags: ReadFlags,
    variables: Variables,
) -> Result<Config, ConfigErrors> {
    let base = parent_dir(origin);
    let files = SourceFiles::gather(text, origin, &base, variables);
    let found = Findings::in_texts(files.texts(), base).with_flags(flags);
    files.report(&found);
    if !found.is_empty() {
        return found.finish(None);
    }
    let root = source_tree::build(&files, &found);
    if !found.is_empty() {
        // Values that are not known would only give errors that follow from these.
        return found.finish(None);
    }
    let mut config = read(&found, &root, origin);
    if let Some(config) = &mut config {
        config.sources = files.sources();
        config.sources.files.extend(found.value_files());
    }
    found.finish(config)
}

/// Reads the `[server]` table of a file and nothing else: for a verb that looks for the running
/// server of a file that has mistakes by now.
///
/// *Blocking*: reads the file.
///
/// # Errors
/// The file cannot be read, or this table has mistakes.
pub fn load_server_table(path: &Path) -> Result<Server, ConfigErrors> {
    let unreadable = |kind| ConfigErrors::unreadable(path, kind);
    let bytes = disk::read_file(path).map_err(|error| unreadable(error.kind()))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(io::ErrorKind::InvalidData))?;
    let base = parent_dir(path);
    let files = SourceFiles::gather(&text, path, &base, Variables::of_process());
    let found = Findings::in_texts(files.texts(), base);
    files.report(&found);
    if !found.is_empty() {
        return found.finish(None);
    }
    let root = source_tree::build(&files, &found);
    if !found.is_empty() {
        return found.finish(None);
    }
    let top = Section::new(&found, "", String::new(), LocatedValue::new(&root, 0));
    let conditions = top.named_tables("conditions");
    let conditions: Vec<String> = conditions.into_iter().map(|(name, _)| name.value).collect();
    let server = server::read(&top, &conditions).config;
    found.finish(Some(server))
}

/// The absolute directory of a file.
pub(crate) fn parent_dir(file: &Path) -> PathBuf {
    let file = make_absolute(Path::new(""), file);
    file.parent().map_or_else(|| file.clone(), Path::to_owned)
}

fn read<'a>(found: &'a Findings<'a>, root: &'a DeTable<'a>, origin: &Path) -> Option<Config> {
    let top = Section::new(found, "", String::new(), LocatedValue::new(root, 0));
    let conditions = conditions::read_named(&top);
    let condition_names: Vec<String> = conditions.keys().cloned().collect();
    let mut server = server::read(&top, &condition_names);
    let access_logs = access_log::read_named(&top, &condition_names);
    let access_log_names: Vec<String> = access_logs.keys().cloned().collect();
    if found.is_development() {
        dev_defaults::apply_to_server(&mut server.config, Some(root));
    }
    let limits = read_limits(&top);
    let hub = hub::read(&top, &limits);
    let (tls, acme) = tls::read(&top, server.config.redis.is_some());
    let mut blocking = read_blocking(&top);
    let (app_names, apps) = read_named(&top, "apps", app::read);
    let (_, jobs) = read_named(&top, "jobs", |name, table| {
        job::read(name, table, (&app_names, &apps))
    });
    let (upstream_names, mut upstreams) = read_named(&top, "upstreams", |name, table| {
        Some(upstream::read(name, table, &apps))
    });
    let caches = cache::read(&top, &blocking);
    for cache in caches.values() {
        blocking.entry(cache.blocking.clone()).or_default();
    }
    let streams = tcp::read(&top, &upstream_names, &upstreams);
    let mut sites = site::read(
        &top,
        &site::RouteContext {
            app_names: &app_names,
            apps: &apps,
            upstream_names: &upstream_names,
            upstreams: &upstreams,
            caches: &caches,
            hub: &hub,
            conditions: &condition_names,
            access_logs: &access_log_names,
            hide: &server.config.hide,
            compress: server.config.compress.as_ref(),
            blocking: &blocking,
        },
    );
    if !top.has("sites") {
        sites = default_sites(&top, &app_names, &apps, &upstream_names, &streams);
        for route in sites.iter_mut().flat_map(|site| &mut site.routes) {
            route.compress.clone_from(&server.config.compress);
            if let Some(files) = &mut route.files {
                files.hide.clone_from(&server.config.hide);
            }
        }
        if sites.is_empty() && !streams.is_empty() {
            server.remove_default_listener();
        }
    }
    let (apps, jobs) = with_jobs(apps, jobs);
    forward_auth::add_upstreams(&mut upstreams, &sites);
    server
        .config
        .log_mask
        .extend(jwt::secret_parameters(&sites));
    rate_limit::check_shared(&top, &sites, server.config.redis.is_some());
    server.check_addresses(&top, &streams);
    conditions::check_listeners(&top, &server.config.listen);
    let tcp = streams.iter().map(|stream| &stream.value);
    tls::check_listeners(&top, &server.config, tcp, &sites);
    tls::check_challenges(&top, &acme, &sites);
    join::check_joinable_upstreams(&top, server.config.join.as_ref(), upstreams.values());
    Some(Config {
        sources: ConfigSources::default(),
        path: Some(make_absolute(Path::new(""), origin)),
        base_dir: found.base_dir().to_owned(),
        server: server.config,
        limits,
        blocking,
        apps,
        jobs,
        tls,
        acme,
        hub,
        conditions,
        access_logs,
        tracing: tracing::read(&top),
        caches,
        upstreams,
        sites,
        tcp: streams.into_iter().map(|stream| stream.value).collect(),
        join_target: None,
        start_notes: Vec::new(),
    })
}

/// The tables under free names: every name, and what could be read. The names count even where the
/// rest is wrong: a route that says one of them is right.
fn read_named<T>(
    top: &Section<'_>,
    key: &str,
    read: impl Fn(&LocatedValue<String>, &Section<'_>) -> Option<T>,
) -> (Vec<String>, BTreeMap<String, T>) {
    let tables = top.named_tables(key);
    let names = tables.iter().map(|(name, _)| name.value.clone()).collect();
    let values = tables
        .iter()
        .filter_map(|(name, table)| Some((name.value.clone(), read(name, table)?)));
    (names, values.collect())
}

/// Jobs that run all the time are kept as applications are; the others are for themselves.
fn with_jobs(
    mut apps: BTreeMap<String, App>,
    jobs: BTreeMap<String, Job>,
) -> (BTreeMap<String, App>, BTreeMap<String, ScheduledJob>) {
    let mut scheduled = BTreeMap::new();
    for (name, job) in jobs {
        match job {
            Job::Lasting(app) => {
                apps.insert(name, app);
            }
            Job::Scheduled(job) => {
                scheduled.insert(name, job);
            }
        }
    }
    (apps, scheduled)
}

/// What a worker takes in one frame, with much to spare.
const MAX_WEBSOCKET_MESSAGE_SIZE: usize = 32 << 20;

fn read_limits(top: &Section<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(table) = top.table("limits") else {
        return limits;
    };
    limits.read_keys(&table);
    let key = "websocket_message_bytes";
    if limits.max_websocket_message_size > MAX_WEBSOCKET_MESSAGE_SIZE {
        let value = format!("{} bytes", limits.max_websocket_message_size);
        table.report_invalid_item(
            key,
            &value,
            table.key_offset(&[key]),
            "a size of at most 32MiB",
        );
    }
    if let Some(folder) = table.path("temp_dir") {
        report_unusable_dir(&table, "temp_dir", &folder);
        limits.temp_dir = folder.value;
    }
    table.check_order(
        ("target_bytes", limits.max_uri_size as u64),
        ("header_bytes", limits.max_header_size as u64),
    );
    limits
}

fn read_blocking(top: &Section<'_>) -> BTreeMap<String, BlockingPool> {
    let mut pools = BTreeMap::from([("default".to_owned(), BlockingPool::default())]);
    for (name, table) in top.named_tables("blocking") {
        let mut pool = BlockingPool::default();
        pool.read_keys(&table);
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
    streams: &[LocatedValue<TcpFrontend>],
) -> Vec<Site> {
    let is_free = |name: &&String| !streams.iter().any(|stream| stream.value.leads_to(name));
    let free: Vec<&String> = upstreams.iter().filter(is_free).collect();
    match (apps, free.as_slice()) {
        // With errors, the application may be among them.
        ([], []) if streams.is_empty() && top.findings.is_empty() => {
            top.report(0, site::NOTHING_TO_SERVE);
        }
        ([], []) => {}
        ([name], []) => {
            return read
                .get(name)
                .map(site::default_site_for_app)
                .into_iter()
                .collect();
        }
        ([], [name]) => return vec![site::default_site_for_upstream(name)],
        _ => {
            let noun = match (apps, free.as_slice()) {
                ([], _) => "upstreams",
                (_, []) => "applications",
                _ => "applications and upstreams",
            };
            let names: Vec<_> = apps.iter().chain(free).map(String::as_str).collect();
            let problem = format!(
                "{} {noun} ({}) and no [[sites]]: say which one answers which path",
                names.len(),
                names.join(", ")
            );
            top.report(top.key_offset(&["apps", "upstreams"]), problem);
        }
    }
    Vec::new()
}

/// Reports a directory that is not there.
pub(crate) fn report_unusable_dir(
    section: &Section<'_>,
    key: &'static str,
    path: &LocatedValue<PathBuf>,
) -> bool {
    match disk::check_directory(key, &path.value) {
        Ok(()) => true,
        Err(problem) => {
            section.report(path.offset, problem);
            false
        }
    }
}

/// Every option that reading a text asks for.
#[cfg(test)]
pub(crate) fn options_read_from(text: &str, base: &Path) -> Vec<(&'static str, String)> {
    let found = Findings::new(text, Path::new("penstock.toml"), base.to_owned());
    let (root, _) = DeTable::parse_recoverable(text);
    read(&found, root.get_ref(), Path::new("penstock.toml"));
    found.option_lookups()
}

#[cfg(test)]
mod tests;
