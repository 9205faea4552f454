//! TLS 1.2 and 1.3: sessions over a socket, certificates, tickets, and records of held streams.
//!
//! `edge` begins sessions with clients, `proxy`, `client` and `bench` with servers. The protocol
//! itself is rustls'.
