//! Requests to the back end, derived from clients' requests.

use penstock_config::RouteCache;
use penstock_exchange::field_policy::TrustedHeaders;
use penstock_http::caching::RevalidationFields;

use super::{ClientRequest, build_request};
use crate::route_rules::RouteRules;
use crate::testing::{CLIENT_ADDRESS, PROXY_ADDRESS, head_of, request_of};

fn sent_head(
    method: &str,
    target: &str,
    lines: &[&str],
    peer: &str,
    vouched: &[&str],
) -> Vec<String> {
    let mut request = request_of(head_of(method, target, lines), peer);
    request.trusted_headers = TrustedHeaders::new(vouched.iter().map(|&name| name.to_owned()));
    let rules = RouteRules::new(&RouteCache::new(vec!["m".to_owned()]), "");
    let validators = RevalidationFields {
        if_none_match: Some(b"\"stored\""),
        if_modified_since: None,
    };
    let question = build_request(
        &rules,
        &ClientRequest::from_request(&request),
        validators,
        None,
    )
    .unwrap();
    let head = &question.head;
    let first = format!("{} {}", head.method_str(), head.target());
    let fields = head
        .fields()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)));
    std::iter::once(first).chain(fields).collect()
}

#[test]
fn a_backend_request_is_for_the_whole_and_for_everyone() {
    let lines = [
        "Host: A.test:80",
        "Connection: keep-alive, X-Hop",
        "X-Hop: 1",
        "TE: trailers",
        "Range: bytes=0-1",
        "If-Range: \"own\"",
        "If-None-Match: \"own\"",
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
        "Accept: text/html",
        "Via: 1.1 x",
        "X-Forwarded-For: 192.0.2.9",
        "X-Sendfile: /etc/passwd",
        "Content-Length: 0",
    ];
    assert_eq!(
        sent_head("HEAD", "http://a.test/x?y", &lines, CLIENT_ADDRESS, &[]),
        [
            "GET /x?y",
            "Host: a.test",
            "Accept: text/html",
            "Via: 1.1 x",
            "If-None-Match: \"stored\"",
        ]
    );
}

#[test]
fn fields_of_trusted_peers_and_rules_are_kept() {
    let lines = ["X-Forwarded-Host: b.test", "X-Real-IP: 192.0.2.1"];
    let expected = [
        "GET /",
        "Host: a.test",
        "X-Forwarded-Host: b.test",
        "X-Real-IP: 192.0.2.1",
        "If-None-Match: \"stored\"",
    ];
    assert_eq!(sent_head("GET", "/", &lines, PROXY_ADDRESS, &[]), expected);
    let vouched = ["x-forwarded-host", "x-real-ip"];
    assert_eq!(
        sent_head("GET", "/", &lines, CLIENT_ADDRESS, &vouched),
        expected
    );
    assert_eq!(sent_head("GET", "/", &lines, CLIENT_ADDRESS, &[]).len(), 3);
}

#[test]
fn a_missing_host_stays_missing() {
    let text = b"GET /a HTTP/1.0\r\nAccept: x\r\n\r\n";
    let parsed = penstock_http::parse_head(text, &penstock_http::HeadLimits::default());
    let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
        panic!("a valid head")
    };
    let rules = RouteRules::new(&RouteCache::new(vec!["m".to_owned()]), "");
    let client = ClientRequest::from_request(&request_of(head, CLIENT_ADDRESS));
    let question = build_request(&rules, &client, RevalidationFields::default(), None).unwrap();
    assert_eq!(question.head.host(), "");
    assert_eq!(question.head.field_count(), 1);
}
