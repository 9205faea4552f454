//! From what the command line says to a [`Config`]: a file, or a directory that is recognised.
//!
//! Called by the binary for `serve` and `check`, again on reload. A TARGET is tried as a
//! directory, a file by its ending, then as `module:callable`; overrides are applied last and
//! checked like the values of a file.
//!
//! # Invariants
//! - Nothing is printed, nothing is run.

mod familiar;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::detect::{self, DETECTION_CANDIDATES, DetectedApp, DetectedProgram};
use crate::error::{ConfigError, ConfigErrors, HUB_NAMESPACE_TAKEN, access_error_suffix};
use crate::findings::{ReadFlags, make_absolute};
use crate::foreign_words::translate_verb;
use crate::model::{
    Acme, App, AppKind, BlockingPool, Config, Files, Grip, HUB_NAMESPACE, HttpListener, Hub,
    Limits, LogTarget, Processes, Route, Server, SiteTls, Tls,
};
use crate::source_files::ConfigSources;
use crate::values::{HostPattern, ListenAddr, PathPattern};
use crate::work::{self, WorkOptions};
use crate::{
    FILE_NAME, dev_defaults, entry, hooks, parse, section, server, site, surroundings, tls,
};

pub use familiar::parse_ip;

/// What the command line says about the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// Directory, `module:callable`, `.ru` or `.py` file, or `FILE.toml`; none looks in `cwd`.
    pub target: Option<String>,
    /// The file of `-c`.
    pub config: Option<PathBuf>,
    /// Listeners that replace the file's; empty keeps them.
    pub listen: Vec<ListenAddr>,
    /// Listeners with TLS; with them or `listen`, the file's are replaced.
    pub listen_https: Vec<ListenAddr>,
    /// The address of the only listener without TLS (`--host`).
    pub host: Option<IpAddr>,
    /// Its port (`--port`).
    pub port: Option<u16>,
    /// Hosts of the only site, which gets certificates for them by ACME (`--domain`).
    pub domains: Vec<HostPattern>,
    /// The certificate authority in place of the file's (`--acme-directory`).
    pub acme_directory: Option<String>,
    /// The address that it writes to (`--acme-email`).
    pub acme_email: Option<String>,
    /// Admin address that replaces the file's.
    pub admin: Option<AdminOverride>,
    /// Worker processes of every application.
    pub processes: Option<usize>,
    /// Threads in each worker process of every application.
    pub threads: Option<usize>,
    /// Threads of each that always take requests, if fewer than `threads` (`--threads MIN:MAX`).
    pub min_threads: Option<usize>,
    /// Variables of every application and job, before those of the file (`-e`); of two values of
    /// one name the last counts.
    pub environment: Vec<(String, String)>,
    /// Whether every application is obeyed in what it says by GRIP (`--grip`).
    pub grip: bool,
    /// What the application of a directory or module is, when its code is not to be looked at for
    /// that.
    pub kind: Option<AppKind>,
    /// Whether only the files of the target are served.
    pub files_only: bool,
    /// The file of the server's own log in place of the configuration's.
    pub log: Option<PathBuf>,
    /// The file for the process id in place of the configuration's.
    pub pid_file: Option<PathBuf>,
    /// Whether the folder's `.env` is left alone (`--no-env-file`).
    pub ignores_env_file: bool,
    /// Whether a Procfile starts nothing beside the application (`--no-jobs`).
    pub without_jobs: bool,
    /// Whether the defaults are those of development: one process, a readable log of requests on
    /// standard output, short drains.
    pub development: bool,
    /// The absolute directory that relative paths of the command line start from.
    pub cwd: PathBuf,
    /// Of `penstock work`: the target may be an application's name, and nothing but that one is
    /// served.
    pub work: Option<WorkOptions>,
}

/// What the command line says about the admin address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminOverride {
    /// No admin listener.
    Off,
    /// One there.
    Address(ListenAddr),
}

impl std::str::FromStr for AdminOverride {
    type Err = crate::InvalidListenAddr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            Ok(Self::Off)
        } else {
            text.parse().map(Self::Address)
        }
    }
}

/// Finds the configuration that an invocation means and applies its overrides.
///
/// *Blocking*: reads files and looks at directories; not for an event loop.
pub fn resolve_config(invocation: &Invocation) -> Result<Config, ConfigErrors> {
    let cwd = &invocation.cwd;
    let (mut config, app) = match &invocation.work {
        None => find_config(invocation).map(|config| (config, None)),
        Some(_) => find_work_config(invocation),
    }
    .map_err(|errors| shorten_paths(errors, cwd))?;
    if invocation.development && config.path.is_none() {
        // There is no file: every value is a default.
        dev_defaults::apply_to_server(&mut config.server, None);
        dev_defaults::apply_to_hub(&mut config.hub);
        config
            .apps
            .values_mut()
            .for_each(dev_defaults::apply_to_app);
    }
    if config.path.is_none() {
        surroundings::apply(&mut config, invocation)
            .map_err(|errors| shorten_paths(errors, cwd))?;
    }
    hooks::find(&mut config);
    familiar::apply_environment(&mut config, &invocation.environment);
    let config = match familiar::named_address(&config, invocation) {
        Some(address) => {
            let mut invocation = invocation.clone();
            invocation.listen.insert(0, address);
            apply_overrides(config, &invocation)?
        }
        None => apply_overrides(config, invocation)?,
    };
    match &invocation.work {
        None => Ok(config),
        Some(work) => work::keep_only_app(config, app, work, invocation),
    }
}

/// What `penstock work` means: an application of a file by its name, or what `serve` would serve.
fn find_work_config(invocation: &Invocation) -> Result<(Config, Option<&str>), ConfigErrors> {
    let cwd = &invocation.cwd;
    let file = match &invocation.config {
        Some(file) => Some(make_absolute(cwd, file)),
        None => Some(cwd.join(FILE_NAME)).filter(|file| file.is_file()),
    };
    let (Some(name), Some(file)) = (invocation.target.as_deref(), file) else {
        return find_config(invocation).map(|config| (config, None));
    };
    let config = load_file(&file, invocation)?;
    if invocation.config.is_some() || work::has_app(&config, name) {
        return Ok((config, Some(name)));
    }
    find_target(name, cwd, invocation).map(|config| (config, None))
}

/// Files are named as the user would name them from where they are.
fn shorten_paths(mut errors: ConfigErrors, cwd: &Path) -> ConfigErrors {
    for error in &mut errors.errors {
        match error.file.strip_prefix(cwd) {
            Ok(below) if below.as_os_str().is_empty() => {}
            Ok(below) => error.file = below.to_owned(),
            Err(_) => {}
        }
    }
    errors
}

fn find_config(invocation: &Invocation) -> Result<Config, ConfigErrors> {
    let cwd = &invocation.cwd;
    if invocation.files_only {
        return config_for_files_flag(invocation.target.as_deref(), cwd);
    }
    match (&invocation.target, &invocation.config) {
        (Some(target), Some(_)) => Err(ConfigErrors::single(
            target,
            "a TARGET and -c FILE exclude each other: the file already says what to serve",
        )),
        (None, Some(file)) => load_file(&make_absolute(cwd, file), invocation),
        (None, None) => config_for_dir(cwd, invocation),
        (Some(target), None) => find_target(target, cwd, invocation),
    }
}

/// A configuration file, which says itself what its applications are.
fn load_file(file: &Path, invocation: &Invocation) -> Result<Config, ConfigErrors> {
    match invocation.kind {
        Some(_) => Err(ConfigErrors::single(
            file,
            "a configuration file sets the kind of each application (`kind` in [apps.NAME]): leave \
             --kind out, which is for a folder or module:callable",
        )),
        None => {
            let flags = ReadFlags {
                development: invocation.development,
                has_tls_listener: !invocation.listen_https.is_empty(),
                has_certificate: !invocation.domains.is_empty(),
            };
            parse::load_with_flags(file, flags)
        }
    }
}

fn find_target(target: &str, cwd: &Path, invocation: &Invocation) -> Result<Config, ConfigErrors> {
    let wanted_kind = invocation.kind;
    let path = make_absolute(cwd, Path::new(target));
    let looked = std::fs::metadata(&path);
    let is_dir = looked.as_ref().is_ok_and(std::fs::Metadata::is_dir);
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending {
        _ if is_dir => config_for_dir(&path, invocation),
        Some("toml") => load_file(&path, invocation),
        Some("py") => config_for_module(target, &path, wanted_kind),
        _ if entry::split_ruby(target).is_some() => config_for_ruby(target, cwd, wanted_kind),
        _ if entry::split_python(target).is_some() => {
            config_for_entry((target, target), cwd, wanted_kind)
        }
        _ => match split_file(target) {
            Some((file, callable)) => {
                let file = make_absolute(cwd, Path::new(file));
                let module = file.file_stem().and_then(|name| name.to_str());
                let entry = format!("{}:{callable}", module.unwrap_or_default());
                config_for_entry((target, &entry), &parse::parent_dir(&file), wanted_kind)
            }
            None if module_exists(target, cwd) => {
                config_for_entry((target, target), cwd, wanted_kind)
            }
            None => Err(ConfigErrors::single(
                target,
                match translate_verb(target) {
                    Some(verb) => format!(
                        "there is no such verb, file or folder; did you mean `penstock {verb}`?"
                    ),
                    None => format!(
                        "is neither a folder, a FILE.toml, a .ru, .rb or .py file, nor \
                         module:callable{}",
                        access_error_suffix(looked.err().map(|error| error.kind()))
                    ),
                },
            )),
        },
    }
}

/// `path/to/file.py:callable`.
fn split_file(target: &str) -> Option<(&str, &str)> {
    let (file, callable) = target.split_once(".py:").map(|(f, c)| (f.len() + 3, c))?;
    Some((&target[..file], callable))
}

/// Whether a module of that name lies in the directory or its `src`.
fn module_exists(name: &str, dir: &Path) -> bool {
    let relative: PathBuf = name.split('.').collect();
    let is_there = |root: PathBuf| {
        let path = root.join(&relative);
        path.with_extension("py").is_file() || path.join("__init__.py").is_file()
    };
    entry::is_python_entry(name) && (is_there(dir.to_owned()) || is_there(dir.join("src")))
}

/// A kind that a Python module can be of.
fn python_kind(wanted_kind: Option<AppKind>) -> Option<AppKind> {
    wanted_kind.filter(|kind| matches!(kind, AppKind::Wsgi | AppKind::Asgi))
}

fn config_for_entry(
    (target, entry): (&str, &str),
    dir: &Path,
    wanted_kind: Option<AppKind>,
) -> Result<Config, ConfigErrors> {
    let probe = App::new("", dir.to_owned(), AppKind::Wsgi, entry);
    let kind = python_kind(wanted_kind).unwrap_or_else(|| entry::detect_kind(&probe, entry));
    let entry = entry.to_owned();
    config_for_app(target, DetectedApp { kind, entry }, dir, wanted_kind)
}

/// The directory's own file, else what the directory is, with what its Procfile starts beside it.
fn config_for_dir(dir: &Path, invocation: &Invocation) -> Result<Config, ConfigErrors> {
    let file = dir.join(FILE_NAME);
    if file.is_file() {
        return load_file(&file, invocation);
    }
    let mut config = detect_config(dir, invocation)?;
    let with_jobs = !invocation.without_jobs && invocation.work.is_none();
    detect::add_procfile_programs(&mut config, dir, with_jobs);
    Ok(config)
}

/// What a directory without a file is.
fn detect_config(dir: &Path, invocation: &Invocation) -> Result<Config, ConfigErrors> {
    let origin = dir.to_string_lossy();
    if let Some(kind) = invocation.kind {
        let found = detect::detect_app_of_kind(dir, Some(kind))
            .or_else(|| detect::detect_only_module(dir, Some(kind)));
        return match found {
            Some(found) => config_for_app(&origin, found, dir, Some(kind)),
            None => Err(nothing_found(dir)),
        };
    }
    if let Some(found) = detect::detect_named_app(dir) {
        return config_for_app(&origin, found, dir, None);
    }
    if let Some(program) = detect::detect_procfile_program(dir) {
        return Ok(config_for_program(program, dir));
    }
    if let Some(found) = find_app_in_code(dir) {
        // It may have a server of its own, which the Procfile starts.
        return match detect::refuse_own_server(dir, &found)
            .and_then(|_| detect::detect_any_procfile_program(dir))
        {
            Some(program) => Ok(config_for_program(program, dir)),
            None => config_for_app(&origin, found, dir, None),
        };
    }
    let program = detect::detect_program(dir, invocation.development)
        .map_err(|problem| ConfigErrors::single(&*origin, problem))?;
    if let Some(program) = program {
        return Ok(config_for_program(program, dir));
    }
    if let Some(root) = page_root(dir) {
        return Ok(config_for_files(dir, root));
    }
    if let Some(found) = detect::detect_only_module(dir, None) {
        return config_for_app(&origin, found, dir, None);
    }
    match detect::detect_any_procfile_program(dir) {
        Some(program) => Ok(config_for_program(program, dir)),
        None => Err(nothing_found(dir)),
    }
}

/// The application that code of the directory shows. A Ruby file beside a page may be a tool: it
/// must not run because a site is served.
fn find_app_in_code(dir: &Path) -> Option<DetectedApp> {
    let only_ruby = || {
        page_root(dir)
            .is_none()
            .then(|| detect::detect_only_ruby_file(dir))
            .flatten()
    };
    detect::detect_app(dir).or_else(only_ruby)
}

/// The folder of a static site: `public`, or the directory itself.
fn page_root(dir: &Path) -> Option<PathBuf> {
    let folders = [dir.join("public"), dir.to_owned()];
    folders
        .into_iter()
        .find(|folder| folder.join("index.html").is_file())
}

fn nothing_found(dir: &Path) -> ConfigErrors {
    let advice = detect::setup_advice(dir).join("\n  ");
    let looked_for = DETECTION_CANDIDATES.join("\n    ");
    let problem = format!(
        "nothing to serve was recognised here\n  {advice}\n  looked for, in this order:\n    \
         {looked_for}"
    );
    ConfigErrors::single(dir, problem)
}

/// A configuration of one program with every default.
fn config_for_program(program: DetectedProgram, dir: &Path) -> Config {
    let root = program.root().map(Path::to_owned);
    let app = program.into_app(&app_name_of_dir(dir), dir);
    let mut config = empty_config(dir);
    config.sites = vec![match root {
        Some(root) => site::catch_all_site(Route {
            files: Some(Files::new(root)),
            app: Some(app.name.clone()),
            ..Route::new(PathPattern::any())
        }),
        None => site::default_site_for_app(&app),
    }];
    config.apps.insert(app.name.clone(), app);
    config
}

/// The files below a root and nothing else.
fn config_for_files(dir: &Path, root: PathBuf) -> Config {
    let mut config = empty_config(dir);
    config.sites = vec![site::catch_all_site(Route {
        files: Some(Files::new(root)),
        ..Route::new(PathPattern::any())
    })];
    config
}

/// What `--files` means: this very directory, whatever else it is.
fn config_for_files_flag(target: Option<&str>, cwd: &Path) -> Result<Config, ConfigErrors> {
    let target = target.unwrap_or(".");
    let dir = match target {
        "." => cwd.to_owned(),
        target => make_absolute(cwd, Path::new(target)),
    };
    let looked = std::fs::metadata(&dir);
    if looked.as_ref().is_ok_and(std::fs::Metadata::is_dir) {
        return Ok(config_for_files(&dir, dir.clone()));
    }
    let cause = access_error_suffix(looked.err().map(|error| error.kind()));
    let problem = format!("--files serves a folder, and this is none{cause}");
    Err(ConfigErrors::single(target, problem))
}

/// A rackup file, or a Ruby file with the constant that is its application, if one is named.
fn config_for_ruby(
    target: &str,
    cwd: &Path,
    wanted_kind: Option<AppKind>,
) -> Result<Config, ConfigErrors> {
    let file = entry::split_ruby(target).map_or(target, |(file, _)| file);
    let from = file.rfind('/').map_or(0, |slash| slash + 1);
    config_for_app(
        target,
        DetectedApp {
            kind: AppKind::Rack,
            entry: target[from..].to_owned(),
        },
        &parse::parent_dir(&make_absolute(cwd, Path::new(file))),
        wanted_kind,
    )
}

fn config_for_module(
    target: &str,
    file: &Path,
    wanted_kind: Option<AppKind>,
) -> Result<Config, ConfigErrors> {
    let module = file
        .file_stem()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let dir = parse::parent_dir(file);
    if let Err(error) = std::fs::metadata(file) {
        return Err(ConfigErrors::unreadable(target, error.kind()));
    }
    if !entry::is_python_entry(module) {
        let problem = format!(
            "`{module}` is not the name of a Python module, so the file cannot be imported: rename \
             it"
        );
        return Err(ConfigErrors::single(target, problem));
    }
    let mut found = detect::detect_in_module(file, module);
    found.kind = python_kind(wanted_kind).unwrap_or(found.kind);
    config_for_app(target, found, &dir, wanted_kind)
}

/// A configuration of one application with every default; errors name `origin`.
fn config_for_app(
    origin: &str,
    found: DetectedApp,
    dir: &Path,
    wanted_kind: Option<AppKind>,
) -> Result<Config, ConfigErrors> {
    let is_rack = |kind: AppKind| kind == AppKind::Rack;
    if wanted_kind.is_some_and(|wanted_kind| is_rack(wanted_kind) != is_rack(found.kind)) {
        let problem = format!(
            "the application is of kind \"{}\", and --kind cannot make it one of another language: \
             leave --kind out",
            found.kind
        );
        return Err(ConfigErrors::single(origin, problem));
    }
    if let Some(problem) = detect::refuse_own_server(dir, &found) {
        return Err(ConfigErrors::single(origin, problem));
    }
    let mut app = App::new(
        &app_name_of_dir(dir),
        dir.to_owned(),
        found.kind,
        &found.entry,
    );
    app.kind_is_guess = wanted_kind.is_none() && !is_rack(found.kind);
    app.detection = Some(detect::describe_app(dir, found.kind, &found.entry));
    entry::check_file_exists(&app, found.kind, &found.entry)
        .map_err(|what| ConfigErrors::single(origin, what))?;
    let mut config = empty_config(dir);
    config.sites = vec![site::default_site_for_app(&app)];
    config.apps.insert(app.name.clone(), app);
    Ok(config)
}

fn empty_config(dir: &Path) -> Config {
    Config {
        sources: ConfigSources::default(),
        path: None,
        base_dir: dir.to_owned(),
        server: Server::default(),
        limits: Limits::default(),
        blocking: BTreeMap::from([("default".to_owned(), BlockingPool::default())]),
        apps: BTreeMap::new(),
        jobs: BTreeMap::new(),
        tls: Tls::default(),
        acme: Acme::default(),
        hub: Hub::default(),
        conditions: BTreeMap::new(),
        access_logs: BTreeMap::new(),
        tracing: None,
        caches: BTreeMap::new(),
        upstreams: BTreeMap::new(),
        sites: Vec::new(),
        tcp: Vec::new(),
        join_target: None,
        start_notes: Vec::new(),
    }
}

/// The directory's name, with what a name cannot hold replaced.
fn app_name_of_dir(dir: &Path) -> String {
    let name = dir
        .file_name()
        .map(|name| name.to_string_lossy())
        .unwrap_or_default();
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c
        } else {
            '-'
        }
    };
    let name: String = name.chars().map(plain).take(64).collect();
    let name = name.trim_matches('-');
    if section::is_valid_name(name) {
        name.to_owned()
    } else {
        "app".to_owned()
    }
}

/// Replaces what the file says of the certificate authority.
fn apply_acme(config: &mut Config, invocation: &Invocation, errors: &mut Vec<String>) {
    if let Some(directory) = &invocation.acme_directory {
        match tls::is_acme_directory(directory) {
            true => config.acme.directory = vec![directory.clone()],
            false => errors.push(format!(
                "--acme-directory {directory}: expected {}",
                tls::DIRECTORY_EXPECTED
            )),
        }
    }
    if let Some(email) = &invocation.acme_email {
        config.acme.email = Some(email.clone());
    }
}

/// Gives the only site these hosts with certificates for them, and the server the ports of HTTP and
/// HTTPS, unless listeners are named too. Local names get
/// certificates of this machine's authority, and ports that need no rights.
fn apply_domains(config: &mut Config, invocation: &Invocation, errors: &mut Vec<String>) {
    if invocation.domains.is_empty() {
        return;
    }
    let [site] = &mut config.sites[..] else {
        let problem = "--domain is for a server with one site: set `hosts` and `tls` of each site \
                       in the file";
        return errors.push(problem.to_owned());
    };
    site.hosts.clone_from(&invocation.domains);
    let is_local = invocation.domains.iter().all(is_local_name);
    if site.tls == SiteTls::Off {
        site.tls = match is_local {
            true => SiteTls::Local,
            false => SiteTls::Auto,
        };
    }
    if invocation.listen.is_empty() && invocation.listen_https.is_empty() {
        let (http, https) = match is_local {
            true => (ListenAddr::loopback(8080), ListenAddr::loopback(8443)),
            false => (ListenAddr::Port(HTTP_PORT), ListenAddr::Port(HTTPS_PORT)),
        };
        let https = HttpListener {
            has_tls: true,
            ..https.into()
        };
        config.server.listen = vec![http.into(), https];
    }
}

/// `--listen-https` without a certificate.
const NO_CERTIFICATE: &str = "--listen-https needs a certificate: name the site by --domain, or set \
                              `tls` of a site in the file";

/// Replaces the listeners by `addresses`, of which those from `plain` on have TLS. One that the file
/// has too keeps its PROXY protocol header.
fn replace_listeners(server: &mut Server, addresses: Vec<ListenAddr>, plain: usize) {
    let in_file = std::mem::take(&mut server.listen);
    let listeners = addresses.into_iter().enumerate().map(|(index, address)| {
        let mut same = in_file.iter().filter(|it| it.address == address);
        HttpListener {
            proxy_protocol: same.any(|it| it.proxy_protocol),
            address,
            has_tls: index >= plain,
        }
    });
    server.listen = listeners.collect();
}

/// Whether no public certificate authority gives a certificate for a name: `localhost`, addresses of
/// this machine, and the names that are reserved for such uses (RFC 6761, RFC 9476).
fn is_local_name(host: &HostPattern) -> bool {
    let text = host.to_string();
    let name = text.trim_start_matches("*.");
    let ends = [".localhost", ".local", ".internal", ".test", ".home.arpa"];
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
    name == "localhost"
        || ends.iter().any(|end| name.ends_with(end))
        || address.is_ok_and(|address| address.is_loopback())
}

/// The port of HTTP, where challenges and redirects are answered.
const HTTP_PORT: u16 = 80;

/// The port of HTTPS.
const HTTPS_PORT: u16 = 443;

fn apply_overrides(mut config: Config, invocation: &Invocation) -> Result<Config, ConfigErrors> {
    let mut errors = Vec::new();
    apply_acme(&mut config, invocation, &mut errors);
    apply_domains(&mut config, invocation, &mut errors);
    let has_certificate = config.sites.iter().any(|site| site.tls != SiteTls::Off);
    if !invocation.listen_https.is_empty() && !has_certificate {
        errors.push(NO_CERTIFICATE.to_owned());
    }
    let mut place = |addr: &ListenAddr| {
        let unfit = server::check_socket_path(&addr.to_string(), &invocation.cwd);
        let is_fit = unfit.is_none();
        errors.extend(unfit);
        let based = server::resolve_socket_path(addr.clone(), &invocation.cwd);
        based.filter(|_| is_fit).unwrap_or_else(|| addr.clone())
    };
    if !invocation.listen.is_empty() || !invocation.listen_https.is_empty() {
        let all = invocation.listen.iter().chain(&invocation.listen_https);
        let mut all: Vec<ListenAddr> = all.map(&mut place).collect();
        server::restrict_ports_to_ipv4(all.iter_mut().collect());
        replace_listeners(&mut config.server, all, invocation.listen.len());
    }
    if let Some(log) = &invocation.log {
        config.server.log = LogTarget::File(make_absolute(&invocation.cwd, log));
    }
    if let Some(file) = &invocation.pid_file {
        config.server.pid_file = Some(make_absolute(&invocation.cwd, file));
    }
    match &invocation.admin {
        None => {}
        Some(AdminOverride::Off) => config.server.admin = None,
        Some(AdminOverride::Address(addr)) => config.server.admin = Some(place(addr)),
    }
    errors.extend(server::find_address_conflict(&config));
    let processes = check_count("--processes", invocation.processes, &mut errors);
    let threads = check_count("--threads", invocation.threads, &mut errors);
    let apps = config.apps.values_mut();
    for app in apps.filter(|app| app.kind != AppKind::Job) {
        app.processes = processes.map_or(app.processes, Processes::exactly);
        familiar::apply_threads(app, threads, invocation.min_threads);
        if invocation.grip && app.grip.is_none() {
            app.grip = Some(Grip::new(&app.name));
            if app.name == HUB_NAMESPACE {
                errors.push(HUB_NAMESPACE_TAKEN.to_owned());
            }
        }
        app.apply_to_upstream();
    }
    let errors: Vec<_> = errors
        .into_iter()
        .map(|what| ConfigError::without_position("command line", what))
        .collect();
    if errors.is_empty() {
        Ok(config)
    } else {
        Err(ConfigErrors::new(errors))
    }
}

/// The same range as in a file.
fn check_count(key: &str, count: Option<usize>, errors: &mut Vec<String>) -> Option<usize> {
    let count = count?;
    if (1..=1024).contains(&count) {
        return Some(count);
    }
    errors.push(format!(
        "`{key}` cannot be {count}: expected a number from 1 to 1024"
    ));
    None
}

#[cfg(test)]
mod tests;
