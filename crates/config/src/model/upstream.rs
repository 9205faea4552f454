//! The checked values of back ends: `[upstreams.NAME]` and the TCP listeners before them.
//!
//! Made by `upstream`, `app` and `tcp`, read by `proxy` and by `apps`: processes of an
//! application may be the servers of one.
//!
//! # Invariants
//! - Bounds are in order, and an upstream of a file has a server that is not a backup.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{CertificateFiles, ClientCertificates, Grip, Sendfile};
use crate::options::OptionDefault::{Described, Toml};
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::redacted::Secret;
use crate::values::{HostPattern, ListenAddr};

section! {
    /// A TCP listener that relays its connections to an upstream, with its slots and its queue.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TcpFrontend(listen: ListenAddr)
    in "tcp", "[[tcp]]", "# [[tcp]]" {
        /// Address that clients connect to.
        listen: ListenAddr = listen, Text(LISTEN_ADDRESS), default required,
            example r#""127.0.0.1:9000""#, by hand;
        /// Upstream that connections are relayed to; its `protocol` does not matter here. With
        /// `sni` it gets those that ask for another name or for none.
        upstream: Option<String> = None, Text(UPSTREAM_NAME),
            default "required, unless there is `sni`", example r#""legacy""#, by hand;
        /// Upstreams by the server name that a client asks for in the first message of TLS (SNI).
        /// The connection is passed on as it is: certificate and key stay with the servers.
        sni: Vec<(HostPattern, String)> = Vec::new(), StringMap, shows "{}",
            example r#"{ "a.example" = "legacy", "*.b.example" = "legacy" }"#, by hand;
        /// Whether its connections begin with a PROXY protocol header, of version 1 or 2.
        proxy_protocol: bool = false, Bool;
        /// Whether TLS ends here. `true` takes the certificates of the sites, by the name that a
        /// client asks for; a table is a certificate of its own. Versions are those of `[tls]`.
        tls: TcpTls = TcpTls::Off, OrTable(&Bool, "tcp.tls"), shows "false",
            example r#"{ certificate = "chain.pem", key = "key.pem" }"#, by hand;
        /// Application protocols (ALPN) that it has, most preferred first. A client that offers
        /// others alone is refused; without the list any client is accepted.
        alpn: Vec<String> = Vec::new(), Texts(ALPN_PROTOCOL), example r#"["postgresql"]"#,
            only "a listener with `tls`", by items(crate::tcp::is_alpn_protocol);
        /// Whether clients show certificates of their own. Those of the sites are not asked for
        /// here.
        client_certificates: Option<ClientCertificates> = None, Table("tcp.client_certificates"),
            default "no", example r#"{ ca = "clients-ca.pem" }"#, only "a listener with `tls`",
            by hand;
    }
}

/// Whether TLS ends at a TCP listener, and where its certificates come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TcpTls {
    /// TLS does not end here.
    #[default]
    Off,
    /// The certificates of the sites.
    Sites,
    /// Files.
    Files(CertificateFiles),
}

impl TcpFrontend {
    /// Whether connections may be relayed to that upstream.
    pub(crate) fn leads_to(&self, upstream: &str) -> bool {
        let by_name = self.sni.iter().any(|(_, name)| name == upstream);
        by_name || self.upstream.as_deref() == Some(upstream)
    }
}

section! {
    /// Back ends behind one name, that other programs start.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Upstream(name: &str, protocol: Protocol, servers: Vec<UpstreamServer>)
    in "upstreams.NAME", "[upstreams.NAME]", "# [upstreams.legacy]" {
        /// The protocol of the servers.
        protocol: Protocol = protocol, Choice(Protocol::WORDS), shows r#""http""#,
            by hand;
        /// Where the servers listen. A name stands for each of its addresses, `srv:` and a name
        /// for each target of its SRV records.
        servers: Vec<UpstreamServer> = servers, TextsOrTables(UPSTREAM_SERVER, "upstreams.NAME.servers"),
            default "required, unless it is `joinable`",
            example r#"["127.0.0.1:3000", { address = "unix:app.sock", weight = 2 }]"#, by hand;
        /// Whether programs that dial in at `join` of `[server]` become servers of it
        /// (`penstock work`), beside those of `servers` if there are any.
        joinable: bool = false, Bool, only r#"the protocol "http""#, by hand;
        /// What programs that join this upstream must know. They can join no other, and the key
        /// of `join` in `[server]` does not open this one.
        join_key: Option<Secret> = None,
            OrTable(&Text(crate::join::JOIN_KEY_EXPECTED), "secret_file"),
            default "the key of `join` in [server]",
            example r#""pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ""#, only "upstreams that are `joinable`",
            by hand;
        /// Which free server gets a request: `idle_first` one with nothing to do, else the
        /// least busy; `round_robin` in turn; `least_active` the least busy; `random_two` the
        /// less busy of two drawn at random; `hash` the same for the same `key`.
        balance: Balance = Balance::IdleFirst, Choice(Balance::WORDS), by hand;
        /// Cookie that keeps a client at one server.
        sticky: Option<String> = None, Text(COOKIE_NAME), default "no stickiness",
            example r#""server""#, by check(crate::headers::is_token);
        /// Whether connections to the servers use TLS. With `true` a server's certificate must come
        /// from an authority that the system trusts and be for the host of the server's address.
        tls: Option<UpstreamTls> = None, OrTable(&Bool, "upstreams.NAME.tls"), shows "false",
            example r#"{ ca = "ca.pem", server_name = "api.internal" }"#, by hand;
        /// Requests that each server may have in progress; the others wait in the queue.
        max_active: Option<u32> = None, Number(1, 1_000_000),
            default "bounded by `connections.max` only", example "1";
        /// Connections to each server.
        connections: ConnectionLimits = ConnectionLimits::default(),
            Table("upstreams.NAME.connections"), default "every default",
            example r#"{ min = 0, soft = 8, max = 64, ttl = "60s" }"#, by hand;
        /// How long a connection may take to be made; after the last try the answer is 502.
        connect_timeout: Duration = Duration::from_secs(5), Time(1);
        /// How long a server that has the whole request may take to the end of the response's
        /// head; after it the answer is 504.
        response_timeout: Duration = Duration::from_secs(60), Time(1);
        /// How long nothing at all may be taken of the request, or come of the response's body.
        body_idle_timeout: Duration = Duration::from_secs(60), Time(1);
        /// How long an exchange with a server may take from its beginning to the end of the
        /// response.
        total_timeout: Option<Duration> = None, Time(1), default "unlimited", example r#""10m""#;
        /// How long a connection may stay without a byte either way after an upgrade, such as
        /// to WebSocket, and in TCP mode.
        tunnel_timeout: Duration = Duration::from_secs(3600), Time(1);
        /// Other servers tried after a failure.
        retry: RetryPolicy = RetryPolicy::default(), Table("upstreams.NAME.retry"),
            default "every default", example "{ attempts = 2, budget = 0.2 }";
        /// Probes of each server.
        health: Option<HealthCheck> = None, Table("upstreams.NAME.health"), default "no probes",
            example r#"{ path = "/up", interval = "2s", rise = 2, fall = 3 }"#, by hand;
        /// When failures of requests put a server aside.
        eject: EjectPolicy = EjectPolicy::default(), Table("upstreams.NAME.eject"),
            default "every default", example r#"{ max_failures = 3, duration = "10s" }"#;
        /// Time over which a server that comes back gets its full share.
        slow_start: Duration = Duration::ZERO, Time(0), example r#""30s""#;
        /// The `Host` that servers see: the client's, the server's own address, or this text.
        host: HostHeader = HostHeader::Client, Text(HOST_HEADER), shows r#""client""#,
            by parse(crate::upstream::parse_host_header);
        /// How servers are told of the client: `X-Forwarded-For`, `-Proto` and `-Host`,
        /// `Forwarded` (RFC 7239), both, or not at all.
        forwarded: ForwardedHeaders = ForwardedHeaders::XForwarded,
            Choice(ForwardedHeaders::WORDS);
        /// Whether responses with bare LF line ends, padded chunk sizes, long chunk extensions,
        /// blanks before a colon, folded fields or faulty `Transfer-Encoding` are refused (502)
        /// instead of mended.
        strict: bool = false, Bool, only r#"the protocols "http" and "uwsgi""#;
        /// Whether request bodies are read whole before a server hears of them.
        request_buffering: bool = true, Bool;
        /// Whether responses are taken off the server faster than the client takes them.
        response_buffering: bool = true, Bool;
        /// PROXY protocol header that connections to the servers begin with; each then serves
        /// one client.
        proxy_protocol: Option<ProxyProtocol> = None, Choice(ProxyProtocol::WORDS), default "none",
            example r#""v2""#;
        /// Whether what the servers say by GRIP is obeyed: responses with `Grip-Hold` are held.
        /// A table is `true`. A route may say otherwise.
        grip: Option<Grip> = None, OrTable(&Bool, "upstreams.NAME.grip"), shows "false",
            example "true", by hand;
        /// Whether responses may name another body: a route of the site (`X-Accel-Redirect`), or a
        /// file by absolute path below one of these directories (`X-Sendfile`); and bound its rate
        /// (`X-Accel-Limit-Rate`). A route may say otherwise.
        sendfile: Sendfile = Sendfile::default(), FlagOrPaths, shows "false",
            example r#"["private"]"#, by hand;
        /// Directory of the scripts as the servers see it (`DOCUMENT_ROOT`).
        root: Option<PathBuf> = None, Path, default "none", example r#""/srv/www""#,
            only ONLY_GATEWAYS;
        /// Script, relative to `root`, for every path that is no script of its own.
        index: Option<String> = None, Text(SCRIPT_PATH), default "none", example r#""index.php""#,
            only ONLY_GATEWAYS, by check(crate::upstream::is_script_path);
        /// Variables added to the environment of each request.
        params: BTreeMap<String, String> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ APP_ENV = "production" }"#, only ONLY_GATEWAYS, by hand;
        /// Secret that the servers want.
        secret: Option<Secret> = None, OrTable(&Text("a text"), "secret_file"), default "none",
            example r#""s3cret""#, only r#"the protocol "ajp""#, by hand;
        /// How often names are resolved again when their records do not say.
        resolve_interval: Duration = Duration::from_secs(30), Time(1);
    }
    also {
        /// What of a request is hashed: its path, its path and query, its client's address, a
        /// header field or a cookie.
        "key": Text(HASH_KEY_EXPECTED), Described("required by its balance"),
            example r#""header:X-Tenant""#, only r#"the balance "hash""#;
        /// The queue of requests for a server.
        "queue": Table("upstreams.NAME.queue"), Described("every default"),
            example r#"{ max = 1000, timeout = "30s" }"#;
        /// One directory more of `sendfile`.
        "sendfile_root": Path, Described("none"), example r#""public""#;
    }
    plain {
        /// Its name, unique.
        name: String = name.to_owned();
        /// The key of the balance `hash`.
        hash_key: Option<HashKey> = None;
        /// Requests that may wait; one more is answered 503.
        max_queued: usize = 1000;
        /// How long a request may wait (503 after).
        queue_timeout: Duration = Duration::from_secs(30);
    }
}

choice! {
    /// The protocol of an upstream's servers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Protocol {
        /// HTTP/1.1 with connections that are kept.
        Http = "http",
        /// FastCGI 1.0 with connections that are kept.
        FastCgi = "fastcgi",
        /// SCGI, a connection a request.
        Scgi = "scgi",
        /// The uwsgi protocol, a connection a request.
        Uwsgi = "uwsgi",
        /// AJP 1.3 with connections that are kept.
        Ajp = "ajp",
    }
}

section! {
    /// One server with settings of its own.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct UpstreamServer(address: ServerAddr)
    in "upstreams.NAME.servers", "servers = [{ ... }] in [upstreams.NAME]", "" {
        /// Where it listens.
        address: ServerAddr = address, Text(UPSTREAM_SERVER), default required,
            example r#""127.0.0.1:3000""#, by hand;
        /// Its share against the others'.
        weight: u32 = 1, Number(1, 65_535), example "2";
        /// Requests that it may have in progress.
        max_active: Option<u32> = None, Number(1, 1_000_000), default "the upstream's",
            example "1";
        /// Whether it gets requests only when no other server can.
        backup: bool = false, Bool;
    }
}

section! {
    /// TLS to the servers. Files hold PEM and are read at start and with each reload.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct UpstreamTls
    in "upstreams.NAME.tls", "tls = { ... } in [upstreams.NAME]", "" {
        /// File with the authorities that the servers' certificates may come from. A certificate
        /// that its server has signed itself is its own authority.
        ca: Option<PathBuf> = None, Path, default "the authorities that the system trusts",
            example r#""ca.pem""#;
        /// The name that the servers' certificates must be for, and that servers are asked for
        /// (SNI). An IP address is compared only.
        server_name: Option<String> = None, Text(SERVER_NAME),
            default "the host of the server's address", example r#""api.internal""#,
            by check(crate::upstream::is_server_name);
        /// Certificate that the servers must show, whatever its authority, names and dates are:
        /// its SHA-256, as `openssl x509 -noout -fingerprint -sha256` prints it.
        fingerprint: Option<String> = None, Text(FINGERPRINT), default "none",
            example r#""5F:3A:...:9C""#, by check(crate::upstream::is_fingerprint);
        /// Whether servers must prove their name. Without it anyone on the way can read and change
        /// everything, as without TLS.
        verify: bool = true, Bool;
        /// File with the certificate that the servers want to see, and its chain.
        certificate: Option<PathBuf> = None, Path, default "none", example r#""client.pem""#;
        /// File with the key of `certificate`.
        key: Option<PathBuf> = None, Path, default "the file of `certificate`",
            example r#""client.key""#;
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

choice! {
    /// Which free server gets a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Balance {
        /// One with nothing to do, else the least busy; warm ones first.
        IdleFirst = "idle_first",
        /// In turn, by weight.
        RoundRobin = "round_robin",
        /// The least busy by weight.
        LeastActive = "least_active",
        /// The less busy of two drawn at random.
        RandomTwo = "random_two",
        /// The same server for the same key, unless it has far more than its share.
        Hash = "hash",
    }
}

/// The part of a request that is hashed.
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

section! {
    /// Connections to each server: `min` <= `soft` <= `max`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ConnectionLimits
    in "upstreams.NAME.connections", "connections = { ... } in [upstreams.NAME]", "" {
        /// Opened ahead and kept for ever.
        min: u32 = 0, Number(0, 1_000_000), by hand;
        /// Kept while the server keeps them.
        "soft" => max_idle: u32 = 64, Number(0, 1_000_000),
            default "64, or what `min` and `max` leave of it; 0 for FastCGI without `max_active`",
            example "8", by hand;
        /// Never exceeded.
        max: u32 = 1024, Number(1, 1_000_000),
            default "1024, or more if another bound is above it", example "64", by hand;
        /// Those above `soft` close after so long without a request.
        "ttl" => idle_timeout: Duration = Duration::from_secs(60), Time(1);
    }
}

section! {
    /// Other servers tried after a failure, when nothing can have happened twice.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct RetryPolicy
    in "upstreams.NAME.retry", "retry = { ... } in [upstreams.NAME]", "" {
        /// Tries in all, the first included.
        "attempts" => max_attempts: u32 = 2, Number(1, 100);
        /// Retries against requests; above it only ten a second are made, so that a failing
        /// upstream is not stormed.
        budget: f64 = 0.2, Fraction;
    }
}

section! {
    /// Probes of each server; without a `path` they only connect.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HealthCheck
    in "upstreams.NAME.health", "health = { ... } in [upstreams.NAME]", "" {
        /// Path and query that are asked for.
        path: Option<String> = None, Text(PROBE_EXPECTED), default "none: only connect",
            example r#""/up""#, by check(crate::upstream::is_origin_form_target);
        /// Status that is well.
        status: (u16, u16) = (200, 399), Text(STATUS_RANGE), shows r#""200-399""#,
            only "probes with a `path`", by parse(crate::upstream::parse_status_range);
        /// Time between two probes.
        interval: Duration = Duration::from_secs(2), Time(1);
        /// How long a probe may take.
        timeout: Duration = Duration::from_secs(2), Time(1);
        /// Good probes in a row that bring a server up.
        rise: u32 = 2, Number(1, 1000);
        /// Failed probes in a row that take it down.
        fall: u32 = 3, Number(1, 1000);
    }
}

section! {
    /// When failures of requests put a server aside.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct EjectPolicy
    in "upstreams.NAME.eject", "eject = { ... } in [upstreams.NAME]", "" {
        /// Failures in a row; 0 never puts a server aside.
        max_failures: u32 = 3, Number(0, 1_000_000);
        /// For how long, growing with each time in a row.
        duration: Duration = Duration::from_secs(10), Time(1);
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

choice! {
    /// How back ends are told of the client.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ForwardedHeaders {
        /// `X-Forwarded-For`, `-Proto`, `-Host`.
        XForwarded = "x-forwarded",
        /// `Forwarded` (RFC 7239).
        Rfc7239 = "rfc7239",
        /// Both.
        Both = "both",
        /// Not at all; what a client sends of these is dropped.
        Off = "off",
    }
}

choice! {
    /// Versions of the PROXY protocol.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ProxyProtocol {
        /// The text form.
        V1 = "v1",
        /// The binary form.
        V2 = "v2",
    }
}

keys! {
    /// How many requests may wait for a server, and how long.
    UPSTREAM_QUEUE in "upstreams.NAME.queue", "queue = { ... } in [upstreams.NAME]", "" {
        /// Requests that may wait; one more is answered 503 at once.
        "max": Number(0, 10_000_000), Toml("1000");
        /// How long a request may wait; after it the answer is 503.
        "timeout": Time(1), Toml(r#""30s""#);
    }
}
