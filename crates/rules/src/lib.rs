//! Rules for traffic: what a request must be ([`conditions`]), values with placeholders
//! ([`template`]), and handlers that answer before others: [`access`],
//! [`rate_limit`], [`basic_auth`], [`forward_auth`], [`cors`],
//! [`fixed_responses`].
//!
//! `penstock`'s wiring compiles them from the configuration, `edge` asks them for each request.
//!
//! # Invariants
//! - Nothing here keeps a connection, waits, or knows another component.
//! - A request that no rule is about pays for none.

pub mod access;
pub mod basic_auth;
pub mod conditions;
pub mod cors;
pub mod fixed_responses;
pub mod forward_auth;
pub mod rate_limit;
pub mod template;

pub use access::AccessHandler;
pub use basic_auth::BasicAuthHandler;
pub use conditions::{ConditionSet, RequestConditions, RequestFacts};
pub use cors::{CorsHandler, CorsRule};
pub use fixed_responses::{RedirectHandler, RespondHandler};
pub use forward_auth::ForwardAuthHandler;
pub use rate_limit::{RateDecision, RateLimit, RateLimitHandler, RateTable, RateTables};
pub use template::{TemplateValues, render};
