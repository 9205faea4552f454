//! Validation and updating: RFC 9111 §3.2, §4.3.

use super::*;

#[test]
fn asks_with_what_is_stored() {
    for (fields, tag, date) in [
        ("", None, None),
        ("ETag: \"a\"", Some("\"a\""), None),
        ("ETag: W/\"a\"", Some("W/\"a\""), None),
        ("ETag: a", None, None),
        ("ETag: \"a\", \"b\"", None, None),
        ("ETag: \"", None, None),
        (
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
            None,
            Some("Sun, 06 Nov 1994 08:49:37 GMT"),
        ),
        ("Last-Modified: soon", None, None),
    ] {
        let stored = block(fields);
        let found = revalidation_fields(&stored);
        assert_eq!(found.if_none_match, tag.map(str::as_bytes), "{fields}");
        assert_eq!(found.if_modified_since, date.map(str::as_bytes), "{fields}");
        assert_eq!(
            found.is_empty(),
            tag.is_none() && date.is_none(),
            "{fields}"
        );
    }
    let both = block("ETag: \"a\" | Last-Modified: {0}");
    let found = revalidation_fields(&both);
    assert!(found.if_none_match.is_some() && found.if_modified_since.is_some());
}

#[test]
fn a_304_selects_by_its_validators() {
    for (stored, of_304, expected) in [
        ("ETag: \"a\"", "ETag: \"a\"", true),
        ("ETag: \"a\"", "ETag: \"b\"", false),
        ("ETag: W/\"a\"", "ETag: \"a\"", false),
        ("ETag: \"a\"", "ETag: W/\"a\"", true),
        ("ETag: W/\"a\"", "ETag: W/\"a\"", true),
        ("ETag: W/\"a\"", "ETag: W/\"b\"", false),
        ("Last-Modified: {0}", "ETag: \"a\"", false),
        ("Last-Modified: {0}", "ETag: W/\"a\"", false),
        ("Last-Modified: {0}", "Last-Modified: {0}", true),
        ("Last-Modified: {0}", "Last-Modified: {1}", false),
        (
            "ETag: \"a\" | Last-Modified: {0}",
            "Last-Modified: {1}",
            false,
        ),
        (
            "ETag: \"a\" | Last-Modified: {0}",
            "ETag: \"a\" | Last-Modified: {1}",
            true,
        ),
        ("ETag: \"a\"", "Last-Modified: {0}", true),
        ("ETag: \"a\"", "", true),
        ("", "", true),
        ("", "ETag: \"a\"", false),
        ("", "Last-Modified: {0}", false),
    ] {
        assert_eq!(
            is_304_for(&block(stored), &block(of_304)),
            expected,
            "{stored} / {of_304}"
        );
    }
}

#[test]
fn freshening_replaces_fields_but_those_about_the_bytes() {
    let stored = block(
        "Date: {-99} | Content-Type: text/html | Content-Encoding: gzip | Content-Length: 5 | \
         Content-Range: x | ETag: \"a\" | X-Old: 1 | X-Both: 1 | X-Both: 2 | Content-Language: de | \
         Cache-Control: max-age=5 | Repr-Digest: x",
    );
    let of_304 = block(
        "x-both: 3 | Cache-Control: max-age=9 | Date: {0} | Content-Length: 0 | Content-Encoding: br | \
         Content-Range: y | ETag: W/\"a\" | Content-Language: en | X-New: 1 | X-New: 2 | \
         Connection: X-Hop | X-Hop: 1 | Age: 7 | Transfer-Encoding: chunked | Repr-Digest: y",
    );
    let expected = block(
        "Content-Type: text/html | Content-Encoding: gzip | Content-Length: 5 | Content-Range: x | \
         ETag: \"a\" | X-Old: 1 | Repr-Digest: x | \
         x-both: 3 | Cache-Control: max-age=9 | Date: {0} | Content-Language: en | X-New: 1 | X-New: 2",
    );
    assert_eq!(freshen(&stored, &of_304, secs(T)), expected);
}

#[test]
fn a_304_without_a_date_makes_young_again() {
    let stored = block("Date: {-99} | Cache-Control: max-age=10 | ETag: \"a\"");
    let freshened = freshen(&stored, &block("ETag: \"a\""), secs(T));
    assert_eq!(
        freshened,
        block("Cache-Control: max-age=10 | ETag: \"a\" | Date: {0}")
    );
    let exchange = OriginExchange {
        request: &get(""),
        is_authenticated: false,
        status: Status::OK,
        fields: &freshened,
        request_time: secs(T),
        response_time: secs(T),
    };
    let lifetime = check_storable(&exchange, &CachePolicy::default()).unwrap();
    assert_eq!(
        (lifetime.initial_age, lifetime.fresh_for),
        (secs(0), secs(10))
    );
}

#[test]
fn freshening_brings_no_cookie() {
    let of_304 = block("Set-Cookie: id=1 | Set-Cookie2: id=2 | Date: {0}");
    assert_eq!(
        freshen(&block("X-A: 1"), &of_304, secs(T)),
        block("X-A: 1 | Date: {0}")
    );
}

#[test]
fn freshening_keeps_withholding() {
    let of_304 = block("Cache-Control: private=\"X-User\" | X-User: b | Date: {0}");
    let freshened = freshen(&block("X-A: 1"), &of_304, secs(T));
    assert!(!freshened.contains("x-user"));
}

#[test]
fn head_agrees_when_nothing_differs() {
    let stored = block("ETag: \"a\" | Last-Modified: {0}");
    for (head, expected) in [
        ("", true),
        ("ETag: \"a\"", true),
        ("ETag: \"b\"", false),
        ("ETag: W/\"a\"", false),
        ("Last-Modified: {0}", true),
        ("Last-Modified: {1}", false),
        ("Content-Length: 5", true),
        ("Content-Length: 6", false),
        ("Content-Length: x", false),
        ("ETag: \"a\" | Last-Modified: {0} | Content-Length: 5", true),
        (
            "ETag: \"a\" | Last-Modified: {0} | Content-Length: 4",
            false,
        ),
    ] {
        assert_eq!(
            head_response_matches_stored(&stored, 5, &block(head)),
            expected,
            "{head}"
        );
    }
    assert!(!head_response_matches_stored(
        &block(""),
        5,
        &block("ETag: \"a\"")
    ));
}

#[test]
fn answers_conditions_of_clients() {
    use crate::PreconditionResult::{NotModified, Proceed};
    let (at, before, after) = (date(0), date(-1), date(1));
    for (code, stored, asked, expected) in [
        (
            200,
            "ETag: \"a\"",
            "If-None-Match: \"a\"".to_owned(),
            NotModified,
        ),
        (
            200,
            "ETag: \"a\"",
            "If-None-Match: W/\"a\"".to_owned(),
            NotModified,
        ),
        (
            200,
            "ETag: \"a\"",
            "If-None-Match: \"b\"".to_owned(),
            Proceed,
        ),
        (
            404,
            "ETag: \"a\"",
            "If-None-Match: \"a\"".to_owned(),
            Proceed,
        ),
        (
            200,
            "Last-Modified: {0}",
            format!("If-Modified-Since: {at}"),
            NotModified,
        ),
        (
            200,
            "Last-Modified: {0}",
            format!("If-Modified-Since: {before}"),
            Proceed,
        ),
        (
            200,
            "Date: {0}",
            format!("If-Modified-Since: {at}"),
            NotModified,
        ),
        (
            200,
            "Date: {1}",
            format!("If-Modified-Since: {at}"),
            Proceed,
        ),
        (
            200,
            "Date: {1}",
            format!("If-Modified-Since: {after}"),
            NotModified,
        ),
        (200, "", format!("If-Modified-Since: {at}"), NotModified),
        (200, "", format!("If-Modified-Since: {before}"), Proceed),
        (
            200,
            "ETag: \"a\"",
            format!("If-None-Match: \"b\" | If-Modified-Since: {after}"),
            Proceed,
        ),
        (200, "ETag: \"a\"", String::new(), Proceed),
    ] {
        let status = Status::new(code).unwrap();
        let found = evaluate_stored_preconditions(&get(&asked), status, &block(stored), secs(T));
        assert_eq!(found, expected, "{code} {stored} / {asked}");
    }
}
