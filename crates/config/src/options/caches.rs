//! The rows of caches: `[caches.NAME]`, and the `cache` of a route with its tables.
//!
//! Data only, like `table`, whose rows these follow. The row `sites.routes.cache` itself stands with
//! the other keys of a route.

use super::Kind::*;
use super::Opt;
use super::Unset::{Is, Means, Required};
use super::table::row;

/// Every option of caches.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[Opt] = &[
    row("caches.NAME", "path", Path, Means("memory alone"), r#""cache/disk1""#,
        "Folder of its objects and of its temporary files, made at start if it is not there; no other cache may have it, \
         or a folder inside it. Without one the cache is in memory alone."),
    row("caches.NAME", "size_max", Size(4096), Means("\"10GiB\", without a `path` \"256MiB\""), r#""100GiB""#,
        "Bytes it may hold, on its disk or in memory."),
    row("caches.NAME", "memory", Size(0), Means("\"64MiB\", or `size_max` if that is less"), r#""64MiB""#,
        "Bytes of small, hot objects (up to 16 KiB) that are kept in memory too; \"0B\" is none. \
         Larger ones are sent from the page cache.")
        .only("a cache with a `path`"),
    row("caches.NAME", "object_max", Size(1), Means("\"1GiB\", or `size_max` if that is less"), r#""64MiB""#,
        "Largest body that is stored."),
    row("caches.NAME", "blocking", Text("the name of a [blocking.NAME] table"), Means("`\"cache-NAME\"`, a pool of its own; `\"default\"` without `path`"), r#""default""#,
        "Pool that reads and writes it: one that no other disk shares, because what hangs at one holds up all that is in the same pool. A table of that name says how large it is."),
    row("caches.NAME", "stall_timeout", Time(1), Is(r#""10s""#), r#""10s""#,
        "A disk with an operation that takes longer is left alone until it works again; requests for its share go to the back end meanwhile."),

    row("sites.routes.cache", "stores", Texts(CACHE), Required, r#"["disk1", "disk2"]"#,
        "Caches that share the route's objects, each in proportion to its `size_max`."),
    row("sites.routes.cache", "key", Table("sites.routes.cache.key"), Means("every default"),
        r#"{ query = { without = ["utm_*"] } }"#,
        "What tells one resource from another, beside method and path."),
    row("sites.routes.cache", "bypass", Table("sites.routes.cache.bypass"), Means("nothing"),
        r#"{ cookies = ["session"] }"#,
        "Requests that go to the back end and leave nothing behind."),
    row("sites.routes.cache", "min_uses", Count(1, 1_000_000), Is("1"), "2",
        "At which request for it a response is stored; 1 is the first."),
    row("sites.routes.cache", "default_ttl", Time(0), Means("it is not stored"), r#""1m""#,
        "How long a response is fresh that does not say. For requests with cookies only if `bypass` or `key` names cookies (none with `[]`)."),
    row("sites.routes.cache", "heuristic_freshness", Bool, Is("false"), "true",
        "A response that does not say, but has `Last-Modified`, is fresh for a tenth of its age, at most a day (RFC 9111 §4.2.2). Never for requests with `Cookie` or `Authorization`; without this key only for responses with `public`."),
    row("sites.routes.cache", "ttl_by_status", Map, Is("{}"), r#"{ 302 = "5m", 404 = "10s" }"#,
        "The same for responses with such a status, before `default_ttl`; of errors too, which are stored otherwise only if they say how long they are fresh."),
    row("sites.routes.cache", "ttl_max", Time(1), Means("unlimited"), r#""1d""#,
        "No response is fresh for longer, whatever it says."),
    row("sites.routes.cache", "stale_while_revalidate", Time(0), Is(r#""0s""#), r#""30s""#,
        "How long after its freshness a response is sent while a newer one is fetched, if it does not say itself (RFC 5861 §3)."),
    row("sites.routes.cache", "stale_if_error", Time(0), Is(r#""0s""#), r#""1h""#,
        "How long after its freshness a response is sent in place of an error, if it does not say itself (RFC 5861 §4)."),
    row("sites.routes.cache", "lock_timeout", Time(0), Is(r#""5s""#), r#""5s""#,
        "How long a request waits for the response to another one for the same, before it goes to the back end itself."),
    row("sites.routes.cache", "status", Bool, Is("true"), "false",
        "Whether responses say in `Cache-Status` (RFC 9211) what the cache did."),
    row("sites.routes.cache", "tags", Texts(TAGS), Is(r#"["Surrogate-Key", "Cache-Tag"]"#), r#"["Surrogate-Key"]"#,
        "Fields of responses with their tags, by which they can be purged; clients do not see them."),

    row("sites.routes.cache.key", "host", Bool, Is("true"), "false",
        "Whether the host is in the key; without it all hosts of the site share their content."),
    row("sites.routes.cache.key", "query", FlagListOrTable(PARAMETER, "sites.routes.cache.key.query"), Is("true"),
        r#"["page", "lang"]"#,
        "The part of the query that is in the key: all of it, nothing, these parameters, or all but some."),
    row("sites.routes.cache.key", "headers", Texts(FIELD), Is("[]"), r#"["X-Tenant"]"#,
        "Request fields whose values are in the key."),
    row("sites.routes.cache.key", "cookies", Texts(COOKIE), Means("not set"), r#"["lang"]"#,
        "Cookies whose values are in the key."),

    row("sites.routes.cache.key.query", "without", Texts(PARAMETER), Required, r#"["utm_*"]"#,
        "Parameters that are not in the key."),

    row("sites.routes.cache.bypass", "headers", Texts(FIELD), Is("[]"), r#"["X-Preview"]"#,
        "Requests with one of these fields."),
    row("sites.routes.cache.bypass", "cookies", Texts("the name of a cookie such as \"session\" or \"wordpress_*\""),
        Means("not set"), r#"["session", "wordpress_*"]"#,
        "Requests with one of these cookies; a name that ends in `*` stands for all that begin so. With `[]` no cookie matters."),
];

pub(super) const CACHE: &str = "the name of a [caches.NAME] table";
const PARAMETER: &str = "the name of a parameter such as \"page\" or \"utm_*\"";
const FIELD: &str = "the name of a field such as \"X-Tenant\"";
const COOKIE: &str = "the name of a cookie such as \"lang\"";
const TAGS: &str =
    "the name of a field such as \"Surrogate-Key\", and none of framing or the connection";
