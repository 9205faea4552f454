//! Which keys of a set are used, and which key a token is verified with.

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaEncoding,
};
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;

/// 2026 in seconds.
const NOW: Duration = Duration::from_secs(1_780_000_000);

/// A key pair for ES256.
struct Pair(EcdsaKeyPair);

impl Pair {
    fn generate() -> Self {
        let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(kind, document.as_ref()).unwrap())
    }

    fn jwk(&self, id: Option<&str>) -> Value {
        let point = self.0.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
        let mut key = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y });
        if let Some(id) = id {
            key["kid"] = id.into();
        }
        key
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let [header, claims] =
            [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self
            .0
            .sign(&SystemRandom::new(), signed.as_bytes())
            .unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn set(keys: &[Value]) -> Result<KeySet, KeySetError> {
    KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
}

#[test]
fn a_token_is_verified_with_the_key_that_it_names() {
    let [one, two, other] = [(); 3].map(|()| Pair::generate());
    let keys = set(&[one.jwk(Some("1")), two.jwk(Some("2")), two.jwk(None)]).unwrap();
    let named = |id: &str| json!({ "alg": "ES256", "kid": id });
    let (unnamed, claims) = (json!({ "alg": "ES256" }), json!({ "sub": "x" }));
    let expired = json!({ "exp": 1 });
    for (name, token, expected) in [
        ("the first", one.token(&named("1"), &claims), Ok(())),
        ("the second", two.token(&named("2"), &claims), Ok(())),
        ("any", two.token(&unnamed, &claims), Ok(())),
        (
            "another",
            one.token(&named("2"), &claims),
            Err(TokenError::BadSignature),
        ),
        (
            "unknown",
            one.token(&named("3"), &claims),
            Err(TokenError::UnknownKey),
        ),
        (
            "none of them",
            other.token(&unnamed, &claims),
            Err(TokenError::SignedByNoKey),
        ),
        (
            "expired",
            two.token(&unnamed, &expired),
            Err(TokenError::Expired),
        ),
        (
            "another algorithm",
            one.token(&json!({ "alg": "HS256", "kid": "1" }), &claims),
            Err(TokenError::WrongAlgorithm("ES256")),
        ),
        ("no token", "x".to_owned(), Err(TokenError::Malformed)),
    ] {
        let found = keys.verify_at(&token, NOW).map(|_| ());
        assert_eq!(found, expected, "{name}");
    }
    let shared = SharedKeySet::default();
    let token = one.token(&named("1"), &claims);
    assert_eq!(shared.verify_at(&token, NOW), Err(TokenError::UnknownKey));
    shared.replace(keys);
    assert_eq!(shared.verify_at(&token, NOW), Ok(claims));
}

#[test]
fn ed25519_is_read_from_a_set_and_from_pem() {
    // RFC 8037, appendix A.
    let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "one", "alg": "EdDSA", "use": "sig",
                      "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
    let claims = set(&[key]).unwrap().verify_at(ED_TOKEN, NOW).unwrap();
    assert_eq!(claims["iss"], "https://id.example");
    let verifier = Verifier::new(ED_PUBLIC, "EdDSA").unwrap();
    assert_eq!(verifier.verify_at(ED_TOKEN, NOW), Ok(claims));
    let forged = ED_TOKEN.replace(".W6d", ".W6e");
    assert_eq!(
        verifier.verify_at(&forged, NOW),
        Err(TokenError::BadSignature)
    );
    assert!(Verifier::new(ED_PUBLIC, "ES256").is_err());
}

/// A token without claims that `sign` signs with this algorithm.
fn signed_with(algorithm: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let header = json!({ "alg": algorithm }).to_string();
    let signed = [header.as_str(), "{}"].map(|part| URL_SAFE_NO_PAD.encode(part));
    let signed = signed.join(".");
    let signature = sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn a_key_of_a_set_has_one_algorithm() {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let public = pair.public_key();
    let [n, e] = [public.modulus(), public.exponent()]
        .map(|number| URL_SAFE_NO_PAD.encode(number.big_endian_without_leading_zero()));
    let algorithms: [(&str, &dyn RsaEncoding); 6] = [
        ("RS256", &RSA_PKCS1_SHA256),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ];
    for (name, encoding) in algorithms {
        let token = signed_with(name, |message| {
            let mut signature = vec![0; public.modulus_len()];
            let random = SystemRandom::new();
            pair.sign(encoding, &random, message, &mut signature)
                .unwrap();
            signature
        });
        for (other, _) in algorithms {
            let key = json!({ "kty": "RSA", "alg": other, "n": n, "e": e });
            let verified = set(&[key]).unwrap().verify_at(&token, NOW);
            assert_eq!(
                verified.is_ok(),
                name == other,
                "{name} with a key for {other}"
            );
        }
        // A key that says nothing is for RS256.
        let key = json!({ "kty": "RSA", "n": n, "e": e });
        let verified = set(&[key]).unwrap().verify_at(&token, NOW);
        assert_eq!(verified.is_ok(), name == "RS256", "{name}");
    }
}

#[test]
fn a_longer_curve_has_its_own_algorithm() {
    let (kind, random) = (&ECDSA_P384_SHA384_FIXED_SIGNING, SystemRandom::new());
    let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(kind, document.as_ref()).unwrap();
    let point = pair.public_key().as_ref();
    let [x, y] = [&point[1..49], &point[49..]].map(|part| URL_SAFE_NO_PAD.encode(part));
    let token = signed_with("ES384", |message| {
        pair.sign(&random, message).unwrap().as_ref().to_vec()
    });
    let keys = set(&[json!({ "kty": "EC", "crv": "P-384", "x": x, "y": y })]).unwrap();
    assert_eq!(keys.verify_at(&token, NOW), Ok(json!({})));
    let info: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let pem = format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        STANDARD.encode(info.as_ref())
    );
    let verifier = Verifier::from_key_text(&pem, None).unwrap();
    assert_eq!(verifier.verify_at(&token, NOW), Ok(json!({})));
    assert!(Verifier::new(&pem, "ES256").is_err());
}

#[test]
fn a_key_that_is_not_understood_is_left_out() {
    let pair = Pair::generate();
    let with = |name: &str, value: &str| {
        let mut key = pair.jwk(None);
        key[name] = value.into();
        key
    };
    let left_out = [
        json!({ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" }),
        json!({ "kty": "new", "x": "y" }),
        with("use", "enc"),
        with("alg", "ES384"),
        with("crv", "P-384"),
        with("crv", "P-521"),
        with("x", "AAAA"),
        json!("key"),
    ];
    for key in &left_out {
        assert_eq!(
            set(std::slice::from_ref(key)).err(),
            Some(KeySetError::NoKeys),
            "{key}"
        );
    }
    let all = [&left_out[..], &[pair.jwk(None)]].concat();
    assert_eq!(set(&all).unwrap().len(), 1);
    let many = vec![pair.jwk(None); MAX_KEYS + 1];
    assert_eq!(set(&many).err(), Some(KeySetError::TooManyKeys));
    for text in ["", "{}", "[]", r#"{"keys":{}}"#, "<html>"] {
        let error = KeySet::parse(text.as_bytes()).err();
        assert_eq!(error, Some(KeySetError::Malformed), "{text}");
    }
}

/// The public key of RFC 8037, appendix A.
const ED_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=
-----END PUBLIC KEY-----
";

/// A token that is signed with its private key, which the RFC has as well.
const ED_TOKEN: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6Im9uZSJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJhdWQ\
    iOlsiaHViIiwic2hvcCJdLCJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdfX0.W6d-PSTXlVSZiNxD4kD\
    Ut_15oT2Rsi7e67msMd9pyL3twbVWE3Uu5xw0gLd-sLPdMMWfOzhGP0fy32Odx5HDCQ";
