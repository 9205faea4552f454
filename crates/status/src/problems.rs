//! The problems of the server, a sentence each: the one list that the status page, `penstock status`,
//! `penstock top` and `/metrics` show.
//!
//! Pure: made of a [`Snapshot`] and of the refusals of the last minute.
//!
//! # Invariants
//! - Each problem names the part and the cause.
//! - There are at most [`MAX_PROBLEMS`]; errors come first.

use std::collections::BTreeMap;
use std::iter;

use penstock_apps::{AppSnapshot, JobSnapshot};
use penstock_cache::StoreState;
use penstock_proxy::{ServerSnapshot, UpstreamSnapshot};
use serde::Serialize;

use crate::history::{History, QueueKind};
use crate::{CertificateHealth, CertificateSnapshot, Snapshot};

/// The most problems in a list.
const MAX_PROBLEMS: usize = 50;

/// The most characters of a cause: it may be a line of an application's output.
const MAX_CAUSE_CHARS: usize = 200;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Whether clients notice it.
    pub severity: Severity,
    /// The part of the server, such as `app shop`.
    pub part: String,
    /// The problem, in one sentence.
    pub text: String,
}

/// Whether clients notice a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Requests fail, or what the server is for is not done.
    Error,
    /// Nothing fails yet.
    Warning,
}

impl Problem {
    fn error(part: String, text: String) -> Self {
        let severity = Severity::Error;
        Self {
            severity,
            part,
            text,
        }
    }

    fn warning(part: String, text: String) -> Self {
        let severity = Severity::Warning;
        Self {
            severity,
            part,
            text,
        }
    }
}

/// Finds the problems of a server; errors come first, and the last of too many counts the rest.
#[must_use]
pub(crate) fn find_problems(now: &Snapshot, history: &History) -> Vec<Problem> {
    let refusals = history.recent_refusals(now);
    let mut found: Vec<Problem> = iter::empty()
        .chain(now.apps.iter().flat_map(app_problems))
        .chain(
            now.upstreams
                .iter()
                .flat_map(|it| upstream_problems(it, now)),
        )
        .chain(queue_problems(now, &refusals))
        .chain(now.certificates.list.iter().filter_map(certificate_problem))
        .chain(cache_problems(now))
        .chain(now.jobs.iter().filter_map(job_problem))
        .chain(bound_problems(now))
        .chain(server_problems(now))
        .collect();
    found.sort_by_key(|problem| problem.severity);
    if found.len() > MAX_PROBLEMS {
        let left = found.len() - (MAX_PROBLEMS - 1);
        found.truncate(MAX_PROBLEMS - 1);
        let text = format!("{left} more problems are not listed here.");
        found.push(Problem::warning("server".to_owned(), text));
    }
    found
}

fn app_problems(app: &AppSnapshot) -> impl Iterator<Item = Problem> {
    let noun = match app.kind {
        "job" => "job",
        _ => "application",
    };
    let (part, name) = (format!("app {}", app.name), &app.name);
    let report = app.boot_report.as_deref().map(penstock_apps::failure_line);
    let cause = report.or(app.last_failure.as_deref()).map(shorten);
    let because = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    let (ready, target) = (app.processes.ready, app.processes.target);
    let state = match app.state.as_str() {
        "failing" => Some(Problem::error(
            part.clone(),
            format!("The {noun} {name} does not run{because}."),
        )),
        "stopped" => Some(Problem::error(
            part.clone(),
            format!("The {noun} {name} has stopped{because}."),
        )),
        "degraded" => Some(Problem::warning(
            part.clone(),
            format!("The {noun} {name} has {ready} of {target} processes ready{because}."),
        )),
        "starting" => Some(Problem::warning(
            part.clone(),
            format!("The {noun} {name} is not ready yet."),
        )),
        _ => None,
    };
    let restart = app.restart_error.as_deref().map(|error| {
        let cause = shorten(penstock_apps::failure_line(error));
        let text = format!(
            "The new code of the {noun} {name} does not start and the old code serves on: {cause}."
        );
        Problem::error(part, text)
    });
    state.into_iter().chain(restart)
}

/// An application with servers of its own has an upstream of its name, which adds nothing while
/// the application does not run.
fn upstream_problems(upstream: &UpstreamSnapshot, now: &Snapshot) -> Vec<Problem> {
    let (part, name) = (format!("upstream {}", upstream.name), &upstream.name);
    let is_of_app = now.apps.iter().any(|app| app.name == *name);
    if !upstream.up {
        let text = match upstream.servers.is_empty() {
            true => format!("The upstream {name} has no server."),
            false => format!(
                "No server of the upstream {name} is up{}.",
                last_error(upstream)
            ),
        };
        return match is_of_app {
            true => Vec::new(),
            false => vec![Problem::error(part, text)],
        };
    }
    let is_down = |server: &&ServerSnapshot| matches!(server.state, "down" | "ejected");
    let down = upstream.servers.iter().filter(is_down);
    down.map(|server| {
        let ServerSnapshot {
            name: server_name,
            state,
            last_error,
            ..
        } = server;
        let cause = last_error.as_deref().map(shorten);
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        let text = format!("The server {server_name} of the upstream {name} is {state}{cause}.");
        Problem::error(part.clone(), text)
    })
    .collect()
}

fn last_error(upstream: &UpstreamSnapshot) -> String {
    let errors = upstream
        .servers
        .iter()
        .find_map(|server| server.last_error.as_deref());
    errors.map_or_else(String::new, |error| format!(": {}", shorten(error)))
}

/// Queues that are full, or that have refused requests in the last minute.
fn queue_problems(now: &Snapshot, refusals: &BTreeMap<(QueueKind, String), u64>) -> Vec<Problem> {
    let is_own = |name: &String| now.upstreams.iter().any(|upstream| upstream.name == *name);
    let apps = now.apps.iter().filter(|app| !is_own(&app.name));
    let apps = apps.map(|app| {
        (
            QueueKind::App,
            &app.name,
            app.queue.usage.waiting,
            app.queue.max,
        )
    });
    let upstreams = now.upstreams.iter().map(|upstream| {
        let queue = upstream.queue;
        (QueueKind::Upstream, &upstream.name, queue.length, queue.max)
    });
    let problem = |(kind, name, length, max): (QueueKind, &String, usize, usize)| {
        let (short, noun) = match kind {
            QueueKind::App => ("app", "application"),
            QueueKind::Upstream => ("upstream", "upstream"),
        };
        let refused = refusals.get(&(kind, name.clone())).copied();
        let lately = refused.map(|count| match count {
            1 => "1 request was refused in the last minute".to_owned(),
            count => format!("{count} requests were refused in the last minute"),
        });
        let is_full = max > 0 && length >= max;
        let text = match (is_full, lately) {
            (false, None) => return None,
            (true, None) => format!(
                "The queue of the {noun} {name} is full ({length} of {max}): more requests are \
                 refused."
            ),
            (true, Some(lately)) => {
                format!("The queue of the {noun} {name} is full ({length} of {max}): {lately}.")
            }
            (false, Some(lately)) => format!(
                "The {noun} {name} is too slow: its queue was full or they waited too long, and \
                 {lately}."
            ),
        };
        Some(Problem::error(format!("{short} {name}"), text))
    };
    apps.chain(upstreams).filter_map(problem).collect()
}

fn certificate_problem(certificate: &CertificateSnapshot) -> Option<Problem> {
    let cause = shorten(certificate.problem.as_deref()?);
    let hosts = match certificate.hosts.as_slice() {
        [] => "any host".to_owned(),
        [host] => host.clone(),
        [host, rest @ ..] => format!("{host} and {} more", rest.len()),
    };
    let part = format!("certificate {hosts}");
    let text = format!("The certificate of {hosts} needs attention: {cause}.");
    match certificate.state {
        CertificateHealth::Invalid => Some(Problem::error(part, text)),
        CertificateHealth::Warning => Some(Problem::warning(part, text)),
        CertificateHealth::Valid => None,
    }
}

fn cache_problems(now: &Snapshot) -> Vec<Problem> {
    let problem = |cache: &penstock_cache::StoreSnapshot| {
        let StoreState::OutOfService { reason } = &cache.state else {
            return None;
        };
        let (name, cause) = (&cache.name, shorten(reason));
        let text = format!("The cache {name} is out of service: {cause}.");
        Some(Problem::error(format!("cache {name}"), text))
    };
    now.caches.iter().filter_map(problem).collect()
}

fn job_problem(job: &JobSnapshot) -> Option<Problem> {
    let last = job.last.as_ref().filter(|last| !last.succeeded)?;
    let (name, outcome) = (&job.name, shorten(&last.outcome));
    let cause = last
        .last_lines
        .lines()
        .rfind(|line| !line.trim().is_empty());
    let cause = cause.map_or_else(String::new, |line| format!(": {}", shorten(line)));
    let text = format!("The last run of the job {name} failed ({outcome}){cause}.");
    Some(Problem::error(format!("job {name}"), text))
}

/// Bounds of the whole server that are reached.
fn bound_problems(now: &Snapshot) -> Vec<Problem> {
    let mut found = Vec::new();
    let connections = now.connections;
    if connections.max > 0 && connections.used >= connections.max {
        let text = format!(
            "All {} client connections are in use ({}).",
            connections.max, now.connections_limited_by
        );
        found.push(Problem::error("server".to_owned(), text));
    }
    let is_full = |pool: &&penstock_runtime::blocking::PoolSnapshot| {
        pool.max_queued > 0 && pool.queued >= pool.max_queued
    };
    found.extend(now.pools.iter().filter(is_full).map(|pool| {
        let (name, queued) = (&pool.name, pool.queued);
        let text = format!("The thread pool {name} is overloaded: {queued} jobs wait.");
        Problem::error(format!("pool {name}"), text)
    }));
    found
}

/// What concerns the configuration and other servers.
fn server_problems(now: &Snapshot) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(error) = &now.reload_error {
        let first = shorten(error.lines().next().unwrap_or_default());
        let text = format!("The last reload failed and the old configuration serves on: {first}.");
        found.push(Problem::error("configuration".to_owned(), text));
    }
    if let Some(front_end) = now
        .front_end
        .as_ref()
        .filter(|front_end| !front_end.is_joined)
    {
        let cause = shorten(front_end.cause.as_deref().unwrap_or("no cause is known"));
        let text = format!(
            "This server is not joined to the upstream {} at {}: {cause}.",
            front_end.upstream, front_end.address
        );
        found.push(Problem::error("front end".to_owned(), text));
    }
    let cluster = now.hub.cluster.as_ref();
    if let Some(cluster) = cluster.filter(|it| !it.connected || it.standalone) {
        let text = format!(
            "Redis at {} does not answer: messages reach the subscribers of this server only.",
            cluster.address
        );
        found.push(Problem::error("hub".to_owned(), text));
    }
    if now
        .shared_rates
        .as_ref()
        .is_some_and(|rates| !rates.connected)
    {
        let text = "Redis does not answer: this server limits rates alone.".to_owned();
        found.push(Problem::warning("rates".to_owned(), text));
    }
    found
}

/// A cause as the end of a sentence: one line, bounded, without its full stop.
fn shorten(cause: &str) -> String {
    let line = cause.lines().next().unwrap_or_default().trim();
    let mut text: String = line.chars().take(MAX_CAUSE_CHARS).collect();
    if text.len() < line.len() {
        text.push('\u{2026}');
    }
    text.truncate(text.trim_end_matches('.').len());
    text
}

#[cfg(test)]
mod tests;
