//! Words of other servers that have another name here.
//!
//! Used by `section` for a key that does not exist, before the nearest word is looked for:
//! `workers` means `processes`, which is not near; by the command line for flags, and by `resolve`
//! for verbs. Data only.
//!
//! # Invariants
//! - Every suggestion is an existing key or flag, and no foreign word is one: both are tested.

use FlagTranslation::{Flag, Key, NotNeeded, Verb};

/// Keys of nginx, HAProxy, Caddy, Puma, Unicorn, Gunicorn, Uvicorn and uWSGI: by the table of the
/// file that they are written in, each key of Penstock with the words that mean it. A key of
/// another table has that table in front.
#[rustfmt::skip]
const FOREIGN_KEYS: &[(&str, &[(&str, &str)])] = &[
    ("server", &[
        ("listen", "bind address http http_socket socket port host"),
        ("threads", "workers worker_processes nbthread"),
        ("admin", "stats"),
        ("user", "uid"),
        ("group", "gid"),
        ("dir", "chdir directory working_directory"),
        ("max_open_files", "worker_rlimit_nofile"),
        ("log", "error_log errorlog log_file"),
        ("pid_file", "pid pidfile"),
        ("access_log", "accesslog access_log_format accesslog_format"),
        ("shutdown_timeout", "graceful_timeout timeout_graceful_shutdown worker_shutdown_timeout"),
        ("trusted_proxies", "forwarded_allow_ips set_real_ip_from proxy_headers"),
        ("limits.connections", "maxconn worker_connections"),
        ("limits.idle_timeout", "keepalive_timeout keepalive keep_alive"),
        ("limits.body_bytes", "client_max_body_size max_body_size"),
        ("apps.NAME.processes", "processes"),
        ("apps.NAME.response_timeout", "timeout"),
        ("limits.header_timeout", "client_timeout"),
        ("client_address", "real_ip_header"),
        ("sites.routes.files", "root"),
        ("probes", "health metrics"),
    ]),
    ("hub", &[
        ("heartbeat_interval", "keep_alive keepalive keepalive_interval ping_interval"),
        ("grip_key", "sig_key"),
        ("grip_issuer", "sig_iss"),
        ("max_message_size", "message_max"),
    ]),
    ("sites.routes.hub", &[
        ("heartbeat_interval", "keep_alive keepalive keepalive_interval ping_interval"),
    ]),
    ("sites.routes.mercure", &[
        ("heartbeat_interval", "keep_alive keepalive heartbeat"),
        ("publisher_key", "publisher_jwt jwt key"),
        ("subscriber_key", "subscriber_jwt"),
        ("origins", "cors_origins publish_origins"),
    ]),
    ("limits", &[
        ("connections", "maxconn worker_connections limit_concurrency max_connections"),
        ("body_bytes", "client_max_body_size request_body max_size max_body max_body_size body_limit"),
        ("header_timeout", "client_header_timeout read_header first_data_timeout"),
        ("body_idle_timeout", "client_body_timeout send_timeout"),
        ("idle_timeout", "keepalive_timeout keepalive timeout_keep_alive persistent_timeout keep_alive"),
        ("header_bytes", "large_client_header_buffers limit_request_field_size max_header_size header_limit"),
        ("target_bytes", "limit_request_line"),
        ("headers", "limit_request_fields"),
        ("body_memory", "client_body_buffer_size"),
        ("temp_dir", "client_body_temp_path"),
        ("websocket_message_bytes", "ws_max_size"),
    ]),
    ("apps.NAME", &[
        ("processes", "workers worker_processes numprocs passenger_max_pool_size instances num_workers \
            worker_count max_workers min_workers"),
        ("kind", "worker_class type interface asgi wsgi"),
        ("response_timeout", "timeout harakiri worker_timeout"),
        ("boot_timeout", "worker_boot_timeout startup_timeout"),
        ("stop_timeout", "graceful_timeout worker_shutdown_timeout reload_mercy"),
        ("max_requests", "limit_max_requests"),
        ("max_memory", "reload_on_rss"),
        ("max_tasks", "tasks_max max_processes pids_limit"),
        ("max_total_memory", "total_memory_max memory_limit"),
        ("max_cpu", "cpu_max cpu_quota cpus"),
        ("max_age", "max_worker_lifetime"),
        ("preload", "preload_app"),
        ("dir", "chdir directory working_directory root path cwd"),
        ("entry", "module wsgi_file wsgi_app app callable rackup"),
        ("interpreter", "python ruby virtualenv home venv"),
        ("env", "raw_env environment environ"),
        ("queue", "backlog maxqueue"),
        ("max_concurrent", "worker_connections"),
        ("async", "gevent"),
        ("command", "cmd exec"),
        ("server.listen", "bind listen port host"),
        ("threads", "concurrency"),
    ]),
    ("upstreams.NAME", &[
        ("servers", "server to upstreams proxy_pass url address hosts backends weight"),
        ("balance", "lb_policy algorithm"),
        ("max_active", "maxconn max_conns"),
        ("response_timeout", "timeout proxy_read_timeout timeout_server read_timeout"),
        ("connect_timeout", "proxy_connect_timeout timeout_connect"),
        ("tunnel_timeout", "timeout_tunnel"),
        ("connections", "keepalive keepalive_timeout"),
        ("retry", "retries proxy_next_upstream"),
        ("health", "check health_check healthcheck"),
        ("eject", "max_fails fail_timeout"),
        ("sticky", "cookie"),
        ("params", "fastcgi_param"),
        ("index", "fastcgi_index"),
        ("resolve_interval", "resolver"),
        ("host", "host_header"),
        ("key", "hash"),
        ("queue", "maxqueue"),
    ]),
    ("sites", &[
        ("hosts", "server_name host domains domain names hostname"),
        ("routes", "location"),
        ("error_pages", "error_page"),
        ("server.listen", "listen"),
        ("sites.routes.files", "root"),
    ]),
    ("sites.routes", &[
        ("path", "location uri url prefix"),
        ("upstream", "proxy_pass reverse_proxy fastcgi_pass uwsgi_pass backend use_backend pass proxy \
            upstreams handler php"),
        ("files", "root alias file_server static try_files dir index autoindex"),
        ("cache", "proxy_cache"),
        ("response_headers", "add_header header headers"),
        ("request_headers", "proxy_set_header"),
        ("rewrite", "strip_prefix"),
        ("response_buffering", "proxy_buffering"),
        ("request_buffering", "proxy_request_buffering"),
        ("max_body_size", "client_max_body_size body_bytes request_body"),
    ]),
    ("sites.routes.files", &[
        ("hide", "deny exclude"),
    ]),
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

/// Programs beside applications that people write a table of, and the command of each.
const JOB_COMMANDS: &[(&str, &str)] = &[
    ("celery", "celery -A MODULE worker"),
    ("celery_beat", "celery -A MODULE beat"),
    ("dramatiq", "dramatiq MODULE"),
    ("huey", "huey_consumer MODULE.huey"),
    ("rq", "rq worker"),
    ("good_job", "bundle exec good_job start"),
    ("resque", "bundle exec rake resque:work"),
    ("sidekiq", "bundle exec sidekiq"),
    ("solid_queue", "bin/jobs"),
];

/// How a program beside the applications is configured, for a table with its name.
pub(crate) fn explain_job_table(name: &str) -> Option<String> {
    let plain = name.to_ascii_lowercase().replace('-', "_");
    let (_, command) = JOB_COMMANDS.iter().find(|(word, _)| *word == plain)?;
    Some(format!(
        "`{name}` is no table: a program beside the applications is a job, [jobs.{name}] with \
         command = \"{command}\" (penstock config explain jobs.NAME)"
    ))
}

/// Variables of nginx in texts, and the placeholders that mean them.
const FOREIGN_VARIABLES: &[(&str, &str)] = &[
    ("args", "{query}"),
    ("document_uri", "{path}"),
    ("host", "{hostname}"),
    ("http_host", "{host}"),
    ("query_string", "{query}"),
    ("remote_addr", "{client}"),
    ("request_method", "{method}"),
    ("request_uri", "{uri}"),
    ("scheme", "{scheme}"),
    ("server_name", "{hostname}"),
    ("uri", "{path}"),
];

/// The first variable of nginx in a text, with its dollar sign, and what means it here. In a text it
/// would be sent as it is written.
pub(crate) fn foreign_variable(text: &str) -> Option<(String, &'static str)> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split('$').skip(1).find_map(|rest| {
        let name = &rest[..rest.find(|c| !is_letter(c)).unwrap_or(rest.len())];
        let found = FOREIGN_VARIABLES.iter().find(|(word, _)| *word == name);
        found.map(|(word, own)| (format!("${word}"), *own))
    })
}

/// Flags of other servers' command lines (Gunicorn, Uvicorn, Hypercorn, Granian, uWSGI, Puma,
/// rackup, nginx), and what Penstock has for them. Of two meanings of a letter the more frequent
/// one counts.
#[rustfmt::skip]
const FOREIGN_FLAGS: &[(FlagTranslation, &str)] = &[
    (Flag("--listen"), "--http --http-socket --socket"),
    (Flag("--dev"), "--debug"),
    (Flag("--daemonize"), "-d"),
    (Flag("--log"), "--log-file --error-logfile"),
    (Flag("--verbose"), "--log-level"),
    (Flag("--kind"), "--interface"),
    (Key("server", "access_log"), "--access-logfile --access-log"),
    (Key("server", "user"), "--user -u --uid"),
    (Key("server", "group"), "--group -g --gid"),
    (Key("server", "umask"), "-m --umask"),
    (Key("server", "trusted_proxies"), "--forwarded-allow-ips --proxy-headers"),
    (Key("limits", "connections"), "--limit-concurrency --worker-connections"),
    (Key("limits", "idle_timeout"), "--keep-alive --timeout-keep-alive --persistent-timeout"),
    (Key("apps.NAME", "response_timeout"), "--timeout --harakiri"),
    (Key("apps.NAME", "stop_timeout"), "--graceful-timeout --timeout-graceful-shutdown"),
    (Key("apps.NAME", "max_requests"), "--max-requests --limit-max-requests"),
    (Key("apps.NAME", "max_memory"), "--reload-on-rss"),
    (Key("apps.NAME", "preload"), "--preload --preload-app"),
    (Key("apps.NAME", "dir"), "--app-dir --dir"),
    (Key("apps.NAME", "entry"), "--wsgi-file --module"),
    (Key("apps.NAME", "interpreter"), "--virtualenv -H"),
    (Key("apps.NAME", "queue"), "--backlog"),
    (Key("sites.routes", "rewrite"), "--root-path"),
    (Verb("stop"), "-s"),
    (Verb("check"), "-T --check-config"),
    (NotNeeded("the code shows whether it is WSGI or ASGI; threads are `--threads`; gevent is \
        `async = \"gevent\"` in [apps.NAME] of penstock.toml"), "--worker-class -k"),
    (NotNeeded("a factory is recognised"), "--factory"),
    (NotNeeded("there is always one"), "--master"),
    (NotNeeded("an application has the event loop of its interpreter, or sets its own"), "--loop"),
    (NotNeeded("WebSockets are always served"), "--ws"),
    (NotNeeded("a lifespan is run where the application has one"), "--lifespan"),
];

/// What the flag of another server is here, `None` for an unknown one.
#[must_use]
pub fn translate_flag(flag: &str) -> Option<FlagTranslation> {
    let mut flags = FOREIGN_FLAGS.iter();
    let found = flags.find(|(_, foreign)| foreign.split(' ').any(|word| word == flag))?;
    Some(found.0)
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

/// The key that is meant by a word of another server in a table of the file.
pub(crate) fn translate_key(section: &str, text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase().replace('-', "_");
    let found = foreign_keys().find(|(table, word, _)| *table == section && *word == text)?;
    Some(found.2)
}

/// Every table, foreign word and key of Penstock.
fn foreign_keys() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    FOREIGN_KEYS.iter().flat_map(|(table, keys)| {
        keys.iter()
            .flat_map(move |(key, words)| words.split(' ').map(move |word| (*table, word, *key)))
    })
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::options;

    #[test]
    fn every_suggestion_exists_and_no_foreign_word_does() {
        for (section, word, key) in foreign_keys() {
            assert!(
                options::find_option(section, word).is_none(),
                "{section}.{word}"
            );
            let (table, key) = key.rsplit_once('.').unwrap_or((section, key));
            assert!(
                options::find_option(table, key).is_some(),
                "{table}.{key} for {word}"
            );
        }
    }

    #[test]
    fn a_variable_of_nginx_has_a_placeholder() {
        for (text, expected) in [
            ("https://$host$request_uri", Some(("$host", "{hostname}"))),
            ("/x$request_uri", Some(("$request_uri", "{uri}"))),
            ("$http_host", Some(("$http_host", "{host}"))),
            ("$hostile $ 5$ $$", None),
            ("{uri}", None),
        ] {
            let expected = expected.map(|(word, own)| (word.to_owned(), own));
            assert_eq!(foreign_variable(text), expected, "{text}");
        }
        for (_, own) in FOREIGN_VARIABLES {
            let template: crate::Template = own.parse().unwrap();
            assert_eq!(template.captures().count(), 0, "{own}");
        }
    }

    #[test]
    fn a_table_of_a_queue_is_a_job() {
        let told = explain_job_table("celery").unwrap();
        assert!(
            told.contains("[jobs.celery] with command = \"celery -A MODULE worker\""),
            "{told}"
        );
        assert!(explain_job_table("Solid-Queue").is_some());
        assert_eq!(explain_job_table("jobs"), None);
        for (word, _) in JOB_COMMANDS {
            assert!(options::find_option("", word).is_none(), "{word}");
        }
    }

    #[test]
    fn every_flag_is_translated_once_into_what_exists() {
        let mut seen = BTreeSet::new();
        for (own, flags) in FOREIGN_FLAGS {
            for flag in flags.split(' ') {
                assert!(seen.insert(flag), "{flag}");
                assert_eq!(translate_flag(flag), Some(*own));
            }
            if let Key(table, key) = own {
                assert!(options::find_option(table, key).is_some(), "{table}.{key}");
            }
        }
        assert_eq!(translate_flag("-d"), Some(Flag("--daemonize")));
        assert_eq!(translate_flag("--wrokers"), None);
    }

    #[test]
    fn a_word_is_translated_once_and_in_its_table_only() {
        let mut seen = BTreeSet::new();
        for (section, word, _) in foreign_keys() {
            assert!(seen.insert((section, word)), "{section}.{word}");
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
