//! Opens listening sockets, one per event loop, and keeps them over reloads and upgrades.
//!
//! Used by `server` at start and at reload. HTTP listeners, `[[tcp]]` and `server.join` are for
//! clients and follow the configuration; the admin interface, the control socket and the probes
//! stay as they were at start.
//!
//! # Invariants
//!
//! - All sockets are opened before anything else changes: an address in use is an error, not half a
//!   start.
//! - A listener that a reload changes (PROXY headers, TLS, or HTTP to TCP) shares its sockets with its
//!   replacement, so that no connection is lost and a refused reload changes nothing.
//! - Sockets that the previous server or a service manager passed are used, not opened again.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_config::{Config, ListenAddr, TcpFrontend, TcpTls};
use penstock_edge::{Edge, TunnelSwitch};
use penstock_exchange::ListenerInfo;
use penstock_runtime::{Drain, LoopHandle, loops};
use penstock_sys::account;
use penstock_sys::fd_packets::ListenAddress;
use penstock_sys::net::{self, SocketAccess};
use penstock_sys::peer_process;

use crate::inherited_listeners::{InheritedListener, InheritedListeners, ListenerRole};
use crate::preflight::{explain_listen_error, suggest_other_address};

/// Existing sockets that a configuration can use instead of opening new ones.
#[derive(Debug)]
pub(crate) struct SocketSource<'s> {
    pub(crate) config: &'s Config,
    /// Active listeners that the new configuration removes.
    pub(crate) removed: Vec<&'s Listener>,
    /// Sockets that were passed to this process.
    pub(crate) inherited: InheritedListeners,
    /// Whether the process only starts, and may wait for an answer of the server that has an address.
    pub(crate) is_start: bool,
}

/// Default permissions of a Unix socket: front ends run as other users.
const PUBLIC_SOCKET_MODE: u32 = 0o666;

/// Permissions of a Unix socket for changes: the user that starts the server, and root.
const PRIVATE_SOCKET_MODE: u32 = 0o600;

/// The port that an `https` URL means without one.
const HTTPS_PORT: u16 = 443;

/// A listener: bound, then accepting.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) role: ListenerRole,
    pub(crate) configured_address: ListenAddr,
    /// Its number among the listeners with that role and address, in the order of the configuration:
    /// port 0 may be there several times.
    pub(crate) ordinal: usize,
    info: Arc<ListenerInfo>,
    /// At least one for each loop, until it accepts.
    sockets: Vec<OwnedFd>,
    /// Duplicates of `sockets`, for a replacement at this address.
    spare_sockets: Vec<OwnedFd>,
    /// The file of a Unix socket that this process created, until it accepts.
    unserved_file: Option<PathBuf>,
    /// Whether the configuration gives that file an owner.
    has_owner: bool,
    /// Whether another process owns the socket's file, which then stays at the end.
    pub(crate) is_borrowed: bool,
    stop: Drain,
    /// The receiver of a TCP listener's connections.
    pub(crate) switch: Option<Arc<TunnelSwitch>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.unserved_file {
            // Removed already, or not removable: the next start replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a listener's connections are, from their first byte on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenerKind {
    role: ListenerRole,
    ordinal: usize,
    /// They begin with a PROXY header.
    proxy_protocol: bool,
    /// They have TLS.
    has_tls: bool,
}

impl From<ListenerRole> for ListenerKind {
    fn from(role: ListenerRole) -> Self {
        Self {
            role,
            ordinal: 0,
            proxy_protocol: false,
            has_tls: false,
        }
    }
}

/// A listener for clients in a configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientListener<'c> {
    address: &'c ListenAddr,
    ordinal: usize,
    proxy_protocol: bool,
    has_tls: bool,
    pub(crate) target: ListenerTarget<'c>,
}

/// The receiver of a listener's connections.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ListenerTarget<'c> {
    Http,
    /// The upstreams of a TCP listener, by its index in `tcp`.
    Tcp(usize, &'c TcpFrontend),
    /// The handshake of joining servers.
    Join,
}

impl ClientListener<'_> {
    fn kind(&self) -> ListenerKind {
        ListenerKind {
            role: self.role(),
            ordinal: self.ordinal,
            proxy_protocol: self.proxy_protocol,
            has_tls: self.has_tls,
        }
    }

    fn role(&self) -> ListenerRole {
        match self.target {
            ListenerTarget::Http => ListenerRole::Http,
            ListenerTarget::Tcp(..) | ListenerTarget::Join => ListenerRole::Tcp,
        }
    }
}

fn client_listeners(config: &Config) -> Vec<ClientListener<'_>> {
    let server = &config.server;
    let http = server.listen.iter().map(|listener| ClientListener {
        address: &listener.address,
        ordinal: 0,
        proxy_protocol: listener.proxy_protocol,
        has_tls: listener.has_tls,
        target: ListenerTarget::Http,
    });
    let tcp = config
        .tcp
        .iter()
        .enumerate()
        .map(|(index, stream)| ClientListener {
            address: &stream.listen,
            ordinal: 0,
            proxy_protocol: stream.proxy_protocol,
            has_tls: stream.tls != TcpTls::Off,
            target: ListenerTarget::Tcp(index, stream),
        });
    let join = server.join.iter().map(|join| ClientListener {
        address: &join.listen,
        ordinal: 0,
        proxy_protocol: false,
        has_tls: join.tls,
        target: ListenerTarget::Join,
    });
    let mut all: Vec<ClientListener<'_>> = http.chain(tcp).chain(join).collect();
    for index in 1..all.len() {
        let (earlier, rest) = all.split_at_mut(index);
        let is_same =
            |it: &&ClientListener<'_>| it.role() == rest[0].role() && it.address == rest[0].address;
        rest[0].ordinal = earlier.iter().filter(is_same).count();
    }
    all
}

/// Opens the clients' listeners that are missing in `kept`, with sockets from `source` where it has
/// them.
pub(crate) fn open_missing(
    kept: &[Listener],
    source: &mut SocketSource<'_>,
    loops: usize,
) -> Result<Vec<Listener>, String> {
    client_listeners(source.config)
        .into_iter()
        .filter(|wanted| !kept.iter().any(|listener| listener.is(wanted)))
        .map(|wanted| open_listener(wanted.address, wanted.kind(), source, loops))
        .collect()
}

/// The port that requests without TLS are redirected to: 443 if there is a listener, else that of the
/// first.
pub(crate) fn https_port<'l>(listeners: impl Iterator<Item = &'l Listener>) -> Option<u16> {
    let mut ports = listeners.filter_map(Listener::https_port);
    let first = ports.next()?;
    let has_usual = first == HTTPS_PORT || ports.any(|port| port == HTTPS_PORT);
    Some(if has_usual { HTTPS_PORT } else { first })
}

/// Opens `wanted` for `loops` loops, or takes its sockets from `source`.
pub(crate) fn open_listener(
    wanted: &ListenAddr,
    kind: ListenerKind,
    source: &mut SocketSource<'_>,
    loops: usize,
) -> Result<Listener, String> {
    let name = printed_name(wanted, kind.role, kind.has_tls);
    let say = |error| format!("cannot listen on {name}: {error}");
    let access = match wanted {
        ListenAddr::Unix(path) => socket_access(kind.role, path, source.config)?,
        ListenAddr::Tcp(_) | ListenAddr::Port(_) => SocketAccess::default(),
    };
    let shares_port = source.config.server.reuse_port && kind.role.is_for_clients();
    let SocketSource {
        removed: going,
        inherited,
        is_start,
        ..
    } = source;
    let replaced = |old: &&Listener| {
        let same = (&old.configured_address, old.ordinal) == (wanted, kind.ordinal);
        same && old.role == kind.role
    };
    let replaced = going.iter().position(replaced).or_else(|| {
        going
            .iter()
            .position(|old| old.configured_address == *wanted)
    });
    if let Some(at) = replaced {
        let old = going.swap_remove(at);
        return old.share_sockets(kind).map_err(say);
    }
    if let Some(given) = inherited.take(kind.role, wanted) {
        return adopt_inherited(given, wanted, kind, loops).map_err(say);
    }
    // The kernel prefers the narrow listener: its connections never reach the wide one before that
    // is served.
    let is_wide = match wanted {
        ListenAddr::Tcp(address) => address.ip().is_unspecified(),
        ListenAddr::Port(_) => true,
        ListenAddr::Unix(_) => false,
    };
    let is_wider = is_wide
        && going
            .iter()
            .any(|old| old.configured_address.overlaps(wanted));
    // With the listener that this one replaces, or a server that shares the port.
    let shares_port = shares_port || is_wider || inherited.overlaps(wanted);
    let admin = source.config.server.admin.as_ref().filter(|_| *is_start);
    let (sockets, address) = bind(wanted, loops, shares_port, access).map_err(|error| {
        let other = match kind.role {
            ListenerRole::Http => {
                suggest_other_address(wanted, "`listen`, or --listen", &error, admin)
            }
            ListenerRole::Admin => suggest_other_address(wanted, "--admin", &error, None),
            _ => String::new(),
        };
        let cause = explain_listen_error(wanted, &name, &error, *is_start);
        format!("cannot listen on {cause}{other}")
    })?;
    let mut listener = Listener::new(wanted, kind, address, sockets);
    if let ListenAddr::Unix(path) = wanted {
        listener.unserved_file = Some(path.clone());
        listener.has_owner = access.user.is_some() || access.group.is_some();
    }
    listener.clone_sockets().map_err(say)?;
    Ok(listener)
}

/// Owner and mode of a listener's Unix socket.
fn socket_access(role: ListenerRole, path: &Path, config: &Config) -> Result<SocketAccess, String> {
    let file = config.server.socket_permissions.get(path);
    let file = file.filter(|_| role == ListenerRole::Http).cloned();
    let file = file.unwrap_or_default();
    let unknown = |what: &str, name: &str, why: String| {
        let path = path.display();
        format!("unix:{path}: owner: there is no {what} `{name}`{why}")
    };
    let user = file.user.map(|name| {
        let found = account::find_user(&name);
        let found = found.map_err(|error| unknown("user", &name, format!(": {error}")))?;
        found.ok_or_else(|| unknown("user", &name, String::new()))
    });
    let user = user.transpose()?;
    let group = file.group.map(|name| {
        let found = account::find_group_id(&name);
        let found = found.map_err(|error| unknown("group", &name, format!(": {error}")))?;
        found.ok_or_else(|| unknown("group", &name, String::new()))
    });
    let group = group.transpose()?;
    // Sockets for changes are for the user that starts the server.
    let usual = match role {
        ListenerRole::Admin | ListenerRole::Control => PRIVATE_SOCKET_MODE,
        ListenerRole::Http | ListenerRole::Tcp | ListenerRole::Probes => PUBLIC_SOCKET_MODE,
    };
    Ok(SocketAccess {
        mode: file.mode.or(Some(usual)),
        user: user.as_ref().map(|user| user.uid),
        group: group.or_else(|| user.and_then(|user| user.gid)),
    })
}

/// Makes a listener from inherited sockets. With fewer sockets than loops, loops share them.
fn adopt_inherited(
    given: InheritedListener,
    wanted: &ListenAddr,
    kind: ListenerKind,
    loops: usize,
) -> std::io::Result<Listener> {
    let mut sockets = given.sockets;
    for at in sockets.len()..loops {
        let copy = sockets
            .get(at % sockets.len().max(1))
            .map(OwnedFd::try_clone);
        sockets.extend(copy.transpose()?);
    }
    let address = match given.bound_address {
        ListenAddress::Tcp { address, .. } if matches!(wanted, ListenAddr::Port(_)) => {
            Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
        }
        ListenAddress::Tcp { address, .. } => Some(address),
        ListenAddress::Unix(_) => None,
    };
    let mut listener = Listener::new(wanted, kind, address, sockets);
    listener.is_borrowed = given.is_borrowed;
    listener.clone_sockets()?;
    Ok(listener)
}

/// The name of a listener as it is printed, with the scheme of its clients.
pub(crate) fn printed_name(address: &ListenAddr, role: ListenerRole, has_tls: bool) -> String {
    let name = address.to_string();
    let scheme = match (role, has_tls) {
        (ListenerRole::Tcp, false) => "tcp",
        (ListenerRole::Tcp, true) => "tls",
        (_, false) => "http",
        (_, true) => "https",
    };
    match name.strip_prefix("http://") {
        Some(authority) => format!("{scheme}://{authority}"),
        None => name,
    }
}

fn with_real_port(wanted: &ListenAddr, real: Option<SocketAddr>) -> ListenAddr {
    match (wanted, real) {
        (_, None) => wanted.clone(),
        (ListenAddr::Port(_), Some(real)) => ListenAddr::Port(real.port()),
        (ListenAddr::Tcp(_) | ListenAddr::Unix(_), Some(real)) => ListenAddr::Tcp(real),
    }
}

/// Opens a socket for each loop; returns the real TCP address, too.
fn bind(
    wanted: &ListenAddr,
    loops: usize,
    shares_port: bool,
    access: SocketAccess,
) -> std::io::Result<(Vec<OwnedFd>, Option<SocketAddr>)> {
    let (address, is_port) = match wanted {
        ListenAddr::Unix(path) => {
            let first = net::listen_unix(path, access)?;
            let copies = (1..loops).map(|_| first.try_clone());
            let mut sockets = copies.collect::<std::io::Result<Vec<_>>>()?;
            sockets.push(first);
            return Ok((sockets, None));
        }
        ListenAddr::Tcp(address) => (*address, false),
        ListenAddr::Port(port) => (SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port)), true),
    };
    let listen = |address: SocketAddr| match is_port {
        true => net::listen_port(address.port()),
        false => net::listen_tcp(address),
    };
    match is_port {
        _ if shares_port => {}
        true => net::check_port_free(address.port())?,
        false => net::check_tcp_free(address)?,
    }
    let first = listen(address)?;
    let mut real = net::local_address(&first)?;
    if is_port {
        // The host for a request without one: clients of both families understand this form.
        real.set_ip(address.ip());
    }
    let mut sockets = vec![first];
    for _ in 1..loops {
        sockets.push(listen(real)?);
    }
    Ok((sockets, Some(real)))
}

impl Listener {
    fn new(
        wanted: &ListenAddr,
        kind: ListenerKind,
        address: Option<SocketAddr>,
        sockets: Vec<OwnedFd>,
    ) -> Self {
        let ListenerKind {
            role,
            ordinal,
            proxy_protocol,
            has_tls,
        } = kind;
        let name = printed_name(&with_real_port(wanted, address), role, has_tls);
        let info = ListenerInfo {
            scheme: if has_tls { "https" } else { "http" },
            address,
            name,
            proxy_protocol,
            has_tls,
        };
        Self {
            role,
            configured_address: wanted.clone(),
            ordinal,
            info: Arc::new(info),
            sockets,
            spare_sockets: Vec::new(),
            unserved_file: None,
            has_owner: false,
            is_borrowed: false,
            stop: Drain::new(),
            switch: None,
        }
    }

    fn clone_sockets(&mut self) -> std::io::Result<()> {
        let copies = self.sockets.iter().map(OwnedFd::try_clone);
        self.spare_sockets = copies.collect::<std::io::Result<_>>()?;
        Ok(())
    }

    /// The printed name, with the real port.
    pub(crate) fn name(&self) -> String {
        self.info.name.clone()
    }

    /// The address with the real port.
    pub(crate) fn address(&self) -> ListenAddr {
        with_real_port(&self.configured_address, self.info.address)
    }

    /// Scheme and real port, where a browser can connect: HTTP by TCP, without PROXY headers.
    pub(crate) fn web_port(&self) -> Option<(&'static str, u16)> {
        let is_for_browsers = self.role == ListenerRole::Http && !self.info.proxy_protocol;
        let address = self.info.address.filter(|_| is_for_browsers)?;
        Some((self.info.scheme, address.port()))
    }

    fn is(&self, wanted: &ClientListener<'_>) -> bool {
        self.role == wanted.role()
            && self.configured_address == *wanted.address
            && self.ordinal == wanted.ordinal
            && self.info.proxy_protocol == wanted.proxy_protocol
            && self.info.has_tls == wanted.has_tls
    }

    /// The listener of a configuration that this is, if it is for clients and still has its place.
    pub(crate) fn find_in_config<'c>(&self, config: &'c Config) -> Option<ClientListener<'c>> {
        client_listeners(config)
            .into_iter()
            .find(|wanted| self.is(wanted))
    }

    /// Whether a new configuration removes or changes it.
    pub(crate) fn is_removed_by(&self, config: &Config) -> bool {
        self.role.is_for_clients() && self.find_in_config(config).is_none()
    }

    /// The owner of a Unix socket; for a borrowed one, the owner of its file.
    pub(crate) fn owner_uid(&self) -> std::io::Result<u32> {
        if let (true, ListenAddr::Unix(path)) = (self.is_borrowed, &self.configured_address) {
            return Ok(path.symlink_metadata()?.uid());
        }
        let socket = self.sockets.first().ok_or(std::io::ErrorKind::NotFound)?;
        peer_process::listener_owner_uid(socket.as_fd())
    }

    /// The file of a Unix socket that this process created and the configuration gives no owner.
    pub(crate) fn created_socket_path(&self) -> Option<&Path> {
        let file = self.unserved_file.as_deref();
        file.filter(|_| !self.has_owner)
    }

    /// Accepts: on every loop of `loops`, each with its own socket, or on the current loop without
    /// any. Connections go to `tunnel`, if there is one.
    pub(crate) fn serve(
        &mut self,
        edge: &Arc<Edge>,
        loops: &[LoopHandle],
        tunnel: Option<&Arc<TunnelSwitch>>,
    ) {
        self.unserved_file = None;
        let mut loops = loops.iter().cycle();
        // A socket's queue is visible to that socket only: every socket is served.
        for socket in self.sockets.drain(..) {
            let (edge, info) = (Arc::clone(edge), Arc::clone(&self.info));
            let (stop, tunnel) = (self.stop.clone(), tunnel.cloned());
            let accepting = penstock_edge::accept_connections(edge, socket, info, stop, tunnel);
            match loops.next() {
                Some(event_loop) => event_loop.spawn(accepting),
                None => loops::spawn_here(accepting),
            }
        }
    }

    /// Duplicates the sockets for another listener at the same address.
    fn share_sockets(&self, kind: ListenerKind) -> std::io::Result<Self> {
        let sockets = self.spare_sockets.iter().map(OwnedFd::try_clone);
        let sockets = sockets.collect::<std::io::Result<_>>()?;
        let mut listener = Self::new(&self.configured_address, kind, self.info.address, sockets);
        listener.is_borrowed = self.is_borrowed;
        listener.clone_sockets()?;
        Ok(listener)
    }

    /// Duplicates the sockets for the successor. A Unix socket is one, whatever the number of
    /// loops.
    pub(crate) fn sockets_for_successor(&self) -> std::io::Result<Vec<OwnedFd>> {
        let count = match self.configured_address {
            ListenAddr::Unix(_) => 1,
            ListenAddr::Tcp(_) | ListenAddr::Port(_) => self.spare_sockets.len(),
        };
        let sockets = self.spare_sockets.iter().take(count);
        sockets.map(OwnedFd::try_clone).collect()
    }

    /// Sets the configured owner and mode of the Unix socket.
    pub(crate) fn apply_socket_permissions(&self, config: &Config) {
        let ListenAddr::Unix(path) = &self.configured_address else {
            return;
        };
        if self.is_borrowed || !config.server.socket_permissions.contains_key(path) {
            return;
        }
        let permitted = socket_access(self.role, path, config).and_then(|access| {
            net::set_socket_access(path, access)
                .map_err(|error| format!("{}: {error}", self.configured_address))
        });
        if let Err(error) = permitted {
            log::warn!("listener: cannot change the permissions of the socket: {error}");
        }
    }

    /// Stops accepting; accepted connections continue. Removes the file of the Unix socket unless
    /// one of `others` has the same address.
    pub(crate) fn stop(&mut self, others: &[Self]) {
        self.stop.begin();
        self.spare_sockets.clear();
        let mut others = others.iter();
        if let ListenAddr::Unix(path) = &self.configured_address
            && !self.is_borrowed
            && others.all(|other| other.configured_address != self.configured_address)
        {
            // Either removed here first or gone already: clients never find a dead socket.
            let _ = std::fs::remove_file(path);
        }
    }

    /// The port of HTTPS, if this is it.
    fn https_port(&self) -> Option<u16> {
        let is_https = self.role == ListenerRole::Http && self.info.has_tls;
        self.info.address.filter(|_| is_https).map(|it| it.port())
    }

    pub(crate) async fn wait_until_stopped(&self) {
        self.stop.wait_until_finished().await;
    }
}
