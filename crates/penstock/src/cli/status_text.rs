//! Formats the status for a terminal (`penstock status`).
//!
//! `admin` passes a server's JSON, which may be of another version: a missing value is printed as
//! `-`.

use serde_json::Value;

use super::{jobs_text, pluralize};

pub(super) fn format_status(status: &Value) -> String {
    let [version, state, pid] = format_values(status, ["version", "state", "pid"]);
    let mut lines: Vec<String> = array_items(&status["problems"])
        .map(format_problem)
        .collect();
    lines.push(format!(
        "penstock {version} {state}, pid {pid}, up {} s, {}, {} (at most {})",
        status["uptime_seconds"].as_f64().unwrap_or(0.0).round(),
        format_count(&status["traffic"]["requests_total"], "request"),
        format_count(&status["connections"]["used"], "connection"),
        format_value(&status["connections"]["max"]),
    ));
    lines.extend(format_front_end(&status["front_end"]));
    lines.extend(format_certificates(&status["certificates"]));
    lines.extend(format_maintenance(&status["maintenance"]));
    lines.extend(array_items(&status["pauses"]).map(format_pause));
    for app in array_items(&status["apps"]) {
        format_app(app, &mut lines);
    }
    lines.extend(array_items(&status["jobs"]).map(jobs_text::format_job));
    for upstream in array_items(&status["upstreams"]) {
        format_upstream(upstream, &mut lines);
    }
    for cache in array_items(&status["caches"]) {
        lines.push(format_cache(cache));
    }
    lines.extend(format_hub(&status["hub"]));
    lines.join("\n")
}

/// `error: The cache disk1 is out of service.`
fn format_problem(problem: &Value) -> String {
    let [severity, text] = format_values(problem, ["severity", "text"]);
    format!("{severity}: {text}")
}

fn format_front_end(front_end: &Value) -> Option<String> {
    let address = front_end["address"].as_str()?;
    let upstream = format_value(&front_end["upstream"]);
    Some(match front_end["cause"].as_str() {
        None => format!("joined upstream {upstream} at {address}"),
        Some(cause) => format!("not joined to upstream {upstream} at {address}: {cause}"),
    })
}

/// How many certificates there are, and whether they need attention; nothing without TLS.
fn format_certificates(certificates: &Value) -> Option<String> {
    let total = certificates["total"].as_u64().filter(|total| *total > 0)?;
    let count = |key: &str| certificates[key].as_u64().unwrap_or_default();
    let mut line = pluralize(total, "certificate");
    let (invalid, warning) = (count("invalid"), count("warning"));
    if invalid + warning > 0 {
        line.push_str(&format!(
            ": {invalid} invalid, {warning} with a warning (see penstock certificates)"
        ));
    }
    Some(line)
}

/// The sites in maintenance, a line each.
fn format_maintenance(maintenance: &Value) -> Vec<String> {
    let format_rule = |rule: &Value| {
        let site = match rule["site"].as_str() {
            Some(site) => format!("of {site}"),
            None => "of all sites".to_owned(),
        };
        let allowed: Vec<_> = array_items(&rule["allow"]).map(format_value).collect();
        let others = match allowed.is_empty() {
            true => String::new(),
            false => format!(", but for {}", allowed.join(", ")),
        };
        format!("maintenance {site}: clients get 503{others}")
    };
    array_items(&maintenance["rules"])
        .map(format_rule)
        .collect()
}

fn format_pause(pause: &Value) -> String {
    let [kind, name, waiting, max] =
        format_values(pause, ["kind", "name", "waiting", "max_waiting"]);
    let seconds = |key: &str| pause[key].as_f64().unwrap_or_default().round();
    let state = match seconds("remaining_seconds") {
        0.0 => "new requests get 503".to_owned(),
        left => format!("{waiting} requests wait (at most {max}), for up to {left} s"),
    };
    let since = seconds("paused_seconds");
    format!("{kind} {name} is paused for {since} s: {state} (penstock resume {name})")
}

fn format_app(app: &Value, lines: &mut Vec<String>) {
    let [name, kind, state] = format_values(app, ["name", "kind", "state"]);
    // Applications with servers of their own use the queue and slots of their upstream, which
    // follows.
    let slots = match kind.as_str() {
        "command" | "fastcgi" => String::new(),
        _ => {
            let keys = ["active", "slots", "length", "max"];
            let [active, slots, length, max] = format_values(&app["queue"], keys);
            format!(", {active} of {slots} slots busy, {length} queued (at most {max})")
        }
    };
    let processes = format_processes(app);
    lines.push(format!("app {name}: {kind}, {state}, {processes}{slots}"));
    let notes = [
        ("last scaling: ", &app["last_scaling"]),
        ("last failure: ", &app["last_failure"]),
        ("worker start: ", &app["start_method"]),
    ];
    for (what, note) in notes {
        if let Some(note) = note.as_str().filter(|note| !note.is_empty()) {
            lines.push(format!("  {what}{note}"));
        }
    }
    if app["is_restarting"] == true {
        lines.push("  a restart is in progress".to_owned());
    }
    for worker in array_items(&app["workers"]) {
        // The proportional share of shared memory, once it has been measured.
        let memory = worker["proportional_bytes"].as_f64();
        let memory = memory.or_else(|| worker["resident_bytes"].as_f64());
        let megabytes = memory.unwrap_or(0.0) / 1_048_576.0;
        let served = match worker["requests"].as_u64() {
            Some(_) => format!(", {} served", format_count(&worker["requests"], "request")),
            None => String::new(),
        };
        let reason = match worker["replace_reason"].as_str() {
            Some(reason) => format!(", to be replaced: {reason}"),
            None => String::new(),
        };
        let age = worker["age_seconds"].as_f64().unwrap_or(0.0).round();
        let keys = ["pid", "state", "generation", "active"];
        let [pid, state, generation, active] = format_values(worker, keys);
        lines.push(format!(
            "  worker {pid}: {state}, generation {generation}, up {age} s, {active} in \
             progress{served}, {megabytes:.1} MiB{reason}"
        ));
    }
    for template in array_items(&app["templates"]) {
        let megabytes = template["resident_bytes"].as_f64().unwrap_or(0.0) / 1_048_576.0;
        let [pid, generation] = format_values(template, ["pid", "generation"]);
        lines.push(format!(
            "  template {pid}: generation {generation}, {megabytes:.1} MiB"
        ));
    }
    if let Some(report) = app["boot_report"].as_str() {
        lines.push(report.trim_end().replace('\n', "\n  "));
    }
}

/// `2 of 3 processes ready (1 to 4)`, without the bounds if they are equal.
fn format_processes(app: &Value) -> String {
    let keys = ["min", "max", "ready", "target"];
    let [min, max, ready, target] = format_values(&app["processes"], keys);
    let bounds = match min == max {
        true => String::new(),
        false => format!(" ({min} to {max})"),
    };
    let threads = match (app["min_threads"].as_u64(), app["max_threads"].as_u64()) {
        (Some(min), Some(max)) if min < max => {
            let threads = format_value(&app["threads"]);
            format!(", {threads} threads each ({min} to {max})")
        }
        _ => String::new(),
    };
    format!("{ready} of {target} processes ready{bounds}{threads}")
}

fn format_upstream(upstream: &Value, lines: &mut Vec<String>) {
    let is_up = upstream["up"].as_bool().unwrap_or(false);
    let state = if is_up { "up" } else { "no server is up" };
    let [name, protocol] = format_values(upstream, ["name", "protocol"]);
    let [length, max] = format_values(&upstream["queue"], ["length", "max"]);
    lines.push(format!(
        "upstream {name}: {protocol}, {state}, {length} queued (at most {max})"
    ));
    for server in array_items(&upstream["servers"]) {
        let bound = match &server["max_active"] {
            Value::Null => String::new(),
            max => format!(" (at most {})", format_value(max)),
        };
        let keys = ["name", "state", "active", "failures"];
        let [name, state, active, failures] = format_values(server, keys);
        let requests = format_count(&server["requests"], "request");
        let connections = format_count(&server["connections_open"], "connection");
        lines.push(format!(
            "  server {name}: {state}, {active} in progress{bound}, {requests}, {failures} failed, \
             {connections}"
        ));
        if let (Some(error), false) = (server["last_error"].as_str(), server["state"] == "up") {
            lines.push(format!("    {error}"));
        }
    }
}

fn format_cache(cache: &Value) -> String {
    let reason = match cache["reason"].as_str() {
        Some(reason) => format!(" ({reason})"),
        None => String::new(),
    };
    let hits = match cache["hit_ratio"].as_f64() {
        Some(ratio) => format!("{:.1} % hits", ratio * 100.0),
        None => "no look-ups yet".to_owned(),
    };
    let megabytes = |key: &str| cache[key].as_f64().unwrap_or(0.0) / 1_048_576.0;
    format!(
        "cache {}: {}{reason}, {}, {:.1} of {:.1} MiB, {hits}",
        format_value(&cache["name"]),
        format_value(&cache["state"]).replace('_', " "),
        format_count(&cache["objects"], "object"),
        megabytes("bytes"),
        megabytes("max_bytes"),
    )
}

/// The hub's lines, once it has held a connection.
fn format_hub(hub: &Value) -> Option<String> {
    let counters = &hub["counters"];
    let counted = [
        &hub["connections"]["used"],
        &counters["opened"],
        &counters["published"],
    ];
    if counted
        .iter()
        .all(|number| number.as_u64().unwrap_or(0) == 0)
    {
        return None;
    }
    let mut words = format!(
        "hub: {} and {} (at most {}), {}, {} published, {} delivered",
        format_count(&hub["streams"], "stream"),
        format_count(&hub["long_polls"], "long poll"),
        format_value(&hub["connections"]["max"]),
        format_count(&hub["channels"]["used"], "channel"),
        format_count(&counters["published"], "message"),
        format_value(&counters["delivered"]),
    );
    if let Some(each) = hub["bytes_per_stream"].as_u64() {
        words.push_str(&format!(", {each} bytes per stream"));
    }
    for (number, what) in [
        (&counters["dropped"], "dropped for slow clients"),
        (&counters["closed_slow"], "closed as too slow"),
    ] {
        if number.as_u64().is_some_and(|number| number > 0) {
            words.push_str(&format!(", {} {what}", format_value(number)));
        }
    }
    Some(words)
}

fn array_items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Formats a count with its noun; `-` if the server does not report it.
fn format_count(value: &Value, thing: &str) -> String {
    match value.as_u64() {
        Some(number) => pluralize(number, thing),
        None => format!("{} {thing}s", format_value(value)),
    }
}

fn format_values<const N: usize>(of: &Value, keys: [&str; N]) -> [String; N] {
    keys.map(|key| format_value(&of[key]))
}

pub(super) fn format_value(value: &Value) -> String {
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
    fn problems_come_first() {
        let problem = |severity: &str, text: &str| json!({ "severity": severity, "text": text });
        let said = format_status(&json!({ "state": "running", "problems": [
            problem("error", "The cache disk1 is out of service: no disk."),
            problem("warning", "The application shop is not ready yet."),
        ] }));
        let first: Vec<_> = said.lines().take(2).collect();
        assert_eq!(
            first,
            [
                "error: The cache disk1 is out of service: no disk.",
                "warning: The application shop is not ready yet.",
            ]
        );
        assert!(
            said.lines()
                .nth(2)
                .is_some_and(|line| line.starts_with("penstock - running, "))
        );
    }

    #[test]
    fn says_slots_of_applications_that_have_them() {
        let queue = json!({ "active": 1, "slots": 4, "length": 0, "max": 50 });
        let app = |kind: &str| {
            json!({
                "name": kind, "kind": kind, "state": "ready", "queue": queue,
                "processes": { "min": 2, "ready": 1, "target": 2, "max": 2 },
            })
        };
        let kinds = ["wsgi", "rack", "command", "fastcgi"];
        let said = format_status(&json!({ "apps": kinds.map(app) }));
        let said: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(
            said,
            [
                "app wsgi: wsgi, ready, 1 of 2 processes ready, 1 of 4 slots busy, 0 queued (at most 50)",
                "app rack: rack, ready, 1 of 2 processes ready, 1 of 4 slots busy, 0 queued (at most 50)",
                "app command: command, ready, 1 of 2 processes ready",
                "app fastcgi: fastcgi, ready, 1 of 2 processes ready",
            ]
        );
    }

    #[test]
    fn says_what_becomes_of_an_applications_processes() {
        let worker = json!({
            "pid": 7, "state": "ready", "generation": 3, "active": 1, "age_seconds": 61.4,
            "requests": 1, "resident_bytes": 9_437_184, "proportional_bytes": 3_145_728,
            "replace_reason": "age 61 s",
        });
        let app = json!({
            "name": "shop", "kind": "command", "state": "ready", "is_restarting": true,
            "processes": { "min": 1, "ready": 1, "target": 2, "max": 4 },
            "threads": 3, "min_threads": 2, "max_threads": 16,
            "last_scaling": "3 requests waited 140 ms", "start_method": "forking", "workers": [worker],
        });
        let said = format_status(&json!({ "apps": [app] }));
        let said: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(
            said,
            [
                "app shop: command, ready, 1 of 2 processes ready (1 to 4), 3 threads each (2 to 16)",
                "  last scaling: 3 requests waited 140 ms",
                "  worker start: forking",
                "  a restart is in progress",
                "  worker 7: ready, generation 3, up 61 s, 1 in progress, 1 request served, 3.0 MiB, to be replaced: age 61 s",
            ]
        );
    }

    #[test]
    fn says_of_each_cache_what_it_holds_and_why_it_is_out() {
        let cache = json!({
            "name": "disk1", "state": "working", "reason": null, "objects": 1,
            "bytes": 1_572_864, "max_bytes": 104_857_600, "hit_ratio": 0.915,
        });
        let mut out = cache.clone();
        (out["state"], out["reason"]) = (
            json!("out_of_service"),
            json!("write: No space left on device"),
        );
        (out["objects"], out["hit_ratio"]) = (json!(0), Value::Null);
        let said = format_status(&json!({ "caches": [cache, out] }));
        let said: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(
            said,
            [
                "cache disk1: working, 1 object, 1.5 of 100.0 MiB, 91.5 % hits",
                "cache disk1: out of service (write: No space left on device), 0 objects, 1.5 of 100.0 MiB, \
                 no look-ups yet",
            ]
        );
    }

    #[test]
    fn says_whom_it_serves_and_why_not() {
        let mut front_end =
            json!({ "address": "10.0.0.1:7000", "upstream": "shop", "cause": null });
        let said = |front_end: &Value| {
            format_status(&json!({ "front_end": front_end }))
                .lines()
                .nth(1)
                .map(str::to_owned)
        };
        let there = "joined upstream shop at 10.0.0.1:7000";
        assert_eq!(said(&front_end).as_deref(), Some(there));
        front_end["cause"] = json!("its key is another");
        let not = "not joined to upstream shop at 10.0.0.1:7000: its key is another";
        assert_eq!(said(&front_end).as_deref(), Some(not));
        assert_eq!(said(&Value::Null), None);
    }

    #[test]
    fn says_whether_certificates_need_attention() {
        let second_line = |certificates: Value| {
            let text = format_status(&json!({ "certificates": certificates }));
            text.lines().nth(1).map(str::to_owned)
        };
        let none = json!({ "total": 0, "invalid": 0, "warning": 0 });
        assert_eq!(second_line(none), None);
        let good = json!({ "total": 1, "invalid": 0, "warning": 0 });
        assert_eq!(second_line(good).as_deref(), Some("1 certificate"));
        let bad = json!({ "total": 7, "invalid": 1, "warning": 2 });
        assert_eq!(
            second_line(bad).as_deref(),
            Some("7 certificates: 1 invalid, 2 with a warning (see penstock certificates)")
        );
    }

    #[test]
    fn says_what_is_held_once_anything_was() {
        let counters =
            json!({ "opened": 0, "published": 0, "delivered": 0, "dropped": 0, "closed_slow": 0 });
        let mut hub = json!({
            "connections": { "used": 0, "max": 100 }, "streams": 0, "long_polls": 0, "channels": { "used": 0 },
            "counters": counters, "bytes_per_stream": null,
        });
        let said = |hub: &Value| {
            let said = format_status(&json!({ "hub": hub }));
            said.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(said(&hub).is_empty());
        (
            hub["connections"]["used"],
            hub["streams"],
            hub["long_polls"],
        ) = (json!(4), json!(3), json!(1));
        (hub["channels"]["used"], hub["bytes_per_stream"]) = (json!(1), json!(212));
        hub["counters"]["published"] = json!(2);
        hub["counters"]["delivered"] = json!(6);
        let first = "hub: 3 streams and 1 long poll (at most 100), 1 channel, 2 messages published, \
                     6 delivered, 212 bytes per stream";
        assert_eq!(said(&hub), [first]);
        hub["counters"]["dropped"] = json!(5);
        hub["counters"]["closed_slow"] = json!(1);
        let more = ", 5 dropped for slow clients, 1 closed as too slow";
        assert_eq!(said(&hub), [format!("{first}{more}")]);
    }

    #[test]
    fn says_of_each_upstream_how_long_its_line_is_and_how_its_servers_do() {
        let server = json!({
            "name": "127.0.0.1:3000", "state": "up", "active": 3, "max_active": 8,
            "requests": 120, "failures": 2, "connections_open": 5, "last_error": "no answer",
        });
        let mut unbounded = server.clone();
        unbounded["name"] = json!("unix:/run/b.sock");
        unbounded["state"] = json!("ejected");
        unbounded["max_active"] = Value::Null;
        (unbounded["requests"], unbounded["connections_open"]) = (json!(1), json!(1));
        let queue = json!({ "length": 7, "max": 500 });
        let said = format_status(&json!({ "upstreams": [
            { "name": "backends", "protocol": "http", "up": true, "queue": queue,
              "servers": [server, unbounded] },
            { "name": "legacy", "protocol": "ajp", "up": false, "queue": queue, "servers": [] },
        ] }));
        let said: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(
            said,
            [
                "upstream backends: http, up, 7 queued (at most 500)",
                "  server 127.0.0.1:3000: up, 3 in progress (at most 8), 120 requests, 2 failed, \
                 5 connections",
                "  server unix:/run/b.sock: ejected, 3 in progress, 1 request, 2 failed, \
                 1 connection",
                "    no answer",
                "upstream legacy: ajp, no server is up, 7 queued (at most 500)",
            ]
        );
    }
}
