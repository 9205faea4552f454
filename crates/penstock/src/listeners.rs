//! Listening sockets: opened all or none, one per loop, kept over a reload when their address stays.
//!
//! Used by `server` at start and at reload. Opening comes before anything else is changed, so that an
//! address in use is an error and not half a start. A listener that a reload changes (PROXY headers, or
//! HTTP for TCP) keeps its sockets: they are shared with the new one, so nobody who connects meanwhile is
//! lost, and a reload that is refused has touched nothing. The same goes for those that a server before this
//! one, or a service manager, has handed over: none of them is opened anew.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_config::{Config, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::{ListenerInfo, TunnelHandler};
use penstock_runtime::{Drain, LoopHandle};
use penstock_sys::handover::Bound;
use penstock_sys::net;

use crate::inherited::{Given, Inherited, Role};
use crate::preflight::explain_listen_error;

/// Where sockets come from that need not be opened.
#[derive(Debug, Default)]
pub(crate) struct Supply<'s> {
    /// Listeners of ours that go.
    pub(crate) going: Vec<&'s Serving>,
    /// What was handed over to this process.
    pub(crate) inherited: Inherited,
    /// Other servers may listen on the same ports (`server.reuse_port`).
    pub(crate) shares_ports: bool,
}

/// A listener's sockets before they are served: one for each loop, at least.
#[derive(Debug)]
pub(crate) struct Opened {
    role: Role,
    wanted: ListenAddr,
    info: Arc<ListenerInfo>,
    sockets: Vec<OwnedFd>,
    /// The same, for a listener that follows at this address.
    shared: Vec<OwnedFd>,
    /// Of a Unix socket that was made for it.
    file: Option<SocketFile>,
    /// Whether the file of its Unix socket stays when it stops.
    is_lent: bool,
}

/// A listener at work.
#[derive(Debug)]
pub(crate) struct Serving {
    /// The address as configured.
    pub(crate) wanted: ListenAddr,
    info: Arc<ListenerInfo>,
    /// The sockets of the loops, for a listener that follows at this address.
    shared: Vec<OwnedFd>,
    stop: Drain,
    role: Role,
    /// Whether the file of its Unix socket stays when it stops.
    is_lent: bool,
}

/// The file of a Unix socket, removed when this is dropped unserved.
#[derive(Debug)]
struct SocketFile(Option<PathBuf>);

impl SocketFile {
    /// From now on it is removed by [`Serving::stop`].
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Gone already, or not to be changed: the next start takes it over.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Opens what a configuration listens on and `kept` does not have; what `supply` has is taken from there.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_all(
    config: &Config,
    kept: &[Serving],
    supply: &mut Supply<'_>,
    loops: usize,
) -> Result<Vec<Opened>, String> {
    supply.shares_ports = config.server.reuse_port;
    let wanted = wanted(config);
    let new = wanted
        .iter()
        .filter(|(address, heralded)| !kept.iter().any(|serving| serving.is(address, *heralded)));
    new.map(|(address, heralded)| open(address, (Role::Http, *heralded), supply, loops))
        .collect()
}

/// Those that a new configuration does not listen on, or not in that form.
pub(crate) fn going<'s>(config: &Config, listeners: &'s [Serving]) -> Vec<&'s Serving> {
    let wanted = wanted(config);
    let stays = |serving: &Serving| wanted.iter().any(|(address, it)| serving.is(address, *it));
    listeners.iter().filter(|serving| !stays(serving)).collect()
}

/// What a configuration listens on, and whether connections there begin with a PROXY header.
fn wanted(config: &Config) -> Vec<(&ListenAddr, bool)> {
    let server = &config.server;
    let listen = server.listen.iter();
    listen
        .map(|address| (address, server.proxy_protocol.contains(address)))
        .collect()
}

/// Takes out and gives what a new configuration does not listen on, and adds `fresh`.
pub(crate) fn swap(
    config: &Config,
    listeners: &mut Vec<Serving>,
    fresh: Vec<Serving>,
    changes: &mut Vec<String>,
) -> Vec<Serving> {
    let wanted = wanted(config);
    let (kept, gone): (Vec<Serving>, Vec<Serving>) = std::mem::take(listeners)
        .into_iter()
        .partition(|serving| wanted.iter().any(|(address, it)| serving.is(address, *it)));
    *listeners = kept;
    changes.extend(gone.iter().map(|old| format!("{} closed", old.name())));
    changes.extend(fresh.iter().map(|new| format!("{} opened", new.name())));
    listeners.extend(fresh);
    gone
}

/// Opens `wanted` for `loops` loops, or takes its sockets from `supply`; the flag beside its role says that
/// connections begin with a PROXY header.
///
/// # Errors
/// Which address could not be opened, and why.
pub(crate) fn open(
    wanted: &ListenAddr,
    (role, proxy_protocol): (Role, bool),
    supply: &mut Supply<'_>,
    loops: usize,
) -> Result<Opened, String> {
    let say = |error| format!("cannot listen on {wanted}: {error}");
    let shares = supply.shares_ports && role != Role::Admin;
    let Supply {
        going, inherited, ..
    } = supply;
    if let Some(at) = going.iter().position(|old| old.wanted == *wanted) {
        let old = going.swap_remove(at);
        return old.share(role, proxy_protocol).map_err(say);
    }
    if let Some(given) = inherited.take(role, wanted) {
        return take_over(given, wanted, (role, proxy_protocol), loops).map_err(say);
    }
    // Nobody who connects to the narrow one meets the wide one before that is served.
    let is_wider = matches!(wanted, ListenAddr::Tcp(address) if address.ip().is_unspecified())
        && going.iter().any(|old| old.wanted.overlaps(wanted));
    let others = match shares || is_wider || inherited.overlaps(wanted) {
        true => Others::Welcome,
        false => Others::Refused,
    };
    open_beside(wanted, (role, proxy_protocol), loops, others)
}

/// Makes a listener of sockets that were given. With fewer of them than loops, loops share them.
fn take_over(
    given: Given,
    wanted: &ListenAddr,
    (role, proxy_protocol): (Role, bool),
    loops: usize,
) -> std::io::Result<Opened> {
    let mut sockets = given.sockets;
    for at in sockets.len()..loops {
        let copy = sockets
            .get(at % sockets.len().max(1))
            .map(OwnedFd::try_clone);
        sockets.extend(copy.transpose()?);
    }
    let address = match given.bound {
        Bound::Tcp { address, .. } => Some(address),
        Bound::Unix(_) => None,
    };
    Ok(Opened {
        role,
        wanted: wanted.clone(),
        info: info(wanted, address, proxy_protocol),
        shared: clones(&sockets)?,
        sockets,
        file: None,
        is_lent: given.is_lent,
    })
}

fn info(
    wanted: &ListenAddr,
    address: Option<SocketAddr>,
    proxy_protocol: bool,
) -> Arc<ListenerInfo> {
    let name = address.map_or_else(|| wanted.to_string(), |a| ListenAddr::Tcp(a).to_string());
    Arc::new(ListenerInfo {
        scheme: "http",
        address,
        name,
        proxy_protocol,
    })
}

/// Who may listen on the same port already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    /// One that this one replaces, or whoever is to share it.
    Welcome,
    /// Nobody.
    Refused,
}

fn open_beside(
    wanted: &ListenAddr,
    (role, proxy_protocol): (Role, bool),
    loops: usize,
    others: Others,
) -> Result<Opened, String> {
    let say = |error: std::io::Error| {
        format!("cannot listen on {}", explain_listen_error(wanted, &error))
    };
    let (sockets, address, file) = match wanted {
        ListenAddr::Tcp(address) => {
            let (sockets, real) = open_tcp(*address, loops, others).map_err(say)?;
            (sockets, Some(real), None)
        }
        ListenAddr::Unix(path) => {
            let first = net::listen_unix(path).map_err(say)?;
            let file = SocketFile(Some(path.clone()));
            let mut sockets = Vec::new();
            for _ in 1..loops {
                sockets.push(first.try_clone().map_err(say)?);
            }
            sockets.push(first);
            (sockets, None, Some(file))
        }
    };
    Ok(Opened {
        role,
        wanted: wanted.clone(),
        info: info(wanted, address, proxy_protocol),
        shared: clones(&sockets).map_err(say)?,
        sockets,
        file,
        is_lent: false,
    })
}

fn open_tcp(
    address: SocketAddr,
    loops: usize,
    others: Others,
) -> std::io::Result<(Vec<OwnedFd>, SocketAddr)> {
    if others == Others::Refused {
        net::probe_tcp(address)?;
    }
    let first = net::listen_tcp(address)?;
    let real = net::local_address(&first)?;
    let mut sockets = vec![first];
    for _ in 1..loops {
        sockets.push(net::listen_tcp(real)?);
    }
    Ok((sockets, real))
}

fn clones(sockets: &[OwnedFd]) -> std::io::Result<Vec<OwnedFd>> {
    sockets.iter().map(OwnedFd::try_clone).collect()
}

impl Opened {
    /// The file of its Unix socket, if it was made by this process.
    pub(crate) fn made(&self) -> Option<&Path> {
        self.file.as_ref()?.0.as_deref()
    }

    /// Begins to accept, on each loop with a socket of its own.
    pub(crate) fn serve(self, edge: &Arc<Edge>, loops: &[LoopHandle]) -> Serving {
        self.serve_by(loops, |socket, info, stop| {
            accept(Arc::clone(edge), socket, info, stop)
        })
    }

    /// The same, giving each connection's bytes to `handler`.
    pub(crate) fn serve_tunnel(
        self,
        edge: &Arc<Edge>,
        loops: &[LoopHandle],
        handler: &Arc<dyn TunnelHandler>,
    ) -> Serving {
        self.serve_by(loops, |socket, info, stop| {
            accept_tunnel(Arc::clone(edge), socket, info, stop, Arc::clone(handler))
        })
    }

    fn serve_by<F>(
        mut self,
        loops: &[LoopHandle],
        accept: impl Fn(OwnedFd, Arc<ListenerInfo>, Drain) -> F,
    ) -> Serving
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = Drain::new();
        // What waits in the queue of one socket is seen by nobody who has another.
        for (socket, event_loop) in self.sockets.drain(..).zip(loops.iter().cycle()) {
            event_loop.spawn(accept(socket, Arc::clone(&self.info), stop.clone()));
        }
        self.serving(stop)
    }

    /// Begins to accept on the loop that this runs on.
    pub(crate) fn serve_here(mut self, edge: &Arc<Edge>) -> Serving {
        let stop = Drain::new();
        for socket in self.sockets.drain(..) {
            let (edge, info, stop) = (Arc::clone(edge), Arc::clone(&self.info), stop.clone());
            penstock_runtime::loops::spawn_here(accept(edge, socket, info, stop));
        }
        self.serving(stop)
    }

    fn serving(self, stop: Drain) -> Serving {
        if let Some(file) = self.file {
            file.keep();
        }
        Serving {
            wanted: self.wanted,
            info: self.info,
            shared: self.shared,
            stop,
            role: self.role,
            is_lent: self.is_lent,
        }
    }
}

async fn accept(edge: Arc<Edge>, socket: OwnedFd, info: Arc<ListenerInfo>, stop: Drain) {
    if let Err(error) = penstock_edge::accept(edge, socket, Arc::clone(&info), stop).await {
        log::error!("{}: {error}", info.name);
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
        log::error!("{}: {error}", info.name);
    }
}

impl Serving {
    /// As printed, with the real port.
    pub(crate) fn name(&self) -> &str {
        &self.info.name
    }

    /// Where it listens, with the real port.
    pub(crate) fn address(&self) -> ListenAddr {
        let tcp = self.info.address.map(ListenAddr::Tcp);
        tcp.unwrap_or_else(|| self.wanted.clone())
    }

    /// Whether it is the listener of that address, with that form of connections.
    pub(crate) fn is(&self, address: &ListenAddr, proxy_protocol: bool) -> bool {
        self.wanted == *address && self.info.proxy_protocol == proxy_protocol
    }

    /// Its sockets for another listener at the same address.
    fn share(&self, role: Role, proxy_protocol: bool) -> std::io::Result<Opened> {
        let info = ListenerInfo {
            proxy_protocol,
            ..ListenerInfo::clone(&self.info)
        };
        Ok(Opened {
            role,
            wanted: self.wanted.clone(),
            info: Arc::new(info),
            sockets: clones(&self.shared)?,
            shared: clones(&self.shared)?,
            file: None,
            is_lent: self.is_lent,
        })
    }

    /// Its sockets for the server that follows this one. Those of a Unix socket are one.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub(crate) fn handed_over(&self) -> std::io::Result<Given> {
        let count = match self.info.address {
            Some(_) => self.shared.len(),
            None => 1,
        };
        let is_dual = false;
        let bound = match (self.info.address, &self.wanted) {
            (Some(address), _) => Bound::Tcp { address, is_dual },
            (None, ListenAddr::Unix(path)) => Bound::Unix(path.clone()),
            (None, ListenAddr::Tcp(address)) => Bound::Tcp {
                address: *address,
                is_dual,
            },
        };
        Ok(Given {
            known: Some((self.role, self.wanted.clone())),
            bound,
            name: self.info.name.clone(),
            sockets: clones(&self.shared[..count.min(self.shared.len())])?,
            is_lent: self.is_lent,
        })
    }

    /// From now on the file of its Unix socket is another server's.
    pub(crate) fn leave_file(&mut self) {
        self.is_lent = true;
    }

    /// Stops accepting; connections that were accepted go on. Nobody can connect from then on, unless one
    /// of `others` has the same address.
    pub(crate) fn stop<'s>(&mut self, mut others: impl Iterator<Item = &'s Self>) {
        self.stop.begin();
        self.shared.clear();
        if let ListenAddr::Unix(path) = &self.wanted
            && !self.is_lent
            && others.all(|other| other.wanted != self.wanted)
        {
            // Removed first by us, or already gone: either way nobody finds a dead socket.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Waits until no loop accepts any more.
    pub(crate) async fn stopped(&self) {
        self.stop.finished().await;
    }
}
