//! Whether one server may take requests: the verdict of its requests, its probes and its operator.
//!
//! The roster owns one [`Ejection`] a server and feeds it; after every [`Transition`] it sets the
//! server's capacity in the queue by `requests_max` and writes a log line. Inputs: `success`,
//! `failure` (requests), `probe` (active probes), `admin` and `tick` (at `next_tick` or later).
//! Outputs: a transition at most, `state`, `takes_requests`, `requests_max`, `ramp`.
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
struct Rules {
    /// Failed requests in a row that eject; 0 is never.
    failures: u32,
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
pub(crate) struct Ejection {
    rules: Rules,
    admin: Admin,
    condition: Condition,
    /// Requests failed in a row.
    failures: u32,
    /// Ejections without a good request between them.
    ejections: u32,
    /// Requests of malformed answers among the failures, the last ones.
    provoking: [Option<u64>; 8],
    /// Probes in a row that spoke against the condition.
    probes: u32,
    /// Since when its share grows.
    ramp_from: Instant,
}

/// What the operator wants of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admin {
    /// Requests, as far as its health allows.
    Ready,
    /// No new requests; what it has goes on.
    Draining,
    /// The same, and nothing that it does counts until it is ready again.
    Disabled,
}

/// A server as the status page shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It takes requests.
    Up,
    /// Its requests failed: none until then.
    Ejected {
        /// When its trial begins.
        until: Instant,
    },
    /// It takes one request at a time, whose end decides.
    Probing,
    /// Its probes failed.
    Down,
    /// It finishes what it has.
    Draining,
    /// It is out of use.
    Disabled,
}

/// A change of state, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
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
    Admin(Admin),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Up,
    Ejected { until: Instant },
    Probing,
    Down,
}

/// How many times its first length an ejection may come to.
const EJECT_FACTOR_MAX: u32 = 30;

/// No ejection is longer: the sum with any clock must not overflow.
const EJECT_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Ejection {
    /// A server that is up. Its share grows from now on: that slows those that join others, and
    /// changes nothing among those that start together.
    pub(crate) fn new(config: &config::Upstream, now: Instant) -> Self {
        let health = config.health.clone().unwrap_or_default();
        let rules = Rules {
            failures: config.eject.failures,
            eject_time: config.eject.time,
            rise: health.rise,
            fall: health.fall,
            slow_start: config.slow_start,
        };
        Self::with_rules(rules, now)
    }

    fn with_rules(rules: Rules, now: Instant) -> Self {
        Self {
            rules,
            admin: Admin::Ready,
            condition: Condition::Up,
            failures: 0,
            ejections: 0,
            provoking: [None; 8],
            probes: 0,
            ramp_from: now,
        }
    }

    /// A request of this server ended well.
    ///
    /// In its trial that restores it. One that was begun before an ejection and ends during it changes
    /// nothing.
    pub(crate) fn success(&mut self, now: Instant) -> Option<Transition> {
        match self.condition() {
            Some(Condition::Up) => {
                if self.failures > 0 {
                    self.provoking = [None; 8];
                }
                (self.failures, self.ejections) = (0, 0);
                None
            }
            Some(Condition::Probing) => Some(self.restore(now)),
            _ => None,
        }
    }

    /// A request of this server failed, and the server is to blame.
    ///
    /// `may_eject` is false for the last server that takes requests: a bad one is better than none. Then
    /// a failed trial restores it, and the next failure that may, ejects it.
    pub(crate) fn failure(&mut self, now: Instant, may_eject: bool) -> Option<Transition> {
        let is_trial = match self.condition()? {
            Condition::Up => false,
            Condition::Probing => true,
            Condition::Ejected { .. } | Condition::Down => return None,
        };
        self.failures = self.failures.saturating_add(1);
        // A trial adds to those that ejected it, so one failure is enough.
        let is_over = self.rules.failures > 0 && self.failures >= self.rules.failures;
        if may_eject && is_over {
            return Some(self.eject(now));
        }
        is_trial.then(|| self.take_up(now, Transition::Restored))
    }

    /// A request of this server was answered, and not by the rules of the protocol.
    ///
    /// One page may do that each time it is asked for, while all others are well: only answers to
    /// different requests count as failures in a row. `request` is alike for requests that are.
    pub(crate) fn malformed(
        &mut self,
        now: Instant,
        may_eject: bool,
        request: u64,
    ) -> Option<Transition> {
        if self.condition()? == Condition::Up {
            if self.provoking.contains(&Some(request)) {
                return None;
            }
            let at = self.failures as usize % self.provoking.len();
            self.provoking[at] = Some(request);
        }
        self.failure(now, may_eject)
    }

    /// An active probe of this server ended.
    pub(crate) fn probe(&mut self, now: Instant, is_good: bool) -> Option<Transition> {
        let is_down = self.condition()? == Condition::Down;
        if is_good != is_down {
            self.probes = 0;
            return None;
        }
        self.probes = self.probes.saturating_add(1);
        let probes = self.probes;
        if is_down && probes >= self.rules.rise {
            (self.failures, self.probes) = (0, 0);
            return Some(self.take_up(now, Transition::Up { probes }));
        }
        if !is_down && probes >= self.rules.fall {
            self.probes = 0;
            self.condition = Condition::Down;
            return Some(Transition::Down { probes });
        }
        None
    }

    /// The operator's word. A server that was disabled begins anew, as one that is up; one that was
    /// draining is what its requests and probes made of it meanwhile.
    pub(crate) fn admin(&mut self, now: Instant, admin: Admin) -> Option<Transition> {
        if self.admin == admin {
            return None;
        }
        if self.admin == Admin::Disabled {
            *self = Self::with_rules(self.rules, now);
        }
        self.admin = admin;
        if admin == Admin::Ready {
            self.ramp_from = now;
        }
        Some(Transition::Admin(admin))
    }

    /// Begins the trial of an ejected server whose time is over.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<Transition> {
        if self.next_tick()? > now {
            return None;
        }
        self.condition = Condition::Probing;
        Some(Transition::Trial)
    }

    /// When `tick` has something to say; none as long as nothing else happens.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match self.condition()? {
            Condition::Ejected { until } => Some(until),
            _ => None,
        }
    }

    /// The state to show: the operator's word, else the health.
    pub(crate) fn state(&self) -> State {
        match (self.admin, self.condition) {
            (Admin::Draining, _) => State::Draining,
            (Admin::Disabled, _) => State::Disabled,
            (Admin::Ready, Condition::Up) => State::Up,
            (Admin::Ready, Condition::Ejected { until }) => State::Ejected { until },
            (Admin::Ready, Condition::Probing) => State::Probing,
            (Admin::Ready, Condition::Down) => State::Down,
        }
    }

    /// Whether it may get a new request, be it one at a time.
    pub(crate) fn takes_requests(&self) -> bool {
        matches!(self.state(), State::Up | State::Probing)
    }

    /// Whether its probes are wanted: not while it is disabled.
    pub(crate) fn wants_probes(&self) -> bool {
        self.admin != Admin::Disabled
    }

    /// How many requests its health allows in progress; none is as many as it is configured for.
    pub(crate) fn requests_max(&self) -> Option<u32> {
        match self.state() {
            State::Up => None,
            State::Probing => Some(1),
            _ => Some(0),
        }
    }

    /// How much of its weight counts, in thousandths: grows from 0 to 1000 after it came back. In its
    /// trial it is all, so that the one request comes soon.
    pub(crate) fn ramp(&self, now: Instant) -> u16 {
        let passed = now.saturating_duration_since(self.ramp_from);
        let whole = self.rules.slow_start;
        if passed >= whole || self.condition != Condition::Up {
            return WHOLE;
        }
        let thousandths = passed.as_nanos() * u128::from(WHOLE) / whole.as_nanos();
        u16::try_from(thousandths).unwrap_or(WHOLE)
    }

    /// What its inputs act upon; none while nothing counts.
    fn condition(&self) -> Option<Condition> {
        (self.admin != Admin::Disabled).then_some(self.condition)
    }

    fn restore(&mut self, now: Instant) -> Transition {
        (self.failures, self.ejections) = (0, 0);
        self.take_up(now, Transition::Restored)
    }

    fn take_up(&mut self, now: Instant, transition: Transition) -> Transition {
        self.condition = Condition::Up;
        self.ramp_from = now;
        transition
    }

    fn eject(&mut self, now: Instant) -> Transition {
        let factor = 1_u32.checked_shl(self.ejections).unwrap_or(u32::MAX);
        let factor = factor.min(EJECT_FACTOR_MAX);
        let time = self.rules.eject_time.saturating_mul(factor);
        let time = time.min(EJECT_TIME_MAX);
        self.ejections = self.ejections.saturating_add(1);
        let until = now.checked_add(time).unwrap_or(now);
        self.condition = Condition::Ejected { until };
        Transition::Ejected {
            failures: self.failures,
            time,
        }
    }
}

/// A ramp that is over.
const WHOLE: u16 = 1000;

impl State {
    /// The word used for it on the status page and in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Ejected { .. } => "ejected",
            Self::Probing => "probing",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Disabled => "disabled",
        }
    }
}

impl Transition {
    /// Writes its line to the log: a warning when a server stops taking requests by its own fault.
    pub(crate) fn log(&self, upstream: &str, server: &str) {
        let level = match self {
            Self::Ejected { .. } | Self::Down { .. } => log::Level::Warn,
            _ => log::Level::Info,
        };
        log::log!(level, "{upstream}: server {server}: {self}");
    }
}

impl fmt::Display for Transition {
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
            Self::Admin(Admin::Ready) => f.write_str("ready, as told"),
            Self::Admin(Admin::Draining) => f.write_str("draining, as told"),
            Self::Admin(Admin::Disabled) => f.write_str("disabled, as told"),
        }
    }
}

#[cfg(test)]
mod tests;
