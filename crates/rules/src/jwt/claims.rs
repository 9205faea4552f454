//! What the claims of a verified token say: its user, the fields of the request, and whether they
//! are as the route requires. Pure.
//!
//! # Invariants
//! - No value ends a field, begins another, or is read as two values of a list.

use std::borrow::Cow;

use penstock_config::{JwtAuth, ValuePattern};
use penstock_http::is_field_value;
use serde_json::Value;
use thiserror::Error;

use super::Bearer;

/// Claims whose words are values of their own (RFC 8693 §4.2; `scp` of Entra ID and Okta).
const WORD_CLAIMS: [&str; 2] = ["scope", "scp"];

/// What a route reads of claims.
#[derive(Debug)]
pub(crate) struct ClaimRules {
    user: Box<str>,
    /// Fields with the claims that they have the values of.
    fields: Box<[(String, String)]>,
    required: Box<[(String, ValuePattern)]>,
}

/// Why a token with a good signature is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ClaimProblem {
    /// 403.
    #[error("the claim `{0}` is not what the route requires")]
    NotAsRequired(String),
    /// 401.
    #[error("the claim `{0}` cannot be the value of a field")]
    NoFieldValue(String),
}

impl ClaimRules {
    pub(crate) fn new(rule: &JwtAuth) -> Self {
        Self {
            user: rule.user_claim.as_str().into(),
            fields: rule.claims.clone().into_iter().collect(),
            required: rule.require.clone().into_iter().collect(),
        }
    }

    /// The bearer of a token with these claims.
    pub(crate) fn read(&self, claims: &Value) -> Result<Bearer, ClaimProblem> {
        for (name, pattern) in &self.required {
            let is_word_claim = WORD_CLAIMS.contains(&name.as_str());
            let holds = |text: &Cow<'_, str>| {
                pattern.matches(text.as_bytes())
                    || is_word_claim
                        && (text.split(' ')).any(|word| pattern.matches(word.as_bytes()))
            };
            if !texts_of(find(claims, name)).iter().any(holds) {
                return Err(ClaimProblem::NotAsRequired(name.clone()));
            }
        }
        let mut fields = Vec::with_capacity(self.fields.len());
        for (field, claim) in &self.fields {
            if let Some(value) = field_value(claims, claim)? {
                fields.push((field.clone(), value.into_bytes()));
            }
        }
        let user = field_value(claims, &self.user)?;
        Ok(Bearer {
            user: user.filter(|user| !user.is_empty()).map(Into::into),
            fields,
        })
    }
}

/// The value of a claim; a dot leads into one, unless a claim has that name as a whole.
fn find<'c>(claims: &'c Value, name: &str) -> Option<&'c Value> {
    let found = claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        find(claims.get(first)?, rest)
    });
    found.filter(|value| !value.is_null())
}

/// The values of a claim as texts: of a list each; none of what has no text.
fn texts_of(value: Option<&Value>) -> Vec<Cow<'_, str>> {
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(text_of).collect(),
        Some(value) => text_of(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        Value::Bool(flag) => Some(if *flag { "true" } else { "false" }.into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The value of a field with a claim; the items of a list with commas between them. `None` without
/// that claim.
fn field_value(claims: &Value, name: &str) -> Result<Option<String>, ClaimProblem> {
    let refused = || ClaimProblem::NoFieldValue(name.to_owned());
    let Some(value) = find(claims, name) else {
        return Ok(None);
    };
    let text = match value {
        Value::Array(items) => {
            let texts: Option<Vec<_>> = items.iter().map(text_of).collect();
            let texts = texts.ok_or_else(refused)?;
            if texts.iter().any(|text| text.contains(',')) {
                return Err(refused());
            }
            texts.join(",")
        }
        value => text_of(value).ok_or_else(refused)?.into_owned(),
    };
    match is_field_value(text.as_bytes()) {
        true => Ok(Some(text)),
        false => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(fields: &[(&str, &str)], required: &[(&str, &str)]) -> ClaimRules {
        let pattern =
            |(name, text): &(&str, &str)| ((*name).to_owned(), ValuePattern::parse(text).unwrap());
        let field = |(name, claim): &(&str, &str)| ((*name).to_owned(), (*claim).to_owned());
        ClaimRules {
            user: "sub".into(),
            fields: fields.iter().map(field).collect(),
            required: required.iter().map(pattern).collect(),
        }
    }

    #[test]
    fn claims_become_fields_that_have_one_reading() {
        let refused = |name: &str| Err(ClaimProblem::NoFieldValue(name.to_owned()));
        for (claim, expected) in [
            (json!("anna"), Ok(Some("anna"))),
            (json!("Zoë, the first"), Ok(Some("Zoë, the first"))),
            (json!(7), Ok(Some("7"))),
            (json!(true), Ok(Some("true"))),
            (json!(null), Ok(None)),
            (json!(["a", "b", 3]), Ok(Some("a,b,3"))),
            (json!([]), Ok(Some(""))),
            (json!(["a,admin"]), refused("c")),
            (json!([["a"]]), refused("c")),
            (json!({ "a": 1 }), refused("c")),
            (json!("a\r\nX-Admin: 1"), refused("c")),
            (json!("a\0"), refused("c")),
        ] {
            let read = rules(&[("X-C", "c")], &[]).read(&json!({ "c": claim.clone() }));
            let read = read.map(|bearer| bearer.fields);
            let expected = expected.map(|value: Option<&str>| {
                let field = |value: &str| ("X-C".to_owned(), value.as_bytes().to_vec());
                value.map(field).into_iter().collect::<Vec<_>>()
            });
            assert_eq!(read, expected, "{claim}");
        }
        let user = |claim: Value| rules(&[], &[]).read(&json!({ "sub": claim }));
        assert_eq!(user(json!("anna")).unwrap().user.as_deref(), Some("anna"));
        assert_eq!(user(json!("")).unwrap().user, None);
        let problem = ClaimProblem::NoFieldValue("sub".to_owned());
        assert_eq!(user(json!("a\nb")), Err(problem));
    }

    #[test]
    fn required_claims_match_one_value_and_scopes_one_word() {
        let claims = json!({
            "scope": "orders:read profile",
            "realm_access": { "roles": ["staff", "admin"] },
            "https://a.example/plan": "gold",
            "note": "a b",
        });
        for (name, pattern, holds) in [
            ("scope", "orders:read", true),
            ("scope", "orders:write", false),
            ("scope", "orders", false),
            ("realm_access.roles", "admin", true),
            ("realm_access.roles", "adm", false),
            ("realm_access", "*", false),
            ("https://a.example/plan", "gold", true),
            ("note", "a", false),
            ("note", "a*", true),
            ("missing", "*", false),
        ] {
            let read = rules(&[], &[(name, pattern)]).read(&claims);
            let problem = ClaimProblem::NotAsRequired(name.to_owned());
            assert_eq!(read.err(), (!holds).then_some(problem), "{name} {pattern}");
        }
    }
}
