//! Paths as back ends get them: regular expressions, and what comes behind the files of a route.

use crate::support::{Origin, Response, Server, Site, page};

const TOML: &str = r#"
[server]
threads = 1

[upstreams.back]
servers = ["ADDRESS"]

[[sites]]
[[sites.routes]]
path = "/old/*"
upstream = "back"
rewrite = [
    { regex = "^/old/([0-9]+)$", to = "/item?id={re.1}&{query}" },
    { regex = "^/old/(.*)$", to = "/new/{re.1}" },
]
[[sites.routes]]
path = "/shop/*"
upstream = "back"
rewrite = { strip_prefix = "/shop", regex = "^/([a-z]+)[.]html$", to = "/index.php?page={re.1}" }
[[sites.routes]]
path = "/closed/*"
files = { root = "public", try = ["{path}", "=403"] }
upstream = "back"
[[sites.routes]]
files = { root = "public", try = ["{path}", "{path}/index.html", "/index.php?q={path}&{query}"] }
upstream = "back"
"#;

fn serve(origin: &Origin) -> Server {
    let site = Site::new()
        .config(&TOML.replace("ADDRESS", &origin.address().to_string()))
        .file("public/page.txt", "a file")
        .file("public/closed/page.txt", "a file");
    site.serve(&[])
}

fn ask(server: &Server, method: &str, target: &str) -> Response {
    let mut client = server.connect();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    client.send(head);
    client.response()
}

#[test]
fn a_rewritten_path_is_normal_and_keeps_its_query() {
    let origin = Origin::start(|seen| page(seen, &seen.target));
    let server = serve(&origin);
    for (target, expected) in [
        ("/old/12?a=b", "/item?id=12&a=b"),
        ("/old/12", "/item?id=12"),
        ("/old/a/b?c=d", "/new/a/b?c=d"),
        ("/old/a%3Fb%20c", "/new/a%3Fb%20c"),
        ("/shop/about.html?x", "/index.php?page=about"),
        ("/shop/other?x", "/other?x"),
    ] {
        assert_eq!(ask(&server, "GET", target).text(), expected, "{target}");
    }
    // The mount of the application is the prefix that was stripped.
    assert_eq!(
        origin.last().field("X-Forwarded-Prefix").as_deref(),
        Some("/shop")
    );
}

#[test]
fn what_comes_behind_the_files_keeps_method_and_body() {
    let origin = Origin::start(|seen| page(seen, format!("{} {}", seen.method, seen.target)));
    let server = serve(&origin);
    assert_eq!(ask(&server, "GET", "/page.txt").text(), "a file");
    for (method, target, expected) in [
        ("GET", "/blog/post?a=b", "GET /index.php?q=/blog/post&a=b"),
        ("GET", "/blog", "GET /index.php?q=/blog"),
        ("POST", "/blog?a=b", "POST /index.php?q=/blog&a=b"),
    ] {
        assert_eq!(ask(&server, method, target).text(), expected, "{target}");
    }
    assert_eq!(ask(&server, "GET", "/closed/page.txt").text(), "a file");
    assert_eq!(ask(&server, "GET", "/closed/none").status, 403);
    assert_eq!(
        origin.requests().len(),
        3,
        "the upstream gets nothing that is closed"
    );
}
