//! Opens listening sockets, one per event loop, and keeps them over reloads and upgrades.
//!
//! Used by `server` at start and at reload.
//!
//! # Invariants
//!
//! - All sockets are opened before anything else changes: an address in use is an error, not half a
//!   start.
//! - A listener that a reload changes (PROXY headers, or HTTP to TCP) shares its sockets with its
//!   replacement, so that no connection is lost and a refused reload changes nothing.
//! - Sockets that the previous server or a service manager passed are used, not opened again.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_config::{Config, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::{ListenerInfo, TunnelHandler};
use penstock_runtime::{Drain, LoopHandle};
use penstock_sys::account;
use penstock_sys::fd_packets::ListenAddress;
use penstock_sys::net::{self, SocketAccess};
use penstock_sys::peer_process;

use crate::inherited_listeners::{InheritedListener, InheritedListeners, ListenerRole};
use crate::preflight::explain_listen_error;

/// Existing sockets that a configuration can use instead of opening new ones.
#[derive(Debug, Default)]
pub(crate) struct SocketSource<'s> {
    /// Active listeners that the new configuration removes.
    pub(crate) removed: Vec<&'s ActiveListener>,
    /// Sockets that were passed to this process.
    pub(crate) inherited: InheritedListeners,
    /// Whether other servers may listen on the same ports (`server.reuse_port`).
    pub(crate) reuse_port: bool,
    /// The configured owner and mode of Unix sockets.
    pub(crate) socket_permissions: BTreeMap<PathBuf, penstock_config::SocketPermissions>,
}

/// Default permissions of a Unix socket: front ends run as other users.
const PUBLIC_SOCKET_MODE: u32 = 0o666;

/// Permissions of a Unix socket for changes: the user that starts the server, and root.
const PRIVATE_SOCKET_MODE: u32 = 0o600;

/// A listener's sockets before they accept: at least one for each loop.
#[derive(Debug)]
pub(crate) struct BoundListener {
    role: ListenerRole,
    configured_address: ListenAddr,
    info: Arc<ListenerInfo>,
    sockets: Vec<OwnedFd>,
    /// Duplicates of `sockets`, for a replacement at this address.
    spare_sockets: Vec<OwnedFd>,
    /// The file of a Unix socket that this process created.
    socket_file: Option<UnservedSocketFile>,
    /// Whether another process owns the socket's file, which then stays at the end.
    is_borrowed: bool,
}

#[derive(Debug)]
pub(crate) struct ActiveListener {
    pub(crate) configured_address: ListenAddr,
    info: Arc<ListenerInfo>,
    /// Duplicates of the loops' sockets, for a replacement at this address.
    spare_sockets: Vec<OwnedFd>,
    stop: Drain,
    role: ListenerRole,
    /// Whether another process owns the socket's file, which then stays at the end.
    is_borrowed: bool,
}

/// The file of a Unix socket; removed if this is dropped before the listener accepts.
#[derive(Debug)]
struct UnservedSocketFile {
    path: Option<PathBuf>,
    has_owner: bool,
}

impl UnservedSocketFile {
    /// Leaves the removal to [`ActiveListener::stop`].
    fn disarm(mut self) {
        self.path = None;
    }
}

impl Drop for UnservedSocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Removed already, or not removable: the next start replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Opens the configured listeners that are missing in `kept`, with sockets from `supply` where it
/// has them.
///
/// # Errors
/// As [`open_listener`].
pub(crate) fn open_missing(
    config: &Config,
    kept: &[ActiveListener],
    supply: &mut SocketSource<'_>,
    loops: usize,
) -> Result<Vec<BoundListener>, String> {
    supply.reuse_port = config.server.reuse_port;
    supply
        .socket_permissions
        .clone_from(&config.server.socket_permissions);
    let wanted = wanted_listeners(config);
    let new = wanted.iter().filter(|(address, heralded)| {
        !kept
            .iter()
            .any(|serving| serving.matches(address, *heralded))
    });
    new.map(|(address, heralded)| {
        open_listener(address, (ListenerRole::Http, *heralded), supply, loops)
    })
    .collect()
}

/// Returns the listeners that a new configuration removes or changes.
pub(crate) fn removed_listeners<'s>(
    config: &Config,
    listeners: &'s [ActiveListener],
) -> Vec<&'s ActiveListener> {
    let wanted = wanted_listeners(config);
    let stays = |serving: &ActiveListener| {
        wanted
            .iter()
            .any(|(address, it)| serving.matches(address, *it))
    };
    listeners.iter().filter(|serving| !stays(serving)).collect()
}

/// The configured addresses, each with whether its connections begin with a PROXY header.
fn wanted_listeners(config: &Config) -> Vec<(&ListenAddr, bool)> {
    let server = &config.server;
    let listen = server.listen.iter();
    listen
        .map(|address| (address, server.proxy_protocol.contains(address)))
        .collect()
}

/// Removes and returns the listeners that a new configuration does not have, and adds `fresh`.
pub(crate) fn swap_listeners(
    config: &Config,
    listeners: &mut Vec<ActiveListener>,
    fresh: Vec<ActiveListener>,
    changes: &mut Vec<String>,
) -> Vec<ActiveListener> {
    let wanted = wanted_listeners(config);
    let (kept, gone): (Vec<ActiveListener>, Vec<ActiveListener>) =
        std::mem::take(listeners).into_iter().partition(|serving| {
            wanted
                .iter()
                .any(|(address, it)| serving.matches(address, *it))
        });
    for serving in &kept {
        serving.apply_socket_permissions(config);
    }
    *listeners = kept;
    changes.extend(gone.iter().map(|old| format!("{} closed", old.name())));
    changes.extend(fresh.iter().map(|new| format!("{} opened", new.name())));
    listeners.extend(fresh);
    gone
}

/// Opens `wanted` for `loops` loops, or takes its sockets from `supply`. `proxy_protocol`:
/// connections begin with a PROXY header.
///
/// # Errors
/// The address that could not be opened, and the cause.
pub(crate) fn open_listener(
    wanted: &ListenAddr,
    (role, proxy_protocol): (ListenerRole, bool),
    supply: &mut SocketSource<'_>,
    loops: usize,
) -> Result<BoundListener, String> {
    let say = |error| format!("cannot listen on {wanted}: {error}");
    let shares = supply.reuse_port && matches!(role, ListenerRole::Http | ListenerRole::Tcp);
    let owned = match wanted {
        ListenAddr::Unix(path) => Some(socket_access(role, path, &supply.socket_permissions)?),
        ListenAddr::Tcp(_) | ListenAddr::Port(_) => None,
    };
    let access = owned.unwrap_or_default();
    let SocketSource {
        removed: going,
        inherited,
        ..
    } = supply;
    if let Some(at) = going
        .iter()
        .position(|old| old.configured_address == *wanted)
    {
        let old = going.swap_remove(at);
        return old.share_sockets(role, proxy_protocol).map_err(say);
    }
    if let Some(given) = inherited.take(role, wanted) {
        return adopt_inherited(given, wanted, (role, proxy_protocol), loops).map_err(say);
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
    let others = match shares || is_wider || inherited.overlaps(wanted) {
        true => PortSharing::Allowed,
        false => PortSharing::Forbidden,
    };
    bind_new(wanted, (role, proxy_protocol), loops, others, access)
}

/// Owner and mode of a listener's Unix socket.
///
/// # Errors
/// An unknown user or group.
fn socket_access(
    role: ListenerRole,
    path: &Path,
    files: &BTreeMap<PathBuf, penstock_config::SocketPermissions>,
) -> Result<SocketAccess, String> {
    let file = files.get(path).filter(|_| role == ListenerRole::Http);
    let file = file.cloned().unwrap_or_default();
    let unknown = |what: &str, name: &str, error: Option<std::io::Error>| {
        let why = error.map_or_else(String::new, |error| format!(": {error}"));
        format!(
            "unix:{}: owner: there is no {what} `{name}`{why}",
            path.display()
        )
    };
    let user = file.user.map(|name| match account::find_user(&name) {
        Ok(Some(user)) => Ok(user),
        Ok(None) => Err(unknown("user", &name, None)),
        Err(error) => Err(unknown("user", &name, Some(error))),
    });
    let user = user.transpose()?;
    let group = file.group.map(|name| match account::find_group_id(&name) {
        Ok(Some(group)) => Ok(group),
        Ok(None) => Err(unknown("group", &name, None)),
        Err(error) => Err(unknown("group", &name, Some(error))),
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
    (role, proxy_protocol): (ListenerRole, bool),
    loops: usize,
) -> std::io::Result<BoundListener> {
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
    Ok(BoundListener {
        role,
        configured_address: wanted.clone(),
        info: listener_info(wanted, address, proxy_protocol),
        spare_sockets: clone_sockets(&sockets)?,
        sockets,
        socket_file: None,
        is_borrowed: given.is_borrowed,
    })
}

fn with_real_port(wanted: &ListenAddr, real: SocketAddr) -> ListenAddr {
    match wanted {
        ListenAddr::Port(_) => ListenAddr::Port(real.port()),
        ListenAddr::Tcp(_) | ListenAddr::Unix(_) => ListenAddr::Tcp(real),
    }
}

fn listener_info(
    wanted: &ListenAddr,
    address: Option<SocketAddr>,
    proxy_protocol: bool,
) -> Arc<ListenerInfo> {
    let name = address.map_or_else(|| wanted.clone(), |real| with_real_port(wanted, real));
    let name = name.to_string();
    Arc::new(ListenerInfo {
        scheme: "http",
        address,
        name,
        proxy_protocol,
    })
}

/// Whether other sockets may listen on the same port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortSharing {
    /// The listener that this one replaces, or a server that shares the port.
    Allowed,
    Forbidden,
}

fn bind_new(
    wanted: &ListenAddr,
    (role, proxy_protocol): (ListenerRole, bool),
    loops: usize,
    others: PortSharing,
    access: SocketAccess,
) -> Result<BoundListener, String> {
    let say = |error: std::io::Error| {
        format!("cannot listen on {}", explain_listen_error(wanted, &error))
    };
    let (sockets, address, file) = match wanted {
        ListenAddr::Tcp(address) => {
            let (sockets, real) = bind_tcp(*address, loops, others).map_err(say)?;
            (sockets, Some(real), None)
        }
        ListenAddr::Port(port) => {
            let (sockets, real) = bind_port(*port, loops, others).map_err(say)?;
            (sockets, Some(real), None)
        }
        ListenAddr::Unix(path) => {
            let first = net::listen_unix(path, access).map_err(say)?;
            let file = UnservedSocketFile {
                path: Some(path.clone()),
                has_owner: access.user.is_some() || access.group.is_some(),
            };
            let mut sockets = Vec::new();
            for _ in 1..loops {
                sockets.push(first.try_clone().map_err(say)?);
            }
            sockets.push(first);
            (sockets, None, Some(file))
        }
    };
    Ok(BoundListener {
        role,
        configured_address: wanted.clone(),
        info: listener_info(wanted, address, proxy_protocol),
        spare_sockets: clone_sockets(&sockets).map_err(say)?,
        sockets,
        socket_file: file,
        is_borrowed: false,
    })
}

fn bind_tcp(
    address: SocketAddr,
    loops: usize,
    others: PortSharing,
) -> std::io::Result<(Vec<OwnedFd>, SocketAddr)> {
    if others == PortSharing::Forbidden {
        net::check_tcp_free(address)?;
    }
    let first = net::listen_tcp(address)?;
    let real = net::local_address(&first)?;
    let mut sockets = vec![first];
    for _ in 1..loops {
        sockets.push(net::listen_tcp(real)?);
    }
    Ok((sockets, real))
}

fn bind_port(
    port: u16,
    loops: usize,
    others: PortSharing,
) -> std::io::Result<(Vec<OwnedFd>, SocketAddr)> {
    if others == PortSharing::Forbidden {
        net::check_port_free(port)?;
    }
    let first = net::listen_port(port)?;
    let port = net::local_address(&first)?.port();
    let mut sockets = vec![first];
    for _ in 1..loops {
        sockets.push(net::listen_port(port)?);
    }
    // The host for a request without one: clients of both families understand this form.
    Ok((sockets, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))
}

fn clone_sockets(sockets: &[OwnedFd]) -> std::io::Result<Vec<OwnedFd>> {
    sockets.iter().map(OwnedFd::try_clone).collect()
}

impl BoundListener {
    /// The address with the real port.
    pub(crate) fn address(&self) -> ListenAddr {
        let real = self.info.address;
        real.map_or_else(
            || self.configured_address.clone(),
            |real| with_real_port(&self.configured_address, real),
        )
    }

    /// The owner of a Unix socket; for a borrowed one, the owner of its file.
    pub(crate) fn owner(&self) -> std::io::Result<u32> {
        use std::os::unix::fs::MetadataExt;
        if let (true, ListenAddr::Unix(path)) = (self.is_borrowed, &self.configured_address) {
            return Ok(path.symlink_metadata()?.uid());
        }
        let socket = self.sockets.first().ok_or(std::io::ErrorKind::NotFound)?;
        peer_process::listener_owner(socket.as_fd())
    }

    /// The file of a Unix socket that this process created and the configuration gives no owner.
    pub(crate) fn created_socket(&self) -> Option<&Path> {
        let file = self.socket_file.as_ref().filter(|file| !file.has_owner)?;
        file.path.as_deref()
    }

    /// Accepts on every loop, each with its own socket.
    pub(crate) fn serve(self, edge: &Arc<Edge>, loops: &[LoopHandle]) -> ActiveListener {
        self.serve_with(loops, |socket, info, stop| {
            accept(Arc::clone(edge), socket, info, stop)
        })
    }

    /// As [`Self::serve`], but passes each connection to `handler`.
    pub(crate) fn serve_tunnel(
        self,
        edge: &Arc<Edge>,
        loops: &[LoopHandle],
        handler: &Arc<dyn TunnelHandler>,
    ) -> ActiveListener {
        self.serve_with(loops, |socket, info, stop| {
            accept_tunnel(Arc::clone(edge), socket, info, stop, Arc::clone(handler))
        })
    }

    fn serve_with<F>(
        mut self,
        loops: &[LoopHandle],
        accept: impl Fn(OwnedFd, Arc<ListenerInfo>, Drain) -> F,
    ) -> ActiveListener
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = Drain::new();
        // A socket's queue is visible to that socket only: every socket is served.
        for (socket, event_loop) in self.sockets.drain(..).zip(loops.iter().cycle()) {
            event_loop.spawn(accept(socket, Arc::clone(&self.info), stop.clone()));
        }
        self.into_active(stop)
    }

    pub(crate) fn serve_on_current_loop(mut self, edge: &Arc<Edge>) -> ActiveListener {
        let stop = Drain::new();
        for socket in self.sockets.drain(..) {
            let (edge, info, stop) = (Arc::clone(edge), Arc::clone(&self.info), stop.clone());
            penstock_runtime::loops::spawn_here(accept(edge, socket, info, stop));
        }
        self.into_active(stop)
    }

    /// As [`Self::serve_on_current_loop`], but passes each connection to `handler`.
    pub(crate) fn serve_tunnel_on_current_loop(
        mut self,
        edge: &Arc<Edge>,
        handler: &Arc<dyn TunnelHandler>,
    ) -> ActiveListener {
        let stop = Drain::new();
        for socket in self.sockets.drain(..) {
            let (edge, info, stop) = (Arc::clone(edge), Arc::clone(&self.info), stop.clone());
            let accepting = accept_tunnel(edge, socket, info, stop, Arc::clone(handler));
            penstock_runtime::loops::spawn_here(accepting);
        }
        self.into_active(stop)
    }

    fn into_active(self, stop: Drain) -> ActiveListener {
        if let Some(file) = self.socket_file {
            file.disarm();
        }
        ActiveListener {
            configured_address: self.configured_address,
            info: self.info,
            spare_sockets: self.spare_sockets,
            stop,
            role: self.role,
            is_borrowed: self.is_borrowed,
        }
    }
}

async fn accept(edge: Arc<Edge>, socket: OwnedFd, info: Arc<ListenerInfo>, stop: Drain) {
    if let Err(error) = penstock_edge::accept(edge, socket, Arc::clone(&info), stop).await {
        log::error!("listener {}: {error}", info.name);
    }
}

async fn accept_tunnel(
    edge: Arc<Edge>,
    socket: OwnedFd,
    info: Arc<ListenerInfo>,
    stop: Drain,
    handler: Arc<dyn TunnelHandler>,
) {
    let accepting =
        penstock_edge::accept_tunnel(edge, socket, Arc::clone(&info), stop, handler).await;
    if let Err(error) = accepting {
        log::error!("listener {}: {error}", info.name);
    }
}

impl ActiveListener {
    /// The printed name, with the real port.
    pub(crate) fn name(&self) -> &str {
        &self.info.name
    }

    /// The address with the real port.
    pub(crate) fn address(&self) -> ListenAddr {
        let real = self.info.address;
        real.map_or_else(
            || self.configured_address.clone(),
            |real| with_real_port(&self.configured_address, real),
        )
    }

    /// Whether this is the listener for that address and form of connections.
    pub(crate) fn matches(&self, address: &ListenAddr, proxy_protocol: bool) -> bool {
        self.configured_address == *address && self.info.proxy_protocol == proxy_protocol
    }

    /// Duplicates the sockets for another listener at the same address.
    fn share_sockets(
        &self,
        role: ListenerRole,
        proxy_protocol: bool,
    ) -> std::io::Result<BoundListener> {
        let info = ListenerInfo {
            proxy_protocol,
            ..ListenerInfo::clone(&self.info)
        };
        Ok(BoundListener {
            role,
            configured_address: self.configured_address.clone(),
            info: Arc::new(info),
            sockets: clone_sockets(&self.spare_sockets)?,
            spare_sockets: clone_sockets(&self.spare_sockets)?,
            socket_file: None,
            is_borrowed: self.is_borrowed,
        })
    }

    /// Duplicates the sockets for the successor. A Unix socket is one, whatever the number of
    /// loops.
    ///
    /// # Errors
    /// No free descriptor.
    pub(crate) fn to_inherited(&self) -> std::io::Result<InheritedListener> {
        let count = match self.info.address {
            Some(_) => self.spare_sockets.len(),
            None => 1,
        };
        let is_dual = matches!(self.configured_address, ListenAddr::Port(_));
        let tcp = |address| ListenAddress::Tcp { address, is_dual };
        let bound = match (self.info.address, &self.configured_address) {
            (Some(address), _) => tcp(address),
            (None, ListenAddr::Unix(path)) => ListenAddress::Unix(path.clone()),
            (None, ListenAddr::Tcp(address)) => tcp(*address),
            (None, ListenAddr::Port(port)) => tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port))),
        };
        Ok(InheritedListener {
            configured: Some((self.role, self.configured_address.clone())),
            bound_address: bound,
            name: self.info.name.clone(),
            sockets: clone_sockets(&self.spare_sockets[..count.min(self.spare_sockets.len())])?,
            is_borrowed: self.is_borrowed,
        })
    }

    /// Sets the configured owner and mode of the Unix socket.
    fn apply_socket_permissions(&self, config: &Config) {
        let ListenAddr::Unix(path) = &self.configured_address else {
            return;
        };
        let files = &config.server.socket_permissions;
        if self.is_borrowed || !files.contains_key(path) {
            return;
        }
        let permitted = socket_access(self.role, path, files).and_then(|access| {
            net::set_socket_access(path, access)
                .map_err(|error| format!("{}: {error}", self.configured_address))
        });
        if let Err(error) = permitted {
            log::warn!("listener: cannot change the permissions of the socket: {error}");
        }
    }

    /// Leaves the Unix socket's file to another server.
    pub(crate) fn keep_socket_file(&mut self) {
        self.is_borrowed = true;
    }

    /// Stops accepting; accepted connections continue. Removes the file of the Unix socket unless
    /// one of `others` has the same address.
    pub(crate) fn stop<'s>(&mut self, mut others: impl Iterator<Item = &'s Self>) {
        self.stop.begin();
        self.spare_sockets.clear();
        if let ListenAddr::Unix(path) = &self.configured_address
            && !self.is_borrowed
            && others.all(|other| other.configured_address != self.configured_address)
        {
            // Either removed here first or gone already: clients never find a dead socket.
            let _ = std::fs::remove_file(path);
        }
    }

    pub(crate) async fn stopped(&self) {
        self.stop.wait_until_finished().await;
    }
}
