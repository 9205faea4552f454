//! The verbs that send a request to a running server: `status`, `reload`, `upgrade`, `reopen`,
//! `stop`, `restart`, `purge`, `channels`. `publish` has its own file.
//!
//! Each returns the line to print. An error is the server's message when it refuses, or why it
//! cannot be reached.

use std::path::Path;
use std::time::{Duration, Instant};

use penstock_client::{Client, ClientError};
use penstock_runtime::loops::block_on;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::status_text::{format_status, format_value};
use super::target::{self, AdminTarget, RESPONSE_TIMEOUT};
use super::{PurgeArguments, ServerLocation, pluralize};
use crate::upgrade_protocol::UpgradeOutcome;

/// How long a restart or reload may take: longer than the boot timeout of large applications.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a purge may take: searching the index of millions of objects, after other purges.
const PURGE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the new server may take to answer after an upgrade.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(10);

/// How long `stop` waits for the server's exit.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn status(to: &ServerLocation, json: bool) -> Result<String, String> {
    let target = target::locate_read_target(to)?;
    match json {
        true => target.send("GET", "/status.json", "", RESPONSE_TIMEOUT),
        false => Ok(format_status(&target.fetch_status()?)),
    }
}

pub(super) fn channels(
    to: &ServerLocation,
    channel: Option<&str>,
    namespace: Option<&str>,
    json: bool,
) -> Result<String, String> {
    let wanted = [("channel", channel), ("namespace", namespace)];
    let wanted = wanted.iter().filter_map(|(name, value)| {
        let value = utf8_percent_encode((*value)?, NON_ALPHANUMERIC);
        Some(format!("{name}={value}"))
    });
    let path = format!("/channels?{}", wanted.collect::<Vec<_>>().join("&"));
    let target = target::locate_write_target(to)?;
    let answer = target.send("GET", &path, "", RESPONSE_TIMEOUT)?;
    if json {
        return Ok(answer.trim_end().to_owned());
    }
    let list: Value = serde_json::from_str(&answer).unwrap_or_default();
    let Some(channels) = list["channels"].as_array() else {
        return Err(format!("unreadable response: {answer}"));
    };
    let mut lines: Vec<String> = channels.iter().map(format_channel).collect();
    if list["complete"] == json!(false) {
        lines.push(format!(
            "only {} are listed: name a channel, or the beginning of names and `*`",
            pluralize(channels.len() as u64, "channel")
        ));
    }
    Ok(match lines.is_empty() {
        true => "no channel has subscribers".to_owned(),
        false => lines.join("\n"),
    })
}

fn format_channel(channel: &Value) -> String {
    let subscribers = channel["subscribers"].as_u64().unwrap_or_default();
    let [namespace, name] = ["namespace", "channel"].map(|key| format_value(&channel[key]));
    format!(
        "{namespace} {name}: {}",
        pluralize(subscribers, "subscriber")
    )
}

pub(super) fn reload(to: &ServerLocation) -> Result<String, String> {
    target::locate_write_target(to)?.send("POST", "/reload", "", CHANGE_TIMEOUT)?;
    Ok("reloaded".to_owned())
}

pub(super) fn restart(to: &ServerLocation, app: Option<&str>) -> Result<String, String> {
    let target = target::locate_write_target(to)?;
    let app = match app {
        Some(app) => app.to_owned(),
        None => only_app(&target.fetch_status()?)?,
    };
    let path = format!("/apps/{app}/restart");
    let answer = target.send("POST", &path, "", CHANGE_TIMEOUT)?;
    Ok(match message_of_change(&answer) {
        Some(message) => format!("{app}: restarted {message}"),
        None => format!("{app}: restarted"),
    })
}

/// The only application of a server.
///
/// # Errors
/// There is none, or the commands of which one is meant.
fn only_app(status: &Value) -> Result<String, String> {
    let apps = status["apps"].as_array().into_iter().flatten();
    let name = |app: &Value| app["name"].as_str().map(str::to_owned);
    let is_job = |app: &&Value| app["kind"] == "job";
    let (jobs, apps): (Vec<_>, Vec<_>) = apps.partition(is_job);
    if let [app] = apps[..] {
        return name(app).ok_or_else(|| "the server does not name its application".to_owned());
    }
    let all = apps.into_iter().chain(jobs).filter_map(name);
    let commands: Vec<_> = all.map(|name| format!("penstock restart {name}")).collect();
    match commands.is_empty() {
        true => Err("the server has no application".to_owned()),
        false => Err(format!("which application? {}", commands.join(", "))),
    }
}

/// Upgrades, and waits until the new server answers: at the same address, or at the one in its
/// configuration.
pub(super) fn upgrade(to: &ServerLocation, binary: Option<&Path>) -> Result<String, String> {
    let target = target::locate_write_target(to)?;
    let cwd = std::env::current_dir().map_err(|error| error.to_string())?;
    let body = match binary {
        Some(binary) => json!({ "binary": cwd.join(binary).display().to_string() }).to_string(),
        None => String::new(),
    };
    let old = pid_of_server(&target)?;
    let message = message_of(&target.send("POST", "/upgrade", &body, CHANGE_TIMEOUT)?);
    // Its control socket may be another, too.
    let mut targets = vec![target];
    match UpgradeOutcome::parse_new_admin_address(&message) {
        // Without an admin address the address for changes may be the only one.
        Some(None) => {}
        Some(Some(elsewhere)) => targets.insert(0, AdminTarget::without_token(elsewhere)),
        None => targets.extend(target::locate_read_target(to)),
    }
    let is_ready = |candidate: &AdminTarget| {
        pid_of_server(candidate).is_ok_and(|pid| pid != old)
            && candidate
                .send("GET", "/readyz", "", RESPONSE_TIMEOUT)
                .is_ok()
    };
    let deadline = Instant::now() + SUCCESSOR_TIMEOUT;
    while !targets.iter().any(is_ready) {
        if Instant::now() > deadline {
            let address = &targets[0].address;
            return Err(format!("{message}, but does not answer at {address}"));
        }
        sleep_briefly();
    }
    Ok(format!("upgraded: {message}"))
}

fn pid_of_server(target: &AdminTarget) -> Result<u64, String> {
    let pid = target.fetch_status()?["pid"].as_u64();
    pid.ok_or_else(|| format!("{} does not report its process id", target.address))
}

pub(super) fn reopen(to: &ServerLocation) -> Result<String, String> {
    let target = target::locate_write_target(to)?;
    let answer = target.send("POST", "/logs/reopen", "", RESPONSE_TIMEOUT)?;
    Ok(message_of(&answer))
}

/// The message in a response.
pub(super) fn message_of(answer: &str) -> String {
    let value: Value = serde_json::from_str(answer).unwrap_or_default();
    format_value(&value["message"])
}

pub(super) fn sleep_briefly() {
    #[expect(clippy::disallowed_methods, reason = "a command line tool, not a loop")]
    std::thread::sleep(Duration::from_millis(20));
}

pub(super) fn stop(to: &ServerLocation) -> Result<String, String> {
    let target = target::locate_write_target(to)?;
    let body = json!({ "wait": true }).to_string();
    let report = match target.try_send("POST", "/stop", &body, STOP_TIMEOUT) {
        Ok(response) => message_of_change(&target::read_response(&response)?),
        Err(error @ ClientError::Connect(_)) => return Err(target.explain_error(&error)),
        // A second stop request ends the server before it responds.
        Err(_) => None,
    };
    let deadline = Instant::now() + STOP_TIMEOUT;
    // The admin interface closes last.
    let mut client = Client::new(target.connect_address());
    while block_on(client.connect(RESPONSE_TIMEOUT)).is_ok_and(|connected| connected.is_ok()) {
        if Instant::now() > deadline {
            return Err("it is still finishing requests".to_owned());
        }
        sleep_briefly();
    }
    Ok(match report {
        Some(report) => format!("stopped\n{report}"),
        None => "stopped".to_owned(),
    })
}

/// What a response says beyond success.
fn message_of_change(answer: &str) -> Option<String> {
    let value: Value = serde_json::from_str(answer).unwrap_or_default();
    value["message"].as_str().map(str::to_owned)
}

pub(super) fn purge(
    to: &ServerLocation,
    what: &PurgeArguments,
    cache: Option<&str>,
) -> Result<String, String> {
    let mut wanted = match (&what.url, &what.prefix, &what.tag) {
        (Some(url), ..) => json!({ "url": url }),
        (_, Some(prefix), _) => json!({ "prefix": prefix }),
        (.., Some(tag)) => json!({ "tag": tag }),
        _ => json!({ "all": what.all }),
    };
    if let Some(name) = cache {
        wanted["cache"] = json!(name);
    }
    let target = target::locate_write_target(to)?;
    let answer = target.send("POST", "/cache/purge", &wanted.to_string(), PURGE_TIMEOUT)?;
    let value: Value = serde_json::from_str(&answer).unwrap_or_default();
    match value["objects"].as_u64() {
        Some(objects) => Ok(format!("purged {}", pluralize(objects, "object"))),
        None => Err(format!("unreadable response: {answer}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_application_needs_no_name() {
        let app = |name: &str| json!({ "name": name, "kind": "wsgi" });
        let job = json!({ "name": "mail", "kind": "job" });
        let of = |apps: &[Value]| only_app(&json!({ "apps": apps }));
        assert_eq!(of(&[app("shop")]), Ok("shop".to_owned()));
        assert_eq!(of(&[job.clone(), app("shop")]), Ok("shop".to_owned()));
        assert_eq!(
            of(&[app("shop"), job.clone(), app("blog")]),
            Err(
                "which application? penstock restart shop, penstock restart blog, \
                 penstock restart mail"
                    .to_owned()
            )
        );
        assert_eq!(
            of(&[job]),
            Err("which application? penstock restart mail".to_owned())
        );
        assert_eq!(of(&[]), Err("the server has no application".to_owned()));
    }
}
