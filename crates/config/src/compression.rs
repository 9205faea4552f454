//! The `compress` key: which responses are compressed while they are sent.
//!
//! Called by `server`, `site` and `route`, which have the same key.
//!
//! # Invariants
//! - A rule has at least one coding and one type; otherwise there is none.

use crate::headers::is_token;
use crate::model::{Compression, ContentCoding};
use crate::section::{Keys as _, Section};

/// Reads the key of a table, which has the rule `inherited` without it.
pub(crate) fn read(table: &Section<'_>, inherited: Option<&Compression>) -> Option<Compression> {
    if !table.has("compress") {
        return inherited.cloned();
    }
    let mut rule = Compression::default();
    if !table.is_table("compress") {
        let words = table.choices("compress")?;
        table.check_not_empty("compress");
        rule.algorithms = words
            .iter()
            .filter_map(|word| ContentCoding::from_word(word))
            .collect();
        return (!rule.algorithms.is_empty()).then_some(rule);
    }
    let table = table.table("compress")?;
    rule.read_keys(&table);
    let known = |word: &str| ContentCoding::from_word(word).map(ContentCoding::as_str);
    if let Some(words) = table.list("algorithms", known) {
        table.check_not_empty("algorithms");
        table.check_unique("algorithms", &words, |one, other| one == other);
        let words = words.into_iter();
        rule.algorithms = words
            .filter_map(|word| ContentCoding::from_word(word.value))
            .collect();
    }
    table.check_not_empty("types");
    Some(rule)
}

/// Whether a text is a media type, or several with a `*` in it.
pub(crate) fn is_type_pattern(text: &str) -> bool {
    let is_part = |part: &str| is_token(part) || part == "*";
    let is_type = match text.split_once('/') {
        Some((kind, sub)) => is_part(kind) && is_part(sub),
        None => is_token(text) && text.contains('*'),
    };
    is_type && text.matches('*').count() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, parse_valid};

    fn parse(server: &str, site: &str, route: &str) -> Option<Compression> {
        let folder = TestDir::with_files(&[]);
        let text = format!(
            "[server]\n{server}\n[upstreams.u]\nservers = [\"127.0.0.1:1\"]\n[[sites]]\n{site}\n\
             [[sites.routes]]\nupstream = \"u\"\n{route}\n"
        );
        let config = parse_valid(&folder, &text);
        config.sites[0].routes[0].compress.clone()
    }

    #[test]
    fn a_route_has_the_rule_of_the_nearest_table() {
        let codings = |rule: Option<Compression>| rule.map(|rule| rule.algorithms);
        let all = Some(Compression::default().algorithms);
        let gzip = Some(vec![ContentCoding::Gzip]);
        for (server, site, route, expected) in [
            ("", "", "", &None),
            ("compress = true", "", "", &all),
            ("", "compress = true", "", &all),
            ("", "", "compress = true", &all),
            ("", "", "compress = {}", &all),
            ("compress = true", "compress = [\"gzip\"]", "", &gzip),
            ("compress = true", "compress = false", "", &None),
            ("", "compress = true", "compress = false", &None),
            (
                "",
                "compress = true",
                "compress = { algorithms = [\"gzip\"] }",
                &gzip,
            ),
        ] {
            let found = codings(parse(server, site, route));
            assert_eq!(found, *expected, "{server} {site} {route}");
        }
    }

    #[test]
    fn a_server_without_sites_has_the_rule_too() {
        let folder = TestDir::with_files(&[]);
        let text = "[server]\ncompress = true\n[upstreams.u]\nservers = [\"127.0.0.1:1\"]\n";
        let config = parse_valid(&folder, text);
        let rule = &config.sites[0].routes[0].compress;
        assert_eq!(*rule, Some(Compression::default()));
    }

    #[test]
    fn every_key_is_read() {
        let rule = parse(
            "",
            "",
            "compress = { types = [\"text/*\", \"*+json\"], min_size = \"2KiB\", gzip_level = 1, \
             br_level = 0, zstd_level = 12, cross_site = true }",
        );
        let expected = Compression {
            types: vec!["text/*".to_owned(), "*+json".to_owned()],
            min_size: 2048,
            gzip_level: 1,
            br_level: 0,
            zstd_level: 12,
            cross_site: true,
            ..Compression::default()
        };
        assert_eq!(rule, Some(expected));
    }

    #[test]
    fn mistakes_are_reported() {
        let folder = TestDir::with_files(&[]);
        for (value, expected) in [
            ("\"gzip\"", "`compress` must be true, false, or a list"),
            ("[]", "`compress` needs at least one item"),
            ("[\"gzp\"]", "did you mean `gzip`?"),
            ("[\"br\", \"br\"]", "`compress` has `br` twice"),
            (
                "{ algorithms = [] }",
                "`algorithms` needs at least one item",
            ),
            (
                "{ algorithms = [\"deflate\"] }",
                "`algorithms` cannot be \"deflate\"",
            ),
            ("{ types = [] }", "`types` needs at least one item"),
            ("{ types = [\"json\"] }", "`types` cannot be \"json\""),
            ("{ types = [\"*/*\"] }", "`types` cannot be \"*/*\""),
            ("{ gzip_level = 10 }", "`gzip_level` cannot be 10"),
            ("{ min_size = \"-1\" }", "`min_size` cannot be"),
        ] {
            let text = format!(
                "[[sites]]\n[[sites.routes]]\nfiles = {{ root = \".\" }}\ncompress = {value}\n"
            );
            let found = crate::parse(&text, &folder.path().join("penstock.toml"));
            let found = found.expect_err(value).to_string();
            assert!(found.contains(expected), "{value}: {found}");
        }
    }

    #[test]
    fn types_have_one_star_at_most() {
        for (text, expected) in [
            ("text/html", true),
            ("text/*", true),
            ("*+json", true),
            ("application/*+json", true),
            ("*/*", false),
            ("*", true),
            ("text", false),
            ("text/html; charset=utf-8", false),
            ("", false),
        ] {
            assert_eq!(is_type_pattern(text), expected, "{text:?}");
        }
        let defaults = Compression::default().types;
        assert!(defaults.iter().all(|text| is_type_pattern(text)));
    }

    #[test]
    fn a_route_without_a_body_of_others_has_no_rule() {
        let folder = TestDir::with_files(&[]);
        let text = "[[sites]]\n[[sites.routes]]\nredirect = \"/a\"\ncompress = true\n";
        let found = crate::parse(text, &folder.path().join("penstock.toml"));
        let found = found.expect_err("it is refused").to_string();
        assert!(found.contains("`compress` is only for"), "{found}");
    }
}
