//! A request's head made anew: what a route's filters change, what an internal redirect asks for, what
//! a cache asks of a back end.
//!
//! Used by `edge` and `cache`. The new head is written out and read again by the parser that reads those
//! of clients, so whatever a rule or an application put into it, handlers see a head that keeps every
//! rule; nobody edits a parsed one in place.

use crate::{HeadLimits, ParseProgress, RequestHead, RequestHeadError, parse_head};

/// The limits were asked of what the client sent; what is added here is the configuration's.
const UNLIMITED: HeadLimits = HeadLimits {
    max_target_bytes: usize::MAX,
    max_head_bytes: usize::MAX,
    max_fields: usize::MAX,
};

/// A head that is being written.
#[derive(Debug)]
pub struct HeadWriter(Vec<u8>);

impl HeadWriter {
    /// Begins with the request line; the version is that of `old`.
    pub fn new(old: &RequestHead, method: &str, target: &str) -> Self {
        let size: usize = old.fields().map(|(n, v)| n.len() + v.len() + 4).sum();
        let mut writer = Self(Vec::with_capacity(size + target.len() + 256));
        for part in [method, " ", target, " ", old.version().as_str(), "\r\n"] {
            writer.0.extend_from_slice(part.as_bytes());
        }
        writer
    }

    /// Begins the head of the same request for another target, and adds the fields of `old`.
    ///
    /// The authority of an absolute-form target stands in for `Host` (RFC 9112 §3.2.2): once the
    /// target is in origin form, it is written there.
    pub fn with_target(old: &RequestHead, target: &str) -> Self {
        let mut writer = Self::new(old, old.method_str(), target);
        let is_absolute = old.target() != old.target_path_query();
        if is_absolute {
            writer.field("Host", old.host().as_bytes());
        }
        for (name, value) in old.fields() {
            if !is_absolute || !name.eq_ignore_ascii_case("host") {
                writer.field(name, value);
            }
        }
        writer
    }

    /// Adds a field.
    pub fn field(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// The head, read again.
    ///
    /// # Errors
    /// When it breaks a rule.
    pub fn finish(mut self) -> Result<RequestHead, RequestHeadError> {
        self.0.extend_from_slice(b"\r\n");
        match parse_head(&self.0, &UNLIMITED)? {
            // More than one head would mean that a value held a line break.
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
            let new = HeadWriter::with_target(&old, "/a?b").finish().unwrap();
            assert_eq!((new.target(), new.host()), ("/a?b", host), "{line}");
            assert_eq!(new.field("x"), Some(&b"1"[..]), "{line}");
            assert_eq!(new.field_all("host").count(), 1, "{line}");
        }
    }
}
