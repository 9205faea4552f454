//! Session tickets: sealed by keys that rotate, move to the next process at an upgrade, and are the
//! same for all event loops.
//!
//! A ticket holds the whole session, so that resumption needs no store (RFC 8446 §4.6.1, RFC 5077).
//! It is `key name (16) | nonce (12) | AES-256-GCM of the session | tag (16)`, and the name is
//! authenticated.
//!
//! Which sessions resume where: rustls resumes a session only for the server name that it was made
//! for, and asks the resolver for a certificate first, so that no session outlives its site.
//! Configurations that ask for client certificates have no tickets at all (`server_config`). A
//! resumed session would repeat the proof of an earlier one, for a certificate that may have
//! expired or been revoked meanwhile, and on a virtual host that asks another authority
//! (CVE-2025-23419).
//!
//! # Invariants
//!
//! - A key seals for `ROTATION` and opens for `LIFETIME` more; then it is erased. A thief of the
//!   keys can read recorded TLS 1.2 sessions of that time, and can pose as this server to clients
//!   that resume. Recorded TLS 1.3 sessions stay secret: resumption has a fresh key exchange, and
//!   early data is off.
//! - A ticket of an unknown key, or a damaged one, leads to a full handshake and to no error.
//! - Keys are in no log: `Debug` shows their number.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use parking_lot::Mutex;
use rustls::server::ProducesTickets;
use rustls::time_provider::TimeProvider;
use zeroize::Zeroizing;

#[cfg(test)]
mod tests;
mod transfer;

pub use transfer::InvalidTicketKeys;

/// How long one key seals tickets. Four keys a day, as nginx's and Apache's guides advise for
/// servers that exchange keys by themselves.
pub const ROTATION: Duration = Duration::from_secs(6 * 3600);

/// How long a ticket can be used, and the lifetime that clients see. RFC 8446 §4.6.1 allows seven
/// days; half a day brings back the visitors of a day and keeps few keys that are worth stealing.
pub const LIFETIME: Duration = Duration::from_secs(12 * 3600);

/// How far the clock of the machine that made a key may be ahead.
const CLOCK_SKEW: u64 = 3600;

/// Tickets under one key. Nonces are random: up to 2^32, the chance that two are equal stays below
/// 2^-32 (NIST SP 800-38D §8.3). A key that reaches half of that is replaced early.
const MAX_SEALS: u64 = 1 << 31;

/// Keys that are kept at most: three by age, more after rotations by number or from other machines.
const MAX_KEYS: usize = 16;

const NAME_LEN: usize = 16;
const SECRET_LEN: usize = 32;

/// The keys of all tickets of this server. Shared by all event loops and configurations.
pub struct TicketKeys {
    ring: ArcSwap<KeyRing>,
    /// Held while keys are replaced; readers take the ring without it.
    changes: Mutex<()>,
    clock: Arc<dyn TimeProvider>,
}

/// The keys, newest first.
#[derive(Default)]
struct KeyRing(Vec<Arc<TicketKey>>);

struct TicketKey {
    name: [u8; NAME_LEN],
    /// When it was made, in seconds since the Unix epoch.
    created: u64,
    /// For the export.
    secret: Zeroizing<[u8; SECRET_LEN]>,
    cipher: LessSafeKey,
    seals: AtomicU64,
}

impl TicketKeys {
    /// Keys without an export of another process; the first is made when it is needed.
    pub fn new(clock: Arc<dyn TimeProvider>) -> Self {
        let ring = ArcSwap::from_pointee(KeyRing::default());
        Self {
            ring,
            changes: Mutex::new(()),
            clock,
        }
    }

    fn now(&self) -> Option<u64> {
        self.clock.current_time().map(|now| now.as_secs())
    }

    /// The key for new tickets; makes one when the newest is too old or too much used.
    fn sealing_key(&self, now: u64) -> Result<Arc<TicketKey>, Unspecified> {
        let newest = |ring: &KeyRing| {
            let key = ring.0.first().filter(|key| key.may_seal(now));
            key.map(Arc::clone)
        };
        if let Some(key) = newest(&self.ring.load()) {
            return Ok(key);
        }
        let _changes = self.changes.lock();
        // Another loop may have made it meanwhile.
        if let Some(key) = newest(&self.ring.load()) {
            return Ok(key);
        }
        let key = Arc::new(TicketKey::generate(now)?);
        let kept = self
            .ring
            .load()
            .0
            .iter()
            .filter(|key| key.may_open(now))
            .cloned()
            .collect();
        self.ring.store(Arc::new(KeyRing::new(
            [vec![Arc::clone(&key)], kept].concat(),
        )));
        Ok(key)
    }
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(LIFETIME.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.sealing_key(self.now()?).ok()?.seal(session).ok()
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, sealed) = ticket.split_first_chunk::<NAME_LEN>()?;
        let now = self.now()?;
        let ring = self.ring.load();
        let key = ring.0.iter().find(|key| key.name == *name)?;
        key.may_open(now).then(|| key.open(sealed))?
    }
}

impl KeyRing {
    /// Keys in any order.
    fn new(mut keys: Vec<Arc<TicketKey>>) -> Self {
        keys.sort_by_key(|key| std::cmp::Reverse(key.created));
        keys.truncate(MAX_KEYS);
        Self(keys)
    }
}

impl TicketKey {
    fn generate(now: u64) -> Result<Self, Unspecified> {
        let mut name = [0; NAME_LEN];
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        rand::fill(&mut name)?;
        rand::fill(&mut *secret)?;
        Self::new(name, now, secret)
    }

    fn new(
        name: [u8; NAME_LEN],
        created: u64,
        secret: Zeroizing<[u8; SECRET_LEN]>,
    ) -> Result<Self, Unspecified> {
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*secret)?);
        Ok(Self {
            name,
            created,
            secret,
            cipher,
            seals: AtomicU64::new(0),
        })
    }

    /// A key from the future is not used: the clock was set back, and its end would not come.
    fn age(&self, now: u64) -> Option<u64> {
        (self.created <= now.saturating_add(CLOCK_SKEW)).then(|| now.saturating_sub(self.created))
    }

    fn may_seal(&self, now: u64) -> bool {
        let is_young = self.age(now).is_some_and(|age| age < ROTATION.as_secs());
        is_young && self.seals.load(Ordering::Relaxed) < MAX_SEALS
    }

    fn may_open(&self, now: u64) -> bool {
        let max = (ROTATION + LIFETIME).as_secs();
        self.age(now).is_some_and(|age| age < max)
    }

    fn seal(&self, session: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce)?;
        let start = NAME_LEN + NONCE_LEN;
        let mut ticket = Vec::with_capacity(start + session.len() + AES_256_GCM.tag_len());
        ticket.extend(self.name);
        ticket.extend(nonce);
        ticket.extend(session);
        let (name, nonce) = (Aad::from(self.name), Nonce::assume_unique_for_key(nonce));
        let session = &mut ticket[start..];
        let tag = self
            .cipher
            .seal_in_place_separate_tag(nonce, name, session)?;
        ticket.extend(tag.as_ref());
        self.seals.fetch_add(1, Ordering::Relaxed);
        Ok(ticket)
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut session = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self
            .cipher
            .open_in_place(nonce, Aad::from(self.name), &mut session);
        let len = opened.ok()?.len();
        session.truncate(len);
        Some(session)
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.ring.load().0.len();
        f.debug_struct("TicketKeys")
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}
