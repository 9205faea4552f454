//! Listening sockets: opened all or none, one per loop, kept over a reload when their address stays.
//!
//! Used by `server` at start and at reload. Opening comes before anything else is changed, so that an
//! address in use is an error and not half a start.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::ListenAddr;
use penstock_edge::Edge;
use penstock_exchange::ListenerInfo;
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
    stop: Drain,
    unix_path: Option<PathBuf>,
}

/// Opens `wanted` for `loops` loops.
///
/// # Errors
/// Which address could not be opened, and why.
pub(crate) fn open(wanted: &ListenAddr, loops: usize) -> Result<Opened, String> {
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
    pub(crate) fn serve(mut self, edge: &Arc<Edge>, loops: &[LoopHandle]) -> Serving {
        let stop = Drain::new();
        for (socket, event_loop) in self.sockets.drain(..).zip(loops) {
            let (edge, info, stop) = (Arc::clone(edge), Arc::clone(&self.info), stop.clone());
            event_loop.spawn(accept(edge, socket, info, stop));
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

impl Serving {
    /// Stops accepting; connections that were accepted go on.
    pub(crate) fn stop(&self) {
        self.stop.begin();
        if let Some(path) = &self.unix_path {
            // Removed first by us, or already gone: either way nobody finds a dead socket.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Waits until no loop accepts any more.
    pub(crate) async fn stopped(&self) {
        self.stop.finished().await;
    }
}
