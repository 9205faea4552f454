//! Modes, replaced values, keys, and locks between two storages on one folder.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tempfile::TempDir;

use super::super::{load_newest, store_certificate};
use super::*;
use crate::certificate::Certificate;
use crate::name::CertificateName;
use crate::settings::Directory;

fn storage() -> (TempDir, FolderStorage) {
    let folder = tempfile::tempdir().unwrap();
    let storage = another(&folder);
    (folder, storage)
}

fn another(folder: &TempDir) -> FolderStorage {
    FolderStorage::new(folder.path().join("store"), Pool::new("test", 2, 16))
}

fn value(text: &str) -> StoredValue {
    Zeroizing::new(text.as_bytes().to_vec())
}

#[tokio::test]
async fn values_are_private_replaced_and_listed() {
    let (folder, storage) = storage();
    assert_eq!(storage.load("a/b.key").await.unwrap(), None);
    assert_eq!(storage.stat("a/b.key").await.unwrap(), None);
    storage.store("a/b.key", value("first")).await.unwrap();
    storage.store("a/b.key", value("second")).await.unwrap();
    storage.store("a/c/d.crt", value("other")).await.unwrap();
    let loaded = storage.load("a/b.key").await.unwrap();
    assert_eq!(loaded, Some(value("second")));
    assert_eq!(storage.stat("a/b.key").await.unwrap().unwrap().bytes, 6);
    let mut keys = storage.list("a").await.unwrap();
    keys.sort();
    assert_eq!(keys, ["a/b.key", "a/c/d.crt"]);
    let mode = |path: &str| {
        let metadata = std::fs::metadata(folder.path().join("store").join(path)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!((mode(""), mode("a"), mode("a/c")), (0o700, 0o700, 0o700));
    assert_eq!((mode("a/b.key"), mode("a/c/d.crt")), (0o600, 0o600));
    storage.delete("a/b.key").await.unwrap();
    storage.delete("a/b.key").await.unwrap();
    assert_eq!(storage.list("a").await.unwrap(), ["a/c/d.crt"]);
    assert_eq!(storage.list("missing").await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_key_outside_the_folder_is_refused() {
    let (_folder, storage) = storage();
    for key in ["../x", "a/../x", "/etc/passwd", "a//b", "", "a/\0", "."] {
        let result = storage.store(key, value("x")).await;
        assert!(matches!(result, Err(StorageError::Key(_))), "{key}");
    }
}

#[tokio::test]
async fn a_lock_has_one_holder_and_changes_hands_when_it_is_stale() {
    let (folder, first) = storage();
    let second = another(&folder);
    assert!(first.try_lock("name", "one").await.unwrap());
    assert!(!second.try_lock("name", "two").await.unwrap());
    assert!(second.try_lock("other", "two").await.unwrap());
    assert!(first.refresh_lock("name", "one").await.unwrap());
    assert!(!second.refresh_lock("name", "two").await.unwrap());
    second.unlock("name", "two").await.unwrap();
    assert!(!second.try_lock("name", "two").await.unwrap());

    let file = folder.path().join("store/locks/name.lock");
    let age = |seconds| {
        let file = File::options().write(true).open(&file).unwrap();
        let modified = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(modified).unwrap();
    };
    age(8);
    assert!(!second.try_lock("name", "two").await.unwrap());
    age(11);
    assert!(second.try_lock("name", "two").await.unwrap());
    assert!(!first.refresh_lock("name", "one").await.unwrap());
    first.unlock("name", "one").await.unwrap();
    assert!(second.refresh_lock("name", "two").await.unwrap());
    second.unlock("name", "two").await.unwrap();
    assert!(first.try_lock("name", "one").await.unwrap());
}

#[tokio::test]
async fn of_many_that_want_a_lock_one_gets_it() {
    let (folder, _) = storage();
    let mut attempts = tokio::task::JoinSet::new();
    for number in 0..16 {
        let storage = another(&folder);
        attempts.spawn(async move { storage.try_lock("name", &number.to_string()).await });
    }
    let results = attempts.join_all().await;
    let holders = results
        .into_iter()
        .filter(|result| *result.as_ref().unwrap());
    assert_eq!(holders.count(), 1);
}

#[tokio::test]
async fn a_torn_certificate_counts_as_missing() {
    let (_folder, storage) = storage();
    let directory = Directory::parse("https://ca.test/dir").unwrap();
    let name = CertificateName::parse("example.com").unwrap();
    let make = || {
        let made = rcgen::generate_simple_self_signed(["example.com".to_owned()]).unwrap();
        let key = Zeroizing::new(made.signing_key.serialize_pem());
        let url = directory.url.as_str().into();
        Certificate::parse(&name, &made.cert.pem(), key, url).unwrap()
    };
    let (old, new) = (make(), make());
    store_certificate(&storage, &name, &old).await.unwrap();
    let directories = [directory.clone()];
    let now = SystemTime::now();
    let load = || load_newest(&storage, &directories, &name, now);
    assert_eq!(load().await.unwrap().unwrap().facts, old.facts);
    // The server ended between the two files of a renewal.
    let key = "certificates/ca.test-dir/example.com/example.com.key";
    let new_key = new.ready.key_pem.expose();
    storage.store(key, value(new_key)).await.unwrap();
    assert!(load().await.unwrap().is_none());
    store_certificate(&storage, &name, &new).await.unwrap();
    assert_eq!(load().await.unwrap().unwrap().facts, new.facts);
    // One that has expired is none.
    let later = new.facts.not_after + Duration::from_secs(1);
    let expired = load_newest(&storage, &directories, &name, later);
    assert!(expired.await.unwrap().is_none());
}
