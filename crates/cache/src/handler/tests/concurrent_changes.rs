//! Changes of a resource during a request to the back end.

use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{Body, BodyStream, Fault, Handler, HandlerProgress, Request};
use penstock_http::FieldBlock;
use penstock_runtime::{clock, loops};

use super::FRESH;
use crate::testing::{
    CLIENT, ChunkedBody, Gate, TestBackend, answer, cache, cache_of, fetch, fetch_hit, get,
    head_of, memory, page, reply, request_of, run, until,
};
use crate::{Cache, PurgeTarget, purge};

fn put() -> Request {
    request_of(head_of("PUT", "/a", &[]), CLIENT)
}

/// The stored response is stale, and a write or a purge happens before the 304 arrives.
async fn removed_while_revalidated(is_write: bool) {
    let gate = Gate::new();
    let held = Arc::clone(&gate);
    let backend =
        TestBackend::new(
            move |number, request| match (request.head.method_str(), number) {
                ("PUT", _) => answer(204, &[], Body::Empty),
                (_, 0) => page(
                    &["Cache-Control: max-age=10", "Age: 50", "ETag: \"a\""],
                    "old",
                ),
                _ if request.head.field("if-none-match").is_some() => {
                    answer(304, &[FRESH, "ETag: \"a\""], Body::Empty).gated(&held)
                }
                _ => page(&[FRESH], "new"),
            },
        );
    let store = memory("m");
    let cache = cache_of(&backend, &store, |_| ());
    fetch(&cache, get("/a", &[])).await;
    until("it is stored", || cache.counters().stored.value() == 1).await;
    let early = Arc::clone(&cache);
    let early = loops::spawn_with_handle(async move { fetch(&early, get("/a", &[])).await });
    until("the back end is asked", || gate.waiting() == 1).await;
    match is_write {
        true => drop(fetch(&cache, put()).await),
        false => assert_eq!(purge(&[store], &PurgeTarget::All), 1),
    }
    gate.open();
    let early = early.await.unwrap();
    assert_eq!((early.status, early.text()), (200, "new"), "{is_write}");
    let late = fetch_hit(&cache, "/a").await;
    assert_eq!(late.text(), "new", "{is_write}");
    assert_eq!(backend.count(), 3 + usize::from(is_write));
}

#[test]
fn an_object_removed_during_revalidation_is_fetched_anew() {
    run(async {
        removed_while_revalidated(false).await;
        removed_while_revalidated(true).await;
    });
}

/// A body that writes to its own resource when its length is read, which happens during storing.
struct WritingBody {
    cache: Weak<Cache>,
    body: ChunkedBody,
}

impl BodyStream for WritingBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        self.body.poll_chunk(cx)
    }

    fn length(&self) -> Option<u64> {
        if let Some(cache) = self.cache.upgrade() {
            assert!(matches!(cache.handle(put()), HandlerProgress::Ready(Ok(_))));
        }
        self.body.length()
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        None
    }
}

#[test]
fn a_write_at_the_very_moment_of_storing_is_seen() {
    run(async {
        let cell: Arc<OnceLock<Weak<Cache>>> = Arc::default();
        let later = Arc::clone(&cell);
        let backend = TestBackend::new(move |number, request| {
            if request.head.method_str() == "PUT" {
                return answer(204, &[], Body::Empty);
            }
            let cache = match number {
                0 => later.get().unwrap().clone(),
                _ => Weak::new(),
            };
            let body = ChunkedBody::new(&["old"], Some(3), None);
            answer(
                200,
                &[FRESH],
                Body::Stream(Box::new(WritingBody { cache, body })),
            )
        });
        let cache = cache(&backend);
        cell.set(Arc::downgrade(&cache)).unwrap();
        let got = fetch(&cache, get("/a", &[])).await;
        assert!(
            got.cache_status().ends_with("detail=outdated"),
            "{}",
            got.cache_status()
        );
        assert!(!fetch(&cache, get("/a", &[])).await.is_hit());
    });
}

#[test]
fn a_revalidation_with_credentials_keeps_the_shared_object() {
    run(async {
        const FOR_ALL: &str = "Cache-Control: public, max-age=100";
        let backend = TestBackend::new(|number, _| match number {
            0 => page(&[FOR_ALL, "ETag: \"a\""], "for all"),
            _ => answer(304, &[FRESH, "ETag: \"a\""], Body::Empty),
        });
        let cache = cache(&backend);
        fetch(&cache, get("/a", &[])).await;
        fetch_hit(&cache, "/a").await;
        let lines = ["Authorization: Basic eDp5", "Cache-Control: no-cache"];
        let own = fetch(&cache, get("/a", &lines)).await;
        assert_eq!((own.status, own.text()), (200, "for all"));
        assert_eq!(backend.count(), 2);
        assert!(fetch(&cache, get("/a", &[])).await.is_hit());
    });
}

#[test]
fn a_partial_object_with_another_vary_is_replaced() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, _| match number {
            0 => page(&[FRESH, "Vary: Accept"], "first"),
            1 => {
                let body = ChunkedBody::body(&["slow", "ly"], None, Some(&held));
                answer(200, &[FRESH, "Vary: Accept-Language"], body)
            }
            _ => page(&[FRESH], "last"),
        });
        let cache = cache(&backend);
        let reload = |line| get("/a", &["Cache-Control: no-cache", line]);
        fetch(&cache, get("/a", &["Accept: x"])).await;
        until("it is stored", || cache.counters().stored.value() == 1).await;
        let slow = reply(&cache, reload("Accept-Language: de")).await;
        until("the body is held", || gate.waiting() == 1).await;
        assert_eq!(fetch(&cache, reload("Accept: y")).await.text(), "last");
        until("it is stored", || cache.counters().stored.value() == 2).await;
        gate.open();
        match slow {
            Ok(penstock_exchange::Reply::Response(slow)) => {
                assert_eq!(crate::testing::read(*slow).await.text(), "slowly");
            }
            other => panic!("{other:?}"),
        }
        for line in ["Accept: x", "Accept-Language: de", "Accept: y"] {
            let got = fetch(&cache, get("/a", &[line])).await;
            assert_eq!(got.text(), "last", "{line}");
        }
        assert_eq!(backend.count(), 3);
    });
}

#[test]
fn a_reload_joins_only_later_fetches() {
    run(async {
        for line in ["Cache-Control: no-cache", "Cache-Control: max-age=0"] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let backend =
                TestBackend::new(move |number, _| page(&[FRESH], &number.to_string()).gated(&held));
            let cache = cache(&backend);
            let spawn = |request: Request| {
                let cache = Arc::clone(&cache);
                loops::spawn_with_handle(async move { fetch(&cache, request).await })
            };
            let earlier = get("/a", &[line]);
            // Strictly later, whatever the clock's resolution.
            let came = clock::now();
            while clock::now() == came {}
            let first = spawn(get("/a", &[]));
            until("the back end is asked", || gate.waiting() == 1).await;
            let later = get("/a", &[line]);
            let later = spawn(later);
            until("it is asked again", || gate.waiting() == 2).await;
            let earlier = spawn(earlier);
            loops::yield_now().await;
            gate.open();
            assert_eq!(first.await.unwrap().text(), "0");
            assert_eq!(later.await.unwrap().text(), "1", "{line}");
            let earlier = earlier.await.unwrap();
            assert!(
                earlier.cache_status().contains("collapsed"),
                "{}",
                earlier.cache_status()
            );
            assert_eq!(backend.count(), 2, "{line}");
        }
    });
}
