//! `penstock work`: serves a front end on another machine, which this server connects to.
//!
//! `config` keeps one application of the configuration. `server` starts everything but listeners,
//! and lets `proxy`'s joiner bring connections from the front end, which `edge` serves like any
//! others.
//!
//! # Invariants
//!
//! - The application's instructions to a front end (`X-Accel-*`, `Grip-*`) pass to the front end
//!   that has the client.
//! - Instructions about files of this machine (`X-Sendfile`) are applied here.
//! - Request headers that only a front end may set (`X-Request-Start`, `Grip-Sig`) are trusted: the
//!   only client is one.

use std::sync::Arc;

use penstock_apps::App;
use penstock_config::{Config, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::{
    Fault, Handler, HandlerProgress, InlineResponse, ListenerInfo, Reply, Request, RequestView,
};
use penstock_proxy::JoinerSetup;
use penstock_runtime::LoopHandle;
use penstock_runtime::blocking::Pool;
use penstock_sys::net::is_loopback;

use crate::components::Apps;

/// The setup to join a front end; `None` if none is configured.
pub(crate) fn joiner_setup(
    config: &Config,
    apps: &Apps,
    edge: &Arc<Edge>,
    loops: &[LoopHandle],
    pool: Pool,
) -> Option<JoinerSetup> {
    let joins = config.join_target.clone()?;
    let info = Arc::new(ListenerInfo {
        scheme: "http",
        address: None,
        has_tls: false,
        name: format!("join:{}", joins.address),
        proxy_protocol: false,
    });
    let edge = Arc::clone(edge);
    Some(JoinerSetup {
        label: format!(
            "{}:{}",
            penstock_sys::process::host_name(),
            std::process::id()
        ),
        max_active: max_joined_requests(apps),
        loops: loops.to_vec(),
        lookup_pool: pool,
        serve: Arc::new(move |stream, peer, early| {
            let info = Arc::clone(&info);
            penstock_edge::serve_connection(&edge, Arc::new(stream), peer, info, early);
        }),
        config: joins,
    })
}

/// Joins without TLS over a network, a line each.
pub(crate) fn plaintext_warnings(config: &Config) -> Vec<String> {
    let mut all = Vec::new();
    let listens = config.server.join.as_ref().filter(|join| !join.tls);
    if let Some(join) = listens.filter(|join| crosses_network(&join.listen)) {
        all.push(format!(
            "server.join: {} takes requests of clients across the network unencrypted: remove \
             `tls = false`, and `--plain` of those that join",
            join.listen.to_string().trim_start_matches("http://")
        ));
    }
    let joins = config.join_target.as_ref().filter(|joins| !joins.tls);
    if let Some(joins) = joins.filter(|joins| !is_local_address(&joins.address)) {
        all.push(format!(
            "work: requests of clients come unencrypted from {}: remove `--plain` here, and \
             `tls = false` in `join` of its [server]",
            joins.address
        ));
    }
    all
}

/// Whether other machines reach a listener.
fn crosses_network(listen: &ListenAddr) -> bool {
    match listen {
        ListenAddr::Tcp(address) => !is_loopback(*address),
        ListenAddr::Port(_) => true,
        ListenAddr::Unix(_) => false,
    }
}

/// Whether the address of a front end is on this machine, as far as it says so.
fn is_local_address(address: &str) -> bool {
    address.starts_with("unix:")
        || address.starts_with("localhost:")
        || address.parse().is_ok_and(is_loopback)
}

/// Maximum number of requests that the application may have in progress.
pub(crate) fn max_joined_requests(apps: &Apps) -> u32 {
    let of_app = |app: &Arc<App>| {
        let processes = u32::try_from(app.config().processes.max).unwrap_or(u32::MAX);
        app.process_request_capacity().saturating_mul(processes)
    };
    let most = apps.values().map(of_app).max();
    most.unwrap_or(1).clamp(1, 1_000_000)
}

/// Wraps a handler so that instructions to a front end pass through.
pub(crate) fn with_instruction_pass_through(handler: Arc<dyn Handler>) -> Arc<dyn Handler> {
    Arc::new(PassThroughHandler {
        handler,
        default_trusted: TrustedHeaders::new(["X-Request-Start".to_owned()]),
    })
}

#[derive(Debug)]
struct PassThroughHandler {
    handler: Arc<dyn Handler>,
    /// The request headers that a front end sets.
    default_trusted: TrustedHeaders,
}

impl Handler for PassThroughHandler {
    fn handle(&self, mut request: Request) -> HandlerProgress {
        // Only the front end has a connection that leads here.
        let known = match request.trusted_headers.is_empty() {
            true => &self.default_trusted,
            false => &request.trusted_headers,
        };
        request.trusted_headers = known.with_front_end_headers(&request.head);
        match self.handler.handle(request) {
            HandlerProgress::Ready(reply) => HandlerProgress::Ready(pass_through(reply)),
            HandlerProgress::Pending(work) => {
                HandlerProgress::Pending(Box::pin(async { pass_through(work.await) }))
            }
        }
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.handler.try_inline(request, take);
    }
}

fn pass_through(reply: Result<Reply, Fault>) -> Result<Reply, Fault> {
    Ok(match reply? {
        Reply::Response(mut response) => {
            response.forward_instructions();
            Reply::Response(response)
        }
        Reply::Redirect(redirect) if redirect.handler.is_none() => {
            let mut response = redirect.into_original_response();
            response.forward_instructions();
            Reply::Response(Box::new(response))
        }
        other => other,
    })
}
