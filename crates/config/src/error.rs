//! The errors of a configuration and their messages.
//!
//! All parsing files of this crate add errors; the binary's `check`, start and reload print them.
//!
//! # Invariants
//!
//! - One run reports all errors, sorted by position.
//! - Each message says what was expected, so that the reader need not look it up.

mod format;

use std::fmt;
use std::io;
use std::path::PathBuf;

use format::{AccessError, BackendNoun, DidYouMean, InSection, IoReason, OnLine, PathList};

use crate::model::{AppKind, ServerAddr};
use crate::values::{HostPattern, ListenAddr, MAX_UNIX_PATH_BYTES, PathPattern};

/// All errors of one configuration; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The errors, sorted by file, line and column.
    pub errors: Vec<ConfigError>,
}

impl Report {
    /// Creates a report from errors in any order.
    pub(crate) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        Self { errors }
    }

    /// Creates a report of one error without a position in a file.
    pub(crate) fn single(file: impl Into<PathBuf>, what: Problem) -> Self {
        Self {
            errors: vec![ConfigError::without_position(file, what)],
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

/// One error and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigError {
    /// The file; without one, the directory or the words of the command line.
    pub file: PathBuf,
    /// From 1; 0 without a position in a file.
    pub line: usize,
    /// In characters, from 1; 0 without a position in a file.
    pub column: usize,
    /// The problem there.
    pub problem: Problem,
}

impl ConfigError {
    /// Creates an error about the whole of `file`.
    pub(crate) fn without_position(file: impl Into<PathBuf>, what: Problem) -> Self {
        Self {
            file: file.into(),
            line: 0,
            column: 0,
            problem: what,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        write!(f, " {}", self.problem)
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

/// A problem in a configuration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The text is not TOML.
    #[error("not valid TOML: {0}")]
    InvalidToml(String),
    /// A key that does not exist.
    #[error("unknown key `{key}` {}{}", InSection(section), DidYouMean(suggestion))]
    UnknownKey {
        key: String,
        section: String,
        suggestion: Option<String>,
    },
    /// A value of another type.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        key: String,
        expected: String,
        found: &'static str,
    },
    /// A value of the right type with an invalid content.
    #[error(
        "`{key}` cannot be {value:?}: expected {expected}{}",
        DidYouMean(suggestion)
    )]
    InvalidValue {
        key: String,
        value: String,
        expected: String,
        suggestion: Option<String>,
    },
    /// An invalid secret; its value is not in the message.
    #[error("`{key}` (not shown) cannot be used: expected {expected}")]
    InvalidSecret {
        key: &'static str,
        expected: &'static str,
    },
    /// A Redis address with TLS.
    #[error("`redis` cannot be a rediss:// address: TLS is not supported by this version yet")]
    RedisTlsUnsupported,
    /// A number outside of the range.
    #[error("`{key}` cannot be {value}: expected {expected}")]
    OutOfRange {
        key: String,
        value: String,
        expected: String,
    },
    /// The lower of two bounds is above the upper one.
    #[error("`{low}` ({low_value}) is above `{high}` ({high_value})")]
    BoundsReversed {
        low: &'static str,
        low_value: u64,
        high: &'static str,
        high_value: u64,
    },
    /// A required key is missing.
    #[error("`{key}` is missing {}: expected {expected}", InSection(section))]
    MissingKey {
        key: &'static str,
        section: String,
        expected: String,
    },
    /// A list that is empty.
    #[error("`{key}` needs at least one item: expected {expected}")]
    EmptyList { key: &'static str, expected: String },
    /// A list with the same item twice.
    #[error("`{key}` has `{item}` twice")]
    DuplicateItem { key: &'static str, item: String },
    /// A key that is only for other settings.
    #[error("`{key}` is only for {what}")]
    NotApplicable {
        key: &'static str,
        what: &'static str,
    },
    /// A back end with the namespace of the routes with `hub`.
    #[error(
        "`hub` is the namespace of the routes with `hub`: say `grip = {{ namespace = \"...\" }}`, with \
         \"hub\" only if these channels are to be shared"
    )]
    NamespaceOfHubRoutes,
    /// An upstream with the channel namespace of an application.
    #[error(
        "an application is called `{0}` too, and their channels are not to be one by accident: say \
         `grip = {{ namespace = \"...\" }}`"
    )]
    NamespaceOfApp(String),
    /// Two keys with the same meaning.
    #[error("`{key}` and `{other}` say the same: keep one")]
    ConflictingKeys {
        key: &'static str,
        other: &'static str,
    },
    /// Several threads in a process with a reactor.
    #[error(
        "a process with a reactor has one thread: `max_concurrent` bounds what it does at once"
    )]
    ThreadsWithReactor,
    /// Bounds on the threads of a program that is not a Penstock worker.
    #[error(
        "how many threads a program of its own has is not Penstock's to decide: say how many requests a process gets at once"
    )]
    ThreadBoundsOfProgram,
    /// A key that belongs to another table.
    #[error("`{key}` has no place {}: {reason}", InSection(section))]
    KeyBelongsElsewhere {
        key: &'static str,
        section: String,
        reason: &'static str,
    },
    /// A server that is listed twice.
    #[error("server {address} is already listed{}", OnLine(*line))]
    DuplicateServer { address: ServerAddr, line: usize },
    /// An upstream with backup servers only.
    #[error("every server is `backup`: at least one must not be")]
    OnlyBackups,
    /// An upstream with the name of an application that is an upstream itself.
    #[error(
        "upstream `{0}` has the name of an application of kind \"command\" or \"fastcgi\": rename one"
    )]
    UpstreamNamedLikeApp(String),
    /// A command without a placeholder for its listen address.
    #[error(
        "`command` needs one of `{{port}}`, `{{socket}}` and `{{fd}}`: it is how a process is told where to listen"
    )]
    MissingPlaceholder,
    /// A socket in a directory of the server, for a process of another user.
    #[error(
        "`command` has {{socket}}, which is in a folder of the server's: with a `user` of its own the application needs `{{port}}` or `{{fd}}`"
    )]
    SocketPlaceholderWithUser,
    /// A command with several placeholders for its listen address.
    #[error("`command` has {}: one of them says where to listen", .0.join(" and "))]
    TooManyPlaceholders(Vec<&'static str>),
    /// Two listeners that cannot both be bound.
    #[error("{addr} is already taken by {other}{}", OnLine(*line))]
    AddressTaken {
        addr: ListenAddr,
        other: ListenAddr,
        line: usize,
    },
    /// A Unix socket without a file.
    #[error(
        "`unix:{0}` would be an abstract socket, which has no permissions: choose the path of a file, such as \"unix:/run/site.sock\""
    )]
    AbstractSocket(String),
    /// A Unix socket path that is too long for the system.
    #[error(
        "{}: {bytes} bytes, and the path of a Unix socket has at most {MAX_UNIX_PATH_BYTES}: choose a shorter one",
        path.display()
    )]
    SocketPathTooLong { path: PathBuf, bytes: usize },
    /// Permissions of an address without a file.
    #[error(
        "`{0}` sets who may open the file of a Unix socket, and this address is a TCP port: \
         remove `{0}`"
    )]
    NotAUnixSocket(&'static str),
    /// The admin address is also a listener's.
    #[error(
        "admin ({admin}) and the listener {listener} are the same address: move one, or set admin = \"off\""
    )]
    AdminAddressTaken {
        admin: ListenAddr,
        listener: ListenAddr,
    },
    /// A reference to an application, upstream or pool that does not exist.
    #[error("there is no {what} `{name}`{}", DidYouMean(suggestion))]
    UnknownName {
        what: &'static str,
        name: String,
        suggestion: Option<String>,
    },
    /// A route without a handler.
    #[error("route {0} has nothing to do: give it `files`, `app`, `upstream`, `hub` or `mercure`")]
    EmptyRoute(PathPattern),
    /// A site without a route.
    #[error("a site needs at least one [[sites.routes]]")]
    EmptySite,
    /// Two routes of one site with the same path.
    #[error("route {path} can never match: the site has the same path{}", OnLine(*line))]
    DuplicateRoute { path: PathPattern, line: usize },
    /// A route after a wider one that answers everything.
    #[error("route {path} can never match: {wider}{} answers first; put this one before it", OnLine(*line))]
    UnreachableRoute {
        path: PathPattern,
        wider: PathPattern,
        line: usize,
    },
    /// A host that is named twice.
    #[error("host {host} is already taken by the site{}", OnLine(*line))]
    DuplicateHost { host: HostPattern, line: usize },
    /// Two sites without hosts.
    #[error("only one site can answer for any host: the one{} does; give this one `hosts`", OnLine(*line))]
    DuplicateDefaultSite { line: usize },
    /// A directory or file that does not exist or is not accessible.
    #[error("`{key}`: {} {}", path.display(), IoReason(*reason))]
    PathNotFound {
        key: &'static str,
        path: PathBuf,
        reason: io::ErrorKind,
    },
    /// A file instead of a directory.
    #[error("`{key}`: {} is not a folder", path.display())]
    NotADirectory { key: &'static str, path: PathBuf },
    /// Not a regular file.
    #[error("`{key}`: {} is not a regular file", path.display())]
    NotARegularFile { key: &'static str, path: PathBuf },
    /// A file that is too large to be kept in memory.
    #[error("`{key}`: {} is larger than {}", path.display(), crate::units::format_size(*max))]
    FileTooLarge {
        key: &'static str,
        path: PathBuf,
        max: u64,
    },
    /// Two caches with the same directory, or one inside the other's.
    #[error(
        "`path`: {} and {}, the folder of cache `{other}`{}, overlap: each cache needs a folder of its own",
        path.display(), other_path.display(), OnLine(*line)
    )]
    OverlappingCacheDirs {
        path: PathBuf,
        other: String,
        other_path: PathBuf,
        line: usize,
    },
    /// A cache's directory inside the directory of a route's files.
    #[error(
        "`root`: {}, the folder of cache `{cache}`, is inside: what it holds would be served as files",
        path.display()
    )]
    CacheInsideFilesRoot { cache: String, path: PathBuf },
    /// An application's module or rackup file does not exist.
    #[error("entry `{entry}` was not found: looked for {}", PathList(looked_for))]
    EntryNotFound {
        entry: String,
        looked_for: Vec<PathBuf>,
    },
    /// An application without kind or entry, and its directory does not tell.
    #[error("app `{app}`: no application was recognised in {}: set `entry`, such as entry = \"module:callable\"", dir.display())]
    AppNotDetected { app: String, dir: PathBuf },
    /// A file on the command line that cannot be imported.
    #[error("`{0}` is not the name of a Python module, so the file cannot be imported: rename it")]
    InvalidModuleName(String),
    /// `--kind` with another language than the application's.
    #[error(
        "the application is of kind \"{0}\", and --kind cannot make it one of another language: \
         leave --kind out"
    )]
    KindOfOtherLanguage(AppKind),
    /// `--kind` with a configuration file.
    #[error(
        "a configuration file sets the kind of each application (`kind` in [apps.NAME]): leave \
         --kind out, which is for a folder or module:callable"
    )]
    KindWithConfigFile,
    /// Several applications or upstreams, and no site that routes to them.
    #[error("{} {} ({}) and no [[sites]]: say which one answers which path", names.len(), BackendNoun { apps: *apps, all: names.len() }, names.join(", "))]
    MissingSites { names: Vec<String>, apps: usize },
    /// A joinable upstream without `server.join`.
    #[error("upstream `{0}` is `joinable`, and nobody can join: `join` is missing in [server]")]
    MissingJoinListener(String),
    /// Two upstreams, or one and `[server]`, with the same key.
    #[error("the `join_key` of upstream `{0}` is another's too: each needs one of its own")]
    SameJoinKey(String),
    /// A join key of an upstream that is not joinable.
    #[error("`join_key` is for an upstream that is `joinable`")]
    KeyOfNoJoin,
    /// A TCP listener for a joinable upstream: its clients would be taken for a front end.
    #[error("upstream `{0}` is `joinable`: no stream can lead there")]
    TcpToJoinableUpstream(String),
    /// A PROXY header on a connection with known addresses.
    #[error("`proxy_protocol` cannot stand with `joinable`: who joins knows its client")]
    ProxyProtocolWithJoinable,
    /// `penstock work` without an application's name where there are several, or with an unknown
    /// name.
    #[error("say which application: {}", if .0.is_empty() { "there is none here".to_owned() } else { .0.join(", ") })]
    UnknownWorkApp(Vec<String>),
    /// `penstock work` without a key.
    #[error("there is no key: say --key-file, or `join` in [server] of the configuration")]
    MissingJoinKey,
    /// An invalid address of `--join`.
    #[error(
        "--join cannot be {0:?}: expected HOST:PORT, such as \"front.example:7000\", or unix:PATH"
    )]
    InvalidJoinAddress(String),
    /// An invalid name of `--upstream`.
    #[error("--upstream cannot be {0:?}: expected the name of an upstream")]
    InvalidUpstreamName(String),
    /// No application, upstream, site or TCP listener.
    #[error(
        "nothing to serve: there is no [apps.NAME], [upstreams.NAME], [[sites]] or [[tcp]] table"
    )]
    NothingToServe,
    /// A directory in which nothing was recognised.
    #[error("nothing to serve was recognised here; looked for {}; {advice}", looked_for.join(", "))]
    NothingDetected {
        looked_for: Vec<&'static str>,
        advice: String,
    },
    /// The TARGET of `--files` is no directory.
    #[error("--files serves a folder, and this is none{}", AccessError(*.0))]
    FilesTargetNotADirectory(Option<io::ErrorKind>),
    /// The TARGET on the command line is neither a directory, a file nor a module.
    #[error("is neither a folder, a FILE.toml, a .ru, .rb or .py file, nor module:callable{}", AccessError(*.0))]
    InvalidTarget(Option<io::ErrorKind>),
    /// The verb of another server instead of a TARGET.
    #[error("there is no such verb, file or folder; did you mean `penstock {0}`?")]
    ForeignVerb(&'static str),
    /// TARGET and -c were both given.
    #[error("a TARGET and -c FILE exclude each other: the file already says what to serve")]
    TargetWithConfigFile,
}
