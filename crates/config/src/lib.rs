//! Configuration: text in, checked values out.
//!
//! The only crate that knows TOML, the environment's defaults (cores, temporary folder) and how a
//! folder without a configuration file is recognised. The binary calls [`resolve`] once at start and
//! [`load`] on reload and `check`; everything else in the house sees only the values of [`Config`].
//! What must stay true: nothing is accepted by halves. Either every key was known, of the right
//! type, in range and consistent with the others, or a [`Report`] names all that is wrong, each with
//! its line and column. Not here: whether an interpreter exists or a port is free.

mod address;
mod app;
mod cache;
mod channel;
mod cores;
mod describe;
mod detect;
mod development;
mod disk;
mod entry;
mod error;
mod example;
mod files;
mod foreign_words;
mod grants;
mod headers;
mod hide;
mod hub;
mod join;
mod masked;
mod model;
mod options;
mod pages;
mod parse;
mod place;
mod processes;
mod resolve;
mod route;
mod schema;
mod secret;
mod section;
mod server;
mod site;
mod stream;
mod suggest;
#[cfg(test)]
mod testing;
mod units;
mod upstream;
mod values;
mod words;
mod work;

pub use address::BadServerAddr;
pub use cache::STATUSES_STORED;
pub use channel::{BadChannel, CHANNEL_BYTES_MAX, ChannelPart, ChannelPattern};
pub use describe::{explain, reference};
pub use disk::ERROR_PAGE_BYTES_MAX;
pub use error::{ConfigError, Problem, Report};
pub use example::example;
pub use foreign_words::{FlagTranslation, translate_flag};
pub use hide::{HIDDEN_BY_DEFAULT, HidePattern};
pub use masked::{Secret, Variables};
pub use model::{
    Access, AccessLog, App, AppKind, Balance, BlockingPool, Cache, CacheBypass, CacheKey, Coding,
    Concurrency, Config, Connections, Control, Eject, Files, Forwarded, Grip, HUB_NAMESPACE,
    HashKey, HeaderRules, Health, HostHeader, Hub, HubHistory, Join, Joins, Limits, LogFormat,
    LogTarget, MemoryMax, MercureKey, Preload, Processes, Protocol, ProxyProtocol, QueryKey, Retry,
    Rewrite, Route, RouteCache, RouteHub, RouteMercure, Scaling, Sendfile, Server, ServerAddr,
    ServerLogFormat, Site, SlowPolicy, SocketFile, Sticky, Symlinks, TcpStream, Upstream,
    UpstreamServer,
};
pub use parse::{load, parse};
pub use resolve::{AdminChoice, Invocation, resolve};
pub use schema::schema;
pub use secret::is_random;
pub use units::show_size;
pub use values::{BadListenAddr, HostPattern, ListenAddr, PathPattern, TryPattern};
pub use work::Work;

/// The name of the file that is looked for in a folder.
pub const FILE_NAME: &str = "penstock.toml";
