//! The server itself: the `[server]` table with its listeners, logs and account.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{AccessLog, Compression, ContentCoding, LogTarget};
use crate::cores::usable_cpus;
use crate::hide::HidePattern;
use crate::options::OptionDefault::{Described, Required, Toml};
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::redacted::Secret;
use crate::values::ListenAddr;

section! {
    /// Listeners, event loops, the admin address and the access log.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Server
    in "server", "[server]", "[server]" {
        /// Addresses that clients connect to; port 0 takes a free one and prints it. A file
        /// with nothing but streams has none.
        listen: Vec<HttpListener> = vec![ListenAddr::loopback(8080).into()],
            TextsOrTables(LISTEN_ADDRESS, "server.listen"), shows r#"["127.0.0.1:8080"]"#, by hand;
        /// Whether other servers of the same user may listen on the same TCP ports: the kernel
        /// gives each a share of the connections. Without it a second server is refused.
        reuse_port: bool = false, Bool;
        /// Number of event loops.
        threads: usize = usable_cpus(), Number(1, 1024), default "number of cores", example "2";
        /// Address of the status page, metrics and the admin API, or "off". Over TCP it shows the
        /// server to every client that reaches it, and accepts changes only with
        /// `server.admin_token`; a Unix socket is for its owner and root, and allows both.
        admin: Option<ListenAddr> = Some(ListenAddr::loopback(8090)), Text(LISTEN_ADDRESS_OR_OFF),
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
        probes: Option<ListenAddr> = None, Text(LISTEN_ADDRESS), default "none", example r#"":9090""#,
            by hand;
        /// Where requests are logged; a text alone is the path, in the combined format. Sites with
        /// `access_logs` of their own are not in it.
        access_log: Option<AccessLog> = None,
            OrTable(&Text(ACCESS_LOG_SHORT), "server.access_log"),
            shows r#""off""#, example r#"{ path = "logs/access.log", format = "combined" }"#,
            by hand;
        /// Ids of requests, in `X-Request-Id`: `"off"` leaves the field to others. `"pass"` keeps the
        /// id of a trusted proxy or makes one, shows it in the logs and on error pages, and passes it
        /// to applications and upstreams. `"respond"` also sends it in every response.
        request_id: RequestIdMode = RequestIdMode::default(), Choice(RequestIdMode::WORDS),
            example r#""respond""#;
        /// Whether `/metrics` and `/status.json` count each route by itself, with its site and path:
        /// about 25 series a route.
        route_metrics: bool = false, Bool;
        /// Whether the status has the routes and clients with most requests lately.
        top_lists: bool = true, Bool;
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
        /// File for the process id of the server, for scripts and monitors: written once everything
        /// is ready, removed at the stop, and with the id of the next server after an upgrade.
        pid_file: Option<PathBuf> = None, Path, default "none", example r#""/run/shop/penstock.pid""#;
        /// The form of the server's own log: lines for people, or one JSON object a line. Lines
        /// of applications that are JSON objects stay as they are.
        log_format: ServerLogFormat = ServerLogFormat::default(), Choice(ServerLogFormat::WORDS),
            example r#""json""#;
        /// Parameters of queries that are shown as `***` in both logs, whatever their case and
        /// separators; `*` in front matches the ends of names. `"default"` stands for tokens,
        /// passwords, API keys, signatures of signed URLs and the like. Passwords in URLs are
        /// always masked.
        log_mask: Vec<String> = vec!["default".to_owned()], Texts(crate::server::LOG_MASK_EXPECTED),
            example r#"["default", "voucher", "*_pin"]"#, by items(crate::server::is_valid_mask_name);
        /// The user that the server becomes once its sockets are open and before any application
        /// runs; needs to be started as root.
        user: Option<String> = None, Text("a user's name or number, or `user:group`"),
            default "whoever starts it", example r#""www-data""#, by hand;
        /// The group beside `user`.
        group: Option<String> = None, Text("a group's name or number"),
            default "the groups of `user`", example r#""www-data""#, by hand;
        /// Permissions that new files do not get, in applications too.
        umask: Option<u32> = None, Text("three or four octal digits"), default "as it is started",
            example r#""027""#, by parse(crate::server::parse_octal_mode);
        /// How many files and connections may be open at once.
        max_open_files: Option<u64> = None, Number(64, 100_000_000),
            default "as many as the system allows", example "65536";
        /// Working directory of the server; every path of the configuration stays as it is.
        dir: Option<PathBuf> = None, Path, default "where it is started", example r#""/""#,
            by hand;
        /// Proxies that are trusted with `Forwarded`, `X-Forwarded-*` and `X-Real-IP`: client,
        /// scheme, host, port and prefix in them are the request's. By default, this machine is
        /// trusted for client and scheme alone.
        trusted_proxies: Option<Vec<String>> = None, Texts(TRUSTED_NETWORK),
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
        hide: Vec<HidePattern> = HidePattern::defaults(), Texts(HIDE_PATTERN), shows r#"["default"]"#,
            example r#"["default", "*.psd"]"#, by hand;
        /// Whether responses are compressed, where neither the site nor the route says it.
        compress: Option<Compression> = None,
            OrTable(&FlagOrChoices(ContentCoding::WORDS), "compress"), shows "false",
            example "true", by hand;
        /// Where `penstock work` on other machines dials in, to become a server of an upstream
        /// that is `joinable`.
        join: Option<JoinEndpoint> = None, Table("server.join"), default "nowhere",
            example "{ listen = \"10.0.0.1:7000\", key = \
                \"J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=\" }", by hand;
        /// The Redis or Valkey that several servers share: a message published on one reaches the
        /// streams of all, but for Mercure hubs, which stay each server's own. In a name or
        /// password what a URL cannot have stands as `%` and two digits.
        redis: Option<Secret> = None, OrTable(&Text(crate::server::REDIS_EXPECTED), "secret_file"),
            default "none: this server is alone", example r#""redis://127.0.0.1:6379""#, by hand;
        /// File with the authorities that the certificate of a `redis` with TLS may come from.
        redis_ca: Option<PathBuf> = None, Path, default "the authorities that the system trusts",
            example r#""redis-ca.pem""#, only "a `redis` with `rediss://`", by hand;
    }
    also {
        /// More files of this configuration: paths, or patterns with `*` and `?`, whose files are
        /// read in the order of their names. Relative paths start from the folder of the main file
        /// in all files. Tables under names, sites and TCP listeners of all files come together;
        /// every other table stands in one file, and `[server]` in the main file. A pattern may
        /// match nothing; a path is a file that exists.
        "include": Texts("a path or a pattern such as \"sites/*.toml\""), Described("none"),
            example r#"["sites/*.toml"]"#;
        /// File with variables for `${NAME}` in the texts of this configuration, beside the
        /// environment: `NAME=value` a line, as dotenv reads it. Applications have `env_file` of
        /// their own.
        "env_file": OrTable(&Path, "server.env_file"), Described("none: the environment alone"),
            example r#""variables.env""#;
    }
    plain {
        /// Permissions of the Unix sockets of `listen` that set some, by path.
        socket_permissions: BTreeMap<PathBuf, SocketPermissions> = BTreeMap::new();
    }
}

impl Server {
    /// Whether a listener has TLS.
    pub fn has_tls_listener(&self) -> bool {
        self.listen.iter().any(|listener| listener.has_tls)
    }
}

/// An address of `listen`, and what its connections begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpListener {
    /// The address. Two listeners may have the same one where port 0 stands for any.
    pub address: ListenAddr,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Connections have TLS.
    pub has_tls: bool,
}

impl From<ListenAddr> for HttpListener {
    fn from(address: ListenAddr) -> Self {
        Self {
            address,
            proxy_protocol: false,
            has_tls: false,
        }
    }
}

/// The Unix socket by which the command line controls the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlSocket {
    /// In a directory of the user that starts the server; its name follows from the first listener.
    Auto,
    /// At this absolute path.
    Path(PathBuf),
    /// No socket.
    Off,
}

/// The permissions and the owner of a Unix socket's file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketPermissions {
    /// The permissions; `None` lets everyone connect.
    pub mode: Option<u32>,
    /// The owner, a name or a number; `None` is the server's user.
    pub user: Option<String>,
    /// The group, a name or a number; `None` is the server's group.
    pub group: Option<String>,
}

keys! {
    /// An address with settings of its own.
    SERVER_LISTEN in "server.listen", "listen = [{ ... }] in [server]", "" {
        /// Address that clients connect to.
        "address": Text(LISTEN_ADDRESS), Required, example r#""127.0.0.1:8080""#;
        /// Permissions of a Unix socket's file: users that may write it may connect.
        "mode": Text("three or four octal digits"), Toml(r#""0666""#), example r#""0660""#;
        /// The owner of a Unix socket's file; another user than the server's needs a start as
        /// root.
        "owner": Text("`user`, `user:group` or `:group`, by name or number"),
            Described("`server.user`, or whoever starts it"), example r#"":www-data""#;
        /// Whether its connections begin with a PROXY protocol header, of version 1 or 2.
        "proxy_protocol": Bool, Toml("false");
        /// Whether its connections have TLS: HTTPS. At least one site needs a certificate.
        "tls": Bool, Toml("false");
    }
}

keys! {
    /// A file of variables with settings of its own.
    ENV_FILE in "server.env_file", "env_file = { ... } in [server]", "" {
        /// The file.
        "path": Path, Required, example r#""variables.env""#;
        /// Whether its values stand in for those of the environment; without it, what is set in the
        /// environment stays.
        "override": Bool, Toml("false");
        /// Whether the file may be absent.
        "optional": Bool, Toml("false");
    }
}

keys! {
    /// The secret by which changes are made over TCP; see admin.md.
    ADMIN_TOKEN in "server.admin_token", "admin_token = { ... } in [server]", "" {
        /// File with the token, for example from `openssl rand -base64 32`; only its owner and its
        /// group may read it, and its owner is root or the user that starts the server.
        "file": Path, Described("required, unless there is a `credential`"),
            example r#""/etc/penstock/token""#;
        /// The name of a credential that systemd gives the server, in place of `file`.
        "credential": Text(crate::secret::CREDENTIAL_EXPECTED), Described("none"),
            example r#""token""#;
    }
}

/// The listener for programs that serve an application elsewhere: `[server] join`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinEndpoint {
    /// The address that it listens on.
    pub listen: ListenAddr,
    /// The secret shared by those programs and this server.
    pub key: Secret,
    /// Whether those programs must speak TLS.
    pub tls: bool,
}

keys! {
    /// Where programs dial in that serve an application elsewhere; see machines.md.
    SERVER_JOIN in "server.join", "join = { ... } in [server]", "" {
        /// Address that it listens at.
        "listen": Text(LISTEN_ADDRESS), Required, example r#""10.0.0.1:7000""#;
        /// The secret that a program must know to dial in; by it each side proves its identity to
        /// the other.
        "key": OrTable(&Text(crate::join::JOIN_KEY_EXPECTED), "secret_file"), Required,
            example r#""J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=""#;
        /// Whether the connections are encrypted by TLS 1.3; it needs no certificate. `false` is
        /// for a Unix socket, or a network that encrypts by itself, and goes with `--plain` of
        /// `penstock work`.
        "tls": Bool, Toml("true");
    }
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
    /// What becomes of the ids of requests.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum RequestIdMode {
        /// There are none; `X-Request-Id` is a field like any other.
        Off = "off",
        /// Each request has one, for the logs and the programs behind the server.
        #[default]
        Pass = "pass",
        /// Clients get it too.
        Respond = "respond",
    }
}
