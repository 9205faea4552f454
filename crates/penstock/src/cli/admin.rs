//! The verbs that send a request to a running server: `status`, `reload`, `upgrade`, `reopen`,
//! `stop`, `restart`, `purge`. `publish` has its own file and shares the connection code.
//!
//! A small HTTP/1.1 client over TCP or a Unix socket, one request per connection. Exits with 1 and
//! the server's message when the server cannot be reached or refuses.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::status_text::{format_status, format_value};
use super::target::{self, AdminTarget, connect};
use super::{PurgeArguments, ServerLocation, pluralize, print_error, print_line};
use crate::upgrade_protocol::UpgradeOutcome;

/// How long a server may take to answer a query.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a restart or reload may take: longer than the boot timeout of large applications.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a purge may take: searching the index of millions of objects, after other purges.
const PURGE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the new server may take to answer after an upgrade.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(10);

/// How long `stop` waits for the server's exit.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn status(to: &ServerLocation, json: bool) -> ExitCode {
    print_result(target::locate_for_reading(to).and_then(|target| {
        let answer =
            send_request(&target, "GET", "/status.json", RESPONSE_TIMEOUT)?.into_result()?;
        if json {
            return Ok(answer);
        }
        let value: Value =
            serde_json::from_str(&answer).map_err(|error| format!("unreadable status: {error}"))?;
        Ok(format_status(&value))
    }))
}

pub(super) fn reload(to: &ServerLocation) -> ExitCode {
    let answer = target::locate_for_changes(to)
        .and_then(|target| send_request(&target, "POST", "/reload", CHANGE_TIMEOUT)?.into_result());
    print_result(answer.map(|_| "reloaded".to_owned()))
}

pub(super) fn restart(to: &ServerLocation, app: &str) -> ExitCode {
    let path = format!("/apps/{app}/restart");
    let answer = target::locate_for_changes(to)
        .and_then(|target| send_request(&target, "POST", &path, CHANGE_TIMEOUT)?.into_result());
    print_result(answer.map(|_| format!("{app}: restarted")))
}

/// Upgrades, and waits until the new server answers: at the same address, or at the one in its
/// configuration.
pub(super) fn upgrade(to: &ServerLocation, binary: Option<&Path>) -> ExitCode {
    print_result(target::locate_for_changes(to).and_then(|target| {
        let cwd = std::env::current_dir().map_err(|error| error.to_string())?;
        let body = match binary {
            Some(binary) => json!({ "binary": cwd.join(binary).display().to_string() }).to_string(),
            None => String::new(),
        };
        let old = pid_of_server(&target)?;
        let answer = send_json_request(&target, ("POST", "/upgrade"), &body, CHANGE_TIMEOUT)?
            .into_result()?;
        let value: Value = serde_json::from_str(&answer).unwrap_or_default();
        let told = format_value(&value["message"]);
        // Its control socket may be another, too.
        let mut places = vec![target];
        match UpgradeOutcome::parse_new_admin(&told) {
            // Without an admin address the address for changes may be the only one.
            Some(None) => {}
            Some(Some(elsewhere)) => places.insert(0, AdminTarget::without_token(elsewhere)),
            None => places.extend(target::locate_for_reading(to)),
        }
        let deadline = Instant::now() + SUCCESSOR_TIMEOUT;
        loop {
            let follows = |place: &&AdminTarget| pid_of_server(place).is_ok_and(|pid| pid != old);
            let place = places.iter().find(follows);
            let readiness =
                place.map(|place| send_request(place, "GET", "/readyz", RESPONSE_TIMEOUT));
            if readiness.is_some_and(|answer| answer.is_ok_and(|it| it.status == 200)) {
                return Ok(format!("upgraded: {told}"));
            }
            if Instant::now() > deadline {
                let place = places.first().map(|place| place.address.to_string());
                let place = place.unwrap_or_default();
                return Err(format!("{told}, but does not answer at {place}"));
            }
            sleep_briefly();
        }
    }))
}

fn pid_of_server(target: &AdminTarget) -> Result<u64, String> {
    let status = send_request(target, "GET", "/status.json", RESPONSE_TIMEOUT)?.into_result()?;
    let status: Option<Value> = serde_json::from_str(&status).ok();
    let pid = status.as_ref().and_then(|status| status["pid"].as_u64());
    pid.ok_or_else(|| format!("{} does not report its process id", target.address))
}

pub(super) fn reopen(to: &ServerLocation) -> ExitCode {
    print_result(target::locate_for_changes(to).and_then(|target| {
        let answer =
            send_request(&target, "POST", "/logs/reopen", RESPONSE_TIMEOUT)?.into_result()?;
        let value: Value = serde_json::from_str(&answer).unwrap_or_default();
        Ok(format_value(&value["message"]))
    }))
}

fn sleep_briefly() {
    #[expect(clippy::disallowed_methods, reason = "a command line tool, not a loop")]
    std::thread::sleep(Duration::from_millis(20));
}

pub(super) fn stop(to: &ServerLocation) -> ExitCode {
    print_result(target::locate_for_changes(to).and_then(|target| {
        send_request(&target, "POST", "/stop", RESPONSE_TIMEOUT)?.into_result()?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        // The admin interface closes last.
        while connect(&target.address, RESPONSE_TIMEOUT).is_ok() {
            if Instant::now() > deadline {
                return Err("it is still finishing requests".to_owned());
            }
            sleep_briefly();
        }
        Ok("stopped".to_owned())
    }))
}

pub(super) fn purge(to: &ServerLocation, what: &PurgeArguments, cache: Option<&str>) -> ExitCode {
    let mut wanted = match (&what.url, &what.prefix, &what.tag) {
        (Some(url), ..) => json!({ "url": url }),
        (_, Some(prefix), _) => json!({ "prefix": prefix }),
        (.., Some(tag)) => json!({ "tag": tag }),
        _ => json!({ "all": what.all }),
    };
    if let Some(name) = cache {
        wanted["cache"] = json!(name);
    }
    let answer = target::locate_for_changes(to).and_then(|target| {
        let body = wanted.to_string();
        let answer = send_json_request(&target, ("POST", "/cache/purge"), &body, PURGE_TIMEOUT)?
            .into_result()?;
        let value: Option<Value> = serde_json::from_str(&answer).ok();
        let objects = value.as_ref().and_then(|value| value["objects"].as_u64());
        objects.ok_or_else(|| format!("unreadable response: {answer}"))
    });
    print_result(answer.map(|objects| format!("purged {}", pluralize(objects, "object"))))
}

pub(super) fn print_result(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) => {
            print_line(&text);
            ExitCode::SUCCESS
        }
        Err(text) => {
            print_error(&text);
            ExitCode::FAILURE
        }
    }
}

pub(super) trait ClientStream: Read + Write {}
impl<T: Read + Write> ClientStream for T {}

pub(super) struct AdminResponse {
    status: u16,
    body: String,
}

impl AdminResponse {
    /// Returns the body.
    ///
    /// # Errors
    /// The server's message, when it refuses.
    pub(super) fn into_result(self) -> Result<String, String> {
        if self.status < 300 {
            return Ok(self.body);
        }
        let value: Option<Value> = serde_json::from_str(&self.body).ok();
        let error = value.as_ref().and_then(|value| value["error"].as_str());
        Err(error.unwrap_or_else(|| self.body.trim_end()).to_owned())
    }
}

/// Sends a request to a server.
///
/// # Errors
/// The server cannot be reached, or its response is invalid.
pub(super) fn send_request(
    target: &AdminTarget,
    method: &str,
    path: &str,
    patience: Duration,
) -> Result<AdminResponse, String> {
    send_json_request(target, (method, path), "", patience)
}

/// As [`send_request`], with a JSON body.
fn send_json_request(
    target: &AdminTarget,
    (method, path): (&str, &str),
    body: &str,
    patience: Duration,
) -> Result<AdminResponse, String> {
    let address = &target.address;
    let exchange = || -> std::io::Result<Vec<u8>> {
        let mut channel = connect(address, patience)?;
        let (length, authorization) = (body.len(), target.authorization_header());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        channel.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        channel.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(|error| target::explain_connect_error(address, &error))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| format!("{address} does not speak HTTP"))?;
    Ok(AdminResponse {
        status,
        body: body.to_owned(),
    })
}
