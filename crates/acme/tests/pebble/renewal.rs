//! Renewal by the authority's window, revocation, and an account that the authority forgot.

use penstock_acme::RevocationReason;
use serde_json::json;

use crate::require_pebble;
use crate::support::{FrontEnd, PebbleOptions, TestOptions, name, settings, temporary_storage};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_in_the_past_renews_at_once_and_the_order_names_its_predecessor() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let options = TestOptions::new(settings(&pebble), storage);
    front.add(&options.challenges);
    let host = name("window.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let first = service.await_certificate(&host).await;
    let leaf = first
        .split_inclusive("-----END CERTIFICATE-----\n")
        .next()
        .unwrap();

    // A window in the future moves the renewal.
    let set_window = async |start: &str, end: &str| {
        let window = json!({ "suggestedWindow": { "start": start, "end": end } }).to_string();
        let body = json!({ "Certificate": leaf, "ARIResponse": window }).to_string();
        pebble.manage("POST", "/set-renewal-info/", &body).await;
        service.service.check(&host);
    };
    let soon = penstock_runtime::clock::wall_time().as_secs() + 86_400;
    let text = |seconds| rfc3339(seconds);
    set_window(&text(soon), &text(soon + 3600)).await;
    let in_window = |at: u64| (soon..=soon + 3600).contains(&at);
    let status = service.await_status(&host, |status| status.renew_at.is_some_and(in_window));
    assert_eq!(status.await.issued_total, 1);

    set_window("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z").await;
    let second = service.await_successor(&host, &first).await;
    // Pebble does not find a certificate by a serial number with the zero byte that DER puts before
    // a high bit: the order then names no predecessor.
    let (_, pem) = x509_parser::pem::parse_x509_pem(leaf.as_bytes()).unwrap();
    let is_lost = pem.parse_x509().unwrap().raw_serial().starts_with(&[0]);
    assert!(
        is_lost || pebble.log().contains("is a replacement of"),
        "{}",
        pebble.log()
    );
    assert_ne!(first, second);
    service.stop().await;
}

fn rfc3339(seconds: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let date = x509_parser::time::ASN1Time::from_timestamp(
        i64::try_from(
            time.duration_since(std::time::UNIX_EPOCH)
                .unwrap()
                .as_secs(),
        )
        .unwrap(),
    );
    let date = date.unwrap().to_datetime();
    let (day, clock) = (date.date(), date.time());
    format!(
        "{day}T{:02}:{:02}:{:02}Z",
        clock.hour(),
        clock.minute(),
        clock.second()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_certificate_is_replaced_here_and_on_other_servers() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let host = name("revoked.acme.lan");
    let services = [(); 2].map(|()| {
        let options = TestOptions::new(settings(&pebble), storage.clone());
        front.add(&options.challenges);
        options.start()
    });
    let [here, other] = &services;
    here.service.set_names([host.clone()]);
    let first = here.await_certificate(&host).await;
    other.service.set_names([host.clone()]);
    assert_eq!(other.await_certificate(&host).await, first);

    let reason = Some(RevocationReason::Superseded);
    assert!(here.service.revoke(&host, reason).await.unwrap());
    let second = here.await_successor(&host, &first).await;
    let serial = leaf_serial(&first);
    let path = format!("/cert-status-by-serial/{serial}");
    let status = pebble.manage("GET", &path, "").await;
    assert!(status.contains("Revoked"), "{status}");
    // Noticed at the next look, which finds the successor in the storage.
    other.service.check(&host);
    assert_eq!(other.await_successor(&host, &first).await, second);
    let issued = services
        .iter()
        .map(|s| s.service.status(&host).unwrap().issued_total);
    assert_eq!(issued.sum::<u64>(), 2);
    for service in &services {
        service.stop().await;
    }
}

fn leaf_serial(chain: &str) -> String {
    let (_, pem) = x509_parser::pem::parse_x509_pem(chain.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let serial = certificate
        .raw_serial()
        .iter()
        .map(|byte| format!("{byte:02x}"));
    serial
        .collect::<String>()
        .trim_start_matches('0')
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_the_authority_forgot_is_created_anew() {
    let front = FrontEnd::start().await;
    let mut pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let options = TestOptions::new(settings(&pebble), storage);
    front.add(&options.challenges);
    let host = name("forgot.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let first = service.await_certificate(&host).await;
    // Without its accounts, certificates and keys.
    pebble.kill();
    pebble.run().await;
    service.service.renew(&host);
    service.await_successor(&host, &first).await;
    service.stop().await;
}
