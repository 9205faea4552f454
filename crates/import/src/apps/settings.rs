//! Settings of application servers as keys of an application.

use std::path::Path;

use super::AppSetting;
use super::value::ScriptValue;
use crate::directives::DirectiveLog;
use crate::draft::{Draft, DraftSite, DraftTable};
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::{ServerKind, Translation};

/// The name of the application.
const APP: &str = "app";

/// Requests of `queue.max`, at most.
const MAX_QUEUE: u64 = 10_000_000;

/// Writes a draft from settings.
pub(super) struct AppTranslator {
    kind: ServerKind,
    log: DirectiveLog,
    draft: Draft,
    app: DraftTable,
    certificate: TomlTable,
    /// The file, as its reader named it.
    file: String,
    /// Ports of Puma and hosts of Uvicorn, which make an address together.
    host: Option<String>,
    port: Option<String>,
    /// The folder whose files are served before the application.
    public_dir: Option<String>,
}

/// A key with its bounds, by the word of a server.
enum Target {
    /// A number of the application, with its bounds.
    Number(&'static str, u64, u64),
    /// Seconds, as a time.
    Seconds(&'static str),
    /// A size in megabytes.
    Megabytes(&'static [&'static str]),
    Text(&'static str),
    Flag(&'static str),
    /// A key of another table.
    Limit(&'static str, LimitKind),
    Server(&'static str),
    Certificate(&'static str),
    Listen,
    AccessLog,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitKind {
    Seconds,
    Bytes,
    Count,
}

/// The target of a word; words with more than one value are in [`AppTranslator::special`].
fn target(word: &str) -> Option<Target> {
    use Target::{
        AccessLog, Certificate, Flag, Limit, Listen, Megabytes, Number, Seconds, Server, Text,
    };
    Some(match word {
        "workers" | "worker_processes" | "processes" => Number("processes", 1, 1024),
        "max_requests" | "limit_max_requests" | "max-requests" => {
            Number("max_requests", 1, 1_000_000_000)
        }
        "limit_concurrency" => Number("max_concurrent", 1, 1_000_000),
        "fork_worker" => Number("refork_after", 1, 1_000_000_000),
        "timeout" | "harakiri" | "max_request_time" => Seconds("response_timeout"),
        "graceful_timeout"
        | "worker_shutdown_timeout"
        | "force_shutdown_after"
        | "reload-mercy"
        | "worker-reload-mercy"
        | "timeout_graceful_shutdown" => Seconds("stop_timeout"),
        "worker_boot_timeout" | "start_timeout" => Seconds("boot_timeout"),
        "max-worker-lifetime" => Seconds("max_age"),
        "reload-on-rss" | "memory_limit" => Megabytes(&["max_memory", "soft"]),
        "evil-reload-on-rss" => Megabytes(&["max_memory", "hard"]),
        "chdir" | "directory" | "working_directory" | "app_dir" => Text("dir"),
        "wsgi_app" | "app" | "module" | "wsgi" | "startup_file" | "rackup" => Text("entry"),
        "ruby" | "python" => Text("interpreter"),
        "env_file" => Text("env_file"),
        "preload_app" => Flag("preload"),
        "keepalive" | "timeout_keep_alive" | "persistent_timeout" => {
            Limit("idle_timeout", LimitKind::Seconds)
        }
        "first_data_timeout" => Limit("header_timeout", LimitKind::Seconds),
        "limit_request_line" => Limit("target_bytes", LimitKind::Bytes),
        "limit_request_fields" => Limit("headers", LimitKind::Count),
        "limit-post" | "http_content_length_limit" => Limit("body_bytes", LimitKind::Bytes),
        "buffer-size" => Limit("header_bytes", LimitKind::Bytes),
        "ws_max_size" | "websocket_max_message_size" => {
            Limit("websocket_message_bytes", LimitKind::Bytes)
        }
        "client_body_buffer_size" => Limit("body_memory", LimitKind::Bytes),
        "user" | "uid" => Server("user"),
        "group" | "gid" => Server("group"),
        "errorlog" | "logto" | "log_file" | "stderr_path" => Server("log"),
        "tmp_upload_dir" | "data_buffer_dir" => Server("temp_dir"),
        "certfile" | "ssl_certfile" | "ssl_certificate" => Certificate("certificate"),
        "keyfile" | "ssl_keyfile" | "ssl_certificate_key" => Certificate("key"),
        "bind" | "listen" | "http" | "http-socket" | "http11-socket" | "uds" | "socket_file" => {
            Listen
        }
        "accesslog" | "req-logger" => AccessLog,
        _ => return None,
    })
}

impl AppTranslator {
    pub(super) fn new(kind: ServerKind, file: &Path, log: DirectiveLog) -> Self {
        Self {
            kind,
            file: file.display().to_string(),
            log,
            draft: Draft::default(),
            app: DraftTable::default(),
            certificate: TomlTable::default(),
            host: None,
            port: None,
            public_dir: None,
        }
    }

    /// Applies one setting.
    pub(super) fn apply(&mut self, setting: &AppSetting) {
        let value = setting
            .values
            .first()
            .cloned()
            .unwrap_or(ScriptValue::Nothing);
        let is_known = crate::answers::answer(self.product(), &setting.name).is_some();
        if crate::answers::is_hook(self.product(), &setting.name) {
            // Functions of the file are called where it stands.
            self.app.keys.set("hooks", self.file.clone());
            return self.log.translated(setting.id, "apps.NAME.hooks");
        }
        if !is_known {
            // A helper of the file, such as a number that a later line uses.
            let (coverage, why) = match value {
                ScriptValue::Code => (
                    Coverage::ByHand,
                    "code is not run: write the value that it gives",
                ),
                _ => (
                    Coverage::NotNeeded,
                    "no setting of the server has this name",
                ),
            };
            return self.log.note(setting.id, coverage, why);
        }
        if setting.values.contains(&ScriptValue::Code) {
            let why = format!(
                "code is not run; {}",
                crate::answers::outcome(self.product(), &setting.name).1
            );
            let (coverage, _) = crate::answers::outcome(self.product(), &setting.name);
            if coverage == Coverage::ByHand {
                let comment = self.log.leave(setting.id, Coverage::ByHand, why);
                self.app.comment(comment);
            }
            return;
        }
        let is_python = matches!(self.kind, ServerKind::Gunicorn | ServerKind::Uvicorn);
        if is_python && value == ScriptValue::Nothing {
            return self
                .log
                .note(setting.id, Coverage::NotNeeded, "`None` sets nothing");
        }
        let done = self.special(setting, &value) || self.simple(setting, &value);
        if !done && is_python && value == ScriptValue::Bool(false) {
            return self
                .log
                .note(setting.id, Coverage::NotNeeded, "`False` asks for nothing");
        }
        if !done && let Some(comment) = self.log.note_from_table(setting.id) {
            self.app.comment(comment);
        }
    }

    fn product(&self) -> crate::Product {
        match self.kind {
            ServerKind::Gunicorn => crate::Product::Gunicorn,
            ServerKind::Uvicorn => crate::Product::Uvicorn,
            ServerKind::Puma => crate::Product::Puma,
            ServerKind::Unicorn => crate::Product::Unicorn,
            ServerKind::Uwsgi => crate::Product::Uwsgi,
            _ => crate::Product::Passenger,
        }
    }

    fn simple(&mut self, setting: &AppSetting, value: &ScriptValue) -> bool {
        let Some(target) = target(&setting.name) else {
            return false;
        };
        let number = value.as_number();
        let text = value.as_text();
        let key = match target {
            Target::Number(key, least, most) => match (number, value.is_variable()) {
                (Some(number), _) if number < least => {
                    self.log
                        .note(setting.id, Coverage::NotNeeded, "none is the default");
                    return true;
                }
                (Some(number), _) => {
                    self.app.keys.set(key, number.min(most));
                    format!("apps.NAME.{key}")
                }
                (None, true) => {
                    self.app.keys.set(key, text.unwrap_or_default());
                    format!("apps.NAME.{key}")
                }
                _ => return false,
            },
            Target::Seconds(key) => match number {
                Some(0) => {
                    self.log.note(
                        setting.id,
                        Coverage::NotNeeded,
                        "no bound is asked for; the default stays",
                    );
                    return true;
                }
                Some(number) => {
                    self.app.keys.set(key, format!("{number}s"));
                    format!("apps.NAME.{key}")
                }
                None if value.is_variable() => {
                    self.app
                        .keys
                        .set(key, format!("{}s", text.unwrap_or_default()));
                    format!("apps.NAME.{key}")
                }
                None => return false,
            },
            Target::Megabytes(path) => {
                let Some(number) = number.filter(|it| (1..1 << 30).contains(it)) else {
                    return false;
                };
                self.app.keys.set_in(path, format!("{number}MiB"));
                format!("apps.NAME.{}", path.join("."))
            }
            Target::Text(key) => {
                let Some(text) =
                    text.filter(|it| !it.is_empty() && !it.chars().any(char::is_control))
                else {
                    return false;
                };
                self.app.keys.set(key, text);
                format!("apps.NAME.{key}")
            }
            Target::Flag(key) => {
                let flag = *value == ScriptValue::Nothing || value.is_true();
                self.app.keys.set(key, flag);
                format!("apps.NAME.{key}")
            }
            Target::Limit(key, kind) => {
                if kind == LimitKind::Seconds && value.is_variable() {
                    let time = format!("{}s", text.unwrap_or_default());
                    self.draft.limits.keys.set(key, time);
                    self.log.translated(setting.id, &format!("limits.{key}"));
                    return true;
                }
                let Some(number) = number.filter(|it| *it > 0) else {
                    return false;
                };
                let value: TomlValue = match kind {
                    LimitKind::Seconds => format!("{number}s").into(),
                    LimitKind::Bytes if key == "header_bytes" => {
                        penstock_config::format_size(number.max(256)).into()
                    }
                    LimitKind::Bytes => penstock_config::format_size(number.max(64)).into(),
                    LimitKind::Count => number.min(10_000).into(),
                };
                self.draft.limits.keys.set(key, value);
                format!("limits.{key}")
            }
            Target::Server(key) => {
                let Some(text) = text.filter(|it| !it.is_empty()) else {
                    return false;
                };
                let text = if text == "-" {
                    "stderr".to_owned()
                } else {
                    text
                };
                match key {
                    "temp_dir" => self.draft.limits.keys.set(key, text),
                    _ => self.draft.server.keys.set(key, text),
                }
                format!("server.{key}")
            }
            Target::Certificate(key) => {
                let Some(text) = text else { return false };
                self.certificate.set(key, text);
                format!("tls.{key}")
            }
            Target::Listen => return self.listen(setting, value),
            Target::AccessLog => {
                let Some(text) = text else { return false };
                let target = text.strip_prefix("file:").unwrap_or(&text);
                self.draft
                    .server
                    .keys
                    .set("access_log", if target == "-" { "stdout" } else { target });
                "server.access_log".to_owned()
            }
        };
        self.log.translated(setting.id, &key);
        true
    }

    fn listen(&mut self, setting: &AppSetting, value: &ScriptValue) -> bool {
        if setting.name == "listen" && self.kind == ServerKind::Uwsgi {
            // The length of the queue of the socket.
            return false;
        }
        let Some(texts) = value.as_texts() else {
            return false;
        };
        for text in &texts {
            let Some((address, has_tls)) = listen_address(text) else {
                let why =
                    "`server.listen` has addresses such as \":8000\" and \"unix:/run/app.sock\"";
                let comment = self.log.leave(setting.id, Coverage::ByHand, why);
                self.draft.server.comment(comment);
                continue;
            };
            let flags: &[&str] = if has_tls { &["tls"] } else { &[] };
            self.draft.listen(&address, flags);
        }
        self.log.translated(setting.id, "server.listen");
        true
    }

    /// Settings with more than one value, or with a meaning of their own.
    fn special(&mut self, setting: &AppSetting, value: &ScriptValue) -> bool {
        let number = |at: usize| setting.values.get(at).and_then(ScriptValue::as_number);
        let text = value.as_text();
        let key = match (setting.name.as_str(), self.kind) {
            ("threads", ServerKind::Puma) => {
                let (least, most) = (number(0), number(1).or_else(|| number(0)));
                match (least, most) {
                    (Some(least), Some(most)) if least != most && least > 0 => {
                        self.app.keys.set_in(&["threads", "min"], least);
                        self.app
                            .keys
                            .set_in(&["threads", "max"], most.clamp(least, 1024));
                    }
                    (_, Some(most)) if most > 0 => self.app.keys.set("threads", most.min(1024)),
                    _ => match setting
                        .values
                        .last()
                        .filter(|it| it.is_variable())
                        .and_then(ScriptValue::as_text)
                    {
                        Some(text) => self.app.keys.set("threads", text),
                        None => return false,
                    },
                }
                "apps.NAME.threads"
            }
            ("threads" | "thread_count", _) => match value.as_number() {
                Some(number) if number > 0 => {
                    self.app.keys.set("threads", number.min(1024));
                    "apps.NAME.threads"
                }
                _ => return false,
            },
            ("port", ServerKind::Puma) => {
                let Some(port) = text else { return false };
                let host = setting
                    .values
                    .get(1)
                    .and_then(ScriptValue::as_text)
                    .unwrap_or_default();
                let host = if host == "0.0.0.0" || host == "::" {
                    String::new()
                } else {
                    host
                };
                self.draft.listen(&format!("{host}:{port}"), &[]);
                "server.listen"
            }
            ("port", _) => {
                self.port = text;
                "server.listen"
            }
            ("host" | "address", _) => {
                self.host = text;
                "server.listen"
            }
            ("worker_class", _) => match text.as_deref() {
                Some("sync" | "gthread" | "threads") => "apps.NAME.threads",
                Some(class) if class.contains("vicorn") || class == "asgi" => {
                    self.app.keys.set("kind", "asgi");
                    "apps.NAME.kind"
                }
                Some("gevent") => {
                    self.app.keys.set("kind", "wsgi");
                    self.app.keys.set("async", "gevent");
                    "apps.NAME.async"
                }
                _ => return false,
            },
            ("raw_env" | "env", ServerKind::Gunicorn | ServerKind::Uwsgi) => {
                let Some(pairs) = value.as_texts() else {
                    return false;
                };
                for pair in pairs {
                    let (name, text) = pair.split_once('=').unwrap_or((&pair, ""));
                    self.app.keys.set_in(&["env", name], text);
                }
                "apps.NAME.env"
            }
            ("envvars", _) => {
                let ScriptValue::Map(pairs) = value else {
                    return false;
                };
                for (name, value) in pairs {
                    if let Some(text) = value.as_text() {
                        self.app.keys.set_in(&["env", name], text);
                    }
                }
                "apps.NAME.env"
            }
            ("environment", _) => {
                let Some(name) = text else { return false };
                let variable = if self.app.keys.text("kind") == Some("rack") || self.is_ruby() {
                    "RACK_ENV"
                } else {
                    "NODE_ENV"
                };
                self.app.keys.set_in(&["env", variable], name);
                "apps.NAME.env"
            }
            ("umask", _) => {
                let digits = match value {
                    ScriptValue::Number(number) => format!("{number:04o}"),
                    ScriptValue::Text(text) if text.bytes().all(|it| it.is_ascii_digit()) => {
                        format!("{text:0>4}")
                    }
                    _ => return false,
                };
                self.draft.server.keys.set("umask", digits);
                "server.umask"
            }
            ("forwarded_allow_ips" | "proxy_allow_ips", _) => {
                let networks: Vec<String> = value
                    .as_texts()
                    .unwrap_or_default()
                    .iter()
                    .flat_map(|it| {
                        it.split(',')
                            .map(|it| it.trim().to_owned())
                            .collect::<Vec<_>>()
                    })
                    .collect();
                if networks
                    .iter()
                    .any(|it| it.parse::<std::net::IpAddr>().is_err() && !it.contains('/'))
                    || networks.is_empty()
                {
                    return false;
                }
                self.draft.server.keys.set("trusted_proxies", networks);
                "server.trusted_proxies"
            }
            ("max_pool_size" | "min_instances", _) => {
                match value.as_number().filter(|it| *it > 0) {
                    Some(number) => {
                        let key = if setting.name == "max_pool_size" {
                            "max"
                        } else {
                            "min"
                        };
                        self.app.keys.set_in(&["processes", key], number.min(1024));
                        "apps.NAME.processes"
                    }
                    None => return false,
                }
            }
            ("lazy" | "lazy-apps", _) if value.is_true() => {
                self.app.keys.set("preload", false);
                "apps.NAME.preload"
            }
            ("callable", _) => {
                let Some(name) = text else { return false };
                let module = self.app.keys.text("entry").unwrap_or_default().to_owned();
                if !module.is_empty() && !module.contains(':') {
                    self.app.keys.set("entry", format!("{module}:{name}"));
                }
                "apps.NAME.entry"
            }
            ("wsgi-file", _) => {
                let Some(file) = text else { return false };
                if !file.ends_with(".py") {
                    let why = "`entry` names a module: a file that ends in .py, and its callable";
                    let comment = self.log.leave(setting.id, Coverage::ByHand, why);
                    self.app.comment(comment);
                    return true;
                }
                let module = file
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches(".py")
                    .to_owned();
                if let Some((folder, _)) = file.rsplit_once('/')
                    && !self.app.keys.has("dir")
                {
                    self.app.keys.set("dir", folder);
                }
                self.app.keys.set("entry", module);
                "apps.NAME.entry"
            }
            ("home" | "virtualenv" | "venv" | "pyhome", _) => {
                let Some(folder) = text else { return false };
                self.app.keys.set(
                    "interpreter",
                    format!("{}/bin/python", folder.trim_end_matches('/')),
                );
                "apps.NAME.interpreter"
            }
            ("static-map", _) => {
                let Some((path, folder)) = text.as_deref().and_then(|it| it.split_once('=')) else {
                    return false;
                };
                self.static_route(path, folder);
                "files.root of a route"
            }
            ("stdout_redirect", _) => {
                let Some(path) = text else { return false };
                self.draft.server.keys.set("log", path);
                "server.log"
            }
            ("app_start_command", _) => {
                let Some(command) = text else { return false };
                self.app.keys.set("kind", "command");
                self.app
                    .keys
                    .set("command", command.replace("$PORT", "{port}"));
                "apps.NAME.command"
            }
            ("max_request_queue_size", _) => {
                let Some(number) = value.as_number().filter(|it| *it > 0) else {
                    return false;
                };
                self.app
                    .keys
                    .set_in(&["queue", "max"], number.min(MAX_QUEUE));
                "apps.NAME.queue.max"
            }
            ("app_type", _) => {
                let kind = match text.as_deref() {
                    Some("rack" | "ruby") => "rack",
                    Some("wsgi" | "python") => "wsgi",
                    Some("node" | "nodejs") => "command",
                    _ => return false,
                };
                self.app.keys.set("kind", kind);
                "apps.NAME.kind"
            }
            ("static_files_dir", _) => {
                let is_usable = |it: &String| !it.is_empty() && !it.chars().any(char::is_control);
                let Some(folder) = text.filter(is_usable) else {
                    return false;
                };
                self.public_dir = Some(folder);
                "files.root of a route"
            }
            ("access_log", _) => {
                if value.is_true() {
                    self.draft.server.keys.set("access_log", "stdout");
                }
                "server.access_log"
            }
            _ => return false,
        };
        self.log.translated(setting.id, key);
        true
    }

    fn is_ruby(&self) -> bool {
        matches!(
            self.kind,
            ServerKind::Puma | ServerKind::Unicorn | ServerKind::Passenger
        )
    }

    fn static_route(&mut self, path: &str, folder: &str) {
        let prefix = path.trim_end_matches('/');
        let mut route = DraftTable::default();
        if !prefix.is_empty() {
            route.keys.set("path", format!("{prefix}/*"));
            route
                .keys
                .set("rewrite", TomlTable::with("strip_prefix", prefix));
        }
        route.keys.set("files", TomlTable::with("root", folder));
        match self.draft.sites.first_mut() {
            Some(site) => site.routes.push(route),
            None => self.draft.sites.push(DraftSite {
                routes: vec![route],
                ..DraftSite::default()
            }),
        }
    }

    /// The text and the report.
    ///
    /// `dir` is the folder of the application, where the configuration lies in another one.
    pub(super) fn finish(mut self, file: &Path, dir: Option<&Path>) -> Translation {
        if self.host.is_some() || self.port.is_some() {
            let (host, port) = match self.kind {
                ServerKind::Passenger => ("0.0.0.0", "3000"),
                _ => ("127.0.0.1", "8000"),
            };
            let host = self.host.take().unwrap_or_else(|| host.to_owned());
            let host = if host == "0.0.0.0" || host == "::" {
                String::new()
            } else {
                host.replace("localhost", "127.0.0.1")
            };
            let port = self.port.take().unwrap_or_else(|| port.to_owned());
            self.draft.listen(&format!("{host}:{port}"), &[]);
        }
        self.mend_app();
        if let Some(dir) = dir
            .and_then(Path::to_str)
            .filter(|_| !self.app.keys.has("dir"))
        {
            self.app.keys.set("dir", dir.replace("${", "$${"));
        }
        *self.draft.apps.table_mut(APP) = self.app;
        if !self.certificate.is_empty() {
            let mut site = self.draft.sites.pop().unwrap_or_default();
            site.table.keys.set("tls", self.certificate);
            site.table
                .comment("`tls = true` of a listener in `server.listen` makes it HTTPS");
            self.draft.sites.push(site);
        }
        if self.public_dir.is_some() && self.draft.sites.is_empty() {
            self.draft.sites.push(DraftSite::default());
        }
        if let Some(site) = self.draft.sites.first_mut() {
            let mut route = DraftTable::default();
            if let Some(folder) = self.public_dir {
                route.keys.set("files", TomlTable::with("root", folder));
            }
            route.keys.set("app", APP);
            site.routes.push(route);
        }
        Translation::finish(file, self.draft, self.log)
    }

    /// Makes keys agree: a reactor has one thread, and each kind its own keys.
    fn mend_app(&mut self) {
        let keys = &mut self.app.keys;
        match self.kind {
            ServerKind::Uvicorn => keys.set("kind", "asgi"),
            ServerKind::Puma | ServerKind::Unicorn => keys.set("kind", "rack"),
            ServerKind::Passenger => mend_startup_file(keys),
            _ => {}
        }
        let has_reactor = keys.text("kind") == Some("asgi") || keys.has("async");
        if has_reactor {
            keys.remove("threads");
        } else if keys.has("max_concurrent") {
            keys.remove("max_concurrent");
        }
        let is_python = matches!(
            self.kind,
            ServerKind::Gunicorn | ServerKind::Uvicorn | ServerKind::Uwsgi
        );
        if is_python && !keys.has("entry") {
            self.app
                .comment("entry = \"module:callable\" is found by itself, or write it");
        }
        if self.app.keys.text("kind").is_none() && is_python && self.app.keys.has("threads") {
            self.app.keys.set("kind", "wsgi");
        }
    }
}

/// What Passenger starts, by the kind of the application: a module, or a program.
fn mend_startup_file(keys: &mut TomlTable) {
    let file = keys.text("entry").map(str::to_owned);
    match keys.text("kind") {
        Some("wsgi") => {
            let file = file.unwrap_or_else(|| "passenger_wsgi.py".to_owned());
            if let Some(module) = file.strip_suffix(".py") {
                keys.set("entry", format!("{}:application", module.replace('/', ".")));
            }
        }
        Some("command") if !keys.has("command") => {
            keys.remove("entry");
            // As Passenger names it; the program finds its port in `PORT`.
            let file = file.unwrap_or_else(|| "app.js".to_owned());
            keys.set("command", vec!["node".to_owned(), file]);
        }
        _ => {}
    }
}

/// An address of `bind` or `listen`, and whether it has TLS.
fn listen_address(text: &str) -> Option<(String, bool)> {
    if let Some(rest) = text.strip_prefix("unix:") {
        let path = rest
            .trim_start_matches("//")
            .split('?')
            .next()
            .unwrap_or_default();
        return path
            .starts_with('/')
            .then(|| (format!("unix:{path}"), false));
    }
    if text.starts_with('/') {
        return Some((format!("unix:{text}"), false));
    }
    let (has_tls, rest) = match text.split_once("://") {
        Some(("ssl", rest)) => (true, rest),
        Some(("tcp" | "http", rest)) => (false, rest),
        Some(_) => return None,
        None => (false, text),
    };
    let rest = rest.split(['?', '/']).next().unwrap_or_default();
    if rest.starts_with("${") && rest.ends_with('}') {
        // A default with a colon is an address, another one a port.
        let default = rest
            .trim_end_matches('}')
            .split_once(":-")
            .map_or("", |(_, default)| default);
        let is_port =
            default.parse::<u16>().is_ok() || (default.is_empty() && rest.contains("PORT"));
        let colon = if is_port { ":" } else { "" };
        return Some((format!("{colon}{rest}"), has_tls));
    }
    let (host, port) = rest.rsplit_once(':').unwrap_or(("", rest));
    let is_port = port.parse::<u16>().is_ok() || (port.starts_with("${") || rest.contains("${"));
    if !is_port {
        return None;
    }
    if rest.contains("${") {
        let (host, port) = match rest.split_once(":$") {
            Some((host, port)) => (host, format!("${port}")),
            None => (host, port.to_owned()),
        };
        let host = if host == "0.0.0.0" { "" } else { host };
        return Some((format!("{host}:{port}"), has_tls));
    }
    let host = match host.trim_matches(['[', ']']) {
        "" | "0.0.0.0" | "*" | "::" => String::new(),
        "localhost" => "127.0.0.1".to_owned(),
        inner => match inner.parse::<std::net::IpAddr>().ok()? {
            std::net::IpAddr::V6(address) => format!("[{address}]"),
            std::net::IpAddr::V4(address) => address.to_string(),
        },
    };
    Some((format!("{host}:{port}"), has_tls))
}
