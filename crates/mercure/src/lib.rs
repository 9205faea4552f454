//! The Mercure hub of a route, by the 0.x generation of the protocol (draft-dunglas-mercure-07, its
//! compatibility levels 7 and 8).
//!
//! Subscribers with the same topics and the same rights are one *audience* (`audiences`), which is
//! one channel of the [`Hub`](penstock_hub::Hub). An update is matched against audiences, not
//! subscribers, and is published once to the channel of each audience that it matches. The order of
//! all updates and the history that `Last-Event-ID` reads are the route's own (`broker`,
//! `history`).
//!
//! # Invariants
//! - A subscriber gets an update at most once, in the order of publication.
//! - A private update reaches only subscribers with a token that names its topic.
//! - A subscriber that comes back with an id that is still known misses nothing.

mod access;
mod audiences;
mod broker;
pub mod fuzzing;
mod handler;
mod history;
mod publish;
mod query;
mod responses;
mod selector;
mod subscribe;
mod subscriptions_api;
mod template;
#[cfg(test)]
mod tests;
mod transfer;
mod update;

pub use handler::{MercureHandler, MercureHubs};
