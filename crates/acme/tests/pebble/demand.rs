//! Names that clients ask for: allowed, denied, bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_acme::{
    CallbackError, CallbackFuture, CertificateName, OnDemandError, OnDemandPolicy,
};

use crate::require_pebble;
use crate::support::{
    FrontEnd, PATIENCE, PebbleOptions, TestOptions, name, quick, settings, temporary_storage,
};

/// Allows names with the label `shop`, fails for `broken`, and counts.
#[derive(Default)]
struct Shops {
    asked: Mutex<Vec<CertificateName>>,
    /// No name is allowed any longer.
    are_closed: AtomicBool,
}

impl OnDemandPolicy for Shops {
    fn is_allowed(&self, name: &CertificateName) -> CallbackFuture<bool> {
        self.asked.lock().unwrap().push(name.clone());
        let are_open = !self.are_closed.load(Ordering::Relaxed);
        let is_allowed = are_open && name.as_str().contains("shop");
        let is_broken = name.as_str().contains("broken");
        Box::pin(async move {
            if is_broken {
                return Err(CallbackError("connection refused".to_owned()));
            }
            Ok(is_allowed)
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allowed_name_gets_a_certificate_and_a_denied_one_is_asked_about_once() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    let shops = Arc::new(Shops::default());
    options.on_demand = Some(shops.clone());
    front.add(&options.challenges);
    let service = options.start();
    let host = name("shop-1.acme.lan");
    // Handshakes that arrive together cause one order.
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (service, host) = (service.service.clone(), host.clone());
        waiting.spawn(async move { service.obtain_on_demand(&host, PATIENCE).await });
    }
    assert_eq!(waiting.join_all().await, [Ok(()); 8]);
    assert!(service.installed.chain(&host).is_some());
    let status = service.service.status(&host).unwrap();
    assert!(status.is_on_demand);
    assert_eq!(status.issued_total, 1);

    for _ in 0..3 {
        let other = name("other.acme.lan");
        let denied = service.service.obtain_on_demand(&other, PATIENCE);
        assert_eq!(denied.await, Err(OnDemandError::NotAllowed));
    }
    let broken = name("broken.acme.lan");
    let undecided = service.service.obtain_on_demand(&broken, PATIENCE);
    assert_eq!(undecided.await, Err(OnDemandError::Failed));
    let asked = shops.asked.lock().unwrap().clone();
    let expected = ["shop-1.acme.lan", "other.acme.lan", "broken.acme.lan"];
    assert_eq!(asked, expected.map(name));
    for impossible in ["*.shop.acme.lan", "127.0.0.1"] {
        let refused = service.service.request_on_demand(&name(impossible));
        assert_eq!(refused, Err(OnDemandError::NotPossible), "{impossible}");
    }

    // The configuration knows nothing of it, and does not remove it.
    let fixed = name("shop-2.acme.lan");
    service.service.set_names([fixed.clone()]);
    service.await_certificate(&fixed).await;
    assert!(service.installed.chain(&host).is_some());

    // A customer that has left is dropped instead of renewed; the configured name stays.
    shops.are_closed.store(true, Ordering::Relaxed);
    service.service.renew(&host);
    let is_gone = |service: &penstock_acme::CertificateService| service.snapshot().len() == 1;
    assert!(service.service.wait_until(PATIENCE, is_gone).await);
    assert!(service.installed.chain(&host).is_none());
    assert!(service.installed.chain(&fixed).is_some());
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_wait_have_a_bound_and_failing_ones_are_dropped() {
    // Nothing listens there.
    let mut directory = penstock_acme::Directory::parse("https://127.0.0.1:1/dir").unwrap();
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    directory.ca_file = Some(pebble.ca_file());
    let (_folder, storage) = temporary_storage();
    let mut settings = quick(penstock_acme::AcmeSettings::new(vec![directory]));
    settings.limits.max_on_demand_waiting = 2;
    let mut options = TestOptions::new(settings, storage);
    options.on_demand = Some(Arc::new(Shops::default()));
    let service = options.start();
    let hosts = ["shop-a", "shop-b", "shop-c"].map(|label| name(&format!("{label}.acme.lan")));
    for host in &hosts[..2] {
        service.service.request_on_demand(host).unwrap();
        let failed = service
            .service
            .obtain_on_demand(host, Duration::from_secs(10))
            .await;
        assert_eq!(failed, Err(OnDemandError::Failed));
    }
    let full = service.service.obtain_on_demand(&hosts[2], PATIENCE).await;
    assert_eq!(full, Err(OnDemandError::Full));
    // After three attempts they are forgotten, and refused without an attempt.
    let is_empty = |service: &penstock_acme::CertificateService| service.snapshot().is_empty();
    assert!(service.service.wait_until(PATIENCE, is_empty).await);
    let refused = service.service.request_on_demand(&hosts[0]);
    assert_eq!(refused, Err(OnDemandError::Failed));
    service.stop().await;
}
