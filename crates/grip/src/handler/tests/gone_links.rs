//! Notices to links about clients that are gone.

use penstock_exchange::RequestBody;

use super::*;
use crate::handler::original_request::OriginalRequest;

#[test]
fn the_back_end_is_notified_when_a_client_is_gone() {
    let signer = Signer::new("secret", "penstock").unwrap();
    let lines = [&STREAM[..], &["Grip-Link: </gone?id=7>; rel=gone"]].concat();
    let harness = GripHarness::with(
        Settings::default(),
        Some(signer),
        [scripted_reply(&lines, "hi\n")],
    );
    let response = harness.response(request("GET", "/", &["Cookie: c=1"]));
    harness.next_backend_request();
    let mut client = harness.hold(response);
    client.expect("hi\n");
    assert!(harness.has_no_more_requests());
    drop(client);
    let told = harness.next_backend_request();
    assert_eq!(
        (told.head.method_str(), told.head.target()),
        ("POST", "/gone?id=7")
    );
    assert_eq!(told.head.host(), "a.test");
    assert_eq!(told.head.field("content-length"), Some(&b"0"[..]));
    assert!(matches!(told.body, RequestBody::Empty));
    assert!(told.head.field("cookie").is_none());
    assert!(told.head.field("grip-sig").is_some() && told.trusted_headers.covers("grip-sig"));
}

#[test]
fn links_are_seen_from_the_request() {
    let resolved = |target: &str, link: &str| {
        OriginalRequest::from_request(&get(target))
            .resolve_link(link)
            .map_err(|fault| fault.kind)
    };
    for (target, link, expected) in [
        ("/a/b?c", "/d?e", "/d?e"),
        ("/a/b?c", "d", "/a/d"),
        ("/a/b/?c", "d?e", "/a/b/d?e"),
        ("/a/b?c", "?e=/f", "/a/b?e=/f"),
        ("/a/b?c", "../d", "/a/../d"),
        ("/a", "http://A.test/d", "/d"),
        ("/a", "HTTPS://a.test?d", "/?d"),
        ("/a", "//a.test", "/"),
        ("/a", "/d#e", "/d"),
        ("http://a.test/a/b?c", "d", "/a/d"),
    ] {
        assert_eq!(
            resolved(target, link).as_deref(),
            Ok(expected),
            "{target} {link}"
        );
    }
    for link in [
        "http://b.test/",
        "//a.test:81/",
        "https://a.test@b.test/",
        "http://",
    ] {
        assert_eq!(
            resolved("/a", link),
            Err(FaultKind::BackendProtocolError),
            "{link}"
        );
    }
}
