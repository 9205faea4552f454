//! Files that hold the same, a better or a worse certificate than the one in use.

use std::os::unix::fs::PermissionsExt;

use super::{RefreshOutcome, refresh};
use crate::certificate_file::CertificateFiles;
use crate::testing::{DAY, Issued, NOW, chained, now, set_validity, write};

/// Refreshes the files that hold `new` for a site that presents `current`.
fn refreshed(current: &Issued, new: &Issued) -> RefreshOutcome {
    let dir = tempfile::tempdir().unwrap();
    let path = write(
        dir.path(),
        "both.pem",
        &format!("{}{}", new.key, new.certificate),
    );
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let files = CertificateFiles {
        certificate: path,
        key: None,
    };
    refresh(&files, &current.load(), now())
}

#[test]
fn a_certificate_in_use_is_replaced_by_a_better_one_only() {
    let good = chained(|_| {}).0;
    let renewed = chained(|_| {}).0;
    let expired = || chained(|params| set_validity(params, NOW - 9 * DAY, NOW - DAY)).0;
    let early = chained(|params| set_validity(params, NOW + DAY, NOW + 9 * DAY)).0;
    let mismatched = Issued {
        certificate: renewed.certificate.clone(),
        key: good.key.clone(),
    };
    assert!(matches!(refreshed(&good, &good), RefreshOutcome::Unchanged));
    for (current, new) in [
        (&good, &renewed),
        (&expired(), &good),
        (&expired(), &expired()),
    ] {
        let RefreshOutcome::Replaced(loaded) = refreshed(current, new) else {
            panic!("it is replaced");
        };
        assert_eq!(
            loaded.certificate.certified_key.cert,
            new.load().certified_key.cert
        );
    }
    let rows = [
        (
            &mismatched,
            "both.pem: the key does not belong to the certificate for example.com",
        ),
        (
            &expired(),
            "both.pem: certificate 1 of the chain expired on 2026-11-26",
        ),
        (
            &early,
            "both.pem: certificate 1 of the chain is valid from 2026-11-28 on",
        ),
    ];
    for (new, expected) in rows {
        let RefreshOutcome::Kept(reason) = refreshed(&good, new) else {
            panic!("{expected}");
        };
        assert!(reason.to_string().contains(expected), "{reason}");
    }
}
