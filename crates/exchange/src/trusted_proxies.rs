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

/// Parses a block of addresses: `10.0.0.0/8`, `fd00::/8` or one address.
#[must_use]
pub fn parse_network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

/// The trusted proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    trusts_unix: bool,
    is_configured: bool,
    client_address_field: Option<Box<str>>,
}

impl Default for TrustedProxies {
    /// This machine: loopback and Unix sockets.
    fn default() -> Self {
        Self {
            networks: vec![
                Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 8).into(),
                Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
            ],
            trusts_unix: true,
            is_configured: false,
            client_address_field: None,
        }
    }
}

impl TrustedProxies {
    /// Trusts these networks, which an operator has listed, and peers on Unix sockets if `unix`.
    #[must_use]
    pub fn new(networks: Vec<IpNet>, unix: bool) -> Self {
        Self {
            networks,
            trusts_unix: unix,
            is_configured: true,
            client_address_field: None,
        }
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

    /// Trusts no peer.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            networks: Vec::new(),
            trusts_unix: false,
            is_configured: true,
            client_address_field: None,
        }
    }

    /// Whether a peer is trusted.
    #[must_use]
    pub fn covers(&self, peer: PeerAddress) -> bool {
        match peer {
            PeerAddress::Tcp(address) => self.covers_ip(address.ip()),
            PeerAddress::Unix => self.trusts_unix,
        }
    }

    /// The same by address. An IPv4 address mapped into IPv6 is that IPv4 address.
    #[must_use]
    pub fn covers_ip(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks
            .iter()
            .any(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_its_addresses_and_no_others() {
        for (block, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "2001:db8::1", true),
        ] {
            let trust = TrustedProxies::new(vec![parse_network(block).unwrap()], false);
            let is_in = trust.covers_ip(address.parse().unwrap());
            assert_eq!(is_in, expected, "{block} {address}");
        }
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "localhost",
        ] {
            assert_eq!(parse_network(text), None, "{text}");
        }
    }

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
