//! Logs that forwarding fields of a peer do not count, as `server.trusted_proxies` does not have it.
//!
//! Without the line a proxy that is not listed is hard to notice: every client has its address. Used
//! by `exchange` where the fields are read.
//!
//! # Invariants
//! - Heads are looked at no more often than once in [`LOOK_INTERVAL`]. Other requests cost the load
//!   of a number.
//! - Each peer is logged once, and at most [`MAX_LOGGED_PEERS`] peers are: strangers may send such
//!   fields from any number of addresses.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_exchange::{ForwardedInfo, TrustedProxies};
use penstock_http::RequestHead;
use penstock_sys::net::PeerAddress;

/// A proxy sends the fields with nearly every request, so that one in this time shows it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

const MAX_LOGGED_PEERS: usize = 32;

/// What was looked at and logged, for all loops.
#[derive(Debug)]
pub(crate) struct UntrustedForwardingLog {
    start: Instant,
    /// Milliseconds from `start` to the next look; the highest number once enough is logged.
    next_look: AtomicU64,
    logged: Mutex<Vec<IpAddr>>,
}

impl UntrustedForwardingLog {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            start: now,
            next_look: AtomicU64::new(0),
            logged: Mutex::default(),
        }
    }

    /// Logs a field of `peer`, which is not trusted, if it is time to look and there is one.
    pub(crate) fn look(
        &self,
        peer: PeerAddress,
        head: &RequestHead,
        trust: &TrustedProxies,
        now: Instant,
    ) {
        if let Some(line) = self.line(peer, head, trust, now) {
            log::warn!("{line}");
        }
    }

    fn line(
        &self,
        peer: PeerAddress,
        head: &RequestHead,
        trust: &TrustedProxies,
        now: Instant,
    ) -> Option<String> {
        let next_look = self.next_look.load(Ordering::Relaxed);
        let since_start = now.saturating_duration_since(self.start).as_millis();
        let since_start = u64::try_from(since_start).unwrap_or(u64::MAX);
        if since_start < next_look || next_look == u64::MAX {
            return None;
        }
        let wait = LOOK_INTERVAL.subsec_millis();
        // Two loops may look at the same time.
        self.next_look
            .store(since_start.saturating_add(wait.into()), Ordering::Relaxed);
        let name = ForwardedInfo::first_forwarding_field(head, trust)?;
        let PeerAddress::Tcp(address) = peer else {
            return None;
        };
        let name = String::from_utf8_lossy(name);
        let ip = address.ip();
        self.remember(ip).then(|| {
            format!(
                "edge: ignored {name} of {ip}, which is not in server.trusted_proxies (logged once \
                 for each address)"
            )
        })
    }

    /// Whether a line about a peer is due.
    fn remember(&self, peer: IpAddr) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.contains(&peer) || logged.len() == MAX_LOGGED_PEERS {
            return false;
        }
        logged.push(peer);
        if logged.len() == MAX_LOGGED_PEERS {
            self.next_look.store(u64::MAX, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use penstock_http::{HeadLimits, ParseProgress, parse_head};

    use super::*;

    fn head(field: &str) -> RequestHead {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        match parse_head(text.as_bytes(), &HeadLimits::default()) {
            Ok(ParseProgress::Complete((head, _))) => head,
            other => panic!("{other:?}"),
        }
    }

    fn peer(number: u32) -> PeerAddress {
        let ip = Ipv4Addr::from_bits(0x0a00_0000 + number);
        PeerAddress::tcp(SocketAddr::new(ip.into(), 1))
    }

    #[test]
    fn names_the_field_and_the_peer_once() {
        let (start, trust) = (Instant::now(), TrustedProxies::default());
        let log = UntrustedForwardingLog::new(start);
        let at = |ms| start + Duration::from_millis(ms);
        let (plain, sent) = (head("Accept: */*"), head("X-Forwarded-For: 192.0.2.1"));
        assert_eq!(log.line(peer(7), &plain, &trust, at(0)), None);
        assert_eq!(
            log.line(peer(7), &sent, &trust, at(99)),
            None,
            "no look yet"
        );
        let line = log.line(peer(7), &sent, &trust, at(100)).unwrap();
        let expected = "edge: ignored X-Forwarded-For of 10.0.0.7, which is not in \
                        server.trusted_proxies";
        assert!(line.starts_with(expected), "{line}");
        assert_eq!(log.line(peer(7), &sent, &trust, at(200)), None, "said once");
        assert!(log.line(peer(8), &sent, &trust, at(300)).is_some());
    }

    #[test]
    fn the_number_of_lines_is_bounded() {
        let (start, trust) = (Instant::now(), TrustedProxies::default());
        let log = UntrustedForwardingLog::new(start);
        let sent = head("Forwarded: for=192.0.2.1");
        let lines = (0..100).filter_map(|number| {
            let now = start + LOOK_INTERVAL * number;
            log.line(peer(number), &sent, &trust, now)
        });
        assert_eq!(lines.count(), MAX_LOGGED_PEERS);
        assert_eq!(log.next_look.load(Ordering::Relaxed), u64::MAX);
    }
}
