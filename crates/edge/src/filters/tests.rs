//! Rules on heads as text: what goes in, what the handlers and the client see.

use penstock_config::HeaderRules;
use penstock_exchange::FaultKind;
use penstock_http::{HeadLimits, ParseProgress, normalise_path, parse_head};

use super::*;
use crate::tests::LISTENER;

fn head(text: &str) -> RequestHead {
    match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
        ParseProgress::Complete((head, _)) => head,
        ParseProgress::Partial => panic!("the head is whole: {text:?}"),
    }
}

fn values(head: &RequestHead) -> HeaderPlaceholders<'_> {
    HeaderPlaceholders {
        head,
        client: PeerAddress::Tcp("192.0.2.7:1234".parse().unwrap()),
        host: head.host(),
        scheme: "https",
        outer_mount: None,
        forwarded_host: None,
        listener: &LISTENER,
        tls: None,
    }
}

fn rules(remove: &[&str], set: &[(&str, &str)], add: &[(&str, &str)]) -> HeaderRules {
    let map = |fields: &[(&str, &str)]| {
        let owned = |&(n, v): &(&str, &str)| (n.to_owned(), v.parse().unwrap());
        fields.iter().map(owned).collect()
    };
    HeaderRules {
        remove: remove.iter().map(|&name| name.to_owned()).collect(),
        set: map(set),
        add: map(add),
        ..HeaderRules::default()
    }
}

fn rewrite(strip: Option<&str>, add: Option<&str>) -> Rewrite {
    Rewrite {
        strip_prefix: strip.map(str::to_owned),
        add_prefix: add.map(str::to_owned),
        ..Rewrite::default()
    }
}

fn compile(rewrite: &Rewrite, request: &HeaderRules, response: &HeaderRules) -> Arc<Filters> {
    compile_route(&route(rewrite, request, response)).expect("there are rules")
}

fn route(rewrite: &Rewrite, request: &HeaderRules, response: &HeaderRules) -> config::Route {
    config::Route {
        rewrite: rewrite.clone(),
        request_headers: vec![request.clone()],
        response_headers: vec![response.clone()],
        ..config::Route::new(PathPattern::any())
    }
}

fn compile_route(route: &config::Route) -> Option<Arc<Filters>> {
    Filters::compile(route, None, &ConditionSet::default()).unwrap()
}

/// The request as the handlers see it, as text.
fn filtered(filters: &Filters, text: &str) -> Result<Option<String>, Fault> {
    filtered_response(filters, text, false)
}

/// The same for a sender that may be `trusted`.
fn filtered_response(
    filters: &Filters,
    text: &str,
    trusted: bool,
) -> Result<Option<String>, Fault> {
    let head = head(text);
    let trust = TrustedProxies::new(Vec::new(), true);
    let filtered = filters.apply_to_request(&head, &values(&head), trusted.then_some(&trust))?;
    Ok(filtered.map(|FilteredRequest { head, .. }| {
        let mut out = format!("{} {}\n", head.method_str(), head.target());
        for (name, value) in head.fields() {
            out.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value)));
        }
        out
    }))
}

#[test]
fn a_route_without_rules_has_no_filters() {
    let none = HeaderRules::default();
    assert!(compile_route(&route(&Rewrite::default(), &none, &none)).is_none());
}

#[test]
fn paths_lose_and_gain_prefixes_and_queries_stay() {
    for (what, strip, add, target, expected) in [
        (
            "strip",
            Some("/api"),
            None,
            "/api/users?a=/api",
            "/users?a=/api",
        ),
        ("strip all", Some("/api"), None, "/api", "/"),
        ("strip to the slash", Some("/api"), None, "/api/", "/"),
        (
            "only whole segments",
            Some("/api"),
            None,
            "/apix/a",
            "/apix/a",
        ),
        ("another path", Some("/api"), None, "/b", "/b"),
        ("add", None, Some("/v2"), "/users?x", "/v2/users?x"),
        ("both", Some("/api"), Some("/v2"), "/api/users", "/v2/users"),
        (
            "both at the root",
            Some("/api"),
            Some("/v2"),
            "/api",
            "/v2/",
        ),
        (
            "the client's spelling stays",
            Some("/api"),
            None,
            "/api/a%2Fb%20c",
            "/a%2Fb%20c",
        ),
        (
            "an odd prefix is known",
            Some("/api"),
            None,
            "/%61pi/a%20b?q",
            "/a%20b?q",
        ),
        (
            "dots are resolved first",
            Some("/api"),
            None,
            "/x/../api/a",
            "/a",
        ),
        (
            "dots do not hide another path",
            Some("/api"),
            None,
            "/api/../b",
            "/api/../b",
        ),
        (
            "two slashes are no host",
            Some("/api"),
            None,
            "/api//host/a",
            "/host/a",
        ),
        (
            "an address in the path stays",
            Some("/api"),
            None,
            "/api/get/https://a.test/b",
            "/get/https://a.test/b",
        ),
        (
            "dots stay below what is added",
            None,
            Some("/v2"),
            "/a/../b",
            "/v2/a/../b",
        ),
        (
            "an added prefix is encoded",
            None,
            Some("/a b"),
            "/c",
            "/a%20b/c",
        ),
    ] {
        let none = HeaderRules::default();
        let filters = compile(&rewrite(strip, add), &none, &none);
        let any = head("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let of_any = values(&any);
        let made = (filters.path_rewrite).apply(target, &filters.template_values(&of_any));
        assert_eq!(made.target, expected, "{what}");
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = head(&text);
        let made = filters
            .apply_to_request(&head, &values(&head), None)
            .unwrap();
        let made = made.as_ref().map_or(&head, |made| &made.head);
        assert!(normalise_path(made.target_path_query()).is_ok(), "{what}");
    }
}

#[test]
fn request_fields_are_removed_set_and_added_in_this_order() {
    let request = rules(
        &["x-drop", "X-Twice"],
        &[("X-Real-IP", "{client}"), ("X-Twice", "set")],
        &[
            ("X-Was", "{scheme}://{host}{path}"),
            ("X-Json", "{\"a\":{}}"),
        ],
    );
    let filters = compile(
        &rewrite(Some("/a"), None),
        &request,
        &HeaderRules::default(),
    );
    let text = "POST /a/b?c HTTP/1.1\r\nHost: h:80\r\nX-Drop: 1\r\nX-Drop: 2\r\n\
                x-real-ip: 6.6.6.6\r\nX-Twice: 1\r\nContent-Length: 3\r\n\r\n";
    assert_eq!(
        filtered(&filters, text).unwrap().unwrap(),
        "POST /b?c\nHost: h:80\nContent-Length: 3\nX-Real-IP: 192.0.2.7\nX-Twice: set\n\
         X-Json: {\"a\":{}}\nX-Was: https://h:80/a/b\n"
    );
}

#[test]
fn a_twin_with_an_underscore_goes_with_the_field_that_a_rule_is_about() {
    let request = rules(&["X-Gone", "A_B"], &[("X-User", "ours")], &[]);
    let filters = compile(&Rewrite::default(), &request, &HeaderRules::default());
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX_Gone: 1\r\nx-user: 2\r\nX_USER: 3\r\nA-B: 4\r\n\
                X_Kept: 5\r\n\r\n";
    let seen = filtered(&filters, text).unwrap().unwrap();
    assert_eq!(seen, "GET /\nHost: a\nA-B: 4\nX_Kept: 5\nX-User: ours\n");
}

#[test]
fn a_request_that_no_rule_touches_stays_the_same_head() {
    let filters = compile(
        &rewrite(Some("/api"), None),
        &HeaderRules::default(),
        &HeaderRules::default(),
    );
    let text = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(filtered(&filters, text).unwrap(), None);
}

#[test]
fn the_host_of_an_absolute_target_becomes_the_host() {
    let add = rewrite(None, Some("/x"));
    let filters = compile(&add, &HeaderRules::default(), &HeaderRules::default());
    let text = "GET http://real:81/a HTTP/1.1\r\nHost: real:81\r\nA: b\r\n\r\n";
    assert_eq!(
        filtered(&filters, text).unwrap().unwrap(),
        "GET /x/a\nHost: real:81\nA: b\n"
    );
    let host = rules(&[], &[("host", "other")], &[]);
    let filters = compile(&Rewrite::default(), &host, &HeaderRules::default());
    assert_eq!(
        filtered(&filters, text).unwrap().unwrap(),
        "GET /a\nA: b\nhost: other\n"
    );
}

#[test]
fn a_rule_that_breaks_a_request_is_the_servers_fault() {
    let broken = rules(&[], &[("Host", "a b")], &[]);
    let filters = compile(&Rewrite::default(), &broken, &HeaderRules::default());
    let fault = filtered(&filters, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Internal);
}

#[test]
fn response_fields_are_removed_set_and_added_in_this_order() {
    let response = rules(
        &["Server"],
        &[("Cache-Control", "no-store")],
        &[("Link", "<{path}>"), ("X-A", "2")],
    );
    let filters = compile(&Rewrite::default(), &HeaderRules::default(), &response);
    let head = head("GET /a%20b?c HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut fields = FieldBlock::new();
    for (name, value) in [("Server", "x"), ("cache-control", "public"), ("X-A", "1")] {
        fields.push(name, value.as_bytes()).unwrap();
    }
    filters.apply_to_response(
        &mut fields,
        &values(&head),
        (Status::OK, head.target_path_query()),
    );
    assert_eq!(
        String::from_utf8_lossy(fields.as_bytes()),
        "X-A: 1\r\nCache-Control: no-store\r\nLink: </a%20b>\r\nX-A: 2\r\n"
    );
}

#[test]
fn a_field_set_by_a_rule_is_not_taken_from_an_untrusted_peer() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Real-IP: 9.9.9.9\r\nX_Key: theirs\r\nVia: 1.1 x\r\n\
                Accept: b\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n";
    let ours = [
        ("x-real-ip", "{client}"),
        ("X_Key", "ours"),
        ("via", "1.1 y"),
        ("accept", "c"),
    ];
    let none = HeaderRules::default();
    let filters = compile(&rewrite(None, None), &rules(&[], &[], &ours), &none);
    for (trusted, theirs) in [
        (false, "Accept: b\nX-Forwarded-For: 9.9.9.9\n"),
        (
            true,
            "X-Real-IP: 9.9.9.9\nVia: 1.1 x\nAccept: b\nX-Forwarded-For: 9.9.9.9\n",
        ),
    ] {
        let seen = filtered_response(&filters, text, trusted).unwrap().unwrap();
        let mut lines: Vec<&str> = seen.lines().collect();
        lines.sort_unstable();
        let expected = format!(
            "GET /\nHost: a\n{theirs}x-real-ip: 192.0.2.7\nX_Key: ours\nvia: 1.1 y\naccept: c\n"
        );
        let mut expected: Vec<&str> = expected.lines().collect();
        expected.sort_unstable();
        assert_eq!(lines, expected, "trusted: {trusted}");
    }
    let head = head(text);
    let made = filters
        .apply_to_request(&head, &values(&head), None)
        .unwrap();
    let vouched = made.unwrap().trusted_headers;
    for (name, expected) in [
        ("X-Real-IP", true),
        ("x_key", true),
        ("X-Forwarded-For", false),
    ] {
        assert_eq!(vouched.covers(name), expected, "{name}");
    }
    // A path alone is no word about fields.
    let filters = compile(&rewrite(None, Some("/a")), &none, &none);
    let made = filters
        .apply_to_request(
            &head,
            &values(&head),
            Some(&TrustedProxies::new(Vec::new(), true)),
        )
        .unwrap();
    assert!(made.unwrap().trusted_headers.is_empty());
}

#[test]
fn fields_of_listed_proxies_are_not_appended_to() {
    let filters = compile(
        &Rewrite::default(),
        &rules(
            &[],
            &[],
            &[
                ("X-Forwarded-Prefix", "/b"),
                ("X-Forwarded-For", "192.0.2.9"),
            ],
        ),
        &HeaderRules::default(),
    );
    let text =
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Prefix: /a\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
    let head = head(text);
    let listed = TrustedProxies::new(Vec::new(), true);
    for (trust, prefixes, addresses) in [
        (None, 1, 1),
        (Some(&TrustedProxies::default()), 1, 2),
        (Some(&listed), 2, 2),
    ] {
        let made = filters
            .apply_to_request(&head, &values(&head), trust)
            .unwrap();
        let made = made.unwrap().head;
        assert_eq!(
            made.field_values("x-forwarded-prefix").count(),
            prefixes,
            "{trust:?}"
        );
        assert_eq!(
            made.field_values("x-forwarded-for").count(),
            addresses,
            "{trust:?}"
        );
    }
}

#[test]
fn rules_on_forwarding_fields_are_recognised() {
    let trust = TrustedProxies::default().with_client_address_field(Some("CF-Connecting-IP"));
    for (name, expected) in [
        ("X-Forwarded-Host", true),
        ("x-forwarded-prefix", true),
        ("forwarded", true),
        ("cf-connecting-ip", true),
        ("X-Client", false),
        ("Via", false),
    ] {
        for rules in [
            rules(&[name], &[], &[]),
            rules(&[], &[(name, "a")], &[]),
            rules(&[], &[], &[(name, "a")]),
        ] {
            let filters = compile(&Rewrite::default(), &rules, &HeaderRules::default());
            assert_eq!(
                filters.changes_forwarding_fields(&trust),
                expected,
                "{name}"
            );
        }
    }
}

#[test]
fn response_paths_change_only_if_the_request_path_did() {
    let none = HeaderRules::default();
    let route = route(&rewrite(Some("/shop"), None), &none, &none);
    let filters = Filters::compile(&route, Some(Arc::default()), &ConditionSet::default());
    let filters = filters.unwrap().unwrap();
    let head = head("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    for (target, expected) in [
        ("/shop/cart", "/shop/login"),
        ("/shop", "/shop/login"),
        ("/%73hop/cart?a", "/shop/login"),
        ("/cart", "/login"),
        ("/shopping", "/login"),
        ("/a?/shop/", "/login"),
    ] {
        let mut fields = FieldBlock::new();
        fields.push("Location", b"/login").unwrap();
        filters.apply_to_response(&mut fields, &values(&head), (Status::OK, target));
        assert_eq!(
            fields.get("location"),
            Some(expected.as_bytes()),
            "{target}"
        );
    }
}

#[test]
fn rules_set_the_outer_prefix() {
    let told = Mount::new("/outer");
    for (what, rules, expected) in [
        ("others", rules(&["X-Forwarded-Host"], &[], &[]), "/outer"),
        ("removed", rules(&["x-forwarded-prefix"], &[], &[]), ""),
        (
            "set",
            rules(&[], &[("X-Forwarded-Prefix", "/own/")], &[]),
            "/own",
        ),
        (
            "made",
            rules(&[], &[("X-Forwarded-Prefix", "{path}")], &[]),
            "",
        ),
        (
            "no path",
            rules(&[], &[("X-Forwarded-Prefix", "//a")], &[]),
            "",
        ),
    ] {
        let filters = compile(&Rewrite::default(), &rules, &HeaderRules::default());
        assert_eq!(filters.outer_mount(&told).path(), expected, "{what}");
    }
}

/// A route with these tables, of which each says what it changes and when.
fn route_of(toml: &str) -> config::Route {
    let text = format!("[[sites]]\n[[sites.routes]]\nfiles = {{ root = \"/\" }}\n{toml}\n");
    let config = config::parse(&text, std::path::Path::new("/penstock.toml"));
    let mut config = config.unwrap_or_else(|errors| panic!("{errors}"));
    config.sites[0].routes.remove(0)
}

fn response_after(filters: &Filters, request: &str, status: Status, lines: &str) -> String {
    let head = head(request);
    let mut fields = FieldBlock::new();
    for line in lines.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        fields.push(name, value.as_bytes()).unwrap();
    }
    filters.apply_to_response(
        &mut fields,
        &values(&head),
        (status, head.target_path_query()),
    );
    String::from_utf8_lossy(fields.as_bytes()).replace("\r\n", "\n")
}

#[test]
fn tables_of_a_list_apply_in_order_and_under_their_conditions() {
    let route = route_of(
        r#"response_headers = [
            { replace = { Location = { regex = "^http://[a-z]+/(.*)$", with = "https://{host}/{re.1}" } } },
            { status = ["404", "5xx"], set = { X-Error = "{path}" } },
            { when = { query = { v = "*" } }, default = { Cache-Control = "immutable" } },
            { remove = ["X-Error"], when = { method = ["HEAD"] } },
        ]"#,
    );
    let filters = compile_route(&route).unwrap();
    let get = "GET /a?v=1 HTTP/1.1\r\nHost: h\r\n\r\n";
    let plain = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let head = "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let rows = [
        (
            plain,
            200,
            "Location: http://inner/x?y",
            "Location: https://h/x?y\n",
        ),
        (plain, 200, "Location: /x", "Location: /x\n"),
        (plain, 404, "A: b", "A: b\nX-Error: /a\n"),
        (plain, 503, "A: b", "A: b\nX-Error: /a\n"),
        (plain, 403, "A: b", "A: b\n"),
        (head, 404, "A: b", "A: b\n"),
        (get, 200, "A: b", "A: b\nCache-Control: immutable\n"),
        (
            get,
            200,
            "cache-control: no-store",
            "cache-control: no-store\n",
        ),
    ];
    for (request, status, lines, expected) in rows {
        let status = Status::new(status).unwrap();
        assert_eq!(
            response_after(&filters, request, status, lines),
            expected,
            "{request} {lines}"
        );
    }
}

#[test]
fn requests_are_changed_by_every_table_that_applies() {
    let route = route_of(
        r#"request_headers = [
            { set = { X-Kind = "one" }, default = { Accept = "text/html", X-Kind = "never" } },
            { when = { header = { X-Beta = "1" } }, set = { X-Kind = "beta" }, add = { X-Real-IP = "{client}" } },
            { replace = { Cookie = { regex = "secret=[^;]*", with = "secret=x" } } },
        ]"#,
    );
    let filters = compile_route(&route).unwrap();
    let ask = |lines: &str| {
        let text = format!("GET /a HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
        filtered(&filters, &text).unwrap().unwrap()
    };
    assert_eq!(
        ask("Cookie: a=b; secret=y; c=d\r\n"),
        "GET /a\nHost: h\nX-Kind: one\nAccept: text/html\nCookie: a=b; secret=x; c=d\n"
    );
    assert_eq!(
        ask("X-Beta: 1\r\nAccept: */*\r\n"),
        "GET /a\nHost: h\nX-Beta: 1\nAccept: */*\nX-Kind: beta\nX-Real-IP: 192.0.2.7\n"
    );
    // A field that a rule would set comes from no client, also where the rule does not apply.
    assert!(!ask("X-Real-IP: 9.9.9.9\r\n").contains("9.9.9.9"));
}

#[test]
fn no_placeholder_ends_a_field_or_begins_another() {
    let route = config::Route {
        path: PathPattern::Regex(PathRegex::new("^/(.*)$").unwrap()),
        ..route_of(
            r#"response_headers = [
                { set = { X-A = "{path} {query.q} {header.X-In} {cookie.c}" } },
                { replace = { X-A = { regex = "q", with = "{uri}" } } },
            ]"#,
        )
    };
    let mut route = route;
    route.response_headers[0].add = [("X-B".to_owned(), "{re.1}".parse().unwrap())]
        .into_iter()
        .collect();
    let filters = compile_route(&route).unwrap();
    let request = "GET /a%20X-Evil:%20b?q=%0D%0AX-Evil:1 HTTP/1.1\r\nHost: h\r\nX-In: \u{ff}a\tb\r\nCookie: c=%0a\r\n\r\n";
    let fields = response_after(&filters, request, Status::OK, "A: b");
    assert_eq!(fields.lines().count(), 3, "{fields}");
    assert!(
        !fields.lines().any(|line| line.starts_with("X-Evil")),
        "{fields}"
    );
    assert!(fields.contains("X-B: a%20X-Evil:%20b"), "{fields}");
}
