//! From host and path to the handlers that answer: an immutable table, replaced whole by a reload.
//!
//! Built by `penstock`'s wiring, asked once per request. Hosts compare without case and port; routes
//! are tried in the order of the configuration, first match wins.

mod index;

use std::collections::HashMap;
use std::sync::Arc;

use penstock_config::{HostPattern, PathPattern};
use penstock_exchange::Handler;

use crate::error_pages::ErrorPages;
use crate::filters::Filters;
use index::PathIndex;

/// The handlers of a route, shared with the requests that are being answered.
pub type Handlers = Arc<[Arc<dyn Handler>]>;

/// All sites.
#[derive(Debug, Default)]
pub struct Routing {
    exact: HashMap<String, Arc<Site>>,
    /// Longest suffix first.
    below: Vec<(HostPattern, Arc<Site>)>,
    any: Option<Arc<Site>>,
}

/// One site: its routes in order, and its error pages.
#[derive(Debug, Default)]
pub struct Site {
    routes: Vec<Route>,
    by_path: PathIndex,
    /// Whether any of them leads to the path with its slash.
    has_folder_redirects: bool,
    error_pages: ErrorPages,
}

/// One route: the handlers for the paths it matches, asked in order until one answers.
#[derive(Debug)]
pub struct Route {
    /// The paths.
    pub path: PathPattern,
    /// Whether only internal redirects come here: for a client's own request it is not there.
    pub internal: bool,
    /// Whether the path without its final slash leads to the one with it: `/shop` to `/shop/` of a
    /// route `/shop/*`.
    pub has_folder_redirect: bool,
    /// Longest request body in bytes; `None` for `limits.body_bytes`.
    pub max_body: Option<u64>,
    /// What is changed of requests and responses; `None` when nothing is.
    pub filters: Option<Arc<Filters>>,
    /// The handlers.
    pub handlers: Handlers,
}

/// Who asks for a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A client: internal routes are not there.
    Client,
    /// An internal redirect.
    Redirect,
}

/// What the table says of a request.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    Route(&'a Route),
    NoRoute,
    NoSite,
}

impl Routing {
    /// Adds a site; no hosts means any host that no other site names.
    pub fn add(&mut self, hosts: &[HostPattern], site: Site) {
        let site = Arc::new(site);
        if hosts.is_empty() {
            self.any = Some(site);
            return;
        }
        for host in hosts {
            match host {
                HostPattern::Exact(name) => {
                    self.exact.insert(name.clone(), Arc::clone(&site));
                }
                HostPattern::Below(_) => self.below.push((host.clone(), Arc::clone(&site))),
            }
        }
        let length = |pattern: &HostPattern| pattern.to_string().len();
        self.below
            .sort_by_key(|(pattern, _)| std::cmp::Reverse(length(pattern)));
    }

    pub(crate) fn find(&self, authority: &str, path: &[u8], whose: Whose) -> Found<'_> {
        let Some(site) = self.site(without_port(authority)) else {
            return Found::NoSite;
        };
        match site.find(path, whose) {
            Some(route) => Found::Route(route),
            None => Found::NoRoute,
        }
    }

    /// Whether it matters which host is asked for.
    pub(crate) fn has_hosts(&self) -> bool {
        !self.exact.is_empty() || !self.below.is_empty()
    }

    /// The error pages of the site that answers for a host.
    pub(crate) fn error_pages(&self, authority: &str) -> Option<&ErrorPages> {
        let site = self.site(without_port(authority))?;
        Some(&site.error_pages)
    }

    fn site(&self, host: &str) -> Option<&Site> {
        if !self.exact.is_empty() {
            let host = host.strip_suffix('.').unwrap_or(host);
            let found = if host.bytes().any(|b| b.is_ascii_uppercase()) {
                self.exact.get(&host.to_ascii_lowercase())
            } else {
                self.exact.get(host)
            };
            if let Some(site) = found {
                return Some(site);
            }
        }
        let below = self.below.iter().find(|(pattern, _)| pattern.matches(host));
        below
            .map(|(_, site)| site)
            .or(self.any.as_ref())
            .map(|site| &**site)
    }
}

impl Site {
    /// A site with these routes, the first of which that matches a path answers.
    pub fn new(routes: Vec<Route>, error_pages: ErrorPages) -> Self {
        Self {
            by_path: PathIndex::new(routes.iter().map(|route| &route.path)),
            has_folder_redirects: routes.iter().any(|route| route.has_folder_redirect),
            routes,
            error_pages,
        }
    }

    fn find(&self, path: &[u8], whose: Whose) -> Option<&Route> {
        let is_open = |at: usize| !self.routes[at].internal || whose == Whose::Redirect;
        let matching = self.by_path.first(path, is_open);
        // Only a client can be sent to the path with its slash.
        let folder = match whose {
            Whose::Client if self.has_folder_redirects => self.by_path.first_below(path, |at| {
                is_open(at) && self.routes[at].has_folder_redirect
            }),
            _ => None,
        };
        let found = match (matching, folder) {
            (Some(matching), Some(folder)) if folder < matching => {
                // A route for that very path says more.
                self.by_path.first_exact(path, is_open).unwrap_or(folder)
            }
            (matching, folder) => matching.or(folder)?,
        };
        Some(&self.routes[found])
    }
}

impl Route {
    /// Whether a path is this route's but for the final slash, and leads there.
    pub(crate) fn leads_to_folder(&self, path: &[u8]) -> bool {
        let PathPattern::Prefix(prefix) = &self.path else {
            return false;
        };
        self.has_folder_redirect && prefix.as_bytes().strip_suffix(b"/") == Some(path)
    }
}

/// `host:port` or `[::1]:port` without the port.
fn without_port(authority: &str) -> &str {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        let route = Route {
            path: PathPattern::any(),
            internal: false,
            has_folder_redirect: false,
            max_body: None,
            filters: None,
            handlers: Arc::default(),
        };
        Site::new(vec![route], ErrorPages::default())
    }

    #[test]
    fn hosts_compare_without_case_port_and_final_dot() {
        let mut routing = Routing::default();
        routing.add(
            &[
                HostPattern::Exact("example.com".into()),
                HostPattern::Below(".example.org".into()),
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
            assert!(
                matches!(routing.find(known, b"/", Whose::Client), Found::Route(_)),
                "{known}"
            );
        }
        for unknown in ["example.org", "badexample.org", "com", "", "[::2]"] {
            assert!(
                matches!(routing.find(unknown, b"/", Whose::Client), Found::NoSite),
                "{unknown}"
            );
        }
    }

    #[test]
    fn the_first_matching_route_answers() {
        let mut routing = Routing::default();
        let prefix = PathPattern::Prefix("/assets/".into());
        let exact = PathPattern::Exact("/up".into());
        let routes = [prefix, exact].map(|path| Route {
            path,
            internal: false,
            has_folder_redirect: false,
            max_body: None,
            filters: None,
            handlers: Arc::default(),
        });
        routing.add(&[], Site::new(routes.into(), ErrorPages::default()));
        for (path, found) in [
            ("/assets/a", true),
            ("/assets", false),
            ("/up", true),
            ("/up/x", false),
        ] {
            let route = routing.find("any", path.as_bytes(), Whose::Client);
            assert_eq!(matches!(route, Found::Route(_)), found, "{path}");
        }
    }

    #[test]
    fn a_path_without_its_slash_is_found_in_the_order_of_routes() {
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
            let mut routing = Routing::default();
            let names: Vec<String> = routes.iter().map(ToString::to_string).collect();
            let routes = routes.into_iter().map(|path| Route {
                has_folder_redirect: path == prefix("/shop/"),
                max_body: None,
                path,
                internal: false,
                filters: None,
                handlers: Arc::default(),
            });
            let site = Site::new(routes.collect(), ErrorPages::default());
            routing.add(&[], site);
            // An internal redirect goes to routes for that very path.
            let redirected = routing.find("any", b"/shop", Whose::Redirect);
            assert!(
                match redirected {
                    Found::Route(route) => route.path.matches("/shop"),
                    Found::NoRoute => names == ["/shop/*"],
                    Found::NoSite => false,
                },
                "{names:?}"
            );
            let Found::Route(route) = routing.find("any", b"/shop", Whose::Client) else {
                panic!("{names:?}");
            };
            let found = (route.path.to_string(), route.leads_to_folder(b"/shop"));
            assert_eq!(found, (names[expected.0].clone(), expected.1), "{names:?}");
            assert!(!route.leads_to_folder(b"/shop/") && !route.leads_to_folder(b"/shopping"));
        }
    }

    #[test]
    fn an_internal_route_is_there_for_redirects_only() {
        let route = |path: &str, internal| Route {
            path: PathPattern::Prefix(path.into()),
            internal,
            has_folder_redirect: false,
            max_body: None,
            filters: None,
            handlers: Arc::default(),
        };
        let routes = vec![route("/kept/", true), route("/", false)];
        let mut routing = Routing::default();
        let site = Site::new(routes, ErrorPages::default());
        routing.add(&[], site);
        for (whose, expected) in [(Whose::Client, false), (Whose::Redirect, true)] {
            let Found::Route(route) = routing.find("any", b"/kept/a", whose) else {
                panic!("{whose:?}");
            };
            assert_eq!(route.internal, expected, "{whose:?}");
        }
    }
}
