//! Words of other servers for what is called something else here.
//!
//! Used by `section` for a key that does not exist, before the nearest word is looked for: whoever types
//! `workers` means `processes`, which is not near. The command line has the same in `FLAGS`. Data only.
//!
//! # Invariants
//! - Every suggestion is an existing key or flag, and no foreign word is one: both are tested.

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
    word("apps.NAME", "user", "server.user"),

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

    word("sites", "server_name", "hosts"),
    word("sites", "host", "hosts"),
    word("sites", "domains", "hosts"),
    word("sites", "location", "routes"),
    word("sites", "error_page", "error_pages"),
    word("sites", "listen", "server.listen"),
    word("sites", "root", "sites.routes.files"),

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
];

/// Flags of other servers' command lines, and what `penstock serve` has for them.
pub const FLAGS: &[(&str, &str)] = &[
    ("--bind", "--listen"),
    ("-b", "--listen"),
    ("--host", "--listen"),
    ("--port", "--listen"),
    ("-p", "--listen"),
    ("--http", "--listen"),
    ("--workers", "--processes"),
    ("-w", "--processes"),
    ("--reload", "--dev"),
    ("--debug", "--dev"),
    ("--daemon", "--daemonize"),
    ("-D", "--daemonize"),
    ("--log-file", "--log"),
    ("--error-logfile", "--log"),
];

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
