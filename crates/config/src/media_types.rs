//! Sets of media types: those that are worth compressing.

use std::sync::LazyLock;

use crate::model::Compression;

/// Media types without parameters; in each `*` may stand for anything, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaTypes(Vec<TypePattern>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct TypePattern {
    before: Box<[u8]>,
    /// What follows the `*`; `None` without one.
    after: Option<Box<[u8]>>,
}

static COMPRESSIBLE: LazyLock<MediaTypes> =
    LazyLock::new(|| MediaTypes::new(&Compression::default().types));

impl MediaTypes {
    /// The set of these patterns.
    #[must_use]
    pub fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().map(|it| TypePattern::new(it)).collect())
    }

    /// The types that are compressed unless the configuration names others.
    #[must_use]
    pub fn compressible() -> &'static Self {
        &COMPRESSIBLE
    }

    /// Whether a value of `Content-Type` is among them, whatever its parameters.
    #[must_use]
    pub fn contains(&self, content_type: &[u8]) -> bool {
        let essence = content_type.split(|&byte| byte == b';').next();
        let essence = essence.unwrap_or_default().trim_ascii();
        self.0.iter().any(|pattern| pattern.matches(essence))
    }
}

impl TypePattern {
    fn new(text: &str) -> Self {
        let bytes = |text: &str| text.as_bytes().into();
        match text.split_once('*') {
            Some((before, after)) => Self {
                before: bytes(before),
                after: Some(bytes(after)),
            },
            None => Self {
                before: bytes(text),
                after: None,
            },
        }
    }

    fn matches(&self, essence: &[u8]) -> bool {
        let Some(after) = &self.after else {
            return essence.eq_ignore_ascii_case(&self.before);
        };
        let (start, end) = (self.before.len(), after.len());
        essence.len() >= start + end
            && essence[..start].eq_ignore_ascii_case(&self.before)
            && essence[essence.len() - end..].eq_ignore_ascii_case(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything_once() {
        let types = MediaTypes::new(&["text/*", "*+json", "font/ttf"].map(str::to_owned));
        for (value, expected) in [
            ("text/html; charset=utf-8", true),
            (" TEXT/HTML ;x", true),
            ("application/ld+json", true),
            ("+json", true),
            ("font/ttf", true),
            ("font/ttf2", false),
            ("text", false),
            ("", false),
        ] {
            assert_eq!(types.contains(value.as_bytes()), expected, "{value}");
        }
        let worth = MediaTypes::compressible();
        assert!(worth.contains(b"model/stl") && !worth.contains(b"font/woff2"));
    }
}
