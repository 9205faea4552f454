//! The `mercure` of a route: the keys of tokens that may publish and subscribe there, and the
//! origins.
//!
//! Called by `crate::route`.
//!
//! # Invariants
//! - A key fits its algorithm (no secret that is shorter than the algorithm asks for, no public
//!   key as a secret), and no message shows one.

use std::borrow::Cow;

use crate::address::is_host;
use crate::findings::LocatedValue;
use crate::model::{
    HttpScheme, KeySetSource, MercureKey, MercureKeys, RouteMercure, TokenAlgorithm,
};
use crate::section::{Keys as _, Section};

/// Reads the table.
pub(crate) fn read(route: &Section<'_>) -> Option<RouteMercure> {
    let table = route.table("mercure")?;
    let mut mercure = RouteMercure::default();
    mercure.read_keys(&table);
    mercure.publisher_key = read_key(&table, "publisher_key");
    mercure.subscriber_key = read_key(&table, "subscriber_key");
    mercure.origins = read_origins(&table);
    let keys = ["publisher_key", "subscriber_key"];
    let is_for_somebody = mercure.anonymous || keys.iter().any(|key| table.has(key));
    if !is_for_somebody {
        table.report_missing("publisher_key");
    }
    Some(mercure)
}

/// A secret, or a table with a key and its algorithm, or with a set of keys.
fn read_key(mercure: &Section<'_>, key: &'static str) -> Option<MercureKeys> {
    if !mercure.is_table(key) {
        let key = check_key(mercure, key, &mercure.secret(key)?, DEFAULT_ALGORITHM);
        return key.map(MercureKeys::Single);
    }
    let table = mercure.table(key)?;
    let algorithm = table.get("algorithm");
    let is_in_file = table.has("file") || table.has("credential");
    let text = table.secret("key");
    let text = match is_in_file {
        true => table.secret_in_file(),
        false => text,
    };
    let set = table.parse_text("jwks", |text| parse_key_set(&table, text));
    if table.has("jwks") {
        table.report_not_applicable("algorithm");
        if table.has("key") || is_in_file {
            table.report_key("jwks", "`key` and `jwks` are both the keys: keep one");
            return None;
        }
        return set.map(|set| MercureKeys::Set(set.value));
    }
    if is_in_file && table.has("key") {
        table.report_key("key", "`key` and a file with it are both the key: keep one");
        return None;
    }
    if !table.has("key") && !is_in_file {
        table.report_missing("key");
        return None;
    }
    if algorithm.is_none() && table.has("algorithm") {
        // Reported; which key it takes is not known.
        return None;
    }
    check_key(
        &table,
        "key",
        &text?,
        algorithm.unwrap_or(DEFAULT_ALGORITHM),
    )
    .map(MercureKeys::Single)
}

/// Where a set of keys is; whether it is there is found out at start.
pub(crate) fn parse_key_set(table: &Section<'_>, text: &str) -> Option<KeySetSource> {
    let (scheme, rest) = match text.split_once("://") {
        Some(("http", rest)) => (HttpScheme::Http, rest),
        Some(("https", rest)) => (HttpScheme::Https, rest),
        Some(_) => return None,
        None => {
            let is_path = !text.is_empty();
            return is_path.then(|| KeySetSource::File(table.findings.resolve_path(text)));
        }
    };
    let (authority, target) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_target = target.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
    (is_host(authority) && is_target).then(|| KeySetSource::Http {
        scheme,
        authority: authority.to_owned(),
        target: if target.is_empty() { "/" } else { target }.to_owned(),
    })
}

/// The key, if the algorithm takes it; whether a PEM text is a key at all is found out at start.
fn check_key(
    table: &Section<'_>,
    key: &'static str,
    text: &LocatedValue<Cow<'_, str>>,
    algorithm: TokenAlgorithm,
) -> Option<MercureKey> {
    let value = text.value.as_ref();
    let public_key = format!(
        "a public key in PEM for {}, from `-----BEGIN PUBLIC KEY-----` on",
        algorithm.as_str()
    );
    let (fits, expected) = match algorithm {
        TokenAlgorithm::Hs384 => (is_secret(value, 48), SECRET_48_EXPECTED),
        TokenAlgorithm::Hs512 => (is_secret(value, 64), SECRET_64_EXPECTED),
        TokenAlgorithm::Rs256
        | TokenAlgorithm::Rs384
        | TokenAlgorithm::Rs512
        | TokenAlgorithm::Ps256
        | TokenAlgorithm::Ps384
        | TokenAlgorithm::Ps512 => (
            is_pem(value, &[PEM_PUBLIC_KEY, PEM_RSA_PUBLIC_KEY]),
            &*public_key,
        ),
        TokenAlgorithm::Es256 | TokenAlgorithm::Es384 | TokenAlgorithm::EdDsa => {
            (is_pem(value, &[PEM_PUBLIC_KEY]), &*public_key)
        }
        TokenAlgorithm::Hs256 => (is_secret(value, 32), SECRET_32_EXPECTED),
    };
    if !fits {
        table.report_invalid_secret(key, text.offset, expected);
        return None;
    }
    Some(MercureKey {
        key: value.into(),
        algorithm: algorithm.as_str().to_owned(),
    })
}

/// Whether a text is a secret of as many bytes as its hash has at least (RFC 7518 §3.2). A PEM key
/// is none: a public key is known, so anything could be signed with it.
fn is_secret(text: &str, least: usize) -> bool {
    text.len() >= least && !text.contains(PEM_BEGIN)
}

/// Whether a text is one PEM block (RFC 7468) with one of these labels.
pub(super) fn is_pem(text: &str, labels: &[&str]) -> bool {
    let text = text.trim();
    labels.iter().any(|label| {
        let inner = text
            .strip_prefix(PEM_BEGIN)
            .and_then(|text| text.strip_prefix(label)?.strip_prefix("-----"))
            .and_then(|text| text.strip_suffix("-----")?.strip_suffix(label))
            .and_then(|text| text.strip_suffix("-----END "));
        inner.is_some_and(|inner| !inner.trim().is_empty() && !inner.contains("-----"))
    })
}

/// The origins of a list, each once.
pub(crate) fn read_origins(table: &Section<'_>) -> Vec<String> {
    let origins = table.list("origins", parse_origin).unwrap_or_default();
    table.check_unique("origins", &origins, |a, b| a == b);
    origins.into_iter().map(|origin| origin.value).collect()
}

/// `*`, or an origin as browsers write it (RFC 6454 §6.2): in small letters, without the scheme's
/// own port.
fn parse_origin(text: &str) -> Option<String> {
    if text == "*" {
        return Some(text.to_owned());
    }
    let text = text.to_ascii_lowercase();
    let (scheme, host) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    if !is_scheme || !is_host(host) {
        return None;
    }
    let own = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return Some(text),
    };
    Some(text.strip_suffix(own).unwrap_or(&text).to_owned())
}

/// What a text alone is a secret of.
const DEFAULT_ALGORITHM: TokenAlgorithm = TokenAlgorithm::Hs256;
const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_PUBLIC_KEY: &str = "PUBLIC KEY";
const PEM_RSA_PUBLIC_KEY: &str = "RSA PUBLIC KEY";
/// What a message says was expected of a key that is a text alone.
pub(crate) const SECRET_32_EXPECTED: &str =
    "a secret of at least 32 bytes for HS256; a public key stands beside its `algorithm`";
const SECRET_48_EXPECTED: &str = "a secret of at least 48 bytes for HS384";
const SECRET_64_EXPECTED: &str = "a secret of at least 64 bytes for HS512";
/// What a message says was expected of a set of keys.
pub(crate) const KEY_SET_EXPECTED: &str =
    "a file, or an address that begins with `https://` or `http://`";

#[cfg(test)]
mod tests;
