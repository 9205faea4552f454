//! The bounds of the hub, from `[hub]` of the configuration.
//!
//! Read through [`crate::Hub`]; a reload puts new ones in place, which apply from then on.

pub use penstock_config::{Hub as Settings, HubHistory as History, SlowPolicy};
