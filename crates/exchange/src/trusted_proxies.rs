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
use std::str::FromStr;

use penstock_sys::net::PeerAddress;

/// A block of addresses: `10.0.0.0/8`, `fd00::/8` or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_len: u8,
}

impl IpNetwork {
    /// Whether `address` is in the block. An IPv4 address mapped into IPv6 is that IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(block), IpAddr::V4(one)) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix_len))
                    .unwrap_or(0);
                (block.to_bits() ^ one.to_bits()) & mask == 0
            }
            (IpAddr::V6(block), IpAddr::V6(one)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix_len))
                    .unwrap_or(0);
                (block.to_bits() ^ one.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl FromStr for IpNetwork {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => most,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| ())?
            }
            Some(_) => return Err(()),
        };
        if prefix > most {
            return Err(());
        }
        Ok(Self {
            address,
            prefix_len: prefix,
        })
    }
}

impl std::fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// The trusted proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<IpNetwork>,
    trusts_unix: bool,
    is_configured: bool,
    client_field: Option<Box<str>>,
}

impl Default for TrustedProxies {
    /// This machine: loopback and Unix sockets.
    fn default() -> Self {
        Self {
            networks: vec![
                IpNetwork {
                    address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)),
                    prefix_len: 8,
                },
                IpNetwork {
                    address: IpAddr::V6(Ipv6Addr::LOCALHOST),
                    prefix_len: 128,
                },
            ],
            trusts_unix: true,
            is_configured: false,
            client_field: None,
        }
    }
}

impl TrustedProxies {
    /// Trusts these networks, which an operator has listed, and peers on Unix sockets if `unix`.
    #[must_use]
    pub fn new(networks: Vec<IpNetwork>, unix: bool) -> Self {
        Self {
            networks,
            trusts_unix: unix,
            is_configured: true,
            client_field: None,
        }
    }

    /// The same, with the one field that names the client; `None` for the usual ones.
    #[must_use]
    pub fn with_client_field(self, name: Option<&str>) -> Self {
        Self {
            client_field: name.map(Into::into),
            ..self
        }
    }

    /// The field that alone names the client, if one is set.
    #[must_use]
    pub fn client_field(&self) -> Option<&str> {
        self.client_field.as_deref()
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
            client_field: None,
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

    /// The same by address.
    #[must_use]
    pub fn covers_ip(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
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
            let network: IpNetwork = block.parse().unwrap();
            assert_eq!(
                network.contains(address.parse().unwrap()),
                expected,
                "{block} {address}"
            );
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
            assert_eq!(text.parse::<IpNetwork>(), Err(()), "{text}");
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
