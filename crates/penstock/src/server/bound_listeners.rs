//! Opens all listeners of a start before anything is served, and lets them accept; a part of
//! `server`.
//!
//! # Invariants
//!
//! - All listeners are opened or none.
//! - A socket from a service manager that no configured listener uses is an error.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{Config, ListenAddr, TcpFrontend};
use penstock_edge::{Edge, TunnelSwitch, TunnelTarget};
use penstock_exchange::TunnelHandler;
use penstock_proxy::SniRouter;

use super::Server;
use crate::components::Upstreams;
use crate::control::{self, ControlGate};
use crate::inherited_listeners::{InheritedListeners, ListenerRole};
use crate::listeners::{self, Listener, ListenerTarget, SocketSource};

/// Listeners that do not accept yet.
#[derive(Debug)]
pub(super) struct BoundListeners {
    pub(super) listeners: Vec<Listener>,
    /// The configured addresses whose sockets were inherited.
    pub(super) taken_addresses: Vec<ListenAddr>,
}

impl BoundListeners {
    /// Opens the configured listeners, using the `inherited` sockets. `follows`: the previous
    /// server gave them and continues with those that are not used here.
    ///
    /// # Errors
    /// The address that cannot be opened, or the socket that no listener uses.
    pub(super) fn open(
        config: &Config,
        inherited: InheritedListeners,
        follows: bool,
    ) -> Result<Self, String> {
        let mut source = SocketSource {
            config,
            removed: Vec::new(),
            inherited,
            is_start: true,
        };
        let mut all = listeners::open_missing(&[], &mut source, config.server.threads.max(1))?;
        let first = all.first().filter(|it| it.role == ListenerRole::Http);
        let first = first.map(Listener::address);
        if let Some(admin) = &config.server.admin {
            if let ListenAddr::Unix(path) = admin {
                let socket = ("server.admin", path.as_path(), ListenerRole::Admin);
                control::check_socket_creator(config, socket, &source, follows)?;
            }
            let role = ListenerRole::Admin.into();
            let opened = listeners::open_listener(admin, role, &mut source, 1);
            all.push(opened.map_err(|error| {
                format!("the admin interface (server.admin or --admin): {error}")
            })?);
        }
        let control = control::open_control_socket(config, first.as_ref(), &mut source, follows)?;
        all.extend(control);
        if let Some(probes) = &config.server.probes {
            let role = ListenerRole::Probes.into();
            let opened = listeners::open_listener(probes, role, &mut source, 1);
            all.push(opened.map_err(|error| format!("{error} (server.probes)"))?);
        }
        let left = source.inherited.unclaimed_names();
        if !follows && !left.is_empty() {
            let left = left.join(", ");
            return Err(format!(
                "sockets were passed that nothing is configured to listen on: {left}"
            ));
        }
        Ok(Self {
            listeners: all,
            taken_addresses: source.inherited.taken_addresses().to_vec(),
        })
    }

    /// Files of Unix sockets that this process created, except those for changes: they stay with
    /// the user that starts the server.
    pub(super) fn created_socket_paths(&self) -> impl Iterator<Item = &Path> {
        let is_for_changes = |role| matches!(role, ListenerRole::Admin | ListenerRole::Control);
        let all = self.listeners.iter();
        let all = all.filter(move |listener| !is_for_changes(listener.role));
        all.filter_map(Listener::created_socket_path)
    }

    /// The bound address of the admin listener.
    pub(super) fn admin_address(&self) -> Option<ListenAddr> {
        let mut all = self.listeners.iter();
        let admin = all.find(|listener| listener.role == ListenerRole::Admin);
        admin.map(Listener::address)
    }
}

impl Server {
    /// Lets a listener accept: clients on the front end's edge, administrators and probes on their
    /// own.
    pub(super) fn serve_listener(
        self: &Arc<Self>,
        listener: &mut Listener,
        config: &Config,
        upstreams: &Upstreams,
    ) {
        let loops = self.loops.handles();
        match listener.role {
            ListenerRole::Http => listener.serve(&self.edge, loops, None),
            ListenerRole::Tcp => {
                let Some((edge, target)) = self.tcp_target(listener, config, upstreams) else {
                    return;
                };
                let switch = Arc::new(TunnelSwitch::new(target));
                listener.switch = Some(Arc::clone(&switch));
                listener.serve(edge, loops, Some(&switch));
            }
            ListenerRole::Admin if !matches!(listener.address(), ListenAddr::Unix(_)) => {
                listener.serve(&self.admin_edge, &[], None);
            }
            ListenerRole::Admin | ListenerRole::Control => {
                // If the owner is unknown, only root is admitted.
                let owner = listener.owner_uid().unwrap_or_default();
                let edges = (&self.control_edge, &self.refused_edge);
                let gate = ControlGate::new(owner, edges, Arc::downgrade(self));
                let gate: Arc<dyn TunnelHandler> = Arc::new(gate);
                let gate = Arc::new(TunnelSwitch::new(gate.into()));
                listener.serve(&self.control_edge, &[], Some(&gate));
            }
            ListenerRole::Probes => listener.serve(&self.probes_edge, &[], None),
        }
    }

    /// The receiver of a TCP listener's connections, and the edge that counts them. Connections of
    /// joining servers are counted apart from clients', so that full client limits do not keep them
    /// out. A checked configuration names existing upstreams only.
    pub(super) fn tcp_target(
        &self,
        listener: &Listener,
        config: &Config,
        upstreams: &Upstreams,
    ) -> Option<(&Arc<Edge>, TunnelTarget)> {
        match listener.find_in_config(config)?.target {
            ListenerTarget::Http => None,
            ListenerTarget::Tcp(index, frontend) => {
                let timeout = config.limits.tls_handshake_timeout;
                let target = TunnelTarget {
                    handler: upstream_handler(frontend, upstreams, timeout)?,
                    tls: self.tls.tcp_sessions(index),
                };
                Some((&self.edge, target))
            }
            ListenerTarget::Join => {
                let has_tls = config.server.join.as_ref().is_none_or(|join| join.tls);
                let target = TunnelTarget {
                    handler: Arc::new(self.join_front_end.clone()),
                    tls: has_tls.then(|| Arc::clone(&self.join_sessions)),
                };
                Some((&self.join_edge, target))
            }
        }
    }
}

/// The handler of a TCP listener: its upstream, or those that its clients choose by name.
fn upstream_handler(
    frontend: &TcpFrontend,
    upstreams: &Upstreams,
    timeout: Duration,
) -> Option<Arc<dyn TunnelHandler>> {
    let default = frontend.upstream.as_ref();
    let default = default.and_then(|name| upstreams.get(name));
    if frontend.sni.is_empty() {
        return default.map(|upstream| upstream.tcp_handler());
    }
    let routes = frontend.sni.iter().filter_map(|(pattern, name)| {
        let upstream = upstreams.get(name)?;
        Some((pattern.clone(), Arc::clone(upstream)))
    });
    let router = SniRouter::new(routes, default.map(|upstream| &**upstream), timeout);
    Some(Arc::new(router))
}
