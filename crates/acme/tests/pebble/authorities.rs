//! What differs between authorities: external accounts, profiles, chains, reuse, stale nonces.

use penstock_acme::{ChallengeKind, ExternalAccount};

use crate::require_pebble;
use crate::support::{
    FrontEnd, PebbleOptions, TestOptions, assert_never_logged, is_logged, name, settings,
    temporary_storage,
};

const EXTERNAL_KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_external_account_is_bound_or_asked_for() {
    let front = FrontEnd::start().await;
    let requires_binding = PebbleOptions {
        external_key: Some(EXTERNAL_KEY),
        ..PebbleOptions::default()
    };
    let pebble = require_pebble!(front, requires_binding);
    let (_folder, storage) = temporary_storage();
    let host = name("bound.acme.lan");
    let without = TestOptions::new(settings(&pebble), storage.clone()).start();
    without.service.set_names([host.clone()]);
    let error = without.await_error(&host).await;
    let expected = "(externalAccountRequired); set the key id and HMAC key of your account there";
    assert!(error.contains(expected), "{error}");
    without.stop().await;

    let mut options = TestOptions::new(settings(&pebble), storage);
    let account = ExternalAccount::new("kid-1", EXTERNAL_KEY).unwrap();
    options.settings.directories[0].external_account = Some(account);
    front.add(&options.challenges);
    let with = options.start();
    with.service.set_names([host.clone()]);
    with.await_certificate(&host).await;
    let key = with.installed.find(&host).unwrap().key_pem;
    assert_never_logged(&[EXTERNAL_KEY, key.expose().lines().nth(1).unwrap()]);
    assert!(is_logged(&[
        "no certificate for bound.acme.lan",
        "externalAccountRequired",
        "s, "
    ]));
    assert!(is_logged(&[
        "certificate obtained (name=bound.acme.lan, directory=https://"
    ]));
    with.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_decides_the_lifetime_and_an_unknown_one_is_refused() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let (_folder, storage) = temporary_storage();
    let host = name("profile.acme.lan");
    let mut options = TestOptions::new(settings(&pebble), storage.clone());
    options.settings.directories[0].profile = Some("weekly".to_owned());
    let unknown = options.start();
    unknown.service.set_names([host.clone()]);
    let error = unknown.await_error(&host).await;
    assert!(
        error.starts_with("the authority has no profile `weekly`; it has: "),
        "{error}"
    );
    assert!(error.contains("shortlived"), "{error}");
    unknown.stop().await;

    let mut options = TestOptions::new(settings(&pebble), storage);
    options.settings.directories[0].profile = Some("shortlived".to_owned());
    front.add(&options.challenges);
    let service = options.start();
    service.service.set_names([host.clone()]);
    service.await_certificate(&host).await;
    let status = service.service.status(&host).unwrap();
    let hours = (status.not_after.unwrap() - status.renew_at.unwrap()) / 3600;
    assert!((47..=52).contains(&hours), "{status:?}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preferred_chain_is_found_among_the_alternatives() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::with("PEBBLE_ALTERNATE_ROOTS", "2"));
    let root = pebble.manage("GET", "/roots/2", "").await;
    let (_, pem) = x509_parser::pem::parse_x509_pem(root.as_bytes()).unwrap();
    let root = pem.parse_x509().unwrap();
    let common_name = root
        .subject()
        .iter_common_name()
        .next()
        .unwrap()
        .as_str()
        .unwrap();
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    options.settings.preferred_chain = Some(common_name.to_owned());
    front.add(&options.challenges);
    let host = name("chain.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let chain = service.await_certificate(&host).await;
    let certificates = x509_parser::pem::Pem::iter_from_buffer(chain.as_bytes());
    let issuers: Vec<String> = certificates
        .map(|pem| pem.unwrap().parse_x509().unwrap().issuer().to_string())
        .collect();
    let expected = format!("CN={common_name}");
    assert!(issuers.contains(&expected), "{issuers:?} lack {expected}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_nonces_are_refused_and_all_names_get_certificates() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::with("PEBBLE_WFE_NONCEREJECT", "50"));
    let (_folder, storage) = temporary_storage();
    let options = TestOptions::new(settings(&pebble), storage);
    front.add(&options.challenges);
    let names = ["a", "b", "c", "d", "e"].map(|label| name(&format!("{label}.nonce.acme.lan")));
    let service = options.start();
    service.service.set_names(names.clone());
    for host in &names {
        service.await_certificate(host).await;
        assert_eq!(service.service.status(host).unwrap().failed_total, 0);
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reused_authorization_is_not_validated_again() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::with("PEBBLE_AUTHZREUSE", "100"));
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    options.settings.challenges = vec![ChallengeKind::Http01];
    front.add(&options.challenges);
    let host = name("reuse.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let first = service.await_certificate(&host).await;
    let requests = front.requests();
    assert!(requests > 0);
    service.service.renew(&host);
    service.await_successor(&host, &first).await;
    assert_eq!(front.requests(), requests);
    service.stop().await;
}
