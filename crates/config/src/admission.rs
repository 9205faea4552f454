//! Checks between the keys of a route that say who may use it.
//!
//! Called by `route`, and by `site` for what the site must have.

use crate::model::{Route, Satisfy, Site};
use crate::section::Section;

/// The keys of the rules that `satisfy` counts.
const RULES: [&str; 6] = [
    "allow",
    "client_certificate",
    "signed_url",
    "jwt",
    "basic_auth",
    "forward_auth",
];

/// Reports a `satisfy` that has nothing to choose from.
pub(crate) fn check_satisfy(table: &Section<'_>, route: &Route) {
    let rules = RULES.iter().filter(|key| table.has(key)).count();
    if route.satisfy == Satisfy::Any && rules < 2 {
        table.report_not_applicable("satisfy");
    }
}

/// Reports routes that need a client certificate where the site asks for none.
pub(crate) fn check_client_certificates(table: &Section<'_>, site: &Site) {
    let mut routes = site.routes.iter();
    if site.client_certificates.is_none()
        && !table.has("client_certificates")
        && let Some(route) = routes.find(|route| route.client_certificate)
    {
        let problem = format!(
            "route {} has `client_certificate = true`, and its site asks for none: give the site \
             `client_certificates`",
            route.path
        );
        table.report(table.offset, problem);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::TestDir;

    #[test]
    fn rules_that_admit_nobody_are_refused() {
        let folder = TestDir::with_files(&[]);
        for (keys, expected) in [
            (
                "satisfy = \"any\"",
                "penstock.toml:4:11: `satisfy` is only for a route with two or more of",
            ),
            (
                "satisfy = \"any\"\nallow = [\"unix\"]",
                "`satisfy` is only for a route with two or more of",
            ),
            (
                "satisfy = \"some\"\nallow = [\"unix\"]",
                "`satisfy` cannot be \"some\"",
            ),
            (
                "client_certificate = true",
                "route /* has `client_certificate = true`, and its site asks for none",
            ),
        ] {
            let text = format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\n{keys}\n");
            let found = crate::parse(&text, &folder.path().join("penstock.toml"));
            let found = found.expect_err(keys).to_string();
            assert!(found.contains(expected), "{keys}: {found}");
        }
    }
}
