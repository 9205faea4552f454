//! The oldest supported kernel, and sandboxes: files, applications, a proxy, a cache, an upgrade, a
//! reload and a stop where recent system calls are missing or forbidden.
//!
//! `filter.py` puts a seccomp filter around the server and its children: Linux 4.19 returns ENOSYS
//! for unknown calls, filters of containers and units EPERM. A log line names each call with a
//! fallback.

use std::os::unix::fs::symlink;

use rustix::process::Signal;

use crate::support::{
    Origin, PATIENCE, Script, Server, Site, eventually, head_of, is_alive, texts,
};

const TOML: &str = r#"
[apps.site]
processes = 2

[apps.ruby]
kind = "rack"
dir = "ruby"
processes = 1

[apps.program]
kind = "command"
command = "python3 program.py {socket}"
processes = 1

[upstreams.origin]
servers = ["ORIGIN"]

[caches.memory]
max_size = "16MiB"

[caches.disk]
path = "stored"
max_size = "64MiB"

[[sites]]
[[sites.routes]]
path = "/ruby"
app = "ruby"
[[sites.routes]]
path = "/program"
app = "program"
[[sites.routes]]
path = "/big"
app = "site"
[[sites.routes]]
path = "/passed/*"
upstream = "origin"
[[sites.routes]]
path = "/memory/*"
upstream = "origin"
cache = { stores = ["memory"] }
[[sites.routes]]
path = "/disk/*"
upstream = "origin"
cache = { stores = ["disk"] }
[[sites.routes]]
files = { root = "public" }
"#;

const PROGRAM: &str = r#"
import http.server, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"program")
    def address_string(self):
        return "unix"
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass
Server(sys.argv[1], Handler).serve_forever()
"#;

/// Bodies that are sent at once, and some that are not.
const ORIGIN_BYTES: [usize; 2] = [100, 700_000];

fn origin() -> Origin {
    Origin::start(|seen| {
        let size: usize = seen.target.rsplit('/').next().unwrap().parse().unwrap();
        let head = head_of("200 OK", "Cache-Control: max-age=600\r\n", size);
        Script::raw([head.as_bytes(), &vec![b'o'; size]].concat()).keep()
    })
}

fn site(origin: &Origin) -> Site {
    let site = Site::with_app()
        .file("public/small.txt", "small")
        .file("public/sub/index.html", "index")
        .file("public/large.bin", vec![b'x'; 3_000_000])
        .file("secret.txt", "secret")
        .file("program.py", PROGRAM)
        .file("ruby/config.ru", "run ->(_) { [200, {}, ['ruby']] }\n")
        .config(&TOML.replace("ORIGIN", &origin.address().to_string()));
    symlink("../secret.txt", site.dir().join("public/out.txt")).unwrap();
    symlink("small.txt", site.dir().join("public/in.txt")).unwrap();
    site
}

/// What a client sees on every kernel.
fn check_service(server: &Server) {
    let rows = [
        ("/small.txt", 200, "small"),
        ("/in.txt", 200, "small"),
        ("/sub/", 200, "index"),
        ("/ruby", 200, "ruby"),
        ("/program", 200, "program"),
    ];
    for (path, status, body) in rows {
        // Twice: a known file is served differently from a new one.
        for _ in 0..2 {
            let got = server.get(path);
            assert_eq!((got.status, got.text().as_str()), (status, body), "{path}");
        }
    }
    for path in [
        "/out.txt",
        "/nothing",
        "/sub/../../secret.txt",
        "/small.txt/x",
    ] {
        let got = server.get(path);
        assert!(
            got.status >= 400 && !got.text().contains("secret"),
            "{path}"
        );
    }
    for size in ORIGIN_BYTES {
        for path in ["passed", "memory", "disk"] {
            // The second comes from the cache.
            for _ in 0..2 {
                let got = server.get(&format!("/{path}/{size}"));
                assert_eq!((got.status, got.body.len()), (200, size), "{path}");
            }
        }
    }
    assert_eq!(server.get("/large.bin").body.len(), 3_000_000);
    assert_eq!(server.get("/big").body.len(), 8 << 20);
}

fn check_life(how: &str, named: &[&str]) {
    let origin = origin();
    let server = site(&origin).serve_filtered(how, &[]);
    server.wait_all_ready(&["site", "ruby", "program"]);
    eventually(PATIENCE, "the caches are in use", || {
        let caches = server.admin_json()["caches"].clone();
        let caches = caches.as_array().unwrap();
        caches.len() == 2 && caches.iter().all(|cache| cache["state"] == "working")
    });
    check_service(&server);
    // Each cached body was requested once, each bypassed one every time.
    assert_eq!(origin.requests().len(), ORIGIN_BYTES.len() * (1 + 1 + 2));
    let log = server.log();
    // Missing isolation of applications is reported separately.
    let is_told = |line: &&str| line.contains("has no") && !line.contains("Landlock");
    let lines: Vec<_> = log.lines().filter(is_told).collect();
    let is_named = |line: &&str| named.iter().all(|name| line.contains(name));
    assert!(lines.len() == 1 && lines.iter().all(is_named), "{log}");

    // A worker that dies is noticed and replaced.
    let old = server.workers("site");
    crate::support::kill(old[0], Signal::KILL);
    eventually(PATIENCE, "a worker follows", || {
        let now = server.workers("site");
        now.len() == 2 && !now.contains(&old[0])
    });

    let admin = format!("127.0.0.1:{}", server.admin_port());
    let run = |verb: &str| {
        let output = server.site().run(&[verb, "--admin", &admin]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{verb}: {:?}",
            texts(&output)
        );
    };
    run("reload");
    check_service(&server);
    let workers = server.workers("site");
    run("upgrade");
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    check_service(&server);
    run("stop");
    eventually(PATIENCE, "no worker is left", || {
        workers.iter().all(|pid| !is_alive(*pid))
    });
}

#[test]
fn linux_4_19_serves_all_there_is() {
    check_life("old", &["openat2", "pidfd_open"]);
}

#[test]
fn a_sandbox_that_forbids_recent_calls_serves_all_there_is() {
    check_life("denied", &["openat2", "pidfd_open"]);
}

#[test]
fn a_sandbox_that_forbids_older_calls_too_serves_all_there_is() {
    let all = [
        "openat2",
        "pidfd_open",
        "statx",
        "memfd_create",
        "sendfile",
        "preadv2",
        "splice",
    ];
    check_life("strict", &all);
}

#[test]
fn a_sandbox_that_forbids_what_nothing_replaces_is_told() {
    let site = Site::new().file("index.html", "a");
    let (status, log) = site.fail_filtered("hopeless");
    assert_eq!(status, Some(1), "{log}");
    assert!(
        log.contains("this sandbox forbids eventfd2") && log.contains("allow"),
        "{log}"
    );
}

#[test]
fn a_hidden_proc_is_named_and_the_rest_serves() {
    let site = Site::new()
        .file("public/a.txt", "a")
        .config("[[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\n");
    let Some(server) = site.serve_with_mounts("mount -t tmpfs none /proc", &[]) else {
        return;
    };
    server.wait_log("/proc is not mounted or hidden");
    assert_eq!(server.get("/a.txt").text(), "a");
}

#[test]
fn a_read_only_file_system_without_temporary_folder_is_named_and_the_rest_serves() {
    let site = Site::new().file("public/a.txt", "a").config(
        "[limits]\ntemp_dir = \"/mnt\"\n\
         [[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\n",
    );
    let mounts = "mount -t tmpfs -o ro none /mnt";
    let Some(server) = site.serve_with_mounts(mounts, &[]) else {
        return;
    };
    server.wait_log("cannot write limits.temp_dir /mnt: Read-only file system");
    assert_eq!(server.get("/a.txt").text(), "a");
}
