//! The name that a certificate is for: a DNS name, a wildcard or an IP address, checked once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A name in its canonical form: lower case, without a final dot; IP addresses as the standard
/// library writes them. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateName {
    text: Arc<str>,
    ip: Option<IpAddr>,
}

/// Why a text is no name for a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty or longer than 253 bytes (RFC 1035 §2.3.4).
    #[error("a name has 1 to 253 bytes")]
    Length,
    /// A label is empty, longer than 63 bytes, or begins or ends with a hyphen.
    #[error("each label of a name has 1 to 63 bytes and no hyphen at its ends")]
    Label,
    /// A byte that no host name has. International names are written in their `xn--` form.
    #[error("a name consists of letters, digits, hyphens and dots (international names: `xn--`)")]
    Character,
    /// `*` stands elsewhere than as the whole first label in front of two others.
    #[error("a wildcard is the whole first label, as in `*.example.com`")]
    Wildcard,
}

impl CertificateName {
    /// Parses a DNS name, a wildcard such as `*.example.com`, or an IP address.
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if let Ok(ip) = bare.unwrap_or(text).parse::<IpAddr>() {
            let text = ip.to_string().into();
            return Ok(Self { text, ip: Some(ip) });
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() || name.len() > 253 {
            return Err(NameError::Length);
        }
        let host = name.strip_prefix("*.").unwrap_or(&name);
        if host.contains('*') || (host.len() != name.len() && !host.contains('.')) {
            return Err(NameError::Wildcard);
        }
        host.split('.').try_for_each(check_label)?;
        Ok(Self {
            text: name.into(),
            ip: None,
        })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it stands for all names with one more label.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.text.starts_with("*.")
    }

    /// The address, if it is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// Whether public certificate authorities may issue for it: no single label, no reserved
    /// domain (RFC 2606, RFC 6762, RFC 8375), no private address. A private one may issue for any.
    #[must_use]
    pub fn is_public(&self) -> bool {
        match self.ip {
            Some(IpAddr::V4(ip)) => is_public_v4(ip),
            Some(IpAddr::V6(ip)) => is_public_v6(ip),
            None => {
                let mut labels = self.domain().rsplit('.');
                let top = labels.next().unwrap_or_default();
                labels.next().is_some()
                    && !RESERVED_TOP_LEVELS.contains(&top)
                    && !self.domain().ends_with(".home.arpa")
            }
        }
    }

    /// The domain that the authority validates: a wildcard's without `*.` (RFC 8555 §7.1.3).
    pub(crate) fn domain(&self) -> &str {
        self.text.strip_prefix("*.").unwrap_or(&self.text)
    }

    /// The server name of a TLS-ALPN-01 validation: for addresses the reverse name (RFC 8738 §6).
    pub(crate) fn validation_server_name(&self) -> String {
        match self.ip {
            None => self.domain().to_owned(),
            Some(IpAddr::V4(ip)) => {
                let [a, b, c, d] = ip.octets();
                format!("{d}.{c}.{b}.{a}.in-addr.arpa")
            }
            Some(IpAddr::V6(ip)) => {
                let nibbles = ip.octets().into_iter().rev();
                let nibbles = nibbles.map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
                nibbles.collect::<String>() + "ip6.arpa"
            }
        }
    }
}

fn check_label(label: &str) -> Result<(), NameError> {
    let is_sized = (1..=63).contains(&label.len());
    if !is_sized || label.starts_with('-') || label.ends_with('-') {
        return Err(NameError::Label);
    }
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if label.bytes().all(is_host_byte) {
        Ok(())
    } else {
        Err(NameError::Character)
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_unspecified()
        || ip.is_documentation()
        || ip.is_multicast()
        || ip.is_broadcast()
        || is_shared)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    // Global unicast is 2000::/3; 2001:db8::/32 is for documents.
    let [first, second, ..] = ip.segments();
    first & 0xe000 == 0x2000 && (first, second) != (0x2001, 0xdb8)
}

const RESERVED_TOP_LEVELS: [&str; 7] = [
    "localhost",
    "local",
    "internal",
    "invalid",
    "test",
    "example",
    "onion",
];

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, NameError>) {
        let parsed = CertificateName::parse(text);
        assert_eq!(
            parsed.as_ref().map(CertificateName::as_str).map_err(|e| *e),
            expected
        );
    }

    #[test]
    fn names_are_canonical_or_refused() {
        check("Example.COM.", Ok("example.com"));
        check("*.example.com", Ok("*.example.com"));
        check("xn--bcher-kva.example", Ok("xn--bcher-kva.example"));
        check("[2001:DB8:0::1]", Ok("2001:db8::1"));
        check("192.0.2.1", Ok("192.0.2.1"));
        check("localhost", Ok("localhost"));
        check("", Err(NameError::Length));
        check(&"a.".repeat(140), Err(NameError::Length));
        check("a..b", Err(NameError::Label));
        check("-a.example", Err(NameError::Label));
        check(
            &format!("{}.example", "a".repeat(64)),
            Err(NameError::Label),
        );
        check("a_b.example", Err(NameError::Character));
        check("bücher.example", Err(NameError::Character));
        check("../etc/passwd", Err(NameError::Label));
        check("a/b.example", Err(NameError::Character));
        check("a.*.example", Err(NameError::Wildcard));
        check("*.com", Err(NameError::Wildcard));
        check("*", Err(NameError::Wildcard));
    }

    #[test]
    fn private_names_are_no_names_of_a_public_authority() {
        let public = ["example.com", "*.example.com", "8.8.8.8", "2606:4700::1"];
        let private = [
            "localhost",
            "a.localhost",
            "printer.local",
            "shop.test",
            "10.0.0.1",
            "127.0.0.1",
            "192.0.2.1",
            "100.64.0.1",
            "::1",
            "fd00::1",
            "2001:db8::1",
            "nas.home.arpa",
        ];
        for name in public {
            assert!(CertificateName::parse(name).unwrap().is_public(), "{name}");
        }
        for name in private {
            assert!(!CertificateName::parse(name).unwrap().is_public(), "{name}");
        }
    }

    #[test]
    fn addresses_are_validated_under_their_reverse_name() {
        let server_name = |text| {
            CertificateName::parse(text)
                .unwrap()
                .validation_server_name()
        };
        assert_eq!(server_name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        assert_eq!(
            server_name("2001:db8::1"),
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"
        );
        assert_eq!(server_name("*.example.com"), "example.com");
    }
}
