//! Stores in real directories: served bytes are the stored ones, despite failures of disk and
//! process.

mod basics;
mod crashes;
mod faults;
mod partial_objects;
mod space;
mod verification;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::BodyStream;
use penstock_http::caching::Lifetime;
use penstock_http::{FieldBlock, Status};
use penstock_runtime::{DiskFile, clock};

use super::partial_object::PartialReader;
use super::*;

/// A directory that is removed with the test.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("penstock-store-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The metadata of a response to `text`.
pub(crate) fn meta_of(text: &str) -> ObjectMeta {
    let mut fields = FieldBlock::new();
    fields.push("Content-Type", b"text/plain").unwrap();
    ObjectMeta {
        key: text.as_bytes().into(),
        status: Status::OK,
        fields: fields.freeze(),
        lifetime: Lifetime::from_words([60_000, 0, 0, 0, 0]).unwrap(),
        request_time: Duration::from_secs(1_700_000_000),
        response_time: Duration::from_secs(1_700_000_001),
        vary_names: Vec::new(),
        variant: Vec::new(),
        tags: Vec::new(),
        length: 0,
        slice_set: None,
    }
}

pub(crate) fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text.as_bytes())
}

/// `length` bytes that are unique to this name.
pub(crate) fn unique_body(name: &str, length: usize) -> Vec<u8> {
    let mut state = twox_hash::XxHash3_64::oneshot(name.as_bytes()) | 1;
    let mut body = Vec::with_capacity(length + 8);
    while body.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        body.extend_from_slice(&state.to_le_bytes());
    }
    body.truncate(length);
    body
}

pub(crate) fn test_config(path: Option<&Path>) -> config::Cache {
    config::Cache {
        max_size: 16 << 20,
        max_memory: 1 << 20,
        max_object_size: 4 << 20,
        stall_timeout: Duration::from_secs(5),
        ..config::Cache::new("test", path.map(Path::to_owned))
    }
}

/// Starts a store and waits until its index is complete.
pub(crate) async fn start_store(config: &config::Cache) -> Arc<Store> {
    let store = Store::start(config, Pool::new("test", 2, 1000));
    wait_until(&store, |usage| usage.state == StoreState::Working).await;
    store
}

/// Waits until the store's snapshot satisfies `is_so`.
pub(crate) async fn wait_until(store: &Arc<Store>, is_so: impl Fn(&StoreSnapshot) -> bool) {
    let deadline = clock::now() + Duration::from_secs(20);
    while !is_so(&store.snapshot()) {
        assert!(clock::now() < deadline, "in vain: {:?}", store.snapshot());
        sleep_briefly().await;
    }
}

pub(crate) async fn sleep_briefly() {
    let soon = clock::now() + Duration::from_millis(3);
    let _ = clock::timeout_at(soon, std::future::pending::<()>()).await;
}

/// Stores `body` under `text`, in several pieces.
pub(crate) async fn store_object(store: &Arc<Store>, text: &str, body: &[u8]) -> bool {
    store_with_meta(store, meta_of(text), body).await
}

pub(crate) async fn store_with_meta(store: &Arc<Store>, meta: ObjectMeta, body: &[u8]) -> bool {
    let key = ObjectKey::new(&meta.key);
    let begun = store.begin_object(&key, meta, Some(body.len() as u64));
    let Some((mut writer, _partial)) = begun else {
        return false;
    };
    for piece in body.chunks(50_000) {
        writer.push(piece);
        writer.wait_for_capacity().await;
    }
    writer.finish().await
}

pub(crate) fn find_hit(store: &Arc<Store>, text: &str) -> Option<Hit> {
    store.find(&key(text), &mut |_| true)
}

/// The body that a request would get; `None` for a miss.
pub(crate) async fn read_stored_body(store: &Arc<Store>, text: &str) -> Option<Vec<u8>> {
    let hit = find_hit(store, text)?;
    match hit.body {
        HitBody::Memory(held) => Some(held.part(0, usize::MAX).to_vec()),
        HitBody::Partial(partial) => read_to_end(partial.reader()?).await.ok(),
        HitBody::Disk(object) => {
            let body = object.open().await.ok()?;
            assert_eq!(body.len, hit.meta.length);
            let mut bytes = vec![0; usize::try_from(body.len).unwrap()];
            let read =
                object_file::read_full(body.file.file().unwrap(), &mut bytes, body.start).unwrap();
            assert_eq!(read, bytes.len());
            Some(bytes)
        }
    }
}

/// Reads to the end.
pub(crate) async fn read_to_end(
    mut reader: PartialReader,
) -> Result<Vec<u8>, penstock_exchange::Fault> {
    let mut all = Vec::new();
    while let Some(piece) = next_chunk(&mut reader).await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

pub(crate) async fn next_chunk(
    reader: &mut PartialReader,
) -> Option<Result<Bytes, penstock_exchange::Fault>> {
    std::future::poll_fn(|cx| reader.poll_chunk(cx)).await
}

/// Number of files below a directory, and their disk usage as the store counts it.
pub(crate) fn file_count_and_usage(path: &Path) -> (usize, u64) {
    let (mut count, mut bytes) = (0, 0);
    let Ok(entries) = std::fs::read_dir(path) else {
        return (0, 0);
    };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            let inner = file_count_and_usage(&entry.path());
            count += inner.0;
            bytes += inner.1;
        } else if entry.file_name() != "lock" {
            count += 1;
            bytes += cache_dir::allocated_bytes(metadata.len());
        }
    }
    (count, bytes)
}
