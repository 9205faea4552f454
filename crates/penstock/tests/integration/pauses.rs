//! Traffic that is held back or refused for a while: `pause`, `resume`, `maintenance`.

use std::time::Instant;

use crate::support::{Origin, PATIENCE, Response, Script, Server, Site, eventually, page, texts};

/// Runs a verb at the server's control socket; its output, or its error.
fn run(server: &Server, arguments: &[&str]) -> Result<String, String> {
    let admin = format!("unix:{}", server.control_path().display());
    let done = server
        .site()
        .run(&[arguments, &["--admin", &admin]].concat());
    let (out, error) = texts(&done);
    match done.status.success() {
        true => Ok(out),
        false => Err(error),
    }
}

fn pauses(server: &Server) -> Vec<serde_json::Value> {
    server.admin_json()["pauses"].as_array().unwrap().clone()
}

fn wait_waiting(server: &Server, count: u64) {
    eventually(PATIENCE, "requests wait", || {
        pauses(server)[0]["waiting"] == count
    });
}

fn proxied(origin: &Origin, more: &str) -> String {
    format!(
        "[server]\nthreads = 2\n[upstreams.api]\nservers = [\"{}\"]\nqueue = {{ max = 2 }}\n\
         [[sites]]\n[[sites.routes]]\nupstream = \"api\"\n{more}",
        origin.address()
    )
}

#[test]
fn new_requests_wait_for_a_paused_upstream_and_those_in_progress_finish() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/slow" => Script::early()
            .gate("slow")
            .send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nslow"),
        _ => page(seen, "fast"),
    });
    let server = Site::new().config(&proxied(&origin, "")).serve(&[]);
    let begin = |path: &str| {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    };
    let mut slow = begin("/slow");
    origin.wait_at("slow", 1);
    let said = run(&server, &["pause", "api", "--for", "60s"]).unwrap();
    assert!(
        said.starts_with("upstream api is paused: new requests wait"),
        "{said}"
    );
    let mut waiting = [begin("/1"), begin("/2")];
    wait_waiting(&server, 2);
    // The queue has no more room.
    let full = server.get("/3");
    assert_eq!((full.status, full.header("Retry-After")), (503, Some("5")));
    origin.open_gate("slow");
    assert_eq!(slow.response().text(), "slow");
    assert_eq!(origin.lines(), ["GET /slow"]);
    // A reload keeps the pause and what waits.
    server.site().write(
        "penstock.toml",
        format!("{}# changed\n", proxied(&origin, "")),
    );
    assert_eq!(server.admin("POST", "/reload").status, 200);
    let status = run(&server, &["status"]).unwrap();
    assert!(status.contains("upstream api is paused for "), "{status}");
    assert!(status.contains("2 requests wait (at most 2)"), "{status}");
    let said = run(&server, &["resume", "api"]).unwrap();
    assert_eq!(
        said.trim_end(),
        "upstream api is resumed, 2 requests waited"
    );
    for client in &mut waiting {
        assert_eq!(client.response().text(), "fast");
    }
    assert_eq!(pauses(&server).len(), 0);
    for (arguments, expected) in [
        (&["resume", "api"][..], "upstream api is not paused"),
        (
            &["pause", "ap"],
            "there is no application or upstream named ap",
        ),
    ] {
        let error = run(&server, arguments).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn after_the_time_of_a_pause_requests_get_503_until_resume() {
    let server = Site::with_app().serve(&["--processes", "1"]);
    server.wait_ready("site");
    let name = server.admin_json()["apps"][0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    run(&server, &["pause", &name, "--for", "300ms"]).unwrap();
    let begun = Instant::now();
    let refused = server.get("/");
    assert_eq!(
        (refused.status, refused.header("Retry-After")),
        (503, Some("5"))
    );
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(server.get("/").status, 503);
    let status = run(&server, &["status"]).unwrap();
    assert!(status.contains("new requests get 503"), "{status}");
    run(&server, &["resume", &name]).unwrap();
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn an_upgrade_keeps_pauses_and_maintenance() {
    let origin = Origin::named("api");
    let more = "path = \"/api/*\"\n[[sites.routes]]\nrespond = { body = \"here\" }\n\
                [[sites]]\nhosts = [\"b.test\"]\n[[sites.routes]]\nrespond = { body = \"b\" }\n";
    let server = Site::new().config(&proxied(&origin, more)).serve(&[]);
    run(&server, &["pause", "api", "--for", "10m"]).unwrap();
    run(&server, &["maintenance", "on", "--site", "b.test"]).unwrap();
    let mut waiting = server.connect();
    waiting.send("GET /api/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_waiting(&server, 1);
    run(&server, &["upgrade"]).unwrap();
    // The old process hears no `resume`.
    let refused = waiting.response();
    assert_eq!(
        (refused.status, refused.header("Retry-After")),
        (503, Some("5"))
    );
    let paused = pauses(&server);
    assert_eq!(paused[0]["name"], "api");
    let left = paused[0]["remaining_seconds"].as_f64().unwrap();
    assert!((500.0..600.0).contains(&left), "{left}");
    let of = |host: &str, path: &str| {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response()
    };
    assert_eq!((of("b.test", "/").status, of("a", "/").status), (503, 200));
    run(&server, &["resume", "api"]).unwrap();
    assert_eq!(of("a", "/api/2").status, 200);
    assert_eq!(origin.lines(), ["GET /api/2"]);
}

#[test]
fn maintenance_refuses_all_but_some_clients() {
    let toml = r#"
[[sites]]
hosts = ["a.test", "*.a.test"]
error_pages = { 503 = "closed.html" }
[[sites.routes]]
files = { root = "public" }
[[sites]]
[[sites.routes]]
respond = { body = "other" }
"#;
    let site = Site::new()
        .config(toml)
        .file("public/index.html", "open")
        .file("closed.html", "back soon");
    let server = site.serve(&[]);
    let of = |host: &str, client: &str| -> Response {
        let mut connection = server.connect();
        connection.send(format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\n\r\n"
        ));
        connection.response()
    };
    assert_eq!(of("a.test", "192.0.2.1").text(), "open");
    let on = [
        "maintenance",
        "on",
        "--site",
        "*.a.test",
        "--allow",
        "10.0.0.0/8",
    ];
    run(
        &server,
        &[&on[..], &["--allow", "192.0.2.7", "--retry-after", "2m"]].concat(),
    )
    .unwrap();
    let closed = of("www.a.test", "192.0.2.1");
    assert_eq!((closed.status, closed.text().as_str()), (503, "back soon"));
    assert_eq!(closed.header("Retry-After"), Some("120"));
    for (host, client, status) in [
        ("a.test", "192.0.2.1", 503),
        ("a.test", "10.9.9.9", 200),
        ("a.test", "192.0.2.7", 200),
        ("else", "192.0.2.1", 200),
    ] {
        assert_eq!(of(host, client).status, status, "{host} {client}");
    }
    server
        .site()
        .write("penstock.toml", format!("{toml}# changed\n"));
    assert_eq!(server.admin("POST", "/reload").status, 200);
    assert_eq!(of("a.test", "192.0.2.1").status, 503);
    let maintenance = &server.admin_json()["maintenance"];
    assert_eq!(maintenance["rules"][0]["site"], "*.a.test");
    assert_eq!(maintenance["refused"], 3);
    let status = run(&server, &["status"]).unwrap();
    let expected = "maintenance of *.a.test: clients get 503, but for 10.0.0.0/8, 192.0.2.7";
    assert!(status.contains(expected), "{status}");
    run(&server, &["maintenance", "on"]).unwrap();
    let other = of("else", "10.9.9.9");
    assert_eq!(
        (other.status, other.header("Retry-After")),
        (503, Some("600"))
    );
    // The site's own rule comes first.
    assert_eq!(of("a.test", "10.9.9.9").status, 200);
    run(&server, &["maintenance", "off"]).unwrap();
    assert_eq!(of("a.test", "192.0.2.1").text(), "open");
    for (arguments, expected) in [
        (&["maintenance", "off"][..], "no rule for all sites is on"),
        (
            &["maintenance", "on", "--site", "b.test"],
            "no site with the host `b.test`",
        ),
        (
            &["maintenance", "on", "--allow", "10.0.0.0/99"],
            "`allow` cannot be used",
        ),
        (
            &["maintenance", "on", "--retry-after", "soon"],
            "expected a time",
        ),
    ] {
        let error = run(&server, arguments).unwrap_err();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert_eq!(of("a.test", "192.0.2.1").status, 200);
    assert!(server.log().contains("maintenance: on (site=*.a.test"));
}
