//! Sets of clients: networks, and the peers on Unix sockets.
//!
//! Lists of the configuration such as `server.trusted_proxies` and `allow`.

use std::net::IpAddr;

use ipnet::IpNet;
use penstock_sys::net::PeerAddress;

/// A set of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressSet {
    /// The networks, each as its first address and its mask: a look at one is two instructions.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
    has_unix: bool,
}

impl AddressSet {
    /// These networks, and peers on Unix sockets if `has_unix`.
    #[must_use]
    pub fn new(networks: impl IntoIterator<Item = IpNet>, has_unix: bool) -> Self {
        let mut set = Self {
            v4: Vec::new(),
            v6: Vec::new(),
            has_unix,
        };
        for network in networks {
            match network {
                IpNet::V4(network) => {
                    let mask = network.netmask().to_bits();
                    set.v4.push((network.network().to_bits(), mask));
                }
                IpNet::V6(network) => {
                    let mask = network.netmask().to_bits();
                    set.v6.push((network.network().to_bits(), mask));
                }
            }
        }
        set
    }

    /// The set of a list: each item `unix`, an address, or a network such as `10.0.0.0/8`.
    ///
    /// # Errors
    /// The first item that is none of these.
    pub fn parse<T: AsRef<str>>(items: &[T]) -> Result<Self, String> {
        let (mut networks, mut has_unix) = (Vec::new(), false);
        for item in items {
            match item.as_ref() {
                "unix" => has_unix = true,
                text => networks
                    .push(parse_network(text).ok_or_else(|| format!("`{text}` is no network"))?),
            }
        }
        Ok(Self::new(networks, has_unix))
    }

    /// Whether a peer is in the set.
    #[must_use]
    pub fn covers(&self, peer: PeerAddress) -> bool {
        match peer {
            PeerAddress::Tcp(address) => self.covers_ip(address.ip()),
            PeerAddress::Unix => self.has_unix,
        }
    }

    /// The same by address. An IPv4 address mapped into IPv6 is that IPv4 address.
    #[must_use]
    pub fn covers_ip(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let address = address.to_bits();
                self.v4.iter().any(|(first, mask)| address & mask == *first)
            }
            IpAddr::V6(address) => {
                let address = address.to_bits();
                self.v6.iter().any(|(first, mask)| address & mask == *first)
            }
        }
    }
}

/// Parses a block of addresses: `10.0.0.0/8`, `fd00::/8` or one address.
#[must_use]
pub fn parse_network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
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
            // Bits behind the prefix say nothing.
            ("10.1.2.3/8", "10.9.9.9", true),
            ("2001:db8::7/32", "2001:db8:1::", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "2001:db8::1", true),
        ] {
            let set = AddressSet::parse(&[block]).unwrap();
            let is_in = set.covers_ip(address.parse().unwrap());
            assert_eq!(is_in, expected, "{block} {address}");
        }
    }

    #[test]
    fn peers_on_unix_sockets_are_named_by_a_word() {
        for (items, expected) in [(&["unix"][..], true), (&["::/0", "0.0.0.0/0"], false)] {
            let set = AddressSet::parse(items).unwrap();
            assert_eq!(set.covers(PeerAddress::Unix), expected, "{items:?}");
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
            assert!(AddressSet::parse(&["10.0.0.0/8", text]).is_err(), "{text}");
        }
    }
}
