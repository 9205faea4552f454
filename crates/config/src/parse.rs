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
use crate::model::{BlockingPool, Config, Limits, Site};
use crate::place::{At, Findings, absolute};
use crate::section::Section;
use crate::{app, disk, server, site};

/// Reads, parses and checks a file.
///
/// *Blocking*: reads the file and looks at the folders and files it names; not for an event loop.
pub fn load(path: &Path) -> Result<Config, Report> {
    let bytes = disk::read(path).map_err(|error| unreadable(path, &error))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| unreadable(path, &io::Error::from(io::ErrorKind::InvalidData)))?;
    parse(&text, path)
}

/// Parses and checks a text; messages name `origin`, relative paths resolve against its folder.
///
/// *Blocking*: looks at the folders and files that the text names.
pub fn parse(text: &str, origin: &Path) -> Result<Config, Report> {
    let found = Findings::new(text, origin, folder_of(origin));
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
    let server = server::read(&top);
    let limits = read_limits(&top);
    let blocking = read_blocking(&top);
    let named: Vec<_> = top.named("apps");
    // The names count even where the rest is wrong: a route that says one of them is right.
    let names: Vec<String> = named.iter().map(|(name, _)| name.value.clone()).collect();
    let apps = named
        .iter()
        .filter_map(|(name, section)| app::read(name, section));
    let apps: BTreeMap<_, _> = apps.map(|app| (app.name.clone(), app)).collect();
    let mut sites = site::read(
        &top,
        &site::Known {
            apps: &names,
            blocking: &blocking,
        },
    );
    if !top.has("sites") {
        sites = default_sites(&top, &names, &apps);
    }
    Some(Config {
        path: Some(absolute(Path::new(""), origin)),
        base: found.base().to_owned(),
        server,
        limits,
        blocking,
        apps,
        sites,
    })
}

fn read_limits(top: &Section<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(table) = top.table("limits") else {
        return limits;
    };
    table.count("connections", &mut limits.connections);
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
    if let Some(folder) = table.path("temp_dir") {
        check_folder(&table, "temp_dir", &folder);
        limits.temp_dir = folder.value;
    }
    if limits.target_bytes > limits.header_bytes {
        let (low_value, high_value) = (limits.target_bytes as u64, limits.header_bytes as u64);
        let (low, high) = ("target_bytes", "header_bytes");
        let at = table.key_at(&[low, high]);
        table.add(
            at,
            Problem::LowAboveHigh {
                low,
                low_value,
                high,
                high_value,
            },
        );
    }
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

/// The site that a file without `[[sites]]` means.
fn default_sites(
    top: &Section<'_>,
    names: &[String],
    apps: &BTreeMap<String, crate::App>,
) -> Vec<Site> {
    match names {
        // With errors, the application may be among them.
        [] if top.found.is_clean() => top.add(0, Problem::NothingConfigured),
        [] => {}
        [name] => {
            return apps.get(name).map(site::of_app).into_iter().collect();
        }
        _ => top.add(top.key_at(&["apps"]), Problem::SitesNeeded(names.to_vec())),
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
