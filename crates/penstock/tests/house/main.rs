//! House tests: the real binary, driven from outside, one file a promise.
//!
//! `support` starts servers and speaks raw bytes to them; every other module proves one promise.
//! Nothing here sleeps to wait and no port is fixed.

mod boot;
mod bodies;
mod command_line;
mod drain;
mod environment;
mod files;
mod hostile_heads;
mod house_rules;
mod idle_memory;
mod overload;
mod rack;
mod reload;
mod responses;
mod slow_clients;
mod support;
mod worker_death;
mod wsgi;
