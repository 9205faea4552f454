//! Which algorithms a client offers, where the caller chooses them: `bench` compares servers with
//! the same algorithms.

use rustls::crypto::CryptoProvider;

/// Algorithms by their IANA names, in any case. An empty list offers those of the profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientOffer {
    /// Cipher suites such as `TLS_AES_128_GCM_SHA256`, most preferred first. With suites of TLS 1.3
    /// alone no other version is offered.
    pub cipher_suites: Vec<String>,
    /// Key exchanges such as `X25519` or `secp256r1`, most preferred first.
    pub groups: Vec<String>,
}

/// A name that no supported algorithm has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} is named {name:?}: use one of {known}")]
pub struct UnknownAlgorithm {
    kind: &'static str,
    name: String,
    known: String,
}

impl ClientOffer {
    /// Leaves only the chosen algorithms in `provider`.
    pub(crate) fn restrict(
        &self,
        provider: CryptoProvider,
    ) -> Result<CryptoProvider, UnknownAlgorithm> {
        let suite = |suite: &rustls::SupportedCipherSuite| iana_name(suite.suite().as_str());
        let group =
            |group: &&dyn rustls::crypto::SupportedKxGroup| iana_name(group.name().as_str());
        let (suites, groups) = (&provider.cipher_suites, &provider.kx_groups);
        Ok(CryptoProvider {
            cipher_suites: choose("cipher suite", &self.cipher_suites, suites, suite)?,
            kx_groups: choose("key exchange", &self.groups, groups, group)?,
            ..provider
        })
    }
}

/// rustls names suites of TLS 1.3 by a prefix of its own.
fn iana_name(name: Option<&'static str>) -> String {
    let name = name.unwrap_or_default();
    match name.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => name.to_owned(),
    }
}

/// The algorithms with these names, in their order; all if there are none.
fn choose<T: Clone>(
    kind: &'static str,
    names: &[String],
    known: &[T],
    name_of: impl Fn(&T) -> String,
) -> Result<Vec<T>, UnknownAlgorithm> {
    if names.is_empty() {
        return Ok(known.to_vec());
    }
    let find = |name: &String| {
        let mut known = known.iter();
        known
            .find(|one| name_of(one).eq_ignore_ascii_case(name))
            .cloned()
    };
    let unknown = |name: &String| UnknownAlgorithm {
        kind,
        name: name.clone(),
        known: known.iter().map(&name_of).collect::<Vec<_>>().join(", "),
    };
    let chosen = names
        .iter()
        .map(|name| find(name).ok_or_else(|| unknown(name)));
    chosen.collect()
}
