//! Hints of `penstock check` about routes that are valid and hardly meant.
//!
//! - A route for a prefix looks files up by the whole path: `/static/*` with a `root` that has no
//!   folder `static` finds none.
//! - A guarded `/admin/*` does not guard `/admin`, which another route may answer.

use std::path::Path;

use penstock_config::{Config, Files, PathPattern, Route};

/// Warnings, a line each. Looks at folders. Blocks.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let folders = routes.filter_map(prefix_is_no_folder);
    let unguarded = config
        .sites
        .iter()
        .flat_map(|site| unguarded_prefixes(&site.routes));
    folders.chain(unguarded).collect()
}

/// Guarded prefixes of a site whose own path, without the slash, is answered by a route that has no
/// guard.
fn unguarded_prefixes(routes: &[Route]) -> Vec<String> {
    let name = |route: &Route| -> Option<String> {
        let PathPattern::Prefix(prefix) = &route.path else {
            return None;
        };
        let path = prefix.strip_suffix('/').filter(|path| !path.is_empty())?;
        let guard = guard_of(route)?;
        let answers = |other: &&Route| other.path.matches(path.as_bytes());
        let other = routes.iter().find(answers)?;
        if guard_of(other).is_some() {
            return None;
        }
        Some(format!(
            "route {}: `{path}` itself is not one of its paths, and route {} answers it without \
             `{guard}`: `path = {{ regex = \"^{path}(/|$)\" }}` is both",
            route.path, other.path
        ))
    };
    routes.iter().filter_map(name).collect()
}

/// The rule by which a route admits some and refuses others.
fn guard_of(route: &Route) -> Option<&'static str> {
    let rules = [
        ("basic_auth", route.basic_auth.is_some()),
        ("forward_auth", route.forward_auth.is_some()),
        ("jwt", route.jwt.is_some()),
        ("signed_url", route.signed_url.is_some()),
        ("allow", !route.allow.is_empty()),
        ("deny", !route.deny.is_empty()),
    ];
    let found = rules.into_iter().find(|(_, is_set)| *is_set);
    found.map(|(name, _)| name)
}

fn prefix_is_no_folder(route: &Route) -> Option<String> {
    let files = route.files.as_ref()?;
    let PathPattern::Prefix(path) = &route.path else {
        return None;
    };
    let prefix = path.trim_end_matches('/');
    let root: &Path = &files.root;
    let folder = root.join(prefix.trim_start_matches('/'));
    let is_changed = route.rewrite.strip_prefix.is_some()
        || route.rewrite.add_prefix.is_some()
        || !route.rewrite.rules.is_empty();
    // `try` says itself where else to look.
    let tries_more = files.fallback.is_some() || files.try_ != Files::new(root.to_owned()).try_;
    let is_meant = prefix.is_empty() || is_changed || tries_more;
    if is_meant || !root.is_dir() || folder.exists() {
        return None;
    }
    Some(format!(
        "route {}: files are looked up in {}, which does not exist: `rewrite = {{ strip_prefix = \
         {prefix:?} }}` looks in {}",
        route.path,
        folder.display(),
        root.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_whose_own_path_has_no_guard_is_named() {
        let prefix = |path: &str| Route::new(PathPattern::Prefix(path.to_owned()));
        let guarded = |path: PathPattern| Route {
            deny: vec!["10.0.0.0/8".to_owned()],
            ..Route::new(path)
        };
        let panel = || guarded(PathPattern::Prefix("/panel/".to_owned()));
        let exact = || PathPattern::Exact("/panel".to_owned());
        let rows = [
            (vec![panel(), prefix("/")], true),
            (vec![prefix("/"), panel()], true),
            (vec![panel(), Route::new(exact())], true),
            (vec![panel(), guarded(exact()), prefix("/")], false),
            (vec![panel(), guarded(PathPattern::any())], false),
            (vec![panel(), prefix("/other/")], false),
            (vec![prefix("/panel/"), prefix("/")], false),
        ];
        for (routes, is_named) in rows {
            let hints = unguarded_prefixes(&routes);
            assert_eq!(!hints.is_empty(), is_named, "{routes:?}: {hints:?}");
            if let Some(hint) = hints.first() {
                let words = "without `deny`: `path = { regex = \"^/panel(/|$)\" }` is both";
                assert!(
                    hint.starts_with("route /panel/*: ") && hint.ends_with(words),
                    "{hint}"
                );
            }
        }
    }

    #[test]
    fn a_prefix_without_its_folder_is_named_with_what_to_write() {
        let root = std::env::temp_dir().join(format!("penstock-hints-{}", std::process::id()));
        std::fs::create_dir_all(root.join("there")).unwrap();
        let route = |path: &str, strip: Option<&str>| {
            let mut route = Route::new(PathPattern::Prefix(path.to_owned()));
            route.files = Some(Files::new(root.clone()));
            route.rewrite.strip_prefix = strip.map(str::to_owned);
            route
        };
        let rows = [
            ("/", None, false),
            ("/there/", None, false),
            ("/static/", Some("/static"), false),
            ("/static/", None, true),
        ];
        for (path, strip, is_named) in rows {
            let hint = prefix_is_no_folder(&route(path, strip));
            assert_eq!(hint.is_some(), is_named, "{path}: {hint:?}");
            if let Some(hint) = hint {
                let words = "`rewrite = { strip_prefix = \"/static\" }` looks in ";
                assert!(
                    hint.starts_with("route /static/*: ") && hint.contains(words),
                    "{hint}"
                );
            }
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
