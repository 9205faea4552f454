//! Version 1 of the PROXY protocol (§2.1): one line of text.
//!
//! Called by `proxy_protocol` only. A line has at most 107 bytes, single blanks and numbers in
//! their shortest form; `UNKNOWN` allows any text after it.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use penstock_http::is_field_value;

use super::{AddressPair, ProxyHeader, ProxyProtocolError};

pub(super) fn parse(input: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyProtocolError> {
    let common = input.len().min(PREFIX.len());
    if input[..common] != PREFIX[..common] {
        return Err(ProxyProtocolError::NotProxy);
    }
    let seen = &input[..input.len().min(MAX_LINE_BYTES)];
    let Some(end) = memchr::memchr(b'\n', seen) else {
        return if seen.len() == MAX_LINE_BYTES {
            Err(ProxyProtocolError::TooLong)
        } else {
            Ok(None)
        };
    };
    let line = seen[common..end]
        .strip_suffix(b"\r")
        .filter(|line| is_field_value(line))
        .and_then(|line| std::str::from_utf8(line).ok());
    let header = line.and_then(parse_line);
    header.map_or(Err(ProxyProtocolError::BadLine), |header| {
        Ok(Some((header, end + 1)))
    })
}

/// Parses the line after `PROXY `.
fn parse_line(line: &str) -> Option<ProxyHeader> {
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Some(ProxyHeader::Unknown);
    }
    let mut words = line.split(' ');
    let family = words.next()?;
    let (source, destination) = (words.next()?, words.next()?);
    let (source_port, destination_port) = (words.next()?, words.next()?);
    if words.next().is_some() {
        return None;
    }
    Some(ProxyHeader::Tcp {
        source: SocketAddr::new(parse_address(family, source)?, parse_port(source_port)?),
        destination: SocketAddr::new(
            parse_address(family, destination)?,
            parse_port(destination_port)?,
        ),
    })
}

fn parse_address(family: &str, text: &str) -> Option<IpAddr> {
    match family {
        "TCP4" => Ipv4Addr::from_str(text).ok().map(IpAddr::V4),
        "TCP6" => Ipv6Addr::from_str(text).ok().map(IpAddr::V6),
        _ => None,
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let is_shortest = text == "0" || !text.starts_with('0');
    let is_number = is_shortest && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

pub(super) fn encode(out: &mut Vec<u8>, addresses: Option<AddressPair>) {
    // Writing to a vector cannot fail.
    let _ = match addresses {
        None => out.write_all(b"PROXY UNKNOWN\r\n"),
        Some(AddressPair::V4([source, destination], [from, to])) => {
            write!(out, "PROXY TCP4 {source} {destination} {from} {to}\r\n")
        }
        Some(AddressPair::V6([source, destination], [from, to])) => {
            let (source, destination) = (HexIpv6(source), HexIpv6(destination));
            write!(out, "PROXY TCP6 {source} {destination} {from} {to}\r\n")
        }
    };
}

/// An address in hexadecimal groups only: the protocol has no dots in IPv6.
struct HexIpv6(Ipv6Addr);

impl std::fmt::Display for HexIpv6 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.segments() {
            [0, 0, 0, 0, 0, 0xffff, high, low] => write!(f, "::ffff:{high:x}:{low:x}"),
            _ => self.0.fmt(f),
        }
    }
}

const PREFIX: &[u8] = b"PROXY ";
/// Maximum length of a line, with CR LF.
const MAX_LINE_BYTES: usize = 107;
