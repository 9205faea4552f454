//! Whether one server may take requests: the verdict of its requests, its probes and its operator.
//!
//! The roster owns one [`ServerHealth`] a server and feeds it; after every [`HealthTransition`] it sets the
//! server's capacity in the queue by `max_active` and writes a log line. Inputs: `record_success`,
//! `failure` (requests), `probe` (active probes), `admin` and `tick` (at `next_tick` or later).
//! Outputs: a transition at most, `state`, `accepts_requests`, `max_active`, `ramp`.
//!
//! `malformed` is a failure that one kind of request may provoke.
//!
//! Requests that fail in a row eject a server for a while; then one request at a time is its trial,
//! and the first that ends decides. Failed probes take it down until good ones bring it up. The
//! operator's word stands above both. Pure: `now` is an argument. What must stay true: an ejected
//! server always comes to its trial; requests never eject a server that the caller cannot spare.

use std::fmt;
use std::time::{Duration, Instant};

use penstock_config as config;

/// When a server goes and how it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HealthRules {
    /// Failed requests in a row that eject; 0 is never.
    max_failures: u32,
    /// For how long at first; doubled with each ejection in a row up to 30 times.
    eject_time: Duration,
    /// Good probes in a row that bring it up.
    rise: u32,
    /// Failed probes in a row that take it down.
    fall: u32,
    /// Time over which its share grows to the whole after it came back.
    slow_start: Duration,
}

/// The health of one server.
#[derive(Debug, Clone)]
pub(crate) struct ServerHealth {
    rules: HealthRules,
    admin_state: AdminState,
    health_condition: HealthCondition,
    /// Requests failed in a row.
    consecutive_failures: u32,
    /// Ejections without a good request between them.
    consecutive_ejections: u32,
    /// Requests of malformed answers among the failures, the last ones.
    malformed_requests: [Option<u64>; 8],
    /// Probes in a row that spoke against the condition.
    consecutive_probes: u32,
    /// Since when its share grows.
    slow_start_from: Instant,
}

/// What the operator wants of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminState {
    /// Requests, as far as its health allows.
    Ready,
    /// No new requests; what it has goes on.
    Draining,
    /// The same, and nothing that it does counts until it is ready again.
    Disabled,
}

/// A server as the status page shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// It takes requests.
    Up,
    /// Its requests failed: none until then.
    Ejected {
        /// When its trial begins.
        until: Instant,
    },
    /// It takes one request at a time, whose end decides.
    OnTrial,
    /// Its probes failed.
    Down,
    /// It finishes what it has.
    Draining,
    /// It is out of use.
    Disabled,
}

/// A change of state, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthTransition {
    /// Its requests failed.
    Ejected {
        /// So many in a row.
        failures: u32,
        /// For so long.
        time: Duration,
    },
    /// Its time is over, the next request is its trial.
    Trial,
    /// Its trial, or the last server's, is over and it takes requests as before.
    Restored,
    /// So many probes failed in a row.
    Down {
        /// How many.
        probes: u32,
    },
    /// So many probes were good in a row.
    Up {
        /// How many.
        probes: u32,
    },
    /// The operator said so.
    AdminChanged(AdminState),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthCondition {
    Up,
    Ejected { until: Instant },
    OnTrial,
    Down,
}

/// How many times its first length an ejection may come to.
const MAX_EJECT_FACTOR: u32 = 30;

/// No ejection is longer: the sum with any clock must not overflow.
const MAX_EJECT_TIME: Duration = Duration::from_secs(24 * 60 * 60);

impl ServerHealth {
    /// A server that is up. Its share grows from now on: that slows those that join others, and
    /// changes nothing among those that start together.
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
            health_condition: HealthCondition::Up,
            consecutive_failures: 0,
            consecutive_ejections: 0,
            malformed_requests: [None; 8],
            consecutive_probes: 0,
            slow_start_from: now,
        }
    }

    /// A request of this server ended well.
    ///
    /// In its trial that restores it. One that was begun before an ejection and ends during it changes
    /// nothing.
    pub(crate) fn record_success(&mut self, now: Instant) -> Option<HealthTransition> {
        match self.judged_condition() {
            Some(HealthCondition::Up) => {
                if self.consecutive_failures > 0 {
                    self.malformed_requests = [None; 8];
                }
                (self.consecutive_failures, self.consecutive_ejections) = (0, 0);
                None
            }
            Some(HealthCondition::OnTrial) => Some(self.restore(now)),
            _ => None,
        }
    }

    /// A request of this server failed, and the server is to blame.
    ///
    /// `may_eject` is false for the last server that takes requests: a bad one is better than none. Then
    /// a failed trial restores it, and the next failure that may, ejects it.
    pub(crate) fn record_failure(
        &mut self,
        now: Instant,
        may_eject: bool,
    ) -> Option<HealthTransition> {
        let is_trial = match self.judged_condition()? {
            HealthCondition::Up => false,
            HealthCondition::OnTrial => true,
            HealthCondition::Ejected { .. } | HealthCondition::Down => return None,
        };
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        // A trial adds to those that ejected it, so one failure is enough.
        let is_over =
            self.rules.max_failures > 0 && self.consecutive_failures >= self.rules.max_failures;
        if may_eject && is_over {
            return Some(self.eject(now));
        }
        is_trial.then(|| self.mark_up(now, HealthTransition::Restored))
    }

    /// A request of this server was answered, and not by the rules of the protocol.
    ///
    /// One page may do that each time it is asked for, while all others are well: only answers to
    /// different requests count as failures in a row. `request` is alike for requests that are.
    pub(crate) fn record_malformed(
        &mut self,
        now: Instant,
        may_eject: bool,
        request: u64,
    ) -> Option<HealthTransition> {
        if self.judged_condition()? == HealthCondition::Up {
            if self.malformed_requests.contains(&Some(request)) {
                return None;
            }
            let at = self.consecutive_failures as usize % self.malformed_requests.len();
            self.malformed_requests[at] = Some(request);
        }
        self.record_failure(now, may_eject)
    }

    /// An active probe of this server ended.
    pub(crate) fn record_probe(&mut self, now: Instant, is_good: bool) -> Option<HealthTransition> {
        let is_down = self.judged_condition()? == HealthCondition::Down;
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
            self.health_condition = HealthCondition::Down;
            return Some(HealthTransition::Down { probes });
        }
        None
    }

    /// The operator's word. A server that was disabled begins anew, as one that is up; one that was
    /// draining is what its requests and probes made of it meanwhile.
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

    /// Begins the trial of an ejected server whose time is over.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<HealthTransition> {
        if self.next_tick()? > now {
            return None;
        }
        self.health_condition = HealthCondition::OnTrial;
        Some(HealthTransition::Trial)
    }

    /// When `tick` has something to say; none as long as nothing else happens.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match self.judged_condition()? {
            HealthCondition::Ejected { until } => Some(until),
            _ => None,
        }
    }

    /// The state to show: the operator's word, else the health.
    pub(crate) fn state(&self) -> ServerState {
        match (self.admin_state, self.health_condition) {
            (AdminState::Draining, _) => ServerState::Draining,
            (AdminState::Disabled, _) => ServerState::Disabled,
            (AdminState::Ready, HealthCondition::Up) => ServerState::Up,
            (AdminState::Ready, HealthCondition::Ejected { until }) => {
                ServerState::Ejected { until }
            }
            (AdminState::Ready, HealthCondition::OnTrial) => ServerState::OnTrial,
            (AdminState::Ready, HealthCondition::Down) => ServerState::Down,
        }
    }

    /// Whether it may get a new request, be it one at a time.
    pub(crate) fn accepts_requests(&self) -> bool {
        matches!(self.state(), ServerState::Up | ServerState::OnTrial)
    }

    /// Whether its probes are wanted: not while it is disabled.
    pub(crate) fn wants_probes(&self) -> bool {
        self.admin_state != AdminState::Disabled
    }

    /// How many requests its health allows in progress; none is as many as it is configured for.
    pub(crate) fn max_active(&self) -> Option<u32> {
        match self.state() {
            ServerState::Up => None,
            ServerState::OnTrial => Some(1),
            _ => Some(0),
        }
    }

    /// How much of its weight counts, in thousandths: grows from 0 to 1000 after it came back. In its
    /// trial it is all, so that the one request comes soon.
    pub(crate) fn slow_start_permille(&self, now: Instant) -> u16 {
        let passed = now.saturating_duration_since(self.slow_start_from);
        let whole = self.rules.slow_start;
        if passed >= whole || self.health_condition != HealthCondition::Up {
            return FULL_SHARE_PERMILLE;
        }
        let thousandths = passed.as_nanos() * u128::from(FULL_SHARE_PERMILLE) / whole.as_nanos();
        u16::try_from(thousandths).unwrap_or(FULL_SHARE_PERMILLE)
    }

    /// What its inputs act upon; none while nothing counts.
    fn judged_condition(&self) -> Option<HealthCondition> {
        (self.admin_state != AdminState::Disabled).then_some(self.health_condition)
    }

    fn restore(&mut self, now: Instant) -> HealthTransition {
        (self.consecutive_failures, self.consecutive_ejections) = (0, 0);
        self.mark_up(now, HealthTransition::Restored)
    }

    fn mark_up(&mut self, now: Instant, transition: HealthTransition) -> HealthTransition {
        self.health_condition = HealthCondition::Up;
        self.slow_start_from = now;
        transition
    }

    fn eject(&mut self, now: Instant) -> HealthTransition {
        let factor = 1_u32
            .checked_shl(self.consecutive_ejections)
            .unwrap_or(u32::MAX);
        let factor = factor.min(MAX_EJECT_FACTOR);
        let time = self.rules.eject_time.saturating_mul(factor);
        let time = time.min(MAX_EJECT_TIME);
        self.consecutive_ejections = self.consecutive_ejections.saturating_add(1);
        let until = now.checked_add(time).unwrap_or(now);
        self.health_condition = HealthCondition::Ejected { until };
        HealthTransition::Ejected {
            failures: self.consecutive_failures,
            time,
        }
    }
}

/// A ramp that is over.
const FULL_SHARE_PERMILLE: u16 = 1000;

impl ServerState {
    /// The word used for it on the status page and in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Ejected { .. } => "ejected",
            Self::OnTrial => "probing",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Disabled => "disabled",
        }
    }
}

impl HealthTransition {
    /// Writes its line to the log: a warning when a server stops taking requests by its own fault.
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
            Self::Down { probes } => write!(f, "down after failed probes in a row: {probes}"),
            Self::Up { probes } => write!(f, "up after good probes in a row: {probes}"),
            Self::AdminChanged(AdminState::Ready) => f.write_str("ready, as told"),
            Self::AdminChanged(AdminState::Draining) => f.write_str("draining, as told"),
            Self::AdminChanged(AdminState::Disabled) => f.write_str("disabled, as told"),
        }
    }
}

#[cfg(test)]
mod tests;
