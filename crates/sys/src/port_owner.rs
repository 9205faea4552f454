//! Finds the processes that listen on a TCP port, for messages that say why an address cannot be
//! opened.
//!
//! Reads `/proc/net/tcp`, `/proc/net/tcp6` and the descriptors of every process (proc(5)), which
//! takes milliseconds: only a start or a check that has failed calls it.
//!
//! # Invariants
//! - An unreadable file is no error: then no process is found.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a listening socket in `/proc/net/tcp` (`TCP_LISTEN`, include/net/tcp_states.h).
const LISTENING: &str = "0A";

/// A process that listens on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOwner {
    /// Its process id.
    pub pid: u32,
    /// The name of its program, as `ps` shows it.
    pub name: String,
}

/// Returns the processes whose listening sockets conflict with `address`. Several may hold the same
/// socket, as a service manager and its service do. Empty when `/proc` does not tell, as for
/// processes of other users.
///
/// Blocks.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "asked by a start that has failed"
)]
pub fn find_port_owners(address: SocketAddr) -> Vec<PortOwner> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let tables = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    let inodes: Vec<String> = rows
        .filter_map(parse_row)
        .filter(|(local, _)| blocks_bind(*local, address))
        .map(|(_, inode)| format!("socket:[{inode}]"))
        .collect();
    if inodes.is_empty() {
        return Vec::new();
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let owners = pids.filter(|pid| has_socket(*pid, &inodes));
    let named = owners.filter_map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let name = name.trim_end().to_owned();
        Some(PortOwner { pid, name })
    });
    named.collect()
}

fn has_socket(pid: u32, inodes: &[String]) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut links = descriptors.into_iter().flatten().flatten();
    links.any(|entry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        inodes.iter().any(|inode| target.as_os_str() == &**inode)
    })
}

/// Whether a socket at `local` keeps another from binding to `wanted`.
fn blocks_bind(local: SocketAddr, wanted: SocketAddr) -> bool {
    let is_wide = local.ip().is_unspecified() || wanted.ip().is_unspecified();
    local.port() == wanted.port()
        && (is_wide || local.ip().to_canonical() == wanted.ip().to_canonical())
}

/// The local address and the inode of a listening socket; none of other rows.
fn parse_row(row: &str) -> Option<(SocketAddr, &str)> {
    let mut columns = row.split_ascii_whitespace();
    let local = columns.nth(1)?;
    if columns.nth(1)? != LISTENING {
        return None;
    }
    let inode = columns.nth(5)?;
    let (ip, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(parse_ip(ip)?, port), inode))
}

/// Parses an address of 32-bit words in the machine's byte order.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hex.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_process_is_found_by_each_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        for wanted in [address, any] {
            let owners = find_port_owners(wanted);
            // Children that other tests start have the descriptor until they run their program.
            let us = std::process::id();
            let ours = owners.iter().find(|owner| owner.pid == us);
            assert!(!ours.expect("this test listens").name.is_empty());
        }
    }

    #[test]
    fn a_free_port_has_no_owner() {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
        // Bound, so that no other process gets it meanwhile.
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&held, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let local = SocketAddr::try_from(getsockname(&held).unwrap()).unwrap();
        assert_eq!(find_port_owners(local), []);
    }

    #[test]
    fn other_states_and_malformed_rows_are_skipped() {
        let head = "   0: 0100007F:1F90 00000000:0000";
        let tail = "00000000:00000000 00:00000000 00000000     0        0 4711 1";
        assert_eq!(
            parse_row(&format!("{head} 0A {tail}")),
            Some(("127.0.0.1:8080".parse().unwrap(), "4711"))
        );
        assert_eq!(parse_row(&format!("{head} 01 {tail}")), None);
        for broken in ["", "0:", "0: zz:1F90 a 0A", "0: 0100007F a 0A b c d e f g"] {
            assert_eq!(parse_row(broken), None, "{broken}");
        }
        let loopback = "00000000000000000000000001000000";
        assert_eq!(parse_ip(loopback), Some(Ipv6Addr::LOCALHOST.into()));
    }
}
