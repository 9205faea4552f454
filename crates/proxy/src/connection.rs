//! One connection to a server: made here, kept in the `roster` while idle, lent to one request at a
//! time.
//!
//! Its deadline stays with it, armed lazily, so that a request that is answered in time touches no
//! timer. What must stay true: it is counted with its server from the moment it is begun until it is
//! closed, wherever that happens.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use penstock_exchange::FaultKind;
use penstock_runtime::{LazyDeadline, Stream, clock};

use crate::failure::{Failure, Stage};

/// What all connections to one server share.
#[derive(Debug)]
pub(crate) struct Server {
    /// As configured, or as its name was resolved.
    pub(crate) name: Arc<str>,
    pub(crate) address: Address,
    /// Connections there are, idle and in use, and those being made.
    pub(crate) open: AtomicU32,
    /// It was seen to keep a connection behind a response. Some servers close each one without saying so,
    /// a moment after they answered: a request that meets the close cannot always be repeated.
    pub(crate) keeps: AtomicBool,
}

/// Where a server listens, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) deadline: LazyDeadline,
    pub(crate) counted: Counted,
    /// Requests that it has carried to their end.
    pub(crate) served: u32,
    /// When it was last given back.
    pub(crate) idle_since: Instant,
}

impl Server {
    /// What a `Host` field calls it: the name and port that it was found by (RFC 9110 §7.2).
    pub(crate) fn authority(&self) -> &str {
        match &self.address {
            // A name that was resolved has its address behind a blank.
            Address::Tcp(_) => self.name.split(' ').next().unwrap_or(&self.name),
            Address::Unix(_) => "localhost",
        }
    }
}

/// Counts a connection with its server while it exists.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Server>);

impl Counted {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        server.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(server))
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Connects to `server` until `deadline`.
    ///
    /// # Errors
    /// Why not, at stage [`Stage::Unsent`].
    pub(crate) async fn open(server: &Arc<Server>, deadline: Instant) -> Result<Self, Failure> {
        let counted = Counted::new(server);
        let connecting = async {
            match &server.address {
                Address::Tcp(address) => Stream::connect_tcp(*address).await,
                Address::Unix(path) => Stream::connect_unix(path).await,
            }
        };
        let failed = |cause: String| Failure::new(FaultKind::ConnectFailed, Stage::Unsent, cause);
        match clock::until(deadline, connecting).await {
            Some(Ok(stream)) => Ok(Self::new(stream, counted)),
            Some(Err(error)) => Err(failed(format!("cannot connect: {error}"))),
            None => Err(failed("connect_timeout: no connection in time".to_owned())),
        }
    }

    fn new(stream: Stream, counted: Counted) -> Self {
        let now = clock::now();
        Self {
            stream,
            deadline: LazyDeadline::new(now),
            counted,
            served: 0,
            idle_since: now,
        }
    }

    /// Moves it to the loop that this runs on.
    ///
    /// # Errors
    /// When the loop cannot watch one more descriptor.
    pub(crate) fn move_here(self) -> std::io::Result<Self> {
        let Self {
            stream,
            counted,
            served,
            idle_since,
            ..
        } = self;
        let socket: OwnedFd = stream.into_socket();
        Ok(Self {
            stream: Stream::new(socket)?,
            // A timer belongs to the loop that made it.
            deadline: LazyDeadline::new(idle_since),
            counted,
            served,
            idle_since,
        })
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
