//! One connection to a server: made here, kept in the `roster` while idle, lent to one request at a
//! time.
//!
//! Its deadline stays with it, armed lazily, so that a request that is answered in time touches no
//! timer. What must stay true: it is counted with its server from the moment it is begun until it is
//! closed, wherever that happens.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use penstock_exchange::FaultKind;
use penstock_runtime::{LazyDeadline, Stream, clock};

use crate::failure::{AttemptFailure, AttemptStage};
use crate::join::JoinedConnections;
use crate::saturation::ServerLoad;

/// What all connections to one server share.
#[derive(Debug)]
pub(crate) struct BackendServer {
    /// As configured, or as its name was resolved.
    pub(crate) name: Arc<str>,
    pub(crate) address: ResolvedAddress,
    /// What a `Host` field calls it: the name and port that it was found by (RFC 9110 §7.2).
    pub(crate) authority: Arc<str>,
    /// Connections there are, idle and in use, and those being made.
    pub(crate) open_connections: AtomicU32,
    /// It was seen to keep a connection behind a response. Some servers close each one without saying so,
    /// a moment after they answered: a request that meets the close cannot always be repeated.
    pub(crate) keeps_alive: AtomicBool,
    /// Its next good response brings it back, as soon as its head is there.
    pub(crate) is_on_trial: AtomicBool,
    /// How many connections it serves at once, as far as its answers show.
    pub(crate) load: ServerLoad,
}

/// Where a server listens, resolved.
#[derive(Debug, Clone)]
pub(crate) enum ResolvedAddress {
    Tcp(SocketAddr),
    /// The second is for a server that does not listen at the first.
    TcpPair([SocketAddr; 2]),
    Unix(PathBuf),
    /// It dials in: connections to it are waited for.
    Joined(Arc<JoinedConnections>),
}

impl ResolvedAddress {
    /// What it has dialled in with, if no more connections to it can come.
    pub(crate) fn exhausted_joined(&self) -> Option<&JoinedConnections> {
        match self {
            Self::Joined(dialled) => Some(&**dialled).filter(|dialled| dialled.has_supply_ended()),
            Self::Tcp(_) | Self::TcpPair(_) | Self::Unix(_) => None,
        }
    }

    /// Connects; the caller bounds the wait.
    ///
    /// # Errors
    /// Why the connection was not made.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(address) => Stream::connect_tcp(*address).await,
            Self::TcpPair([first, second]) => match Stream::connect_tcp(*first).await {
                Ok(stream) => Ok(stream),
                // What is said of the first is what is known of the server, unless the second has one.
                Err(error) => Stream::connect_tcp(*second).await.map_err(|_| error),
            },
            Self::Unix(path) => Stream::connect_unix(path).await,
            Self::Joined(dialled) => dialled.acquire().await,
        }
    }
}

/// A connection to a server. One allocation for its whole life: it goes through many hands with each request.
#[derive(Debug)]
pub(crate) struct UpstreamConnection(Box<ConnectionParts>);

/// What there is of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionParts {
    pub(crate) stream: Stream,
    pub(crate) deadline: LazyDeadline,
    pub(crate) count_guard: ConnectionCountGuard,
    /// Requests that it has carried to their end.
    pub(crate) requests_served: u32,
    /// When it was last given back.
    pub(crate) idle_since: Instant,
    /// Its last response had no body, or it comes from another loop: what a server sends without being
    /// asked may not have been noticed yet.
    pub(crate) needs_check: bool,
}

impl BackendServer {
    pub(crate) fn new(name: Arc<str>, address: ResolvedAddress) -> Self {
        let authority = match &address {
            // A name that was resolved has its address behind a blank.
            ResolvedAddress::Tcp(_) | ResolvedAddress::TcpPair(_) => {
                name.split(' ').next().unwrap_or(&name).into()
            }
            ResolvedAddress::Unix(_) | ResolvedAddress::Joined(_) => "localhost".into(),
        };
        Self {
            name,
            authority,
            open_connections: 0.into(),
            // Of one that dials in nobody closes a connection but this side.
            keeps_alive: matches!(address, ResolvedAddress::Joined(_)).into(),
            address,
            is_on_trial: false.into(),
            load: ServerLoad::default(),
        }
    }
}

/// Counts a connection with its server while it exists.
#[derive(Debug)]
pub(crate) struct ConnectionCountGuard {
    server: Arc<BackendServer>,
    /// The server has answered on it.
    has_answered: bool,
}

impl ConnectionCountGuard {
    pub(crate) fn new(server: &Arc<BackendServer>) -> Self {
        server.open_connections.fetch_add(1, Ordering::Relaxed);
        Self {
            server: Arc::clone(server),
            has_answered: false,
        }
    }

    pub(crate) fn server(&self) -> &Arc<BackendServer> {
        &self.server
    }

    /// Notes the first answer on the connection: the server has accepted it.
    pub(crate) fn record_first_response(&mut self) {
        if !std::mem::replace(&mut self.has_answered, true) {
            self.server.load.add_served();
        }
    }
}

impl Drop for ConnectionCountGuard {
    fn drop(&mut self) {
        self.server.open_connections.fetch_sub(1, Ordering::Relaxed);
        if self.has_answered {
            self.server.load.remove_served();
        }
    }
}

impl Deref for UpstreamConnection {
    type Target = ConnectionParts;

    fn deref(&self) -> &ConnectionParts {
        &self.0
    }
}

impl DerefMut for UpstreamConnection {
    fn deref_mut(&mut self) -> &mut ConnectionParts {
        &mut self.0
    }
}

impl UpstreamConnection {
    /// Connects to `server` until `deadline`.
    ///
    /// # Errors
    /// Why not, at stage [`AttemptStage::Unsent`]; at [`AttemptStage::Local`] when this machine lacks what it takes.
    pub(crate) async fn open(
        server: &Arc<BackendServer>,
        deadline: Instant,
    ) -> Result<Self, AttemptFailure> {
        let counted = ConnectionCountGuard::new(server);
        let connecting = server.address.connect();
        let failed = |cause: String| {
            AttemptFailure::new(FaultKind::ConnectFailed, AttemptStage::Unsent, cause)
        };
        match clock::timeout_at(deadline, connecting).await {
            Some(Ok(stream)) => {
                let mut connection = Self::new(stream, counted);
                // It may have waited: it is as doubtful as one that was used.
                connection.requests_served =
                    u32::from(matches!(server.address, ResolvedAddress::Joined(_)));
                Ok(connection)
            }
            Some(Err(error)) => Err(match local_shortage(&server.address, &error) {
                Some(what) => {
                    let cause = format!("cannot connect: no {what} left here: {error}");
                    AttemptFailure::new(FaultKind::Overloaded, AttemptStage::Local, cause)
                }
                None => failed(format!("cannot connect: {error}")),
            }),
            None => Err(failed("connect_timeout: no connection in time".to_owned())),
        }
    }

    fn new(stream: Stream, counted: ConnectionCountGuard) -> Self {
        let now = clock::now();
        Self(Box::new(ConnectionParts {
            stream,
            deadline: LazyDeadline::new(now),
            count_guard: counted,
            requests_served: 0,
            idle_since: now,
            needs_check: false,
        }))
    }

    /// Moves it to the loop that this runs on.
    ///
    /// # Errors
    /// When the loop cannot watch one more descriptor.
    pub(crate) fn move_to_this_loop(self) -> io::Result<Self> {
        let ConnectionParts {
            stream,
            count_guard: counted,
            requests_served: served,
            idle_since,
            ..
        } = *self.0;
        let socket: OwnedFd = stream.into_socket();
        Ok(Self(Box::new(ConnectionParts {
            stream: Stream::new(socket)?,
            // A timer belongs to the loop that made it.
            deadline: LazyDeadline::new(idle_since),
            count_guard: counted,
            requests_served: served,
            idle_since,
            needs_check: true,
        })))
    }

    /// Its server.
    pub(crate) fn server(&self) -> &Arc<BackendServer> {
        self.count_guard.server()
    }

    /// Whether it has carried a request before: its server may have closed it meanwhile.
    pub(crate) fn is_reused(&self) -> bool {
        self.requests_served > 0
    }
}

/// What this machine lacks, if that is why no connection to `address` could be made: it says nothing of
/// the server, and no other server could be reached either.
pub(crate) fn local_shortage(address: &ResolvedAddress, error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        EMFILE | ENFILE => Some("descriptors"),
        ENOBUFS | ENOMEM => Some("memory for sockets"),
        // Said of ports, and of an address that nothing here can reach: `::1` where IPv6 is off.
        EADDRNOTAVAIL => match address {
            ResolvedAddress::Tcp(address) | ResolvedAddress::TcpPair([address, _]) => {
                has_route_to(*address).then_some("ports to that address")
            }
            ResolvedAddress::Unix(_) | ResolvedAddress::Joined(_) => None,
        },
        _ => None,
    }
}

/// Whether this machine has an address of its own from which to reach another. Nothing is sent, and TCP's
/// ports do not matter.
fn has_route_to(address: SocketAddr) -> bool {
    let any = match address.is_ipv4() {
        true => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        false => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address));
    connected.is_ok()
}

/// Numbers of Linux (errno(3)); the standard library has no names for most of them.
const ENOMEM: i32 = 12;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const EADDRNOTAVAIL: i32 = 99;
const ENOBUFS: i32 = 105;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_shortage_differs_from_a_server_error() {
        let tcp = ResolvedAddress::Tcp("127.0.0.1:9".parse().unwrap());
        let unix = ResolvedAddress::Unix("/run/a.sock".into());
        let rows = [
            ("EMFILE", 24, &tcp, Some("descriptors")),
            ("ENFILE", 23, &unix, Some("descriptors")),
            ("ENOBUFS", 105, &tcp, Some("memory for sockets")),
            ("ENOMEM", 12, &unix, Some("memory for sockets")),
            ("EADDRNOTAVAIL", 99, &tcp, Some("ports to that address")),
            ("ECONNREFUSED", 111, &tcp, None),
            ("EHOSTUNREACH", 113, &tcp, None),
            ("ENOENT", 2, &unix, None),
        ];
        for (name, number, address, want) in rows {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(local_shortage(address, &error), want, "{name}");
        }
    }

    #[test]
    fn an_unreachable_address_is_no_shortage() {
        // Broadcasting is refused, as no way is, without a look at ports.
        for (address, want) in [("127.0.0.1:9", true), ("255.255.255.255:9", false)] {
            assert_eq!(has_route_to(address.parse().unwrap()), want, "{address}");
        }
    }
}
