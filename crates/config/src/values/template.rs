//! Texts with placeholders, such as `https://{host}{uri}`: values of headers, targets of redirects.
//!
//! The readers of the configuration parse them, `rules` renders them.
//!
//! # Invariants
//! - A word in braces is a known placeholder. Braces around anything but small letters are text,
//!   such as JSON.

use std::fmt;
use std::str::FromStr;

/// A text with placeholders. Two that are written alike are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<TemplatePart>,
}

/// A part of a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePart {
    /// This text.
    Text(String),
    /// A part of the request.
    Placeholder(Placeholder),
}

/// What a word in braces stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placeholder {
    /// `{client}`: the client's address without its port, as trusted proxies tell it.
    Client,
    /// `{host}`: the host of the request, with its port if the client has sent one.
    Host,
    /// `{hostname}`: the host without the port.
    Hostname,
    /// `{scheme}`: `http` or `https`.
    Scheme,
    /// `{method}`: the method.
    Method,
    /// `{uri}`: path and query, as sent.
    Uri,
    /// `{path}`: the path as sent, without the query.
    Path,
    /// `{path.1}`: the first segment of the path, and so on; empty if there are not so many.
    PathSegment(usize),
    /// `{query}`: the query as sent, without the question mark.
    Query,
    /// `{query.NAME}`: the value of the first parameter with this name, as sent.
    Parameter(String),
    /// `{header.NAME}`: the value of the first field with this name.
    Header(String),
    /// `{cookie.NAME}`: the value of the first cookie with this name.
    Cookie(String),
    /// `{re.1}` or `{re.name}`: a group of the regular expression of the route's path,
    /// percent-encoded.
    Capture(String),
}

/// The first word in braces that stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownPlaceholder(pub(crate) String);

/// What a message says was expected of a word in braces.
pub(crate) const PLACEHOLDER_EXPECTED: &str = "{client}, {host}, {hostname}, {scheme}, {method}, \
    {uri}, {path}, {path.1}, {query}, {query.NAME}, {header.NAME}, {cookie.NAME} or {re.1} in braces";

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// The first placeholder that is unknown.
    pub(crate) fn parse(text: &str) -> Result<Self, UnknownPlaceholder> {
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            plain.push_str(&rest[..start]);
            let Some(word) = word_in_braces(&rest[start..]) else {
                plain.push('{');
                rest = &rest[start + 1..];
                continue;
            };
            let Some(placeholder) = Placeholder::parse(word) else {
                return Err(UnknownPlaceholder(format!("{{{word}}}")));
            };
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
            }
            parts.push(TemplatePart::Placeholder(placeholder));
            rest = &rest[start + word.len() + 2..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain));
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// Its parts, no two texts in a row.
    #[must_use]
    pub fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The groups of the path's regular expression that it uses.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Placeholder(Placeholder::Capture(group)) => Some(group.as_str()),
            _ => None,
        })
    }
}

impl FromStr for Template {
    type Err = String;

    /// The error names the first unknown placeholder.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|UnknownPlaceholder(word)| {
            format!("{word} is no placeholder: expected {PLACEHOLDER_EXPECTED}")
        })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Placeholder {
    pub(super) fn parse(word: &str) -> Option<Self> {
        let Some((word, name)) = word.split_once('.') else {
            return Some(match word {
                "client" => Self::Client,
                "host" => Self::Host,
                "hostname" => Self::Hostname,
                "scheme" => Self::Scheme,
                "method" => Self::Method,
                "uri" => Self::Uri,
                "path" => Self::Path,
                "query" => Self::Query,
                _ => return None,
            });
        };
        let owned = || name.to_owned();
        match word {
            "path" => {
                let index = name.parse().ok().filter(|index| (1..=99).contains(index));
                index.map(Self::PathSegment)
            }
            "query" => Some(Self::Parameter(owned())),
            "header" => Some(Self::Header(owned())),
            "cookie" => Some(Self::Cookie(owned())),
            "re" => Some(Self::Capture(owned())),
            _ => None,
        }
    }
}

/// The word at the start of a text, without its braces: small letters, and a name behind a dot.
pub(super) fn word_in_braces(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('{')?;
    let word = &inner[..inner.find('}')?];
    let (start, name) = word.split_once('.').unwrap_or((word, "name"));
    let is_word =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let is_name = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    (is_word(start) && is_name(name)).then_some(word)
}
