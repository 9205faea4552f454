//! What several front ends share through a Redis or Valkey (`server.redis`): the messages of the
//! hub, and the rates of clients ([`RateStore`]).
//!
//! A publication goes to Redis, which gives it its place in the stream of its channel and publishes
//! it to all servers that follow the channel, this one included: so all deliver in one order. While
//! Redis does not answer, each server delivers its own publications at once and keeps them for the
//! others. Missed entries are read from the streams; entries that the streams no longer have are
//! announced as an event `gap`.
//!
//! [`RedisBus`] implements [`Bus`](penstock_hub::Bus). Behind it, `bus_driver` is the only task
//! that speaks to Redis (`redis_link`, `redis_scripts`). It owns `bus_state_machine`, which decides
//! everything and is simulated with seeds: `outbox` has the publications of this server,
//! `followed_channels` and `followed_channel` the entries that arrive. Subscribers that come from
//! another process wait until `catch_ups` says that this server has what that one had.
//!
//! # Invariants
//! - Only that task waits for Redis, and each of its waits has a deadline.
//! - The messages that are kept for a Redis that does not answer are bounded.

mod backoff;
mod bus_driver;
mod bus_inbox;
mod bus_state_machine;
mod catch_ups;
mod cluster_totals;
mod entry;
mod entry_encoding;
mod followed_channel;
mod followed_channels;
pub mod fuzzing;
mod last_seen_numbers;
mod outbox;
mod push_queue;
mod rate_store;
mod redis_bus;
mod redis_link;
mod redis_scripts;
mod reply_decoder;
#[cfg(test)]
mod simulation;
mod snapshot;

pub use rate_store::{RateQuery, RateStore};
pub use redis_bus::{CounterSource, RedisBus, RedisUrlError};
pub use snapshot::{CLUSTER_METRICS, ClusterSnapshot, SHARED_RATES_METRICS, SharedRatesSnapshot};
