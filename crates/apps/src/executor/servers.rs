//! Processes that are servers of their own, any program that speaks HTTP or FastCGI, and jobs.
//!
//! The executor's part for `command`, `fastcgi` and jobs. A process gets its address
//! (`listen_address`), is ready once it answers there (`probe`), and then belongs to the upstream
//! behind the `ServerSet`. To retire it, it is removed from the set; when nothing is in progress,
//! SIGTERM follows. A job has no address: it is ready once it has lived for a moment, and SIGTERM
//! comes at once.
//!
//! # Invariants
//! - The set never has the address of a process whose end was seen.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{App, AppKind, ServerAddr, UpstreamServer};
use penstock_runtime::{clock, loops};
use penstock_sys::account::Account;
use penstock_sys::cgroup::AppCgroup;
use penstock_sys::isolation::AccessRules;
use penstock_sys::process;

use super::access;
use super::listen_address::{ListenAddress, ListenPlaceholder, SocketDir, SocketFile};
use super::probe::{ReadinessProbe, ReadinessSign};
use super::process_task::ReadinessSource;
use super::workers::{process_environment, process_sandbox};
use super::{ChildProcess, Executor, ExecutorInput, PreparedProcess, ProcessRole};
use crate::program_name::program_name;
use crate::server_set::ServerSet;
use crate::shared::DispatchMode;
use crate::supervisor::WorkerId;

/// The time between two checks of what a server that is to end still has in progress.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The variable by which programs of platforms are told their port.
const PORT: &str = "PORT";

/// Where a process listens, and whether the set knows.
#[derive(Debug)]
pub(super) struct ListedServer {
    /// `None` for a job, which does not listen.
    address: Option<ServerAddr>,
    is_in_set: bool,
    /// Removed with the process.
    _socket_file: Option<SocketFile>,
}

impl ListedServer {
    pub(super) fn address(&self) -> Option<&ServerAddr> {
        self.address.as_ref()
    }
}

impl Executor {
    /// A process's address for a report that it does not answer there.
    pub(super) fn describe_address(&self, address: &ServerAddr) -> String {
        match ListenPlaceholder::find_in(&self.config) {
            Ok(ListenPlaceholder::Variable) => format!("{address} (the port in its {PORT})"),
            _ => address.to_string(),
        }
    }

    pub(super) fn prepare_server(&mut self, worker: WorkerId) -> Result<PreparedProcess, String> {
        if self.config.kind == AppKind::Job {
            return Ok(self.prepare_job());
        }
        let blank = ListenPlaceholder::find_in(&self.config)?;
        let place = self.open_listen_address(blank, worker);
        let place = place.map_err(|error| format!("no place to listen: {error}"))?;
        let words = place.fill_command(&self.config);
        let launch = process::ProcessSpec {
            env: self.server_environment(blank, &place.address),
            placed_fds: place.listener.into_iter().collect(),
            access: self.server_access(&place.address),
            ..self.program_spec(words)
        };
        let program = program_name(&self.config.command);
        Ok(PreparedProcess {
            launch,
            readiness: ReadinessSource::Probe(ReadinessProbe {
                address: Some(place.address.clone()),
                sign: readiness_sign(self.config.kind, blank),
                deadline: clock::now() + self.config.boot_timeout,
                program,
            }),
            role: ProcessRole::Server(ListedServer {
                address: Some(place.address),
                is_in_set: false,
                _socket_file: place.socket_file,
            }),
            control: None,
            reserved_port: place.reserved_port,
        })
    }

    fn prepare_job(&self) -> PreparedProcess {
        let words = self.config.command.iter().map(OsString::from).collect();
        PreparedProcess {
            launch: self.program_spec(words),
            readiness: ReadinessSource::Probe(ReadinessProbe {
                address: None,
                sign: ReadinessSign::StaysAlive,
                deadline: clock::now() + self.config.boot_timeout,
                program: program_name(&self.config.command),
            }),
            role: ProcessRole::Server(ListedServer {
                address: None,
                is_in_set: false,
                _socket_file: None,
            }),
            control: None,
            reserved_port: None,
        }
    }

    /// How a command line of the application runs.
    fn program_spec(&self, words: Vec<OsString>) -> process::ProcessSpec {
        let cgroup = self.shared.cgroup.as_deref();
        program_spec(&self.config, self.account.as_ref(), cgroup, words)
    }

    fn open_listen_address(
        &mut self,
        blank: ListenPlaceholder,
        worker: WorkerId,
    ) -> io::Result<ListenAddress> {
        let name = format!("{worker}.sock");
        match blank {
            ListenPlaceholder::Port | ListenPlaceholder::Variable => {
                ListenAddress::reserve_port(|address| self.is_address_taken(address))
            }
            ListenPlaceholder::Descriptor => ListenAddress::bind_port(),
            ListenPlaceholder::Socket => {
                ListenAddress::reserve_socket_path(self.socket_dir()?, &name)
            }
            ListenPlaceholder::Stdin => ListenAddress::bind_socket(self.socket_dir()?, &name),
        }
    }

    /// A child that is ending keeps its address until nothing more can be in progress there.
    fn is_address_taken(&self, address: &ServerAddr) -> bool {
        let starting = self
            .pending_launches
            .values()
            .filter_map(|it| it.role.as_ref());
        let children = self.children.values().map(|child| &child.role);
        let mut roles = children.chain(starting);
        roles.any(
            |role| matches!(role, ProcessRole::Server(listed) if listed.address() == Some(address)),
        ) || self
            .server_set()
            .is_some_and(|set| set.in_progress(address) > 0)
    }

    fn socket_dir(&mut self) -> io::Result<&SocketDir> {
        if self.socket_dir.is_none() {
            let parent = self.shared.buffering_settings.load().temp_dir.clone();
            self.socket_dir = Some(SocketDir::create(&parent, &self.config.name)?);
        }
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.socket_dir.as_ref().ok_or_else(missing)
    }

    /// What its process may use: where it is to listen, too.
    fn server_access(&self, address: &ServerAddr) -> AccessRules {
        let mut access = access::access_rules(&self.config);
        match address {
            ServerAddr::Tcp(address) => {
                (access.bind_ports.iter_mut()).for_each(|ports| ports.push(address.port()));
            }
            ServerAddr::Unix(path) => {
                if let (Some(files), Some(folder)) = (&mut access.files, path.parent()) {
                    files.write.push(access::resolve_parent(folder));
                }
            }
            // No address that a program can be given to listen on.
            ServerAddr::Name { .. } | ServerAddr::Srv(_) | ServerAddr::Joined(_) => {}
        }
        access
    }

    fn server_environment(
        &self,
        blank: ListenPlaceholder,
        address: &ServerAddr,
    ) -> Vec<(OsString, OsString)> {
        let mut env = process_environment(&self.config, self.account.as_ref());
        match (blank, address) {
            (ListenPlaceholder::Port, ServerAddr::Tcp(address)) => {
                env.insert(0, (PORT.into(), address.port().to_string().into()));
            }
            // The only place that names the port: a `PORT` of the server's own does not hide it.
            (ListenPlaceholder::Variable, ServerAddr::Tcp(address)) => {
                env.retain(|(name, _)| name != PORT);
                env.push((PORT.into(), address.port().to_string().into()));
            }
            // With `LISTEN_PID`, which the process itself has to set.
            (ListenPlaceholder::Descriptor, _) => {
                env.insert(0, ("LISTEN_FDS".into(), "1".into()));
            }
            _ => {}
        }
        env
    }
}

/// How a program of an application runs: its folder, its environment, its limits.
pub(crate) fn program_spec(
    config: &App,
    account: Option<&Account>,
    cgroup: Option<&AppCgroup>,
    words: Vec<OsString>,
) -> process::ProcessSpec {
    let mut words = words.into_iter();
    process::ProcessSpec {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        dir: config.dir.clone(),
        env: process_environment(config, account),
        account: account.map(|account| account.name.clone()),
        group: cgroup.map(|cgroup| cgroup.name().to_owned()),
        inherited_fds: Vec::new(),
        placed_fds: Vec::new(),
        sandbox: process_sandbox(config),
        access: access::access_rules(config),
        app: config.name.clone(),
    }
}

/// What shows that a process that listens in that way is ready.
fn readiness_sign(kind: AppKind, blank: ListenPlaceholder) -> ReadinessSign {
    match (kind, blank) {
        // That it listens at a port is seen by connecting only.
        (AppKind::FastCgi, ListenPlaceholder::Port | ListenPlaceholder::Variable) => {
            ReadinessSign::AcceptsConnections
        }
        (
            AppKind::FastCgi,
            ListenPlaceholder::Socket | ListenPlaceholder::Descriptor | ListenPlaceholder::Stdin,
        ) => ReadinessSign::StaysAlive,
        (_, ListenPlaceholder::Port | ListenPlaceholder::Variable | ListenPlaceholder::Socket) => {
            ReadinessSign::AcceptsConnections
        }
        (_, ListenPlaceholder::Descriptor | ListenPlaceholder::Stdin) => {
            ReadinessSign::ClosesConnections
        }
    }
}

impl Executor {
    fn server_set(&self) -> Option<&Arc<dyn ServerSet>> {
        match &self.shared.dispatch_mode {
            DispatchMode::Servers(set) => Some(set),
            DispatchMode::Workers(_) => None,
        }
    }

    pub(super) fn add_to_server_set(&mut self, worker: WorkerId) {
        let DispatchMode::Servers(set) = &self.shared.dispatch_mode else {
            return;
        };
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        if let ProcessRole::Server(listed) = &mut child.role
            && let Some(address) = listed.address.clone()
        {
            listed.is_in_set = true;
            let server = UpstreamServer::new(address);
            set.add(server, child.process.generation);
        }
    }

    /// Takes a process out of the set, if it is in.
    pub(super) fn remove_from_server_set(&mut self, worker: WorkerId) {
        let DispatchMode::Servers(set) = &self.shared.dispatch_mode else {
            return;
        };
        let role = self.children.get_mut(&worker).map(|child| &mut child.role);
        if let Some(ProcessRole::Server(listed)) = role
            && std::mem::take(&mut listed.is_in_set)
            && let Some(address) = &listed.address
        {
            set.remove(address);
        }
    }

    /// Gives a process no more requests; `true` when none is in progress, else `Input::Idle`
    /// follows.
    pub(super) fn retire_server(&mut self, worker: WorkerId) -> bool {
        self.remove_from_server_set(worker);
        let listed = self.children.get(&worker).and_then(ChildProcess::server);
        let (Some(set), Some(listed)) = (self.server_set(), listed) else {
            return false;
        };
        let Some(address) = listed.address.clone() else {
            // What a job has in progress ends between its SIGTERM and `stop_timeout`.
            return true;
        };
        if set.in_progress(&address) == 0 {
            return true;
        }
        let set = Arc::clone(set);
        let inputs = self.inputs.clone();
        let until = clock::now() + self.retire_timeout();
        loops::spawn_here(async move {
            while set.in_progress(&address) > 0 && clock::now() < until {
                clock::sleep(IDLE_CHECK_INTERVAL).await;
            }
            // The executor may have ended: a drain has a deadline of its own.
            let call = ExecutorInput::call(move |it| it.handle_idle(worker));
            let _ = inputs.send(call).await;
        });
        false
    }

    /// Whether a process does not come to an end with as many requests as it takes at once: it is
    /// not asked what it does, only what comes of it.
    pub(super) fn is_server_stuck(&self, listed: &ListedServer) -> bool {
        let set = self.server_set().filter(|_| listed.is_in_set);
        set.zip(listed.address()).is_some_and(|(set, address)| {
            set.consecutive_timeouts(address) >= self.config.threads.max(1)
        })
    }

    /// How long requests that a retiring process has may take: as long as the upstream lets one
    /// take, or, where that is without end, until an answer has begun and stalled. What goes on
    /// beyond, an upgraded connection above all, ends as the process does on SIGTERM.
    fn retire_timeout(&self) -> Duration {
        let upstream = self.config.upstream.as_deref();
        upstream.map_or(self.config.response_timeout, |upstream| {
            let unbounded = upstream.response_timeout + upstream.body_idle_timeout;
            upstream.total_timeout.unwrap_or(unbounded)
        })
    }
}
