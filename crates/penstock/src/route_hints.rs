//! Hints of `penstock check` about routes that are valid and hardly meant.
//!
//! A route for a prefix looks files up by the whole path: `/static/*` with a `root` that has no
//! folder `static` finds none.

use std::path::Path;

use penstock_config::{Config, Files, PathPattern, Route};

/// Warnings about folders of files, a line each. Looks at folders. Blocks.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    routes.filter_map(prefix_is_no_folder).collect()
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
