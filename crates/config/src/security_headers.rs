//! The `security_headers` of a site or a route: fields that tell browsers what a page may do.
//!
//! Called by `site` and `route`.

use crate::headers::is_field_value;
use crate::model::SecurityHeaders;
use crate::section::Section;

/// Reads the key: `true` for the defaults, `false` for none of the fields, or a table.
pub(crate) fn read(table: &Section<'_>) -> Option<SecurityHeaders> {
    if table.is_table("security_headers") {
        return table.get("security_headers");
    }
    Some(match table.get::<bool>("security_headers")? {
        true => SecurityHeaders::default(),
        false => SecurityHeaders::off(),
    })
}

/// Whether a text can be the value of such a field.
pub(crate) fn is_policy(text: &str) -> bool {
    !text.is_empty() && is_field_value(text)
}

/// Whether a text is a value of `X-Frame-Options` (HTML, "The `X-Frame-Options` header").
pub(crate) fn is_frame_option(text: &str) -> bool {
    ["SAMEORIGIN", "DENY", "off"].contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, check_error_table, parse_valid};

    fn site(keys: &str, route: &str) -> String {
        format!("[apps.a]\n[[sites]]\n{keys}\n[[sites.routes]]\napp = \"a\"\n{route}\n")
    }

    #[test]
    fn reads_one_word_or_a_table() {
        let folder = TestDir::with_sample_site();
        let read = |keys: &str, route: &str| {
            let config = parse_valid(&folder, &site(keys, route));
            let site = &config.sites[0];
            (
                site.security_headers.clone(),
                site.routes[0].security_headers.clone(),
            )
        };
        assert_eq!(read("", ""), (SecurityHeaders::off(), None));
        let defaults = SecurityHeaders::default();
        let both = read("security_headers = true", "security_headers = false");
        assert_eq!(both, (defaults.clone(), Some(SecurityHeaders::off())));
        let table =
            "security_headers = { frame_options = \"off\", permissions_policy = \"camera=()\" }";
        let expected = SecurityHeaders {
            frame_options: "off".to_owned(),
            permissions_policy: "camera=()".to_owned(),
            ..defaults
        };
        assert_eq!(read(table, "").0, expected);
    }

    #[test]
    fn reports_values_that_are_none() {
        let rows = [
            (
                "security_headers = 1",
                "3:20: `security_headers` must be true, false, or a table, not an integer",
            ),
            (
                "security_headers = { frame_options = \"deny\" }",
                "3:38: `frame_options` cannot be \"deny\": expected \"SAMEORIGIN\", \"DENY\" or \"off\"",
            ),
            (
                "security_headers = { referrer_policy = \"a\\nb\" }",
                "3:40: `referrer_policy` cannot be \"a\\nb\": expected the value of the field, or \"off\"",
            ),
        ];
        for (keys, expected) in rows {
            let expected = format!("penstock.toml:{expected}");
            check_error_table(&[(keys, &site(keys, ""), &[&expected])]);
        }
    }
}
