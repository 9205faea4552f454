//! A cache in front of one handler.

use std::sync::Arc;

use penstock_config::RouteCache;
use penstock_exchange::{Asked, AtHand, Handler, Handling, Request};

use crate::store::Store;

/// A cache in front of one handler, with the rules of its route.
#[derive(Debug)]
pub struct Cache {
    inner: Arc<dyn Handler>,
}

impl Cache {
    /// Puts `stores` (those that `rules` names, in its order) in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Handler>, rules: &RouteCache, stores: Vec<Arc<Store>>) -> Self {
        let _ = (rules, stores);
        Self { inner }
    }
}

impl Handler for Cache {
    fn handle(&self, request: Request) -> Handling {
        self.inner.handle(request)
    }

    fn at_hand(&self, asked: &Asked<'_>, take: &mut dyn FnMut(AtHand<'_>)) {
        self.inner.at_hand(asked, take);
    }
}
