//! Proxies whose forwarding headers are trusted.
//!
//! `server.trusted_proxies` as a list that `edge` puts into each request. `edge` checks it before
//! it reads the headers of a proxy (`forwarded`), `apps` and `proxy` before they pass such fields
//! on. Loopback and Unix peers are trusted unless the list is given.
//!
//! # Invariants
//! - Nothing of these fields counts from an untrusted peer.
//! - Host, port and prefix count only from proxies that the operator has listed. A proxy that is
//!   trusted by default may pass on such fields as its client made them up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use penstock_sys::net::PeerAddress;

use crate::AddressSet;

/// The trusted proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies {
    addresses: AddressSet,
    is_configured: bool,
    client_address_field: Option<Box<str>>,
}

impl Default for TrustedProxies {
    /// This machine: loopback and Unix sockets.
    fn default() -> Self {
        Self {
            addresses: AddressSet::new(
                vec![
                    Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 8).into(),
                    Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
                ],
                true,
            ),
            is_configured: false,
            client_address_field: None,
        }
    }
}

impl From<AddressSet> for TrustedProxies {
    /// Trusts these addresses, which an operator has listed.
    fn from(addresses: AddressSet) -> Self {
        Self {
            addresses,
            is_configured: true,
            client_address_field: None,
        }
    }
}

impl TrustedProxies {
    /// Trusts these networks, which an operator has listed, and peers on Unix sockets if `unix`.
    #[must_use]
    pub fn new(networks: Vec<IpNet>, unix: bool) -> Self {
        AddressSet::new(networks, unix).into()
    }

    /// Trusts no peer.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Vec::new(), false)
    }

    /// The same, with the one field that names the client; `None` for the usual ones.
    #[must_use]
    pub fn with_client_address_field(self, name: Option<&str>) -> Self {
        Self {
            client_address_field: name.map(Into::into),
            ..self
        }
    }

    /// The field that alone names the client, if one is set.
    #[must_use]
    pub fn client_field(&self) -> Option<&str> {
        self.client_address_field.as_deref()
    }

    /// Whether host, port and prefix of proxies count, besides address and scheme.
    #[must_use]
    pub fn accepts_forwarded_host(&self) -> bool {
        self.is_configured
    }

    /// Whether a peer is trusted.
    #[must_use]
    pub fn covers(&self, peer: PeerAddress) -> bool {
        self.addresses.covers(peer)
    }

    /// The same by address.
    #[must_use]
    pub fn covers_ip(&self, address: IpAddr) -> bool {
        self.addresses.covers_ip(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_trusted_by_default() {
        let trust = TrustedProxies::default();
        let tcp = |text: &str| PeerAddress::Tcp(text.parse().unwrap());
        assert!(trust.covers(tcp("127.0.0.1:80")) && trust.covers(tcp("[::1]:80")));
        assert!(trust.covers(PeerAddress::Unix));
        assert!(!trust.covers(tcp("192.0.2.1:80")));
        assert!(!trust.accepts_forwarded_host());
        assert!(
            TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()], true)
                .accepts_forwarded_host()
        );
    }
}
