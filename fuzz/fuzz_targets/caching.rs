//! Arbitrary requests and responses for the caching rules: nothing panics, nothing is fresh beyond
//! its lifetime, and no user's own response is stored. Four bytes of times, a byte of status, then
//! the fields of the request, of the response and of a later response, separated by NUL.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use penstock_http::caching::{
    CachePolicy, CacheStatus, ForwardReason, Lifetime, OriginExchange, RequestDirectives,
    ReuseDecision, VaryFields, cache_eligibility, check_storable, decide_reuse,
    encode_cache_status, evaluate_stored_preconditions, freshen, head_response_matches_stored,
    invalidated_targets, is_304_for, parse_vary, revalidation_fields, storable_fields, variant_key,
};
use penstock_http::{FieldBlock, HeadLimits, ParseProgress, RequestHead, Status, parse_head};

const T: Duration = Duration::from_secs(784_111_777);
const TTL_MAX: Duration = Duration::from_secs(1 << 20);

fuzz_target!(|data: &[u8]| {
    let Some((&[delay, since, sooner, route, code], rest)) = data.split_first_chunk::<5>() else {
        return;
    };
    let mut parts = rest.split(|&byte| byte == 0);
    let Some(request) = request(parts.next().unwrap_or_default()) else {
        return;
    };
    let response = fields(parts.next().unwrap_or_default());
    let later = fields(parts.next().unwrap_or_default());
    let seconds = |byte: u8| Duration::from_secs(1 << (byte % 40));
    let policy = CachePolicy {
        default_ttl: (route & 1 == 1).then(|| seconds(route)),
        heuristic_freshness: route & 4 == 4,
        has_known_cookies: route & 8 == 8,
        max_ttl: Some(TTL_MAX),
        stale_while_revalidate: seconds(route >> 1),
        stale_if_error: seconds(route >> 2),
        ttl_by_status: (route & 2 == 2)
            .then(|| (404, seconds(route >> 3)))
            .into_iter()
            .collect(),
    };
    let status = Status::new(200 + u16::from(code)).unwrap_or(Status::OK);
    let exchange = OriginExchange {
        request: &request,
        is_authenticated: request.field("authorization").is_some(),
        status,
        fields: &response,
        request_time: T.saturating_sub(Duration::from_millis(u64::from(delay))),
        response_time: T,
    };
    let _ = cache_eligibility(&request);
    let stored = storable_fields(&response, T);
    assert!(!stored.contains("connection") && !stored.contains("age"));
    assert!(stored.contains("date"));
    let _ = revalidation_fields(&stored);
    if let VaryFields::Names(names) = parse_vary(&response) {
        assert_eq!(variant_key(&request, &names), variant_key(&request, &names));
    }
    let _ = evaluate_stored_preconditions(&request, status, &stored, T);
    let _ = (
        is_304_for(&stored, &later),
        head_response_matches_stored(&stored, 5, &later),
    );
    let freshened = freshen(&stored, &later, T);
    assert_eq!(freshened.get("etag"), stored.get("etag"));
    for target in invalidated_targets(&request, "http", None, &response) {
        assert!(target.starts_with('/'));
    }
    let Ok(lifetime) = check_storable(&exchange, &policy) else {
        return;
    };
    assert!(!response.contains("set-cookie") && status.code() != 206 && status.code() != 400);
    assert_eq!(Lifetime::from_words(lifetime.to_words()), Some(lifetime));
    assert!(lifetime.fresh_for <= TTL_MAX + lifetime.initial_age);
    let now = T + seconds(since);
    check(&request, &lifetime, now);
    // A clock set back makes nothing fresher than at its arrival, nor an earlier decision staler.
    let nobody = RequestDirectives::default();
    let is_fresh = |now| {
        matches!(
            decide_reuse(&nobody, &lifetime, T, now),
            ReuseDecision::Fresh { .. }
        )
    };
    assert!(!is_fresh(now) || is_fresh(T));
    assert_eq!(is_fresh(T.saturating_sub(seconds(sooner))), is_fresh(T));
    let mut text = Vec::new();
    let told = CacheStatus {
        fwd: Some(ForwardReason::Miss),
        ttl: Some(lifetime.ttl(T, now)),
        key: Some(request.target()),
        ..CacheStatus::default()
    };
    encode_cache_status(&mut text, request.method_str(), &told);
    assert!(FieldBlock::new().push("Cache-Status", &text).is_ok());
});

fn check(request: &RequestHead, lifetime: &Lifetime, now: Duration) {
    let asked = RequestDirectives::from_request(request);
    let (fresh_for, past) = (lifetime.fresh_for, lifetime.stale_while_revalidate);
    match decide_reuse(&asked, lifetime, T, now) {
        ReuseDecision::Fresh { age } => {
            assert!(age < fresh_for && !lifetime.no_cache && !asked.no_cache);
        }
        ReuseDecision::Stale { age } => {
            assert!(age >= fresh_for && !lifetime.must_revalidate && !lifetime.no_cache);
            assert!(
                asked
                    .max_stale
                    .is_some_and(|limit| age - fresh_for <= limit)
            );
        }
        ReuseDecision::StaleWhileRevalidate { age } => {
            assert!(age >= fresh_for && age - fresh_for < past && !lifetime.no_cache);
        }
        ReuseDecision::Validate { .. } => assert!(!asked.only_if_cached),
        ReuseDecision::OnlyIfCachedMiss => assert!(asked.only_if_cached),
    }
}

fn request(fields: &[u8]) -> Option<RequestHead> {
    let text = [b"GET /a HTTP/1.1\r\nHost: a\r\n", fields, b"\r\n\r\n"].concat();
    match parse_head(&text, &HeadLimits::default()) {
        Ok(ParseProgress::Complete((head, _))) => Some(head),
        _ => None,
    }
}

fn fields(lines: &[u8]) -> FieldBlock {
    let mut block = FieldBlock::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let mut halves = line.splitn(2, |&byte| byte == b':');
        let name = std::str::from_utf8(halves.next().unwrap_or_default()).unwrap_or_default();
        // Invalid fields are dropped.
        let _ = block.push(name, halves.next().unwrap_or_default());
    }
    block
}
