//! Changes of a resource during a request to the back end.

use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{Body, BodyStream, Fault, Handler, HandlerProgress, Request};
use penstock_http::FieldBlock;
use penstock_runtime::{clock, loops};

use super::FRESH;
use crate::testing::{
    CLIENT_ADDRESS, ChunkedBody, Gate, TestBackend, cache_with_rules, fetch, fetch_until_hit,
    get_request, handle_request, head_of, memory_cache, memory_store, request_of, respond_with,
    respond_with_page, run, wait_until,
};
use crate::{CacheHandler, PurgeTarget, purge};

fn put() -> Request {
    request_of(head_of("PUT", "/a", &[]), CLIENT_ADDRESS)
}

/// The stored response is stale, and a write or a purge happens before the 304 arrives.
async fn removed_while_revalidated(is_write: bool) {
    let gate = Gate::new();
    let held = Arc::clone(&gate);
    let backend =
        TestBackend::new(
            move |number, request| match (request.head.method_str(), number) {
                ("PUT", _) => respond_with(204, &[], Body::Empty),
                (_, 0) => respond_with_page(
                    &["Cache-Control: max-age=10", "Age: 50", "ETag: \"a\""],
                    "old",
                ),
                _ if request.head.field("if-none-match").is_some() => {
                    respond_with(304, &[FRESH, "ETag: \"a\""], Body::Empty).behind_gate(&held)
                }
                _ => respond_with_page(&[FRESH], "new"),
            },
        );
    let store = memory_store("m");
    let cache = cache_with_rules(&backend, &store, |_| ());
    fetch(&cache, get_request("/a", &[])).await;
    wait_until("it is stored", || cache.counters().stored.value() == 1).await;
    let early = Arc::clone(&cache);
    let early =
        loops::spawn_with_handle(async move { fetch(&early, get_request("/a", &[])).await });
    wait_until("the back end is asked", || gate.waiting() == 1).await;
    match is_write {
        true => drop(fetch(&cache, put()).await),
        false => assert_eq!(purge(&[store], &PurgeTarget::All), 1),
    }
    gate.open();
    let early = early.await.unwrap();
    assert_eq!(
        (early.status, early.body_text()),
        (200, "new"),
        "{is_write}"
    );
    let late = fetch_until_hit(&cache, "/a").await;
    assert_eq!(late.body_text(), "new", "{is_write}");
    assert_eq!(backend.request_count(), 3 + usize::from(is_write));
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
    cache: Weak<CacheHandler>,
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
        let cell: Arc<OnceLock<Weak<CacheHandler>>> = Arc::default();
        let later = Arc::clone(&cell);
        let backend = TestBackend::new(move |number, request| {
            if request.head.method_str() == "PUT" {
                return respond_with(204, &[], Body::Empty);
            }
            let cache = match number {
                0 => later.get().unwrap().clone(),
                _ => Weak::new(),
            };
            let body = ChunkedBody::new(&["old"], Some(3), None);
            respond_with(
                200,
                &[FRESH],
                Body::Stream(Box::new(WritingBody { cache, body })),
            )
        });
        let cache = memory_cache(&backend);
        cell.set(Arc::downgrade(&cache)).unwrap();
        let got = fetch(&cache, get_request("/a", &[])).await;
        assert!(
            got.cache_status().ends_with("detail=outdated"),
            "{}",
            got.cache_status()
        );
        assert!(!fetch(&cache, get_request("/a", &[])).await.is_hit());
    });
}

#[test]
fn a_revalidation_with_credentials_keeps_the_shared_object() {
    run(async {
        const FOR_ALL: &str = "Cache-Control: public, max-age=100";
        let backend = TestBackend::new(|number, _| match number {
            0 => respond_with_page(&[FOR_ALL, "ETag: \"a\""], "for all"),
            _ => respond_with(304, &[FRESH, "ETag: \"a\""], Body::Empty),
        });
        let cache = memory_cache(&backend);
        fetch(&cache, get_request("/a", &[])).await;
        fetch_until_hit(&cache, "/a").await;
        let lines = ["Authorization: Basic eDp5", "Cache-Control: no-cache"];
        let own = fetch(&cache, get_request("/a", &lines)).await;
        assert_eq!((own.status, own.body_text()), (200, "for all"));
        assert_eq!(backend.request_count(), 2);
        assert!(fetch(&cache, get_request("/a", &[])).await.is_hit());
    });
}

#[test]
fn a_partial_object_with_another_vary_is_replaced() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, _| match number {
            0 => respond_with_page(&[FRESH, "Vary: Accept"], "first"),
            1 => {
                let body = ChunkedBody::new_body(&["slow", "ly"], None, Some(&held));
                respond_with(200, &[FRESH, "Vary: Accept-Language"], body)
            }
            _ => respond_with_page(&[FRESH], "last"),
        });
        let cache = memory_cache(&backend);
        let reload = |line| get_request("/a", &["Cache-Control: no-cache", line]);
        fetch(&cache, get_request("/a", &["Accept: x"])).await;
        wait_until("it is stored", || cache.counters().stored.value() == 1).await;
        let slow = handle_request(&cache, reload("Accept-Language: de")).await;
        wait_until("the body is held", || gate.waiting() == 1).await;
        assert_eq!(fetch(&cache, reload("Accept: y")).await.body_text(), "last");
        wait_until("it is stored", || cache.counters().stored.value() == 2).await;
        gate.open();
        match slow {
            Ok(penstock_exchange::Reply::Response(slow)) => {
                assert_eq!(
                    crate::testing::collect_response(*slow).await.body_text(),
                    "slowly"
                );
            }
            other => panic!("{other:?}"),
        }
        for line in ["Accept: x", "Accept-Language: de", "Accept: y"] {
            let got = fetch(&cache, get_request("/a", &[line])).await;
            assert_eq!(got.body_text(), "last", "{line}");
        }
        assert_eq!(backend.request_count(), 3);
    });
}

#[test]
fn a_reload_joins_only_later_fetches() {
    run(async {
        for line in ["Cache-Control: no-cache", "Cache-Control: max-age=0"] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let backend = TestBackend::new(move |number, _| {
                respond_with_page(&[FRESH], &number.to_string()).behind_gate(&held)
            });
            let cache = memory_cache(&backend);
            let spawn = |request: Request| {
                let cache = Arc::clone(&cache);
                loops::spawn_with_handle(async move { fetch(&cache, request).await })
            };
            let earlier = get_request("/a", &[line]);
            // Strictly later, whatever the clock's resolution.
            let came = clock::now();
            while clock::now() == came {}
            let first = spawn(get_request("/a", &[]));
            wait_until("the back end is asked", || gate.waiting() == 1).await;
            let later = get_request("/a", &[line]);
            let later = spawn(later);
            wait_until("it is asked again", || gate.waiting() == 2).await;
            let earlier = spawn(earlier);
            loops::yield_now().await;
            gate.open();
            assert_eq!(first.await.unwrap().body_text(), "0");
            assert_eq!(later.await.unwrap().body_text(), "1", "{line}");
            let earlier = earlier.await.unwrap();
            assert!(
                earlier.cache_status().contains("collapsed"),
                "{}",
                earlier.cache_status()
            );
            assert_eq!(backend.request_count(), 2, "{line}");
        }
    });
}
