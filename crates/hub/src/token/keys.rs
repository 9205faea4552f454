//! Keys of tokens: read from a configuration, used to sign and to verify. Part of `token`.
//!
//! Secrets are bytes; public keys are PEM with a `SubjectPublicKeyInfo` (RFC 5280 §4.1) or, for
//! RSA, PKCS#1; private keys are PKCS#8.
//!
//! # Invariants
//! - A key has one algorithm; a key of another kind is refused when it is read.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
    VerificationAlgorithm,
};
use serde_json::Value;

use super::{Algorithm, KeyError};

/// A key that signs.
pub(super) enum SigningKey {
    Secret(hmac::Key),
    Rsa(Box<RsaKeyPair>),
    Ecdsa(Box<EcdsaKeyPair>),
}

/// A key that verifies signatures.
pub(super) enum VerifyingKey {
    Secret(hmac::Key),
    Public(UnparsedPublicKey<Vec<u8>>),
}

impl SigningKey {
    pub(super) fn parse(text: &str) -> Result<Self, KeyError> {
        if !is_pem(text) {
            let secret = parse_secret(text)?;
            return Ok(Self::Secret(hmac::Key::new(hmac::HMAC_SHA256, &secret)));
        }
        let kinds = "RS256 or ES256";
        let der = decode_pem(text, PEM_PRIVATE_KEY).ok_or(KeyError::NotPem {
            algorithm: kinds,
            begin: PEM_PRIVATE_KEY,
        })??;
        if let Ok(pair) = RsaKeyPair::from_pkcs8(&der) {
            return Ok(Self::Rsa(Box::new(pair)));
        }
        let curve = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(curve, &der, &SystemRandom::new());
        let pair = pair.map_err(|_| KeyError::WrongKind(kinds))?;
        Ok(Self::Ecdsa(Box::new(pair)))
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Secret(_) => Algorithm::Hs256,
            Self::Rsa(_) => Algorithm::Rs256,
            Self::Ecdsa(_) => Algorithm::Es256,
        }
    }

    /// What knows this key's signatures, where it is a secret that others have, too.
    pub(super) fn shared_secret_verifier(&self) -> Option<VerifyingKey> {
        match self {
            Self::Secret(key) => Some(VerifyingKey::Secret(key.clone())),
            Self::Rsa(_) | Self::Ecdsa(_) => None,
        }
    }

    /// The token of a header and claims.
    pub(super) fn sign_token(&self, header: &Value, claims: &Value) -> Result<String, KeyError> {
        let mut token = String::new();
        URL_SAFE_NO_PAD.encode_string(header.to_string(), &mut token);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(claims.to_string(), &mut token);
        let signature = self.sign(token.as_bytes())?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = SystemRandom::new();
        match self {
            Self::Secret(key) => Ok(hmac::sign(key, bytes).as_ref().to_vec()),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut signature)
                    .map_err(|_| KeyError::CannotSign)?;
                Ok(signature)
            }
            Self::Ecdsa(pair) => {
                let signature = pair
                    .sign(&random, bytes)
                    .map_err(|_| KeyError::CannotSign)?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}

impl VerifyingKey {
    pub(super) fn parse(text: &str, algorithm: Algorithm) -> Result<Self, KeyError> {
        let name = algorithm.name();
        let of_secret = |hash: hmac::Algorithm| {
            if is_pem(text) {
                return Err(KeyError::PemAsSecret(name));
            }
            if text.is_empty() {
                return Err(KeyError::Empty);
            }
            Ok(Self::Secret(hmac::Key::new(hash, text.as_bytes())))
        };
        match algorithm {
            Algorithm::Hs256 => of_secret(hmac::HMAC_SHA256),
            Algorithm::Hs384 => of_secret(hmac::HMAC_SHA384),
            Algorithm::Hs512 => of_secret(hmac::HMAC_SHA512),
            Algorithm::Rs256 => {
                Self::from_public_key(&RSA_PKCS1_2048_8192_SHA256, rsa_key(text, name)?)
            }
            Algorithm::Es256 => {
                let key = public_key(text, name, &P256_ALGORITHM_ID)?;
                // Uncompressed (RFC 5480 §2.2), the form that is used.
                if key.len() != 65 || key[0] != 4 {
                    return Err(KeyError::WrongKind(name));
                }
                Self::from_public_key(&ECDSA_P256_SHA256_FIXED, key)
            }
        }
    }

    /// Of HS256.
    pub(super) fn from_secret(secret: &[u8]) -> Self {
        Self::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    fn from_public_key(
        algorithm: &'static dyn VerificationAlgorithm,
        key: Vec<u8>,
    ) -> Result<Self, KeyError> {
        Ok(Self::Public(UnparsedPublicKey::new(algorithm, key)))
    }

    /// Whether `signature` is that of `bytes`, in a time that says nothing about a secret.
    pub(super) fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Secret(key) => hmac::verify(key, bytes, signature).is_ok(),
            Self::Public(key) => key.verify(bytes, signature).is_ok(),
        }
    }
}

/// The secret of a configuration.
fn parse_secret(text: &str) -> Result<Vec<u8>, KeyError> {
    let secret = match text.strip_prefix("base64:") {
        Some(coded) => STANDARD
            .decode(coded.trim())
            .map_err(|_| KeyError::Base64)?,
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

/// Decodes the lines between `begin` and the end marker.
fn decode_pem(text: &str, begin: &str) -> Option<Result<Vec<u8>, KeyError>> {
    let inside = text.trim_start().strip_prefix(begin)?;
    let inside = inside.split_once("-----END ")?.0;
    let coded: String = inside.split_ascii_whitespace().collect();
    Some(STANDARD.decode(coded).map_err(|_| KeyError::Base64))
}

fn rsa_key(text: &str, name: &'static str) -> Result<Vec<u8>, KeyError> {
    if let Some(key) = decode_pem(text, PEM_RSA_PUBLIC_KEY) {
        return key;
    }
    public_key(text, name, &RSA_ALGORITHM_ID)
}

/// The key inside a `SubjectPublicKeyInfo` of that kind.
fn public_key(text: &str, name: &'static str, kind: &[u8]) -> Result<Vec<u8>, KeyError> {
    let der = decode_pem(text, PEM_PUBLIC_KEY).ok_or(KeyError::NotPem {
        algorithm: name,
        begin: PEM_PUBLIC_KEY,
    })??;
    let key = public_key_of_info(&der, kind).ok_or(KeyError::WrongKind(name))?;
    Ok(key.to_vec())
}

fn public_key_of_info<'d>(der: &'d [u8], kind: &[u8]) -> Option<&'d [u8]> {
    let (info, rest) = der_element(der, SEQUENCE)?;
    let (algorithm, behind) = der_element(info, SEQUENCE)?;
    let (bits, after) = der_element(behind, BIT_STRING)?;
    if !rest.is_empty() || !after.is_empty() || algorithm != kind {
        return None;
    }
    // The first byte counts unused bits.
    bits.strip_prefix(&[0])
}

/// The content of the first element, and the bytes behind it (DER: X.690 §8.1, §10.1).
fn der_element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => {
            let bytes = rest.first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*bytes)), rest.get(2..)?)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// `rsaEncryption`, without parameters (RFC 3279 §2.3.1).
const RSA_ALGORITHM_ID: [u8; 13] = [
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];

/// `id-ecPublicKey` on `secp256r1` (RFC 5480 §2.1.1).
pub(super) const P256_ALGORITHM_ID: [u8; 19] = [
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d,
    0x03, 0x01, 0x07,
];
