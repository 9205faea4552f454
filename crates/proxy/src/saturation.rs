//! Detects a server that may be full: it responds on its open connections, but not on a new one.
//!
//! A program of one or a few threads serves only its connections until they are closed. How many it
//! serves at once is observed, not configured: [`ServerLoad`] counts connections that have brought
//! a response, and requests that wait for the first one of theirs. [`SaturationDetector`] judges
//! once a tick, for `server_pool`.
//!
//! # Invariants
//!
//! - A server that responds on new connections loses none of its idle ones.
//! - An idle connection delays a waiting request for two ticks at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::connection::BackendServer;

/// What the connections show of a server's load. Changed for new connections only.
#[derive(Debug, Default)]
pub(crate) struct ServerLoad {
    /// Open connections on which it has responded.
    served_connections: AtomicU32,
    peak_served_connections: AtomicU32,
    /// Requests on new connections without a response so far.
    unanswered: AtomicU32,
    /// New connections on which it has responded so far; wraps.
    answered_connections: AtomicU32,
}

impl ServerLoad {
    /// Counts a connection that has brought its first response.
    pub(crate) fn add_served_connection(&self) {
        let connections = self.served_connections.fetch_add(1, Ordering::Relaxed) + 1;
        (self.peak_served_connections).fetch_max(connections, Ordering::Relaxed);
        self.answered_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts down a closed connection that had brought responses.
    pub(crate) fn remove_served_connection(&self) {
        self.served_connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn unanswered(&self) -> u32 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Whether it holds as many connections as it was ever seen to serve at once.
    fn is_at_peak(&self) -> bool {
        self.served_connections.load(Ordering::Relaxed)
            >= self.peak_served_connections.load(Ordering::Relaxed)
    }
}

/// Counts a request on a new connection until its response or its end.
#[derive(Debug)]
pub(crate) struct UnansweredRequestGuard(Arc<BackendServer>);

impl UnansweredRequestGuard {
    pub(crate) fn new(server: &Arc<BackendServer>) -> Self {
        server.load.unanswered.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(server))
    }
}

impl Drop for UnansweredRequestGuard {
    fn drop(&mut self) {
        self.0.load.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Decides whether one server is saturated.
#[derive(Debug, Default)]
pub(crate) struct SaturationDetector {
    /// `ServerLoad::answered_connections` at the last tick.
    answered_at_last_tick: u32,
    /// Consecutive ticks with waiting requests and no response on a new connection.
    stuck_ticks: u32,
    /// Until then the server counts as possibly full.
    saturated_until: Option<Instant>,
}

impl SaturationDetector {
    /// Returns how many idle connections to close, so that the server reaches waiting ones.
    pub(crate) fn tick(&mut self, now: Instant, load: &ServerLoad) -> u32 {
        let answered = load.answered_connections.load(Ordering::Relaxed);
        let is_stuck = load.unanswered() > 0 && answered == self.answered_at_last_tick;
        self.answered_at_last_tick = answered;
        self.stuck_ticks = if is_stuck { self.stuck_ticks + 1 } else { 0 };
        if self.stuck_ticks < STUCK_TICKS {
            return 0;
        }
        if self.stuck_ticks > PEAK_RESET_TICKS {
            // It serves fewer now than it once did.
            let connections = load.served_connections.load(Ordering::Relaxed);
            load.peak_served_connections
                .store(connections, Ordering::Relaxed);
        }
        if !load.is_at_peak() {
            return 0;
        }
        self.saturated_until = Some(now + SATURATION_MEMORY);
        load.unanswered()
    }

    /// Whether to close a connection that was just used: requests wait, and the server is known to
    /// leave them waiting while it holds this many connections.
    pub(crate) fn should_close_used_connection(&self, now: Instant, load: &ServerLoad) -> bool {
        self.saturated_until.is_some_and(|until| now < until)
            && load.unanswered() > 0
            && load.is_at_peak()
    }
}

/// A single tick may find a request that has only just been sent.
const STUCK_TICKS: u32 = 2;

/// How long an old peak, reached perhaps while some connections were closing, is trusted.
const PEAK_RESET_TICKS: u32 = 4;

/// How long a server counts as possibly full before it is observed afresh.
const SATURATION_MEMORY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A server with these connections, a peak of `most`, and `unanswered` requests waiting.
    fn load(connections: u32, most: u32, unanswered: u32) -> ServerLoad {
        ServerLoad {
            served_connections: connections.into(),
            peak_served_connections: most.into(),
            unanswered: unanswered.into(),
            answered_connections: most.into(),
        }
    }

    /// The connections closed at each of `count` ticks.
    fn ticks(saturation: &mut SaturationDetector, load: &ServerLoad, count: u32) -> Vec<u32> {
        let now = Instant::now();
        (0..count).map(|_| saturation.tick(now, load)).collect()
    }

    #[test]
    fn a_server_that_leaves_new_connections_waiting_loses_idle_ones() {
        let (mut saturation, load) = (SaturationDetector::default(), load(1, 1, 2));
        saturation.answered_at_last_tick = 1;
        assert_eq!(ticks(&mut saturation, &load, 3), [0, 2, 2]);
        let now = Instant::now();
        assert!(
            saturation.should_close_used_connection(now, &load),
            "the next one used is closed too"
        );
        assert!(!saturation.should_close_used_connection(now + 2 * SATURATION_MEMORY, &load));
        load.unanswered.store(0, Ordering::Relaxed);
        assert!(
            !saturation.should_close_used_connection(now, &load),
            "no request waits"
        );
    }

    #[test]
    fn a_server_that_answers_new_connections_keeps_all() {
        let (mut saturation, load) = (SaturationDetector::default(), load(3, 3, 1));
        for _ in 0..5 {
            load.add_served_connection();
            assert_eq!(saturation.tick(Instant::now(), &load), 0);
        }
        assert!(!saturation.should_close_used_connection(Instant::now(), &load));
    }

    #[test]
    fn one_slow_request_costs_a_server_of_many_connections_none_or_one() {
        let (mut saturation, load) = (SaturationDetector::default(), load(9, 10, 1));
        saturation.answered_at_last_tick = 10;
        assert_eq!(ticks(&mut saturation, &load, 3), [0, 0, 0], "it has room");
        load.served_connections.store(10, Ordering::Relaxed);
        assert_eq!(ticks(&mut saturation, &load, 1), [1]);
        load.served_connections.store(9, Ordering::Relaxed);
        assert!(!saturation.should_close_used_connection(Instant::now() + SECOND, &load));
    }

    #[test]
    fn the_observed_maximum_is_forgotten_after_a_while() {
        let (mut saturation, load) = (SaturationDetector::default(), load(1, 2, 1));
        saturation.answered_at_last_tick = 2;
        assert_eq!(ticks(&mut saturation, &load, 5), [0, 0, 0, 0, 1]);
    }
}
