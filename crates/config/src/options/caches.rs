//! The rows of caches: `[caches.NAME]`, and the `cache` of a route with its tables.
//!
//! Data only, like `table`, whose rows these follow. The row `sites.routes.cache` itself stands with
//! the other keys of a route.

use super::OptionDefault::{Described, Required, Value};
use super::OptionKind::*;
use super::OptionRow;
use super::table::option_row;

/// Every option of caches.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[OptionRow] = &[
    option_row("caches.NAME", "path", Path, Described("memory alone"), r#""cache/disk1""#,
        "Folder of its objects and of its temporary files, made at start if it is not there; no other cache may have it, \
         or a folder inside it. Without one the cache is in memory alone."),
    option_row("caches.NAME", "max_size", Size(4096), Described("\"10GiB\", without a `path` \"256MiB\""), r#""100GiB""#,
        "Bytes it may hold, on its disk or in memory."),
    option_row("caches.NAME", "max_memory", Size(0), Described("\"64MiB\", or `max_size` if that is less"), r#""64MiB""#,
        "Bytes of small, hot objects (up to 16 KiB) that are kept in memory too; \"0B\" is none. \
         Larger ones are sent from the page cache.")
        .only_for("a cache with a `path`"),
    option_row("caches.NAME", "max_object_size", Size(1), Described("\"1GiB\", or `max_size` if that is less"), r#""64MiB""#,
        "Largest body that is stored."),
    option_row("caches.NAME", "blocking", Text("the name of a [blocking.NAME] table"), Described("`\"cache-NAME\"`, a pool of its own; `\"default\"` without `path`"), r#""default""#,
        "Pool that reads and writes it: one that no other disk shares, because what hangs at one holds up all that is in the same pool. A table of that name says how large it is."),
    option_row("caches.NAME", "stall_timeout", Duration(1), Value(r#""10s""#), r#""10s""#,
        "A disk with an operation that takes longer is left alone until it works again; requests for its share go to the back end meanwhile."),

    option_row("sites.routes.cache", "stores", Texts(CACHE_EXPECTED), Required, r#"["disk1", "disk2"]"#,
        "Caches that share the route's objects, each in proportion to its `max_size`."),
    option_row("sites.routes.cache", "key", Table("sites.routes.cache.key"), Described("every default"),
        r#"{ query = { without = ["utm_*"] } }"#,
        "What tells one resource from another, beside method and path."),
    option_row("sites.routes.cache", "bypass", Table("sites.routes.cache.bypass"), Described("nothing"),
        r#"{ cookies = ["session"] }"#,
        "Requests that go to the back end and leave nothing behind."),
    option_row("sites.routes.cache", "min_uses", Number(1, 1_000_000), Value("1"), "2",
        "At which request for it a response is stored; 1 is the first."),
    option_row("sites.routes.cache", "default_ttl", Duration(0), Described("it is not stored"), r#""1m""#,
        "How long a response is fresh that does not say. For requests with cookies only if `bypass` or `key` names cookies (none with `[]`)."),
    option_row("sites.routes.cache", "heuristic_freshness", Bool, Value("false"), "true",
        "A response that does not say, but has `Last-Modified`, is fresh for a tenth of its age, at most a day (RFC 9111 §4.2.2). Never for requests with `Cookie` or `Authorization`; without this key only for responses with `public`."),
    option_row("sites.routes.cache", "ttl_by_status", StringMap, Value("{}"), r#"{ 302 = "5m", 404 = "10s" }"#,
        "The same for responses with such a status, before `default_ttl`; of errors too, which are stored otherwise only if they say how long they are fresh."),
    option_row("sites.routes.cache", "max_ttl", Duration(1), Described("unlimited"), r#""1d""#,
        "No response is fresh for longer, whatever it says."),
    option_row("sites.routes.cache", "stale_while_revalidate", Duration(0), Value(r#""0s""#), r#""30s""#,
        "How long after its freshness a response is sent while a newer one is fetched, if it does not say itself (RFC 5861 §3)."),
    option_row("sites.routes.cache", "stale_if_error", Duration(0), Value(r#""0s""#), r#""1h""#,
        "How long after its freshness a response is sent in place of an error, if it does not say itself (RFC 5861 §4)."),
    option_row("sites.routes.cache", "lock_timeout", Duration(0), Value(r#""5s""#), r#""5s""#,
        "How long a request waits for the response to another one for the same, before it goes to the back end itself."),
    option_row("sites.routes.cache", "cache_status", Bool, Value("true"), "false",
        "Whether responses say in `Cache-Status` (RFC 9211) what the cache did."),
    option_row("sites.routes.cache", "tags", Texts(TAGS_EXPECTED), Value(r#"["Surrogate-Key", "Cache-Tag"]"#), r#"["Surrogate-Key"]"#,
        "Fields of responses with their tags, by which they can be purged; clients do not see them."),

    option_row("sites.routes.cache.key", "host", Bool, Value("true"), "false",
        "Whether the host is in the key; without it all hosts of the site share their content."),
    option_row("sites.routes.cache.key", "query", FlagListOrTable(PARAMETER_EXPECTED, "sites.routes.cache.key.query"), Value("true"),
        r#"["page", "lang"]"#,
        "The part of the query that is in the key: all of it, nothing, these parameters, or all but some."),
    option_row("sites.routes.cache.key", "headers", Texts(FIELD_EXPECTED), Value("[]"), r#"["X-Tenant"]"#,
        "Request fields whose values are in the key."),
    option_row("sites.routes.cache.key", "cookies", Texts(COOKIE_EXPECTED), Described("not set"), r#"["lang"]"#,
        "Cookies whose values are in the key."),

    option_row("sites.routes.cache.key.query", "without", Texts(PARAMETER_EXPECTED), Required, r#"["utm_*"]"#,
        "Parameters that are not in the key."),

    option_row("sites.routes.cache.bypass", "headers", Texts(FIELD_EXPECTED), Value("[]"), r#"["X-Preview"]"#,
        "Requests with one of these fields."),
    option_row("sites.routes.cache.bypass", "cookies", Texts("the name of a cookie such as \"session\" or \"wordpress_*\""),
        Described("not set"), r#"["session", "wordpress_*"]"#,
        "Requests with one of these cookies; a name that ends in `*` stands for all that begin so. With `[]` no cookie matters."),
];

pub(super) const CACHE_EXPECTED: &str = "the name of a [caches.NAME] table";
const PARAMETER_EXPECTED: &str = "the name of a parameter such as \"page\" or \"utm_*\"";
const FIELD_EXPECTED: &str = "the name of a field such as \"X-Tenant\"";
const COOKIE_EXPECTED: &str = "the name of a cookie such as \"lang\"";
const TAGS_EXPECTED: &str =
    "the name of a field such as \"Surrogate-Key\", and none of framing or the connection";
