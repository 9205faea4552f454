//! What a route changes of requests and responses, and which names it may refer to.

use super::*;
use crate::model::{HeaderRules, Rewrite};
use crate::testing::{TestDir, check_error_table, parse_valid};

const UPSTREAM: &str = "[upstreams.b]\nservers = [\"127.0.0.1:80\"]\n[[sites]]\n[[sites.routes]]\n";

/// Rows of: name, lines of the route from line 5 on, lines of the errors.
fn check_rows(rows: &[(&str, &str, &[&str])]) {
    for (name, lines, expected) in rows {
        check_error_table(&[(name, &format!("{UPSTREAM}{lines}\n"), expected)]);
    }
}

#[test]
fn reads_every_key() {
    let text = format!(
        r#"{UPSTREAM}
path = "/api/*"
upstream = "b"
internal = true
rewrite = {{ strip_prefix = "/api", add_prefix = "/v2/x" }}
request_headers = {{ set = {{ Host = "a", X-A = "{{client}} {{\"b\":1}}" }}, add = {{ X-B = "" }}, remove = ["Cookie"] }}
response_headers.remove = ["Server"]
request_buffering = false
response_buffering = true
max_body_size = "2GiB"
"#
    );
    let config = parse_valid(&TestDir::with_sample_site(), &text);
    let map = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (name.to_string(), value.parse().unwrap()))
            .collect()
    };
    let expected = Route {
        upstream: Some("b".to_owned()),
        internal: true,
        rewrite: Rewrite {
            strip_prefix: Some("/api".to_owned()),
            add_prefix: Some("/v2/x".to_owned()),
            response_paths: true,
            ..Rewrite::default()
        },
        request_headers: vec![HeaderRules {
            remove: vec!["Cookie".to_owned()],
            set: map(&[("Host", "a"), ("X-A", "{client} {\"b\":1}")]),
            add: map(&[("X-B", "")]),
            ..HeaderRules::default()
        }],
        response_headers: vec![HeaderRules {
            remove: vec!["Server".to_owned()],
            ..HeaderRules::default()
        }],
        request_buffering: Some(false),
        response_buffering: Some(true),
        max_body_size: Some(2 << 30),
        ..Route::new(PathPattern::Prefix("/api/".to_owned()))
    };
    assert_eq!(config.sites[0].routes, [expected]);
}

#[test]
fn a_program_may_be_asked_for_what_an_upstream_may() {
    let text = "[apps.a]\nkind = \"command\"\ncommand = \"x {fd}\"\n[[sites]]\n[[sites.routes]]\napp = \"a\"\nrequest_buffering = false\n";
    let config = parse_valid(&TestDir::with_sample_site(), text);
    assert_eq!(config.sites[0].routes[0].request_buffering, Some(false));
}

#[test]
fn reports_who_cannot_answer() {
    const ONLY: &str =
        "is only for a route with an `upstream`, or an `app` of kind \"command\" or \"fastcgi\"";
    check_rows(&[
        (
            "unknown upstream",
            "upstream = \"bb\"",
            &["penstock.toml:5:12: there is no upstream `bb`; did you mean `b`?"],
        ),
        (
            "two who answer",
            "app = \"a\"\nupstream = \"b\"\n[apps.a]",
            &["penstock.toml:6:12: `upstream` is only for a route without `app`"],
        ),
        (
            "files have no back end",
            "files = { root = \"public\" }\nrequest_buffering = true\nresponse_buffering = true",
            &[
                &format!("penstock.toml:6:21: `request_buffering` {ONLY}"),
                &format!("penstock.toml:7:22: `response_buffering` {ONLY}"),
            ],
        ),
        (
            "nor has a script",
            "app = \"a\"\nrequest_buffering = true\n[apps.a]",
            &[&format!("penstock.toml:6:21: `request_buffering` {ONLY}")],
        ),
        (
            "an application that could not be read may be a program",
            "app = \"a\"\nrequest_buffering = true\n[apps.a]\nkind = \"asgy\"",
            &[
                "penstock.toml:8:8: `kind` cannot be \"asgy\": expected \"wsgi\" or \"asgi\" or \"rack\" or \"command\" or \"fastcgi\"; did you mean `asgi`?",
            ],
        ),
    ]);
}

#[test]
fn internal_routes_hide_no_other_route_from_clients() {
    let route = |path: &str, internal: bool| {
        format!("[[sites.routes]]\npath = \"{path}\"\nupstream = \"b\"\ninternal = {internal}\n")
    };
    const SHADOWED: &str = "penstock.toml:9:8: route /x/* can never match: /* on line 5 answers first; put this one before it";
    let rows = [
        ("internal first", "/*", true, "/x/*", false, vec![]),
        ("the same path", "/x", true, "/x", false, vec![]),
        (
            "two internal ones",
            "/*",
            true,
            "/x/*",
            true,
            vec![SHADOWED],
        ),
        (
            "one that redirects never reach",
            "/*",
            false,
            "/x/*",
            true,
            vec![SHADOWED],
        ),
    ];
    let head = UPSTREAM.trim_end_matches("[[sites.routes]]\n");
    for (name, first, first_internal, second, second_internal, expected) in rows {
        let (first, second) = (route(first, first_internal), route(second, second_internal));
        check_error_table(&[(name, &format!("{head}{first}{second}"), &expected)]);
    }
}

#[test]
fn reports_prefixes_that_no_path_has() {
    const EXPECTED: &str = "expected a path such as \"/api\", without a final slash";
    for prefix in [
        "", "/", "api", "/api/", "/a//b", "/../a", "/a?b", "/a/*", "/a\\n",
    ] {
        let shown = prefix.replace("\\n", "\n");
        let lines = format!("upstream = \"b\"\nrewrite = {{ strip_prefix = \"{prefix}\" }}");
        let expected =
            format!("penstock.toml:6:28: `strip_prefix` cannot be {shown:?}: {EXPECTED}");
        check_rows(&[(prefix, &lines, &[&expected])]);
    }
}

#[test]
fn reports_fields_that_a_route_may_not_change() {
    const FIELD: &str =
        "expected a field name such as \"X-Frame-Options\", and none of framing or the connection";
    check_rows(&[
        (
            "framing",
            "upstream = \"b\"\nrequest_headers = { set = { Content-Length = \"0\" }, add = { Host = \"x\" }, remove = [\"host\", \"a b\"] }",
            &[
                &format!("penstock.toml:6:29: `set` cannot be \"Content-Length\": {FIELD}"),
                &format!("penstock.toml:6:61: `add` cannot be \"Host\": {FIELD}"),
                &format!("penstock.toml:6:85: `remove` cannot be \"host\": {FIELD}"),
                &format!("penstock.toml:6:93: `remove` cannot be \"a b\": {FIELD}"),
            ],
        ),
        (
            "of the response",
            "upstream = \"b\"\nresponse_headers.add.Connection = \"x\"",
            &[&format!(
                "penstock.toml:6:22: `add` cannot be \"Connection\": {FIELD}"
            )],
        ),
        (
            "twice",
            "upstream = \"b\"\nrequest_headers = { set = { X-A = \"1\", x-a = \"2\" } }",
            &[
                "penstock.toml:6:40: `set` cannot be \"x-a\": expected each field once, in whatever case",
            ],
        ),
        (
            "values",
            "upstream = \"b\"\nrequest_headers = { set = { X-A = \"a\\r\\nX: y\", X-B = \" \", X-C = \"{clinet}\", X-D = 1 } }",
            &[
                "penstock.toml:6:29: `X-A` cannot be \"a\\r\\nX: y\": expected a value without control characters and without spaces around it",
                "penstock.toml:6:48: `X-B` cannot be \" \": expected a value without control characters and without spaces around it",
                "penstock.toml:6:59: `X-C` cannot be \"{clinet}\": expected {client}, {host}, {hostname}, {scheme}, {method}, {uri}, {path}, {path.1}, {query}, {query.NAME}, {header.NAME}, {cookie.NAME} or {re.1} in braces",
                "penstock.toml:6:83: `X-D` must be a string, not an integer",
            ],
        ),
    ]);
}

#[test]
fn several_paths_are_told_where_they_stand() {
    const EXPECTED: &str = "penstock.toml:6:8: `path` is one path; for several leave it out and write match = { path = [\"/a\", \"/b/*\"] }";
    check_rows(&[(
        "list",
        "upstream = \"b\"\npath = [\"/a\", \"/b/*\"]",
        &[EXPECTED],
    )]);
    // What it says is accepted.
    check_rows(&[(
        "match",
        "upstream = \"b\"\nmatch = { path = [\"/a\", \"/b/*\"] }",
        &[],
    )]);
}

#[test]
fn a_variable_of_nginx_is_no_text_to_send() {
    check_rows(&[
        (
            "redirect",
            "redirect = { to = \"https://$host$request_uri\" }",
            &["penstock.toml:5:19: `to` has `$host` of nginx: write {hostname}"],
        ),
        (
            "field",
            "upstream = \"b\"\nrequest_headers = { set = { X-Uri = \"$request_uri\" } }",
            &["penstock.toml:6:29: `X-Uri` has `$request_uri` of nginx: write {uri}"],
        ),
        (
            "rewrite",
            "upstream = \"b\"\nrewrite = { regex = \"^/a\", to = \"/b?$args\" }",
            &["penstock.toml:6:33: `to` has `$args` of nginx: write {query}"],
        ),
        // A page may have any text.
        ("body", "respond = { body = \"costs $5, $host\" }", &[]),
    ]);
}
