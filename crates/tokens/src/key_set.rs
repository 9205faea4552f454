//! A set of public keys (JWKS, RFC 7517 §5) that may be replaced while tokens are verified.
//!
//! `penstock` fetches sets and calls [`SharedKeySet::replace`]; verifiers of tokens hold a clone.
//!
//! # Invariants
//! - The algorithm is the key's, as for single keys; a secret (`oct`) is no key of a set.
//! - A key that is not understood is left out and the rest of its set is used.
//! - A set has a bound, so that a token without `kid` costs few verifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::Notify;

use super::{ALGORITHMS, MAX_TOKEN_BYTES, TokenError, Verifier, parse_header};

/// The keys of a set.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<SetKey>,
}

#[derive(Debug)]
struct SetKey {
    id: Option<Box<str>>,
    verifier: Verifier,
}

/// Why bytes are no set of keys.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeySetError {
    /// Not an object with a list `keys`.
    #[error("it is no JSON object with a list `keys`")]
    Malformed,
    /// None with an algorithm that is known.
    #[error("none of its keys is a public key for RS, PS, ES256, ES384 or EdDSA")]
    NoKeys,
    /// More than an issuer has.
    #[error("it has more than {MAX_KEYS} keys")]
    TooManyKeys,
}

/// The most keys of a set; issuers have two or three.
const MAX_KEYS: usize = 32;

/// A key set that its owner replaces. Until it is there, no token is believed.
#[derive(Debug, Default)]
pub struct SharedKeySet {
    keys: ArcSwap<KeySet>,
    /// How often it was replaced.
    version: AtomicU64,
    unknown_key_seen: Notify,
}

impl KeySet {
    /// Reads a set.
    ///
    /// # Errors
    /// When it has no key to verify with.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        let set: Value = serde_json::from_slice(text).map_err(|_| KeySetError::Malformed)?;
        let keys = set.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or(KeySetError::Malformed)?;
        if keys.len() > MAX_KEYS {
            return Err(KeySetError::TooManyKeys);
        }
        let keys: Vec<SetKey> = keys.iter().filter_map(read_key).collect();
        match keys.is_empty() {
            true => Err(KeySetError::NoKeys),
            false => Ok(Self { keys }),
        }
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it has no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// As [`Verifier::verify_at`], with the key that the token names, or any if it names none.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify_at(&self, token: &str, now: Duration) -> Result<Value, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let header = parse_header(token)?;
        let id = header.get("kid").and_then(Value::as_str);
        let is_meant = |key: &&SetKey| id.is_none_or(|id| key.id.as_deref() == Some(id));
        let mut why = match id {
            Some(_) => TokenError::UnknownKey,
            None => TokenError::SignedByNoKey,
        };
        for key in self.keys.iter().filter(is_meant) {
            match key.verifier.verify_at(token, now) {
                // Another key of the set may be the right one.
                Err(TokenError::WrongAlgorithm(_) | TokenError::BadSignature) if id.is_none() => {}
                Err(error) => why = error,
                verified => return verified,
            }
        }
        Err(why)
    }
}

impl SharedKeySet {
    /// Takes the place of the keys before.
    pub fn replace(&self, keys: KeySet) {
        self.keys.store(Arc::new(keys));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// How often it was replaced; 0 until it is there.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// As [`KeySet::verify_at`].
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify_at(&self, token: &str, now: Duration) -> Result<Value, TokenError> {
        let verified = self.keys.load().verify_at(token, now);
        let is_unknown = |error: &TokenError| {
            matches!(error, TokenError::UnknownKey | TokenError::SignedByNoKey)
        };
        if verified.as_ref().is_err_and(is_unknown) {
            self.unknown_key_seen.notify_one();
        }
        verified
    }

    /// Waits for a token of a key that is not in the set: the issuer may have a new one.
    pub async fn wait_for_unknown_key(&self) {
        self.unknown_key_seen.notified().await;
    }
}

/// A key to verify signatures with, if it is one that is understood.
fn read_key(key: &Value) -> Option<SetKey> {
    let key: Jwk = serde_json::from_value(key.clone()).ok()?;
    let common = &key.common;
    if !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    // What the kind of key is for; the first one unless the key says which (RFC 7517 §4.4).
    let possible: &[&str] = match &key.algorithm {
        AlgorithmParameters::RSA(_) => &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
        AlgorithmParameters::EllipticCurve(curve) => {
            let (bytes, name): (usize, &[&str]) = match curve.curve {
                EllipticCurve::P256 => (32, &["ES256"]),
                EllipticCurve::P384 => (48, &["ES384"]),
                _ => return None,
            };
            // RFC 7518 §6.2.1.2: a coordinate has the length of its curve.
            let is_whole = |text: &str| {
                let decoded = URL_SAFE_NO_PAD.decode(text);
                decoded.is_ok_and(|decoded| decoded.len() == bytes)
            };
            if !is_whole(&curve.x) || !is_whole(&curve.y) {
                return None;
            }
            name
        }
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            &["EdDSA"]
        }
        _ => return None,
    };
    let named = common.key_algorithm.map(|named| named.to_string());
    let is_wanted = |name: &&&str| named.as_deref().is_none_or(|named| named == **name);
    let wanted = possible.iter().find(is_wanted)?;
    let &(name, algorithm) = ALGORITHMS.iter().find(|(name, _)| name == wanted)?;
    let decoding_key = DecodingKey::from_jwk(&key).ok()?;
    Some(SetKey {
        id: common.key_id.as_deref().map(Box::from),
        verifier: Verifier::with_key(name, algorithm, decoding_key),
    })
}

#[cfg(test)]
mod tests;
