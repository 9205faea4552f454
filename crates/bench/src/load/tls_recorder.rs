//! The TLS sessions of one load on one event loop: how many were made, how, and how long it took.
//!
//! Part of `recorder`; times have their own distributions, so that those of requests stay what they
//! are without TLS.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

use super::recorder::{add_histogram, new_histogram, summarize_histogram, to_microseconds};
use crate::report::TlsFigures;

#[derive(Debug, Clone)]
pub(super) struct TlsRecorder {
    /// By version and cipher suite, also of sessions that were made before the window.
    sessions: BTreeMap<String, u64>,
    full: Histogram<u64>,
    resumed: Histogram<u64>,
    first_failure: Option<String>,
}

impl TlsRecorder {
    pub(super) fn new() -> Result<Self, CreationError> {
        Ok(Self {
            sessions: BTreeMap::new(),
            full: new_histogram()?,
            resumed: new_histogram()?,
            first_failure: None,
        })
    }

    /// Clears what belongs to a window.
    pub(super) fn reset(&mut self) {
        self.full.reset();
        self.resumed.reset();
        self.first_failure = None;
    }

    /// Counts a session by what was negotiated.
    pub(super) fn record_session(&mut self, version: &str, cipher: &str) {
        let name = format!("{version} {cipher}");
        *self.sessions.entry(name).or_default() += 1;
    }

    /// Records the time of a handshake of the window.
    pub(super) fn record_handshake(&mut self, took: Duration, is_resumed: bool) {
        let times = match is_resumed {
            true => &mut self.resumed,
            false => &mut self.full,
        };
        times.saturating_record(to_microseconds(took));
    }

    /// Keeps the reason if it is the first.
    pub(super) fn record_failure(&mut self, why: impl FnOnce() -> String) {
        self.first_failure.get_or_insert_with(why);
    }

    /// Adds another loop's measurements.
    pub(super) fn merge(&mut self, other: &Self) {
        for (name, count) in &other.sessions {
            *self.sessions.entry(name.clone()).or_default() += count;
        }
        add_histogram(&mut self.full, &other.full);
        add_histogram(&mut self.resumed, &other.resumed);
        if self.first_failure.is_none() {
            self.first_failure.clone_from(&other.first_failure);
        }
    }

    pub(super) fn figures(&self) -> TlsFigures {
        TlsFigures {
            sessions: self.sessions.clone(),
            full: summarize_histogram(&self.full),
            resumed: summarize_histogram(&self.resumed),
            first_failure: self.first_failure.clone(),
        }
    }
}
