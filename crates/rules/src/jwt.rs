//! Tokens of an identity provider: `jwt` of a route (RFC 7519, RFC 6750).
//!
//! A token is looked for in the request, verified with the key or the set of keys, and compared with
//! what the route expects of its claims. What was verified is remembered by a digest of the token
//! until it expires or the keys change.
//!
//! # Invariants
//! - The algorithm is the key's, never the token's choice (`tokens`).
//! - Without keys no token is good: the client gets 503.
//! - Two tokens in one request are refused: a back end might read the other one.
//! - No token gets into a message or a log.

mod claims;
mod token_source;
mod verified_tokens;

use std::sync::Arc;

use penstock_config::JwtAuth;
use penstock_exchange::{Fault, FaultKind, Request};
use penstock_runtime::clock;
use penstock_tokens::{TokenError, TokenKeys};
use serde_json::Value;

use self::claims::ClaimProblem;
pub(crate) use self::claims::ClaimRules;
use self::token_source::{FoundToken, TokenSource};
use self::verified_tokens::{VerifiedToken, VerifiedTokens};
use crate::admission::{Admission, AdmissionRule, Decision};
use crate::failed_attempts::FailedAttempts;

/// Admits the bearers of tokens.
#[derive(Debug)]
pub struct JwtRule {
    keys: TokenKeys,
    /// Where the keys are, for messages.
    keys_name: Box<str>,
    issuer: Option<Box<str>>,
    audiences: Box<[String]>,
    source: TokenSource,
    claims: ClaimRules,
    /// Names of the fields that claims are put into.
    own_fields: Box<[String]>,
    realm: Box<str>,
    failures: FailedAttempts,
    verified: VerifiedTokens,
}

impl JwtRule {
    /// The rule of a route with its keys, which come from `keys_name`. `failures` counts for all
    /// routes together.
    #[must_use]
    pub fn new(rule: &JwtAuth, keys: TokenKeys, keys_name: &str, failures: FailedAttempts) -> Self {
        Self {
            keys,
            keys_name: keys_name.into(),
            issuer: rule.issuer.as_deref().map(Into::into),
            audiences: rule.audiences.clone().into(),
            source: TokenSource::new(rule.query.as_deref(), rule.cookie.as_deref()),
            claims: ClaimRules::new(rule),
            own_fields: rule.claims.keys().cloned().collect(),
            realm: rule.realm.as_str().into(),
            failures,
            verified: VerifiedTokens::default(),
        }
    }

    fn judge(&self, request: &Request) -> Result<Admission, Fault> {
        let token = match self.source.find(request) {
            FoundToken::One(token) => token,
            FoundToken::None => return Err(self.refusal("", "jwt: no token".to_owned())),
            FoundToken::Several => {
                let cause = "jwt: more than one token, or more than one `Authorization`";
                return Err(self.refusal("invalid_request", cause.to_owned()));
            }
        };
        let (version, now) = (self.keys.version(), clock::wall_time());
        let digest = VerifiedTokens::digest(&token);
        if let Some(known) = self.verified.get(&digest, version, now) {
            return Ok(known.admission());
        }
        if version == 0 {
            let cause = format!("jwt: the keys of {} have not been read yet", self.keys_name);
            return Err(Fault::new(FaultKind::Unavailable, cause));
        }
        let attempt = self.failures.begin(request, "tokens")?;
        let verified = self.keys.verify(&token);
        if verified.as_ref().err().is_none_or(TokenError::is_honest) {
            attempt.give_back();
        }
        let claims = verified.and_then(|claims| self.check_recipient(claims));
        let claims = claims.map_err(|error| self.invalid(&error))?;
        let admitted = self.claims.read(&claims);
        let admitted = admitted.map_err(|problem| self.unfit(&problem))?;
        let known = VerifiedToken::new(admitted, &claims);
        let admission = known.admission();
        self.verified.insert(digest, version, known);
        Ok(admission)
    }

    /// Whether a token is for this route: its end, its issuer and its audience.
    fn check_recipient(&self, claims: Value) -> Result<Value, TokenError> {
        if claims.get("exp").is_none() {
            return Err(TokenError::NoExpiry);
        }
        if let Some(issuer) = &self.issuer
            && claims.get("iss").and_then(Value::as_str) != Some(issuer)
        {
            return Err(TokenError::WrongIssuer(issuer.to_string()));
        }
        let is_audience = |text: &Value| {
            let text = text.as_str();
            self.audiences.iter().any(|own| text == Some(own.as_str()))
        };
        let named = match claims.get("aud") {
            Some(Value::Array(all)) => all.iter().any(is_audience),
            Some(one) => is_audience(one),
            None => false,
        };
        if !self.audiences.is_empty() && !named {
            return Err(TokenError::WrongAudience(self.audiences.join("` or `")));
        }
        Ok(claims)
    }

    /// RFC 6750 §3.1. Only that a token has expired helps its bearer.
    fn invalid(&self, error: &TokenError) -> Fault {
        let detail = match error {
            TokenError::Expired => "invalid_token\", error_description=\"the token has expired",
            _ => "invalid_token",
        };
        self.refusal(detail, format!("jwt: {error}"))
    }

    fn unfit(&self, problem: &ClaimProblem) -> Fault {
        let cause = format!("jwt: {problem}");
        match problem {
            ClaimProblem::NotAsRequired(_) => {
                let challenge = self.challenge("insufficient_scope");
                Fault::new(FaultKind::Forbidden, cause).with_field("WWW-Authenticate", &challenge)
            }
            ClaimProblem::NoFieldValue(_) => self.refusal("invalid_token", cause),
        }
    }

    fn refusal(&self, error: &str, cause: String) -> Fault {
        let challenge = self.challenge(error);
        Fault::new(FaultKind::Unauthorized, cause).with_field("WWW-Authenticate", &challenge)
    }

    fn challenge(&self, error: &str) -> String {
        match error {
            "" => format!("Bearer realm=\"{}\"", self.realm),
            error => format!("Bearer realm=\"{}\", error=\"{error}\"", self.realm),
        }
    }
}

impl AdmissionRule for JwtRule {
    fn name(&self) -> &'static str {
        "jwt"
    }

    fn decide(&self, request: &Request) -> Decision {
        Decision::Ready(self.judge(request).map_err(Into::into))
    }

    fn own_fields(&self) -> &[String] {
        &self.own_fields
    }
}

/// The bearer of a token: the user, and the fields that the request goes on with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) user: Option<Arc<str>>,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

#[cfg(test)]
mod tests;
