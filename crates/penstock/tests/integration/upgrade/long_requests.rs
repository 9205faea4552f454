//! Long requests have their own time limit: after an upgrade, and after a reload that has replaced
//! their application, they continue in their worker while all other workers of the old code end.

use super::{SuccessorProcess, upgrade};
use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_alive};

/// `/events` sends `begun`, and `done` once the file `end` exists.
const APP: &str = r#"
import asyncio, os

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    streams = scope["path"] == "/events"
    kind = b"text/event-stream" if streams else b"text/plain"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if streams:
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while not os.path.exists("end"):
            await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"done"})
"#;

/// A stop waits for 200 ms.
fn toml(server: &str, app: &str) -> String {
    format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nshutdown_timeout = \"200ms\"\n{server}\n\
         [apps.site]\nkind = \"asgi\"\nprocesses = 2\n{app}\n"
    )
}

/// A server with an active stream, and its workers.
fn serve(more: &str) -> (Server, RawClient, Vec<i32>) {
    let server = Site::new()
        .file("app.py", APP)
        .config(&toml(more, ""))
        .serve(&[]);
    server.wait_ready("site");
    let mut stream = server.connect();
    stream.send("GET /events HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.expect_head(200);
    let workers = server.workers("site");
    assert_eq!(workers.len(), 2);
    (server, stream, workers)
}

/// Waits until only the streaming one of the old workers is left, longer than a stop would leave
/// it.
fn wait_until_one_is_left(workers: &[i32]) -> i32 {
    eventually(PATIENCE, "the idle one ends", || {
        workers.iter().any(|pid| !is_alive(*pid))
    });
    let left: Vec<i32> = workers
        .iter()
        .copied()
        .filter(|pid| is_alive(*pid))
        .collect();
    assert_eq!(left.len(), 1, "what streams goes on");
    left[0]
}

fn finish(server: &Server, mut stream: RawClient, worker: i32) {
    server.site().write("end", "");
    let rest = stream.read_to_end();
    let rest = String::from_utf8_lossy(&rest);
    assert!(
        rest.contains("done") && rest.ends_with("0\r\n\r\n"),
        "{rest}"
    );
    eventually(PATIENCE, "its worker ends", || !is_alive(worker));
}

#[test]
fn a_stream_outlives_the_time_of_a_stop_after_an_upgrade() {
    let (server, stream, workers) = serve("");
    assert_eq!(upgrade(&server, &[]).0, Some(0), "{}", server.log());
    let successor = SuccessorProcess::of(&server);
    let left = wait_until_one_is_left(&workers);
    server.wait_log("stopping: waiting for long requests and streams (connections=1)");
    assert!(server.exited().is_none());
    finish(&server, stream, left);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    successor.end();
}

#[test]
fn a_stop_of_the_new_server_ends_the_old_one_in_the_time_of_a_stop() {
    let (server, mut stream, workers) = serve("");
    assert_eq!(upgrade(&server, &[]).0, Some(0), "{}", server.log());
    let successor = SuccessorProcess::of(&server);
    wait_until_one_is_left(&workers);
    successor.end();
    server.wait_log("stopping: remaining time reduced to 200ms");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    let cut = stream.read_to_end();
    assert!(
        !String::from_utf8_lossy(&cut).contains("done"),
        "it was cut"
    );
    assert!(!workers.into_iter().any(is_alive));
}

#[test]
fn a_stream_outlives_the_replacement_of_its_application_by_a_reload() {
    let brief = "upgrade_timeout = \"200ms\"";
    let (server, stream, workers) = serve(brief);
    server
        .site()
        .write("penstock.toml", toml(brief, "env = { VERSION = \"2\" }"));
    assert_eq!(
        server.admin("POST", "/reload").status,
        200,
        "{}",
        server.log()
    );
    server.wait_log("application site replaced");
    let left = wait_until_one_is_left(&workers);
    finish(&server, stream, left);
}
