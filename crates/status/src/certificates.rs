//! The certificates of the server's sites, and which of them need attention.
//!
//! `penstock` makes them of the store's; status page, metrics and `penstock certificates` show the
//! same state and the same words.
//!
//! # Invariants
//! - A snapshot lists at most [`MAX_CERTIFICATES`], those that need attention first. A server for
//!   the domains of many customers has far more.

use std::time::Duration;

use penstock_http::rfc3339_millis;
use serde::{Serialize, Serializer};

/// Most certificates in a snapshot.
const MAX_CERTIFICATES: usize = 1000;

/// A certificate that ends sooner needs attention. One that lives for a few days needs it in the
/// last quarter of its time: renewals come earlier.
const EXPIRY_WARNING_SECONDS: u64 = 14 * DAY_SECONDS;

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// The source of a certificate that stands in for another.
const SELF_SIGNED: &str = "self_signed";

/// The certificates of all sites.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CertificatesSnapshot {
    /// Those in use, listed or not.
    pub total: u64,
    /// Those that clients refuse.
    pub invalid: u64,
    /// Those that need attention, and that clients accept.
    pub warning: u64,
    /// The first 1000: those that need attention, then by their end.
    pub list: Vec<CertificateSnapshot>,
}

/// One certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CertificateSnapshot {
    /// The hosts that it serves; empty for one of a site of any host.
    pub hosts: Vec<String>,
    /// The names that it covers.
    pub names: Vec<String>,
    /// The authority that signed it.
    pub issuer: String,
    /// Where it came from: `file`, `acme`, `local` or `self_signed`.
    pub source: &'static str,
    /// The file, if it came from one.
    pub path: Option<String>,
    /// Its first second, since the Unix epoch; in JSON as RFC 3339.
    #[serde(serialize_with = "serialize_date")]
    pub not_before: u64,
    /// Its last second, since the Unix epoch; in JSON as RFC 3339.
    #[serde(serialize_with = "serialize_date")]
    pub not_after: u64,
    /// Why the last attempt to replace it failed; `None` if it did not.
    pub last_error: Option<String>,
    /// Whether it needs attention.
    pub state: CertificateHealth,
    /// Why it does, in words.
    pub problem: Option<String>,
}

/// Whether a certificate needs attention.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CertificateHealth {
    /// Clients refuse it.
    Invalid,
    /// It ends soon, or could not be replaced.
    Warning,
    /// Nothing is wrong with it.
    #[default]
    Valid,
}

impl CertificatesSnapshot {
    /// The snapshot of all certificates at `now`, in seconds since the Unix epoch; their `state` and
    /// `problem` are set here.
    #[must_use]
    pub fn new(mut certificates: Vec<CertificateSnapshot>, now: u64) -> Self {
        for certificate in &mut certificates {
            certificate.assess(now);
        }
        let count = |state| certificates.iter().filter(|it| it.state == state).count() as u64;
        let (invalid, warning) = (
            count(CertificateHealth::Invalid),
            count(CertificateHealth::Warning),
        );
        let total = certificates.len() as u64;
        certificates.sort_by_key(|it| (it.state, it.not_after));
        certificates.truncate(MAX_CERTIFICATES);
        Self {
            total,
            invalid,
            warning,
            list: certificates,
        }
    }
}

impl CertificateSnapshot {
    fn assess(&mut self, now: u64) {
        let (first, last) = (self.not_before, self.not_after);
        let quarter_of_life = last.saturating_sub(first) / 4;
        let left = last.saturating_sub(now);
        let mut problems = Vec::new();
        if now > last {
            let days = count_days(now - last);
            problems.push(format!("expired {days} ago: clients refuse it"));
        } else if now < first {
            let days = count_days(first - now);
            problems.push(format!("valid only in {days}: clients refuse it"));
        }
        if self.source == SELF_SIGNED {
            problems.push("self-signed until there is a certificate: clients refuse it".to_owned());
        }
        self.state = CertificateHealth::Valid;
        if !problems.is_empty() {
            self.state = CertificateHealth::Invalid;
        } else if left < EXPIRY_WARNING_SECONDS.min(quarter_of_life) {
            self.state = CertificateHealth::Warning;
            problems.push(format!("expires in {}", count_days(left)));
        }
        if let Some(error) = &self.last_error {
            self.state = self.state.min(CertificateHealth::Warning);
            problems.push(format!("not replaced: {error}"));
        }
        self.problem = (!problems.is_empty()).then(|| problems.join("; "));
    }
}

/// A time in seconds since 1970 as `2026-11-21T22:08:21Z` (RFC 3339).
#[must_use]
pub fn format_date(seconds: u64) -> String {
    let text = rfc3339_millis(Duration::from_secs(seconds));
    format!("{}Z", &text[..text.len() - 5])
}

fn serialize_date<S: Serializer>(seconds: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format_date(*seconds))
}

/// `3 days`, or hours below two days.
fn count_days(seconds: u64) -> String {
    let (number, noun) = match seconds < 2 * DAY_SECONDS {
        true => (seconds / 3600, "hour"),
        false => (seconds / DAY_SECONDS, "day"),
    };
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 2_000_000_000;

    fn certificate(age_days: u64, days_left: i64) -> CertificateSnapshot {
        let last = NOW.saturating_add_signed(days_left * 86_400);
        CertificateSnapshot {
            hosts: vec!["a.test".to_owned()],
            source: "file",
            not_before: NOW - age_days * DAY_SECONDS,
            not_after: last,
            ..CertificateSnapshot::default()
        }
    }

    #[test]
    fn what_needs_attention_is_said() {
        let stand_in = CertificateSnapshot {
            source: SELF_SIGNED,
            ..certificate(0, 90)
        };
        let failed = CertificateSnapshot {
            last_error: Some("the key is another's".to_owned()),
            ..certificate(30, 60)
        };
        let early = CertificateSnapshot {
            not_before: NOW + 3600,
            ..certificate(0, 90)
        };
        use CertificateHealth::*;
        for (row, certificate, state, problem) in [
            ("valid", certificate(30, 60), Valid, None),
            ("14 days left", certificate(76, 14), Valid, None),
            (
                "13 days left",
                certificate(77, 13),
                Warning,
                Some("expires in 13 days"),
            ),
            (
                "a day left",
                certificate(89, 1),
                Warning,
                Some("expires in 24 hours"),
            ),
            ("six days in all", certificate(4, 2), Valid, None),
            (
                "its last quarter",
                certificate(5, 1),
                Warning,
                Some("expires in 24 hours"),
            ),
            (
                "over",
                certificate(90, -3),
                Invalid,
                Some("expired 3 days ago: clients refuse it"),
            ),
            (
                "early",
                early,
                Invalid,
                Some("valid only in 1 hour: clients refuse it"),
            ),
            (
                "stand-in",
                stand_in,
                Invalid,
                Some("self-signed until there is a certificate: clients refuse it"),
            ),
            (
                "failed",
                failed,
                Warning,
                Some("not replaced: the key is another's"),
            ),
        ] {
            let found = CertificatesSnapshot::new(vec![certificate], NOW);
            let found = &found.list[0];
            assert_eq!(
                (found.state, found.problem.as_deref()),
                (state, problem),
                "{row}"
            );
        }
    }

    #[test]
    fn the_list_is_bounded_and_begins_with_what_needs_attention() {
        let mut all = vec![certificate(30, 60); MAX_CERTIFICATES + 5];
        all.push(certificate(80, 10));
        all.push(certificate(95, -5));
        let found = CertificatesSnapshot::new(all, NOW);
        assert_eq!((found.total, found.invalid, found.warning), (1007, 1, 1));
        assert_eq!(found.list.len(), MAX_CERTIFICATES);
        let states: Vec<_> = found.list.iter().map(|it| it.state).take(3).collect();
        use CertificateHealth::*;
        assert_eq!(states, [Invalid, Warning, Valid]);
    }
}
