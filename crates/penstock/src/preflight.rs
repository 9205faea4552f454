//! Checks what a start needs from the machine besides a valid configuration: addresses, host names,
//! rights of `server.user`, descriptors, code that loads.
//!
//! Used by `penstock check` after the configuration was read, and by `listeners` to explain an
//! address that cannot be opened.
//!
//! # Invariants
//!
//! - Nothing is served, created or removed, and a running server is not disturbed: an address is
//!   bound without listening, and only when no other process has it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::{io, iter};

use penstock_config::{
    App, AppKind, Config, ControlSocket, Limits, ListenAddr, ServerAddr, SiteTls,
};
use penstock_edge::DescriptorBudget;
use penstock_runtime::{loops, start_tokio};
use penstock_sys::account::check_dir_writable;
use penstock_sys::port_owner::{PortOwner, find_port_owners};
use penstock_sys::process::Launcher;
use penstock_sys::{daemon, net, process};

use crate::accounts::{self, AppAccounts};
use crate::admin_token;
use crate::tls_service::TlsService;

#[derive(Debug, Default)]
pub(crate) struct PreflightReport {
    /// Reasons for a start to fail, a line each.
    pub(crate) errors: Vec<String>,
    /// Warnings for the operator, a line each.
    pub(crate) warnings: Vec<String>,
}

/// The expected number of clients, if none is configured.
const EXPECTED_MIN_CONNECTIONS: usize = 1024;

impl PreflightReport {
    /// Binds each address of the configuration once, without listening. Blocks.
    pub(crate) fn check_addresses(&mut self, config: &Config) {
        let server = &config.server;
        let http = server.listen.iter().map(|listener| &listener.address);
        let streams = config.tcp.iter().map(|stream| &stream.listen);
        let join = server.join.iter().map(|join| &join.listen);
        let control = match &server.control_socket {
            ControlSocket::Path(path) => Some(ListenAddr::Unix(path.clone())),
            ControlSocket::Auto | ControlSocket::Off => None,
        };
        let keys = [
            ("server.listen", http.collect::<Vec<_>>()),
            ("streams.listen", streams.collect()),
            ("server.join.listen", join.collect()),
            ("server.admin", server.admin.iter().collect()),
            ("server.probes", server.probes.iter().collect()),
            ("server.control_socket", control.iter().collect()),
        ];
        for (key, addresses) in keys {
            for address in addresses {
                match address {
                    ListenAddr::Tcp(tcp) => self.check_tcp(key, address, net::check_tcp_free(*tcp)),
                    ListenAddr::Port(port) => {
                        self.check_tcp(key, address, net::check_port_free(*port));
                    }
                    ListenAddr::Unix(path) => self.check_unix(key, path),
                }
            }
        }
    }

    /// Reads the token for changes over TCP as the start does: before the switch to another user.
    pub(crate) fn check_token(&mut self, config: &Config) {
        let read = admin_token::load_admin_token(config.server.admin_token.as_deref(), None);
        self.errors.extend(read.err());
    }

    /// Reads the certificates of all sites, as a start does. The local authority is left to the start,
    /// which may have to make it.
    pub(crate) fn check_certificates(&mut self, config: &Config) {
        let mut config = config.clone();
        config.sites.retain(|site| site.tls != SiteTls::Local);
        match TlsService::new().prepare(&config) {
            Ok(prepared) => {
                for problem in prepared.into_iter().flat_map(|prepared| prepared.problems) {
                    let findings = match problem.is_error {
                        true => &mut self.errors,
                        false => &mut self.warnings,
                    };
                    findings.push(problem.to_string());
                }
            }
            Err(errors) => self.errors.extend(errors.lines().map(str::to_owned)),
        }
    }

    fn check_tcp(&mut self, key: &str, address: &ListenAddr, probed: io::Result<()>) {
        let Err(error) = probed else {
            return;
        };
        let owner = find_owner(address);
        let text = format!("{key}: {}", explain_bind(address, &error, owner.as_ref()));
        let note = match owner {
            _ if error.kind() != io::ErrorKind::AddrInUse => None,
            Some(owner) if is_service_manager(&owner) => {
                Some("for a socket unit, which passes it to its service")
            }
            Some(owner) if !is_this_program(owner.pid) => None,
            _ => Some("a running penstock keeps it over `reload` and `upgrade`"),
        };
        match note {
            Some(note) => self.warnings.push(format!("{text} ({note})")),
            None => self.errors.push(text),
        }
    }

    fn check_unix(&mut self, key: &str, path: &Path) {
        let Some(folder) = path.parent() else {
            return;
        };
        if let Err(error) = check_dir_writable(folder) {
            let (path, folder) = (path.display(), folder.display());
            let text = format!("{key}: unix:{path}: cannot create a socket in {folder}: {error}");
            self.errors.push(text);
        }
    }

    /// Looks up the host names of upstreams. Blocks, at most a few seconds per name.
    pub(crate) fn check_host_names(&mut self, config: &Config) -> io::Result<()> {
        let servers = config.upstreams.iter().flat_map(|(name, upstream)| {
            let servers = upstream.servers.iter();
            servers.map(move |server| (name, &server.address))
        });
        let is_name =
            |address: &ServerAddr| matches!(address, ServerAddr::Name { .. } | ServerAddr::Srv(_));
        let names: Vec<_> = servers.filter(|(_, address)| is_name(address)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let tokio = start_tokio()?;
        let _entered = tokio.enter();
        for (upstream, address) in names {
            if let Err(error) = loops::block_on(penstock_proxy::count_addresses(address))? {
                let text = format!("upstreams.{upstream}.servers: {address}: {error}");
                self.errors.push(text);
            }
        }
        Ok(())
    }

    /// Switches to `server.user`, if this is root, and checks that it can use the configured paths.
    /// The switch cannot be undone: checks that need root come before. Blocks.
    pub(crate) fn check_user(&mut self, config: &Config, cwd: &Path) {
        let account = match accounts::account_to_switch_to(&config.server) {
            Ok(Some(account)) => account,
            Ok(None) => return,
            Err(error) => return self.warnings.push(format!("{error}: not checked")),
        };
        let variables = daemon::set_env_vars(&account.env_vars());
        let variables = variables.map_err(|error| format!("the environment: {error}"));
        let assumed =
            variables.and_then(|()| account.switch_user_and_check(config, cwd, iter::empty()));
        self.errors.extend(assumed.err());
    }

    /// Starts the launcher that runs programs as applications' own users, if there are any; before
    /// this process switches to the server's user.
    pub(crate) fn start_launcher(
        &mut self,
        config: &Config,
    ) -> io::Result<Option<(Launcher, AppAccounts)>> {
        let server = accounts::configured_account(&config.server).ok().flatten();
        let accounts = match AppAccounts::resolve(config, server.as_ref()) {
            Ok(accounts) if accounts.has_separate_users() => accounts,
            Ok(_) => return Ok(None),
            Err(error) if penstock_sys::account::effective_ids().0 != 0 => {
                self.warnings.push(format!("{error}: not checked"));
                return Ok(None);
            }
            Err(error) => {
                self.errors.push(error);
                return Ok(None);
            }
        };
        // Without cgroups: the service's own bounds apply while code is loaded.
        let launcher = Launcher::start(
            &accounts.launcher_privileges(server.as_ref(), None, Vec::new()),
            || Ok(()),
        )?;
        Ok(Some((launcher, accounts)))
    }

    /// Finds symbolic links in served directories that are not followed: their targets get 404
    /// although they are plainly there.
    pub(crate) fn check_symlinks(&mut self, config: &Config) {
        let routes = config.sites.iter().flat_map(|site| &site.routes);
        let mut folders: Vec<_> = routes.filter_map(|route| route.files.as_ref()).collect();
        folders.sort_by(|one, other| one.root.cmp(&other.root));
        folders.dedup_by(|one, other| one.root == other.root && one.symlinks == other.symlinks);
        for files in folders {
            // An unreadable directory is no link; access is checked elsewhere.
            for link in penstock_files::find_unfollowed_links(files).unwrap_or_default() {
                let text = penstock_files::explain_unfollowed_link(&files.root, &link);
                self.warnings.push(format!("404 for {text}"));
            }
        }
    }

    /// Loads the code of each application in a process that serves nothing and ends at once.
    /// Blocks, at most the application's `boot_timeout` for each.
    pub(crate) fn check_applications(
        &mut self,
        config: &Config,
        launcher: Option<&(Launcher, AppAccounts)>,
    ) -> io::Result<()> {
        let is_program =
            |app: &&App| matches!(app.kind, AppKind::Command | AppKind::FastCgi | AppKind::Job);
        for app in config.apps.values().filter(|app| !is_program(app)) {
            let account = match launcher
                .map(|(_, accounts)| accounts.account_of(app))
                .transpose()
            {
                Ok(account) => account.flatten(),
                Err(error) => {
                    self.errors.push(error);
                    continue;
                }
            };
            let launcher = launcher.map(|(launcher, _)| launcher);
            if let Err(report) =
                loops::block_on(penstock_apps::check_boot(app, launcher.zip(account)))?
            {
                let report = report.trim_end();
                let text = format!("apps.{}: the code does not load\n{report}", app.name);
                self.errors.push(text);
            }
        }
        Ok(())
    }

    /// Compares `limits.connections` with the descriptors that this process may open. The
    /// default, which most systems cannot reach, is compared only when there are very few.
    pub(crate) fn check_descriptors(&mut self, config: &Config) {
        let Some(allowed) = config
            .server
            .max_open_files
            .or_else(process::max_open_files)
        else {
            return;
        };
        let budget = DescriptorBudget::new(Some(allowed));
        let wanted = match config.limits.max_connections {
            default if default == Limits::default().max_connections => EXPECTED_MIN_CONNECTIONS,
            wanted => wanted,
        };
        if let Some(most) = budget.max_connections().filter(|most| *most < wanted) {
            self.warnings.push(format!(
                "limits.connections: {} clients, but this process may open {allowed} \
                 files and connections, and keeps {} of them for servers, workers and files: \
                 {most} clients at most. Raise the limit (LimitNOFILE= in systemd, `ulimit -Hn`, \
                 server.max_open_files) or lower limits.connections",
                config.limits.max_connections,
                budget.reserved(),
            ));
        }
    }
}

/// Explains why `address` cannot be listened on, and what to do. Blocks.
pub(crate) fn explain_listen_error(address: &ListenAddr, error: &io::Error) -> String {
    match address {
        ListenAddr::Tcp(_) | ListenAddr::Port(_) if error.kind() == io::ErrorKind::AddrInUse => {
            explain_bind(address, error, find_owner(address).as_ref())
        }
        ListenAddr::Tcp(_) | ListenAddr::Port(_) => explain_bind(address, error, None),
        ListenAddr::Unix(_) if error.kind() == io::ErrorKind::AddrInUse => {
            format!("{address}: {error}: another program listens there")
        }
        ListenAddr::Unix(_) => format!("{address}: {error}"),
    }
}

/// What to do about an address for clients that cannot be listened on as it is in use: another one,
/// as `--listen` takes it. Empty for another error.
pub(crate) fn suggest_other_address(address: &ListenAddr, error: &io::Error) -> String {
    let is_in_use = error.kind() == io::ErrorKind::AddrInUse;
    match address_beside(address).filter(|_| is_in_use) {
        Some(other) => format!(" (for another address: `listen`, or --listen {other})"),
        None => String::new(),
    }
}

/// An address beside this one. `None` beyond the highest port.
fn address_beside(address: &ListenAddr) -> Option<String> {
    let beside = |port: u16| match port {
        // As a server without root would have it: 8080 and 8443.
        0..1024 => Some(8000 + port),
        _ => port.checked_add(1),
    };
    match address {
        ListenAddr::Tcp(address) => {
            Some(SocketAddr::new(address.ip(), beside(address.port())?).to_string())
        }
        ListenAddr::Port(port) => Some(format!(":{}", beside(*port)?)),
        ListenAddr::Unix(_) => None,
    }
}

/// The process that listens on `address`, in either family: one of this program before any other,
/// and a service manager only when it alone holds the socket.
fn find_owner(address: &ListenAddr) -> Option<PortOwner> {
    match address {
        ListenAddr::Tcp(address) => select_owner(find_port_owners(*address)),
        ListenAddr::Port(port) => {
            let every = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            let mut every = every
                .map(|ip: IpAddr| SocketAddr::new(ip, *port))
                .into_iter();
            every.find_map(|address| select_owner(find_port_owners(address)))
        }
        ListenAddr::Unix(_) => None,
    }
}

fn explain_bind(address: &ListenAddr, error: &io::Error, owner: Option<&PortOwner>) -> String {
    let hint = match (error.kind(), owner) {
        (io::ErrorKind::AddrInUse, Some(PortOwner { pid, name })) => {
            format!(": `{name}` (process {pid}) listens there")
        }
        (io::ErrorKind::AddrInUse, None) => ": another program listens there".to_owned(),
        (io::ErrorKind::PermissionDenied, _) => ": ports below 1024 need root, CAP_NET_BIND_SERVICE (AmbientCapabilities= in systemd) or a \
             lower net.ipv4.ip_unprivileged_port_start"
            .to_owned(),
        (io::ErrorKind::AddrNotAvailable, _) => ": this machine has no such address".to_owned(),
        _ => String::new(),
    };
    format!("{address}: {error}{hint}")
}

fn select_owner(owners: Vec<PortOwner>) -> Option<PortOwner> {
    let rank = |owner: &PortOwner| match owner {
        owner if is_this_program(owner.pid) => 0,
        owner if is_service_manager(owner) => 2,
        _ => 1,
    };
    owners.into_iter().min_by_key(rank)
}

/// Whether a process holds sockets for others to serve: the system's or a user's systemd.
fn is_service_manager(owner: &PortOwner) -> bool {
    owner.name == "systemd"
}

/// Whether a process runs a program of this name, in any version.
fn is_this_program(pid: u32) -> bool {
    let own = std::env::current_exe().ok();
    let other = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let name = |path: Option<PathBuf>| {
        let name = path?.file_name()?.to_str()?.to_owned();
        // Replaced on disk since it was started (proc(5)).
        Some(name.trim_end_matches(" (deleted)").to_owned())
    };
    name(own) == name(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_address_is_suggested_for_one_in_use() {
        let rows = [
            ("127.0.0.1:8080", "--listen 127.0.0.1:8081)"),
            ("127.0.0.1:80", "--listen 127.0.0.1:8080)"),
            ("[::1]:443", "--listen [::1]:8443)"),
            (":8080", "--listen :8081)"),
            (":65535", ""),
            ("unix:/run/x.sock", ""),
        ];
        let in_use = io::Error::from(io::ErrorKind::AddrInUse);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        for (address, expected) in rows {
            let address: ListenAddr = address.parse().unwrap();
            let text = suggest_other_address(&address, &in_use);
            assert!(text.ends_with(expected), "{address}: {text}");
            assert_eq!(text.is_empty(), expected.is_empty(), "{address}: {text}");
            assert_eq!(suggest_other_address(&address, &denied), "");
        }
    }
}
