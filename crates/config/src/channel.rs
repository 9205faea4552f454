//! A channel name with placeholders that a request fills: `news.{path.1}`.
//!
//! Checked by `hub/route` for a route's `hub`; the route's handler parses the same text again.
//!
//! # Invariants
//!
//! - A pattern has known placeholders only, and its own text has no control characters.

use std::str::FromStr;

/// Maximum length of a channel name in bytes.
pub const MAX_CHANNEL_BYTES: usize = 255;

/// The largest N of `{path.N}`.
const MAX_SEGMENT: usize = 99;

/// A channel name with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelPattern {
    parts: Vec<ChannelPart>,
}

/// A part of a channel name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelPart {
    /// Literal text.
    Text(String),
    /// `{path}`: the request's whole path.
    Path,
    /// `{path.N}`: a segment of the path, from 1.
    PathSegment(usize),
    /// `{query.NAME}`: a parameter of the query.
    QueryParameter(String),
}

/// The text is not a channel name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} at byte {offset}: expected {expected}")]
pub struct InvalidChannelPattern {
    /// Where the error starts, in bytes of the text.
    pub offset: usize,
    /// The invalid part.
    pub part: String,
    /// The expected form, in words.
    pub expected: &'static str,
}

impl ChannelPattern {
    /// The parts in order; at least one.
    pub fn parts(&self) -> &[ChannelPart] {
        &self.parts
    }

    /// Whether its name depends on the request.
    pub fn has_placeholder(&self) -> bool {
        let is_text = |part: &ChannelPart| matches!(part, ChannelPart::Text(_));
        !self.parts.iter().all(is_text)
    }
}

impl FromStr for ChannelPattern {
    type Err = InvalidChannelPattern;

    fn from_str(text: &str) -> Result<Self, InvalidChannelPattern> {
        let bad = |at: usize, part: &str, expected| {
            let part = part.to_owned();
            Err(InvalidChannelPattern {
                offset: at,
                part,
                expected,
            })
        };
        if text.is_empty() || text.len() > MAX_CHANNEL_BYTES {
            return bad(0, text, LENGTH_EXPECTED);
        }
        if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return bad(at, &text[at..at + c.len_utf8()], "no control character");
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            let (before, tail) = rest.split_at(brace);
            let at = text.len() - tail.len();
            let inner = tail.strip_prefix('{');
            let Some((word, behind)) = inner.and_then(|inner| inner.split_once('}')) else {
                return bad(at, tail, PLACEHOLDER_EXPECTED);
            };
            let whole = &tail[..tail.len() - behind.len()];
            let Some(part) = parse_placeholder(word) else {
                return bad(at, whole, PLACEHOLDER_EXPECTED);
            };
            parts.extend(text_part(before));
            parts.push(part);
            rest = behind;
        }
        parts.extend(text_part(rest));
        Ok(Self { parts })
    }
}

fn text_part(text: &str) -> Option<ChannelPart> {
    (!text.is_empty()).then(|| ChannelPart::Text(text.to_owned()))
}

/// Parses the text between braces.
fn parse_placeholder(word: &str) -> Option<ChannelPart> {
    match word.split_once('.') {
        None => (word == "path").then_some(ChannelPart::Path),
        Some(("path", number)) => {
            // A number has one form: no sign, no leading zero.
            let digits = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
            let number = number.parse().ok().filter(|n| *n <= MAX_SEGMENT);
            number.filter(|_| digits).map(ChannelPart::PathSegment)
        }
        Some(("query", name)) => {
            let is_part = |b: u8| b.is_ascii_graphic() && !b"*&=#{}".contains(&b);
            let is_name = !name.is_empty() && name.bytes().all(is_part);
            is_name.then(|| ChannelPart::QueryParameter(name.to_owned()))
        }
        Some(_) => None,
    }
}

const LENGTH_EXPECTED: &str = "the name of a channel, of at most 255 bytes";
const PLACEHOLDER_EXPECTED: &str =
    "{path}, {path.N} with N from 1 to 99, or {query.NAME} in braces";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_texts_and_places() {
        use ChannelPart::*;
        let text = |text: &str| Text(text.to_owned());
        let rows = [
            ("news", vec![text("news")]),
            ("{path}", vec![Path]),
            ("{path.1}", vec![PathSegment(1)]),
            (
                "a {path.99}/{query.x-y}.ä",
                vec![
                    text("a "),
                    PathSegment(99),
                    text("/"),
                    QueryParameter("x-y".to_owned()),
                    text(".ä"),
                ],
            ),
            (
                "{path.1}{path.2}{query.a.b}",
                vec![
                    PathSegment(1),
                    PathSegment(2),
                    QueryParameter("a.b".to_owned()),
                ],
            ),
        ];
        for (written, expected) in rows {
            let pattern = written.parse::<ChannelPattern>().unwrap();
            assert_eq!(pattern.parts(), expected, "{written}");
        }
        let longest = "x".repeat(MAX_CHANNEL_BYTES);
        assert!(longest.parse::<ChannelPattern>().is_ok());
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let rows = [
            ("", 0, "", LENGTH_EXPECTED),
            ("a\nb", 1, "\n", "no control character"),
            ("ä{pth}", 2, "{pth}", PLACEHOLDER_EXPECTED),
            ("{path.1}-{path.0}-{x}", 9, "{path.0}", PLACEHOLDER_EXPECTED),
            ("{path.01}", 0, "{path.01}", PLACEHOLDER_EXPECTED),
            ("{path.+1}", 0, "{path.+1}", PLACEHOLDER_EXPECTED),
            ("{path.100}", 0, "{path.100}", PLACEHOLDER_EXPECTED),
            (
                "{path.99999999999999999999}x",
                0,
                "{path.99999999999999999999}",
                PLACEHOLDER_EXPECTED,
            ),
            ("{path.}", 0, "{path.}", PLACEHOLDER_EXPECTED),
            ("{query.}", 0, "{query.}", PLACEHOLDER_EXPECTED),
            ("{query}", 0, "{query}", PLACEHOLDER_EXPECTED),
            ("{query.a b}", 0, "{query.a b}", PLACEHOLDER_EXPECTED),
            ("{query.a=b}", 0, "{query.a=b}", PLACEHOLDER_EXPECTED),
            ("{header.X}", 0, "{header.X}", PLACEHOLDER_EXPECTED),
            ("{}", 0, "{}", PLACEHOLDER_EXPECTED),
            ("a{path", 1, "{path", PLACEHOLDER_EXPECTED),
            ("a}b", 1, "}b", PLACEHOLDER_EXPECTED),
            ("{{path}}", 0, "{{path}", PLACEHOLDER_EXPECTED),
        ];
        for (written, at, part, expected) in rows {
            let bad = written.parse::<ChannelPattern>().unwrap_err();
            let part = part.to_owned();
            assert_eq!(
                bad,
                InvalidChannelPattern {
                    offset: at,
                    part,
                    expected
                },
                "{written:?}"
            );
        }
        let long = "x".repeat(MAX_CHANNEL_BYTES + 1);
        let bad = long.parse::<ChannelPattern>().unwrap_err();
        assert_eq!((bad.offset, bad.expected), (0, LENGTH_EXPECTED));
    }
}
