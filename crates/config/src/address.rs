//! Where back ends listen, and which networks are trusted: text to address and back.
//!
//! Read by `upstream` and `server`, and by the admin interface, which adds servers at run time.
//!
//! # Invariants
//! - The displayed form reads back as the same address, and a host that is meant to be an address
//!   is never taken for a name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::findings::make_absolute;
use crate::model::ServerAddr;
use crate::values::{MAX_UNIX_PATH_BYTES, is_host_name};

/// The text is not the address of a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {}", ServerAddr::EXPECTED)]
pub struct InvalidServerAddr;

impl ServerAddr {
    /// What a message says was expected.
    pub const EXPECTED: &'static str = "an address such as \"127.0.0.1:3000\", \"[::1]:3000\", \"unix:/run/app.sock\", \"app.example:3000\" or \"srv:_http._tcp.app.example\"";
}

impl FromStr for ServerAddr {
    type Err = InvalidServerAddr;

    /// Accepts `127.0.0.1:80`, `[::1]:80`, `name.example:80`, `unix:/path` and `srv:name`. A
    /// relative path of a socket stays relative.
    fn from_str(text: &str) -> Result<Self, InvalidServerAddr> {
        if let Some(path) = text.strip_prefix("unix:") {
            let usable = !path.is_empty() && !path.contains('\0');
            let path = usable
                .then(|| PathBuf::from(path))
                .ok_or(InvalidServerAddr)?;
            return check_socket_path_length(Self::Unix(path)).ok_or(InvalidServerAddr);
        }
        if let Some(name) = text.strip_prefix("srv:") {
            return parse_dns_name(name).map(Self::Srv).ok_or(InvalidServerAddr);
        }
        let (host, port) = text.rsplit_once(':').ok_or(InvalidServerAddr)?;
        // `u16` would also take `+80`; nothing listens on port 0.
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port > 0);
        let port: u16 = port.ok_or(InvalidServerAddr)?;
        match text.parse::<SocketAddr>() {
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => parse_dns_name(host)
                .map(|host| Self::Name { host, port })
                .ok_or(InvalidServerAddr),
        }
    }
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
            Self::Srv(name) => write!(f, "srv:{name}"),
            Self::Joined(number) => write!(f, "joined:{number:016x}"),
        }
    }
}

/// The address that a text means in a file below `base`.
pub(crate) fn parse_server_addr(text: &str, base: &Path) -> Option<ServerAddr> {
    match text.parse().ok()? {
        ServerAddr::Unix(path) => {
            check_socket_path_length(ServerAddr::Unix(make_absolute(base, &path)))
        }
        address => Some(address),
    }
}

/// Whether it is what a `Host` field can say (RFC 9110 §7.2): `name`, `127.0.0.1` or `[::1]`, with
/// or without a port.
pub(crate) fn is_host(text: &str) -> bool {
    let port = |port: &str| {
        port.strip_prefix(':')
            .is_some_and(|digits| !digits.starts_with('+') && digits.parse::<u16>().is_ok())
    };
    if let Some(rest) = text.strip_prefix('[') {
        let Some((inner, rest)) = rest.split_once(']') else {
            return false;
        };
        return inner.parse::<std::net::Ipv6Addr>().is_ok() && (rest.is_empty() || port(rest));
    }
    let end = text.find(':').unwrap_or(text.len());
    is_host_name(&text[..end]) && (end == text.len() || port(&text[end..]))
}

/// Whether it is `unix`, an address, or a network in CIDR notation (RFC 4632 §3.1).
pub(crate) fn is_network_or_unix(text: &str) -> bool {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return text == "unix";
    };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    prefix.is_none_or(|prefix| {
        let digits = prefix.bytes().all(|b| b.is_ascii_digit());
        digits && prefix.parse::<u8>().is_ok_and(|prefix| prefix <= bits)
    })
}

/// A name in lower case. A name that ends in a number is a mistyped address.
fn parse_dns_name(text: &str) -> Option<String> {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let last = bare.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|b| b.is_ascii_digit());
    (is_host_name(bare) && !numeric).then(|| text.to_ascii_lowercase())
}

fn check_socket_path_length(address: ServerAddr) -> Option<ServerAddr> {
    match &address {
        ServerAddr::Unix(path) if path.as_os_str().len() > MAX_UNIX_PATH_BYTES => None,
        _ => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_addresses_of_back_ends() {
        let rows = [
            ("127.0.0.1:80", Some("127.0.0.1:80")),
            ("[::1]:80", Some("[::1]:80")),
            ("localhost:80", Some("localhost:80")),
            ("Name.Example:80", Some("name.example:80")),
            ("name.example.:80", Some("name.example.:80")),
            ("unix:/run/a.sock", Some("unix:/run/a.sock")),
            ("unix:a.sock", Some("unix:/base/a.sock")),
            (
                "srv:_http._tcp.Example.com",
                Some("srv:_http._tcp.example.com"),
            ),
            ("", None),
            ("80", None),
            (":80", None),
            ("127.0.0.1", None),
            ("127.0.0.1:0", None),
            ("127.0.0.1:65536", None),
            ("127.0.0.400:80", None),
            ("127.1:80", None),
            ("name:+80", None),
            ("name:", None),
            ("::1:80", None),
            ("http://name:80", None),
            ("a b:80", None),
            ("unix:", None),
            ("unix:a\0b", None),
            ("srv:", None),
            ("srv:name:80", None),
        ];
        for (text, expected) in rows {
            let address = parse_server_addr(text, Path::new("/base"));
            let shown = address.as_ref().map(ToString::to_string);
            assert_eq!(shown.as_deref(), expected, "{text:?}");
            let again = shown.and_then(|shown| shown.parse().ok());
            assert_eq!(again, address, "{text:?}");
        }
        assert!(matches!(
            "localhost:80".parse(),
            Ok(ServerAddr::Name { .. })
        ));
        let long = format!("unix:{}", "x".repeat(MAX_UNIX_PATH_BYTES));
        assert!(long.parse::<ServerAddr>().is_ok());
        assert_eq!(parse_server_addr(&long, Path::new("/base")), None);
    }

    #[test]
    fn reads_hosts_and_networks() {
        let hosts = [
            ("app.example", true),
            ("app.example:80", true),
            ("127.0.0.1:80", true),
            ("[::1]", true),
            ("[::1]:80", true),
            ("[::1", false),
            ("[::1]80", false),
            ("app:+80", false),
            ("app:", false),
            ("a b", false),
            ("", false),
            ("a\r\nX: y", false),
        ];
        for (text, expected) in hosts {
            assert_eq!(is_host(text), expected, "{text:?}");
        }
        let networks = [
            ("10.0.0.0/8", true),
            ("192.0.2.7", true),
            ("fd00::/8", true),
            ("::1", true),
            ("unix", true),
            ("0.0.0.0/0", true),
            ("10.0.0.0/33", false),
            ("10.0.0.0/", false),
            ("10.0.0.0/+8", false),
            ("fd00::/129", false),
            ("unix/8", false),
            ("localhost", false),
            ("", false),
        ];
        for (text, expected) in networks {
            assert_eq!(is_network_or_unix(text), expected, "{text:?}");
        }
    }
}
