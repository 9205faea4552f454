//! Invalidation: RFC 9111 §4.4.

use super::*;
use crate::Method;

#[test]
fn a_write_that_succeeds_invalidates() {
    let done = [200, 201, 204, 206, 301, 303, 304, 399];
    let failed = [100, 103, 400, 404, 409, 500, 503];
    for method in [
        Method::Post,
        Method::Put,
        Method::Delete,
        Method::Patch,
        Method::Other,
    ] {
        for code in done {
            assert!(
                invalidates_stored(method, Status::new(code).unwrap()),
                "{method:?} {code}"
            );
        }
        for code in failed {
            assert!(
                !invalidates_stored(method, Status::new(code).unwrap()),
                "{method:?} {code}"
            );
        }
    }
    for method in [
        Method::Get,
        Method::Head,
        Method::Options,
        Method::Trace,
        Method::Connect,
    ] {
        assert!(!invalidates_stored(method, Status::OK), "{method:?}");
    }
}

#[test]
fn names_targets_of_the_same_origin_only() {
    for (scheme, location, expected) in [
        ("http", "", None),
        ("http", "/b?c", Some("/b?c")),
        ("http", "/b#frag", Some("/b")),
        ("http", "b", Some("/x/b")),
        ("http", "../b", Some("/x/../b")),
        ("http", "?q", Some("/x/y?q")),
        ("http", "#frag", None),
        ("http", "http://a.example/b", Some("/b")),
        ("http", "HTTP://A.EXAMPLE:80/b", Some("/b")),
        ("http", "http://a.example", Some("/")),
        ("http", "http://a.example?q", Some("/?q")),
        ("http", "//a.example/b", Some("/b")),
        ("https", "https://a.example:443/b", Some("/b")),
        ("https", "http://a.example/b", None),
        ("http", "https://a.example/b", None),
        ("http", "http://b.example/b", None),
        ("http", "//b.example/b", None),
        ("http", "http://a.example:81/b", None),
        ("https", "https://a.example:80/b", None),
        ("http", "http://a.example@b.example/b", None),
        ("http", "http://b.example@a.example/b", None),
        ("http", "http:b", None),
        ("http", "mailto:a@a.example", None),
        ("http", "javascript:1", None),
        ("http", "/a b", None),
        ("http", "/\u{e9}", None),
    ] {
        let mut targets = vec!["/x/y?z".to_owned()];
        targets.extend(expected.map(str::to_owned));
        for name in ["Location", "Content-Location"] {
            let fields = block(&format!("{name}: {location}"));
            let found = invalidated_targets(&request("POST /x/y?z", ""), scheme, None, &fields);
            assert_eq!(found, targets, "{scheme} {name}: {location}");
        }
    }
    let both = block("Location: /b | Content-Location: /c");
    let found = invalidated_targets(&request("POST /x", ""), "http", None, &both);
    assert_eq!(found, ["/x", "/b", "/c"]);
}

#[test]
fn a_target_that_is_no_path_names_nothing() {
    let star = request("OPTIONS *", "");
    let found = invalidated_targets(&star, "http", None, &block("Location: b"));
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_host_that_a_proxy_told_is_of_the_same_origin() {
    for (told, location, is_own) in [
        ("shop.test", "https://shop.test/b", true),
        ("shop.test:443", "https://SHOP.test/b", true),
        ("shop.test", "//shop.test/b", true),
        ("shop.test", "https://a.example/b", true),
        ("shop.test", "http://shop.test/b", false),
        ("shop.test", "https://shop.test:8443/b", false),
        ("shop.test", "https://other.test/b", false),
        ("shop.test/", "https://shop.test/b", false),
        ("", "https:///b", false),
    ] {
        let fields = block(&format!("Location: {location}"));
        let write = request("POST /x", "");
        let found = invalidated_targets(&write, "https", Some(told), &fields);
        let wanted: &[&str] = if is_own { &["/x", "/b"] } else { &["/x"] };
        assert_eq!(found, wanted, "{told} {location}");
    }
}
