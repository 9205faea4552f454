//! Tokens that have been verified, by their digests: a signature costs more than all else that a
//! route does with a request.
//!
//! # Invariants
//! - A token is forgotten when it expires, and all are when the keys change.
//! - No token is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest;
use serde_json::Value;

use super::Bearer;
use crate::admission::Admission;

/// Tokens that are remembered; then all are forgotten.
const MAX_TOKENS: usize = 4096;

pub(super) type TokenDigest = [u8; 32];

/// The tokens of one route.
#[derive(Debug, Default)]
pub(super) struct VerifiedTokens(Mutex<TokenMap>);

#[derive(Debug, Default)]
struct TokenMap {
    /// The version of the keys that they were verified with.
    version: u64,
    tokens: HashMap<TokenDigest, Arc<VerifiedToken>>,
}

/// A token that was verified.
#[derive(Debug)]
pub(super) struct VerifiedToken {
    bearer: Bearer,
    /// Since the epoch.
    expires_at: Duration,
}

impl VerifiedToken {
    /// A token with these claims, which have an end.
    pub(super) fn new(bearer: Bearer, claims: &Value) -> Self {
        let seconds = claims.get("exp").and_then(Value::as_f64);
        let expires_at = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            bearer,
            expires_at: expires_at.unwrap_or_default(),
        }
    }

    pub(super) fn admission(&self) -> Admission {
        Admission {
            is_authenticated: true,
            user: self.bearer.user.clone(),
            fields: self.bearer.fields.clone(),
        }
    }
}

impl VerifiedTokens {
    pub(super) fn digest(token: &str) -> TokenDigest {
        let mut copy = [0; 32];
        copy.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
        copy
    }

    /// The token of this digest, if it was verified with the keys of this version.
    pub(super) fn get(
        &self,
        digest: &TokenDigest,
        version: u64,
        now: Duration,
    ) -> Option<Arc<VerifiedToken>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let token = known.tokens.get(digest)?;
        (known.version == version && now < token.expires_at).then(|| Arc::clone(token))
    }

    pub(super) fn insert(&self, digest: TokenDigest, version: u64, token: VerifiedToken) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.version != version || known.tokens.len() >= MAX_TOKENS {
            known.tokens.clear();
            known.version = version;
        }
        known.tokens.insert(digest, Arc::new(token));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_known_until_they_expire_or_the_keys_change() {
        let verified = VerifiedTokens::default();
        let token = || VerifiedToken::new(Bearer::default(), &json!({ "exp": 1000.5 }));
        let digest = VerifiedTokens::digest("a.b.c");
        verified.insert(digest, 3, token());
        let is_known = |digest: &TokenDigest, version, millis| {
            let now = Duration::from_millis(millis);
            verified.get(digest, version, now).is_some()
        };
        assert!(is_known(&digest, 3, 1_000_499));
        assert!(!is_known(&digest, 3, 1_000_500));
        assert!(!is_known(&digest, 4, 1000));
        assert!(!is_known(&VerifiedTokens::digest("a.b.d"), 3, 1000));
        let other = VerifiedTokens::digest("other");
        verified.insert(other, 4, token());
        assert!(is_known(&other, 4, 1000) && !is_known(&digest, 4, 1000));
    }

    #[test]
    fn their_number_is_bounded() {
        let verified = VerifiedTokens::default();
        for number in 0..=MAX_TOKENS {
            let token = VerifiedToken::new(Bearer::default(), &json!({ "exp": 1000 }));
            verified.insert(VerifiedTokens::digest(&number.to_string()), 1, token);
        }
        assert_eq!(verified.0.lock().unwrap().tokens.len(), 1);
    }
}
