//! What is read, and what is refused with which words.

use crate::testing::{TestDir, parse_valid};

fn site(keys: &str) -> String {
    format!("[[sites]]\nhosts = [\"a.example\", \"*.b.example\"]\n[[sites.routes]]\n{keys}\n")
}

fn problems(keys: &str) -> String {
    let folder = TestDir::with_files(&[("page.html", "closed")]);
    let error = crate::parse(&site(keys), &folder.path().join("penstock.toml"));
    error.expect_err(keys).to_string()
}

#[test]
fn a_text_alone_is_the_target() {
    let folder = TestDir::with_files(&[("page.html", "closed")]);
    for (keys, to, status) in [
        ("redirect = \"/new\"", "/new", 302),
        (
            "redirect = { to = \"https://c.example{uri}\", status = 308 }",
            "https://c.example{uri}",
            308,
        ),
        (
            "redirect = \"{scheme}://c.example:8080/\"",
            "{scheme}://c.example:8080/",
            302,
        ),
        (
            "path = { regex = \"^/p/(?<id>.*)\" }\nredirect = \"/q/{re.1}{re.id}\"",
            "/q/{re.1}{re.id}",
            302,
        ),
    ] {
        let config = parse_valid(&folder, &site(keys));
        let redirect = config.sites[0].routes[0].redirect.as_ref().unwrap();
        assert_eq!(
            (redirect.to.as_str(), redirect.status),
            (to, status),
            "{keys}"
        );
    }
    let keys =
        "respond = { status = 503, file = \"page.html\", headers = { Retry-After = \"60\" } }";
    let config = parse_valid(&folder, &site(keys));
    let respond = config.sites[0].routes[0].respond.as_ref().unwrap();
    assert_eq!(respond.status, 503);
    assert_eq!(respond.file, Some(folder.path().join("page.html")));
    assert_eq!(respond.headers["Retry-After"].as_str(), "60");
}

#[test]
fn answers_that_cannot_be_meant_are_refused() {
    for (keys, expected) in [
        (
            "redirect = \"new\"",
            "`redirect` cannot be \"new\": expected a URL",
        ),
        ("redirect = \"//evil.example\"", "`redirect` cannot be"),
        ("redirect = \"/a b\"", "`redirect` cannot be"),
        ("redirect = \"/a\\r\\nX: y\"", "`redirect` cannot be"),
        (
            "redirect = { to = \"/a\", status = 305 }",
            "`status` 305 does not redirect",
        ),
        ("redirect = {}", "`to` is missing"),
        (
            "redirect = \"/{clinet}\"",
            "`redirect` cannot be \"{clinet}\"",
        ),
        ("redirect = \"/{re.1}\"", "`{re.1}` stands for nothing"),
        (
            "path = { regex = \"^/(a)\" }\nredirect = \"/{re.2}\"",
            "`{re.2}` stands for nothing",
        ),
        (
            "path = \"/a\"\nredirect = \"/a\"",
            "leads to the route's own path",
        ),
        (
            "redirect = \"/a\"\nfiles = { root = \".\" }",
            "`redirect` is only for a route without a handler",
        ),
        (
            "redirect = \"/a\"\nrespond = {}",
            "`respond` is only for a route without a handler",
        ),
        (
            "respond = { status = 204, body = \"x\" }",
            "a response with status 204 has no body",
        ),
        (
            "respond = { body = \"x\", file = \"page.html\" }",
            "`file` is only for an answer without `body`",
        ),
        ("respond = { file = \"none.html\" }", "none.html"),
        (
            "respond = { headers = { Connection = \"close\" } }",
            "`headers` cannot be \"Connection\"",
        ),
        ("respond = { status = 100 }", "`status` cannot be 100"),
        (
            "allow = [\"10.0.0.0/40\"]\nrespond = {}",
            "`allow` cannot be \"10.0.0.0/40\"",
        ),
        (
            "respond = {}\nrewrite = { strip_prefix = \"/x\" }",
            "`rewrite` changes nothing",
        ),
        ("path = \"/x\"", "has nothing to do"),
    ] {
        let found = problems(keys);
        assert!(found.contains(expected), "{keys}\n{found}");
    }
}

#[test]
fn a_canonical_host_is_one_of_the_sites() {
    let folder = TestDir::with_files(&[]);
    let with = |host: &str, hosts: &str| {
        format!(
            "[[sites]]\n{hosts}\ncanonical_host = \"{host}\"\n[[sites.routes]]\nrespond = {{}}\n"
        )
    };
    let hosts = "hosts = [\"a.example\", \"*.b.example\"]";
    for host in ["a.example", "A.example", "www.b.example"] {
        let config = parse_valid(&folder, &with(host, hosts));
        let canonical = config.sites[0].canonical_host.as_deref();
        assert_eq!(canonical, Some(host.to_lowercase().as_str()));
    }
    for (host, hosts, expected) in [
        ("c.example", hosts, "is not in the `hosts` of the site"),
        ("*.b.example", hosts, "`canonical_host` cannot be"),
        (
            "a.example",
            "",
            "`canonical_host` is only for a site with `hosts`",
        ),
    ] {
        let text = with(host, hosts);
        let error = crate::parse(&text, &folder.path().join("penstock.toml"));
        let error = error.expect_err(&text).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
