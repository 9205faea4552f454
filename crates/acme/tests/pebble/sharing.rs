//! Several servers with one storage: each certificate once, and any of them answers a validation.

use std::sync::Arc;

use penstock_acme::{CertificateState, ChallengeKind, RedisStorage, Storage, StoredValue};

use crate::require_pebble;
use crate::support::{
    FrontEnd, Pebble, PebbleOptions, RedisServer, TestOptions, TestService, folder_storage, name,
    settings, temporary_storage,
};

/// Starts three servers with these storages at once and checks that each name is issued once.
async fn share(front: &FrontEnd, pebble: &Pebble, storages: [Arc<dyn Storage>; 3]) {
    let services = storages.map(|storage| {
        let options = TestOptions::new(settings(pebble), storage);
        front.add(&options.challenges);
        options.start()
    });
    let names = ["one", "two", "three"].map(|label| name(&format!("{label}.shared.acme.lan")));
    for service in &services {
        service.service.set_names(names.clone());
    }
    for host in &names {
        let chain = services[0].await_certificate(host).await;
        for service in &services {
            assert_eq!(service.await_certificate(host).await, chain);
        }
        assert_eq!(issued(&services, host), 1, "{host}");
    }
    // Renewed once, too: each server looks at the storage under the lock.
    let host = &names[0];
    let old = services[0].await_certificate(host).await;
    for service in &services {
        service.service.renew(host);
    }
    let new = services[0].await_successor(host, &old).await;
    for service in &services {
        assert_eq!(service.await_successor(host, &old).await, new);
    }
    assert_eq!(issued(&services, host), 2);
    for service in &services {
        service.stop().await;
    }
}

fn issued(services: &[TestService], host: &penstock_acme::CertificateName) -> u64 {
    let issued = |service: &TestService| service.service.status(host).unwrap().issued_total;
    services.iter().map(issued).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_on_one_folder_get_each_certificate_once() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let folder = tempfile::tempdir().unwrap();
    share(
        &front,
        &pebble,
        [(); 3].map(|()| folder_storage(folder.path())),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_on_one_redis_get_each_certificate_once() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let redis = RedisServer::start().await;
    let storage =
        |()| -> Arc<dyn Storage> { Arc::new(RedisStorage::new(&redis.url(), None).unwrap()) };
    share(&front, &pebble, [(); 3].map(storage)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_answers_a_validation() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let redis = RedisServer::start().await;
    let storage =
        |()| -> Arc<dyn Storage> { Arc::new(RedisStorage::new(&redis.url(), None).unwrap()) };
    let [first, second] = [(); 2].map(storage);
    let mut options = TestOptions::new(settings(&pebble), first);
    options.settings.challenges = vec![ChallengeKind::Http01];
    let orderer = options.start();
    let peer = TestOptions::new(settings(&pebble), second).start();
    front.set_peer(&peer.service);
    let host = name("peer.acme.lan");
    orderer.service.set_names([host.clone()]);
    orderer.await_certificate(&host).await;
    for token in ["", "../secret", "unknown", &"a".repeat(200)] {
        assert_eq!(peer.service.find_http_response(token).await, None);
    }
    orderer.stop().await;
    peer.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_late_and_loses_its_data_is_used() {
    let front = FrontEnd::start().await;
    let pebble = require_pebble!(front, PebbleOptions::default());
    let mut redis = RedisServer::start().await;
    redis.kill();
    let storage = Arc::new(RedisStorage::new(&redis.url(), None).unwrap());
    let options = TestOptions::new(settings(&pebble), storage.clone());
    front.add(&options.challenges);
    let host = name("late.acme.lan");
    let service = options.start();
    service.service.set_names([host.clone()]);
    let error = service.await_error(&host).await;
    assert!(
        error.starts_with("certificate storage in Redis: "),
        "{error}"
    );
    redis.run().await;
    service.await_certificate(&host).await;
    // It goes on being used while Redis is away and after it has forgotten everything.
    redis.kill();
    service.service.check(&host);
    redis.run().await;
    service.service.renew(&host);
    let is_second = |status: &penstock_acme::CertificateStatus| {
        status.issued_total == 2 && status.state == CertificateState::Valid
    };
    service.await_status(&host, is_second).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_has_the_verbs_and_locks_of_a_folder() {
    let redis = RedisServer::start().await;
    let (_folder, folder) = temporary_storage();
    let in_redis: Arc<dyn Storage> = Arc::new(RedisStorage::new(&redis.url(), None).unwrap());
    let value = |text: &str| StoredValue::new(text.as_bytes().to_vec());
    for storage in [folder, in_redis] {
        assert_eq!(storage.load("a/b").await.unwrap(), None);
        storage.store("a/b", value("one")).await.unwrap();
        storage.store("a/b", value("four")).await.unwrap();
        storage.store("a/c*/d", value("x")).await.unwrap();
        storage.store("ab/c", value("x")).await.unwrap();
        assert_eq!(storage.load("a/b").await.unwrap(), Some(value("four")));
        assert_eq!(storage.stat("a/b").await.unwrap().unwrap().bytes, 4);
        assert_eq!(storage.stat("a/x").await.unwrap(), None);
        let mut keys = storage.list("a").await.unwrap();
        keys.sort();
        assert_eq!(keys, ["a/b", "a/c*/d"]);
        assert_eq!(storage.list("a/c*").await.unwrap(), ["a/c*/d"]);
        storage.delete("a/b").await.unwrap();
        assert_eq!(storage.load("a/b").await.unwrap(), None);

        assert!(storage.try_lock("n", "one").await.unwrap());
        assert!(!storage.try_lock("n", "two").await.unwrap());
        assert!(storage.refresh_lock("n", "one").await.unwrap());
        assert!(!storage.refresh_lock("n", "two").await.unwrap());
        storage.unlock("n", "two").await.unwrap();
        assert!(!storage.try_lock("n", "two").await.unwrap());
        storage.unlock("n", "one").await.unwrap();
        assert!(storage.try_lock("n", "two").await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_with_tls_is_reached_by_its_authority_alone() {
    let redis = RedisServer::start_with_tls().await;
    let (url, authority) = redis.tls_url();
    let storage = RedisStorage::new(&url, Some(authority)).unwrap();
    let value = StoredValue::new(b"one".to_vec());
    storage.store("a", value.clone()).await.unwrap();
    assert_eq!(storage.load("a").await.unwrap(), Some(value));
    // Another's: its certificate is not accepted.
    let (_, other) = RedisServer::start_with_tls().await.tls_url();
    let storage = RedisStorage::new(&url, Some(other)).unwrap();
    let error = storage.load("a").await.unwrap_err().to_string();
    assert!(
        error.starts_with("certificate storage in Redis: "),
        "{error}"
    );
}
