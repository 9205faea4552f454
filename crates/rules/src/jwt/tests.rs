//! Tokens at a route, from the field of a request to its user.

use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_config::{JwtKeys, KeySetSource, ValuePattern};
use penstock_tokens::{KeySet, SharedKeySet, Verifier};
use serde_json::json;

use super::*;
use crate::admission::{Refusal, Verdict};
use crate::rate_limit::RateTable;
use crate::testing::request;

const SECRET: &str = "a secret of more than 32 bytes, for tests only";

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// A token with these claims, which end in a minute unless they say otherwise.
fn token(mut claims: Value) -> String {
    if claims.get("exp").is_none() {
        claims["exp"] = (clock::wall_time().as_secs() + 60).into();
    }
    let signed = format!("{}.{}", part(&json!({ "alg": "HS256" })), part(&claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn settings() -> JwtAuth {
    let nowhere = JwtKeys::Set(KeySetSource::File("keys".into()));
    JwtAuth {
        issuer: Some("https://id.example".to_owned()),
        audiences: vec!["shop".to_owned(), "api".to_owned()],
        claims: [("X-User".to_owned(), "sub".to_owned())].into(),
        require: [("scope".to_owned(), ValuePattern::parse("read").unwrap())].into(),
        ..JwtAuth::new(nowhere)
    }
}

fn rule_with(settings: &JwtAuth, keys: TokenKeys) -> JwtRule {
    let failures = FailedAttempts::new(Arc::new(RateTable::default()));
    JwtRule::new(settings, keys, "the test", failures)
}

fn rule() -> JwtRule {
    let verifier = Verifier::from_key_text(SECRET, None).unwrap();
    rule_with(&settings(), TokenKeys::Single(Arc::new(verifier)))
}

fn decide(rule: &JwtRule, token: &str) -> Verdict {
    let fields = format!("Authorization: Bearer {token}\r\n");
    match rule.decide(&request("/", &fields)) {
        Decision::Ready(verdict) => verdict,
        Decision::Pending(_) => panic!("it decides at once"),
    }
}

/// The status of a refusal, and its challenge.
fn refusal(verdict: Verdict) -> (u16, String) {
    match verdict.expect_err("it is refused") {
        Refusal::Fault(fault) => {
            let fields = fault.fields.unwrap_or_default();
            let challenge = fields.get("WWW-Authenticate").unwrap_or_default();
            let challenge = String::from_utf8_lossy(challenge).into_owned();
            (fault.kind.status().code(), challenge)
        }
        Refusal::Response(_) => panic!("a page of the server"),
    }
}

fn good() -> Value {
    json!({ "iss": "https://id.example", "aud": ["x", "api"], "sub": "anna", "scope": "read" })
}

#[test]
fn a_good_token_names_its_user() {
    let rule = rule();
    let token = token(good());
    // The second time it is known.
    for _ in 0..2 {
        let admission = decide(&rule, &token).unwrap();
        assert_eq!(admission.user.as_deref(), Some("anna"));
        assert_eq!(admission.fields, [("X-User".to_owned(), b"anna".to_vec())]);
    }
    assert_eq!(rule.own_fields(), ["X-User"]);
}

#[test]
fn tokens_that_are_not_for_the_route_are_refused() {
    let rule = rule();
    let now = clock::wall_time().as_secs();
    let with = |name: &str, value: Value| {
        let mut claims = good();
        claims[name] = value;
        token(claims)
    };
    let bare = "Bearer realm=\"restricted\"";
    let invalid = format!("{bare}, error=\"invalid_token\"");
    let expired = format!("{invalid}, error_description=\"the token has expired\"");
    let unsigned = {
        let head = part(&json!({ "alg": "none" }));
        format!("{head}.{}.", part(&good()))
    };
    let right = token(good());
    for (token, status, challenge) in [
        (with("exp", (now - 11).into()), 401, expired.clone()),
        (with("nbf", (now + 30).into()), 401, invalid.clone()),
        (with("exp", Value::Null), 401, invalid.clone()),
        (
            with("iss", "https://evil.example".into()),
            401,
            invalid.clone(),
        ),
        (with("aud", "other".into()), 401, invalid.clone()),
        (with("sub", "a\r\nX-Admin: 1".into()), 401, invalid.clone()),
        (
            with("scope", "write".into()),
            403,
            format!("{bare}, error=\"insufficient_scope\""),
        ),
        (unsigned, 401, invalid.clone()),
        (format!("{right}x"), 401, invalid.clone()),
        ("a.b.c".to_owned(), 401, invalid.clone()),
    ] {
        assert_eq!(
            refusal(decide(&rule, &token)),
            (status, challenge),
            "{token}"
        );
    }
    let none = match rule.decide(&request("/", "")) {
        Decision::Ready(verdict) => refusal(verdict),
        Decision::Pending(_) => panic!("it decides at once"),
    };
    assert_eq!(none, (401, bare.to_owned()));
    let two = "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n";
    let Decision::Ready(two) = rule.decide(&request("/", two)) else {
        panic!("it decides at once")
    };
    assert_eq!(
        refusal(two),
        (401, format!("{bare}, error=\"invalid_request\""))
    );
}

#[test]
fn only_forged_tokens_use_up_the_attempts_of_a_client() {
    let rule = rule();
    let mut old = good();
    old["exp"] = 1000.into();
    let old = token(old);
    for _ in 0..50 {
        assert_eq!(refusal(decide(&rule, &old)).0, 401);
    }
    let statuses: Vec<u16> = (0..22)
        .map(|at| refusal(decide(&rule, &format!("{}{at}", token(good())))).0)
        .collect();
    assert_eq!(statuses, [[401; 20].as_slice(), &[429; 2]].concat());
    assert_eq!(refusal(decide(&rule, &token(good()))).0, 429);
}

/// A key set with one key, and what signs with it.
fn key_set(id: &str) -> (KeySet, impl Fn(&Value) -> String) {
    let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(kind, document.as_ref()).unwrap();
    let point = pair.public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
    let key = json!({ "kty": "EC", "crv": "P-256", "kid": id, "x": x, "y": y });
    let set = KeySet::parse(json!({ "keys": [key] }).to_string().as_bytes()).unwrap();
    let id = id.to_owned();
    let sign = move |claims: &Value| {
        let head = part(&json!({ "alg": "ES256", "kid": id }));
        let signed = format!("{head}.{}", part(claims));
        let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    (set, sign)
}

#[test]
fn a_set_opens_nothing_before_it_is_there_and_forgets_its_old_keys() {
    let shared = Arc::<SharedKeySet>::default();
    let rule = rule_with(&settings(), TokenKeys::Set(Arc::clone(&shared)));
    let (first, sign_first) = key_set("1");
    let (second, sign_second) = key_set("2");
    let mut claims = good();
    let until = clock::wall_time() + Duration::from_secs(60);
    claims["exp"] = until.as_secs().into();
    let (one, two) = (sign_first(&claims), sign_second(&claims));
    assert_eq!(refusal(decide(&rule, &one)).0, 503);
    shared.replace(first);
    assert!(decide(&rule, &one).is_ok() && decide(&rule, &one).is_ok());
    assert_eq!(refusal(decide(&rule, &two)).0, 401);
    shared.replace(second);
    assert_eq!(refusal(decide(&rule, &one)).0, 401);
    assert!(decide(&rule, &two).is_ok());
    // A secret is no key of a set: HS256 with a public key as its secret is refused.
    assert_eq!(refusal(decide(&rule, &token(good()))).0, 401);
}
