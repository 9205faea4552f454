//! Users with passwords: `basic_auth` of a route (RFC 7617).
//!
//! A password is verified once, in a pool, since its hash is slow by design. That it was right is
//! remembered by a keyed digest of the field that it came in.
//!
//! # Invariants
//! - A user that does not exist costs as much time as the dearest hash of the file.
//! - Nothing keeps a password, and no message or log shows one.
//! - Attempts are counted by client before a hash is computed, and given back when they succeed.
//!   Requests with the same field at a time are one attempt.
//! - A full pool refuses: without a computed hash no request goes on.

mod password_hash;
mod verified_passwords;

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_config::BasicAuth;
use penstock_exchange::{Fault, FaultKind, Request};
use penstock_runtime::blocking::Pool;

use self::password_hash::PasswordHash;
pub use self::password_hash::hash_password;
use self::verified_passwords::FieldDigest;
use crate::admission::{Admission, AdmissionRule, Decision};
use crate::failed_attempts::FailedAttempts;

pub use self::verified_passwords::VerifiedPasswords;

/// Longest `Authorization` field that is read: hashes use 72 bytes of a password at most.
const MAX_FIELD_BYTES: usize = 1024;

/// Admits the users of a route.
#[derive(Debug)]
pub struct BasicAuthRule {
    users: HashMap<Box<str>, PasswordHash>,
    /// Stands for the hash of a user that does not exist.
    decoy: PasswordHash,
    challenge: Box<str>,
    verified: Arc<VerifiedPasswords>,
    /// Stands for the users and their hashes: another password is not what was verified.
    identity: FieldDigest,
    failures: FailedAttempts,
    pool: Pool,
}

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
    /// The rule for the users of a route. `failures` counts, and `verified` remembers, for all
    /// routes together.
    ///
    /// # Errors
    /// The user whose hash cannot be read.
    pub fn new(
        rule: &BasicAuth,
        failures: FailedAttempts,
        pool: Pool,
        verified: Arc<VerifiedPasswords>,
    ) -> Result<Self, String> {
        let hash = |(user, hash): (&String, &penstock_config::Secret)| {
            let parsed = PasswordHash::parse(hash.expose());
            let parsed =
                parsed.ok_or_else(|| format!("basic_auth: the hash of `{user}` is broken"))?;
            Ok((user.as_str().into(), parsed))
        };
        let users: HashMap<Box<str>, PasswordHash> =
            rule.users.iter().map(hash).collect::<Result<_, String>>()?;
        let known = rule.users.iter();
        let known = known.flat_map(|(user, hash)| [user.as_str(), hash.expose()]);
        Ok(Self {
            identity: verified.digest(known.map(str::as_bytes)),
            verified,
            decoy: users
                .values()
                .max_by_key(|hash| hash.cost())
                .cloned()
                .unwrap_or_default(),
            users,
            challenge: format!("Basic realm=\"{}\", charset=\"UTF-8\"", rule.realm).into(),
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
        let missing = |cause| Decision::refuse(Self::refusal(&self.challenge, cause));
        let mut fields = request.head.field_values("authorization");
        let field = match (fields.next(), fields.next()) {
            (None, _) => return missing("no user and password"),
            // A back end could read another one than this rule.
            (Some(_), Some(_)) => return missing("more than one Authorization field"),
            (Some(field), None) => field,
        };
        if field.len() > MAX_FIELD_BYTES {
            return missing("an Authorization field that is too long");
        }
        let digest = self.verified.digest([&self.identity[..], field]);
        if let Some(user) = self.verified.user(&digest) {
            return Decision::Ready(Ok(Admission::of_user(user)));
        }
        let Some(credentials) = Credentials::parse(field) else {
            return missing("no user and password");
        };
        let found = self.users.get(&*credentials.user);
        let is_user = found.is_some();
        let hash = found.unwrap_or(&self.decoy).clone();
        // The requests of a page come together: one of them is the attempt.
        let (verification, is_first) = self.verified.verification(digest);
        let attempt = is_first.then(|| self.failures.begin(request, "passwords"));
        let attempt = match attempt.transpose() {
            Ok(attempt) => attempt,
            Err(fault) => return Decision::refuse(fault),
        };
        let (pool, verified) = (self.pool.clone(), Arc::clone(&self.verified));
        let challenge = self.challenge.clone();
        Decision::Pending(Box::pin(async move {
            let Credentials { user, password } = credentials;
            let outcome = verification
                .outcome(|| pool.run(move || hash.verify(&password)))
                .await;
            // Without a hash nothing has failed.
            let is_failed = matches!(outcome, Ok(false)) || matches!(outcome, Ok(true) if !is_user);
            if let Some(attempt) = attempt.filter(|_| !is_failed) {
                attempt.give_back();
            }
            let is_right = outcome.map_err(|error| {
                Fault::new(FaultKind::Overloaded, format!("basic_auth: {error}"))
            })?;
            if is_right && is_user {
                verified.insert(digest, Arc::clone(&user));
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
