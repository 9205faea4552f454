//! Parses a scenario's text, and finds the errors that its types cannot rule out.

use std::ops::Range;
use std::path::{Component, Path};
use std::time::Duration;

use penstock_http::is_token;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::placeholder::{PlaceholderScope, unknown_placeholder};
use super::{Goal, LoadSpec, Metric, Scenario, TlsSpec};
use crate::target::{PATH_RULE, is_request_path};

/// More would be a mistake: there are not as many ports.
const MAX_CONNECTIONS: u32 = 60_000;
/// Requests per second; the interval is whole nanoseconds.
pub(crate) const MAX_RATE: f64 = 10_000_000.0;

/// An error at a position in the text.
#[derive(Debug)]
pub(super) struct LocatedError {
    /// Byte range.
    span: Range<usize>,
    pub(super) message: String,
}

type Checked = Result<(), LocatedError>;

impl LocatedError {
    /// Line and column in characters, counted from 1.
    pub(super) fn line_and_column(&self, text: &str) -> (usize, usize) {
        // Counted in bytes first: a span may end within a character of invalid text.
        let before = &text.as_bytes()[..self.span.start.min(text.len())];
        let lines: Vec<_> = before.split(|byte| *byte == b'\n').collect();
        let line = String::from_utf8_lossy(lines.last().copied().unwrap_or_default());
        (lines.len(), line.chars().count() + 1)
    }
}

impl From<toml::de::Error> for LocatedError {
    fn from(error: toml::de::Error) -> Self {
        Self {
            span: error.span().unwrap_or(0..0),
            message: error.message().to_owned(),
        }
    }
}

/// A table of the file.
#[derive(Clone, Copy)]
struct Section<'a>(&'a Spanned<DeValue<'a>>);

impl<'a> Section<'a> {
    /// An error at the value of `key`, or at the table if it has none, unless the value is valid.
    fn require(self, is_valid: bool, key: &str, wanted: &str) -> Checked {
        match is_valid {
            true => Ok(()),
            false => Err(LocatedError {
                span: self.0.get_ref().get(key).unwrap_or(self.0).span(),
                message: format!("`{key}`: {wanted}"),
            }),
        }
    }

    /// One of the tables below a key.
    fn item(self, key: &str, index: usize) -> Self {
        let items = self.0.get_ref().get(key);
        Self(
            items
                .and_then(|items| items.get_ref().get(index))
                .unwrap_or(self.0),
        )
    }
}

pub(super) fn parse(text: &str) -> Result<Scenario, LocatedError> {
    let table = DeTable::parse(text)?;
    let document = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
    let mut scenario: Scenario = toml::from_str(text)?;
    check_texts(&document, None)?;
    check_scenario(&scenario, Section(&document))?;
    if scenario.baseline.is_empty() {
        scenario.baseline.clone_from(&scenario.deployments[0].name);
    }
    Ok(scenario)
}

/// Every text has known placeholders only. `scope` is that of the table, if it has one.
fn check_texts(value: &Spanned<DeValue<'_>>, scope: Option<PlaceholderScope>) -> Checked {
    let check_text = |text: &str, span| {
        let message = match scope.and_then(|scope| unknown_placeholder(text, scope)) {
            Some(name) => format!("no placeholder {{{{{name}}}}} here"),
            None if text.contains('\0') => "no NUL in a text".to_owned(),
            None => return Ok(()),
        };
        Err(LocatedError { span, message })
    };
    match value.get_ref() {
        DeValue::String(text) => check_text(text, value.span()),
        DeValue::Array(items) => items.iter().try_for_each(|item| check_texts(item, scope)),
        DeValue::Table(table) => table.iter().try_for_each(|(key, value)| {
            check_text(key.get_ref(), key.span())?;
            check_texts(
                value,
                scope.or_else(|| PlaceholderScope::of_key(key.get_ref())),
            )
        }),
        _ => Ok(()),
    }
}

fn check_scenario(scenario: &Scenario, file: Section<'_>) -> Checked {
    let (loads, deployments) = (&scenario.loads, &scenario.deployments);
    let (requests, duration) = (scenario.requests, scenario.duration);
    let is_titled = !scenario.title.trim().is_empty();
    file.require(is_titled, "title", "a title that is not empty")?;
    file.require(scenario.rounds > 0, "rounds", "at least 1")?;
    let is_one = requests.is_some() != duration.is_some();
    file.require(is_one, "duration", "either `requests` or `duration`")?;
    file.require(requests != Some(0), "requests", "at least 1")?;
    let takes_time = duration != Some(Duration::ZERO);
    file.require(takes_time, "duration", "longer than 0")?;
    file.require(!loads.is_empty(), "loads", "at least one of [[loads]]")?;
    let wanted = "at least one of [[deployments]]";
    file.require(!deployments.is_empty(), "deployments", wanted)?;
    for (index, load) in loads.iter().enumerate() {
        let section = file.item("loads", index);
        check_load(load, section)?;
        if let [_] = loads[..] {
            section.require(!load.alone, "alone", "the only load is alone anyway")?;
            continue;
        }
        let mut others = loads[..index].iter().map(|one| &*one.name);
        let wanted = "each of several loads needs its own name";
        section.require(is_new_name(&load.name, &mut others), "name", wanted)?;
        let is_constant = load.connections.0.len() == 1;
        let wanted = "one number: of several loads each has the same connections all the time";
        section.require(is_constant, "connections", wanted)?;
    }
    check_tls(&scenario.tls, file)?;
    if let Some(companion) = &scenario.companion {
        let section = Section(&file.0.get_ref()["companion"]);
        check_start(&companion.start, &companion.files, &companion.url, section)?;
    }
    for (index, one) in deployments.iter().enumerate() {
        let section = file.item("deployments", index);
        let mut others = deployments[..index].iter().map(|one| &*one.name);
        let wanted = "a name that no other one has";
        section.require(is_new_name(&one.name, &mut others), "name", wanted)?;
        check_start(&one.start, &one.files, &one.url, section)?;
        for (name, _) in &one.env {
            let is_name = !name.is_empty() && !name.contains(['=', '\0']);
            let wanted = format!("`{name}` is not the name of an environment variable");
            section.require(is_name, "env", &wanted)?;
        }
    }
    for (index, goal) in scenario.goals.iter().enumerate() {
        check_goal(goal, scenario, file.item("goals", index))?;
    }
    let baseline = &scenario.baseline;
    let is_known = baseline.is_empty() || is_deployment(scenario, baseline);
    file.require(is_known, "baseline", NO_DEPLOYMENT)
}

fn is_new_name<'a>(name: &str, others: &mut impl Iterator<Item = &'a str>) -> bool {
    !name.trim().is_empty() && others.all(|other| other != name)
}

const NO_DEPLOYMENT: &str = "no deployment has this name";

fn is_deployment(scenario: &Scenario, name: &str) -> bool {
    scenario.deployments.iter().any(|one| one.name == name)
}

fn check_load(load: &LoadSpec, section: Section<'_>) -> Checked {
    let is_path = load.paths.iter().all(|path| is_request_path(path));
    section.require(is_path, "paths", PATH_RULE)?;
    let connections = &load.connections.0;
    let wanted = format!("at least one number, each at most {MAX_CONNECTIONS}");
    let is_possible = connections.iter().all(|one| *one <= MAX_CONNECTIONS);
    section.require(
        !connections.is_empty() && is_possible,
        "connections",
        &wanted,
    )?;
    let is_method = is_token(load.method.as_bytes());
    section.require(is_method, "method", "not a method (RFC 9110 §9.1)")?;
    for (name, value) in &load.headers {
        let wanted = format!("`{name}` is not a field name (RFC 9110 §5.1)");
        section.require(is_token(name.as_bytes()), "headers", &wanted)?;
        let is_line = !value.chars().any(|one| one.is_control() && one != '\t');
        let wanted = format!("no line breaks in the value of `{name}`");
        section.require(is_line, "headers", &wanted)?;
    }
    section.require(!load.timeout.is_zero(), "timeout", "longer than 0")?;
    let is_rate = load.rate.is_none_or(|rate| rate > 0.0 && rate <= MAX_RATE);
    let wanted = format!("above 0 and at most {MAX_RATE} a second");
    section.require(is_rate, "rate", &wanted)?;
    let is_status = (200..600).contains(&load.expect.status);
    section.require(is_status, "expect", "a status from 200 to 599")
}

fn check_tls(tls: &TlsSpec, file: Section<'_>) -> Checked {
    let is_one = tls.ca.is_none() || !tls.insecure;
    file.require(is_one, "tls", "either `ca` or `insecure`")?;
    match tls.unknown_algorithm() {
        None => Ok(()),
        Some(why) => file.require(false, "tls", &why),
    }
}

fn check_start(
    start: &[String],
    files: &[(String, String)],
    url: &str,
    section: Section<'_>,
) -> Checked {
    section.require(!start.is_empty(), "start", "at least one command")?;
    for (name, _) in files {
        let is_below = |part| matches!(part, Component::Normal(_));
        let is_valid = !name.is_empty() && Path::new(name).components().all(is_below);
        let wanted = format!("`{name}` is not a path below {{{{dir}}}}");
        section.require(is_valid, "files", &wanted)?;
    }
    let mut rests = ["http://", "https://", "unix:"]
        .iter()
        .filter_map(|kind| url.strip_prefix(kind));
    let is_url = rests.any(|rest| !rest.is_empty());
    section.require(
        is_url,
        "url",
        "expected http://HOST:PORT, https://HOST:PORT or unix:PATH",
    )
}

fn check_goal(goal: &Goal, scenario: &Scenario, section: Section<'_>) -> Checked {
    let (metric, to, load) = (goal.metric, &goal.to, &goal.load);
    let is_known = is_deployment(scenario, &goal.deployment);
    section.require(is_known, "deployment", NO_DEPLOYMENT)?;
    let wanted = "a ratio, and nothing else, needs the other deployment";
    section.require(to.is_some() == metric.is_ratio(), "to", wanted)?;
    let is_known = to.as_ref().is_none_or(|to| is_deployment(scenario, to));
    section.require(is_known, "to", NO_DEPLOYMENT)?;
    let is_of_load = metric.is_vs_alone() || metric == Metric::P99Ratio;
    let wanted =
        "`p99_ratio`, `requests_vs_alone` and `p99_vs_alone`, and nothing else, need a load";
    section.require(load.is_some() == is_of_load, "load", wanted)?;
    let is_meant = |one: &&LoadSpec| one.alone || !metric.is_vs_alone();
    let mut names = scenario.loads.iter().filter(is_meant).map(|one| &one.name);
    let is_known = load
        .as_ref()
        .is_none_or(|load| names.any(|name| name == load));
    let wanted = "no load has this name, or not with `alone = true`";
    section.require(is_known, "load", wanted)?;
    for (key, bound) in [("max", goal.max), ("min", goal.min)] {
        let is_enough = |bound| bound > 0.0 || metric == Metric::Errors && bound == 0.0;
        let is_bound = bound.is_none_or(|bound| bound.is_finite() && is_enough(bound));
        section.require(is_bound, key, "a number above 0")?;
    }
    let is_bounded = goal.max.is_some() || goal.min.is_some();
    section.require(is_bounded, "max", "at least one of `max` and `min`")?;
    let is_point = |one| matches!(&scenario.loads[..], [load] if load.connections.0.contains(&one));
    let wanted = "no point of the load has these connections";
    section.require(goal.connections.is_none_or(is_point), "connections", wanted)?;
    let is_about_all = metric == Metric::ThroughputRetained && goal.connections.is_some();
    let wanted = "`throughput_retained` is about all points";
    section.require(!is_about_all, "connections", wanted)
}
