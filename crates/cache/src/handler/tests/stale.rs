//! Stale responses: revalidated, served during revalidation, served after failures of the back end.

use std::sync::Arc;

use penstock_exchange::{Body, FaultKind};

use super::FRESH;
use crate::testing::{
    BackendAction, CLIENT_ADDRESS, Gate, TaskSet, TestBackend, fail_with, fetch, fetch_until_hit,
    get_request, handle_request, head_of, memory_cache, request_of, respond_with,
    respond_with_page, run, wait_until,
};

/// A response that is stale at once, with a validator.
const STALE: [&str; 3] = ["Cache-Control: max-age=10", "Age: 50", "ETag: \"a\""];

/// A back end that sends a page that is stale at once, then acts by `then`.
fn stale_then(
    lines: &'static [&'static str],
    then: impl Fn(usize) -> BackendAction + Send + Sync + 'static,
) -> Arc<TestBackend> {
    TestBackend::new(move |number, _| match number {
        0 => respond_with_page(lines, "stored"),
        number => then(number),
    })
}

async fn stored(backend: &Arc<TestBackend>) -> Arc<crate::CacheHandler> {
    let cache = memory_cache(backend);
    let got = fetch(&cache, get_request("/a", &[])).await;
    assert!(
        got.cache_status().ends_with("; stored"),
        "{}",
        got.cache_status()
    );
    wait_until("it is stored", || cache.counters().stored.value() == 1).await;
    cache
}

#[test]
fn a_304_freshens_the_stored_response() {
    run(async {
        let backend = stale_then(&STALE, |_| {
            let lines = ["Cache-Control: max-age=100", "ETag: \"a\"", "X-New: 1"];
            respond_with(304, &lines, Body::Empty)
        });
        let cache = stored(&backend).await;
        let got = fetch(&cache, get_request("/a", &[])).await;
        assert_eq!((got.status, got.body_text()), (200, "stored"));
        let told = got.cache_status();
        assert!(
            told.starts_with("Penstock; fwd=stale; fwd-status=304; ttl="),
            "{told}"
        );
        let asked = backend.received(1);
        assert_eq!(asked.field("if-none-match"), Some(b"\"a\"".as_slice()));
        let hit = fetch_until_hit(&cache, "/a").await;
        assert_eq!(
            (hit.body_text(), hit.field("x-new").as_str()),
            ("stored", "1")
        );
        assert_eq!(backend.request_count(), 2);
    });
}

#[test]
fn a_304_adds_nothing_for_the_front_end_or_the_hub() {
    const NAMES: [&str; 5] = [
        "grip-hold",
        "grip-channel",
        "x-accel-redirect",
        "x-accel-expires",
        "x-sendfile-type",
    ];
    run(async {
        let backend = stale_then(&STALE, |_| {
            let lines = [
                "Cache-Control: max-age=100",
                "ETag: \"a\"",
                "Grip-Hold: stream",
                "Grip-Channel: x",
                "X-Accel-Redirect: /private",
                "X-Accel-Expires: 100",
                "X-Sendfile-Type: X",
                "X-New: 1",
            ];
            respond_with(304, &lines, Body::Empty)
        });
        let cache = stored(&backend).await;
        let validated = fetch(&cache, get_request("/a", &[])).await;
        let hit = fetch_until_hit(&cache, "/a").await;
        for got in [&validated, &hit] {
            assert_eq!((got.status, got.body_text()), (200, "stored"));
            assert_eq!(got.field("x-new"), "1");
            for name in NAMES {
                assert_eq!(got.field(name), "", "{name}");
            }
        }
        assert_eq!(backend.request_count(), 2);
    });
}

#[test]
fn a_response_is_stored_without_fields_for_the_front_end() {
    run(async {
        let lines = [
            "Cache-Control: max-age=100",
            "X-Sendfile-Type: X",
            "X-Own: 1",
        ];
        let backend = TestBackend::new(move |_, _| respond_with_page(&lines, "stored"));
        let cache = stored(&backend).await;
        let hit = fetch_until_hit(&cache, "/a").await;
        assert_eq!(hit.field("x-own"), "1");
        assert_eq!(hit.field("x-sendfile-type"), "");
    });
}

#[test]
fn the_condition_of_a_client_is_judged_by_what_a_304_made_fresh() {
    run(async {
        for (line, status) in [("If-None-Match: \"b\"", 200), ("If-None-Match: \"a\"", 304)] {
            let backend = stale_then(&STALE, |_| respond_with(304, &["ETag: \"a\""], Body::Empty));
            let cache = stored(&backend).await;
            let got = fetch(&cache, get_request("/a", &[line])).await;
            assert_eq!(got.status, status, "{line}");
            let asked = backend.received(1);
            assert_eq!(asked.field("if-none-match"), Some(b"\"a\"".as_slice()));
        }
    });
}

#[test]
fn a_304_about_something_else_is_asked_again_without_conditions() {
    run(async {
        let backend = stale_then(&STALE, |number| match number {
            1 => respond_with(304, &["ETag: \"b\""], Body::Empty),
            _ => respond_with_page(&[FRESH], "new"),
        });
        let cache = stored(&backend).await;
        assert_eq!(
            fetch(&cache, get_request("/a", &[])).await.body_text(),
            "new"
        );
        assert!(backend.received(2).field("if-none-match").is_none());
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "new");
    });
}

#[test]
fn a_full_response_replaces_the_stale_one() {
    run(async {
        let backend = stale_then(&STALE, |_| {
            respond_with_page(&[FRESH, "Vary: Accept"], "new")
        });
        let cache = stored(&backend).await;
        assert_eq!(
            fetch(&cache, get_request("/a", &[])).await.body_text(),
            "new"
        );
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "new");
        assert_eq!(backend.request_count(), 2);
    });
}

#[test]
fn an_unstorable_response_removes_the_stored_one() {
    run(async {
        let backend = stale_then(&STALE, |number| match number {
            1 => respond_with_page(&["Cache-Control: no-store"], "private"),
            _ => fail_with(FaultKind::ConnectFailed),
        });
        let cache = stored(&backend).await;
        assert_eq!(
            fetch(&cache, get_request("/a", &[])).await.body_text(),
            "private"
        );
        assert!(
            handle_request(&cache, get_request("/a", &[]))
                .await
                .is_err()
        );
    });
}

#[test]
fn a_stale_response_is_served_and_revalidated_once() {
    run(async {
        const LINES: [&str; 2] = [
            "Cache-Control: max-age=10, stale-while-revalidate=100",
            "Age: 50",
        ];
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = stale_then(&LINES, move |_| {
            respond_with_page(&[FRESH], "new").behind_gate(&held)
        });
        let cache = stored(&backend).await;
        for _ in 0..10 {
            let got = fetch(&cache, get_request("/a", &[])).await;
            assert_eq!(got.body_text(), "stored");
            assert!(
                got.cache_status().starts_with("Penstock; hit; ttl=-"),
                "{}",
                got.cache_status()
            );
        }
        wait_until("the back end is asked", || gate.waiting() == 1).await;
        assert_eq!(backend.request_count(), 2);
        gate.open();
        wait_until("it is stored", || cache.counters().stored.value() == 2).await;
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "new");
        assert_eq!(backend.request_count(), 2);
    });
}

#[test]
fn a_stale_response_is_served_if_the_backend_fails() {
    run(async {
        const ERRORS: [&str; 2] = ["Cache-Control: max-age=10, stale-if-error=100", "Age: 50"];
        const NEVER: [&str; 3] = [
            "Cache-Control: max-age=10, stale-if-error=100, must-revalidate",
            "Age: 50",
            "ETag: \"a\"",
        ];
        type Failure = fn() -> BackendAction;
        let failures: [(&str, Failure); 4] = [
            ("unreachable", || fail_with(FaultKind::ConnectFailed)),
            ("too late", || fail_with(FaultKind::AppTimeout)),
            ("503", || respond_with(503, &[], Body::Empty)),
            ("500 to be stored", || {
                respond_with(500, &[FRESH], Body::Empty)
            }),
        ];
        for (what, failure) in failures {
            let backend = stale_then(&ERRORS, move |_| failure());
            let cache = stored(&backend).await;
            for number in 2..4 {
                let got = fetch(&cache, get_request("/a", &[])).await;
                assert_eq!((got.status, got.body_text()), (200, "stored"), "{what}");
                assert!(
                    got.cache_status().ends_with("; detail=stale-if-error"),
                    "{what}"
                );
                assert!(got.is_hit(), "{what}");
                assert_eq!(backend.request_count(), number, "{what}");
            }
            let backend = stale_then(&NEVER, move |_| failure());
            let cache = stored(&backend).await;
            match handle_request(&cache, get_request("/a", &[])).await {
                Ok(penstock_exchange::Reply::Response(response)) => {
                    assert!(response.status.code() >= 500, "{what}");
                }
                Ok(other) => panic!("{what}: {other:?}"),
                Err(_) => {}
            }
        }
    });
}

#[test]
fn a_client_error_is_no_failure_of_the_back_end() {
    run(async {
        const LINES: [&str; 2] = ["Cache-Control: max-age=10, stale-if-error=100", "Age: 50"];
        let backend = stale_then(&LINES, |_| respond_with(404, &[], Body::Empty));
        let cache = stored(&backend).await;
        assert_eq!(fetch(&cache, get_request("/a", &[])).await.status, 404);
    });
}

#[test]
fn no_cache_responses_are_revalidated_per_request() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, _| match number {
            0 => respond_with_page(&["Cache-Control: no-cache", "ETag: \"a\""], "stored"),
            _ => respond_with(304, &["ETag: \"a\""], Body::Empty).behind_gate(&held),
        });
        let cache = stored(&backend).await;
        let mut all = TaskSet::new();
        for _ in 0..5 {
            let cache = Arc::clone(&cache);
            all.spawn(async move { fetch(&cache, get_request("/a", &[])).await });
        }
        wait_until("all are asked", || gate.waiting() == 5).await;
        gate.open();
        for got in all.join_all().await {
            assert_eq!((got.status, got.body_text()), (200, "stored"));
        }
    });
}

#[test]
fn a_head_response_of_other_content_removes_the_stored_one() {
    run(async {
        for (tag, is_kept) in [("ETag: \"a\"", true), ("ETag: \"b\"", false)] {
            let backend = TestBackend::new(move |number, request| {
                match (request.head.method_str(), number) {
                    ("HEAD", _) => respond_with(200, &[tag], Body::Omitted(None)),
                    (_, 0) => respond_with_page(&STALE, "stored"),
                    _ => respond_with(304, &["ETag: \"a\""], Body::Empty),
                }
            });
            let cache = stored(&backend).await;
            fetch(
                &cache,
                request_of(head_of("HEAD", "/a", &[]), CLIENT_ADDRESS),
            )
            .await;
            let status = fetch(&cache, get_request("/a", &[])).await.status;
            assert_eq!(status == 200, is_kept, "{tag}");
        }
    });
}
