//! Opens all listeners of a start before anything is served; a part of `server`.
//!
//! # Invariants
//!
//! - All listeners are opened or none.
//! - A socket from a service manager that no configured listener uses is an error.

use std::path::Path;
use std::sync::Arc;

use penstock_config::{Config, ListenAddr};
use penstock_exchange::TunnelHandler;
use penstock_runtime::LoopHandle;

use super::Server;
use crate::control;
use crate::inherited_listeners::{InheritedListeners, ListenerRole};
use crate::listeners::{self, ActiveListener, BoundListener, SocketSource};
use crate::tcp::{self, ActiveTcpListener, BoundTcpListener, TcpTargets};

/// Listeners that do not accept yet.
#[derive(Debug)]
pub(super) struct BoundListeners {
    listeners: Vec<BoundListener>,
    tcp_listeners: Vec<BoundTcpListener>,
    admin: Option<BoundListener>,
    control: Option<BoundListener>,
    probes: Option<BoundListener>,
    taken_addresses: Vec<ListenAddr>,
}

impl BoundListeners {
    /// Opens the configured listeners, using the `given` sockets. `follows`: the previous server
    /// gave them and continues with those that are not used here.
    ///
    /// # Errors
    /// The address that cannot be opened, or the socket that no listener uses.
    pub(super) fn open(
        config: &Config,
        given: InheritedListeners,
        follows: bool,
    ) -> Result<Self, String> {
        let loops = config.server.threads.max(1);
        let mut supply = SocketSource {
            inherited: given,
            ..SocketSource::default()
        };
        let listeners = listeners::open_missing(config, &[], &mut supply, loops)?;
        let streams = tcp::open_missing_tcp(config, &[], &mut supply, loops)?;
        let admin = config.server.admin.as_ref();
        if let Some(ListenAddr::Unix(path)) = admin {
            let socket = ("server.admin", path.as_path(), ListenerRole::Admin);
            control::check_maker(config, socket, &supply, follows)?;
        }
        let admin = admin.map(|admin| {
            listeners::open_listener(admin, (ListenerRole::Admin, false), &mut supply, 1)
        });
        let admin = admin
            .transpose()
            .map_err(|e| format!("{e} (the admin interface: --admin or server.admin)"))?;
        let first = listeners.first().map(BoundListener::address);
        let control = control::open_control_socket(config, first.as_ref(), &mut supply, follows)?;
        let probes = config.server.probes.as_ref();
        let probes = probes
            .map(|at| listeners::open_listener(at, (ListenerRole::Probes, false), &mut supply, 1));
        let probes = probes
            .transpose()
            .map_err(|error| format!("{error} (server.probes)"))?;
        let left = supply.inherited.unclaimed_names();
        if !follows && !left.is_empty() {
            let left = left.join(", ");
            return Err(format!(
                "sockets were passed that nothing is configured to listen on: {left}"
            ));
        }
        Ok(Self {
            listeners,
            tcp_listeners: streams,
            admin,
            control,
            probes,
            taken_addresses: supply.inherited.taken().to_vec(),
        })
    }

    /// Files of Unix sockets that this process created, except those for changes: they stay with
    /// the user that starts the server.
    pub(super) fn created_sockets(&self) -> impl Iterator<Item = &Path> {
        let streams = self.tcp_listeners.iter().map(|(opened, _)| opened);
        let all = self.listeners.iter().chain(streams).chain(&self.probes);
        all.filter_map(BoundListener::created_socket)
    }

    /// The configured addresses with given sockets.
    pub(super) fn taken(&self) -> &[ListenAddr] {
        &self.taken_addresses
    }

    pub(super) fn admin(&self) -> Option<ListenAddr> {
        self.admin.as_ref().map(BoundListener::address)
    }

    /// Accepts: clients on the front end's edge, administrators and probes on their own.
    pub(super) fn serve(
        self,
        server: &Arc<Server>,
        targets: TcpTargets<'_>,
        loops: &[LoopHandle],
    ) -> ActiveListeners {
        let listeners = self.listeners.into_iter();
        let listeners = listeners
            .map(|opened| opened.serve(targets.edge_for, loops))
            .collect();
        let streams = tcp::serve_tcp_listeners(self.tcp_listeners, targets, loops);
        let gated = |opened: BoundListener| {
            // If the owner is unknown, only root is admitted.
            let owner = opened.owner().unwrap_or_default();
            let edges = (&server.control_edge, &server.refused_edge);
            let gate = control::ControlGate::new(owner, edges, Arc::downgrade(server));
            let gate: Arc<dyn TunnelHandler> = Arc::new(gate);
            opened.serve_tunnel_on_current_loop(&server.control_edge, &gate)
        };
        let admin = self.admin.map(|opened| match opened.address() {
            ListenAddr::Unix(_) => gated(opened),
            ListenAddr::Tcp(_) | ListenAddr::Port(_) => {
                opened.serve_on_current_loop(&server.admin_edge)
            }
        });
        let control = self.control.map(gated);
        let probes = self
            .probes
            .map(|opened| opened.serve_on_current_loop(&server.probes_edge));
        ActiveListeners {
            listeners,
            tcp_listeners: streams,
            admin,
            control,
            probes,
        }
    }
}

#[derive(Debug)]
pub(super) struct ActiveListeners {
    pub(super) listeners: Vec<ActiveListener>,
    pub(super) tcp_listeners: Vec<ActiveTcpListener>,
    pub(super) admin: Option<ActiveListener>,
    pub(super) control: Option<ActiveListener>,
    pub(super) probes: Option<ActiveListener>,
}
