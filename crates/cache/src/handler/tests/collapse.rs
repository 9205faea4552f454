//! Coalesced fetches: one request to the back end for many, without needless waiting.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use penstock_exchange::{Body, FaultKind, Reply};
use penstock_runtime::loops;

use super::FRESH;
use crate::CacheHandler;
use crate::testing::{
    ChunkedBody, CollectedResponse, Gate, TaskSet, TestBackend, cache_with_rules, collect_response,
    fail_with, fetch, fetch_until_hit, get_request, handle_request, memory_cache, memory_store,
    respond_with, respond_with_page, run, wait_until,
};

/// Starts `count` requests at the same time.
fn crowd(
    cache: &Arc<CacheHandler>,
    count: usize,
    lines: &'static [&'static str],
) -> TaskSet<CollectedResponse> {
    let mut crowd = TaskSet::new();
    for _ in 0..count {
        let cache = Arc::clone(cache);
        crowd.spawn(async move { fetch(&cache, get_request("/a", lines)).await });
    }
    crowd
}

/// Lets all tasks run as far as they can now.
pub(super) async fn let_tasks_run() {
    for _ in 0..100 {
        loops::yield_now().await;
    }
}

#[test]
fn a_thousand_misses_at_once_are_one_request() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend =
            TestBackend::new(move |_, _| respond_with_page(&[FRESH], "hello").behind_gate(&held));
        let cache = memory_cache(&backend);
        let crowd = crowd(&cache, 1000, &[]);
        wait_until("the back end is asked", || gate.waiting() == 1).await;
        let_tasks_run().await;
        gate.open();
        let got = crowd.join_all().await;
        assert_eq!(got.len(), 1000);
        assert!(got.iter().all(|got| got.body_text() == "hello"));
        assert_eq!(backend.request_count(), 1);
        let collapsed = got
            .iter()
            .filter(|got| got.cache_status().contains("collapsed"));
        assert_eq!(collapsed.count(), 999);
    });
}

#[test]
fn waiters_stream_the_partial_body() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |_, _| {
            respond_with(
                200,
                &[FRESH],
                ChunkedBody::new_body(&["ab", "cd"], Some(4), Some(&held)),
            )
        });
        let cache = memory_cache(&backend);
        let mut began = Vec::new();
        for _ in 0..3 {
            match handle_request(&cache, get_request("/a", &[])).await {
                Ok(Reply::Response(response)) => began.push(response),
                other => panic!("{other:?}"),
            }
        }
        wait_until("the body is held", || gate.waiting() == 1).await;
        gate.open();
        for response in began {
            assert_eq!(response.body.length(), Some(4));
            assert_eq!(collect_response(*response).await.body_text(), "abcd");
        }
        assert_eq!(backend.request_count(), 1);
    });
}

#[test]
fn an_uncacheable_response_is_not_waited_for() {
    run(async {
        let gates = [Gate::new(), Gate::new()];
        let held = gates.clone();
        let backend = TestBackend::new(move |number, _| {
            respond_with_page(&["Cache-Control: no-store"], "x")
                .behind_gate(&held[usize::from(number > 0)])
        });
        let cache = memory_cache(&backend);
        let first = crowd(&cache, 5, &[]);
        wait_until("the back end is asked", || gates[0].waiting() == 1).await;
        let_tasks_run().await;
        gates[0].open();
        // All waiters go to the back end at once, not one after another.
        wait_until("all are asked", || gates[1].waiting() == 4).await;
        // Later requests do not wait at all.
        let later = crowd(&cache, 5, &[]);
        wait_until("all later ones are asked", || gates[1].waiting() == 9).await;
        gates[1].open();
        first.join_all().await;
        later.join_all().await;
        assert_eq!(backend.request_count(), 10);
    });
}

#[test]
fn an_uncacheable_key_is_coalesced_again_once_storable() {
    run(async {
        let backend = TestBackend::new(|number, _| match number {
            0 => respond_with_page(&["Cache-Control: no-store"], "x"),
            _ => respond_with_page(&[FRESH], "x"),
        });
        let cache = memory_cache(&backend);
        for (told, count) in [
            ("detail=no-store", 1),
            ("detail=not-stored-lately", 2),
            ("stored", 3),
        ] {
            let got = fetch(&cache, get_request("/a", &[])).await;
            assert!(
                got.cache_status().ends_with(told),
                "{told}: {}",
                got.cache_status()
            );
            assert_eq!(backend.request_count(), count);
        }
        assert!(fetch_until_hit(&cache, "/a").await.is_hit());
    });
}

#[test]
fn no_request_waits_longer_than_the_lock_timeout() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, _| match number {
            0 => respond_with_page(&[FRESH], "first").behind_gate(&held),
            _ => respond_with_page(&[FRESH], "own"),
        });
        let cache = cache_with_rules(&backend, &memory_store("m"), |rules| {
            rules.lock_timeout = Duration::from_millis(20);
        });
        let first = crowd(&cache, 1, &[]);
        wait_until("the back end is asked", || gate.waiting() == 1).await;
        let second = fetch(&cache, get_request("/a", &[])).await;
        assert_eq!(second.body_text(), "own");
        assert!(
            second.cache_status().contains("lock-timeout"),
            "{}",
            second.cache_status()
        );
        gate.open();
        assert_eq!(first.join_all().await[0].body_text(), "first");
        // The second request's response is not stored, the first one's is.
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "first");
    });
}

#[test]
fn a_fetch_without_waiters_is_abandoned() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend =
            TestBackend::new(move |_, _| respond_with_page(&[FRESH], "x").behind_gate(&held));
        let cache = memory_cache(&backend);
        let mut alone = crowd(&cache, 1, &[]);
        wait_until("the back end is asked", || gate.waiting() == 1).await;
        alone.abort_all();
        wait_until("it is not asked any more", || gate.waiting() == 0).await;
        // A new request starts a new fetch.
        let next = crowd(&cache, 1, &[]);
        wait_until("the back end is asked again", || {
            backend.request_count() == 2
        })
        .await;
        gate.open();
        assert_eq!(next.join_all().await[0].body_text(), "x");
    });
}

/// Acts like `edge`: marks the client as disconnected, then polls the reply once more.
async fn marked_gone(leads: bool) {
    let gate = Gate::new();
    let held = Arc::clone(&gate);
    let backend = TestBackend::new(move |_, _| respond_with_page(&[FRESH], "x").behind_gate(&held));
    let cache = memory_cache(&backend);
    let others = crowd(&cache, usize::from(!leads), &[]);
    wait_until("the others are there", || gate.waiting() == others.len()).await;
    let request = get_request("/a", &[]);
    let client = Arc::clone(&request.client_state);
    let mut work = std::pin::pin!(handle_request(&cache, request));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(work.as_mut().poll(&mut cx).is_pending());
    wait_until("the back end is asked", || gate.waiting() == 1).await;
    client.mark_disconnected();
    let Poll::Ready(answered) = work.as_mut().poll(&mut cx) else {
        panic!("waits for what nobody gets")
    };
    assert_eq!(answered.unwrap_err().kind, FaultKind::ClientDisconnected);
    let_tasks_run().await;
    assert_eq!(gate.waiting(), others.len(), "leads: {leads}");
    gate.open();
    assert!(
        others
            .join_all()
            .await
            .iter()
            .all(|got| got.body_text() == "x")
    );
}

#[test]
fn a_disconnected_client_stops_waiting() {
    run(async {
        marked_gone(true).await;
        marked_gone(false).await;
    });
}

#[test]
fn a_leaving_leader_does_not_end_the_fetch_of_waiters() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend =
            TestBackend::new(move |_, _| respond_with_page(&[FRESH], "x").behind_gate(&held));
        let cache = memory_cache(&backend);
        let mut leader = crowd(&cache, 1, &[]);
        wait_until("the back end is asked", || gate.waiting() == 1).await;
        let others = crowd(&cache, 3, &[]);
        let_tasks_run().await;
        leader.abort_all();
        while leader.join_next().await.is_some() {}
        let_tasks_run().await;
        assert_eq!(gate.waiting(), 1);
        gate.open();
        assert!(
            others
                .join_all()
                .await
                .iter()
                .all(|got| got.body_text() == "x")
        );
        assert_eq!(backend.request_count(), 1);
    });
}

#[test]
fn a_response_that_is_stored_is_read_to_its_end_without_its_client() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |_, _| {
            respond_with(
                200,
                &[FRESH],
                ChunkedBody::new_body(&["ab", "cd"], None, Some(&held)),
            )
        });
        let cache = memory_cache(&backend);
        drop(handle_request(&cache, get_request("/a", &[])).await);
        wait_until("the body is held", || gate.waiting() == 1).await;
        gate.open();
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "abcd");
        assert_eq!(backend.request_count(), 1);
    });
}

#[test]
fn a_failure_before_anything_was_sent_is_shared() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend =
            TestBackend::new(move |_, _| fail_with(FaultKind::ConnectFailed).behind_gate(&held));
        let cache = memory_cache(&backend);
        let mut crowd = TaskSet::new();
        for _ in 0..5 {
            let cache = Arc::clone(&cache);
            crowd.spawn(async move { handle_request(&cache, get_request("/a", &[])).await });
        }
        wait_until("the back end is asked", || gate.waiting() == 1).await;
        let_tasks_run().await;
        gate.open();
        for answered in crowd.join_all().await {
            assert_eq!(answered.unwrap_err().kind, FaultKind::ConnectFailed);
        }
        assert_eq!(backend.request_count(), 1);
    });
}

/// The leader's request may have provoked the failure, for example by a field that makes the back
/// end hang up.
#[test]
fn a_failure_of_the_leader_is_not_shared() {
    for kind in [
        FaultKind::BackendDisconnected,
        FaultKind::BackendProtocolError,
        FaultKind::BackendTimeout,
        FaultKind::AppRaised,
        FaultKind::AppProtocolError,
        FaultKind::WorkerDied,
        FaultKind::AppTimeout,
        FaultKind::HeadTooLarge,
    ] {
        run(async {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let backend = TestBackend::new(move |number, _| match number {
                0 => fail_with(kind).behind_gate(&held),
                _ => respond_with_page(&[FRESH], "x"),
            });
            let cache = memory_cache(&backend);
            let mut leads = TaskSet::new();
            let led = Arc::clone(&cache);
            leads.spawn(async move { handle_request(&led, get_request("/a", &["X-A: a"])).await });
            wait_until("the back end is asked", || gate.waiting() == 1).await;
            let others = crowd(&cache, 5, &[]);
            let_tasks_run().await;
            gate.open();
            for answered in leads.join_all().await {
                assert_eq!(answered.unwrap_err().kind, kind);
            }
            for got in others.join_all().await {
                assert_eq!((got.status, got.body_text()), (200, "x"), "{kind:?}");
            }
            // One of the waiters led the next fetch.
            assert_eq!(backend.request_count(), 2, "{kind:?}");
        });
    }
}

/// Opens each gate when its request has arrived. Returns the maximum of concurrent requests.
async fn open_in_turn(gates: &Mutex<Vec<Arc<Gate>>>, count: usize) -> usize {
    let mut most = 0;
    for number in 0..count {
        wait_until("the next request", || gates.lock().unwrap().len() > number).await;
        let_tasks_run().await;
        let gates = gates.lock().unwrap();
        most = most.max(gates.len() - number);
        gates[number].open();
    }
    most
}

#[test]
fn many_failures_in_turn_are_one_request_at_a_time() {
    const FAILURES: usize = 12;
    // The second one uses slices.
    for part in [None, Some("Range: bytes=9437184-9437192")] {
        run(async {
            let gates = Arc::new(Mutex::new(Vec::new()));
            let under_way = Arc::clone(&gates);
            let backend = TestBackend::new(move |number, _| {
                let gate = Gate::new();
                under_way.lock().unwrap().push(Arc::clone(&gate));
                let range = "Content-Range: bytes 9437184-9437192/9437193";
                let body = Body::Bytes("some text".into());
                let act = match part {
                    _ if number < FAILURES => fail_with(FaultKind::WorkerDied),
                    None => respond_with(200, &[FRESH], body),
                    Some(_) => respond_with(206, &[FRESH, "ETag: \"a\"", range], body),
                };
                act.behind_gate(&gate)
            });
            let cache = cache_with_rules(&backend, &memory_store("m"), |rules| {
                rules.lock_timeout = Duration::from_secs(60);
            });
            let mut crowd = TaskSet::new();
            for _ in 0..200 {
                let cache = Arc::clone(&cache);
                let lines: Vec<_> = part.into_iter().collect();
                crowd.spawn(async move { handle_request(&cache, get_request("/a", &lines)).await });
            }
            let turns = open_in_turn(&gates, FAILURES + 1);
            let (answered, most) = tokio::join!(crowd.join_all(), turns);
            let mut failed = 0;
            for answered in answered {
                match answered {
                    Ok(Reply::Response(response)) => {
                        assert_eq!(
                            collect_response(*response).await.body_text(),
                            "some text",
                            "{part:?}"
                        );
                    }
                    Ok(other) => panic!("{other:?}"),
                    Err(fault) => {
                        assert_eq!(fault.kind, FaultKind::WorkerDied);
                        failed += 1;
                    }
                }
            }
            // Each failure reaches only the request that led it.
            assert_eq!((failed, most), (FAILURES, 1), "{part:?}");
            assert_eq!(backend.request_count(), FAILURES + 1, "{part:?}");
        });
    }
}

#[test]
fn known_variants_are_fetched_separately() {
    run(async {
        let backend = TestBackend::new(|_, request| {
            let coding = request.head.field("accept-encoding").unwrap_or(b"none");
            let coding = String::from_utf8_lossy(coding).into_owned();
            respond_with_page(&[FRESH, "Vary: Accept-Encoding"], &coding)
        });
        let cache = memory_cache(&backend);
        let codings: [&'static [&'static str]; 3] =
            [&["Accept-Encoding: gzip"], &["Accept-Encoding: br"], &[]];
        let all = codings.map(|lines| crowd(&cache, 10, lines));
        for (crowd, coding) in all.into_iter().zip(["gzip", "br", "none"]) {
            assert!(
                crowd
                    .join_all()
                    .await
                    .iter()
                    .all(|got| got.body_text() == coding)
            );
        }
        assert_eq!(backend.request_count(), 3);
        let again = fetch(&cache, get_request("/a", &["Accept-Encoding: GZIP"])).await;
        assert!(again.is_hit(), "{}", again.cache_status());
    });
}

#[test]
fn the_last_vary_decides() {
    run(async {
        let backend = TestBackend::new(|number, _| match number {
            0 => respond_with_page(&[FRESH, "Vary: Accept-Language"], "de"),
            1 => respond_with_page(&[FRESH], "all"),
            _ => respond_with_page(&[FRESH, "Vary: Accept"], "json"),
        });
        let cache = memory_cache(&backend);
        let ask = |lines| fetch(&cache, get_request("/a", lines));
        let de: &[&str] = &["Accept-Language: de"];
        assert_eq!(ask(de).await.body_text(), "de");
        assert_eq!(ask(de).await.body_text(), "de");
        assert_eq!(ask(&["Accept-Language: at"]).await.body_text(), "all");
        assert_eq!(ask(de).await.body_text(), "all");
        let reload = ask(&["Cache-Control: no-cache", "Accept: json"]).await;
        assert_eq!(reload.body_text(), "json");
        assert_eq!(backend.request_count(), 3);
        assert!(!ask(de).await.is_hit());
    });
}

#[test]
fn a_response_without_a_body_is_shared_too() {
    run(async {
        let backend = TestBackend::new(|_, _| respond_with(204, &[FRESH], Body::Empty));
        let cache = memory_cache(&backend);
        let got = crowd(&cache, 10, &[]).join_all().await;
        assert!(got.iter().all(|got| got.status == 204));
        assert_eq!(backend.request_count(), 1);
    });
}

#[test]
fn a_body_that_is_too_large_reaches_its_clients_and_is_remembered_as_such() {
    run(async {
        let pieces: Vec<String> = (0..64).map(|at| format!("{at:02}").repeat(512)).collect();
        let whole = pieces.concat();
        let sent = pieces.clone();
        let backend = TestBackend::new(move |_, _| {
            let pieces: Vec<&str> = sent.iter().map(String::as_str).collect();
            respond_with(200, &[FRESH], ChunkedBody::new_body(&pieces, None, None))
        });
        let mut config = penstock_config::Cache::new("m", None);
        config.max_object_size = 10_000;
        let pool = penstock_runtime::blocking::Pool::new("test", 1, 10);
        let store = crate::Store::start(&config, pool);
        let cache = cache_with_rules(&backend, &store, |_| ());
        assert_eq!(
            fetch(&cache, get_request("/a", &[])).await.body_text(),
            whole
        );
        let again = fetch(&cache, get_request("/a", &[])).await;
        assert!(
            again.cache_status().ends_with("not-stored-lately"),
            "{}",
            again.cache_status()
        );
        assert_eq!(
            (again.body_text(), backend.request_count()),
            (whole.as_str(), 2)
        );
    });
}

#[test]
fn a_redirect_to_a_file_is_not_waited_for_again() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, _| {
            let redirect = penstock_exchange::InternalRedirect {
                target: "/file".to_owned(),
                handler: None,
                fields: penstock_http::FieldBlock::new(),
                max_rate: None,
                timing: Default::default(),
            };
            let act = crate::testing::BackendAction::Now(Ok(Reply::Redirect(Box::new(redirect))));
            if number == 0 {
                act
            } else {
                act.behind_gate(&held)
            }
        });
        let cache = memory_cache(&backend);
        let _ = handle_request(&cache, get_request("/a", &[])).await;
        let mut all = TaskSet::new();
        for _ in 0..3 {
            let cache = Arc::clone(&cache);
            all.spawn(async move { handle_request(&cache, get_request("/a", &[])).await.is_ok() });
        }
        wait_until("all are asked", || gate.waiting() == 3).await;
        gate.open();
        assert!(all.join_all().await.into_iter().all(|is_ok| is_ok));
    });
}
