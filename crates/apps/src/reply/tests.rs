//! What of an application's head becomes of the client's: rows of fields.

use penstock_wire::parse_response_head;

use super::*;

/// The head that comes of these fields.
fn made(fields: &[(&str, &str)]) -> ReplyHead {
    made_with(fields, Some(&SendfileGrant::default()))
}

/// The same with leave to name another body, or without.
fn made_with(fields: &[(&str, &str)], grant: Option<&SendfileGrant>) -> ReplyHead {
    let mut strings = vec!["200 OK"];
    for (name, value) in fields {
        strings.extend([*name, *value]);
    }
    let joined = strings.join("\0");
    let count = u16::try_from(strings.len()).unwrap();
    let parts = parse_response_head(joined.as_bytes(), count).unwrap();
    build_reply_head(&parts, false, RequestTiming::default(), grant).unwrap()
}

#[test]
fn what_speaks_to_the_hub_is_marked_and_left_to_it() {
    for (name, value, expected) in [
        ("Grip-Hold", "stream", FrontEndInstructions::ForThisServer),
        ("grip-channel", "a", FrontEndInstructions::ForThisServer),
        (
            "Content-Type",
            "application/grip-instruct",
            FrontEndInstructions::None,
        ),
        ("Content-Type", "text/plain", FrontEndInstructions::None),
        ("Grip", "a", FrontEndInstructions::None),
    ] {
        let response = made(&[("A", "1"), (name, value)]).response;
        assert_eq!(response.instructions, expected, "{name}: {value}");
        assert_eq!(response.fields.get(name), Some(value.as_bytes()), "{name}");
    }
}

#[test]
fn fields_of_the_connection_are_the_front_ends() {
    let made = made(&[
        ("Connection", "close"),
        ("Transfer-Encoding", "chunked"),
        ("X-Accel-Buffering", "no"),
        ("Content-Length", "5"),
        ("X-Accel-Expires", "0"),
    ]);
    let kept = b"X-Accel-Buffering: no\r\nX-Accel-Expires: 0\r\n";
    assert_eq!(made.response.fields.as_bytes(), kept);
    assert_eq!(made.declared, Some(5));
    assert!(made.is_unbuffered);
    assert_eq!(
        made.response.instructions,
        FrontEndInstructions::ForThisServer
    );
}

#[test]
fn ungranted_accel_fields_are_dropped() {
    for (name, value) in [
        ("X-Accel-Redirect", "/private/a"),
        ("x-sendfile", "/srv/a"),
        ("X-LIGHTTPD-send-file", "/srv/a"),
        ("X-Accel-Limit-Rate", "1"),
        ("X-Accel-Mapping", "/=/"),
        ("X-Accel-New", "1"),
        ("X-Sendfile-Type", "X-Sendfile"),
    ] {
        let head = made_with(&[(name, value), ("A", "1")], None);
        assert!(head.redirect.is_none(), "{name}");
        assert!(head.response.max_rate.is_none(), "{name}");
        assert_eq!(head.response.fields.as_bytes(), b"A: 1\r\n", "{name}");
    }
}

#[test]
fn granted_accel_fields_are_applied_and_dropped() {
    let head = made(&[
        ("X-Accel-Redirect", "/private/a"),
        ("x-accel-limit-rate", "1000"),
        ("X-Accel-Charset", "utf-8"),
        ("Set-Cookie", "a=1"),
        ("ETag", "of the first"),
    ]);
    let redirect = head.redirect.unwrap();
    assert_eq!(redirect.target, "/private/a");
    assert_eq!(redirect.max_rate.unwrap().of_response, Some(1000));
    assert_eq!(redirect.fields.as_bytes(), b"Set-Cookie: a=1\r\n");
    let slow = made(&[("X-Accel-Limit-Rate", "1000"), ("X-Sendfile", "/srv/a")]);
    assert_eq!(slow.response.max_rate.unwrap().of_response, Some(1000));
    assert!(slow.redirect.is_none(), "nothing is sendable");
    assert!(slow.response.fields.as_bytes().is_empty());
}
