//! TCP listeners (`[[streams]]`): opened, kept and stopped as HTTP listeners are, each in front of an
//! upstream.
//!
//! Used by `server` at start and at reload. A listener that stays gets its new upstream through a
//! [`Switch`]; connections that are open keep the old one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use penstock_config::{Config, TcpStream};
use penstock_edge::Edge;
use penstock_exchange::{ListenerInfo, TakeoverFuture, TunnelHandler};
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
) -> Result<Vec<(Opened, String)>, String> {
    supply.shares_ports = config.server.reuse_port;
    let new = config.streams.iter().filter(|stream| {
        !(kept.iter()).any(|known| known.serving.is(&stream.listen, stream.proxy_protocol))
    });
    new.map(|stream| {
        let role = (Role::Tcp, stream.proxy_protocol);
        let opened = listeners::open(&stream.listen, role, supply, loops)?;
        Ok((opened, stream.upstream.clone()))
    })
    .collect()
}

/// Those that a new configuration does not have, or not in that form.
pub(crate) fn going<'s>(config: &Config, streams: &'s [TcpServing]) -> Vec<&'s Serving> {
    let streams = streams.iter().map(TcpServing::serving);
    streams.filter(|it| wanted(config, it).is_none()).collect()
}

fn wanted<'c>(config: &'c Config, serving: &Serving) -> Option<&'c TcpStream> {
    let mut streams = config.streams.iter();
    streams.find(|stream| serving.is(&stream.listen, stream.proxy_protocol))
}

/// Begins to accept on opened listeners.
pub(crate) fn serve_all(
    opened: Vec<(Opened, String)>,
    upstreams: &Upstreams,
    edge: &Arc<Edge>,
    loops: &[LoopHandle],
) -> Vec<TcpServing> {
    let mut serving = Vec::new();
    for (opened, name) in opened {
        // The configuration names only those that are there.
        let Some(upstream) = upstreams.get(&name) else {
            continue;
        };
        let switch = Arc::new(Switch(ArcSwap::from_pointee(upstream.tunnel())));
        let handler: Arc<dyn TunnelHandler> = Arc::clone(&switch) as _;
        serving.push(TcpServing {
            serving: opened.serve_tunnel(edge, loops, &handler),
            switch,
        });
    }
    serving
}

/// Takes out and gives what a new configuration does not have, turns the others to their upstreams, adds
/// `fresh`.
pub(crate) fn swap(
    config: &Config,
    streams: &mut Vec<TcpServing>,
    upstreams: &Upstreams,
    fresh: Vec<TcpServing>,
    changes: &mut Vec<String>,
) -> Vec<Serving> {
    let mut gone = Vec::new();
    for known in std::mem::take(streams) {
        let wanted = wanted(config, &known.serving);
        match wanted.and_then(|stream| upstreams.get(&stream.upstream)) {
            Some(upstream) => {
                known.switch.0.store(Arc::new(upstream.tunnel()));
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

/// The upstream that a listener's new connections go to.
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
