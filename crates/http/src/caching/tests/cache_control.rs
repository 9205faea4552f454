//! `Cache-Control` and `Pragma`: RFC 9111 §1.2.2, §5.2, §5.4.

use super::{super::cache_control::ResponseDirectives, *};

fn response(values: &[&str]) -> ResponseDirectives {
    ResponseDirectives::parse(values.iter().map(|value| value.as_bytes()))
}

#[test]
fn reads_seconds_in_every_spelling() {
    for (value, expected) in [
        ("max-age=60", Some(60)),
        ("MAX-AGE=60", Some(60)),
        ("max-age=\"60\"", Some(60)),
        ("max-age=\"\\6\\0\"", Some(60)),
        ("max-age=007", Some(7)),
        (" ,, max-age=60 ,", Some(60)),
        ("x=\"max-age=1, max-age=2\", max-age=60", Some(60)),
        ("x=\"\\\", max-age=1\", max-age=60", Some(60)),
        ("max-age=60; s-maxage=5", Some(0)),
        ("max-age", Some(0)),
        ("max-age=", Some(0)),
        ("max-age=-1", Some(0)),
        ("max-age=+1", Some(0)),
        ("max-age=1.5", Some(0)),
        ("max-age=1h", Some(0)),
        ("max-age = 60", Some(0)),
        ("max-age= 60", Some(0)),
        ("max-age=\"60", Some(0)),
        ("max-age=\"6\"0\"", Some(0)),
        ("max-age='60'", Some(0)),
        ("x-max-age=60", None),
        ("max-age60", None),
        ("x=\"max-age=1", None),
        ("", None),
    ] {
        assert_eq!(response(&[value]).max_age, expected, "{value}");
    }
}

#[test]
fn takes_what_is_too_large_for_the_largest() {
    for (value, expected) in [
        ("s-maxage=2147483647", (1 << 31) - 1),
        ("s-maxage=2147483648", 1 << 31),
        ("s-maxage=2147483649", 1 << 31),
        ("s-maxage=18446744073709551616", 1 << 31),
        ("s-maxage=99999999999999999999999999999999999999", 1 << 31),
    ] {
        assert_eq!(response(&[value]).s_maxage, Some(expected), "{value}");
    }
}

#[test]
fn the_first_of_several_wins() {
    assert_eq!(response(&["max-age=1, max-age=9"]).max_age, Some(1));
    assert_eq!(response(&["max-age=9", "max-age=1"]).max_age, Some(9));
    assert_eq!(response(&["max-age=x", "max-age=9"]).max_age, Some(0));
}

#[test]
fn ignores_unknown_directives() {
    let known = response(&["public, max-age=5"]);
    let value =
        "community=\"UCI\", public, immutable, no-storey, max-age=5, private-x, =, \"no-store\"";
    assert_eq!(response(&[value]), known);
}

#[test]
fn reads_flags_whatever_their_argument() {
    for (value, is_set) in [
        ("no-store", true),
        ("No-Store", true),
        ("no-store=x", true),
        ("no-store=\"a,b", true),
        ("public, no-store", true),
        ("nostore", false),
    ] {
        assert_eq!(response(&[value]).no_store, is_set, "{value}");
    }
    let all = response(&["must-revalidate, proxy-revalidate", "public, no-transform"]);
    assert!(all.must_revalidate && all.proxy_revalidate && all.public && all.no_transform);
}

#[test]
fn tells_qualified_no_cache_and_private_from_unqualified() {
    for (argument, unqualified, names) in [
        ("", true, vec![]),
        ("=\"\"", true, vec![]),
        ("=\"Set-Cookie\"", false, vec!["Set-Cookie"]),
        ("=Set-Cookie", false, vec!["Set-Cookie"]),
        ("=\"A , b,\"", false, vec!["A", "b"]),
        ("=\"A B\"", true, vec![]),
        ("=\"A", true, vec![]),
    ] {
        let found = response(&[&format!("no-cache{argument}, max-age=1")]);
        assert_eq!(
            (found.no_cache, &found.withheld_fields),
            (
                unqualified,
                &names.iter().map(|n| (*n).to_owned()).collect()
            ),
            "{argument}"
        );
        let found = response(&[&format!("private{argument}")]);
        assert_eq!(
            (found.private, found.withheld_fields.len()),
            (unqualified, names.len()),
            "{argument}"
        );
    }
    assert!(response(&["no-cache=\"a\", no-cache"]).no_cache);
}

#[test]
fn reads_what_requests_ask_for() {
    let nothing = RequestDirectives::default();
    for (fields, expected) in [
        ("", nothing),
        ("Cache-Control: x", nothing),
        (
            "Cache-Control: no-cache",
            RequestDirectives {
                no_cache: true,
                ..nothing
            },
        ),
        (
            "Cache-Control: no-store",
            RequestDirectives {
                no_store: true,
                ..nothing
            },
        ),
        (
            "Cache-Control: only-if-cached",
            RequestDirectives {
                only_if_cached: true,
                ..nothing
            },
        ),
        (
            "Cache-Control: no-transform",
            RequestDirectives {
                no_transform: true,
                ..nothing
            },
        ),
        (
            "Cache-Control: max-age=5",
            RequestDirectives {
                max_age: Some(secs(5)),
                ..nothing
            },
        ),
        (
            "Cache-Control: max-age=x",
            RequestDirectives {
                max_age: Some(secs(0)),
                ..nothing
            },
        ),
        (
            "Cache-Control: max-stale",
            RequestDirectives {
                max_stale: Some(Duration::MAX),
                ..nothing
            },
        ),
        (
            "Cache-Control: max-stale=7",
            RequestDirectives {
                max_stale: Some(secs(7)),
                ..nothing
            },
        ),
        (
            "Cache-Control: max-stale=x",
            RequestDirectives {
                max_stale: Some(secs(0)),
                ..nothing
            },
        ),
        (
            "Cache-Control: min-fresh=3",
            RequestDirectives {
                min_fresh: Some(secs(3)),
                ..nothing
            },
        ),
        (
            "Cache-Control: stale-if-error=3",
            RequestDirectives {
                stale_if_error: Some(secs(3)),
                ..nothing
            },
        ),
    ] {
        assert_eq!(
            RequestDirectives::from_request(&get(fields)),
            expected,
            "{fields}"
        );
    }
}

#[test]
fn pragma_counts_only_without_cache_control() {
    for (fields, expected) in [
        ("Pragma: no-cache", true),
        ("Pragma: x, No-Cache", true),
        ("Pragma: x", false),
        ("Pragma: no-cache | Cache-Control: max-stale", false),
        ("Cache-Control: | Pragma: no-cache", false),
    ] {
        assert_eq!(
            RequestDirectives::from_request(&get(fields)).no_cache,
            expected,
            "{fields}"
        );
    }
    // It has no meaning in a response (§5.4).
    let lifetime = store(200, "Pragma: no-cache | Cache-Control: max-age=5").unwrap();
    assert!(!lifetime.no_cache);
}
