//! What becomes of a field of a client's request on its way to an application or a server behind.
//!
//! One list for everybody who hands a request on. `cgi` and through it `apps` and `proxy`'s gateway
//! protocols name what passes as variables; `proxy` writes it into a new head for HTTP servers. What must
//! stay true: no field of the hop, none that frames a message and none that only a front end may say gets
//! through, whatever its case; every name with an underscore is dropped, since it could pose as another.
//!
//! The differences in one place: `Via` goes to an application as it came, and to an HTTP server with this
//! hop behind it. What a proxy says of its client goes to an application as it came if the peer is
//! trusted; `proxy` writes it anew, with the words of a trusted peer in front. `proxy` also drops what
//! `Connection` names.

/// What is done with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes on as it is.
    Pass,
    /// It is of this hop or of the framing, or is dealt with here (RFC 9110 §7.6.1).
    Hop,
    /// Only the front end may say it.
    House,
    /// A proxy's word about its client: of worth only from one that is trusted.
    FromProxy,
    /// The proxies on the way (RFC 9110 §7.6.3).
    Via,
}

impl Fate {
    /// Whether the field goes to an application as it came from a peer that is `trusted`, or not, to
    /// speak for clients of its own.
    #[must_use]
    pub fn reaches_application(self, trusted: bool) -> bool {
        match self {
            Self::Pass | Self::Via => true,
            Self::FromProxy => trusted,
            Self::Hop | Self::House => false,
        }
    }
}

/// What is done with a field of that name, which is a token.
///
/// The length decides nearly always, before any byte is compared.
#[must_use]
pub fn fate(name: &str) -> Fate {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        2 if is("te") => Fate::Hop,
        3 if is("via") => Fate::Via,
        4 if is("host") => Fate::Hop,
        // Never HTTP_PROXY: an environment variable of that name redirects requests of its program.
        5 if is("proxy") => Fate::House,
        6 if is("expect") => Fate::Hop,
        7 if is("trailer") || is("upgrade") => Fate::Hop,
        9 if is("forwarded") || is("x-real-ip") => Fate::FromProxy,
        10 if is("connection") || is("keep-alive") => Fate::Hop,
        10 if is("x-sendfile") => Fate::House,
        // Frameworks take the target of a request from these two.
        13 if is("x-rewrite-url") => Fate::House,
        14 if is("x-original-url") => Fate::House,
        14 if is("content-length") || is("http2-settings") => Fate::Hop,
        15 if is("x-accel-mapping") || is("x-request-start") || is("x-sendfile-type") => {
            Fate::House
        }
        15 if is("x-forwarded-for") || is("x-forwarded-ssl") => Fate::FromProxy,
        16 if is("proxy-connection") => Fate::Hop,
        16 if is("x-accel-redirect") => Fate::House,
        16 if is("x-forwarded-host") || is("x-forwarded-port") => Fate::FromProxy,
        17 if is("transfer-encoding") => Fate::Hop,
        17 if is("x-forwarded-proto") => Fate::FromProxy,
        17 if is("x-accel-buffering") => Fate::House,
        18 if is("x-accel-limit-rate") => Fate::House,
        18 if is("x-forwarded-prefix") || is("x-forwarded-scheme") => Fate::FromProxy,
        _ if name.contains('_') => Fate::House,
        _ => Fate::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: [(Fate, &[&str]); 5] = [
        (
            Fate::Hop,
            &[
                "connection",
                "content-length",
                "expect",
                "host",
                "http2-settings",
                "keep-alive",
                "proxy-connection",
                "te",
                "trailer",
                "transfer-encoding",
                "upgrade",
            ],
        ),
        (
            Fate::House,
            &[
                "proxy",
                "x-accel-mapping",
                "x-accel-redirect",
                "x-original-url",
                "x-request-start",
                "x-rewrite-url",
                "x-sendfile",
                "x-sendfile-type",
                "x_forwarded_for",
                "a_b",
                "_",
            ],
        ),
        (
            Fate::FromProxy,
            &[
                "forwarded",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-port",
                "x-forwarded-prefix",
                "x-forwarded-proto",
                "x-forwarded-scheme",
                "x-forwarded-ssl",
                "x-real-ip",
            ],
        ),
        (Fate::Via, &["via"]),
        (
            Fate::Pass,
            &[
                "accept",
                "authorization",
                "content-type",
                "cookie",
                "x-thing",
                "tea",
                "hosts",
                "x-forwarded-fox",
            ],
        ),
    ];

    #[test]
    fn every_name_has_its_fate_in_any_case() {
        for (expected, names) in LISTS {
            for name in names {
                assert_eq!(fate(name), expected, "{name}");
                assert_eq!(fate(&name.to_ascii_uppercase()), expected, "{name}");
            }
        }
    }

    #[test]
    fn an_application_hears_a_proxy_only_if_it_is_trusted() {
        for (fate, from_stranger, from_proxy) in [
            (Fate::Pass, true, true),
            (Fate::Via, true, true),
            (Fate::FromProxy, false, true),
            (Fate::Hop, false, false),
            (Fate::House, false, false),
        ] {
            assert_eq!(fate.reaches_application(false), from_stranger, "{fate:?}");
            assert_eq!(fate.reaches_application(true), from_proxy, "{fate:?}");
        }
    }
}
