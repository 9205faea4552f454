//! Which paths a route is for.
//!
//! `route` parses the patterns, the router of `edge` matches them.
//!
//! # Invariants
//! - A pattern is matched against the normalised, decoded path: the one that handlers get.
//! - A regular expression takes time that is linear in the path, and bounded memory.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use regex::bytes::{Captures, Regex, RegexBuilder};

/// The paths of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// This path only.
    Exact(String),
    /// Every path that starts with this; starts and ends with `/` (`/assets/*` is `/assets/`).
    Prefix(String),
    /// Every path that ends with this; starts with a dot (`*.php` is `.php`).
    Suffix(String),
    /// Every path with a match of this.
    Regex(PathRegex),
}

/// A regular expression over paths. Two with the same text are equal.
#[derive(Debug, Clone)]
pub struct PathRegex(Regex);

/// Largest compiled expression in bytes: a repetition such as `(a{1000}){1000}` does not compile.
const MAX_REGEX_BYTES: usize = 1 << 20;

impl PathRegex {
    /// Compiles a text.
    ///
    /// # Errors
    /// The reason in one line, for a text that is no regular expression or too large a one.
    pub fn new(text: &str) -> Result<Self, String> {
        let compiled = RegexBuilder::new(text).size_limit(MAX_REGEX_BYTES).build();
        compiled.map(Self).map_err(|error| regex_problem(&error))
    }

    /// The compiled expression.
    #[must_use]
    pub fn regex(&self) -> &Regex {
        &self.0
    }

    /// The text with every match replaced by what `make` writes.
    pub fn replace_all<'t>(
        &self,
        text: &'t [u8],
        make: impl Fn(&Captures<'_>, &mut Vec<u8>),
    ) -> Cow<'t, [u8]> {
        self.0.replace_all(text, |captures: &Captures<'_>| {
            let mut made = Vec::new();
            make(captures, &mut made);
            made
        })
    }

    /// Whether a path, or another text, has a match.
    #[must_use]
    pub fn is_match(&self, text: &[u8]) -> bool {
        self.0.is_match(text)
    }

    /// Whether it has a group of this number or name.
    pub(crate) fn has_group(&self, group: &str) -> bool {
        match group.parse::<usize>() {
            Ok(number) => number < self.0.captures_len(),
            Err(_) => self.0.capture_names().flatten().any(|name| name == group),
        }
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// The cause alone: the library's message shows the text on several lines.
fn regex_problem(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "too large once it is compiled".to_owned(),
        error => {
            let message = error.to_string();
            let cause = message.lines().last().unwrap_or_default();
            cause.trim_start_matches("error: ").to_owned()
        }
    }
}

impl PartialEq for PathRegex {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for PathRegex {}

impl Hash for PathRegex {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PathPattern {
    /// Every path: `/*`.
    #[must_use]
    pub fn any() -> Self {
        Self::Prefix("/".to_owned())
    }

    /// Whether the pattern matches a normalised, decoded path.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => path == exact.as_bytes(),
            Self::Prefix(prefix) => path.starts_with(prefix.as_bytes()),
            Self::Suffix(suffix) => path.ends_with(suffix.as_bytes()),
            Self::Regex(regex) => regex.is_match(path),
        }
    }

    /// Whether this matches every path that `other` matches, as far as that can be told.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Prefix(wide), _) if wide == "/" => true,
            (Self::Prefix(wide), Self::Exact(p) | Self::Prefix(p)) => p.starts_with(wide.as_str()),
            (Self::Suffix(wide), Self::Exact(p) | Self::Suffix(p)) => p.ends_with(wide.as_str()),
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Regex(a), Self::Regex(b)) => a == b,
            (Self::Regex(regex), Self::Exact(path)) => regex.is_match(path.as_bytes()),
            _ => false,
        }
    }

    /// Parses `/x`, `/x/*` or `*.x`; `None` for other texts and for paths that no normalised path
    /// could equal.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(suffix) = text.strip_prefix('*') {
            let is_suffix = suffix.len() > 1
                && suffix.starts_with('.')
                && !suffix.contains(['/', '*', '?', '#', '\0']);
            return is_suffix.then(|| Self::Suffix(suffix.to_owned()));
        }
        let (path, wide) = match text.strip_suffix("/*") {
            Some(prefix) => (&text[..=prefix.len()], true),
            None => (text, false),
        };
        let normal = path.starts_with('/')
            && !path.contains("//")
            && !path.contains(['*', '?', '#', '\0'])
            && !path.split('/').any(|part| part == "." || part == "..");
        let kind = if wide { Self::Prefix } else { Self::Exact };
        normal.then(|| kind(path.to_owned()))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => f.write_str(path),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::Suffix(suffix) => write!(f, "*{suffix}"),
            Self::Regex(regex) => f.write_str(regex.as_str()),
        }
    }
}
