//! Keys and cache poisoning: input outside the key must not change other clients' responses.

use std::sync::Arc;

use penstock_config::QueryKey;
use penstock_exchange::{ForwardedInfo, Handler, Mount};

use super::FRESH;
use crate::CacheHandler;
use crate::testing::{
    CLIENT_ADDRESS, PROXY_ADDRESS, TestBackend, cache_with_rules, fetch, fetch_until_hit,
    get_request, head, memory_cache, memory_store, request_of, respond_with_page, run,
};

/// A back end that returns the request as it arrived: target, host and fields used for poisoning.
fn echo_backend() -> Arc<TestBackend> {
    TestBackend::new(|_, request| {
        let head = &request.head;
        let mut text = format!("{} {}", head.target(), head.host());
        for (name, value) in head.fields() {
            if name.to_ascii_lowercase().starts_with("x-") || name.starts_with('F') {
                text.push_str(&format!(" {name}={}", String::from_utf8_lossy(value)));
            }
        }
        respond_with_page(&[FRESH], &text)
    })
}

#[test]
fn spoofed_forwarding_fields_do_not_reach_the_store() {
    run(async {
        for line in [
            "X-Forwarded-Host: evil",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Port: 1",
            "X-Forwarded-Server: evil",
            "X-Forwarded-Fox: evil",
            "X-Scheme: evil",
            "X-Url-Scheme: evil",
            "X-Original-URI: /evil",
            "Front-End-Https: on",
            "Forwarded: host=evil",
            "X-Original-URL: /evil",
            "X-Rewrite-URL: /evil",
            "X_Forwarded_Host: evil",
            "X-Accel-Redirect: /evil",
            "Proxy: http://evil",
        ] {
            let backend = echo_backend();
            let cache = memory_cache(&backend);
            let poisoned = fetch(&cache, get_request("/a", &[line])).await;
            assert_eq!(poisoned.body_text(), "/a a.test", "{line}");
            assert_eq!(
                fetch_until_hit(&cache, "/a").await.body_text(),
                "/a a.test",
                "{line}"
            );
        }
    });
}

#[test]
fn an_override_header_bypasses_the_cache() {
    run(async {
        for line in [
            "X-HTTP-Method-Override: POST",
            "X-HTTP-Method: POST",
            "X-Method-Override: POST",
            "X-Host: evil",
            "X-Original-Host: evil",
            "X-HTTP-Host-Override: evil",
        ] {
            let backend = echo_backend();
            let cache = memory_cache(&backend);
            let got = fetch(&cache, get_request("/a", &[line])).await;
            assert!(
                got.cache_status().ends_with("detail=override"),
                "{line}: {}",
                got.cache_status()
            );
            let got = fetch(&cache, get_request("/a", &[])).await;
            assert_eq!(
                (got.body_text(), backend.request_count()),
                ("/a a.test", 2),
                "{line}"
            );
        }
    });
}

#[test]
fn fields_of_trusted_proxies_are_in_the_key() {
    run(async {
        let backend = echo_backend();
        let cache = memory_cache(&backend);
        let ask = |lines: &[&str]| request_of(head("/a", lines), PROXY_ADDRESS);
        for (lines, count) in [
            (&["X-Forwarded-Host: one"] as &[&str], 1),
            (&["X-Forwarded-Host: two"], 2),
            (&["x-forwarded-host: one", "X-Forwarded-For: 192.0.2.1"], 2),
            (&["X-Forwarded-Host: one", "X-Forwarded-For: 192.0.2.2"], 2),
            (&["X-Forwarded-Proto: https"], 3),
            (&["X-Forwarded-Proto: http"], 4),
            (&[], 4),
            (&["Forwarded: for=192.0.2.1;proto=https"], 4),
            (&["Forwarded: for=192.0.2.2;proto=https"], 4),
            (&["Forwarded: for=192.0.2.2;proto=https;host=x"], 5),
            (&["Forwarded: for=192.0.2.2"], 5),
            // Fields of the forwarding family that does not count.
            (&["X-Forwarded-Proto: https", "Forwarded: host=evil"], 5),
            (&["X-Forwarded-Host: A.TEST"], 5),
            (&["X-Forwarded-Port: 8443"], 6),
            (&["X-Forwarded-Prefix: /shop"], 7),
            (&["X-Forwarded-Prefix: /shop/"], 7),
            (&["X-Forwarded-Fox: one"], 8),
            (&["X-Forwarded-Fox: two"], 9),
            (&["X-Scheme: https"], 10),
        ] {
            fetch(&cache, ask(lines)).await;
            assert_eq!(backend.request_count(), count, "{lines:?}");
        }
    });
}

/// One route serves the same path with and without a stripped prefix.
#[test]
fn the_stripped_prefix_is_in_the_key() {
    run(async {
        let backend = echo_backend();
        let cache = memory_cache(&backend);
        for (mount, count) in [("", 1), ("/shop", 2), ("", 2), ("/shop", 2), ("/a", 3)] {
            let mut request = get_request("/a", &[]);
            request.mount = Mount::new(mount);
            fetch(&cache, request).await;
            assert_eq!(backend.request_count(), count, "{mount}");
        }
    });
}

/// Values set by rules count for every client.
#[test]
fn fields_set_by_rules_are_in_the_key() {
    run(async {
        let backend = echo_backend();
        let cache = memory_cache(&backend);
        let told = |host: Option<&str>, scheme| ForwardedInfo {
            host: host.map(Into::into),
            scheme,
            ..ForwardedInfo::default()
        };
        for (told, count) in [
            (told(None, None), 1),
            (told(Some("b.test"), None), 2),
            (told(Some("b.test"), Some("https")), 3),
            (told(None, Some("https")), 4),
            (told(Some("B.test"), Some("https")), 4),
        ] {
            let mut request = get_request("/a", &[]);
            request.forwarded = Some(told.into());
            fetch(&cache, request).await;
            assert_eq!(backend.request_count(), count, "{count}");
        }
    });
}

#[test]
fn the_backend_gets_only_what_is_in_the_key() {
    run(async {
        let backend = echo_backend();
        let cache = cache_with_rules(&backend, &memory_store("m"), |rules| {
            rules.key.query = QueryKey::AllExcept(vec!["utm_*".to_owned()]);
        });
        let got = fetch(&cache, get_request("/a?utm_source=x&page=2", &[])).await;
        assert_eq!(got.body_text(), "/a?page=2 a.test");
        let again = fetch(&cache, get_request("/a?page=2&utm_medium=y", &[])).await;
        assert_eq!(
            (again.body_text(), backend.request_count()),
            ("/a?page=2 a.test", 1)
        );
    });
}

#[test]
fn the_host_is_one_in_any_spelling() {
    run(async {
        let backend = echo_backend();
        let cache = memory_cache(&backend);
        for line in ["Host: A.Test", "Host: a.test:80", "Host: a.test"] {
            let got = fetch(&cache, get_request("/a", &[line])).await;
            assert_eq!(got.body_text(), "/a a.test", "{line}");
        }
        assert_eq!(backend.request_count(), 1);
        fetch(&cache, get_request("/a", &["Host: b.test"])).await;
        fetch(&cache, get_request("/a", &["Host: a.test:8080"])).await;
        assert_eq!(backend.request_count(), 3);
    });
}

#[test]
fn routes_do_not_share_what_they_store() {
    run(async {
        let store = memory_store("m");
        let rules = penstock_config::RouteCache::new(vec!["m".to_owned()]);
        for text in ["one", "two"] {
            let backend = TestBackend::new(move |_, _| respond_with_page(&[FRESH], text));
            let inner = Arc::clone(&backend) as Arc<dyn Handler>;
            let cache = CacheHandler::with_scope(
                text,
                inner,
                &rules,
                vec![Arc::clone(&store)],
                Arc::default(),
            );
            let got = fetch(&cache, request_of(head("/a", &[]), CLIENT_ADDRESS)).await;
            assert_eq!(got.body_text(), text);
        }
    });
}
