//! The probe listener: requests of orchestrators and Prometheus succeed with any host name, others
//! do not, and it listens from the start to the end of the last request.

use rustix::process::Signal;

use crate::support::{
    Origin, PATIENCE, RawClient, Response, Script, Server, Site, eventually, is_alive, kill,
    last_page, texts,
};

fn site(origin: &Origin) -> Site {
    Site::new().config(&format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\nprobes = \"127.0.0.1:0\"\n\
         shutdown_timeout = \"30s\"\n\
         [upstreams.b]\nservers = [\"{}\"]\n",
        origin.address()
    ))
}

fn port(server: &Server) -> u16 {
    let find = || {
        let lines = server.announced();
        let line = lines.iter().find_map(|line| line.strip_prefix("probes "))?;
        line.rsplit(':').next()?.parse().ok()
    };
    let mut found = None;
    eventually(PATIENCE, "the listener for probes is announced", || {
        found = find();
        found.is_some()
    });
    found.unwrap()
}

fn ask(port: u16, method: &str, path: &str) -> Response {
    let mut client = RawClient::connect(port);
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: node-7.cluster.example:9090\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    ));
    client.try_response(method == "HEAD").unwrap()
}

#[test]
fn health_readiness_and_metrics_are_answered_and_nothing_else() {
    let origin = Origin::named("b");
    let server = site(&origin).serve(&[]);
    let port = port(&server);
    eventually(PATIENCE, "it is ready", || {
        ask(port, "GET", "/readyz").status == 200
    });
    assert_eq!(ask(port, "GET", "/healthz").text(), "ok\n");
    assert_eq!(ask(port, "HEAD", "/healthz").status, 200);
    assert!(
        ask(port, "GET", "/metrics")
            .text()
            .contains("penstock_uptime_seconds")
    );
    for path in [
        "/",
        "/status.json",
        "/events",
        "/nothing",
        "/healthz/",
        "/metrics/../stop",
    ] {
        assert_eq!(ask(port, "GET", path).status, 404, "{path}");
    }
    for path in [
        "/stop",
        "/reload",
        "/publish/",
        "/apps/a/restart",
        "/cache/purge",
    ] {
        assert_eq!(ask(port, "POST", path).status, 404, "{path}");
    }
    assert_eq!(ask(port, "POST", "/healthz").status, 405);
    let listeners = server.admin_json()["listeners"].to_string();
    assert!(listeners.contains(&port.to_string()), "{listeners}");
}

#[test]
fn an_upgrade_hands_it_over_and_a_stop_says_not_ready_until_the_last_request_is_done() {
    let origin = Origin::start(|seen| match &*seen.target {
        "/slow" => Script::raw("")
            .gate("slow")
            .send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow"),
        _ => last_page("page"),
    });
    let server = site(&origin).serve(&[]);
    let port = port(&server);
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server.site().run(&["upgrade", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    server.wait_exit(PATIENCE);
    eventually(PATIENCE, "the next one is ready", || {
        ask(port, "GET", "/readyz").status == 200
    });

    let mut client = RawClient::connect(server.port());
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    origin.wait_at("slow", 1);
    let next: i32 = server.admin_json()["pid"]
        .as_i64()
        .unwrap()
        .try_into()
        .unwrap();
    kill(next, Signal::TERM);
    eventually(PATIENCE, "it says that it stops", || {
        ask(port, "GET", "/readyz").status == 503
    });
    assert_eq!(ask(port, "GET", "/healthz").status, 200);
    origin.open_gate("slow");
    assert_eq!(client.response().text(), "slow");
    eventually(PATIENCE, "it is gone", || !is_alive(next));
}
