//! What a header field, a parameter or a cookie must be.
//!
//! # Invariants
//! - A regular expression takes time that is linear in the value, and bounded memory.

use std::fmt;

use super::path_pattern::PathRegex;

/// What a value must be. Two that are written alike are equal.
#[derive(Debug, Clone)]
pub struct ValuePattern {
    text: String,
    matcher: Matcher,
}

#[derive(Debug, Clone)]
enum Matcher {
    Any,
    Exact,
    Regex(PathRegex),
}

impl ValuePattern {
    /// Parses `text`, `*`, `prefix*`, `~regex` or `~*regex`.
    ///
    /// # Errors
    /// The reason, for a regular expression that is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let matcher = match (text, text.strip_prefix('~')) {
            ("*", _) => Matcher::Any,
            (_, Some(regex)) => Matcher::Regex(match regex.strip_prefix('*') {
                Some(regex) => PathRegex::new(&format!("(?i){regex}"))?,
                None => PathRegex::new(regex)?,
            }),
            _ if text.contains('*') => {
                let parts: Vec<String> = text.split('*').map(regex::escape).collect();
                // A value may have bytes that are no text.
                Matcher::Regex(PathRegex::new(&format!("^(?s-u:{})$", parts.join(".*")))?)
            }
            _ => Matcher::Exact,
        };
        Ok(Self {
            text: text.to_owned(),
            matcher,
        })
    }

    /// Whether a value matches.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        match &self.matcher {
            Matcher::Any => true,
            Matcher::Exact => self.text.as_bytes() == value,
            Matcher::Regex(regex) => regex.is_match(value),
        }
    }
}

impl PartialEq for ValuePattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for ValuePattern {}

impl fmt::Display for ValuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
