//! How a route changes the path: a prefix stripped, a regular expression, a prefix added.
//!
//! # Invariants
//! - A changed target is a path in normal form, without dot segments, whatever a group or a
//!   placeholder has.
//! - The query stays, unless the rule writes one.
//! - A path without the prefix keeps the client's own spelling.

use std::borrow::Cow;

use penstock_config::{PathRegex, Placeholder, Rewrite, Template, TemplatePart};
use penstock_exchange::Mount;
use penstock_http::{encode_path, normalise_path};
use penstock_rules::TemplateValues;

/// The changes of a route's paths, compiled.
#[derive(Debug)]
pub(super) struct PathRewrite {
    strip: Option<String>,
    rules: Vec<CompiledRule>,
    /// Percent-encoded where it must be.
    add: String,
    /// The stripped prefix, as handlers get it.
    mount: Mount,
}

#[derive(Debug)]
struct CompiledRule {
    regex: PathRegex,
    to: Template,
    /// Whether the rule writes the query itself.
    has_query: bool,
}

/// A target as handlers get it.
#[derive(Debug)]
pub(super) struct RewrittenTarget<'t> {
    /// Path and query; borrowed where nothing changes.
    pub(super) target: Cow<'t, str>,
    /// The prefix that was stripped.
    pub(super) mount: Mount,
}

impl PathRewrite {
    pub(super) fn compile(rewrite: &Rewrite) -> Self {
        let add = rewrite.add_prefix.as_deref().unwrap_or("");
        let strip = rewrite.strip_prefix.as_deref();
        let rules = rewrite.rules.iter().map(|rule| CompiledRule {
            regex: rule.regex.clone(),
            has_query: rule
                .to
                .parts()
                .iter()
                .any(|part| matches!(part, TemplatePart::Text(text) if text.contains('?'))),
            to: rule.to.clone(),
        });
        Self {
            strip: rewrite.strip_prefix.clone(),
            rules: rules.collect(),
            add: encode_path(add.as_bytes()),
            mount: Mount::new(strip.filter(|_| add.is_empty()).unwrap_or("")),
        }
    }

    /// The target that the handlers see.
    pub(super) fn apply<'t>(
        &self,
        target: &'t str,
        values: &TemplateValues<'_>,
    ) -> RewrittenTarget<'t> {
        let stripped = self.strip(target);
        let mount = match &stripped {
            Some(_) => self.mount.clone(),
            None => Mount::default(),
        };
        let rest = stripped.unwrap_or(Cow::Borrowed(target));
        let rest = match self.apply_rules(&rest, values) {
            Some(changed) => Cow::Owned(changed),
            None => rest,
        };
        let target = match self.add.is_empty() {
            true => rest,
            false => Cow::Owned(format!("{}{rest}", self.add)),
        };
        RewrittenTarget { target, mount }
    }

    /// Whether the front of a target is changed, which responses have to be put right for.
    pub(super) fn changes_prefix(&self, target: &str) -> bool {
        !self.add.is_empty() || self.strip(target).is_some()
    }

    /// The target without the prefix; `None` when it does not have it.
    fn strip<'t>(&self, target: &'t str) -> Option<Cow<'t, str>> {
        let prefix = self.strip.as_deref()?;
        let normal = normalise_path(target).ok()?;
        let path = strip_path_prefix(&normal.path, prefix.as_bytes())?;
        let query = normal.query.map(|query| format!("?{query}"));
        let query = query.as_deref().unwrap_or("");
        // The client's own spelling stays (`a%2Fb` may mean something to a back end), unless the
        // prefix itself is spelled oddly.
        let as_sent = strip_path_prefix(normal.raw_path.as_bytes(), prefix.as_bytes())
            .and_then(|path| std::str::from_utf8(path).ok())
            .filter(|sent| {
                normalise_path(sent).is_ok_and(|found| found.path == path && !found.is_ambiguous)
            });
        let path = as_sent.map_or_else(|| encode_path(path).into(), Cow::Borrowed);
        Some(Cow::Owned(format!("{path}{query}")))
    }

    /// The target that the first rule with a match makes.
    fn apply_rules(&self, target: &str, values: &TemplateValues<'_>) -> Option<String> {
        if self.rules.is_empty() {
            return None;
        }
        let normal = normalise_path(target).ok()?;
        let (rule, captures) = self.rules.iter().find_map(|rule| {
            let captures = rule.regex.regex().captures(&normal.path)?;
            Some((rule, captures))
        })?;
        let mut made = Vec::new();
        for part in rule.to.parts() {
            match part {
                TemplatePart::Text(text) => made.extend_from_slice(text.as_bytes()),
                TemplatePart::Placeholder(Placeholder::Capture(group)) => {
                    let found = match group.parse() {
                        Ok(index) => captures.get(index),
                        Err(_) => captures.name(group),
                    };
                    let found = found.map(|found| found.as_bytes()).unwrap_or_default();
                    made.extend_from_slice(encode_path(found).as_bytes());
                }
                TemplatePart::Placeholder(placeholder) => {
                    let start = made.len();
                    values.append(placeholder, &mut made);
                    let value = made.split_off(start);
                    encode_target(&value, &mut made);
                }
            }
        }
        // Everything in it is ASCII.
        let mut made = String::from_utf8(made).ok()?;
        match (rule.has_query, normal.query) {
            // Without a value nothing stands behind the last sign.
            (true, _) => made.truncate(made.trim_end_matches(['?', '&']).len()),
            (false, Some(query)) => made.extend(["?", query]),
            (false, None) => {}
        }
        Some(in_normal_form(made))
    }
}

/// A target with its path in normal form. One that has none is refused by the parser later.
fn in_normal_form(target: String) -> String {
    let Ok(normal) = normalise_path(&target) else {
        return target;
    };
    let mut path = encode_path(&normal.path);
    if let Some(query) = normal.query.filter(|query| !query.is_empty()) {
        path.push('?');
        path.push_str(query);
    }
    path
}

/// Appends the value of a placeholder as it can stand in a target.
fn encode_target(value: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in value {
        match byte {
            byte if byte.is_ascii_graphic() && *byte != b'#' => out.push(*byte),
            byte => out.extend([
                b'%',
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]),
        }
    }
}

/// The path behind a prefix that ends at a segment's end; a slash when that was all.
pub(super) fn strip_path_prefix<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    match path.strip_prefix(prefix)? {
        [] => Some(b"/"),
        rest => rest.starts_with(b"/").then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_config::{RewriteRule, Template};
    use penstock_http::{HeadLimits, ParseProgress, RequestHead, parse_head};
    use penstock_sys::net::PeerAddress;

    fn head(target: &str) -> RequestHead {
        let text = format!("GET {target} HTTP/1.1\r\nHost: h\r\nX-A: a b#\r\n\r\n");
        match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
            ParseProgress::Complete((head, _)) => head,
            ParseProgress::Partial => panic!("the head is whole"),
        }
    }

    fn rewrite(rules: &[(&str, &str)]) -> Rewrite {
        let rule = |(regex, to): &(&str, &str)| RewriteRule {
            regex: PathRegex::new(regex).unwrap(),
            to: to.parse::<Template>().unwrap(),
        };
        Rewrite {
            rules: rules.iter().map(rule).collect(),
            ..Rewrite::default()
        }
    }

    fn apply(rewrite: &Rewrite, target: &str) -> (String, String) {
        let head = head(target);
        let values = TemplateValues {
            head: &head,
            client: PeerAddress::Unix,
            host: "h",
            scheme: "http",
            path_regex: None,
        };
        let compiled = PathRewrite::compile(rewrite);
        let made = compiled.apply(head.target_path_query(), &values);
        (made.target.into_owned(), made.mount.path().to_owned())
    }

    #[test]
    fn the_first_rule_with_a_match_makes_the_path() {
        let rules = rewrite(&[
            ("^/old/(.*)$", "/new/{re.1}"),
            (
                "^/(?<page>[a-z]+)[.]html$",
                "/index.php?page={re.page}&{query}",
            ),
            ("^/q$", "/found?{query.a}"),
            ("^/h$", "/x/{header.X-A}"),
            ("^/new/", "/never"),
        ]);
        let rows = [
            ("/old/a/b?c=d", "/new/a/b?c=d"),
            ("/old/", "/new/"),
            ("/other?x", "/other?x"),
            ("/about.html?x=1", "/index.php?page=about&x=1"),
            ("/q?a=1&b=2", "/found?1"),
            ("/h", "/x/a%20b%23"),
            // A group is decoded, and encoded again.
            ("/old/a%3Fb%20c%25", "/new/a%3Fb%20c%25"),
            // The parser refuses such a path before.
            ("/old/%0d%0aX:%20y", "/old/%0d%0aX:%20y"),
        ];
        for (target, expected) in rows {
            assert_eq!(apply(&rules, target).0, expected, "{target}");
        }
    }

    #[test]
    fn no_group_leads_out_of_a_folder() {
        let rules = rewrite(&[("^/(.)x(.)/(.*)$", "/files/{re.1}{re.2}/{re.3}")]);
        assert_eq!(apply(&rules, "/.x./secret").0, "/secret");
        let rules = rewrite(&[("^/f/(.*)$", "/files/{query.d}/{re.1}")]);
        assert_eq!(apply(&rules, "/f/a?d=..").0, "/a?d=..");
    }

    #[test]
    fn rules_come_between_both_prefixes() {
        let mut rules = rewrite(&[("^/a$", "/b")]);
        rules.strip_prefix = Some("/shop".to_owned());
        let rows = [
            ("/shop/a?q", "/b?q", "/shop"),
            ("/shop/c", "/c", "/shop"),
            ("/a", "/b", ""),
            ("/c", "/c", ""),
        ];
        for (target, expected, mount) in rows {
            let made = apply(&rules, target);
            assert_eq!(made, (expected.to_owned(), mount.to_owned()), "{target}");
        }
        rules.add_prefix = Some("/v2".to_owned());
        assert_eq!(
            apply(&rules, "/shop/a"),
            ("/v2/b".to_owned(), String::new())
        );
    }
}
