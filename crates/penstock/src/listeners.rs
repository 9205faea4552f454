//! Listening sockets: opened all or none, one per loop, kept over a reload when their address stays.
//!
//! Used by `server` at start and at reload. Opening comes before anything else is changed, so that an
//! address in use is an error and not half a start.

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
    pub(crate) wanted: ListenAddr,
    info: Arc<ListenerInfo>,
    sockets: Vec<OwnedFd>,
}

/// A listener at work.
#[derive(Debug)]
pub(crate) struct Serving {
    /// The address as configured.
    pub(crate) wanted: ListenAddr,
    /// As printed, with the real port.
    pub(crate) name: String,
    proxy_protocol: bool,
    stop: Drain,
    unix_path: Option<PathBuf>,
}

/// Opens what a configuration listens on and `kept` does not have.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_all(
    config: &Config,
    kept: &[Serving],
    loops: usize,
) -> Result<Vec<Opened>, String> {
    let wanted = wanted(config);
    let new = wanted
        .iter()
        .filter(|(address, heralded)| !kept.iter().any(|serving| serving.is(address, *heralded)));
    new.map(|(address, heralded)| open(address, *heralded, loops))
        .collect()
}

/// What a configuration listens on, and whether connections there begin with a PROXY header.
fn wanted(config: &Config) -> Vec<(&ListenAddr, bool)> {
    let server = &config.server;
    let listen = server.listen.iter();
    listen
        .map(|address| (address, server.proxy_protocol.contains(address)))
        .collect()
}

/// Stops what a new configuration does not listen on, and adds what `open` opened.
pub(crate) fn swap(
    config: &Config,
    listeners: &mut Vec<Serving>,
    changes: &mut Vec<String>,
    open: impl FnOnce(&mut Vec<Serving>),
) {
    let wanted = wanted(config);
    let (kept, gone): (Vec<Serving>, Vec<Serving>) = std::mem::take(listeners)
        .into_iter()
        .partition(|serving| wanted.iter().any(|(address, it)| serving.is(address, *it)));
    *listeners = kept;
    let known = listeners.len();
    open(listeners);
    stop_all(&gone, &listeners[known..], changes);
    changes.extend(
        listeners[known..]
            .iter()
            .map(|new| format!("{} opened", new.name)),
    );
}

/// Stops listeners; those at whose address another has been opened leave its socket file alone.
pub(crate) fn stop_all(gone: &[Serving], opened: &[Serving], changes: &mut Vec<String>) {
    for serving in gone {
        match opened.iter().any(|new| new.wanted == serving.wanted) {
            true => serving.stop_accepting(),
            false => serving.stop(),
        }
        changes.push(format!("{} closed", serving.name));
    }
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
    let say = |error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => ": another program listens there",
            std::io::ErrorKind::PermissionDenied => ": ports below 1024 need root",
            _ => "",
        };
        format!("cannot listen on {wanted}: {error}{hint}")
    };
    let (sockets, address) = match wanted {
        ListenAddr::Tcp(address) => {
            let (sockets, real) = open_tcp(*address, loops).map_err(say)?;
            (sockets, Some(real))
        }
        ListenAddr::Unix(path) => {
            let first = net::listen_unix(path).map_err(say)?;
            let mut sockets = Vec::new();
            for _ in 1..loops {
                sockets.push(first.try_clone().map_err(say)?);
            }
            sockets.push(first);
            (sockets, None)
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
        sockets,
    })
}

fn open_tcp(address: SocketAddr, loops: usize) -> std::io::Result<(Vec<OwnedFd>, SocketAddr)> {
    net::probe_tcp(address)?;
    let first = net::listen_tcp(address)?;
    let real = net::local_address(&first)?;
    let mut sockets = vec![first];
    for _ in 1..loops {
        sockets.push(net::listen_tcp(real)?);
    }
    Ok((sockets, real))
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
        let unix_path = match &self.wanted {
            ListenAddr::Unix(path) => Some(path.clone()),
            ListenAddr::Tcp(_) => None,
        };
        Serving {
            name: self.info.name.clone(),
            proxy_protocol: self.info.proxy_protocol,
            wanted: self.wanted,
            stop,
            unix_path,
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
    /// Whether it is the listener of that address, with that form of connections.
    pub(crate) fn is(&self, address: &ListenAddr, proxy_protocol: bool) -> bool {
        self.wanted == *address && self.proxy_protocol == proxy_protocol
    }

    /// Stops accepting; connections that were accepted go on.
    pub(crate) fn stop(&self) {
        self.stop.begin();
        if let Some(path) = &self.unix_path {
            // Removed first by us, or already gone: either way nobody finds a dead socket.
            let _ = std::fs::remove_file(path);
        }
    }

    /// The same, leaving a socket file alone that another listener has made anew.
    pub(crate) fn stop_accepting(&self) {
        self.stop.begin();
    }

    /// Waits until no loop accepts any more.
    pub(crate) async fn stopped(&self) {
        self.stop.finished().await;
    }
}
