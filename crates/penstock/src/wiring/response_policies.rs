//! What a site and its routes do with responses: error pages, `security_headers` and
//! `Strict-Transport-Security`.
//!
//! # Invariants
//! - Errors are intercepted on routes with a back end only: what the server itself answers, by a
//!   rule or as a hub, is meant as it is. An error of `respond` without a body gets a page.

use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_config::{Hsts, Route, Site};
use penstock_edge::{ErrorPages, ResponsePolicy};

/// The policies of one site. Routes share them, unless they say something else.
pub(super) struct SitePolicies<'c> {
    site: &'c Site,
    error_pages: Arc<ErrorPages>,
    hsts: Option<Arc<str>>,
    /// For the site itself and its routes without a back end.
    pub(super) plain: Arc<ResponsePolicy>,
    of_back_ends: Arc<ResponsePolicy>,
}

impl<'c> SitePolicies<'c> {
    /// Loads the pages of a site. *Blocking*.
    pub(super) fn load(site: &'c Site) -> Result<Self, String> {
        let error_pages = ErrorPages::load(&site.error_pages);
        let error_pages = error_pages.map_err(|error| format!("error_pages: {error}"))?;
        let error_pages = Arc::new(error_pages);
        let hsts = site.hsts.as_ref().map(hsts_value);
        let policy = |intercepted: BTreeSet<u16>| {
            Arc::new(ResponsePolicy {
                error_pages: Arc::clone(&error_pages),
                intercepted,
                hsts: hsts.clone(),
                default_fields: site.security_headers.fields(),
            })
        };
        let plain = policy(BTreeSet::new());
        let of_back_ends = match site.intercept_errors.is_empty() {
            true => Arc::clone(&plain),
            false => policy(site.intercept_errors.clone()),
        };
        Ok(Self {
            site,
            hsts: hsts.clone(),
            plain,
            of_back_ends,
            error_pages,
        })
    }

    /// The policy of a route; loads its pages. *Blocking*.
    pub(super) fn for_route(&self, route: &Route) -> Result<Arc<ResponsePolicy>, String> {
        let says_nothing = route.error_pages.is_empty()
            && route.intercept_errors.is_none()
            && route.security_headers.is_none()
            && bare_error(route).is_none();
        if says_nothing {
            return Ok(Arc::clone(match route.has_back_end() {
                true => &self.of_back_ends,
                false => &self.plain,
            }));
        }
        let site_pages = Arc::clone(&self.error_pages);
        let error_pages = match route.error_pages.is_empty() {
            true => site_pages,
            false => {
                let pages = ErrorPages::load(&route.error_pages);
                let pages = pages.map_err(|error| format!("error_pages: {error}"))?;
                Arc::new(pages.before(site_pages))
            }
        };
        let intercepted = route.intercept_errors.as_ref();
        let intercepted = intercepted.unwrap_or(&self.site.intercept_errors);
        let headers = route.security_headers.as_ref();
        Ok(Arc::new(ResponsePolicy {
            error_pages,
            intercepted: match route.has_back_end() {
                true => intercepted.clone(),
                false => bare_error(route).into_iter().collect(),
            },
            hsts: self.hsts.clone(),
            default_fields: headers.unwrap_or(&self.site.security_headers).fields(),
        }))
    }
}

/// The status of a route that answers with an error and no body.
fn bare_error(route: &Route) -> Option<u16> {
    let respond = route.respond.as_ref()?;
    let is_bare = respond.body.is_none() && respond.file.is_none();
    (is_bare && respond.status >= 400).then_some(respond.status)
}

/// The value of `Strict-Transport-Security` (RFC 6797 §6.1).
fn hsts_value(hsts: &Hsts) -> Arc<str> {
    let mut value = format!("max-age={}", hsts.max_age.as_secs());
    if hsts.include_subdomains {
        value.push_str("; includeSubDomains");
    }
    if hsts.preload {
        value.push_str("; preload");
    }
    value.into()
}
