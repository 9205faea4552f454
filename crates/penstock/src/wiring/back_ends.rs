//! The back end of a route, with everything around it: what it may instruct the front end to do,
//! GRIP, explanations of development, caches; and of a `split` all of that for each part.
//!
//! # Invariants
//! - From the inside out: back end, its gate, `sendfile`, GRIP, explanations, compression, cache. A
//!   cache must store the response, not the instruction, and what the encoders made.
//! - A part of a `split` is built as the back end of a route of its own.

use std::sync::Arc;

use penstock_apps::App;
use penstock_cache::CachedRoute;
use penstock_compress::BodySecrecy;
use penstock_config::{AppKind, Config, Route, Sendfile, Site, SplitPart};
use penstock_exchange::Handler;
use penstock_grip::WebSocketSupport;
use penstock_proxy::{BufferingMode, Upstream};
use penstock_rules::{
    BackEndName, ConditionSet, MirrorHandler, PauseHandler, RequestConditions,
    ResponseTimeoutHandler, SplitHandler, SplitTarget,
};

use crate::app_kind_handler::AppKindHandler;
use crate::caches::{self, RouteName};
use crate::components::{Components, ServerAppHandler, default_pool};
use crate::compression::with_compression;
use crate::dev;
use crate::hub_service::HubRouteBuilder;
use crate::sendfile_grant;
use crate::served_dirs::ServedDirs;
use crate::work;

/// What the back ends of all routes are built from.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackEnds<'a> {
    pub(super) config: &'a Config,
    pub(super) components: &'a Components,
    pub(super) of_hub: &'a HubRouteBuilder<'a>,
    pub(super) conditions: &'a ConditionSet,
    pub(super) old_routes: &'a [CachedRoute],
    pub(super) loops: usize,
    pub(super) development: bool,
}

/// A back end and the caches in front of it.
pub(super) struct BuiltBackEnd {
    pub(super) handler: Arc<dyn Handler>,
    pub(super) cached_routes: Vec<CachedRoute>,
}

impl BackEnds<'_> {
    /// The back end of a route; `None` if it has none. May block (opens directories).
    pub(super) fn build(
        self,
        (site, route): (&Site, &Route),
        folders: &mut ServedDirs,
    ) -> Result<Option<BuiltBackEnd>, String> {
        let name = caches::route_name(site, route);
        let built = match route.split.is_empty() {
            true => self.build_part(&name, None, route, folders)?,
            false => Some(self.build_split(&name, route, folders)?),
        };
        let Some(mut built) = built else {
            return Ok(None);
        };
        let Some(rule) = &route.mirror else {
            return Ok(Some(built));
        };
        let target = Route {
            app: rule.app.clone(),
            upstream: rule.upstream.clone(),
            ..Route::new(route.path.clone())
        };
        let target = back_end_handler(&target, self.components)?;
        let target = target.ok_or("a mirror has no back end")?;
        let place = (&*self.components.rule_counts, name.as_str());
        built.handler = Arc::new(MirrorHandler::new(built.handler, rule, target, place));
        Ok(Some(built))
    }

    fn build_split(
        self,
        name: &str,
        route: &Route,
        folders: &mut ServedDirs,
    ) -> Result<BuiltBackEnd, String> {
        let mut cached_routes = Vec::new();
        let mut targets = Vec::new();
        for (settings, part) in route.split.iter().zip(route.parts()) {
            let name_of_part = back_end_name(&part);
            let built = self.build_part(name, Some(&name_of_part), &part, folders)?;
            let built = built.ok_or("a part of a split has no back end")?;
            cached_routes.extend(built.cached_routes);
            targets.push(SplitTarget {
                handler: built.handler,
                name: name_of_part,
                weight: settings.weight,
                conditions: self.conditions_of(settings)?,
                has_cache: route.cache.is_some(),
            });
        }
        let outcomes: Vec<&str> = targets.iter().map(|target| &*target.name).collect();
        let counts = (self.components.rule_counts).counts(name, "split", &outcomes);
        let handler = SplitHandler::new(targets, route.split_by.clone(), counts);
        Ok(BuiltBackEnd {
            handler: Arc::new(handler),
            cached_routes,
        })
    }

    fn conditions_of(self, part: &SplitPart) -> Result<Option<RequestConditions>, String> {
        if part.conditions.is_empty() {
            return Ok(None);
        }
        RequestConditions::compile(&part.conditions, self.conditions).map(Some)
    }

    /// The only back end of a route, or of a part of one.
    fn build_part(
        self,
        name: &str,
        part: Option<&str>,
        route: &Route,
        folders: &mut ServedDirs,
    ) -> Result<Option<BuiltBackEnd>, String> {
        let Some(handler) = back_end_handler(route, self.components)? else {
            return Ok(None);
        };
        let handler = match route.response_timeout {
            Some(timeout) => Arc::new(ResponseTimeoutHandler::new(handler, timeout)),
            None => handler,
        };
        let app = route.app.as_ref();
        let app = app.and_then(|name| self.components.apps.get(name));
        let handler = self.with_sendfile(handler, route, folders)?;
        let handler = self.with_grip(handler, route, app)?;
        let handler = match app {
            Some(app) if self.development => {
                let pool = default_pool(&self.components.pools);
                dev::with_explanations(handler, app, pool)
            }
            _ => handler,
        };
        let rule = (self.config, route);
        let secrecy = BodySecrecy::PerUser;
        let handler = with_compression(handler, rule, secrecy, self.components);
        let name = RouteName { route: name, part };
        let stores = &self.components.caches;
        let (handler, cached) =
            caches::with_caches(handler, (name, route), stores, self.old_routes)?;
        Ok(Some(BuiltBackEnd {
            handler,
            cached_routes: cached.into_iter().collect(),
        }))
    }

    fn with_sendfile(
        self,
        handler: Arc<dyn Handler>,
        route: &Route,
        folders: &mut ServedDirs,
    ) -> Result<Arc<dyn Handler>, String> {
        let Some(sendfile) = route_sendfile(self.config, route) else {
            return Ok(handler);
        };
        sendfile_grant::with_sendfile_grant(handler, &sendfile, |folder| {
            let (hide, pools) = (&self.config.server.hide, &self.components.pools);
            let setup = sendfile_grant::sendfile_setup(folder, hide, pools, self.loops);
            let files = folders.get_or_open(setup)?;
            let rule = (self.config, route);
            Ok(with_compression(
                files,
                rule,
                BodySecrecy::PerUser,
                self.components,
            ))
        })
    }

    fn with_grip(
        self,
        handler: Arc<dyn Handler>,
        route: &Route,
        app: Option<&Arc<App>>,
    ) -> Result<Arc<dyn Handler>, String> {
        let grip = match (&self.config.join_target, self.config.effective_grip(route)) {
            // Its instructions are for the front end that has the client's connection.
            (Some(_), _) => return Ok(work::with_instruction_pass_through(handler)),
            (None, None) => return Ok(handler),
            (None, Some(grip)) => grip,
        };
        let with_grip = |sockets| {
            self.of_hub
                .with_grip(Arc::clone(&handler), (route, &grip), sockets)
        };
        match app.filter(|app| app.config().kind_is_guess) {
            Some(app) => Ok(Arc::new(AppKindHandler {
                app: Arc::clone(app),
                native_handler: with_grip(WebSocketSupport::Native)?,
                websocket_over_http_handler: with_grip(WebSocketSupport::MayHijack)?,
            })),
            None => with_grip(websocket_support(app)),
        }
    }
}

/// The name of a route's only back end: `app shop`, `upstream api`.
pub(super) fn back_end_name(route: &Route) -> String {
    match (&route.app, &route.upstream) {
        (Some(app), _) => format!("app {app}"),
        (None, upstream) => format!("upstream {}", upstream.as_deref().unwrap_or_default()),
    }
}

/// The handler of a route's only back end, behind the gate that pauses it.
fn back_end_handler(
    route: &Route,
    components: &Components,
) -> Result<Option<Arc<dyn Handler>>, String> {
    if let Some(name) = &route.app {
        let app = components.apps.get(name);
        let app = app.ok_or_else(|| format!("no application `{name}`"))?;
        let handler = match components.upstreams.get(name) {
            Some(upstream) if app.config().upstream.is_some() => Arc::new(ServerAppHandler::new(
                app,
                upstream_handler(upstream, route),
            )),
            _ => Arc::clone(app) as Arc<dyn Handler>,
        };
        let name = BackEndName::App(name.clone());
        let gate = components.pauses.gate(name, app.config().max_queued);
        return Ok(Some(Arc::new(PauseHandler::new(handler, gate))));
    }
    if let Some(name) = &route.upstream {
        let upstream = components.upstreams.get(name);
        let upstream = upstream.ok_or_else(|| format!("no upstream `{name}`"))?;
        let name = BackEndName::Upstream(name.clone());
        let gate = components.pauses.gate(name, upstream.config().max_queued);
        let handler = upstream_handler(upstream, route);
        return Ok(Some(Arc::new(PauseHandler::new(handler, gate))));
    }
    Ok(None)
}

/// An upstream's handler with the route's buffering.
pub(crate) fn upstream_handler(upstream: &Upstream, route: &Route) -> Arc<dyn Handler> {
    let config = upstream.config();
    upstream.handler(BufferingMode {
        request: route.request_buffering.unwrap_or(config.request_buffering),
        response: route
            .response_buffering
            .unwrap_or(config.response_buffering),
    })
}

/// An application's own WebSocket support; upstreams have none.
fn websocket_support(app: Option<&Arc<App>>) -> WebSocketSupport {
    match app.map(|app| app.config().kind) {
        Some(AppKind::Wsgi | AppKind::Rack) => WebSocketSupport::MayHijack,
        _ => WebSocketSupport::Native,
    }
}

/// Whether responses of a route may name another body. Under `penstock work` the front end does
/// that, except for files of this machine.
fn route_sendfile(config: &Config, route: &Route) -> Option<Sendfile> {
    match (config.effective_sendfile(route), &config.join_target) {
        (None, Some(_)) => Some(Sendfile {
            is_enabled: true,
            dirs: Vec::new(),
        }),
        (configured, _) => configured.cloned(),
    }
}
