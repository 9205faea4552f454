//! Servers that join: `penstock work` on another machine becomes a server of an upstream here,
//! without a list of addresses and without a reload.
//!
//! `listener` is the front end's side: `penstock` hands it the connections of `server.join` and
//! configures which upstreams may be joined. `joiner` is the worker's side: one control connection
//! while it serves, and as many request connections as the front end asks for. The handshake is
//! `wire`'s `join`, line by line (`line_stream`), inside a TLS session whose certificate proves
//! nothing: the proofs of the handshake are bound to the session. On the front end's side `edge`
//! makes the session, on the other `joiner` does. After the handshake a joined server is like any
//! other, except that its connections are not opened but waited for (`joined_connections`).
//!
//! # Invariants
//!
//! - A client without the key learns nothing and gets no request, and neither does a machine in
//!   between.
//! - Plain TCP is used only where the configuration says so, on each side.
//! - A member whose control connection ends, or is silent for [`SILENCE_TIMEOUT`], gets no new
//!   request. Its active requests continue. If its machine is gone they end too, since TCP
//!   keep-alive probes their connections.
//! - A front end that stops or forgets an upstream announces it, and the joiner reconnects to the
//!   front end that listens then.

mod joined_connections;
mod joiner;
mod line_stream;
mod listener;
mod session;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use penstock_runtime::{DetachedStream, Stream};
use penstock_sys::net;
use penstock_wire::join::{ChannelBinding, JoinError};

pub(crate) use self::joined_connections::JoinedConnections;
pub use self::joiner::{Joiner, JoinerSetup, JoinerState, ServeConnectionFn};
pub use self::listener::JoinListener;
pub(crate) use self::listener::update_member_max_active;

/// Maximum time of a handshake, from the first line to the last.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often each side sends a heartbeat on a control connection.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// A side that is silent this long is gone.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum time to write a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections requested before the first request.
const INITIAL_CONNECTIONS: u32 = 4;

#[derive(Debug, thiserror::Error)]
enum JoinFailure {
    /// The connection failed, or no process listens.
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the connection was closed")]
    Closed,
    /// No message arrived, or could be written, in time.
    #[error("no message in time")]
    Timeout,
    /// A message violates the protocol.
    #[error("{0}")]
    Protocol(#[from] JoinError),
    /// There is no TLS session with the front end, for the reason given.
    #[error("TLS: {0}")]
    Tls(String),
    /// This side or the other refused, with a reason.
    #[error("{0}")]
    Refused(String),
}

/// Detaches a request connection, which ends once the other machine is silent.
fn detach_guarded(stream: Stream) -> DetachedStream {
    let detached = stream.detach();
    // Unix sockets support neither, and need neither.
    let _ = net::enable_keepalive_after(detached.as_fd(), SILENCE_TIMEOUT);
    let _ = net::set_user_timeout(detached.as_fd(), SILENCE_TIMEOUT);
    detached
}

/// The connection to which proofs on `stream` are bound.
fn channel_binding_of(stream: &Stream) -> ChannelBinding {
    penstock_tls::channel_binding(stream).map_or(ChannelBinding::Plain, ChannelBinding::Tls)
}

fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let drawn = SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
