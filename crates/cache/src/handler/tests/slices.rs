//! Far parts of responses that are not stored: fetched, stored and sent in slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_exchange::{Body, FaultKind, Reply, Request};
use penstock_http::{ByteRange, RangeOutcome, select_range};

use crate::slices::SLICE_BYTES;
use crate::testing::{
    BackendAction, CLIENT_ADDRESS, ChunkedBody, Gate, TaskSet, TestBackend, cache_with_rules,
    fail_with, fetch, get_request, handle_request, head_of, memory_cache, memory_store, request_of,
    respond_with, run, wait_until, wait_until_working,
};
use crate::{CacheHandler, PurgeTarget, purge};

/// Length of the film: slightly more than ten slices.
const TOTAL: u64 = 10 * SLICE_BYTES + 123;

/// Start of the tenth slice (number 9), which is far enough.
const NINTH: u64 = 9 * SLICE_BYTES;

const FRESH: &str = "Cache-Control: max-age=1000";

/// `len` bytes from `start` of a film with this name: a repeated text whose length divides no
/// slice.
fn film(name: u64, start: u64, len: u64) -> String {
    let text: String = (0..4099)
        .map(|at: u64| char::from(b'a' + u8::try_from((at * at / 7 + name) % 26).unwrap()))
        .collect();
    let skip = usize::try_from(start % 4099).unwrap();
    let len = usize::try_from(len).unwrap();
    let mut film = text.repeat(len / 4099 + 2);
    film.drain(..skip);
    film.truncate(len);
    film
}

/// The response of a back end that has the film `name` and supports ranges.
fn plays(name: u64, request: &Request, lines: &[&str]) -> BackendAction {
    let tag = format!("ETag: \"{name}\"");
    let had = format!("\"{name}\"");
    let mut lines = lines.to_vec();
    lines.push(&tag);
    if request.head.field("if-none-match") == Some(had.as_bytes()) {
        return respond_with(304, &lines, Body::Empty);
    }
    match select_range(request.head.field("range"), None, TOTAL, b"", None) {
        RangeOutcome::Part(ByteRange { start, len }) => {
            let part = format!("Content-Range: bytes {start}-{}/{TOTAL}", start + len - 1);
            lines.push(&part);
            respond_with(206, &lines, Body::Bytes(film(name, start, len).into()))
        }
        RangeOutcome::Unsatisfiable => respond_with(416, &lines, Body::Empty),
        _ => respond_with(200, &lines, Body::Bytes(film(name, 0, TOTAL).into())),
    }
}

fn range(first: u64, last: u64) -> String {
    format!("Range: bytes={first}-{last}")
}

/// The ranges requested from the back end.
fn range_requests(backend: &TestBackend) -> Vec<String> {
    let ranges = (0..backend.request_count()).map(|number| {
        let asked = backend.received(number);
        let range = asked.field("range").unwrap_or_default();
        String::from_utf8_lossy(range).into_owned()
    });
    ranges.collect()
}

fn slice(number: u64) -> String {
    let start = number * SLICE_BYTES;
    format!("bytes={start}-{}", start + SLICE_BYTES - 1)
}

/// Repeats a request for a part until it is a hit: a new slice may still be written.
async fn fetch_stored(cache: &CacheHandler, line: &str) -> crate::testing::CollectedResponse {
    let mut last = None;
    for _ in 0..10_000 {
        let got = fetch(cache, get_request("/film", &[line])).await;
        if got.is_hit() {
            return got;
        }
        last = Some(got.cache_status());
        penstock_runtime::loops::yield_now().await;
    }
    panic!("never a hit: {last:?}")
}

#[test]
fn a_part_is_put_together_from_slices_that_are_asked_for_once() {
    run(async {
        let backend = TestBackend::new(|_, request| plays(1, request, &[FRESH]));
        let cache = memory_cache(&backend);
        let got = fetch(
            &cache,
            get_request("/film", &[&range(9_000_000, 9_000_099)]),
        )
        .await;
        assert_eq!(
            (got.status, got.body_text()),
            (206, &*film(1, 9_000_000, 100))
        );
        assert_eq!(
            got.field("content-range"),
            format!("bytes 9000000-9000099/{TOTAL}")
        );
        let told = got.cache_status();
        assert!(told.contains("fwd=uri-miss; fwd-status=206"), "{told}");
        assert!(told.ends_with("; stored"), "{told}");
        assert_eq!(range_requests(&backend), [slice(8)]);
        // Another part of the stored slice is a hit; one that continues into the next slice fetches
        // that one.
        let got = fetch_stored(&cache, &range(8_500_000, 8_500_009)).await;
        assert_eq!(
            (got.status, got.body_text()),
            (206, &*film(1, 8_500_000, 10))
        );
        let got = fetch(
            &cache,
            get_request("/film", &[&range(NINTH - 5, NINTH + 5)]),
        )
        .await;
        assert_eq!(
            (got.body_text(), got.length),
            (&*film(1, NINTH - 5, 11), Some(11))
        );
        assert_eq!(range_requests(&backend), [slice(8), slice(9)]);
        // An open range: the end is known by now.
        let line = format!("Range: bytes={NINTH}-");
        let got = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(got.body_text(), film(1, NINTH, TOTAL - NINTH));
        assert_eq!(range_requests(&backend), [slice(8), slice(9), slice(10)]);
        for (lines, status, body) in [
            (
                &["Range: bytes=-7"] as &[&str],
                206,
                &*film(1, TOTAL - 7, 7),
            ),
            (&[&line, "If-None-Match: \"1\""], 304, ""),
            (
                &["Range: bytes=9000000-9000001", "If-Range: \"1\""],
                206,
                &film(1, 9_000_000, 2),
            ),
            (&["Range: bytes=99999999-"], 416, "Range not satisfiable.\n"),
        ] {
            let got = fetch(&cache, get_request("/film", lines)).await;
            assert_eq!((got.status, got.body_text()), (status, body), "{lines:?}");
            assert!(
                got.is_hit() || status == 416,
                "{lines:?}: {}",
                got.cache_status()
            );
        }
        assert_eq!(backend.request_count(), 3);
        // A client with another film wants all of this one.
        let other = [&*range(9_000_000, 9_000_001), "If-Range: \"2\""];
        let got = fetch(&cache, get_request("/film", &other)).await;
        assert!(
            got.cache_status().contains("detail=range"),
            "{}",
            got.cache_status()
        );
        // The stored whole is preferred to slices.
        let whole = fetch(&cache, get_request("/film", &[])).await;
        assert_eq!(whole.length, Some(TOTAL));
        crate::testing::fetch_until_hit(&cache, "/film").await;
        let count = backend.request_count();
        let got = fetch(
            &cache,
            get_request("/film", &[&range(9_000_000, 9_000_001)]),
        )
        .await;
        assert!(
            got.is_hit() && got.body_text().len() == 2,
            "{}",
            got.cache_status()
        );
        assert_eq!(backend.request_count(), count);
    });
}

#[test]
fn one_slice_is_fetched_once_for_many() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend =
            TestBackend::new(move |_, request| plays(1, request, &[FRESH]).behind_gate(&held));
        let cache = memory_cache(&backend);
        let mut crowd = TaskSet::new();
        for number in 0..20 {
            let cache = Arc::clone(&cache);
            let line = range(9_000_000 + number, 9_000_010 + number);
            crowd.spawn(async move { fetch(&cache, get_request("/film", &[&line])).await });
        }
        wait_until("one asks", || gate.waiting() == 1).await;
        gate.open();
        for (number, got) in (0..).zip(crowd.join_all().await) {
            assert_eq!(
                (got.status, got.body_text()),
                (206, &*film(1, 9_000_000 + number, 11))
            );
        }
        assert_eq!(range_requests(&backend), [slice(8)]);
    });
}

#[test]
fn an_answer_is_of_one_content_or_cut() {
    run(async {
        let backend = TestBackend::new(|number, request| {
            // The film changes after the first slice.
            plays(if number == 0 { 1 } else { 2 }, request, &[FRESH])
        });
        let cache = memory_cache(&backend);
        let line = range(NINTH - 10, NINTH + 10);
        let got = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(got.body, Err(FaultKind::BackendProtocolError));
        // The next request gets only the new film.
        let got = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(
            (got.status, got.body_text()),
            (206, &*film(2, NINTH - 10, 21))
        );
        assert_eq!(got.field("etag"), "\"2\"");
    });
}

#[test]
fn purges_and_writes_take_slices_out() {
    run(async {
        let backend = TestBackend::new(|_, request| match request.head.method() {
            penstock_http::Method::Post => respond_with(204, &[], Body::Empty),
            _ => plays(1, request, &[FRESH, "Surrogate-Key: films"]),
        });
        let store = memory_store("m");
        let cache = cache_with_rules(&backend, &store, |rules| {
            rules.tags = vec!["surrogate-key".to_owned()];
        });
        let line = range(9_000_000, 9_000_001);
        let url = PurgeTarget::Url("http://a.test/film".to_owned());
        for what in [Some(url), Some(PurgeTarget::Tag("films".to_owned())), None] {
            fetch_stored(&cache, &line).await;
            let before = backend.request_count();
            match &what {
                Some(what) => {
                    purge(std::slice::from_ref(&store), what);
                }
                None => {
                    let post = request_of(head_of("POST", "/film", &[]), CLIENT_ADDRESS);
                    fetch(&cache, post).await;
                }
            }
            let asked = backend.request_count();
            assert_eq!(asked - before, usize::from(what.is_none()));
            let got = fetch(&cache, get_request("/film", &[&line])).await;
            assert!(!got.is_hit(), "{what:?}: {}", got.cache_status());
            assert_eq!(backend.request_count(), asked + 1, "{what:?}");
        }
    });
}

#[test]
fn a_stale_index_is_revalidated_and_keeps_its_slices() {
    run(async {
        let backend = TestBackend::new(|_, request| plays(1, request, &[FRESH, "Age: 1000"]));
        let store = memory_store("m");
        let cache = cache_with_rules(&backend, &store, |_| ());
        let line = range(9_000_000, 9_000_004);
        let first = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(first.body_text(), film(1, 9_000_000, 5));
        wait_until("index and slice are stored", || {
            store.snapshot().objects == 2
        })
        .await;
        let second = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(second.body_text(), film(1, 9_000_000, 5));
        assert!(
            second.cache_status().contains("fwd=stale; fwd-status=304"),
            "{}",
            second.cache_status()
        );
        assert_eq!(backend.request_count(), 2);
        let asked = backend.received(1);
        assert_eq!(asked.field("if-none-match"), Some(b"\"1\"" as &[u8]));
    });
}

#[test]
fn an_unsliceable_content_bypasses_after_one_try() {
    run(async {
        for lines in [
            &["Cache-Control: no-store", "ETag: \"1\""] as &[&str],
            &[FRESH, "ETag: W/\"1\""],
            &[FRESH],
            &[FRESH, "ETag: \"1\"", "Set-Cookie: a=b"],
        ] {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            let backend = TestBackend::new(move |_, request| {
                let asked = request.head.field("range");
                let asked = select_range(asked, None, TOTAL, b"", None);
                let RangeOutcome::Part(ByteRange { start, len }) = asked else {
                    panic!("no part was asked for");
                };
                let part = format!("Content-Range: bytes {start}-{}/{TOTAL}", start + len - 1);
                let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
                lines.push(&part);
                respond_with(206, &lines, Body::Bytes(film(1, start, len).into()))
            });
            let cache = memory_cache(&backend);
            let line = range(9_000_000, 9_000_004);
            for count in [2, 3, 4] {
                let got = fetch(&cache, get_request("/film", &[&line])).await;
                assert_eq!(
                    (got.status, got.body_text()),
                    (206, &*film(1, 9_000_000, 5))
                );
                assert!(
                    got.cache_status().contains("detail=range"),
                    "{}",
                    got.cache_status()
                );
                assert_eq!(backend.request_count(), count);
            }
        }
    });
}

#[test]
fn failures_are_errors_before_the_first_byte_and_cut_the_body_after() {
    run(async {
        let is_up = Arc::new(AtomicUsize::new(0));
        let up = Arc::clone(&is_up);
        let backend = TestBackend::new(move |_, request| match up.load(Ordering::SeqCst) {
            0 => fail_with(FaultKind::Unavailable),
            1 => plays(1, request, &[FRESH]),
            _ => {
                let part = format!(
                    "Content-Range: bytes {NINTH}-{}/{TOTAL}",
                    NINTH + SLICE_BYTES - 1
                );
                let cut = ChunkedBody::new_body(&["abc", "cut"], Some(SLICE_BYTES), None);
                respond_with(206, &[FRESH, "ETag: \"1\"", &part], cut)
            }
        });
        let cache = memory_cache(&backend);
        let line = range(NINTH - 10, NINTH + 10);
        match handle_request(&cache, get_request("/film", &[&line])).await {
            Err(fault) => assert_eq!(fault.kind, FaultKind::Unavailable),
            other => panic!("{other:?}"),
        }
        is_up.store(1, Ordering::SeqCst);
        fetch_stored(&cache, &range(NINTH - 10, NINTH - 1)).await;
        is_up.store(2, Ordering::SeqCst);
        let got = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(got.body, Err(FaultKind::BackendDisconnected));
        // A truncated slice is not stored.
        is_up.store(1, Ordering::SeqCst);
        let got = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(got.body_text(), film(1, NINTH - 10, 21));
    });
}

#[test]
fn a_stale_index_is_served_on_error_if_allowed() {
    run(async {
        for (word, is_sent) in [("stale-if-error=100", true), ("must-revalidate", false)] {
            let is_down = Arc::new(AtomicUsize::new(0));
            let down = Arc::clone(&is_down);
            let backend = TestBackend::new(move |_, request| {
                let fresh = format!("Cache-Control: max-age=1000, {word}");
                match down.load(Ordering::SeqCst) {
                    0 => plays(1, request, &[&fresh, "Age: 1000"]),
                    1 => fail_with(FaultKind::Unavailable),
                    _ => respond_with(503, &[], Body::Empty),
                }
            });
            let store = memory_store("m");
            let cache = cache_with_rules(&backend, &store, |_| ());
            let line = range(9_000_000, 9_000_004);
            fetch(&cache, get_request("/film", &[&line])).await;
            wait_until("index and slice are stored", || {
                store.snapshot().objects == 2
            })
            .await;
            is_down.store(1, Ordering::SeqCst);
            let answered = handle_request(&cache, get_request("/film", &[&line])).await;
            assert_eq!(answered.is_ok(), is_sent, "{word}");
            is_down.store(2, Ordering::SeqCst);
            let got = fetch(&cache, get_request("/film", &[&line])).await;
            if is_sent {
                assert_eq!(
                    (got.status, got.body_text()),
                    (206, &*film(1, 9_000_000, 5))
                );
                assert!(
                    got.cache_status().contains("detail=stale-if-error"),
                    "{}",
                    got.cache_status()
                );
            } else {
                assert_eq!(got.status, 503);
            }
        }
    });
}

#[test]
fn the_current_backend_answer_counts_before_the_first_byte() {
    run(async {
        for (status, lines) in [
            (404, &[] as &[&str]),
            (403, &[]),
            (416, &["Content-Range: bytes */5"]),
            (200, &[FRESH, "ETag: \"3\""]),
            (
                206,
                &[
                    FRESH,
                    "ETag: W/\"1\"",
                    "Content-Range: bytes 9437184-9437186/10485883",
                ],
            ),
        ] {
            let is_gone = Arc::new(AtomicUsize::new(0));
            let gone = Arc::clone(&is_gone);
            let backend = TestBackend::new(move |_, request| match gone.load(Ordering::SeqCst) {
                0 => plays(1, request, &[FRESH]),
                _ => respond_with(status, lines, Body::Bytes("new".into())),
            });
            let cache = memory_cache(&backend);
            fetch_stored(&cache, &range(9_000_000, 9_000_004)).await;
            is_gone.store(1, Ordering::SeqCst);
            // The index alone does not answer for a missing slice.
            let got = fetch(&cache, get_request("/film", &[&range(NINTH, NINTH + 2)])).await;
            assert_eq!((got.status, got.body_text()), (status, "new"));
            // The stored slices are not sent any more.
            let got = fetch(
                &cache,
                get_request("/film", &[&range(9_000_000, 9_000_004)]),
            )
            .await;
            assert_eq!((got.status, got.body_text()), (status, "new"), "{status}");
        }
    });
}

#[test]
fn slices_are_not_sent_stale_once_their_content_was_withdrawn() {
    run(async {
        let turn = Arc::new(AtomicUsize::new(0));
        let now = Arc::clone(&turn);
        let backend = TestBackend::new(move |_, request| {
            let old = [
                "Cache-Control: max-age=1000, stale-if-error=1000",
                "Age: 1000",
            ];
            match now.load(Ordering::SeqCst) {
                0 => plays(1, request, &old),
                1 => respond_with(404, &["Cache-Control: no-store"], Body::Empty),
                _ => fail_with(FaultKind::Unavailable),
            }
        });
        let store = memory_store("m");
        let cache = cache_with_rules(&backend, &store, |_| ());
        let line = range(9_000_000, 9_000_004);
        fetch(&cache, get_request("/film", &[&line])).await;
        wait_until("index and slice are stored", || {
            store.snapshot().objects == 2
        })
        .await;
        turn.store(1, Ordering::SeqCst);
        assert_eq!(
            fetch(&cache, get_request("/film", &[&line])).await.status,
            404
        );
        turn.store(2, Ordering::SeqCst);
        assert!(
            handle_request(&cache, get_request("/film", &[&line]))
                .await
                .is_err()
        );
    });
}

#[test]
fn slices_that_come_at_the_same_time_are_of_one_content() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend =
            TestBackend::new(move |_, request| plays(1, request, &[FRESH]).behind_gate(&held));
        let cache = memory_cache(&backend);
        let mut crowd = TaskSet::new();
        for number in [8, 9] {
            let cache = Arc::clone(&cache);
            let start = number * SLICE_BYTES;
            let line = range(start, start + 9);
            crowd.spawn(async move { fetch(&cache, get_request("/film", &[&line])).await });
        }
        wait_until("both ask", || gate.waiting() == 2).await;
        gate.open();
        for (number, got) in (8..).zip(crowd.join_all().await) {
            assert_eq!(got.body_text(), film(1, number * SLICE_BYTES, 10));
        }
        let got = fetch_stored(&cache, &range(NINTH - 5, NINTH + 5)).await;
        assert_eq!(got.body_text(), film(1, NINTH - 5, 11));
        assert_eq!(backend.request_count(), 2);
    });
}

#[test]
fn a_whole_object_stored_meanwhile_stays() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |_, request| match request.head.field("range") {
            Some(_) => plays(1, request, &[FRESH]).behind_gate(&held),
            None => plays(1, request, &[FRESH]),
        });
        let cache = memory_cache(&backend);
        let of_part = Arc::clone(&cache);
        let mut crowd = TaskSet::new();
        crowd.spawn(async move {
            let line = range(9_000_000, 9_000_004);
            fetch(&of_part, get_request("/film", &[&line])).await
        });
        wait_until("the part is asked for", || gate.waiting() == 1).await;
        fetch(&cache, get_request("/film", &[])).await;
        crate::testing::fetch_until_hit(&cache, "/film").await;
        wait_until("the whole is stored", || {
            cache.counters().stored.value() == 1
        })
        .await;
        gate.open();
        let got = crowd.join_next().await.unwrap().unwrap();
        assert_eq!(
            (got.body_text(), got.is_hit()),
            (&*film(1, 9_000_000, 5), true)
        );
        assert!(fetch(&cache, get_request("/film", &[])).await.is_hit());
        assert_eq!(backend.request_count(), 2);
    });
}

#[test]
fn slices_match_the_newer_content_in_progress() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, request| match request.head.field("range") {
            Some(_) => plays(if number == 0 { 1 } else { 2 }, request, &[FRESH]),
            None => {
                let body = ChunkedBody::new_body(&["abc", "def"], Some(TOTAL), Some(&held));
                respond_with(200, &[FRESH, "ETag: \"2\""], body)
            }
        });
        let cache = memory_cache(&backend);
        let line = range(9_000_000, 9_000_004);
        fetch_stored(&cache, &line).await;
        let whole =
            handle_request(&cache, get_request("/film", &["Cache-Control: no-cache"])).await;
        wait_until("the new one is on its way", || gate.waiting() == 1).await;
        let got = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(
            (got.field("etag"), got.body_text()),
            ("\"2\"".to_owned(), &*film(2, 9_000_000, 5))
        );
        // The old slice, the whole, and the new slice.
        assert_eq!(backend.request_count(), 3);
        drop(whole);
        gate.open();
    });
}

#[test]
fn a_whole_that_was_on_its_way_stays_when_a_slice_comes_behind_its_end() {
    run(async {
        let (of_whole, of_part) = (Gate::new(), Gate::new());
        let gates = (Arc::clone(&of_whole), Arc::clone(&of_part));
        let backend = TestBackend::new(move |_, request| match request.head.field("range") {
            Some(_) => plays(1, request, &[FRESH]).behind_gate(&gates.1),
            None => {
                let pieces = [film(1, 0, 1000), film(1, 1000, TOTAL - 1000)];
                let pieces = [&*pieces[0], &*pieces[1]];
                let body = ChunkedBody::new_body(&pieces, Some(TOTAL), Some(&gates.0));
                respond_with(200, &[FRESH, "ETag: \"1\""], body)
            }
        });
        let cache = memory_cache(&backend);
        let mut crowd = TaskSet::new();
        for line in [None, Some(range(9_000_000, 9_000_004))] {
            let cache = Arc::clone(&cache);
            let line: Vec<String> = line.into_iter().collect();
            crowd.spawn(async move {
                let lines: Vec<&str> = line.iter().map(String::as_str).collect();
                fetch(&cache, get_request("/film", &lines)).await
            });
            let is_at = || of_whole.waiting() == 1;
            wait_until("the whole is on its way", is_at).await;
        }
        wait_until("the part is asked for", || of_part.waiting() == 1).await;
        of_whole.open();
        let whole = crowd.join_next().await.unwrap().unwrap();
        assert_eq!(whole.length, Some(TOTAL));
        wait_until("the whole is stored", || {
            cache.counters().stored.value() == 1
        })
        .await;
        of_part.open();
        let part = crowd.join_next().await.unwrap().unwrap();
        assert_eq!(part.body_text(), film(1, 9_000_000, 5));
        assert!(part.is_hit(), "{}", part.cache_status());
        assert!(fetch(&cache, get_request("/film", &[])).await.is_hit());
        assert_eq!(backend.request_count(), 2);
    });
}

#[test]
fn a_personal_response_keeps_the_slices_of_others() {
    run(async {
        let backend = TestBackend::new(|_, request| match request.head.field("cookie") {
            Some(b"new") => plays(1, request, &[FRESH, "Set-Cookie: a=b"]),
            Some(b"stranger") => respond_with(401, &[], Body::Empty),
            Some(_) => respond_with(302, &["Location: /login"], Body::Empty),
            None => plays(1, request, &[FRESH]),
        });
        let cache = memory_cache(&backend);
        let line = range(9_000_000, 9_000_004);
        fetch_stored(&cache, &line).await;
        for (cookie, status) in [("new", 206), ("stranger", 401), ("old", 302)] {
            let cookie = format!("Cookie: {cookie}");
            let got = fetch(
                &cache,
                get_request("/film", &[&range(NINTH, NINTH + 4), &cookie]),
            )
            .await;
            assert_eq!(got.status, status);
            let count = backend.request_count();
            assert!(fetch(&cache, get_request("/film", &[&line])).await.is_hit());
            assert_eq!(backend.request_count(), count);
        }
    });
}

#[test]
fn a_stale_while_revalidate_index_is_served_at_once() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, request| {
            let lines = [
                "Cache-Control: max-age=1000, stale-while-revalidate=1000",
                "Age: 1000",
            ];
            let act = plays(1, request, &lines);
            if number == 0 {
                act
            } else {
                act.behind_gate(&held)
            }
        });
        let store = memory_store("m");
        let cache = cache_with_rules(&backend, &store, |_| ());
        let line = range(9_000_000, 9_000_004);
        fetch(&cache, get_request("/film", &[&line])).await;
        wait_until("index and slice are stored", || {
            store.snapshot().objects == 2
        })
        .await;
        for _ in 0..3 {
            let got = fetch(&cache, get_request("/film", &[&line])).await;
            assert_eq!(got.body_text(), film(1, 9_000_000, 5));
            assert!(got.is_hit(), "{}", got.cache_status());
        }
        wait_until("one asks", || gate.waiting() == 1).await;
        assert_eq!(backend.request_count(), 2);
        assert!(backend.received(1).field("if-none-match").is_some());
        gate.open();
    });
}

#[test]
fn slices_outlive_a_restart_and_readers_outlive_their_store() {
    let folder = std::env::temp_dir().join(format!("penstock-cache-slices-{}", std::process::id()));
    run(async {
        std::fs::create_dir_all(&folder).unwrap();
        let config = penstock_config::Cache::new("disk", Some(folder.clone()));
        let start = || {
            let pool = penstock_runtime::blocking::Pool::new("test", 2, 100);
            crate::Store::start(&config, pool)
        };
        let backend = TestBackend::new(|_, request| plays(1, request, &[FRESH]));
        let line = range(9_000_000, 9_000_099);
        let store = start();
        wait_until_working(&store).await;
        let cache = cache_with_rules(&backend, &store, |_| ());
        fetch(&cache, get_request("/film", &[&line])).await;
        wait_until("index and slice are on the disk", || {
            store.snapshot().counters.stores == 2
        })
        .await;
        store.stop();
        drop((cache, store));
        let store = start();
        wait_until_working(&store).await;
        let cache = cache_with_rules(&backend, &store, |_| ());
        let got = fetch(&cache, get_request("/film", &[&line])).await;
        assert_eq!(
            (got.body_text(), got.is_hit()),
            (&*film(1, 9_000_000, 100), true)
        );
        assert_eq!(backend.request_count(), 1);
        // The store fails during the response: the rest comes directly from the back end.
        let line = range(9_000_000, NINTH + SLICE_BYTES);
        let Ok(Reply::Response(response)) =
            handle_request(&cache, get_request("/film", &[&line])).await
        else {
            panic!("a response");
        };
        store.stop();
        let got = crate::testing::collect_response(*response).await;
        assert_eq!(
            got.body_text(),
            film(1, 9_000_000, NINTH + SLICE_BYTES - 9_000_000 + 1)
        );
        let straight = format!("bytes={NINTH}-{}", NINTH + SLICE_BYTES);
        assert_eq!(range_requests(&backend).last(), Some(&straight));
    });
    std::fs::remove_dir_all(&folder).unwrap();
}
