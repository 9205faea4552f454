//! Table of keys: their parts, and how they are written.

use penstock_config::{QueryKey, RouteCache, STORABLE_STATUSES};
use penstock_exchange::{ForwardedInfo, Mount, TrustedProxies};
use penstock_http::caching::may_store_status;
use penstock_http::{RequestHead, Status};

use super::{KeySource, RouteRules};
use crate::testing::head;

#[test]
fn a_route_may_say_how_long_a_status_stays_where_that_status_may_be_stored() {
    for code in 0..=999 {
        let status = Status::new(code);
        let may_be = status.is_some_and(may_store_status);
        assert_eq!(STORABLE_STATUSES.contains(&code), may_be, "{code}");
    }
}

fn key(
    change: impl FnOnce(&mut RouteCache),
    trusted: bool,
    target: &str,
    lines: &[&str],
) -> String {
    let mut config = RouteCache::new(vec!["m".to_owned()]);
    change(&mut config);
    let head = head(target, lines);
    let told = forwarded_info(&head).filter(|_| trusted);
    let asker = key_source_of(&head, told.as_ref(), trusted);
    let mut text = Vec::new();
    RouteRules::new(&config, "").write_key(&asker, &mut text);
    String::from_utf8(text).unwrap().replace('\0', " | ")
}

/// The accepted statements of a trusted proxy.
fn forwarded_info(head: &RequestHead) -> Option<ForwardedInfo> {
    let trust = TrustedProxies::new(Vec::new(), true);
    Some(ForwardedInfo::read(head, &trust).0)
}

fn key_source_of<'a>(
    head: &'a RequestHead,
    told: Option<&'a ForwardedInfo>,
    is_trusted: bool,
) -> KeySource<'a> {
    const ROOT: &Mount = &Mount::ROOT;
    KeySource {
        head,
        scheme: told.and_then(|told| told.scheme).unwrap_or("http"),
        is_from_trusted_proxy: is_trusted,
        mount: told.map_or(ROOT, |told| &told.mount),
        forwarded: told,
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn a_key_is_the_url_as_sent() {
    for (target, expected) in [
        ("/a", "http://a.test/a"),
        ("/a?", "http://a.test/a?"),
        ("/a?b=c&a", "http://a.test/a?b=c&a"),
        ("/a%2Fb/../c", "http://a.test/a%2Fb/../c"),
        ("//evil.test/a", "http://a.test//evil.test/a"),
        ("http://a.test/a?x", "http://a.test/a?x"),
    ] {
        assert_eq!(key(|_| (), false, target, &[]), expected, "{target}");
    }
    let without_host = |rules: &mut RouteCache| rules.key.host = false;
    assert_eq!(key(without_host, false, "/a", &[]), "http:///a");
}

#[test]
fn the_query_is_kept_as_the_rules_say() {
    let only = QueryKey::Only(names(&["page", "f_*"]));
    let without = QueryKey::AllExcept(names(&["utm_*", "gclid"]));
    for (rule, query, expected) in [
        (QueryKey::All, "?b&a=1&b", "?b&a=1&b"),
        (QueryKey::None, "?b&a=1", ""),
        (only.clone(), "?b=1&page=2&f_x=3&page", "?page=2&f_x=3&page"),
        (only.clone(), "?Page=2&p%61ge=2&page%5B0%5D=1", ""),
        (only, "?a;page=2", ""),
        (
            without.clone(),
            "?utm_x=1&a=2&gclid&gclidx=1",
            "?a=2&gclidx=1",
        ),
        (without.clone(), "?utm_x=1", ""),
        (without, "?utm%5Fx=1", "?utm%5Fx=1"),
    ] {
        let target = format!("/p{query}");
        let found = key(|rules| rules.key.query = rule.clone(), false, &target, &[]);
        assert_eq!(
            found,
            format!("http://a.test/p{expected}"),
            "{rule:?} {query}"
        );
    }
}

#[test]
fn headers_and_cookies_are_further_parts() {
    let rules = |rules: &mut RouteCache| {
        rules.key.headers = names(&["X-Country", "Accept-Language"]);
        rules.key.cookies = names(&["theme", "ab_*"]);
    };
    for (lines, expected) in [
        (
            &[] as &[&str],
            " | header x-country | header accept-language",
        ),
        (
            &["x-country: de", "X-Country: at", "Accept-Language:"],
            " | header x-country=de,at | header accept-language=",
        ),
        (
            &["Cookie: a=b; theme=dark; ab_1=x=y", "Cookie: theme=light"],
            " | header x-country | header accept-language | cookie theme=dark | cookie theme=light | cookie ab_1=x=y",
        ),
    ] {
        let found = key(rules, false, "/", lines);
        assert_eq!(found, format!("http://a.test/{expected}"), "{lines:?}");
    }
}

#[test]
fn only_a_trusted_proxy_adds_to_a_key() {
    let lines = [
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: b.test",
        "X-Forwarded-For: 192.0.2.1",
        "X-Real-IP: 192.0.2.1",
        "Forwarded: For=\"[::1]\"; proto=https ,for=x;by=y",
    ];
    assert_eq!(key(|_| (), false, "/", &lines), "http://a.test/");
    assert_eq!(
        key(|_| (), true, "/", &lines),
        "https://a.test/ | host b.test"
    );
    assert_eq!(
        key(|_| (), true, "/", &["Forwarded: for=x"]),
        "http://a.test/"
    );
    for (line, expected) in [
        ("X-Forwarded-Proto: wss", "https://a.test/"),
        ("X-Forwarded-Host: A.test", "http://a.test/"),
        (
            "X-Forwarded-Host: B.test:81",
            "http://a.test/ | host b.test:81",
        ),
        ("X-Forwarded-Port: 8443", "http://a.test/ | port 8443"),
        ("X-Forwarded-Prefix: /a%20b/", "http://a.test/ | mount /a b"),
        (
            "Forwarded: proto=https;host=b.test",
            "https://a.test/ | host b.test",
        ),
        ("X-Scheme: https", "http://a.test/ | x-scheme=https"),
        ("X-Client-IP: 192.0.2.1", "http://a.test/"),
    ] {
        assert_eq!(key(|_| (), true, "/", &[line]), expected, "{line}");
        assert_eq!(key(|_| (), false, "/", &[line]), "http://a.test/", "{line}");
    }
}

#[test]
fn one_url_has_several_keys_only_by_extra_parts() {
    let rules = RouteRules::new(&RouteCache::new(vec!["m".to_owned()]), "");
    for (line, trusted, expected) in [
        ("X-Forwarded-For: 192.0.2.1", true, false),
        ("X-Real-IP: 192.0.2.1", true, false),
        ("X-Forwarded-Proto: https", true, false),
        ("X-Forwarded-Proto: wss", true, false),
        ("Forwarded: for=_x;by=y", true, false),
        ("Forwarded: for=_x;host=y", true, true),
        ("X-Forwarded-Port: 81", true, true),
        // A part of the URL that the client requested.
        ("X-Forwarded-Prefix: /a", true, false),
        ("X-Scheme: https", true, true),
        ("X-Forwarded-Host: b.test", true, true),
        ("X-Forwarded-Host: b.test", false, false),
    ] {
        let head = head("/", &[line]);
        let told = forwarded_info(&head).filter(|_| trusted);
        let asker = key_source_of(&head, told.as_ref(), trusted);
        assert_eq!(
            rules.has_extra_key_parts(&asker),
            expected,
            "{line} {trusted}"
        );
    }
}
