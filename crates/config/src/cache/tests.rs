//! What `[caches.NAME]` and the `cache` of a route give, and their errors, row by row.

use std::time::Duration;

use crate::model::{BlockingPool, Cache, CacheBypass, CacheKey, QueryKey, RouteCache};
use crate::testing::{TestDir, check_error_table, parse_in_dir, parse_valid};

const UPSTREAM: &str = "[upstreams.b]\nservers = [\"127.0.0.1:80\"]\n";

/// One cache of these lines.
fn cache(folder: &TestDir, lines: &str) -> Cache {
    let text = format!("{UPSTREAM}[caches.c]\n{lines}\n");
    parse_valid(folder, &text).caches["c"].clone()
}

/// The use of the caches `c` and `d` that a route's line says.
fn read_route_cache(line: &str) -> RouteCache {
    let route = "[[sites]]\n[[sites.routes]]\nupstream = \"b\"\n";
    let text = format!("{UPSTREAM}[caches.c]\n[caches.d]\n{route}{line}\n");
    let config = parse_valid(&TestDir::with_sample_site(), &text);
    config.sites[0].routes[0].cache.clone().unwrap()
}

/// The use of `c` with every default.
fn default_route_cache() -> RouteCache {
    RouteCache::new(vec!["c".to_owned()])
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn reads_every_key_of_a_cache() {
    let folder = TestDir::with_sample_site();
    let text = format!(
        r#"{UPSTREAM}
[blocking.disk1]
[caches.disk1]
path = "cache/one"
max_size = "100GiB"
max_memory = "0B"
max_object_size = "100GiB"
blocking = "disk1"
stall_timeout = "3s"
"#
    );
    let expected = Cache {
        name: "disk1".to_owned(),
        path: Some(folder.join("cache/one")),
        max_size: 100 << 30,
        max_memory: 0,
        max_object_size: 100 << 30,
        blocking: "disk1".to_owned(),
        stall_timeout: Duration::from_secs(3),
    };
    assert_eq!(parse_valid(&folder, &text).caches["disk1"], expected);
}

#[test]
fn what_is_not_said_of_a_cache_gives_way_to_what_is() {
    let folder = TestDir::with_sample_site();
    let path = || Some(folder.join("x"));
    assert_eq!(cache(&folder, ""), Cache::new("c", None));
    assert_eq!(cache(&folder, "path = \"x\""), Cache::new("c", path()));
    let rows = [
        ("max_size = \"1MiB\"", None, 1 << 20, 1 << 20, 1 << 20),
        ("max_size = \"4GiB\"", None, 4 << 30, 4 << 30, 256 << 20),
        (
            "path = \"x\"\nmax_size = \"1MiB\"",
            path(),
            1 << 20,
            1 << 20,
            1 << 20,
        ),
        (
            "path = \"x\"\nmax_size = \"1TiB\"",
            path(),
            1 << 40,
            64 << 20,
            1 << 30,
        ),
    ];
    for (lines, path, size_max, memory, object_max) in rows {
        let expected = Cache {
            max_size: size_max,
            max_memory: memory,
            max_object_size: object_max,
            ..Cache::new("c", path)
        };
        assert_eq!(cache(&folder, lines), expected, "{lines}");
    }
}

#[test]
fn reports_what_is_wrong_with_a_cache() {
    const MEMORY: &str = "penstock.toml:2:14: `max_memory` is only for a cache with a `path`";
    check_error_table(&[
        (
            "memory of memory",
            "[caches.c]\nmax_memory = \"1MiB\"\n[apps.a]",
            &[MEMORY],
        ),
        (
            "nothing fits",
            "[caches.c]\nmax_size = 0\nmax_object_size = 0\n[apps.a]",
            &[
                "penstock.toml:2:12: `max_size` cannot be 0: expected at least 4KiB",
                "penstock.toml:3:19: `max_object_size` cannot be 0: expected at least 1B",
            ],
        ),
        (
            "an object larger than the cache",
            "[caches.c]\nmax_size = \"1MiB\"\nmax_object_size = \"2MiB\"\n[apps.a]",
            &["penstock.toml:3:19: `max_object_size` (2097152) is above `max_size` (1048576)"],
        ),
        (
            "pool",
            "[caches.c]\nblocking = \"dsk\"\n[blocking.disk]\n[apps.a]",
            &["penstock.toml:2:12: there is no blocking pool `dsk`; did you mean `disk`?"],
        ),
        (
            "no folder",
            "[caches.c]\npath = \"app.py\"\n[caches.d]\npath = \"app.py/x/y\"\n[caches.e]\npath = \"\"\nmax_memory = 1\n[apps.a]",
            &[
                "penstock.toml:2:8: `path`: app.py is not a folder",
                "penstock.toml:4:8: `path`: app.py is not a folder",
                "penstock.toml:4:8: `path`: app.py/x/y and app.py, the folder of cache `c` on line 2, overlap: each cache needs a folder of its own",
                "penstock.toml:6:8: `path` cannot be \"\": expected a path",
            ],
        ),
        (
            "unknown",
            "[caches.c]\nvolume = 1\npaht = \"x\"\nstall_timeout = \"0s\"\n[apps.a]",
            &[
                "penstock.toml:2:1: unknown key `volume` in [caches.c]",
                "penstock.toml:3:1: unknown key `paht` in [caches.c]; did you mean `path`?",
                "penstock.toml:4:17: `stall_timeout` cannot be \"0s\": expected at least 1ms",
            ],
        ),
        (
            "name",
            "[caches.\"a b\"]\n[apps.a]",
            &[
                "penstock.toml:1:9: `caches` cannot be \"a b\": expected a name of at most 64 letters, digits, `-`, `_` and `.`",
            ],
        ),
    ]);
}

#[test]
fn no_two_caches_share_a_folder() {
    let folder = TestDir::with_sample_site();
    std::os::unix::fs::symlink(folder.join("public"), folder.join("link")).unwrap();
    std::os::unix::fs::symlink("/nothing/there", folder.join("broken")).unwrap();
    // The error is reported at the later one in the file, whatever its name.
    let two = |first: &str, second: &str| {
        format!("[apps.a]\n[caches.z]\npath = \"{first}\"\n[caches.c]\npath = \"{second}\"\n")
    };
    let rows = [
        ("x", "x", Some(("x", "x"))),
        ("x", "x/y", Some(("x/y", "x"))),
        ("x/y", "x", Some(("x", "x/y"))),
        ("x/y", "x/z/../y", Some(("x/z/../y", "x/y"))),
        ("public/x", "link/x", Some(("link/x", "public/x"))),
        ("x", "xy", None),
        ("x/y", "x/z", None),
    ];
    for (first, second, expected) in rows {
        let report = parse_in_dir(&folder, &two(first, second)).err();
        let lines = report.map(|report| folder.error_lines(&report));
        let expected = expected.map(|(path, other)| {
            vec![format!(
                "penstock.toml:5:8: `path`: {path} and {other}, the folder of cache `z` on line 3, overlap: each cache needs a folder of its own"
            )]
        });
        assert_eq!(lines, expected, "{first} {second}");
    }
    let report = parse_in_dir(&folder, "[apps.a]\n[caches.c]\npath = \"broken/x\"\n").unwrap_err();
    let expected = ["penstock.toml:3:8: `path`: broken does not exist"];
    assert_eq!(folder.error_lines(&report), expected);
}

#[test]
fn no_cache_is_served_as_files() {
    let folder = TestDir::with_sample_site();
    folder.add("public/inner/", "");
    std::os::unix::fs::symlink(folder.join("public"), folder.join("link")).unwrap();
    let text = |root: &str, path: &str| {
        format!(
            "[caches.c]\npath = \"{path}\"\n[[sites]]\n[[sites.routes]]\nfiles = {{ root = \"{root}\" }}\n"
        )
    };
    let rows = [
        ("public", "public/cache", true),
        ("public", "link/cache", true),
        ("link", "public", true),
        (".", "cache", true),
        ("public/inner", "public/cache", false),
        ("public", "cache", false),
        ("public/inner", "public", false),
    ];
    for (root, path, is_served) in rows {
        let report = parse_in_dir(&folder, &text(root, path)).err();
        let lines = report.map(|report| folder.error_lines(&report));
        let expected = is_served.then(|| {
            vec![format!(
                "penstock.toml:5:18: `root`: {path}, the folder of cache `c`, is inside: what it holds would be served as files"
            )]
        });
        assert_eq!(lines, expected, "{root} {path}");
    }
}

#[test]
fn a_list_of_stores_is_a_table_with_every_default() {
    let both = RouteCache::new(texts(&["d", "c"]));
    assert_eq!(read_route_cache("cache = [\"d\", \"c\"]"), both);
    assert_eq!(
        read_route_cache("cache = { stores = [\"d\", \"c\"] }"),
        both
    );
    // The defaults of the option table are those of the type.
    let said = "min_uses = 1, heuristic_freshness = false, ttl_by_status = {}, stale_while_revalidate = \"0s\", \
                stale_if_error = \"0s\", lock_timeout = \"5s\", \
                cache_status = true, tags = [\"Surrogate-Key\", \"Cache-Tag\"], key = { host = true, query = true, \
                headers = [] }, bypass = { headers = [] }";
    let options = crate::options::options_in("sites.routes.cache");
    let defaults = options.filter_map(|option| {
        let value = option.default_toml()?;
        Some(format!("{} = {value}", option.key))
    });
    for default in defaults {
        assert!(said.contains(&default), "{default}");
    }
    assert_eq!(
        read_route_cache(&format!("cache = {{ stores = [\"c\"], {said} }}")),
        default_route_cache()
    );
}

#[test]
fn reads_every_rule_of_a_route() {
    let rules = r#"
[sites.routes.cache]
stores = ["c", "d"]
min_uses = 2
default_ttl = "0s"
heuristic_freshness = true
ttl_by_status = { 200 = "1m", 404 = "0s" }
max_ttl = "1d"
stale_while_revalidate = "30s"
stale_if_error = "1h"
lock_timeout = "0s"
cache_status = false
tags = ["X-Tags"]
key = { host = false, query = ["page", "x[]", "f_*"], headers = ["X-Tenant"], cookies = ["lang", "LANG"] }
bypass = { headers = ["X-Preview"], cookies = ["session", "wordpress_*"] }
"#;
    let secs = Duration::from_secs;
    let expected = RouteCache {
        stores: texts(&["c", "d"]),
        key: CacheKey {
            host: false,
            query: QueryKey::Only(texts(&["page", "x[]", "f_*"])),
            headers: texts(&["X-Tenant"]),
            cookies: texts(&["lang", "LANG"]),
        },
        bypass: CacheBypass {
            headers: texts(&["X-Preview"]),
            cookies: texts(&["session", "wordpress_*"]),
        },
        min_uses: 2,
        default_ttl: Some(secs(0)),
        heuristic_freshness: true,
        has_known_cookies: true,
        ttl_by_status: [(200, secs(60)), (404, secs(0))].into(),
        max_ttl: Some(secs(24 * 3600)),
        stale_while_revalidate: secs(30),
        stale_if_error: secs(3600),
        lock_timeout: secs(0),
        cache_status: false,
        tags: texts(&["X-Tags"]),
    };
    assert_eq!(read_route_cache(rules), expected);
    assert_eq!(
        read_route_cache("cache = { stores = [\"c\"], tags = [] }").tags,
        texts(&[])
    );
    let query = |text: &str| {
        read_route_cache(&format!(
            "cache = {{ stores = [\"c\"], key = {{ query = {text} }} }}"
        ))
        .key
        .query
    };
    assert_eq!(query("true"), QueryKey::All);
    assert_eq!(query("false"), QueryKey::None);
    let without = QueryKey::AllExcept(texts(&["utm_*", "fbclid"]));
    assert_eq!(query("{ without = [\"utm_*\", \"fbclid\"] }"), without);
}

/// Rows of: name, the route's lines from line 5 on, lines of the errors.
fn check_routes(rows: &[(&str, &str, &[&str])]) {
    for (name, lines, expected) in rows {
        let text = format!(
            "[caches.c]\n[[sites]]\n[[sites.routes]]\nupstream = \"b\"\n{lines}\n{UPSTREAM}"
        );
        check_error_table(&[(name, &text, expected)]);
    }
}

#[test]
fn reports_caches_that_a_route_cannot_use() {
    check_routes(&[
        (
            "unknown and repeated",
            "cache = [\"c\", \"cc\", \"c\"]",
            &[
                "penstock.toml:5:15: there is no cache `cc`; did you mean `c`?",
                "penstock.toml:5:21: `cache` has `c` twice",
            ],
        ),
        (
            "none",
            "cache = []",
            &[
                "penstock.toml:5:9: `cache` needs at least one item: expected the name of a [caches.NAME] table",
            ],
        ),
        (
            "no store",
            "cache = { min_uses = 0 }",
            &[
                "penstock.toml:5:9: `stores` is missing in [sites.routes.cache]: expected a list, each the name of a [caches.NAME] table",
                "penstock.toml:5:22: `min_uses` cannot be 0: expected a number from 1 to 1000000",
            ],
        ),
        (
            "type",
            "cache = \"c\"",
            &[
                "penstock.toml:5:9: `cache` must be a list, each the name of a [caches.NAME] table, or a table, not a string",
            ],
        ),
        (
            "unknown key",
            "cache = { stores = [\"c\"], ttl = \"1s\", key = { qeury = false } }",
            &[
                "penstock.toml:5:27: unknown key `ttl` in [sites.routes.cache]",
                "penstock.toml:5:47: unknown key `qeury` in [sites.routes.cache.key]; did you mean `query`?",
            ],
        ),
    ]);
    let files = "[caches.c]\n[[sites]]\n[[sites.routes]]\ncache = [\"c\"]\n";
    check_error_table(&[
        (
            "files alone",
            &format!("{files}files = {{ root = \"public\" }}\n"),
            &[
                "penstock.toml:4:9: `cache` is only for a route with an `app`, `upstream` or `split`",
            ],
        ),
        (
            "nobody",
            files,
            &[
                "penstock.toml:3:1: route /* has nothing to do: give it `files`, `app`, `upstream`, `split`, `hub`, `mercure`, `redirect` or `respond`",
            ],
        ),
    ]);
}

#[test]
fn reports_names_that_nothing_could_have() {
    const STATUS: &str = "expected a status that a cache may store, such as 200 or 404";
    const TIME: &str = "expected a duration such as \"500ms\", \"10s\", \"5m\", \"1h\" or \"1d\"";
    const FIELD: &str = "expected the name of a field such as \"X-Tenant\"";
    const PARAMETER: &str = "expected the name of a parameter such as \"page\" or \"utm_*\"";
    check_routes(&[
        (
            "statuses",
            "cache = { stores = [\"c\"], ttl_by_status = { 404 = \"1m\", 400 = \"1m\", 4xx = \"1m\", 0404 = \"1m\", 500 = \"1\", 501 = \"999d\", 502 = 5 } }",
            &[
                &format!("penstock.toml:5:57: `ttl_by_status` cannot be \"400\": {STATUS}"),
                &format!("penstock.toml:5:69: `ttl_by_status` cannot be \"4xx\": {STATUS}"),
                &format!("penstock.toml:5:81: `ttl_by_status` cannot be \"0404\": {STATUS}"),
                &format!("penstock.toml:5:94: `500` cannot be \"1\": {TIME}"),
                &format!("penstock.toml:5:105: `501` cannot be \"999d\": {TIME}"),
                "penstock.toml:5:125: `502` must be a string, not an integer",
            ],
        ),
        (
            "fields",
            "cache = { stores = [\"c\"], key = { headers = [\"X-*\", \"a b\", \"X-A\", \"x-a\"] } }",
            &[
                &format!("penstock.toml:5:46: `headers` cannot be \"X-*\": {FIELD}"),
                &format!("penstock.toml:5:53: `headers` cannot be \"a b\": {FIELD}"),
                "penstock.toml:5:67: `headers` has `x-a` twice",
            ],
        ),
        (
            "cookies",
            "cache = { stores = [\"c\"], key = { cookies = [\"a*\"] }, bypass = { cookies = [\"*\", \"a*b\", \"a=\"] } }",
            &[
                "penstock.toml:5:46: `cookies` cannot be \"a*\": expected the name of a cookie such as \"lang\"",
                "penstock.toml:5:77: `cookies` cannot be \"*\": expected the name of a cookie such as \"session\" or \"wordpress_*\"",
                "penstock.toml:5:82: `cookies` cannot be \"a*b\": expected the name of a cookie such as \"session\" or \"wordpress_*\"",
                "penstock.toml:5:89: `cookies` cannot be \"a=\": expected the name of a cookie such as \"session\" or \"wordpress_*\"",
            ],
        ),
        (
            "parameters",
            "cache = { stores = [\"c\"], key = { query = [\"*\", \"a&b\", \"a\", \"a\"] } }",
            &[
                &format!("penstock.toml:5:44: `query` cannot be \"*\": {PARAMETER}"),
                &format!("penstock.toml:5:49: `query` cannot be \"a&b\": {PARAMETER}"),
                "penstock.toml:5:61: `query` has `a` twice",
            ],
        ),
        (
            "no parameters",
            "cache = { stores = [\"c\"], key = { query = {} } }",
            &[
                "penstock.toml:5:43: `without` is missing in [sites.routes.cache.key.query]: expected a list, each the name of a parameter such as \"page\" or \"utm_*\"",
            ],
        ),
        (
            "an empty list of them",
            "cache = { stores = [\"c\"], key = { query = [] } }",
            &[
                "penstock.toml:5:43: `query` needs at least one item: expected the name of a parameter such as \"page\" or \"utm_*\"",
            ],
        ),
        (
            "query type",
            "cache = { stores = [\"c\"], key = { query = 1 } }",
            &[
                "penstock.toml:5:43: `query` must be true, false, or a list, each the name of a parameter such as \"page\" or \"utm_*\", or a table, not an integer",
            ],
        ),
        (
            "tags",
            "cache = { stores = [\"c\"], tags = [\"Content-Length\"] }",
            &[
                "penstock.toml:5:35: `tags` cannot be \"Content-Length\": expected the name of a field such as \"Surrogate-Key\", and none of framing or the connection",
            ],
        ),
    ]);
}

#[test]
fn each_disk_has_a_pool_of_its_own() {
    let folder = TestDir::with_sample_site();
    let text = "[caches.a]\npath = \"a\"\n[caches.b]\npath = \"b\"\n[caches.m]\n\
                [blocking.cache-b]\nthreads = 3\n[apps.a]\n";
    let config = parse_valid(&folder, text);
    let names = config.caches.values().map(|cache| cache.blocking.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["cache-a", "cache-b", "default"]);
    assert_eq!(config.blocking["cache-a"], BlockingPool::default());
    assert_eq!(config.blocking["cache-b"].threads, 3);
}
