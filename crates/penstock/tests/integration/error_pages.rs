//! A site's own error pages: they replace the server's, are read at start and at a reload, and are
//! refused if they could not be sent.

use crate::support::{PATIENCE, Response, Server, Site, eventually, texts};

const TOML: &str = r#"
[server]
threads = 1

[[sites]]
error_pages = { 404 = "errors/404.html", 5xx = "errors/50x.json" }
[[sites.routes]]
path = "/app/*"
upstream = "down"
[[sites.routes]]
path = "/closed"
respond = { status = 404 }
[[sites.routes]]
path = "/said"
respond = { status = 404, body = "said" }
[[sites.routes]]
files = { root = "public" }

[upstreams.down]
servers = ["unix:nobody.sock"]
"#;

fn site() -> Site {
    Site::new()
        .config(TOML)
        .file("public/index.html", "here")
        .file("errors/404.html", "not here")
        .file("errors/50x.json", "{}")
}

fn ask(server: &Server, path: &str) -> Response {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client.response()
}

#[test]
fn the_servers_own_errors_have_the_pages_of_the_site() {
    let server = site().serve(&[]);
    let missing = ask(&server, "/none.txt");
    assert_eq!((missing.status, missing.text().as_str()), (404, "not here"));
    let broken = ask(&server, "/app/x");
    assert_eq!((broken.status, broken.text().as_str()), (502, "{}"));
    assert_eq!(ask(&server, "/closed").text(), "not here");
    assert_eq!(ask(&server, "/said").text(), "said");
    // The page is read again with the configuration.
    server.site().write("errors/404.html", "still not here");
    assert_eq!(ask(&server, "/none.txt").text(), "not here");
    server.signal(rustix::process::Signal::HUP);
    eventually(PATIENCE, "the new page", || {
        ask(&server, "/none.txt").text() == "still not here"
    });
}

#[test]
fn what_start_could_not_load_is_refused_by_check() {
    let site = site();
    let accepted = site.run(&["check", "--config-only"]);
    assert!(accepted.status.success(), "{:?}", texts(&accepted));
    std::fs::remove_file(site.dir().join("errors/404.html")).unwrap();
    for verb in ["check", "serve"] {
        let refused = site.run(&[verb]);
        let (_, stderr) = texts(&refused);
        assert!(!refused.status.success(), "{verb}");
        assert!(
            stderr.contains("errors/404.html does not exist"),
            "{verb}: {stderr}"
        );
    }
}
