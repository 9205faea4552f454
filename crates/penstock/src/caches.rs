//! Starts the caches of a configuration, or keeps them from the previous one.
//!
//! Used by `components` (behind the routes), by `wiring` (a cache in front of a handler), by
//! `admin_backend` (status and purges) and by `server`, which ends the caches that a reload has
//! removed.
//!
//! # Invariants
//!
//! - Only one store uses a directory at a time: when a reload changes a cache, the new store waits
//!   for the old one to stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_cache::{CacheHandler, CachedRoute, Store};
use penstock_config::{BlockingPool, Config, Route, Site};
use penstock_exchange::Handler;
use penstock_runtime::blocking::Pool;

pub(crate) type Caches = BTreeMap<String, Arc<Store>>;

pub(crate) type PoolLimits = BTreeMap<String, BlockingPool>;

/// Starts caches that are new or configured differently, on the current loop, and keeps the rest. A
/// store keeps its pool for life: if the pool's limits differ from `limits`, the store is started
/// again.
pub(crate) fn start_caches(
    config: &Config,
    (old, limits): (&Caches, &PoolLimits),
    pool_named: impl Fn(&str) -> Pool,
) -> Caches {
    let start = |(name, wanted): (&String, &penstock_config::Cache)| {
        let has_its_pool = config.blocking.get(&wanted.blocking) == limits.get(&wanted.blocking);
        let kept = old.get(name);
        let kept = kept.filter(|running| has_its_pool && running.config() == wanted);
        let store = match kept {
            Some(running) => Arc::clone(running),
            None => Store::start(wanted, pool_named(&wanted.blocking)),
        };
        (name.clone(), store)
    };
    config.caches.iter().map(start).collect()
}

/// The name of a route with caches, and of a part of its `split`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteName<'a> {
    pub(crate) route: &'a str,
    pub(crate) part: Option<&'a str>,
}

/// The name of a route with caches: `example.com /assets/*`, `* /*`.
pub(crate) fn route_name(site: &Site, route: &Route) -> String {
    let hosts: Vec<String> = site.hosts.iter().map(ToString::to_string).collect();
    let hosts = match hosts.is_empty() {
        true => "*".to_owned(),
        false => hosts.join(","),
    };
    // Routes with conditions may share their path.
    let namesakes = site
        .routes
        .iter()
        .take_while(|other| !std::ptr::eq(*other, route));
    match namesakes.filter(|other| other.path == route.path).count() {
        0 => format!("{hosts} {}", route.path),
        before => format!("{hosts} {} #{}", route.path, before + 1),
    }
}

/// Puts the caches of `route` in front of `inner`, its handler. A route of `old_routes` keeps its
/// counters.
pub(crate) fn with_caches(
    inner: Arc<dyn Handler>,
    (name, route): (RouteName<'_>, &Route),
    caches: &Caches,
    old_routes: &[CachedRoute],
) -> Result<(Arc<dyn Handler>, Option<CachedRoute>), String> {
    let Some(rules) = &route.cache else {
        return Ok((inner, None));
    };
    let mut rules = rules.clone();
    // The back end sees them: a response for one user is not another's.
    if let Some(auth) = &route.forward_auth {
        rules.key.headers.extend(auth.copy_headers.iter().cloned());
    }
    if let Some(jwt) = &route.jwt {
        rules.key.headers.extend(jwt.claims.keys().cloned());
    }
    let rules = &rules;
    let stores = rules.stores.iter().map(|name| {
        let store = caches.get(name).cloned();
        store.ok_or_else(|| format!("no cache `{name}`"))
    });
    let stores = stores.collect::<Result<Vec<_>, _>>()?;
    // Routes may share a store and, after a rewrite, even a path: each keeps its own back end's
    // responses.
    let scope = match (&route.app, &route.upstream) {
        (Some(app), _) => format!("{} app {app}", name.route),
        (None, Some(upstream)) => format!("{} upstream {upstream}", name.route),
        (None, None) => name.route.to_owned(),
    };
    let name = match name.part {
        Some(part) => format!("{} {part}", name.route),
        None => name.route.to_owned(),
    };
    let old = old_routes.iter().find(|old| old.name == name);
    let counters = old.map(|old| Arc::clone(&old.counters));
    let cached = CachedRoute {
        name,
        caches: rules.stores.clone(),
        counters: counters.unwrap_or_default(),
    };
    let counters = Arc::clone(&cached.counters);
    let cache = CacheHandler::with_scope(&scope, inner, rules, stores, counters);
    Ok((Arc::new(cache), Some(cached)))
}
