//! Rules for traffic: what a request must be ([`conditions`]), values with placeholders
//! ([`template`]), rules about the clients of a route ([`admission`]: [`access`],
//! [`basic_auth`], [`signed_url`], [`jwt`], [`forward_auth`]), and handlers that answer before
//! others: [`rate_limit`], [`cors`], [`fixed_responses`].
//!
//! [`split`] chooses among back ends, [`mirror`] copies requests, [`maintenance`] refuses them,
//! [`pause`] holds them back, and [`counted`] counts what rules decide.
//!
//! `penstock`'s wiring compiles them from the configuration, `edge` asks them for each request.
//!
//! # Invariants
//! - Nothing here keeps a connection or knows another component; what waits has a deadline.
//! - A request that no rule is about pays for none.

pub mod access;
pub mod admission;
pub mod basic_auth;
pub mod client_certificate;
pub mod concurrency;
pub mod conditions;
pub mod cors;
pub mod counted;
pub mod failed_attempts;
pub mod fixed_responses;
pub mod forward_auth;
pub mod fuzzing;
pub mod jwt;
mod key_counts;
pub mod maintenance;
pub mod mirror;
mod named_tables;
pub mod pause;
pub mod rate_limit;
pub mod response_rate;
pub mod response_timeout;
pub mod signed_url;
pub mod split;
pub mod template;
#[cfg(test)]
mod testing;

pub use access::AccessRule;
pub use admission::{Admission, AdmissionHandler, AdmissionRule, Decision, Refusal, Verdict};
pub use basic_auth::{BasicAuthRule, VerifiedPasswords};
pub use client_certificate::ClientCertificateRule;
pub use concurrency::ConcurrencyHandler;
pub use conditions::{ConditionSet, RequestConditions, RequestFacts};
pub use cors::{CorsHandler, CorsRule};
pub use counted::{CountedHandler, CountedRule, RuleOutcome};
pub use failed_attempts::FailedAttempts;
pub use fixed_responses::{RedirectHandler, RespondHandler};
pub use forward_auth::ForwardAuthRule;
pub use jwt::JwtRule;
pub use key_counts::KeyCounts;
pub use maintenance::{Maintenance, MaintenanceRule, MaintenanceSnapshot};
pub use mirror::MirrorHandler;
pub use named_tables::NamedTables;
pub use pause::{BackEndName, PauseGates, PauseHandler, PauseSnapshot};
pub use rate_limit::shared::{CellGrant, CellRequest, SharedRates};
pub use rate_limit::{
    RateDecision, RateLimit, RateLimitHandler, RateTable, RateTables, SharedLimit,
};
pub use response_rate::ResponseRateHandler;
pub use response_timeout::ResponseTimeoutHandler;
pub use signed_url::SignedUrlRule;
pub use split::{SplitHandler, SplitTarget};
pub use template::{TemplateValues, render};
