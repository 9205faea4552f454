//! The origins with access to what a browser sends by itself, such as cookies.
//!
//! Used by `grip` for WebSockets, by `mercure` for cookies, and by `mercure` and routes with `hub`
//! for pages of other origins (CORS).

use penstock_http::{FieldBlock, Method, RequestHead};

/// The allowed origins, besides those of the requested host.
#[derive(Debug, Clone, Default)]
pub struct AllowedOrigins {
    listed: Box<[String]>,
    /// Whether any origin is allowed.
    pub allows_any: bool,
}

impl AllowedOrigins {
    /// Reads a list in which `*` stands for any origin.
    #[must_use]
    pub fn new(origins: &[String]) -> Self {
        let (any, named): (Vec<_>, Vec<_>) =
            origins.iter().cloned().partition(|origin| origin == "*");
        Self {
            listed: named.into(),
            allows_any: !any.is_empty(),
        }
    }

    /// Whether the list names origins.
    #[must_use]
    pub fn has_listed_origins(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Whether the list names this origin.
    #[must_use]
    pub fn is_listed(&self, origin: &[u8]) -> bool {
        let mut named = self.listed.iter();
        named.any(|named| named.as_bytes().eq_ignore_ascii_case(origin))
    }

    /// Adds what lets a page of another origin read the response to this request, and to a
    /// preflight what it may send: these methods, and the fields that streams and publishers need
    /// (Fetch, "HTTP extensions").
    pub fn add_cors_headers(
        &self,
        head: &RequestHead,
        methods: &'static str,
        fields: &mut FieldBlock,
    ) {
        let Some(origin) = head.field("origin") else {
            return;
        };
        if self.has_listed_origins() {
            fields.push_static("Vary", "Origin");
        }
        if self.is_listed(origin) {
            // It is one of the configuration's, which hold no control byte, in another case at
            // most.
            let _ = fields.push("Access-Control-Allow-Origin", origin);
            fields.push_static("Access-Control-Allow-Credentials", "true");
        } else if self.allows_any {
            fields.push_static("Access-Control-Allow-Origin", "*");
        } else {
            return;
        }
        fields.push_static("Access-Control-Expose-Headers", "Last-Event-ID");
        if head.method() == Method::Options {
            fields.push_static("Access-Control-Allow-Methods", methods);
            fields.push_static(
                "Access-Control-Allow-Headers",
                "Authorization, Cache-Control, Content-Type, Last-Event-ID",
            );
            fields.push_static("Access-Control-Max-Age", "86400");
        }
    }
}

/// Whether `origin` is the requested host. The scheme does not count: TLS may have ended in front.
#[must_use]
pub fn is_same_host(origin: &[u8], host: &str) -> bool {
    let parts = [("http://", ":80"), ("https://", ":443")]
        .iter()
        .find_map(|(scheme, port)| Some((origin.strip_prefix(scheme.as_bytes())?, port)));
    let Some((authority, port)) = parts else {
        return false;
    };
    // Browsers leave out the scheme's own port; a proxy may say it.
    let host = host.strip_suffix(port).unwrap_or(host);
    !host.is_empty() && authority.eq_ignore_ascii_case(host.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_of_the_host_that_was_asked() {
        for (origin, host, expected) in [
            ("https://a.example", "a.example", true),
            ("http://A.example:8080", "a.EXAMPLE:8080", true),
            ("https://a.example", "a.example:443", true),
            ("http://a.example", "a.example:80", true),
            ("http://a.example", "a.example:443", false),
            ("https://a.example:8443", "a.example", false),
            ("https://a.example.evil", "a.example", false),
            ("https://evil/a.example", "a.example", false),
            ("ftp://a.example", "a.example", false),
            ("null", "null", false),
            ("a.example", "a.example", false),
            ("https://", "", false),
            ("http://[::1]:80", "[::1]", false),
        ] {
            assert_eq!(
                is_same_host(origin.as_bytes(), host),
                expected,
                "{origin} {host}"
            );
        }
    }
}
