//! Conditions on requests, compiled: method, host, path, fields, parameters, cookies, client, TLS.
//!
//! Compiled once from the `match` tables of the configuration, evaluated by the router of `edge`
//! for the routes of a request's path alone.
//!
//! # Invariants
//! - Paths are those that handlers get, and clients those that trusted proxies name.
//! - A condition that cannot be told (a client on a Unix socket) does not hold, nor does its list.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_config::{
    Conditions, HostPattern, NamedCondition, PathPattern, RequestScheme, ValuePattern,
};
use penstock_exchange::{AddressSet, ClientVerification, TlsInfo};
use penstock_http::{RequestHead, Version, strip_port};
use penstock_sys::net::PeerAddress;

/// A request, as far as conditions need it.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// Its head, as the client sent it.
    pub head: &'a RequestHead,
    /// Its client, as trusted proxies name it.
    pub client: PeerAddress,
    /// The scheme that the client used.
    pub scheme: &'static str,
    /// The TLS session of its connection.
    pub tls: Option<&'a TlsInfo>,
}

/// Conditions that must hold together.
#[derive(Debug, Default)]
pub struct RequestConditions {
    methods: Box<[Box<str>]>,
    hosts: Box<[HostPattern]>,
    paths: Box<[PathPattern]>,
    headers: Box<[(Box<str>, ValuePattern)]>,
    query: Box<[(Box<str>, ValuePattern)]>,
    cookies: Box<[(Box<str>, ValuePattern)]>,
    clients: Option<AddressSet>,
    scheme: Option<&'static str>,
    protocols: Box<[Version]>,
    has_client_certificate: Option<bool>,
    client_fingerprints: Box<[Box<str>]>,
    /// Conditions of the file, and whether they must not hold.
    named: Box<[(Arc<Self>, bool)]>,
    not: Option<Box<Self>>,
}

/// The conditions of a configuration that have a name.
#[derive(Debug, Default)]
pub struct ConditionSet(BTreeMap<String, Arc<RequestConditions>>);

impl ConditionSet {
    /// Compiles every `[conditions.NAME]` table.
    ///
    /// # Errors
    /// The key and value that the configuration should have refused.
    pub fn compile(tables: &BTreeMap<String, Conditions>) -> Result<Self, String> {
        let none = Self::default();
        let compiled = tables.iter().map(|(name, table)| {
            let conditions = RequestConditions::compile(table, &none)?;
            Ok((name.clone(), Arc::new(conditions)))
        });
        compiled.collect::<Result<_, String>>().map(Self)
    }

    fn get(&self, named: &NamedCondition) -> Result<(Arc<RequestConditions>, bool), String> {
        let found = self.0.get(&named.name);
        let found = found.ok_or_else(|| format!("there is no condition `{}`", named.name))?;
        Ok((Arc::clone(found), named.is_negated))
    }
}

impl RequestConditions {
    /// Compiles a table, whose names are of `named`.
    ///
    /// # Errors
    /// The key and value that the configuration should have refused.
    pub fn compile(table: &Conditions, named: &ConditionSet) -> Result<Self, String> {
        let Conditions {
            methods,
            hosts,
            paths,
            headers,
            query,
            cookies,
            clients,
            scheme,
            protocols,
            client_certificate,
            client_fingerprints,
            named: names,
            not,
        } = table;
        let pairs = |values: &BTreeMap<String, ValuePattern>| {
            let pair =
                |(name, value): (&String, &ValuePattern)| (name.as_str().into(), value.clone());
            values.iter().map(pair).collect()
        };
        Ok(Self {
            methods: methods.iter().map(|it| it.as_str().into()).collect(),
            hosts: hosts.iter().cloned().collect(),
            paths: paths.iter().cloned().collect(),
            headers: pairs(headers),
            query: pairs(query),
            cookies: pairs(cookies),
            clients: match clients.is_empty() {
                true => None,
                false => Some(AddressSet::parse(clients)?),
            },
            scheme: scheme.map(RequestScheme::as_str),
            protocols: protocols.iter().map(|text| version(text)).collect(),
            has_client_certificate: *client_certificate,
            client_fingerprints: client_fingerprints
                .iter()
                .map(|text| bare_fingerprint(text))
                .collect(),
            named: names
                .iter()
                .map(|name| named.get(name))
                .collect::<Result<_, _>>()?,
            not: match not {
                Some(not) => Some(Box::new(Self::compile(not, named)?)),
                None => None,
            },
        })
    }

    /// Whether a request for `path` fulfils them.
    #[must_use]
    pub fn match_request(&self, request: &RequestFacts<'_>, path: &[u8]) -> bool {
        self.match_request_line(request, path)
            && self.match_fields(request.head)
            && self.match_connection(request)
            && (self.named.iter())
                .all(|(named, is_negated)| named.match_request(request, path) != *is_negated)
            && (self.not.as_ref()).is_none_or(|not| !not.match_request(request, path))
    }

    fn match_request_line(&self, request: &RequestFacts<'_>, path: &[u8]) -> bool {
        let head = request.head;
        holds_for_any(&self.methods, |method| **method == *head.method_str())
            && holds_for_any(&self.protocols, |version| *version == head.version())
            && holds_for_any(&self.hosts, |host| host.matches(strip_port(head.host())))
            && holds_for_any(&self.paths, |pattern| pattern.matches(path))
    }

    fn match_fields(&self, head: &RequestHead) -> bool {
        let mut headers = self.headers.iter();
        let mut cookies = self.cookies.iter();
        headers
            .all(|(name, expected)| (head.field_values(name)).any(|value| expected.matches(value)))
            && cookies.all(|(name, expected)| {
                let mut named = head
                    .cookies()
                    .filter(|(cookie, _)| *cookie == name.as_bytes());
                named.any(|(_, value)| expected.matches(value))
            })
            && (self.query.is_empty() || self.match_query(head))
    }

    fn match_query(&self, head: &RequestHead) -> bool {
        let query = head.target_path_query().split_once('?');
        let query = query.map_or("", |(_, query)| query);
        self.query.iter().all(|(name, expected)| {
            form_urlencoded::parse(query.as_bytes())
                .any(|(found, value)| *found == **name && expected.matches(value.as_bytes()))
        })
    }

    fn match_connection(&self, request: &RequestFacts<'_>) -> bool {
        let is_client = |set: &AddressSet| set.covers(request.client);
        self.scheme.is_none_or(|scheme| scheme == request.scheme)
            && self.clients.as_ref().is_none_or(is_client)
            && self.match_certificate(request.tls)
    }

    fn match_certificate(&self, tls: Option<&TlsInfo>) -> bool {
        let certificate = match tls.map(|tls| &tls.client) {
            Some(ClientVerification::Verified(certificate)) => Some(certificate),
            _ => None,
        };
        (self.has_client_certificate).is_none_or(|expected| expected == certificate.is_some())
            && holds_for_any(&self.client_fingerprints, |expected| {
                certificate.is_some_and(|it| it.fingerprint == *expected)
            })
    }
}

/// Whether one of a list holds; a list that is not there holds.
fn holds_for_any<T>(list: &[T], holds: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(holds)
}

fn version(text: &str) -> Version {
    match text {
        "HTTP/1.0" => Version::Http10,
        _ => Version::Http11,
    }
}

/// As [`penstock_exchange::ClientCertificate`] has it.
fn bare_fingerprint(text: &str) -> Box<str> {
    text.replace(':', "").to_ascii_lowercase().into()
}

#[cfg(test)]
mod tests;
