//! The `jwt` of a route: tokens that clients must have, and the keys that verify them.
//!
//! Called by `route`; `parse` adds the parameters that have tokens to `server.log_mask`.
//!
//! # Invariants
//! - There is one source of keys, and no message shows a key. Whether a key is one is found out at
//!   start and by `check`, where it is parsed.

use std::collections::BTreeMap;

use crate::findings::LocatedValue;
use crate::headers::is_removable_field;
use crate::hub;
use crate::model::{JwtAuth, JwtKeys, Site, TokenAlgorithm};
use crate::section::{Keys as _, Section, TextOrList};
use crate::values::ValuePattern;

/// Reads the table.
pub(crate) fn read(route: &Section<'_>) -> Option<JwtAuth> {
    if !route.is_table("jwt") {
        let set = route.parse_text("jwt", |text| hub::parse_key_set(route, text))?;
        return Some(JwtAuth::new(JwtKeys::Set(set.value)));
    }
    let table = route.table("jwt")?;
    let set = table.parse_text("jwks", |text| hub::parse_key_set(&table, text));
    let key = table.table("key").and_then(|key| read_key(&key));
    if table.has("jwks") && table.has("key") {
        table.report_key("key", "`key` and `jwks` are both the keys: keep one");
    } else if !table.has("jwks") && !table.has("key") {
        table.report_missing("jwks");
    }
    let keys = set.map(|set| JwtKeys::Set(set.value)).or(key);
    // With an error the other keys are read all the same, for theirs.
    let nothing = || JwtKeys::Single {
        key: "".into(),
        algorithm: None,
    };
    let is_read = keys.is_some();
    let mut jwt = JwtAuth::new(keys.unwrap_or_else(nothing));
    jwt.read_keys(&table);
    jwt.audiences = read_audiences(&table);
    jwt.claims = read_claims(&table);
    jwt.require = read_required(&table);
    is_read.then_some(jwt)
}

/// Whether a text can be the name of a parameter of a query; logs mask such names.
pub(crate) fn is_parameter(text: &str) -> bool {
    crate::server::is_valid_mask_name(text) && !text.starts_with('*')
}

/// The parameters of queries that have secrets, for `server.log_mask`.
pub(crate) fn secret_parameters(sites: &[Site]) -> Vec<String> {
    let routes = sites.iter().flat_map(|site| &site.routes);
    let names = routes.flat_map(|route| {
        let of_token = route.jwt.as_ref().and_then(|jwt| jwt.query.clone());
        let signed = route.signed_url.as_ref();
        of_token
            .into_iter()
            .chain(signed.map(|signed| signed.signature_parameter.clone()))
    });
    names.collect()
}

fn read_key(table: &Section<'_>) -> Option<JwtKeys> {
    let algorithm: Option<TokenAlgorithm> = table.get("algorithm");
    let key = table.secret_in_file()?;
    if key.value.trim().is_empty() {
        table.report(key.offset, "the file of the key is empty");
        return None;
    }
    Some(JwtKeys::Single {
        key: key.value.trim().into(),
        algorithm: algorithm.map(|algorithm| algorithm.as_str().to_owned()),
    })
}

fn read_audiences(table: &Section<'_>) -> Vec<String> {
    let (texts, offset) = match table.text_or_texts("audience") {
        None => return Vec::new(),
        Some(TextOrList::One(text)) => (vec![text.value], text.offset),
        Some(TextOrList::List(texts)) => (texts.value, texts.offset),
    };
    table.check_not_empty("audience");
    for text in texts.iter().filter(|text| !hub::is_valid_issuer(text)) {
        table.report_invalid("audience", &LocatedValue::new(*text, offset));
    }
    texts.into_iter().map(str::to_owned).collect()
}

fn read_claims(table: &Section<'_>) -> BTreeMap<String, String> {
    let mut claims: BTreeMap<String, String> = BTreeMap::new();
    for (field, claim) in table.string_map("claims") {
        let is_known = |known: &String| known.eq_ignore_ascii_case(&field);
        if !is_removable_field(&field) {
            let expected = crate::headers::FIELD_EXPECTED;
            table.report_invalid_item("claims", &field, claim.offset, expected);
        } else if claims.keys().any(is_known) {
            table.report(claim.offset, format!("`claims` has `{field}` twice"));
        } else {
            claims.insert(field, claim.value);
        }
    }
    claims
}

fn read_required(table: &Section<'_>) -> BTreeMap<String, ValuePattern> {
    let mut required = BTreeMap::new();
    for (claim, value) in table.string_map("require") {
        match ValuePattern::parse(&value.value) {
            Ok(pattern) => {
                required.insert(claim, pattern);
            }
            Err(reason) => {
                let problem = format!("`{claim}` is no regular expression: {reason}");
                table.report(value.offset, problem);
            }
        }
    }
    required
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::KeySetSource;
    use crate::testing::{TestDir, parse_valid};

    fn route(jwt: &str) -> String {
        format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\njwt = {jwt}\n")
    }

    #[test]
    fn reads_a_set_or_a_key() {
        let folder = TestDir::with_files(&[("key", "a secret of the application\n")]);
        let config = parse_valid(
            &folder,
            &route(
                r#"{ jwks = "https://id.example/keys", audience = ["a", "b"], issuer = "i",
                query = "access", cookie = "c", claims = { X-User = "sub" }, require = { scope = "x" } }"#,
            ),
        );
        let jwt = config.sites[0].routes[0].jwt.as_ref().unwrap();
        assert!(
            matches!(&jwt.keys, JwtKeys::Set(KeySetSource::Http { authority, .. })
            if authority == "id.example")
        );
        assert_eq!(jwt.audiences, ["a", "b"]);
        assert_eq!(jwt.claims["X-User"], "sub");
        assert_eq!(jwt.require["scope"].to_string(), "x");
        assert_eq!(jwt.user_claim, "sub");
        let masked = &config.server.log_mask;
        assert_eq!(masked.last().map(String::as_str), Some("access"));
        let config = parse_valid(
            &folder,
            &route(r#"{ key = { file = "key", algorithm = "HS512" } }"#),
        );
        let jwt = config.sites[0].routes[0].jwt.as_ref().unwrap();
        let JwtKeys::Single { key, algorithm } = &jwt.keys else {
            panic!("one key: {jwt:?}");
        };
        assert_eq!(key.expose(), "a secret of the application");
        assert_eq!(algorithm.as_deref(), Some("HS512"));
        assert!(!format!("{jwt:?}").contains("a secret"));
    }

    #[test]
    fn tokens_that_cannot_be_meant_are_refused() {
        let folder = TestDir::with_files(&[("key", "secret"), ("empty", "\n")]);
        for (jwt, expected) in [
            ("{}", "`jwks` is missing"),
            (
                "{ jwks = \"a\", key = { file = \"key\" } }",
                "`key` and `jwks` are both the keys",
            ),
            ("\"ftp://a\"", "`jwt` cannot be \"ftp://a\""),
            ("{ jwks = \"ftp://a\" }", "`jwks` cannot be \"ftp://a\""),
            ("{ key = {} }", "`file` is missing"),
            ("{ key = { file = \"none\" } }", "none "),
            (
                "{ key = { file = \"empty\" } }",
                "the file of the key is empty",
            ),
            (
                "{ key = { file = \"key\", algorithm = \"none\" } }",
                "`algorithm` cannot be \"none\"",
            ),
            ("{ jwks = \"a\", audience = [] }", "`audience`"),
            (
                "{ jwks = \"a\", claims = { Connection = \"sub\" } }",
                "`claims` cannot be \"Connection\"",
            ),
            (
                "{ jwks = \"a\", claims = { X-a = \"sub\", x-A = \"b\" } }",
                "`claims` has `x-A` twice",
            ),
            (
                "{ jwks = \"a\", require = { a = \"~(\" } }",
                "`a` is no regular expression",
            ),
            ("{ jwks = \"a\", query = \"a b\" }", "`query` cannot be"),
        ] {
            let found = crate::parse(&route(jwt), &folder.path().join("penstock.toml"));
            let found = found.expect_err(jwt).to_string();
            assert!(found.contains(expected), "{jwt}: {found}");
        }
    }
}
