//! A load (its requests, rate and connections) and its execution.
//!
//! `command` and `compare` describe it; [`execute`] puts it on the server and returns the figures.
//! `engine` starts loops and tasks and begins and ends the window, `shared_run` is their shared
//! state, `connection` sends and receives, `arrivals` is an open loop's schedule, `response_reader`
//! finds a response's end, `picker` chooses the next request, `recorder` counts, with `tls_recorder`.

mod arrivals;
mod connection;
mod engine;
mod picker;
mod recorder;
mod response_reader;
mod shared_run;
mod tls_recorder;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use serde::Deserialize;

pub(crate) use engine::pin_to_core;
pub use engine::{execute, raise_descriptor_limit};
pub use penstock_client::{Address, TlsTarget};
pub(crate) use recorder::{new_histogram, summarize_histogram};

/// A request, ready to send.
#[derive(Debug, Clone)]
pub struct EncodedRequest {
    /// The server.
    pub address: Address,
    /// Who must be there, if the connection has TLS.
    pub tls: Option<TlsTarget>,
    /// Head and body.
    pub bytes: Bytes,
    /// Relative frequency for a random order; ignored in sequence.
    pub weight: u32,
    /// Whether the response has no body (HEAD).
    pub is_head: bool,
}

/// The order of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOrder {
    /// Drawn by weight
    Random,
    /// One after the other, over all connections together
    Sequence,
}

/// One load.
#[derive(Debug, Clone)]
pub struct Load {
    /// Its name in reports; empty for the only one.
    pub name: String,
    /// The requests; at least one.
    pub requests: Vec<EncodedRequest>,
    /// The order of the requests.
    pub order: RequestOrder,
    /// Open connections.
    pub connections: u32,
    /// Requests start at this many evenly spaced moments per second, whatever the server does (an
    /// open loop); otherwise each starts after the response to the previous one (a closed loop).
    pub rate: Option<f64>,
    /// Whether a connection serves more than one request.
    pub keep_alive: bool,
    /// For connecting with the TLS handshake, and for a complete response.
    pub timeout: Duration,
}

/// The end of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowEnd {
    /// This many requests, successful or failed, of all loads together; fewer if no response
    /// arrives for two timeouts and a second.
    Requests(u64),
    /// Time.
    Elapsed(Duration),
}

impl WindowEnd {
    /// The end by a number of requests, or else by a duration.
    pub(crate) fn from_options(requests: Option<u64>, duration: Option<Duration>) -> Option<Self> {
        let requests = requests.map(Self::Requests);
        requests.or_else(|| duration.map(Self::Elapsed))
    }
}

/// The loads to execute at once.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// The loads; at least one.
    pub loads: Vec<Load>,
    /// The end of the window.
    pub window_end: WindowEnd,
    /// Before the window: the same load, not counted; connections stay open.
    pub warm_up: Duration,
    /// Sending threads.
    pub threads: usize,
    /// The core for the threads, if pinned.
    pub core: Option<usize>,
    /// Set from outside to end early and return the figures so far.
    pub stop: Arc<AtomicBool>,
}

/// The progress of a load.
#[derive(Debug, Clone, Copy)]
pub struct LoadProgress {
    /// Whether the window has begun.
    pub is_measured: bool,
    /// Since the window (or the warm-up) began.
    pub elapsed: Duration,
    /// Complete responses so far in the window, all loads.
    pub requests: u64,
    /// Failed requests and 4xx, 5xx responses so far in the window.
    pub errors: u64,
}

/// What happens while a plan is executed.
#[derive(Debug, Clone, Copy)]
pub enum LoadEvent {
    /// The window begins now: the server's earlier cost is not part of it.
    WindowBegins,
    /// The window ends now.
    WindowEnds,
    /// The window has ended; connections are still open. Time spent here counts for nothing.
    AfterWindow,
    /// A few times a second.
    Progress(LoadProgress),
}
