//! Which worker process a request belongs to: `sticky` of an application.
//!
//! `handler` makes an [`Affinity`] of a request, `dispatch` chooses the process by it and notes
//! which one has the request, and the response takes the cookie along. For applications that keep
//! state in one process between requests, above all the sessions of Socket.IO while it polls.
//!
//! # Invariants
//! - A token names a worker and tells nothing else: it is random, and ends with its worker.
//! - A token of no active worker costs nothing: any process serves the request.
//! - A client gets a cookie only if it differs from the one that it sent.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use penstock_config as config;
use penstock_exchange::{Request, Response};
use penstock_sys::net::PeerAddress;

/// Names one worker process for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerToken(u64);

impl WorkerToken {
    pub(crate) fn generate() -> Self {
        Self(RandomState::new().hash_one(0_u8))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        // No sign, no other length: what was set comes back as it was.
        let is_own = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_own.then(|| u64::from_str_radix(text, 16).ok())?;
        number.map(Self)
    }

    /// The weight of this worker for a client with that number: the highest of all wins, and when a
    /// worker comes or goes only its own clients change (rendezvous hashing).
    pub(crate) fn rendezvous_weight(self, client: u64) -> u64 {
        // The finaliser of SplitMix64: each bit of either number changes half of the result's.
        let mut mixed = self.0 ^ client;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl fmt::Display for WorkerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How an application keeps a client at one process.
#[derive(Debug, Clone)]
pub(crate) enum Stickiness {
    Cookie(Arc<str>),
    ClientAddress,
}

impl Stickiness {
    pub(crate) fn from_config(config: &config::App) -> Option<Self> {
        Some(match config.sticky? {
            // Names of applications are tokens.
            config::Sticky::Cookie => Self::Cookie(format!("penstock_{}", config.name).into()),
            config::Sticky::ClientIp => Self::ClientAddress,
        })
    }

    /// The process that `request` belongs to; `None` when any will do.
    pub(crate) fn affinity(&self, request: &Request) -> Option<Box<Affinity>> {
        Some(Box::new(match self {
            Self::Cookie(name) => Affinity {
                target: match request.head.cookie(name).and_then(WorkerToken::parse) {
                    Some(token) => AffinityTarget::Worker(token),
                    None => AffinityTarget::Any,
                },
                served_by: None,
                cookie: Some(Arc::clone(name)),
                is_secure: request.scheme() == "https",
            },
            Self::ClientAddress => Affinity {
                target: AffinityTarget::Client(client_number(request)?),
                served_by: None,
                cookie: None,
                is_secure: false,
            },
        }))
    }
}

/// Which process a request belongs to, and which one has it.
#[derive(Debug)]
pub(crate) struct Affinity {
    pub(crate) target: AffinityTarget,
    pub(crate) served_by: Option<WorkerToken>,
    cookie: Option<Arc<str>>,
    is_secure: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AffinityTarget {
    /// Its client has no process yet.
    Any,
    Worker(WorkerToken),
    /// The process of the client with this number.
    Client(u64),
}

impl Affinity {
    #[cfg(test)]
    pub(crate) fn for_test(wanted: AffinityTarget) -> Self {
        Self {
            target: wanted,
            served_by: None,
            cookie: None,
            is_secure: false,
        }
    }

    /// Gives a client without a process, or whose process has ended, the cookie of the one that
    /// served it.
    pub(crate) fn set_cookie(&self, response: &mut Response) {
        let (Some(name), Some(token)) = (&self.cookie, self.served_by) else {
            return;
        };
        if self.target == AffinityTarget::Worker(token) {
            return;
        }
        let secure = if self.is_secure { "; Secure" } else { "" };
        let value = format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax{secure}");
        // Name and token are valid in a field.
        let _ = response.fields.push("Set-Cookie", value.as_bytes());
    }
}

/// A number for the client's address; `None` on a Unix socket, whose peers have none.
fn client_number(request: &Request) -> Option<u64> {
    let PeerAddress::Tcp(peer) = request.client_address() else {
        return None;
    };
    let address = match peer.ip().to_canonical() {
        std::net::IpAddr::V4(address) => u128::from(address.to_bits()),
        std::net::IpAddr::V6(address) => address.to_bits(),
    };
    let (high, low) = (address >> 64, address & u128::from(u64::MAX));
    let half = |part: u128| u64::try_from(part).unwrap_or_default();
    Some(half(high).rotate_left(32) ^ half(low).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use penstock_http::Status;

    use super::*;
    use crate::testing::request;

    fn request_with_cookies(cookies: &str) -> Request {
        let peer = PeerAddress::Tcp("192.0.2.7:50000".parse().unwrap());
        request(
            &format!("GET / HTTP/1.1\r\nHost: a\r\n{cookies}\r\n"),
            peer,
            None,
        )
    }

    #[test]
    fn a_cookie_names_a_worker_and_anything_else_none() {
        let by_cookie = Stickiness::Cookie("penstock_a".into());
        let token = WorkerToken(0x0123_4567_89ab_cdef);
        let long = "0".repeat(17);
        for (cookies, expected) in [
            ("Cookie: x=1; penstock_a=0123456789abcdef\r\n", true),
            (
                "Cookie: x=1\r\nCookie: penstock_a=0123456789abcdef\r\n",
                true,
            ),
            ("", false),
            ("Cookie: penstock_b=0123456789abcdef\r\n", false),
            ("Cookie: penstock_a=\r\n", false),
            ("Cookie: penstock_a=+123456789abcdef\r\n", false),
            ("Cookie: penstock_a=0123456789abcdeg\r\n", false),
            (&format!("Cookie: penstock_a={long}\r\n"), false),
        ] {
            let affinity = by_cookie.affinity(&request_with_cookies(cookies)).unwrap();
            let wanted = match expected {
                true => AffinityTarget::Worker(token),
                false => AffinityTarget::Any,
            };
            assert_eq!(affinity.target, wanted, "{cookies}");
        }
    }

    #[test]
    fn a_client_gets_a_cookie_when_it_has_none_or_another() {
        let by_cookie = Stickiness::Cookie("penstock_a".into());
        let served_by = Some(WorkerToken(0xfe));
        let set = |cookies: &str, scheme: &'static str| {
            let mut request = request_with_cookies(cookies);
            Arc::get_mut(&mut request.listener).unwrap().scheme = scheme;
            let mut affinity = by_cookie.affinity(&request).unwrap();
            affinity.served_by = served_by;
            let mut response = Response::new(Status::OK, penstock_exchange::Body::Empty);
            affinity.set_cookie(&mut response);
            let field = response.fields.get("set-cookie");
            field.map(|value| String::from_utf8(value.to_vec()).unwrap())
        };
        let cookie = "penstock_a=00000000000000fe; Path=/; HttpOnly; SameSite=Lax";
        assert_eq!(set("", "http").as_deref(), Some(cookie));
        let other = "Cookie: penstock_a=00000000000000ff\r\n";
        assert_eq!(set(other, "http").as_deref(), Some(cookie));
        let secure = format!("{cookie}; Secure");
        assert_eq!(set("", "https"), Some(secure));
        let own = "Cookie: penstock_a=00000000000000fe\r\n";
        assert_eq!(set(own, "http"), None);
    }

    /// A trusted proxy's client address counts, and that of no other peer.
    #[test]
    fn clients_behind_one_proxy_are_distinguished() {
        let by_address = Stickiness::ClientAddress;
        let by_cookie = Stickiness::Cookie("penstock_a".into());
        let of = |peer: &str, lines: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let peer = PeerAddress::Tcp(peer.parse().unwrap());
            let request = request(&text, peer, None);
            let wanted = by_address.affinity(&request).unwrap().target;
            (wanted, by_cookie.affinity(&request).unwrap().is_secure)
        };
        let (proxy, stranger) = ("127.0.0.1:50000", "192.0.2.7:50000");
        let forwarded = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n";
        let (own, _) = of(stranger, "");
        assert_eq!(of(proxy, forwarded), (own, true));
        let spoofed = forwarded.replace("192.0.2.7", "198.51.100.1, 192.0.2.7");
        assert_eq!(of(proxy, &spoofed), (own, true));
        assert_eq!(
            of(proxy, "Forwarded: for=\"192.0.2.7:9\";proto=https\r\n"),
            (own, true)
        );
        let other = forwarded.replace("192.0.2.7", "192.0.2.8");
        assert_ne!(of(proxy, &other).0, own);
        assert_eq!(of(stranger, &other), (own, false));
    }

    #[test]
    fn clients_spread_over_workers_and_stay_when_another_goes() {
        let workers: Vec<_> = (0..4).map(|_| WorkerToken::generate()).collect();
        let of = |workers: &[WorkerToken], client: u64| {
            let best = workers
                .iter()
                .max_by_key(|token| token.rendezvous_weight(client));
            *best.unwrap()
        };
        let number = |last: u8| {
            let mut request = request_with_cookies("");
            request.peer = PeerAddress::Tcp(([192, 0, 2, last], 1).into());
            client_number(&request).unwrap()
        };
        let clients: Vec<_> = (0..=255).map(number).collect();
        for gone in &workers {
            let rest: Vec<_> = workers.iter().copied().filter(|w| w != gone).collect();
            let mut moved = 0;
            for client in &clients {
                let own = of(&workers, *client);
                if own == *gone {
                    moved += 1;
                } else {
                    assert_eq!(of(&rest, *client), own);
                }
            }
            // 64 on the average; a worker with half of that would be an odd hash.
            assert!((25..=115).contains(&moved), "{moved}");
        }
        let unix = request("GET / HTTP/1.1\r\nHost: a\r\n\r\n", PeerAddress::Unix, None);
        assert!(Stickiness::ClientAddress.affinity(&unix).is_none());
    }
}
