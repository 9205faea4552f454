//! What the service may do: authorities, challenges, bounds. Plain values that `penstock` sets.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// Settings of a [`crate::CertificateService`].
#[derive(Debug, Clone)]
pub struct AcmeSettings {
    /// Address for notices of the authority; some require it.
    pub email: Option<String>,
    /// Authorities in order of preference. The next one is used when one refuses or keeps failing.
    pub directories: Vec<Directory>,
    /// Challenges that this server can answer, in order of preference. A failed attempt is followed
    /// by one with the next kind.
    pub challenges: Vec<ChallengeKind>,
    /// Common name of a certificate that the chain should contain, where an authority offers
    /// several chains (RFC 8555 §7.4.2). The default chain is used when none contains it.
    pub preferred_chain: Option<String>,
    /// When certificates are renewed and failed attempts repeated.
    pub renewal: RenewalBounds,
    /// Bounds of work in progress and of certificates on demand.
    pub limits: IssuanceLimits,
}

impl AcmeSettings {
    /// Creates settings with the defaults and these authorities.
    #[must_use]
    pub fn new(directories: Vec<Directory>) -> Self {
        Self {
            email: None,
            directories,
            challenges: vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
            preferred_chain: None,
            renewal: RenewalBounds::default(),
            limits: IssuanceLimits::default(),
        }
    }
}

/// A certificate authority.
#[derive(Debug, Clone)]
pub struct Directory {
    /// URL of its directory (RFC 8555 §7.1.1).
    pub url: String,
    /// PEM file with the roots that its HTTPS server is verified with, for a private authority.
    /// Otherwise the system's roots are used.
    pub ca_file: Option<PathBuf>,
    /// An account that already exists there in other ways (RFC 8555 §7.3.4).
    pub external_account: Option<ExternalAccount>,
    /// Profile of the certificates, such as `shortlived`.
    pub profile: Option<String>,
}

impl Directory {
    /// Creates the directory for `letsencrypt`, `letsencrypt-staging`, `zerossl` or an `https` URL.
    ///
    /// # Errors
    /// When the text is neither.
    pub fn parse(text: &str) -> Result<Self, DirectoryError> {
        let url = match text {
            "letsencrypt" => instant_acme::LetsEncrypt::Production.url(),
            "letsencrypt-staging" => instant_acme::LetsEncrypt::Staging.url(),
            "zerossl" => instant_acme::ZeroSsl::Production.url(),
            url => {
                let parsed = url.parse::<hyper::Uri>();
                let is_https = |uri: &hyper::Uri| {
                    uri.scheme_str() == Some("https") && uri.host().is_some_and(|h| !h.is_empty())
                };
                if !parsed.as_ref().is_ok_and(is_https) {
                    return Err(DirectoryError(url.to_owned()));
                }
                url
            }
        };
        Ok(Self {
            url: url.to_owned(),
            ca_file: None,
            external_account: None,
            profile: None,
        })
    }

    /// Whether only names of the public Internet can be ordered.
    pub(crate) fn is_public(&self) -> bool {
        let known = [
            instant_acme::LetsEncrypt::Production.url(),
            instant_acme::LetsEncrypt::Staging.url(),
            instant_acme::ZeroSsl::Production.url(),
        ];
        known.contains(&&*self.url)
    }
}

/// A text that names no directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no certificate authority: expected letsencrypt, letsencrypt-staging, zerossl or an \
     https:// URL of an ACME directory"
)]
pub struct DirectoryError(String);

/// Credentials of an External Account Binding (RFC 8555 §7.3.4).
#[derive(Clone)]
pub struct ExternalAccount {
    /// The key's identifier.
    pub key_id: String,
    hmac_key: Zeroizing<Vec<u8>>,
}

impl ExternalAccount {
    /// Takes the key as authorities show it: base64url, with or without padding.
    ///
    /// # Errors
    /// When the key is not base64url. The error does not show it.
    pub fn new(key_id: &str, hmac_key: &str) -> Result<Self, ExternalAccountError> {
        let text = hmac_key.trim();
        let decoded = URL_SAFE_NO_PAD
            .decode(text)
            .or_else(|_| URL_SAFE.decode(text));
        let key = Zeroizing::new(decoded.map_err(|_| ExternalAccountError)?);
        if key.is_empty() {
            return Err(ExternalAccountError);
        }
        Ok(Self {
            key_id: key_id.to_owned(),
            hmac_key: key,
        })
    }

    pub(crate) fn key(&self) -> instant_acme::ExternalAccountKey {
        instant_acme::ExternalAccountKey::new(self.key_id.clone(), &self.hmac_key)
    }
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// An HMAC key that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the HMAC key of the external account is not base64url")]
pub struct ExternalAccountError;

/// How control of a name is shown to an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChallengeKind {
    /// A text under `/.well-known/acme-challenge/` on port 80 (RFC 8555 §8.3).
    Http01,
    /// A self-signed certificate for the protocol `acme-tls/1` on port 443 (RFC 8737).
    TlsAlpn01,
    /// A `TXT` record that the DNS hook creates and removes (RFC 8555 §8.4).
    Dns01,
    /// A permanent `TXT` record at `_validation-persist`, set by hand once
    /// (draft-ietf-acme-dns-persist). The error of the first attempt shows the record.
    DnsPersist01,
}

impl ChallengeKind {
    /// The protocol's name for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Dns01 => "dns-01",
            Self::DnsPersist01 => "dns-persist-01",
        }
    }

    /// Whether it validates through DNS: the only way for wildcards, and none for addresses.
    pub(crate) fn is_dns(self) -> bool {
        matches!(self, Self::Dns01 | Self::DnsPersist01)
    }
}

impl fmt::Display for ChallengeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When certificates are looked at, renewed and tried again.
#[derive(Debug, Clone, Copy)]
pub struct RenewalBounds {
    /// How often a certificate is compared with the storage. The authority is asked for its renewal
    /// window at these times too, but not before its own `Retry-After`.
    pub check_interval: Duration,
    /// Delay after the first failed attempt; it doubles with each further one.
    pub min_retry: Duration,
    /// The longest delay, also where an authority asks for a longer one.
    pub max_retry: Duration,
    /// Delay before the storage is looked at again while another server orders the certificate.
    pub peer_retry: Duration,
}

impl Default for RenewalBounds {
    fn default() -> Self {
        Self {
            check_interval: Duration::from_secs(3600),
            min_retry: Duration::from_secs(60),
            max_retry: Duration::from_secs(86_400),
            peer_retry: Duration::from_secs(3),
        }
    }
}

/// Bounds of the work in progress.
#[derive(Debug, Clone, Copy)]
pub struct IssuanceLimits {
    /// Certificates that are ordered at the same time.
    pub max_orders: usize,
    /// How long one request to an authority may take.
    pub request_timeout: Duration,
    /// How long an authority may take to validate or to issue, and the DNS hook to run.
    pub validation_timeout: Duration,
    /// Names on demand that wait for their first certificate at the same time.
    pub max_on_demand_waiting: usize,
    /// Names on demand in all.
    pub max_on_demand_names: usize,
    /// New certificates on demand in `on_demand_interval`; as many may be ordered at once.
    pub max_on_demand_orders: u32,
    /// See `max_on_demand_orders`.
    pub on_demand_interval: Duration,
}

impl Default for IssuanceLimits {
    fn default() -> Self {
        Self {
            max_orders: 8,
            request_timeout: Duration::from_secs(30),
            // DNS records take minutes to appear at some providers.
            validation_timeout: Duration::from_secs(300),
            max_on_demand_waiting: 100,
            max_on_demand_names: 10_000,
            max_on_demand_orders: 10,
            on_demand_interval: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_words_or_https_urls() {
        let url = |text| Directory::parse(text).map(|directory| directory.url);
        let staging = "https://acme-staging-v02.api.letsencrypt.org/directory";
        assert_eq!(url("letsencrypt-staging").unwrap(), staging);
        assert_eq!(url("https://ca.lan/dir").unwrap(), "https://ca.lan/dir");
        for wrong in ["lets-encrypt", "http://ca.lan/dir", "https://", ""] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_of_external_accounts_are_read_and_never_shown() {
        for text in ["zWNDZM6eQGHWpSRTPal5eA", "zWNDZM6eQGHWpSRTPal5eA==", " AA "] {
            let account = ExternalAccount::new("kid-1", text).unwrap();
            assert!(!format!("{account:?}").contains(text.trim()));
        }
        for wrong in ["", "a key", "$$$$"] {
            assert!(ExternalAccount::new("kid-1", wrong).is_err(), "{wrong}");
        }
    }
}
