//! GRIP's fields as lists of values with parameters: `a; prev-id=1; filter=x, b`. Used by
//! `instructions`.
//!
//! Commas and semicolons inside quotes, or inside a link's `<` and `>`, are text (RFC 9110 §5.6.1,
//! §5.6.6, RFC 8288 §3). Quotes are removed, with `\` for the next character.

use std::borrow::Cow;
use std::str;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListElement<'f> {
    /// What comes first, without quotes around it.
    pub(super) value: Cow<'f, str>,
    /// In order, each name in the case that was sent.
    pub(super) parameters: Vec<(&'f str, Cow<'f, str>)>,
}

impl ListElement<'_> {
    /// The first parameter of that name.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut named = self.parameters.iter();
        named
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| &**value)
    }

    /// All parameters of that name.
    pub(super) fn parameters_named<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e str> {
        let named = |known: &str| known.eq_ignore_ascii_case(name);
        self.parameters
            .iter()
            .filter(move |(known, _)| named(known))
            .map(|(_, value)| &**value)
    }
}

/// The elements of a list; empty ones are none. `None` when it is no text.
pub(super) fn parse_elements(field: &[u8]) -> Option<Vec<ListElement<'_>>> {
    let text = str::from_utf8(field).ok()?;
    let parts = split_unquoted(text, ',').filter(|part| !part.trim().is_empty());
    Some(parts.map(parse_element).collect())
}

fn parse_element(text: &str) -> ListElement<'_> {
    let mut parts = split_unquoted(text, ';');
    let value = unquote(parts.next().unwrap_or_default());
    ListElement {
        value,
        parameters: parts.filter_map(parse_parameter).collect(),
    }
}

/// A parameter; one without a value has an empty one.
fn parse_parameter(text: &str) -> Option<(&str, Cow<'_, str>)> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let name = name.trim();
    (!name.is_empty()).then(|| (name, unquote(value)))
}

/// Whether `text` begins with `start`, in any case.
pub(super) fn starts_with_ignore_case(text: &str, start: &str) -> bool {
    let found = text.get(..start.len());
    found.is_some_and(|found| found.eq_ignore_ascii_case(start))
}

/// The name and value of `name=value`.
pub(super) fn parse_pair(text: &str) -> Option<(&str, Cow<'_, str>)> {
    text.contains('=').then(|| parse_parameter(text)).flatten()
}

/// The text between the quotes, if there are any.
pub(super) fn unquote(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    let Some(inner) = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    else {
        return Cow::Borrowed(text);
    };
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The parts between the separators that are neither in quotes nor in a link. A quote that is not
/// closed reaches to the end.
pub(super) fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = find_unquoted(text, separator);
        let (part, behind) = match end {
            Some(at) => (&text[..at], Some(&text[at + separator.len_utf8()..])),
            None => (text, None),
        };
        rest = behind;
        Some(part)
    })
}

fn find_unquoted(text: &str, separator: char) -> Option<usize> {
    let (mut in_quotes, mut in_link, mut is_escaped) = (false, false, false);
    for (at, c) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
            continue;
        }
        match c {
            '\\' if in_quotes => is_escaped = true,
            '"' if !in_link => in_quotes = !in_quotes,
            // Only at the start is it a link's.
            '<' if !in_quotes && text[..at].trim().is_empty() => in_link = true,
            '>' if in_link => in_link = false,
            c if c == separator && !in_quotes && !in_link => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(field: &str) -> Vec<String> {
        let elements = parse_elements(field.as_bytes()).unwrap();
        let show = |element: &ListElement<'_>| {
            let mut text = element.value.to_string();
            for (name, value) in &element.parameters {
                text.push_str(&format!("|{name}|{value}"));
            }
            text
        };
        elements.iter().map(show).collect()
    }

    #[test]
    fn splits_lists_and_parameters_but_not_quotes_and_links() {
        for (field, expected) in [
            ("a", &["a"][..]),
            ("a, b", &["a", "b"]),
            (
                " a ;prev-id=1; filter=x;filter=y , b",
                &["a|prev-id|1|filter|x|filter|y", "b"],
            ),
            ("", &[]),
            (", ,", &[]),
            ("a;", &["a"]),
            ("a; =3; flag", &["a|flag|"]),
            (r#""a, b; c"; x="1,2""#, &["a, b; c|x|1,2"]),
            (r#"a; x="q\"u\\o,te", b"#, &[r#"a|x|q"u\o,te"#, "b"]),
            (r#"a; x="open, b"#, &[r#"a|x|"open, b"#]),
            (
                "</next?a=1,2;b=3>; rel=next; timeout=5, </gone>; rel=gone",
                &["</next?a=1,2;b=3>|rel|next|timeout|5", "</gone>|rel|gone"],
            ),
            ("a<b, c>d", &["a<b", "c>d"]),
            ("\u{e9}t\u{e9}; x=\u{e0}", &["\u{e9}t\u{e9}|x|\u{e0}"]),
            (r#"a; x="\"#, &[r#"a|x|"\"#]),
        ] {
            assert_eq!(shown(field), expected, "{field}");
        }
        assert_eq!(parse_elements(b"\xff"), None);
    }

    #[test]
    fn finds_parameters_in_any_case() {
        let elements = parse_elements(b"a; Prev-Id=1; filter=x; FILTER=y").unwrap();
        assert_eq!(elements[0].parameter("prev-id"), Some("1"));
        assert_eq!(
            elements[0].parameters_named("filter").collect::<Vec<_>>(),
            ["x", "y"]
        );
        assert_eq!(elements[0].parameter("rel"), None);
        assert_eq!(parse_pair("user=\"a b\""), Some(("user", "a b".into())));
        assert_eq!(parse_pair("user"), None);
    }
}
