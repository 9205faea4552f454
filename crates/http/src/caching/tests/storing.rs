//! Storable responses and fields: RFC 9111 §3, §7.3; RFC 6585; hostile input.

use super::*;

fn reason(line: &str, asked: &str, code: u16, fields: &str) -> Option<StoreRefusal> {
    store_for(&request(line, asked), code, fields, &guessing()).err()
}

#[test]
fn stores_only_what_came_for_get() {
    for (line, expected) in [
        ("GET /", None),
        ("HEAD /", Some(StoreRefusal::Method)),
        ("POST /", Some(StoreRefusal::Method)),
        ("PUT /", Some(StoreRefusal::Method)),
        ("OPTIONS /", Some(StoreRefusal::Method)),
        ("get /", Some(StoreRefusal::Method)),
        ("PURGE /", Some(StoreRefusal::Method)),
    ] {
        let found = reason(line, "", 200, "Cache-Control: public, max-age=60");
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn some_statuses_are_never_stored() {
    let never = [
        100, 101, 103, 206, 304, 400, 407, 408, 416, 421, 425, 428, 429, 431, 511, 299, 499, 599,
    ];
    for code in never {
        let found = reason("GET /", "", code, "Cache-Control: public, max-age=60");
        assert_eq!(found, Some(StoreRefusal::Status), "{code}");
    }
    let explicit = [
        200, 203, 204, 300, 301, 302, 303, 307, 308, 401, 403, 404, 405, 410, 413, 414, 500, 501,
        502, 503, 504,
    ];
    for code in explicit {
        let found = reason("GET /", "", code, "Cache-Control: max-age=60");
        assert_eq!(found, None, "{code}");
    }
}

#[test]
fn an_error_is_stored_only_when_it_says_so() {
    let policy = CachePolicy {
        default_ttl: Some(secs(60)),
        ..guessing()
    };
    let modified = "Last-Modified: {-1000}";
    for code in [401, 403, 405, 413, 414, 500, 501, 502, 503, 504] {
        for fields in [
            modified,
            "ETag: \"a\"",
            "Cache-Control: public | Last-Modified: {-1000}",
        ] {
            let found = store_for(&get(""), code, fields, &policy);
            assert_eq!(found, Err(StoreRefusal::NoLifetime), "{code} {fields}");
        }
    }
    for code in [404, 410] {
        assert_eq!(
            store_for(&get(""), code, "", &policy),
            Err(StoreRefusal::NoLifetime)
        );
        assert!(
            store_for(&get(""), code, modified, &policy)
                .unwrap()
                .is_heuristic
        );
    }
}

#[test]
fn a_page_that_may_be_of_one_session_stays_only_if_the_route_knows_its_cookies() {
    let of_route = CachePolicy {
        default_ttl: Some(secs(60)),
        ttl_by_status: [(404, secs(3))].into(),
        heuristic_freshness: true,
        ..CachePolicy::default()
    };
    let with_cookies = CachePolicy {
        has_known_cookies: true,
        ..of_route.clone()
    };
    for (code, fields, alone, known) in [
        (200, "", Err(StoreRefusal::Cookie), Ok(60)),
        (
            200,
            "Last-Modified: {-1000}",
            Err(StoreRefusal::Cookie),
            Ok(60),
        ),
        (404, "", Err(StoreRefusal::Cookie), Ok(3)),
        (
            503,
            "",
            Err(StoreRefusal::NoLifetime),
            Err(StoreRefusal::NoLifetime),
        ),
        // The response's own lifetime counts, with or without cookies.
        (200, "Cache-Control: max-age=2", Ok(2), Ok(2)),
    ] {
        for (policy, expected) in [(&of_route, alone), (&with_cookies, known)] {
            let found = store_for(&get("Cookie: session=a"), code, fields, policy);
            let found = found.map(|lifetime| lifetime.fresh_for.as_secs());
            assert_eq!(found, expected, "{code} {fields} {policy:?}");
            let alone = store_for(&get(""), code, fields, policy);
            assert_eq!(alone.is_ok(), known.is_ok(), "{code} {fields} {policy:?}");
        }
    }
}

#[test]
fn the_route_says_how_long_a_status_stays_where_the_response_does_not() {
    let policy = CachePolicy {
        ttl_by_status: [
            (200, secs(5)),
            (302, secs(7)),
            (404, secs(3)),
            (400, secs(9)),
        ]
        .into(),
        default_ttl: Some(secs(60)),
        max_ttl: Some(secs(6)),
        ..CachePolicy::default()
    };
    for (code, fields, expected) in [
        (200, "", Ok(5)),
        (200, "Last-Modified: {-1000}", Ok(5)),
        (200, "Cache-Control: max-age=2", Ok(2)),
        (200, "Expires: {1}", Ok(1)),
        (302, "", Ok(6)),
        (404, "", Ok(3)),
        (404, "Last-Modified: {-1000}", Ok(3)),
        // A status without a rule behaves as before.
        (301, "", Ok(6)),
        (410, "", Err(StoreRefusal::NoLifetime)),
        (503, "", Err(StoreRefusal::NoLifetime)),
        // A rule does not override the response, nor statuses that are never stored.
        (404, "Cache-Control: no-store", Err(StoreRefusal::NoStore)),
        (404, "Cache-Control: private", Err(StoreRefusal::Private)),
        (404, "Set-Cookie: a=b", Err(StoreRefusal::SetCookie)),
        (
            404,
            "Cache-Control: no-cache",
            Err(StoreRefusal::ExpiredWithoutValidator),
        ),
        (400, "", Err(StoreRefusal::Status)),
    ] {
        let found = store_for(&get(""), code, fields, &policy);
        let found = found.map(|lifetime| lifetime.fresh_for.as_secs());
        assert_eq!(found, expected, "{code} {fields}");
    }
}

#[test]
fn needs_a_reason_to_store() {
    for (code, fields, expected) in [
        (200, "", Some(StoreRefusal::NoLifetime)),
        (200, "ETag: \"a\"", Some(StoreRefusal::NoLifetime)),
        (200, "Cache-Control: public", Some(StoreRefusal::NoLifetime)),
        (
            200,
            "Cache-Control: must-revalidate",
            Some(StoreRefusal::NoLifetime),
        ),
        (200, "Last-Modified: {-100}", None),
        (
            200,
            "Last-Modified: yesterday",
            Some(StoreRefusal::NoLifetime),
        ),
        (200, "Expires: {9}", None),
        (200, "Cache-Control: max-age=9", None),
        (200, "Cache-Control: s-maxage=9", None),
        (302, "Last-Modified: {-100}", Some(StoreRefusal::NoLifetime)),
        (302, "Cache-Control: public | Last-Modified: {-100}", None),
    ] {
        assert_eq!(
            reason("GET /", "", code, fields),
            expected,
            "{code} {fields}"
        );
    }
}

#[test]
fn what_is_never_usable_is_not_stored() {
    for (fields, is_stored) in [
        ("Cache-Control: max-age=0", false),
        ("Cache-Control: no-cache", false),
        ("Cache-Control: no-cache, max-age=60", false),
        ("Expires: 0", false),
        ("Age: 60 | Cache-Control: max-age=60", false),
        ("Cache-Control: max-age=0 | ETag: \"a\"", true),
        ("Cache-Control: no-cache | ETag: \"a\"", true),
        ("Cache-Control: no-cache | Last-Modified: {-9}", true),
        ("Cache-Control: max-age=0, stale-while-revalidate=5", true),
        ("Cache-Control: max-age=0, stale-if-error=5", true),
    ] {
        let expected = (!is_stored).then_some(StoreRefusal::ExpiredWithoutValidator);
        assert_eq!(reason("GET /", "", 200, fields), expected, "{fields}");
    }
}

#[test]
fn no_store_and_private_forbid() {
    for (fields, expected) in [
        (
            "Cache-Control: no-store, max-age=60",
            Some(StoreRefusal::NoStore),
        ),
        (
            "Cache-Control: max-age=60 | Cache-Control: no-store",
            Some(StoreRefusal::NoStore),
        ),
        (
            "Cache-Control: public, no-store, s-maxage=60",
            Some(StoreRefusal::NoStore),
        ),
        (
            "Cache-Control: private, max-age=60",
            Some(StoreRefusal::Private),
        ),
        (
            "Cache-Control: public, private, max-age=60",
            Some(StoreRefusal::Private),
        ),
        (
            "Cache-Control: private=\"\", max-age=60",
            Some(StoreRefusal::Private),
        ),
        ("Cache-Control: private=\"X-User\", max-age=60", None),
    ] {
        assert_eq!(reason("GET /", "", 200, fields), expected, "{fields}");
    }
}

#[test]
fn must_understand_lifts_no_store_for_known_statuses() {
    let fields = "Cache-Control: must-understand, no-store, max-age=60";
    assert_eq!(reason("GET /", "", 200, fields), None);
    assert_eq!(reason("GET /", "", 404, fields), None);
    assert_eq!(reason("GET /", "", 299, fields), Some(StoreRefusal::Status));
    assert_eq!(reason("GET /", "", 206, fields), Some(StoreRefusal::Status));
    let private = "Cache-Control: must-understand, no-store, private, max-age=60";
    assert_eq!(
        reason("GET /", "", 200, private),
        Some(StoreRefusal::Private)
    );
}

#[test]
fn a_request_can_forbid_storing() {
    let found = reason(
        "GET /",
        "Cache-Control: no-store",
        200,
        "Cache-Control: max-age=60",
    );
    assert_eq!(found, Some(StoreRefusal::RequestNoStore));
}

#[test]
fn authorised_responses_are_stored_only_when_meant_for_all() {
    for (fields, is_stored) in [
        ("Cache-Control: max-age=60", false),
        ("Expires: {60}", false),
        ("X-Accel-Expires: 60", false),
        ("Cache-Control: max-age=60, proxy-revalidate", false),
        ("Cache-Control: max-age=60, public", true),
        ("Cache-Control: max-age=60, must-revalidate", true),
        ("Cache-Control: s-maxage=60", true),
        ("CDN-Cache-Control: public, max-age=60", true),
        (
            "CDN-Cache-Control: max-age=60 | Cache-Control: public",
            false,
        ),
    ] {
        let expected = (!is_stored).then_some(StoreRefusal::Authorization);
        let found = reason("GET /", "Authorization: Basic YTpi", 200, fields);
        assert_eq!(found, expected, "{fields}");
    }
}

#[test]
fn a_response_with_a_cookie_is_never_stored() {
    for fields in [
        "Set-Cookie: a=b | Cache-Control: public, s-maxage=60",
        "set-cookie: a=b | X-Accel-Expires: 60",
        "Set-Cookie2: a=b | Cache-Control: max-age=60",
        "Set-Cookie: a=b | Cache-Control: private=\"Set-Cookie\", max-age=60",
    ] {
        assert_eq!(
            reason("GET /", "", 200, fields),
            Some(StoreRefusal::SetCookie),
            "{fields}"
        );
    }
}

#[test]
fn what_varies_by_anything_is_not_stored() {
    for fields in [
        "Vary: *",
        "Vary: Accept, *",
        "Vary: Accept | Vary: *",
        "Vary: a b",
    ] {
        let fields = format!("{fields} | Cache-Control: max-age=60");
        assert_eq!(
            reason("GET /", "", 200, &fields),
            Some(StoreRefusal::VaryAny),
            "{fields}"
        );
    }
}

#[test]
fn keeps_all_fields_but_those_of_the_connection() {
    let fields = block(
        "Content-Type: text/html | X-New-Thing: 1 | X-New-Thing: 2 | Connection: close, X-Hop | \
         x-hop: 1 | Keep-Alive: timeout=5 | TE: trailers | Trailer: X | Transfer-Encoding: chunked | \
         Upgrade: h2c | Proxy-Connection: close | Proxy-Authenticate: Basic | \
         Proxy-Authentication-Info: x | Proxy-Authorization: x | Age: 7 | X-Accel-Expires: 9 | \
         Warning: 110 a \"b\" | Surrogate-Control: max-age=1 | Date: {0}",
    );
    let kept = block(
        "Content-Type: text/html | X-New-Thing: 1 | X-New-Thing: 2 | Warning: 110 a \"b\" | \
         Date: {0}",
    );
    assert_eq!(storable_fields(&fields, secs(T)), kept);
}

#[test]
fn withholds_fields_that_qualified_directives_name() {
    for control in [
        "Cache-Control: no-cache=\"X-A\", private=\"x-b, X-C\", max-age=9",
        "Cache-Control: no-cache=x-a | Cache-Control: private=\"X-B,X-C\"",
        "CDN-Cache-Control: no-cache=\"x-a,x-b\", private=\"x-c\"",
        "X-Accel-Expires: 9 | Cache-Control: private=\"x-a,x-b,x-c\"",
    ] {
        let fields = block(&format!("X-A: 1 | X-B: 2 | X-C: 3 | X-D: 4 | {control}"));
        let kept = storable_fields(&fields, secs(T));
        let names: Vec<_> = ["x-a", "x-b", "x-c", "x-d"]
            .map(|name| kept.contains(name))
            .into();
        assert_eq!(names, [false, false, false, true], "{control}");
    }
}

#[test]
fn a_stored_response_has_a_date() {
    for (fields, expected) in [
        ("X: 1", "X: 1 | Date: {0}"),
        ("Date: soon | X: 1", "X: 1 | Date: {0}"),
        ("Date: {-5} | X: 1", "Date: {-5} | X: 1"),
    ] {
        assert_eq!(
            storable_fields(&block(fields), secs(T)),
            block(expected),
            "{fields}"
        );
    }
}
