//! A route for `/admin/*` guards a route for all paths: no spelling of `/admin/x` bypasses it,
//! whatever the handler, from clients and from internal redirects.

use crate::support::{Origin, Site, page};

/// Spellings of `/admin/x`, or of a path above the root.
const SPELLINGS: [&str; 33] = [
    "/admin/x",
    "//admin/x",
    "///admin//x",
    "/./admin/x",
    "/.//admin/x",
    "/a/../admin/x",
    "/a/..//admin/x",
    "/a//../admin/x",
    "//a/../admin/x",
    "/a/b/../../admin/x",
    "/admin/./x",
    "/admin/y/../x",
    "/admin/../admin/x",
    "/../admin/x",
    "/..//admin/x",
    "/a/../../admin/x",
    "/%61dmin/x",
    "/admin%2fx",
    "/%2fadmin/x",
    "/%2F%2fadmin%2Fx",
    "/%2e/admin/x",
    "/%2e%2fadmin/x",
    "/%2e%2e/admin/x",
    "/a/%2e%2e/admin/x",
    "/a/.%2e/admin/x",
    "/a/..%2fadmin/x",
    "/a/%2E%2E%2F/admin/x",
    "/a%2f..%2fadmin/x",
    "/a;/../admin/x",
    "/a/..;/admin/x",
    "/a/..%5cadmin/x",
    "/admin%00/x",
    "/admin/x?y=/../..",
];

const APP: &str = "
from urllib.parse import parse_qs

def app(environ, start):
    asked = parse_qs(environ['QUERY_STRING']).get('to', [])
    start('200 OK', [('X-Accel-Redirect', to) for to in asked])
    return [b'app ' + environ['PATH_INFO'].encode('latin-1')]
";

#[test]
fn no_spelling_passes_a_route_in_front_of_another() {
    let origin = Origin::start(|seen| page(seen, format!("origin {}", seen.target)));
    let mut toml = format!(
        "[apps.a]\nentry = \"app:app\"\nprocesses = 1\nsendfile = true\n\
         [upstreams.u]\nservers = [\"{}\"]\n",
        origin.address()
    );
    let all = [
        ("app.test", "app = \"a\""),
        ("upstream.test", "upstream = \"u\""),
        ("files.test", "files = { root = \"public\" }"),
        ("hub.test", "hub = \"{path.1}-{path.2}\""),
    ];
    for (host, behind) in all {
        toml += &format!(
            "[[sites]]\nhosts = [\"{host}\"]\n[[sites.routes]]\npath = \"/admin/*\"\n\
             files = {{ root = \"guard\" }}\n[[sites.routes]]\npath = \"/redirects\"\n\
             app = \"a\"\n[[sites.routes]]\npath = \"/*\"\n{behind}\n"
        );
    }
    let site = Site::new().file("app.py", APP).config(&toml);
    let site = site.file("guard/admin/x", "guard");
    let site = site
        .file("public/admin/x", "secret")
        .file("public/open", "open");
    let server = site.serve(&[]);
    server.wait_ready("a");
    let ask = |host: &str, target: &str| {
        let mut client = server.connect();
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ));
        client
    };
    let encoded = |target: &str| {
        let encoded = target.replace('%', "%25");
        encoded.replace('?', "%3f").replace(';', "%3b")
    };
    for (host, _) in all {
        for target in SPELLINGS {
            let redirects = format!("/redirects?to={}", encoded(target));
            for asked in [target, &redirects] {
                let answer = ask(host, asked).response();
                let is_guarded = answer.status == 200 && answer.text() == "guard";
                // The file handler does not decode an encoded slash: a 404 of the guard's own root.
                let is_refused = matches!(answer.status, 400 | 404 | 502);
                assert!(is_guarded || is_refused, "{host} {asked}: {answer:?}");
            }
        }
    }
    assert!(origin.requests().is_empty(), "{:?}", origin.lines());
    // Other paths do get through.
    for (host, expected) in [
        ("app.test", "app /open"),
        ("upstream.test", "origin /open"),
        ("files.test", "open"),
    ] {
        assert_eq!(ask(host, "/open").expect_status(200).text(), expected);
        let redirected = ask(host, "/redirects?to=/open").expect_status(200);
        assert_eq!(redirected.text(), expected, "{host}");
    }
}
