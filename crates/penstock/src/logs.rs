//! Opens and reopens the logs, and says which requests they have.
//!
//! Used by `wiring` (the access log) and by `server` (its own log, SIGUSR1, `POST /logs/reopen`).
//!
//! # Invariants
//!
//! - If a file cannot be opened, the old one stays in use.

use std::fs::File;
use std::path::Path;

use penstock_config::{AccessLog as AccessLogConfig, Config, LogTarget, SyslogAddress};
use penstock_edge::{AccessLog, LogFilter, RouteObservation};
use penstock_exchange::metrics::RouteCountTable;
use penstock_rules::{ConditionSet, RequestConditions};
use penstock_runtime::logger::{DatagramSink, LogMask, LogOutput, LogWriter};

use crate::dev;

/// The name of this program in the logs of the system.
const LOG_TAG: &str = "penstock";

/// Every access log of a configuration: that of the server, which has no name, then the others.
pub(crate) fn access_logs(
    config: &Config,
) -> impl Iterator<Item = (Option<&str>, &AccessLogConfig)> {
    let of_server = config.server.access_log.iter().map(|log| (None, log));
    let named = config.access_logs.iter();
    of_server.chain(named.map(|(name, log)| (Some(name.as_str()), log)))
}

/// Opens every access log, in the order of [`access_logs`]. May block.
pub(crate) fn open_access_logs(
    config: &Config,
    mask: &LogMask,
    named: &ConditionSet,
) -> Result<Vec<AccessLog>, String> {
    let is_of_a_site = |name: &str| {
        let mut of_sites = config.sites.iter().flat_map(|site| &site.access_logs);
        of_sites.any(|names| names.iter().any(|it| it == name))
    };
    let opened = access_logs(config).map(|(name, log)| {
        let target = open_log_target(&log.path).map_err(|error| format!("access log {error}"))?;
        let writer = LogWriter::start("access-log", target).map_err(|error| error.to_string())?;
        Ok(AccessLog {
            writer,
            format: log.format.clone(),
            colours: dev::has_colours(&log.path),
            mask: mask.clone(),
            filter: LogFilter {
                conditions: match log.conditions.is_empty() {
                    true => None,
                    false => Some(Box::new(RequestConditions::compile(
                        &log.conditions,
                        named,
                    )?)),
                },
                statuses: log.statuses.clone().into(),
                min_time: log.min_time,
                sample: log.sample,
            },
            is_default: !name.is_some_and(is_of_a_site),
        })
    });
    opened.collect()
}

/// What logs and metrics need of a route; `None` where they need nothing.
pub(crate) fn observe_route(
    config: &Config,
    (site, route): (&penstock_config::Site, &penstock_config::Route),
    (counts, loops): (&RouteCountTable, usize),
) -> Option<RouteObservation> {
    let is_shown = access_logs(config).any(|(_, log)| log.format.needs_route());
    let is_counted = config.server.route_metrics;
    let is_traced = config.tracing.is_some();
    if !is_shown && !is_counted && !is_traced && site.access_logs.is_none() {
        return None;
    }
    let host = site
        .hosts
        .first()
        .map_or_else(|| "*".to_owned(), ToString::to_string);
    let path = route.path.to_string();
    let mut observation = RouteObservation::new(&host, &path);
    observation.counts = is_counted.then(|| counts.counts(&host, &path, loops));
    observation.access_logs = site.access_logs.as_ref().map(|names| {
        let places = access_logs(config).enumerate();
        let own = places.filter(|(_, (name, _))| names.iter().any(|it| Some(&**it) == *name));
        own.map(|(place, _)| place).collect()
    });
    Some(observation)
}

/// Opens the destination of log lines. May block.
pub(crate) fn open_log_target(to: &LogTarget) -> Result<LogOutput, String> {
    Ok(match to {
        LogTarget::Stdout => LogOutput::Stdout,
        LogTarget::Stderr => LogOutput::Stderr,
        LogTarget::File(path) => LogOutput::File(open_log_file(path)?),
        LogTarget::Syslog(SyslogAddress::Unix(path)) => {
            LogOutput::Daemon(DatagramSink::syslog_unix(path.clone(), LOG_TAG))
        }
        LogTarget::Syslog(SyslogAddress::Udp(address)) => {
            LogOutput::Daemon(DatagramSink::syslog_udp(*address, LOG_TAG))
        }
        LogTarget::Journald => LogOutput::Daemon(DatagramSink::journal(None, LOG_TAG)),
    })
}

/// Opens a file for appending, and creates its directory. May block.
pub(crate) fn open_log_file(path: &Path) -> Result<File, String> {
    let say = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(say)?;
    }
    let mut options = File::options();
    options.create(true).append(true).open(path).map_err(say)
}
