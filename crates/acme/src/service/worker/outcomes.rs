//! How a job ended: recorded in the schedule, handed to the sink, logged.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Worker;
use crate::callbacks::CallbackError;
use crate::certificate::Certificate;
use crate::error::AcmeError;
use crate::name::CertificateName;
use crate::schedule::Action;
use crate::service::jobs::{CheckOutcome, OrderOutcome};
use crate::service::{OnDemandError, now};

/// Failed attempts after which a name on demand without a certificate is dropped.
const MAX_ON_DEMAND_FAILURES: u32 = 3;

/// How long a dropped name on demand is refused.
const DENIED_HOLD: Duration = Duration::from_secs(60);
const FAILED_HOLD: Duration = Duration::from_secs(3600);
const UNDECIDED_HOLD: Duration = Duration::from_secs(5);

impl Worker {
    fn drop_on_demand(&mut self, name: &CertificateName, reason: OnDemandError, hold: Duration) {
        self.remove(name);
        self.status.drop_name(name, reason, hold);
    }

    pub(super) fn finish_permission(
        &mut self,
        name: &CertificateName,
        answer: Result<bool, CallbackError>,
    ) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        match answer {
            _ if !entry.is_on_demand => entry.schedule.finish_permission(),
            Ok(true) => entry.schedule.finish_permission(),
            Ok(false) => {
                log::debug!("acme: a name on demand is not allowed (name={name})");
                self.drop_on_demand(name, OnDemandError::NotAllowed, DENIED_HOLD);
            }
            Err(error) => {
                log::warn!(
                    "acme: the on-demand policy has not decided about a name: {error} (name={name})"
                );
                if entry.schedule.certificate().is_none() {
                    return self.drop_on_demand(name, OnDemandError::Failed, UNDECIDED_HOLD);
                }
                let failure = AcmeError::Internal.failure();
                entry.last_error = Some(error.to_string());
                entry.schedule.finish_failure(now(), failure);
            }
        }
    }

    pub(super) fn finish_load(&mut self, name: &CertificateName, found: Option<Certificate>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let facts = found.as_ref().map(|certificate| certificate.facts.clone());
        entry.schedule.finish_load(now(), facts);
        entry.last_error = None;
        if let Some(certificate) = found {
            self.install(name, certificate);
        }
    }

    pub(super) fn finish_check(&mut self, name: &CertificateName, outcome: CheckOutcome) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let facts = outcome.newer.as_ref().map(|newer| newer.facts.clone());
        if facts.is_some() {
            entry.last_error = None;
        }
        entry.schedule.finish_check(now(), facts, outcome.answer);
        if let Some(newer) = outcome.newer {
            self.install(name, *newer);
        }
    }

    pub(super) fn finish_order(&mut self, name: &CertificateName, outcome: OrderOutcome) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let (certificate, is_issued) = match outcome {
            OrderOutcome::Elsewhere => {
                entry.is_elsewhere = true;
                return entry.schedule.finish_elsewhere(now());
            }
            OrderOutcome::Issued(certificate) => (certificate, true),
            OrderOutcome::Found(certificate) => (certificate, false),
        };
        log::info!(
            "acme: certificate {} (name={name}, directory={}, expires_in={})",
            if is_issued {
                "obtained"
            } else {
                "found in the storage"
            },
            certificate.ready.directory,
            duration_text(certificate.facts.not_after, now()),
        );
        entry.issued_total += u64::from(is_issued);
        entry.last_error = None;
        entry
            .schedule
            .finish_order(now(), certificate.facts.clone());
        self.install(name, *certificate);
    }

    fn install(&mut self, name: &CertificateName, certificate: Certificate) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.directory = Some(Arc::clone(&certificate.ready.directory));
        }
        self.context.callbacks.sink.install(certificate.ready);
    }

    pub(super) fn fail(
        &mut self,
        name: &CertificateName,
        action: Option<Action>,
        error: &AcmeError,
    ) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let now = now();
        entry.schedule.finish_failure(now, error.failure());
        entry.last_error = Some(error.to_string());
        entry.failed_total += 1;
        entry.has_rate_token = false;
        let valid_until = entry.schedule.certificate().map(|facts| facts.not_after);
        let is_useful = valid_until.is_some_and(|not_after| now < not_after);
        let directory = match action {
            Some(Action::Order { directory }) => {
                let directories = &self.context.settings.directories;
                directories
                    .get(directory)
                    .map_or("", |directory| &directory.url)
            }
            _ => "",
        };
        let failures = entry.schedule.failures();
        let retry_at = entry.schedule.retry_at().unwrap_or(now);
        log::warn!(
            "acme: no {} for {name}: {error} (directory={directory}, failed_attempts={failures}, \
             next_attempt_in={}, expires_in={})",
            if is_useful {
                "new certificate"
            } else {
                "certificate"
            },
            duration_text(retry_at, now),
            valid_until.map_or_else(|| "-".to_owned(), |at| duration_text(at, now)),
        );
        if entry.is_on_demand && !is_useful && failures >= MAX_ON_DEMAND_FAILURES {
            self.drop_on_demand(name, OnDemandError::Failed, FAILED_HOLD);
        }
    }
}

/// A time from now, as a person reads it.
fn duration_text(at: SystemTime, now: SystemTime) -> String {
    let seconds = at.duration_since(now).unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
