//! The verbs that speak to a running server: `status`, `reload`, `stop`, `restart`, `purge`.
//!
//! A small HTTP/1.1 client over TCP or a Unix socket, one request a connection. Exit code 1 when the
//! server cannot be reached or says no, with its own words.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use penstock_config::{Invocation, ListenAddr};
use serde_json::{Value, json};

use super::{AdminArguments, PurgeArguments, complain, count, say};

/// How long a server may take to answer a question.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a restart or reload may take: the boot time-out of large applications and some.
const CHANGE: Duration = Duration::from_secs(600);

/// How long a purge may take: looking through the index of millions of objects, behind other purges.
const PURGE: Duration = Duration::from_secs(60);

/// How long `stop` waits for the server to be gone.
const STOP: Duration = Duration::from_secs(120);

pub(super) fn status(to: &AdminArguments, json: bool) -> ExitCode {
    finish(address(to).and_then(|address| {
        let answer = ask(&address, "GET", "/status.json", ANSWER)?.ok()?;
        if json {
            return Ok(answer);
        }
        let value: Value =
            serde_json::from_str(&answer).map_err(|error| format!("unreadable status: {error}"))?;
        Ok(in_words(&value))
    }))
}

pub(super) fn reload(to: &AdminArguments) -> ExitCode {
    let answer = address(to).and_then(|address| ask(&address, "POST", "/reload", CHANGE)?.ok());
    finish(answer.map(|_| "reloaded".to_owned()))
}

pub(super) fn restart(to: &AdminArguments, app: &str) -> ExitCode {
    let path = format!("/apps/{app}/restart");
    let answer = address(to).and_then(|address| ask(&address, "POST", &path, CHANGE)?.ok());
    finish(answer.map(|_| format!("{app}: restarted")))
}

pub(super) fn stop(to: &AdminArguments) -> ExitCode {
    finish(address(to).and_then(|address| {
        ask(&address, "POST", "/stop", ANSWER)?.ok()?;
        let deadline = Instant::now() + STOP;
        // The admin interface is the last to go.
        while connect(&address, ANSWER).is_ok() {
            if Instant::now() > deadline {
                return Err("it is still finishing requests".to_owned());
            }
            #[expect(clippy::disallowed_methods, reason = "a command line tool, not a loop")]
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok("stopped".to_owned())
    }))
}

pub(super) fn purge(to: &AdminArguments, what: &PurgeArguments, cache: Option<&str>) -> ExitCode {
    let mut wanted = match (&what.url, &what.prefix, &what.tag) {
        (Some(url), ..) => json!({ "url": url }),
        (_, Some(prefix), _) => json!({ "prefix": prefix }),
        (.., Some(tag)) => json!({ "tag": tag }),
        _ => json!({ "all": what.all }),
    };
    if let Some(name) = cache {
        wanted["cache"] = json!(name);
    }
    let answer = address(to).and_then(|address| {
        let body = wanted.to_string();
        let answer = ask_with(&address, ("POST", "/cache/purge"), &body, PURGE)?.ok()?;
        let value: Option<Value> = serde_json::from_str(&answer).ok();
        let objects = value.as_ref().and_then(|value| value["objects"].as_u64());
        objects.ok_or_else(|| format!("unreadable answer: {answer}"))
    });
    finish(answer.map(|objects| format!("purged {}", count(objects, "object"))))
}

fn finish(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(text) => {
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

fn address(to: &AdminArguments) -> Result<ListenAddr, String> {
    if let Some(address) = &to.admin {
        return Ok(address.clone());
    }
    let cwd = std::env::current_dir().map_err(|error| error.to_string())?;
    let file = to
        .config
        .clone()
        .unwrap_or_else(|| cwd.join(penstock_config::FILE_NAME));
    if to.config.is_none() && !file.exists() {
        return Ok(ListenAddr::loopback(8090));
    }
    let invocation = Invocation {
        config: Some(file),
        cwd,
        ..Invocation::default()
    };
    let config = penstock_config::resolve(&invocation).map_err(|report| report.to_string())?;
    config
        .server
        .admin
        .ok_or_else(|| "the configuration has `admin = \"off\"`".to_owned())
}

trait Channel: Read + Write {}
impl<T: Read + Write> Channel for T {}

fn connect(address: &ListenAddr, patience: Duration) -> std::io::Result<Box<dyn Channel>> {
    match address {
        ListenAddr::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, ANSWER)?;
            stream.set_read_timeout(Some(patience))?;
            Ok(Box::new(stream))
        }
        ListenAddr::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(patience))?;
            Ok(Box::new(stream))
        }
    }
}

/// A server's answer.
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    fn ok(self) -> Result<String, String> {
        if self.status < 300 {
            return Ok(self.body);
        }
        let value: Option<Value> = serde_json::from_str(&self.body).ok();
        let error = value.as_ref().and_then(|value| value["error"].as_str());
        Err(error.unwrap_or_else(|| self.body.trim_end()).to_owned())
    }
}

fn ask(
    address: &ListenAddr,
    method: &str,
    path: &str,
    patience: Duration,
) -> Result<Answer, String> {
    ask_with(address, (method, path), "", patience)
}

/// The same with a JSON text.
fn ask_with(
    address: &ListenAddr,
    (method, path): (&str, &str),
    body: &str,
    patience: Duration,
) -> Result<Answer, String> {
    let exchange = || -> std::io::Result<Vec<u8>> {
        let mut channel = connect(address, patience)?;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        channel.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        channel.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(|error| format!("no server at {address}: {error}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| format!("{address} does not speak HTTP"))?;
    Ok(Answer {
        status,
        body: body.to_owned(),
    })
}

/// The status as a person reads it at a terminal.
fn in_words(status: &Value) -> String {
    let mut lines = vec![format!(
        "{}, pid {}, up {} s, {}, {}",
        text(&status["state"]),
        text(&status["pid"]),
        status["uptime_seconds"].as_f64().unwrap_or(0.0).round(),
        many(&status["traffic"]["requests_total"], "request"),
        many(&status["connections"]["used"], "connection"),
    )];
    for app in elements(&status["apps"]) {
        app_in_words(app, &mut lines);
    }
    for upstream in elements(&status["upstreams"]) {
        upstream_in_words(upstream, &mut lines);
    }
    for cache in elements(&status["caches"]) {
        lines.push(cache_in_words(cache));
    }
    lines.join("\n")
}

fn app_in_words(app: &Value, lines: &mut Vec<String>) {
    let (name, kind) = (text(&app["name"]), text(&app["kind"]));
    let queue = &app["queue"];
    // Servers of their own have the queue and the slots of their upstream, which follows.
    let slots = match kind.as_str() {
        "command" | "fastcgi" => String::new(),
        _ => format!(
            ", {} of {} slots busy, {} waiting (at most {})",
            text(&queue["in_progress"]),
            text(&queue["slots"]),
            text(&queue["waiting"]),
            text(&queue["max"]),
        ),
    };
    lines.push(format!(
        "app {name}: {kind}, {}{slots}",
        text(&app["state"])
    ));
    for worker in elements(&app["workers"]) {
        let megabytes = worker["resident_bytes"].as_f64().unwrap_or(0.0) / 1_048_576.0;
        lines.push(format!(
            "  worker {}: {}, generation {}, {} in progress, {megabytes:.1} MiB",
            text(&worker["pid"]),
            text(&worker["state"]),
            text(&worker["generation"]),
            text(&worker["in_progress"]),
        ));
    }
    if let Some(report) = app["report"].as_str() {
        lines.push(report.trim_end().replace('\n', "\n  "));
    }
}

fn upstream_in_words(upstream: &Value, lines: &mut Vec<String>) {
    let is_up = upstream["up"].as_bool().unwrap_or(false);
    lines.push(format!(
        "upstream {}: {}, {}, {} waiting (at most {})",
        text(&upstream["name"]),
        text(&upstream["protocol"]),
        if is_up { "up" } else { "no server is up" },
        text(&upstream["queue"]["waiting"]),
        text(&upstream["queue"]["max"]),
    ));
    for server in elements(&upstream["servers"]) {
        let bound = match &server["active_max"] {
            Value::Null => String::new(),
            max => format!(" (at most {})", text(max)),
        };
        lines.push(format!(
            "  server {}: {}, {} in progress{bound}, {}, {} failed, {}",
            text(&server["name"]),
            text(&server["state"]),
            text(&server["active"]),
            many(&server["requests"], "request"),
            text(&server["failures"]),
            many(&server["connections_open"], "connection"),
        ));
        if let (Some(error), false) = (server["last_error"].as_str(), server["state"] == "up") {
            lines.push(format!("    {error}"));
        }
    }
}

fn cache_in_words(cache: &Value) -> String {
    let reason = match cache["reason"].as_str() {
        Some(reason) => format!(" ({reason})"),
        None => String::new(),
    };
    let hits = match cache["hit_ratio"].as_f64() {
        Some(ratio) => format!("{:.1} % hits", ratio * 100.0),
        None => "not asked yet".to_owned(),
    };
    let megabytes = |key: &str| cache[key].as_f64().unwrap_or(0.0) / 1_048_576.0;
    format!(
        "cache {}: {}{reason}, {}, {:.1} of {:.1} MiB, {hits}",
        text(&cache["name"]),
        text(&cache["state"]),
        many(&cache["objects"], "object"),
        megabytes("bytes"),
        megabytes("bytes_max"),
    )
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// So many of something; `-` of it when the server does not say how many.
fn many(value: &Value, thing: &str) -> String {
    match value.as_u64() {
        Some(number) => count(number, thing),
        None => format!("{} {thing}s", text(value)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn says_slots_of_applications_that_have_them() {
        let queue = json!({ "in_progress": 1, "slots": 4, "waiting": 0, "max": 50 });
        let app =
            |kind: &str| json!({ "name": kind, "kind": kind, "state": "ready", "queue": queue });
        let kinds = ["wsgi", "rack", "command", "fastcgi"];
        let said = in_words(&json!({ "apps": kinds.map(app) }));
        let said: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(
            said,
            [
                "app wsgi: wsgi, ready, 1 of 4 slots busy, 0 waiting (at most 50)",
                "app rack: rack, ready, 1 of 4 slots busy, 0 waiting (at most 50)",
                "app command: command, ready",
                "app fastcgi: fastcgi, ready",
            ]
        );
    }

    #[test]
    fn says_of_each_cache_what_it_holds_and_why_it_is_out() {
        let cache = json!({
            "name": "disk1", "state": "working", "reason": null, "objects": 1,
            "bytes": 1_572_864, "bytes_max": 104_857_600, "hit_ratio": 0.915,
        });
        let mut out = cache.clone();
        (out["state"], out["reason"]) = (json!("out"), json!("write: No space left on device"));
        (out["objects"], out["hit_ratio"]) = (json!(0), Value::Null);
        let said = in_words(&json!({ "caches": [cache, out] }));
        let said: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(
            said,
            [
                "cache disk1: working, 1 object, 1.5 of 100.0 MiB, 91.5 % hits",
                "cache disk1: out (write: No space left on device), 0 objects, 1.5 of 100.0 MiB, \
                 not asked yet",
            ]
        );
    }

    #[test]
    fn says_of_each_upstream_how_long_its_line_is_and_how_its_servers_do() {
        let server = json!({
            "name": "127.0.0.1:3000", "state": "up", "active": 3, "active_max": 8,
            "requests": 120, "failures": 2, "connections_open": 5, "last_error": "no answer",
        });
        let mut unbounded = server.clone();
        unbounded["name"] = json!("unix:/run/b.sock");
        unbounded["state"] = json!("ejected");
        unbounded["active_max"] = Value::Null;
        (unbounded["requests"], unbounded["connections_open"]) = (json!(1), json!(1));
        let queue = json!({ "waiting": 7, "max": 500 });
        let said = in_words(&json!({ "upstreams": [
            { "name": "backends", "protocol": "http", "up": true, "queue": queue,
              "servers": [server, unbounded] },
            { "name": "legacy", "protocol": "ajp", "up": false, "queue": queue, "servers": [] },
        ] }));
        let said: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(
            said,
            [
                "upstream backends: http, up, 7 waiting (at most 500)",
                "  server 127.0.0.1:3000: up, 3 in progress (at most 8), 120 requests, 2 failed, \
                 5 connections",
                "  server unix:/run/b.sock: ejected, 3 in progress, 1 request, 2 failed, \
                 1 connection",
                "    no answer",
                "upstream legacy: ajp, no server is up, 7 waiting (at most 500)",
            ]
        );
    }
}
