//! A load: what is sent, how often, over how many connections; and its execution.
//!
//! `command` and `compare` describe it, [`execute`] puts it on the server and gives the figures. Inside,
//! `engine` starts loops and tasks and begins and ends the window, `run` is what they share,
//! `connection` sends and receives, `arrivals` is an open loop's schedule, `incoming` finds a
//! response's end, `picker` says which request is next, `recorder` counts.

mod arrivals;
mod connection;
mod engine;
mod picker;
mod recorder;
pub(crate) mod response_reader;
mod shared_run;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;

use crate::report::Figures;

pub(crate) use recorder::{new_histogram, summarize};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(std::net::SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// One request, ready to send.
#[derive(Debug, Clone)]
pub struct EncodedRequest {
    /// Where to.
    pub address: Address,
    /// Head and body as they are sent.
    pub bytes: Bytes,
    /// How often, compared with the others; in order, weights do not count.
    pub weight: u32,
    /// Whether the response has no body (HEAD).
    pub is_head: bool,
}

/// Which request is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOrder {
    /// One after the other, over all connections together.
    InOrder,
    /// Drawn by weight.
    Random,
}

/// When requests start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArrivalModel {
    /// When the response to the one before is there.
    ClosedLoop,
    /// At this many evenly spaced moments a second, whatever the server does.
    OpenLoop(f64),
}

/// One load.
#[derive(Debug, Clone)]
pub struct Load {
    /// Its name in reports; empty for the only one.
    pub name: String,
    /// The requests; at least one.
    pub requests: Vec<EncodedRequest>,
    /// Which is next.
    pub order: RequestOrder,
    /// Connections held.
    pub connections: u32,
    /// When requests start.
    pub arrivals: ArrivalModel,
    /// Whether a connection serves more than one request.
    pub keep_alive: bool,
    /// For a connection to be open, and for a response to be complete.
    pub timeout: Duration,
}

/// What ends a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowEnd {
    /// That many requests, answered or failed, of all loads together; fewer when nothing was answered
    /// for two time-outs and a second.
    Requests(u64),
    /// Time.
    Elapsed(Duration),
}

/// All that is to be executed at once.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// The loads; at least one.
    pub loads: Vec<Load>,
    /// What ends the window.
    pub window_end: WindowEnd,
    /// Before the window: the same load, not counted; connections stay.
    pub warm_up: Duration,
    /// Threads that send.
    pub threads: usize,
    /// The core for the threads, if they are pinned.
    pub core: Option<usize>,
    /// Set from outside to end early: the figures so far are given.
    pub stop: Arc<AtomicBool>,
}

/// A look at a load in progress.
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

/// Who is told what happens while a plan is executed; called on the thread that executes.
pub trait Observer {
    /// The window begins now: what the server spent so far is not part of it.
    fn window_begins(&mut self) {}
    /// The window ends now.
    fn window_ends(&mut self) {}
    /// The window has ended; connections are still open. Time spent here belongs to nobody.
    fn after_window(&mut self) {}
    /// A few times a second.
    fn progress(&mut self, progress: LoadProgress) {
        let _ = progress;
    }
}

/// Nobody is told.
#[derive(Debug)]
pub struct NoObserver;

impl Observer for NoObserver {}

/// Raises the soft limit of open descriptors as far as it may be raised, for this process and those that
/// it starts. What a plan needs beyond that is an error of [`execute`].
pub fn allow_all_descriptors() {
    engine::allow_all_descriptors();
}

/// Executes a plan; blocks until its end. Gives the figures of each load, in order.
///
/// # Errors
/// When threads or descriptors ran out before anything was sent.
pub fn execute(plan: &LoadPlan, observer: &mut dyn Observer) -> std::io::Result<Vec<Figures>> {
    engine::execute(plan, observer)
}
