//! The checked values: what the rest of the house sees of a configuration.
//!
//! Made by `parse` (from a file) and `resolve` (from a directory or the command line); read by the
//! wiring of the rooms.
//!
//! # Invariants
//! - Every path is absolute, every name that is referred to exists, every number is in its range,
//!   and `Default` of a type is what an empty table gives. Everything compares, because a reload
//!   restarts only the applications that differ. Back ends are in `model/upstream.rs`, directories
//!   of files in `model/files.rs`, caches in `model/cache.rs`, applications in `model/app.rs`,
//!   held streams in `model/hub.rs`.

mod app;
mod cache;
mod files;
mod hub;
mod upstream;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use app::{APP_MAX_MEMORY, APP_PROCESSES, APP_QUEUE, APP_THREADS};
pub use app::{
    Access, App, AppKind, Concurrency, MemoryLimit, Preload, Processes, Scaling, Sticky,
};
pub(crate) use cache::CACHE_KEY_QUERY;
pub use cache::{Cache, CacheBypass, CacheKey, QueryKey, RouteCache};
pub use files::{Coding, Files, Symlinks};
pub use hub::{
    Grip, HUB_NAMESPACE, Hub, HubHistory, MercureKey, RouteHub, RouteMercure, Sendfile, SlowPolicy,
};
pub(crate) use hub::{MERCURE_KEY, MercureAlgorithm};
pub use upstream::{
    Balance, ConnectionLimits, EjectPolicy, ForwardedHeaders, HashKey, HealthCheck, HostHeader,
    Protocol, ProxyProtocol, RetryPolicy, ServerAddr, TcpFrontend, Upstream, UpstreamServer,
};
pub(crate) use upstream::{BalanceMethod, UPSTREAM_QUEUE};

use crate::cores::usable_cpus;
use crate::hide::HidePattern;
use crate::options::OptionDefault::{Described, Required, Toml};
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::redacted::Secret;
use crate::values::{HostPattern, ListenAddr, PathPattern};

/// A whole configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file it was read from, none when it was detected.
    pub path: Option<PathBuf>,
    /// The absolute directory against which relative paths were resolved.
    pub base_dir: PathBuf,
    /// Listeners, loops, admin, access log.
    pub server: Server,
    /// Bounds on what clients may ask for.
    pub limits: Limits,
    /// Pools for blocking work by name; `default` is always there.
    pub blocking: BTreeMap<String, BlockingPool>,
    /// Applications by name.
    pub apps: BTreeMap<String, App>,
    /// Bounds on held streams.
    pub hub: Hub,
    /// Caches by name; their directories do not overlap.
    pub caches: BTreeMap<String, Cache>,
    /// Back ends by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// Sites in the order of the file; at least one, unless there are streams.
    pub sites: Vec<Site>,
    /// TCP listeners in the order of the file.
    pub tcp: Vec<TcpFrontend>,
    /// The front end that this one serves its only application for; none is a server of its own.
    pub join_target: Option<JoinTarget>,
}

/// Where programs dial in that serve an application elsewhere: `[server] join`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinEndpoint {
    /// The address that it listens at.
    pub listen: ListenAddr,
    /// The secret shared by them and this server.
    pub key: Secret,
}

/// What `penstock work` dials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTarget {
    /// The front end's address: `HOST:PORT` or `unix:PATH`.
    pub address: String,
    /// The upstream there that it becomes a server of.
    pub upstream: String,
    /// What both know.
    pub key: Secret,
    /// The file that it was read from; none is the configuration's own.
    pub key_file: Option<PathBuf>,
}

impl Config {
    /// What the back end of a route may say by GRIP there; none is nothing.
    pub fn effective_grip(&self, route: &Route) -> Option<Grip> {
        let (name, said) = match (&route.app, &route.upstream) {
            (Some(name), _) => (name, self.apps.get(name)?.grip.as_ref()),
            (None, Some(name)) => (name, self.upstreams.get(name)?.grip.as_ref()),
            (None, None) => return None,
        };
        let is_obeyed = route.grip.unwrap_or_else(|| said.is_some());
        is_obeyed.then(|| said.cloned().unwrap_or_else(|| Grip::new(name)))
    }

    /// Whether the responses of a route's back end may name another body.
    pub fn effective_sendfile<'a>(&'a self, route: &'a Route) -> Option<&'a Sendfile> {
        let of_back_end = || match (&route.app, &route.upstream) {
            (Some(name), _) => Some(&self.apps.get(name)?.sendfile),
            (None, Some(name)) => Some(&self.upstreams.get(name)?.sendfile),
            (None, None) => None,
        };
        let sendfile = route.sendfile.as_ref().or_else(of_back_end)?;
        sendfile.is_enabled.then_some(sendfile)
    }

    /// The namespaces of all channels, some more than once.
    pub fn channel_namespaces(&self) -> Vec<String> {
        let routes = self.sites.iter().flat_map(|site| &site.routes);
        let of_route = |route: &Route| match &route.hub {
            Some(hub) => Some(hub.namespace.clone()),
            None => self.effective_grip(route).map(|grip| grip.namespace),
        };
        routes.filter_map(of_route).collect()
    }
}

section! {
    /// Listeners, event loops, the admin address and the access log.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Server
    in "server", "[server]", "[server]" {
        /// Addresses that clients connect to; port 0 takes a free one and prints it. A file
        /// with nothing but streams has none.
        listen: Vec<ListenAddr> = vec![ListenAddr::loopback(8080)],
            TextsOrTables(ADDRESS, "server.listen"), shows r#"["127.0.0.1:8080"]"#, by hand;
        /// Whether other servers of the same user may listen on the same TCP ports: the kernel
        /// gives each a share of the connections. Without it a second server is refused.
        reuse_port: bool = false, Bool;
        /// Number of event loops.
        threads: usize = usable_cpus(), Number(1, 1024), default "number of cores", example "2";
        /// Address of the status page, metrics and the admin API, or "off". Over TCP it shows the
        /// server to every client that reaches it, and accepts changes only with
        /// `server.admin_token`; a Unix socket is for its owner and root, and allows both.
        admin: Option<ListenAddr> = Some(ListenAddr::loopback(8090)), Text(ADDRESS_OR_OFF),
            shows r#""127.0.0.1:8090""#, by hand;
        /// Unix socket that `penstock reload`, `stop`, `upgrade` and the other commands use; only
        /// root and the user that starts the server may connect, and no process that the server
        /// has started. "off" leaves signals. See admin.md.
        control_socket: ControlSocket = ControlSocket::Auto, Text(SOCKET_OR_OFF),
            default "a socket named after the first listener, in `/run/penstock` (root), \
                `$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR/penstock` or `/tmp/penstock-UID`",
            example r#""unix:/run/penstock/control.sock""#, by hand;
        /// The secret that a change over TCP needs, as `Authorization: Bearer`.
        admin_token: Option<PathBuf> = None, Table("server.admin_token"),
            default "none: no changes over TCP", example r#"{ file = "/etc/penstock/token" }"#,
            by hand;
        /// Address where `/healthz`, `/readyz` and `/metrics` answer to any host name, and
        /// nothing else does: for orchestrators and Prometheus on other machines.
        probes: Option<ListenAddr> = None, Text(ADDRESS), default "none", example r#"":9090""#,
            by hand;
        /// Where every request is logged; a text alone is the path, in the combined format.
        access_log: Option<AccessLog> = None,
            TextOrTable("\"off\", \"stdout\", \"stderr\" or a path", "server.access_log"),
            shows r#""off""#, example r#"{ path = "logs/access.log", format = "combined" }"#,
            by hand;
        /// How long a stop waits for requests in progress.
        shutdown_timeout: Duration = Duration::from_secs(30), Time(0);
        /// How long the server that `penstock upgrade` has replaced may finish requests,
        /// streams and WebSockets that it has; at least `server.shutdown_timeout`. A stop or
        /// the next upgrade leaves it that much.
        upgrade_timeout: Duration = Duration::from_secs(300), Time(0);
        /// How long a stop, or the old server of an upgrade, keeps a connection that waits for
        /// its next request, which is then answered with `Connection: close`; at most
        /// `limits.idle_timeout`.
        keep_alive_drain: Duration = Duration::from_secs(5), Time(0);
        /// Where the server's own log goes, and what applications print; opened again on
        /// SIGUSR1 and `penstock reopen`.
        log: LogTarget = LogTarget::Stderr, Text("\"stdout\", \"stderr\" or a path"),
            shows r#""stderr""#, example r#""logs/server.log""#,
            by within(crate::server::parse_log_target);
        /// The form of the server's own log: lines for people, or one JSON object a line. Lines
        /// of applications that are JSON objects stay as they are.
        log_format: ServerLogFormat = ServerLogFormat::default(), Choice(ServerLogFormat::WORDS),
            example r#""json""#;
        /// Parameters of queries that are shown as `***` in both logs, whatever their case and
        /// separators; `*` in front matches the ends of names. `"default"` stands for tokens,
        /// passwords, API keys, signatures of signed URLs and the like. Passwords in URLs are
        /// always masked.
        log_mask: Vec<String> = vec!["default".to_owned()], Texts(crate::server::MASK_EXPECTED),
            example r#"["default", "voucher", "*_pin"]"#, by items(crate::server::is_masked_name);
        /// The user that the server becomes once its sockets are open and before any application
        /// runs; needs to be started as root.
        user: Option<String> = None, Text("a user's name or number, or `user:group`"),
            default "whoever starts it", example r#""www-data""#, by hand;
        /// The group beside `user`.
        group: Option<String> = None, Text("a group's name or number"),
            default "the groups of `user`", example r#""www-data""#, by hand;
        /// Permissions that new files do not get, in applications too.
        umask: Option<u32> = None, Text("three or four octal digits"), default "as it is started",
            example r#""027""#, by parse(crate::server::parse_mode);
        /// How many files and connections may be open at once.
        max_open_files: Option<u64> = None, Number(64, 100_000_000),
            default "as many as the system allows", example "65536";
        /// Working directory of the server; every path of the configuration stays as it is.
        dir: Option<PathBuf> = None, Path, default "where it is started", example r#""/""#,
            by hand;
        /// Proxies that are trusted with `Forwarded`, `X-Forwarded-*` and `X-Real-IP`: client,
        /// scheme, host, port and prefix in them are the request's. By default, this machine is
        /// trusted for client and scheme alone.
        trusted_proxies: Option<Vec<String>> = None, Texts(NETWORK),
            default "this machine: loopback and Unix sockets", example r#"["10.0.0.0/8", "unix"]"#,
            by items(crate::address::is_network_or_unix);
        /// The one field by which trusted proxies name the client. With `"Forwarded"`, scheme
        /// and host come from that field, too.
        "client_address" => client_ip_header: Option<String> = None,
            Text("the name of a field such as \"X-Real-IP\""),
            default "`X-Forwarded-For`, else `X-Real-IP`; `Forwarded` if there is none of the \
                `X-` fields", example r#""CF-Connecting-IP""#, by check(crate::headers::is_token);
        /// Names that are not found below any directory of files: what `hide` of a route means
        /// where it is left out, and what `X-Sendfile` may not name.
        hide: Vec<HidePattern> = HidePattern::defaults(), Texts(HIDE), shows r#"["default"]"#,
            example r#"["default", "*.psd"]"#, by hand;
        /// Where `penstock work` on other machines dials in, to become a server of an upstream
        /// that is `joinable`.
        join: Option<JoinEndpoint> = None, Table("server.join"), default "nowhere",
            example "{ listen = \"10.0.0.1:7000\", key = \
                \"J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=\" }", by hand;
        /// The Redis or Valkey that several servers share: a message published on one reaches the
        /// streams of all, but for Mercure hubs, which stay each server's own. In a name or
        /// password what a URL cannot have stands as `%` and two digits.
        redis: Option<Secret> = None, Text(crate::server::REDIS_EXPECTED),
            default "none: this server is alone", example r#""redis://127.0.0.1:6379""#, by hand;
    }
    plain {
        /// Permissions of the Unix sockets of `listen` that set some, by path.
        socket_permissions: BTreeMap<PathBuf, SocketPermissions> = BTreeMap::new();
        /// Addresses of `listen` with a PROXY protocol header on each connection.
        proxy_protocol: Vec<ListenAddr> = Vec::new();
    }
}

/// Where the Unix socket is by which the command line changes things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlSocket {
    /// In a directory of the user that starts the server, by a name that follows from the first
    /// listener.
    Auto,
    /// At this absolute path.
    Path(PathBuf),
    /// Nowhere.
    Off,
}

/// The permissions and the owner of a Unix socket's file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketPermissions {
    /// The permissions; none is everybody's.
    pub mode: Option<u32>,
    /// The owner, a name or a number; `None` is the server's user.
    pub user: Option<String>,
    /// The group, a name or a number; `None` is the server's group.
    pub group: Option<String>,
}

/// Where and how requests are logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// Where the lines go.
    pub path: LogTarget,
    /// What a line looks like.
    pub format: LogFormat,
}

/// A place for log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// An absolute file path, appended to.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

choice! {
    /// The form of a line of the server's own log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum ServerLogFormat {
        /// For people.
        #[default]
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

choice! {
    /// The words of `format` of an access log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum AccessLogFormat {
        /// [`LogFormat::Combined`].
        Combined = "combined",
        /// [`LogFormat::Json`].
        Json = "json",
        /// [`LogFormat::Dev`].
        Dev = "dev",
        /// No access log.
        Off = "off",
    }
}

/// The form of an access log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// The combined log format of the Apache server.
    #[default]
    Combined,
    /// One JSON object a line.
    Json,
    /// Short, for a person at a terminal.
    Dev,
}

section! {
    /// Every bound on what a client may send, hold or take; the status page shows use against
    /// bound.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Limits
    in "limits", "[limits]", "[limits]" {
        /// Client connections open at once, those of held streams included. Fewer where the
        /// limit of open files is lower: a part of the files is kept for servers, workers and
        /// the admin interface. When all are open, the one that has been idle for longest is
        /// closed for a new one.
        "connections" => max_connections: usize = 100_000, Number(1, 10_000_000);
        /// Connections that one client may have open: one IPv4 address, or one IPv6 network of
        /// 64 bits. One more is closed at once. 0 is no bound. Trusted proxies and Unix sockets
        /// have any number; behind a PROXY protocol header, the client that it names is
        /// counted.
        "connections_per_client" => max_connections_per_client: Option<usize> = None,
            Number(0, 10_000_000), default "half of all connections, and 64 at least",
            example "100";
        /// Longest target of a request line; above it the answer is 414.
        "target_bytes" => max_uri_size: usize = 8 << 10, Size(64);
        /// Longest request head, request line included; above it the answer is 431.
        "header_bytes" => max_header_size: usize = 32 << 10, Size(256);
        /// Most header fields in a request; above it the answer is 431.
        "headers" => max_headers: usize = 100, Number(1, 10_000);
        /// Longest request body; above it the answer is 413. `max_body_size` of a route says
        /// otherwise for its paths.
        "body_bytes" => max_body_size: u64 = 64 << 20, Size(1);
        /// Time for a whole request head to arrive, however it trickles in; after it the answer
        /// is 408. The first one counts from the accept: a connection that sends nothing is
        /// closed then.
        header_timeout: Duration = Duration::from_secs(10), Time(1);
        /// How long a connection may stay open between two requests.
        idle_timeout: Duration = Duration::from_secs(75), Time(1);
        /// How long nothing at all may arrive of a request body, or be taken of a response,
        /// before the connection is cut.
        body_idle_timeout: Duration = Duration::from_secs(30), Time(1);
        /// Least rate of a request body or of a response being taken, after `body_rate_grace`;
        /// 0B/s is no minimum.
        min_body_rate: u64 = 500, Rate;
        /// How long a body may be slower than `min_body_rate`.
        body_rate_grace: Duration = Duration::from_secs(10), Time(0);
        /// Request bodies above this go to an unlinked temporary file.
        "body_memory" => max_body_memory: usize = 64 << 10, Size(0);
        /// How much of an answer is kept in memory for a slow client; the rest goes to a
        /// temporary file.
        "response_memory" => max_response_memory: usize = 64 << 10, Size(1);
        /// How much of an answer may wait in that file before the worker has to wait for the
        /// client. More, within `temp_bytes`, while other requests wait for a worker.
        "response_spool" => max_response_spool: u64 = 64 << 20, Size(1);
        /// Least rate at which a client takes a response that has filled its file and so holds a
        /// worker, or a place at an upstream, while other requests wait for one. After
        /// `body_rate_grace` below it the response is cut. More is required the longer a request
        /// waits, up to eight times as much, and sixteen times as much of a client with responses
        /// in more than half of the places. 0B/s cuts none.
        min_busy_rate: u64 = 64 << 10, Rate;
        /// What all temporary files may take together. Then workers wait for their clients, and a
        /// request body that has no room is answered 503. The responses of one client get a
        /// sixteenth of the rest, so that others find room.
        "temp_bytes" => max_temp_size: Option<u64> = None, Size(1),
            default "a tenth of the disk of `temp_dir`, 16GiB at most; of a `temp_dir` in \
                memory (tmpfs) 128MiB, an eighth at most", example r#""4GiB""#;
        /// Longest message of a WebSocket's client, 32MiB at most; above it the connection is
        /// closed with 1009.
        "websocket_message_bytes" => max_websocket_message_size: usize = 1 << 20, Size(1);
        /// Directory of the temporary files.
        temp_dir: PathBuf = std::env::temp_dir(), Path, default "the system's temporary folder",
            example r#""/tmp""#, by hand;
    }
}

section! {
    /// Pools of threads for work that would block an event loop, such as reading cold files;
    /// give each disk its own so that a slow one does not hold up the others. `default` is
    /// always there.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BlockingPool
    in "blocking.NAME", "[blocking.NAME]", "[blocking.default]" {
        /// Number of threads.
        threads: usize = 32, Number(1, 4096);
        /// Jobs that may wait for a thread; one more is an error that names the pool, and 503.
        /// With 0 a job is taken only by a thread that has nothing to do.
        "max_queue" => max_queued: usize = 65_536, Number(0, 100_000_000);
    }
}

section! {
    /// One site. Without any, the only application or upstream answers every host and path, an
    /// application after the files of `public/` in its directory if there is one.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Site(routes: Vec<Route>)
    in "sites", "[[sites]]", "[[sites]]" {
        /// Hosts the site answers for.
        hosts: Vec<HostPattern> = Vec::new(), Texts(HOST),
            default "any host that no other site names",
            example r#"["example.com", "*.example.com"]"#, by hand;
        /// Routes, tried in order.
        routes: Vec<Route> = routes, Tables("sites.routes"), default required, by hand;
        /// Files, of at most 1MiB, that take the place of the server's own error pages, by
        /// status or by class (`4xx`, `5xx`); what an application or upstream answers is sent
        /// as it is, and so is the server's page for a request that is too broken to tell its
        /// site. They are read at start and at a reload.
        error_pages: BTreeMap<u16, PathBuf> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ 404 = "errors/404.html", 5xx = "errors/50x.html" }"#, by hand;
    }
}

section! {
    /// One route of the site above it. Routes are tried in order; files come before the app or
    /// upstream, and what no file answers falls through to it. A route with `hub` or `mercure`
    /// has none of these.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Route(path: PathPattern)
    in "sites.routes", "[[sites.routes]]", "[[sites.routes]]" {
        /// The path it is for, or every path below one when it ends in `/*`.
        path: PathPattern = path, Text(PATH), shows r#""/*""#, by hand;
        /// Files to look for first.
        files: Option<Files> = None, Table("sites.routes.files"), default "no files",
            example r#"{ root = "public" }"#, by hand;
        /// Application that answers what no file did.
        app: Option<String> = None, Text("the name of an [apps.NAME] table"), default "no app",
            example r#""hello""#, by hand;
        /// Upstream that answers what no file did.
        upstream: Option<String> = None, Text(UPSTREAM), default "no upstream",
            example r#""legacy""#, only "a route without `app`", by hand;
        /// Holds a stream of Server-Sent Events for each client; a text alone is `channel`.
        hub: Option<RouteHub> = None, TextOrTable(CHANNEL_EXPECTED, "sites.routes.hub"),
            default "no streams", example r#""news.{path.1}""#,
            only "a route without `app`, `upstream` and `files`", by hand;
        /// Answers as a Mercure hub, of this server alone also with `server.redis`; its clients
        /// look for it at the path `/.well-known/mercure`.
        mercure: Option<RouteMercure> = None, Table("sites.routes.mercure"),
            default "no Mercure hub",
            example "{ publisher_key = \"!ChangeThisMercureHubJWTSecretKey!\", anonymous = \
                true }", only "a route without `app`, `upstream`, `files` and `hub`", by hand;
        /// Whether what the application or upstream says by GRIP is obeyed on this route.
        grip: Option<bool> = None, Bool, default "as the application or upstream says",
            only ONLY_ROUTE_WITH_BACKEND;
        /// Whether its responses may name another body on this route.
        sendfile: Option<Sendfile> = None, FlagOrPaths,
            default "as the application or upstream says", example r#"["private"]"#,
            only ONLY_ROUTE_WITH_BACKEND, by hand;
        /// Whether the route is for internal redirects (`X-Accel-Redirect`) only; for a client
        /// it is not there: the next one that matches answers.
        internal: bool = false, Bool;
        /// How the path is changed.
        rewrite: Rewrite = Rewrite::default(), Table("sites.routes.rewrite"), default "no change",
            example r#"{ strip_prefix = "/api" }"#;
        /// How the request's header is changed.
        request_headers: HeaderRules = HeaderRules::default(),
            Table("sites.routes.request_headers"), default "no change",
            example r#"{ set = { X-Site = "{host}" }, remove = ["X-Debug"] }"#, by hand;
        /// How the response's header is changed.
        response_headers: HeaderRules = HeaderRules::default(),
            Table("sites.routes.response_headers"), default "no change",
            example r#"{ set = { X-Frame-Options = "DENY" } }"#, by hand;
        /// Whether request bodies are read whole before a back end hears of them.
        request_buffering: Option<bool> = None, Bool, default "the upstream's", only ONLY_PROXIED;
        /// Whether responses are taken off the back end faster than the client takes them.
        response_buffering: Option<bool> = None, Bool, default "the upstream's", only ONLY_PROXIED;
        /// Longest request body; above it the answer is 413.
        max_body_size: Option<u64> = None, Size(1), default "`limits.body_bytes`",
            example r#""2GiB""#;
        /// Caches in front of the app or upstream; a list alone is `stores`.
        cache: Option<RouteCache> = None, ListOrTable(CACHE_EXPECTED, "sites.routes.cache"),
            default "no cache", example r#"["disk1"]"#, only ONLY_ROUTE_WITH_BACKEND, by hand;
    }
}

section! {
    /// How the path is changed before files, app or upstream see it: first `strip_prefix`, then
    /// `add_prefix`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Rewrite
    in "sites.routes.rewrite", "rewrite = { ... } in [[sites.routes]]", "" {
        /// Taken off the front of the path, if it is there.
        strip_prefix: Option<String> = None, Text(PREFIX), default "nothing", example r#""/api""#,
            by parse(crate::route::parse_prefix);
        /// Put in front.
        add_prefix: Option<String> = None, Text(PREFIX), default "nothing", example r#""/v2""#,
            by parse(crate::route::parse_prefix);
        /// Whether `Location`, `Content-Location`, `Refresh` and cookie paths of an upstream
        /// are put back under `strip_prefix`.
        response_paths: bool = true, Bool;
    }
}

section! {
    /// Changes of the request's header, in this order: `remove`, `set`, `add`. In values
    /// `{client}`, `{host}`, `{scheme}` and `{path}` stand for the request's. Fields of framing
    /// and of the connection are not a route's to change.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HeaderRules
    in "sites.routes.request_headers", "request_headers = { ... } in [[sites.routes]]", "" {
        /// Fields that are dropped.
        remove: Vec<String> = Vec::new(), Texts(FIELD), example r#"["X-Debug"]"#, by hand;
        /// Fields that replace all of their name.
        set: BTreeMap<String, String> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ X-Site = "{host}" }"#, by hand;
        /// Fields that are added to those there are.
        add: BTreeMap<String, String> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ Via = "1.1 front" }"#, by hand;
    }
}

impl HeaderRules {
    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

keys! {
    /// The top level of the file.
    TOP in "", "", "" {
        /// Listeners, loops, admin, access log.
        "server": Table("server"), Described("every default");
        /// Bounds on clients.
        "limits": Table("limits"), Described("every default");
        /// Pools for blocking work.
        "blocking": NamedTables("blocking.NAME"), Described("the pool `default`");
        /// Applications.
        "apps": NamedTables("apps.NAME"), Described("none");
        /// Back ends.
        "upstreams": NamedTables("upstreams.NAME"), Described("none");
        /// Caches.
        "caches": NamedTables("caches.NAME"), Described("none");
        /// Held streams.
        "hub": Table("hub"), Described("every default");
        /// Sites.
        "sites": Tables("sites"), Described("one site for the only application or upstream");
        /// TCP listeners.
        "tcp": Tables("tcp"), Described("none");
    }
}

keys! {
    /// An address with settings of its own.
    SERVER_LISTEN in "server.listen", "listen = [{ ... }] in [server]", "" {
        /// Address that clients connect to.
        "address": Text(ADDRESS), Required, example r#""127.0.0.1:8080""#;
        /// Permissions of a Unix socket's file: users that may write it may connect.
        "mode": Text("three or four octal digits"), Toml(r#""0666""#), example r#""0660""#;
        /// The owner of a Unix socket's file; another user than the server's needs a start as
        /// root.
        "owner": Text("`user`, `user:group` or `:group`, by name or number"),
            Described("`server.user`, or whoever starts it"), example r#"":www-data""#;
        /// Whether its connections begin with a PROXY protocol header, of version 1 or 2.
        "proxy_protocol": Bool, Toml("false");
    }
}

keys! {
    /// The secret by which changes are made over TCP; see admin.md.
    ADMIN_TOKEN in "server.admin_token", "admin_token = { ... } in [server]", "" {
        /// File with the token, for example from `openssl rand -base64 32`; only its owner and its
        /// group may read it, and its owner is root or the user that starts the server.
        "file": Path, Required, example r#""/etc/penstock/token""#;
    }
}

keys! {
    /// Where programs dial in that serve an application elsewhere; see machines.md.
    SERVER_JOIN in "server.join", "join = { ... } in [server]", "" {
        /// Address that it listens at: one that only those machines reach, since nothing there
        /// is encrypted.
        "listen": Text(ADDRESS), Required, example r#""10.0.0.1:7000""#;
        /// The secret that a program must know to dial in; by it each side proves its identity to
        /// the other.
        "key": Text(crate::join::JOIN_KEY_EXPECTED), Required,
            example r#""J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=""#;
    }
}

keys! {
    /// Where requests are logged and what a line looks like.
    ACCESS_LOG in "server.access_log", "access_log = { ... } in [server]", "" {
        /// File that lines are appended to.
        "path": Text("a path, \"stdout\" or \"stderr\""), Required, example r#""logs/access.log""#;
        /// The form of a line: dev is for a person at a terminal, off writes none.
        "format": Choice(AccessLogFormat::WORDS), Toml(r#""combined""#);
    }
}
