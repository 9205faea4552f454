//! A TCP listener whose clients choose the upstream by the name that they ask for in TLS.
//!
//! `tunnel` relays what follows. The first message is read and passed on unchanged: the session is
//! between the client and the server.
//!
//! # Invariants
//!
//! - The first message arrives whole within `limits.tls_handshake_timeout` and has a bound, before
//!   any server is asked for a slot.
//! - A name with an upstream of its own reaches no other.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::HostPattern;
use penstock_exchange::{ListenerInfo, TakeoverFuture, TunnelHandler};
use penstock_runtime::{LogThrottle, Stream, clock};
use penstock_sys::net::PeerAddress;

use crate::Upstream;

/// Upstreams by the names that clients ask for.
#[derive(Debug)]
pub struct SniRouter {
    routes: Arc<SniRoutes>,
    timeout: Duration,
    refusal_log: Arc<LogThrottle>,
}

#[derive(Debug)]
struct SniRoutes {
    /// The most specific pattern first.
    patterns: Vec<(HostPattern, Arc<dyn TunnelHandler>)>,
    /// For every other name, and for clients that name none.
    default: Option<Arc<dyn TunnelHandler>>,
}

impl SniRouter {
    /// Makes the handler of a listener; clients have `timeout` for their first message.
    #[must_use]
    pub fn new(
        routes: impl IntoIterator<Item = (HostPattern, Arc<Upstream>)>,
        default: Option<&Upstream>,
        timeout: Duration,
    ) -> Self {
        let patterns = routes
            .into_iter()
            .map(|(pattern, upstream)| (pattern, upstream.tcp_handler()));
        Self {
            routes: Arc::new(SniRoutes::new(
                patterns.collect(),
                default.map(Upstream::tcp_handler),
            )),
            timeout,
            refusal_log: Arc::default(),
        }
    }
}

impl SniRoutes {
    fn new(
        mut patterns: Vec<(HostPattern, Arc<dyn TunnelHandler>)>,
        default: Option<Arc<dyn TunnelHandler>>,
    ) -> Self {
        patterns.sort_by_key(|(pattern, _)| match pattern {
            HostPattern::Exact(_) => (0, 0),
            HostPattern::Subdomains(suffix) => (1, usize::MAX - suffix.len()),
        });
        Self { patterns, default }
    }

    fn find(&self, name: Option<&str>) -> Option<&Arc<dyn TunnelHandler>> {
        let matching = |name| {
            let mut patterns = self.patterns.iter();
            patterns.find(|(pattern, _)| pattern.matches(name))
        };
        let found = name.and_then(matching);
        found.map(|(_, handler)| handler).or(self.default.as_ref())
    }
}

impl TunnelHandler for SniRouter {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        let (routes, timeout) = (Arc::clone(&self.routes), self.timeout);
        let refusal_log = Arc::clone(&self.refusal_log);
        Box::pin(async move {
            let mut early = early;
            let cause = match read_name(&client, &mut early, timeout).await {
                Ok(name) => match routes.find(name.as_deref()) {
                    Some(handler) => return handler.serve(client, peer, listener, early).await,
                    None => match name {
                        Some(name) => format!("no upstream for the server name {name:?}"),
                        None => "no server name, and no upstream for clients without".to_owned(),
                    },
                },
                Err(cause) => cause,
            };
            if let Some(suppressed) = refusal_log.admit_line(&cause, clock::now()) {
                log::info!(
                    "{}: connection closed: {cause} (suppressed={suppressed})",
                    listener.name
                );
            }
            client.abort();
        })
    }
}

/// The name that the client asks for: of its session, if it has one with this server, else of its
/// first message, which is then in `early`.
async fn read_name(
    client: &Stream,
    early: &mut Vec<u8>,
    timeout: Duration,
) -> Result<Option<Box<str>>, String> {
    if let Some(session) = penstock_tls::session_info(client) {
        return Ok(session.server_name.clone());
    }
    let read = penstock_tls::read_server_name(client, early);
    match clock::timeout(timeout, read).await {
        Some(read) => read.map_err(|error| error.to_string()),
        None => Err("limits.tls_handshake_timeout".to_owned()),
    }
}

#[cfg(test)]
mod tests;
