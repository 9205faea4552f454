//! The one hub of the process, and the handlers that routes get for it.
//!
//! Used by `server`, which keeps it over reloads, by `wiring`, which adds GRIP to applications and
//! upstreams, and by `admin_backend`, which shows it and publishes to it.
//!
//! # Invariants
//!
//! - A reload cuts no stream, and a Mercure hub keeps its subscribers and its history.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use penstock_cluster::{CounterSource, RedisBus};
use penstock_config::{Config, Grip as GripConfig, MercureKeys, Route, Site};
use penstock_exchange::{Handler, TrustedProxies};
use penstock_grip::{
    GripHandler, GripOptions, GripStreams, PublishKeys, REQUEST_ISSUER, WebSocketSupport,
};
use penstock_hub::{Hub, HubRouteHandler, Namespace, Namespaces, Settings};
use penstock_mercure::MercureHubs;
use penstock_runtime::LoopHandle;
use penstock_tokens::{Signer, Verifier};

use crate::caches::route_name;
use crate::key_sets::KeySets;
use crate::publishing;

/// The hub with its keys, namespaces and bus. Clones share state.
#[derive(Debug, Clone)]
pub(crate) struct HubService {
    pub(crate) hub: Hub,
    mercure_hubs: Arc<MercureHubs>,
    grip_streams: Arc<GripStreams>,
    key_sets: Arc<KeySets>,
    pub(crate) publish_keys: Arc<PublishKeys>,
    /// The namespaces of the active configuration.
    namespaces: Arc<ArcSwap<Namespaces>>,
    /// The connection to other servers, once there is one.
    bus: Arc<OnceLock<Arc<RedisBus>>>,
}

/// Builds the hub handlers of a configuration's routes.
#[derive(Debug)]
pub(crate) struct HubRouteBuilder<'a> {
    service: &'a HubService,
    /// Signs with `hub.grip_key`.
    signer: Option<Arc<Signer>>,
    trusted_proxies: Arc<TrustedProxies>,
}

impl HubService {
    /// Starts the hub, with a shard on each of `loops`.
    pub(crate) fn start(
        config: &Config,
        keys: Arc<PublishKeys>,
        loops: &[LoopHandle],
    ) -> io::Result<Self> {
        let hub = Hub::start(hub_settings(config, config.limits.max_connections), loops)?;
        let namespaces = channel_namespaces(config);
        hub.set_namespace_count(namespaces.iter().count());
        hub.set_presence_namespaces(&config.presence_namespaces());
        let mercures = Arc::new(MercureHubs::new(hub.clone()));
        let participant = Arc::downgrade(&mercures);
        hub.add_transfer_participant(participant);
        let grip_streams = Arc::new(GripStreams::new(loops));
        let participant = Arc::downgrade(&grip_streams);
        hub.add_transfer_participant(participant);
        Ok(Self {
            hub,
            mercure_hubs: mercures,
            grip_streams,
            key_sets: Arc::default(),
            publish_keys: keys,
            namespaces: Arc::new(ArcSwap::from_pointee(namespaces)),
            bus: Arc::default(),
        })
    }

    /// Joins the servers that share the configured Redis, if any, on the current runtime. Redis
    /// need not be reachable yet. `numbers` are summed over all servers.
    pub(crate) fn join_cluster(
        &self,
        config: &Config,
        numbers: CounterSource,
    ) -> Result<(), String> {
        let Some(address) = &config.server.redis else {
            return Ok(());
        };
        let authorities = config.server.redis_ca.as_deref().map(read_authorities);
        let authorities = authorities.transpose()?;
        let bus = RedisBus::start(&self.hub, address.expose(), authorities, numbers);
        let bus = bus.map_err(|error| error.to_string())?;
        log::info!("hub: joined the cluster at redis {}", bus.address());
        // Called once, at start.
        let _ = self.bus.set(bus);
        Ok(())
    }

    /// The key sets of all routes.
    pub(crate) fn key_sets(&self) -> &KeySets {
        &self.key_sets
    }

    pub(crate) fn bus(&self) -> Option<&RedisBus> {
        self.bus.get().map(|bus| &**bus)
    }

    /// Applies the limits of another configuration.
    pub(crate) fn apply_config(&self, config: &Config, connections: usize) {
        self.hub.configure(hub_settings(config, connections));
        let namespaces = channel_namespaces(config);
        self.hub.set_namespace_count(namespaces.iter().count());
        self.hub
            .set_presence_namespaces(&config.presence_namespaces());
        self.namespaces.store(Arc::new(namespaces));
    }

    pub(crate) fn namespaces(&self) -> Arc<Namespaces> {
        self.namespaces.load_full()
    }

    /// Returns the builder for the routes of `config`.
    pub(crate) fn route_builder(
        &self,
        config: &Config,
        trusted_proxies: Arc<TrustedProxies>,
    ) -> Result<HubRouteBuilder<'_>, String> {
        for warning in hub_warnings(config) {
            log::warn!("{warning}");
        }
        Ok(HubRouteBuilder {
            service: self,
            signer: grip_signer(config)?.map(Arc::new),
            trusted_proxies,
        })
    }
}

impl HubRouteBuilder<'_> {
    /// Wraps `inner` so that the hub holds responses that ask for it. Requests are signed with the
    /// key of the back end's namespace, unless one key is configured for all: libraries take a
    /// request without a signature for one that no proxy holds.
    pub(crate) fn with_grip(
        &self,
        inner: Arc<dyn Handler>,
        (route, grip): (&Route, &GripConfig),
        sockets: WebSocketSupport,
    ) -> Result<Arc<dyn Handler>, String> {
        let namespace = Namespace::new(&grip.namespace);
        let signer = match &self.signer {
            None => {
                let signer = Signer::new(
                    &self.service.publish_keys.publish_key(&namespace),
                    REQUEST_ISSUER,
                );
                Some(Arc::new(signer.map_err(|error| error.to_string())?))
            }
            common => common.clone(),
        };
        let handler = GripHandler::new(GripOptions {
            name: grip_handler_name(route, grip),
            hub: self.service.hub.clone(),
            backend: inner,
            namespace,
            allowed_origins: grip.origins.clone(),
            signer,
            front_signer: self.signer.clone(),
            websocket_support: sockets,
            trusted_proxies: Arc::clone(&self.trusted_proxies),
        });
        self.service.grip_streams.add_handler(&handler);
        Ok(Arc::new(handler))
    }

    /// The handler of a route that the hub answers itself; `None` for other routes.
    pub(crate) fn route_handler(
        &self,
        (site, route): (&Site, &Route),
    ) -> Result<Option<Arc<dyn Handler>>, String> {
        let with_path = |error: String| format!("route {}: {error}", route.path);
        if let Some(streams) = &route.hub {
            let handler =
                HubRouteHandler::new(self.service.hub.clone(), streams).map_err(with_path)?;
            return Ok(Some(Arc::new(handler)));
        }
        let Some(mercure) = &route.mercure else {
            return Ok(None);
        };
        let name = route_name(site, route);
        let handler = self
            .service
            .mercure_hubs
            .handler_for_route(&name, mercure, |source| {
                self.service.key_sets.set_of(source)
            })
            .map_err(with_path)?;
        Ok(Some(Arc::new(handler.with_base_path(&route.path))))
    }
}

/// The name of the handlers of a back end, the same in the next process of an upgrade.
fn grip_handler_name(route: &Route, grip: &GripConfig) -> String {
    let backend = match (&route.app, &route.upstream) {
        (Some(app), _) => format!("app {app}"),
        (None, upstream) => format!("upstream {}", upstream.as_deref().unwrap_or_default()),
    };
    format!("{backend}, namespace {}", grip.namespace)
}

/// Reads `server.redis_ca`, which has at least one usable authority. Blocks.
pub(crate) fn read_authorities(path: &Path) -> Result<Vec<u8>, String> {
    let named = |error: &dyn std::fmt::Display| format!("redis_ca: {}: {error}", path.display());
    penstock_tls::roots_from_file(path).map_err(|error| named(&error))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "at start, before the first request"
    )]
    std::fs::read(path).map_err(|error| named(&error))
}

/// Errors in the GRIP and Mercure keys of a configuration, each with its place.
pub(crate) fn validate_signing_keys(config: &Config) -> Vec<String> {
    let mut wrong: Vec<String> = grip_signer(config).err().into_iter().collect();
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    for (route, mercure) in routes.filter_map(|route| Some((route, route.mercure.as_ref()?))) {
        for (name, key) in [
            ("publisher_key", &mercure.publisher_key),
            ("subscriber_key", &mercure.subscriber_key),
        ] {
            let Some(MercureKeys::Single(key)) = key else {
                continue;
            };
            if let Err(error) = Verifier::new(key.key.expose(), &key.algorithm) {
                wrong.push(format!("route {}: mercure.{name}: {error}", route.path));
            }
        }
    }
    wrong
}

/// Settings that work but may be mistakes, each with its place.
pub(crate) fn hub_warnings(config: &Config) -> Vec<String> {
    let mut warnings = publishing::signature_warnings(config);
    if config.server.redis.is_none() {
        return warnings;
    }
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let alone = routes.filter(|route| route.mercure.is_some()).map(|route| {
        format!(
            "route {}: its Mercure hub is not shared over server.redis: it connects only \
             publishers and subscribers of this server",
            route.path
        )
    });
    warnings.extend(alone);
    warnings
}

/// The signer of requests to back ends, if a key is configured.
fn grip_signer(config: &Config) -> Result<Option<Signer>, String> {
    let Some(key) = &config.hub.grip_key else {
        return Ok(None);
    };
    let signer = Signer::new(key.expose(), &config.hub.grip_issuer);
    let signer = signer.map_err(|error| format!("hub.grip_key: {error}"))?;
    Ok(Some(signer))
}

fn channel_namespaces(config: &Config) -> Namespaces {
    Namespaces::new(config.channel_namespaces())
}

/// A client may be an office behind one address.
const MIN_STREAMS_PER_CLIENT: usize = 100;

/// The limits of the hub. A held stream is a connection too, so the limit of connections bounds the
/// streams.
fn hub_settings(config: &Config, connections: usize) -> Settings {
    let hub = &config.hub;
    let streams_max = match hub.max_streams {
        Some(max) => max,
        // Ordinary pages need connections too.
        None => (connections / 4 * 3).max(1),
    };
    let of_client = match hub.max_streams_per_client {
        Some(max) => max,
        None => (streams_max / 8).max(MIN_STREAMS_PER_CLIENT),
    };
    Settings {
        max_streams: Some(streams_max),
        max_streams_per_client: Some(of_client),
        ..hub.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use penstock_config::Invocation;

    use super::*;

    /// The warnings about a file with a Mercure hub that begins with `begin`.
    fn errors_of(name: &str, begin: &str) -> Vec<String> {
        let name = format!("penstock-held-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = format!(
            "{begin}\n[[sites]]\n[[sites.routes]]\npath = \"/.well-known/*\"\n\
             mercure = {{ publisher_key = \"!ChangeThisMercureHubJWTSecretKey!\" }}\n"
        );
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let config = penstock_config::resolve_config(&Invocation {
            config: Some(path.clone()),
            cwd: std::env::temp_dir(),
            ..Invocation::default()
        });
        std::fs::remove_file(path).unwrap();
        hub_warnings(&config.unwrap_or_else(|report| panic!("{report}")))
    }

    #[test]
    fn a_mercure_hub_that_is_not_shared_is_told_where_others_are() {
        assert_eq!(errors_of("alone", ""), [""; 0]);
        let shared = errors_of("shared", "[server]\nredis = \"redis://127.0.0.1:6379\"");
        assert_eq!(shared.len(), 1);
        assert!(
            shared[0].starts_with("route /.well-known/*: its Mercure hub is not shared"),
            "{shared:?}"
        );
    }
}
