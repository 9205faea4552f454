//! A hub on real loops: clients subscribe and publish through the handler, and read their sockets.

mod asking;
mod house;
mod streaming;
mod subscribers;
