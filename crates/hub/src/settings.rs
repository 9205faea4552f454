//! The bounds of the hub: what `[hub]` of a configuration comes to.
//!
//! Read by every part of the hub through [`crate::Hub`]; a reload puts new ones in place, which count for
//! what comes from then on.

pub use penstock_config::{Hub as Settings, HubHistory as History, SlowPolicy};
