//! The name of a channel with places in it that a request fills: `news.{path.1}`.
//!
//! Checked by `hub/route` for a route's `hub`, parsed from the same text by the handler of such a
//! route. What must stay true: a pattern that exists has only places that are known, and no name of a
//! channel with a control character in it comes out of its own text.

use std::str::FromStr;

/// The longest name of a channel, in bytes.
pub const CHANNEL_BYTES_MAX: usize = 255;

/// The largest N of `{path.N}`.
const SEGMENT_MAX: usize = 99;

/// The name of a channel, with places that a request fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelPattern {
    parts: Vec<ChannelPart>,
}

/// A part of such a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelPart {
    /// As it is.
    Text(String),
    /// `{path}`: the request's whole path.
    Path,
    /// `{path.N}`: a segment of the path, from 1.
    Segment(usize),
    /// `{query.NAME}`: a parameter of the query.
    Query(String),
}

/// The text is no channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} at byte {at}: expected {expected}")]
pub struct BadChannel {
    /// Where what is wrong starts, in bytes of the text.
    pub at: usize,
    /// What is wrong.
    pub part: String,
    /// What was expected, in words.
    pub expected: &'static str,
}

impl ChannelPattern {
    /// Its parts, in their order; at least one.
    pub fn parts(&self) -> &[ChannelPart] {
        &self.parts
    }
}

impl FromStr for ChannelPattern {
    type Err = BadChannel;

    fn from_str(text: &str) -> Result<Self, BadChannel> {
        let bad = |at: usize, part: &str, expected| {
            let part = part.to_owned();
            Err(BadChannel { at, part, expected })
        };
        if text.is_empty() || text.len() > CHANNEL_BYTES_MAX {
            return bad(0, text, LENGTH_EXPECTED);
        }
        if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return bad(at, &text[at..at + c.len_utf8()], "no control character");
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            let (before, place) = rest.split_at(brace);
            let at = text.len() - place.len();
            let inner = place.strip_prefix('{');
            let Some((word, behind)) = inner.and_then(|inner| inner.split_once('}')) else {
                return bad(at, place, PLACE_EXPECTED);
            };
            let whole = &place[..place.len() - behind.len()];
            let Some(part) = read_place(word) else {
                return bad(at, whole, PLACE_EXPECTED);
            };
            parts.extend(text_of(before));
            parts.push(part);
            rest = behind;
        }
        parts.extend(text_of(rest));
        Ok(Self { parts })
    }
}

fn text_of(text: &str) -> Option<ChannelPart> {
    (!text.is_empty()).then(|| ChannelPart::Text(text.to_owned()))
}

/// What stands between braces.
fn read_place(word: &str) -> Option<ChannelPart> {
    match word.split_once('.') {
        None => (word == "path").then_some(ChannelPart::Path),
        Some(("path", number)) => {
            // A number has one form: no sign, no zero in front.
            let digits = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
            let number = number.parse().ok().filter(|n| *n <= SEGMENT_MAX);
            number.filter(|_| digits).map(ChannelPart::Segment)
        }
        Some(("query", name)) => {
            let is_part = |b: u8| b.is_ascii_graphic() && !b"*&=#{}".contains(&b);
            let is_name = !name.is_empty() && name.bytes().all(is_part);
            is_name.then(|| ChannelPart::Query(name.to_owned()))
        }
        Some(_) => None,
    }
}

const LENGTH_EXPECTED: &str = "the name of a channel, of at most 255 bytes";
const PLACE_EXPECTED: &str = "{path}, {path.N} with N from 1 to 99, or {query.NAME} in braces";

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
            ("{path.1}", vec![Segment(1)]),
            (
                "a {path.99}/{query.x-y}.ä",
                vec![
                    text("a "),
                    Segment(99),
                    text("/"),
                    Query("x-y".to_owned()),
                    text(".ä"),
                ],
            ),
            (
                "{path.1}{path.2}{query.a.b}",
                vec![Segment(1), Segment(2), Query("a.b".to_owned())],
            ),
        ];
        for (written, expected) in rows {
            let pattern = written.parse::<ChannelPattern>().unwrap();
            assert_eq!(pattern.parts(), expected, "{written}");
        }
        let longest = "x".repeat(CHANNEL_BYTES_MAX);
        assert!(longest.parse::<ChannelPattern>().is_ok());
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let rows = [
            ("", 0, "", LENGTH_EXPECTED),
            ("a\nb", 1, "\n", "no control character"),
            ("ä{pth}", 2, "{pth}", PLACE_EXPECTED),
            ("{path.1}-{path.0}-{x}", 9, "{path.0}", PLACE_EXPECTED),
            ("{path.01}", 0, "{path.01}", PLACE_EXPECTED),
            ("{path.+1}", 0, "{path.+1}", PLACE_EXPECTED),
            ("{path.100}", 0, "{path.100}", PLACE_EXPECTED),
            (
                "{path.99999999999999999999}x",
                0,
                "{path.99999999999999999999}",
                PLACE_EXPECTED,
            ),
            ("{path.}", 0, "{path.}", PLACE_EXPECTED),
            ("{query.}", 0, "{query.}", PLACE_EXPECTED),
            ("{query}", 0, "{query}", PLACE_EXPECTED),
            ("{query.a b}", 0, "{query.a b}", PLACE_EXPECTED),
            ("{query.a=b}", 0, "{query.a=b}", PLACE_EXPECTED),
            ("{header.X}", 0, "{header.X}", PLACE_EXPECTED),
            ("{}", 0, "{}", PLACE_EXPECTED),
            ("a{path", 1, "{path", PLACE_EXPECTED),
            ("a}b", 1, "}b", PLACE_EXPECTED),
            ("{{path}}", 0, "{{path}", PLACE_EXPECTED),
        ];
        for (written, at, part, expected) in rows {
            let bad = written.parse::<ChannelPattern>().unwrap_err();
            let part = part.to_owned();
            assert_eq!(bad, BadChannel { at, part, expected }, "{written:?}");
        }
        let long = "x".repeat(CHANNEL_BYTES_MAX + 1);
        let bad = long.parse::<ChannelPattern>().unwrap_err();
        assert_eq!((bad.at, bad.expected), (0, LENGTH_EXPECTED));
    }
}
