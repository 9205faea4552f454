//! Users with passwords: `basic_auth` of a route (RFC 7617).
//!
//! A password is verified once, in a pool, since its hash is slow by design. That it was right is
//! remembered by a keyed digest of the field that it came in.
//!
//! # Invariants
//! - A user that does not exist costs as much time as the dearest hash of the file.
//! - Nothing keeps a password, and no message or log shows one.
//! - Attempts are counted by client before a hash is computed, and given back when they succeed.
//! - A full pool refuses: without a computed hash no request goes on.

mod password_hash;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_config::BasicAuth;
use penstock_exchange::{Fault, FaultKind, Request};
use penstock_runtime::blocking::Pool;
use siphasher::sip128::{Hasher128, SipHasher24};

use self::password_hash::PasswordHash;
use crate::admission::{Admission, AdmissionRule, Decision};
use crate::failed_attempts::FailedAttempts;

/// Fields of a generation that are remembered as right.
const MAX_YOUNG: usize = 2048;

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

/// The `Authorization` fields that were right, by digest: SipHash-2-4 of 128 bits, a keyed
/// function for which no second field is found without the key.
struct VerifiedPasswords {
    key: [u8; 16],
    generations: Mutex<Generations>,
}

/// When the young generation is full, the old one is forgotten. A field that is used again becomes
/// young again.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<FieldDigest, Arc<str>>,
    old: HashMap<FieldDigest, Arc<str>>,
}

type FieldDigest = u128;

/// User and password of a request.
struct Credentials {
    user: Arc<str>,
    password: zeroize::Zeroizing<Vec<u8>>,
}

/// The users of a route whose hashes cannot be verified, or cost beyond all reason.
pub fn users_with_unusable_hashes(rule: &BasicAuth) -> impl Iterator<Item = &str> {
    let users = rule.users.iter();
    let unusable = users.filter(|(_, hash)| PasswordHash::parse(hash.expose()).is_none());
    unusable.map(|(user, _)| user.as_str())
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
        let mut key = [0; 16];
        rand::fill(&mut key).map_err(|_| "basic_auth: no random numbers".to_owned())?;
        Ok(Self {
            decoy: users
                .values()
                .max_by_key(|hash| hash.cost())
                .cloned()
                .unwrap_or_default(),
            users,
            challenge: format!("Basic realm=\"{}\", charset=\"UTF-8\"", rule.realm).into(),
            verified_passwords: Arc::new(VerifiedPasswords::new(key)),
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
        let field = request.head.field("authorization").unwrap_or_default();
        let missing = || Decision::refuse(Self::refusal(&self.challenge, "no user and password"));
        if field.is_empty() || field.len() > MAX_FIELD_BYTES {
            return missing();
        }
        let digest = self.verified_passwords.digest(field);
        if let Some(user) = self.verified_passwords.user(&digest) {
            return Decision::Ready(Ok(Admission::of_user(user)));
        }
        let Some(credentials) = Credentials::parse(field) else {
            return missing();
        };
        let found = self.users.get(&*credentials.user);
        let is_user = found.is_some();
        let hash = found.unwrap_or(&self.decoy);
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
                verified_passwords.insert(digest, Arc::clone(&user));
                attempt.give_back();
                return Ok(Admission::of_user(user));
            }
            Err(Self::refusal(&challenge, "wrong user or password").into())
        }))
    }
}

impl Credentials {
    /// Those of `Authorization: Basic` (RFC 7617 §2).
    fn parse(field: &[u8]) -> Option<Self> {
        let (scheme, encoded) = field.split_at_checked(6)?;
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

impl fmt::Debug for VerifiedPasswords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("VerifiedPasswords")
    }
}

impl VerifiedPasswords {
    fn new(key: [u8; 16]) -> Self {
        let generations = Mutex::default();
        Self { key, generations }
    }

    fn digest(&self, field: &[u8]) -> FieldDigest {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(field);
        hasher.finish128().as_u128()
    }

    /// The user whose field has this digest, if it was right.
    fn user(&self, digest: &FieldDigest) -> Option<Arc<str>> {
        let mut kept = self.lock();
        if let Some(user) = kept.young.get(digest) {
            return Some(Arc::clone(user));
        }
        let user = kept.old.remove(digest)?;
        kept.insert(*digest, Arc::clone(&user));
        Some(user)
    }

    fn insert(&self, digest: FieldDigest, user: Arc<str>) {
        self.lock().insert(digest, user);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn insert(&mut self, digest: FieldDigest, user: Arc<str>) {
        if self.young.len() >= MAX_YOUNG {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_in_use_are_remembered_and_others_forgotten() {
        let verified_passwords = VerifiedPasswords::new([7; 16]);
        let digest = |field: &str| verified_passwords.digest(field.as_bytes());
        assert_ne!(digest("Basic YTpi"), digest("Basic YTpj"));
        let (used, unused) = (digest("used"), digest("unused"));
        verified_passwords.insert(used, "anna".into());
        verified_passwords.insert(unused, "bert".into());
        for number in 0..4 * MAX_YOUNG {
            verified_passwords.insert(digest(&number.to_string()), "other".into());
            assert_eq!(verified_passwords.user(&used).as_deref(), Some("anna"));
        }
        assert_eq!(verified_passwords.user(&unused), None);
        let kept = verified_passwords.lock();
        assert!(kept.young.len() <= MAX_YOUNG && kept.old.len() <= MAX_YOUNG);
    }
}
