//! All that a start listens on, opened before anything is served.
//!
//! A part of `server`. What must stay true: all of it is opened or none, and what a service manager passed
//! and nobody is configured for is an error, not a port that answers nobody.

use std::path::Path;
use std::sync::Arc;

use penstock_config::{Config, ListenAddr};
use penstock_exchange::TunnelHandler;
use penstock_runtime::LoopHandle;

use super::Server;
use crate::control;
use crate::inherited::{Inherited, Role};
use crate::listeners::{self, Opened, Serving, Supply};
use crate::tcp::{self, Bound, Targets, TcpServing};

/// Listeners that nobody serves yet.
#[derive(Debug)]
pub(super) struct Doors {
    listeners: Vec<Opened>,
    streams: Vec<Bound>,
    admin: Option<Opened>,
    control: Option<Opened>,
    probes: Option<Opened>,
    taken: Vec<ListenAddr>,
}

impl Doors {
    /// Opens what the configuration says, with the sockets that were given; `follows` says that a server
    /// before this one gave them, which goes on with those that are not wanted here.
    ///
    /// # Errors
    /// Which address cannot be opened, or which socket nobody wants.
    pub(super) fn open(config: &Config, given: Inherited, follows: bool) -> Result<Self, String> {
        let loops = config.server.threads.max(1);
        let mut supply = Supply {
            inherited: given,
            ..Supply::default()
        };
        let listeners = listeners::open_all(config, &[], &mut supply, loops)?;
        let streams = tcp::open_all(config, &[], &mut supply, loops)?;
        let admin = config.server.admin.as_ref();
        if let Some(ListenAddr::Unix(path)) = admin {
            let socket = ("server.admin", path.as_path(), Role::Admin);
            control::check_maker(config, socket, &supply, follows)?;
        }
        let admin = admin.map(|admin| listeners::open(admin, (Role::Admin, false), &mut supply, 1));
        let admin = admin
            .transpose()
            .map_err(|e| format!("{e} (the admin interface: --admin or server.admin)"))?;
        let first = listeners.first().map(Opened::address);
        let control = control::open(config, first.as_ref(), &mut supply, follows)?;
        let probes = config.server.probes.as_ref();
        let probes = probes.map(|at| listeners::open(at, (Role::Probes, false), &mut supply, 1));
        let probes = probes
            .transpose()
            .map_err(|error| format!("{error} (server.probes)"))?;
        let left = supply.inherited.left();
        if !follows && !left.is_empty() {
            let left = left.join(", ");
            return Err(format!(
                "sockets were passed that nothing is configured to listen on: {left}"
            ));
        }
        Ok(Self {
            listeners,
            streams,
            admin,
            control,
            probes,
            taken: supply.inherited.taken().to_vec(),
        })
    }

    /// The files of Unix sockets that were made, not given, but for those by which the server is changed:
    /// they stay with whoever starts it.
    pub(super) fn made(&self) -> impl Iterator<Item = &Path> {
        let streams = self.streams.iter().map(|(opened, _)| opened);
        let all = self.listeners.iter().chain(streams).chain(&self.probes);
        all.filter_map(Opened::made)
    }

    /// The configured addresses whose sockets were given.
    pub(super) fn taken(&self) -> &[ListenAddr] {
        &self.taken
    }

    /// Where the server is administered.
    pub(super) fn admin(&self) -> Option<ListenAddr> {
        self.admin.as_ref().map(Opened::address)
    }

    /// Begins to accept: clients by the front end, administrators and probes by theirs.
    pub(super) fn serve(
        self,
        server: &Arc<Server>,
        targets: Targets<'_>,
        loops: &[LoopHandle],
    ) -> Served {
        let listeners = self.listeners.into_iter();
        let listeners = listeners
            .map(|opened| opened.serve(targets.edge, loops))
            .collect();
        let streams = tcp::serve_all(self.streams, targets, loops);
        let gated = |opened: Opened| {
            // Nobody but root, if it cannot be told whose it is.
            let owner = opened.owner().unwrap_or_default();
            let edges = (&server.control_edge, &server.refused_edge);
            let gate = control::Gate::new(owner, edges, Arc::downgrade(server));
            let gate: Arc<dyn TunnelHandler> = Arc::new(gate);
            opened.serve_tunnel_here(&server.control_edge, &gate)
        };
        let admin = self.admin.map(|opened| match opened.address() {
            ListenAddr::Unix(_) => gated(opened),
            ListenAddr::Tcp(_) | ListenAddr::Port(_) => opened.serve_here(&server.admin_edge),
        });
        let control = self.control.map(gated);
        let probes = self
            .probes
            .map(|opened| opened.serve_here(&server.probes_edge));
        Served {
            listeners,
            streams,
            admin,
            control,
            probes,
        }
    }
}

/// All that is listened on.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) listeners: Vec<Serving>,
    pub(super) streams: Vec<TcpServing>,
    pub(super) admin: Option<Serving>,
    pub(super) control: Option<Serving>,
    pub(super) probes: Option<Serving>,
}
