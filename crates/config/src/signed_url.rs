//! The `signed_url` of a route: links that an application signs, and the secrets that it shares with
//! the server.
//!
//! Called by `route`.
//!
//! # Invariants
//! - A secret of HMAC has 16 bytes at least, and no message shows one.
//! - The text of nginx' form has the path and the secret.

use std::fmt;

use crate::model::SignedUrl;
use crate::redacted::Secret;
use crate::section::{Keys as _, Section};

/// The text that is signed in nginx' form. Two that are written alike are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedText {
    text: String,
    parts: Vec<SignedPart>,
}

/// A part of a [`SignedText`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedPart {
    /// This text.
    Text(String),
    /// `{expires}`: the end of the link, as it stands in the query.
    Expires,
    /// `{path}`: the decoded path, nginx' `$uri`.
    Path,
    /// `{client}`: the client's address, nginx' `$remote_addr`.
    Client,
    /// `{secret}`: the secret.
    Secret,
}

/// The placeholders.
const PARTS: [(&str, SignedPart); 4] = [
    ("{expires}", SignedPart::Expires),
    ("{path}", SignedPart::Path),
    ("{client}", SignedPart::Client),
    ("{secret}", SignedPart::Secret),
];

/// Secrets that may be in use at a time.
const MAX_SECRETS: usize = 16;

/// Bytes of a secret of HMAC: 128 bits.
const MIN_SECRET_BYTES: usize = 16;

impl SignedText {
    /// Parses a text with `{path}` and `{secret}`, and `{expires}` or `{client}` where they are
    /// signed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, behind) = rest.split_at(at);
            if !before.is_empty() {
                parts.push(SignedPart::Text(before.to_owned()));
            }
            let (word, part) = PARTS.iter().find(|(word, _)| behind.starts_with(word))?;
            parts.push(part.clone());
            rest = &behind[word.len()..];
        }
        if !rest.is_empty() {
            parts.push(SignedPart::Text(rest.to_owned()));
        }
        let is_whole = parts.contains(&SignedPart::Path) && parts.contains(&SignedPart::Secret);
        is_whole.then(|| Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// Its parts in order.
    #[must_use]
    pub fn parts(&self) -> &[SignedPart] {
        &self.parts
    }
}

impl fmt::Display for SignedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reads the table.
pub(crate) fn read(route: &Section<'_>) -> Option<SignedUrl> {
    if !route.is_table("signed_url") {
        let secrets = read_secrets(route, "signed_url", MIN_SECRET_BYTES)?;
        return Some(SignedUrl::new(secrets));
    }
    let table = route.table("signed_url")?;
    let min_bytes = match table.has("md5") {
        // Links that other servers have signed with shorter ones are good for as long as they last.
        true => 1,
        false => MIN_SECRET_BYTES,
    };
    let secrets = read_secrets(&table, "secret", min_bytes);
    let is_read = secrets.is_some();
    let mut signed = SignedUrl::new(secrets.unwrap_or_default());
    signed.read_keys(&table);
    if table.has("md5") {
        table.report_not_applicable("client");
        if !table.has("signature_parameter") {
            signed.signature_parameter = "md5".to_owned();
        }
    }
    table.check_not_empty("methods");
    if signed.expires_parameter == signed.signature_parameter {
        let problem = "`expires_parameter` and `signature_parameter` are the same";
        table.report_key("signature_parameter", problem);
    }
    is_read.then_some(signed)
}

/// The secrets, one a line.
fn read_secrets(table: &Section<'_>, key: &'static str, min_bytes: usize) -> Option<Vec<Secret>> {
    let text = table.secret(key)?;
    let lines = text.value.lines().map(str::trim);
    let secrets: Vec<Secret> = lines
        .filter(|line| !line.is_empty())
        .map(Secret::from)
        .collect();
    let is_short = |secret: &Secret| secret.expose().len() < min_bytes;
    if secrets.is_empty() || secrets.len() > MAX_SECRETS || secrets.iter().any(is_short) {
        let expected =
            format!("secrets of at least {min_bytes} bytes, one a line, and at most {MAX_SECRETS}");
        table.report_invalid_secret(key, text.offset, &expected);
        return None;
    }
    Some(secrets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, parse_valid};

    fn route(signed: &str) -> String {
        format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\nsigned_url = {signed}\n")
    }

    #[test]
    fn reads_secrets_and_forms() {
        let folder = TestDir::with_files(&[
            ("two", "a new secret of an app\n\nthe old secret of it\n"),
            ("short", "secret\n"),
        ]);
        let of = |signed: &str| {
            let config = parse_valid(&folder, &route(signed));
            config.sites[0].routes[0].signed_url.clone().unwrap()
        };
        let alone = of("{ secret = { file = \"two\" } }");
        assert_eq!(alone.secrets.len(), 2);
        assert_eq!(alone.secrets[1].expose(), "the old secret of it");
        assert_eq!(alone.signature_parameter, "signature");
        assert_eq!(alone.methods, ["GET", "HEAD"]);
        assert!(!format!("{alone:?}").contains("old secret"));
        let nginx =
            of(r#"{ secret = { file = "short" }, md5 = "{expires}{path}{client} {secret}" }"#);
        assert_eq!(nginx.signature_parameter, "md5");
        let parts = nginx.md5.as_ref().unwrap().parts();
        let expected = [
            SignedPart::Expires,
            SignedPart::Path,
            SignedPart::Client,
            SignedPart::Text(" ".to_owned()),
            SignedPart::Secret,
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn links_that_cannot_be_meant_are_refused() {
        let folder = TestDir::with_files(&[("key", "a secret of an application"), ("short", "x")]);
        for (signed, expected) in [
            ("{}", "`secret` is missing"),
            (
                "{ secret = { file = \"short\" } }",
                "`secret` (not shown) cannot be used",
            ),
            (
                "{ secret = \"guessed\" }",
                "`secret` (not shown) cannot be used",
            ),
            (
                "{ secret = { file = \"key\" }, md5 = \"{path}\" }",
                "`md5` cannot be \"{path}\"",
            ),
            (
                "{ secret = { file = \"key\" }, md5 = \"{uri} {path}{secret}\" }",
                "`md5` cannot be",
            ),
            (
                "{ secret = { file = \"key\" }, md5 = \"{path}{secret}\", client = true }",
                "`client` is only for",
            ),
            (
                "{ secret = { file = \"key\" }, expires_parameter = \"signature\" }",
                "are the same",
            ),
        ] {
            let found = crate::parse(&route(signed), &folder.path().join("penstock.toml"));
            let found = found.expect_err(signed).to_string();
            assert!(found.contains(expected), "{signed}: {found}");
        }
    }
}
