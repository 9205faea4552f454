//! The `[hub]` table: bounds on held streams and on what is published to them.
//!
//! Called by `parse` after `[limits]`, because a held stream is a connection too; what a route says of
//! streams is in `hub/route.rs` and `hub/mercure.rs`. What must stay true: a bound on one is never above
//! the bound on all of its kind, and no message shows a key.

mod mercure;
mod route;

use crate::dev_defaults;
use crate::error::Problem;
use crate::model::{Hub, HubHistory, Limits, SlowPolicy};
use crate::section::Section;

pub(crate) use mercure::{SECRET_32_EXPECTED as SECRET, read as read_mercure, read_origins};
pub(crate) use route::read as read_route;

/// Reads the table, or gives the defaults when there is none.
pub(crate) fn read(top: &Section<'_>, limits: &Limits) -> Hub {
    let mut hub = Hub::default();
    if top.findings.is_development() {
        dev_defaults::apply_to_hub(&mut hub);
    }
    let Some(table) = top.table("hub") else {
        return hub;
    };
    hub.max_streams = table.number("max_streams");
    hub.max_streams_per_client = table.number("max_streams_per_client");
    check_max_streams(&table, &hub, limits);
    table.read_number("max_channels", &mut hub.max_channels);
    table.read_number("max_channels_per_stream", &mut hub.max_channels_per_stream);
    table.read_size("max_message_size", &mut hub.max_message_size);
    read_backlogs(&table, &mut hub);
    table.read_duration("send_timeout", &mut hub.send_timeout);
    table.read_duration("heartbeat_interval", &mut hub.heartbeat_interval);
    read_history(&table, &mut hub.history);
    table.read_duration("drain_timeout", &mut hub.drain_timeout);
    read_signing(&table, &mut hub);
    hub
}

/// Reports more streams than there may be connections.
fn check_max_streams(table: &Section<'_>, hub: &Hub, limits: &Limits) {
    let streams = hub.max_streams.unwrap_or_default();
    if streams > limits.max_connections {
        table.report(
            table.key_offset(&["max_streams"]),
            Problem::BoundsReversed {
                low: "max_streams",
                low_value: streams as u64,
                high: "limits.connections",
                high_value: limits.max_connections as u64,
            },
        );
    }
}

fn read_backlogs(table: &Section<'_>, hub: &mut Hub) {
    table.read_size("max_backlog_total", &mut hub.max_backlog_total);
    // What is not said gives way to what is.
    hub.max_backlog = hub.max_backlog.min(hub.max_backlog_total);
    table.read_size("max_backlog", &mut hub.max_backlog);
    table.check_order(
        ("max_backlog", hub.max_backlog as u64),
        ("max_backlog_total", hub.max_backlog_total as u64),
    );
    hub.slow_policy = match table.choice("slow_policy").map(|word| word.value) {
        Some("disconnect") => SlowPolicy::Disconnect,
        _ => SlowPolicy::DropOldest,
    };
}

/// A number alone is `max_messages`.
fn read_history(hub: &Section<'_>, history: &mut HubHistory) {
    if !hub.is_table("history") {
        return hub.read_number("history", &mut history.max_messages);
    }
    let Some(table) = hub.table("history") else {
        return;
    };
    table.read_number("max_messages", &mut history.max_messages);
    table.read_duration("max_age", &mut history.max_age);
    table.read_size("max_size_total", &mut history.max_size_total);
    history.max_size = history.max_size.min(history.max_size_total);
    table.read_size("max_size", &mut history.max_size);
    table.check_order(
        ("max_size", history.max_size as u64),
        ("max_size_total", history.max_size_total as u64),
    );
}

/// How back ends are told that a request came through this server.
fn read_signing(table: &Section<'_>, hub: &mut Hub) {
    if let Some(key) = table.text("grip_key") {
        if is_grip_key(key.value) {
            hub.grip_key = Some(key.value.into());
        } else {
            table.report_invalid_secret("grip_key", key.offset, GRIP_KEY_EXPECTED);
        }
    }
    let issuer = |text: &str| !text.is_empty() && !text.contains(char::is_control);
    let issuer = table.parse_text("grip_issuer", |text| issuer(text).then(|| text.to_owned()));
    if let Some(issuer) = issuer {
        hub.grip_issuer = issuer.value;
    }
    if !table.has("grip_key") {
        table.report_not_applicable("grip_issuer");
    }
}

/// Whether a text is a key: a secret as it is or in base64 (RFC 4648 §4) behind `base64:`, or a private
/// key in PEM (RFC 7468 §10). Whether such a key can sign is found out at start.
fn is_grip_key(text: &str) -> bool {
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
pub(crate) const GRIP_KEY_EXPECTED: &str = "a secret, `base64:` and a secret in base64 with its padding, or a private key in PEM, \
     from `-----BEGIN PRIVATE KEY-----` on";

#[cfg(test)]
mod tests;
