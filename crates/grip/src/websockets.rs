//! WebSockets for applications that only know requests: WebSocket-over-HTTP.
//!
//! A client's WebSocket ends here. What it sends goes to the back end as a POST of events, what that answers
//! goes to the client, and what it subscribes to (`control`) comes from the hub; no worker is held
//! meanwhile. [`asked`] asks the back end whether it takes the WebSocket, `session` has it until its end
//! (`apply_events` does what the back end says), `dialog` asks, `events` and `control` are pure.
//!
//! What must stay true: one request of a WebSocket is under way at a time, and its events are in order; what
//! a client sends while the back end works is bounded, and then not read; a back end that fails ends the
//! WebSocket with a code that says so.

mod apply_events;
mod control_message;
mod events_client;
pub(super) mod fuzzing;
mod handshake;
mod session;
#[cfg(test)]
mod tests;
mod websocket_events;

pub(super) use handshake::handle_upgrade;
