//! What is refused, and with which words.

use crate::testing::{TestDir, parse_valid};

fn problems(text: &str) -> String {
    let folder = TestDir::with_files(&[]);
    let error = crate::parse(text, &folder.path().join("penstock.toml"));
    error.expect_err(text).to_string()
}

fn route(keys: &str) -> String {
    format!(
        "[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n[conditions.office]\nclient = \
         [\"10.0.0.0/8\"]\n[[sites]]\n[[sites.routes]]\nupstream = \"a\"\n{keys}\n"
    )
}

#[test]
fn conditions_that_cannot_be_meant_are_refused() {
    for (keys, expected) in [
        (
            "match = [\"offise\"]",
            "there is no condition `offise`; did you mean `office`?",
        ),
        ("match = [\"!nobody\"]", "there is no condition `nobody`"),
        (
            "match = { method = [\"get\"] }",
            "`method` cannot be \"get\"",
        ),
        (
            "match = { method = [] }",
            "`method` needs at least one item",
        ),
        (
            "match = { protocol = [\"HTTP/2\"] }",
            "`protocol` cannot be \"HTTP/2\"",
        ),
        (
            "match = { client = [\"10.0.0.0/33\"] }",
            "`client` cannot be \"10.0.0.0/33\"",
        ),
        (
            "match = { header = { \"a b\" = \"1\" } }",
            "`header` cannot be \"a b\"",
        ),
        (
            "match = { cookie = { a = \"~(\" } }",
            "`a` is no regular expression: unclosed group",
        ),
        (
            "match = { not = { not = {} } }",
            "`not` has no place in [sites.routes.match.not]",
        ),
        (
            "match = { client_fingerprint = [\"ab\"] }",
            "`client_fingerprint` cannot be \"ab\"",
        ),
        (
            "match = { listener = [\"127.0.0.1:8081\"] }",
            "there is no listener `127.0.0.1:8081` in `server.listen`, which has 127.0.0.1:8080",
        ),
        (
            "match = { listener = [\"a\"] }",
            "`listener` cannot be \"a\"",
        ),
        (
            "match = { not = { listener = [] } }",
            "`listener` needs at least one item",
        ),
        ("match = { metod = [\"GET\"] }", "unknown key `metod`"),
        (
            "path = { regex = \"(\" }",
            "`regex` is no regular expression: unclosed group",
        ),
        ("path = {}", "`regex` is missing"),
        ("match = { path = [\"~(\"] }", "`path` cannot be \"~(\""),
        ("path = \"*php\"", "`path` cannot be \"*php\""),
    ] {
        let found = problems(&route(keys));
        assert!(found.contains(expected), "{keys}\n{found}");
    }
    let nested = "[conditions.a]\nnamed = [\"b\"]\n";
    assert!(problems(nested).contains("conditions with a name do not name others"));
}

#[test]
fn a_route_with_conditions_hides_no_later_one() {
    let folder = TestDir::with_files(&[]);
    let site = |routes: &[&str]| {
        let routes = routes
            .iter()
            .map(|keys| format!("[[sites.routes]]\nupstream = \"a\"\n{keys}\n"));
        let routes: String = routes.collect();
        format!("[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n[[sites]]\n{routes}")
    };
    let (get, post) = (
        "match = { method = [\"GET\"] }",
        "match = { method = [\"POST\"] }",
    );
    for routes in [&[get, post][..], &[get, ""], &[get, "path = \"/a\""]] {
        let config = parse_valid(&folder, &site(routes));
        assert_eq!(config.sites[0].routes.len(), 2);
    }
    for routes in [&["", get][..], &[get, get]] {
        assert!(
            problems(&site(routes)).contains("can never match"),
            "{routes:?}"
        );
    }
}
