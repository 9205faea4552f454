//! The TLS session of a client's connection: for logs, applications and rules.
//!
//! `tls` makes it when a handshake is complete; handlers find it in [`crate::ClientState`].

use crate::ClientVerification;

/// What a handshake has settled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.2` or `TLSv1.3`, as in nginx' `$ssl_protocol`.
    pub version: &'static str,
    /// The IANA name of the cipher suite without its prefix, such as `AES_128_GCM_SHA256`.
    pub cipher: Box<str>,
    /// The number of the version (RFC 8446 §4.2.1).
    pub version_number: u16,
    /// The number of the cipher suite, as IANA lists it.
    pub cipher_number: u16,
    /// The name that the client asked for (RFC 6066 §3), in lower case.
    pub server_name: Option<Box<str>>,
    /// The protocol that both sides agreed on (RFC 7301).
    pub alpn: Option<Box<[u8]>>,
    /// Whether an earlier session was resumed.
    pub is_resumed: bool,
    /// The peer's certificates in DER, its own first, if it sent any.
    pub peer_certificates: Box<[Box<[u8]>]>,
    /// What a client has proved about itself.
    pub client: ClientVerification,
}
