//! Users with passwords: `basic_auth` of a route (RFC 7617).
//!
//! A password is verified once, in a pool, since its hash is slow by design. That it was right is
//! remembered by a keyed digest of user, password and hash.
//!
//! # Invariants
//! - A user that does not exist costs as much time as the dearest hash of the file.
//! - Nothing keeps a password, and no message or log shows one.
//! - Attempts are counted by client before a hash is computed, and given back when they succeed.
//! - A full pool refuses: without a computed hash no request goes on.

mod password_hash;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_config::BasicAuth;
use penstock_exchange::{Fault, FaultKind, Request};
use penstock_runtime::blocking::Pool;

use self::password_hash::PasswordHash;
use crate::admission::{Admission, AdmissionRule, Decision};
use crate::failed_attempts::FailedAttempts;

/// Passwords that are remembered as right; then all are forgotten.
const MAX_VERIFIED: usize = 4096;

/// Longest `Authorization` field that is read: hashes use 72 bytes of a password at most.
const MAX_FIELD_BYTES: usize = 1024;

/// Admits the users of a route.
#[derive(Debug)]
pub struct BasicAuthRule {
    users: HashMap<Box<str>, PasswordHash>,
    /// Stands for the hash of a user that does not exist.
    decoy: PasswordHash,
    challenge: Box<str>,
    verified_passwords: Arc<VerifiedPasswords>,
    failures: FailedAttempts,
    pool: Pool,
}

/// Digests of the passwords that were right.
#[derive(Debug)]
struct VerifiedPasswords {
    key: hmac::Key,
    digests: Mutex<HashSet<[u8; 32]>>,
}

/// User and password of a request.
struct Credentials {
    user: Arc<str>,
    password: zeroize::Zeroizing<Vec<u8>>,
}

impl BasicAuthRule {
    /// The rule for the users of a route. `failures` counts for all routes together.
    ///
    /// # Errors
    /// The user whose hash cannot be read, or the lack of random numbers.
    pub fn new(rule: &BasicAuth, failures: FailedAttempts, pool: Pool) -> Result<Self, String> {
        let hash = |(user, hash): (&String, &penstock_config::Secret)| {
            let parsed = PasswordHash::parse(hash.expose());
            let parsed =
                parsed.ok_or_else(|| format!("basic_auth: the hash of `{user}` is broken"))?;
            Ok((user.as_str().into(), parsed))
        };
        let users: HashMap<Box<str>, PasswordHash> =
            rule.users.iter().map(hash).collect::<Result<_, String>>()?;
        let random = rand::SystemRandom::new();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random);
        Ok(Self {
            decoy: users
                .values()
                .max_by_key(|hash| hash.cost())
                .cloned()
                .unwrap_or_default(),
            users,
            challenge: format!("Basic realm=\"{}\", charset=\"UTF-8\"", rule.realm).into(),
            verified_passwords: Arc::new(VerifiedPasswords {
                key: key.map_err(|_| "basic_auth: no random numbers".to_owned())?,
                digests: Mutex::default(),
            }),
            failures,
            pool,
        })
    }

    fn refusal(challenge: &str, cause: &'static str) -> Fault {
        Fault::new(FaultKind::Unauthorized, cause).with_field("WWW-Authenticate", challenge)
    }
}

impl AdmissionRule for BasicAuthRule {
    fn name(&self) -> &'static str {
        "basic_auth"
    }

    fn decide(&self, request: &Request) -> Decision {
        let Some(credentials) = Credentials::of(request) else {
            return Decision::refuse(Self::refusal(&self.challenge, "no user and password"));
        };
        let found = self.users.get(&*credentials.user);
        let is_user = found.is_some();
        let hash = found.unwrap_or(&self.decoy);
        let digest = self.verified_passwords.digest(&credentials, hash);
        if is_user && self.verified_passwords.contains(&digest) {
            return Decision::Ready(Ok(Admission::of_user(credentials.user)));
        }
        let attempt = match self.failures.begin(request, "passwords") {
            Ok(attempt) => attempt,
            Err(fault) => return Decision::refuse(fault),
        };
        let (hash, pool) = (hash.clone(), self.pool.clone());
        let verified_passwords = Arc::clone(&self.verified_passwords);
        let challenge = self.challenge.clone();
        Decision::Pending(Box::pin(async move {
            let Credentials { user, password } = credentials;
            let verified = pool.run(move || hash.verify(&password)).await;
            let verified = verified.map_err(|error| {
                Fault::new(FaultKind::Overloaded, format!("basic_auth: {error}"))
            })?;
            if verified && is_user {
                verified_passwords.insert(digest);
                attempt.give_back();
                return Ok(Admission::of_user(user));
            }
            Err(Self::refusal(&challenge, "wrong user or password").into())
        }))
    }
}

impl Credentials {
    /// Those of `Authorization: Basic` (RFC 7617 §2).
    fn of(request: &Request) -> Option<Self> {
        let value = request.head.field("authorization")?;
        if value.len() > MAX_FIELD_BYTES {
            return None;
        }
        let (scheme, encoded) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let decoded = zeroize::Zeroizing::new(STANDARD.decode(encoded.trim_ascii()).ok()?);
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        let user = std::str::from_utf8(&decoded[..colon]).ok()?;
        (!user.is_empty() && !user.contains(char::is_control)).then(|| Self {
            user: user.into(),
            password: zeroize::Zeroizing::new(decoded[colon + 1..].to_vec()),
        })
    }
}

impl VerifiedPasswords {
    fn digest(&self, credentials: &Credentials, hash: &PasswordHash) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        // No user has a control character, and no hash a zero byte.
        for part in [
            credentials.user.as_bytes(),
            b"\0",
            hash.as_str().as_bytes(),
            b"\0",
        ] {
            context.update(part);
        }
        context.update(&credentials.password);
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }

    fn contains(&self, digest: &[u8; 32]) -> bool {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests.contains(digest)
    }

    fn insert(&self, digest: [u8; 32]) {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if digests.len() >= MAX_VERIFIED {
            digests.clear();
        }
        digests.insert(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_each_part() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"test");
        let verified_passwords = VerifiedPasswords {
            key,
            digests: Mutex::default(),
        };
        let credentials = |user: &str, password: &str| Credentials {
            user: user.into(),
            password: zeroize::Zeroizing::new(password.as_bytes().to_vec()),
        };
        let sha = |text: &str| PasswordHash::parse(text).unwrap();
        let (one, other) = (
            sha("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="),
            sha("{SHA}NWoZK3kTsExUV00Ywo1G5jlUKKs="),
        );
        let base = verified_passwords.digest(&credentials("anna", "pw"), &one);
        for (user, password, hash) in [
            ("anna", "pw2", &one),
            ("ann", "apw", &one),
            ("bert", "pw", &one),
            ("anna", "pw", &other),
        ] {
            let digest = verified_passwords.digest(&credentials(user, password), hash);
            assert_ne!(digest, base, "{user} {password}");
        }
        verified_passwords.insert(base);
        assert!(verified_passwords.contains(&base));
        for number in 0..=u16::try_from(MAX_VERIFIED).unwrap() {
            let mut digest = [0; 32];
            digest[..2].copy_from_slice(&number.to_le_bytes());
            verified_passwords.insert(digest);
        }
        let verified_passwords = verified_passwords.digests.lock().unwrap();
        assert!(verified_passwords.len() <= MAX_VERIFIED);
    }
}
