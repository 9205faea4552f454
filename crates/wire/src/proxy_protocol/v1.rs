//! Version 1 of the PROXY protocol (§2.1): one line of text.
//!
//! Called by `proxy_protocol` only. A line has at most 107 bytes, single blanks and numbers in
//! their shortest form; `UNKNOWN` allows any text after it.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use penstock_http::is_field_value;

use super::{ProxyHeader, ProxyProtocolError};

pub(super) fn parse(input: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyProtocolError> {
    let common = input.len().min(PREFIX.len());
    if input[..common] != PREFIX[..common] {
        return Err(ProxyProtocolError::NotProxy);
    }
    let seen = &input[..input.len().min(MAX_LINE_BYTES)];
    let Some(end) = memchr::memchr(b'\n', seen) else {
        return match seen.len() {
            MAX_LINE_BYTES => Err(ProxyProtocolError::TooLong),
            _ => Ok(None),
        };
    };
    let line = seen[common..end]
        .strip_suffix(b"\r")
        .filter(|line| is_field_value(line))
        .and_then(|line| std::str::from_utf8(line).ok());
    let header = line
        .and_then(parse_line)
        .ok_or(ProxyProtocolError::BadLine)?;
    Ok(Some((header, end + 1)))
}

/// Parses the line after `PROXY `.
fn parse_line(line: &str) -> Option<ProxyHeader> {
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Some(ProxyHeader::Unknown);
    }
    let words: Vec<_> = line.split(' ').collect();
    let [family, from, to, from_port, to_port] = words[..] else {
        return None;
    };
    Some(ProxyHeader::Tcp {
        source: SocketAddr::new(parse_address(family, from)?, parse_port(from_port)?),
        destination: SocketAddr::new(parse_address(family, to)?, parse_port(to_port)?),
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

pub(super) fn encode(out: &mut Vec<u8>, addresses: Option<(SocketAddr, SocketAddr)>) {
    // Writing to a vector cannot fail.
    let _ = match addresses {
        None => out.write_all(b"PROXY UNKNOWN\r\n"),
        Some((source, destination)) => {
            let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            let (from, to) = (WithoutDots(source.ip()), WithoutDots(destination.ip()));
            let (from_port, to_port) = (source.port(), destination.port());
            write!(out, "PROXY {family} {from} {to} {from_port} {to_port}\r\n")
        }
    };
}

/// An address with IPv6 in hexadecimal groups only: the protocol has no dots in it.
struct WithoutDots(IpAddr);

impl std::fmt::Display for WithoutDots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
                let [.., high, low] = v6.segments();
                write!(f, "::ffff:{high:x}:{low:x}")
            }
            ip => ip.fmt(f),
        }
    }
}

const PREFIX: &[u8] = b"PROXY ";
/// Maximum length of a line, with CR LF.
const MAX_LINE_BYTES: usize = 107;
