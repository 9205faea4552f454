//! Upstreams: servers behind one name, their slots and one queue, the connections to them, and the
//! relay of requests and bytes.
//!
//! The way of a request: [`Upstream`] (a handler) reads its body (`exchange::bodies`), `call` claims a
//! place at a server from the `roster` or waits in its line, takes a kept connection or makes one,
//! sends the head that `forward` writes anew, and reads the response through the `codec` of the
//! server's protocol. A response that is not here at once goes on in a `relay` task through a spool, so
//! that a slow client never holds a slot. What must stay true: a server never has more in progress than
//! its bound; a connection carries one request at a time and is dropped after any doubt; a request is
//! repeated only where that is safe; bytes of one response never reach another client.

mod answer;
mod balance;
mod budget;
mod call;
mod claim;
mod codec;
mod connection;
mod ejection;
mod environ;
mod failure;
mod forward;
mod head;
mod join;
mod maintain;
mod manage;
mod own_address;
mod probe;
mod relay;
mod resolve;
mod roster;
mod saturation;
mod source;
mod talk;
#[cfg(test)]
mod testing;
mod tunnel;
mod upstream;

pub use environ::names_script;
pub use join::{Front, Joiner, JoinerSetup, JoinerState, ServeDialled};
pub use manage::{Change, ManageError};
pub use resolve::look_up;
pub use roster::{Counts, ServerSnapshot};
pub use upstream::{Buffering, Setup, Upstream, UpstreamSnapshot};
