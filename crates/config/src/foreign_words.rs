//! Words of other servers for what is called something else here.
//!
//! Used by `section` for a key that does not exist, before the nearest word is looked for: whoever types
//! `workers` means `processes`, which is not near; by the command line for flags, and by `resolve`
//! for verbs. Data only.
//!
//! # Invariants
//! - Every suggestion is an existing key or flag, and no foreign word is one: both are tested.

use FlagTranslation::{Flag, Key, NotNeeded, Verb};

/// A key of another server.
#[derive(Debug)]
struct ForeignKey {
    /// The table of the file that it is written in; of an option that stands elsewhere too.
    section: &'static str,
    /// What users of other servers type.
    foreign: &'static str,
    /// What it is called here: a key of the same table, or one with its table in front.
    native: &'static str,
}

const fn foreign_word(section: &'static str, word: &'static str, key: &'static str) -> ForeignKey {
    ForeignKey {
        section,
        foreign: word,
        native: key,
    }
}

/// Of nginx, HAProxy, Caddy, Puma, Unicorn, Gunicorn, Uvicorn and uWSGI.
#[rustfmt::skip]
const FOREIGN_KEYS: &[ForeignKey] = &[
    foreign_word("server", "bind", "listen"),
    foreign_word("server", "address", "listen"),
    foreign_word("server", "http", "listen"),
    foreign_word("server", "http_socket", "listen"),
    foreign_word("server", "socket", "listen"),
    foreign_word("server", "port", "listen"),
    foreign_word("server", "host", "listen"),
    foreign_word("server", "workers", "threads"),
    foreign_word("server", "worker_processes", "threads"),
    foreign_word("server", "nbthread", "threads"),
    foreign_word("server", "stats", "admin"),
    foreign_word("server", "uid", "user"),
    foreign_word("server", "gid", "group"),
    foreign_word("server", "chdir", "dir"),
    foreign_word("server", "directory", "dir"),
    foreign_word("server", "working_directory", "dir"),
    foreign_word("server", "worker_rlimit_nofile", "max_open_files"),
    foreign_word("server", "error_log", "log"),
    foreign_word("server", "errorlog", "log"),
    foreign_word("server", "log_file", "log"),
    foreign_word("server", "accesslog", "access_log"),
    foreign_word("server", "graceful_timeout", "shutdown_timeout"),
    foreign_word("server", "timeout_graceful_shutdown", "shutdown_timeout"),
    foreign_word("server", "worker_shutdown_timeout", "shutdown_timeout"),
    foreign_word("server", "forwarded_allow_ips", "trusted_proxies"),
    foreign_word("server", "set_real_ip_from", "trusted_proxies"),
    foreign_word("server", "maxconn", "limits.connections"),
    foreign_word("server", "worker_connections", "limits.connections"),
    foreign_word("server", "keepalive_timeout", "limits.idle_timeout"),
    foreign_word("server", "client_max_body_size", "limits.body_bytes"),
    foreign_word("server", "processes", "apps.NAME.processes"),
    foreign_word("server", "timeout", "apps.NAME.response_timeout"),
    foreign_word("server", "keepalive", "limits.idle_timeout"),
    foreign_word("server", "keep_alive", "limits.idle_timeout"),
    foreign_word("server", "max_body_size", "limits.body_bytes"),
    foreign_word("server", "client_timeout", "limits.header_timeout"),
    foreign_word("server", "proxy_headers", "trusted_proxies"),
    foreign_word("server", "real_ip_header", "client_address"),
    foreign_word("server", "access_log_format", "access_log"),
    foreign_word("server", "accesslog_format", "access_log"),
    foreign_word("server", "root", "sites.routes.files"),
    foreign_word("server", "health", "probes"),
    foreign_word("server", "metrics", "probes"),

    foreign_word("limits", "maxconn", "connections"),
    foreign_word("limits", "worker_connections", "connections"),
    foreign_word("limits", "limit_concurrency", "connections"),
    foreign_word("limits", "client_max_body_size", "body_bytes"),
    foreign_word("limits", "request_body", "body_bytes"),
    foreign_word("limits", "max_size", "body_bytes"),
    foreign_word("limits", "client_header_timeout", "header_timeout"),
    foreign_word("limits", "read_header", "header_timeout"),
    foreign_word("limits", "client_body_timeout", "body_idle_timeout"),
    foreign_word("limits", "send_timeout", "body_idle_timeout"),
    foreign_word("limits", "keepalive_timeout", "idle_timeout"),
    foreign_word("limits", "keepalive", "idle_timeout"),
    foreign_word("limits", "timeout_keep_alive", "idle_timeout"),
    foreign_word("limits", "persistent_timeout", "idle_timeout"),
    foreign_word("limits", "first_data_timeout", "header_timeout"),
    foreign_word("limits", "large_client_header_buffers", "header_bytes"),
    foreign_word("limits", "limit_request_line", "target_bytes"),
    foreign_word("limits", "limit_request_fields", "headers"),
    foreign_word("limits", "limit_request_field_size", "header_bytes"),
    foreign_word("limits", "client_body_buffer_size", "body_memory"),
    foreign_word("limits", "client_body_temp_path", "temp_dir"),
    foreign_word("limits", "ws_max_size", "websocket_message_bytes"),
    foreign_word("limits", "max_connections", "connections"),
    foreign_word("limits", "max_body", "body_bytes"),
    foreign_word("limits", "max_body_size", "body_bytes"),
    foreign_word("limits", "body_limit", "body_bytes"),
    foreign_word("limits", "max_header_size", "header_bytes"),
    foreign_word("limits", "header_limit", "header_bytes"),
    foreign_word("limits", "keep_alive", "idle_timeout"),

    foreign_word("apps.NAME", "workers", "processes"),
    foreign_word("apps.NAME", "worker_processes", "processes"),
    foreign_word("apps.NAME", "numprocs", "processes"),
    foreign_word("apps.NAME", "passenger_max_pool_size", "processes"),
    foreign_word("apps.NAME", "worker_class", "kind"),
    foreign_word("apps.NAME", "type", "kind"),
    foreign_word("apps.NAME", "interface", "kind"),
    foreign_word("apps.NAME", "timeout", "response_timeout"),
    foreign_word("apps.NAME", "harakiri", "response_timeout"),
    foreign_word("apps.NAME", "worker_timeout", "response_timeout"),
    foreign_word("apps.NAME", "worker_boot_timeout", "boot_timeout"),
    foreign_word("apps.NAME", "graceful_timeout", "stop_timeout"),
    foreign_word("apps.NAME", "worker_shutdown_timeout", "stop_timeout"),
    foreign_word("apps.NAME", "limit_max_requests", "max_requests"),
    foreign_word("apps.NAME", "reload_on_rss", "max_memory"),
    foreign_word("apps.NAME", "tasks_max", "max_tasks"),
    foreign_word("apps.NAME", "max_processes", "max_tasks"),
    foreign_word("apps.NAME", "pids_limit", "max_tasks"),
    foreign_word("apps.NAME", "total_memory_max", "max_total_memory"),
    foreign_word("apps.NAME", "memory_limit", "max_total_memory"),
    foreign_word("apps.NAME", "cpu_max", "max_cpu"),
    foreign_word("apps.NAME", "cpu_quota", "max_cpu"),
    foreign_word("apps.NAME", "cpus", "max_cpu"),
    foreign_word("apps.NAME", "max_worker_lifetime", "max_age"),
    foreign_word("apps.NAME", "preload_app", "preload"),
    foreign_word("apps.NAME", "chdir", "dir"),
    foreign_word("apps.NAME", "directory", "dir"),
    foreign_word("apps.NAME", "working_directory", "dir"),
    foreign_word("apps.NAME", "root", "dir"),
    foreign_word("apps.NAME", "module", "entry"),
    foreign_word("apps.NAME", "wsgi_file", "entry"),
    foreign_word("apps.NAME", "wsgi_app", "entry"),
    foreign_word("apps.NAME", "app", "entry"),
    foreign_word("apps.NAME", "callable", "entry"),
    foreign_word("apps.NAME", "rackup", "entry"),
    foreign_word("apps.NAME", "python", "interpreter"),
    foreign_word("apps.NAME", "ruby", "interpreter"),
    foreign_word("apps.NAME", "virtualenv", "interpreter"),
    foreign_word("apps.NAME", "home", "interpreter"),
    foreign_word("apps.NAME", "raw_env", "env"),
    foreign_word("apps.NAME", "environment", "env"),
    foreign_word("apps.NAME", "backlog", "queue"),
    foreign_word("apps.NAME", "worker_connections", "max_concurrent"),
    foreign_word("apps.NAME", "gevent", "async"),
    foreign_word("apps.NAME", "cmd", "command"),
    foreign_word("apps.NAME", "exec", "command"),
    foreign_word("apps.NAME", "bind", "server.listen"),
    foreign_word("apps.NAME", "listen", "server.listen"),
    foreign_word("apps.NAME", "instances", "processes"),
    foreign_word("apps.NAME", "num_workers", "processes"),
    foreign_word("apps.NAME", "worker_count", "processes"),
    foreign_word("apps.NAME", "max_workers", "processes"),
    foreign_word("apps.NAME", "min_workers", "processes"),
    foreign_word("apps.NAME", "concurrency", "threads"),
    foreign_word("apps.NAME", "path", "dir"),
    foreign_word("apps.NAME", "cwd", "dir"),
    foreign_word("apps.NAME", "port", "server.listen"),
    foreign_word("apps.NAME", "host", "server.listen"),
    foreign_word("apps.NAME", "startup_timeout", "boot_timeout"),
    foreign_word("apps.NAME", "venv", "interpreter"),
    foreign_word("apps.NAME", "environ", "env"),
    foreign_word("apps.NAME", "asgi", "kind"),
    foreign_word("apps.NAME", "wsgi", "kind"),
    foreign_word("apps.NAME", "reload_mercy", "stop_timeout"),

    foreign_word("upstreams.NAME", "server", "servers"),
    foreign_word("upstreams.NAME", "to", "servers"),
    foreign_word("upstreams.NAME", "upstreams", "servers"),
    foreign_word("upstreams.NAME", "proxy_pass", "servers"),
    foreign_word("upstreams.NAME", "lb_policy", "balance"),
    foreign_word("upstreams.NAME", "algorithm", "balance"),
    foreign_word("upstreams.NAME", "maxconn", "max_active"),
    foreign_word("upstreams.NAME", "max_conns", "max_active"),
    foreign_word("upstreams.NAME", "timeout", "response_timeout"),
    foreign_word("upstreams.NAME", "proxy_read_timeout", "response_timeout"),
    foreign_word("upstreams.NAME", "timeout_server", "response_timeout"),
    foreign_word("upstreams.NAME", "proxy_connect_timeout", "connect_timeout"),
    foreign_word("upstreams.NAME", "timeout_connect", "connect_timeout"),
    foreign_word("upstreams.NAME", "timeout_tunnel", "tunnel_timeout"),
    foreign_word("upstreams.NAME", "keepalive", "connections"),
    foreign_word("upstreams.NAME", "retries", "retry"),
    foreign_word("upstreams.NAME", "proxy_next_upstream", "retry"),
    foreign_word("upstreams.NAME", "check", "health"),
    foreign_word("upstreams.NAME", "health_check", "health"),
    foreign_word("upstreams.NAME", "max_fails", "eject"),
    foreign_word("upstreams.NAME", "cookie", "sticky"),
    foreign_word("upstreams.NAME", "fastcgi_param", "params"),
    foreign_word("upstreams.NAME", "fastcgi_index", "index"),
    foreign_word("upstreams.NAME", "resolver", "resolve_interval"),
    foreign_word("upstreams.NAME", "url", "servers"),
    foreign_word("upstreams.NAME", "address", "servers"),
    foreign_word("upstreams.NAME", "hosts", "servers"),
    foreign_word("upstreams.NAME", "backends", "servers"),
    foreign_word("upstreams.NAME", "weight", "servers"),
    foreign_word("upstreams.NAME", "read_timeout", "response_timeout"),
    foreign_word("upstreams.NAME", "fail_timeout", "eject"),
    foreign_word("upstreams.NAME", "healthcheck", "health"),
    foreign_word("upstreams.NAME", "keepalive_timeout", "connections"),
    foreign_word("upstreams.NAME", "host_header", "host"),

    foreign_word("sites", "server_name", "hosts"),
    foreign_word("sites", "host", "hosts"),
    foreign_word("sites", "domains", "hosts"),
    foreign_word("sites", "location", "routes"),
    foreign_word("sites", "error_page", "error_pages"),
    foreign_word("sites", "listen", "server.listen"),
    foreign_word("sites", "root", "sites.routes.files"),
    foreign_word("sites", "domain", "hosts"),
    foreign_word("sites", "names", "hosts"),
    foreign_word("sites", "hostname", "hosts"),

    foreign_word("sites.routes", "location", "path"),
    foreign_word("sites.routes", "proxy_pass", "upstream"),
    foreign_word("sites.routes", "reverse_proxy", "upstream"),
    foreign_word("sites.routes", "fastcgi_pass", "upstream"),
    foreign_word("sites.routes", "uwsgi_pass", "upstream"),
    foreign_word("sites.routes", "backend", "upstream"),
    foreign_word("sites.routes", "use_backend", "upstream"),
    foreign_word("sites.routes", "root", "files"),
    foreign_word("sites.routes", "alias", "files"),
    foreign_word("sites.routes", "file_server", "files"),
    foreign_word("sites.routes", "static", "files"),
    foreign_word("sites.routes", "try_files", "files"),
    foreign_word("sites.routes", "proxy_cache", "cache"),
    foreign_word("sites.routes", "add_header", "response_headers"),
    foreign_word("sites.routes", "header", "response_headers"),
    foreign_word("sites.routes", "headers", "response_headers"),
    foreign_word("sites.routes", "proxy_set_header", "request_headers"),
    foreign_word("sites.routes", "strip_prefix", "rewrite"),
    foreign_word("sites.routes", "proxy_buffering", "response_buffering"),
    foreign_word("sites.routes", "proxy_request_buffering", "request_buffering"),
    foreign_word("sites.routes", "uri", "path"),
    foreign_word("sites.routes", "url", "path"),
    foreign_word("sites.routes", "prefix", "path"),
    foreign_word("sites.routes", "pass", "upstream"),
    foreign_word("sites.routes", "proxy", "upstream"),
    foreign_word("sites.routes", "upstreams", "upstream"),
    foreign_word("sites.routes", "handler", "upstream"),
    foreign_word("sites.routes", "dir", "files"),
    foreign_word("sites.routes", "index", "files"),
    foreign_word("sites.routes", "autoindex", "files"),
    foreign_word("sites.routes", "php", "upstream"),
    foreign_word("sites.routes", "client_max_body_size", "max_body_size"),
    foreign_word("sites.routes", "body_bytes", "max_body_size"),
    foreign_word("sites.routes", "request_body", "max_body_size"),

    foreign_word("sites.routes.files", "deny", "hide"),
    foreign_word("sites.routes.files", "exclude", "hide"),
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
    NotNeeded(&'static str),
}

/// Flags of other servers' command lines (Gunicorn, Uvicorn, Hypercorn, Granian, uWSGI, Puma,
/// rackup, nginx), and what Penstock has for them. Of two meanings of a letter the more frequent
/// one counts.
#[rustfmt::skip]
const FOREIGN_FLAGS: &[(&str, FlagTranslation)] = &[
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
    ("--max-requests", Key("apps.NAME", "max_requests")),
    ("--limit-max-requests", Key("apps.NAME", "max_requests")),
    ("--reload-on-rss", Key("apps.NAME", "max_memory")),
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
    ("--factory", NotNeeded("a factory is recognised")),
    ("--master", NotNeeded("there is always one")),
    ("--loop", NotNeeded("an application has the event loop of its interpreter, or sets its own")),
    ("--ws", NotNeeded("WebSockets are always served")),
    ("--lifespan", NotNeeded("a lifespan is run where the application has one")),
];

/// What the flag of another server is here, `None` for one that nobody has.
#[must_use]
pub fn translate_flag(flag: &str) -> Option<FlagTranslation> {
    let mut flags = FOREIGN_FLAGS.iter();
    flags
        .find(|(foreign, _)| *foreign == flag)
        .map(|(_, own)| *own)
}

/// Verbs of other servers, and those of Penstock.
const FOREIGN_VERBS: &[(&str, &str)] = &[
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
    let mut verbs = FOREIGN_VERBS.iter();
    verbs
        .find(|(foreign, _)| *foreign == verb)
        .map(|(_, own)| *own)
}

/// What another server's word is called in a table of the file.
pub(crate) fn translate_key(section: &str, text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase().replace('-', "_");
    let mut words = FOREIGN_KEYS.iter();
    let found = words.find(|known| known.section == section && known.foreign == text);
    found.map(|known| known.native)
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
        for ForeignKey {
            section,
            foreign: word,
            native: key,
        } in FOREIGN_KEYS
        {
            assert_eq!(
                options::find_option(section, word).map(|option| option.key),
                None
            );
            let (table, key) = key.rsplit_once('.').unwrap_or((section, key));
            assert!(
                options::find_option(table, key).is_some(),
                "{table}.{key} for {word}"
            );
        }
    }

    #[test]
    fn every_flag_is_translated_once_into_what_exists() {
        for (at, (flag, own)) in FOREIGN_FLAGS.iter().enumerate() {
            assert!(
                !FOREIGN_FLAGS[at + 1..]
                    .iter()
                    .any(|(other, _)| other == flag)
            );
            if let Key(table, key) = own {
                assert!(
                    options::find_option(table, key).is_some(),
                    "{table}.{key} for {flag}"
                );
            }
        }
        assert_eq!(translate_flag("-w"), Some(Flag("--processes")));
        assert_eq!(translate_flag("--wrokers"), None);
    }

    #[test]
    fn a_word_is_translated_once_and_in_its_table_only() {
        for (
            at,
            ForeignKey {
                section,
                foreign: word,
                ..
            },
        ) in FOREIGN_KEYS.iter().enumerate()
        {
            let others = &FOREIGN_KEYS[at + 1..];
            assert!(
                !others
                    .iter()
                    .any(|it| it.section == *section && it.foreign == *word)
            );
        }
        assert_eq!(translate_key("apps.NAME", "workers"), Some("processes"));
        assert_eq!(translate_key("apps.NAME", "Worker-Class"), Some("kind"));
        assert_eq!(translate_key("hub", "workers"), None);
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
