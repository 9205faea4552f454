//! Reuse of stored responses: RFC 9111 §4, §4.2.4, §5.2.1, §5.2.2; RFC 5861.

use super::*;

fn directives(asked: &str) -> RequestDirectives {
    RequestDirectives::from_request(&get(asked))
}

/// The decision `seconds` after a response arrived.
fn after(seconds: u64, control: &str, asked: &str) -> ReuseDecision {
    let fields = format!("ETag: \"a\" | Cache-Control: {control}");
    let lifetime = store(200, &fields).unwrap();
    decide_reuse(&directives(asked), &lifetime, secs(T), secs(T + seconds))
}

/// The decision in one word.
fn word(seconds: u64, control: &str, asked: &str) -> &'static str {
    match after(seconds, control, asked) {
        ReuseDecision::Fresh { .. } => "fresh",
        ReuseDecision::Stale { .. } => "stale",
        ReuseDecision::StaleWhileRevalidate { .. } => "background",
        ReuseDecision::Validate {
            may_serve_stale_on_error: true,
            ..
        } => "validate or stale",
        ReuseDecision::Validate { .. } => "validate",
        ReuseDecision::OnlyIfCachedMiss => "504",
    }
}

#[test]
fn looks_at_get_and_head_without_content() {
    use CacheEligibility::Bypass as Past;
    let cache = |may_store, only_if_cached| CacheEligibility::Cache {
        may_store,
        only_if_cached,
    };
    for (line, fields, expected) in [
        ("GET /", "", cache(true, false)),
        ("HEAD /", "", cache(false, false)),
        ("GET /", "Content-Length: 0", cache(true, false)),
        ("GET /", "Content-Length: 1", Past(BypassReason::Body)),
        (
            "GET /",
            "Transfer-Encoding: chunked",
            Past(BypassReason::Body),
        ),
        ("POST /", "", Past(BypassReason::Method)),
        ("PUT /", "", Past(BypassReason::Method)),
        ("DELETE /", "", Past(BypassReason::Method)),
        ("OPTIONS /", "", Past(BypassReason::Method)),
        ("TRACE /", "", Past(BypassReason::Method)),
        ("QUERY /", "", Past(BypassReason::Method)),
        (
            "GET /",
            "Connection: upgrade | Upgrade: websocket",
            Past(BypassReason::Upgrade),
        ),
        ("GET /", "If-Match: \"a\"", Past(BypassReason::Precondition)),
        (
            "GET /",
            "If-Unmodified-Since: x",
            Past(BypassReason::Precondition),
        ),
        ("GET /", "If-None-Match: \"a\"", cache(true, false)),
        ("GET /", "If-Modified-Since: x", cache(true, false)),
        (
            "GET /",
            "Range: bytes=0-1 | If-Range: \"a\"",
            cache(true, false),
        ),
        ("GET /", "Authorization: x | Cookie: y", cache(true, false)),
        ("GET /", "Cache-Control: no-store", cache(false, false)),
        ("GET /", "Cache-Control: only-if-cached", cache(true, true)),
    ] {
        assert_eq!(
            cache_eligibility(&request(line, fields)),
            expected,
            "{line} {fields}"
        );
    }
}

#[test]
fn fresh_until_the_lifetime_ends() {
    for (seconds, expected) in [
        (0, "fresh"),
        (9, "fresh"),
        (10, "validate"),
        (1 << 40, "validate"),
    ] {
        assert_eq!(word(seconds, "max-age=10", ""), expected, "{seconds}");
    }
    let lifetime = store(200, "Age: 4 | Cache-Control: max-age=10").unwrap();
    let found = decide_reuse(&directives(""), &lifetime, secs(T), secs(T + 5));
    assert_eq!(found, ReuseDecision::Fresh { age: secs(9) });
}

#[test]
fn no_cache_is_validated_each_time() {
    for asked in [
        "",
        "Cache-Control: max-stale",
        "Cache-Control: stale-if-error=99",
    ] {
        assert_eq!(
            word(0, "no-cache, max-age=10", asked),
            "validate",
            "{asked}"
        );
        assert_eq!(
            word(20, "no-cache, max-age=10, stale-if-error=99", asked),
            "validate",
            "{asked}"
        );
    }
    assert_eq!(word(0, "no-cache=\"x\", max-age=10", ""), "fresh");
}

#[test]
fn a_request_can_ask_for_less_age() {
    for (seconds, control, expected) in [
        (5, "max-age=5", "fresh"),
        (6, "max-age=5", "validate or stale"),
        (1, "max-age=0", "validate or stale"),
        (0, "max-age=0", "fresh"),
        (0, "max-age=x", "fresh"),
        (1, "max-age=x", "validate or stale"),
        (6, "min-fresh=4", "fresh"),
        (7, "min-fresh=4", "validate or stale"),
        (0, "min-fresh=99999999999", "validate or stale"),
        (0, "no-cache", "validate"),
    ] {
        let found = word(seconds, "max-age=10", &format!("Cache-Control: {control}"));
        assert_eq!(found, expected, "{seconds} {control}");
    }
    assert_eq!(word(0, "max-age=10", "Pragma: no-cache"), "validate");
    assert_eq!(
        word(1, "max-age=10, immutable", "Cache-Control: max-age=0"),
        "validate or stale"
    );
}

#[test]
fn a_request_can_take_stale_responses() {
    for (seconds, control, asked, expected) in [
        (15, "max-age=10", "max-stale", "stale"),
        (15, "max-age=10", "max-stale=5", "stale"),
        (16, "max-age=10", "max-stale=5", "validate"),
        (15, "max-age=10", "max-stale=x", "validate"),
        (15, "max-age=10", "max-stale, max-age=20", "stale"),
        (15, "max-age=10", "max-stale, max-age=12", "validate"),
        (15, "max-age=10", "max-stale, min-fresh=1", "validate"),
        (15, "max-age=10", "max-stale, no-cache", "validate"),
        (5, "max-age=10", "max-stale", "fresh"),
        (15, "max-age=10, must-revalidate", "max-stale", "validate"),
        (15, "max-age=10, proxy-revalidate", "max-stale", "validate"),
        (15, "s-maxage=10", "max-stale", "validate"),
        (15, "s-maxage=10, stale-if-error=1", "max-stale", "validate"),
    ] {
        let found = word(seconds, control, &format!("Cache-Control: {asked}"));
        assert_eq!(found, expected, "{seconds} {control} / {asked}");
    }
}

#[test]
fn stale_while_revalidate_ends() {
    let control = "max-age=10, stale-while-revalidate=5";
    for (seconds, asked, expected) in [
        (9, "", "fresh"),
        (10, "", "background"),
        (14, "", "background"),
        (15, "", "validate"),
        (12, "Cache-Control: no-cache", "validate"),
        (12, "Cache-Control: max-age=60", "validate"),
        (12, "Cache-Control: min-fresh=1", "validate"),
        (12, "Cache-Control: max-stale=5", "stale"),
    ] {
        assert_eq!(word(seconds, control, asked), expected, "{seconds} {asked}");
    }
    assert_eq!(
        word(12, "s-maxage=10, stale-while-revalidate=5", ""),
        "background"
    );
    assert_eq!(
        word(12, &format!("{control}, must-revalidate"), ""),
        "validate"
    );
    assert_eq!(
        word(12, &format!("{control}, proxy-revalidate"), ""),
        "validate"
    );
}

#[test]
fn stale_if_error_ends() {
    let control = "max-age=10, stale-if-error=5";
    for (seconds, control, asked, expected) in [
        (14, control, "", "validate or stale"),
        (15, control, "", "validate"),
        (
            12,
            control,
            "Cache-Control: max-age=60",
            "validate or stale",
        ),
        (12, control, "Cache-Control: no-cache", "validate"),
        (
            19,
            control,
            "Cache-Control: stale-if-error=10",
            "validate or stale",
        ),
        (20, control, "Cache-Control: stale-if-error=10", "validate"),
        (
            12,
            "max-age=10",
            "Cache-Control: stale-if-error=10",
            "validate or stale",
        ),
        (
            12,
            "max-age=10, must-revalidate",
            "Cache-Control: stale-if-error=10",
            "validate",
        ),
        (
            12,
            "s-maxage=10",
            "Cache-Control: stale-if-error=10",
            "validate",
        ),
        (
            12,
            "max-age=10, must-revalidate, stale-if-error=5",
            "",
            "validate",
        ),
    ] {
        assert_eq!(
            word(seconds, control, asked),
            expected,
            "{seconds} {control} / {asked}"
        );
    }
}

#[test]
fn only_if_cached_never_asks() {
    for (seconds, asked, expected) in [
        (5, "only-if-cached", "fresh"),
        (15, "only-if-cached", "504"),
        (15, "only-if-cached, max-stale", "stale"),
        (5, "only-if-cached, no-cache", "504"),
        (5, "only-if-cached, max-age=1", "504"),
    ] {
        let found = word(seconds, "max-age=10", &format!("Cache-Control: {asked}"));
        assert_eq!(found, expected, "{seconds} {asked}");
    }
    let asked = "Cache-Control: only-if-cached";
    assert_eq!(
        word(12, "max-age=10, stale-while-revalidate=5", asked),
        "background"
    );
}

#[test]
fn a_clock_that_goes_back_makes_nothing_fresher() {
    let lifetime = store(200, "Age: 4 | Cache-Control: max-age=10").unwrap();
    for now in [0, T - 1, T] {
        let found = decide_reuse(&directives(""), &lifetime, secs(T), secs(now));
        assert_eq!(found, ReuseDecision::Fresh { age: secs(4) }, "{now}");
    }
    let lifetime = store(200, "ETag: \"a\" | Age: 11 | Cache-Control: max-age=10").unwrap();
    let found = decide_reuse(&directives(""), &lifetime, secs(T), Duration::ZERO);
    assert!(matches!(found, ReuseDecision::Validate { .. }), "{found:?}");
}

#[test]
fn clients_have_no_say_with_the_directives_of_nobody() {
    let found = decide_reuse(
        &RequestDirectives::default(),
        &ten_seconds(),
        secs(T),
        secs(T + 5),
    );
    assert_eq!(found, ReuseDecision::Fresh { age: secs(5) });
}
