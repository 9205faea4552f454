//! When a name's certificate is loaded, looked at, ordered and renewed. Pure: `now` is an argument.
//!
//! Inputs are the `finish_*` functions; [`NameSchedule::next`] is the only output. One action is in
//! progress at a time: between [`NameSchedule::begin`] and the input that finishes it, nothing is
//! due.
//!
//! # Invariants
//! - A name is loaded before it is ordered.
//! - Failed attempts are apart by at least `min_retry`, doubling to `max_retry`, with jitter.
//!   Shortly before the certificate expires there are still several attempts.
//! - An authority that always wants a renewal at once gets one at growing intervals.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::certificate::CertificateFacts;
use crate::settings::RenewalBounds;

/// The schedule of one name.
#[derive(Debug)]
pub(crate) struct NameSchedule {
    bounds: RenewalBounds,
    /// Number of authorities.
    directories: usize,
    rng: fastrand::Rng,
    permission: Permission,
    is_loaded: bool,
    is_running: bool,
    certificate: Option<CertificateFacts>,
    window: Option<RenewalWindow>,
    /// Not before this time: the back-off after a failure, or another server's order.
    not_before: SystemTime,
    check_at: SystemTime,
    ask_authority_at: SystemTime,
    obtained_at: SystemTime,
    /// Consecutive failures, those at the authority in use, and which one that is.
    failures: u32,
    directory_failures: u32,
    directory: usize,
    /// Consecutive renewals that the authority wanted at once.
    early_renewals: u32,
    /// The certificate is to be replaced at once: it was revoked.
    is_renewal_forced: bool,
}

/// What to do next for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    /// Ask whether a name on demand may have a certificate.
    AskPermission,
    /// Load the certificate from the storage.
    Load,
    /// Compare with the storage, and ask the authority for the renewal window.
    Check { asks_authority: bool },
    /// Order from the authority with this number.
    Order { directory: usize },
}

/// A window in which the authority suggests to renew (RFC 9773 §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RenewalWindow {
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
}

/// A failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// When the authority may be asked again.
    pub(crate) retry_at: Option<SystemTime>,
}

/// How a failure bears on the choice of the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The authority will repeat it: the next one is tried.
    Refused,
    /// It may pass: the next authority is tried after [`MAX_FAILURES_PER_DIRECTORY`].
    Attempt,
    /// No authority is the cause.
    Local,
}

/// Whether a name on demand may have a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permission {
    NotNeeded,
    Needed,
    Granted,
}

/// Failures at one authority before the next is tried.
const MAX_FAILURES_PER_DIRECTORY: u32 = 2;

/// The longest time between two questions for the renewal window (RFC 9773 §4.3.2).
const MAX_WINDOW_AGE: Duration = Duration::from_secs(86_400);

impl NameSchedule {
    /// Creates the schedule; its first action is due at once. `seed` decides its jitter.
    pub(crate) fn new(
        bounds: RenewalBounds,
        directories: usize,
        is_on_demand: bool,
        seed: u64,
    ) -> Self {
        Self {
            bounds,
            directories: directories.max(1),
            rng: fastrand::Rng::with_seed(seed),
            permission: if is_on_demand {
                Permission::Needed
            } else {
                Permission::NotNeeded
            },
            is_loaded: false,
            is_running: false,
            certificate: None,
            window: None,
            not_before: UNIX_EPOCH,
            check_at: UNIX_EPOCH,
            ask_authority_at: UNIX_EPOCH,
            obtained_at: UNIX_EPOCH,
            failures: 0,
            directory_failures: 0,
            directory: 0,
            early_renewals: 0,
            is_renewal_forced: false,
        }
    }

    /// The next action and when it is due; `None` while one is in progress.
    pub(crate) fn next(&self) -> Option<(SystemTime, Action)> {
        if self.is_running {
            return None;
        }
        if !self.is_loaded {
            return Some(match self.permission {
                Permission::Needed => (self.not_before, Action::AskPermission),
                _ => (self.not_before, Action::Load),
            });
        }
        let order_at = self.renew_at().unwrap_or(UNIX_EPOCH).max(self.not_before);
        let order = match self.permission {
            Permission::Needed => Action::AskPermission,
            _ => Action::Order {
                directory: self.directory,
            },
        };
        if self.certificate.is_none() || order_at <= self.check_at {
            return Some((order_at, order));
        }
        let asks_authority = self.ask_authority_at <= self.check_at;
        Some((self.check_at, Action::Check { asks_authority }))
    }

    /// Marks the next action as in progress.
    pub(crate) fn begin(&mut self) {
        self.is_running = true;
    }

    /// When the certificate is to be renewed; `None` without one.
    pub(crate) fn renew_at(&self) -> Option<SystemTime> {
        let certificate = self.certificate.as_ref()?;
        if self.is_renewal_forced {
            return Some(UNIX_EPOCH);
        }
        let regular = regular_renewal(certificate);
        let Some(window) = self.window else {
            return Some(regular);
        };
        let length = window.end.duration_since(window.start).unwrap_or_default();
        let suggested = window.start + fraction(length, certificate.spread);
        // An authority that suggests a time shortly before the end leaves no time for failures.
        let last = latest_renewal(certificate);
        Some(suggested.max(self.earliest_renewal()).min(last))
    }

    /// The current certificate's facts.
    pub(crate) fn certificate(&self) -> Option<&CertificateFacts> {
        self.certificate.as_ref()
    }

    /// Consecutive failed attempts.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Looks at the certificate as soon as nothing is in progress, and asks the authority.
    pub(crate) fn request_check(&mut self) {
        (self.check_at, self.ask_authority_at) = (UNIX_EPOCH, UNIX_EPOCH);
        self.not_before = UNIX_EPOCH;
    }

    /// Replaces the certificate as soon as nothing is in progress.
    pub(crate) fn force_renewal(&mut self) {
        self.is_renewal_forced = true;
        self.not_before = UNIX_EPOCH;
    }

    /// Moves the next order to `at`, without a failure.
    pub(crate) fn postpone(&mut self, at: SystemTime) {
        self.not_before = self.not_before.max(at);
    }

    /// The name has come into the configuration: no permission is needed any longer.
    pub(crate) fn waive_permission(&mut self) {
        self.permission = Permission::NotNeeded;
    }

    /// When the next order is tried after a failure.
    pub(crate) fn retry_at(&self) -> Option<SystemTime> {
        (self.failures > 0).then_some(self.not_before)
    }

    /// Permission was given.
    pub(crate) fn finish_permission(&mut self) {
        self.is_running = false;
        if self.permission == Permission::Needed {
            self.permission = Permission::Granted;
        }
    }

    /// The storage was read.
    pub(crate) fn finish_load(&mut self, now: SystemTime, found: Option<CertificateFacts>) {
        self.is_running = false;
        self.is_loaded = true;
        self.not_before = UNIX_EPOCH;
        (self.failures, self.directory_failures) = (0, 0);
        if let Some(found) = found {
            self.set_certificate(found, UNIX_EPOCH);
            // A certificate that was revoked while the server was down is noticed early.
            let spread = self.bounds.check_interval / 6;
            self.check_at = now + spread.mul_f64(self.rng.f64());
        }
    }

    /// The certificate was looked at: `newer` is one that another server obtained.
    pub(crate) fn finish_check(
        &mut self,
        now: SystemTime,
        newer: Option<CertificateFacts>,
        answer: Option<(RenewalWindow, Duration)>,
    ) {
        self.is_running = false;
        if let Some(newer) = newer {
            self.set_certificate(newer, now);
        }
        self.check_at = now + self.jittered(self.bounds.check_interval);
        let Some((window, retry_after)) = answer else {
            return;
        };
        // A window that ends before it begins is no window (RFC 9773 §4.2).
        if window.start <= window.end {
            self.window = Some(window);
        }
        if window.start > now {
            self.early_renewals = 0;
        }
        self.ask_authority_at = now + retry_after.min(MAX_WINDOW_AGE);
    }

    /// A certificate was ordered, or found in the storage under the lock.
    pub(crate) fn finish_order(&mut self, now: SystemTime, obtained: CertificateFacts) {
        self.is_running = false;
        let was_early = |old: &CertificateFacts| now < regular_renewal(old);
        let was_early = self.certificate.as_ref().is_some_and(was_early);
        self.early_renewals = if was_early {
            self.early_renewals + 1
        } else {
            0
        };
        self.set_certificate(obtained, now);
        self.check_at = now + self.jittered(self.bounds.check_interval);
        self.require_permission();
    }

    /// Another server orders: look again soon.
    pub(crate) fn finish_elsewhere(&mut self, now: SystemTime) {
        self.is_running = false;
        self.not_before = now + self.jittered(self.bounds.peer_retry);
    }

    /// An action failed.
    pub(crate) fn finish_failure(&mut self, now: SystemTime, failure: Failure) {
        self.is_running = false;
        self.require_permission();
        self.failures = self.failures.saturating_add(1);
        let next_directory = self.next_directory(failure.kind);
        let mut retry_at = now + self.retry_delay(now);
        if next_directory == self.directory {
            let wanted = failure.retry_at.unwrap_or(UNIX_EPOCH);
            retry_at = retry_at.max(wanted.min(now + self.bounds.max_retry));
        }
        self.directory = next_directory;
        self.not_before = retry_at;
    }

    fn next_directory(&mut self, kind: FailureKind) -> usize {
        self.directory_failures += u32::from(kind != FailureKind::Local);
        let is_enough = self.directory_failures >= MAX_FAILURES_PER_DIRECTORY;
        if self.directories == 1 || !(is_enough || kind == FailureKind::Refused) {
            return self.directory;
        }
        self.directory_failures = 0;
        (self.directory + 1) % self.directories
    }

    /// The back-off: all authorities are tried before it doubles.
    fn retry_delay(&mut self, now: SystemTime) -> Duration {
        let directories = u32::try_from(self.directories).unwrap_or(u32::MAX);
        let doublings = ((self.failures - 1) / directories).min(MAX_DOUBLINGS);
        // A server that starts with its storage should not wait for a minute.
        let first = if self.is_loaded {
            self.bounds.min_retry
        } else {
            self.bounds.peer_retry
        };
        let mut delay = first.saturating_mul(1 << doublings);
        delay = delay.min(self.bounds.max_retry);
        if let Some(certificate) = &self.certificate {
            let left = certificate.not_after.duration_since(now);
            delay = delay.min(left.unwrap_or(self.bounds.max_retry) / ATTEMPTS_BEFORE_EXPIRY);
        }
        self.jittered(delay.max(first))
    }

    /// Adds up to a seventh, so that names and servers that failed together do not come together.
    fn jittered(&mut self, delay: Duration) -> Duration {
        delay.mul_f64(1.0 + self.rng.f64() / 7.0)
    }

    fn set_certificate(&mut self, facts: CertificateFacts, now: SystemTime) {
        self.certificate = Some(facts);
        self.window = None;
        self.is_renewal_forced = false;
        self.obtained_at = now;
        self.ask_authority_at = UNIX_EPOCH;
        self.not_before = UNIX_EPOCH;
        (self.failures, self.directory_failures, self.directory) = (0, 0, 0);
    }

    fn require_permission(&mut self) {
        if self.permission == Permission::Granted {
            self.permission = Permission::Needed;
        }
    }

    fn earliest_renewal(&self) -> SystemTime {
        let Some(repeats) = self.early_renewals.checked_sub(1) else {
            return UNIX_EPOCH;
        };
        let pause = self
            .bounds
            .check_interval
            .saturating_mul(1 << repeats.min(MAX_DOUBLINGS));
        self.obtained_at + pause.min(self.bounds.max_retry)
    }
}

const MAX_DOUBLINGS: u32 = 16;

/// Attempts that remain possible before a certificate expires, whatever the back-off.
const ATTEMPTS_BEFORE_EXPIRY: u32 = 4;

/// At two thirds of the lifetime, up to a fiftieth earlier: not all names of a server at once.
fn regular_renewal(certificate: &CertificateFacts) -> SystemTime {
    let lifetime = lifetime(certificate);
    let earlier = fraction(lifetime / 50, certificate.spread);
    certificate.not_before + (lifetime / 3 * 2).saturating_sub(earlier)
}

fn latest_renewal(certificate: &CertificateFacts) -> SystemTime {
    certificate.not_before + lifetime(certificate) / 6 * 5
}

fn lifetime(certificate: &CertificateFacts) -> Duration {
    let lifetime = certificate.not_after.duration_since(certificate.not_before);
    lifetime.unwrap_or_default()
}

/// `duration`, scaled by `part` of 2^32.
fn fraction(duration: Duration, part: u32) -> Duration {
    duration.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests;
