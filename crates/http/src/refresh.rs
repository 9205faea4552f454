//! The target of a `Refresh` field, which is not standardised as a field but which all browsers
//! follow like the HTML element (HTML, "shared declarative refresh steps").
//!
//! Used by `proxy` and `edge` to correct addresses in responses. Pure.

use std::ops::Range;

use crate::grammar::starts_with_ignore_case;

/// The range of the reference in the value of a `Refresh` field, without quotes. `None` if it only
/// reloads.
#[must_use]
pub fn refresh_target(value: &str) -> Option<Range<usize>> {
    let seconds =
        value.find(|c: char| !(c.is_ascii_digit() || c == '.' || c.is_ascii_whitespace()));
    let at = seconds?;
    let rest = value[at..].strip_prefix([';', ','])?.trim_start();
    let is_named = starts_with_ignore_case(rest, "url");
    let named = is_named.then(|| rest[3..].trim_start().strip_prefix('='));
    // `url =` is optional.
    let reference = named.flatten().map_or(rest, str::trim_start);
    let start = value.len() - reference.len();
    let (start, end) = match reference.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let inside = &reference[1..];
            (start + 1, inside.find(quote).unwrap_or(inside.len()))
        }
        _ => (start, reference.trim_end().len()),
    };
    (end > 0).then(|| start..start + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refresh_leads_somewhere_or_reloads() {
        for (value, expected) in [
            ("5", None),
            ("5;", None),
            ("", None),
            ("5; url=", None),
            ("x; url=/a", None),
            ("5; url=/a?b#c", Some("/a?b#c")),
            ("0;URL = 'http://a.test/x' y", Some("http://a.test/x")),
            ("1.5 , url=\"/a b\"", Some("/a b")),
            ("0; url=\"/open", Some("/open")),
            ("0; /a ", Some("/a")),
            ("0; url", Some("url")),
        ] {
            let found = refresh_target(value).map(|place| &value[place]);
            assert_eq!(found, expected, "{value}");
        }
    }
}
