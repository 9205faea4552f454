//! The `[hub]` table: bounds on held streams and on what is published to them.
//!
//! Called by `parse` after `[limits]`, because a held stream is a connection too; what a route says of
//! streams is in `hub/route.rs` and `hub/mercure.rs`. What must stay true: a bound on one is never above
//! the bound on all of its kind, and no message shows a key.

mod mercure;
mod route;

use crate::development;
use crate::error::Problem;
use crate::model::{Hub, HubHistory, Limits, SlowPolicy};
use crate::section::Section;

pub(crate) use mercure::{SECRET_32 as SECRET, read as read_mercure, read_origins};
pub(crate) use route::read as read_route;

/// Reads the table, or gives the defaults when there is none.
pub(crate) fn read(top: &Section<'_>, limits: &Limits) -> Hub {
    let mut hub = Hub::default();
    if top.found.is_development() {
        development::hub(&mut hub);
    }
    let Some(table) = top.table("hub") else {
        return hub;
    };
    hub.streams_max = table.count_said("streams_max");
    hub.max_streams_per_client = table.count_said("max_streams_per_client");
    check_streams(&table, &hub, limits);
    table.count("channels_max", &mut hub.channels_max);
    table.count("channels_per_stream", &mut hub.channels_per_stream);
    table.size("message_bytes", &mut hub.message_bytes);
    read_backlogs(&table, &mut hub);
    table.duration("stall_timeout", &mut hub.stall_timeout);
    table.duration("keep_alive", &mut hub.keep_alive);
    read_history(&table, &mut hub.history);
    table.duration("drain", &mut hub.drain);
    read_signing(&table, &mut hub);
    hub
}

/// Reports more streams than there may be connections.
fn check_streams(table: &Section<'_>, hub: &Hub, limits: &Limits) {
    let streams = hub.streams_max.unwrap_or_default();
    if streams > limits.connections {
        table.add(
            table.key_at(&["streams_max"]),
            Problem::LowAboveHigh {
                low: "streams_max",
                low_value: streams as u64,
                high: "limits.connections",
                high_value: limits.connections as u64,
            },
        );
    }
}

fn read_backlogs(table: &Section<'_>, hub: &mut Hub) {
    table.size("backlogs_bytes", &mut hub.backlogs_bytes);
    // What is not said gives way to what is.
    hub.backlog_bytes = hub.backlog_bytes.min(hub.backlogs_bytes);
    table.size("backlog_bytes", &mut hub.backlog_bytes);
    table.check_order(
        ("backlog_bytes", hub.backlog_bytes as u64),
        ("backlogs_bytes", hub.backlogs_bytes as u64),
    );
    hub.slow = match table.word("slow").map(|word| word.value) {
        Some("disconnect") => SlowPolicy::Disconnect,
        _ => SlowPolicy::DropOldest,
    };
}

/// A number alone is `count`.
fn read_history(hub: &Section<'_>, history: &mut HubHistory) {
    if !hub.is_table("history") {
        return hub.count("history", &mut history.count);
    }
    let Some(table) = hub.table("history") else {
        return;
    };
    table.count("count", &mut history.count);
    table.duration("age", &mut history.age);
    table.size("bytes_all", &mut history.bytes_all);
    history.bytes = history.bytes.min(history.bytes_all);
    table.size("bytes", &mut history.bytes);
    table.check_order(
        ("bytes", history.bytes as u64),
        ("bytes_all", history.bytes_all as u64),
    );
}

/// How back ends are told that a request came through this server.
fn read_signing(table: &Section<'_>, hub: &mut Hub) {
    if let Some(key) = table.text("grip_key") {
        if is_key(key.value) {
            hub.grip_key = Some(key.value.into());
        } else {
            table.bad_secret("grip_key", key.at, KEY_EXPECTED);
        }
    }
    let issuer = |text: &str| !text.is_empty() && !text.contains(char::is_control);
    let issuer = table.parsed("grip_issuer", |text| issuer(text).then(|| text.to_owned()));
    if let Some(issuer) = issuer {
        hub.grip_issuer = issuer.value;
    }
    if !table.has("grip_key") {
        table.refuse("grip_issuer");
    }
}

/// Whether a text is a key: a secret as it is or in base64 (RFC 4648 §4) behind `base64:`, or a private
/// key in PEM (RFC 7468 §10). Whether such a key can sign is found out at start.
fn is_key(text: &str) -> bool {
    if text.trim_start().starts_with("-----BEGIN ") {
        return mercure::is_pem(text, &["PRIVATE KEY"]);
    }
    let Some(coded) = text.strip_prefix("base64:") else {
        return !text.is_empty();
    };
    let bare = coded.trim_end_matches('=');
    let is_coded = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
    let padded = coded.len().is_multiple_of(4) && coded.len() - bare.len() <= 2;
    !bare.is_empty() && padded && bare.bytes().all(is_coded)
}

/// What a message says was expected of `grip_key`.
pub(crate) const KEY_EXPECTED: &str = "a secret, `base64:` and a secret in base64 with its padding, or a private key in PEM, \
     from `-----BEGIN PRIVATE KEY-----` on";

#[cfg(test)]
mod tests;
