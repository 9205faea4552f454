//! Moves ticket keys to another process: at an upgrade, or to another machine of a cluster.
//!
//! The form is `"PTK" | version (1) | keys`, and a key is `name (16) | created (8, big endian) |
//! secret (32)`, newest first. Another version is refused, and the server then begins with a key of
//! its own: clients of earlier tickets make one full handshake.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::{KeyRing, MAX_KEYS, NAME_LEN, SECRET_LEN, TicketKey, TicketKeys};

/// The bytes are no export of ticket keys of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these are no ticket keys of version 1: another version of Penstock wrote them")]
pub struct InvalidTicketKeys;

const HEADER: &[u8] = b"PTK\x01";
const CREATED_LEN: usize = 8;
const KEY_LEN: usize = NAME_LEN + CREATED_LEN + SECRET_LEN;

impl TicketKeys {
    /// All keys that still open tickets. Secret: over a private socket or encrypted, never to a
    /// file or a log.
    pub fn export(&self) -> Zeroizing<Vec<u8>> {
        let ring = self.ring.load();
        let mut bytes = Zeroizing::new(Vec::with_capacity(HEADER.len() + MAX_KEYS * KEY_LEN));
        bytes.extend_from_slice(HEADER);
        for key in &ring.0 {
            bytes.extend_from_slice(&key.name);
            bytes.extend_from_slice(&key.created.to_be_bytes());
            bytes.extend_from_slice(&*key.secret);
        }
        bytes
    }

    /// Adds the keys of an export to those of this process, and continues with the newest of all.
    /// Returns the number of keys that are in use then.
    pub fn import(&self, bytes: &[u8]) -> Result<usize, InvalidTicketKeys> {
        let imported = parse(bytes)?;
        let now = self.now().unwrap_or(0);
        let _changes = self.changes.lock();
        let mut keys: Vec<Arc<TicketKey>> = self.ring.load().0.clone();
        keys.retain(|key| imported.iter().all(|other| other.name != key.name));
        keys.extend(imported.into_iter().map(Arc::new));
        keys.retain(|key| key.may_open(now));
        let ring = KeyRing::new(keys);
        let count = ring.0.len();
        self.ring.store(Arc::new(ring));
        Ok(count)
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<TicketKey>, InvalidTicketKeys> {
    let keys = bytes.strip_prefix(HEADER).ok_or(InvalidTicketKeys)?;
    let (keys, rest) = keys.as_chunks::<KEY_LEN>();
    if !rest.is_empty() || keys.len() > MAX_KEYS {
        return Err(InvalidTicketKeys);
    }
    let key = |bytes: &[u8; KEY_LEN]| {
        let (name, rest) = bytes.split_first_chunk::<NAME_LEN>()?;
        let (created, secret) = rest.split_first_chunk::<CREATED_LEN>()?;
        let secret = Zeroizing::new(<[u8; SECRET_LEN]>::try_from(secret).ok()?);
        TicketKey::new(*name, u64::from_be_bytes(*created), secret).ok()
    };
    keys.iter()
        .map(|bytes| key(bytes).ok_or(InvalidTicketKeys))
        .collect()
}
