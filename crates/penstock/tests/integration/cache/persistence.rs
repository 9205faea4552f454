//! Stored objects survive a reload, a restart and a sudden death, and come back exact or not at
//! all.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{
    CacheSetup, IN_MEMORY, ON_DISK, content, counting, get, is_hit, of_content, reload, status,
    text, wait_hit, wait_objects,
};
use crate::support::{PATIENCE, Server, Site, eventually};

const TARGETS: [&str; 4] = ["/a?10", "/b?5000", "/c?200000", "/d?3000000"];

fn body_of(target: &str) -> Vec<u8> {
    let length = target.rsplit('?').next().unwrap().parse().unwrap();
    content(target, length)
}

fn fill(server: &Server) {
    for target in TARGETS {
        assert!(get(server, target).body == body_of(target), "{target}");
    }
    wait_objects(server, TARGETS.len() as u64);
}

/// Every one of [`TARGETS`] must be right; returns the number of hits.
fn hits(server: &Server) -> usize {
    let is_right = |target: &&str| {
        let response = get(server, target);
        assert_eq!(response.status, 200, "{target}");
        assert!(response.body == body_of(target), "{target}");
        is_hit(&response)
    };
    TARGETS.iter().filter(|target| is_right(target)).count()
}

#[test]
fn a_reload_keeps_what_is_stored() {
    for cache in [IN_MEMORY, ON_DISK] {
        let origin = of_content();
        let site = Site::new();
        let server = CacheSetup::new(&origin, cache).serve_in(&site);
        fill(&server);
        let counted = status(&server)["counters"]["stores"].clone();
        for rules in ["min_uses = 2", "default_ttl = \"1h\""] {
            site.write(
                "penstock.toml",
                CacheSetup::new(&origin, cache).route(rules).toml(),
            );
            reload(&server);
            assert_eq!(hits(&server), TARGETS.len(), "{cache}: {rules}");
        }
        assert_eq!(status(&server)["counters"]["stores"], counted);
        let routes = server.admin_json()["cached_routes"].clone();
        let counters = &routes[0]["counters"];
        assert_eq!(routes[0]["name"], "* /*", "{routes}");
        assert_eq!(counters["misses"], TARGETS.len(), "{routes}");
        assert_eq!(counters["hits"], 2 * TARGETS.len(), "{routes}");
        assert_eq!(origin.lines().len(), TARGETS.len());
    }
}

#[test]
fn a_reload_that_changes_a_cache_keeps_its_folder_and_serves_on() {
    let origin = of_content();
    let site = Site::new();
    let server = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    fill(&server);
    let larger = ON_DISK.replace("64MiB", "80MiB");
    site.write("penstock.toml", CacheSetup::new(&origin, &larger).toml());
    reload(&server);
    server.wait_log("cache store replaced");
    eventually(PATIENCE, "the folder is in use again", || {
        hits(&server) == TARGETS.len()
    });
    let status = status(&server);
    assert_eq!(status["max_bytes"], 80 << 20, "{status}");
    assert_eq!(status["reason"], serde_json::Value::Null, "{status}");
}

#[test]
fn a_pool_with_other_bounds_is_used_from_the_reload_on() {
    let origin = of_content();
    let site = Site::new();
    let cache = format!("{ON_DISK}\nblocking = \"disk\"");
    let front = |threads: u32| {
        CacheSetup::new(&origin, &cache).tables(&format!("[blocking.disk]\nthreads = {threads}\n"))
    };
    let server = front(1).serve_in(&site);
    fill(&server);
    site.write("penstock.toml", front(3).toml());
    reload(&server);
    eventually(PATIENCE, "the folder is in use again", || {
        hits(&server) == TARGETS.len()
    });
    let pools = server.admin_json()["pools"].clone();
    let pool = pools
        .as_array()
        .unwrap()
        .iter()
        .find(|p| p["name"] == "disk");
    assert_eq!(pool.unwrap()["max_threads"], 3);
}

#[test]
fn a_cache_that_a_reload_takes_out_is_gone_and_one_that_it_brings_works() {
    let origin = counting("Cache-Control: max-age=3600\r\n");
    let site = Site::new();
    let server = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    assert_eq!(text(&server, "/a"), "/a 1");
    wait_hit(&server, "/a");
    let toml = CacheSetup::new(&origin, ON_DISK).toml();
    let without = toml.replace("cache = { stores = [\"store\"] }", "");
    let without = without.replace(&format!("[caches.store]\n{ON_DISK}"), "");
    assert!(!without.contains("cache"), "{without}");
    site.write("penstock.toml", without);
    reload(&server);
    assert_eq!(text(&server, "/a"), "/a 2");
    assert_eq!(server.admin_json()["caches"], serde_json::json!([]));
    site.write("penstock.toml", toml);
    reload(&server);
    super::wait_working(&server);
    let back = wait_hit(&server, "/a").text();
    assert!(back.starts_with("/a "), "{back}");
}

#[test]
fn a_reload_that_is_refused_changes_no_cache() {
    let origin = of_content();
    let site = Site::new();
    let server = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    fill(&server);
    let mut broken = CacheSetup::new(&origin, "path = \"other\"\nmax_size = \"1MiB\"").toml();
    broken.push_str("[apps.none]\nentry = \"nothing:here\"\n");
    site.write("penstock.toml", broken);
    let (code, _, stderr) = super::verb(&server, &["reload"]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(hits(&server), TARGETS.len());
    assert_eq!(status(&server)["state"], "working");
}

#[test]
fn a_restart_finds_what_was_stored() {
    let origin = of_content();
    let site = Site::new();
    let server = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    fill(&server);
    drop(server);
    let server = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    wait_objects(&server, TARGETS.len() as u64);
    assert_eq!(hits(&server), TARGETS.len());
    assert_eq!(origin.lines().len(), TARGETS.len());
}

#[test]
fn a_sudden_death_leaves_nothing_torn() {
    let origin = of_content();
    let site = Site::new();
    let front = CacheSetup::new(&origin, ON_DISK);
    for round in 0..5 {
        // No truncated object may be served during the scan either.
        let server = front.serve_at_once(&site);
        if round > 0 {
            // Objects that were complete before the first death still exist.
            wait_hit(&server, TARGETS[0]);
        }
        assert!(hits(&server) <= TARGETS.len());
        wait_hit(&server, TARGETS[0]);
        let mut writing: Vec<_> = (0..8)
            .map(|number| super::asking(&server, format!("/{round}/{number}?4000000")))
            .collect();
        // The death is somewhere within these.
        writing[0].read_some();
        server.signal(Signal::KILL);
        server.wait_exit(PATIENCE);
    }
    let server = front.serve_in(&site);
    for round in 0..5 {
        for number in 0..8 {
            let target = format!("/{round}/{number}?4000000");
            assert!(get(&server, &target).body == body_of(&target), "{target}");
        }
    }
    assert!(hits(&server) >= 1);
}

#[test]
fn what_was_damaged_while_nobody_looked_is_not_served() {
    let origin = of_content();
    let site = Site::new();
    let server = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    fill(&server);
    drop(server);
    let files = files_below(&site.dir().join("stored"));
    let large: Vec<_> = files.iter().filter(|file| size(file) >= 5_000).collect();
    assert!(large.len() >= 3, "{files:?}");
    for (number, file) in large.into_iter().enumerate() {
        let mut bytes = std::fs::read(file).unwrap();
        let (middle, end) = (bytes.len() / 2, bytes.len());
        match number % 3 {
            0 => bytes[middle] ^= 1,
            1 => bytes[end - 1] ^= 0x80,
            _ => bytes.truncate(middle),
        }
        std::fs::write(file, bytes).unwrap();
    }
    let server = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    for _ in 0..3 {
        hits(&server);
    }
    // All but the smallest had to be fetched again, and are cached again.
    assert_eq!(
        origin.lines().len(),
        TARGETS.len() + 3,
        "{:?}",
        origin.lines()
    );
    assert_eq!(hits(&server), TARGETS.len());
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |metadata| metadata.len())
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}
