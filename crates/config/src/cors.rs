//! The `cors` of a route: which pages of other sites may use it (Fetch, "CORS protocol").
//!
//! Called by `route`.
//!
//! # Invariants
//! - Requests with credentials are never open to every origin.

use crate::conditions::is_method;
use crate::headers::is_token;
use crate::model::Cors;
use crate::section::{Keys as _, Section};
use crate::values::ValuePattern;

/// Reads the rule of a route.
pub(crate) fn read(route: &Section<'_>) -> Option<Cors> {
    let mut cors = Cors::default();
    if !route.is_table("cors") {
        cors.origins = read_origins(route, "cors")?;
        return Some(cors);
    }
    let table = route.table("cors")?;
    cors.read_keys(&table);
    cors.origins = read_origins(&table, "origins").unwrap_or_default();
    let names = |key| {
        let names = table.list(key, |name| is_token(name).then(|| name.to_owned()));
        let names = names.unwrap_or_default().into_iter();
        names.map(|name| name.value).collect()
    };
    cors.headers = names("headers");
    cors.expose = names("expose");
    let methods = table.list("methods", |name| is_method(name).then(|| name.to_owned()));
    if let Some(methods) = methods {
        cors.methods = methods.into_iter().map(|name| name.value).collect();
    }
    // Any page can have a frame whose origin is `null`.
    let is_any = |origin: &ValuePattern| matches!(origin.to_string().as_str(), "*" | "null");
    let allows_any = cors.origins.iter().any(is_any);
    if cors.credentials && allows_any {
        let problem = "`credentials` needs `origins` by name: with \"*\" every page that a user \
                       visits could read what only the user may see";
        table.report_key("credentials", problem);
    }
    Some(cors)
}

fn read_origins(table: &Section<'_>, key: &'static str) -> Option<Vec<ValuePattern>> {
    let origins = table.list(key, |text| {
        let origin = ValuePattern::parse(text).ok();
        origin.filter(|_| is_origin(text))
    })?;
    table.check_not_empty(key);
    Some(origins.into_iter().map(|origin| origin.value).collect())
}

/// Whether a text is `*`, or an origin whose host may begin with `*.` (RFC 6454 §6.2).
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return text == "*" || text == "null";
    };
    let host = host.strip_prefix("*.").unwrap_or(host);
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_lowercase());
    is_scheme && crate::address::is_host(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, parse_valid};

    fn route(cors: &str) -> String {
        format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\ncors = {cors}\n")
    }

    #[test]
    fn a_list_alone_is_the_origins() {
        let folder = TestDir::with_files(&[]);
        let of = |cors: &str| {
            let config = parse_valid(&folder, &route(cors));
            config.sites[0].routes[0].cors.clone().unwrap()
        };
        let short = of(r#"["https://app.example", "https://*.b.example:8443"]"#);
        assert_eq!((short.origins.len(), short.credentials), (2, false));
        assert_eq!(short.methods, Cors::default().methods);
        let long = of(
            r#"{ origins = ["*"], methods = ["PUT"], headers = ["X-A"], expose = ["X-B"], max_age = "5m" }"#,
        );
        assert_eq!(
            (long.methods, long.headers),
            (vec!["PUT".to_owned()], vec!["X-A".to_owned()])
        );
    }

    #[test]
    fn rules_that_open_more_than_is_meant_are_refused() {
        let folder = TestDir::with_files(&[]);
        for (cors, expected) in [
            (r#"["app.example"]"#, "`cors` cannot be \"app.example\""),
            (r#"["https://app.example/"]"#, "`cors` cannot be"),
            (r#"["~https://.*"]"#, "`cors` cannot be"),
            (r#"["https://app.*"]"#, "`cors` cannot be"),
            ("[]", "`cors` needs at least one item"),
            ("{}", "`origins` is missing"),
            (
                r#"{ origins = ["null"], credentials = true }"#,
                "`credentials` needs `origins` by name",
            ),
            (
                r#"{ origins = ["*"], credentials = true }"#,
                "`credentials` needs `origins` by name",
            ),
            (
                r#"{ origins = ["*"], methods = ["put"] }"#,
                "`methods` cannot be \"put\"",
            ),
            (
                r#"{ origins = ["*"], headers = ["a b"] }"#,
                "`headers` cannot be \"a b\"",
            ),
        ] {
            let text = route(cors);
            let found = crate::parse(&text, &folder.path().join("penstock.toml"));
            let found = found.expect_err(cors).to_string();
            assert!(found.contains(expected), "{cors}: {found}");
        }
    }
}
