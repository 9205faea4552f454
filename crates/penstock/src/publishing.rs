//! How applications publish: the `GRIP_URL` and `PENSTOCK_PUBLISH_URL` in the environment of their
//! workers.
//!
//! `components` starts workers of applications with `grip` with them, and `hub_service` signs
//! requests to them with the key of the first. Libraries of GRIP sign their messages with that key;
//! all other programs send theirs to the second address, which has a token in it. The admin
//! interface accepts both, for the namespace of the key alone.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use penstock_config::{App, Config, Grip, Hub, ListenAddr, Secret};
use penstock_grip::PublishKeys;
use penstock_hub::Namespace;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const GRIP_URL_VAR: &str = "GRIP_URL";
const PUBLISH_URL_VAR: &str = "PENSTOCK_PUBLISH_URL";

/// The address and the keys by which applications publish.
#[derive(Debug, Clone)]
pub(crate) struct PublishSetup {
    pub(crate) keys: Arc<PublishKeys>,
    /// The admin interface's TCP address for processes of this machine.
    admin_address: Option<SocketAddr>,
}

impl PublishSetup {
    /// Uses the secret of the previous server, or a new one.
    pub(crate) fn new(
        secret: Option<[u8; 32]>,
        admin: Option<&ListenAddr>,
    ) -> Result<Self, String> {
        let keys = match secret {
            Some(secret) => PublishKeys::new(secret),
            None => PublishKeys::generate().map_err(|error| error.to_string())?,
        };
        Ok(Self {
            keys: Arc::new(keys),
            admin_address: admin.and_then(local_address),
        })
    }

    /// Adds the addresses to publish at to an application that may, unless its environment has
    /// them.
    pub(crate) fn with_publish_urls<'a>(&self, config: &Config, app: &'a App) -> Cow<'a, App> {
        let (Some(grip), Some(address)) = (app_grip(config, app), self.admin_address) else {
            return Cow::Borrowed(app);
        };
        let namespace = Namespace::new(&grip.namespace);
        let key = self.keys.publish_key(&namespace);
        let token = self.keys.publish_token(&namespace);
        let mut variables = (*app.env).clone();
        for (name, url) in [
            (
                GRIP_URL_VAR,
                grip_url(address, &namespace, &key, &config.hub),
            ),
            (
                PUBLISH_URL_VAR,
                format!("http://{address}/publish/?token={token}"),
            ),
        ] {
            variables.entry(name.to_owned()).or_insert(url);
        }
        let mut changed = app.clone();
        changed.env = variables.into();
        Cow::Owned(changed)
    }
}

/// Settings under which a library of GRIP finds no signature that it can verify, so that it streams
/// by itself and occupies workers, each with its place.
pub(crate) fn signature_warnings(config: &Config) -> Vec<String> {
    let has_address = config
        .server
        .admin
        .as_ref()
        .and_then(local_address)
        .is_some();
    let of_app = |app: &App| {
        app_grip(config, app)?;
        let own_url = app.env.get(GRIP_URL_VAR);
        let cause = match (own_url, &config.hub.grip_key) {
            (Some(url), None) if url.contains("key=") => {
                format!(
                    "its {GRIP_URL_VAR} has a key, and requests are signed with another: set \
                     hub.grip_key to that key, or leave {GRIP_URL_VAR} to the server"
                )
            }
            (None, _) if !has_address => format!(
                "its workers get no {GRIP_URL_VAR} and no {PUBLISH_URL_VAR}, since server.admin \
                 has no TCP address: set one"
            ),
            (None, Some(key)) if is_private_key(key.expose()) => format!(
                "the {GRIP_URL_VAR} of its workers does not verify what hub.grip_key signs, a \
                 private key: give the library the public key (GRIP_VERIFY_KEY of django-grip)"
            ),
            _ => return None,
        };
        Some(format!("application {}: {cause}", app.name))
    };
    let of_upstream = |name: &String| {
        format!(
            "upstream {name}: it has `grip`, and there is no hub.grip_key: set it to the key with \
             which the library of the upstream verifies Grip-Sig (`key` or `verify-key` of its \
             {GRIP_URL_VAR}), if it has one"
        )
    };
    let unsigned = (config.route_parts())
        .filter(|route| route.app.is_none() && config.hub.grip_key.is_none())
        .filter(|route| config.effective_grip(route).is_some())
        .filter_map(|route| route.upstream.clone());
    let unsigned: BTreeSet<_> = unsigned.map(|name| of_upstream(&name)).collect();
    const EFFECT: &str = "else such a library (django-grip, django-eventstream) finds no signature \
                          that it can verify, and streams by itself, which occupies its workers";
    let warnings = config.apps.values().filter_map(of_app).chain(unsigned);
    warnings.map(|text| format!("{text}; {EFFECT}")).collect()
}

/// Whether a `hub.grip_key` is in PEM form, not a secret.
fn is_private_key(key: &str) -> bool {
    key.trim_start().starts_with("-----BEGIN ")
}

/// An application's GRIP settings: those of its first route that has some.
fn app_grip(config: &Config, app: &App) -> Option<Grip> {
    config.route_parts().find_map(|route| {
        let is_own = route.app.as_deref() == Some(&*app.name);
        config.effective_grip(&route).filter(|_| is_own)
    })
}

/// The address by which a process of this machine reaches a listener.
fn local_address(admin: &ListenAddr) -> Option<SocketAddr> {
    let address = match admin {
        ListenAddr::Tcp(address) => *address,
        ListenAddr::Port(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, *port)),
        ListenAddr::Unix(_) => return None,
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Some(SocketAddr::new(ip, address.port()))
}

/// The URL for libraries of GRIP; where requests are signed with a common secret, with that to
/// verify them.
fn grip_url(address: SocketAddr, namespace: &Namespace, key: &str, hub: &Hub) -> String {
    let mut url = format!(
        "http://{address}?iss={}&key={}",
        namespace.name(),
        encode_value(key)
    );
    let secret = hub.grip_key.as_ref().map(Secret::expose);
    if let Some(secret) = secret.filter(|secret| !is_private_key(secret)) {
        let (issuer, secret) = (encode_value(&hub.grip_issuer), encode_value(secret));
        url.push_str(&format!("&verify-iss={issuer}&verify-key={secret}"));
    }
    url
}

/// A value of a query, without `+`, which some parsers read as a blank.
fn encode_value(value: &str) -> impl std::fmt::Display {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b':')
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~');
    utf8_percent_encode(value, RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_this_machine_reaches_the_admin_interface() {
        for (admin, expected) in [
            ("127.0.0.1:8090", Some("127.0.0.1:8090")),
            ("0.0.0.0:8090", Some("127.0.0.1:8090")),
            ("[::]:8090", Some("[::1]:8090")),
            ("10.0.0.5:9", Some("10.0.0.5:9")),
            (":8090", Some("127.0.0.1:8090")),
            ("unix:/run/admin.sock", None),
        ] {
            let found = local_address(&admin.parse().unwrap());
            assert_eq!(found, expected.map(|text| text.parse().unwrap()), "{admin}");
        }
    }

    #[test]
    fn a_url_says_namespace_and_keys() {
        let address = "[::1]:8090".parse().unwrap();
        let url = |hub: &Hub| grip_url(address, &Namespace::new("chat"), "base64:a+/b=", hub);
        let own = "http://[::1]:8090?iss=chat&key=base64:a%2B%2Fb%3D";
        assert_eq!(url(&Hub::default()), own);
        let with_key = |key: &str| Hub {
            grip_key: Some(key.into()),
            ..Hub::default()
        };
        assert_eq!(
            url(&with_key("a secret & more")),
            format!("{own}&verify-iss=penstock&verify-key=a%20secret%20%26%20more")
        );
        assert_eq!(url(&with_key("-----BEGIN PRIVATE KEY-----")), own);
    }
}
