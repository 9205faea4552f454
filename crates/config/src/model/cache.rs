//! Caches: the `[caches.NAME]` tables and what a route says about its use of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// One cache: `[caches.NAME]`. With a folder it is a disk of its own, with a memory tier in front; without,
/// memory alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Its name, unique.
    pub name: String,
    /// The absolute folder of its objects and of its temporary files; none is memory alone.
    pub path: Option<PathBuf>,
    /// Bytes it may hold: on its disk or, without one, in memory.
    pub max_size: u64,
    /// Bytes of small, hot objects kept in memory in front of the disk; without a disk `max_size`.
    pub max_memory: u64,
    /// Bytes of the largest body that is stored; at most `max_size`.
    pub max_object_size: u64,
    /// The name of the blocking pool that does its reading and writing: its own, `cache-NAME`, where it has a disk
    /// and says nothing else, since what hangs at one disk is to hold up nothing of another.
    pub blocking: String,
    /// A disk whose oldest operation takes longer than this is left alone until it works again.
    pub stall_timeout: Duration,
}

impl Cache {
    /// A cache with every default: 10 GiB below `path`, or 256 MiB of memory.
    pub fn new(name: &str, path: Option<PathBuf>) -> Self {
        let size_max = if path.is_some() { 10 << 30 } else { 256 << 20 };
        Self {
            name: name.to_owned(),
            max_memory: if path.is_some() { 64 << 20 } else { size_max },
            blocking: match path {
                Some(_) => format!("cache-{name}"),
                None => "default".to_owned(),
            },
            path,
            max_size: size_max,
            max_object_size: (1_u64 << 30).min(size_max),
            stall_timeout: Duration::from_secs(10),
        }
    }
}

/// How a route uses its caches: `cache = ["disk1"]`, or a table with `stores = ["disk1"]` and more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteCache {
    /// Names of caches; keys are spread over them, weighted by `max_size`. Never empty.
    pub stores: Vec<String>,
    /// What tells one resource from another, beside method and path.
    pub key: CacheKey,
    /// Requests that go to the back end and leave nothing behind.
    pub bypass: CacheBypass,
    /// A response is stored at the so-manieth request for it (1 is the first).
    pub min_uses: u32,
    /// How long a response is fresh that does not say; with none it is not stored.
    pub default_ttl: Option<Duration>,
    /// Whether `key` or `bypass` names cookies, if only to say that none matters: without that `default_ttl`
    /// and `ttl_by_status` hold for requests without cookies alone.
    pub has_known_cookies: bool,
    /// Whether such a response with `Last-Modified` is fresh for a tenth of its age (RFC 9111 §4.2.2).
    pub heuristic_freshness: bool,
    /// The same for responses with such a status, errors included; before `default_ttl`.
    pub ttl_by_status: BTreeMap<u16, Duration>,
    /// No response is fresh for longer, whatever it says.
    pub max_ttl: Option<Duration>,
    /// For responses that do not say (RFC 5861 §3).
    pub stale_while_revalidate: Duration,
    /// For responses that do not say (RFC 5861 §4).
    pub stale_if_error: Duration,
    /// How long a request waits for another one's response before it goes to the back end itself.
    pub lock_timeout: Duration,
    /// Whether responses say what the cache did (`Cache-Status`, RFC 9211).
    pub cache_status: bool,
    /// Fields of responses that hold their tags (surrogate keys), for purging; taken out of what clients see.
    pub tags: Vec<String>,
}

impl RouteCache {
    /// The use of these caches with every default.
    pub fn new(stores: Vec<String>) -> Self {
        Self {
            stores,
            key: CacheKey::default(),
            bypass: CacheBypass::default(),
            min_uses: 1,
            default_ttl: None,
            has_known_cookies: false,
            heuristic_freshness: false,
            ttl_by_status: BTreeMap::new(),
            max_ttl: None,
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            lock_timeout: Duration::from_secs(5),
            cache_status: true,
            tags: vec!["Surrogate-Key".to_owned(), "Cache-Tag".to_owned()],
        }
    }
}

/// What is in a cache key beside scheme and path: `key = { ... }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheKey {
    /// Whether the host is: only for one content under all names may it be left out.
    pub host: bool,
    /// What of the query is.
    pub query: QueryKey,
    /// Request fields whose values are.
    pub headers: Vec<String>,
    /// Cookies whose values are.
    pub cookies: Vec<String>,
}

impl Default for CacheKey {
    fn default() -> Self {
        Self {
            host: true,
            query: QueryKey::All,
            headers: Vec::new(),
            cookies: Vec::new(),
        }
    }
}

/// What of a query is in a cache key. Names that end in `*` stand for all that begin so.
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

/// Requests that a cache neither answers nor learns from: `bypass = { ... }`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheBypass {
    /// Those with one of these fields.
    pub headers: Vec<String>,
    /// Those with one of these cookies; a name that ends in `*` stands for all that begin so.
    pub cookies: Vec<String>,
}
