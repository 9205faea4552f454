//! Parses the JSON of `POST /apps/NAME/pause`, `POST /upstreams/NAME/pause` and
//! `POST /maintenance`.
//!
//! # Invariants
//! - A body is accepted as a whole or refused with the expected form.

use std::time::Duration;

use penstock_rules::MaintenanceRule;
use serde::Deserialize;

use crate::ChangeError;
use crate::server_changes::parse_object;

/// The longest time that requests may wait for a paused back end: clients give up before.
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// The longest `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30 * 86_400);

/// The most networks of one command.
const MAX_NETWORKS: usize = 1000;

/// A change of maintenance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaintenanceChange {
    /// On, as the rule says.
    On(MaintenanceRule),
    /// Off for a site; without one for all sites, those with a rule of their own too.
    Off(Option<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    #[serde(default = "default_pause")]
    for_seconds: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MaintenanceBody {
    on: bool,
    site: Option<String>,
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default = "default_retry_after")]
    retry_after_seconds: u64,
}

fn default_pause() -> f64 {
    30.0
}

fn default_retry_after() -> u64 {
    600
}

/// How long requests wait. An empty body has the default.
///
/// # Errors
/// The mistake, and the expected form.
pub(crate) fn parse_pause(text: &[u8]) -> Result<Duration, ChangeError> {
    const EXPECTED: &str = "nothing, or {\"for_seconds\": 30}, from 0.001 to 3600";
    let text = if text.is_empty() { b"{}" } else { text };
    let PauseBody { for_seconds } = parse_object(text, EXPECTED)?;
    let time = Duration::try_from_secs_f64(for_seconds).ok();
    let time = time.filter(|time| (Duration::from_millis(1)..=MAX_PAUSE).contains(time));
    time.ok_or_else(|| {
        let problem = format!("{for_seconds} seconds is no time to pause for: expected {EXPECTED}");
        ChangeError::bad_request(problem)
    })
}

/// A change of maintenance.
///
/// # Errors
/// The mistake, and the expected form.
pub(crate) fn parse_maintenance(text: &[u8]) -> Result<MaintenanceChange, ChangeError> {
    const EXPECTED: &str = "an object such as {\"on\": true, \"site\": \"example.com\", \"allow\": \
         [\"10.0.0.0/8\"], \"retry_after_seconds\": 600}; all but `on` may be left out";
    let body: MaintenanceBody = parse_object(text, EXPECTED)?;
    let refuse = |problem: &str| {
        Err(ChangeError::bad_request(format!(
            "{problem}: expected {EXPECTED}"
        )))
    };
    if body.allow.len() > MAX_NETWORKS {
        return refuse("more than 1000 networks");
    }
    if body.retry_after_seconds > MAX_RETRY_AFTER.as_secs() {
        return refuse("`retry_after_seconds` is above 30 days");
    }
    if !body.on {
        return match body.allow.is_empty() {
            true => Ok(MaintenanceChange::Off(body.site)),
            false => refuse("`allow` is for maintenance that is on"),
        };
    }
    let retry_after = Duration::from_secs(body.retry_after_seconds);
    let rule = MaintenanceRule::new(body.site, body.allow, retry_after);
    Ok(MaintenanceChange::On(rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_has_a_time_within_bounds() {
        for (text, expected) in [
            ("", Some(30_000)),
            ("{}", Some(30_000)),
            ("{\"for_seconds\": 0.5}", Some(500)),
            ("{\"for_seconds\": 3600}", Some(3_600_000)),
            ("{\"for_seconds\": 0}", None),
            ("{\"for_seconds\": -1}", None),
            ("{\"for_seconds\": 1e300}", None),
            ("{\"for\": 1}", None),
            ("[30]", None),
        ] {
            let found = parse_pause(text.as_bytes());
            assert_eq!(found.ok(), expected.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn maintenance_is_on_by_a_rule_or_off() {
        let on = |site: Option<&str>, allow: &[&str], seconds| {
            let allow = allow.iter().map(|text| (*text).to_owned()).collect();
            let retry_after = Duration::from_secs(seconds);
            MaintenanceChange::On(MaintenanceRule::new(
                site.map(str::to_owned),
                allow,
                retry_after,
            ))
        };
        for (text, expected) in [
            ("{\"on\": true}", Some(on(None, &[], 600))),
            (
                "{\"on\": true, \"site\": \"a\", \"allow\": [\"unix\"], \"retry_after_seconds\": 5}",
                Some(on(Some("a"), &["unix"], 5)),
            ),
            ("{\"on\": false}", Some(MaintenanceChange::Off(None))),
            (
                "{\"on\": false, \"site\": \"a\"}",
                Some(MaintenanceChange::Off(Some("a".to_owned()))),
            ),
            ("{\"on\": false, \"allow\": [\"unix\"]}", None),
            ("{\"on\": true, \"retry_after_seconds\": 9999999}", None),
            ("{}", None),
            ("true", None),
        ] {
            assert_eq!(parse_maintenance(text.as_bytes()).ok(), expected, "{text}");
        }
    }
}
