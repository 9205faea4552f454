//! Validates the raw file and builds the checked scenario.
//!
//! `Scenario::parse` calls [`parse`]; each function here checks a part of `raw` and returns the
//! value or the position of the error.
//!
//! # Invariants
//!
//! - Checked values need no further validation.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Component, Path};
use std::time::Duration;

use penstock_http::is_token;
use toml::Spanned;

use super::error::LocatedError;
use super::placeholder::{PlaceholderScope, unknown_placeholder};
use super::units::{parse_duration, parse_rate, parse_size};
use super::{
    Companion, CoreAssignment, Deployment, Expect, ExpectedBody, Goal, GoalBound, LoadSpec, Loads,
    Paths, Scenario, raw,
};
use crate::load::{RequestOrder, WindowEnd};
use crate::target::{PATH_RULE, is_request_path};

/// More would be a mistake: a sweep of hours, or more connections than ports.
const MAX_POINTS: usize = 2000;
const MAX_CONNECTIONS: u32 = 60_000;
/// Requests per second; the interval is whole nanoseconds.
const MAX_RATE: f64 = 10_000_000.0;

type Checked<T> = Result<T, LocatedError>;
type Text = Spanned<String>;

pub(super) fn parse(text: &str, here: &Path) -> Checked<Scenario> {
    let raw: raw::Scenario = toml::from_str(text)
        .map_err(|error| LocatedError::at(error.span().unwrap_or(0..0), error.message()))?;
    let (loads, window) = loads(&raw)?;
    let beside = raw.beside.as_ref().map(beside).transpose()?;
    let deployments = deployments(&raw.deployments)?;
    let first = match &raw.first {
        Some(name) => deployment_name(name, &deployments)?,
        // There is one: `deployments` rejects an empty list.
        None => deployments
            .first()
            .map(|one| one.name.clone())
            .unwrap_or_default(),
    };
    let goals = raw.goals.iter();
    let goals = goals.map(|goal| self::goal(goal, &deployments, &loads));
    let goals = goals.collect::<Checked<_>>()?;
    Ok(Scenario {
        title: non_empty_text(&raw.title, "a title")?,
        dir: here.to_owned(),
        reference: first,
        setup: texts(&raw.setup, PlaceholderScope::Shared)?,
        rounds: match &raw.rounds {
            Some(rounds) => positive(rounds)?,
            None => 3,
        },
        keep_running: raw.together,
        cores: raw.cores.as_ref().map(|cores| CoreAssignment {
            server: cores.server,
            load: cores.load,
        }),
        ready_timeout: duration(raw.ready_timeout.as_ref(), Duration::from_secs(20))?,
        until: window.until,
        warm_up: window.warm_up.unwrap_or(Duration::from_secs(1)),
        cool_down: window.cool_down.unwrap_or(Duration::ZERO),
        loads,
        goals,
        companion: beside,
        deployments,
    })
}

/// The settings shared by all loads of a scenario.
struct Window {
    until: WindowEnd,
    warm_up: Option<Duration>,
    cool_down: Option<Duration>,
}

fn loads(raw: &raw::Scenario) -> Checked<(Loads, Window)> {
    match (&raw.load, &raw.loads) {
        (Some(one), None) => {
            let load = one.get_ref();
            if let Some(name) = &load.name {
                return error_at(name.span(), "the only load has no name");
            }
            if let Some(alone) = &load.alone {
                return error_at(alone.span(), "the only load is alone anyway");
            }
            let checked = Loads::Sweep {
                connections: connections(&load.connections)?,
                load: Box::new(self::load(one)?),
            };
            Ok((checked, window([one], &one.span())?))
        }
        (None, Some(several)) => {
            let checked = mix(several.get_ref())?;
            let window = window(several.get_ref(), &several.span())?;
            Ok((checked, window))
        }
        (Some(_), Some(several)) => {
            error_at(several.span(), "either [load] or [[loads]], not both")
        }
        (None, None) => error_at(0..0, "no load: [load] or [[loads]] is missing"),
    }
}

fn mix(loads: &[Spanned<raw::Load>]) -> Checked<Loads> {
    let mut names = HashSet::new();
    let mut checked = Vec::new();
    for one in loads {
        let load = one.get_ref();
        let Some(name) = &load.name else {
            return error_at(one.span(), "a load of several needs a `name`");
        };
        if !names.insert(non_empty_text(name, "a name")?) {
            let message = format!("a second load `{}`", name.get_ref());
            return error_at(name.span(), message);
        }
        let raw::Connections::One(_) = load.connections.get_ref() else {
            let message = "one number: a load of several has the same connections all the time";
            return error_at(load.connections.span(), message);
        };
        let connections = connections(&load.connections)?;
        checked.push((connections[0], self::load(one)?));
    }
    Ok(Loads::Mix(checked))
}

/// The window of loads that run together: settings in several of them must be equal.
fn window<'a>(
    loads: impl IntoIterator<Item = &'a Spanned<raw::Load>>,
    whole: &Range<usize>,
) -> Checked<Window> {
    let (mut until, mut warm_up, mut cool_down) = (None, None, None);
    for load in loads {
        let load = load.get_ref();
        if let (Some(_), Some(time)) = (&load.requests, &load.duration) {
            return error_at(time.span(), "either `requests` or `duration`, not both");
        }
        if let Some(requests) = &load.requests {
            if *requests.get_ref() == 0 {
                return error_at(requests.span(), "at least 1");
            }
            check_same(
                &mut until,
                WindowEnd::Requests(*requests.get_ref()),
                requests,
            )?;
        }
        if let Some(text) = &load.duration {
            let time = duration(Some(text), Duration::ZERO)?;
            if time.is_zero() {
                return error_at(text.span(), "longer than 0");
            }
            check_same(&mut until, WindowEnd::Elapsed(time), text)?;
        }
        for (text, slot) in [
            (&load.warm_up, &mut warm_up),
            (&load.cool_down, &mut cool_down),
        ] {
            if let Some(text) = text {
                check_same(slot, duration(Some(text), Duration::ZERO)?, text)?;
            }
        }
    }
    match until {
        Some(until) => Ok(Window {
            until,
            warm_up,
            cool_down,
        }),
        None => error_at(whole.clone(), "`requests` or `duration` is missing"),
    }
}

fn check_same<T: PartialEq, R>(slot: &mut Option<T>, value: T, place: &Spanned<R>) -> Checked<()> {
    match slot {
        Some(known) if *known != value => error_at(
            place.span(),
            "another load has a different value, and all begin and end together",
        ),
        _ => {
            *slot = Some(value);
            Ok(())
        }
    }
}

fn load(raw: &Spanned<raw::Load>) -> Checked<LoadSpec> {
    let load = raw.get_ref();
    let order = match load
        .order
        .as_ref()
        .map(|text| (text, text.get_ref().as_str()))
    {
        None | Some((_, "in order")) => RequestOrder::InOrder,
        Some((_, "random")) => RequestOrder::Random,
        Some((text, _)) => return error_at(text.span(), "expected \"random\" or \"in order\""),
    };
    let method = match &load.method {
        None => "GET".to_owned(),
        Some(method) if is_token(method.get_ref().as_bytes()) => method.get_ref().clone(),
        Some(method) => return error_at(method.span(), "not a method (RFC 9110 §9.1)"),
    };
    let timeout = duration(load.timeout.as_ref(), Duration::from_secs(10))?;
    if let (true, Some(text)) = (timeout.is_zero(), &load.timeout) {
        return error_at(text.span(), "longer than 0");
    }
    let name = load.name.as_ref().map(|name| name.get_ref().clone());
    Ok(LoadSpec {
        name: name.unwrap_or_default(),
        paths: paths(raw)?,
        order,
        keepalive: load.keepalive.unwrap_or(true),
        method,
        headers: headers(&load.headers)?,
        body_file: optional_text(load.body_file.as_ref(), PlaceholderScope::Shared)?,
        timeout,
        rate: load.rate.as_ref().map(rate).transpose()?,
        expect: load
            .expect
            .as_ref()
            .map_or_else(|| Ok(DEFAULT_EXPECT), expect)?,
        alone: load.alone.as_ref().is_some_and(|alone| *alone.get_ref()),
    })
}

const DEFAULT_EXPECT: Expect = Expect {
    status: 200,
    body: ExpectedBody::Any,
};

fn paths(raw: &Spanned<raw::Load>) -> Checked<Paths> {
    let load = raw.get_ref();
    match (&load.path, &load.paths, &load.paths_file) {
        (None, None, None) => Ok(Paths::Named(vec!["/".to_owned()])),
        (Some(path), None, None) => Ok(Paths::Named(vec![self::path(path)?])),
        (None, Some(several), None) if several.get_ref().is_empty() => {
            error_at(several.span(), "at least one path")
        }
        (None, Some(several), None) => {
            let paths = several.get_ref().iter().map(path);
            Ok(Paths::Named(paths.collect::<Checked<_>>()?))
        }
        (None, None, Some(file)) => Ok(Paths::File(text(file, PlaceholderScope::Shared)?)),
        _ => error_at(
            raw.span(),
            "one of `path`, `paths` and `paths_file`, not several",
        ),
    }
}

fn path(path: &Text) -> Checked<String> {
    match is_request_path(path.get_ref()) {
        true => Ok(path.get_ref().clone()),
        false => error_at(path.span(), PATH_RULE),
    }
}

fn headers(raw: &BTreeMap<Text, Text>) -> Checked<Vec<(String, String)>> {
    let header = |(name, value): (&Text, &Text)| {
        if !is_token(name.get_ref().as_bytes()) {
            return error_at(name.span(), "not a field name (RFC 9110 §5.1)");
        }
        if value
            .get_ref()
            .chars()
            .any(|one| one.is_control() && one != '\t')
        {
            return error_at(value.span(), "no line breaks in a field value");
        }
        Ok((name.get_ref().clone(), value.get_ref().clone()))
    };
    raw.iter().map(header).collect()
}

fn expect(raw: &Spanned<raw::Expect>) -> Checked<Expect> {
    let expect = raw.get_ref();
    let status = match &expect.status {
        None => 200,
        Some(status) if (200..600).contains(status.get_ref()) => *status.get_ref(),
        Some(status) => return error_at(status.span(), "a status from 200 to 599"),
    };
    let body = match (&expect.body, &expect.contains) {
        (None, None) => ExpectedBody::Any,
        (Some(body), None) => ExpectedBody::Exact(body.clone()),
        (None, Some(text)) => ExpectedBody::Contains(text.clone()),
        (Some(_), Some(_)) => return error_at(raw.span(), "either `body` or `contains`, not both"),
    };
    Ok(Expect { status, body })
}

fn connections(raw: &Spanned<raw::Connections>) -> Checked<Vec<u32>> {
    let list = match raw.get_ref() {
        raw::Connections::One(one) => vec![*one],
        raw::Connections::List(list) => list.clone(),
        raw::Connections::Range(range) => {
            ladder(range).map_err(|message| LocatedError::at(raw.span(), message))?
        }
    };
    if list.is_empty() {
        return error_at(raw.span(), "at least one number of connections");
    }
    if list.len() > MAX_POINTS {
        let message = format!("{} points; at most {MAX_POINTS}", list.len());
        return error_at(raw.span(), message);
    }
    match list
        .iter()
        .find(|one| !(1..=MAX_CONNECTIONS).contains(*one))
    {
        None => Ok(list),
        Some(one) => error_at(
            raw.span(),
            format!("{one} connections; from 1 to {MAX_CONNECTIONS}"),
        ),
    }
}

/// 1, 11, 21, ... by a step; 1, 2, 4, ... by a factor.
fn ladder(range: &raw::Range) -> Result<Vec<u32>, String> {
    let raw::Range { from, to, .. } = *range;
    if from == 0 || to < from || to > MAX_CONNECTIONS {
        let message = format!("`from` at least 1, `to` not below it and at most {MAX_CONNECTIONS}");
        return Err(message);
    }
    match (range.step, range.factor) {
        (Some(step), None) if step > 0 => {
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            Ok((from..=to).step_by(step).collect())
        }
        (None, Some(factor)) if factor > 1.0 && factor.is_finite() => {
            let mut list: Vec<u32> = Vec::new();
            let mut next = f64::from(from);
            while next <= f64::from(to) {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between `from` and `to`"
                )]
                let rung = next.round() as u32;
                // A small factor rounds to the same number more than once.
                if list.last() != Some(&rung) {
                    list.push(rung);
                }
                // At least the next number, or a factor close to 1 would never reach the end.
                next = (next * factor).max(next + 0.5);
            }
            Ok(list)
        }
        (Some(_), Some(_)) | (None, None) => Err("either `step` or `factor`".to_owned()),
        (Some(_), None) => Err("`step` at least 1".to_owned()),
        (None, Some(_)) => Err("`factor` above 1".to_owned()),
    }
}

fn deployments(raw: &[Spanned<raw::Deployment>]) -> Checked<Vec<Deployment>> {
    let mut names = HashSet::new();
    let mut checked = Vec::new();
    for one in raw {
        let deployment = deployment(one)?;
        if !names.insert(deployment.name.clone()) {
            let message = format!("a second deployment `{}`", deployment.name);
            return error_at(one.get_ref().name.span(), message);
        }
        checked.push(deployment);
    }
    match checked.is_empty() {
        true => error_at(0..0, "no deployment: [[deployments]] is missing"),
        false => Ok(checked),
    }
}

fn beside(raw: &Spanned<raw::Beside>) -> Checked<Companion> {
    let beside = raw.get_ref();
    Ok(Companion {
        files: files(&beside.files)?,
        start: commands(&beside.start, &raw.span())?,
        url: url(&beside.url)?,
    })
}

fn deployment(raw: &Spanned<raw::Deployment>) -> Checked<Deployment> {
    let deployment = raw.get_ref();
    let url = match &deployment.url {
        None => "http://127.0.0.1:{{port}}".to_owned(),
        Some(url) => self::url(url)?,
    };
    let size = |text: &Text| {
        let size = parse_size(text.get_ref()).filter(|size| *size > 0);
        size.ok_or_else(|| LocatedError::at(text.span(), "expected a size such as \"600MB\""))
    };
    let rate = |text: &Text| {
        let rate = parse_rate(text.get_ref()).filter(|rate| *rate > 0);
        rate.ok_or_else(|| LocatedError::at(text.span(), "expected a rate such as \"100MB/s\""))
    };
    Ok(Deployment {
        name: non_empty_text(&deployment.name, "a name")?,
        setup: texts(&deployment.setup, PlaceholderScope::Shared)?,
        files: files(&deployment.files)?,
        start: commands(&deployment.start, &raw.span())?,
        env: env(&deployment.env)?,
        url,
        versions: texts(&deployment.versions, PlaceholderScope::Shared)?,
        memory: deployment.memory.as_ref().map(size).transpose()?,
        disk_read: deployment.disk_read.as_ref().map(rate).transpose()?,
    })
}

fn commands(raw: &[Text], whole: &Range<usize>) -> Checked<Vec<String>> {
    match raw.is_empty() {
        true => error_at(whole.clone(), "no command: `start` is missing"),
        false => texts(raw, PlaceholderScope::Start),
    }
}

fn url(raw: &Text) -> Checked<String> {
    match is_url(raw.get_ref()) {
        true => text(raw, PlaceholderScope::Start),
        false => error_at(raw.span(), "expected http://HOST:PORT or unix:PATH"),
    }
}

fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://");
    let rest = rest.or_else(|| text.strip_prefix("unix:"));
    rest.is_some_and(|rest| !rest.is_empty())
}

fn files(raw: &BTreeMap<Text, Text>) -> Checked<Vec<(String, String)>> {
    let file = |(name, content): (&Text, &Text)| {
        let path = Path::new(name.get_ref());
        let is_below = |part| matches!(part, Component::Normal(_));
        if path.as_os_str().is_empty() || !path.components().all(is_below) {
            return error_at(name.span(), "a path below {{dir}}");
        }
        Ok((
            text(name, PlaceholderScope::Start)?,
            text(content, PlaceholderScope::Start)?,
        ))
    };
    raw.iter().map(file).collect()
}

fn env(raw: &BTreeMap<Text, Text>) -> Checked<Vec<(String, String)>> {
    let variable = |(name, value): (&Text, &Text)| {
        if name.get_ref().is_empty() || name.get_ref().contains(['=', '\0']) {
            return error_at(name.span(), "not the name of an environment variable");
        }
        Ok((
            name.get_ref().clone(),
            text(value, PlaceholderScope::Start)?,
        ))
    };
    raw.iter().map(variable).collect()
}

fn goal(raw: &Spanned<raw::Goal>, deployments: &[Deployment], loads: &Loads) -> Checked<Goal> {
    let goal = raw.get_ref();
    let bound = bound(raw, deployments, loads)?;
    let is_ratio = matches!(
        bound,
        GoalBound::CpuRatio { .. }
            | GoalBound::RequestsRatio { .. }
            | GoalBound::MemoryRatio { .. }
            | GoalBound::P99Ratio { .. }
    );
    if let (false, Some(to)) = (is_ratio, &goal.to) {
        return error_at(to.span(), "`to` belongs to a ratio");
    }
    if let Some(one) = &goal.connections {
        let is_point = matches!(loads, Loads::Sweep { connections, .. } if connections.contains(one.get_ref()));
        if !is_point {
            return error_at(one.span(), "no point of the load has these connections");
        }
        if let GoalBound::ThroughputRetained(_) = bound {
            return error_at(one.span(), "`requests_held` is about all points");
        }
    }
    Ok(Goal {
        deployment: deployment_name(&goal.deployment, deployments)?,
        connections: goal.connections.as_ref().map(|one| *one.get_ref()),
        bound,
    })
}

fn bound(
    raw: &Spanned<raw::Goal>,
    deployments: &[Deployment],
    loads: &Loads,
) -> Checked<GoalBound> {
    let goal = raw.get_ref();
    let to = || match &goal.to {
        Some(to) => deployment_name(to, deployments),
        None => error_at(raw.span(), "a ratio needs `to`, the other deployment"),
    };
    let ratio = goal.cpu_ratio.as_ref().map(|ratio| {
        let (at_most, to) = (positive_number(ratio)?, to()?);
        Ok(GoalBound::CpuRatio { at_most, to })
    });
    let more = goal.requests_ratio.as_ref().map(|ratio| {
        let (at_least, to) = (positive_number(ratio)?, to()?);
        Ok(GoalBound::RequestsRatio { at_least, to })
    });
    let memory = goal.memory_ratio.as_ref().map(|ratio| {
        let (at_most, to) = (positive_number(ratio)?, to()?);
        Ok(GoalBound::MemoryRatio { at_most, to })
    });
    let p99 = goal.p99_ratio.as_ref().map(|ratio| {
        let (load, at_most, to) = (part_of_mix(raw, loads)?, positive_number(ratio)?, to()?);
        Ok(GoalBound::P99Ratio { load, at_most, to })
    });
    let one = |raw: &Option<Spanned<f64>>, bound: fn(f64) -> GoalBound| {
        raw.as_ref().map(|raw| positive_number(raw).map(bound))
    };
    let errors = goal.errors.as_ref();
    let of_alone = goal.of_alone.as_ref().map(|ratio| {
        let (load, at_least) = (measured_alone(raw, loads)?, positive_number(ratio)?);
        Ok(GoalBound::OfAlone { load, at_least })
    });
    let p99_of_alone = goal.p99_of_alone.as_ref().map(|ratio| {
        let (load, at_most) = (measured_alone(raw, loads)?, positive_number(ratio)?);
        Ok(GoalBound::P99OfAlone { load, at_most })
    });
    if let (Some(load), None, None, None) = (&goal.load, &of_alone, &p99_of_alone, &p99) {
        return error_at(
            load.span(),
            "`load` belongs to `of_alone`, `p99_of_alone` and `p99_ratio`",
        );
    }
    let mut bounds = [
        ratio,
        more,
        memory,
        p99,
        one(&goal.p99_ms, GoalBound::P99Ms),
        one(&goal.cpu_us, GoalBound::CpuMicros),
        one(&goal.requests_held, GoalBound::ThroughputRetained),
        errors.map(|errors| Ok(GoalBound::Errors(*errors.get_ref()))),
        of_alone,
        p99_of_alone,
    ]
    .into_iter()
    .flatten();
    match (bounds.next(), bounds.next()) {
        (Some(bound), None) => bound,
        _ => error_at(
            raw.span(),
            "one of `cpu_ratio`, `requests_ratio`, `memory_ratio`, `p99_ratio`, `p99_ms`, `cpu_us`, \
             `requests_held`, `of_alone`, `p99_of_alone` and `errors`",
        ),
    }
}

/// The load of a goal about one load of a mix.
fn part_of_mix(raw: &Spanned<raw::Goal>, loads: &Loads) -> Checked<String> {
    let Some(name) = &raw.get_ref().load else {
        return error_at(
            raw.span(),
            "it needs `load`, the name of one of `[[loads]]`",
        );
    };
    match loads.iter().any(|load| load.name == *name.get_ref()) {
        true => Ok(name.get_ref().clone()),
        false => error_at(name.span(), "no load has that name"),
    }
}

/// The load of a goal that compares it with itself alone.
fn measured_alone(raw: &Spanned<raw::Goal>, loads: &Loads) -> Checked<String> {
    let Some(name) = &raw.get_ref().load else {
        return error_at(
            raw.span(),
            "it needs `load`, the name of a load with `alone = true`",
        );
    };
    match loads
        .iter()
        .any(|load| load.alone && load.name == *name.get_ref())
    {
        true => Ok(name.get_ref().clone()),
        false => error_at(name.span(), "no load of that name has `alone = true`"),
    }
}

fn deployment_name(name: &Text, deployments: &[Deployment]) -> Checked<String> {
    if deployments.iter().any(|one| one.name == *name.get_ref()) {
        return Ok(name.get_ref().clone());
    }
    error_at(
        name.span(),
        format!("no deployment is named `{}`", name.get_ref()),
    )
}

fn texts(raw: &[Text], scope: PlaceholderScope) -> Checked<Vec<String>> {
    raw.iter().map(|one| text(one, scope)).collect()
}

fn optional_text(raw: Option<&Text>, scope: PlaceholderScope) -> Checked<Option<String>> {
    raw.map(|one| text(one, scope)).transpose()
}

/// A text with known placeholders only.
fn text(raw: &Text, scope: PlaceholderScope) -> Checked<String> {
    if raw.get_ref().contains('\0') {
        return error_at(raw.span(), "no NUL in a text");
    }
    match unknown_placeholder(raw.get_ref(), scope) {
        None => Ok(raw.get_ref().clone()),
        Some(name) => error_at(raw.span(), format!("no placeholder {{{{{name}}}}} here")),
    }
}

fn non_empty_text(raw: &Text, what: &str) -> Checked<String> {
    match raw.get_ref().trim() {
        "" => error_at(raw.span(), format!("{what} that is not empty")),
        text => Ok(text.to_owned()),
    }
}

fn duration(raw: Option<&Text>, default: Duration) -> Checked<Duration> {
    let Some(text) = raw else {
        return Ok(default);
    };
    let message = "expected a duration such as \"4s\" or \"200ms\", at most a year";
    parse_duration(text.get_ref()).ok_or_else(|| LocatedError::at(text.span(), message))
}

fn positive(raw: &Spanned<u32>) -> Checked<u32> {
    match raw.get_ref() {
        0 => error_at(raw.span(), "at least 1"),
        number => Ok(*number),
    }
}

fn positive_number(raw: &Spanned<f64>) -> Checked<f64> {
    let number = *raw.get_ref();
    match number > 0.0 && number.is_finite() {
        true => Ok(number),
        false => error_at(raw.span(), "a number above 0"),
    }
}

fn rate(raw: &Spanned<f64>) -> Checked<f64> {
    let rate = positive_number(raw)?;
    match rate <= MAX_RATE {
        true => Ok(rate),
        false => error_at(raw.span(), format!("at most {MAX_RATE} a second")),
    }
}

fn error_at<T>(span: Range<usize>, message: impl Into<String>) -> Checked<T> {
    Err(LocatedError::at(span, message))
}
