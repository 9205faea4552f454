//! The cache in front of scripted handlers: storing, sharing and bypassing.
//!
//! `tests/` covers coalesced fetches (`collapse`), stale responses (`stale`), partial responses
//! (`parts`, `slices`), and keys and poisoning (`keys`). The rules themselves are tested in `http`.

mod cache_control_fields;
mod collapse;
mod concurrent_changes;
mod keys;
mod parts;
mod slices;
mod stale;

use std::sync::Arc;

use penstock_exchange::{
    Body, FaultKind, Handler, InlineBody, InternalRedirect, Mount, Reply, RequestView,
};
use penstock_http::FieldBlock;
use penstock_runtime::{clock, loops};

use self::collapse::let_tasks_run;
use crate::testing::{
    CLIENT_ADDRESS, ChunkedBody, Gate, PROXY_ADDRESS, TestBackend, cache_with_rules, fail_with,
    fetch, fetch_until_hit, get_request, handle_request, head, head_of, memory_cache, memory_store,
    request_of, respond_with, respond_with_page, run, wait_until,
};
use crate::{PurgeTarget, purge};

const FRESH: &str = "Cache-Control: max-age=1000";

#[test]
fn a_storable_response_is_fetched_once_and_sent_with_its_age() {
    run(async {
        let backend =
            TestBackend::new(|_, _| respond_with_page(&[FRESH, "Age: 7", "Server: x"], "hello"));
        let cache = memory_cache(&backend);
        let first = fetch(&cache, get_request("/a", &[])).await;
        assert_eq!((first.status, first.body_text()), (200, "hello"));
        let told = first.cache_status();
        let begins = told.starts_with("Penstock; fwd=uri-miss; fwd-status=200; ttl=99");
        assert!(begins && told.ends_with("; stored"), "{told}");
        let second = fetch_until_hit(&cache, "/a").await;
        assert_eq!((second.status, second.body_text()), (200, "hello"));
        assert!(second.cache_status().starts_with("Penstock; hit; ttl=99"));
        assert_eq!(second.field("age"), "7");
        assert_eq!(second.field("server"), "x");
        assert_eq!(backend.request_count(), 1);
        let counts = cache.counters();
        assert_eq!((counts.misses.value(), counts.hits.value()), (1, 1));
        assert_eq!(counts.served_bytes.value(), 5);
    });
}

#[test]
fn a_private_response_reaches_only_its_client() {
    run(async {
        for lines in [
            &["Cache-Control: private, max-age=100"] as &[&str],
            &["Cache-Control: no-store"],
            &[FRESH, "Set-Cookie: session=1"],
            &[FRESH, "Vary: *"],
            &[FRESH, "X-Accel-Expires: 0"],
            &[FRESH, "Content-Type: text/event-stream; charset=utf-8"],
            &[],
        ] {
            let lines = lines.to_vec();
            let told = lines.clone();
            let backend =
                TestBackend::new(move |number, _| respond_with_page(&told, &number.to_string()));
            let cache = memory_cache(&backend);
            for number in 0..3 {
                let got = fetch(&cache, get_request("/a", &[])).await;
                assert_eq!(got.body_text(), number.to_string(), "{lines:?}");
                assert!(
                    !got.cache_status().contains("stored;") && !got.is_hit(),
                    "{lines:?}"
                );
            }
        }
    });
}

#[test]
fn errors_and_refusals_are_not_stored_unless_they_say_so() {
    run(async {
        for (status, lines, stored) in [
            (400, &[FRESH] as &[&str], false),
            (404, &[], false),
            (404, &[FRESH], true),
            (416, &[FRESH], false),
            (431, &[FRESH], false),
            (500, &[], false),
            (206, &[FRESH, "Content-Range: bytes 0-1/2"], false),
            (301, &[FRESH, "Location: /b"], true),
        ] {
            let lines = lines.to_vec();
            let backend = TestBackend::new(move |_, _| respond_with(status, &lines, Body::Empty));
            let cache = memory_cache(&backend);
            let told = fetch(&cache, get_request("/a", &[])).await.cache_status();
            assert_eq!(told.ends_with("; stored"), stored, "{status}: {told}");
        }
    });
}

#[test]
fn uncacheable_requests_bypass_the_cache() {
    run(async {
        let backend =
            TestBackend::new(|number, _| respond_with_page(&[FRESH], &number.to_string()));
        let cache = cache_with_rules(&backend, &memory_store("m"), |rules| {
            rules.bypass.headers = vec!["X-Preview".to_owned()];
            rules.bypass.cookies = vec!["wordpress_logged_in*".to_owned()];
        });
        assert_eq!(fetch(&cache, get_request("/a", &[])).await.body_text(), "0");
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "0");
        for (method, lines, why) in [
            ("POST", &[] as &[&str], "fwd=method; detail=method"),
            ("OPTIONS", &[], "fwd=method; detail=method"),
            (
                "GET",
                &["Content-Length: 5"],
                "fwd=bypass; detail=request-body",
            ),
            (
                "GET",
                &["If-Match: \"a\""],
                "fwd=bypass; detail=precondition",
            ),
            (
                "GET",
                &["X-HTTP-Method-Override: DELETE"],
                "fwd=bypass; detail=override",
            ),
            ("GET", &["x-preview: 1"], "fwd=bypass; detail=header"),
            (
                "GET",
                &["Cookie: a=b; wordpress_logged_in_1=x"],
                "fwd=bypass; detail=cookie",
            ),
        ] {
            let before = backend.request_count();
            let request = request_of(head_of(method, "/a?x", lines), CLIENT_ADDRESS);
            let got = fetch(&cache, request).await;
            assert_eq!(got.body_text(), before.to_string(), "{method} {lines:?}");
            assert_eq!(
                got.cache_status(),
                format!("Penstock; {why}"),
                "{method} {lines:?}"
            );
        }
        let got = fetch(&cache, get_request("/a", &["Cookie: wordpress=1"])).await;
        assert!(got.is_hit(), "{}", got.cache_status());
    });
}

#[test]
fn a_response_to_credentials_is_stored_only_if_it_is_for_all() {
    run(async {
        let credentials = ["Authorization: Basic eDp5"];
        for (line, stored) in [(FRESH, false), ("Cache-Control: public, max-age=100", true)] {
            let backend =
                TestBackend::new(move |number, _| respond_with_page(&[line], &number.to_string()));
            let cache = memory_cache(&backend);
            let got = fetch(&cache, get_request("/a", &credentials)).await;
            assert_eq!(
                got.cache_status().ends_with("; stored"),
                stored,
                "{}",
                got.cache_status()
            );
            // The key is not marked as uncacheable: other clients' responses are stored.
            let other = fetch(&cache, get_request("/a", &[])).await;
            assert_eq!(other.is_hit(), stored, "{}", other.cache_status());
            assert!(fetch_until_hit(&cache, "/a").await.is_hit());
        }
    });
}

#[test]
fn a_successful_write_invalidates_its_target() {
    run(async {
        let backend = TestBackend::new(|number, request| match request.head.method_str() {
            "GET" => respond_with_page(&[FRESH], &number.to_string()),
            "DELETE" => respond_with(500, &[], Body::Empty),
            _ => respond_with(201, &["Location: http://a.test/b"], Body::Empty),
        });
        let cache = memory_cache(&backend);
        for target in ["/a", "/b", "/c"] {
            fetch(&cache, get_request(target, &[])).await;
            fetch_until_hit(&cache, target).await;
        }
        let write = |method| request_of(head_of(method, "/a", &[]), CLIENT_ADDRESS);
        fetch(&cache, write("DELETE")).await;
        assert!(fetch(&cache, get_request("/a", &[])).await.is_hit());
        fetch(&cache, write("POST")).await;
        for (target, is_kept) in [("/a", false), ("/b", false), ("/c", true)] {
            let got = fetch(&cache, get_request(target, &[])).await;
            assert_eq!(got.is_hit(), is_kept, "{target}");
        }
    });
}

#[test]
fn a_write_invalidates_its_location_with_mount_and_forwarded_host() {
    run(async {
        let told = ["X-Forwarded-Host: shop.test", "X-Forwarded-Proto: https"];
        for (mount, lines, location, target) in [
            (
                "/shop",
                &[] as &[&str],
                "Location: /shop/items/7",
                "/items/7",
            ),
            ("/shop", &[], "Content-Location: /shop/items/7", "/items/7"),
            (
                "/shop",
                &[],
                "Location: http://a.test/shop/items/7?a",
                "/items/7?a",
            ),
            ("/shop", &[], "Location: /shop", "/"),
            ("/shop", &[], "Location: /shop?a", "/?a"),
            // The application does not know its mount; the targets are relative or absolute.
            ("/shop", &[], "Location: /items/7", "/items/7"),
            ("/shop", &[], "Location: items/7", "/items/7"),
            ("", &told, "Location: https://shop.test/items/7", "/items/7"),
            ("", &told, "Location: https://a.test/items/7", "/items/7"),
            (
                "/shop",
                &told,
                "Location: https://shop.test/shop/items/7",
                "/items/7",
            ),
        ] {
            let backend = TestBackend::new(move |_, request| match request.head.method_str() {
                "GET" => respond_with_page(&[FRESH], "x"),
                _ => respond_with(201, &[location], Body::Empty),
            });
            let cache = memory_cache(&backend);
            let ask = |method, target| {
                let mut request = request_of(head_of(method, target, lines), PROXY_ADDRESS);
                request.mount = Mount::new(mount);
                fetch(&cache, request)
            };
            for target in [target, "/shopping"] {
                ask("GET", target).await;
            }
            let_tasks_run().await;
            assert!(ask("GET", target).await.is_hit(), "{location}");
            ask("POST", "/new").await;
            assert!(!ask("GET", target).await.is_hit(), "{location}");
            assert!(ask("GET", "/shopping").await.is_hit(), "{location}");
        }
    });
}

#[test]
fn a_fetch_under_way_during_a_write_is_not_stored() {
    run(async {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let backend = TestBackend::new(move |number, request| match request.head.method_str() {
            "GET" if number == 0 => respond_with_page(&[FRESH], "old").behind_gate(&held),
            "GET" => respond_with_page(&[FRESH], "new"),
            _ => respond_with(204, &[], Body::Empty),
        });
        let cache = memory_cache(&backend);
        let early = Arc::clone(&cache);
        let early =
            loops::spawn_with_handle(async move { fetch(&early, get_request("/a", &[])).await });
        wait_until("the first is asked", || gate.waiting() == 1).await;
        fetch(
            &cache,
            request_of(head_of("PUT", "/a", &[]), CLIENT_ADDRESS),
        )
        .await;
        gate.open();
        let early = early.await.unwrap();
        assert_eq!(early.body_text(), "old");
        assert!(
            early.cache_status().contains("detail=outdated"),
            "{}",
            early.cache_status()
        );
        assert_eq!(
            fetch(&cache, get_request("/a", &[])).await.body_text(),
            "new"
        );
    });
}

#[test]
fn a_fetch_from_before_a_purge_is_not_stored() {
    run(async {
        for (what, is_stored) in [("red", false), ("blue", true)] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let backend = TestBackend::new(move |_, _| {
                respond_with_page(&[FRESH, "Cache-Tag: red"], "x").behind_gate(&held)
            });
            let store = memory_store("m");
            let cache = cache_with_rules(&backend, &store, |_| ());
            let early = Arc::clone(&cache);
            let early =
                loops::spawn_with_handle(
                    async move { fetch(&early, get_request("/a", &[])).await },
                );
            wait_until("the first is asked", || gate.waiting() == 1).await;
            purge(&[store], &PurgeTarget::Tag(what.to_owned()));
            gate.open();
            let told = early.await.unwrap().cache_status();
            assert_eq!(told.ends_with("; stored"), is_stored, "{what}: {told}");
            let next = fetch(&cache, get_request("/a", &[])).await;
            assert_eq!(next.is_hit(), is_stored, "{what}: {}", next.cache_status());
        }
    });
}

#[test]
fn a_write_invalidates_all_keys_of_its_url() {
    run(async {
        let backend = TestBackend::new(|number, request| match request.head.method_str() {
            "GET" => respond_with_page(&[FRESH], &number.to_string()),
            _ => respond_with(204, &[], Body::Empty),
        });
        let cache = cache_with_rules(&backend, &memory_store("m"), |rules| {
            rules.key.headers = vec!["X-Country".to_owned()];
        });
        let ask = |line| fetch(&cache, get_request("/a", &[line]));
        assert_eq!(ask("X-Country: de").await.body_text(), "0");
        assert_eq!(ask("X-Country: at").await.body_text(), "1");
        fetch(
            &cache,
            request_of(head_of("POST", "/a", &[]), CLIENT_ADDRESS),
        )
        .await;
        assert_eq!(ask("X-Country: de").await.body_text(), "3");
        assert_eq!(ask("X-Country: at").await.body_text(), "4");
    });
}

#[test]
fn head_is_answered_from_get_and_stores_nothing_itself() {
    run(async {
        let backend = TestBackend::new(|_, request| match request.head.method_str() {
            "HEAD" => respond_with(200, &[FRESH], Body::Omitted(Some(5))),
            _ => respond_with_page(&[FRESH], "hello"),
        });
        let cache = memory_cache(&backend);
        let asks = || request_of(head_of("HEAD", "/a", &[]), CLIENT_ADDRESS);
        let missed = fetch(&cache, asks()).await;
        assert_eq!((missed.length, missed.body_text()), (Some(5), ""));
        let full = fetch(&cache, get_request("/a", &[])).await;
        assert_eq!((full.body_text(), backend.request_count()), ("hello", 2));
        fetch_until_hit(&cache, "/a").await;
        let hit = fetch(&cache, asks()).await;
        assert!(hit.is_hit(), "{}", hit.cache_status());
        assert_eq!((hit.length, hit.body_text()), (Some(5), ""));
        let body = "content-type";
        assert_eq!(hit.field(body), full.field(body));
    });
}

#[test]
fn a_body_that_was_cut_is_cut_for_its_client_and_not_stored() {
    run(async {
        for (pieces, length) in [
            (&["ab", "cut"] as &[&str], None),
            (&["ab", "cut"], Some(4)),
            (&["ab"], Some(4)),
            (&["ab", "cde"], Some(4)),
        ] {
            let told = pieces.to_vec();
            let backend = TestBackend::new(move |_, _| {
                respond_with(200, &[FRESH], ChunkedBody::new_body(&told, length, None))
            });
            let cache = memory_cache(&backend);
            for number in 1..=2 {
                let got = fetch(&cache, get_request("/a", &[])).await;
                assert!(got.body.is_err(), "{pieces:?} of {length:?}: {got:?}");
                assert_eq!(backend.request_count(), number);
            }
        }
    });
}

#[test]
fn trailers_are_dropped_and_never_become_fields() {
    run(async {
        let backend = TestBackend::new(|_, _| {
            let mut trailers = FieldBlock::new();
            trailers.push_static("X-Trailer", "1");
            let mut pieces = ChunkedBody::new(&["ab"], None, None);
            pieces.trailers = Some(trailers);
            respond_with(200, &[FRESH], Body::Stream(Box::new(pieces)))
        });
        let cache = memory_cache(&backend);
        fetch(&cache, get_request("/a", &[])).await;
        let hit = fetch_until_hit(&cache, "/a").await;
        assert_eq!(hit.body_text(), "ab");
        assert!(!hit.fields.contains("x-trailer"));
    });
}

#[test]
fn a_response_is_stored_at_the_request_that_min_uses_says() {
    run(async {
        let backend =
            TestBackend::new(|number, _| respond_with_page(&[FRESH], &number.to_string()));
        let cache = cache_with_rules(&backend, &memory_store("m"), |rules| rules.min_uses = 3);
        for (number, is_stored) in [("0", false), ("1", false), ("2", true)] {
            let got = fetch(&cache, get_request("/a", &[])).await;
            assert_eq!(got.body_text(), number);
            assert_eq!(
                got.cache_status().ends_with("; stored"),
                is_stored,
                "{}",
                got.cache_status()
            );
        }
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "2");
    });
}

#[test]
fn only_if_cached_never_contacts_the_backend() {
    run(async {
        let backend = TestBackend::new(|_, _| respond_with_page(&[FRESH], "x"));
        let cache = memory_cache(&backend);
        let asks = || get_request("/a", &["Cache-Control: only-if-cached"]);
        assert_eq!(fetch(&cache, asks()).await.status, 504);
        assert_eq!(backend.request_count(), 0);
        fetch(&cache, get_request("/a", &[])).await;
        fetch_until_hit(&cache, "/a").await;
        assert_eq!(fetch(&cache, asks()).await.body_text(), "x");
    });
}

#[test]
fn a_reload_fetches_and_stores_anew() {
    run(async {
        let backend =
            TestBackend::new(|number, _| respond_with_page(&[FRESH], &number.to_string()));
        let cache = memory_cache(&backend);
        fetch(&cache, get_request("/a", &[])).await;
        fetch_until_hit(&cache, "/a").await;
        let got = fetch(&cache, get_request("/a", &["Cache-Control: no-cache"])).await;
        assert_eq!(got.body_text(), "1");
        assert!(
            got.cache_status().contains("fwd=request"),
            "{}",
            got.cache_status()
        );
        assert!(!got.fields.contains("age"), "made for this request");
        assert_eq!(fetch_until_hit(&cache, "/a").await.body_text(), "1");
    });
}

#[test]
fn redirects_and_passes_are_forwarded() {
    run(async {
        let backend = TestBackend::new(|_, request| {
            if request.path() == b"/pass" {
                let passed = request_of(head("/changed", &[]), CLIENT_ADDRESS);
                return crate::testing::BackendAction::Now(Ok(Reply::Pass(Box::new(passed))));
            }
            let redirect = InternalRedirect {
                target: "/file".to_owned(),
                handler: None,
                fields: FieldBlock::new(),
                max_rate: None,
                timing: Default::default(),
            };
            crate::testing::BackendAction::Now(Ok(Reply::Redirect(Box::new(redirect))))
        });
        let cache = memory_cache(&backend);
        for _ in 0..2 {
            match handle_request(&cache, get_request("/redirect", &[])).await {
                Ok(Reply::Redirect(redirect)) => assert_eq!(redirect.target, "/file"),
                other => panic!("{other:?}"),
            }
        }
        // The next handler gets the client's request with its conditions.
        match handle_request(&cache, get_request("/pass", &["Range: bytes=0-1"])).await {
            Ok(Reply::Pass(request)) => {
                assert!(request.head.field("range").is_none(), "the back end's own");
                assert_eq!(backend.request_count(), 4);
                assert_eq!(
                    backend.received(3).field("range"),
                    Some(b"bytes=0-1".as_slice())
                );
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_failure_goes_to_the_client_and_is_not_cached() {
    run(async {
        let backend = TestBackend::new(|number, _| match number {
            0 => fail_with(FaultKind::ConnectFailed),
            _ => respond_with_page(&[FRESH], "x"),
        });
        let cache = memory_cache(&backend);
        let fault = handle_request(&cache, get_request("/a", &[]))
            .await
            .unwrap_err();
        assert_eq!(fault.kind, FaultKind::ConnectFailed);
        let got = fetch(&cache, get_request("/a", &[])).await;
        assert!(
            got.cache_status().ends_with("; stored"),
            "{}",
            got.cache_status()
        );
    });
}

#[test]
fn an_inline_response_equals_the_handlers() {
    run(async {
        let backend =
            TestBackend::new(|_, _| respond_with_page(&[FRESH, "Content-Type: text/x"], "hello"));
        let cache = cache_with_rules(&backend, &memory_store("m"), |rules| {
            rules.bypass.headers = vec!["X-Preview".to_owned()];
            rules.bypass.cookies = vec!["session".to_owned()];
        });
        let lend = |lines: &[&str]| {
            let head = head("/a", lines);
            let mut lent = None;
            let asked = RequestView {
                head: &head,
                path: b"/a",
                scheme: "http",
                arrived_at: clock::now(),
            };
            cache.try_inline(&asked, &mut |answer| {
                let InlineBody::Bytes(body) = answer.body else {
                    panic!("a small body is lent by reference")
                };
                lent = Some((
                    answer.status.code(),
                    answer.fields.as_bytes().to_vec(),
                    body.to_vec(),
                    answer.handler,
                ));
            });
            lent
        };
        assert_eq!(lend(&[]), None);
        fetch(&cache, get_request("/a", &[])).await;
        let given = fetch_until_hit(&cache, "/a").await;
        for _ in 0..2 {
            let (status, fields, body, handler) = lend(&["Accept: */*", "Cookie: a=b"]).unwrap();
            assert_eq!((status, handler), (200, "cache"));
            assert_eq!(body, b"hello");
            assert_eq!(fields, given.fields.as_bytes());
        }
        for line in [
            "Range: bytes=0-1",
            "If-None-Match: \"a\"",
            "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
            "If-Match: \"a\"",
            "Cache-Control: no-cache",
            "pragma: no-cache",
            "X-Forwarded-Host: evil",
            "X-Forwarded-Fox: evil",
            "Front-End-Https: on",
            "X-Host: evil",
            "X-Preview: 1",
            "Cookie: a=b; session=1",
            "Upgrade: websocket\r\nConnection: upgrade",
            "Forwarded: host=evil",
            "X-HTTP-Method-Override: POST",
            "Content-Length: 5",
        ] {
            assert_eq!(lend(&[line]), None, "{line}");
        }
    });
}

#[test]
fn a_large_inline_response_is_sent_by_reference() {
    run(async {
        let text = "0123456789".repeat(10_000);
        let content = text.clone();
        let backend = TestBackend::new(move |_, _| respond_with_page(&[FRESH], &content));
        let cache = cache_with_rules(&backend, &memory_store("m"), |_| {});
        fetch(&cache, get_request("/a", &[])).await;
        let given = fetch_until_hit(&cache, "/a").await;
        let head = head("/a", &[]);
        let asked = RequestView {
            head: &head,
            path: b"/a",
            scheme: "http",
            arrived_at: clock::now(),
        };
        let mut lent = None;
        cache.try_inline(&asked, &mut |answer| {
            assert_eq!(answer.fields.as_bytes(), given.fields.as_bytes());
            let InlineBody::File(body) = answer.body else {
                panic!("copied")
            };
            lent = Some(body);
        });
        let body = lent.expect("it is at hand");
        let mut read = Vec::new();
        let len = usize::try_from(body.len).unwrap();
        assert!(body.file.append_resident(body.start, len, &mut read));
        assert!(read == text.as_bytes());
    });
}
