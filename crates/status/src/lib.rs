//! Placeholder until this crate's first module lands.
