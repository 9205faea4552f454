//! The rows of back ends: `[upstreams.NAME]` with its tables, and `[[streams]]`.
//!
//! Data only, like `table`, whose rows these follow. What must stay true: the rows of
//! `upstreams.NAME` are also those of an application's `upstream` table, but for the keys that
//! `sections` takes out.

use super::Kind::*;
use super::Opt;
use super::Unset::{Is, Means, Required};
use super::table::{ADDRESS, UPSTREAM, row};

/// Every option of back ends.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[Opt] = &[
    row("upstreams.NAME", "protocol", OneOf(&["http", "fastcgi", "scgi", "uwsgi", "ajp"]), Is(r#""http""#), r#""http""#,
        "What is spoken to the servers."),
    row("upstreams.NAME", "servers", TextsOrTables(SERVER, "upstreams.NAME.servers"), Means("required, unless it is `joined`"),
        r#"["127.0.0.1:3000", { address = "unix:app.sock", weight = 2 }]"#,
        "Where the servers listen. A name stands for each of its addresses, `srv:` and a name for each target of its SRV records."),
    row("upstreams.NAME", "joined", Bool, Is("false"), "true",
        "Whether programs that dial in at `join` of [server] become servers of it (`penstock work`), beside those of `servers` if there are any.")
        .only("the protocol \"http\""),
    row("upstreams.NAME", "join_key", Text(crate::join::KEY_EXPECTED), Means("the key of `join` in [server]"), r#""pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ""#,
        "What programs that join this upstream must know. They can join no other, and the key of `join` in [server] does not open this one.")
        .only("upstreams that are `joined`"),
    row("upstreams.NAME", "balance", OneOf(&["idle_first", "round_robin", "least_active", "random_two", "hash"]),
        Is(r#""idle_first""#), r#""idle_first""#,
        "Which free server gets a request: `idle_first` one with nothing to do, else the least busy; `round_robin` in turn; \
         `least_active` the least busy; `random_two` the less busy of two drawn at random; `hash` the same for the same `key`."),
    row("upstreams.NAME", "key", Text(KEY), Means("required by its balance"), r#""header:X-Tenant""#,
        "What of a request is hashed: its path, its path and query, its client's address, a header field or a cookie.")
        .only("the balance \"hash\""),
    row("upstreams.NAME", "sticky", Text(COOKIE), Means("no stickiness"), r#""server""#,
        "Cookie that keeps a client at one server."),
    row("upstreams.NAME", "max_active", Count(1, 1_000_000), Means("bounded by `connections.max` only"), "1",
        "Requests that each server may have in progress; the others wait in the queue."),
    row("upstreams.NAME", "queue", Table("upstreams.NAME.queue"), Means("every default"),
        r#"{ max = 1000, timeout = "30s" }"#, "The queue of requests for a server."),
    row("upstreams.NAME", "connections", Table("upstreams.NAME.connections"), Means("every default"),
        r#"{ min = 0, soft = 8, max = 64, ttl = "60s" }"#, "Connections to each server."),
    row("upstreams.NAME", "connect_timeout", Time(1), Is(r#""5s""#), r#""5s""#,
        "How long a connection may take to be made; after the last try the answer is 502."),
    row("upstreams.NAME", "response_timeout", Time(1), Is(r#""60s""#), r#""60s""#,
        "How long a server that has the whole request may take to the end of the response's head; after it the answer is 504."),
    row("upstreams.NAME", "stall_timeout", Time(1), Is(r#""60s""#), r#""60s""#,
        "How long nothing at all may be taken of the request, or come of the response's body."),
    row("upstreams.NAME", "total_timeout", Time(1), Means("unlimited"), r#""10m""#,
        "How long an exchange with a server may take from its beginning to the end of the response."),
    row("upstreams.NAME", "tunnel_timeout", Time(1), Is(r#""1h""#), r#""1h""#,
        "How long a connection may stay without a byte either way after an upgrade, such as to WebSocket, and in TCP mode."),
    row("upstreams.NAME", "retry", Table("upstreams.NAME.retry"), Means("every default"),
        "{ attempts = 2, budget = 0.2 }", "Other servers tried after a failure."),
    row("upstreams.NAME", "health", Table("upstreams.NAME.health"), Means("no probes"),
        r#"{ path = "/up", interval = "2s", rise = 2, fall = 3 }"#, "Probes of each server."),
    row("upstreams.NAME", "eject", Table("upstreams.NAME.eject"), Means("every default"),
        r#"{ failures = 3, time = "10s" }"#, "When failures of requests put a server aside."),
    row("upstreams.NAME", "slow_start", Time(0), Is(r#""0s""#), r#""30s""#,
        "Time over which a server that comes back gets its full share."),
    row("upstreams.NAME", "host", Text(HOST), Is(r#""client""#), r#""client""#,
        "The `Host` that servers see: the client's, the server's own address, or this text."),
    row("upstreams.NAME", "forwarded", OneOf(&["x-forwarded", "rfc7239", "both", "off"]),
        Is(r#""x-forwarded""#), r#""x-forwarded""#,
        "How servers are told of the client: `X-Forwarded-For`, `-Proto` and `-Host`, `Forwarded` (RFC 7239), both, or not at all."),
    row("upstreams.NAME", "strict", Bool, Is("false"), "true",
        "Whether responses with bare LF line ends, padded chunk sizes, long chunk extensions, blanks before a colon, folded fields or \
         faulty `Transfer-Encoding` are refused (502) instead of mended.")
        .only("the protocols \"http\" and \"uwsgi\""),
    row("upstreams.NAME", "request_buffering", Bool, Is("true"), "false",
        "Whether request bodies are read whole before a server hears of them."),
    row("upstreams.NAME", "response_buffering", Bool, Is("true"), "false",
        "Whether responses are taken off the server faster than the client takes them."),
    row("upstreams.NAME", "proxy_protocol", OneOf(&["v1", "v2"]), Means("none"), r#""v2""#,
        "PROXY protocol header that connections to the servers begin with; each then serves one client."),
    row("upstreams.NAME", "grip", FlagOrTable("upstreams.NAME.grip"), Is("false"), "true",
        "Whether what the servers say by GRIP is obeyed: responses with `Grip-Hold` are held. A table is `true`. A route may say otherwise."),
    row("upstreams.NAME", "sendfile", FlagOrPaths, Is("false"), r#"["private"]"#,
        "Whether responses may name another body: a route of the site (`X-Accel-Redirect`), or a file by absolute path below one of \
         these folders (`X-Sendfile`); and bound its rate (`X-Accel-Limit-Rate`). A route may say otherwise."),
    row("upstreams.NAME", "sendfile_root", Path, Means("none"), r#""public""#,
        "One folder more of `sendfile`."),
    row("upstreams.NAME", "root", Path, Means("none"), r#""/srv/www""#,
        "Folder of the scripts as the servers see it (`DOCUMENT_ROOT`).")
        .only(GATEWAYS),
    row("upstreams.NAME", "index", Text(SCRIPT), Means("none"), r#""index.php""#,
        "Script, relative to `root`, for every path that is no script of its own.")
        .only(GATEWAYS),
    row("upstreams.NAME", "params", Map, Is("{}"), r#"{ APP_ENV = "production" }"#,
        "Variables added to the environment of each request.")
        .only(GATEWAYS),
    row("upstreams.NAME", "secret", Text("a text"), Means("none"), r#""s3cret""#,
        "Secret that the servers want.")
        .only("the protocol \"ajp\""),
    row("upstreams.NAME", "resolve_interval", Time(1), Is(r#""30s""#), r#""30s""#,
        "How often names are resolved again when their records do not say."),

    row("upstreams.NAME.servers", "address", Text(SERVER), Required, r#""127.0.0.1:3000""#,
        "Where it listens."),
    row("upstreams.NAME.servers", "weight", Count(1, 65_535), Is("1"), "2",
        "Its share against the others'."),
    row("upstreams.NAME.servers", "max_active", Count(1, 1_000_000), Means("the upstream's"), "1",
        "Requests that it may have in progress."),
    row("upstreams.NAME.servers", "backup", Bool, Is("false"), "true",
        "Whether it gets requests only when no other server can."),

    row("upstreams.NAME.queue", "max", Count(0, 10_000_000), Is("1000"), "1000",
        "Requests that may wait; one more is answered 503 at once."),
    row("upstreams.NAME.queue", "timeout", Time(1), Is(r#""30s""#), r#""30s""#,
        "How long a request may wait; after it the answer is 503."),

    row("upstreams.NAME.connections", "min", Count(0, 1_000_000), Is("0"), "0",
        "Opened ahead and kept for ever."),
    row("upstreams.NAME.connections", "soft", Count(0, 1_000_000), Means("64, or what `min` and `max` leave of it; 0 for FastCGI without `max_active`"), "8",
        "Kept while the server keeps them."),
    row("upstreams.NAME.connections", "max", Count(1, 1_000_000), Means("1024, or more if another bound is above it"), "64",
        "Never exceeded."),
    row("upstreams.NAME.connections", "ttl", Time(1), Is(r#""60s""#), r#""60s""#,
        "Those above `soft` close after so long without a request."),

    row("upstreams.NAME.retry", "attempts", Count(1, 100), Is("2"), "2",
        "Tries in all, the first included."),
    row("upstreams.NAME.retry", "budget", Fraction, Is("0.2"), "0.2",
        "Retries against requests; above it only ten a second are made, so that a failing upstream is not stormed."),

    row("upstreams.NAME.health", "path", Text(PROBE), Means("none: only connect"), r#""/up""#,
        "Path and query that are asked for."),
    row("upstreams.NAME.health", "status", Text(STATUS), Is(r#""200-399""#), r#""200-399""#,
        "Status that is well.")
        .only("probes with a `path`"),
    row("upstreams.NAME.health", "interval", Time(1), Is(r#""2s""#), r#""2s""#,
        "Time between two probes."),
    row("upstreams.NAME.health", "timeout", Time(1), Is(r#""2s""#), r#""2s""#,
        "How long a probe may take."),
    row("upstreams.NAME.health", "rise", Count(1, 1000), Is("2"), "2",
        "Good probes in a row that bring a server up."),
    row("upstreams.NAME.health", "fall", Count(1, 1000), Is("3"), "3",
        "Failed probes in a row that take it down."),

    row("upstreams.NAME.eject", "failures", Count(0, 1_000_000), Is("3"), "3",
        "Failures in a row; 0 never puts a server aside."),
    row("upstreams.NAME.eject", "time", Time(1), Is(r#""10s""#), r#""10s""#,
        "For how long, growing with each time in a row."),

    row("streams", "listen", Text(ADDRESS), Required, r#""127.0.0.1:9000""#,
        "Address that clients connect to."),
    row("streams", "upstream", Text(UPSTREAM), Required, r#""legacy""#,
        "Upstream that connections are relayed to; its `protocol` does not matter here."),
    row("streams", "proxy_protocol", Bool, Is("false"), "true",
        "Whether its connections begin with a PROXY protocol header, of version 1 or 2."),
];

const SERVER: &str = crate::ServerAddr::EXPECTED;
const KEY: &str = "\"path\", \"target\", \"client\", \"header:NAME\" or \"cookie:NAME\"";
const COOKIE: &str = "the name of a cookie";
const HOST: &str =
    "\"client\", \"server\", or a host such as \"app.example\", with or without a port";
const SCRIPT: &str = "a path inside `root` such as \"index.php\"";
const PROBE: &str = "a path such as \"/up\", without spaces";
const STATUS: &str = "a status or a range such as \"200-399\", from 100 to 599";
const GATEWAYS: &str = "other protocols than \"http\"";
