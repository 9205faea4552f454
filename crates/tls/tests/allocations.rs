//! What a look-up of a certificate costs: no allocation, however many sites there are.
//!
//! Alone in its process, with an allocator that counts.

use std::alloc::System;
use std::hint::black_box;

use penstock_tls::{
    CertificateStore, PolicyId, SiteCertificates, StoreContents, UnknownHosts, stand_in,
};
use rustls::pki_types::UnixTime;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SITES: usize = 10_000;

/// A store of many sites, each with an exact host and a wildcard.
fn store() -> CertificateStore {
    let certificate = stand_in(&["example.com".to_owned()], UnixTime::now());
    let certificate = certificate.expect("it is a host name");
    let site = |number| SiteCertificates {
        hosts: vec![
            format!("site-{number}.example"),
            format!("*.site-{number}.example"),
        ],
        certificates: vec![certificate.clone()],
        policy: PolicyId::NONE,
        last_error: None,
    };
    let sites = (0..SITES).map(site).collect();
    let store = CertificateStore::new(None, None);
    store.replace(StoreContents::new(sites, Some(0), UnknownHosts::Refuse));
    store
}

#[test]
fn look_ups_allocate_nothing() {
    let store = store();
    let connection = store.identify(Some("site-7.example"), PolicyId::NONE);
    // Exact, by a wildcard, in capitals, unknown, too long.
    let long = "A".repeat(300);
    let hosts = [
        "site-9999.example",
        "a.site-7.example",
        "SITE-7.EXAMPLE.",
        "other.example",
        &long,
    ];
    let look_up = || {
        for host in hosts {
            black_box(store.certificate_for(host));
            black_box(store.permits(&connection, host));
        }
    };
    // The first loads of the snapshot prepare the thread.
    look_up();
    let before = ALLOCATOR.stats();
    for _ in 0..1000 {
        look_up();
    }
    let after = ALLOCATOR.stats();
    assert_eq!(after.allocations, before.allocations);
    assert_eq!(after.reallocations, before.reallocations);
    let found = hosts.map(|host| store.certificate_for(host).is_some());
    assert_eq!(found, [true, true, true, false, false]);
}
