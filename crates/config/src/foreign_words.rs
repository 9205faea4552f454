//! Words of other servers for what is called something else here.
//!
//! Used by `section` for a key that does not exist, before the nearest word is looked for: whoever types
//! `workers` means `processes`, which is not near; by the command line for flags, and by `resolve`
//! for verbs. Data only.
//!
//! # Invariants
//! - Every suggestion is an existing key or flag, and no foreign word is one: both are tested.

use FlagTranslation::{Flag, Key, Needless, Verb};

/// A key of another server.
#[derive(Debug)]
struct ForeignWord {
    /// The table of the file that it is written in; of an option that stands elsewhere too.
    section: &'static str,
    /// What users of other servers type.
    word: &'static str,
    /// What it is called here: a key of the same table, or one with its table in front.
    key: &'static str,
}

const fn word(section: &'static str, word: &'static str, key: &'static str) -> ForeignWord {
    ForeignWord { section, word, key }
}

/// Of nginx, HAProxy, Caddy, Puma, Unicorn, Gunicorn, Uvicorn and uWSGI.
#[rustfmt::skip]
const WORDS: &[ForeignWord] = &[
    word("server", "bind", "listen"),
    word("server", "address", "listen"),
    word("server", "http", "listen"),
    word("server", "http_socket", "listen"),
    word("server", "socket", "listen"),
    word("server", "port", "listen"),
    word("server", "host", "listen"),
    word("server", "workers", "threads"),
    word("server", "worker_processes", "threads"),
    word("server", "nbthread", "threads"),
    word("server", "stats", "admin"),
    word("server", "uid", "user"),
    word("server", "gid", "group"),
    word("server", "chdir", "directory"),
    word("server", "worker_rlimit_nofile", "open_files"),
    word("server", "error_log", "log"),
    word("server", "errorlog", "log"),
    word("server", "log_file", "log"),
    word("server", "accesslog", "access_log"),
    word("server", "graceful_timeout", "shutdown_timeout"),
    word("server", "timeout_graceful_shutdown", "shutdown_timeout"),
    word("server", "worker_shutdown_timeout", "shutdown_timeout"),
    word("server", "forwarded_allow_ips", "trusted_proxies"),
    word("server", "set_real_ip_from", "trusted_proxies"),
    word("server", "maxconn", "limits.connections"),
    word("server", "worker_connections", "limits.connections"),
    word("server", "keepalive_timeout", "limits.idle_timeout"),
    word("server", "client_max_body_size", "limits.body_bytes"),
    word("server", "processes", "apps.NAME.processes"),
    word("server", "timeout", "apps.NAME.response_timeout"),
    word("server", "keepalive", "limits.idle_timeout"),
    word("server", "keep_alive", "limits.idle_timeout"),
    word("server", "max_body_size", "limits.body_bytes"),
    word("server", "client_timeout", "limits.header_timeout"),
    word("server", "proxy_headers", "trusted_proxies"),
    word("server", "real_ip_header", "client_address"),
    word("server", "access_log_format", "access_log"),
    word("server", "accesslog_format", "access_log"),
    word("server", "root", "sites.routes.files"),
    word("server", "health", "probes"),
    word("server", "metrics", "probes"),

    word("limits", "maxconn", "connections"),
    word("limits", "worker_connections", "connections"),
    word("limits", "limit_concurrency", "connections"),
    word("limits", "client_max_body_size", "body_bytes"),
    word("limits", "request_body", "body_bytes"),
    word("limits", "max_size", "body_bytes"),
    word("limits", "client_header_timeout", "header_timeout"),
    word("limits", "read_header", "header_timeout"),
    word("limits", "client_body_timeout", "body_stall"),
    word("limits", "send_timeout", "body_stall"),
    word("limits", "keepalive_timeout", "idle_timeout"),
    word("limits", "keepalive", "idle_timeout"),
    word("limits", "timeout_keep_alive", "idle_timeout"),
    word("limits", "persistent_timeout", "idle_timeout"),
    word("limits", "first_data_timeout", "header_timeout"),
    word("limits", "large_client_header_buffers", "header_bytes"),
    word("limits", "limit_request_line", "target_bytes"),
    word("limits", "limit_request_fields", "headers"),
    word("limits", "limit_request_field_size", "header_bytes"),
    word("limits", "client_body_buffer_size", "body_memory"),
    word("limits", "client_body_temp_path", "temp_dir"),
    word("limits", "ws_max_size", "websocket_message_bytes"),
    word("limits", "max_connections", "connections"),
    word("limits", "max_body", "body_bytes"),
    word("limits", "max_body_size", "body_bytes"),
    word("limits", "body_limit", "body_bytes"),
    word("limits", "max_header_size", "header_bytes"),
    word("limits", "header_limit", "header_bytes"),
    word("limits", "keep_alive", "idle_timeout"),

    word("apps.NAME", "workers", "processes"),
    word("apps.NAME", "worker_processes", "processes"),
    word("apps.NAME", "numprocs", "processes"),
    word("apps.NAME", "passenger_max_pool_size", "processes"),
    word("apps.NAME", "worker_class", "kind"),
    word("apps.NAME", "type", "kind"),
    word("apps.NAME", "interface", "kind"),
    word("apps.NAME", "timeout", "response_timeout"),
    word("apps.NAME", "harakiri", "response_timeout"),
    word("apps.NAME", "worker_timeout", "response_timeout"),
    word("apps.NAME", "worker_boot_timeout", "boot_timeout"),
    word("apps.NAME", "graceful_timeout", "stop_timeout"),
    word("apps.NAME", "worker_shutdown_timeout", "stop_timeout"),
    word("apps.NAME", "max_requests", "requests_max"),
    word("apps.NAME", "limit_max_requests", "requests_max"),
    word("apps.NAME", "max_memory", "memory_max"),
    word("apps.NAME", "reload_on_rss", "memory_max"),
    word("apps.NAME", "tasks_max", "max_tasks"),
    word("apps.NAME", "max_processes", "max_tasks"),
    word("apps.NAME", "pids_limit", "max_tasks"),
    word("apps.NAME", "total_memory_max", "max_total_memory"),
    word("apps.NAME", "memory_limit", "max_total_memory"),
    word("apps.NAME", "cpu_max", "max_cpu"),
    word("apps.NAME", "cpu_quota", "max_cpu"),
    word("apps.NAME", "cpus", "max_cpu"),
    word("apps.NAME", "max_age", "age_max"),
    word("apps.NAME", "max_worker_lifetime", "age_max"),
    word("apps.NAME", "preload_app", "preload"),
    word("apps.NAME", "chdir", "dir"),
    word("apps.NAME", "directory", "dir"),
    word("apps.NAME", "working_directory", "dir"),
    word("apps.NAME", "root", "dir"),
    word("apps.NAME", "module", "entry"),
    word("apps.NAME", "wsgi_file", "entry"),
    word("apps.NAME", "wsgi_app", "entry"),
    word("apps.NAME", "app", "entry"),
    word("apps.NAME", "callable", "entry"),
    word("apps.NAME", "rackup", "entry"),
    word("apps.NAME", "python", "interpreter"),
    word("apps.NAME", "ruby", "interpreter"),
    word("apps.NAME", "virtualenv", "interpreter"),
    word("apps.NAME", "home", "interpreter"),
    word("apps.NAME", "raw_env", "env"),
    word("apps.NAME", "environment", "env"),
    word("apps.NAME", "backlog", "queue"),
    word("apps.NAME", "worker_connections", "in_progress_max"),
    word("apps.NAME", "gevent", "async"),
    word("apps.NAME", "cmd", "command"),
    word("apps.NAME", "exec", "command"),
    word("apps.NAME", "bind", "server.listen"),
    word("apps.NAME", "listen", "server.listen"),
    word("apps.NAME", "instances", "processes"),
    word("apps.NAME", "num_workers", "processes"),
    word("apps.NAME", "worker_count", "processes"),
    word("apps.NAME", "max_workers", "processes"),
    word("apps.NAME", "min_workers", "processes"),
    word("apps.NAME", "concurrency", "threads"),
    word("apps.NAME", "path", "dir"),
    word("apps.NAME", "cwd", "dir"),
    word("apps.NAME", "port", "server.listen"),
    word("apps.NAME", "host", "server.listen"),
    word("apps.NAME", "startup_timeout", "boot_timeout"),
    word("apps.NAME", "venv", "interpreter"),
    word("apps.NAME", "environ", "env"),
    word("apps.NAME", "asgi", "kind"),
    word("apps.NAME", "wsgi", "kind"),
    word("apps.NAME", "reload_mercy", "stop_timeout"),

    word("upstreams.NAME", "server", "servers"),
    word("upstreams.NAME", "to", "servers"),
    word("upstreams.NAME", "upstreams", "servers"),
    word("upstreams.NAME", "proxy_pass", "servers"),
    word("upstreams.NAME", "lb_policy", "balance"),
    word("upstreams.NAME", "algorithm", "balance"),
    word("upstreams.NAME", "maxconn", "max_active"),
    word("upstreams.NAME", "max_conns", "max_active"),
    word("upstreams.NAME", "timeout", "response_timeout"),
    word("upstreams.NAME", "proxy_read_timeout", "response_timeout"),
    word("upstreams.NAME", "timeout_server", "response_timeout"),
    word("upstreams.NAME", "proxy_connect_timeout", "connect_timeout"),
    word("upstreams.NAME", "timeout_connect", "connect_timeout"),
    word("upstreams.NAME", "timeout_tunnel", "tunnel_timeout"),
    word("upstreams.NAME", "keepalive", "connections"),
    word("upstreams.NAME", "retries", "retry"),
    word("upstreams.NAME", "proxy_next_upstream", "retry"),
    word("upstreams.NAME", "check", "health"),
    word("upstreams.NAME", "health_check", "health"),
    word("upstreams.NAME", "max_fails", "eject"),
    word("upstreams.NAME", "cookie", "sticky"),
    word("upstreams.NAME", "fastcgi_param", "params"),
    word("upstreams.NAME", "fastcgi_index", "index"),
    word("upstreams.NAME", "resolver", "resolve_interval"),
    word("upstreams.NAME", "url", "servers"),
    word("upstreams.NAME", "address", "servers"),
    word("upstreams.NAME", "hosts", "servers"),
    word("upstreams.NAME", "backends", "servers"),
    word("upstreams.NAME", "weight", "servers"),
    word("upstreams.NAME", "read_timeout", "response_timeout"),
    word("upstreams.NAME", "fail_timeout", "eject"),
    word("upstreams.NAME", "healthcheck", "health"),
    word("upstreams.NAME", "keepalive_timeout", "connections"),
    word("upstreams.NAME", "host_header", "host"),

    word("sites", "server_name", "hosts"),
    word("sites", "host", "hosts"),
    word("sites", "domains", "hosts"),
    word("sites", "location", "routes"),
    word("sites", "error_page", "error_pages"),
    word("sites", "listen", "server.listen"),
    word("sites", "root", "sites.routes.files"),
    word("sites", "domain", "hosts"),
    word("sites", "names", "hosts"),
    word("sites", "hostname", "hosts"),

    word("sites.routes", "location", "path"),
    word("sites.routes", "proxy_pass", "upstream"),
    word("sites.routes", "reverse_proxy", "upstream"),
    word("sites.routes", "fastcgi_pass", "upstream"),
    word("sites.routes", "uwsgi_pass", "upstream"),
    word("sites.routes", "backend", "upstream"),
    word("sites.routes", "use_backend", "upstream"),
    word("sites.routes", "root", "files"),
    word("sites.routes", "alias", "files"),
    word("sites.routes", "file_server", "files"),
    word("sites.routes", "static", "files"),
    word("sites.routes", "try_files", "files"),
    word("sites.routes", "proxy_cache", "cache"),
    word("sites.routes", "add_header", "response_headers"),
    word("sites.routes", "header", "response_headers"),
    word("sites.routes", "headers", "response_headers"),
    word("sites.routes", "proxy_set_header", "request_headers"),
    word("sites.routes", "strip_prefix", "rewrite"),
    word("sites.routes", "proxy_buffering", "response_buffering"),
    word("sites.routes", "proxy_request_buffering", "request_buffering"),
    word("sites.routes", "uri", "path"),
    word("sites.routes", "url", "path"),
    word("sites.routes", "prefix", "path"),
    word("sites.routes", "pass", "upstream"),
    word("sites.routes", "proxy", "upstream"),
    word("sites.routes", "upstreams", "upstream"),
    word("sites.routes", "handler", "upstream"),
    word("sites.routes", "dir", "files"),
    word("sites.routes", "index", "files"),
    word("sites.routes", "autoindex", "files"),
    word("sites.routes", "php", "upstream"),
    word("sites.routes", "client_max_body_size", "max_body"),
    word("sites.routes", "body_bytes", "max_body"),
    word("sites.routes", "max_body_size", "max_body"),
    word("sites.routes", "request_body", "max_body"),

    word("sites.routes.files", "deny", "hide"),
    word("sites.routes.files", "exclude", "hide"),
];

/// What a flag of another server is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagTranslation {
    /// A flag of `penstock serve`.
    Flag(&'static str),
    /// A key of the configuration file: its table and its name.
    Key(&'static str, &'static str),
    /// A verb.
    Verb(&'static str),
    /// Nothing to set, and why.
    Needless(&'static str),
}

/// Flags of other servers' command lines (Gunicorn, Uvicorn, Hypercorn, Granian, uWSGI, Puma,
/// rackup, nginx), and what Penstock has for them. Of two meanings of a letter the more frequent
/// one counts.
#[rustfmt::skip]
const FLAGS: &[(&str, FlagTranslation)] = &[
    ("--bind", Flag("--listen")),
    ("-b", Flag("--listen")),
    ("--host", Flag("--listen")),
    ("--port", Flag("--listen")),
    ("-p", Flag("--listen")),
    ("-o", Flag("--listen")),
    ("--uds", Flag("--listen")),
    ("--http", Flag("--listen")),
    ("--http-socket", Flag("--listen")),
    ("--socket", Flag("--listen")),
    ("--workers", Flag("--processes")),
    ("-w", Flag("--processes")),
    ("--reload", Flag("--dev")),
    ("--debug", Flag("--dev")),
    ("--daemon", Flag("--daemonize")),
    ("-D", Flag("--daemonize")),
    ("-d", Flag("--daemonize")),
    ("--log-file", Flag("--log")),
    ("--error-logfile", Flag("--log")),
    ("--log-level", Flag("--verbose")),
    ("--interface", Flag("--kind")),
    ("--worker-class", Flag("--kind")),
    ("-k", Flag("--kind")),
    ("-t", Flag("--threads")),
    ("-C", Flag("--config")),
    ("--access-logfile", Key("server", "access_log")),
    ("--access-log", Key("server", "access_log")),
    ("--user", Key("server", "user")),
    ("-u", Key("server", "user")),
    ("--uid", Key("server", "user")),
    ("--group", Key("server", "group")),
    ("-g", Key("server", "group")),
    ("--gid", Key("server", "group")),
    ("-m", Key("server", "umask")),
    ("--umask", Key("server", "umask")),
    ("--forwarded-allow-ips", Key("server", "trusted_proxies")),
    ("--proxy-headers", Key("server", "trusted_proxies")),
    ("--limit-concurrency", Key("limits", "connections")),
    ("--worker-connections", Key("limits", "connections")),
    ("--keep-alive", Key("limits", "idle_timeout")),
    ("--timeout-keep-alive", Key("limits", "idle_timeout")),
    ("--persistent-timeout", Key("limits", "idle_timeout")),
    ("--timeout", Key("apps.NAME", "response_timeout")),
    ("--harakiri", Key("apps.NAME", "response_timeout")),
    ("--graceful-timeout", Key("apps.NAME", "stop_timeout")),
    ("--timeout-graceful-shutdown", Key("apps.NAME", "stop_timeout")),
    ("--max-requests", Key("apps.NAME", "requests_max")),
    ("--limit-max-requests", Key("apps.NAME", "requests_max")),
    ("--reload-on-rss", Key("apps.NAME", "memory_max")),
    ("--preload", Key("apps.NAME", "preload")),
    ("--preload-app", Key("apps.NAME", "preload")),
    ("--chdir", Key("apps.NAME", "dir")),
    ("--app-dir", Key("apps.NAME", "dir")),
    ("--dir", Key("apps.NAME", "dir")),
    ("--wsgi-file", Key("apps.NAME", "entry")),
    ("--module", Key("apps.NAME", "entry")),
    ("--virtualenv", Key("apps.NAME", "interpreter")),
    ("-H", Key("apps.NAME", "interpreter")),
    ("--env", Key("apps.NAME", "env")),
    ("-e", Key("apps.NAME", "env")),
    ("--environment", Key("apps.NAME", "env")),
    ("--backlog", Key("apps.NAME", "queue")),
    ("--root-path", Key("sites.routes", "rewrite")),
    ("--pid", Verb("status")),
    ("--pidfile", Verb("status")),
    ("-s", Verb("stop")),
    ("-T", Verb("check")),
    ("--check-config", Verb("check")),
    ("--factory", Needless("a factory is recognised")),
    ("--master", Needless("there is always one")),
    ("--loop", Needless("an application has the event loop of its interpreter, or sets its own")),
    ("--ws", Needless("WebSockets are always served")),
    ("--lifespan", Needless("a lifespan is run where the application has one")),
];

/// What the flag of another server is here, `None` for one that nobody has.
#[must_use]
pub fn translate_flag(flag: &str) -> Option<FlagTranslation> {
    let mut flags = FLAGS.iter();
    flags
        .find(|(foreign, _)| *foreign == flag)
        .map(|(_, own)| *own)
}

/// Verbs of other servers, and those of Penstock.
const VERBS: &[(&str, &str)] = &[
    ("start", "serve"),
    ("run", "serve"),
    ("server", "serve"),
    ("up", "serve"),
    ("dev", "serve --dev"),
    ("quit", "stop"),
    ("halt", "stop"),
    ("shutdown", "stop"),
    ("graceful", "reload"),
    ("phased-restart", "restart APP"),
    ("test", "check"),
    ("configtest", "check"),
    ("validate", "check"),
    ("stats", "status"),
    ("benchmark", "bench"),
];

/// What the verb of another server is here.
pub(crate) fn translate_verb(verb: &str) -> Option<&'static str> {
    let mut verbs = VERBS.iter();
    verbs
        .find(|(foreign, _)| *foreign == verb)
        .map(|(_, own)| *own)
}

/// What another server's word is called in a table of the file.
pub(crate) fn translate(section: &str, text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase().replace('-', "_");
    let mut words = WORDS.iter();
    let found = words.find(|known| known.section == section && known.word == text);
    found.map(|known| known.key)
}

/// An address without what only a URL has: `http://127.0.0.1:3000/` is `127.0.0.1:3000` here.
pub(crate) fn address_of_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        "tcp" => "",
        _ => return None,
    };
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| {
        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    let port = if has_port { "" } else { port };
    (!authority.is_empty()).then(|| format!("{authority}{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options;

    #[test]
    fn every_suggestion_exists_and_no_foreign_word_does() {
        for ForeignWord { section, word, key } in WORDS {
            assert_eq!(options::find(section, word).map(|option| option.key), None);
            let (table, key) = key.rsplit_once('.').unwrap_or((section, key));
            assert!(
                options::find(table, key).is_some(),
                "{table}.{key} for {word}"
            );
        }
    }

    #[test]
    fn every_flag_is_translated_once_into_what_exists() {
        for (at, (flag, own)) in FLAGS.iter().enumerate() {
            assert!(!FLAGS[at + 1..].iter().any(|(other, _)| other == flag));
            if let Key(table, key) = own {
                assert!(
                    options::find(table, key).is_some(),
                    "{table}.{key} for {flag}"
                );
            }
        }
        assert_eq!(translate_flag("-w"), Some(Flag("--processes")));
        assert_eq!(translate_flag("--wrokers"), None);
    }

    #[test]
    fn a_word_is_translated_once_and_in_its_table_only() {
        for (at, ForeignWord { section, word, .. }) in WORDS.iter().enumerate() {
            let others = &WORDS[at + 1..];
            assert!(
                !others
                    .iter()
                    .any(|it| it.section == *section && it.word == *word)
            );
        }
        assert_eq!(translate("apps.NAME", "workers"), Some("processes"));
        assert_eq!(translate("apps.NAME", "Worker-Class"), Some("kind"));
        assert_eq!(translate("hub", "workers"), None);
    }

    #[test]
    fn an_address_is_found_in_a_url() {
        for (url, address) in [
            ("http://127.0.0.1:3000", Some("127.0.0.1:3000")),
            ("http://app/", Some("app:80")),
            ("https://api.example/v1?x", Some("api.example:443")),
            ("tcp://db:5432", Some("db:5432")),
            ("http://[::1]:80/", Some("[::1]:80")),
            ("http://", None),
            ("unix:/run/x", None),
            ("app:80", None),
        ] {
            assert_eq!(address_of_url(url).as_deref(), address, "{url}");
        }
    }
}
