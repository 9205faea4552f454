//! A hub on real loops: clients subscribe and publish through the handler, and read their sockets.

pub(crate) mod fixtures;
mod harness;
mod requests;
mod streaming;
mod subscribers;
