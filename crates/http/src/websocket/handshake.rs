//! The server's side of the opening handshake (RFC 6455 §4.2).
//!
//! Called by `apps` for upgrade requests. The application decides which origins may connect.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1_smol::Sha1;

use crate::grammar::list_elements;
use crate::{BodyFraming, Method, RequestHead};

/// The result of checking a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandshakeCheck {
    /// No WebSocket: an ordinary request, even if it offers another protocol.
    NotWebSocket,
    /// A valid handshake, with the value of `Sec-WebSocket-Accept`.
    Valid { accept: String },
    /// A WebSocket of another version: 426, with `Sec-WebSocket-Version: 13` (RFC 6455 §4.2.2).
    UnsupportedVersion,
    /// An invalid handshake: 400.
    Invalid(&'static str),
}

/// Checks whether a request is a WebSocket handshake.
#[must_use]
pub fn check_handshake(head: &RequestHead) -> HandshakeCheck {
    if !head.is_upgrade() || !field_contains(head, "upgrade", "websocket") {
        return HandshakeCheck::NotWebSocket;
    }
    if head.method() != Method::Get {
        return HandshakeCheck::Invalid("a WebSocket handshake must use GET");
    }
    if head.framing() != BodyFraming::None {
        return HandshakeCheck::Invalid("a WebSocket handshake has no body");
    }
    let mut versions = head.field_values("sec-websocket-version");
    if versions.next() != Some(b"13") || versions.next().is_some() {
        return HandshakeCheck::UnsupportedVersion;
    }
    let mut keys = head.field_values("sec-websocket-key");
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return HandshakeCheck::Invalid("a WebSocket handshake has one Sec-WebSocket-Key");
    };
    // Sixteen bytes, in base64 (RFC 6455 §4.1).
    let mut nonce = [0; 18];
    if key.len() != 24 || STANDARD.decode_slice(key, &mut nonce) != Ok(16) {
        return HandshakeCheck::Invalid("Sec-WebSocket-Key is not sixteen bytes in base64");
    }
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(GUID);
    let accept = STANDARD.encode(hash.digest().bytes());
    HandshakeCheck::Valid { accept }
}

/// The subprotocols that a client offers, in its order of preference (RFC 6455 §4.1).
pub fn offered_subprotocols(head: &RequestHead) -> impl Iterator<Item = &[u8]> {
    head.field_values("sec-websocket-protocol")
        .flat_map(list_elements)
}

fn field_contains(head: &RequestHead, name: &str, word: &str) -> bool {
    let mut listed = head.field_values(name).flat_map(list_elements);
    listed.any(|listed| listed.eq_ignore_ascii_case(word.as_bytes()))
}

/// RFC 6455 §1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
