//! Routes that no request can reach: an earlier route of their site answers all of theirs.
//!
//! The parser of configurations refuses them, so they become comments.

use crate::draft::{DraftSite, DraftTable};
use crate::toml_value::TomlValue;

/// Puts a comment in place of each route that is never reached.
pub(crate) fn comment_unreachable(site: &mut DraftSite) {
    let mut earlier: Vec<RouteRequests> = Vec::new();
    for route in &mut site.routes {
        if route.keys.is_empty() {
            continue;
        }
        let requests = RouteRequests::of(route);
        if earlier.iter().any(|first| first.covers(&requests)) {
            let answer = ["upstream", "files", "redirect", "respond"];
            let answer = answer
                .iter()
                .find_map(|key| Some((key, route.keys.get(key)?)));
            let answer = answer
                .map(|(key, value)| format!(" `{key} = {value}`"))
                .unwrap_or_default();
            route.comment(format!(
                "never reached, as a route above answers: {}{answer}",
                requests.shown
            ));
            route.keys = Default::default();
            continue;
        }
        earlier.push(requests);
    }
}

/// The requests of a route.
struct RouteRequests {
    path: RoutePath,
    conditions: Option<TomlValue>,
    is_internal: bool,
    shown: String,
}

enum RoutePath {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Regex(String),
}

impl RouteRequests {
    fn of(route: &DraftTable) -> Self {
        let regex = route.keys.table("path").and_then(|it| it.text("regex"));
        let text = route.keys.text("path").unwrap_or("/*");
        let path = match (regex, text.strip_suffix('*'), text.strip_prefix('*')) {
            (Some(regex), ..) => RoutePath::Regex(regex.to_owned()),
            (None, Some(prefix), _) => RoutePath::Prefix(prefix.to_owned()),
            (None, None, Some(suffix)) => RoutePath::Suffix(suffix.to_owned()),
            (None, None, None) => RoutePath::Exact(text.to_owned()),
        };
        Self {
            path,
            conditions: route.keys.get("match").cloned(),
            is_internal: route.keys.has("internal"),
            shown: regex.unwrap_or(text).to_owned(),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        let meets = self.conditions.is_none() || self.conditions == other.conditions;
        meets && (other.is_internal || !self.is_internal) && self.path.covers(&other.path)
    }
}

impl RoutePath {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Prefix(own), Self::Prefix(path) | Self::Exact(path)) => {
                path.starts_with(own.as_str())
            }
            (Self::Prefix(own), _) => own == "/",
            (Self::Suffix(own), Self::Suffix(path) | Self::Exact(path)) => {
                path.ends_with(own.as_str())
            }
            (Self::Exact(own), Self::Exact(path)) | (Self::Regex(own), Self::Regex(path)) => {
                own == path
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_value::TomlTable;

    #[test]
    fn routes_behind_one_with_all_their_requests_become_comments() {
        let mut site = DraftSite::default();
        let rows = [
            ("/a/*", true),
            ("/a/b", false),
            ("/b", true),
            ("/*", true),
            ("/c", false),
            ("/*", false),
        ];
        for (path, _) in rows {
            let mut route = DraftTable::default();
            route.keys.set("path", path);
            route.keys.set("respond", TomlTable::default());
            site.routes.push(route);
        }
        comment_unreachable(&mut site);
        for (route, (path, is_reached)) in site.routes.iter().zip(rows) {
            assert_eq!(!route.keys.is_empty(), is_reached, "{path}");
            assert_eq!(route.comments.is_empty(), is_reached, "{path}");
        }
    }
}
