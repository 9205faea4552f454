//! Decides whether one server may serve requests, from its requests, its probes and its operator.
//!
//! `server_pool` owns one [`ServerHealth`] per server and feeds it. After each [`HealthTransition`]
//! it sets the server's limit in the queue by `max_active` and writes a log line. Inputs:
//! `record_success`, `record_failure` and `record_malformed` (requests), `record_probe`,
//! `set_admin_state` and `tick` (at `next_tick` or later). Outputs: at most one transition,
//! `state`, `accepts_requests`, `max_active`, `slow_start_permille`. Pure: `now` is an argument.
//!
//! Consecutive failed requests eject a server for a while. Then one request at a time is its trial,
//! and the first to end decides. Failed probes take a server down until successful probes bring it
//! up. The operator's setting overrides both.
//!
//! # Invariants
//!
//! - An ejected server always gets a trial.
//! - Requests never eject a server that the caller cannot spare.

use std::fmt;
use std::time::{Duration, Instant};

use penstock_config as config;

/// When a server goes and how it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HealthRules {
    /// Consecutive failed requests that eject; 0 means never.
    max_failures: u32,
    /// The first ejection's length; doubles with each consecutive ejection, up to 30 times.
    eject_time: Duration,
    /// Consecutive successful probes that bring it up.
    rise: u32,
    /// Consecutive failed probes that take it down.
    fall: u32,
    /// Time over which its share grows to the whole after it came back.
    slow_start: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct ServerHealth {
    rules: HealthRules,
    admin_state: AdminState,
    /// Up, ejected, on trial or down.
    condition: ServerHealthState,
    /// Consecutive failed requests.
    consecutive_failures: u32,
    /// Ejections without a successful request between them.
    consecutive_ejections: u32,
    /// Request hashes of the latest malformed responses among the failures.
    malformed_requests: [Option<u64>; 8],
    /// Consecutive probes that contradict the condition.
    consecutive_probes: u32,
    /// When its share began to grow.
    slow_start_from: Instant,
}

/// The operator's setting for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminState {
    /// Serves requests, as far as its health allows.
    Ready,
    /// No new requests; active ones finish.
    Draining,
    /// As `Draining`, and its requests and probes do not count until it is ready again.
    Disabled,
}

/// The state that the status page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerHealthState {
    Up,
    /// Its requests failed; no requests until then.
    Ejected {
        /// When its trial begins.
        until: Instant,
    },
    /// Accepts one request at a time; the first to end decides.
    OnTrial,
    Down,
    Draining,
    Disabled,
}

/// A change of state, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthTransition {
    Ejected {
        failures: u32,
        time: Duration,
    },
    /// The ejection has ended; the next request is its trial.
    Trial,
    /// Its trial has ended, or it is the last server: it accepts requests as before.
    Restored,
    Down {
        probes: u32,
    },
    Up {
        probes: u32,
    },
    AdminChanged(AdminState),
}

/// The longest ejection, as a multiple of the first.
const MAX_EJECT_FACTOR: u32 = 30;

/// The longest ejection at all: its sum with any clock must not overflow.
const MAX_EJECT_TIME: Duration = Duration::from_secs(24 * 60 * 60);

impl ServerHealth {
    /// Creates a server that is up, in slow start. That slows servers that join others and changes
    /// nothing among servers that start together.
    pub(crate) fn new(config: &config::Upstream, now: Instant) -> Self {
        let health = config.health.clone().unwrap_or_default();
        let rules = HealthRules {
            max_failures: config.eject.max_failures,
            eject_time: config.eject.duration,
            rise: health.rise,
            fall: health.fall,
            slow_start: config.slow_start,
        };
        Self::with_rules(rules, now)
    }

    fn with_rules(rules: HealthRules, now: Instant) -> Self {
        Self {
            rules,
            admin_state: AdminState::Ready,
            condition: ServerHealthState::Up,
            consecutive_failures: 0,
            consecutive_ejections: 0,
            malformed_requests: [None; 8],
            consecutive_probes: 0,
            slow_start_from: now,
        }
    }

    /// Records that a request ended well.
    ///
    /// A trial restores the server. A request begun before an ejection that ends during it changes
    /// nothing.
    pub(crate) fn record_success(&mut self, now: Instant) -> Option<HealthTransition> {
        match self.judged_condition() {
            Some(ServerHealthState::Up) => {
                if self.consecutive_failures > 0 {
                    self.malformed_requests = [None; 8];
                }
                (self.consecutive_failures, self.consecutive_ejections) = (0, 0);
                None
            }
            Some(ServerHealthState::OnTrial) => Some(self.restore(now)),
            _ => None,
        }
    }

    /// Records a request that failed by the server's fault.
    ///
    /// `may_eject` is false for the last server that accepts requests: a bad one is better than
    /// none. Then a failed trial restores it, and the next failure with `may_eject` ejects it.
    pub(crate) fn record_failure(
        &mut self,
        now: Instant,
        may_eject: bool,
    ) -> Option<HealthTransition> {
        let is_trial = match self.judged_condition()? {
            ServerHealthState::Up => false,
            ServerHealthState::OnTrial => true,
            _ => return None,
        };
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        // A trial adds to the failures that ejected it, so one failure is enough.
        let is_over =
            self.rules.max_failures > 0 && self.consecutive_failures >= self.rules.max_failures;
        if may_eject && is_over {
            return Some(self.eject(now));
        }
        is_trial.then(|| self.mark_up(now, HealthTransition::Restored))
    }

    /// Records a response that violates the protocol.
    ///
    /// One page may cause this on each request while all others work: only responses to different
    /// requests count as consecutive failures. `request` is the same for equal requests.
    pub(crate) fn record_malformed(
        &mut self,
        now: Instant,
        may_eject: bool,
        request: u64,
    ) -> Option<HealthTransition> {
        if self.judged_condition()? == ServerHealthState::Up {
            if self.malformed_requests.contains(&Some(request)) {
                return None;
            }
            let at = self.consecutive_failures as usize % self.malformed_requests.len();
            self.malformed_requests[at] = Some(request);
        }
        self.record_failure(now, may_eject)
    }

    pub(crate) fn record_probe(&mut self, now: Instant, is_good: bool) -> Option<HealthTransition> {
        let is_down = self.judged_condition()? == ServerHealthState::Down;
        if is_good != is_down {
            self.consecutive_probes = 0;
            return None;
        }
        self.consecutive_probes = self.consecutive_probes.saturating_add(1);
        let probes = self.consecutive_probes;
        if is_down && probes >= self.rules.rise {
            (self.consecutive_failures, self.consecutive_probes) = (0, 0);
            return Some(self.mark_up(now, HealthTransition::Up { probes }));
        }
        if !is_down && probes >= self.rules.fall {
            self.consecutive_probes = 0;
            self.condition = ServerHealthState::Down;
            return Some(HealthTransition::Down { probes });
        }
        None
    }

    /// Sets the operator's state. A server that was disabled starts anew, as up. One that was
    /// draining has the health that its requests and probes gave it meanwhile.
    pub(crate) fn set_admin_state(
        &mut self,
        now: Instant,
        admin: AdminState,
    ) -> Option<HealthTransition> {
        if self.admin_state == admin {
            return None;
        }
        if self.admin_state == AdminState::Disabled {
            *self = Self::with_rules(self.rules, now);
        }
        self.admin_state = admin;
        if admin == AdminState::Ready {
            self.slow_start_from = now;
        }
        Some(HealthTransition::AdminChanged(admin))
    }

    /// Begins the trial of an ejected server at the end of its ejection.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<HealthTransition> {
        if self.next_tick()? > now {
            return None;
        }
        self.condition = ServerHealthState::OnTrial;
        Some(HealthTransition::Trial)
    }

    /// When to call `tick`; `None` if time alone changes nothing.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match self.judged_condition()? {
            ServerHealthState::Ejected { until } => Some(until),
            _ => None,
        }
    }

    /// The state to show: the operator's setting, else the health.
    pub(crate) fn state(&self) -> ServerHealthState {
        match self.admin_state {
            AdminState::Ready => self.condition,
            AdminState::Draining => ServerHealthState::Draining,
            AdminState::Disabled => ServerHealthState::Disabled,
        }
    }

    /// Whether it may get a new request, even if only one at a time.
    pub(crate) fn accepts_requests(&self) -> bool {
        matches!(
            self.state(),
            ServerHealthState::Up | ServerHealthState::OnTrial
        )
    }

    /// Whether to probe it: not while it is disabled.
    pub(crate) fn wants_probes(&self) -> bool {
        self.admin_state != AdminState::Disabled
    }

    /// The limit of active requests by its health; `None` for the configured one.
    pub(crate) fn max_active(&self) -> Option<u32> {
        match self.state() {
            ServerHealthState::Up => None,
            ServerHealthState::OnTrial => Some(1),
            _ => Some(0),
        }
    }

    /// The part of its weight that counts, in thousandths: grows from 0 to 1000 after it came back.
    /// A trial has the whole weight, so that its request comes soon.
    pub(crate) fn slow_start_permille(&self, now: Instant) -> u16 {
        let passed = now.saturating_duration_since(self.slow_start_from);
        let whole = self.rules.slow_start;
        if passed >= whole || self.condition != ServerHealthState::Up {
            return FULL_SHARE_PERMILLE;
        }
        let thousandths = passed.as_nanos() * u128::from(FULL_SHARE_PERMILLE) / whole.as_nanos();
        u16::try_from(thousandths).unwrap_or(FULL_SHARE_PERMILLE)
    }

    /// The condition that inputs act on; `None` while nothing counts.
    fn judged_condition(&self) -> Option<ServerHealthState> {
        (self.admin_state != AdminState::Disabled).then_some(self.condition)
    }

    fn restore(&mut self, now: Instant) -> HealthTransition {
        (self.consecutive_failures, self.consecutive_ejections) = (0, 0);
        self.mark_up(now, HealthTransition::Restored)
    }

    fn mark_up(&mut self, now: Instant, transition: HealthTransition) -> HealthTransition {
        self.condition = ServerHealthState::Up;
        self.slow_start_from = now;
        transition
    }

    fn eject(&mut self, now: Instant) -> HealthTransition {
        let factor = 1_u32
            .checked_shl(self.consecutive_ejections)
            .unwrap_or(u32::MAX);
        let time = (self.rules.eject_time).saturating_mul(factor.min(MAX_EJECT_FACTOR));
        let time = time.min(MAX_EJECT_TIME);
        self.consecutive_ejections = self.consecutive_ejections.saturating_add(1);
        let until = now.checked_add(time).unwrap_or(now);
        self.condition = ServerHealthState::Ejected { until };
        HealthTransition::Ejected {
            failures: self.consecutive_failures,
            time,
        }
    }
}

/// The share after slow start.
const FULL_SHARE_PERMILLE: u16 = 1000;

impl ServerHealthState {
    /// The name on the status page and in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Ejected { .. } => "ejected",
            Self::OnTrial => "trial",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Disabled => "disabled",
        }
    }
}

impl HealthTransition {
    /// Writes the log line: a warning when a server stops accepting requests by its own fault.
    pub(crate) fn log(&self, upstream: &str, server: &str) {
        let level = match self {
            Self::Ejected { .. } | Self::Down { .. } => log::Level::Warn,
            _ => log::Level::Info,
        };
        log::log!(level, "{upstream}: server {server}: {self}");
    }
}

impl fmt::Display for HealthTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ejected { failures, time } => {
                let seconds = time.as_secs_f64();
                write!(
                    f,
                    "ejected for {seconds} s after failed requests in a row: {failures}"
                )
            }
            Self::Trial => f.write_str("on trial, one request at a time"),
            Self::Restored => f.write_str("restored"),
            Self::Down { probes } => write!(f, "down after failed probes: {probes}"),
            Self::Up { probes } => write!(f, "up after successful probes: {probes}"),
            Self::AdminChanged(state) => {
                let state = match state {
                    AdminState::Ready => "ready",
                    AdminState::Draining => "draining",
                    AdminState::Disabled => "disabled",
                };
                write!(f, "set to {state} by an operator")
            }
        }
    }
}

#[cfg(test)]
mod tests;
