//! The metrics of routes, and the dashboards and alert rules of `docs/monitoring`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::APP;
use crate::support::{Origin, PATIENCE, Server, Site, eventually, page};

fn monitoring(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/monitoring")
        .join(file)
}

/// A server with all that has metrics of its own.
fn serve(origin: &Origin) -> Server {
    let toml = format!(
        "[server]\nthreads = 2\nroute_metrics = true\n\
         [apps.shop]\nkind = \"wsgi\"\nentry = \"app:app\"\nprocesses = 1\n\
         [upstreams.b]\nservers = [\"{}\"]\n\
         [caches.c]\npath = \"cache\"\nmax_size = \"64MiB\"\n\
         [[sites]]\nhosts = [\"a.test\", \"b.test\"]\n\
         [[sites.routes]]\npath = \"/origin/*\"\nupstream = \"b\"\ncache = [\"c\"]\n\
         rate_limit = \"1000/s\"\n\
         [[sites.routes]]\npath = \"/gone\"\nrespond = {{ status = 410 }}\n\
         [[sites]]\n[[sites.routes]]\napp = \"shop\"\n",
        origin.address()
    );
    let server = Site::new().config(&toml).file("app.py", APP).serve(&[]);
    server.wait_ready("shop");
    server
}

fn ask(server: &Server, host: &str, target: &str) -> u16 {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.response().status
}

/// Runs promtool with a text on its input.
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, which scripts/setup installs");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let done = child.wait_with_output().unwrap();
    let text = [done.stdout, done.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(done.status.success(), "{text:?}");
    text.concat()
}

#[test]
fn routes_are_counted_by_their_names_in_the_configuration() {
    let origin = Origin::start(|seen| page(seen, "origin"));
    let server = serve(&origin);
    for (host, target, status) in [
        ("b.test", "/origin/1", 200),
        ("a.test", "/origin/2?random=3", 200),
        ("a.test", "/gone", 410),
        ("other", "/?REQUEST_METHOD", 200),
        ("other", "/fail", 500),
        ("a.test", "/none", 404),
    ] {
        assert_eq!(ask(&server, host, target), status, "{host} {target}");
    }
    let counted = |text: &str| {
        let lines = text.lines();
        let lines = lines.filter(|line| line.starts_with("penstock_route_responses_total"));
        let counted = lines.filter(|line| !line.ends_with(" 0"));
        counted.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually(PATIENCE, "all are counted", || {
        counted(&server.admin("GET", "/metrics").text())
            == [
                "penstock_route_responses_total{site=\"a.test\",route=\"/origin/*\",class=\"2xx\"} 2",
                "penstock_route_responses_total{site=\"a.test\",route=\"/gone\",class=\"4xx\"} 1",
                "penstock_route_responses_total{site=\"*\",route=\"/*\",class=\"2xx\"} 1",
                "penstock_route_responses_total{site=\"*\",route=\"/*\",class=\"5xx\"} 1",
            ]
    });
    let before = counted(&server.admin("GET", "/metrics").text());
    assert_eq!(server.admin_json()["routes"][0]["duration"]["count"], 2);
    let mut control = server.control();
    control.send("POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(control.response().status, 200);
    assert_eq!(
        counted(&server.admin("GET", "/metrics").text()),
        before,
        "a reload keeps them"
    );
    let text = server.admin("GET", "/metrics").text();
    promtool(&["check", "metrics"], &text);
}

#[test]
fn dashboards_and_alerts_use_metrics_that_there_are() {
    let origin = Origin::start(|seen| page(seen, "origin"));
    let server = serve(&origin);
    ask(&server, "a.test", "/origin/1");
    let text = server.admin("GET", "/metrics").text();
    let known: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let rules = monitoring("alerts.yml");
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    let rules = std::fs::read_to_string(rules).unwrap();
    let dashboard = std::fs::read_to_string(monitoring("grafana-dashboard.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
    let mut used = 0;
    for (name, text) in [("alerts", &rules), ("dashboard", &dashboard)] {
        let starts = text.match_indices("penstock_").map(|(at, _)| &text[at..]);
        for rest in starts {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let metric = &rest[..end.unwrap_or(rest.len())];
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| metric.strip_suffix(suffix))
                .unwrap_or(metric);
            // There is none before a listener has TLS.
            let needs_tls = family == "penstock_certificate_expiry_seconds";
            assert!(
                needs_tls || known.contains(family),
                "{name}: {metric} of {known:?}"
            );
            used += 1;
        }
    }
    assert!(used > 50, "{used}");
}
