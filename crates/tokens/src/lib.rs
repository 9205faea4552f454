//! Signed tokens (RFC 7519 in the compact form of RFC 7515): signed for back ends, verified from
//! clients.
//!
//! `grip` puts one into requests (`Grip-Sig`) with a [`Signer`]; `mercure` reads those of
//! publishers and subscribers with a [`Verifier`], `rules` those of a route with `jwt`.
//! `jsonwebtoken` encodes, decodes and checks signatures, in a time that says nothing about a
//! secret.
//!
//! # Invariants
//! - The algorithm is the key's and never the token's choice, so neither `none` nor a public key
//!   used as a secret is accepted (RFC 8725 §3.1).
//! - A key has one algorithm; a key of another kind is refused when it is read.
//! - Of a token nothing but its header is read before its signature is verified.
//! - A token that is not understood is refused.

mod key_set;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use penstock_runtime::clock;
use serde_json::{Map, Value, json};
use thiserror::Error;

pub use key_set::{KeySet, KeySetError, SharedKeySet};

/// Why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Nothing by that name, or `none`.
    #[error(
        "`{0}` is no algorithm of tokens: HS, RS and PS with 256, 384 or 512, ES256, ES384 and \
         EdDSA are"
    )]
    UnknownAlgorithm(String),
    /// Anyone could sign with it.
    #[error("the key is empty")]
    Empty,
    /// It can be guessed (RFC 7518 §3.2).
    #[error("{algorithm} needs a secret of at least {min_bytes} bytes")]
    TooShort {
        /// The algorithm.
        algorithm: &'static str,
        /// As many as its hash has.
        min_bytes: usize,
    },
    /// A public key is no secret.
    #[error("{0} needs a secret, and the key is in PEM form")]
    PemAsSecret(&'static str),
    /// Not base64 behind `base64:`, or in PEM.
    #[error("the key is not valid base64")]
    InvalidBase64,
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
    NoRandomness,
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
    /// Its audience (`aud`) does not have the receiver's name.
    #[error("the token's audience (aud) does not have `{0}`")]
    WrongAudience(String),
    /// The key that it names (`kid`) is not in the set.
    #[error("the token names a key (kid) that the set does not have")]
    UnknownKey,
    /// It names no key, and none of the set has signed it.
    #[error("none of the keys of the set has signed the token")]
    SignedByNoKey,
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
    algorithm: Algorithm,
    key: EncodingKey,
    /// What others sign with the same secret.
    shared_secret_verifier: Option<Verifier>,
    issuer: Box<str>,
    /// The last one made; held for a look or for the making of one, never across a wait.
    cached_token: Mutex<Option<CachedToken>>,
}

struct CachedToken {
    token: Arc<str>,
    /// Since the epoch.
    signed_at: Duration,
}

/// Reads tokens of one key.
pub struct Verifier {
    algorithm_name: &'static str,
    key: DecodingKey,
    validation: Validation,
}

/// The keys that tokens are verified with.
#[derive(Debug, Clone)]
pub enum TokenKeys {
    /// One.
    Single(Arc<Verifier>),
    /// Those of a set, which may change.
    Set(Arc<SharedKeySet>),
}

/// The algorithms of keys (RFC 7518 §3.1, RFC 8037 §3.1), by their names in tokens.
const ALGORITHMS: [(&str, Algorithm); 12] = [
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// What a public key is for that says nothing else, one for each kind of key.
const PUBLIC_KEY_ALGORITHMS: [&str; 4] = ["RS256", "ES256", "ES384", "EdDSA"];

/// The algorithms of private keys, for errors.
const SIGNING_ALGORITHMS: &str = "RS256 or ES256";

/// The longest token that is looked at.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// How long a token is good for: what GRIP's clients expect.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// A token is used for so long. Its receiver's clock may be wrong by the rest of the hour.
const RENEW_AFTER: Duration = Duration::from_secs(1200);

/// By how much the issuer's clock may be wrong (RFC 7519 §4.1.4).
const LEEWAY: Duration = Duration::from_secs(10);

impl Signer {
    /// Signs for `issuer` with `key`: a secret (HS256), `base64:` and a secret that is not text, or
    /// a private key in PEM form (PKCS#8; RS256 or ES256, whichever it is for).
    ///
    /// # Errors
    /// When the key is none of these.
    pub fn new(key: &str, issuer: &str) -> Result<Self, KeyError> {
        let (algorithm, key, shared_secret_verifier) = parse_signing_key(key)?;
        let signer = Self {
            algorithm,
            key,
            shared_secret_verifier,
            issuer: issuer.into(),
            cached_token: Mutex::new(None),
        };
        // A key that cannot sign is an error at start, not during requests.
        let made = signer.make_token(Duration::ZERO);
        made.map_err(|_| KeyError::WrongKind(SIGNING_ALGORITHMS))?;
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

    fn make_token(&self, now: Duration) -> jsonwebtoken::errors::Result<String> {
        let until = (now + TOKEN_LIFETIME).as_secs();
        let claims = json!({ "iss": &*self.issuer, "exp": until });
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, &self.key)
    }
}

impl Verifier {
    /// Accepts tokens that are signed with `algorithm` and `key`: a secret for HMAC, else a public
    /// key in PEM form.
    ///
    /// # Errors
    /// When the algorithm is unknown or the key is not for it.
    pub fn new(key: &str, algorithm: &str) -> Result<Self, KeyError> {
        let known = ALGORITHMS.iter().find(|(name, _)| *name == algorithm);
        let &(name, algorithm) =
            known.ok_or_else(|| KeyError::UnknownAlgorithm(algorithm.to_owned()))?;
        let key = match algorithm {
            Algorithm::RS256
            | Algorithm::RS384
            | Algorithm::RS512
            | Algorithm::PS256
            | Algorithm::PS384
            | Algorithm::PS512 => {
                let begins = [PEM_PUBLIC_KEY, PEM_RSA_PUBLIC_KEY];
                let der = parse_public_key(key, name, &begins, &RSA_PKCS1_2048_8192_SHA256)?;
                DecodingKey::from_rsa_der(&der)
            }
            Algorithm::ES256 => {
                let der = parse_public_key(key, name, &[PEM_PUBLIC_KEY], &ECDSA_P256_SHA256_FIXED)?;
                DecodingKey::from_ec_der(&der)
            }
            Algorithm::ES384 => {
                let der = parse_public_key(key, name, &[PEM_PUBLIC_KEY], &ECDSA_P384_SHA384_FIXED)?;
                DecodingKey::from_ec_der(&der)
            }
            Algorithm::EdDSA => {
                let der = parse_public_key(key, name, &[PEM_PUBLIC_KEY], &ED25519)?;
                DecodingKey::from_ed_der(&der)
            }
            _ if is_pem(key) => return Err(KeyError::PemAsSecret(name)),
            _ if key.is_empty() => return Err(KeyError::Empty),
            _ => DecodingKey::from_secret(key.as_bytes()),
        };
        Ok(Self::with_key(name, algorithm, key))
    }

    /// Accepts tokens that are signed with a key as it stands in a file: a public key in PEM form,
    /// which tells its algorithm, or a secret, as it is or in base64 behind `base64:`, for HS256
    /// unless `algorithm` says another.
    ///
    /// # Errors
    /// When the key is none of these, not for the algorithm, or can be guessed.
    pub fn from_key_text(text: &str, algorithm: Option<&str>) -> Result<Self, KeyError> {
        let text = text.trim();
        if is_pem(text) {
            return match algorithm {
                Some(algorithm) => Self::new(text, algorithm),
                None => PUBLIC_KEY_ALGORITHMS
                    .iter()
                    .find_map(|name| Self::new(text, name).ok())
                    .ok_or(KeyError::WrongKind("RS256, ES256, ES384 or EdDSA")),
            };
        }
        let wanted = algorithm.unwrap_or("HS256");
        let known = ALGORITHMS.iter().find(|(name, _)| *name == wanted);
        let &(name, algorithm) =
            known.ok_or_else(|| KeyError::UnknownAlgorithm(wanted.to_owned()))?;
        let min_bytes = match algorithm {
            Algorithm::HS256 => 32,
            Algorithm::HS384 => 48,
            Algorithm::HS512 => 64,
            _ => return Self::new(text, name),
        };
        let secret = parse_secret(text)?;
        if secret.len() < min_bytes {
            return Err(KeyError::TooShort {
                algorithm: name,
                min_bytes,
            });
        }
        Ok(Self::with_key(
            name,
            algorithm,
            DecodingKey::from_secret(&secret),
        ))
    }

    /// Accepts tokens that are signed with this secret and HS256.
    #[must_use]
    pub fn from_secret(secret: &[u8]) -> Self {
        let (name, algorithm) = ALGORITHMS[0];
        Self::with_key(name, algorithm, DecodingKey::from_secret(secret))
    }

    fn with_key(algorithm_name: &'static str, algorithm: Algorithm, key: DecodingKey) -> Self {
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.validate_aud = false;
        // Of the caller's time (`check_times`).
        validation.validate_exp = false;
        Self {
            algorithm_name,
            key,
            validation,
        }
    }

    /// The claims of a token that is valid now.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify(&self, token: &str) -> Result<Value, TokenError> {
        self.verify_at(token, clock::wall_time())
    }

    /// As [`Verifier::verify`] at `now`, since the epoch.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify_at(&self, token: &str, now: Duration) -> Result<Value, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        self.check_header(&parse_header(token)?)?;
        let decoded = jsonwebtoken::decode(token, &self.key, &self.validation);
        let claims: Map<String, Value> = match decoded {
            Ok(decoded) => decoded.claims,
            Err(error) => {
                return Err(match error.kind() {
                    ErrorKind::InvalidSignature => TokenError::BadSignature,
                    _ => TokenError::Malformed,
                });
            }
        };
        check_times(&claims, now)?;
        Ok(Value::Object(claims))
    }

    /// `jsonwebtoken` knows no `crit`, and takes an algorithm that it does not know for malformed.
    fn check_header(&self, header: &Map<String, Value>) -> Result<(), TokenError> {
        if header.get("alg").and_then(Value::as_str) != Some(self.algorithm_name) {
            return Err(TokenError::WrongAlgorithm(self.algorithm_name));
        }
        match header.get("crit") {
            None => Ok(()),
            Some(_) => Err(TokenError::NeedsExtension),
        }
    }
}

impl TokenKeys {
    /// The claims of a token that is valid now.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify(&self, token: &str) -> Result<Value, TokenError> {
        match self {
            Self::Single(verifier) => verifier.verify(token),
            Self::Set(keys) => keys.verify_at(token, clock::wall_time()),
        }
    }

    /// Changes whenever another set of keys is there; 0 until there is one.
    #[must_use]
    pub fn version(&self) -> u64 {
        match self {
            Self::Single(_) => 1,
            Self::Set(keys) => keys.version(),
        }
    }
}

impl TokenError {
    /// Whether a key of the receiver has signed the token, which is not good for another reason, or
    /// the token names a key that the receiver may not have yet: nothing was guessed.
    #[must_use]
    pub fn is_honest(&self) -> bool {
        matches!(
            self,
            Self::Expired
                | Self::NotYetValid
                | Self::NoExpiry
                | Self::WrongIssuer(_)
                | Self::WrongAudience(_)
                | Self::UnknownKey
        )
    }
}

/// The header of a token, of which nothing is verified yet.
fn parse_header(token: &str) -> Result<Map<String, Value>, TokenError> {
    let header = token.split('.').next().unwrap_or_default();
    let header = URL_SAFE_NO_PAD.decode(header);
    let header = header.map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&header).map_err(|_| TokenError::Malformed)
}

/// Whether it is neither too late nor too early for a token. One that does not say is always in
/// time.
fn check_times(claims: &Map<String, Value>, now: Duration) -> Result<(), TokenError> {
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

/// The key of a signer, and a verifier of what others sign with it if it is a secret.
fn parse_signing_key(text: &str) -> Result<(Algorithm, EncodingKey, Option<Verifier>), KeyError> {
    if !is_pem(text) {
        let secret = parse_secret(text)?;
        let verifier = Verifier::from_secret(&secret);
        return Ok((
            Algorithm::HS256,
            EncodingKey::from_secret(&secret),
            Some(verifier),
        ));
    }
    if !text.trim_start().starts_with(PEM_PRIVATE_KEY) {
        return Err(KeyError::NotPem {
            algorithm: SIGNING_ALGORITHMS,
            begin: PEM_PRIVATE_KEY,
        });
    }
    let pem = text.as_bytes();
    let ecdsa = EncodingKey::from_ec_pem(pem).map(|key| (Algorithm::ES256, key));
    let key = ecdsa.or_else(|_| EncodingKey::from_rsa_pem(pem).map(|key| (Algorithm::RS256, key)));
    let (algorithm, key) = key.map_err(|_| KeyError::WrongKind(SIGNING_ALGORITHMS))?;
    Ok((algorithm, key, None))
}

/// The secret of a configuration.
fn parse_secret(text: &str) -> Result<Vec<u8>, KeyError> {
    let secret = match text.strip_prefix("base64:") {
        Some(coded) => STANDARD
            .decode(coded.trim())
            .map_err(|_| KeyError::InvalidBase64)?,
        None => text.as_bytes().to_vec(),
    };
    match secret.is_empty() {
        true => Err(KeyError::Empty),
        false => Ok(secret),
    }
}

const PEM_PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----";
const PEM_PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_RSA_PUBLIC_KEY: &str = "-----BEGIN RSA PUBLIC KEY-----";

/// Whether a text is meant to be PEM (RFC 7468).
fn is_pem(text: &str) -> bool {
    text.trim_start().starts_with("-----BEGIN ")
}

/// The bytes of a public key in PEM form, if it is one for this algorithm.
fn parse_public_key(
    text: &str,
    name: &'static str,
    begins: &[&'static str],
    algorithm: &'static dyn VerificationAlgorithm,
) -> Result<Vec<u8>, KeyError> {
    let mut inside = begins.iter().filter_map(|begin| {
        text.trim_start()
            .strip_prefix(begin)?
            .split_once("-----END ")
    });
    let (coded, _) = inside.next().ok_or(KeyError::NotPem {
        algorithm: name,
        begin: PEM_PUBLIC_KEY,
    })?;
    let coded: String = coded.split_ascii_whitespace().collect();
    let der = STANDARD
        .decode(coded)
        .map_err(|_| KeyError::InvalidBase64)?;
    ParsedPublicKey::new(algorithm, &der).map_err(|_| KeyError::WrongKind(name))?;
    Ok(der)
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
            .field("algorithm", &self.algorithm_name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
