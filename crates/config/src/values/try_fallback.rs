//! The last item of `try`: what happens to a request that no file answers.

use std::fmt;

/// What happens to a request without a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TryFallback {
    /// It is answered with this status: 403 or 404.
    Status(u16),
    /// The next handler gets it with this path and query.
    Target(Vec<FallbackPart>),
}

/// A part of the path and query of a fallback.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FallbackPart {
    /// This text.
    Text(String),
    /// `{path}`: the path as the client sent it.
    Path,
    /// `{query}`: the query, without the question mark.
    Query,
}

impl TryFallback {
    /// Reads an item; `None` if it is the path of a file.
    ///
    /// # Errors
    /// What was expected of an item that can only be a fallback.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, &'static str>> {
        if let Some(status) = text.strip_prefix('=') {
            let status = match status {
                "403" => Ok(Self::Status(403)),
                "404" => Ok(Self::Status(404)),
                _ => Err("\"=404\" or \"=403\""),
            };
            return Some(status);
        }
        text.contains('?')
            .then(|| parse_target(text).ok_or(TARGET_EXPECTED))
    }

    /// The path and query for a request; `None` for a status.
    #[must_use]
    pub fn target(&self, path: &str, query: Option<&str>) -> Option<String> {
        let Self::Target(parts) = self else {
            return None;
        };
        let mut target = String::new();
        for part in parts {
            target.push_str(match part {
                FallbackPart::Text(text) => text,
                FallbackPart::Path => path,
                FallbackPart::Query => query.unwrap_or_default(),
            });
        }
        // Without a query nothing stands behind the last sign.
        target.truncate(target.trim_end_matches(['?', '&']).len());
        Some(target)
    }
}

const TARGET_EXPECTED: &str = "a path with a query such as \"/index.php?{query}\" or \
     \"/index.php?q={path}&{query}\", in ASCII and without spaces";

fn parse_target(text: &str) -> Option<TryFallback> {
    let is_plain = |b: u8| b.is_ascii_graphic() && !b"#\\".contains(&b);
    if !text.starts_with('/') || text.starts_with("//") || !text.bytes().all(is_plain) {
        return None;
    }
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find('{') {
        let (placeholder, word) = match &rest[start..] {
            found if found.starts_with("{path}") => (FallbackPart::Path, "{path}"),
            found if found.starts_with("{query}") => (FallbackPart::Query, "{query}"),
            _ => return None,
        };
        parts.push(FallbackPart::Text(rest[..start].to_owned()));
        parts.push(placeholder);
        rest = &rest[start + word.len()..];
    }
    parts.push(FallbackPart::Text(rest.to_owned()));
    parts.retain(|part| *part != FallbackPart::Text(String::new()));
    Some(TryFallback::Target(parts))
}

impl fmt::Display for TryFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "={status}"),
            Self::Target(parts) => parts.iter().try_for_each(|part| match part {
                FallbackPart::Text(text) => f.write_str(text),
                FallbackPart::Path => f.write_str("{path}"),
                FallbackPart::Query => f.write_str("{query}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_the_target_of_a_request() {
        let rows = [
            ("/index.php?{query}", "/a/b", Some("c=d"), "/index.php?c=d"),
            ("/index.php?{query}", "/a/b", None, "/index.php"),
            (
                "/index.php?q={path}&{query}",
                "/a%20b",
                None,
                "/index.php?q=/a%20b",
            ),
            ("/i?q={path}&{query}", "/a", Some("c"), "/i?q=/a&c"),
            ("/i{path}?x", "/a", Some("c"), "/i/a?x"),
        ];
        for (text, path, query, expected) in rows {
            let fallback = TryFallback::parse(text).unwrap().unwrap();
            assert_eq!(fallback.to_string(), text);
            assert_eq!(
                fallback.target(path, query).as_deref(),
                Some(expected),
                "{text}"
            );
        }
    }

    #[test]
    fn knows_fallbacks_from_files() {
        for text in ["{path}", "/index.html", "/404"] {
            assert_eq!(TryFallback::parse(text), None, "{text}");
        }
        for text in [
            "=500",
            "=",
            "index.php?{query}",
            "//h/?a",
            "/a b?",
            "/a?{client}",
            "/a?{",
        ] {
            assert!(TryFallback::parse(text).unwrap().is_err(), "{text}");
        }
        assert_eq!(
            TryFallback::parse("=404"),
            Some(Ok(TryFallback::Status(404)))
        );
    }
}
