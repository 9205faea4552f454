//! Ranges of and conditions on stored responses.

use std::sync::Arc;

use penstock_exchange::{Body, Reply};

use crate::testing::{
    ChunkedBody, Gate, TestBackend, cache_with_rules, collect_response, fetch, fetch_until_hit,
    get_request, handle_request, memory_cache, respond_with, respond_with_page, run, wait_until,
};

const PAGE: [&str; 4] = [
    "Cache-Control: max-age=1000",
    "ETag: \"a\"",
    "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
    "Content-Type: text/x",
];

#[test]
fn parts_are_cut_out_of_what_is_stored() {
    run(async {
        let backend = TestBackend::new(|_, _| respond_with_page(&PAGE, "0123456789"));
        let cache = memory_cache(&backend);
        fetch(&cache, get_request("/a", &[])).await;
        fetch_until_hit(&cache, "/a").await;
        for (lines, status, body, range) in [
            (&["Range: bytes=2-4"] as &[&str], 206, "234", "bytes 2-4/10"),
            (&["Range: bytes=-2"], 206, "89", "bytes 8-9/10"),
            (&["Range: bytes=7-"], 206, "789", "bytes 7-9/10"),
            (
                &["Range: bytes=2-4", "If-Range: \"a\""],
                206,
                "234",
                "bytes 2-4/10",
            ),
            (
                &["Range: bytes=2-4", "If-Range: \"b\""],
                200,
                "0123456789",
                "",
            ),
            (&["Range: lines=2-4"], 200, "0123456789", ""),
            (
                &["Range: bytes=0-1", "Range: bytes=2-3"],
                200,
                "0123456789",
                "",
            ),
        ] {
            let got = fetch(&cache, get_request("/a", lines)).await;
            assert_eq!((got.status, got.body_text()), (status, body), "{lines:?}");
            assert_eq!(got.field("content-range"), range, "{lines:?}");
            assert_eq!(got.length, Some(body.len() as u64), "{lines:?}");
            assert!(got.is_hit(), "{lines:?}");
        }
        let got = fetch(&cache, get_request("/a", &["Range: bytes=0-1, 5-6"])).await;
        assert_eq!(got.status, 206);
        let framed = got.field("content-type");
        assert!(
            framed.starts_with("multipart/byteranges; boundary="),
            "{framed}"
        );
        assert_eq!(got.length, Some(got.body_text().len() as u64));
        for part in ["bytes 0-1/10\r\n\r\n01\r\n", "bytes 5-6/10\r\n\r\n56\r\n"] {
            assert!(got.body_text().contains(part), "{}", got.body_text());
        }
        let got = fetch(&cache, get_request("/a", &["Range: bytes=10-"])).await;
        assert_eq!(got.status, 416);
        assert_eq!(got.field("content-range"), "bytes */10");
        assert_eq!(backend.request_count(), 1);
    });
}

#[test]
fn no_ranges_if_the_origin_forbids_them() {
    run(async {
        let backend = TestBackend::new(|_, _| {
            respond_with_page(&["Cache-Control: max-age=9", "Accept-Ranges: none"], "0123")
        });
        let cache = memory_cache(&backend);
        for _ in 0..2 {
            let got = fetch(&cache, get_request("/a", &["Range: bytes=0-1"])).await;
            assert_eq!((got.status, got.body_text()), (200, "0123"));
        }
    });
}

#[test]
fn a_matching_condition_gets_304() {
    run(async {
        let backend = TestBackend::new(|_, _| respond_with_page(&PAGE, "x"));
        let cache = memory_cache(&backend);
        // Also during the fetch, which omits the client's condition.
        let first = fetch(&cache, get_request("/a", &["If-None-Match: W/\"a\""])).await;
        assert_eq!(first.status, 304);
        assert!(backend.received(0).field("if-none-match").is_none());
        assert!(
            first.cache_status().ends_with("; stored"),
            "{}",
            first.cache_status()
        );
        fetch_until_hit(&cache, "/a").await;
        for (line, status) in [
            ("If-None-Match: \"a\"", 304),
            ("If-None-Match: \"b\"", 200),
            ("If-None-Match: *", 304),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT", 304),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT", 200),
        ] {
            let got = fetch(&cache, get_request("/a", &[line])).await;
            assert_eq!(got.status, status, "{line}");
            assert_eq!(got.fields.contains("content-type"), status == 200, "{line}");
            assert_eq!(got.field("etag"), "\"a\"", "{line}");
        }
        assert_eq!(backend.request_count(), 1);
    });
}

#[test]
fn a_missed_range_is_served_from_the_fetched_whole() {
    run(async {
        let backend = TestBackend::new(|_, _| {
            respond_with(
                200,
                &PAGE,
                ChunkedBody::new_body(&["01234", "56789"], Some(10), None),
            )
        });
        let cache = memory_cache(&backend);
        let got = fetch(&cache, get_request("/a", &["Range: bytes=4-6"])).await;
        assert_eq!((got.status, got.body_text()), (206, "456"));
        assert!(backend.received(0).field("range").is_none());
        assert_eq!(
            fetch_until_hit(&cache, "/a").await.body_text(),
            "0123456789"
        );
    });
}

#[test]
fn a_range_of_a_partial_object_streams() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |_, _| {
            respond_with(
                200,
                &PAGE,
                ChunkedBody::new_body(&["01234", "56789"], Some(10), Some(&held)),
            )
        });
        let cache = memory_cache(&backend);
        let whole = handle_request(&cache, get_request("/a", &[])).await;
        wait_until("the body is held", || gate.waiting() == 1).await;
        let early = fetch(&cache, get_request("/a", &["Range: bytes=1-3"])).await;
        assert_eq!((early.status, early.body_text()), (206, "123"));
        gate.open();
        match whole {
            Ok(Reply::Response(response)) => {
                assert_eq!(collect_response(*response).await.body_text(), "0123456789");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(backend.request_count(), 1);
    });
}

#[test]
fn a_range_of_an_unstored_object_comes_from_the_backend() {
    run(async {
        let backend = TestBackend::new(|_, request| match request.head.field("range") {
            Some(_) => respond_with(
                206,
                &["Content-Range: bytes 1-2/10"],
                Body::Bytes("12".into()),
            ),
            None => respond_with_page(&["Cache-Control: no-store"], "0123456789"),
        });
        let cache = memory_cache(&backend);
        for _ in 0..2 {
            let got = fetch(&cache, get_request("/a", &["Range: bytes=1-2"])).await;
            assert_eq!((got.status, got.body_text()), (206, "12"));
        }
        // The first request fetched the whole.
        assert_eq!(backend.request_count(), 3);
    });
}

#[test]
fn a_part_far_into_a_body_is_not_waited_for() {
    run(async {
        let backend = TestBackend::new(|_, request| match request.head.field("range") {
            Some(_) => respond_with(206, &["Content-Range: bytes 9-9/10"], Body::Empty),
            None => respond_with_page(&PAGE, "0123456789"),
        });
        let cache = memory_cache(&backend);
        for line in ["Range: bytes=-1", "Range: bytes=9000000-"] {
            let got = fetch(&cache, get_request("/a", &[line])).await;
            assert_eq!(got.status, 206, "{line}");
            assert!(
                got.cache_status().contains("detail=range"),
                "{}",
                got.cache_status()
            );
        }
        // A stored response has no far part.
        fetch(&cache, get_request("/a", &[])).await;
        fetch_until_hit(&cache, "/a").await;
        let got = fetch(&cache, get_request("/a", &["Range: bytes=-1"])).await;
        assert_eq!(
            (got.status, got.body_text(), got.is_hit()),
            (206, "9", true)
        );
    });
}

#[test]
fn a_disk_hit_is_answered_alike() {
    let folder = std::env::temp_dir().join(format!("penstock-cache-parts-{}", std::process::id()));
    run(async {
        std::fs::create_dir_all(&folder).unwrap();
        let mut config = penstock_config::Cache::new("disk", Some(folder.clone()));
        config.max_memory = 0;
        let pool = penstock_runtime::blocking::Pool::new("test", 2, 100);
        let store = crate::Store::start(&config, pool);
        crate::testing::wait_until_working(&store).await;
        let backend = TestBackend::new(|_, _| respond_with_page(&PAGE, "0123456789"));
        let cache = cache_with_rules(&backend, &store, |_| ());
        fetch(&cache, get_request("/a", &[])).await;
        assert_eq!(
            fetch_until_hit(&cache, "/a").await.body_text(),
            "0123456789"
        );
        wait_until("it is on the disk", || cache.counters().stored.value() == 1).await;
        for (lines, status, body) in [
            (&[] as &[&str], 200, "0123456789"),
            (&["Range: bytes=2-4"], 206, "234"),
            (&["Range: bytes=-1"], 206, "9"),
            (&["If-None-Match: \"a\""], 304, ""),
        ] {
            let got = fetch(&cache, get_request("/a", lines)).await;
            assert_eq!((got.status, got.body_text()), (status, body), "{lines:?}");
            assert!(got.is_hit(), "{}", got.cache_status());
        }
        let got = fetch(&cache, get_request("/a", &["Range: bytes=0-1, 5-6"])).await;
        assert!(
            got.body_text().contains("bytes 5-6/10\r\n\r\n56\r\n"),
            "{}",
            got.body_text()
        );
        assert_eq!(backend.request_count(), 1);
        store.stop();
        // While its store is out of service, requests go to the back end.
        let got = fetch(&cache, get_request("/a", &[])).await;
        assert_eq!(got.cache_status(), "Penstock; fwd=miss; detail=store-out");
    });
    std::fs::remove_dir_all(&folder).unwrap();
}
