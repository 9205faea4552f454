//! The addresses of a configuration: whether a start may listen on them, and which process has one
//! that is in use.
//!
//! Part of `preflight`; `listeners` uses the explanations at a start and a reload.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use penstock_config::{Config, ControlSocket, ListenAddr, TcpTls};
use penstock_sys::account::check_dir_writable;
use penstock_sys::net;
use penstock_sys::port_owner::{PortOwner, find_port_owners};

use super::PreflightReport;
use crate::cli::{RunningServer, find_running_servers};
use crate::inherited_listeners::ListenerRole;
use crate::listeners;

/// An address of the configuration, with its option.
#[derive(Debug, Clone, Copy)]
struct CheckedAddress<'c> {
    key: &'static str,
    role: ListenerRole,
    has_tls: bool,
    address: &'c ListenAddr,
}

impl CheckedAddress<'_> {
    /// Its name, as a start prints it.
    fn name(self) -> String {
        listeners::printed_name(self.address, self.role, self.has_tls)
    }
}

/// All addresses that a start of this configuration listens on, but the control socket.
fn addresses(config: &Config) -> Vec<CheckedAddress<'_>> {
    let server = &config.server;
    let http = server.listen.iter().map(|listener| CheckedAddress {
        key: "server.listen",
        role: ListenerRole::Http,
        has_tls: listener.has_tls,
        address: &listener.address,
    });
    let tcp = config.tcp.iter().map(|frontend| CheckedAddress {
        key: "tcp.listen",
        role: ListenerRole::Tcp,
        has_tls: frontend.tls != TcpTls::Off,
        address: &frontend.listen,
    });
    let join = server.join.iter().map(|join| CheckedAddress {
        key: "server.join.listen",
        role: ListenerRole::Tcp,
        has_tls: join.tls,
        address: &join.listen,
    });
    let inner = [
        ("server.admin", ListenerRole::Admin, &server.admin),
        ("server.probes", ListenerRole::Probes, &server.probes),
    ];
    let inner = inner.into_iter().filter_map(|(key, role, address)| {
        Some(CheckedAddress {
            key,
            role,
            has_tls: false,
            address: address.as_ref()?,
        })
    });
    http.chain(tcp).chain(join).chain(inner).collect()
}

impl PreflightReport {
    /// Binds each address of the configuration once, without listening. Blocks.
    ///
    /// An address that the running server of this configuration holds is fine: `folder` is the one
    /// that it was started in, where there is no file.
    pub(crate) fn check_addresses(&mut self, config: &Config, folder: &Path) {
        if let ControlSocket::Path(path) = &config.server.control_socket {
            self.check_unix("server.control_socket", path);
        }
        let mut held = Vec::new();
        for checked in addresses(config) {
            let probed = match checked.address {
                ListenAddr::Tcp(tcp) => net::check_tcp_free(*tcp),
                ListenAddr::Port(port) => net::check_port_free(*port),
                ListenAddr::Unix(path) => {
                    self.check_unix(checked.key, path);
                    continue;
                }
            };
            let Err(error) = probed else {
                continue;
            };
            if error.kind() != io::ErrorKind::AddrInUse {
                let text = explain_bind(&checked.name(), &error, None);
                self.errors.push(format!("{}: {text}", checked.key));
                continue;
            }
            let owner = AddressOwner::find(checked.address, || {
                self.running.get_or_insert_with(find_running_servers)
            });
            let file = config.path.as_deref();
            match owner {
                AddressOwner::Server(server) if server.serves(file, folder) => {
                    held.push((server.pid, checked.name()));
                }
                owner => self.report_address(checked, &error, &owner),
            }
        }
        if let Some((pid, _)) = held.first() {
            let names: Vec<&str> = held.iter().map(|(_, name)| name.as_str()).collect();
            self.notes.push(format!(
                "the running server of this configuration (process {pid}) has {}",
                names.join(", ")
            ));
        }
    }

    fn report_address(
        &mut self,
        checked: CheckedAddress<'_>,
        error: &io::Error,
        owner: &AddressOwner,
    ) {
        let text = explain_bind(&checked.name(), error, owner.describe());
        let text = format!("{}: {text}", checked.key);
        let note = match owner {
            AddressOwner::Process(owner) if is_service_manager(owner) => {
                Some("for a socket unit, which passes it to its service")
            }
            // A server of another configuration keeps it.
            AddressOwner::Server(_) => None,
            AddressOwner::Process(owner) if !is_this_program(owner.pid) => None,
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
}

/// Explains why `address`, printed as `name`, cannot be listened on, and what to do. Blocks; at a
/// start until the server that has it has answered.
pub(crate) fn explain_listen_error(
    address: &ListenAddr,
    name: &str,
    error: &io::Error,
    is_start: bool,
) -> String {
    match address {
        ListenAddr::Tcp(_) | ListenAddr::Port(_) if error.kind() == io::ErrorKind::AddrInUse => {
            let mut running = Vec::new();
            let owner = AddressOwner::find(address, || {
                if is_start {
                    running = find_running_servers();
                }
                &running
            });
            explain_bind(name, error, owner.describe())
        }
        ListenAddr::Tcp(_) | ListenAddr::Port(_) => explain_bind(name, error, None),
        ListenAddr::Unix(_) if error.kind() == io::ErrorKind::AddrInUse => {
            format!("{address}: {error}: another program listens there")
        }
        ListenAddr::Unix(_) => format!("{address}: {error}"),
    }
}

/// What listens on an address that is in use.
#[derive(Debug, Clone)]
enum AddressOwner {
    /// A server that answers at its control socket.
    Server(RunningServer),
    /// A process that `/proc` shows.
    Process(PortOwner),
    Unknown,
}

impl AddressOwner {
    /// Finds the owner; `running` are the servers that answer, asked only where one may be it.
    /// The descriptors of a server are hidden from other processes of its user. Blocks.
    fn find<'r>(address: &ListenAddr, running: impl FnOnce() -> &'r Vec<RunningServer>) -> Self {
        let process = find_owner(address);
        let server = match &process {
            Some(owner) if !is_this_program(owner.pid) => None,
            Some(owner) => running().iter().find(|server| server.pid == owner.pid),
            None => running().iter().find(|server| server.listens_at(address)),
        };
        match (server, process) {
            (Some(server), _) => Self::Server(server.clone()),
            (None, Some(process)) => Self::Process(process),
            (None, None) => Self::Unknown,
        }
    }

    /// Its name for a message, with the process; a server with its configuration.
    fn describe(&self) -> Option<String> {
        match self {
            Self::Server(server) => Some(format!("{} (process {})", server.name(), server.pid)),
            Self::Process(PortOwner { pid, name }) => Some(format!("`{name}` (process {pid})")),
            Self::Unknown => None,
        }
    }
}

/// What to do about an address that cannot be listened on as it is in use: another one, by these
/// options, and another `admin` address where that is in use as well. Empty for another error.
pub(crate) fn suggest_other_address(
    address: &ListenAddr,
    options: &str,
    error: &io::Error,
    admin: Option<&ListenAddr>,
) -> String {
    let is_in_use = error.kind() == io::ErrorKind::AddrInUse;
    let Some(other) = address_beside(address).filter(|_| is_in_use) else {
        return String::new();
    };
    let admin = admin.filter(|admin| is_taken(admin));
    let admin = admin.and_then(address_beside);
    let admin = admin.map_or_else(String::new, |other| format!(" --admin {other}"));
    format!(" (for another address: {options} {other}{admin})")
}

/// Whether another process listens on an address.
fn is_taken(address: &ListenAddr) -> bool {
    let probed = match address {
        ListenAddr::Tcp(address) => net::check_tcp_free(*address),
        ListenAddr::Port(port) => net::check_port_free(*port),
        ListenAddr::Unix(_) => Ok(()),
    };
    probed.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
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

fn explain_bind(address: &str, error: &io::Error, owner: Option<String>) -> String {
    let hint = match (error.kind(), owner) {
        (io::ErrorKind::AddrInUse, Some(owner)) => {
            format!(": {owner} listens there")
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
    fn an_address_is_named_as_a_start_prints_it() {
        let text = "[server]\nlisten = [\"127.0.0.1:80\", { address = \"127.0.0.1:443\", tls = true }]\n\
                    admin = \"127.0.0.1:8090\"\nprobes = \":8081\"\n\
                    [upstreams.a]\nservers = [\"127.0.0.1:1\"]\n\
                    [[tcp]]\nlisten = \":25\"\nupstream = \"a\"\n\
                    [[sites]]\ntls = \"local\"\nhosts = [\"localhost\"]\n[[sites.routes]]\nupstream = \"a\"\n";
        let config = penstock_config::parse(text, Path::new("/srv/penstock.toml")).unwrap();
        let all = addresses(&config);
        let all: Vec<_> = all.iter().map(|it| (it.key, it.name())).collect();
        let expected = [
            ("server.listen", "http://127.0.0.1:80"),
            ("server.listen", "https://127.0.0.1:443"),
            ("tcp.listen", "tcp://*:25"),
            ("server.admin", "http://127.0.0.1:8090"),
            ("server.probes", "http://*:8081"),
        ];
        assert_eq!(all, expected.map(|(key, name)| (key, name.to_owned())));
    }

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
            let text = suggest_other_address(&address, "--listen", &in_use, None);
            assert!(text.ends_with(expected), "{address}: {text}");
            assert_eq!(text.is_empty(), expected.is_empty(), "{address}: {text}");
            assert_eq!(
                suggest_other_address(&address, "--listen", &denied, None),
                ""
            );
        }
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let admin = ListenAddr::loopback(port);
        let address = ListenAddr::loopback(8080);
        let text = suggest_other_address(&address, "--listen", &in_use, Some(&admin));
        let beside = address_beside(&admin).unwrap();
        assert!(
            text.ends_with(&format!("127.0.0.1:8081 --admin {beside})")),
            "{text}"
        );
        drop(taken);
        let text = suggest_other_address(&address, "--listen", &in_use, Some(&admin));
        assert!(text.ends_with("127.0.0.1:8081)"), "{text}");
    }
}
