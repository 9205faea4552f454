//! The policy for fields of a client's request on their way to an application or a server behind.
//!
//! One list for all components that pass a request on: `cgi`, and through it `apps` and the gateway
//! protocols of `proxy`, make variables of the passed fields; `proxy` writes them into a new head
//! for HTTP servers.
//!
//! `Via` goes to an application as it came, and to an HTTP server with this hop added. Forwarding
//! fields are written anew for both, from the parts that count (`forwarded/outgoing`). `proxy` also
//! drops fields named by `Connection`. Fields that a route's own rules or the hub set are not the
//! client's: [`TrustedHeaders`] names them, and they are passed.
//!
//! # Invariants
//! - No field of the hop, of the framing, or reserved for a front end gets through, in any case.
//! - A name with an underscore never becomes a variable, since it could pose as another. It is
//!   passed only where names are seen as they are ([`FieldClass::Underscored`]).

use std::sync::Arc;

use penstock_http::{FieldBlock, RequestHead, starts_with_ignore_case, token_eq_ignore_case};

use crate::accel::is_accel_field;
use crate::client_certificate::CLIENT_CERTIFICATE_FIELD_PREFIX;
use crate::grip::is_grip_field;

/// The treatment of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldClass {
    /// Passed as it is.
    EndToEnd,
    /// Of this hop or of the framing, or handled here (RFC 9110 §7.6.1).
    HopByHop,
    /// Reserved for the front end.
    Internal,
    /// Forwarding information, trusted only from a trusted proxy.
    Forwarding,
    /// The proxies on the way (RFC 9110 §7.6.3).
    Via,
    /// Has an underscore in its name, and is passed only where names are seen as they are: in a
    /// variable it would be read as its twin with hyphens. The twin is [`FieldClass::EndToEnd`], so
    /// that even a server that makes variables gets nothing that a client may not send.
    Underscored,
}

impl FieldClass {
    /// Whether the field goes to an application as it came;
    /// [`crate::Request::passes_forwarding_field`] decides too.
    #[must_use]
    pub fn is_passed_to_app(self) -> bool {
        match self {
            Self::EndToEnd | Self::Via => true,
            Self::Forwarding | Self::HopByHop | Self::Internal | Self::Underscored => false,
        }
    }
}

/// Whether a field makes a request conditional or partial (RFC 9110 §13.1, §14.2). A request that is
/// made for another has conditions of its own.
#[must_use]
pub fn is_conditional_field(name: &str) -> bool {
    const FIELDS: [&str; 6] = [
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "range",
    ];
    FIELDS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether a field is about the content of a body (RFC 9110 §8): not for a request without one.
#[must_use]
pub fn is_content_field(name: &str) -> bool {
    const FIELDS: [&str; 3] = ["content-encoding", "content-language", "content-type"];
    FIELDS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether a response field is for the front end or the hub, and never for a client.
#[must_use]
pub fn is_internal_field(name: &[u8]) -> bool {
    is_accel_field(name) || is_grip_field(name)
}

/// Removes all fields that [`is_internal_field`] names.
pub fn remove_internal_fields(fields: &mut FieldBlock) {
    fields.remove_where(|name| is_internal_field(name.as_bytes()));
}

/// Whether two names make the same variable: they differ only in case, and in underscores for
/// hyphens.
#[must_use]
pub fn is_same_cgi_variable(one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> bool {
    let (one, other) = (one.as_ref(), other.as_ref());
    let letter = |byte: u8| match byte {
        b'_' => b'-',
        byte => byte.to_ascii_lowercase(),
    };
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(&one, &other)| letter(one) == letter(other))
}

/// The fields that a route's own rules, or a component, set in a request.
///
/// Made by `edge` and `hub`, which have removed fields of these names that a client may not send.
/// Nearly always empty, and then free.
#[derive(Debug, Clone, Default)]
pub struct TrustedHeaders(Option<Arc<[String]>>);

impl TrustedHeaders {
    /// Trusts these names, without those of the hop, which no rule may set.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter();
        let names: Arc<[String]> = names
            .filter(|name| classify_field(name) != FieldClass::HopByHop)
            .collect();
        Self((!names.is_empty()).then_some(names))
    }

    /// Trusts these names besides: fields that a component adds to a request. The component removes
    /// the client's fields of these names.
    #[must_use]
    pub fn with_names(&self, names: impl IntoIterator<Item = String>) -> Self {
        let known = self.0.iter().flat_map(|names| names.iter().cloned());
        Self::new(known.chain(names))
    }

    /// Trusts besides the fields reserved for a front end, which alone can have sent this head: it
    /// has removed the client's. Never `Proxy`. Costs nothing where all of them are trusted
    /// already.
    #[must_use]
    pub fn with_front_end_headers(&self, head: &RequestHead) -> Self {
        let is_of_front = |name: &&str| {
            classify_field(name) == FieldClass::Internal
                && !name.eq_ignore_ascii_case("proxy")
                && !self.covers(name)
        };
        let names = head.fields().map(|(name, _)| name);
        let mut new = names.filter(is_of_front).map(str::to_owned).peekable();
        match new.peek() {
            None => self.clone(),
            Some(_) => self.with_names(new),
        }
    }

    /// The names, as they were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .flat_map(|names| names.iter())
            .map(|name| &**name)
    }

    /// Whether no field is trusted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a trusted field could be read as one of that name.
    #[must_use]
    pub fn covers_cgi_variable(&self, name: impl AsRef<[u8]>) -> bool {
        let mut names = self.0.iter().flat_map(|names| names.iter());
        names.any(|vouched| is_same_cgi_variable(vouched, name.as_ref()))
    }

    /// Whether a field of that name is passed as it is, whatever its class.
    #[must_use]
    pub fn covers(&self, name: impl AsRef<[u8]>) -> bool {
        let mut names = self.0.iter().flat_map(|names| names.iter());
        names.any(|vouched| vouched.as_bytes().eq_ignore_ascii_case(name.as_ref()))
    }
}

/// The treatment of a field of that name, which is a token.
///
/// Length and first letter decide nearly always, before any name is compared.
#[must_use]
pub fn classify_field(name: impl AsRef<[u8]>) -> FieldClass {
    let bytes = name.as_ref();
    let first = bytes.first().map_or(0, |byte| byte | 0x20);
    let (names, class): (&[&str], _) = match (bytes.len(), first) {
        (2, b't') => (&["te"], FieldClass::HopByHop),
        (3, b'v') => (&["via"], FieldClass::Via),
        (4, b'h') => (&["host"], FieldClass::HopByHop),
        // Never HTTP_PROXY: an environment variable of that name redirects requests of its program.
        (5, b'p') => (&["proxy"], FieldClass::Internal),
        (6, b'e') => (&["expect"], FieldClass::HopByHop),
        (7, b't' | b'u') => (&["trailer", "upgrade"], FieldClass::HopByHop),
        (9, b'f' | b'x') => (&["forwarded", "x-real-ip"], FieldClass::Forwarding),
        (10, b'c' | b'k') => (&["connection", "keep-alive"], FieldClass::HopByHop),
        // The hub's to a back end that gets a WebSocket as requests.
        (13, b'c') => (&["connection-id"], FieldClass::Internal),
        (14, b'c' | b'h') => (&["content-length", "http2-settings"], FieldClass::HopByHop),
        (16, b'p') => (&["proxy-connection"], FieldClass::HopByHop),
        (17, b't') => (&["transfer-encoding"], FieldClass::HopByHop),
        _ => (&[], FieldClass::EndToEnd),
    };
    match first {
        _ if is_named_in(names, bytes) => class,
        b'm' if starts_with_ignore_case(bytes, "meta-") => FieldClass::Internal,
        b'x' => classify_x_field(bytes),
        // The hub's to a back end.
        b'g' if is_grip_field(bytes) => FieldClass::Internal,
        _ if bytes.contains(&b'_') => classify_underscored(bytes),
        _ => FieldClass::EndToEnd,
    }
}

/// The treatment of a name with an underscore: reserved if its twin with hyphens is.
fn classify_underscored(name: &[u8]) -> FieldClass {
    let mut room = [0; MAX_NAME_BYTES];
    let Some(twin) = room.get_mut(..name.len()) else {
        return FieldClass::Internal;
    };
    for (to, from) in twin.iter_mut().zip(name) {
        *to = if *from == b'_' { b'-' } else { *from };
    }
    // Some servers make one variable of both: then it would be the type of the body.
    let is_type = token_eq_ignore_case(twin, b"content-type");
    let is_plain = classify_field(&*twin) == FieldClass::EndToEnd
        && !is_type
        && std::str::from_utf8(twin).is_ok_and(|twin| !is_forwarding_field(twin));
    match is_plain {
        true => FieldClass::Underscored,
        false => FieldClass::Internal,
    }
}

/// The longest name that the parser accepts.
const MAX_NAME_BYTES: usize = 256;

/// The treatment of names that begin with an X.
fn classify_x_field(name: &[u8]) -> FieldClass {
    let is_in = |list: &[&str]| is_named_in(list, name);
    if is_in(&FORWARDING_X_FIELDS) {
        FieldClass::Forwarding
    } else if is_in(&INTERNAL_X_FIELDS)
        || starts_with_ignore_case(name, CLIENT_CERTIFICATE_FIELD_PREFIX)
    {
        FieldClass::Internal
    } else if name.contains(&b'_') {
        classify_underscored(name)
    } else {
        FieldClass::EndToEnd
    }
}

/// Whether a field is about the client's request at a proxy, by any name:
/// [`FieldClass::Forwarding`], every other `X-Forwarded-*`, and other names of the client's scheme,
/// target and certificate.
///
/// An application may make links and redirects of them, or log a client in, so they are not passed
/// from untrusted peers ([`crate::Request::passes_forwarding_field`]).
#[must_use]
pub fn is_forwarding_field(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    let is_in = |list: &[&str]| is_named_in(list, name);
    match name.first().map_or(0, |byte| byte | 0x20) {
        // Rails reads the address; RFC 9440 has the certificate of a client.
        b'c' => is_in(&["client-cert", "client-cert-chain", "client-ip"]),
        b'f' => is_in(&["forwarded", "front-end-https"]),
        b'x' => {
            starts_with_ignore_case(name, "x-forwarded-")
                || starts_with_ignore_case(name, "x-ssl-client-")
                || is_in(&OTHER_FORWARDING_X_FIELDS)
        }
        _ => false,
    }
}

/// Whether a field of that name gives the client's address in a way that some applications read,
/// but Penstock does not.
#[must_use]
pub fn is_client_address_field(name: impl AsRef<[u8]>) -> bool {
    let names = ["client-ip", "x-client-ip", "x-cluster-client-ip"];
    is_named_in(&names, name.as_ref())
}

fn is_named_in(list: &[&str], name: &[u8]) -> bool {
    let mut known = list.iter();
    known.any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Those without `X-Forwarded-` in front.
const OTHER_FORWARDING_X_FIELDS: [&str; 12] = [
    "x-arr-ssl",
    "x-client-dn",
    "x-client-ip",
    "x-client-verify",
    "x-cluster-client-ip",
    "x-original-method",
    "x-original-proto",
    "x-original-scheme",
    "x-original-uri",
    "x-real-ip",
    "x-scheme",
    "x-url-scheme",
];

const FORWARDING_X_FIELDS: [&str; 7] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
];

/// Frameworks read the target of a request from two of them.
const INTERNAL_X_FIELDS: [&str; 9] = [
    "x-accel-buffering",
    "x-accel-limit-rate",
    "x-accel-mapping",
    "x-accel-redirect",
    "x-original-url",
    "x-request-start",
    "x-rewrite-url",
    "x-sendfile",
    "x-sendfile-type",
];

#[cfg(test)]
mod tests {
    use penstock_http::{HeadLimits, ParseProgress, parse_head};

    use super::*;

    const LISTS: [(FieldClass, &[&str]); 6] = [
        (
            FieldClass::HopByHop,
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
            FieldClass::Internal,
            &[
                "grip-",
                "grip-feature",
                "grip-hold",
                "grip-sig",
                "grip_sig",
                "proxy",
                "x-client-cert",
                "x-client-cert-verify",
                "x_client_cert",
                "x-client_cert-chain",
                "x-accel-mapping",
                "x-accel-redirect",
                "x-original-url",
                "x-request-start",
                "x-rewrite-url",
                "x-sendfile",
                "x-sendfile-type",
                "x_forwarded_for",
                "x-forwarded_for",
                "x_forwarded_fox",
                "x_real_ip",
                "x_scheme",
                "x_accel_redirect",
                "content_length",
                "transfer_encoding",
                "keep_alive",
                "connection-id",
                "connection_id",
                "content_type",
                "meta-",
                "meta-user",
                "meta_user",
                "meta-user_id",
            ],
        ),
        (
            FieldClass::Underscored,
            &[
                "a_b",
                "_",
                "auth_token",
                "x_api_key",
                "x-api_key",
                "ho_st",
                "cookie_",
            ],
        ),
        (
            FieldClass::Forwarding,
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
        (FieldClass::Via, &["via"]),
        (
            FieldClass::EndToEnd,
            &[
                "accept",
                "authorization",
                "content-type",
                "cookie",
                "grip",
                "gripe-hold",
                "connection-ids",
                "meta",
                "metal-x",
                "x-meta-user",
                "x-grip-hold",
                "x-thing",
                "tea",
                "hosts",
                "x-forwarded-fox",
            ],
        ),
    ];

    #[test]
    fn fields_are_classified_in_any_case() {
        for (expected, names) in LISTS {
            for name in names {
                assert_eq!(classify_field(name), expected, "{name}");
                assert_eq!(
                    classify_field(name.to_ascii_uppercase()),
                    expected,
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn forwarding_fields_are_recognised() {
        for (fate, names) in LISTS {
            // A proxy passes that one on all the same.
            for name in names.iter().filter(|name| **name != "x-forwarded-fox") {
                assert_eq!(
                    is_forwarding_field(name),
                    fate == FieldClass::Forwarding,
                    "{name}"
                );
            }
        }
        for name in [
            "X-Forwarded-Fox",
            "x-forwarded-",
            "X-Scheme",
            "Front-End-HTTPS",
            "Client-IP",
            "X-Client-IP",
            "Client-Cert",
            "X-SSL-Client-Verify",
            "X-Client-DN",
        ] {
            assert!(is_forwarding_field(name), "{name}");
        }
        for name in ["x-forwarded", "x-forwards-to", "fore", "x-schema"] {
            assert!(!is_forwarding_field(name), "{name}");
        }
    }

    #[test]
    fn trusted_headers_ignore_case_and_exclude_hop_by_hop() {
        let names = ["X-Real-IP", "a_b", "Accept", "Host", "http2-settings"];
        let vouched = TrustedHeaders::new(names.map(str::to_owned));
        for (name, expected) in [
            ("x-real-ip", true),
            ("A_B", true),
            ("accept", true),
            ("host", false),
            ("HTTP2-Settings", false),
            ("x-real-i", false),
            ("x_real_ip", false),
        ] {
            assert_eq!(vouched.covers(name), expected, "{name}");
        }
        assert!(!vouched.is_empty());
        let more = vouched.with_names(["Grip-Sig", "TE"].map(str::to_owned));
        for name in ["x-real-ip", "grip-sig"] {
            assert!(more.covers(name), "{name}");
        }
        assert!(!more.covers("te") && !vouched.covers("grip-sig"));
        assert!(TrustedHeaders::new(["Host".to_owned()]).is_empty());
        assert!(!TrustedHeaders::default().covers("accept"));
    }

    #[test]
    fn underscored_twins_of_trusted_headers_are_recognised() {
        let vouched = TrustedHeaders::new(["X-User".to_owned()]);
        for (name, expected) in [
            ("x-user", true),
            ("X_User", true),
            ("x_user_", false),
            ("xuser", false),
        ] {
            assert_eq!(vouched.covers_cgi_variable(name), expected, "{name}");
        }
        assert!(!vouched.covers("x_user"));
    }

    #[test]
    fn headers_of_a_front_penstock_are_trusted_except_proxy() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Start: t=1\r\nGrip-Sig: x\r\nProxy: y\r\nAccept: z\r\nVia: v\r\n\r\n";
        let Ok(ParseProgress::Complete((head, _))) =
            parse_head(text.as_bytes(), &HeadLimits::default())
        else {
            panic!("it is a head");
        };
        let said = TrustedHeaders::default().with_front_end_headers(&head);
        for (name, expected) in [
            ("x-request-start", true),
            ("grip-sig", true),
            ("proxy", false),
            ("accept", false),
            ("via", false),
        ] {
            assert_eq!(said.covers(name), expected, "{name}");
        }
    }

    #[test]
    fn forwarding_fields_do_not_reach_an_app_unchanged() {
        for (fate, expected) in [
            (FieldClass::EndToEnd, true),
            (FieldClass::Via, true),
            (FieldClass::Forwarding, false),
            (FieldClass::HopByHop, false),
            (FieldClass::Internal, false),
            (FieldClass::Underscored, false),
        ] {
            assert_eq!(fate.is_passed_to_app(), expected, "{fate:?}");
        }
    }
}
