//! Answers one challenge: chooses its kind, puts the response in place, removes it afterwards.

use std::sync::Arc;
use std::time::Duration;

use instant_acme::{Challenge, ChallengeType, KeyAuthorization};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::callbacks::{DnsHook, DnsHookCall, DnsHookVerb};
use crate::challenge::{ChallengeGuard, ChallengeStore};
use crate::error::{AcmeError, printable};
use crate::name::CertificateName;
use crate::settings::ChallengeKind;
use crate::storage::{Storage, keys};

/// Where responses are put.
pub(super) struct Responder<'a> {
    pub(super) name: &'a CertificateName,
    pub(super) directory_url: &'a str,
    pub(super) store: &'a Arc<ChallengeStore>,
    pub(super) storage: &'a Arc<dyn Storage>,
    pub(super) dns_hook: Option<&'a Arc<dyn DnsHook>>,
    pub(super) timeout: Duration,
}

/// A response in place. [`ChallengeResponse::clean_up`] removes what dropping does not.
#[derive(Default)]
pub(super) struct ChallengeResponse {
    guard: Option<ChallengeGuard>,
    token_key: Option<String>,
    dns_call: Option<DnsHookCall>,
}

/// An HTTP-01 response in the storage, for other front ends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenRecord {
    pub(crate) token: String,
    pub(crate) key_authorization: String,
}

/// A token in the storage is of no use after the longest validation.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

impl Responder<'_> {
    /// Chooses the challenge: the kinds that fit the name, in the order of the settings, and with
    /// each attempt another one first.
    pub(super) fn choose(
        &self,
        allowed: &[ChallengeKind],
        offered: &[Challenge],
        attempt: usize,
    ) -> Result<ChallengeKind, AcmeError> {
        let is_offered = |kind: &ChallengeKind| {
            let kind = challenge_type(*kind);
            offered.iter().any(|challenge| challenge.r#type == kind)
        };
        let fitting = allowed.iter().copied().filter(|kind| self.fits(*kind));
        let fitting: Vec<ChallengeKind> = fitting.collect();
        let usable: Vec<ChallengeKind> = fitting.iter().copied().filter(is_offered).collect();
        match usable.len() {
            0 => Err(AcmeError::NoChallenge {
                offered: join(offered.iter().map(|challenge| type_name(&challenge.r#type))),
                allowed: join(fitting.iter().map(|kind| kind.as_str())),
            }),
            count => Ok(usable[attempt % count]),
        }
    }

    fn fits(&self, kind: ChallengeKind) -> bool {
        let is_possible = match kind {
            _ if self.name.is_wildcard() => kind.is_dns(),
            _ => self.name.ip().is_none() || !kind.is_dns(),
        };
        is_possible && (kind != ChallengeKind::Dns01 || self.dns_hook.is_some())
    }

    /// Puts the response in place. What there is to remove is in `response` even after an error.
    pub(super) async fn present(
        &self,
        kind: ChallengeKind,
        token: &str,
        authorization: &KeyAuthorization,
        response: &mut ChallengeResponse,
    ) -> Result<(), AcmeError> {
        match kind {
            ChallengeKind::Http01 => {
                self.present_http(token, authorization, response).await;
                Ok(())
            }
            ChallengeKind::TlsAlpn01 => {
                let digest = authorization.digest();
                response.guard = Some(self.store.add_tls_alpn(self.name, digest.as_ref())?);
                Ok(())
            }
            ChallengeKind::Dns01 => {
                let call = DnsHookCall {
                    verb: DnsHookVerb::Present,
                    domain: self.name.domain().to_owned(),
                    record: format!("_acme-challenge.{}", self.name.domain()),
                    value: authorization.dns_value(),
                };
                response.dns_call = Some(call.clone());
                self.run_hook(call).await
            }
            // The record is there already, or the validation fails and names it.
            ChallengeKind::DnsPersist01 => Ok(()),
        }
    }

    async fn present_http(
        &self,
        token: &str,
        authorization: &KeyAuthorization,
        response: &mut ChallengeResponse,
    ) {
        response.guard = Some(self.store.add_http(token, authorization.as_str()));
        if !is_token(token) {
            return;
        }
        let record = TokenRecord {
            token: token.to_owned(),
            key_authorization: authorization.as_str().to_owned(),
        };
        let record = Zeroizing::new(serde_json::to_vec(&record).unwrap_or_default());
        let key = keys::challenge_token(self.directory_url, token);
        let stored = self.storage.store_temporary(&key, record, TOKEN_LIFETIME);
        // This server can answer all the same.
        if let Err(error) = stored.await {
            log::warn!(
                "acme: other servers cannot answer a challenge: {error} (name={})",
                self.name
            );
        }
        response.token_key = Some(key);
    }

    async fn run_hook(&self, call: DnsHookCall) -> Result<(), AcmeError> {
        let Some(hook) = self.dns_hook else {
            return Ok(());
        };
        let (verb, record) = (call.verb.as_str(), call.record.clone());
        let failed = |source| AcmeError::Hook {
            verb,
            record,
            source,
        };
        match tokio::time::timeout(self.timeout, hook.call(call)).await {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(AcmeError::Timeout {
                step: "the DNS hook",
                after: self.timeout,
            }),
        }
    }

    /// Removes the response, also after an error.
    pub(super) async fn clean_up(&self, response: ChallengeResponse) {
        drop(response.guard);
        if let Some(key) = response.token_key
            && let Err(error) = self.storage.delete(&key).await
        {
            log::warn!("acme: a challenge's token stays in the storage: {error}");
        }
        if let Some(mut call) = response.dns_call {
            call.verb = DnsHookVerb::Cleanup;
            if let Err(error) = self.run_hook(call).await {
                log::warn!(
                    "acme: a challenge's DNS record stays: {error} (name={})",
                    self.name
                );
            }
        }
    }
}

/// Whether a text can be a token: base64url (RFC 8555 §8.3), so that it is safe in a key.
pub(crate) fn is_token(text: &str) -> bool {
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=128).contains(&text.len()) && text.bytes().all(is_base64url)
}

pub(super) fn challenge_type(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        ChallengeKind::Dns01 => ChallengeType::Dns01,
        ChallengeKind::DnsPersist01 => ChallengeType::Unknown(kind.as_str().to_owned()),
    }
}

fn type_name(kind: &ChallengeType) -> &str {
    match kind {
        ChallengeType::Http01 => "http-01",
        ChallengeType::Dns01 => "dns-01",
        ChallengeType::TlsAlpn01 => "tls-alpn-01",
        ChallengeType::Unknown(name) => name,
        _ => "another",
    }
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let joined = printable(&names.collect::<Vec<_>>().join(", "));
    if joined.is_empty() {
        "none".to_owned()
    } else {
        joined
    }
}
