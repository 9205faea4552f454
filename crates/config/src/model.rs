//! The checked values: what the rest of the house sees of a configuration.
//!
//! Made by `parse` (from a file) and `resolve` (from a folder or the command line); read by the
//! wiring of the rooms. What must stay true: every path is absolute, every name that is referred to
//! exists, every number is in its range, and `Default` of a type is what an empty table gives.
//! Everything compares, because a reload restarts only the applications that differ. Back ends are in
//! `model/upstream.rs`, folders of files in `model/files.rs`, caches in `model/cache.rs`, applications in
//! `model/app.rs`, held streams in `model/hub.rs`.

mod app;
mod cache;
mod files;
mod hub;
mod upstream;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use app::{
    Access, App, AppKind, Concurrency, MemoryLimit, Preload, Processes, Scaling, Sticky,
};
pub use cache::{Cache, CacheBypass, CacheKey, QueryKey, RouteCache};
pub use files::{Coding, Files, Symlinks};
pub use hub::{
    Grip, HUB_NAMESPACE, Hub, HubHistory, MercureKey, RouteHub, RouteMercure, Sendfile, SlowPolicy,
};
pub use upstream::{
    Balance, ConnectionLimits, EjectPolicy, ForwardedHeaders, HashKey, HealthCheck, HostHeader,
    Protocol, ProxyProtocol, RetryPolicy, ServerAddr, TcpFrontend, Upstream, UpstreamServer,
};

use crate::cores::usable_cpus;
use crate::hide::HidePattern;
use crate::redacted::Secret;
use crate::values::{HostPattern, ListenAddr, PathPattern};

/// A whole configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file it was read from, none when it was detected.
    pub path: Option<PathBuf>,
    /// The absolute folder against which relative paths were resolved.
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
    /// Caches by name; their folders do not overlap.
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
    /// What they and this server know, and nobody else.
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
        is_obeyed.then(|| said.cloned().unwrap_or_else(|| Grip::for_backend(name)))
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

/// The `[server]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Where clients connect; no two overlap. Empty when there are only streams.
    pub listen: Vec<ListenAddr>,
    /// Whether other servers may listen on the same TCP ports (`SO_REUSEPORT`): the kernel gives each a share
    /// of the connections.
    pub reuse_port: bool,
    /// Number of event loops, at least one.
    pub threads: usize,
    /// Where the status page and the admin API listen; none is off.
    pub admin: Option<ListenAddr>,
    /// Where the command line changes things.
    pub control_socket: ControlSocket,
    /// The file of the token that a change over TCP needs; none is no changes over TCP.
    pub admin_token: Option<PathBuf>,
    /// Where requests are logged; none is off.
    pub access_log: Option<AccessLog>,
    /// Where probes and Prometheus ask: `/healthz`, `/readyz` and `/metrics` alone; none is the
    /// admin address alone.
    pub probes: Option<ListenAddr>,
    /// Where the server's own log goes.
    pub log: LogTarget,
    /// The form of its lines.
    pub log_format: ServerLogFormat,
    /// How long a shutdown waits for requests in progress.
    pub shutdown_timeout: Duration,
    /// How long the server that an upgrade has replaced may finish what it has; never shorter than a shutdown.
    pub upgrade_timeout: Duration,
    /// How long a connection that waits for its next request is kept once the server stops; never longer
    /// than the idle time-out.
    pub keep_alive_drain: Duration,
    /// The Redis or Valkey that several servers share: `redis://[user:password@]host:port[/database]` or
    /// `unix:/path`; none is one server alone.
    pub redis: Option<Secret>,
    /// Where programs dial in that serve an application elsewhere; none is nowhere.
    pub join: Option<JoinEndpoint>,
    /// Whom the server becomes once its sockets are open: a name or a number.
    pub user: Option<String>,
    /// The group beside it: a name or a number; none is the user's own.
    pub group: Option<String>,
    /// The permissions that new files do not get; none is what the server was started with.
    pub umask: Option<u32>,
    /// How many files and connections may be open at once; none is as many as the system lets it have.
    pub max_open_files: Option<u64>,
    /// The absolute working directory of the server; none is where it was started.
    pub dir: Option<PathBuf>,
    /// Who may connect to the Unix sockets of `listen`, where something is said about it, by path.
    pub socket_permissions: BTreeMap<PathBuf, SocketPermissions>,
    /// Those of `listen` whose connections begin with a PROXY protocol header.
    pub proxy_protocol: Vec<ListenAddr>,
    /// Networks whose word about their own clients is taken (`10.0.0.0/8`, one address); none is
    /// loopback and Unix sockets.
    pub trusted_proxies: Option<Vec<String>>,
    /// The one field by which such a proxy names the client; none is the usual ones.
    pub client_ip_header: Option<String>,
    /// Names of parameters whose values the logs mask; `default` stands for the built-in list.
    pub log_mask: Vec<String>,
    /// Names of files that are not found below any root whose route does not say which.
    pub hide: Vec<HidePattern>,
}

/// Where the Unix socket is by which the command line changes things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlSocket {
    /// In a folder of whoever starts the server, by a name that follows from the first listener.
    Auto,
    /// At this absolute path.
    Path(PathBuf),
    /// Nowhere.
    Off,
}

/// Who may connect to a Unix socket: its file's permissions and owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketPermissions {
    /// The permissions; none is everybody's.
    pub mode: Option<u32>,
    /// The owner, a name or a number; none is whoever serves.
    pub user: Option<String>,
    /// The group, a name or a number; none is that of whoever serves.
    pub group: Option<String>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: vec![ListenAddr::loopback(8080)],
            reuse_port: false,
            threads: usable_cpus(),
            admin: Some(ListenAddr::loopback(8090)),
            control_socket: ControlSocket::Auto,
            admin_token: None,
            probes: None,
            access_log: None,
            log: LogTarget::Stderr,
            log_format: ServerLogFormat::default(),
            shutdown_timeout: Duration::from_secs(30),
            upgrade_timeout: Duration::from_secs(300),
            keep_alive_drain: Duration::from_secs(5),
            redis: None,
            join: None,
            user: None,
            group: None,
            umask: None,
            max_open_files: None,
            dir: None,
            socket_permissions: BTreeMap::new(),
            proxy_protocol: Vec::new(),
            trusted_proxies: None,
            client_ip_header: None,
            hide: HidePattern::defaults(),
            log_mask: vec!["default".to_owned()],
        }
    }
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

/// The form of a line of the server's own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerLogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
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

/// The `[limits]` table: every bound on a client has a name here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Client connections open at once.
    pub max_connections: usize,
    /// Of these, how many one client may have; 0 is no bound, `None` half of all.
    pub max_connections_per_client: Option<usize>,
    /// Bytes of a request line's target (414 above; RFC 9110 §15.5.15).
    pub max_uri_size: usize,
    /// Bytes of a whole request head (431 above; RFC 6585 §5).
    pub max_header_size: usize,
    /// Number of header fields (431 above).
    pub max_headers: usize,
    /// Bytes of a request body (413 above; RFC 9110 §15.5.14).
    pub max_body_size: u64,
    /// Absolute time for a whole head to arrive (408 after; RFC 9110 §15.5.9).
    pub header_timeout: Duration,
    /// Time between two requests on one connection.
    pub idle_timeout: Duration,
    /// Time in which nothing at all arrives, or is taken, in a body.
    pub body_idle_timeout: Duration,
    /// Least bytes a second in a body after the grace; zero is no minimum.
    pub min_body_rate: u64,
    /// How long a body may be slower than `min_body_rate`.
    pub body_rate_grace: Duration,
    /// Request bodies above this go to an unlinked temporary file.
    pub max_body_memory: usize,
    /// Bytes of an answer kept in memory for a slow client; the rest goes to a file.
    pub max_response_memory: usize,
    /// Bytes of an answer kept in that file before the worker has to wait.
    pub max_response_spool: u64,
    /// Least bytes a second of a response that holds a worker for which requests wait; zero is no
    /// minimum.
    pub min_busy_rate: u64,
    /// Bytes of all temporary files together; none is a share of the disk, which is found out at
    /// the start.
    pub max_temp_size: Option<u64>,
    /// Bytes of a message of a WebSocket's client (1009 above; RFC 6455 §7.4.1).
    pub max_websocket_message_size: usize,
    /// The absolute folder of the temporary files.
    pub temp_dir: PathBuf,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 100_000,
            max_connections_per_client: None,
            max_uri_size: 8 << 10,
            max_header_size: 32 << 10,
            max_headers: 100,
            max_body_size: 64 << 20,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_idle_timeout: Duration::from_secs(30),
            min_body_rate: 500,
            body_rate_grace: Duration::from_secs(10),
            max_body_memory: 64 << 10,
            max_response_memory: 64 << 10,
            max_response_spool: 64 << 20,
            min_busy_rate: 64 << 10,
            max_temp_size: None,
            max_websocket_message_size: 1 << 20,
            temp_dir: std::env::temp_dir(),
        }
    }
}

/// A pool of threads for work that would block a loop: `[blocking.NAME]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockingPool {
    /// Number of threads, at least one.
    pub threads: usize,
    /// Jobs that may wait for a thread; one more is refused. With 0 a job is taken only by a thread
    /// that has nothing to do.
    pub max_queued: usize,
}

impl Default for BlockingPool {
    fn default() -> Self {
        Self {
            threads: 32,
            max_queued: 65_536,
        }
    }
}

/// One site: `[[sites]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The hosts it answers for; empty is any host that no other site names.
    pub hosts: Vec<HostPattern>,
    /// Tried in order, the first match answers.
    pub routes: Vec<Route>,
    /// Absolute files with the pages of errors that the house itself answers with, by status (`404`) or
    /// class (`5` for `5xx`); the status counts before its class.
    pub error_pages: BTreeMap<u16, PathBuf>,
}

/// One route of a site; it has files, an app or an upstream, or files before one of them; or a hub of
/// streams or of Mercure alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The paths it is for.
    pub path: PathPattern,
    /// Files to look for first.
    pub files: Option<Files>,
    /// The name of the application that answers what no file did.
    pub app: Option<String>,
    /// The name of the upstream that answers what no file did; never beside an application.
    pub upstream: Option<String>,
    /// Only for internal redirects (`X-Accel-Redirect`): clients pass it by.
    pub internal: bool,
    /// How the path is changed before any handler sees it.
    pub rewrite: Rewrite,
    /// What is done to the request's header before any handler sees it.
    pub request_headers: HeaderRules,
    /// What is done to the response's header before it is sent.
    pub response_headers: HeaderRules,
    /// Whether request bodies are read whole before a back end hears of them; none is the upstream's.
    pub request_buffering: Option<bool>,
    /// Whether responses are taken off the back end faster than the client takes them; none is the
    /// upstream's.
    pub response_buffering: Option<bool>,
    /// Bytes of a request body (413 above); none is `max_body_size` of the limits.
    pub max_body_size: Option<u64>,
    /// Whether what the back end says by GRIP is obeyed; none is the back end's.
    pub grip: Option<bool>,
    /// Whether responses may name another body; none is the back end's.
    pub sendfile: Option<Sendfile>,
    /// The caches in front of the application or upstream, and their rules.
    pub cache: Option<RouteCache>,
    /// Held streams of channels that the path names; never beside another that answers.
    pub hub: Option<RouteHub>,
    /// A Mercure hub; never beside another that answers.
    pub mercure: Option<RouteMercure>,
}

impl Route {
    /// A route with nothing to do and every default.
    pub fn new(path: PathPattern) -> Self {
        Self {
            path,
            files: None,
            app: None,
            upstream: None,
            internal: false,
            rewrite: Rewrite::default(),
            request_headers: HeaderRules::default(),
            response_headers: HeaderRules::default(),
            request_buffering: None,
            response_buffering: None,
            max_body_size: None,
            grip: None,
            sendfile: None,
            cache: None,
            hub: None,
            mercure: None,
        }
    }
}

/// A change of paths: first `strip_prefix`, then `add_prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// Taken off the front of the path, if it is there; starts with `/` and ends without.
    pub strip_prefix: Option<String>,
    /// Put in front; starts with `/` and ends without.
    pub add_prefix: Option<String>,
    /// Whether paths in an upstream's responses are put back under the prefix.
    pub response_paths: bool,
}

impl Default for Rewrite {
    fn default() -> Self {
        Self {
            strip_prefix: None,
            add_prefix: None,
            response_paths: true,
        }
    }
}

/// Changes of a header, in this order: `remove`, `set`, `add`. Names and values are valid fields, and
/// never those of framing or the connection. In values `{client}`, `{host}`, `{scheme}` and `{path}`
/// stand for the request's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderRules {
    /// Names whose fields are dropped.
    pub remove: Vec<String>,
    /// Fields that replace all of their name.
    pub set: BTreeMap<String, String>,
    /// Fields that are added to those there are.
    pub add: BTreeMap<String, String>,
}

impl HeaderRules {
    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}
