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

use crate::failure::{Failure, Stage};
use crate::join::Dialled;
use crate::saturation::ServerLoad;

/// What all connections to one server share.
#[derive(Debug)]
pub(crate) struct Server {
    /// As configured, or as its name was resolved.
    pub(crate) name: Arc<str>,
    pub(crate) address: Address,
    /// What a `Host` field calls it: the name and port that it was found by (RFC 9110 §7.2).
    pub(crate) authority: Arc<str>,
    /// Connections there are, idle and in use, and those being made.
    pub(crate) open: AtomicU32,
    /// It was seen to keep a connection behind a response. Some servers close each one without saying so,
    /// a moment after they answered: a request that meets the close cannot always be repeated.
    pub(crate) keeps: AtomicBool,
    /// Its next good response brings it back, as soon as its head is there.
    pub(crate) is_on_trial: AtomicBool,
    /// How many connections it serves at once, as far as its answers show.
    pub(crate) load: ServerLoad,
}

/// Where a server listens, resolved.
#[derive(Debug, Clone)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    /// The second is for a server that does not listen at the first.
    TcpPair([SocketAddr; 2]),
    Unix(PathBuf),
    /// It dials in: connections to it are waited for.
    Joined(Arc<Dialled>),
}

impl Address {
    /// What it has dialled in with, if no more connections to it can come.
    pub(crate) fn last_dialled(&self) -> Option<&Dialled> {
        match self {
            Self::Joined(dialled) => Some(&**dialled).filter(|dialled| dialled.is_last()),
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
            Self::Joined(dialled) => dialled.take().await,
        }
    }
}

/// A connection to a server. One allocation for its whole life: it goes through many hands with each request.
#[derive(Debug)]
pub(crate) struct Connection(Box<Parts>);

/// What there is of a connection.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) stream: Stream,
    pub(crate) deadline: LazyDeadline,
    pub(crate) counted: Counted,
    /// Requests that it has carried to their end.
    pub(crate) served: u32,
    /// When it was last given back.
    pub(crate) idle_since: Instant,
    /// Its last response had no body, or it comes from another loop: what a server sends without being
    /// asked may not have been noticed yet.
    pub(crate) is_doubtful: bool,
}

impl Server {
    pub(crate) fn new(name: Arc<str>, address: Address) -> Self {
        let authority = match &address {
            // A name that was resolved has its address behind a blank.
            Address::Tcp(_) | Address::TcpPair(_) => name.split(' ').next().unwrap_or(&name).into(),
            Address::Unix(_) | Address::Joined(_) => "localhost".into(),
        };
        Self {
            name,
            authority,
            open: 0.into(),
            // Of one that dials in nobody closes a connection but this side.
            keeps: matches!(address, Address::Joined(_)).into(),
            address,
            is_on_trial: false.into(),
            load: ServerLoad::default(),
        }
    }
}

/// Counts a connection with its server while it exists.
#[derive(Debug)]
pub(crate) struct Counted {
    server: Arc<Server>,
    /// The server has answered on it.
    is_held: bool,
}

impl Counted {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        server.open.fetch_add(1, Ordering::Relaxed);
        Self {
            server: Arc::clone(server),
            is_held: false,
        }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Notes the first answer on the connection: the server has accepted it.
    pub(crate) fn note_answer(&mut self) {
        if !std::mem::replace(&mut self.is_held, true) {
            self.server.load.add_held();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.server.open.fetch_sub(1, Ordering::Relaxed);
        if self.is_held {
            self.server.load.remove_held();
        }
    }
}

impl Deref for Connection {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Parts {
        &mut self.0
    }
}

impl Connection {
    /// Connects to `server` until `deadline`.
    ///
    /// # Errors
    /// Why not, at stage [`Stage::Unsent`]; at [`Stage::Ours`] when this machine lacks what it takes.
    pub(crate) async fn open(server: &Arc<Server>, deadline: Instant) -> Result<Self, Failure> {
        let counted = Counted::new(server);
        let connecting = server.address.connect();
        let failed = |cause: String| Failure::new(FaultKind::ConnectFailed, Stage::Unsent, cause);
        match clock::timeout_at(deadline, connecting).await {
            Some(Ok(stream)) => {
                let mut connection = Self::new(stream, counted);
                // It may have waited: it is as doubtful as one that was used.
                connection.served = u32::from(matches!(server.address, Address::Joined(_)));
                Ok(connection)
            }
            Some(Err(error)) => Err(match shortage(&server.address, &error) {
                Some(what) => {
                    let cause = format!("cannot connect: no {what} left here: {error}");
                    Failure::new(FaultKind::Overloaded, Stage::Ours, cause)
                }
                None => failed(format!("cannot connect: {error}")),
            }),
            None => Err(failed("connect_timeout: no connection in time".to_owned())),
        }
    }

    fn new(stream: Stream, counted: Counted) -> Self {
        let now = clock::now();
        Self(Box::new(Parts {
            stream,
            deadline: LazyDeadline::new(now),
            counted,
            served: 0,
            idle_since: now,
            is_doubtful: false,
        }))
    }

    /// Moves it to the loop that this runs on.
    ///
    /// # Errors
    /// When the loop cannot watch one more descriptor.
    pub(crate) fn move_here(self) -> io::Result<Self> {
        let Parts {
            stream,
            counted,
            served,
            idle_since,
            ..
        } = *self.0;
        let socket: OwnedFd = stream.into_socket();
        Ok(Self(Box::new(Parts {
            stream: Stream::new(socket)?,
            // A timer belongs to the loop that made it.
            deadline: LazyDeadline::new(idle_since),
            counted,
            served,
            idle_since,
            is_doubtful: true,
        })))
    }

    /// Its server.
    pub(crate) fn server(&self) -> &Arc<Server> {
        self.counted.server()
    }

    /// Whether it has carried a request before: its server may have closed it meanwhile.
    pub(crate) fn is_reused(&self) -> bool {
        self.served > 0
    }
}

/// What this machine lacks, if that is why no connection to `address` could be made: it says nothing of
/// the server, and no other server could be reached either.
pub(crate) fn shortage(address: &Address, error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        EMFILE | ENFILE => Some("descriptors"),
        ENOBUFS | ENOMEM => Some("memory for sockets"),
        // Said of ports, and of an address that nothing here can reach: `::1` where IPv6 is off.
        EADDRNOTAVAIL => match address {
            Address::Tcp(address) | Address::TcpPair([address, _]) => {
                has_way_to(*address).then_some("ports to that address")
            }
            Address::Unix(_) | Address::Joined(_) => None,
        },
        _ => None,
    }
}

/// Whether this machine has an address of its own from which to reach another. Nothing is sent, and TCP's
/// ports do not matter.
fn has_way_to(address: SocketAddr) -> bool {
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
    fn what_this_machine_lacks_is_told_from_what_a_server_does() {
        let tcp = Address::Tcp("127.0.0.1:9".parse().unwrap());
        let unix = Address::Unix("/run/a.sock".into());
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
            assert_eq!(shortage(address, &error), want, "{name}");
        }
    }

    #[test]
    fn an_address_that_nothing_here_reaches_is_no_shortage() {
        // Broadcasting is refused, as no way is, without a look at ports.
        for (address, want) in [("127.0.0.1:9", true), ("255.255.255.255:9", false)] {
            assert_eq!(has_way_to(address.parse().unwrap()), want, "{address}");
        }
    }
}
