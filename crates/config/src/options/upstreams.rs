//! The rows of back ends: `[upstreams.NAME]` with its tables, and `[[tcp]]`.
//!
//! Data only, like `table`, whose rows these follow. What must stay true: the rows of
//! `upstreams.NAME` are also those of an application's `upstream` table, but for the keys that
//! `sections` takes out.

use super::OptionDefault::{Described, Required, Value};
use super::OptionKind::*;
use super::OptionRow;
use super::table::{ADDRESS, UPSTREAM, option_row};

/// Every option of back ends.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[OptionRow] = &[
    option_row("upstreams.NAME", "protocol", Choice(&["http", "fastcgi", "scgi", "uwsgi", "ajp"]), Value(r#""http""#), r#""http""#,
        "What is spoken to the servers."),
    option_row("upstreams.NAME", "servers", TextsOrTables(SERVER, "upstreams.NAME.servers"), Described("required, unless it is `joinable`"),
        r#"["127.0.0.1:3000", { address = "unix:app.sock", weight = 2 }]"#,
        "Where the servers listen. A name stands for each of its addresses, `srv:` and a name for each target of its SRV records."),
    option_row("upstreams.NAME", "joinable", Bool, Value("false"), "true",
        "Whether programs that dial in at `join` of [server] become servers of it (`penstock work`), beside those of `servers` if there are any.")
        .only_for("the protocol \"http\""),
    option_row("upstreams.NAME", "join_key", Text(crate::join::JOIN_KEY_EXPECTED), Described("the key of `join` in [server]"), r#""pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ""#,
        "What programs that join this upstream must know. They can join no other, and the key of `join` in [server] does not open this one.")
        .only_for("upstreams that are `joinable`"),
    option_row("upstreams.NAME", "balance", Choice(&["idle_first", "round_robin", "least_active", "random_two", "hash"]),
        Value(r#""idle_first""#), r#""idle_first""#,
        "Which free server gets a request: `idle_first` one with nothing to do, else the least busy; `round_robin` in turn; \
         `least_active` the least busy; `random_two` the less busy of two drawn at random; `hash` the same for the same `key`."),
    option_row("upstreams.NAME", "key", Text(HASH_KEY_EXPECTED), Described("required by its balance"), r#""header:X-Tenant""#,
        "What of a request is hashed: its path, its path and query, its client's address, a header field or a cookie.")
        .only_for("the balance \"hash\""),
    option_row("upstreams.NAME", "sticky", Text(COOKIE), Described("no stickiness"), r#""server""#,
        "Cookie that keeps a client at one server."),
    option_row("upstreams.NAME", "max_active", Number(1, 1_000_000), Described("bounded by `connections.max` only"), "1",
        "Requests that each server may have in progress; the others wait in the queue."),
    option_row("upstreams.NAME", "queue", Table("upstreams.NAME.queue"), Described("every default"),
        r#"{ max = 1000, timeout = "30s" }"#, "The queue of requests for a server."),
    option_row("upstreams.NAME", "connections", Table("upstreams.NAME.connections"), Described("every default"),
        r#"{ min = 0, soft = 8, max = 64, ttl = "60s" }"#, "Connections to each server."),
    option_row("upstreams.NAME", "connect_timeout", Duration(1), Value(r#""5s""#), r#""5s""#,
        "How long a connection may take to be made; after the last try the answer is 502."),
    option_row("upstreams.NAME", "response_timeout", Duration(1), Value(r#""60s""#), r#""60s""#,
        "How long a server that has the whole request may take to the end of the response's head; after it the answer is 504."),
    option_row("upstreams.NAME", "body_idle_timeout", Duration(1), Value(r#""60s""#), r#""60s""#,
        "How long nothing at all may be taken of the request, or come of the response's body."),
    option_row("upstreams.NAME", "total_timeout", Duration(1), Described("unlimited"), r#""10m""#,
        "How long an exchange with a server may take from its beginning to the end of the response."),
    option_row("upstreams.NAME", "tunnel_timeout", Duration(1), Value(r#""1h""#), r#""1h""#,
        "How long a connection may stay without a byte either way after an upgrade, such as to WebSocket, and in TCP mode."),
    option_row("upstreams.NAME", "retry", Table("upstreams.NAME.retry"), Described("every default"),
        "{ attempts = 2, budget = 0.2 }", "Other servers tried after a failure."),
    option_row("upstreams.NAME", "health", Table("upstreams.NAME.health"), Described("no probes"),
        r#"{ path = "/up", interval = "2s", rise = 2, fall = 3 }"#, "Probes of each server."),
    option_row("upstreams.NAME", "eject", Table("upstreams.NAME.eject"), Described("every default"),
        r#"{ max_failures = 3, duration = "10s" }"#, "When failures of requests put a server aside."),
    option_row("upstreams.NAME", "slow_start", Duration(0), Value(r#""0s""#), r#""30s""#,
        "Time over which a server that comes back gets its full share."),
    option_row("upstreams.NAME", "host", Text(HOST), Value(r#""client""#), r#""client""#,
        "The `Host` that servers see: the client's, the server's own address, or this text."),
    option_row("upstreams.NAME", "forwarded", Choice(&["x-forwarded", "rfc7239", "both", "off"]),
        Value(r#""x-forwarded""#), r#""x-forwarded""#,
        "How servers are told of the client: `X-Forwarded-For`, `-Proto` and `-Host`, `Forwarded` (RFC 7239), both, or not at all."),
    option_row("upstreams.NAME", "strict", Bool, Value("false"), "true",
        "Whether responses with bare LF line ends, padded chunk sizes, long chunk extensions, blanks before a colon, folded fields or \
         faulty `Transfer-Encoding` are refused (502) instead of mended.")
        .only_for("the protocols \"http\" and \"uwsgi\""),
    option_row("upstreams.NAME", "request_buffering", Bool, Value("true"), "false",
        "Whether request bodies are read whole before a server hears of them."),
    option_row("upstreams.NAME", "response_buffering", Bool, Value("true"), "false",
        "Whether responses are taken off the server faster than the client takes them."),
    option_row("upstreams.NAME", "proxy_protocol", Choice(&["v1", "v2"]), Described("none"), r#""v2""#,
        "PROXY protocol header that connections to the servers begin with; each then serves one client."),
    option_row("upstreams.NAME", "grip", FlagOrTable("upstreams.NAME.grip"), Value("false"), "true",
        "Whether what the servers say by GRIP is obeyed: responses with `Grip-Hold` are held. A table is `true`. A route may say otherwise."),
    option_row("upstreams.NAME", "sendfile", FlagOrPaths, Value("false"), r#"["private"]"#,
        "Whether responses may name another body: a route of the site (`X-Accel-Redirect`), or a file by absolute path below one of \
         these folders (`X-Sendfile`); and bound its rate (`X-Accel-Limit-Rate`). A route may say otherwise."),
    option_row("upstreams.NAME", "sendfile_root", Path, Described("none"), r#""public""#,
        "One folder more of `sendfile`."),
    option_row("upstreams.NAME", "root", Path, Described("none"), r#""/srv/www""#,
        "Folder of the scripts as the servers see it (`DOCUMENT_ROOT`).")
        .only_for(ONLY_GATEWAYS),
    option_row("upstreams.NAME", "index", Text(SCRIPT), Described("none"), r#""index.php""#,
        "Script, relative to `root`, for every path that is no script of its own.")
        .only_for(ONLY_GATEWAYS),
    option_row("upstreams.NAME", "params", StringMap, Value("{}"), r#"{ APP_ENV = "production" }"#,
        "Variables added to the environment of each request.")
        .only_for(ONLY_GATEWAYS),
    option_row("upstreams.NAME", "secret", Text("a text"), Described("none"), r#""s3cret""#,
        "Secret that the servers want.")
        .only_for("the protocol \"ajp\""),
    option_row("upstreams.NAME", "resolve_interval", Duration(1), Value(r#""30s""#), r#""30s""#,
        "How often names are resolved again when their records do not say."),

    option_row("upstreams.NAME.servers", "address", Text(SERVER), Required, r#""127.0.0.1:3000""#,
        "Where it listens."),
    option_row("upstreams.NAME.servers", "weight", Number(1, 65_535), Value("1"), "2",
        "Its share against the others'."),
    option_row("upstreams.NAME.servers", "max_active", Number(1, 1_000_000), Described("the upstream's"), "1",
        "Requests that it may have in progress."),
    option_row("upstreams.NAME.servers", "backup", Bool, Value("false"), "true",
        "Whether it gets requests only when no other server can."),

    option_row("upstreams.NAME.queue", "max", Number(0, 10_000_000), Value("1000"), "1000",
        "Requests that may wait; one more is answered 503 at once."),
    option_row("upstreams.NAME.queue", "timeout", Duration(1), Value(r#""30s""#), r#""30s""#,
        "How long a request may wait; after it the answer is 503."),

    option_row("upstreams.NAME.connections", "min", Number(0, 1_000_000), Value("0"), "0",
        "Opened ahead and kept for ever."),
    option_row("upstreams.NAME.connections", "soft", Number(0, 1_000_000), Described("64, or what `min` and `max` leave of it; 0 for FastCGI without `max_active`"), "8",
        "Kept while the server keeps them."),
    option_row("upstreams.NAME.connections", "max", Number(1, 1_000_000), Described("1024, or more if another bound is above it"), "64",
        "Never exceeded."),
    option_row("upstreams.NAME.connections", "ttl", Duration(1), Value(r#""60s""#), r#""60s""#,
        "Those above `soft` close after so long without a request."),

    option_row("upstreams.NAME.retry", "attempts", Number(1, 100), Value("2"), "2",
        "Tries in all, the first included."),
    option_row("upstreams.NAME.retry", "budget", Fraction, Value("0.2"), "0.2",
        "Retries against requests; above it only ten a second are made, so that a failing upstream is not stormed."),

    option_row("upstreams.NAME.health", "path", Text(PROBE_EXPECTED), Described("none: only connect"), r#""/up""#,
        "Path and query that are asked for."),
    option_row("upstreams.NAME.health", "status", Text(STATUS), Value(r#""200-399""#), r#""200-399""#,
        "Status that is well.")
        .only_for("probes with a `path`"),
    option_row("upstreams.NAME.health", "interval", Duration(1), Value(r#""2s""#), r#""2s""#,
        "Time between two probes."),
    option_row("upstreams.NAME.health", "timeout", Duration(1), Value(r#""2s""#), r#""2s""#,
        "How long a probe may take."),
    option_row("upstreams.NAME.health", "rise", Number(1, 1000), Value("2"), "2",
        "Good probes in a row that bring a server up."),
    option_row("upstreams.NAME.health", "fall", Number(1, 1000), Value("3"), "3",
        "Failed probes in a row that take it down."),

    option_row("upstreams.NAME.eject", "max_failures", Number(0, 1_000_000), Value("3"), "3",
        "Failures in a row; 0 never puts a server aside."),
    option_row("upstreams.NAME.eject", "duration", Duration(1), Value(r#""10s""#), r#""10s""#,
        "For how long, growing with each time in a row."),

    option_row("tcp", "listen", Text(ADDRESS), Required, r#""127.0.0.1:9000""#,
        "Address that clients connect to."),
    option_row("tcp", "upstream", Text(UPSTREAM), Required, r#""legacy""#,
        "Upstream that connections are relayed to; its `protocol` does not matter here."),
    option_row("tcp", "proxy_protocol", Bool, Value("false"), "true",
        "Whether its connections begin with a PROXY protocol header, of version 1 or 2."),
];

const SERVER: &str = crate::ServerAddr::EXPECTED;
const HASH_KEY_EXPECTED: &str =
    "\"path\", \"uri\", \"client_ip\", \"header:NAME\" or \"cookie:NAME\"";
const COOKIE: &str = "the name of a cookie";
const HOST: &str =
    "\"client\", \"server\", or a host such as \"app.example\", with or without a port";
const SCRIPT: &str = "a path inside `root` such as \"index.php\"";
const PROBE_EXPECTED: &str = "a path such as \"/up\", without spaces";
const STATUS: &str = "a status or a range such as \"200-399\", from 100 to 599";
const ONLY_GATEWAYS: &str = "other protocols than \"http\"";
