//! The `hub` of a route: a channel's name, or a table with its channels.
//!
//! Called by `crate::route`.
//!
//! # Invariants
//! - A route has at least one channel and no more than a stream may have, each once, and what
//!   stands in braces in their names is known.

use crate::channel::ChannelPattern;
use crate::findings::LocatedValue;
use crate::model::{Hub, RouteHub};
use crate::section::{Keys as _, Section};

/// Reads the value of `hub`, with `hub_limits` as the `[hub]` table.
pub(crate) fn read(route: &Section<'_>, hub_limits: &Hub) -> Option<RouteHub> {
    if !route.has("hub") {
        return None;
    }
    let mut hub = RouteHub::default();
    if !route.is_table("hub") {
        hub.channels = vec![read_channel(route, "hub", &route.text("hub")?)?];
        return Some(hub);
    }
    let table = route.table("hub")?;
    hub.channels = read_channels(&table, hub_limits);
    hub.origins = super::read_origins(&table);
    hub.read_keys(&table);
    Some(hub)
}

fn read_channels(table: &Section<'_>, hub_limits: &Hub) -> Vec<String> {
    let one = table.text("channel");
    let several = table.list("channels", |text| Some(text.to_owned()));
    match (table.has("channel"), table.has("channels")) {
        (false, false) => table.report_missing("channel"),
        (true, true) => {
            table.report_key(
                "channels",
                "`channel` and `channels` say the same: keep one",
            );
        }
        _ => {}
    }
    table.check_not_empty("channels");
    let several = several.unwrap_or_default();
    table.check_unique("channels", &several, |a, b| a == b);
    let most = hub_limits.max_channels_per_stream as u64;
    table.check_order(
        ("channels", several.len() as u64),
        ("hub.max_channels_per_stream", most),
    );
    let one = one.and_then(|channel| read_channel(table, "channel", &channel));
    let several = several.iter().filter_map(|channel| {
        let channel = LocatedValue::new(channel.value.as_str(), channel.offset);
        read_channel(table, "channels", &channel)
    });
    one.into_iter().chain(several).collect()
}

/// The name of a channel as it is written, once it is known to be one.
fn read_channel(table: &Section<'_>, key: &str, channel: &LocatedValue<&str>) -> Option<String> {
    match channel.value.parse::<ChannelPattern>() {
        Ok(_) => Some(channel.value.to_owned()),
        Err(bad) => {
            let at = match bad.part == channel.value {
                true => channel.offset,
                false => table.findings.offset_inside(channel, bad.offset),
            };
            table.report_invalid_item(key, &bad.part, at, bad.expected);
            None
        }
    }
}
