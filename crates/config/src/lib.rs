//! Configuration: text in, checked values out.
//!
//! It reads TOML, knows the environment's defaults (cores, temporary directory) and recognises a
//! directory without a configuration file. The binary calls [`resolve_config`] once at start and
//! [`load`] on reload and `check`; the other crates of the server see only the values of [`Config`].
//!
//! # Invariants
//! - Nothing is accepted by halves. Either every key was known, of the right type, in range and
//!   consistent with the others, or [`ConfigErrors`] names all that is wrong, each with its line
//!   and column. Not here: whether an interpreter exists or a port is free.

#[macro_use]
mod declare;

mod access_log;
mod address;
mod admission;
mod app;
mod basic_auth;
mod bounds;
mod cache;
mod channel;
mod command_line;
mod compression;
mod conditions;
mod cores;
mod cors;
mod describe;
mod detect;
mod dev_defaults;
mod disk;
mod entropy;
mod entry;
mod error;
mod error_pages;
mod example;
mod files;
mod findings;
mod fixed_responses;
mod foreign_words;
mod forward_auth;
mod grants;
mod headers;
mod hide;
mod hooks;
mod hub;
mod job;
mod join;
mod jwt;
mod man_page;
mod media_types;
mod model;
mod options;
mod parse;
mod processes;
mod rate_limit;
mod redacted;
mod resolve;
mod rewrite;
mod rollout;
mod route;
mod schema;
mod search;
mod secret;
mod section;
mod security_headers;
mod server;
mod signed_url;
mod site;
mod source_files;
mod source_tree;
mod suggest;
mod surroundings;
mod tcp;
#[cfg(test)]
mod testing;
mod tls;
mod tracing;
mod units;
mod upstream;
mod values;
mod variables;
mod work;

pub use address::InvalidServerAddr;
pub use cache::STORABLE_STATUSES;
pub use channel::{ChannelPart, ChannelPattern, InvalidChannelPattern, MAX_CHANNEL_BYTES};
pub use command_line::split_command;
pub use describe::{explain_key, reference_page};
pub use detect::cable_problem;
pub use disk::MAX_ERROR_PAGE_BYTES;
pub use entropy::is_hard_to_guess;
pub use error::{ConfigError, ConfigErrors};
pub use example::example_file;
pub use foreign_words::{FlagTranslation, translate_flag};
pub use forward_auth::ServiceUrl;
pub use hide::{DEFAULT_HIDE_PATTERNS, HidePattern};
pub use man_page::man_page;
pub use media_types::MediaTypes;
pub use model::{
    Access, AccessLog, Acme, AcmeStorage, App, AppKind, Balance, BasicAuth, BlockingPool, Cache,
    CacheBypass, CacheKey, CertificateFiles, ChallengeKind, ClientCertificateMode,
    ClientCertificates, Compression, Concurrency, ConcurrencyRule, Conditions, Config,
    ConnectionLimits, ContentCoding, ControlSocket, Cors, Detection, EjectPolicy, ExternalAccount,
    Files, ForwardAuth, ForwardedHeaders, Grip, HUB_NAMESPACE, HashKey, HeaderRules, HealthCheck,
    HostHeader, Hsts, HttpListener, HttpScheme, Hub, HubHistory, JoinEndpoint, JoinTarget, JwtAuth,
    JwtKeys, KeySetSource, Limits, LogField, LogFormat, LogTarget, MemoryLimit, MercureKey,
    MercureKeys, Mirror, NamedCondition, OnDemand, Preload, Processes, Protocol, ProxyProtocol,
    QueryKey, RateLimitRule, Redirect, RefusalPolicy, ReplaceRule, RequestIdMode, RequestScheme,
    Respond, ResponseRate, RetryPolicy, Rewrite, RewriteRule, Route, RouteCache, RouteHub,
    RouteMercure, SampleShare, Satisfy, ScalingConfig, Schedule, ScheduledJob, SecurityHeaders,
    Sendfile, Server, ServerAddr, ServerLogFormat, SignedUrl, Site, SiteTls, SlowPolicy,
    SocketPermissions, SplitBy, SplitCookie, SplitPart, StatusPattern, Sticky, Symlinks,
    SyslogAddress, TcpFrontend, TcpTls, TimeOfDay, Tls, TlsProfile, TraceConfig, TraceParents,
    UnknownNames, Upstream, UpstreamServer, UpstreamTls,
};
pub use parse::{load, load_server_table, parse};
pub use rate_limit::{RateKey, RequestRate};
pub use redacted::{EnvVariables, Secret};
pub use resolve::{AdminOverride, Invocation, parse_ip, resolve_config};
pub use rollout::Share;
pub use schema::json_schema;
pub use search::{OptionHit, search_options};
pub use signed_url::{SignedPart, SignedText};
pub use source_files::ConfigSources;
pub use units::{format_size, parse_duration};
pub use values::{
    FallbackPart, HostPattern, InvalidListenAddr, ListenAddr, LogPart, LogTemplate, LogValue,
    LogWord, PathPattern, PathRegex, Placeholder, Template, TemplatePart, TryFallback, TryPattern,
    ValuePattern,
};
pub use work::WorkOptions;

/// The name of the file that is looked for in a directory.
pub const FILE_NAME: &str = "penstock.toml";
