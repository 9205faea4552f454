//! Reports a start to the terminal, to scripts and to the service manager; a part of `server`.
//!
//! # Invariants
//!
//! - Addresses are printed at once; readiness is reported only when every application is ready.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};

use penstock_apps::{App, BootStatus};
use penstock_config::{AppKind, Config, Processes, SiteTls, Upstream};
use penstock_runtime::logger::LogWriter;
use penstock_runtime::loops;
use penstock_sys::fd_packets;
use penstock_tls::local_authority::ROOT_FILE;
use tokio::sync::mpsc;

use super::Server;
use super::site_links::describe_site_links;
use crate::cli;
use crate::components::default_pool;
use crate::inherited_listeners::ListenerRole;
use crate::listeners::Listener;
use crate::tls_service::local_authority_folder;

/// A descriptor that gets one report of readiness.
#[derive(Debug)]
pub(crate) struct ReadyFd {
    number: i32,
    fd: std::io::Result<File>,
}

impl ReadyFd {
    /// Takes the descriptor, at the start of the process: no child inherits it, and the server may
    /// write to it after a switch of the user.
    pub(crate) fn claim(number: i32) -> Self {
        let fd = match number {
            1 => std::io::stdout().as_fd().try_clone_to_owned(),
            2 => std::io::stderr().as_fd().try_clone_to_owned(),
            number => fd_packets::take_inherited_fd(number),
        };
        let fd = fd.map(File::from);
        Self { number, fd }
    }

    /// Reports readiness and closes the descriptor. May block.
    fn report_ready(self) -> Result<(), String> {
        let written = self.fd.and_then(|mut file| file.write_all(b"ready\n"));
        written.map_err(|error| error.to_string())
    }
}

impl Server {
    /// Prints the addresses, then each application as it becomes ready.
    pub(super) async fn announce_ready(self: &Arc<Self>) {
        let announce = &self.options.announce;
        let (lines, apps): (Vec<String>, Vec<Arc<App>>) = {
            let live = self.live_state();
            let listeners = live.listeners.iter().map(describe_listener);
            let addresses: Vec<_> = live
                .listeners
                .iter()
                .filter_map(Listener::web_port)
                .collect();
            let links = describe_site_links(&live.config.sites, &addresses);
            let upstreams = live.config.upstreams.values().map(describe_upstream);
            let files = describe_files_only(&live.config);
            let authority = describe_local_authority(&live.config);
            let notes = live
                .config
                .start_notes
                .iter()
                .map(|note| format!("{note}\n"));
            let apps = live.components.apps.values().cloned().collect();
            (
                listeners
                    .chain(links)
                    .chain(upstreams)
                    .chain(files)
                    .chain(authority)
                    .chain(notes)
                    .collect(),
                apps,
            )
        };
        for line in lines {
            announce.write(line.into_bytes());
        }
        let (announced, mut left) = mpsc::channel::<()>(1);
        let is_development = self.options.development;
        for app in apps {
            let (announced, announce) = (announced.clone(), announce.clone());
            let server = Arc::downgrade(self);
            loops::spawn_here(async move {
                // One that is stopped before it is ready has not failed.
                let is_stopping = || server.upgrade().is_none_or(|server| server.is_draining());
                announce_app(&app, &announce, is_development, is_stopping).await;
                drop(announced);
            });
        }
        drop(announced);
        // Ends when every application has been announced.
        let _ = left.recv().await;
        if self.is_draining() {
            return;
        }
        self.write_pid_file().await;
        self.options.manager.notify_ready(&self.status_line());
        let ready = self.options.ready_fd.lock();
        let ready = ready.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ready) = ready {
            let number = ready.number;
            let pool = default_pool(&self.live_state().components.pools);
            let announce = announce.clone();
            let written = pool
                .run(move || {
                    // Announcements must be readable before.
                    announce.flush();
                    ready.report_ready()
                })
                .await;
            let written = written.map_err(|error| error.to_string());
            if let Err(error) = written.flatten() {
                log::error!("server: --ready-fd {number}: cannot write: {error}");
            }
        }
    }

    /// Writes the process id to the file for it, if there is one.
    async fn write_pid_file(&self) {
        let Some(file) = self.options.pid_file.clone() else {
            return;
        };
        let pool = default_pool(&self.live_state().components.pools);
        let written = pool.run(move || file.write(std::process::id())).await;
        if let Err(error) = written.map_err(|error| error.to_string()).flatten() {
            log::error!("server: {error}");
        }
    }

    /// The status line for the service manager.
    pub(super) fn status_line(&self) -> String {
        let live = self.live_state();
        let listeners = live.listeners.iter();
        let listeners = listeners.filter(|listener| listener.role.is_for_clients());
        let names: Vec<_> = listeners.map(Listener::name).collect();
        format!("serving {}", names.join(" "))
    }
}

fn describe_listener(listener: &Listener) -> String {
    let name = listener.name();
    match listener.role {
        ListenerRole::Http | ListenerRole::Tcp => format!("listening {name}\n"),
        ListenerRole::Admin => format!("status {name}/\n"),
        ListenerRole::Control => format!("control {name}\n"),
        ListenerRole::Probes => format!("probes {name}\n"),
    }
}

/// The line that says what clients are to trust, where certificates are of the local authority.
fn describe_local_authority(config: &Config) -> Option<String> {
    let is_used = config.sites.iter().any(|site| site.tls == SiteTls::Local);
    let root = local_authority_folder().join(ROOT_FILE);
    (is_used && config.has_tls_listener()).then(|| {
        let root = root.display();
        format!("local authority {root} (penstock trust, or curl --cacert)\n")
    })
}

/// The line of a server with files only: no application and no upstream.
fn describe_files_only(config: &Config) -> Option<String> {
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let roots: Vec<_> = routes
        .map(|route| route.files.as_ref().filter(|_| serves_only_files(route)))
        .collect::<Option<_>>()?;
    let is_alone = config.apps.is_empty() && config.upstreams.is_empty();
    let mut names: Vec<_> = roots
        .iter()
        .map(|files| files.root.display().to_string())
        .collect();
    names.sort();
    names.dedup();
    let is_told = is_alone && !names.is_empty();
    is_told.then(|| format!("files only: {}\n", names.join(", ")))
}

/// Whether a route serves nothing but its files.
fn serves_only_files(route: &penstock_config::Route) -> bool {
    !route.has_back_end() && route.hub.is_none() && route.mercure.is_none()
}

/// An upstream's line at the terminal.
fn describe_upstream(upstream: &Upstream) -> String {
    let (name, protocol) = (&upstream.name, upstream.protocol.as_str());
    let servers = match (upstream.servers.len(), upstream.joinable) {
        (0, true) => "those that join".to_owned(),
        (count, true) => format!(
            "{} and those that join",
            cli::pluralize(count as u64, "server")
        ),
        (count, false) => cli::pluralize(count as u64, "server"),
    };
    format!("upstream {name}: {protocol}, {servers}\n")
}

/// Prints how an application starts: a failure first, if there is one, and its readiness.
async fn announce_app(
    app: &App,
    announce: &LogWriter,
    is_development: bool,
    is_stopping: impl Fn() -> bool,
) {
    let name = app.name();
    let boot = app.wait_for_boot().await;
    if matches!(boot, BootStatus::Failed { .. }) && !is_stopping() {
        let kind = app.kind();
        let line = format!("app {name}: {kind}, does not start yet; see the log\n");
        announce.write(line.into_bytes());
    }
    let Some((took, interpreter)) = app.wait_until_up().await else {
        return;
    };
    let processes = describe_process_count(app.config().processes);
    let config = app.config();
    let kind = app.kind();
    let environment = describe_environment(app, is_development);
    let threads = match (config.min_threads, config.threads) {
        _ if kind == AppKind::Asgi => String::new(),
        (_, max) if kind == AppKind::Command && max > 1 => format!(" x {max} requests"),
        (1, 1) => String::new(),
        (min, max) if min == max => format!(" x {max} threads"),
        (min, max) => format!(" x {min} to {max} threads"),
    };
    let took = took.as_secs_f64();
    let line = format!(
        "app {name}: {kind}{environment}, {processes}{threads}, ready in {took:.1} s ({interpreter})\n"
    );
    announce.write(line.into_bytes());
}

/// ` in production`: the environment that a Rack application runs in.
fn describe_environment(app: &App, is_development: bool) -> String {
    match app.kind() {
        AppKind::Rack => {
            let name = penstock_apps::rack_env(app.config(), is_development);
            format!(" in {}", name.display())
        }
        _ => String::new(),
    }
}

/// How many processes run after the start, and at most.
fn describe_process_count(processes: Processes) -> String {
    let Processes { min, max } = processes;
    match (min, max) {
        (1, 1) => "1 process".to_owned(),
        (min, max) if min == max => format!("{max} processes"),
        (min, max) => format!("{min} of {max} processes"),
    }
}
