//! What can be wrong with a configuration, and how it is told.
//!
//! Filled by every reading file of this crate, printed by the binary's `check`, start and reload.
//! What must stay true: one run reports everything that is wrong, sorted by place, and each message
//! says what was expected, so that the reader need not look it up.

mod format;

use std::fmt;
use std::io;
use std::path::PathBuf;

use format::{AccessError, BackendNoun, DidYouMean, InSection, IoReason, OnLine, PathList};

use crate::model::{AppKind, ServerAddr};
use crate::values::{HostPattern, ListenAddr, MAX_UNIX_PATH_BYTES, PathPattern};

/// Everything that is wrong with one configuration; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The errors, sorted by file, line and column.
    pub errors: Vec<ConfigError>,
}

impl Report {
    /// A report of errors in any order.
    pub(crate) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        Self { errors }
    }

    /// A report of one error that has no place inside a file.
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

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigError {
    /// The file, or the folder or words on the command line when there is no file.
    pub file: PathBuf,
    /// From 1; 0 when the error has no place inside a file.
    pub line: usize,
    /// In characters, from 1; 0 when the error has no place inside a file.
    pub column: usize,
    /// What is wrong there.
    pub problem: Problem,
}

impl ConfigError {
    /// An error about the whole of `file`.
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

/// What is wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The text is not TOML.
    #[error("not valid TOML: {0}")]
    InvalidToml(String),
    /// A key that no version knows.
    #[error("unknown key `{key}` {}{}", InSection(section), DidYouMean(suggestion))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The table it stands in; empty is the top.
        section: String,
        /// The nearest key that exists.
        suggestion: Option<String>,
    },
    /// A value of another type.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it should be, in words.
        expected: String,
        /// What it is.
        found: &'static str,
    },
    /// A value of the right type that says nothing known.
    #[error(
        "`{key}` cannot be {value:?}: expected {expected}{}",
        DidYouMean(suggestion)
    )]
    InvalidValue {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// What was expected, in words.
        expected: String,
        /// The nearest word that is allowed.
        suggestion: Option<String>,
    },
    /// A text of the right type that is no such secret; nobody reads it in a message.
    #[error("`{key}` (not shown) cannot be used: expected {expected}")]
    InvalidSecret {
        /// The key.
        key: &'static str,
        /// What was expected, in words.
        expected: &'static str,
    },
    /// A Redis that speaks TLS.
    #[error("`redis` cannot be a rediss:// address: TLS is not supported by this version yet")]
    RedisTlsUnsupported,
    /// A number below or above what makes sense.
    #[error("`{key}` cannot be {value}: expected {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// The range, in words.
        expected: String,
    },
    /// The lower of two bounds is above the upper one.
    #[error("`{low}` ({low_value}) is above `{high}` ({high_value})")]
    BoundsReversed {
        /// The key of the lower bound.
        low: &'static str,
        /// Its value.
        low_value: u64,
        /// The key of the upper bound.
        high: &'static str,
        /// Its value.
        high_value: u64,
    },
    /// A key that has no default was left out.
    #[error("`{key}` is missing {}: expected {expected}", InSection(section))]
    MissingKey {
        /// The key.
        key: &'static str,
        /// The table it should stand in.
        section: String,
        /// What it should be.
        expected: String,
    },
    /// A list that was left empty.
    #[error("`{key}` needs at least one item: expected {expected}")]
    EmptyList {
        /// The key.
        key: &'static str,
        /// What an item should be.
        expected: String,
    },
    /// A list with an item that it has already.
    #[error("`{key}` has `{item}` twice")]
    DuplicateItem {
        /// The key.
        key: &'static str,
        /// The item as written the second time.
        item: String,
    },
    /// A key beside what it cannot stand with.
    #[error("`{key}` is only for {what}")]
    NotApplicable {
        /// The key.
        key: &'static str,
        /// What it is for, in words.
        what: &'static str,
    },
    /// A back end whose channels would be those of the routes with `hub`.
    #[error(
        "`hub` is the namespace of the routes with `hub`: say `grip = {{ namespace = \"...\" }}`, with \
         \"hub\" only if these channels are to be shared"
    )]
    NamespaceOfHubRoutes,
    /// An upstream whose channels would be those of an application.
    #[error(
        "an application is called `{0}` too, and their channels are not to be one by accident: say \
         `grip = {{ namespace = \"...\" }}`"
    )]
    NamespaceOfApp(String),
    /// Two keys that mean the same.
    #[error("`{key}` and `{other}` say the same: keep one")]
    ConflictingKeys {
        /// The key.
        key: &'static str,
        /// The other.
        other: &'static str,
    },
    /// Several threads in a process that has one.
    #[error(
        "a process with a reactor has one thread: `max_concurrent` bounds what it does at once"
    )]
    ThreadsWithReactor,
    /// Bounds on the threads of a program that is not Penstock's.
    #[error(
        "how many threads a program of its own has is not Penstock's to decide: say how many requests a process gets at once"
    )]
    ThreadBoundsOfProgram,
    /// A key of another table, which this one does not have.
    #[error("`{key}` has no place {}: {reason}", InSection(section))]
    KeyBelongsElsewhere {
        /// The key.
        key: &'static str,
        /// The table it stands in.
        section: String,
        /// Who says it instead.
        reason: &'static str,
    },
    /// One server that is listed twice.
    #[error("server {address} is already listed{}", OnLine(*line))]
    DuplicateServer {
        /// Its address.
        address: ServerAddr,
        /// Where it was listed first.
        line: usize,
    },
    /// An upstream all of whose servers wait for others to fail.
    #[error("every server is `backup`: at least one must not be")]
    OnlyBackups,
    /// An upstream that has the name of an application that is one itself.
    #[error(
        "upstream `{0}` has the name of an application of kind \"command\" or \"fastcgi\": rename one"
    )]
    UpstreamNamedLikeApp(String),
    /// A command that is not told where to listen.
    #[error(
        "`command` needs one of `{{port}}`, `{{socket}}` and `{{fd}}`: it is how a process is told where to listen"
    )]
    MissingPlaceholder,
    /// A socket in a folder of the server, for a process of another user.
    #[error(
        "`command` has {{socket}}, which is in a folder of the server's: with a `user` of its own the application needs `{{port}}` or `{{fd}}`"
    )]
    SocketPlaceholderWithUser,
    /// A command that is told to listen in several places.
    #[error("`command` has {}: one of them says where to listen", .0.join(" and "))]
    TooManyPlaceholders(Vec<&'static str>),
    /// Two listeners that cannot both be bound.
    #[error("{addr} is already taken by {other}{}", OnLine(*line))]
    AddressTaken {
        /// The later one.
        addr: ListenAddr,
        /// The earlier one.
        other: ListenAddr,
        /// The earlier one's line, 0 when it is not in the file.
        line: usize,
    },
    /// A Unix socket without a file.
    #[error(
        "`unix:{0}` would be an abstract socket, which has no permissions: choose the path of a file, such as \"unix:/run/site.sock\""
    )]
    AbstractSocket(String),
    /// A Unix socket's path that the system does not take.
    #[error(
        "{}: {bytes} bytes, and the path of a Unix socket has at most {MAX_UNIX_PATH_BYTES}: choose a shorter one",
        path.display()
    )]
    SocketPathTooLong {
        /// The absolute path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Permissions of an address that has no file.
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
        /// The admin address.
        admin: ListenAddr,
        /// The listener.
        listener: ListenAddr,
    },
    /// A route or stream names an application, upstream or pool that does not exist.
    #[error("there is no {what} `{name}`{}", DidYouMean(suggestion))]
    UnknownName {
        /// `app`, `upstream` or `blocking pool`.
        what: &'static str,
        /// The name as written.
        name: String,
        /// The nearest name that exists.
        suggestion: Option<String>,
    },
    /// A route with nothing that answers.
    #[error("route {0} has nothing to do: give it `files`, `app`, `upstream`, `hub` or `mercure`")]
    EmptyRoute(PathPattern),
    /// A site without a route.
    #[error("a site needs at least one [[sites.routes]]")]
    EmptySite,
    /// Two routes of one site with the same path.
    #[error("route {path} can never match: the site has the same path{}", OnLine(*line))]
    DuplicateRoute {
        /// The path of both.
        path: PathPattern,
        /// The earlier one's line.
        line: usize,
    },
    /// A route behind a wider one that answers everything.
    #[error("route {path} can never match: {wider}{} answers first; put this one before it", OnLine(*line))]
    UnreachableRoute {
        /// The later path.
        path: PathPattern,
        /// The earlier, wider path.
        wider: PathPattern,
        /// The earlier one's line.
        line: usize,
    },
    /// A host that is named twice.
    #[error("host {host} is already taken by the site{}", OnLine(*line))]
    DuplicateHost {
        /// The host.
        host: HostPattern,
        /// Where it was named first.
        line: usize,
    },
    /// Two sites without hosts.
    #[error("only one site can answer for any host: the one{} does; give this one `hosts`", OnLine(*line))]
    DuplicateDefaultSite {
        /// The earlier site's line.
        line: usize,
    },
    /// A folder or file that does not exist, or cannot be looked at.
    #[error("`{key}`: {} {}", path.display(), IoReason(*reason))]
    PathNotFound {
        /// The key that names it.
        key: &'static str,
        /// The absolute path.
        path: PathBuf,
        /// What the system said.
        reason: io::ErrorKind,
    },
    /// A file where a folder should be.
    #[error("`{key}`: {} is not a folder", path.display())]
    NotADirectory {
        /// The key that names it.
        key: &'static str,
        /// The absolute path.
        path: PathBuf,
    },
    /// Something else where a file should be.
    #[error("`{key}`: {} is not a regular file", path.display())]
    NotARegularFile {
        /// The key that names it.
        key: &'static str,
        /// The absolute path.
        path: PathBuf,
    },
    /// A file that is kept in memory, and too large for that.
    #[error("`{key}`: {} is larger than {}", path.display(), crate::units::format_size(*max))]
    FileTooLarge {
        /// The key that names it.
        key: &'static str,
        /// The absolute path.
        path: PathBuf,
        /// Bytes it may have.
        max: u64,
    },
    /// Two caches whose folders are the same, or one inside the other.
    #[error(
        "`path`: {} and {}, the folder of cache `{other}`{}, overlap: each cache needs a folder of its own",
        path.display(), other_path.display(), OnLine(*line)
    )]
    OverlappingCacheDirs {
        /// The later one's absolute folder.
        path: PathBuf,
        /// The earlier one's name.
        other: String,
        /// The earlier one's absolute folder.
        other_path: PathBuf,
        /// Where the earlier one's stands.
        line: usize,
    },
    /// A cache whose folder is inside that of a route's files.
    #[error(
        "`root`: {}, the folder of cache `{cache}`, is inside: what it holds would be served as files",
        path.display()
    )]
    CacheInsideFilesRoot {
        /// The cache.
        cache: String,
        /// Its absolute folder.
        path: PathBuf,
    },
    /// An application's module or rackup file does not exist.
    #[error("entry `{entry}` was not found: looked for {}", PathList(looked_for))]
    EntryNotFound {
        /// The entry as written.
        entry: String,
        /// The absolute paths that were tried.
        looked_for: Vec<PathBuf>,
    },
    /// An application's kind or entry was left out, and its folder does not tell.
    #[error("app `{app}`: no application was recognised in {}: set `entry`, such as entry = \"module:callable\"", dir.display())]
    AppNotDetected {
        /// The application.
        app: String,
        /// Its folder.
        dir: PathBuf,
    },
    /// A file of the command line that cannot be imported.
    #[error("`{0}` is not the name of a Python module, so the file cannot be imported: rename it")]
    InvalidModuleName(String),
    /// `--kind` of another language than the application.
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
    /// Several applications or upstreams, and no site that says which answers what.
    #[error("{} {} ({}) and no [[sites]]: say which one answers which path", names.len(), BackendNoun { apps: *apps, all: names.len() }, names.join(", "))]
    MissingSites {
        /// The names of all, the applications first.
        names: Vec<String>,
        /// How many of them are applications.
        apps: usize,
    },
    /// An upstream that is joined, and nowhere to dial in.
    #[error("upstream `{0}` is `joinable`, and nobody can join: `join` is missing in [server]")]
    MissingJoinListener(String),
    /// Two upstreams, or one and `[server]`, with the same key.
    #[error("the `join_key` of upstream `{0}` is another's too: each needs one of its own")]
    SameJoinKey(String),
    /// A key by which nobody joins.
    #[error("`join_key` is for an upstream that is `joinable`")]
    KeyOfNoJoin,
    /// A stream to an upstream that is joined: its clients would be taken for a front end.
    #[error("upstream `{0}` is `joinable`: no stream can lead there")]
    TcpToJoinableUpstream(String),
    /// A PROXY header where both sides know already.
    #[error("`proxy_protocol` cannot stand with `joinable`: who joins knows its client")]
    ProxyProtocolWithJoinable,
    /// `penstock work` without a name where there are several, or with one that nobody has.
    #[error("say which application: {}", if .0.is_empty() { "there is none here".to_owned() } else { .0.join(", ") })]
    UnknownWorkApp(Vec<String>),
    /// `penstock work` without a key.
    #[error("there is no key: say --key-file, or `join` in [server] of the configuration")]
    MissingJoinKey,
    /// The address of `--join`.
    #[error(
        "--join cannot be {0:?}: expected HOST:PORT, such as \"front.example:7000\", or unix:PATH"
    )]
    InvalidJoinAddress(String),
    /// The name of `--upstream`.
    #[error("--upstream cannot be {0:?}: expected the name of an upstream")]
    InvalidUpstreamName(String),
    /// No application, upstream, site or stream.
    #[error(
        "nothing to serve: there is no [apps.NAME], [upstreams.NAME], [[sites]] or [[tcp]] table"
    )]
    NothingToServe,
    /// A folder in which nothing was recognised.
    #[error("nothing to serve was recognised here; looked for {}; {advice}", looked_for.join(", "))]
    NothingDetected {
        /// In the order of looking.
        looked_for: Vec<&'static str>,
        /// The commands that would work.
        advice: String,
    },
    /// The TARGET beside `--files` is no folder.
    #[error("--files serves a folder, and this is none{}", AccessError(*.0))]
    FilesTargetNotADirectory(Option<io::ErrorKind>),
    /// The TARGET of the command line is neither a folder, a file nor a module.
    #[error("is neither a folder, a FILE.toml, a .ru, .rb or .py file, nor module:callable{}", AccessError(*.0))]
    InvalidTarget(Option<io::ErrorKind>),
    /// The verb of another server where a TARGET is expected.
    #[error("there is no such verb, file or folder; did you mean `penstock {0}`?")]
    ForeignVerb(&'static str),
    /// TARGET and -c were both given.
    #[error("a TARGET and -c FILE exclude each other: the file already says what to serve")]
    TargetWithConfigFile,
}
