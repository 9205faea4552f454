//! Rules for responses: pages for errors of back ends, fields that browsers go by, and changes of
//! fields under conditions.

use crate::support::{Origin, Response, Script, Server, Site, head_of, page};

const TOML: &str = r#"
[server]
threads = 1

[upstreams.back]
servers = ["ADDRESS"]
connections = { max = 1 }

[[sites]]
error_pages = { 404 = "errors/404.html", 5xx = "errors/50x.html" }
intercept_errors = ["404", "503"]
security_headers = true
[[sites.routes]]
path = "/api/*"
upstream = "back"
intercept_errors = false
security_headers = { frame_options = "DENY", referrer_policy = "off" }
[[sites.routes]]
path = "/shop/*"
upstream = "back"
error_pages = { 404 = "errors/shop.html" }
[[sites.routes]]
path = "/closed"
respond = { status = 503, body = "closed" }
[[sites.routes]]
path = "/old"
redirect = "/new"
[[sites.routes]]
path = "/page.txt"
files = { root = "public" }
[[sites.routes]]
path = "/back/*"
upstream = "back"
"#;

fn site(origin: &Origin) -> Site {
    Site::new()
        .config(&TOML.replace("ADDRESS", &origin.address().to_string()))
        .file("errors/404.html", "page 404")
        .file("errors/50x.html", "page 50x")
        .file("errors/shop.html", "shop 404")
        .file("public/page.txt", "text")
}

fn ask(server: &Server, method: &str, path: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\n\r\n"
    ));
    match method {
        "HEAD" => client.expect_head(404),
        _ => client.response(),
    }
}

/// Answers by the last segment of the path: an error with that status, else with the request.
fn back_end() -> Origin {
    Origin::start(|seen| {
        let path = seen.target.split('?').next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let Ok(status) = last.parse::<u16>() else {
            return page(seen, &seen.target);
        };
        let fields = "Retry-After: 7\r\nSet-Cookie: a=b\r\nWWW-Authenticate: Basic realm=\"r\"\r\n\
                      ETag: \"x\"\r\nContent-Type: application/json\r\nX-Frame-Options: ALLOWALL\r\n";
        let body = match seen.method.as_str() {
            "HEAD" => String::new(),
            _ => "x".repeat(40_000),
        };
        let head = head_of(&format!("{status} Error"), fields, 40_000);
        Script::raw(format!("{head}{body}")).keep()
    })
}

#[test]
fn errors_of_back_ends_get_the_pages_of_their_site() {
    let origin = back_end();
    let server = site(&origin).serve(&[]);
    for (path, status, body) in [
        ("/back/404", 404, "page 404"),
        ("/back/503", 503, "page 50x"),
        ("/shop/404", 404, "shop 404"),
        ("/shop/503", 503, "page 50x"),
        ("/closed", 503, "closed"),
        ("/none", 404, "page 404"),
    ] {
        let answer = ask(&server, "GET", path);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (status, body),
            "{path}"
        );
    }
    let answer = ask(&server, "GET", "/back/404");
    assert_eq!(answer.header("Retry-After"), Some("7"));
    assert_eq!(answer.header("Set-Cookie"), Some("a=b"));
    assert_eq!(answer.header("WWW-Authenticate"), Some("Basic realm=\"r\""));
    assert_eq!(answer.header("ETag"), None);
    assert_eq!(
        answer.header("Content-Type"),
        Some("text/html; charset=utf-8")
    );
    // Not of the list, and not of this route.
    for path in ["/back/500", "/api/404"] {
        assert_eq!(ask(&server, "GET", path).text().len(), 40_000, "{path}");
    }
    let head = ask(&server, "HEAD", "/back/404");
    assert_eq!(head.header("Content-Length"), Some("8"));
    // The bodies that were replaced have been read: one connection is enough for all.
    assert_eq!(origin.connections(), 1);
}

#[test]
fn responses_of_every_kind_have_security_headers() {
    let origin = back_end();
    let server = site(&origin).serve(&[]);
    for path in [
        "/page.txt",
        "/page.txt",
        "/none",
        "/old",
        "/closed",
        "/back/x",
    ] {
        let answer = ask(&server, "GET", path);
        for (name, value) in [
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "strict-origin-when-cross-origin"),
            ("X-Frame-Options", "SAMEORIGIN"),
            ("Cross-Origin-Opener-Policy", "same-origin-allow-popups"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
    // The application's own stays.
    assert_eq!(
        ask(&server, "GET", "/back/500").header("X-Frame-Options"),
        Some("ALLOWALL")
    );
    let other = ask(&server, "GET", "/api/x");
    assert_eq!(other.header("X-Frame-Options"), Some("DENY"));
    assert_eq!(other.header("Referrer-Policy"), None);
}

const CHANGES: &str = r#"
[server]
threads = 1

[upstreams.back]
servers = ["ADDRESS"]

[conditions.versioned]
query = { v = "*" }

[[sites]]
[[sites.routes]]
upstream = "back"
request_headers = [
    { default = { X-Kind = "plain" } },
    { when = { method = ["POST"] }, set = { X-Kind = "form" } },
]
response_headers = [
    { replace = { X-Frame-Options = { regex = "^ALLOW(.*)$", with = "NOT-{re.1}" } } },
    { when = ["versioned"], default = { Cache-Control = "immutable", Retry-After = "9" } },
    { status = ["4xx"], set = { X-Error = "{path} {query.q}" } },
]
"#;

#[test]
fn fields_change_under_conditions() {
    let origin = back_end();
    let toml = CHANGES.replace("ADDRESS", &origin.address().to_string());
    let server = Site::new().config(&toml).serve(&[]);
    let missing = ask(&server, "GET", "/404?v=1&q=%0d%0aX-Evil:1");
    assert_eq!(missing.header("X-Frame-Options"), Some("NOT-ALL"));
    assert_eq!(missing.header("Cache-Control"), Some("immutable"));
    assert_eq!(missing.header("Retry-After"), Some("7"));
    assert_eq!(missing.header("X-Error"), Some("/404 %0d%0aX-Evil:1"));
    assert_eq!(missing.header("X-Evil"), None);
    let broken = ask(&server, "GET", "/500");
    assert_eq!(
        (broken.header("X-Error"), broken.header("Cache-Control")),
        (None, None)
    );
    assert_eq!(origin.last().field("X-Kind").as_deref(), Some("plain"));
    ask(&server, "POST", "/x");
    assert_eq!(origin.last().field("X-Kind").as_deref(), Some("form"));
}
