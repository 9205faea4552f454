//! Listening sockets: opened all or none, one per loop, kept over a reload when their address stays.
//!
//! Used by `server` at start and at reload. Opening comes before anything else is changed, so that an
//! address in use is an error and not half a start. A listener that a reload changes (PROXY headers, or
//! HTTP for TCP) keeps its sockets: they are shared with the new one, so nobody who connects meanwhile is
//! lost, and a reload that is refused has touched nothing.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::{Config, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::{ListenerInfo, TunnelHandler};
use penstock_runtime::{Drain, LoopHandle};
use penstock_sys::net;

/// A listener's sockets before they are served: one for each loop.
#[derive(Debug)]
pub(crate) struct Opened {
    wanted: ListenAddr,
    info: Arc<ListenerInfo>,
    sockets: Vec<OwnedFd>,
    /// The same, for a listener that follows at this address.
    shared: Vec<OwnedFd>,
    /// Of a Unix socket that was made for it.
    file: Option<SocketFile>,
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

/// Opens what a configuration listens on and `kept` does not have; what `going` has is shared.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_all(
    config: &Config,
    kept: &[Serving],
    going: &mut Vec<&Serving>,
    loops: usize,
) -> Result<Vec<Opened>, String> {
    let wanted = wanted(config);
    let new = wanted
        .iter()
        .filter(|(address, heralded)| !kept.iter().any(|serving| serving.is(address, *heralded)));
    new.map(|(address, heralded)| open_or_share(address, *heralded, going, loops))
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

/// Opens a listener, with the sockets of one that is going where there is one at that address.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_or_share(
    wanted: &ListenAddr,
    proxy_protocol: bool,
    going: &mut Vec<&Serving>,
    loops: usize,
) -> Result<Opened, String> {
    if let Some(at) = going.iter().position(|old| old.wanted == *wanted) {
        let old = going.swap_remove(at);
        let shared = old.share(proxy_protocol);
        return shared.map_err(|error| format!("cannot listen on {wanted}: {error}"));
    }
    // Nobody who connects to the narrow one meets the wide one before that is served.
    let is_wider = matches!(wanted, ListenAddr::Tcp(address) if address.ip().is_unspecified())
        && going.iter().any(|old| old.wanted.overlaps(wanted));
    let others = match is_wider {
        true => Others::Ours,
        false => Others::Refused,
    };
    open_beside(wanted, proxy_protocol, loops, others)
}

/// Opens `wanted` for `loops` loops; `proxy_protocol` says that connections begin with its header.
///
/// # Errors
/// Which address could not be opened, and why.
pub(crate) fn open(
    wanted: &ListenAddr,
    proxy_protocol: bool,
    loops: usize,
) -> Result<Opened, String> {
    open_beside(wanted, proxy_protocol, loops, Others::Refused)
}

/// Who may listen on the same port already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    /// A listener that this one replaces.
    Ours,
    /// Nobody.
    Refused,
}

fn open_beside(
    wanted: &ListenAddr,
    proxy_protocol: bool,
    loops: usize,
    others: Others,
) -> Result<Opened, String> {
    let say = |error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => ": another program listens there",
            std::io::ErrorKind::PermissionDenied => ": ports below 1024 need root",
            _ => "",
        };
        format!("cannot listen on {wanted}: {error}{hint}")
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
    let name = address.map_or_else(|| wanted.to_string(), |a| ListenAddr::Tcp(a).to_string());
    let info = Arc::new(ListenerInfo {
        scheme: "http",
        address,
        name,
        proxy_protocol,
    });
    Ok(Opened {
        wanted: wanted.clone(),
        info,
        shared: clones(&sockets).map_err(say)?,
        sockets,
        file,
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
        for (socket, event_loop) in self.sockets.drain(..).zip(loops) {
            event_loop.spawn(accept(socket, Arc::clone(&self.info), stop.clone()));
        }
        self.serving(stop)
    }

    /// Begins to accept on the loop that this runs on.
    pub(crate) fn serve_here(mut self, edge: &Arc<Edge>) -> Serving {
        let stop = Drain::new();
        if let Some(socket) = self.sockets.pop() {
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

    /// Whether it is the listener of that address, with that form of connections.
    pub(crate) fn is(&self, address: &ListenAddr, proxy_protocol: bool) -> bool {
        self.wanted == *address && self.info.proxy_protocol == proxy_protocol
    }

    /// Its sockets for another listener at the same address.
    fn share(&self, proxy_protocol: bool) -> std::io::Result<Opened> {
        let info = ListenerInfo {
            proxy_protocol,
            ..ListenerInfo::clone(&self.info)
        };
        Ok(Opened {
            wanted: self.wanted.clone(),
            info: Arc::new(info),
            sockets: clones(&self.shared)?,
            shared: clones(&self.shared)?,
            file: None,
        })
    }

    /// Stops accepting; connections that were accepted go on. Nobody can connect from then on, unless one
    /// of `others` has the same address.
    pub(crate) fn stop<'s>(&mut self, mut others: impl Iterator<Item = &'s Self>) {
        self.stop.begin();
        self.shared.clear();
        if let ListenAddr::Unix(path) = &self.wanted
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
