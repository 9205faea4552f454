//! `Cache-Status`: RFC 9211.

use super::*;

fn text(name: &str, status: &CacheStatus<'_>) -> String {
    let mut out = Vec::new();
    encode_cache_status(&mut out, name, status);
    // The field is always a list of one member (RFC 9211 §2).
    let visitor = sfv::visitor::Ignored;
    let parsed = sfv::Parser::new(&out).parse_list_with_visitor(visitor);
    assert!(parsed.is_ok(), "{}", String::from_utf8_lossy(&out));
    String::from_utf8(out).unwrap()
}

#[test]
fn says_what_was_done() {
    let nothing = CacheStatus::default();
    for (status, expected) in [
        (nothing, "penstock"),
        (
            CacheStatus {
                hit: true,
                ttl: Some(7),
                ..nothing
            },
            "penstock; hit; ttl=7",
        ),
        (
            CacheStatus {
                hit: true,
                ttl: Some(-7),
                ..nothing
            },
            "penstock; hit; ttl=-7",
        ),
        (
            CacheStatus {
                fwd: Some(ForwardReason::UriMiss),
                stored: true,
                collapsed: true,
                ..nothing
            },
            "penstock; fwd=uri-miss; stored; collapsed",
        ),
        (
            CacheStatus {
                fwd: Some(ForwardReason::Stale),
                fwd_status: Some(Status::NOT_MODIFIED),
                ..nothing
            },
            "penstock; fwd=stale; fwd-status=304",
        ),
        (
            CacheStatus {
                hit: true,
                fwd: Some(ForwardReason::Miss),
                ..nothing
            },
            "penstock; fwd=miss",
        ),
        (
            CacheStatus {
                hit: true,
                stored: true,
                collapsed: true,
                fwd_status: Some(Status::OK),
                ..nothing
            },
            "penstock; hit",
        ),
        (
            CacheStatus {
                detail: Some("no-store"),
                ..nothing
            },
            "penstock; detail=no-store",
        ),
        (
            CacheStatus {
                detail: Some("a \"b\" \\"),
                ..nothing
            },
            "penstock; detail=\"a \\\"b\\\" \\\\\"",
        ),
        (
            CacheStatus {
                key: Some("a/b"),
                ..nothing
            },
            "penstock; key=\"a/b\"",
        ),
        (
            CacheStatus {
                key: Some("a\r\nb"),
                detail: Some("\u{e9}"),
                ..nothing
            },
            "penstock",
        ),
    ] {
        assert_eq!(text("penstock", &status), expected);
    }
    for ttl in [i64::MIN, i64::MAX] {
        let status = CacheStatus {
            ttl: Some(ttl),
            ..nothing
        };
        assert!(text("a", &status).ends_with("2147483648"));
    }
}

#[test]
fn names_itself_as_token_or_string() {
    for (name, expected) in [
        ("penstock", "penstock"),
        ("cache.example:8080", "cache.example:8080"),
        ("10.0.0.1", "\"10.0.0.1\""),
        ("a b", "\"a b\""),
        ("", "\"\""),
        ("caf\u{e9}", "cache"),
        ("a\r\nb", "cache"),
    ] {
        assert_eq!(text(name, &CacheStatus::default()), expected);
    }
}

#[test]
fn stands_behind_caches_nearer_to_the_origin() {
    let mut fields = block("Cache-Status: origin-cache; hit | X: 1");
    let status = CacheStatus {
        fwd: Some(ForwardReason::VaryMiss),
        ..CacheStatus::default()
    };
    push_cache_status(&mut fields, "edge", &status);
    assert_eq!(
        fields,
        block("Cache-Status: origin-cache; hit | X: 1 | Cache-Status: edge; fwd=vary-miss")
    );
}

#[test]
fn every_word_is_a_token() {
    use StoreRefusal as N;
    let reasons = [
        N::Method,
        N::Status,
        N::RequestNoStore,
        N::SetCookie,
        N::VaryAny,
        N::AccelExpiresOff,
        N::NoStore,
        N::Private,
        N::Authorization,
        N::NoLifetime,
        N::ExpiredWithoutValidator,
    ];
    let bypasses = [
        BypassReason::Method,
        BypassReason::Upgrade,
        BypassReason::Body,
        BypassReason::Precondition,
    ];
    let words = reasons
        .map(StoreRefusal::as_str)
        .into_iter()
        .chain(bypasses.map(BypassReason::as_str));
    for word in words {
        assert!(crate::is_token(word.as_bytes()), "{word}");
    }
    let forwards = [
        ForwardReason::Bypass,
        ForwardReason::Method,
        ForwardReason::UriMiss,
        ForwardReason::VaryMiss,
        ForwardReason::Miss,
        ForwardReason::Request,
        ForwardReason::Stale,
        ForwardReason::Partial,
    ];
    for fwd in forwards {
        let status = CacheStatus {
            fwd: Some(fwd),
            ..CacheStatus::default()
        };
        assert_eq!(text("a", &status), format!("a; fwd={}", fwd.as_str()));
    }
}
