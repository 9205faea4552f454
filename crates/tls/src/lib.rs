//! TLS 1.2 and 1.3: sessions over a socket, certificates, tickets, and records of held streams.
//!
//! `edge` makes sessions with clients, `proxy`, `client` and `bench` with servers. The protocol
//! itself is rustls'.

mod handshake;
mod layer;
mod session;

pub use handshake::{
    ConfigSelector, EstablishedSession, HandshakeError, accept, connect, session_info,
};
