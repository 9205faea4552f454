//! What back ends say to caches alone: it counts, and no client sees it.

use std::sync::Arc;

use penstock_exchange::Body;

use super::FRESH;
use crate::testing::{
    Act, Backend, CLIENT, cache, cache_of, fetch, fetch_hit, get, head_of, memory, page,
    request_of, response, run,
};
use crate::{Purge, purge};

#[test]
fn what_speaks_to_caches_is_hidden_from_clients_and_tags_are_purged() {
    run(async {
        let backend = Backend::new(|_, _| {
            let lines = [
                "X-Accel-Expires: 100",
                "Surrogate-Key: a b",
                "Cache-Tag: c,d",
            ];
            page(&lines, "x")
        });
        let store = memory("m");
        let cache = cache_of(&backend, &store, |_| ());
        for got in [
            fetch(&cache, get("/a", &[])).await,
            fetch_hit(&cache, "/a").await,
            fetch(&cache, request_of(head_of("POST", "/b", &[]), CLIENT)).await,
        ] {
            for name in ["x-accel-expires", "surrogate-key", "cache-tag"] {
                assert!(!got.fields.contains(name), "{name}: {}", got.told());
            }
        }
        for tag in ["e", "a b"] {
            let purged = purge(&[Arc::clone(&store)], &Purge::Tag(tag.to_owned()));
            assert_eq!(purged.objects, 0, "{tag}");
        }
        assert!(fetch_hit(&cache, "/a").await.is_hit());
        let purged = purge(&[store], &Purge::Tag("d".to_owned()));
        assert_eq!(purged.objects, 1);
        assert!(!fetch(&cache, get("/a", &[])).await.is_hit());
    });
}

/// A 200 for which the back end said this with `X-Accel-Expires`, as the rooms of back ends tell it.
fn said(value: &str, lines: &[&str]) -> Act {
    let mut response = response(200, lines, Body::Bytes("x".into()));
    let pushed = response.fields.push("X-Accel-Expires", value.as_bytes());
    pushed.unwrap();
    response.speaks_to_cache = true;
    Act::Now(Ok(response.into()))
}

#[test]
fn what_a_back_end_says_to_this_cache_alone_counts_and_goes_no_further() {
    run(async {
        let backend = Backend::new(|number, _| match number {
            0 => said("0", &[FRESH]),
            _ => said("100", &["Cache-Control: no-store"]),
        });
        let cache = cache(&backend);
        // Not stored, and so passed on next; what could be stored then ends that.
        for (told, count) in [
            ("detail=accel-off", 1),
            ("detail=not-stored-lately", 2),
            ("ttl=100; stored", 3),
        ] {
            let got = fetch(&cache, get("/a", &[])).await;
            assert!(got.told().ends_with(told), "{told}: {}", got.told());
            assert_eq!(backend.count(), count);
            assert!(!got.fields.contains("x-accel-expires"), "{told}");
        }
        let got = fetch_hit(&cache, "/a").await;
        assert!(!got.fields.contains("x-accel-expires"));
    });
}
