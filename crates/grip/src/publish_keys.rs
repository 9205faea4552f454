//! The keys with which back ends publish: one for each namespace, valid for that alone.
//!
//! `penstock` gives the key of its namespace to every worker of an application with `grip`
//! (`GRIP_URL`); the admin interface verifies the tokens of publishers here.
//!
//! # Invariants
//! - A key is derived from the server's secret, which never leaves it: one key does not help to
//!   make another.
//! - A token without an end (`exp`) or its issuer is refused, and so is any algorithm but HS256.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use penstock_hub::{Namespace, Namespaces};
use penstock_runtime::clock;
use penstock_tokens::{KeyError, TokenError, Verifier};
use serde_json::{Value, json};

/// Makes the keys.
pub struct PublishKeys {
    secret: [u8; 32],
}

/// The issuer of `Grip-Sig` where it is signed with the key of a namespace; no namespace is called
/// so.
pub const REQUEST_ISSUER: &str = "penstock:requests";

/// What a key is for, beside the namespace.
const KEY_PURPOSE: &[u8] = b"penstock publish 1\0";

/// The end of a token that is as good as its key: the year 2100. A fixed one, so that a reload
/// finds the same environment and restarts no application.
const TOKEN_END: u64 = 4_102_444_800;

impl PublishKeys {
    /// The keys of a secret that is known already.
    #[must_use]
    pub fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    /// The keys of a new secret.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let mut secret = [0; 32];
        let filled = SystemRandom::new().fill(&mut secret);
        filled.map_err(|_| KeyError::NoRandomness)?;
        Ok(Self { secret })
    }

    /// The secret, for the server that replaces this one: its workers publish with the same keys.
    #[must_use]
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// The key of a namespace, as GRIP's libraries and [`penstock_tokens::Signer::new`] read
    /// it.
    #[must_use]
    pub fn publish_key(&self, namespace: &Namespace) -> String {
        format!("base64:{}", STANDARD.encode(self.key_bytes(namespace)))
    }

    /// A token that publishes in a namespace, for publishers that sign none themselves. It is
    /// valid as long as the key: it stands where the key stands.
    #[must_use]
    pub fn publish_token(&self, namespace: &Namespace) -> String {
        let claims = json!({ "iss": namespace.name(), "exp": TOKEN_END });
        let [header, claims] =
            [json!({ "alg": "HS256", "typ": "JWT" }), claims].map(|part| encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.key_bytes(namespace));
        let signature = encode(hmac::sign(&key, signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    /// The namespace that a valid token allows to publish in.
    ///
    /// # Errors
    /// Why it is not believed.
    pub fn verify(&self, token: &str, known: &Namespaces) -> Result<Namespace, TokenError> {
        self.verify_at(token, known, clock::wall_time())
    }

    /// The same at `now`, since the epoch.
    ///
    /// # Errors
    /// As [`PublishKeys::verify`].
    pub fn verify_at(
        &self,
        token: &str,
        known: &Namespaces,
        now: Duration,
    ) -> Result<Namespace, TokenError> {
        let mut why = TokenError::BadSignature;
        for namespace in known.iter() {
            let verifier = Verifier::from_secret(&self.key_bytes(namespace));
            match verifier.verify_at(token, now) {
                Ok(claims) => return check_claims(&claims, namespace),
                Err(TokenError::BadSignature) => {}
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn key_bytes(&self, namespace: &Namespace) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        let purpose = [KEY_PURPOSE, namespace.name().as_bytes()].concat();
        let mut bytes = [0; 32];
        // SHA-256 gives as many.
        bytes.copy_from_slice(hmac::sign(&key, &purpose).as_ref());
        bytes
    }
}

/// The base64 of tokens.
fn encode(part: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

/// Claims that a token must have: an end, and an issuer, since `Grip-Sig` of requests to the same
/// back end is signed with the same key ([`REQUEST_ISSUER`]) and is no secret.
fn check_claims(claims: &Value, namespace: &Namespace) -> Result<Namespace, TokenError> {
    if claims.get("exp").is_none() {
        return Err(TokenError::NoExpiry);
    }
    match claims.get("iss").and_then(Value::as_str) == Some(namespace.name()) {
        true => Ok(namespace.clone()),
        false => Err(TokenError::WrongIssuer(namespace.name().to_owned())),
    }
}

impl fmt::Debug for PublishKeys {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishKeys").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    /// A token as GRIP's libraries make it of a key.
    fn token(key: &str, header: &str, claims: &str) -> String {
        let key = STANDARD
            .decode(key.strip_prefix("base64:").unwrap())
            .unwrap();
        let signed = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header),
            URL_SAFE_NO_PAD.encode(claims)
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let signature = hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

    #[test]
    fn a_key_is_good_for_its_own_namespace() {
        let keys = PublishKeys::new([7; 32]);
        let known = Namespaces::new(["a", "b", "hub"].map(str::to_owned));
        for name in ["a", "b", "hub"] {
            let key = keys.publish_key(&Namespace::new(name));
            let claims = format!(r#"{{"iss":"{name}","exp":1000010}}"#);
            let found = keys.verify_at(&token(&key, HEADER, &claims), &known, NOW);
            assert_eq!(found, Ok(Namespace::new(name)));
            for issuer in ["c", REQUEST_ISSUER] {
                let claims = format!(r#"{{"iss":"{issuer}","exp":1000010}}"#);
                let found = keys.verify_at(&token(&key, HEADER, &claims), &known, NOW);
                assert_eq!(found, Err(TokenError::WrongIssuer(name.to_owned())));
            }
        }
        let gone = keys.publish_key(&Namespace::new("gone"));
        let found = keys.verify_at(&token(&gone, HEADER, r#"{"exp":1000010}"#), &known, NOW);
        assert_eq!(found, Err(TokenError::BadSignature));
        let other = PublishKeys::new([8; 32]).publish_key(&Namespace::new("a"));
        let found = keys.verify_at(&token(&other, HEADER, r#"{"exp":1000010}"#), &known, NOW);
        assert_eq!(found, Err(TokenError::BadSignature));
        assert_ne!(other, keys.publish_key(&Namespace::new("a")));
    }

    #[test]
    fn a_token_is_good_for_its_own_namespace() {
        let keys = PublishKeys::new([7; 32]);
        let known = Namespaces::new(["a", "b"].map(str::to_owned));
        let token = keys.publish_token(&Namespace::new("b"));
        assert_eq!(keys.verify_at(&token, &known, NOW), Ok(Namespace::new("b")));
        assert_eq!(token, keys.publish_token(&Namespace::new("b")));
        let known = Namespaces::new(["a".to_owned()]);
        let found = keys.verify_at(&token, &known, NOW);
        assert_eq!(found, Err(TokenError::BadSignature));
    }

    #[test]
    fn what_is_not_right_and_in_time_is_not_believed() {
        let keys = PublishKeys::new([7; 32]);
        let known = Namespaces::new(["a", "b"].map(str::to_owned));
        let key = keys.publish_key(&Namespace::new("a"));
        for (header, claims, expected) in [
            (HEADER, r#"{"exp":999980}"#, TokenError::Expired),
            (
                HEADER,
                r#"{"exp":1000010,"nbf":1000100}"#,
                TokenError::NotYetValid,
            ),
            (HEADER, "{}", TokenError::NoExpiry),
            (HEADER, r#"{"exp":"1000010"}"#, TokenError::Malformed),
            (
                r#"{"alg":"none"}"#,
                r#"{"exp":1000010}"#,
                TokenError::WrongAlgorithm("HS256"),
            ),
            (
                r#"{"alg":"HS512"}"#,
                r#"{"exp":1000010}"#,
                TokenError::WrongAlgorithm("HS256"),
            ),
            (
                r#"{"alg":"HS256","crit":["x"]}"#,
                r#"{"exp":1000010}"#,
                TokenError::NeedsExtension,
            ),
        ] {
            let found = keys.verify_at(&token(&key, header, claims), &known, NOW);
            assert_eq!(found, Err(expected), "{header} {claims}");
        }
        for text in ["", ".", "..", "a.b.c", &"x".repeat(20_000)] {
            assert!(keys.verify_at(text, &known, NOW).is_err());
        }
        let right = token(&key, HEADER, r#"{"iss":"a","exp":1000010}"#);
        assert!(keys.verify_at(&right, &known, NOW).is_ok());
        let none = Namespaces::default();
        assert!(keys.verify_at(&right, &none, NOW).is_err());
        let cut = &right[..right.len() - 1];
        assert!(keys.verify_at(cut, &known, NOW).is_err());
    }

    #[test]
    fn new_secrets_differ_and_no_text_shows_them() {
        let (one, other) = (
            PublishKeys::generate().unwrap(),
            PublishKeys::generate().unwrap(),
        );
        assert_ne!(one.secret(), other.secret());
        assert_eq!(format!("{one:?}"), "PublishKeys { .. }");
    }
}
