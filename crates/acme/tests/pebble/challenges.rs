//! Each kind of challenge, and what a validation leaves behind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use penstock_acme::{
    CallbackError, CallbackFuture, CertificateState, ChallengeKind, DnsHook, DnsHookCall,
    DnsHookVerb, keys,
};
use serde_json::json;

use crate::require_pebble;
use crate::support::pebble_dns;
use crate::support::{FrontEnd, PebbleOptions, TestOptions, name, settings, temporary_storage};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_01_obtains_a_certificate_and_a_restart_needs_no_authority() {
    let front = FrontEnd::start().await;
    let mut pebble = require_pebble!(front, PebbleOptions::default());
    let (folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage.clone());
    options.settings.email = Some("Ops@example.com".to_owned());
    // Pebble chooses one itself otherwise.
    options.settings.directories[0].profile = Some("default".to_owned());
    options.settings.challenges = vec![ChallengeKind::Http01];
    front.add(&options.challenges);
    let host = name("www.acme.lan");
    let first = options.start();
    first.service.set_names([host.clone()]);
    let chain = first.await_certificate(&host).await;
    assert!(
        first
            .installed
            .find(&host)
            .unwrap()
            .key_pem
            .expose()
            .contains("PRIVATE KEY")
    );
    let status = first.service.status(&host).unwrap();
    assert_eq!((status.issued_total, status.failed_attempts), (1, 0));
    let days = (status.not_after.unwrap() - status.renew_at.unwrap()) / 86_400;
    assert!((29..=32).contains(&days), "{status:?}");
    first.stop().await;

    let authority = keys::authority_segment(&pebble.directory().url);
    check_files(&folder.path().join("certificates"), &authority);

    pebble.kill();
    let second = TestOptions::new(settings(&pebble), storage).start();
    second.service.set_names([host.clone()]);
    assert_eq!(second.await_certificate(&host).await, chain);
    assert_eq!(second.service.status(&host).unwrap().issued_total, 0);

    second.service.set_names([]);
    let is_gone = second
        .service
        .wait_until(crate::support::PATIENCE, |service| {
            service.snapshot().is_empty()
        });
    assert!(is_gone.await);
    assert_eq!(second.installed.chain(&host), None);
    second.stop().await;
}

/// The layout of certmagic, for the owner alone.
fn check_files(root: &Path, authority: &str) {
    let certificate = format!("certificates/{authority}/www.acme.lan/www.acme.lan");
    let account = format!("acme/{authority}/users/ops@example.com/ops");
    for file in [
        format!("{certificate}.crt"),
        format!("{certificate}.key"),
        format!("{certificate}.json"),
        format!("{account}.json"),
        format!("{account}.key"),
    ] {
        let metadata = std::fs::metadata(root.join(&file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{file}");
    }
    // No lock, token or temporary file is left.
    let tokens = root.join(format!("acme/{authority}/challenge_tokens"));
    assert_eq!(std::fs::read_dir(tokens).unwrap().count(), 0);
    let locks = std::fs::read_dir(root.join("locks")).unwrap();
    let locks: Vec<_> = locks.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(locks, [".guard"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_alpn_01_validates_names_and_addresses() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    options.settings.challenges = vec![ChallengeKind::TlsAlpn01];
    front.add(&options.challenges);
    let names = [name("tls.acme.lan"), name("127.0.0.1")];
    let service = options.start();
    service.service.set_names(names.clone());
    for host in &names {
        service.await_certificate(host).await;
    }
    assert_eq!(front.requests(), 0);
    service.stop().await;
}

/// A hook as a DNS provider's program would be: it sets and clears records.
struct RecordHook {
    dns_port: u16,
    calls: Arc<Mutex<Vec<DnsHookCall>>>,
    fails: bool,
}

impl DnsHook for RecordHook {
    fn call(&self, call: DnsHookCall) -> CallbackFuture<()> {
        self.calls.lock().unwrap().push(call.clone());
        let (port, fails) = (self.dns_port, self.fails);
        Box::pin(async move {
            if fails {
                return Err(CallbackError("exit status 3: no such zone".to_owned()));
            }
            let host = format!("{}.", call.record);
            match call.verb {
                DnsHookVerb::Present => {
                    let record = json!({ "host": host, "value": call.value });
                    pebble_dns(port, "/set-txt", record).await;
                }
                DnsHookVerb::Cleanup => {
                    pebble_dns(port, "/clear-txt", json!({ "host": host })).await;
                }
            }
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_01_validates_a_wildcard_through_the_hook() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    let calls = Arc::default();
    options.dns_hook = Some(Arc::new(RecordHook {
        dns_port: pebble.dns_management_port(),
        calls: Arc::clone(&calls),
        fails: false,
    }));
    // HTTP-01 comes first and does not fit a wildcard.
    options.settings.challenges = vec![ChallengeKind::Http01, ChallengeKind::Dns01];
    let host = name("*.wild.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    service.await_certificate(&host).await;
    let calls = calls.lock().unwrap().clone();
    // Pebble may refuse an attempt when the machine is busy.
    for pair in calls.chunks(2) {
        let value = &*pair[0].value;
        let expected = ["present", "cleanup"].map(|verb| {
            let record = "_acme-challenge.wild.acme.lan";
            [verb, "wild.acme.lan", record, value]
        });
        let arguments: Vec<_> = pair.iter().map(DnsHookCall::arguments).collect();
        assert_eq!(arguments, expected);
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_hook_is_named_and_cleaned_up_after() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    let calls: Arc<Mutex<Vec<DnsHookCall>>> = Arc::default();
    options.dns_hook = Some(Arc::new(RecordHook {
        dns_port: pebble.dns_management_port(),
        calls: Arc::clone(&calls),
        fails: true,
    }));
    options.settings.challenges = vec![ChallengeKind::Dns01];
    let host = name("hook.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let error = service.await_error(&host).await;
    assert_eq!(
        error,
        "the DNS hook failed to present the record `_acme-challenge.hook.acme.lan`: exit status 3: \
         no such zone"
    );
    assert_eq!(calls.lock().unwrap()[1].verb, DnsHookVerb::Cleanup);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_persist_01_names_its_record_and_then_uses_it() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    options.settings.challenges = vec![ChallengeKind::DnsPersist01];
    let host = name("*.persist.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let error = service.await_error(&host).await;
    let advice = "set this TXT record once: _validation-persist.persist.acme.lan = \"";
    let record = error
        .split_once(advice)
        .expect(&error)
        .1
        .trim_end_matches('"');
    assert!(
        record.starts_with("pebble.letsencrypt.org; accounturi=https://"),
        "{error}"
    );
    let host_of_record = "_validation-persist.persist.acme.lan.";
    let body = json!({ "host": host_of_record, "value": record });
    pebble.manage_dns("/set-txt", body).await;
    service.await_certificate(&host).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wildcard_without_dns_and_a_failed_validation_say_what_is_wrong() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let options = TestOptions::new(settings(&pebble), storage);
    // The front end does not get the responses.
    let (wild, host) = (name("*.none.acme.lan"), name("none.acme.lan"));
    let service = options.start();
    service.service.set_names([wild.clone(), host.clone()]);
    let error = service.await_error(&wild).await;
    assert!(
        error.contains("allowed are none; wildcards need dns-01"),
        "{error}"
    );
    let error = service.await_error(&host).await;
    assert!(
        error.contains("could not validate the name by tls-alpn-01"),
        "{error}"
    );
    // The next attempt uses the other challenge.
    let is_second = |error: &str| error.contains("by http-01");
    service
        .await_status(&host, |status| {
            status.last_error.as_deref().is_some_and(is_second)
        })
        .await;
    let state = service.service.status(&host).unwrap().state;
    assert!(matches!(
        state,
        CertificateState::Failing | CertificateState::Ordering
    ));
    service.stop().await;
}
