//! Links that are good until a time: `signed_url` of a route.
//!
//! The application signs a target with a secret that it shares with the server: by HMAC-SHA256, or
//! in the form of nginx' `secure_link_md5`. This rule verifies it before the application, or a
//! folder of files, hears of the request.
//!
//! # Invariants
//! - The signature covers the whole target as the client sent it, but for itself. In nginx' form it
//!   covers what the configuration lists.
//! - A parameter that stands twice is refused: a back end might read the other one.
//! - Signatures are compared in a time that says nothing about them.
//! - A link that has expired is distinguished from a wrong one by its right signature alone.

mod query;

use std::time::Duration;

use aws_lc_rs::{constant_time, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use md5::{Digest as _, Md5};
use penstock_config::{SignedPart, SignedText, SignedUrl};
use penstock_exchange::{Fault, FaultKind, Request};
use penstock_http::normalise_path;
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

use self::query::{SignedQuery, find_parameter};
use crate::admission::{AdmissionRule, Decision};

/// Admits requests with a signature.
pub struct SignedUrlRule {
    form: SignatureForm,
    methods: Box<[String]>,
    expires_parameter: Box<str>,
    signature_parameter: Box<str>,
}

/// How links are signed. Of several keys each one is good.
enum SignatureForm {
    Hmac {
        keys: Box<[hmac::Key]>,
        /// Whether a link is good for one address alone.
        names_client: bool,
    },
    Md5 {
        text: SignedText,
        secrets: Box<[zeroize::Zeroizing<Vec<u8>>]>,
    },
}

/// Why a request is refused. The texts are for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum LinkProblem {
    #[error("its method is not one that links are for")]
    Method,
    #[error("it has no signature, or no end")]
    NotSigned,
    #[error("a parameter of the signature stands twice")]
    Ambiguous,
    #[error("its signature is wrong")]
    WrongSignature,
    /// 410.
    #[error("it has expired")]
    Expired,
}

impl SignedUrlRule {
    /// The rule of a route.
    #[must_use]
    pub fn new(rule: &SignedUrl) -> Self {
        let secrets = rule.secrets.iter();
        Self {
            form: match &rule.md5 {
                Some(text) => SignatureForm::Md5 {
                    text: text.clone(),
                    secrets: secrets
                        .map(|secret| secret.expose().as_bytes().to_vec().into())
                        .collect(),
                },
                None => SignatureForm::Hmac {
                    keys: secrets
                        .map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes()))
                        .collect(),
                    names_client: rule.client,
                },
            },
            methods: rule.methods.clone().into(),
            expires_parameter: rule.expires_parameter.as_str().into(),
            signature_parameter: rule.signature_parameter.as_str().into(),
        }
    }

    fn judge(&self, request: &Request, now: Duration) -> Result<(), LinkProblem> {
        let method = request.head.method_str();
        if !self.methods.iter().any(|known| known == method) {
            return Err(LinkProblem::Method);
        }
        // Whatever the route makes of it: the link is what was signed.
        let target = request.client_target();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts = SignedQuery::split(query, &self.signature_parameter)?;
        let expires = find_parameter(query, &self.expires_parameter)?;
        let is_right = match &self.form {
            SignatureForm::Hmac { keys, names_client } => {
                let mut message = Vec::with_capacity(128);
                for part in [&*request.client_prefix(), path, "?"] {
                    message.extend_from_slice(part.as_bytes());
                }
                parts.append_rest(&mut message);
                if *names_client {
                    message.push(b'\n');
                    append_client(request, &mut message);
                }
                let signature = decode(parts.signature);
                let is_signed = |key: &hmac::Key| hmac::verify(key, &message, &signature).is_ok();
                keys.iter().any(is_signed)
            }
            SignatureForm::Md5 { text, secrets } => {
                let signature = decode(parts.signature);
                let is_signed = |secret: &zeroize::Zeroizing<Vec<u8>>| {
                    let message = signed_text(text, (secret, expires), path, request);
                    let digest = Md5::digest(&*message);
                    constant_time::verify_slices_are_equal(&digest, &signature).is_ok()
                };
                secrets.iter().any(is_signed)
            }
        };
        match is_right {
            false => Err(LinkProblem::WrongSignature),
            true => self.check_end(expires, now),
        }
    }

    /// A link has an end unless nginx' form leaves it out.
    fn check_end(&self, expires: Option<&str>, now: Duration) -> Result<(), LinkProblem> {
        let needs_end = match &self.form {
            SignatureForm::Hmac { .. } => true,
            SignatureForm::Md5 { text, .. } => text.parts().contains(&SignedPart::Expires),
        };
        if !needs_end {
            return Ok(());
        }
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let seconds = expires.filter(is_number).and_then(|text| text.parse().ok());
        let end = Duration::from_secs(seconds.ok_or(LinkProblem::NotSigned)?);
        match now < end {
            true => Ok(()),
            false => Err(LinkProblem::Expired),
        }
    }
}

impl AdmissionRule for SignedUrlRule {
    fn name(&self) -> &'static str {
        "signed_url"
    }

    fn decide(&self, request: &Request) -> Decision {
        let refused = match self.judge(request, clock::wall_time()) {
            Ok(()) => return Decision::admit(),
            Err(refused) => refused,
        };
        let kind = match refused {
            LinkProblem::Expired => FaultKind::Gone,
            _ => FaultKind::Forbidden,
        };
        Decision::refuse(Fault::new(kind, format!("signed_url: {refused}")))
    }
}

/// For fuzzing: a query without its signature has its other parameters, in order.
pub(crate) fn check_query(query: &str) {
    let Ok(parts) = SignedQuery::split(query, "signature") else {
        return;
    };
    let mut rest = Vec::new();
    parts.append_rest(&mut rest);
    let is_other = |pair: &&str| !pair.starts_with("signature=") && !pair.is_empty();
    let others = query.split('&').filter(is_other).map(str::as_bytes);
    let left = rest.split(|byte| *byte == b'&');
    assert!(left.filter(|pair| !pair.is_empty()).eq(others));
}

/// The bytes of a signature: base64 for URLs, with or without its padding, or hexadecimal digits.
/// Another text has no bytes.
fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    if bytes.len() == 64 && bytes.iter().all(u8::is_ascii_hexdigit) {
        let pairs = text.as_bytes().chunks_exact(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        return pairs.filter_map(byte).collect();
    }
    let bare = text.trim_end_matches('=');
    URL_SAFE_NO_PAD.decode(bare).unwrap_or_default()
}

/// The text that nginx' form signs; the path is decoded, as its `$uri`.
fn signed_text(
    text: &SignedText,
    (secret, expires): (&[u8], Option<&str>),
    path: &str,
    request: &Request,
) -> zeroize::Zeroizing<Vec<u8>> {
    let mut out = zeroize::Zeroizing::new(Vec::with_capacity(128));
    for part in text.parts() {
        match part {
            SignedPart::Text(text) => out.extend_from_slice(text.as_bytes()),
            SignedPart::Secret => out.extend_from_slice(secret),
            SignedPart::Expires => out.extend_from_slice(expires.unwrap_or_default().as_bytes()),
            SignedPart::Client => append_client(request, &mut out),
            SignedPart::Path => {
                let prefix = request.client_prefix();
                for part in [&*prefix, path] {
                    // In normal form: a path that has none was refused before.
                    let normal = normalise_path(part);
                    out.extend(normal.iter().flat_map(|normal| &*normal.path));
                }
            }
        }
    }
    out
}

fn append_client(request: &Request, out: &mut Vec<u8>) {
    match request.client_address() {
        PeerAddress::Tcp(address) => out.extend(address.ip().to_string().bytes()),
        PeerAddress::Unix => out.extend_from_slice(b"unix"),
    }
}

impl std::fmt::Debug for SignedUrlRule {
    /// Leaves out the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignedUrlRule")
            .field("signature_parameter", &self.signature_parameter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
