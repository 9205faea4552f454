//! Lifetimes and ages: RFC 9111 §4.2, §5.1, §5.3; RFC 5861.

use super::*;

fn fresh_for(fields: &str) -> (u64, bool) {
    // With a validator, so that expired responses are stored too.
    let lifetime = store(200, &format!("ETag: \"a\" | {fields}")).unwrap();
    (lifetime.fresh_for.as_secs(), lifetime.is_heuristic)
}

#[test]
fn takes_the_first_lifetime_that_is_said() {
    for (fields, expected) in [
        ("Cache-Control: s-maxage=1, max-age=2 | Expires: {3}", 1),
        ("Cache-Control: max-age=2, s-maxage=1", 1),
        ("Cache-Control: s-maxage=0, max-age=2", 0),
        ("Cache-Control: max-age=2 | Expires: {3}", 2),
        ("Cache-Control: max-age=0 | Expires: {3}", 0),
        ("Cache-Control: max-age=x | Expires: {3}", 0),
        ("Expires: {3}", 3),
        ("Expires: {3} | Date: {-7}", 10),
        ("Expires: {3} | Date: {2}", 1),
        ("Expires: {3} | Date: {9}", 0),
        ("Expires: {3} | Date: soon", 3),
        ("Expires: {3} | Expires: {9}", 3),
        ("Cache-Control: public | Expires: {3}", 3),
    ] {
        assert_eq!(fresh_for(fields), (expected, false), "{fields}");
    }
}

#[test]
fn a_malformed_expires_is_past() {
    for value in [
        "0",
        "-1",
        "",
        "soon",
        "Sun, 06 Nov 2094 08:49:37 CET",
        "{3}, {4}",
    ] {
        let fields = format!("Expires: {value} | Last-Modified: {{-1000}}");
        assert_eq!(fresh_for(&fields), (0, false), "{value}");
    }
}

#[test]
fn dates_count_in_any_case_and_form() {
    for value in [
        "Sun, 06 Nov 1994 08:49:47 GMT",
        "sun, 06 nov 1994 08:49:47 gmt",
        "SUN, 06 NOV 1994 08:49:47 GMT",
        "Sunday, 06-Nov-94 08:49:47 GMT",
        "sunday, 06-NOV-94 08:49:47 gmt",
        "Sun Nov  6 08:49:47 1994",
        "sun nov  6 08:49:47 1994",
    ] {
        assert_eq!(
            fresh_for(&format!("Expires: {value}")),
            (10, false),
            "{value}"
        );
    }
}

#[test]
fn guesses_a_tenth_of_the_time_since_the_change() {
    for (fields, expected) in [
        ("Last-Modified: {-1000}", (100, true)),
        ("Last-Modified: {-1009}", (100, true)),
        ("Last-Modified: {-1000} | Date: {-500}", (50, true)),
        ("Last-Modified: {0}", (0, true)),
        ("Last-Modified: {1000}", (0, true)),
        ("Last-Modified: {-100000000}", (86_400, true)),
        ("Last-Modified: {-1000} | Expires: {3}", (3, false)),
        (
            "Last-Modified: {-1000} | Cache-Control: max-age=3",
            (3, false),
        ),
        (
            "Last-Modified: {-1000} | Cache-Control: must-revalidate",
            (100, true),
        ),
        (
            "Last-Modified: {-1000} | Cache-Control: no-cache",
            (0, false),
        ),
    ] {
        assert_eq!(fresh_for(fields), expected, "{fields}");
    }
}

#[test]
fn guesses_only_for_some_statuses() {
    for code in [200, 203, 204, 300, 301, 308, 404, 410] {
        assert!(
            store(code, "Last-Modified: {-1000}").unwrap().is_heuristic,
            "{code}"
        );
    }
    for code in [
        201, 202, 302, 303, 307, 401, 403, 405, 414, 451, 500, 501, 503,
    ] {
        assert_eq!(
            store(code, "Last-Modified: {-1000}"),
            Err(StoreRefusal::NoLifetime),
            "{code}"
        );
    }
}

#[test]
fn guesses_only_what_is_meant_for_all() {
    let modified = "Last-Modified: {-1000}";
    let public = "Cache-Control: public | Last-Modified: {-1000}";
    for (lines, fields, is_allowed, expected) in [
        ("", modified, false, Err(StoreRefusal::NoLifetime)),
        ("", modified, true, Ok(100)),
        ("", public, false, Ok(100)),
        ("Cookie: a=b", modified, true, Err(StoreRefusal::NoLifetime)),
        ("Cookie: a=b", public, true, Err(StoreRefusal::NoLifetime)),
        (
            "Authorization: Basic YQ==",
            public,
            true,
            Err(StoreRefusal::NoLifetime),
        ),
        // An explicit lifetime is no heuristic.
        ("Cookie: a=b", "Cache-Control: max-age=9", false, Ok(9)),
        ("Cookie: a=b", "Expires: {9}", false, Ok(9)),
    ] {
        let policy = CachePolicy {
            heuristic_freshness: is_allowed,
            ..CachePolicy::default()
        };
        let found = store_for(&get(lines), 200, fields, &policy);
        let found = found.map(|lifetime| lifetime.fresh_for.as_secs());
        assert_eq!(found, expected, "{lines} {fields} {is_allowed}");
    }
}

#[test]
fn the_route_bounds_and_completes() {
    let policy = CachePolicy {
        default_ttl: Some(secs(50)),
        max_ttl: Some(secs(60)),
        ..guessing()
    };
    for (code, fields, expected) in [
        (200, "Cache-Control: max-age=10", 10),
        (200, "Cache-Control: max-age=1000", 60),
        (200, "Expires: {1000}", 60),
        (200, "", 50),
        (301, "", 50),
        (200, "Last-Modified: {-100000}", 50),
        (404, "Last-Modified: {-100000}", 60),
        (302, "Cache-Control: public", 50),
        (200, "X-Accel-Expires: 1000", 60),
        // Counted from now: a default does not know what earlier caches did.
        (200, "Age: 500", 550),
    ] {
        let found = store_for(&get(""), code, fields, &policy).unwrap();
        assert_eq!(found.fresh_for, secs(expected), "{code} {fields}");
    }
    assert_eq!(
        store_for(&get(""), 302, "", &policy),
        Err(StoreRefusal::NoLifetime)
    );
}

#[test]
fn the_initial_age_is_the_larger_of_two() {
    for (fields, delay_millis, expected_millis) in [
        ("", 0, 0),
        ("Date: {0}", 0, 0),
        ("Date: {-7}", 0, 7_000),
        ("Date: {7}", 0, 0),
        ("Age: 7", 0, 7_000),
        ("Age: 7", 1_500, 8_500),
        ("Age: 7 | Date: {-20}", 1_500, 20_000),
        ("Date: {-1}", 1_500, 1_500),
        ("Age: 2, 9", 0, 2_000),
        ("Age: 2 | Age: 9", 0, 2_000),
        ("Age: x, 9", 0, 0),
        ("Age: -2", 0, 0),
        ("Age: 2.5", 0, 0),
        ("Age: 99999999999999999999", 0, 2_147_483_648_000),
    ] {
        let exchange = OriginExchange {
            request: &get(""),
            is_authenticated: false,
            status: Status::OK,
            fields: &block(&format!(
                "ETag: \"a\" | Cache-Control: max-age=60 | {fields}"
            )),
            request_time: secs(T) - Duration::from_millis(delay_millis),
            response_time: secs(T),
        };
        let found = check_storable(&exchange, &CachePolicy::default()).unwrap();
        assert_eq!(
            found.initial_age,
            Duration::from_millis(expected_millis),
            "{fields}"
        );
    }
}

#[test]
fn a_part_of_a_millisecond_makes_older() {
    let exchange = OriginExchange {
        request: &get(""),
        is_authenticated: false,
        status: Status::OK,
        fields: &block("Cache-Control: max-age=60"),
        request_time: secs(T) - Duration::from_micros(1),
        response_time: secs(T),
    };
    let found = check_storable(&exchange, &CachePolicy::default()).unwrap();
    assert_eq!(found.initial_age, Duration::from_millis(1));
}

#[test]
fn ages_grow_with_the_clock_and_never_shrink() {
    let lifetime = store(200, "Age: 3 | Cache-Control: max-age=10").unwrap();
    for (now, age, ttl) in [
        (T, 3, 7),
        (T + 6, 9, 1),
        (T + 7, 10, 0),
        (T + 8, 11, -1),
        (T - 1000, 3, 7),
        (0, 3, 7),
    ] {
        assert_eq!(lifetime.age(secs(T), secs(now)), secs(age), "{now}");
        assert_eq!(lifetime.ttl(secs(T), secs(now)), ttl, "{now}");
    }
    assert_eq!(lifetime.age(Duration::ZERO, Duration::MAX), Duration::MAX);
    assert!(lifetime.ttl(Duration::ZERO, Duration::MAX) < 0);
}

#[test]
fn a_clock_that_went_back_during_the_request_counts_as_no_delay() {
    let exchange = OriginExchange {
        request: &get(""),
        is_authenticated: false,
        status: Status::OK,
        fields: &block("Age: 1 | Cache-Control: max-age=60"),
        request_time: secs(T),
        response_time: secs(T - 100),
    };
    let found = check_storable(&exchange, &CachePolicy::default()).unwrap();
    assert_eq!(found.initial_age, secs(1));
}

#[test]
fn stale_times_come_from_the_response_or_the_route() {
    let policy = CachePolicy {
        stale_while_revalidate: secs(7),
        stale_if_error: secs(8),
        ..CachePolicy::default()
    };
    for (control, expected) in [
        ("max-age=1", (7, 8)),
        ("max-age=1, stale-while-revalidate=2", (2, 8)),
        ("max-age=1, stale-if-error=3", (7, 3)),
        (
            "max-age=1, stale-while-revalidate=0, stale-if-error=0",
            (0, 0),
        ),
        ("max-age=1, stale-while-revalidate=x", (0, 8)),
        (
            "max-age=1, must-revalidate, stale-while-revalidate=2",
            (0, 0),
        ),
        ("max-age=1, proxy-revalidate, stale-if-error=2", (0, 0)),
        ("s-maxage=1", (0, 0)),
        ("s-maxage=1, stale-while-revalidate=2", (2, 0)),
        ("s-maxage=1, stale-if-error=3", (0, 3)),
        ("s-maxage=1, must-revalidate, stale-if-error=3", (0, 0)),
        ("no-cache, stale-if-error=3", (0, 0)),
    ] {
        let fields = format!("ETag: \"a\" | Cache-Control: {control}");
        let found = store_for(&get(""), 200, &fields, &policy).unwrap();
        let times = (found.stale_while_revalidate, found.stale_if_error);
        assert_eq!(times, (secs(expected.0), secs(expected.1)), "{control}");
        let stale = expected.0.max(expected.1);
        assert_eq!(
            found.usable_for(),
            found.fresh_for + secs(stale),
            "{control}"
        );
    }
}

#[test]
fn no_transform_stays_with_the_lifetime() {
    for (control, expected) in [("max-age=9", false), ("max-age=9, No-Transform", true)] {
        let found = store(200, &format!("Cache-Control: {control}")).unwrap();
        assert_eq!(found.no_transform, expected, "{control}");
    }
}

#[test]
fn a_lifetime_survives_being_stored_as_numbers() {
    for control in [
        "max-age=10, stale-while-revalidate=3, stale-if-error=4",
        "max-age=99999999999, must-revalidate",
        "no-cache, no-transform",
        "s-maxage=5",
    ] {
        let fields = format!("Last-Modified: {{-500}} | Age: 3 | Cache-Control: {control}");
        let lifetime = store(200, &fields).unwrap();
        assert_eq!(
            Lifetime::from_words(lifetime.to_words()),
            Some(lifetime),
            "{control}"
        );
    }
    let guess = store(200, "Last-Modified: {-500}").unwrap();
    assert_eq!(Lifetime::from_words(guess.to_words()), Some(guess));
    assert_eq!(Lifetime::from_words([1, 2, 3, 4, 16]), None);
}
