//! Builds a new request head: for a route's filters, an internal redirect, or a cache's request.
//!
//! Used by `edge` and `cache`. The new head is written out and parsed by the parser for clients'
//! requests, so it follows every rule, whatever a rule or an application put into it. A parsed head
//! is never edited in place.

use crate::{HeadLimits, ParseProgress, RequestHead, RequestHeadError, parse_head};

/// The limits were applied to the client's request; additions come from the configuration.
const UNLIMITED: HeadLimits = HeadLimits {
    max_target_bytes: usize::MAX,
    max_head_bytes: usize::MAX,
    max_fields: usize::MAX,
};

#[derive(Debug)]
pub struct HeadWriter(Vec<u8>);

impl HeadWriter {
    /// Writes the request line, with the version of `old`.
    pub fn new(old: &RequestHead, method: &str, target: &str) -> Self {
        let size: usize = old.fields().map(|(n, v)| n.len() + v.len() + 4).sum();
        let mut writer = Self(Vec::with_capacity(size + target.len() + 256));
        for part in [method, " ", target, " ", old.version().as_str(), "\r\n"] {
            writer.0.extend_from_slice(part.as_bytes());
        }
        writer
    }

    /// Writes a head for another target with those fields of `old` that `is_kept` names.
    ///
    /// The authority of an absolute-form target replaces `Host` (RFC 9112 §3.2.2), so it becomes
    /// the `Host` of a target in origin form.
    pub fn with_kept_fields(
        old: &RequestHead,
        method: &str,
        target: &str,
        is_kept: impl Fn(&str) -> bool,
    ) -> Self {
        let mut writer = Self::new(old, method, target);
        let is_absolute = old.target() != old.target_path_query();
        if is_absolute && is_kept("host") {
            writer.push_field("Host", old.host().as_bytes());
        }
        for (name, value) in old.fields() {
            if is_kept(name) && !(is_absolute && name.eq_ignore_ascii_case("host")) {
                writer.push_field(name, value);
            }
        }
        writer
    }

    pub fn push_field(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// Parses the written head.
    ///
    /// # Errors
    /// Fails if it breaks a rule.
    pub fn finish(mut self) -> Result<RequestHead, RequestHeadError> {
        self.0.extend_from_slice(b"\r\n");
        match parse_head(&self.0, &UNLIMITED)? {
            // More bytes mean that a value contained a line break.
            ParseProgress::Complete((head, used)) if used == self.0.len() => Ok(head),
            ParseProgress::Complete(_) | ParseProgress::Partial => {
                Err(RequestHeadError::BareLineBreak)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_target_leaves_the_fields_and_the_host_as_they_were() {
        for (line, host) in [
            ("GET //a HTTP/1.1\r\nHost: shop.test\r\n", "shop.test"),
            (
                "GET http://shop.test//a HTTP/1.1\r\nHost: shop.test\r\n",
                "shop.test",
            ),
        ] {
            let text = format!("{line}X: 1\r\n\r\n");
            let Ok(ParseProgress::Complete((old, _))) = parse_head(text.as_bytes(), &UNLIMITED)
            else {
                panic!("the head is whole");
            };
            let new = HeadWriter::with_kept_fields(&old, old.method_str(), "/a?b", |_| true)
                .finish()
                .unwrap();
            assert_eq!((new.target(), new.host()), ("/a?b", host), "{line}");
            assert_eq!(new.field("x"), Some(&b"1"[..]), "{line}");
            assert_eq!(new.field_values("host").count(), 1, "{line}");
        }
    }
}
