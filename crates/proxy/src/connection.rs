//! One connection to a server: opened here, kept in `server_pool` while idle, and lent to one
//! request at a time.
//!
//! Its deadline stays with it, armed lazily, so that a request with a timely response touches no
//! timer.
//!
//! # Invariants
//!
//! - A connection counts with its server from the beginning of connecting until it is closed,
//!   wherever that happens.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use penstock_exchange::FaultKind;
use penstock_runtime::{LazyDeadline, Stream, clock};
use rustix::io::Errno;

use crate::failure::{AttemptFailure, AttemptStage};
use crate::join::JoinedConnections;
use crate::saturation::ServerLoad;
use crate::upstream_tls::{ConnectionPurpose, TlsConnector, TlsFailure};

/// The state shared by all connections to one server.
#[derive(Debug)]
pub(crate) struct BackendServer {
    /// As configured, or as the name was resolved.
    pub(crate) name: Arc<str>,
    pub(crate) address: ResolvedAddress,
    /// The `Host` for this server: the name and port it was resolved from (RFC 9110 §7.2).
    pub(crate) authority: Arc<str>,
    /// Open connections: idle, in use and being made.
    pub(crate) open_connections: AtomicU32,
    /// Whether the server was seen to keep a connection open after a response. Some servers close
    /// each connection a moment after the response without announcing it, and a request that meets
    /// the close cannot always be repeated.
    pub(crate) keeps_alive: AtomicBool,
    /// The server is on trial: its next successful response head restores it.
    pub(crate) is_on_trial: AtomicBool,
    /// How many connections the server handles at once, as far as its responses show.
    pub(crate) load: ServerLoad,
}

#[derive(Debug, Clone)]
pub(crate) enum ResolvedAddress {
    Tcp(SocketAddr),
    /// The second is for a server that does not listen at the first.
    TcpPair([SocketAddr; 2]),
    Unix(PathBuf),
    /// The server joins: it opens connections to this side.
    Joined(Arc<JoinedConnections>),
}

impl ResolvedAddress {
    /// The joined connections, if no more of them can arrive.
    pub(crate) fn exhausted_joined_connections(&self) -> Option<&JoinedConnections> {
        match self {
            Self::Joined(joined) => Some(&**joined).filter(|joined| joined.is_exhausted()),
            Self::Tcp(_) | Self::TcpPair(_) | Self::Unix(_) => None,
        }
    }

    /// Connects; the caller bounds the wait.
    ///
    /// # Errors
    /// The connection could not be made.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(address) => Stream::connect_tcp(*address).await,
            Self::TcpPair([first, second]) => match Stream::connect_tcp(*first).await {
                Ok(stream) => Ok(stream),
                // The first address's error is reported, unless the second connects.
                Err(error) => Stream::connect_tcp(*second).await.map_err(|_| error),
            },
            Self::Unix(path) => Stream::connect_unix(path).await,
            Self::Joined(joined) => joined.acquire().await,
        }
    }
}

/// A connection to a server. Boxed, as it moves several times with each request.
pub(crate) type UpstreamConnection = Box<UpstreamConnectionInner>;

#[derive(Debug)]
pub(crate) struct UpstreamConnectionInner {
    pub(crate) stream: Stream,
    pub(crate) deadline: LazyDeadline,
    pub(crate) count_guard: ConnectionCountGuard,
    /// Requests completed on this connection.
    pub(crate) requests_served: u32,
    /// That of the [`TlsConnector`] that secured it; 0 without TLS.
    pub(crate) tls_epoch: u32,
    /// When it was last released.
    pub(crate) idle_since: Instant,
    /// Its last response had no body, or it comes from another loop: unsolicited bytes may not have
    /// been noticed yet.
    pub(crate) needs_liveness_check: bool,
}

impl BackendServer {
    pub(crate) fn new(name: Arc<str>, address: ResolvedAddress) -> Self {
        let authority = match &address {
            // A resolved name has its address behind a blank.
            ResolvedAddress::Tcp(_) | ResolvedAddress::TcpPair(_) => {
                name.split(' ').next().unwrap_or(&name).into()
            }
            ResolvedAddress::Unix(_) | ResolvedAddress::Joined(_) => "localhost".into(),
        };
        Self {
            name,
            authority,
            open_connections: 0.into(),
            // Only this side closes a joined connection.
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
    pub(crate) server: Arc<BackendServer>,
    /// The server has responded on it.
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

    /// Counts the connection as answered: the server has accepted it.
    pub(crate) fn count_answered(&mut self) {
        if !std::mem::replace(&mut self.has_answered, true) {
            self.server.load.add_served_connection();
        }
    }
}

impl Drop for ConnectionCountGuard {
    fn drop(&mut self) {
        self.server.open_connections.fetch_sub(1, Ordering::Relaxed);
        if self.has_answered {
            self.server.load.remove_served_connection();
        }
    }
}

/// What happens on a new connection before its first request.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSetup {
    /// The PROXY protocol header. It comes before TLS, as with HAProxy and nginx.
    pub(crate) proxy_header: Option<Vec<u8>>,
    pub(crate) tls: Option<(Arc<TlsConnector>, ConnectionPurpose)>,
}

/// Why a new connection is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("cannot send the PROXY header: {0}")]
    ProxyHeader(#[from] io::Error),
    #[error("cannot connect: {0}")]
    Tls(#[from] TlsFailure),
}

impl ConnectionSetup {
    /// Prepares a new connection to `server`; the caller bounds the wait.
    ///
    /// # Errors
    /// The connection broke, or the server has not proved its name.
    pub(crate) async fn prepare(
        &self,
        stream: Stream,
        server: &BackendServer,
    ) -> Result<Stream, SetupError> {
        if let Some(header) = &self.proxy_header {
            stream.write_all(header).await?;
        }
        match &self.tls {
            // The other side of a joined connection has proved its key.
            Some((tls, purpose)) if !matches!(server.address, ResolvedAddress::Joined(_)) => {
                Ok(tls.secure(stream, server, *purpose).await?)
            }
            _ => Ok(stream),
        }
    }
}

impl UpstreamConnectionInner {
    /// Connects to `server` until `deadline`.
    ///
    /// # Errors
    /// At stage [`AttemptStage::Unsent`]; at [`AttemptStage::Local`] if this machine lacks a
    /// resource.
    pub(crate) async fn open(
        server: &Arc<BackendServer>,
        setup: &ConnectionSetup,
        deadline: Instant,
    ) -> Result<UpstreamConnection, AttemptFailure> {
        let count_guard = ConnectionCountGuard::new(server);
        let failed = |cause: String| {
            AttemptFailure::new(FaultKind::ConnectFailed, AttemptStage::Unsent, cause)
        };
        let stream = match clock::timeout_at(deadline, server.address.connect()).await {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                return Err(match exhausted_local_resource(&server.address, &error) {
                    Some(what) => {
                        let cause = format!("cannot connect: out of {what} on this host: {error}");
                        AttemptFailure::local(FaultKind::Overloaded, cause)
                    }
                    None => failed(format!("cannot connect: {error}")),
                });
            }
            None => return Err(failed("connect_timeout: no connection in time".to_owned())),
        };
        let stream = match clock::timeout_at(deadline, setup.prepare(stream, server)).await {
            Some(prepared) => prepared.map_err(|error| failed(error.to_string()))?,
            None => {
                let cause = "connect_timeout: no TLS handshake in time";
                return Err(failed(cause.to_owned()));
            }
        };
        Ok(Box::new(Self {
            stream,
            deadline: LazyDeadline::new(clock::now()),
            // A joined one may have waited: treat it like a reused one.
            requests_served: u32::from(matches!(server.address, ResolvedAddress::Joined(_))),
            tls_epoch: setup.tls.as_ref().map_or(0, |(tls, _)| tls.epoch),
            count_guard,
            idle_since: clock::now(),
            needs_liveness_check: false,
        }))
    }

    /// Moves the connection to the current loop.
    ///
    /// # Errors
    /// The loop cannot watch another descriptor.
    pub(crate) fn move_to_this_loop(self) -> io::Result<UpstreamConnection> {
        let stream = self.stream.into_current_loop()?;
        Ok(Box::new(Self {
            stream,
            // A timer belongs to the loop that made it.
            deadline: LazyDeadline::new(self.idle_since),
            needs_liveness_check: true,
            count_guard: self.count_guard,
            requests_served: self.requests_served,
            tls_epoch: self.tls_epoch,
            idle_since: self.idle_since,
        }))
    }

    pub(crate) fn idle_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.idle_since)
    }

    /// Whether it has carried a request before: the server may have closed it meanwhile.
    pub(crate) fn is_reused(&self) -> bool {
        self.requests_served > 0
    }
}

/// The resource that this machine lacks, if that is why no connection to `address` could be made.
/// It does not blame the server, and no other server could be reached either.
pub(crate) fn exhausted_local_resource(
    address: &ResolvedAddress,
    error: &io::Error,
) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE | Errno::NFILE => Some("descriptors"),
        Errno::NOBUFS | Errno::NOMEM => Some("memory for sockets"),
        // Reported for exhausted ports and for unreachable addresses: `::1` where IPv6 is off.
        Errno::ADDRNOTAVAIL => match address {
            ResolvedAddress::Tcp(address) | ResolvedAddress::TcpPair([address, _]) => {
                has_route_to(*address).then_some("ports to that address")
            }
            ResolvedAddress::Unix(_) | ResolvedAddress::Joined(_) => None,
        },
        _ => None,
    }
}

/// Whether this machine has a source address to reach `address`. Sends nothing and does not depend
/// on TCP ports.
fn has_route_to(address: SocketAddr) -> bool {
    let any = match address.is_ipv4() {
        true => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        false => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address));
    connected.is_ok()
}

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
        for (name, number, address, expected) in rows {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(
                exhausted_local_resource(address, &error),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn an_unreachable_address_is_no_shortage() {
        // Broadcast is refused like a missing route, without a look at ports.
        for (address, expected) in [("127.0.0.1:9", true), ("255.255.255.255:9", false)] {
            assert_eq!(
                has_route_to(address.parse().unwrap()),
                expected,
                "{address}"
            );
        }
    }
}
