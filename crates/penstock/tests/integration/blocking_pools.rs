//! A full pool reports its name and keeps no request waiting.

use crate::support::{PATIENCE, RawClient, Response, Server, Site, eventually};

/// A directory with so many files that listing it takes a while.
const FILES: usize = 4_000;

const TOML: &str = r#"
[server]
threads = 2
access_log = { path = "access.log", format = "json" }

[blocking.narrow]
threads = 1
max_queue = 0

[[sites]]
[[sites.routes]]
path = "/*"
files = { root = "public", listing = true, blocking = "narrow" }
"#;

fn site() -> Site {
    let site = Site::new().config(TOML).file("public/index.txt", "here");
    let folder = site.dir().join("public/many");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..FILES {
        std::fs::write(folder.join(format!("{number}.txt")), "").unwrap();
    }
    site
}

/// Requests the list on this many connections at once.
fn ask_at_once(server: &Server, count: usize) -> Vec<Response> {
    let mut clients: Vec<RawClient> = (0..count).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("GET /many/ HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    clients.iter_mut().map(RawClient::response).collect()
}

fn pool(server: &Server, name: &str) -> serde_json::Value {
    let status = server.admin_json();
    let pools = status["pools"].as_array().unwrap();
    let found = pools.iter().find(|pool| pool["name"] == name);
    found.expect("the pool in the status").clone()
}

#[test]
fn work_beyond_a_pool_without_a_queue_is_refused_with_its_name() {
    let server = site().serve(&[]);
    let refused = eventually(PATIENCE, "more than the pool takes at once", || {
        let answers = ask_at_once(&server, 20);
        let (listed, refused): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.status == 200);
        assert!(!listed.is_empty(), "one at a time is taken");
        for answer in listed {
            assert!(answer.text().contains("3999.txt"));
        }
        (!refused.is_empty()).then_some(refused)
    });
    for answer in &refused {
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(!answer.text().contains("narrow"), "a client sees no names");
    }
    server.wait_log("blocking pool `narrow` is full");
    let pool = pool(&server, "narrow");
    assert_eq!(
        (&pool["max_threads"], &pool["max_queued"]),
        (&1.into(), &0.into())
    );
    assert!(
        pool["refused"].as_u64() >= Some(refused.len() as u64),
        "{pool}"
    );
    let metric = "penstock_pool_jobs_refused_total{pool=\"narrow\"}";
    assert!(server.metric(metric) > Some(0.0));
    // The others are unaffected.
    eventually(PATIENCE, "it takes work again", || {
        ask_at_once(&server, 1)[0].status == 200
    });
}

#[test]
fn gauges_say_what_pools_have_done() {
    let server = site().serve(&[]);
    eventually(PATIENCE, "a list", || {
        ask_at_once(&server, 1)[0].status == 200
    });
    eventually(PATIENCE, "the job is counted", || {
        let pool = pool(&server, "narrow");
        let done = pool["run_time"]["count"].as_u64() >= Some(1);
        done && pool["run_time"]["sum_seconds"].as_f64() > Some(0.0) && pool["active_threads"] == 0
    });
    assert!(pool(&server, "default").is_object());
}

/// A large file in `public`, from one loop.
fn with_a_large_file(server: &str) -> Site {
    let toml = format!(
        "[server]\nthreads = 1\n{server}\n[[sites]]\n[[sites.routes]]\nfiles = {{ root = \"public\" }}"
    );
    Site::new()
        .config(&toml)
        .file("public/large.bin", large())
        .file("temp/x", "")
}

fn large() -> Vec<u8> {
    (0..3_000_000_u32).map(|n| (n % 249) as u8).collect()
}

/// Requests the file, which is in memory, again and again. The pool checks residency when it is new
/// each time; then it has next to nothing to do, and the file is sent by reference.
fn is_sent_from_memory(server: &Server, what: &str) {
    const REQUESTS: u64 = 10;
    const CHUNKS: u64 = 6;
    let jobs = || {
        pool(server, "default")["run_time"]["count"]
            .as_u64()
            .unwrap()
    };
    // The kernel counts bytes sent by `sendfile`, but not bytes written to sockets.
    let sent = || {
        let io = std::fs::read_to_string(format!("/proc/{}/io", server.pid())).unwrap_or_default();
        let sent = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        sent.and_then(|sent| sent.parse::<u64>().ok())
    };
    let large = large();
    eventually(4 * PATIENCE, what, || {
        let (jobs_before, sent_before) = (jobs(), sent());
        for _ in 0..REQUESTS {
            assert!(server.get("/large.bin").body == large, "{what}");
        }
        let sent = sent().zip(sent_before).map(|(sent, before)| sent - before);
        let is_sent = sent.is_none_or(|sent| sent > REQUESTS * large.len() as u64 * 3 / 4);
        is_sent && jobs() - jobs_before < REQUESTS * CHUNKS / 3
    });
}

#[test]
fn files_of_others_are_sent_from_memory_too() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("left out: only root can become another");
    }
    let site = with_a_large_file("user = \"12345:12346\"");
    for folder in [site.dir().parent().unwrap(), site.dir()] {
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder, all).unwrap();
    }
    is_sent_from_memory(&site.serve(&[]), "of root, to another");
}

#[test]
fn files_in_layers_are_sent_from_memory_too() {
    const LAYERS: &str = "mount -t tmpfs none temp && mkdir temp/upper temp/work && \
        mount -t overlay overlay -o lowerdir=public,upperdir=temp/upper,workdir=temp/work public";
    let site = with_a_large_file("");
    if let Some(server) = site.serve_with_mounts(LAYERS, &[]) {
        is_sent_from_memory(&server, "in layers, to the owner");
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("left out: only root can give a file away");
    }
    // Its owner does not exist in the user namespace.
    let site = with_a_large_file("");
    let file = site.dir().join("public/large.bin");
    std::os::unix::fs::chown(file, Some(12345), Some(12346)).unwrap();
    if let Some(server) = site.serve_with_mounts(LAYERS, &[]) {
        is_sent_from_memory(&server, "in layers, to another");
    }
}
