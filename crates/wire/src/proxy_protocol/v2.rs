//! Version 2 of the PROXY protocol (§2.2): a signature, four bytes, addresses, and additional
//! records.
//!
//! Called by `proxy_protocol` only. The length field rules: the addresses of the family must fit
//! into it, and the type-length-value records after them fill it to the byte; their content is
//! skipped.

use std::net::{IpAddr, SocketAddr};

use super::{MAX_HEADER_BYTES, ProxyHeader, ProxyProtocolError};

pub(super) fn parse(input: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyProtocolError> {
    let common = input.len().min(SIGNATURE.len());
    if input[..common] != SIGNATURE[..common] {
        return Err(ProxyProtocolError::NotProxy);
    }
    let command = input.get(12).copied().unwrap_or(COMMAND_PROXY);
    if command != COMMAND_PROXY && command != COMMAND_LOCAL {
        return Err(ProxyProtocolError::BadCommand(command));
    }
    let family = input.get(13).copied().unwrap_or(UNSPEC);
    // For a LOCAL or unspecified header only the length counts.
    let is_named = command == COMMAND_PROXY && family != UNSPEC;
    let addresses = match address_len(family) {
        Some(bytes) => bytes,
        None if is_named => return Err(ProxyProtocolError::BadFamily(family)),
        None => 0,
    };
    let Some(&[l0, l1]) = input.get(14..16) else {
        return Ok(None);
    };
    let end = HEAD_LEN + usize::from(u16::from_be_bytes([l0, l1]));
    if end > MAX_HEADER_BYTES {
        return Err(ProxyProtocolError::TooLong);
    }
    if is_named && end - HEAD_LEN < addresses {
        return Err(ProxyProtocolError::BadLength);
    }
    let Some(content) = input.get(HEAD_LEN..end) else {
        return Ok(None);
    };
    if is_named && !has_whole_records(&content[addresses..]) {
        return Err(ProxyProtocolError::BadLength);
    }
    let header = match (command, family) {
        (COMMAND_LOCAL, _) => ProxyHeader::Local,
        (_, TCP4) => parse_tcp::<4>(content).ok_or(ProxyProtocolError::BadLength)?,
        (_, TCP6) => parse_tcp::<16>(content).ok_or(ProxyProtocolError::BadLength)?,
        (_, UNIX_STREAM) => ProxyHeader::Unix,
        _ => ProxyHeader::Unknown,
    };
    Ok(Some((header, end)))
}

/// How many bytes the addresses of a family and transport need; `None` for other transports than
/// streams.
fn address_len(family: u8) -> Option<usize> {
    match family {
        UNSPEC => Some(0),
        TCP4 => Some(12),
        TCP6 => Some(36),
        UNIX_STREAM => Some(216),
        _ => None,
    }
}

fn parse_tcp<const N: usize>(content: &[u8]) -> Option<ProxyHeader>
where
    IpAddr: From<[u8; N]>,
{
    let (&source, rest) = content.split_first_chunk::<N>()?;
    let (&destination, rest) = rest.split_first_chunk::<N>()?;
    let &[s0, s1, d0, d1] = rest.first_chunk()?;
    Some(ProxyHeader::Tcp {
        source: SocketAddr::new(source.into(), u16::from_be_bytes([s0, s1])),
        destination: SocketAddr::new(destination.into(), u16::from_be_bytes([d0, d1])),
    })
}

/// Whether the lengths of the records after the addresses add up (§2.2.1).
fn has_whole_records(mut records: &[u8]) -> bool {
    while let [_, l0, l1, rest @ ..] = records {
        match rest.get(usize::from(u16::from_be_bytes([*l0, *l1]))..) {
            Some(rest) => records = rest,
            None => return false,
        }
    }
    records.is_empty()
}

pub(super) fn encode(out: &mut Vec<u8>, addresses: Option<(SocketAddr, SocketAddr)>) {
    out.extend_from_slice(SIGNATURE);
    let Some((source, destination)) = addresses else {
        return out.extend_from_slice(&[COMMAND_LOCAL, UNSPEC, 0, 0]);
    };
    out.extend_from_slice(match source {
        SocketAddr::V4(_) => &[COMMAND_PROXY, TCP4, 0, 12],
        SocketAddr::V6(_) => &[COMMAND_PROXY, TCP6, 0, 36],
    });
    for ip in [source.ip(), destination.ip()] {
        match ip {
            IpAddr::V4(v4) => out.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()),
        }
    }
    for port in [source.port(), destination.port()] {
        out.extend_from_slice(&port.to_be_bytes());
    }
}

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, command, family, length.
const HEAD_LEN: usize = 16;
const COMMAND_LOCAL: u8 = 0x20;
const COMMAND_PROXY: u8 = 0x21;
const UNSPEC: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;
