//! Entry points for fuzzing: claims of tokens, and queries of signed links.

use penstock_config::{JwtAuth, JwtKeys, KeySetSource, ValuePattern};
use penstock_http::is_field_value;
use serde_json::Value;

use crate::jwt::ClaimRules;
use crate::signed_url::check_query;

/// Reads bytes as the claims of a verified token.
///
/// # Panics
/// When a claim becomes what cannot be the value of a field.
pub fn read_claims(data: &[u8]) {
    let Ok(claims) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let nowhere = JwtKeys::Set(KeySetSource::File("keys".into()));
    let mut rule = JwtAuth::new(nowhere);
    for claim in ["a", "b.c", "sub"] {
        rule.claims.insert(format!("X-{claim}"), claim.to_owned());
    }
    if let Ok(pattern) = ValuePattern::parse("x*") {
        rule.require.insert("scope".to_owned(), pattern);
    }
    for rule in [
        &rule,
        &JwtAuth {
            require: [].into(),
            ..rule.clone()
        },
    ] {
        if let Ok(bearer) = ClaimRules::new(rule).read(&claims) {
            let values = bearer.fields.iter().map(|(_, value)| value.as_slice());
            let user = bearer.user.as_deref().map(str::as_bytes);
            assert!(values.chain(user).all(is_field_value));
        }
    }
}

/// Reads bytes as the query of a signed link.
///
/// # Panics
/// When the query without its signature is not that query without that parameter.
pub fn split_query(data: &[u8]) {
    if let Ok(query) = std::str::from_utf8(data) {
        check_query(query);
    }
}
