//! The `[hub]` table: bounds on held streams and on published messages.
//!
//! Called by `parse` after `[limits]`, because a held stream is a connection too; what a route
//! says of streams is in `hub/route.rs` and `hub/mercure.rs`.
//!
//! # Invariants
//! - A bound on one is never above the bound on all of its kind, and no message shows a key.

mod mercure;
mod route;

use crate::dev_defaults;
use crate::model::{Hub, HubHistory, Limits};
use crate::section::{Keys as _, Section};

pub(crate) use mercure::{
    KEY_SET_EXPECTED, SECRET_32_EXPECTED as SECRET, parse_key_set, read as read_mercure,
    read_origins,
};
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
    hub.read_keys(&table);
    // Each stream is a connection too.
    table.check_order(
        ("max_streams", hub.max_streams.unwrap_or_default() as u64),
        ("limits.connections", limits.max_connections as u64),
    );
    read_backlogs(&table, &mut hub);
    read_history(&table, &mut hub.history);
    read_signing(&table, &mut hub);
    hub
}

fn read_backlogs(table: &Section<'_>, hub: &mut Hub) {
    // Defaults give way to values that are set.
    hub.max_backlog = hub.max_backlog.min(hub.max_backlog_total);
    table.read("max_backlog", &mut hub.max_backlog);
    table.check_order(
        ("max_backlog", hub.max_backlog as u64),
        ("max_backlog_total", hub.max_backlog_total as u64),
    );
}

/// A number alone is `max_messages`.
fn read_history(hub: &Section<'_>, history: &mut HubHistory) {
    if !hub.is_table("history") {
        return hub.read("history", &mut history.max_messages);
    }
    let Some(table) = hub.table("history") else {
        return;
    };
    history.read_keys(&table);
    history.max_size = history.max_size.min(history.max_size_total);
    table.read("max_size", &mut history.max_size);
    table.check_order(
        ("max_size", history.max_size as u64),
        ("max_size_total", history.max_size_total as u64),
    );
}

/// How back ends are told that a request came through this server.
fn read_signing(table: &Section<'_>, hub: &mut Hub) {
    if let Some(key) = table.secret("grip_key") {
        if is_grip_key(&key.value) {
            hub.grip_key = Some(key.value.into_owned().into());
        } else {
            table.report_invalid_secret("grip_key", key.offset, GRIP_KEY_EXPECTED);
        }
    }
    if !table.has("grip_key") {
        table.report_not_applicable("grip_issuer");
    }
}

/// Whether a text can be the issuer of tokens.
pub(crate) fn is_valid_issuer(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}

/// Whether a text can be the type of an event: one line.
pub(crate) fn is_event_type(text: &str) -> bool {
    !text.is_empty() && text.len() <= 255 && !text.contains(char::is_control)
}

/// Whether a text is a key: a secret as it is or in base64 (RFC 4648 §4) behind `base64:`, or a
/// private key in PEM (RFC 7468 §10). Whether such a key can sign is found out at start.
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
