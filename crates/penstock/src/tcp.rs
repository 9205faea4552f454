//! TCP listeners, opened, kept and stopped as HTTP listeners are: `[[tcp]]`, each in front of an upstream, and the
//! one where programs dial in to be servers (`server.join`).
//!
//! Used by `server` at start and at reload. A listener that stays gets its new handler through a
//! [`HandlerSwitch`]; connections that are open keep the old one.

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

/// A TCP listener at work.
#[derive(Debug)]
pub(crate) struct ActiveTcpListener {
    listener: ActiveListener,
    switch: Arc<HandlerSwitch>,
}

/// Who gets a listener's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TcpTarget {
    /// The upstream of that name.
    Upstream(String),
    /// Who lets them join.
    Join,
}

/// A listener that is open, and who is to get its connections.
pub(crate) type BoundTcpListener = (BoundListener, TcpTarget);

/// Who there is to get them, and where they count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcpTargets<'a> {
    pub(crate) upstreams: &'a Upstreams,
    /// Clients'.
    pub(crate) edge_for: &'a Arc<Edge>,
    pub(crate) join_front_end: &'a JoinListener,
    /// Those who want to join: they are there when clients are too many, and take no place of theirs.
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

/// A listener that a configuration wants.
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
    /// As printed.
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

/// `tcp://127.0.0.1:9000`: it is not HTTP that is spoken there.
fn listener_name(serving: &ActiveListener) -> String {
    match serving.name().strip_prefix("http://") {
        Some(address) => format!("tcp://{address}"),
        None => serving.name().to_owned(),
    }
}

/// Opens the TCP listeners of a configuration that `kept` does not have; what `supply` has is taken
/// from there.
///
/// # Errors
/// Which address could not be opened, and why.
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

/// Those that a new configuration does not have, or not in that form.
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

/// Begins to accept on opened listeners.
pub(crate) fn serve_tcp_listeners(
    opened: Vec<BoundTcpListener>,
    targets: TcpTargets<'_>,
    loops: &[LoopHandle],
) -> Vec<ActiveTcpListener> {
    let mut serving = Vec::new();
    for (opened, target) in opened {
        // The configuration names only those that are there.
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

/// Takes out and gives what a new configuration does not have, turns the others to who is theirs now, adds
/// `fresh`.
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

/// Whom a listener's new connections go to.
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
