//! Handshake messages behind the handshake: key updates in TLS 1.3, requests to renegotiate in
//! TLS 1.2. Messages may come in pieces.

use super::Violation;

/// A key update that asks for none (RFC 8446 §4.6.3).
pub(super) const KEY_UPDATE_NOT_REQUESTED: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

const CLIENT_HELLO: u8 = 1;
const KEY_UPDATE: u8 = 24;

/// A message of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeMessage {
    KeyUpdate { is_requested: bool },
    Renegotiation,
}

/// A message that has not come whole.
#[derive(Debug, Default)]
pub(super) struct HandshakeReader {
    /// Its type and length.
    pub(super) header: [u8; HEADER_BYTES],
    /// How much of the header has come.
    pub(super) header_bytes: u8,
    /// How much of a hello has not come.
    pub(super) skipped_bytes: u16,
}

pub(super) const HEADER_BYTES: usize = 4;

impl HandshakeReader {
    /// Whether a message has begun and not ended.
    pub(super) fn is_inside(&self) -> bool {
        self.header_bytes > 0 || self.skipped_bytes > 0
    }

    /// Reads one message, or all of `bytes`, and leaves the rest there.
    pub(super) fn read(
        &mut self,
        is_tls13: bool,
        bytes: &mut &[u8],
    ) -> Result<Option<HandshakeMessage>, Violation> {
        self.skip(bytes);
        while usize::from(self.header_bytes) < HEADER_BYTES {
            let Some(byte) = bytes.split_off_first() else {
                return Ok(None);
            };
            self.header[usize::from(self.header_bytes)] = *byte;
            self.header_bytes += 1;
            if self.header_bytes == 1 {
                check_type(is_tls13, *byte)?;
            }
        }
        let [_, length @ ..] = self.header;
        let length = u32::from_be_bytes([0, length[0], length[1], length[2]]);
        if is_tls13 {
            return self.read_key_update(length, bytes);
        }
        self.header_bytes = 0;
        self.skipped_bytes = u16::try_from(length).map_err(|_| Violation::RecordOverflow)?;
        self.skip(bytes);
        Ok(Some(HandshakeMessage::Renegotiation))
    }

    fn read_key_update(
        &mut self,
        length: u32,
        bytes: &mut &[u8],
    ) -> Result<Option<HandshakeMessage>, Violation> {
        if length != 1 {
            return Err(Violation::BadKeyUpdateLength);
        }
        let Some(request) = bytes.split_off_first() else {
            return Ok(None);
        };
        self.header_bytes = 0;
        let is_requested = match request {
            0 => false,
            1 => true,
            _ => return Err(Violation::BadKeyUpdateRequest),
        };
        // The rest would be under the old key (RFC 8446 §5.1).
        if !bytes.is_empty() {
            return Err(Violation::MixedHandshake);
        }
        Ok(Some(HandshakeMessage::KeyUpdate { is_requested }))
    }

    /// Drops what comes of a hello.
    fn skip(&mut self, bytes: &mut &[u8]) {
        let count = bytes.len().min(usize::from(self.skipped_bytes));
        *bytes = &bytes[count..];
        self.skipped_bytes -= u16::try_from(count).unwrap_or(self.skipped_bytes);
    }
}

fn check_type(is_tls13: bool, kind: u8) -> Result<(), Violation> {
    let expected = if is_tls13 { KEY_UPDATE } else { CLIENT_HELLO };
    if kind == expected {
        Ok(())
    } else {
        Err(Violation::UnexpectedHandshake(kind))
    }
}
