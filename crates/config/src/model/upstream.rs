//! The checked values of back ends: `[upstreams.NAME]` and the TCP listeners before them.
//!
//! Made by `upstream`, `app` and `stream`, read by `proxy` and by `apps`, whose processes may be the
//! servers of one. What must stay true: bounds are in order, and an upstream of a file has a server that
//! is not a backup.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{Grip, Sendfile};
use crate::redacted::Secret;
use crate::values::ListenAddr;

/// A TCP listener: `[[tcp]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpFrontend {
    /// Where clients connect.
    pub listen: ListenAddr,
    /// The name of the upstream.
    pub upstream: String,
    /// Whether its connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
}

/// Back ends behind one name: `[upstreams.NAME]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Its name, unique.
    pub name: String,
    /// What is spoken to its servers.
    pub protocol: Protocol,
    /// Its servers; at least one (none for an application's, whose processes they are, and where others join).
    pub servers: Vec<UpstreamServer>,
    /// Whether programs that dial in become servers of it.
    pub joinable: bool,
    /// What they and this server know; none is the key of `[server] join`.
    pub join_key: Option<Secret>,
    /// Which free server gets a request.
    pub balance: Balance,
    /// The cookie that keeps a client at one server; none is no stickiness.
    pub sticky: Option<String>,
    /// Requests that each server may have in progress; none is bounded by `connections.max` only.
    pub max_active: Option<u32>,
    /// Requests that may wait; one more is answered 503.
    pub max_queued: usize,
    /// How long a request may wait (503 after).
    pub queue_timeout: Duration,
    /// Connections to each server.
    pub connections: ConnectionLimits,
    /// How long a connection may take to be made (502 after the last try).
    pub connect_timeout: Duration,
    /// From the whole request being sent to the whole head of the response (504 after).
    pub response_timeout: Duration,
    /// Time in which nothing of the request is taken or nothing of the response's body comes.
    pub body_idle_timeout: Duration,
    /// From a server having the request to the end of its response; none is unlimited.
    pub total_timeout: Option<Duration>,
    /// Time without a byte either way after an upgrade, and in TCP mode.
    pub tunnel_timeout: Duration,
    /// Other servers tried after a failure that allows it.
    pub retry: RetryPolicy,
    /// Active probes; none for no probes.
    pub health: Option<HealthCheck>,
    /// When failures of requests put a server aside.
    pub eject: EjectPolicy,
    /// Time over which a server that comes back gets its full share.
    pub slow_start: Duration,
    /// The `Host` that servers see.
    pub host: HostHeader,
    /// How servers are told of the client.
    pub forwarded: ForwardedHeaders,
    /// Responses that deviate from the grammar of HTTP are refused.
    pub strict: bool,
    /// Whether request bodies are read whole before a server hears of them.
    pub request_buffering: bool,
    /// Whether responses are taken off the server faster than the client takes them.
    pub response_buffering: bool,
    /// The PROXY protocol header that servers' connections begin with; none is none. Such connections
    /// serve one client each.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// What it may say by GRIP; none is nothing.
    pub grip: Option<Grip>,
    /// Whether its responses may name another body.
    pub sendfile: Sendfile,
    /// The folder of the scripts, as the servers of a gateway protocol see it (`DOCUMENT_ROOT`).
    pub root: Option<PathBuf>,
    /// The script that gets every path for which `root` has no script of its own; relative to `root`
    /// (`index.php`).
    pub index: Option<String>,
    /// Variables added to the environment of gateway protocols.
    pub params: BTreeMap<String, String>,
    /// The secret that AJP servers want.
    pub secret: Option<String>,
    /// How often names are resolved again when their records do not say.
    pub resolve_interval: Duration,
}

impl Upstream {
    /// An upstream with every default.
    pub fn new(name: &str, protocol: Protocol, servers: Vec<UpstreamServer>) -> Self {
        Self {
            name: name.to_owned(),
            protocol,
            servers,
            joinable: false,
            join_key: None,
            balance: Balance::IdleFirst,
            sticky: None,
            max_active: None,
            max_queued: 1000,
            queue_timeout: Duration::from_secs(30),
            connections: ConnectionLimits::default(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(60),
            body_idle_timeout: Duration::from_secs(60),
            total_timeout: None,
            tunnel_timeout: Duration::from_secs(3600),
            retry: RetryPolicy::default(),
            health: None,
            eject: EjectPolicy::default(),
            slow_start: Duration::ZERO,
            host: HostHeader::Client,
            forwarded: ForwardedHeaders::XForwarded,
            strict: false,
            request_buffering: true,
            response_buffering: true,
            proxy_protocol: None,
            grip: None,
            sendfile: Sendfile::default(),
            root: None,
            index: None,
            params: BTreeMap::new(),
            secret: None,
            resolve_interval: Duration::from_secs(30),
        }
    }
}

/// What is spoken to back ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1 with connections that are kept.
    Http,
    /// FastCGI 1.0 with connections that are kept.
    FastCgi,
    /// SCGI, a connection a request.
    Scgi,
    /// The uwsgi protocol, a connection a request.
    Uwsgi,
    /// AJP 1.3 with connections that are kept.
    Ajp,
}

impl Protocol {
    /// The word used for it in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::FastCgi => "fastcgi",
            Self::Scgi => "scgi",
            Self::Uwsgi => "uwsgi",
            Self::Ajp => "ajp",
        }
    }
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamServer {
    /// Where it listens.
    pub address: ServerAddr,
    /// Its share against the others', at least 1.
    pub weight: u32,
    /// Its own bound; none is the upstream's.
    pub max_active: Option<u32>,
    /// Gets requests only when no other server can.
    pub backup: bool,
}

impl UpstreamServer {
    /// A server with every default.
    pub fn new(address: ServerAddr) -> Self {
        Self {
            address,
            weight: 1,
            max_active: None,
            backup: false,
        }
    }
}

/// Where a back end listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerAddr {
    /// A TCP address.
    Tcp(std::net::SocketAddr),
    /// A Unix socket's absolute path.
    Unix(PathBuf),
    /// A DNS name (A and AAAA records) and a port: each address is a server.
    Name {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
    /// A DNS name of SRV records: each target is a server.
    Srv(String),
    /// A program that has dialled in, by a number of its own; not in a configuration.
    Joined(u64),
}

/// Which free server gets a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Balance {
    /// One with nothing to do, else the least busy; warm ones first.
    #[default]
    IdleFirst,
    /// In turn, by weight.
    RoundRobin,
    /// The least busy by weight.
    LeastConn,
    /// The less busy of two drawn at random.
    RandomTwo,
    /// The same server for the same key, unless it has far more than its share.
    Hash(HashKey),
}

/// What is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashKey {
    /// The path, without the query.
    Path,
    /// Path and query.
    Uri,
    /// The client's address.
    ClientIp,
    /// A header field of that name.
    Header(String),
    /// A cookie of that name.
    Cookie(String),
}

/// Connections to each server: `min <= soft <= max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Opened ahead and kept for ever.
    pub min: u32,
    /// Kept while the server keeps them.
    pub max_idle: u32,
    /// Never exceeded.
    pub max: u32,
    /// Those above `soft` close after so long without a request.
    pub idle_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            min: 0,
            max_idle: 64,
            max: 1024,
            idle_timeout: Duration::from_secs(60),
        }
    }
}

/// Other servers tried after a failure that allows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// Tries in all, the first included; at least 1.
    pub max_attempts: u32,
    /// Retries against requests, 0 to 1: above it only ten a second are made, so that a failing upstream
    /// is not stormed.
    pub budget: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 2,
            budget: 0.2,
        }
    }
}

/// Active probes of each server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path that is asked for; none only connects.
    pub path: Option<String>,
    /// The lowest and highest status that is well.
    pub status: (u16, u16),
    /// Between two probes.
    pub interval: Duration,
    /// How long a probe may take.
    pub timeout: Duration,
    /// Good probes in a row that bring a server up.
    pub rise: u32,
    /// Failed probes in a row that take it down.
    pub fall: u32,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            path: None,
            status: (200, 399),
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

/// When failures of requests put a server aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EjectPolicy {
    /// Failures in a row; 0 is never.
    pub max_failures: u32,
    /// For how long, growing with each time in a row.
    pub duration: Duration,
}

impl Default for EjectPolicy {
    fn default() -> Self {
        Self {
            max_failures: 3,
            duration: Duration::from_secs(10),
        }
    }
}

/// The `Host` that back ends see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostHeader {
    /// The client's.
    Client,
    /// The server's address as configured.
    Server,
    /// This text.
    Custom(String),
}

/// How back ends are told of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardedHeaders {
    /// `X-Forwarded-For`, `-Proto`, `-Host`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
    /// Both.
    Both,
    /// Not at all; what a client sends of these is dropped.
    Off,
}

/// Versions of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// The text form.
    V1,
    /// The binary form.
    V2,
}
