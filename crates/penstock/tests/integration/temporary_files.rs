//! All temporary files together stay within their limit, whichever client fills them: responses
//! then wait for their clients, bodies are refused, and others are served.

use std::path::PathBuf;
use std::time::Instant;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_server_hidden};

const APP: &str = r#"
PIECE = bytes(range(256)) * 256

def app(environ, start):
    body = environ["wsgi.input"]
    size = 0
    while piece := body.read(65536):
        size += len(piece)
    if environ["PATH_INFO"] == "/large":
        start("200 OK", [("Content-Length", str(len(PIECE) * 320))])
        return (PIECE for _ in range(320))
    text = str(size).encode()
    start("200 OK", [("Content-Length", str(len(text)))])
    return [text]
"#;

/// The length of the large response: 20 MiB.
const LARGE: usize = 320 * 65536;

const BOUND: u64 = 4 << 20;

fn serve(limits: &str) -> Server {
    let toml = format!(
        "[limits]\n{limits}\n[apps.site]\nentry = \"slow:app\"\nkind = \"wsgi\"\n\
         processes = 1\nthreads = 24\n[[sites]]\n[[sites.routes]]\n\
         files = {{ root = \"public\" }}\napp = \"site\"\n"
    );
    let site = Site::new()
        .file("slow.py", APP)
        .file("public/a.txt", "a file")
        .config(&toml);
    let server = site.serve(&[]);
    server.wait_ready("site");
    server
}

/// Disk usage of a server's unnamed files.
fn nameless_bytes(server: &Server) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let folder = format!("/proc/{}/fd", server.pid());
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_nameless = |path: &PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        let target = target.to_string_lossy().into_owned();
        target.ends_with("(deleted)") && !target.contains("memfd:")
    };
    let files = files.map(|entry| entry.path()).filter(is_nameless);
    let sizes = files.filter_map(|path| std::fs::metadata(path).ok());
    sizes.map(|found| found.blocks() * 512).sum()
}

fn used(server: &Server) -> f64 {
    let metric = "penstock_limit_used{limit=\"limits.temp_bytes\"}";
    server.metric(metric).unwrap_or(f64::NAN)
}

#[test]
fn clients_that_take_nothing_fill_temporary_files_to_their_bound_only() {
    if is_server_hidden() {
        return;
    }
    let server = serve("temp_bytes = \"4MiB\"\nresponse_memory = \"16KiB\"");
    let mut slow: Vec<RawClient> = (0..20)
        .map(|_| {
            let mut client = server.connect();
            client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        })
        .collect();
    server.wait_log("responses wait for their clients: limits.temp_bytes has no room");
    let until = Instant::now() + PATIENCE / 20;
    let mut most = 0;
    while Instant::now() < until {
        most = most.max(nameless_bytes(&server));
        // Others are served: files, and by the same application.
        assert_eq!(server.get("/a.txt").text(), "a file");
        assert_eq!(server.get("/").text(), "0");
        let mut client = server.connect();
        let body = "x".repeat(100_000);
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{body}"
        ));
        assert_eq!(client.expect_status(200).text(), "100000");
    }
    assert!(most > 0 && most <= BOUND, "{most} bytes");
    // It waited, and nothing of it is lost.
    for client in slow.drain(..2) {
        let body = { client }.expect_status(200).body;
        assert_eq!(body.len(), LARGE);
        let wrong = (0..).zip(&body).find(|&(at, &got)| got != (at % 256) as u8);
        assert_eq!(wrong, None);
    }
    let reached = server.metric("penstock_limit_reached_total{limit=\"limits.temp_bytes\"}");
    assert!(reached.is_some_and(|count| count >= 1.0));
    drop(slow);
    eventually(PATIENCE, "all is given back", || {
        used(&server) == 0.0 && nameless_bytes(&server) == 0
    });
}

#[test]
fn a_body_without_room_is_refused_and_the_next_is_not() {
    let server = serve("temp_bytes = \"1MiB\"\nbody_memory = \"16KiB\"");
    let post = |length: usize| {
        let mut client = server.connect();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        // It may be refused before everything is sent.
        let _ = client.try_send(head + &"x".repeat(length));
        client
    };
    assert_eq!(post(300_000).expect_status(200).text(), "300000");
    let refused = post(3_000_000).expect_status(503);
    assert!(refused.header("retry-after").is_some());
    server.wait_log(
        "503 POST /: request body: no temporary file for it: limits.temp_bytes has no room",
    );
    eventually(PATIENCE, "it is given back", || used(&server) == 0.0);
    assert_eq!(post(300_000).expect_status(200).text(), "300000");
}

#[test]
fn a_check_names_a_folder_in_memory() {
    let site = Site::new()
        .file("public/a.txt", "a")
        .config("[limits]\ntemp_dir = \"/dev/shm\"\n[[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\n");
    let output = site.run(&["check"]);
    let (_, errors) = crate::support::texts(&output);
    assert!(
        errors.contains("limits.temp_dir: /dev/shm is in memory (tmpfs)"),
        "{errors}"
    );
    assert!(output.status.success());
}
