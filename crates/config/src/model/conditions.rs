//! What requests a route or a rule is for, beside their path: the `match` tables and
//! `[conditions.NAME]`.

use std::collections::BTreeMap;

use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::options::{SectionDoc, SharedKeys};
use crate::values::{HostPattern, ListenAddr, PathPattern, ValuePattern};

section! {
    /// Conditions on a request: each key that is there must hold, and of a list one item. In
    /// `header`, `query` and `cookie` a value matches as a whole; `*` stands for anything, and
    /// `~` in front makes it a regular expression (`~*` in any case).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Conditions
    in "sites.routes.match", "match = { ... } in [[sites.routes]]", "" {
        /// Methods, in capitals.
        "method" => methods: Vec<String> = Vec::new(), Texts(METHOD_EXPECTED),
            default "any", example r#"["GET", "HEAD"]"#, by items(crate::conditions::is_method);
        /// Hosts, without their port.
        "host" => hosts: Vec<HostPattern> = Vec::new(), Texts(SITE_HOST), default "any",
            example r#"["www.example.com"]"#, by hand;
        /// Paths, as a route has them; `~` begins a regular expression.
        "path" => paths: Vec<PathPattern> = Vec::new(), Texts(CONDITION_PATH), default "any",
            example r#"["/health", "*.php", "~^/v[0-9]+/"]"#, by hand;
        /// Fields of the header: all of these. Of several with one name, one must match.
        "header" => headers: BTreeMap<String, ValuePattern> = BTreeMap::new(), StringMap,
            shows "{}", example r#"{ X-Beta = "1" }"#, by hand;
        /// Parameters of the query, decoded: all of these.
        query: BTreeMap<String, ValuePattern> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ preview = "*" }"#, by hand;
        /// Cookies: all of these.
        "cookie" => cookies: BTreeMap<String, ValuePattern> = BTreeMap::new(), StringMap,
            shows "{}", example r#"{ group = "beta" }"#, by hand;
        /// Addresses of clients, as trusted proxies tell them.
        "client" => clients: Vec<String> = Vec::new(), Texts(TRUSTED_NETWORK),
            default "any", example r#"["10.0.0.0/8"]"#, by items(crate::address::is_network_or_unix);
        /// The scheme that the client used.
        scheme: Option<RequestScheme> = None, Choice(RequestScheme::WORDS), default "either",
            example r#""https""#;
        /// Listeners that the request came by, as `server.listen` has them; not those that
        /// `--listen` adds.
        "listener" => listeners: Vec<ListenAddr> = Vec::new(), Texts(LISTEN_ADDRESS),
            default "any", example r#"["127.0.0.1:8080"]"#, by hand;
        /// Versions of HTTP.
        "protocol" => protocols: Vec<String> = Vec::new(), Texts(PROTOCOL_EXPECTED),
            default "any", example r#"["HTTP/1.0"]"#, by items(crate::conditions::is_protocol);
        /// Whether the client has shown a certificate that its site accepts.
        client_certificate: Option<bool> = None, Bool, default "either";
        /// SHA-256 fingerprints of such certificates.
        "client_fingerprint" => client_fingerprints: Vec<String> = Vec::new(), Texts(FINGERPRINT),
            default "any", example r#"["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]"#,
            by items(crate::upstream::is_fingerprint);
        /// Names of `[conditions.NAME]` tables, all of which must hold, or not hold after an
        /// exclamation mark.
        named: Vec<NamedCondition> = Vec::new(), Texts(CONDITION_NAME), shows "[]",
            example r#"["office"]"#, by hand;
        /// Conditions that must not hold together.
        not: Option<Box<Conditions>> = None, Table("sites.routes.match.not"), default "none",
            example r#"{ path = ["/health"] }"#, by hand;
    }
}

choice! {
    /// The scheme of a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RequestScheme {
        /// Without TLS.
        Http = "http",
        /// With TLS.
        Https = "https",
    }
}

/// A condition of the file, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCondition {
    /// The name.
    pub name: String,
    /// Whether it must not hold.
    pub is_negated: bool,
}

impl Conditions {
    /// Whether every request fulfils them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

pub(crate) const CONDITIONS_NOT: SectionDoc = SectionDoc {
    name: "sites.routes.match.not",
    heading: "not = { ... } in match of [[sites.routes]]",
    example: "",
    description: "Conditions that must not hold together.",
    shared_keys: Some(SharedKeys {
        section: "sites.routes.match",
        except: &[("not", "what is not not, is")],
    }),
    options: &[],
};

pub(crate) const NAMED_CONDITIONS: SectionDoc = SectionDoc {
    name: "conditions.NAME",
    heading: "[conditions.NAME]",
    example: "# [conditions.office]",
    description: "Conditions with a name, for several routes and rules.",
    shared_keys: Some(SharedKeys {
        section: "sites.routes.match",
        except: &[("named", "conditions with a name do not name others")],
    }),
    options: &[],
};
