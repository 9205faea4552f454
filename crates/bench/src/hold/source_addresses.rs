//! The source addresses and ports of streams.
//!
//! A connection is identified by its four numbers, so a source address has only as many connections
//! to one server as there are local ports. `arguments` reads `--from`; `coordinator` assigns
//! addresses and ports to the agents, never the same port of an address to two of them. Ports are
//! chosen explicitly, which needs no search by the kernel and shows exactly when none is left.
//! Pure, except for [`ephemeral_ports`].

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::{IpAddrRange, IpNet, Ipv4AddrRange, Ipv6AddrRange};

use super::agent_protocol::SourceRange;

/// Streams per automatic address: the usual range has 28,232 ports, and recently closed connections
/// keep their ports for a minute.
const STREAMS_PER_ADDRESS: u32 = 10_000;

/// The automatic addresses of the loopback; 127.0.0.0/16 is left to those in common use.
const LOOPBACK_NETWORK: &str = "127.64.0.0/10";

/// The shares of the agents without given addresses: loopback addresses if all servers are there,
/// else none, which leaves the choice to the system.
///
/// # Errors
/// There are too few; the text names the remedy.
pub(super) fn automatic_sources(
    goals: &[SocketAddr],
    shares: &[u32],
    ports: (u16, u16),
) -> Result<Vec<Vec<SourceRange>>, String> {
    let is_loopback = |goal: &SocketAddr| goal.is_ipv4() && goal.ip().is_loopback();
    if !goals.iter().all(is_loopback) {
        return Ok(vec![Vec::new(); shares.len()]);
    }
    let most = shares.iter().copied().max().unwrap_or(0);
    let each = most.div_ceil(STREAMS_PER_ADDRESS).max(1) as usize;
    let addresses = parse_addresses(LOOPBACK_NETWORK, each * shares.len())?;
    assign_sources(&addresses, goals, shares, ports)
}

/// Assigns addresses to the agents; with more agents than addresses, ranges of an address's ports.
///
/// # Errors
/// There are too few; the text names the number needed.
pub(super) fn assign_sources(
    addresses: &[IpAddr],
    goals: &[SocketAddr],
    shares: &[u32],
    (first, last): (u16, u16),
) -> Result<Vec<Vec<SourceRange>>, String> {
    if addresses.is_empty() || goals.is_empty() || first == 0 || first > last {
        return Err("no source address, or no local port".to_owned());
    }
    for goal in goals {
        if let Some(other) = addresses.iter().find(|one| one.is_ipv4() != goal.is_ipv4()) {
            return Err(format!("{other} cannot connect to {goal}"));
        }
    }
    let ports = u32::from(last - first) + 1;
    // A port serves once towards each server, however many URLs it has.
    let servers = goals.iter().collect::<HashSet<_>>().len() as u64;
    let mut given = vec![Vec::new(); shares.len()];
    let users = shares.len().div_ceil(addresses.len());
    for at in 0..addresses.len().max(shares.len()) {
        let (user, address) = (at / addresses.len(), addresses[at % addresses.len()]);
        let part = |user: usize| u64::from(first) + u64::from(ports) * user as u64 / users as u64;
        let (from, to) = (part(user), part(user + 1));
        if to > from
            && let (Ok(first_port), Ok(last_port)) = (u16::try_from(from), u16::try_from(to - 1))
        {
            given[at % shares.len()].push(SourceRange {
                address,
                first_port,
                last_port,
            });
        }
    }
    for (sources, &share) in given.iter().zip(shares) {
        let room = |source: &SourceRange| u64::from(source.last_port - source.first_port) + 1;
        let room = sources.iter().map(room).sum::<u64>() * servers;
        if u64::from(share) > room {
            let all: u64 = shares.iter().map(|&share| u64::from(share)).sum();
            let each = u64::from(ports) * servers;
            return Err(format!(
                "{all} streams need {} source addresses, since each has {ports} ports \
                 (net.ipv4.ip_local_port_range): name more with --from",
                all.div_ceil(each.max(1)).max(addresses.len() as u64 + 1)
            ));
        }
    }
    Ok(given)
}

/// Parses addresses (`10.0.0.1,10.0.0.2`), ranges (`10.0.0.1-10.0.0.9`) and networks
/// (`127.1.0.0/16`), at most `most` addresses.
///
/// # Errors
/// A part is none of those.
pub(super) fn parse_addresses(text: &str, most: usize) -> Result<Vec<IpAddr>, String> {
    let mut found = Vec::new();
    for part in text.split(',').map(str::trim) {
        let addresses = parse_range(part)
            .ok_or_else(|| format!("`{part}` is not an address, range A-B or network A/BITS"))?;
        found.extend(addresses.take(most - found.len()));
    }
    Ok(found)
}

fn parse_range(part: &str) -> Option<IpAddrRange> {
    if let Some((first, last)) = part.split_once('-') {
        return match (first.trim().parse().ok()?, last.trim().parse().ok()?) {
            (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
                Some(IpAddrRange::V4(Ipv4AddrRange::new(first, last)))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
                Some(IpAddrRange::V6(Ipv6AddrRange::new(first, last)))
            }
            _ => None,
        };
    }
    let network: IpNet = match part.contains('/') {
        true => part.parse().ok()?,
        false => IpAddr::from_str(part).ok()?.into(),
    };
    // Without the first and the last address of an IPv4 network, which belong to no host.
    Some(network.hosts())
}

/// The system's ephemeral ports, first and last.
#[expect(
    clippy::disallowed_methods,
    reason = "/proc is memory, and is read before anything is opened"
)]
pub(super) fn ephemeral_ports() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let read = |text: &str| {
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    text.ok()
        .and_then(|text| read(&text))
        .unwrap_or(DEFAULT_PORT_RANGE)
}

/// The kernel's default, if it cannot be read.
const DEFAULT_PORT_RANGE: (u16, u16) = (32_768, 60_999);

#[cfg(test)]
mod tests {
    use super::*;

    fn goals(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn reads_addresses_ranges_and_networks() {
        for (text, most, expected) in [
            ("127.1.2.3", 9, "127.1.2.3"),
            ("10.0.0.1, 10.0.0.7", 9, "10.0.0.1 10.0.0.7"),
            ("10.0.0.254-10.0.1.1", 3, "10.0.0.254 10.0.0.255 10.0.1.0"),
            ("127.9.0.77/30", 9, "127.9.0.77 127.9.0.78"),
            ("127.9.0.77/31", 9, "127.9.0.76 127.9.0.77"),
            ("127.9.0.77/32", 9, "127.9.0.77"),
            ("127.0.0.0/8", 2, "127.0.0.1 127.0.0.2"),
            ("::1-::2", 9, "::1 ::2"),
            ("::/0", 1, "::"),
        ] {
            let found = parse_addresses(text, most).unwrap();
            let words: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(words.join(" "), expected, "{text}");
        }
        for wrong in [
            "",
            "a",
            "10.0.0.2-10.0.0.1",
            "10.0.0.1-::1",
            "10.0.0.0/33",
            "10.0.0.1,",
        ] {
            assert!(parse_addresses(wrong, 9).is_err(), "{wrong}");
        }
    }

    #[test]
    fn agents_never_share_a_port_of_an_address() {
        let goals = goals(&["127.0.0.1:80"]);
        for (addresses, agents) in [(1, 1), (1, 3), (3, 1), (2, 5), (5, 2), (7, 7)] {
            let addresses = parse_addresses("127.1.0.0/16", addresses).unwrap();
            let shares = vec![5; agents];
            let given = assign_sources(&addresses, &goals, &shares, (1000, 1099)).unwrap();
            let mut seen = HashSet::new();
            for source in given.iter().flatten() {
                for port in source.first_port..=source.last_port {
                    assert!((1000..1100).contains(&port));
                    assert!(seen.insert((source.address, port)), "{source:?}");
                }
            }
            assert!(given.iter().all(|sources| !sources.is_empty()));
        }
    }

    #[test]
    fn too_few_addresses_are_told_before_anything_is_opened() {
        let addresses = parse_addresses("127.1.0.1", 1).unwrap();
        let one = goals(&["127.0.0.1:80"]);
        let why = assign_sources(&addresses, &one, &[101], (1000, 1099)).unwrap_err();
        assert!(why.contains("101 streams need 2 source addresses"), "{why}");
        let two = goals(&["127.0.0.1:80", "127.0.0.1:81"]);
        assert!(assign_sources(&addresses, &two, &[101], (1000, 1099)).is_ok());
        let same = goals(&["127.0.0.1:80", "127.0.0.1:80"]);
        assert!(assign_sources(&addresses, &same, &[101], (1000, 1099)).is_err());
        assert!(assign_sources(&addresses, &goals(&["[::1]:80"]), &[1], (1, 9)).is_err());
        assert!(assign_sources(&[], &one, &[1], (1, 9)).is_err());
    }

    #[test]
    fn a_million_streams_of_a_loopback_find_their_addresses() {
        let shares = vec![20_000; 50];
        let given =
            automatic_sources(&goals(&["127.0.0.1:80"]), &shares, DEFAULT_PORT_RANGE).unwrap();
        assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [2; 50]);
        assert_eq!(given[0][0].address.to_string(), "127.64.0.1");
        let elsewhere =
            automatic_sources(&goals(&["192.0.2.1:80"]), &[5], DEFAULT_PORT_RANGE).unwrap();
        assert_eq!(elsewhere, [Vec::new()]);
    }
}
