//! Servers that dial in: `penstock work` on another machine becomes a server of an upstream here, without a list of
//! addresses and without a reload.
//!
//! `front` is the side that listens: `penstock` gives it the connections of `server.join` and tells it which upstreams may
//! be joined. `joiner` is the side that dials: one control connection for as long as it serves, and as many that carry
//! requests as the front end asks for. Both meet by `wire`'s `join`, line by line (`lines`). From then on a member is
//! a server like any other, with one difference: a connection to it is not made, but waited for (`dialled`).
//!
//! What must stay true: nobody without the key is told anything or gets a request; a member whose control connection ends,
//! or is silent for [`SILENCE_TIMEOUT`], gets no new request; what it has in progress goes on, and ends by itself where its machine is gone,
//! since its connections are asked, too, when they are silent; a front end that stops or forgets an upstream says so, and the
//! joiner comes back, to whoever listens then.

mod joined_connections;
mod joiner;
mod line_stream;
mod listener;

use std::io;
use std::time::Duration;

use penstock_wire::join::{JoinError, Nonce};
use ring::rand::{SecureRandom, SystemRandom};

pub(crate) use self::joined_connections::JoinedConnections;
pub use self::joiner::{Joiner, JoinerSetup, JoinerState, ServeConnection};
pub use self::listener::JoinListener;
pub(crate) use self::listener::update_member_capacity;

/// How long a meeting may take, from the first line to the last.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often each side says on a control connection that it is there.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// After so long without a word the other side is gone.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a word may take to be taken.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that are asked for before the first request.
const INITIAL_CONNECTIONS: u32 = 4;

/// Why two sides have not met, or do not hear each other any more.
#[derive(Debug, thiserror::Error)]
enum JoinFailure {
    /// The connection's, or that nobody listens.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has closed it.
    #[error("the connection was closed")]
    Closed,
    /// Nothing was heard, or taken.
    #[error("nothing was heard in time")]
    Timeout,
    /// What it said is not of this protocol.
    #[error("{0}")]
    Protocol(#[from] JoinError),
    /// This side has said why not, or was told.
    #[error("{0}")]
    Refused(String),
}

/// A nonce that nobody has seen.
fn random_nonce() -> io::Result<Nonce> {
    let mut bytes = [0; 16];
    let drawn = SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(Nonce(bytes))
}

/// A number by which nobody is known yet.
fn random_id() -> io::Result<u64> {
    let Nonce(bytes) = random_nonce()?;
    let (half, _) = bytes.split_at(8);
    Ok(half.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests;
