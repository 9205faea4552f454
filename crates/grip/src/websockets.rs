//! WebSocket over HTTP: WebSockets for applications that only handle requests.
//!
//! A client's WebSocket ends here. Its messages go to the back end as a POST of events, the
//! response goes to the client, and messages of its channels (`control_message`) come from the
//! hub; no worker is held meanwhile. `handshake` opens the WebSocket, `session` drives it to its
//! end, `apply_events` applies the back end's events, `backend_client` sends its requests;
//! `websocket_events` and `control_message` are pure.
//!
//! # Invariants
//! - A WebSocket has one request in progress at a time, and its events stay in order.
//! - Messages of the client that arrive meanwhile are bounded, then not read.
//! - A back end that fails closes the WebSocket with a code for that.

mod apply_events;
mod backend_client;
mod control_message;
pub(super) mod fuzzing;
mod handshake;
mod session;
#[cfg(test)]
mod tests;
mod websocket_events;

pub(super) use handshake::handle_upgrade;
