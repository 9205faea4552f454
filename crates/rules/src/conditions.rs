//! Conditions on requests, compiled: method, host, path, fields, parameters, cookies, client, TLS.
//!
//! Compiled once from the `match` tables of the configuration, evaluated by the router of `edge`
//! for the routes of a request's path alone.
//!
//! # Invariants
//! - Paths are those that handlers get, and clients those that trusted proxies name.
//! - A condition that cannot be told (a client on a Unix socket) does not hold, nor does its list.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use penstock_config::{
    Conditions, HostPattern, ListenAddr, NamedCondition, PathPattern, ValuePattern,
};
use penstock_exchange::{AddressSet, ClientCertificate, ClientVerification, ListenerInfo, TlsInfo};
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
    /// The listener of its connection.
    pub listener: &'a ListenerInfo,
    /// The TLS session of its connection.
    pub tls: Option<&'a TlsInfo>,
}

/// Conditions that must hold together: a check for each that the table has, so that a request pays
/// for no other.
#[derive(Debug, Default)]
pub struct RequestConditions {
    checks: Box<[Check]>,
}

/// One condition; a list holds if one of its items does.
#[derive(Debug)]
enum Check {
    Method(Box<[Box<str>]>),
    Protocol(Box<[Version]>),
    Host(Box<[HostPattern]>),
    Path(Box<[PathPattern]>),
    Header(Box<str>, ValuePattern),
    Cookie(Box<str>, ValuePattern),
    Parameter(Box<str>, ValuePattern),
    Scheme(&'static str),
    Client(AddressSet),
    Listener(Box<[ListenAddr]>),
    /// Whether there is a verified certificate of the client.
    Certificate(bool),
    Fingerprint(Box<[Box<str>]>),
    /// Conditions of the file.
    Named(Arc<RequestConditions>),
    /// None of them together.
    Not(Arc<RequestConditions>),
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
            listeners,
            scheme,
            protocols,
            client_certificate,
            client_fingerprints,
            named: names,
            not,
        } = table;
        // What costs least comes first.
        let mut checks = Vec::new();
        if !methods.is_empty() {
            let methods = methods.iter().map(|it| it.as_str().into());
            checks.push(Check::Method(methods.collect()));
        }
        if !protocols.is_empty() {
            let versions = protocols.iter().map(|text| version(text));
            checks.push(Check::Protocol(versions.collect()));
        }
        checks.extend(scheme.map(|scheme| Check::Scheme(scheme.as_str())));
        if !listeners.is_empty() {
            checks.push(Check::Listener(listeners.iter().cloned().collect()));
        }
        checks.extend(client_certificate.map(Check::Certificate));
        if !clients.is_empty() {
            checks.push(Check::Client(AddressSet::parse(clients)?));
        }
        if !hosts.is_empty() {
            checks.push(Check::Host(hosts.iter().cloned().collect()));
        }
        if !paths.is_empty() {
            checks.push(Check::Path(paths.iter().cloned().collect()));
        }
        let pairs = [
            (headers, Check::Header as fn(_, _) -> _),
            (cookies, Check::Cookie),
            (query, Check::Parameter),
        ];
        for (values, check) in pairs {
            let values = values.iter();
            checks.extend(values.map(|(name, value)| check(name.as_str().into(), value.clone())));
        }
        if !client_fingerprints.is_empty() {
            let known = client_fingerprints.iter();
            let known = known.map(|text| bare_fingerprint(text)).collect();
            checks.push(Check::Fingerprint(known));
        }
        for name in names {
            let (conditions, is_negated) = named.get(name)?;
            checks.push(match is_negated {
                false => Check::Named(conditions),
                true => Check::Not(conditions),
            });
        }
        if let Some(not) = not {
            checks.push(Check::Not(Arc::new(Self::compile(not, named)?)));
        }
        Ok(Self {
            checks: checks.into(),
        })
    }

    /// Whether a request for `path` fulfils them.
    #[must_use]
    pub fn match_request(&self, request: &RequestFacts<'_>, path: &[u8]) -> bool {
        self.checks.iter().all(|check| check.holds(request, path))
    }
}

impl Check {
    fn holds(&self, request: &RequestFacts<'_>, path: &[u8]) -> bool {
        let head = request.head;
        match self {
            Self::Method(methods) => methods.iter().any(|it| **it == *head.method_str()),
            Self::Protocol(versions) => versions.contains(&head.version()),
            Self::Host(hosts) => {
                let asked = strip_port(head.host());
                hosts.iter().any(|host| host.matches(asked))
            }
            Self::Path(patterns) => patterns.iter().any(|it| it.matches(path)),
            Self::Header(name, expected) => {
                let mut values = head.field_values(name);
                values.any(|value| expected.matches(value))
            }
            Self::Cookie(name, expected) => {
                let mut cookies = head.cookies();
                cookies.any(|(found, value)| found == name.as_bytes() && expected.matches(value))
            }
            Self::Parameter(name, expected) => {
                let query = head.target_path_query().split_once('?');
                let query = query.map_or("", |(_, query)| query);
                form_urlencoded::parse(query.as_bytes())
                    .any(|(found, value)| *found == **name && expected.matches(value.as_bytes()))
            }
            Self::Scheme(scheme) => *scheme == request.scheme,
            Self::Client(set) => set.covers(request.client),
            Self::Listener(listeners) => {
                listeners.iter().any(|it| is_listener(it, request.listener))
            }
            Self::Certificate(expected) => certificate(request).is_some() == *expected,
            Self::Fingerprint(known) => {
                certificate(request).is_some_and(|it| known.contains(&it.fingerprint))
            }
            Self::Named(conditions) => conditions.match_request(request, path),
            Self::Not(conditions) => !conditions.match_request(request, path),
        }
    }
}

/// Whether an address of the configuration is that of a listener, whose name has the address that
/// was bound for it.
fn is_listener(configured: &ListenAddr, listener: &ListenerInfo) -> bool {
    let name = &*listener.name;
    match configured {
        ListenAddr::Unix(path) => name.strip_prefix("unix:").map(Path::new) == Some(path),
        ListenAddr::Port(_) | ListenAddr::Tcp(_) => {
            let address = name.split_once("://").map_or(name, |(_, address)| address);
            let address = address.strip_prefix('*').unwrap_or(address);
            address
                .parse()
                .is_ok_and(|real| configured.is_bound_as(&real))
        }
    }
}

/// The verified certificate of the client.
fn certificate<'r>(request: &RequestFacts<'r>) -> Option<&'r ClientCertificate> {
    match request.tls.map(|tls| &tls.client) {
        Some(ClientVerification::Verified(certificate)) => Some(certificate),
        _ => None,
    }
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
