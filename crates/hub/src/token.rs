//! Signed tokens (RFC 7519 in the compact form of RFC 7515): signed for back ends, verified from
//! clients.
//!
//! `grip` puts one into requests (`Grip-Sig`) with a [`Signer`]; `mercure` reads those of
//! publishers and subscribers with a [`Verifier`]. The cryptography is `ring`'s.
//!
//! # Invariants
//! - The algorithm is the key's and never the token's choice, so neither `none` nor a public key
//!   used as a secret is accepted (RFC 8725 §3.1).
//! - Nothing in a token is read before its signature is verified, except the name of its
//!   algorithm.
//! - A token that is not understood is refused.

mod keys;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_runtime::clock;
use serde_json::Value;
use thiserror::Error;

use keys::{SigningKey, VerifyingKey};

/// How a token is signed (RFC 7518 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA, PKCS#1 v1.5, with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
}

/// Why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Nothing by that name, or `none`.
    #[error("`{0}` is no algorithm of tokens: HS256, HS384, HS512, RS256 or ES256 is")]
    Algorithm(String),
    /// Anyone could sign with it.
    #[error("the key is empty")]
    Empty,
    /// A public key is no secret.
    #[error("{0} needs a secret, and the key is in PEM form")]
    PemAsSecret(&'static str),
    /// Not base64 behind `base64:`, or in PEM.
    #[error("the key is not valid base64")]
    Base64,
    /// It has no PEM lines of that kind.
    #[error("{algorithm} needs a key in PEM form that begins with `{begin}`")]
    NotPem {
        /// The algorithm.
        algorithm: &'static str,
        /// The first line that was looked for.
        begin: &'static str,
    },
    /// Its inside is something else.
    #[error("the key is not one for {0}")]
    WrongKind(&'static str),
    /// The machine has no random numbers.
    #[error("the key cannot sign")]
    CannotSign,
}

/// Why a token is refused. The texts are for the log; clients get less.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TokenError {
    /// More than [`MAX_TOKEN_BYTES`].
    #[error("the token is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// Not three parts of base64 with JSON objects in the first two.
    #[error("the token is malformed")]
    Malformed,
    /// Another algorithm than the key's.
    #[error("the token is not signed with {0}")]
    WrongAlgorithm(&'static str),
    /// It demands an extension (`crit`, RFC 7515 §4.1.11).
    #[error("the token needs an extension")]
    NeedsExtension,
    /// It has no `exp`, and must have one.
    #[error("the token never expires (exp)")]
    NoExpiry,
    /// Its issuer (`iss`) is another one.
    #[error("the token's issuer (iss) is not `{0}`")]
    WrongIssuer(String),
    /// Not signed with the key.
    #[error("the token's signature is wrong")]
    BadSignature,
    /// `exp` is over.
    #[error("the token has expired")]
    Expired,
    /// `nbf` is still to come.
    #[error("the token is not valid yet")]
    NotYetValid,
}

/// Signs tokens that name the sender of a request, each valid for an hour.
pub struct Signer {
    key: SigningKey,
    /// What others sign with the same secret.
    shared_secret_verifier: Option<Verifier>,
    issuer: Box<str>,
    /// The last one made; held for a look or for the making of one, never across a wait.
    cached_token: Mutex<Option<CachedToken>>,
}

/// A token that was made.
struct CachedToken {
    token: Arc<str>,
    /// Since the epoch.
    signed_at: Duration,
}

/// Reads tokens of one key.
pub struct Verifier {
    key: VerifyingKey,
    algorithm: Algorithm,
}

/// The longest token that is looked at.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// How long a token is good for: what GRIP's clients expect.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// A token is used for so long. Its receiver's clock may be wrong by the rest of the hour.
const RENEW_AFTER: Duration = Duration::from_secs(1200);

/// By how much the issuer's clock may be wrong (RFC 7519 §4.1.4).
const LEEWAY: Duration = Duration::from_secs(10);

impl Algorithm {
    /// Its name in tokens.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
        }
    }
}

impl FromStr for Algorithm {
    type Err = KeyError;

    fn from_str(name: &str) -> Result<Self, KeyError> {
        let all = [
            Self::Hs256,
            Self::Hs384,
            Self::Hs512,
            Self::Rs256,
            Self::Es256,
        ];
        let found = all.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| KeyError::Algorithm(name.to_owned()))
    }
}

impl Signer {
    /// Signs for `issuer` with `key`: a secret (HS256), `base64:` and a secret that is not text, or
    /// a private key in PEM form (PKCS#8; RS256 or ES256, whichever it is for).
    ///
    /// # Errors
    /// When the key is none of these.
    pub fn new(key: &str, issuer: &str) -> Result<Self, KeyError> {
        let key = SigningKey::parse(key)?;
        let others = key.shared_secret_verifier().map(|shared| Verifier {
            key: shared,
            algorithm: key.algorithm(),
        });
        let signer = Self {
            key,
            shared_secret_verifier: others,
            issuer: issuer.into(),
            cached_token: Mutex::new(None),
        };
        // A key that cannot sign is an error at start, not during requests.
        signer.make_token(Duration::ZERO)?;
        Ok(signer)
    }

    /// A token for a request at `now`, since the epoch. The same one for some time.
    #[must_use]
    pub fn sign(&self, now: Duration) -> Arc<str> {
        let mut made = self
            .cached_token
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*made
            // A clock that was set back makes it look too young.
            && now.checked_sub(made.signed_at).is_some_and(|age| age < RENEW_AFTER)
        {
            return Arc::clone(&made.token);
        }
        match self.make_token(now) {
            Ok(token) => {
                let token: Arc<str> = token.into();
                *made = Some(CachedToken {
                    token: Arc::clone(&token),
                    signed_at: now,
                });
                token
            }
            Err(error) => {
                log::error!("grip: a request is not signed: {error}");
                made.as_ref()
                    .map_or_else(|| Arc::from(""), |made| Arc::clone(&made.token))
            }
        }
    }

    /// Whether a valid token was signed with the same secret, by this server or another. Never with
    /// a private key.
    #[must_use]
    pub fn is_signed_with_same_secret(&self, token: &[u8]) -> bool {
        let verifier = self.shared_secret_verifier.as_ref();
        let token = std::str::from_utf8(token).ok();
        verifier
            .zip(token)
            .is_some_and(|(verifier, token)| verifier.verify(token).is_ok())
    }

    fn make_token(&self, now: Duration) -> Result<String, KeyError> {
        let header = serde_json::json!({ "alg": self.key.algorithm().name(), "typ": "JWT" });
        let until = (now + TOKEN_LIFETIME).as_secs();
        let claims = serde_json::json!({ "iss": &*self.issuer, "exp": until });
        self.key.sign_token(&header, &claims)
    }
}

impl Verifier {
    /// Accepts tokens that are signed with `algorithm` and `key`: a secret for HMAC, else a public
    /// key in PEM form.
    ///
    /// # Errors
    /// When the algorithm is unknown or the key is not for it.
    pub fn new(key: &str, algorithm: &str) -> Result<Self, KeyError> {
        let algorithm = algorithm.parse()?;
        let key = VerifyingKey::parse(key, algorithm)?;
        Ok(Self { key, algorithm })
    }

    /// Accepts tokens that are signed with this secret and HS256.
    #[must_use]
    pub fn from_secret(secret: &[u8]) -> Self {
        Self {
            key: VerifyingKey::from_secret(secret),
            algorithm: Algorithm::Hs256,
        }
    }

    /// The claims of a token that is valid now.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify(&self, token: &str) -> Result<Value, TokenError> {
        self.verify_at(token, clock::wall())
    }

    /// As [`Verifier::verify`] at `now`, since the epoch.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify_at(&self, token: &str, now: Duration) -> Result<Value, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        self.check_header(&decode_object(header)?)?;
        let signature = decode_base64(signature)?;
        if !self.key.verifies(signed.as_bytes(), &signature) {
            return Err(TokenError::BadSignature);
        }
        let claims = decode_object(claims)?;
        check_times(&claims, now)?;
        Ok(claims)
    }

    fn check_header(&self, header: &Value) -> Result<(), TokenError> {
        let name = self.algorithm.name();
        if header.get("alg").and_then(Value::as_str) != Some(name) {
            return Err(TokenError::WrongAlgorithm(name));
        }
        match header.get("crit") {
            None => Ok(()),
            Some(_) => Err(TokenError::NeedsExtension),
        }
    }
}

/// Whether it is neither too late nor too early for a token. One that does not say is always in
/// time.
fn check_times(claims: &Value, now: Duration) -> Result<(), TokenError> {
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        // RFC 7519 §2: a number, which may have a fraction.
        Some(value) => value.as_f64().map(Some).ok_or(TokenError::Malformed),
    };
    let (now, leeway) = (now.as_secs_f64(), LEEWAY.as_secs_f64());
    if time("exp")?.is_some_and(|until| now >= until + leeway) {
        return Err(TokenError::Expired);
    }
    if time("nbf")?.is_some_and(|from| now < from - leeway) {
        return Err(TokenError::NotYetValid);
    }
    Ok(())
}

/// The JSON object in one part of a token.
fn decode_object(part: &str) -> Result<Value, TokenError> {
    let value = serde_json::from_slice(&decode_base64(part)?).map_err(|_| TokenError::Malformed)?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(TokenError::Malformed),
    }
}

/// RFC 7515 §2: no padding, and no second spelling of the same bytes.
fn decode_base64(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| TokenError::Malformed)
}

impl fmt::Debug for Signer {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("issuer", &self.issuer)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Verifier {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
