//! From what the command line says to a [`Config`]: a file, or a folder that is recognised.
//!
//! Called by the binary for `serve` and `check`, again on reload. A TARGET is tried as a folder, a
//! file by its ending, then as `module:callable`; overrides are applied last and checked like the
//! values of a file. What must stay true: nothing is printed, nothing is run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::detect::{self, Found, LOOKED_FOR};
use crate::error::{ConfigError, Problem, Report};
use crate::foreign_words::translate_verb;
use crate::model::{
    App, AppKind, BlockingPool, Config, Files, Grip, HUB_NAMESPACE, Hub, Limits, LogTarget,
    Processes, Route, Server,
};
use crate::place::absolute;
use crate::values::{ListenAddr, PathPattern};
use crate::work::{self, Work};
use crate::{FILE_NAME, development, entry, parse, section, server, site};

/// What the command line says about the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// Folder, `module:callable`, `.ru` or `.py` file, or `FILE.toml`; none looks in `cwd`.
    pub target: Option<String>,
    /// The file of `-c`.
    pub config: Option<PathBuf>,
    /// Listeners that replace the file's; empty keeps them.
    pub listen: Vec<ListenAddr>,
    /// Admin address that replaces the file's.
    pub admin: Option<AdminChoice>,
    /// Worker processes of every application.
    pub processes: Option<usize>,
    /// Threads in each worker process of every application.
    pub threads: Option<usize>,
    /// Whether every application is obeyed in what it says by GRIP (`--grip`).
    pub grip: bool,
    /// What the application of a folder or module is, when its code is not to be looked at for that.
    pub kind: Option<AppKind>,
    /// Whether the target is a folder whose files are served, and nothing else of it.
    pub files: bool,
    /// The file of the server's own log in place of the configuration's.
    pub log: Option<PathBuf>,
    /// Whether the defaults are those of development: one process, a readable log of requests on
    /// standard output, short drains.
    pub development: bool,
    /// The absolute folder that relative paths of the command line start from.
    pub cwd: PathBuf,
    /// Of `penstock work`: the target may be an application's name, and nothing but that one is served.
    pub work: Option<Work>,
}

/// What the command line says about the admin address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminChoice {
    /// No admin listener.
    Off,
    /// One there.
    At(ListenAddr),
}

impl std::str::FromStr for AdminChoice {
    type Err = crate::BadListenAddr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            Ok(Self::Off)
        } else {
            text.parse().map(Self::At)
        }
    }
}

/// Finds the configuration that an invocation means and applies its overrides.
///
/// *Blocking*: reads files and looks at folders; not for an event loop.
pub fn resolve(invocation: &Invocation) -> Result<Config, Report> {
    let cwd = &invocation.cwd;
    let (mut config, app) = match &invocation.work {
        None => find(invocation).map(|config| (config, None)),
        Some(_) => find_work(invocation),
    }
    .map_err(|report| shorten(report, cwd))?;
    if invocation.development && config.path.is_none() {
        // Nothing is said in a file: every value is a default.
        development::server(&mut config.server, None);
        development::hub(&mut config.hub);
        config.apps.values_mut().for_each(development::app);
    }
    let config = apply(config, invocation)?;
    match &invocation.work {
        None => Ok(config),
        Some(work) => work::reduce(config, app, work, invocation),
    }
}

/// What `penstock work` means: an application of a file by its name, or what `serve` would serve.
fn find_work(invocation: &Invocation) -> Result<(Config, Option<&str>), Report> {
    let cwd = &invocation.cwd;
    let file = match &invocation.config {
        Some(file) => Some(absolute(cwd, file)),
        None => Some(cwd.join(FILE_NAME)).filter(|file| file.is_file()),
    };
    let (Some(name), Some(file)) = (invocation.target.as_deref(), file) else {
        return find(invocation).map(|config| (config, None));
    };
    let config = load(&file, invocation)?;
    if invocation.config.is_some() || work::has(&config, name) {
        return Ok((config, Some(name)));
    }
    find_target(name, cwd, invocation).map(|config| (config, None))
}

/// Files are named as the user would name them from where they are.
fn shorten(mut report: Report, cwd: &Path) -> Report {
    for error in &mut report.errors {
        match error.file.strip_prefix(cwd) {
            Ok(below) if below.as_os_str().is_empty() => {}
            Ok(below) => error.file = below.to_owned(),
            Err(_) => {}
        }
    }
    report
}

fn find(invocation: &Invocation) -> Result<Config, Report> {
    let cwd = &invocation.cwd;
    if invocation.files {
        return plain_files(invocation.target.as_deref(), cwd);
    }
    match (&invocation.target, &invocation.config) {
        (Some(target), Some(_)) => Err(Report::one(target, Problem::TargetAndFile)),
        (None, Some(file)) => load(&absolute(cwd, file), invocation),
        (None, None) => in_folder(cwd, invocation),
        (Some(target), None) => find_target(target, cwd, invocation),
    }
}

/// A configuration file, which says itself what its applications are.
fn load(file: &Path, invocation: &Invocation) -> Result<Config, Report> {
    match invocation.kind {
        Some(_) => Err(Report::one(file, Problem::KindAndFile)),
        None => parse::load_as(file, invocation.development),
    }
}

fn find_target(target: &str, cwd: &Path, invocation: &Invocation) -> Result<Config, Report> {
    let said = invocation.kind;
    let path = absolute(cwd, Path::new(target));
    let looked = std::fs::metadata(&path);
    let is_dir = looked.as_ref().is_ok_and(std::fs::Metadata::is_dir);
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending {
        _ if is_dir => in_folder(&path, invocation),
        Some("toml") => load(&path, invocation),
        Some("py") => of_module(target, &path, said),
        _ if entry::split_ruby(target).is_some() => of_ruby(target, cwd, said),
        _ if entry::split_python(target).is_some() => of_entry((target, target), cwd, said),
        _ => match split_file(target) {
            Some((file, callable)) => {
                let file = absolute(cwd, Path::new(file));
                let module = file.file_stem().and_then(|name| name.to_str());
                let entry = format!("{}:{callable}", module.unwrap_or_default());
                of_entry((target, &entry), &parse::folder_of(&file), said)
            }
            None if is_module(target, cwd) => of_entry((target, target), cwd, said),
            None => Err(Report::one(
                target,
                match translate_verb(target) {
                    Some(verb) => Problem::OtherVerb(verb),
                    None => Problem::BadTarget(looked.err().map(|error| error.kind())),
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

/// Whether a module of that name lies in the folder or its `src`.
fn is_module(name: &str, dir: &Path) -> bool {
    let relative: PathBuf = name.split('.').collect();
    let is_there = |root: PathBuf| {
        let path = root.join(&relative);
        path.with_extension("py").is_file() || path.join("__init__.py").is_file()
    };
    entry::is_python(name) && (is_there(dir.to_owned()) || is_there(dir.join("src")))
}

/// A kind that a Python module can be of.
fn of_python(said: Option<AppKind>) -> Option<AppKind> {
    said.filter(|kind| matches!(kind, AppKind::Wsgi | AppKind::Asgi))
}

fn of_entry(
    (target, entry): (&str, &str),
    dir: &Path,
    said: Option<AppKind>,
) -> Result<Config, Report> {
    let probe = App::new("", dir.to_owned(), AppKind::Wsgi, entry);
    let kind = of_python(said).unwrap_or_else(|| entry::kind_of(&probe, entry));
    let entry = entry.to_owned();
    of_app(target, Found { kind, entry }, dir, said)
}

/// The folder's own file, else what the folder is.
fn in_folder(dir: &Path, invocation: &Invocation) -> Result<Config, Report> {
    let file = dir.join(FILE_NAME);
    if file.is_file() {
        return load(&file, invocation);
    }
    let said = invocation.kind;
    if let Some(found) = detect::app_of_kind(dir, said) {
        return of_app(&dir.to_string_lossy(), found, dir, said);
    }
    let public = dir.join("public");
    // A Ruby file beside a page may be a tool: it must not run because a site is served.
    let has_page = [dir, &public]
        .iter()
        .any(|dir| dir.join("index.html").is_file());
    if said.is_none()
        && !has_page
        && let Some(found) = detect::only_ruby_file_in(dir)
    {
        return of_app(&dir.to_string_lossy(), found, dir, said);
    }
    let root = if said.is_none() && public.join("index.html").is_file() {
        public
    } else if said.is_none() && dir.join("index.html").is_file() {
        dir.to_owned()
    } else if let Some(found) = detect::only_module_in(dir, said) {
        return of_app(&dir.to_string_lossy(), found, dir, said);
    } else {
        let looked_for = LOOKED_FOR.to_vec();
        let advice = detect::advice(dir);
        return Err(Report::one(
            dir,
            Problem::NothingDetected { looked_for, advice },
        ));
    };
    Ok(of_files(dir, root))
}

/// The files below a root and nothing else.
fn of_files(dir: &Path, root: PathBuf) -> Config {
    let mut config = bare(dir);
    config.sites = vec![site::any(Route {
        files: Some(Files::new(root)),
        ..Route::new(PathPattern::any())
    })];
    config
}

/// What `--files` means: this very folder, whatever else it is.
fn plain_files(target: Option<&str>, cwd: &Path) -> Result<Config, Report> {
    let target = target.unwrap_or(".");
    let dir = match target {
        "." => cwd.to_owned(),
        target => absolute(cwd, Path::new(target)),
    };
    match std::fs::metadata(&dir) {
        Ok(found) if found.is_dir() => Ok(of_files(&dir, dir.clone())),
        Ok(_) => Err(Report::one(target, Problem::FilesOfNoFolder(None))),
        Err(error) => {
            let kind = Some(error.kind());
            Err(Report::one(target, Problem::FilesOfNoFolder(kind)))
        }
    }
}

/// A rackup file, or a Ruby file with the constant that is its application, if one is named.
fn of_ruby(target: &str, cwd: &Path, said: Option<AppKind>) -> Result<Config, Report> {
    let file = entry::split_ruby(target).map_or(target, |(file, _)| file);
    let from = file.rfind('/').map_or(0, |slash| slash + 1);
    of_app(
        target,
        Found {
            kind: AppKind::Rack,
            entry: target[from..].to_owned(),
        },
        &parse::folder_of(&absolute(cwd, Path::new(file))),
        said,
    )
}

fn of_module(target: &str, file: &Path, said: Option<AppKind>) -> Result<Config, Report> {
    let module = file
        .file_stem()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let dir = parse::folder_of(file);
    if let Err(error) = std::fs::metadata(file) {
        return Err(Report::one(target, Problem::Unreadable(error.kind())));
    }
    if !entry::is_python(module) {
        return Err(Report::one(
            target,
            Problem::NoModuleName(module.to_owned()),
        ));
    }
    let mut found = detect::module_in(file, module);
    found.kind = of_python(said).unwrap_or(found.kind);
    of_app(target, found, &dir, said)
}

/// A configuration of one application with every default; errors name `origin`.
fn of_app(origin: &str, found: Found, dir: &Path, said: Option<AppKind>) -> Result<Config, Report> {
    let is_rack = |kind: AppKind| kind == AppKind::Rack;
    if said.is_some_and(|said| is_rack(said) != is_rack(found.kind)) {
        return Err(Report::one(origin, Problem::OtherLanguage(found.kind)));
    }
    let mut app = App::new(&name_of(dir), dir.to_owned(), found.kind, &found.entry);
    app.kind_is_guess = said.is_none() && !is_rack(found.kind);
    entry::check(&app, found.kind, &found.entry).map_err(|what| Report::one(origin, what))?;
    let mut config = bare(dir);
    config.sites = vec![site::of_app(&app)];
    config.apps.insert(app.name.clone(), app);
    Ok(config)
}

fn bare(dir: &Path) -> Config {
    Config {
        path: None,
        base: dir.to_owned(),
        server: Server::default(),
        limits: Limits::default(),
        blocking: BTreeMap::from([("default".to_owned(), BlockingPool::default())]),
        apps: BTreeMap::new(),
        hub: Hub::default(),
        caches: BTreeMap::new(),
        upstreams: BTreeMap::new(),
        sites: Vec::new(),
        streams: Vec::new(),
        joins: None,
    }
}

/// The folder's name, with what a name cannot hold replaced.
fn name_of(dir: &Path) -> String {
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
    if section::is_name(name) {
        name.to_owned()
    } else {
        "app".to_owned()
    }
}

fn apply(mut config: Config, invocation: &Invocation) -> Result<Config, Report> {
    let mut errors = Vec::new();
    let mut place = |addr: &ListenAddr| {
        let unfit = server::unfit_socket(&addr.to_string(), &invocation.cwd);
        let is_fit = unfit.is_none();
        errors.extend(unfit);
        let based = server::based(addr.clone(), &invocation.cwd);
        based.filter(|_| is_fit).unwrap_or_else(|| addr.clone())
    };
    if !invocation.listen.is_empty() {
        config.server.listen = invocation.listen.iter().map(&mut place).collect();
        server::split_families(config.server.listen.iter_mut().collect());
    }
    if let Some(log) = &invocation.log {
        config.server.log = LogTarget::File(absolute(&invocation.cwd, log));
    }
    match &invocation.admin {
        None => {}
        Some(AdminChoice::Off) => config.server.admin = None,
        Some(AdminChoice::At(addr)) => config.server.admin = Some(place(addr)),
    }
    let listen = &config.server.listen;
    config
        .server
        .proxy_protocol
        .retain(|addr| listen.contains(addr));
    errors.extend(server::clash(&config));
    let processes = check_count("--processes", invocation.processes, &mut errors);
    let threads = check_count("--threads", invocation.threads, &mut errors);
    for app in config.apps.values_mut() {
        app.processes = processes.map_or(app.processes, Processes::exactly);
        if !app.has_reactor() || app.kind_is_guess {
            app.threads = threads.unwrap_or(app.threads);
            app.threads_min = threads.unwrap_or(app.threads_min);
        }
        if invocation.grip && app.grip.is_none() {
            app.grip = Some(Grip::of(&app.name));
            if app.name == HUB_NAMESPACE {
                errors.push(Problem::NamespaceOfHub);
            }
        }
        app.fit_upstream();
    }
    let errors: Vec<_> = errors
        .into_iter()
        .map(|what| ConfigError::nowhere("command line", what))
        .collect();
    if errors.is_empty() {
        Ok(config)
    } else {
        Err(Report::new(errors))
    }
}

/// The same range as in a file.
fn check_count(key: &str, count: Option<usize>, errors: &mut Vec<Problem>) -> Option<usize> {
    let count = count?;
    if (1..=1024).contains(&count) {
        return Some(count);
    }
    let (key, value) = (key.to_owned(), count.to_string());
    errors.push(Problem::OutOfRange {
        key,
        value,
        expected: "a number from 1 to 1024".to_owned(),
    });
    None
}

#[cfg(test)]
mod tests;
