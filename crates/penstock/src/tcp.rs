//! TCP listeners: `[[tcp]]` in front of upstreams, and `server.join`, where joining programs
//! connect.
//!
//! Used by `server` at start and at reload; opened, kept and stopped like HTTP listeners. A
//! listener that stays gets its new handler through a [`HandlerSwitch`]; open connections keep the
//! old one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use penstock_config::{Config, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::{ListenerInfo, TakeoverFuture, TunnelHandler};
use penstock_proxy::JoinListener;
use penstock_runtime::{LoopHandle, Stream};
use penstock_sys::net::PeerAddress;

use crate::components::Upstreams;
use crate::inherited_listeners::ListenerRole;
use crate::listeners::{self, ActiveListener, BoundListener, SocketSource};

#[derive(Debug)]
pub(crate) struct ActiveTcpListener {
    listener: ActiveListener,
    switch: Arc<HandlerSwitch>,
}

/// The receiver of a listener's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TcpTarget {
    /// The upstream of that name.
    Upstream(String),
    /// The handshake of joining servers.
    Join,
}

/// A bound listener and the receiver of its connections.
pub(crate) type BoundTcpListener = (BoundListener, TcpTarget);

/// The possible receivers, and the edges that count their connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcpTargets<'a> {
    pub(crate) upstreams: &'a Upstreams,
    /// Counts clients' connections.
    pub(crate) edge_for: &'a Arc<Edge>,
    pub(crate) join_front_end: &'a JoinListener,
    /// Counts connections of joining servers apart from clients', so that full client limits do not
    /// keep them out.
    pub(crate) join_edge: &'a Arc<Edge>,
}

impl TcpTargets<'_> {
    fn find_handler(&self, target: &TcpTarget) -> Option<Arc<dyn TunnelHandler>> {
        match target {
            TcpTarget::Upstream(name) => self
                .upstreams
                .get(name)
                .map(|upstream| upstream.tcp_handler()),
            TcpTarget::Join => Some(Arc::new(self.join_front_end.clone())),
        }
    }

    fn edge(&self, target: &TcpTarget) -> &Arc<Edge> {
        match target {
            TcpTarget::Upstream(_) => self.edge_for,
            TcpTarget::Join => self.join_edge,
        }
    }
}

struct WantedTcpListener<'c> {
    listen: &'c ListenAddr,
    proxy_protocol: bool,
    target: TcpTarget,
}

fn wanted_tcp_listeners(config: &Config) -> impl Iterator<Item = WantedTcpListener<'_>> {
    let streams = config.tcp.iter().map(|stream| WantedTcpListener {
        listen: &stream.listen,
        proxy_protocol: stream.proxy_protocol,
        target: TcpTarget::Upstream(stream.upstream.clone()),
    });
    let join = config.server.join.iter().map(|join| WantedTcpListener {
        listen: &join.listen,
        proxy_protocol: false,
        target: TcpTarget::Join,
    });
    streams.chain(join)
}

impl ActiveTcpListener {
    /// The printed name.
    pub(crate) fn name(&self) -> String {
        listener_name(&self.listener)
    }

    pub(crate) fn serving(&self) -> &ActiveListener {
        &self.listener
    }

    pub(crate) fn listener_mut(&mut self) -> &mut ActiveListener {
        &mut self.listener
    }

    pub(crate) fn into_listener(self) -> ActiveListener {
        self.listener
    }
}

/// `tcp://127.0.0.1:9000` in place of `http://`.
fn listener_name(serving: &ActiveListener) -> String {
    match serving.name().strip_prefix("http://") {
        Some(address) => format!("tcp://{address}"),
        None => serving.name().to_owned(),
    }
}

/// Opens the configured TCP listeners that are missing in `kept`, with sockets from `supply` where
/// it has them.
///
/// # Errors
/// The address that could not be opened, and the cause.
pub(crate) fn open_missing_tcp(
    config: &Config,
    kept: &[ActiveTcpListener],
    supply: &mut SocketSource<'_>,
    loops: usize,
) -> Result<Vec<BoundTcpListener>, String> {
    supply.reuse_port = config.server.reuse_port;
    let new = wanted_tcp_listeners(config).filter(|wanted| {
        !(kept.iter()).any(|known| known.listener.matches(wanted.listen, wanted.proxy_protocol))
    });
    new.map(|wanted| {
        let role = (ListenerRole::Tcp, wanted.proxy_protocol);
        let opened = listeners::open_listener(wanted.listen, role, supply, loops)?;
        Ok((opened, wanted.target))
    })
    .collect()
}

/// Returns the listeners that a new configuration removes or changes.
pub(crate) fn removed_tcp_listeners<'s>(
    config: &Config,
    streams: &'s [ActiveTcpListener],
) -> Vec<&'s ActiveListener> {
    let streams = streams.iter().map(ActiveTcpListener::serving);
    streams
        .filter(|it| current_target(config, it).is_none())
        .collect()
}

fn current_target(config: &Config, serving: &ActiveListener) -> Option<TcpTarget> {
    let found =
        wanted_tcp_listeners(config).find(|it| serving.matches(it.listen, it.proxy_protocol));
    found.map(|wanted| wanted.target)
}

pub(crate) fn serve_tcp_listeners(
    opened: Vec<BoundTcpListener>,
    targets: TcpTargets<'_>,
    loops: &[LoopHandle],
) -> Vec<ActiveTcpListener> {
    let mut serving = Vec::new();
    for (opened, target) in opened {
        // A checked configuration names existing upstreams only.
        let Some(found) = targets.find_handler(&target) else {
            continue;
        };
        let switch = Arc::new(HandlerSwitch(ArcSwap::from_pointee(found)));
        let handler: Arc<dyn TunnelHandler> = Arc::clone(&switch) as _;
        serving.push(ActiveTcpListener {
            listener: opened.serve_tunnel(targets.edge(&target), loops, &handler),
            switch,
        });
    }
    serving
}

/// Removes and returns the listeners that a new configuration does not have, switches the others to
/// their current handlers, and adds `fresh`.
pub(crate) fn swap_tcp_listeners(
    config: &Config,
    streams: &mut Vec<ActiveTcpListener>,
    targets: TcpTargets<'_>,
    fresh: Vec<ActiveTcpListener>,
    changes: &mut Vec<String>,
) -> Vec<ActiveListener> {
    let mut gone = Vec::new();
    for known in std::mem::take(streams) {
        let wanted = current_target(config, &known.listener);
        match wanted.and_then(|target| targets.find_handler(&target)) {
            Some(found) => {
                known.switch.0.store(Arc::new(found));
                streams.push(known);
            }
            None => {
                changes.push(format!("{} closed", known.name()));
                gone.push(known.into_listener());
            }
        }
    }
    changes.extend(fresh.iter().map(|new| format!("{} opened", new.name())));
    streams.extend(fresh);
    gone
}

/// Passes a listener's new connections to the current handler.
#[derive(Debug)]
struct HandlerSwitch(ArcSwap<Arc<dyn TunnelHandler>>);

impl TunnelHandler for HandlerSwitch {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        self.0.load().serve(client, peer, listener, early)
    }
}
