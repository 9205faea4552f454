//! Cache directives from back ends: they count, and clients do not get them.

use std::sync::Arc;

use penstock_exchange::{Body, FrontEndInstructions};

use super::FRESH;
use crate::testing::{
    BackendAction, CLIENT_ADDRESS, TestBackend, cache_with_rules, fetch, fetch_until_hit,
    get_request, head_of, memory_cache, memory_store, request_of, respond_with_page, response, run,
};
use crate::{PurgeTarget, purge};

#[test]
fn cache_fields_are_hidden_and_tags_can_be_purged() {
    run(async {
        let backend = TestBackend::new(|_, _| {
            let lines = [
                "X-Accel-Expires: 100",
                "Surrogate-Key: a b",
                "Cache-Tag: c,d",
            ];
            respond_with_page(&lines, "x")
        });
        let store = memory_store("m");
        let cache = cache_with_rules(&backend, &store, |_| ());
        for got in [
            fetch(&cache, get_request("/a", &[])).await,
            fetch_until_hit(&cache, "/a").await,
            fetch(
                &cache,
                request_of(head_of("POST", "/b", &[]), CLIENT_ADDRESS),
            )
            .await,
        ] {
            for name in ["x-accel-expires", "surrogate-key", "cache-tag"] {
                assert!(!got.fields.contains(name), "{name}: {}", got.cache_status());
            }
        }
        for tag in ["e", "a b"] {
            let purged = purge(&[Arc::clone(&store)], &PurgeTarget::Tag(tag.to_owned()));
            assert_eq!(purged, 0, "{tag}");
        }
        assert!(fetch_until_hit(&cache, "/a").await.is_hit());
        let purged = purge(&[store], &PurgeTarget::Tag("d".to_owned()));
        assert_eq!(purged, 1);
        assert!(!fetch(&cache, get_request("/a", &[])).await.is_hit());
    });
}

/// A 200 with this `X-Accel-Expires`, as upstream handlers report it.
fn cache_status_of(value: &str, lines: &[&str]) -> BackendAction {
    let mut response = response(200, lines, Body::Bytes("x".into()));
    let pushed = response.fields.push("X-Accel-Expires", value.as_bytes());
    pushed.unwrap();
    response.instructions = FrontEndInstructions::ForThisServer;
    BackendAction::Now(Ok(response.into()))
}

#[test]
fn accel_expires_counts_and_is_not_forwarded() {
    run(async {
        let backend = TestBackend::new(|number, _| match number {
            0 => cache_status_of("0", &[FRESH]),
            _ => cache_status_of("100", &["Cache-Control: no-store"]),
        });
        let cache = memory_cache(&backend);
        // Not stored, so the next request bypasses the cache; its storable response ends that.
        for (told, count) in [
            ("detail=accel-off", 1),
            ("detail=not-stored-lately", 2),
            ("ttl=100; stored", 3),
        ] {
            let got = fetch(&cache, get_request("/a", &[])).await;
            assert!(
                got.cache_status().ends_with(told),
                "{told}: {}",
                got.cache_status()
            );
            assert_eq!(backend.request_count(), count);
            assert!(!got.fields.contains("x-accel-expires"), "{told}");
        }
        let got = fetch_until_hit(&cache, "/a").await;
        assert!(!got.fields.contains("x-accel-expires"));
    });
}
