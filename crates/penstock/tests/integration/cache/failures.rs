//! A failing cache costs hits and nothing else; its limits hold.

use super::{
    CacheSetup, ON_DISK, content, get, is_hit, of_cache, of_content, status, wait_hit, wait_objects,
};
use crate::support::{Origin, PATIENCE, Server, Site, eventually};

fn body_of(target: &str) -> Vec<u8> {
    let length = target.rsplit('?').next().unwrap().parse().unwrap();
    content(target, length)
}

/// Requests a target; the response must be right.
fn right(server: &Server, target: &str) -> bool {
    let response = get(server, target);
    assert_eq!(response.status, 200, "{target}: {}", response.text());
    assert!(response.body == body_of(target), "{target}");
    is_hit(&response)
}

#[test]
fn a_folder_that_is_deleted_while_it_is_used_is_made_again() {
    let origin = of_content();
    // Nothing in memory: every hit comes from the directory.
    let cache = format!("{ON_DISK}\nmax_memory = \"0\"");
    let site = Site::new();
    let server = CacheSetup::new(&origin, &cache).serve_in(&site);
    for target in ["/a?100", "/b?100000"] {
        right(&server, target);
        wait_hit(&server, target);
    }
    // The cache may be writing into it.
    eventually(PATIENCE, "it is deleted", || {
        std::fs::remove_dir_all(site.dir().join("stored")).is_ok()
    });
    for number in 0..20 {
        right(&server, &format!("/{number}?20000"));
    }
    eventually(PATIENCE, "it stores again", || {
        right(&server, "/a?100") && right(&server, "/b?100000") && right(&server, "/new?70000")
    });
    assert_eq!(status(&server)["reason"], serde_json::Value::Null);
}

#[test]
fn a_folder_that_another_server_uses_is_left_alone() {
    let origin = of_content();
    let site = Site::new();
    let first = CacheSetup::new(&origin, ON_DISK).serve_in(&site);
    right(&first, "/a?1000");
    wait_hit(&first, "/a?1000");
    let folder = site.dir().join("stored");
    let shared = format!("path = \"{}\"\nmax_size = \"64MiB\"", folder.display());
    let second = CacheSetup::new(&origin, &shared).serve_at_once(&Site::new());
    assert!(!right(&second, "/a?1000"));
    assert!(!right(&second, "/a?1000"));
    let status = status(&second);
    assert_eq!(status["state"], "out_of_service", "{status}");
    assert!(status["reason"].is_string(), "{status}");
    assert_eq!(
        second.metric("penstock_cache_up{cache=\"store\"}"),
        Some(0.0)
    );
    assert!(right(&first, "/a?1000"));
    drop(first);
    eventually(PATIENCE, "it takes the folder over", || {
        right(&second, "/a?1000")
    });
    wait_objects(&second, 1);
}

#[test]
fn the_bound_on_its_size_holds() {
    let origin = of_content();
    let cache = "path = \"stored\"\nmax_size = \"2MiB\"\nmax_memory = \"1MiB\"";
    let site = Site::new();
    let server = CacheSetup::new(&origin, cache).serve_in(&site);
    for number in 0..60 {
        right(&server, &format!("/{number}?100000"));
        let status = status(&server);
        assert!(status["bytes"].as_u64() <= Some(2 << 20), "{status}");
        assert!(status["memory_bytes"].as_u64() <= Some(1 << 20), "{status}");
    }
    let status = status(&server);
    assert!(
        status["counters"]["evictions"].as_u64() > Some(0),
        "{status}"
    );
    assert!(status["objects"].as_u64() > Some(5), "{status}");
    // Larger than the whole cache: bypassed, and nothing is evicted for it.
    assert!(!right(&server, "/huge?3000000"));
    assert!(!right(&server, "/huge?3000000"));
    assert!(super::status(&server)["objects"].as_u64() > Some(5));
}

/// A configuration with three caches for one route.
fn three(origin: &Origin) -> String {
    let folders = ["one", "two", "three"].map(|name| {
        format!("[caches.{name}]\npath = \"{name}\"\nmax_size = \"64MiB\"\nmax_memory = \"0\"\n")
    });
    CacheSetup::new(origin, ON_DISK)
        .tables(&folders.concat())
        .toml()
        .replace(
            "stores = [\"store\"]",
            "stores = [\"one\", \"two\", \"three\"]",
        )
}

#[test]
fn keys_are_spread_and_the_share_of_one_that_fails_goes_to_the_origin() {
    const COUNT: usize = 60;
    let origin = of_content();
    let site = Site::new().config(&three(&origin));
    let server = site.serve(&[]);
    for name in ["one", "two", "three"] {
        eventually(PATIENCE, &format!("{name} is in use"), || {
            of_cache(&server, name)["state"] == "working"
        });
    }
    let targets: Vec<String> = (0..COUNT).map(|number| format!("/{number}?3000")).collect();
    for target in &targets {
        right(&server, target);
    }
    for target in &targets {
        wait_hit(&server, target);
    }
    let objects = |name| of_cache(&server, name)["objects"].as_u64().unwrap();
    let shares = ["one", "two", "three"].map(objects);
    assert_eq!(shares.iter().sum::<u64>(), COUNT as u64, "{shares:?}");
    assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
    drop(server);
    // Another server holds the directory of one.
    let other = CacheSetup::new(&origin, "path = \"two\"\nmax_size = \"64MiB\"");
    let holder = site.clone().config(&other.toml()).serve(&[]);
    eventually(PATIENCE, "another server has the folder", || {
        status(&holder)["state"] == "working"
    });
    let server = site.clone().config(&three(&origin)).serve(&[]);
    for name in ["one", "three"] {
        eventually(PATIENCE, &format!("{name} is read in"), || {
            of_cache(&server, name)["state"] == "working"
        });
    }
    let hits = targets.iter().filter(|target| right(&server, target));
    assert_eq!(hits.count() as u64, shares[0] + shares[2], "{shares:?}");
    assert_eq!(of_cache(&server, "two")["state"], "out_of_service");
    for name in ["one", "three"] {
        assert_eq!(of_cache(&server, name)["state"], "working");
    }
    drop(holder);
    eventually(PATIENCE, "it is back in", || {
        of_cache(&server, "two")["state"] == "working"
    });
    for target in &targets {
        wait_hit(&server, target);
    }
    wait_objects_of(&server, "two", shares[1]);
}

fn wait_objects_of(server: &Server, name: &str, count: u64) {
    eventually(PATIENCE, &format!("{name} holds {count}"), || {
        of_cache(server, name)["objects"] == count
    });
}

#[test]
fn a_cache_in_memory_alone_has_no_folder() {
    let origin = of_content();
    let server = CacheSetup::new(&origin, "max_size = \"1MiB\"").serve();
    right(&server, "/a?1000");
    wait_objects(&server, 1);
    let status = status(&server);
    assert_eq!(status["path"], serde_json::Value::Null, "{status}");
    let (code, said, _) = super::verb(&server, &["status"]);
    assert_eq!(code, 0);
    assert!(said.contains("cache store: working, 1 object, "), "{said}");
}
