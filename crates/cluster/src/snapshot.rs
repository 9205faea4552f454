//! The cluster, and shared limits, at one moment, as `/status.json` and `/metrics` show it.

use std::collections::BTreeMap;

use penstock_exchange::metric_table;
use serde::Serialize;

/// The servers that share the hub over Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ClusterSnapshot {
    /// The address of Redis, without its password.
    pub address: String,
    /// Whether there is a connection to Redis.
    pub connected: bool,
    /// Whether messages are delivered locally without waiting for Redis, which does not answer.
    pub standalone: bool,
    /// Messages queued for Redis.
    pub queued: u64,
    /// Messages dropped before they reached Redis, since the start.
    pub lost: u64,
    /// Channels that this server subscribes to.
    pub channels: u64,
    /// Servers, this one included; 0 while Redis does not answer.
    pub servers: u64,
    /// The sums of the servers' counters, by name, at most some seconds old: `streams`, `polls`,
    /// `opened`, `closed`, `published`, `delivered`, `dropped`, and those of the `CounterSource`.
    pub totals: BTreeMap<String, u64>,
}

metric_table! {
    /// Metrics of the servers that share the hub.
    pub static CLUSTER_METRICS: |cluster: ClusterSnapshot| {
        gauge hub_redis_up = cluster.connected, "1 while connected to Redis.";
        gauge hub_redis_queued_messages = cluster.queued, "Messages queued for Redis.";
        gauge hub_redis_channels = cluster.channels,
            "Channels that this server subscribes to in Redis.";
        gauge hub_cluster_servers = cluster.servers,
            "Servers in the cluster; 0 while Redis does not answer.";
        counter hub_redis_messages_lost_total = cluster.lost,
            "Messages dropped before they reached Redis.";
    }
}

/// The limits that servers share over Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SharedRatesSnapshot {
    /// Whether Redis answers; if not, each server limits alone.
    pub connected: bool,
    /// Requests that this server has decided about alone, since the start.
    pub decided_alone: u64,
}

metric_table! {
    /// Metrics of shared limits.
    pub static SHARED_RATES_METRICS: |rates: SharedRatesSnapshot| {
        gauge shared_rates_redis_up = rates.connected, "1 while limits are shared over Redis.";
        counter shared_rates_decided_alone_total = rates.decided_alone,
            "Requests whose shared limit this server has applied alone, without Redis.";
    }
}
