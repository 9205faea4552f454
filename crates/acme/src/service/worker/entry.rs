//! What the worker knows of one name.

use std::sync::Arc;
use std::time::SystemTime;

use super::JobKind;
use crate::name::CertificateName;
use crate::schedule::{Action, NameSchedule};
use crate::service::status::{CertificateState, CertificateStatus, unix_seconds};

/// A name that the service has.
pub(super) struct NameEntry {
    pub(super) schedule: NameSchedule,
    /// Tells a name that was removed and added again from the earlier one.
    pub(super) generation: u64,
    pub(super) is_on_demand: bool,
    /// The action in progress.
    pub(super) action: Option<Action>,
    /// Another server ordered it when this one tried last.
    pub(super) is_elsewhere: bool,
    /// Its place in the rate of certificates on demand is taken.
    pub(super) has_rate_token: bool,
    pub(super) directory: Option<Arc<str>>,
    pub(super) issued_total: u64,
    pub(super) failed_total: u64,
    pub(super) last_error: Option<String>,
    /// When its next action is due, and of which kind it is, as queued.
    pub(super) due: Option<(SystemTime, JobKind)>,
}

impl NameEntry {
    pub(super) fn new(schedule: NameSchedule, generation: u64, is_on_demand: bool) -> Self {
        Self {
            schedule,
            generation,
            is_on_demand,
            action: None,
            is_elsewhere: false,
            has_rate_token: false,
            directory: None,
            issued_total: 0,
            failed_total: 0,
            last_error: None,
            due: None,
        }
    }

    /// Its state for the status page.
    pub(super) fn describe(&self, name: &CertificateName, now: SystemTime) -> CertificateStatus {
        let schedule = &self.schedule;
        let not_after = schedule.certificate().map(|facts| facts.not_after);
        let is_valid = not_after.is_some_and(|not_after| now < not_after);
        let is_ordering = matches!(self.action, Some(Action::Order { .. }));
        let is_failing = schedule.failures() > 0;
        let state = match (is_valid, is_ordering) {
            (true, true) => CertificateState::Renewing,
            (true, false) if is_failing => CertificateState::RenewalFailing,
            (true, false) => CertificateState::Valid,
            (false, true) => CertificateState::Ordering,
            (false, false) if self.is_elsewhere => CertificateState::OrderedElsewhere,
            (false, false) if is_failing => CertificateState::Failing,
            (false, false) => CertificateState::Pending,
        };
        CertificateStatus {
            name: name.to_string(),
            state,
            is_on_demand: self.is_on_demand,
            directory: self.directory.as_deref().map(str::to_owned),
            not_after: not_after.map(unix_seconds),
            renew_at: schedule.renew_at().map(unix_seconds),
            retry_at: schedule.retry_at().map(unix_seconds),
            failed_attempts: schedule.failures(),
            issued_total: self.issued_total,
            failed_total: self.failed_total,
            last_error: self.last_error.clone(),
        }
    }
}
