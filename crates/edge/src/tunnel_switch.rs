//! What a TCP listener does with its connections, which a reload may change.
//!
//! `accept` hands connections over, `tls_handshake` makes their sessions first where TLS ends here.

use std::sync::Arc;

use arc_swap::ArcSwap;
use penstock_exchange::TunnelHandler;
use penstock_tls::ServerSessions;

/// The current target of a listener. Open connections keep the one that they began with.
#[derive(Debug)]
pub struct TunnelSwitch(ArcSwap<TunnelTarget>);

/// What serves the connections of a TCP listener.
#[derive(Debug, Clone)]
pub struct TunnelTarget {
    /// Serves them from the first byte on.
    pub handler: Arc<dyn TunnelHandler>,
    /// Makes a session with each client first; for a listener with TLS.
    pub tls: Option<Arc<ServerSessions>>,
}

impl TunnelSwitch {
    /// A switch that leads to `target`.
    #[must_use]
    pub fn new(target: TunnelTarget) -> Self {
        Self(ArcSwap::from_pointee(target))
    }

    /// Leads new connections to another target.
    pub fn replace(&self, target: TunnelTarget) {
        self.0.store(Arc::new(target));
    }

    pub(crate) fn target(&self) -> Arc<TunnelTarget> {
        self.0.load_full()
    }
}

impl From<Arc<dyn TunnelHandler>> for TunnelTarget {
    /// Without TLS.
    fn from(handler: Arc<dyn TunnelHandler>) -> Self {
        Self { handler, tls: None }
    }
}
