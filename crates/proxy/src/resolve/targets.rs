//! Maps DNS answers to servers and computes the changes since the last answer. Pure; called by
//! `resolve` with the answers of `lookup`.
//!
//! # Invariants
//!
//! - A missing answer removes no server.
//! - The same answer in another order changes nothing.
//! - Of a service's records (RFC 2782) those with the lowest priority come first; all others are
//!   backups.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// One server that a name resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsTarget {
    /// The host and port that was looked up.
    pub(super) host: String,
    pub(super) address: SocketAddr,
    /// Where the same server may listen too.
    pub(super) alternate: Option<SocketAddr>,
    pub(super) weight: u32,
    pub(super) backup: bool,
}

/// One target of a service, with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SrvTarget {
    pub(super) priority: u16,
    pub(super) weight: u16,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) addresses: Vec<IpAddr>,
}

/// The changes from one set of servers to another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TargetChanges {
    pub(super) added: Vec<DnsTarget>,
    /// The same address with another weight or priority.
    pub(super) changed: Vec<DnsTarget>,
    pub(super) removed: Vec<DnsTarget>,
}

/// Merges the addresses of a host, in order and without duplicates; `known` ones stand in for a
/// family without an answer (`None`). An empty result does not prove that there are none.
pub(super) fn merge_address_families(
    known: &[IpAddr],
    v4: Option<Vec<IpAddr>>,
    v6: Option<Vec<IpAddr>>,
) -> Vec<IpAddr> {
    let of_family = |found: Option<Vec<IpAddr>>, is_wanted: fn(&IpAddr) -> bool| {
        found.unwrap_or_else(|| known.iter().copied().filter(is_wanted).collect())
    };
    let mut all = of_family(v4, IpAddr::is_ipv4);
    all.extend(of_family(v6, IpAddr::is_ipv6));
    all.sort_unstable();
    all.dedup();
    all
}

/// The servers of a host.
pub(super) fn targets_of_host(
    (host, port): (&str, u16),
    addresses: &[IpAddr],
    weight: u32,
    backup: bool,
) -> Vec<DnsTarget> {
    // A name with both loopback addresses, such as `localhost`, is one server: it may listen on
    // either or both, and has one `max_active`.
    let mut loopback = addresses.iter().filter(|address| address.is_loopback());
    let v4 = loopback.clone().find(|address| address.is_ipv4());
    let pair = v4.zip(loopback.find(|address| address.is_ipv6()));
    let target = |&address| DnsTarget {
        host: host_and_port(host, port),
        address: SocketAddr::new(address, port),
        alternate: (pair.filter(|(v4, _)| **v4 == address))
            .map(|(_, v6)| SocketAddr::new(*v6, port)),
        weight,
        backup,
    };
    let is_single = |address: &&IpAddr| pair.is_none_or(|(_, v6)| v6 != *address);
    addresses.iter().filter(is_single).map(target).collect()
}

/// The servers of a service. Weight 0 is the smallest share; `backup` makes all of them backups.
pub(super) fn targets_of_services(services: &[SrvTarget], backup: bool) -> Vec<DnsTarget> {
    let first = services.iter().map(|service| service.priority).min();
    let mut all: Vec<DnsTarget> = Vec::new();
    for service in services {
        let is_backup = backup || Some(service.priority) != first;
        let host = (service.host.as_str(), service.port);
        let weight = u32::from(service.weight).max(1);
        for target in targets_of_host(host, &service.addresses, weight, is_backup) {
            match all.iter_mut().find(|known| is_same_server(known, &target)) {
                // Named twice, it keeps its better priority.
                Some(known) if known.backup && !is_backup => *known = target,
                Some(_) => {}
                None => all.push(target),
            }
        }
    }
    all
}

/// Formats host and port, without the final dot of a fully qualified name.
pub(super) fn host_and_port(host: &str, port: u16) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    format!("{host}:{port}")
}

/// Computes the changes from `known` to `found`.
pub(super) fn diff_targets(known: &[DnsTarget], found: &[DnsTarget]) -> TargetChanges {
    fn same<'a>(set: &'a [DnsTarget], target: &DnsTarget) -> Option<&'a DnsTarget> {
        set.iter().find(|it| is_same_server(it, target))
    }
    let is_new = |target: &&DnsTarget| same(known, target).is_none();
    let is_changed = |target: &&DnsTarget| same(known, target).is_some_and(|old| old != *target);
    let is_gone = |target: &&DnsTarget| same(found, target).is_none();
    TargetChanges {
        added: found.iter().filter(is_new).cloned().collect(),
        changed: found.iter().filter(is_changed).cloned().collect(),
        removed: known.iter().filter(is_gone).cloned().collect(),
    }
}

/// The delay until the next query after an answer valid for `ttl`: at most `interval`, at least one
/// second.
pub(super) fn next_query_delay(ttl: Duration, interval: Duration) -> Duration {
    ttl.min(interval).max(MIN_QUERY_DELAY)
}

/// The delay until the next query after consecutive failures.
pub(super) fn retry_delay(failures: u32, interval: Duration) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1));
    let grown = MIN_QUERY_DELAY.saturating_mul(doubled.unwrap_or(u32::MAX));
    next_query_delay(grown, interval)
}

/// Whether both are the same server, whatever its weight and priority.
pub(super) fn is_same_server(one: &DnsTarget, other: &DnsTarget) -> bool {
    one.address == other.address && one.alternate == other.alternate && one.host == other.host
}

const MIN_QUERY_DELAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| ip(text)).collect()
    }

    fn found(texts: &[&str]) -> Option<Vec<IpAddr>> {
        Some(ips(texts))
    }

    fn target(address: &str, weight: u32, backup: bool) -> DnsTarget {
        DnsTarget {
            host: "app:80".to_owned(),
            address: address.parse().unwrap(),
            alternate: None,
            weight,
            backup,
        }
    }

    fn service(priority: u16, weight: u16, host: &str, addresses: &[&str]) -> SrvTarget {
        SrvTarget {
            priority,
            weight,
            host: host.to_owned(),
            port: 80,
            addresses: ips(addresses),
        }
    }

    #[test]
    fn a_family_without_an_answer_keeps_its_addresses() {
        let known = ["192.0.2.1", "2001:db8::1"];
        let cases = [
            (
                "both answer",
                found(&["192.0.2.9"]),
                found(&["2001:db8::9"]),
                vec!["192.0.2.9", "2001:db8::9"],
            ),
            (
                "only one exists",
                found(&["192.0.2.9"]),
                found(&[]),
                vec!["192.0.2.9"],
            ),
            (
                "the other fails",
                found(&["192.0.2.9"]),
                None,
                vec!["192.0.2.9", "2001:db8::1"],
            ),
            (
                "one fails, none of the other",
                None,
                found(&[]),
                vec!["192.0.2.1"],
            ),
            ("both fail", None, None, known.to_vec()),
            ("nothing at all", found(&[]), found(&[]), vec![]),
            (
                "twice and in disorder",
                found(&["192.0.2.9", "192.0.2.3", "192.0.2.9"]),
                found(&[]),
                vec!["192.0.2.3", "192.0.2.9"],
            ),
        ];
        for (name, v4, v6, expected) in cases {
            assert_eq!(
                merge_address_families(&ips(&known), v4, v6),
                ips(&expected),
                "{name}"
            );
        }
    }

    #[test]
    fn both_loopback_addresses_of_a_name_are_one_server() {
        type Row<'a> = (&'a [&'a str], &'a [(&'a str, Option<&'a str>)]);
        let rows: [Row<'_>; 5] = [
            (&["127.0.0.1", "::1"], &[("127.0.0.1:80", Some("[::1]:80"))]),
            (&["::1"], &[("[::1]:80", None)]),
            (&["127.0.0.1"], &[("127.0.0.1:80", None)]),
            (
                &["127.0.0.1", "127.0.0.2", "::1"],
                &[("127.0.0.1:80", Some("[::1]:80")), ("127.0.0.2:80", None)],
            ),
            (
                &["192.0.2.1", "2001:db8::1"],
                &[("192.0.2.1:80", None), ("[2001:db8::1]:80", None)],
            ),
        ];
        for (addresses, expected) in rows {
            let targets = targets_of_host(("app", 80), &ips(addresses), 1, false);
            let found = targets
                .iter()
                .map(|target| (target.address, target.alternate));
            let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
            let expected = expected
                .iter()
                .map(|(one, other)| (socket(one), other.map(socket)));
            assert!(found.eq(expected), "{addresses:?}");
        }
    }

    #[test]
    fn the_lowest_priority_comes_first_and_the_others_are_backups() {
        let services = [
            service(20, 7, "spare", &["192.0.2.3"]),
            service(10, 5, "a", &["192.0.2.1", "2001:db8::1"]),
            service(10, 0, "b", &["192.0.2.2"]),
            service(30, 1, "b", &["192.0.2.2"]),
        ];
        let seen: Vec<_> = (targets_of_services(&services, false).into_iter())
            .map(|it| (it.host, it.address.ip(), it.weight, it.backup))
            .collect();
        let row =
            |host: &str, address, weight, backup| (host.to_owned(), ip(address), weight, backup);
        let expected = vec![
            row("spare:80", "192.0.2.3", 7, true),
            row("a:80", "192.0.2.1", 5, false),
            row("a:80", "2001:db8::1", 5, false),
            row("b:80", "192.0.2.2", 1, false),
        ];
        assert_eq!(seen, expected);
        assert!(
            targets_of_services(&services, true)
                .iter()
                .all(|it| it.backup)
        );
        let late = [
            service(30, 1, "b", &["192.0.2.2"]),
            service(10, 2, "b", &["192.0.2.2"]),
        ];
        let only = targets_of_services(&late, false);
        assert_eq!((only.len(), only[0].weight, only[0].backup), (1, 2, false));
    }

    /// Added, changed and removed.
    type Parts = [Vec<DnsTarget>; 3];

    #[test]
    fn only_what_differs_is_a_change() {
        let (a, b, c) = ("192.0.2.1:80", "192.0.2.2:80", "[2001:db8::1]:80");
        let known = [target(a, 1, false), target(b, 1, false)];
        let cases: [(&str, Vec<DnsTarget>, Parts); 5] = [
            (
                "the same in another order",
                vec![target(b, 1, false), target(a, 1, false)],
                [vec![], vec![], vec![]],
            ),
            (
                "one more",
                vec![
                    target(a, 1, false),
                    target(b, 1, false),
                    target(c, 1, false),
                ],
                [vec![target(c, 1, false)], vec![], vec![]],
            ),
            (
                "one less",
                vec![target(b, 1, false)],
                [vec![], vec![], vec![target(a, 1, false)]],
            ),
            (
                "another weight",
                vec![target(a, 3, false), target(b, 1, false)],
                [vec![], vec![target(a, 3, false)], vec![]],
            ),
            (
                "another rank, and an exchange",
                vec![target(a, 1, true), target(c, 1, false)],
                [
                    vec![target(c, 1, false)],
                    vec![target(a, 1, true)],
                    vec![target(b, 1, false)],
                ],
            ),
        ];
        for (name, found, [added, changed, removed]) in cases {
            let expected = TargetChanges {
                added,
                changed,
                removed,
            };
            assert_eq!(diff_targets(&known, &found), expected, "{name}");
        }
    }

    #[test]
    fn questions_follow_the_ttl_within_a_second_and_the_interval() {
        let seconds = Duration::from_secs;
        let cases = [
            ("no ttl at all", Duration::ZERO, 30, 1),
            ("within", seconds(7), 30, 7),
            ("far longer than the interval", seconds(86400), 30, 30),
            ("an interval below a second", seconds(7), 0, 1),
        ];
        for (name, ttl, interval, expected) in cases {
            assert_eq!(
                next_query_delay(ttl, seconds(interval)),
                seconds(expected),
                "{name}"
            );
        }
        let failed = [1, 2, 3, 6, 7, 400].map(|n| retry_delay(n, seconds(40)).as_secs());
        assert_eq!(failed, [1, 2, 4, 32, 40, 40]);
    }
}
