//! How applications publish: the `GRIP_URL` in the environment of their workers.
//!
//! `components` starts workers of applications with `grip` with it, and `hub_service` signs
//! requests to them with its key. The admin interface accepts messages signed with such a key, for
//! its namespace alone.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use penstock_config::{App, Config, Grip, ListenAddr};
use penstock_grip::PublishKeys;
use penstock_hub::Namespace;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

const GRIP_URL_VAR: &str = "GRIP_URL";

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

    /// Adds the `GRIP_URL` to an application that may publish, unless its environment has one.
    pub(crate) fn with_grip_url<'a>(&self, config: &Config, app: &'a App) -> Cow<'a, App> {
        if app.env.contains_key(GRIP_URL_VAR) {
            return Cow::Borrowed(app);
        }
        let Some(grip) = app_grip(config, app) else {
            return Cow::Borrowed(app);
        };
        let Some(address) = self.admin_address else {
            log::info!(
                "{}: {GRIP_URL_VAR} is not set for its workers: server.admin has no TCP address",
                app.name
            );
            return Cow::Borrowed(app);
        };
        let mut changed = app.clone();
        let namespace = Namespace::new(&grip.namespace);
        let url = publish_url(address, &namespace, &self.keys.publish_key(&namespace));
        let mut variables = (*changed.env).clone();
        variables.insert(GRIP_URL_VAR.to_owned(), url);
        changed.env = variables.into();
        Cow::Owned(changed)
    }
}

/// An application's GRIP settings: those of its first route that has some.
fn app_grip(config: &Config, app: &App) -> Option<Grip> {
    let mut routes = config.sites.iter().flat_map(|site| &site.routes);
    routes.find_map(|route| {
        let is_own = route.app.as_deref() == Some(&*app.name);
        config.effective_grip(route).filter(|_| is_own)
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

/// The URL; its query avoids `+`, which some parsers read as a blank.
fn publish_url(address: SocketAddr, namespace: &Namespace, key: &str) -> String {
    const RESERVED: &AsciiSet = &CONTROLS.add(b'+').add(b'/').add(b'=');
    let key = utf8_percent_encode(key, RESERVED);
    format!("http://{address}?iss={}&key={key}", namespace.name())
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
    fn a_url_says_namespace_and_key() {
        let address = "[::1]:8090".parse().unwrap();
        let url = publish_url(address, &Namespace::new("chat"), "base64:a+/b=");
        assert_eq!(url, "http://[::1]:8090?iss=chat&key=base64:a%2B%2Fb%3D");
    }
}
