//! Caches: the `[caches.NAME]` tables and a route's use of them.

use crate::options::OptionDefault::Required;
use crate::options::OptionKind::*;
use crate::options::expected::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

section! {
    /// A cache of responses, that routes name: a disk with a memory tier in front of it, or
    /// memory alone.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Cache(name: &str, path: Option<PathBuf>)
    in "caches.NAME", "[caches.NAME]", "# [caches.disk1]" {
        /// Directory of its objects and of its temporary files, made at start if it is not there;
        /// no other cache may have it, or a directory inside it. Without one the cache is in
        /// memory alone.
        path: Option<PathBuf> = path.clone(), Path, default "memory alone",
            example r#""cache/disk1""#, by hand;
        /// Bytes it may hold, on its disk or in memory.
        max_size: u64 = if path.is_some() { 10 << 30 } else { 256 << 20 }, Size(4096),
            default r#""10GiB", without a `path` "256MiB""#, example r#""100GiB""#;
        /// Bytes of small, hot objects (up to 16 KiB) that are kept in memory too; "0B" is
        /// none. Larger ones are sent from the page cache.
        max_memory: u64 = if path.is_some() { 64 << 20 } else { 256 << 20 }, Size(0),
            default r#""64MiB", or `max_size` if that is less"#, example r#""64MiB""#,
            only "a cache with a `path`", by hand;
        /// Largest body that is stored.
        max_object_size: u64 = if path.is_some() { 1 << 30 } else { 256 << 20 }, Size(1),
            default r#""1GiB", or `max_size` if that is less"#, example r#""64MiB""#, by hand;
        /// Pool that reads and writes it: one that no other disk shares, because what hangs at
        /// one holds up all that is in the same pool. A table of that name says how large it
        /// is.
        blocking: String = if path.is_some() { format!("cache-{name}") } else { "default".to_owned() },
            Text("the name of a [blocking.NAME] table"),
            default r#"`"cache-NAME"`, a pool of its own; `"default"` without `path`"#,
            example r#""default""#, by hand;
        /// A disk with an operation that takes longer is left alone until it works again;
        /// requests for its share go to the back end meanwhile.
        stall_timeout: Duration = Duration::from_secs(10), Time(1);
    }
    plain {
        /// Its name, unique.
        name: String = name.to_owned();
    }
}

section! {
    /// How a route uses its caches.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RouteCache(stores: Vec<String>)
    in "sites.routes.cache", "cache = { ... } in [[sites.routes]]", "" {
        /// Caches that share the route's objects, each in proportion to its `max_size`.
        stores: Vec<String> = stores, Texts(CACHE_EXPECTED), default required,
            example r#"["disk1", "disk2"]"#, by hand;
        /// What tells one resource from another, beside method and path.
        key: CacheKey = CacheKey::default(), Table("sites.routes.cache.key"),
            default "every default", example r#"{ query = { without = ["utm_*"] } }"#, by hand;
        /// Requests that go to the back end and leave nothing behind.
        bypass: CacheBypass = CacheBypass::default(), Table("sites.routes.cache.bypass"),
            default "nothing", example r#"{ cookies = ["session"] }"#, by hand;
        /// At which request for it a response is stored; 1 is the first.
        min_uses: u32 = 1, Number(1, 1_000_000), example "2";
        /// How long a response is fresh that does not say. For requests with cookies only if
        /// `bypass` or `key` names cookies (none with `[]`).
        default_ttl: Option<Duration> = None, Time(0), default "it is not stored",
            example r#""1m""#;
        /// A response that does not say, but has `Last-Modified`, is fresh for a tenth of its
        /// age, at most a day (RFC 9111 §4.2.2). Never for requests with `Cookie` or
        /// `Authorization`; without this key only for responses with `public`.
        heuristic_freshness: bool = false, Bool;
        /// The same for responses with such a status, before `default_ttl`; of errors too,
        /// which are stored otherwise only if they say how long they are fresh.
        ttl_by_status: BTreeMap<u16, Duration> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ 302 = "5m", 404 = "10s" }"#, by hand;
        /// No response is fresh for longer, whatever it says.
        max_ttl: Option<Duration> = None, Time(1), default "unlimited", example r#""1d""#;
        /// How long after its freshness a response is sent while a newer one is fetched, if it
        /// does not say itself (RFC 5861 §3).
        stale_while_revalidate: Duration = Duration::ZERO, Time(0), example r#""30s""#;
        /// How long after its freshness a response is sent in place of an error, if it does not
        /// say itself (RFC 5861 §4).
        stale_if_error: Duration = Duration::ZERO, Time(0), example r#""1h""#;
        /// How long a request waits for the response to another one for the same, before it
        /// goes to the back end itself.
        lock_timeout: Duration = Duration::from_secs(5), Time(0);
        /// Whether responses say in `Cache-Status` (RFC 9211) what the cache did.
        cache_status: bool = true, Bool;
        /// Fields of responses with their tags, by which they can be purged; clients do not see
        /// them.
        tags: Vec<String> = vec!["Surrogate-Key".to_owned(), "Cache-Tag".to_owned()],
            Texts(TAGS_EXPECTED), example r#"["Surrogate-Key"]"#, by hand;
    }
    plain {
        /// Whether `key` or `bypass` names cookies, if only to say that none matters: without
        /// that `default_ttl` and `ttl_by_status` hold for requests without cookies alone.
        has_known_cookies: bool = false;
    }
}

section! {
    /// The parts of an object's key beside scheme and path. Anything left out must not change the
    /// response: a request with another value gets the same object.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CacheKey
    in "sites.routes.cache.key", "key = { ... } in cache of [[sites.routes]]", "" {
        /// Whether the host is in the key; without it all hosts of the site share their
        /// content.
        host: bool = true, Bool;
        /// The part of the query that is in the key: all of it, nothing, these parameters, or
        /// all but some.
        query: QueryKey = QueryKey::All,
            OrTable(&FlagOrTexts(PARAMETER_EXPECTED), "sites.routes.cache.key.query"), shows "true",
            example r#"["page", "lang"]"#, by hand;
        /// Request fields that are in the key with their values.
        headers: Vec<String> = Vec::new(), Texts(FIELD_EXPECTED), example r#"["X-Tenant"]"#,
            by hand;
        /// Cookies that are in the key with their values.
        cookies: Vec<String> = Vec::new(), Texts(COOKIE_EXPECTED), default "not set",
            example r#"["lang"]"#, by hand;
    }
}

/// The part of a query in a cache key. Names that end in `*` stand for all that begin so.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum QueryKey {
    /// All of it, as sent: `query = true`.
    #[default]
    All,
    /// Nothing: `query = false`.
    None,
    /// These parameters: `query = ["page", "lang"]`.
    Only(Vec<String>),
    /// All but these: `query = { without = ["utm_*"] }`.
    AllExcept(Vec<String>),
}

section! {
    /// Requests that the cache neither answers nor learns from.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CacheBypass
    in "sites.routes.cache.bypass", "bypass = { ... } in cache of [[sites.routes]]", "" {
        /// Requests with one of these fields.
        headers: Vec<String> = Vec::new(), Texts(FIELD_EXPECTED), example r#"["X-Preview"]"#,
            by hand;
        /// Requests with one of these cookies; a name that ends in `*` stands for all that
        /// begin so. With `[]` no cookie matters.
        cookies: Vec<String> = Vec::new(),
            Texts("the name of a cookie such as \"session\" or \"wordpress_*\""),
            default "not set", example r#"["session", "wordpress_*"]"#, by hand;
    }
}

keys! {
    /// All parameters but some; a name that ends in `*` stands for all that begin so.
    CACHE_KEY_QUERY in "sites.routes.cache.key.query", "query = { ... } in key of [[sites.routes]]", "" {
        /// Parameters that are not in the key.
        "without": Texts(PARAMETER_EXPECTED), Required, example r#"["utm_*"]"#;
    }
}
