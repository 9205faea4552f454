//! Puts compression around the handlers of a route, where its configuration asks for it.
//!
//! `wiring` calls it for the files of a route, and `back_ends` for its back end below the caches.

use std::sync::Arc;

use penstock_compress::{BodySecrecy, CompressHandler};
use penstock_config::{Config, Route};
use penstock_exchange::Handler;

use crate::components::Components;

/// Wraps `inner`, a handler of `route`. Under `penstock work` the front end compresses: it knows
/// the client.
pub(crate) fn with_compression(
    inner: Arc<dyn Handler>,
    (config, route): (&Config, &Route),
    secrecy: BodySecrecy,
    components: &Components,
) -> Arc<dyn Handler> {
    match &route.compress {
        Some(rule) if config.join_target.is_none() => {
            let compressor = components.compressor.clone();
            Arc::new(CompressHandler::new(inner, rule, secrecy, compressor))
        }
        _ => inner,
    }
}
