//! What operators see of requests: their ids, the access log, metrics and traces.
//!
//! This file has the shared parts: the log's lines and the environment of an application.

mod access_logs;
mod monitoring;
mod request_ids;
mod traces;

use crate::support::{PATIENCE, Server, eventually};

/// An application that shows one variable of its environment, named by the query, or fails.
const APP: &str = r#"
def app(environ, start):
    if environ["PATH_INFO"] == "/fail":
        raise ValueError("broken on purpose")
    start("200 OK", [("Content-Type", "text/plain")])
    return [environ.get(environ["QUERY_STRING"], "-").encode()]
"#;

/// The lines of a file of the site, once there are `count`.
fn log_lines(server: &Server, file: &str, count: usize) -> Vec<String> {
    eventually(PATIENCE, &format!("{count} lines in {file}"), || {
        let text = std::fs::read_to_string(server.site().dir().join(file)).unwrap_or_default();
        let is_whole = text.lines().count() >= count && text.ends_with('\n');
        is_whole.then(|| text.lines().map(str::to_owned).collect())
    })
}

/// The same as JSON.
fn json_lines(server: &Server, file: &str, count: usize) -> Vec<serde_json::Value> {
    let lines = log_lines(server, file, count);
    let parsed = lines.iter().map(|line| serde_json::from_str(line));
    parsed.collect::<Result<_, _>>().unwrap()
}
