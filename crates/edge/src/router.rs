//! From a request's host and path to its route: an immutable table, replaced whole by a reload.
//!
//! Built by `penstock`'s wiring, searched once per request and internal redirect. Hosts compare without case and port;
//! routes match in the order of the configuration, first match wins.

mod path_index;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{HostPattern, PathPattern};
use penstock_exchange::metrics::RouteCounts;
use penstock_exchange::{Fault, FaultKind, ForwardedInfo, Handler, Mount, RequestPath, Response};
use penstock_http::{Method, RequestHead, strip_port};
use penstock_rules::{Maintenance, RequestConditions, RequestFacts};

use crate::faults;
use crate::filters::Filters;
use crate::response_policy::ResponsePolicy;
use crate::top_lists::address_of;
use path_index::PathIndex;

/// The handlers of a route, shared with requests in progress.
pub type HandlerChain = Arc<[Arc<dyn Handler>]>;

/// All sites.
#[derive(Debug, Default)]
pub struct RouteTable {
    exact_hosts: HashMap<String, Arc<Site>>,
    /// Longest suffix first.
    wildcard_hosts: Vec<(HostPattern, Arc<Site>)>,
    default_site: Option<Arc<Site>>,
    /// Whether a site redirects to HTTPS or to its canonical host.
    has_site_redirects: bool,
    maintenance: Arc<Maintenance>,
}

/// One site: its routes in order, and what it does with responses.
#[derive(Debug, Default)]
pub struct Site {
    /// Its hosts, as the configuration writes them; `*` for any.
    hosts: Vec<String>,
    routes: Vec<Route>,
    path_index: PathIndex,
    /// Whether any of them redirects to the path with its slash.
    has_folder_redirects: bool,
    policy: Arc<ResponsePolicy>,
    /// The port of HTTPS that requests without TLS are redirected to.
    https_port: Option<u16>,
    /// The host that requests for others are redirected to.
    canonical_host: Option<Box<str>>,
}

/// One route: the handlers for the paths it matches, run in order until one responds.
#[derive(Debug)]
pub struct Route {
    /// The paths.
    pub path: PathPattern,
    /// What else its requests must be; `None` for any request.
    pub conditions: Option<Box<RequestConditions>>,
    /// Whether the route is for internal redirects only, and hidden from clients.
    pub is_internal: bool,
    /// Whether the path without its final slash redirects to the one with it: `/shop` to `/shop/`
    /// of a route `/shop/*`.
    pub redirects_directories: bool,
    /// Bounds on bodies that differ from the server's.
    pub body_limits: RouteBodyLimits,
    /// Changes to requests and responses; `None` when there are none.
    pub filters: Option<Arc<Filters>>,
    /// What is done with its responses; `None` for what its site does.
    pub policy: Option<Arc<ResponsePolicy>>,
    /// What logs and metrics need of the route; `None` where they need nothing.
    pub observation: Option<Arc<RouteObservation>>,
    /// The handlers.
    pub handlers: HandlerChain,
}

/// Bounds of a route on bodies; `None` for those of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RouteBodyLimits {
    /// Longest request body in bytes.
    pub max_bytes: Option<u64>,
    /// How long nothing may arrive of a request body, or be taken of a response.
    pub idle_timeout: Option<Duration>,
    /// Least rate of both in bytes a second; 0 is no minimum.
    pub min_rate: Option<u64>,
}

/// A route as logs and metrics name it.
#[derive(Debug)]
pub struct RouteObservation {
    /// The first host of its site, or `*`.
    pub site: Box<str>,
    /// The pattern of its path.
    pub route: Box<str>,
    /// The logs of its site, by their place in [`crate::Settings::access_logs`]; `None` for the
    /// default ones.
    pub access_logs: Option<Box<[usize]>>,
    /// Its counts, where routes are counted.
    pub counts: Option<Arc<RouteCounts>>,
}

impl RouteObservation {
    /// A route of a site with the default logs.
    #[must_use]
    pub fn new(site: &str, route: &str) -> Self {
        Self {
            site: site.into(),
            route: route.into(),
            access_logs: None,
            counts: None,
        }
    }
}

/// What responds to a request.
pub(crate) enum RouteMatch<R> {
    /// The handlers of a route, for this path.
    Route(RequestPath, R),
    /// Edge itself, with this.
    EdgeResponse(Result<Box<Response>, Fault>),
}

/// The parts of its route that an exchange keeps.
pub(crate) struct OwnedRoute {
    pub(crate) handlers: HandlerChain,
    pub(crate) filters: Option<Arc<Filters>>,
    pub(crate) observation: Option<Arc<RouteObservation>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupOrigin {
    /// A client: internal routes are hidden.
    Client,
    /// An internal redirect.
    InternalRedirect,
}

impl RouteTable {
    /// A table whose sites this switch takes out of service.
    #[must_use]
    pub fn with_maintenance(maintenance: Arc<Maintenance>) -> Self {
        Self {
            maintenance,
            ..Self::default()
        }
    }

    /// Adds a site; without hosts it is for any host that no other site names.
    pub fn add_site(&mut self, hosts: &[HostPattern], mut site: Site) {
        self.has_site_redirects |= site.https_port.is_some() || site.canonical_host.is_some();
        site.hosts = match hosts.is_empty() {
            true => vec!["*".to_owned()],
            false => hosts.iter().map(ToString::to_string).collect(),
        };
        let site = Arc::new(site);
        if hosts.is_empty() {
            self.default_site = Some(site);
            return;
        }
        for host in hosts {
            match host {
                HostPattern::Exact(name) => {
                    self.exact_hosts.insert(name.clone(), Arc::clone(&site));
                }
                HostPattern::Subdomains(_) => {
                    self.wildcard_hosts.push((host.clone(), Arc::clone(&site)));
                }
            }
        }
        let length = |pattern: &HostPattern| pattern.to_string().len();
        self.wildcard_hosts
            .sort_by_key(|(pattern, _)| std::cmp::Reverse(length(pattern)));
    }

    /// What responds to a client's request: the route of its host and path, or edge itself, to a
    /// request that is malformed, is about the server as a whole, or lacks the slash of a directory.
    pub(crate) fn match_request(
        &self,
        request: &RequestFacts<'_>,
        forwarded: Option<&ForwardedInfo>,
    ) -> RouteMatch<&Route> {
        let head = request.head;
        let path = match RequestPath::from_head(head) {
            Ok(path) => path,
            Err(error) => {
                return RouteMatch::EdgeResponse(Err(Fault::new(
                    FaultKind::BadRequest,
                    error.to_string(),
                )));
            }
        };
        if let Some(response) = respond_without_route(head) {
            return RouteMatch::EdgeResponse(response);
        }
        // Not read where every site answers for any host: each read checks that it is text.
        let host = match self.depends_on_host() {
            true => head.host(),
            false => "",
        };
        let bytes = path.bytes(head);
        if let Some(location) = self.site_location(request, forwarded) {
            let response = faults::redirect_to_site(&location);
            return RouteMatch::EdgeResponse(Ok(Box::new(response)));
        }
        if self.maintenance.is_on()
            && let Some(site) = self.find_site(strip_port(head.host()))
            && let Some(fault) = self.maintenance.refusal(&site.hosts, request.client)
        {
            return RouteMatch::EdgeResponse(Err(fault));
        }
        match self.find_route(host, bytes, request, LookupOrigin::Client) {
            Ok(route) if route.is_directory_redirect(bytes) => {
                let outer = forwarded.map_or(&Mount::ROOT, |it| &it.mount);
                let outer = match &route.filters {
                    Some(filters) => filters.outer_mount(outer),
                    None => Cow::Borrowed(outer),
                };
                let query = head.target_path_query().split_once('?');
                let location = outer.directory_location(bytes, query.map(|(_, query)| query));
                let response = faults::redirect_to_directory(head.method(), location.as_bytes());
                RouteMatch::EdgeResponse(Ok(Box::new(response)))
            }
            Ok(route) => RouteMatch::Route(path, route),
            Err(fault) => RouteMatch::EdgeResponse(Err(fault)),
        }
    }

    /// Where a request is redirected to that comes without TLS or for another host than its site's
    /// own, if the site says so. A host that no URL can have gives none.
    fn site_location(
        &self,
        request: &RequestFacts<'_>,
        forwarded: Option<&ForwardedInfo>,
    ) -> Option<String> {
        if !self.has_site_redirects {
            return None;
        }
        let head = request.head;
        let site = self.find_site(strip_port(head.host()))?;
        let https_port = site.https_port.filter(|_| request.scheme != "https");
        let named = forwarded.and_then(|it| it.host.as_deref());
        let authority = named.unwrap_or_else(|| head.host());
        let host = strip_port(authority);
        let canonical = site.canonical_host.as_deref();
        let canonical = canonical.filter(|canonical| !canonical.eq_ignore_ascii_case(host));
        if https_port.is_none() && canonical.is_none() {
            return None;
        }
        let target = head.target_path_query();
        if host.is_empty() || !target.starts_with('/') {
            return None;
        }
        let (scheme, port) = match https_port {
            Some(443) => ("https", String::new()),
            Some(port) => ("https", format!(":{port}")),
            None => (request.scheme, authority[host.len()..].to_owned()),
        };
        let host = canonical.unwrap_or(host);
        Some(format!("{scheme}://{host}{port}{target}"))
    }

    /// The route for a path.
    ///
    /// # Errors
    /// When no site answers for the host, or none of its routes for the path.
    pub(crate) fn find_route(
        &self,
        authority: &str,
        path: &[u8],
        request: &RequestFacts<'_>,
        whose: LookupOrigin,
    ) -> Result<&Route, Fault> {
        let site = self.find_site(strip_port(authority)).ok_or_else(|| {
            let cause = format!("no site has the host `{authority}` in its `hosts`");
            Fault::new(FaultKind::UnknownHost, cause)
        })?;
        site.find_route(path, request, whose)
            .ok_or_else(|| Fault::new(FaultKind::NotFound, "no route matches"))
    }

    /// The names of all routes, by [`address_of`].
    pub(crate) fn route_names(&self) -> HashMap<usize, String> {
        let of_hosts = self.exact_hosts.values();
        let below = self.wildcard_hosts.iter().map(|(_, site)| site);
        let sites = of_hosts.chain(below).chain(&self.default_site);
        let mut names = HashMap::new();
        for site in sites {
            let hosts = site.hosts.join(",");
            for (at, route) in site.routes.iter().enumerate() {
                // Routes with conditions may share their path.
                let namesakes = site.routes[..at].iter();
                let before = namesakes.filter(|other| other.path == route.path).count();
                let name = match before {
                    0 => format!("{hosts} {}", route.path),
                    before => format!("{hosts} {} #{}", route.path, before + 1),
                };
                names.insert(address_of(route), name);
            }
        }
        names
    }

    /// Whether the host makes a difference.
    fn depends_on_host(&self) -> bool {
        !self.exact_hosts.is_empty() || !self.wildcard_hosts.is_empty()
    }

    /// What the site of a host does with responses.
    pub(crate) fn response_policy(&self, authority: &str) -> Option<&Arc<ResponsePolicy>> {
        let site = self.find_site(strip_port(authority))?;
        Some(&site.policy)
    }

    fn find_site(&self, host: &str) -> Option<&Site> {
        if !self.exact_hosts.is_empty() {
            let host = host.strip_suffix('.').unwrap_or(host);
            let found = if host.bytes().any(|b| b.is_ascii_uppercase()) {
                self.exact_hosts.get(&host.to_ascii_lowercase())
            } else {
                self.exact_hosts.get(host)
            };
            if let Some(site) = found {
                return Some(site);
            }
        }
        let below = self
            .wildcard_hosts
            .iter()
            .find(|(pattern, _)| pattern.matches(host));
        below
            .map(|(_, site)| site)
            .or(self.default_site.as_ref())
            .map(|site| &**site)
    }
}

impl Site {
    /// A site with these routes, of which the first that matches a path is used, and with a policy
    /// for routes that have none.
    pub fn new(routes: Vec<Route>, policy: Arc<ResponsePolicy>) -> Self {
        Self {
            hosts: Vec::new(),
            path_index: PathIndex::new(routes.iter().map(|route| &route.path)),
            has_folder_redirects: routes.iter().any(|route| route.redirects_directories),
            routes,
            policy,
            https_port: None,
            canonical_host: None,
        }
    }

    /// Redirects requests without TLS to `https` at this port.
    #[must_use]
    pub fn with_https_redirect(self, port: u16) -> Self {
        Self {
            https_port: Some(port),
            ..self
        }
    }

    /// Redirects requests for other hosts to this one.
    #[must_use]
    pub fn with_canonical_host(self, host: &str) -> Self {
        Self {
            canonical_host: Some(host.into()),
            ..self
        }
    }

    fn find_route(
        &self,
        path: &[u8],
        request: &RequestFacts<'_>,
        whose: LookupOrigin,
    ) -> Option<&Route> {
        let is_open = |at: usize| {
            let route = &self.routes[at];
            let is_visible = !route.is_internal || whose == LookupOrigin::InternalRedirect;
            let conditions = route.conditions.as_ref();
            is_visible && conditions.is_none_or(|it| it.match_request(request, path))
        };
        let matching = self.path_index.first_match(path, is_open);
        // Only a client can be redirected to the path with its slash.
        let folder = match whose {
            LookupOrigin::Client if self.has_folder_redirects => {
                self.path_index.first_directory_match(path, |at| {
                    is_open(at) && self.routes[at].redirects_directories
                })
            }
            _ => None,
        };
        let found = match (matching, folder) {
            (Some(matching), Some(folder)) if folder < matching => {
                // A route for exactly that path is more specific.
                self.path_index
                    .first_exact_match(path, is_open)
                    .unwrap_or(folder)
            }
            (matching, folder) => matching.or(folder)?,
        };
        Some(&self.routes[found])
    }
}

impl Route {
    /// Whether a path is this route's but for the final slash, and redirects there.
    pub(crate) fn is_directory_redirect(&self, path: &[u8]) -> bool {
        let PathPattern::Prefix(prefix) = &self.path else {
            return false;
        };
        self.redirects_directories && prefix.as_bytes().strip_suffix(b"/") == Some(path)
    }
}

impl RouteMatch<&Route> {
    pub(crate) fn into_owned(self) -> RouteMatch<OwnedRoute> {
        match self {
            Self::Route(path, route) => {
                let kept = OwnedRoute {
                    handlers: Arc::clone(&route.handlers),
                    filters: route.filters.clone(),
                    observation: route.observation.clone(),
                };
                RouteMatch::Route(path, kept)
            }
            Self::EdgeResponse(response) => RouteMatch::EdgeResponse(response),
        }
    }
}

/// The response to requests about the connection or the server as a whole.
fn respond_without_route(head: &RequestHead) -> Option<Result<Box<Response>, Fault>> {
    let refuse = |kind, cause: &'static str| Some(Err(Fault::new(kind, cause)));
    if head.has_websocket_events() {
        // An application could not tell it from the hub's own events of a WebSocket.
        let cause = "a client poses as a front end: application/websocket-events";
        return refuse(FaultKind::Forbidden, cause);
    }
    match head.method() {
        Method::Connect => refuse(FaultKind::NotImplemented, "CONNECT: not a proxy"),
        Method::Trace => refuse(FaultKind::MethodNotAllowed, "TRACE is refused"),
        Method::Options if head.target_path_query() == "*" => {
            Some(Ok(Box::new(faults::respond_options())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use penstock_http::{HeadLimits, ParseProgress, parse_head};
    use penstock_sys::net::PeerAddress;

    use super::*;
    use crate::tests::LISTENER;

    fn head() -> RequestHead {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        match parse_head(text, &HeadLimits::default()).unwrap() {
            ParseProgress::Complete((head, _)) => head,
            ParseProgress::Partial => panic!("the head is whole"),
        }
    }

    fn facts(head: &RequestHead) -> RequestFacts<'_> {
        RequestFacts {
            head,
            client: PeerAddress::Unix,
            scheme: "http",
            listener: &LISTENER,
            tls: None,
        }
    }

    fn site() -> Site {
        let route = Route {
            path: PathPattern::any(),
            conditions: None,
            is_internal: false,
            redirects_directories: false,
            body_limits: RouteBodyLimits::default(),
            policy: None,
            observation: None,
            filters: None,
            handlers: Arc::default(),
        };
        Site::new(vec![route], Arc::default())
    }

    #[test]
    fn hosts_compare_without_case_port_and_final_dot() {
        let head = head();
        let mut routing = RouteTable::default();
        routing.add_site(
            &[
                HostPattern::Exact("example.com".into()),
                HostPattern::Subdomains(".example.org".into()),
                HostPattern::Exact("[::1]".into()),
            ],
            site(),
        );
        for known in [
            "example.com",
            "EXAMPLE.com:8080",
            "example.com.",
            "a.example.org",
            "[::1]:80",
        ] {
            let found = routing.find_route(known, b"/", &facts(&head), LookupOrigin::Client);
            assert!(found.is_ok(), "{known}");
        }
        for unknown in ["example.org", "badexample.org", "com", "", "[::2]"] {
            let found = routing.find_route(unknown, b"/", &facts(&head), LookupOrigin::Client);
            assert_eq!(found.unwrap_err().kind, FaultKind::UnknownHost, "{unknown}");
        }
    }

    #[test]
    fn the_first_matching_route_answers() {
        let head = head();
        let mut routing = RouteTable::default();
        let prefix = PathPattern::Prefix("/assets/".into());
        let exact = PathPattern::Exact("/up".into());
        let routes = [prefix, exact].map(|path| Route {
            path,
            conditions: None,
            is_internal: false,
            redirects_directories: false,
            body_limits: RouteBodyLimits::default(),
            policy: None,
            observation: None,
            filters: None,
            handlers: Arc::default(),
        });
        routing.add_site(&[], Site::new(routes.into(), Arc::default()));
        for (path, found) in [
            ("/assets/a", true),
            ("/assets", false),
            ("/up", true),
            ("/up/x", false),
        ] {
            let route =
                routing.find_route("any", path.as_bytes(), &facts(&head), LookupOrigin::Client);
            assert_eq!(route.is_ok(), found, "{path}");
        }
    }

    #[test]
    fn a_path_without_its_slash_is_found_in_the_order_of_routes() {
        let head = head();
        let prefix = |text: &str| PathPattern::Prefix(text.to_owned());
        let exact = |text: &str| PathPattern::Exact(text.to_owned());
        for (routes, expected) in [
            (vec![prefix("/shop/")], (0, true)),
            (vec![prefix("/shop/"), prefix("/")], (0, true)),
            (vec![prefix("/"), prefix("/shop/")], (0, false)),
            (vec![prefix("/shop/"), exact("/shop")], (1, false)),
            (
                vec![prefix("/shop/"), prefix("/"), exact("/shop")],
                (2, false),
            ),
            (vec![exact("/shop"), prefix("/shop/")], (0, false)),
        ] {
            let mut routing = RouteTable::default();
            let names: Vec<String> = routes.iter().map(ToString::to_string).collect();
            let routes = routes.into_iter().map(|path| Route {
                redirects_directories: path == prefix("/shop/"),
                body_limits: RouteBodyLimits::default(),
                policy: None,
                observation: None,
                path,
                conditions: None,
                is_internal: false,
                filters: None,
                handlers: Arc::default(),
            });
            let site = Site::new(routes.collect(), Arc::default());
            routing.add_site(&[], site);
            // An internal redirect goes to routes for that very path.
            let redirected = routing.find_route(
                "any",
                b"/shop",
                &facts(&head),
                LookupOrigin::InternalRedirect,
            );
            match redirected {
                Ok(route) => assert!(route.path.matches(b"/shop"), "{names:?}"),
                Err(fault) => {
                    assert_eq!(fault.kind, FaultKind::NotFound);
                    assert_eq!(names, ["/shop/*"]);
                }
            }
            let route = routing.find_route("any", b"/shop", &facts(&head), LookupOrigin::Client);
            let route = route.unwrap();
            let found = (
                route.path.to_string(),
                route.is_directory_redirect(b"/shop"),
            );
            assert_eq!(found, (names[expected.0].clone(), expected.1), "{names:?}");
            assert!(
                !route.is_directory_redirect(b"/shop/")
                    && !route.is_directory_redirect(b"/shopping")
            );
        }
    }

    #[test]
    fn an_internal_route_is_there_for_redirects_only() {
        let head = head();
        let route = |path: &str, internal| Route {
            path: PathPattern::Prefix(path.into()),
            conditions: None,
            is_internal: internal,
            redirects_directories: false,
            body_limits: RouteBodyLimits::default(),
            policy: None,
            observation: None,
            filters: None,
            handlers: Arc::default(),
        };
        let routes = vec![route("/kept/", true), route("/", false)];
        let mut routing = RouteTable::default();
        let site = Site::new(routes, Arc::default());
        routing.add_site(&[], site);
        for (whose, expected) in [
            (LookupOrigin::Client, false),
            (LookupOrigin::InternalRedirect, true),
        ] {
            let route = routing
                .find_route("any", b"/kept/a", &facts(&head), whose)
                .unwrap();
            assert_eq!(route.is_internal, expected, "{whose:?}");
        }
    }
}
