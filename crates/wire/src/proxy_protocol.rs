//! The PROXY protocol, versions 1 and 2 (HAProxy, "The PROXY protocol"): the client's address
//! before a connection's first byte.
//!
//! Listeners of `edge` read it from configured balancers; upstreams and TCP listeners write it.
//! [`parse_header`] gets everything received so far; the caller continues after the header.
//!
//! # Invariants
//!
//! - A header is bounded ([`MAX_HEADER_BYTES`]).
//! - Every deviation from the specification is an error, never the start of a request.

mod v1;
mod v2;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Maximum number of bytes that [`parse_header`] needs: as many as the largest buffers in use hold,
/// and far more than any sender writes.
pub const MAX_HEADER_BYTES: usize = 16 << 10;

/// The content of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The sender's own connection (a health check): the connection's addresses are the real ones.
    Local,
    /// The sender does not name its client.
    Unknown,
    /// A TCP client.
    Tcp {
        source: SocketAddr,
        destination: SocketAddr,
    },
    /// A client on a Unix socket of the sender's machine.
    Unix,
}

/// Why bytes are no PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyProtocolError {
    #[error("no proxy protocol header")]
    NotProxy,
    #[error("proxy protocol header too long")]
    TooLong,
    #[error("malformed proxy protocol line")]
    BadLine,
    #[error("proxy protocol version or command {0:#04x}")]
    BadCommand(u8),
    #[error("proxy protocol address family or transport {0:#04x}")]
    BadFamily(u8),
    #[error("proxy protocol length that its content contradicts")]
    BadLength,
}

/// Parses a header of either version at the start of `input`, which is all that was received so
/// far. Returns its content and length; `None` when more bytes are needed.
///
/// # Errors
/// As soon as it is certain that `input` does not begin with a header.
pub fn parse_header(input: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyProtocolError> {
    match input.first() {
        None => Ok(None),
        Some(b'P') => v1::parse(input),
        Some(_) => v2::parse(input),
    }
}

/// Appends a header of version 1 for a client (`source`) that connected to a `destination`;
/// `UNKNOWN` without one.
pub fn encode_v1(out: &mut Vec<u8>, addresses: Option<(SocketAddr, SocketAddr)>) {
    v1::encode(out, addresses.map(unify_families));
}

/// Appends a header of version 2 for a client (`source`) that connected to a `destination`; `LOCAL`
/// without one.
pub fn encode_v2(out: &mut Vec<u8>, addresses: Option<(SocketAddr, SocketAddr)>) {
    v2::encode(out, addresses.map(unify_families));
}

/// The same addresses in one family, as a header needs them.
fn unify_families((source, destination): (SocketAddr, SocketAddr)) -> (SocketAddr, SocketAddr) {
    // A socket for both families reports IPv4 as mapped addresses.
    let mut ips = [source.ip().to_canonical(), destination.ip().to_canonical()];
    if ips.iter().any(IpAddr::is_ipv6) {
        ips = ips.map(|ip| to_v6(ip).into());
    }
    let [from, to] = ips;
    (
        SocketAddr::new(from, source.port()),
        SocketAddr::new(to, destination.port()),
    )
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests;
