//! Error responses with the page of the request's site.

use std::path::PathBuf;

use penstock_config::HostPattern;
use penstock_exchange::{Fault, FaultKind};

use super::*;
use crate::{ErrorPages, ResponsePolicy};

/// A folder of pages that goes away with it.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> Self {
        let folder = format!("penstock-edge-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Pages that say their own name.
    fn pages(&self, files: &[(u16, &str)]) -> ErrorPages {
        let files = files.iter().map(|(code, name)| {
            let path = self.0.join(name);
            let mut file = std::fs::File::create(&path).unwrap();
            file.write_all(name.as_bytes()).unwrap();
            (*code, path)
        });
        ErrorPages::load(&files.collect()).unwrap()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn failing(kind: FaultKind) -> Arc<dyn Handler> {
    handler_fn(move |_| HandlerProgress::Ready(Err(Fault::new(kind, "because"))))
}

/// An edge for the host `h` only, with these pages.
fn test_edge(error_pages: ErrorPages, development: bool) -> TestEdge {
    let answer = || {
        ready(Response::with_text(
            Status::NOT_FOUND,
            "text/plain",
            "the app's",
        ))
    };
    let routes = vec![
        route("/busy", failing(FaultKind::QueueFull)),
        route("/gone", failing(FaultKind::NotFound)),
        route("/raised", failing(FaultKind::AppRaised)),
        route("/refused", failing(FaultKind::Forbidden)),
        route("/app", handler_fn(move |_| answer())),
    ];
    let policy = ResponsePolicy {
        error_pages: Arc::new(error_pages),
        ..ResponsePolicy::default()
    };
    let mut site = Some(Site::new(routes, Arc::new(policy)));
    TestEdge::with_settings(Vec::new(), |settings| {
        settings.is_development = development;
        settings.routes = RouteTable::default();
        let host = HostPattern::Exact("h".to_owned());
        settings.routes.add_site(&[host], site.take().unwrap());
    })
}

#[test]
fn a_fault_has_the_page_of_its_site() {
    let folder = TestDir::new("site");
    let pages = folder.pages(&[(404, "404.html"), (5, "50x.json"), (503, "busy.txt")]);
    let house = test_edge(pages, false);
    let mut client = house.connect();
    let rows = [
        ("/gone", "404 Not Found", "text/html", "404.html", ""),
        // No route has it.
        ("/else", "404 Not Found", "text/html", "404.html", ""),
        (
            "/raised",
            "500 Internal Server Error",
            "application/json",
            "50x.json",
            "",
        ),
        (
            "/busy",
            "503 Service Unavailable",
            "text/plain",
            "busy.txt",
            "Retry-After: 1\r\n",
        ),
    ];
    for (path, status, media, page, more) in rows {
        let (head, body) = client.get(path).response();
        let length = page.len();
        let expected = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media}; charset=utf-8\r\n\
             Cache-Control: no-store\r\n{more}Content-Length: {length}\r\n\r\n"
        );
        assert_eq!(
            (head.as_str(), body.as_str()),
            (expected.as_str(), page),
            "{path}"
        );
        // The same without the page itself.
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!(client.head(), expected, "{path}");
    }
}

#[test]
fn other_answers_are_sent_as_they_are() {
    let folder = TestDir::new("others");
    let house = test_edge(folder.pages(&[(404, "404.html"), (421, "421.html")]), false);
    let mut client = house.connect();
    let (_, body) = client.get("/app").response();
    assert_eq!(body, "the app's");
    // A status without a page.
    let (head, body) = client.get("/refused").response();
    assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
    assert!(body.contains("403 Forbidden"), "{body}");
    // No site, so no pages.
    client.send("GET /gone HTTP/1.1\r\nHost: other\r\n\r\n");
    let (head, body) = client.response();
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
    assert!(body.contains("421 "), "{body}");
    // A broken request has no site.
    client.send("GET /gone HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n");
    let (head, body) = client.response();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(body.contains("400 "), "{body}");
}

#[test]
fn development_shows_its_own_page() {
    let folder = TestDir::new("development");
    let house = test_edge(folder.pages(&[(5, "50x.html")]), true);
    let (head, body) = house.connect().get("/raised").response();
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    assert!(body.contains("because"), "{body}");
}
