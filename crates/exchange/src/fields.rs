//! What becomes of a field of a client's request on its way to an application or a server behind.
//!
//! One list for everybody who hands a request on. `cgi` and through it `apps` and `proxy`'s gateway
//! protocols name what passes as variables; `proxy` writes it into a new head for HTTP servers. What must
//! stay true: no field of the hop, none that frames a message and none that only a front end may say gets
//! through, whatever its case; a name with an underscore is no variable of anybody, since it could pose as
//! another, and goes on only where names are seen as they are ([`Fate::Underscored`]).
//!
//! The differences in one place: `Via` goes to an application as it came, and to an HTTP server with this
//! hop behind it. What a proxy says of its client is written anew for both, from what counts of it
//! (`forwarded/passing`). `proxy` also drops what `Connection` names.
//!
//! What a route's own rules or the hub say is not the client's: [`Vouched`] names those fields, and they go on.

use std::sync::Arc;

use penstock_http::{FieldBlock, RequestHead, token_eq_ignore_case};

use crate::accel::is_to_front;
use crate::grip::is_grip;

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
    /// It has an underscore in its name and goes on to whoever sees names as they are. Whoever makes
    /// variables of names must not get it: there it would be read as its twin with hyphens. Its twin is
    /// [`Fate::Pass`], so that a server behind which makes variables all the same is told nothing that a
    /// client may not say.
    Underscored,
}

impl Fate {
    /// Whether the field goes to an application as it came; [`crate::Request::passes_forwarding_field`] has a
    /// say, too.
    #[must_use]
    pub fn reaches_application(self) -> bool {
        match self {
            Self::Pass | Self::Via => true,
            Self::FromProxy | Self::Hop | Self::House | Self::Underscored => false,
        }
    }
}

/// Whether a response field of that name is for the front end or the hub, and never for a client.
#[must_use]
pub fn is_internal(name: &[u8]) -> bool {
    is_to_front(name) || is_grip(name)
}

/// Removes all fields that [`is_internal`] names.
pub fn remove_internal(fields: &mut FieldBlock) {
    let next = |fields: &FieldBlock| {
        let mut names = fields.iter().map(|(name, _)| name);
        let found = names.find(|name| is_internal(name.as_bytes()));
        found.map(str::to_owned)
    };
    // Each turn removes every field of one name, of which a head has few.
    while let Some(name) = next(fields) {
        fields.remove(&name);
    }
}

/// Whether two names make the same variable: they differ in case, and in underscores for hyphens, alone.
#[must_use]
pub fn is_same_variable(one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> bool {
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

/// The fields that a route's own rules, or a room of the house, gave to a request.
///
/// Made by `edge` and `hub`, which have left out what the client itself said by these names and may not say.
/// Nearly always empty, and then free.
#[derive(Debug, Clone, Default)]
pub struct Vouched(Option<Arc<[String]>>);

impl Vouched {
    /// Vouches for these names; those of the hop are left out, as no rule may say them.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter();
        let names: Arc<[String]> = names.filter(|name| fate(name) != Fate::Hop).collect();
        Self((!names.is_empty()).then_some(names))
    }

    /// Vouches for these names besides: what a room of the house adds to a request on its way. Whoever does
    /// leaves out what the client said by them.
    #[must_use]
    pub fn and(&self, names: impl IntoIterator<Item = String>) -> Self {
        let known = self.0.iter().flat_map(|names| names.iter().cloned());
        Self::new(known.chain(names))
    }

    /// Vouches besides for what a front end of the house, which alone can have sent this head, may say and no client: it
    /// has left out what clients said by these names. `Proxy` is nobody's to say. Costs nothing where it vouches for
    /// all of them already.
    #[must_use]
    pub fn and_of_front(&self, head: &RequestHead) -> Self {
        let is_of_front = |name: &&str| {
            fate(name) == Fate::House && !name.eq_ignore_ascii_case("proxy") && !self.covers(name)
        };
        let names = head.fields().map(|(name, _)| name);
        let mut new = names.filter(is_of_front).map(str::to_owned).peekable();
        match new.peek() {
            None => self.clone(),
            Some(_) => self.and(new),
        }
    }

    /// Whether it vouches for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it vouches for a field that another reader could take for one of that name.
    #[must_use]
    pub fn covers_variable(&self, name: impl AsRef<[u8]>) -> bool {
        let mut names = self.0.iter().flat_map(|names| names.iter());
        names.any(|vouched| is_same_variable(vouched, name.as_ref()))
    }

    /// Whether a field of that name goes on as it is, whatever would become of a client's.
    #[must_use]
    pub fn covers(&self, name: impl AsRef<[u8]>) -> bool {
        let mut names = self.0.iter().flat_map(|names| names.iter());
        names.any(|vouched| vouched.as_bytes().eq_ignore_ascii_case(name.as_ref()))
    }
}

/// What is done with a field of that name, which is a token.
///
/// The length and a letter decide nearly always, before any name is compared.
#[must_use]
pub fn fate(name: impl AsRef<[u8]>) -> Fate {
    let bytes = name.as_ref();
    let first = bytes.first().map_or(0, |byte| byte | 0x20);
    match (bytes.len(), first) {
        (2, b't') if token_eq_ignore_case(bytes, b"te") => Fate::Hop,
        (3, b'v') if token_eq_ignore_case(bytes, b"via") => Fate::Via,
        (4, b'h') if token_eq_ignore_case(bytes, b"host") => Fate::Hop,
        // Never HTTP_PROXY: an environment variable of that name redirects requests of its program.
        (5, b'p') if token_eq_ignore_case(bytes, b"proxy") => Fate::House,
        (6, b'e') if token_eq_ignore_case(bytes, b"expect") => Fate::Hop,
        (7, b't' | b'u')
            if token_eq_ignore_case(bytes, b"trailer")
                || token_eq_ignore_case(bytes, b"upgrade") =>
        {
            Fate::Hop
        }
        (9, b'f' | b'x')
            if token_eq_ignore_case(bytes, b"forwarded")
                || token_eq_ignore_case(bytes, b"x-real-ip") =>
        {
            Fate::FromProxy
        }
        // What the hub says about a WebSocket to a back end that gets it as requests.
        (13, b'c') if token_eq_ignore_case(bytes, b"connection-id") => Fate::House,
        (5.., b'm') if token_eq_ignore_case(&bytes[..5], b"meta-") => Fate::House,
        (10, b'c' | b'k')
            if token_eq_ignore_case(bytes, b"connection")
                || token_eq_ignore_case(bytes, b"keep-alive") =>
        {
            Fate::Hop
        }
        (14, b'c' | b'h')
            if token_eq_ignore_case(bytes, b"content-length")
                || token_eq_ignore_case(bytes, b"http2-settings") =>
        {
            Fate::Hop
        }
        (16, b'p') if token_eq_ignore_case(bytes, b"proxy-connection") => Fate::Hop,
        (17, b't') if token_eq_ignore_case(bytes, b"transfer-encoding") => Fate::Hop,
        (_, b'x') => fate_of_x(bytes),
        // What the hub says to a back end.
        (_, b'g') if is_grip(bytes) => Fate::House,
        _ if bytes.contains(&b'_') => fate_of_underscored(bytes),
        _ => Fate::Pass,
    }
}

/// The same for names with an underscore: what its twin with hyphens may not do, it may not do either.
fn fate_of_underscored(name: &[u8]) -> Fate {
    let mut room = [0; NAME_MAX];
    let Some(twin) = room.get_mut(..name.len()) else {
        return Fate::House;
    };
    for (to, from) in twin.iter_mut().zip(name) {
        *to = if *from == b'_' { b'-' } else { *from };
    }
    // Some make one variable of both: then it would be the type of the body.
    let is_type = token_eq_ignore_case(twin, b"content-type");
    let is_plain = fate(&*twin) == Fate::Pass
        && !is_type
        && std::str::from_utf8(twin).is_ok_and(|twin| !is_word_of_proxy(twin));
    match is_plain {
        true => Fate::Underscored,
        false => Fate::House,
    }
}

/// The longest name that the parser takes.
const NAME_MAX: usize = 256;

/// The same for names that begin with an X.
fn fate_of_x(name: &[u8]) -> Fate {
    let is_in = |list: &[&str]| {
        let mut known = list.iter();
        known.any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    };
    if is_in(&X_FROM_PROXIES) {
        Fate::FromProxy
    } else if is_in(&X_OF_THE_HOUSE) {
        Fate::House
    } else if name.contains(&b'_') {
        fate_of_underscored(name)
    } else {
        Fate::Pass
    }
}

/// Whether a field is what proxies say of their clients' requests, by whatever name: those that are
/// [`Fate::FromProxy`], every other `X-Forwarded-*`, and what some call the client's scheme and target.
///
/// An application may make links and redirects of any of them, so that they do not go on from who
/// is not trusted ([`crate::Request::passes_forwarding_field`]).
#[must_use]
pub fn is_word_of_proxy(name: impl AsRef<[u8]>) -> bool {
    const FORWARDED: &[u8] = b"x-forwarded-";
    let name = name.as_ref();
    let is_in = |list: &[&str]| {
        let mut known = list.iter();
        known.any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    };
    match name.first().map_or(0, |byte| byte | 0x20) {
        // Rails reads it.
        b'c' => name.eq_ignore_ascii_case(b"client-ip"),
        b'f' => is_in(&["forwarded", "front-end-https"]),
        b'x' => {
            let start = name.get(..FORWARDED.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(FORWARDED))
                || is_in(&X_WORDS_OF_PROXIES)
        }
        _ => false,
    }
}

/// Whether a field of that name says who the client is, in a way that is not read here, but by
/// some applications.
#[must_use]
pub fn names_client_address(name: impl AsRef<[u8]>) -> bool {
    const NAMES: [&str; 3] = ["client-ip", "x-client-ip", "x-cluster-client-ip"];
    let name = name.as_ref();
    let is = |known: &&str| name.eq_ignore_ascii_case(known.as_bytes());
    NAMES.iter().any(is)
}

/// Those without `X-Forwarded-` in front.
const X_WORDS_OF_PROXIES: [&str; 10] = [
    "x-arr-ssl",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-method",
    "x-original-proto",
    "x-original-scheme",
    "x-original-uri",
    "x-real-ip",
    "x-scheme",
    "x-url-scheme",
];

const X_FROM_PROXIES: [&str; 7] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
];

/// Frameworks take the target of a request from two of them.
const X_OF_THE_HOUSE: [&str; 9] = [
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

    const LISTS: [(Fate, &[&str]); 6] = [
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
                "grip-",
                "grip-feature",
                "grip-hold",
                "grip-sig",
                "grip_sig",
                "proxy",
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
            Fate::Underscored,
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
    fn every_name_has_its_fate_in_any_case() {
        for (expected, names) in LISTS {
            for name in names {
                assert_eq!(fate(name), expected, "{name}");
                assert_eq!(fate(name.to_ascii_uppercase()), expected, "{name}");
            }
        }
    }

    #[test]
    fn every_word_of_a_proxy_is_known_as_one() {
        for (fate, names) in LISTS {
            // A proxy passes that one on all the same.
            for name in names.iter().filter(|name| **name != "x-forwarded-fox") {
                assert_eq!(is_word_of_proxy(name), fate == Fate::FromProxy, "{name}");
            }
        }
        for name in [
            "X-Forwarded-Fox",
            "x-forwarded-",
            "X-Scheme",
            "Front-End-HTTPS",
            "Client-IP",
            "X-Client-IP",
        ] {
            assert!(is_word_of_proxy(name), "{name}");
        }
        for name in ["x-forwarded", "x-forwards-to", "fore", "x-schema"] {
            assert!(!is_word_of_proxy(name), "{name}");
        }
    }

    #[test]
    fn rules_vouch_for_their_names_in_any_case_but_not_for_the_hop() {
        let names = ["X-Real-IP", "a_b", "Accept", "Host", "http2-settings"];
        let vouched = Vouched::new(names.map(str::to_owned));
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
        let more = vouched.and(["Grip-Sig", "TE"].map(str::to_owned));
        for name in ["x-real-ip", "grip-sig"] {
            assert!(more.covers(name), "{name}");
        }
        assert!(!more.covers("te") && !vouched.covers("grip-sig"));
        assert!(Vouched::new(["Host".to_owned()]).is_empty());
        assert!(!Vouched::default().covers("accept"));
    }

    #[test]
    fn a_twin_of_what_a_rule_says_is_known_as_one() {
        let vouched = Vouched::new(["X-User".to_owned()]);
        for (name, expected) in [
            ("x-user", true),
            ("X_User", true),
            ("x_user_", false),
            ("xuser", false),
        ] {
            assert_eq!(vouched.covers_variable(name), expected, "{name}");
        }
        assert!(!vouched.covers("x_user"));
    }

    #[test]
    fn what_a_front_end_of_the_house_says_is_believed_but_for_what_nobody_may() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Start: t=1\r\nGrip-Sig: x\r\nProxy: y\r\nAccept: z\r\nVia: v\r\n\r\n";
        let Ok(ParseProgress::Complete((head, _))) =
            parse_head(text.as_bytes(), &HeadLimits::default())
        else {
            panic!("it is a head");
        };
        let said = Vouched::default().and_of_front(&head);
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
    fn an_application_gets_no_word_of_a_proxy_as_it_came() {
        for (fate, expected) in [
            (Fate::Pass, true),
            (Fate::Via, true),
            (Fate::FromProxy, false),
            (Fate::Hop, false),
            (Fate::House, false),
            (Fate::Underscored, false),
        ] {
            assert_eq!(fate.reaches_application(), expected, "{fate:?}");
        }
    }
}
