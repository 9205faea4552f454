//! The checked values of a configuration, and the declarations of its keys: one file for each
//! group of tables.
//!
//! Made by `parse` (from a file) and `resolve` (from a directory or the command line); read by the
//! wiring of the components.
//!
//! # Invariants
//! - Every path is absolute, every name that is referred to exists, every number is in its range,
//!   and `Default` of a type is what an empty table gives.
//! - Everything compares, because a reload restarts only the applications that differ.

mod access_log;
mod admission;
mod app;
mod bounds;
mod cache;
mod compression;
mod conditions;
mod files;
mod hub;
mod job;
mod limits;
mod rollout;
mod server;
mod site;
mod tls;
mod tracing;
mod upstream;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(crate) use access_log::NAMED_ACCESS_LOGS;
pub use access_log::{
    AccessLog, LogField, LogFormat, LogTarget, SampleShare, StatusPattern, SyslogAddress,
};
pub(crate) use admission::JWT_KEY;
pub use admission::{JwtAuth, JwtKeys, Satisfy, SignedUrl};
pub(crate) use app::{APP_MAX_MEMORY, APP_PROCESSES, APP_QUEUE, APP_THREADS};
pub use app::{
    Access, App, AppKind, Concurrency, Detection, MemoryLimit, Preload, Processes, ScalingConfig,
    Sticky,
};
pub use bounds::{ConcurrencyRule, ResponseRate};
pub(crate) use cache::CACHE_KEY_QUERY;
pub use cache::{Cache, CacheBypass, CacheKey, QueryKey, RouteCache};
pub use compression::Compression;
pub(crate) use conditions::{CONDITIONS_NOT, NAMED_CONDITIONS};
pub use conditions::{Conditions, NamedCondition, RequestScheme};
pub use files::{ContentCoding, Files, Symlinks};
pub use hub::{
    Grip, HUB_NAMESPACE, HttpScheme, Hub, HubHistory, KeySetSource, MercureKey, MercureKeys,
    RefusalPolicy, RouteHub, RouteMercure, Sendfile, SlowPolicy,
};
pub(crate) use hub::{MERCURE_KEY, TokenAlgorithm};
pub(crate) use job::JOB;
pub use job::{Schedule, ScheduledJob, TimeOfDay};
pub use limits::{BlockingPool, Limits};
pub(crate) use rollout::SPLIT_MATCH;
pub use rollout::{Mirror, SplitBy, SplitCookie, SplitPart};
pub(crate) use server::{ADMIN_TOKEN, ENV_FILE, SERVER_JOIN, SERVER_LISTEN};
pub use server::{
    ControlSocket, HttpListener, JoinEndpoint, RequestIdMode, Server, ServerLogFormat,
    SocketPermissions,
};
pub(crate) use site::{BASIC_AUTH_USERS, HEADER_REPLACE, ROUTE_PATH_REGEX};
pub use site::{
    BasicAuth, Cors, ForwardAuth, HeaderRules, RateLimitRule, Redirect, ReplaceRule, Respond,
    Rewrite, RewriteRule, Route, SecurityHeaders, Site,
};
pub(crate) use tls::EXTERNAL_ACCOUNT_KEY;
pub use tls::{
    Acme, AcmeStorage, CertificateFiles, ChallengeKind, ClientCertificateMode, ClientCertificates,
    ExternalAccount, Hsts, OnDemand, SiteTls, Tls, TlsProfile, UnknownNames,
};
pub use tracing::{TraceConfig, TraceParents};
pub(crate) use upstream::UPSTREAM_QUEUE;
pub use upstream::{
    Balance, ConnectionLimits, EjectPolicy, ForwardedHeaders, HashKey, HealthCheck, HostHeader,
    Protocol, ProxyProtocol, RetryPolicy, ServerAddr, TcpFrontend, TcpTls, Upstream,
    UpstreamServer, UpstreamTls,
};

use crate::options::OptionDefault::Described;
use crate::options::OptionKind::{NamedTables, Table, Tables};
use crate::redacted::Secret;
use crate::source_files::ConfigSources;

/// A whole configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file it was read from; `None` when it was detected.
    pub path: Option<PathBuf>,
    /// Every file that it was read from.
    pub sources: ConfigSources,
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
    /// Programs that run at times, by name. Those that run all the time are among `apps`.
    pub jobs: BTreeMap<String, ScheduledJob>,
    /// TLS of all listeners that have it.
    pub tls: Tls,
    /// Certificates by ACME.
    pub acme: Acme,
    /// Bounds on held streams.
    pub hub: Hub,
    /// Conditions that routes name.
    pub conditions: BTreeMap<String, Conditions>,
    /// Access logs by name, beside that of the server.
    pub access_logs: BTreeMap<String, AccessLog>,
    /// Traces of requests; `None` where there are none.
    pub tracing: Option<TraceConfig>,
    /// Caches by name; their directories do not overlap.
    pub caches: BTreeMap<String, Cache>,
    /// Back ends by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// Sites in the order of the file; at least one, unless there are TCP listeners.
    pub sites: Vec<Site>,
    /// TCP listeners in the order of the file.
    pub tcp: Vec<TcpFrontend>,
    /// The front end that this one serves its only application for; `None` for a server of its own.
    pub join_target: Option<JoinTarget>,
    /// What was found and read without a configuration file, a line each, for the start to print.
    pub start_notes: Vec<String>,
}

impl Config {
    /// Everything that it starts: applications, and jobs of both kinds.
    pub fn programs(&self) -> impl Iterator<Item = &App> {
        let at_times = self.jobs.values().map(|job| &job.program);
        self.apps.values().chain(at_times)
    }

    /// Whether TLS ends at a listener.
    pub fn has_tls_listener(&self) -> bool {
        self.server.has_tls_listener() || self.tcp.iter().any(|it| it.tls != TcpTls::Off)
    }

    /// Whether a listener has the certificates of the sites.
    pub fn uses_site_certificates(&self) -> bool {
        self.server.has_tls_listener() || self.tcp.iter().any(|it| it.tls == TcpTls::Sites)
    }

    /// The GRIP settings of a route's back end; `None` if GRIP is off there.
    pub fn effective_grip(&self, route: &Route) -> Option<Grip> {
        let (name, grip) = match (&route.app, &route.upstream) {
            (Some(name), _) => (name, self.apps.get(name)?.grip.as_ref()),
            (None, Some(name)) => (name, self.upstreams.get(name)?.grip.as_ref()),
            (None, None) => return None,
        };
        let is_obeyed = route.grip.unwrap_or_else(|| grip.is_some());
        is_obeyed.then(|| grip.cloned().unwrap_or_else(|| Grip::new(name)))
    }

    /// Returns the permission of a route's responses to name another body, if they have it.
    pub fn effective_sendfile<'a>(&'a self, route: &'a Route) -> Option<&'a Sendfile> {
        let of_back_end = || match (&route.app, &route.upstream) {
            (Some(name), _) => Some(&self.apps.get(name)?.sendfile),
            (None, Some(name)) => Some(&self.upstreams.get(name)?.sendfile),
            (None, None) => None,
        };
        let sendfile = route.sendfile.as_ref().or_else(of_back_end)?;
        sendfile.is_enabled.then_some(sendfile)
    }

    /// The routes of all sites, each once for each of its back ends ([`Route::parts`]).
    pub fn route_parts(&self) -> impl Iterator<Item = Cow<'_, Route>> {
        let routes = self.sites.iter().flat_map(|site| &site.routes);
        routes.flat_map(Route::parts)
    }

    /// The namespaces of all channels, some more than once.
    pub fn channel_namespaces(&self) -> Vec<String> {
        let of_route = |route: Cow<'_, Route>| match &route.hub {
            Some(hub) => Some(hub.namespace.clone()),
            None => self.effective_grip(&route).map(|grip| grip.namespace),
        };
        self.route_parts().filter_map(of_route).collect()
    }

    /// The namespaces whose channels get events of presence, some more than once.
    pub fn presence_namespaces(&self) -> Vec<String> {
        let of_route = |route: Cow<'_, Route>| match &route.hub {
            Some(hub) => hub.presence.then(|| hub.namespace.clone()),
            None => self
                .effective_grip(&route)
                .filter(|grip| grip.presence)
                .map(|grip| grip.namespace),
        };
        self.route_parts().filter_map(of_route).collect()
    }
}

/// The front end that `penstock work` joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTarget {
    /// The front end's address: `HOST:PORT` or `unix:PATH`.
    pub address: String,
    /// The upstream there to which it adds a server.
    pub upstream: String,
    /// The shared key.
    pub key: Secret,
    /// The file that the key was read from; `None` for a key in the configuration.
    pub key_file: Option<PathBuf>,
    /// Whether connections to the front end have TLS.
    pub tls: bool,
}

keys! {
    /// The top level of the file.
    TOP in "", "", "" {
        /// Listeners, loops, admin, access log.
        "server": Table("server"), Described("every default");
        /// Bounds on clients.
        "limits": Table("limits"), Described("every default");
        /// TLS of all listeners that have it.
        "tls": Table("tls"), Described("every default");
        /// Certificates by ACME.
        "acme": Table("acme"), Described("every default");
        /// Pools for blocking work.
        "blocking": NamedTables("blocking.NAME"), Described("the pool `default`");
        /// Applications.
        "apps": NamedTables("apps.NAME"), Described("none");
        /// Programs beside the applications, each by its name.
        "jobs": NamedTables("jobs.NAME"), Described("none");
        /// Back ends.
        "upstreams": NamedTables("upstreams.NAME"), Described("none");
        /// Caches.
        "caches": NamedTables("caches.NAME"), Described("none");
        /// Held streams.
        "hub": Table("hub"), Described("every default");
        /// Access logs beside `server.access_log`.
        "access_logs": NamedTables("access_logs.NAME"), Described("none");
        /// Traces of requests.
        "tracing": Table("tracing"), Described("no traces");
        /// Conditions that several routes and rules share.
        "conditions": NamedTables("conditions.NAME"), Described("none");
        /// Sites.
        "sites": Tables("sites"), Described("one site for the only application or upstream");
        /// TCP listeners.
        "tcp": Tables("tcp"), Described("none");
    }
}
