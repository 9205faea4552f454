//! Which handlers answer which route: the one place where rooms meet.
//!
//! Builds, from a checked configuration and running applications, the settings that `edge` swaps in.
//! Nothing is changed here: a failure leaves the server as it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_apps::App;
use penstock_config::{AccessLog as AccessLogConfig, Config, LogTarget};
use penstock_edge::{AccessLog, Route, Routing, Settings, Site};
use penstock_exchange::Handler;
use penstock_files::{Files, FilesSetup};
use penstock_runtime::blocking::Pool;
use penstock_runtime::logger::{LineWriter, Target};

/// Running applications by name.
pub(crate) type Apps = BTreeMap<String, Arc<App>>;

/// Pools for blocking work by name.
pub(crate) type Pools = BTreeMap<String, Pool>;

/// Builds the settings of the front end. May block (opens roots and logs).
///
/// # Errors
/// What could not be opened.
pub(crate) fn settings(
    config: &Config,
    apps: &Apps,
    pools: &Pools,
    loops: usize,
    development: bool,
) -> Result<Settings, String> {
    let mut routing = Routing::default();
    for site in &config.sites {
        let mut routes = Vec::new();
        for route in &site.routes {
            let handlers = handlers(route, apps, pools, loops)?;
            routes.push(Route {
                path: route.path.clone(),
                handlers: handlers.into(),
            });
        }
        routing.add(&site.hosts, Site { routes });
    }
    let access_log = config
        .server
        .access_log
        .as_ref()
        .map(open_access_log)
        .transpose()?;
    Ok(Settings {
        limits: config.limits.clone(),
        routing,
        access_log,
        development,
    })
}

/// Files first, then the application.
fn handlers(
    route: &penstock_config::Route,
    apps: &Apps,
    pools: &Pools,
    loops: usize,
) -> Result<Vec<Arc<dyn Handler>>, String> {
    let mut handlers: Vec<Arc<dyn Handler>> = Vec::new();
    if let Some(files) = &route.files {
        let pool = pools.get(&files.blocking).or_else(|| pools.get("default"));
        let pool = pool.ok_or_else(|| format!("no pool `{}`", files.blocking))?;
        let setup = FilesSetup {
            root: files.root.clone(),
            try_: files.try_.clone(),
            pool: pool.clone(),
            loops,
            falls_through: route.app.is_some(),
        };
        let opened = Files::open(setup);
        let opened = opened.map_err(|error| format!("{}: {error}", files.root.display()))?;
        handlers.push(Arc::new(opened));
    }
    if let Some(name) = &route.app {
        let app = apps
            .get(name)
            .ok_or_else(|| format!("no application `{name}`"))?;
        handlers.push(Arc::clone(app) as Arc<dyn Handler>);
    }
    Ok(handlers)
}

fn open_access_log(log: &AccessLogConfig) -> Result<AccessLog, String> {
    let target = match &log.path {
        LogTarget::Stdout => Target::Stdout,
        LogTarget::Stderr => Target::Stderr,
        LogTarget::File(path) => {
            let say = |error: std::io::Error| format!("access log {}: {error}", path.display());
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir).map_err(say)?;
            }
            let file = std::fs::File::options()
                .create(true)
                .append(true)
                .open(path);
            Target::File(file.map_err(say)?)
        }
    };
    let writer = LineWriter::start("access-log", target).map_err(|error| error.to_string())?;
    Ok(AccessLog {
        writer,
        format: log.format,
    })
}

/// The pools that a configuration names. Those that an older one has with the same bounds go on.
pub(crate) fn pools(config: &Config, old: Option<(&Config, &Pools)>) -> Pools {
    let mut pools = Pools::new();
    for (name, bounds) in &config.blocking {
        let kept = old.and_then(|(old, pools)| {
            let same = old.blocking.get(name) == Some(bounds);
            pools.get(name).filter(|_| same).cloned()
        });
        let fresh = || Pool::new(name, bounds.threads, bounds.max_queue);
        pools.insert(name.clone(), kept.unwrap_or_else(fresh));
    }
    pools
}
