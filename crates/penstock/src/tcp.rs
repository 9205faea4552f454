//! TCP listeners, opened, kept and stopped as HTTP listeners are: `[[streams]]`, each in front of an upstream, and the
//! one where programs dial in to be servers (`server.join`).
//!
//! Used by `server` at start and at reload. A listener that stays gets its new handler through a
//! [`Switch`]; connections that are open keep the old one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use penstock_config::{Config, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::{ListenerInfo, TakeoverFuture, TunnelHandler};
use penstock_proxy::JoinListener;
use penstock_runtime::{LoopHandle, Stream};
use penstock_sys::net::PeerAddress;

use crate::inherited::Role;
use crate::listeners::{self, Opened, Serving, Supply};
use crate::upstreams::Upstreams;

/// A TCP listener at work.
#[derive(Debug)]
pub(crate) struct TcpServing {
    serving: Serving,
    switch: Arc<Switch>,
}

/// Who gets a listener's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The upstream of that name.
    Upstream(String),
    /// Who lets them join.
    Join,
}

/// A listener that is open, and who is to get its connections.
pub(crate) type Bound = (Opened, Target);

/// Who there is to get them, and where they count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Targets<'a> {
    pub(crate) upstreams: &'a Upstreams,
    /// Clients'.
    pub(crate) edge: &'a Arc<Edge>,
    pub(crate) front: &'a JoinListener,
    /// Those who want to join: they are there when clients are too many, and take no place of theirs.
    pub(crate) join_edge: &'a Arc<Edge>,
}

impl Targets<'_> {
    fn find(&self, target: &Target) -> Option<Arc<dyn TunnelHandler>> {
        match target {
            Target::Upstream(name) => self
                .upstreams
                .get(name)
                .map(|upstream| upstream.tcp_handler()),
            Target::Join => Some(Arc::new(self.front.clone())),
        }
    }

    fn edge(&self, target: &Target) -> &Arc<Edge> {
        match target {
            Target::Upstream(_) => self.edge,
            Target::Join => self.join_edge,
        }
    }
}

/// A listener that a configuration wants.
struct Wanted<'c> {
    listen: &'c ListenAddr,
    proxy_protocol: bool,
    target: Target,
}

fn all_wanted(config: &Config) -> impl Iterator<Item = Wanted<'_>> {
    let streams = config.tcp.iter().map(|stream| Wanted {
        listen: &stream.listen,
        proxy_protocol: stream.proxy_protocol,
        target: Target::Upstream(stream.upstream.clone()),
    });
    let join = config.server.join.iter().map(|join| Wanted {
        listen: &join.listen,
        proxy_protocol: false,
        target: Target::Join,
    });
    streams.chain(join)
}

impl TcpServing {
    /// As printed.
    pub(crate) fn name(&self) -> String {
        shown(&self.serving)
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.serving
    }

    pub(crate) fn serving_mut(&mut self) -> &mut Serving {
        &mut self.serving
    }

    pub(crate) fn into_serving(self) -> Serving {
        self.serving
    }
}

/// `tcp://127.0.0.1:9000`: it is not HTTP that is spoken there.
fn shown(serving: &Serving) -> String {
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
pub(crate) fn open_all(
    config: &Config,
    kept: &[TcpServing],
    supply: &mut Supply<'_>,
    loops: usize,
) -> Result<Vec<Bound>, String> {
    supply.shares_ports = config.server.reuse_port;
    let new = all_wanted(config).filter(|wanted| {
        !(kept.iter()).any(|known| known.serving.is(wanted.listen, wanted.proxy_protocol))
    });
    new.map(|wanted| {
        let role = (Role::Tcp, wanted.proxy_protocol);
        let opened = listeners::open(wanted.listen, role, supply, loops)?;
        Ok((opened, wanted.target))
    })
    .collect()
}

/// Those that a new configuration does not have, or not in that form.
pub(crate) fn going<'s>(config: &Config, streams: &'s [TcpServing]) -> Vec<&'s Serving> {
    let streams = streams.iter().map(TcpServing::serving);
    streams.filter(|it| wanted(config, it).is_none()).collect()
}

fn wanted(config: &Config, serving: &Serving) -> Option<Target> {
    let found = all_wanted(config).find(|it| serving.is(it.listen, it.proxy_protocol));
    found.map(|wanted| wanted.target)
}

/// Begins to accept on opened listeners.
pub(crate) fn serve_all(
    opened: Vec<Bound>,
    targets: Targets<'_>,
    loops: &[LoopHandle],
) -> Vec<TcpServing> {
    let mut serving = Vec::new();
    for (opened, target) in opened {
        // The configuration names only those that are there.
        let Some(found) = targets.find(&target) else {
            continue;
        };
        let switch = Arc::new(Switch(ArcSwap::from_pointee(found)));
        let handler: Arc<dyn TunnelHandler> = Arc::clone(&switch) as _;
        serving.push(TcpServing {
            serving: opened.serve_tunnel(targets.edge(&target), loops, &handler),
            switch,
        });
    }
    serving
}

/// Takes out and gives what a new configuration does not have, turns the others to who is theirs now, adds
/// `fresh`.
pub(crate) fn swap(
    config: &Config,
    streams: &mut Vec<TcpServing>,
    targets: Targets<'_>,
    fresh: Vec<TcpServing>,
    changes: &mut Vec<String>,
) -> Vec<Serving> {
    let mut gone = Vec::new();
    for known in std::mem::take(streams) {
        let wanted = wanted(config, &known.serving);
        match wanted.and_then(|target| targets.find(&target)) {
            Some(found) => {
                known.switch.0.store(Arc::new(found));
                streams.push(known);
            }
            None => {
                changes.push(format!("{} closed", known.name()));
                gone.push(known.into_serving());
            }
        }
    }
    changes.extend(fresh.iter().map(|new| format!("{} opened", new.name())));
    streams.extend(fresh);
    gone
}

/// Whom a listener's new connections go to.
#[derive(Debug)]
struct Switch(ArcSwap<Arc<dyn TunnelHandler>>);

impl TunnelHandler for Switch {
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
