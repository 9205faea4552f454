//! An authority that is down, slow, refuses, or is none.

use std::time::Duration;

use penstock_acme::{AcmeSettings, Directory};

use crate::require_pebble;
use crate::support::{
    FakeAuthority, FrontEnd, PebbleOptions, TestOptions, name, quick, settings, temporary_storage,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_is_down_delays_nothing_and_is_used_when_it_is_up() {
    let front = FrontEnd::start().await;
    let mut pebble = require_pebble!(front, PebbleOptions::default());
    pebble.kill();
    let (_folder, storage) = temporary_storage();
    let options = TestOptions::new(settings(&pebble), storage);
    front.add(&options.challenges);
    let host = name("down.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let error = service.await_error(&host).await;
    assert!(
        error.starts_with("127.0.0.1 cannot be reached: "),
        "{error}"
    );
    let is_third = |attempts: u32| attempts >= 3;
    service
        .await_status(&host, |status| is_third(status.failed_attempts))
        .await;
    pebble.run().await;
    service.await_certificate(&host).await;
    let status = service.service.status(&host).unwrap();
    assert_eq!((status.failed_attempts, status.last_error), (0, None));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_validates_slowly_is_awaited() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::with("PEBBLE_VA_SLEEPTIME", "3"));
    let (_folder, storage) = temporary_storage();
    let options = TestOptions::new(settings(&pebble), storage);
    front.add(&options.challenges);
    let host = name("slow.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    service.await_certificate(&host).await;
    assert_eq!(service.service.status(&host).unwrap().failed_attempts, 0);
    service.stop().await;
}

/// The error of the first attempt at an authority that gives this answer, and the next attempt.
async fn attempt(answer: &'static str) -> (String, Duration) {
    let authority = FakeAuthority::start(answer).await;
    let (_folder, storage) = temporary_storage();
    let mut options = quick(AcmeSettings::new(vec![authority.directory()]));
    options.limits.request_timeout = Duration::from_millis(500);
    let service = TestOptions::new(options, storage).start();
    let host = name("refused.acme.lan");
    service.service.set_names([host.clone()]);
    let status = service
        .await_status(&host, |status| status.last_error.is_some())
        .await;
    let now = penstock_runtime::clock::wall_time();
    let delay = Duration::from_secs(status.retry_at.unwrap()).saturating_sub(now);
    service.stop().await;
    (status.last_error.unwrap(), delay)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_the_cause_and_a_retry_after_is_honoured() {
    let (error, _) = attempt("").await;
    assert_eq!(error, "127.0.0.1 did not answer within 500ms");

    let limited = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\n\
                   Content-Type: application/problem+json\r\n\r\n\
                   {\"type\":\"urn:ietf:params:acme:error:rateLimited\",\"detail\":\"too\\nmany\"}";
    let (error, delay) = attempt(limited).await;
    assert_eq!(
        error,
        "127.0.0.1 answers with status 429: too many (rateLimited)"
    );
    let hour = Duration::from_secs(3600);
    assert!(
        delay > hour - Duration::from_secs(60) && delay <= hour,
        "{delay:?}"
    );

    let html = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 999999999\r\n\r\n<html>";
    let (error, delay) = attempt(html).await;
    assert_eq!(error, "127.0.0.1 answers with status 503");
    let day = Duration::from_secs(86_400);
    assert!(
        delay > day - Duration::from_secs(60) && delay <= day,
        "{delay:?}"
    );

    let (error, _) = attempt("HTTP/1.1 200 OK\r\n\r\n<html>").await;
    assert!(error.starts_with("failed to (de)serialize JSON"), "{error}");
    let (error, _) = attempt("SSH-2.0-OpenSSH\r\n").await;
    assert!(
        error.starts_with("127.0.0.1 cannot be reached: "),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_a_foreign_root_is_not_trusted() {
    let (first, second) = (
        FakeAuthority::start("").await,
        FakeAuthority::start("").await,
    );
    let mut directory = first.directory();
    directory.ca_file = second.directory().ca_file;
    let (_folder, storage) = temporary_storage();
    let service = TestOptions::new(quick(AcmeSettings::new(vec![directory])), storage).start();
    let host = name("trust.acme.lan");
    service.service.set_names([host.clone()]);
    let error = service.await_error(&host).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_name_and_a_broken_authority_are_followed_by_the_next_authority() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let broken = FakeAuthority::start("HTTP/1.1 500 Oops\r\n\r\n").await;
    let (_folder, storage) = temporary_storage();
    let mut options = TestOptions::new(settings(&pebble), storage);
    options.settings.directories = vec![broken.directory(), pebble.directory()];
    front.add(&options.challenges);
    let (host, blocked) = (name("next.acme.lan"), name("blocked.acme.lan"));
    let service = options.start();
    service.service.set_names([host.clone(), blocked.clone()]);
    service.await_certificate(&host).await;
    let status = service.service.status(&host).unwrap();
    assert_eq!(status.directory, Some(pebble.directory().url));
    let is_refused = |error: &str| error.contains("rejectedIdentifier");
    service
        .await_status(&blocked, |status| {
            status.last_error.as_deref().is_some_and(is_refused)
        })
        .await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_cannot_work_say_so() {
    let check = async |directory: Directory, host: &str, expected: &str| {
        let (_folder, storage) = temporary_storage();
        let service = TestOptions::new(quick(AcmeSettings::new(vec![directory])), storage).start();
        let host = name(host);
        service.service.set_names([host.clone()]);
        let error = service.await_error(&host).await;
        assert!(error.contains(expected), "{error}");
        let status = service.service.status(&host).unwrap();
        assert!(!status.state.has_certificate(), "{status:?}");
        service.stop().await;
    };
    // Refused before anything is sent.
    let mut directory = Directory::parse("letsencrypt").unwrap();
    let private = "public authorities issue no certificates for this name";
    check(directory.clone(), "printer.local", private).await;
    directory.ca_file = Some("/missing/ca.pem".into());
    check(directory.clone(), "a.acme.lan", "/missing/ca.pem: ").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    directory.ca_file = Some(file.path().to_owned());
    check(
        directory,
        "a.acme.lan",
        "the file has no certificate in PEM",
    )
    .await;
}
