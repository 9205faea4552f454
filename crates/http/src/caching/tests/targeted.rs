//! Fields that override `Cache-Control`: `X-Accel-Expires`, `CDN-Cache-Control` (RFC 9213).

use super::*;

/// The lifetime in seconds, or why the response is not stored; `Cache-Control` sets five seconds.
fn check(fields: &str) -> Result<u64, StoreRefusal> {
    let fields = format!("{fields} | ETag: \"a\" | Cache-Control: max-age=5 | Expires: {{6}}");
    store(200, &fields).map(|lifetime| lifetime.fresh_for.as_secs())
}

#[test]
fn a_targeted_field_overrides_as_a_whole() {
    for (value, expected) in [
        ("max-age=9", Ok(9)),
        ("max-age=9;x=1", Ok(9)),
        ("max-age=1, max-age=9", Ok(9)),
        ("max-age=99999999999", Ok(1 << 31)),
        ("no-store", Err(StoreRefusal::NoStore)),
        ("private", Err(StoreRefusal::Private)),
        ("no-cache", Ok(0)),
        ("no-cache=\"a\", max-age=9", Ok(9)),
        // It sets no lifetime, and no other field may.
        ("must-revalidate", Err(StoreRefusal::NoLifetime)),
        ("x=1", Err(StoreRefusal::NoLifetime)),
        // Not of the directive's type, so not a lifetime.
        ("max-age=9.5", Ok(0)),
        ("max-age=\"9\"", Ok(0)),
        ("max-age=nine", Ok(0)),
        ("max-age=-1", Ok(0)),
        ("max-age", Ok(0)),
        ("max-age=(9)", Ok(0)),
        ("private=(\"a\"), max-age=9", Err(StoreRefusal::Private)),
        ("no-store=?0, max-age=9", Ok(9)),
    ] {
        assert_eq!(
            check(&format!("CDN-Cache-Control: {value}")),
            expected,
            "{value}"
        );
    }
}

#[test]
fn a_malformed_targeted_field_counts_as_absent() {
    for value in [
        "",
        "max-age=",
        "max-age=9,",
        "no-store, ,",
        "Max-Age=9",
        "no-store, max-age=9 x",
        "max-age=9999999999999999",
        "no-store; \"",
        "\"no-store\"",
        "no-store, \u{e9}",
    ] {
        assert_eq!(
            check(&format!("CDN-Cache-Control: {value}")),
            Ok(5),
            "{value}"
        );
    }
}

#[test]
fn targeted_lines_are_one_field() {
    let first = "CDN-Cache-Control: max-age=9";
    assert_eq!(
        check(&format!("{first} | CDN-Cache-Control: max-age=7")),
        Ok(7)
    );
    assert_eq!(
        check(&format!("{first} | CDN-Cache-Control: no-store")),
        Err(StoreRefusal::NoStore)
    );
    assert_eq!(check(&format!("{first} | CDN-Cache-Control: ,")), Ok(5));
}

#[test]
fn other_targets_are_others() {
    assert_eq!(check("Surrogates-Control: no-store"), Ok(5));
    assert_eq!(check("Example-CDN-Cache-Control: no-store"), Ok(5));
}

#[test]
fn surrogate_control_overrides_what_speaks_to_clients() {
    for (fields, expected) in [
        ("Surrogate-Control: max-age=9", Ok(9)),
        ("Surrogate-Control: max-age=9, content=\"ESI/1.0\"", Ok(9)),
        ("Surrogate-Control: MAX-AGE=9+60", Ok(9)),
        (
            "Surrogate-Control: max-age=9 | Cache-Control: no-store",
            Ok(9),
        ),
        ("Surrogate-Control: no-store", Err(StoreRefusal::NoStore)),
        (
            "Surrogate-Control: max-age=9 | CDN-Cache-Control: max-age=7",
            Ok(7),
        ),
        ("Surrogate-Control: max-age=9 | X-Accel-Expires: 7", Ok(7)),
        // For another cache, or about something else.
        ("Surrogate-Control: max-age=9;other", Ok(5)),
        ("Surrogate-Control: content=\"ESI/1.0\"", Ok(5)),
        ("Surrogate-Control: no-store-remote", Ok(5)),
        ("Surrogate-Control: ", Ok(5)),
    ] {
        assert_eq!(check(fields), expected, "{fields}");
    }
}

#[test]
fn accel_expires_overrides_all() {
    for (fields, expected) in [
        ("X-Accel-Expires: 9", Ok(9)),
        (
            "X-Accel-Expires: 9 | Cache-Control: no-store, private",
            Ok(9),
        ),
        ("X-Accel-Expires: 9 | CDN-Cache-Control: no-store", Ok(9)),
        ("X-Accel-Expires: 0", Err(StoreRefusal::AccelExpiresOff)),
        ("X-Accel-Expires: off", Err(StoreRefusal::AccelExpiresOff)),
        ("X-Accel-Expires: @784111787", Ok(10)),
        (
            "X-Accel-Expires: @784111777",
            Err(StoreRefusal::AccelExpiresOff),
        ),
        ("X-Accel-Expires: @0", Err(StoreRefusal::AccelExpiresOff)),
        ("X-Accel-Expires: 99999999999", Ok(1 << 31)),
        ("X-Accel-Expires: soon", Ok(5)),
        ("X-Accel-Expires: -1", Ok(5)),
        ("X-Accel-Expires: @x", Ok(5)),
        ("X-Accel-Expires: ", Ok(5)),
        ("X-Accel-Expires: x | X-Accel-Expires: 9", Ok(9)),
    ] {
        assert_eq!(check(fields), expected, "{fields}");
    }
    // From now on, regardless of the age.
    let found = store(200, "X-Accel-Expires: 9 | Age: 100").unwrap();
    assert_eq!(found.ttl(secs(T), secs(T)), 9);
}
