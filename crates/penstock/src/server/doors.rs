//! All that a start listens on, opened before anything is served.
//!
//! A part of `server`. What must stay true: all of it is opened or none, and what a service manager passed
//! and nobody is configured for is an error, not a port that answers nobody.

use std::path::Path;
use std::sync::Arc;

use penstock_config::{Config, ListenAddr};
use penstock_edge::Edge;
use penstock_runtime::LoopHandle;

use crate::inherited::{Inherited, Role};
use crate::listeners::{self, Opened, Serving, Supply};
use crate::tcp::{self, Bound, Targets, TcpServing};

/// Listeners that nobody serves yet.
#[derive(Debug)]
pub(super) struct Doors {
    listeners: Vec<Opened>,
    streams: Vec<Bound>,
    admin: Option<Opened>,
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
        let admin = admin.map(|admin| listeners::open(admin, (Role::Admin, false), &mut supply, 1));
        let admin = admin
            .transpose()
            .map_err(|e| format!("{e} (the admin interface: --admin or server.admin)"))?;
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
            probes,
            taken: supply.inherited.taken().to_vec(),
        })
    }

    /// The files of Unix sockets that were made, not given.
    pub(super) fn made(&self) -> impl Iterator<Item = &Path> {
        let streams = self.streams.iter().map(|(opened, _)| opened);
        let all = self.listeners.iter().chain(streams).chain(&self.admin);
        let all = all.chain(&self.probes);
        all.filter_map(Opened::made)
    }

    /// The configured addresses whose sockets were given.
    pub(super) fn taken(&self) -> &[ListenAddr] {
        &self.taken
    }

    /// Begins to accept: clients by the front end, administrators and probes by theirs.
    pub(super) fn serve(
        self,
        (admin_edge, probes_edge): (&Arc<Edge>, &Arc<Edge>),
        targets: Targets<'_>,
        loops: &[LoopHandle],
    ) -> Served {
        let listeners = self.listeners.into_iter();
        let listeners = listeners
            .map(|opened| opened.serve(targets.edge, loops))
            .collect();
        let streams = tcp::serve_all(self.streams, targets, loops);
        let admin = self.admin.map(|opened| opened.serve_here(admin_edge));
        let probes = self.probes.map(|opened| opened.serve_here(probes_edge));
        Served {
            listeners,
            streams,
            admin,
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
    pub(super) probes: Option<Serving>,
}
