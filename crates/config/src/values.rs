//! Configuration values with a grammar of their own: addresses, hosts, paths.
//!
//! `parse` and the command line parse them (`FromStr`); the router matches them. Paths of routes have
//! a file of their own.
//!
//! # Invariants
//!
//! - A value that exists is valid.
//! - Matching never allocates.
//! - `expand_into` returns a path that starts with `/` and holds no `..` that was not in the
//!   request's own path.

mod log_value;
mod path_pattern;
mod template;
mod try_fallback;
mod value_pattern;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) use log_value::LOG_VALUES;
pub use log_value::{LogPart, LogTemplate, LogValue, LogWord};
pub use path_pattern::{PathPattern, PathRegex};
pub(crate) use template::{PLACEHOLDER_EXPECTED, UnknownPlaceholder};
pub use template::{Placeholder, Template, TemplatePart};
pub use try_fallback::{FallbackPart, TryFallback};
pub use value_pattern::ValuePattern;

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddr {
    /// A TCP address; port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A TCP port on every address of the machine, IPv6 and IPv4; 0 lets the kernel choose.
    Port(u16),
    /// A Unix socket's path.
    Unix(PathBuf),
}

/// The text is not a listen address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {}", ListenAddr::EXPECTED)]
pub struct InvalidListenAddr;

impl ListenAddr {
    /// The expected forms, for messages.
    pub const EXPECTED: &'static str = "an address such as \"127.0.0.1:8080\", \":8080\", \"[::1]:8080\" or \"unix:/run/site.sock\"";

    /// As a configuration has it: `127.0.0.1:8080`, `:8080`, `unix:/run/site.sock`.
    #[must_use]
    pub fn as_text(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Port(port) => format!(":{port}"),
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// Whether this is the address of a configuration whose listener has been bound as `bound`:
    /// port 0 stands for any.
    #[must_use]
    pub fn is_bound_as(&self, bound: &Self) -> bool {
        match (self, bound) {
            (Self::Tcp(own), Self::Tcp(real)) if own.port() == 0 => own.ip() == real.ip(),
            (Self::Port(0), Self::Port(_)) => true,
            _ => self == bound,
        }
    }

    /// A port on 127.0.0.1.
    pub fn loopback(port: u16) -> Self {
        Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// Whether the two cannot be bound at once: the same socket path, or the same port with a
    /// common address.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix(a), Self::Unix(b)) => a == b,
            (Self::Tcp(a), Self::Tcp(b)) => {
                let (ours, theirs) = (a.ip(), b.ip());
                let wide = ours.is_unspecified() || theirs.is_unspecified();
                let family = ours.is_ipv4() == theirs.is_ipv4();
                a.port() != 0 && a.port() == b.port() && family && (wide || ours == theirs)
            }
            (Self::Port(a), Self::Port(b)) => *a != 0 && a == b,
            (Self::Port(port), Self::Tcp(other)) | (Self::Tcp(other), Self::Port(port)) => {
                *port != 0 && *port == other.port()
            }
            _ => false,
        }
    }
}

impl FromStr for ListenAddr {
    type Err = InvalidListenAddr;

    /// Accepts `127.0.0.1:80`, `[::1]:80`, `localhost:80`, `:80`, `80` and `unix:/path`.
    fn from_str(text: &str) -> Result<Self, InvalidListenAddr> {
        if let Some(path) = text.strip_prefix("unix:") {
            // The length is checked where the directory is known.
            return if !path.is_empty() && !path.contains('\0') {
                Ok(Self::Unix(PathBuf::from(path)))
            } else {
                Err(InvalidListenAddr)
            };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            return Ok(Self::loopback(port_number(port)?));
        }
        let bare = text.strip_prefix(':').unwrap_or(text);
        if let Ok(port) = port_number(bare) {
            return Ok(Self::Port(port));
        }
        text.parse().map(Self::Tcp).map_err(|_| InvalidListenAddr)
    }
}

/// `u16` would also accept `+80`.
fn port_number(text: &str) -> Result<u16, InvalidListenAddr> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        text.parse().map_err(|_| InvalidListenAddr)
    } else {
        Err(InvalidListenAddr)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "http://{addr}"),
            Self::Port(port) => write!(f, "http://*:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `sun_path` of `sockaddr_un` is 108 bytes with its final zero (unix(7)).
pub(crate) const MAX_UNIX_PATH_BYTES: usize = 107;

/// A host, or all hosts below a domain; in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host.
    Exact(String),
    /// Any host that ends in this; starts with a dot (`*.example.com` is `.example.com`).
    Subdomains(String),
}

impl HostPattern {
    /// Whether the pattern matches a host without its port, in any case (RFC 9110 §4.2.3).
    pub fn matches(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).as_bytes();
        match self {
            Self::Exact(name) => host.eq_ignore_ascii_case(name.as_bytes()),
            Self::Subdomains(suffix) => {
                let Some(start) = host.len().checked_sub(suffix.len()) else {
                    return false;
                };
                start > 0 && host[start..].eq_ignore_ascii_case(suffix.as_bytes())
            }
        }
    }

    /// Parses `example.com`, `*.example.com`, `127.0.0.1` or `[::1]`; `None` for other texts.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if let Some(rest) = text.strip_prefix('*') {
            let name = rest.strip_prefix('.')?;
            return is_host_name(name).then(|| Self::Subdomains(rest.to_owned()));
        }
        let v6 = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let valid = match v6 {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => is_host_name(&text),
        };
        valid.then_some(Self::Exact(text))
    }
}

/// Letters, digits, hyphens and (seen in the wild) underscores, in dotted labels of 1 to 63.
pub(crate) fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= 253 && text.split('.').all(label)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Subdomains(suffix) => write!(f, "*{suffix}"),
        }
    }
}

/// A candidate path of a file, relative to the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TryPattern {
    /// `prefix{path}suffix`; the prefix is empty or starts with `/` and does not end with it.
    Template {
        /// Before the path.
        prefix: String,
        /// After the path.
        suffix: String,
    },
    /// One file whatever the path, such as `/index.html`; starts with `/`.
    Fixed(String),
}

impl TryPattern {
    /// `{path}` alone.
    pub fn path() -> Self {
        Self::Template {
            prefix: String::new(),
            suffix: String::new(),
        }
    }

    /// `{path}`, then `{path}/index.html`.
    pub fn defaults() -> Vec<Self> {
        let after = |suffix: &str| Self::Template {
            prefix: String::new(),
            suffix: suffix.to_owned(),
        };
        vec![after(""), after("/index.html")]
    }

    /// Appends the candidate for a path that starts with `/`; joins with a single slash.
    pub fn expand_into(&self, path: &str, out: &mut String) {
        match self {
            Self::Fixed(file) => out.push_str(file),
            Self::Template { prefix, suffix } => {
                let doubled = suffix.starts_with('/') && path.ends_with('/');
                out.push_str(prefix);
                out.push_str(if doubled {
                    &path[..path.len() - 1]
                } else {
                    path
                });
                out.push_str(suffix);
            }
        }
    }

    /// Parses a text with at most one `{path}`; `None` if it has more, or leads out of the root.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let leads_out = text.split('/').any(|part| part == "..");
        if text.is_empty() || leads_out || text.contains('\0') {
            return None;
        }
        let Some((before, after)) = text.split_once("{path}") else {
            let fixed = !text.contains(['{', '}']) && !text.ends_with('/');
            return fixed.then(|| Self::Fixed(format!("/{}", text.trim_start_matches('/'))));
        };
        if before.contains(['{', '}']) || after.contains(['{', '}']) {
            return None;
        }
        let inner = before.trim_matches('/');
        let prefix = if inner.is_empty() {
            String::new()
        } else {
            format!("/{inner}")
        };
        Some(Self::Template {
            prefix,
            suffix: after.to_owned(),
        })
    }
}

impl fmt::Display for TryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template { prefix, suffix } => write!(f, "{prefix}{{path}}{suffix}"),
            Self::Fixed(file) => f.write_str(file),
        }
    }
}

#[cfg(test)]
mod tests;
