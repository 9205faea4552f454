//! `penstock pause`, `resume` and `maintenance`: traffic that is held back or refused for a while.
//!
//! Each returns the server's sentence on the result.

use std::time::Duration;

use serde_json::{Value, json};

use super::ServerLocation;
use super::admin::message_of;
use super::target::{self, RESPONSE_TIMEOUT};

/// Pauses an application, or an upstream where there is no application of that name.
pub(super) fn pause(to: &ServerLocation, name: &str, max_wait: Duration) -> Result<String, String> {
    let body = json!({ "for_seconds": max_wait.as_secs_f64() });
    change_back_end(to, name, "pause", &body.to_string())
}

/// Ends a pause.
pub(super) fn resume(to: &ServerLocation, name: &str) -> Result<String, String> {
    change_back_end(to, name, "resume", "")
}

fn change_back_end(
    to: &ServerLocation,
    name: &str,
    action: &str,
    body: &str,
) -> Result<String, String> {
    let target = target::locate_write_target(to)?;
    let status = target.fetch_status()?;
    let has = |key: &str| {
        let named = |item: &Value| item["name"] == name;
        status[key]
            .as_array()
            .is_some_and(|items| items.iter().any(named))
    };
    let kind = match (has("apps"), has("upstreams")) {
        (true, _) => "apps",
        (false, true) => "upstreams",
        (false, false) => {
            return Err(format!("there is no application or upstream named {name}"));
        }
    };
    let path = format!("/{kind}/{name}/{action}");
    let answer = target.send("POST", &path, body, RESPONSE_TIMEOUT)?;
    Ok(message_of(&answer))
}

/// What `maintenance` is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum MaintenanceSwitch {
    /// Answer 503
    On,
    /// Serve again
    Off,
}

/// The arguments of `maintenance`.
#[derive(Debug, clap::Args)]
pub(super) struct MaintenanceArguments {
    /// Whether it begins or ends
    switch: MaintenanceSwitch,
    /// Only the site with this host, as the configuration writes it; `*` for the site of any host
    /// [default: all sites]
    #[arg(long, value_name = "HOST")]
    site: Option<String>,
    /// Serve clients of this network, such as 10.0.0.0/8; may be repeated
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<String>,
    /// When clients may come again
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = super::parse_time)]
    retry_after: Duration,
}

/// Takes sites out of service, or serves them again.
pub(super) fn maintenance(
    to: &ServerLocation,
    what: &MaintenanceArguments,
) -> Result<String, String> {
    let mut body = json!({ "on": what.switch == MaintenanceSwitch::On });
    if let Some(site) = &what.site {
        body["site"] = json!(site);
    }
    if !what.allow.is_empty() {
        body["allow"] = json!(what.allow);
    }
    if what.switch == MaintenanceSwitch::On {
        body["retry_after_seconds"] = json!(what.retry_after.as_secs());
    }
    let target = target::locate_write_target(to)?;
    let answer = target.send("POST", "/maintenance", &body.to_string(), RESPONSE_TIMEOUT)?;
    Ok(message_of(&answer))
}
