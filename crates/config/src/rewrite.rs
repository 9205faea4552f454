//! The `rewrite` of a route: prefixes, and regular expressions with the paths that replace them.
//!
//! Called by `route`; edge applies it.
//!
//! # Invariants
//! - A path begins with a slash, has nothing that a request line cannot have, and names no group
//!   that its expression does not have.

use crate::findings::LocatedValue;
use crate::headers::read_value_template;
use crate::model::{Rewrite, RewriteRule};
use crate::section::{Keys as _, Section};
use crate::values::PathRegex;

/// What a message says was expected of the path that a rule gives.
pub(crate) const REWRITE_TARGET: &str = "a path such as \"/new/{re.1}\" or \
     \"/index.php?page={re.1}\", in ASCII and without spaces";

/// Reads one table, or a list of tables, of which the first that matches counts.
pub(crate) fn read(route: &Section<'_>) -> Rewrite {
    let mut rewrite = Rewrite::default();
    for (index, table) in route.table_or_tables("rewrite").iter().enumerate() {
        match index {
            0 => rewrite.read_keys(table),
            _ => report_late_keys(table),
        }
        rewrite.rules.extend(read_rule(table));
    }
    rewrite
}

/// Keys of the whole list.
fn report_late_keys(table: &Section<'_>) {
    for key in ["strip_prefix", "add_prefix", "response_paths"] {
        if table.has(key) {
            let problem = format!("`{key}` stands in the first table of `rewrite`");
            table.report_key(key, problem);
        }
    }
}

fn read_rule(table: &Section<'_>) -> Option<RewriteRule> {
    let (regex, to) = (table.regex(), table.text("to"));
    for (key, other) in [("regex", "to"), ("to", "regex")] {
        if !table.has(key) && table.has(other) {
            table.report_key(other, format!("`{other}` needs `{key}` beside it"));
        }
    }
    let (regex, to) = (regex?, to?);
    if !is_target(to.value) {
        table.report_invalid("to", &to);
        return None;
    }
    let text = LocatedValue::new(to.value.to_owned(), to.offset);
    let target = read_value_template(table, "to", &text)?;
    check_groups(table, &target, &regex.value, "regex", to.offset);
    Some(RewriteRule {
        regex: regex.value,
        to: target,
    })
}

/// Reports groups that an expression does not have.
pub(crate) fn check_groups(
    table: &Section<'_>,
    template: &crate::Template,
    regex: &PathRegex,
    key: &str,
    at: usize,
) {
    for group in template.captures().filter(|group| !regex.has_group(group)) {
        let problem = format!("`{{re.{group}}}` stands for nothing: `{key}` has no such group");
        table.report(at, problem);
    }
}

/// Whether a text can be the target of a request (RFC 9112 §3.2.1).
fn is_target(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_graphic() && b != b'#' && b != b'\\';
    text.starts_with('/') && !text.starts_with("//") && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestDir, check_error_table, parse_valid};

    fn route(rewrite: &str) -> String {
        format!("[apps.a]\n[[sites]]\n[[sites.routes]]\napp = \"a\"\nrewrite = {rewrite}\n")
    }

    #[test]
    fn reads_one_rule_or_several() {
        let folder = TestDir::with_sample_site();
        let read = |rewrite: &str| {
            let config = parse_valid(&folder, &route(rewrite));
            config.sites[0].routes[0].rewrite.clone()
        };
        let one = read(r#"{ strip_prefix = "/a", regex = "^/old/(.*)$", to = "/new/{re.1}" }"#);
        assert_eq!(one.strip_prefix.as_deref(), Some("/a"));
        assert_eq!(one.rules.len(), 1);
        assert_eq!(one.rules[0].to.as_str(), "/new/{re.1}");
        let two =
            read(r#"[{ regex = "a", to = "/b" }, { regex = "(?<x>c)", to = "/{re.x}?{query}" }]"#);
        let texts: Vec<_> = two.rules.iter().map(|rule| rule.regex.as_str()).collect();
        assert_eq!(texts, ["a", "(?<x>c)"]);
        assert!(read("{}").rules.is_empty());
    }

    #[test]
    fn reports_rules_that_make_no_sense() {
        let expected_target = super::REWRITE_TARGET;
        let rows = [
            (
                r#"{ regex = "(", to = "/" }"#,
                "5:21: `regex` is no regular expression: unclosed group".to_owned(),
            ),
            (
                r#"{ regex = "a" }"#,
                "5:21: `regex` needs `to` beside it".to_owned(),
            ),
            (
                r#"{ to = "/" }"#,
                "5:18: `to` needs `regex` beside it".to_owned(),
            ),
            (
                r#"{ regex = "a", to = "b" }"#,
                format!("5:31: `to` cannot be \"b\": expected {expected_target}"),
            ),
            (
                r#"{ regex = "a", to = "/b c" }"#,
                format!("5:31: `to` cannot be \"/b c\": expected {expected_target}"),
            ),
            (
                r#"{ regex = "a", to = "/{re.1}" }"#,
                "5:31: `{re.1}` stands for nothing: `regex` has no such group".to_owned(),
            ),
            (
                r#"{ regex = "a", to = "/{nothing}" }"#,
                format!(
                    "5:31: `to` cannot be \"{{nothing}}\": expected {}",
                    crate::values::PLACEHOLDER_EXPECTED
                ),
            ),
            (
                r#"[{ regex = "a", to = "/" }, { regex = "b", to = "/", add_prefix = "/x" }]"#,
                "5:77: `add_prefix` stands in the first table of `rewrite`".to_owned(),
            ),
            (
                r#"["a"]"#,
                "5:12: `rewrite` must be a table, or a list of tables, not a string".to_owned(),
            ),
        ];
        for (rewrite, expected) in rows {
            let expected = format!("penstock.toml:{expected}");
            check_error_table(&[(rewrite, &route(rewrite), &[&expected])]);
        }
    }
}
