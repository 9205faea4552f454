//! Tokens of every algorithm, and those that must not be believed.

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};

use super::*;

const SECRET: &str = "!ChangeThisMercureHubJWTSecretKey!";
/// 2026 in seconds.
const NOW: Duration = Duration::from_secs(1_780_000_000);

/// A token of these parts, signed as HS256 with [`SECRET`].
fn hs256(header: &str, claims: &str) -> String {
    let signed = format!("{}.{}", part(header), part(claims));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn part(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn pem(kind: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n",
        STANDARD.encode(der)
    )
}

/// A pair of keys for ES256 in PEM form: private, public.
fn curve_keys() -> (String, String) {
    let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(kind, document.as_ref()).unwrap();
    let info: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let private = pem("PRIVATE KEY", document.as_ref());
    (private, pem("PUBLIC KEY", info.as_ref()))
}

#[test]
fn what_a_signer_signs_its_verifier_believes() {
    let (private, public) = curve_keys();
    for (key, believed, algorithm) in [
        (SECRET, SECRET, "HS256"),
        ("base64:c2VjcmV0", "secret", "HS256"),
        (&*private, &*public, "ES256"),
    ] {
        let signer = Signer::new(key, "penstock").unwrap();
        let token = signer.sign(NOW);
        let verifier = Verifier::new(believed, algorithm).unwrap();
        let claims = verifier.verify_at(&token, NOW).unwrap();
        assert_eq!(
            claims,
            json!({ "iss": "penstock", "exp": NOW.as_secs() + 3600 })
        );
        let late = NOW + Duration::from_secs(3600 + 11);
        assert_eq!(
            verifier.verify_at(&token, late),
            Err(TokenError::Expired),
            "{algorithm}"
        );
    }
}

#[test]
fn a_token_is_made_again_long_before_its_hour_ends() {
    let signer = Signer::new(SECRET, "p").unwrap();
    let at = |seconds: u64| signer.sign(Duration::from_secs(seconds));
    let first = at(10_000);
    assert!(Arc::ptr_eq(&first, &at(10_000)));
    assert!(Arc::ptr_eq(&first, &at(11_199)));
    let second = at(11_200);
    assert_ne!(first, second);
    // A clock that was set back makes another; what was made in its future is not used for hours.
    let third = at(5_000);
    assert_ne!(second, third);
    let verifier = Verifier::new(SECRET, "HS256").unwrap();
    let claims = verifier.verify_at(&third, Duration::from_secs(5_000));
    assert_eq!(claims.unwrap()["exp"], 8_600);
}

#[test]
fn a_key_of_a_file_tells_its_algorithm() {
    let (private, public) = curve_keys();
    let long = "x".repeat(48);
    let coded = format!("base64:{}", STANDARD.encode([7; 32]));
    let short = |algorithm, min_bytes| {
        Some(KeyError::TooShort {
            algorithm,
            min_bytes,
        })
    };
    for (text, algorithm, expected, error) in [
        (public.as_str(), None, "ES256", None),
        (RSA_PUBLIC, None, "RS256", None),
        (SECRET, None, "HS256", None),
        (&format!(" {SECRET}\n"), None, "HS256", None),
        (&coded, None, "HS256", None),
        (&long, Some("HS384"), "HS384", None),
        (&long, Some("HS512"), "", short("HS512", 64)),
        ("guessed", None, "", short("HS256", 32)),
        ("base64:AAAA", None, "", short("HS256", 32)),
        (
            &public,
            Some("HS256"),
            "",
            Some(KeyError::PemAsSecret("HS256")),
        ),
        (
            &public,
            Some("RS256"),
            "",
            Some(KeyError::WrongKind("RS256")),
        ),
        (
            &private,
            None,
            "",
            Some(KeyError::WrongKind("RS256, ES256, ES384 or EdDSA")),
        ),
        (
            &long,
            Some("none"),
            "",
            Some(KeyError::UnknownAlgorithm("none".to_owned())),
        ),
    ] {
        let read = Verifier::from_key_text(text, algorithm);
        match read {
            Ok(verifier) => assert_eq!((verifier.algorithm_name, error), (expected, None)),
            Err(found) => assert_eq!(Some(found), error, "{algorithm:?}"),
        }
    }
}

#[test]
fn tokens_of_others_are_read_with_each_algorithm() {
    let claims = json!({ "mercure": { "publish": ["*"] }, "exp": 4_102_444_800_u64 });
    for key in [RSA_PUBLIC, RSA_PUBLIC_PKCS1] {
        let verifier = Verifier::new(key, "RS256").unwrap();
        assert_eq!(verifier.verify_at(RSA_TOKEN, NOW), Ok(claims.clone()));
        let other = format!("{}A", &RSA_TOKEN[..RSA_TOKEN.len() - 1]);
        assert!(verifier.verify_at(&other, NOW).is_err());
    }
    for (algorithm, hash) in [
        ("HS384", aws_lc_rs::hmac::HMAC_SHA384),
        ("HS512", aws_lc_rs::hmac::HMAC_SHA512),
    ] {
        let header = format!(r#"{{"alg":"{algorithm}"}}"#);
        let signed = format!("{}.{}", part(&header), part("{}"));
        let key = aws_lc_rs::hmac::Key::new(hash, SECRET.as_bytes());
        let signature = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        let verifier = Verifier::new(SECRET, algorithm).unwrap();
        assert_eq!(verifier.verify_at(&token, NOW), Ok(json!({})));
        let hs256 = Verifier::new(SECRET, "HS256").unwrap();
        assert_eq!(
            hs256.verify_at(&token, NOW),
            Err(TokenError::WrongAlgorithm("HS256"))
        );
    }
}

#[test]
fn nothing_is_believed_that_the_key_did_not_sign() {
    const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
    let good = hs256(HEADER, "{}");
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let header = part(HEADER);
    let forged_claims = format!("{header}.{}.{signature}", part(r#"{"a":1}"#));
    let none = part(r#"{"alg":"none"}"#);
    let long = format!("{}.{}", "a".repeat(MAX_TOKEN_BYTES), "b");
    // The last letter carries two bits that are none of the signature's.
    let mut respelled = good.clone();
    let last = respelled.pop().unwrap();
    respelled.push(if last == 'A' {
        'B'
    } else {
        char::from(last as u8 + 1)
    });
    let verifier = Verifier::new(SECRET, "HS256").unwrap();
    assert_eq!(verifier.verify_at(&good, NOW), Ok(json!({})));
    for (what, token, expected) in [
        ("nothing", "", TokenError::Malformed),
        ("one part", "abc", TokenError::Malformed),
        ("two parts", signed, TokenError::Malformed),
        (
            "four parts",
            &format!("{good}.{signature}"),
            TokenError::Malformed,
        ),
        ("too long", &long, TokenError::TooLong),
        (
            "no signature",
            &format!("{signed}."),
            TokenError::BadSignature,
        ),
        (
            "none",
            &format!("{none}.{}.", part("{}")),
            TokenError::WrongAlgorithm("HS256"),
        ),
        (
            "none, signed",
            &hs256(r#"{"alg":"none"}"#, "{}"),
            TokenError::WrongAlgorithm("HS256"),
        ),
        (
            "no algorithm",
            &hs256(r#"{"typ":"JWT"}"#, "{}"),
            TokenError::WrongAlgorithm("HS256"),
        ),
        (
            "another algorithm",
            &hs256(r#"{"alg":"RS256"}"#, "{}"),
            TokenError::WrongAlgorithm("HS256"),
        ),
        (
            "an algorithm in another case",
            &hs256(r#"{"alg":"hs256"}"#, "{}"),
            TokenError::WrongAlgorithm("HS256"),
        ),
        (
            "an extension",
            &hs256(r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, "{}"),
            TokenError::NeedsExtension,
        ),
        ("other claims", &forged_claims, TokenError::BadSignature),
        (
            "a header that is a list",
            &hs256("[]", "{}"),
            TokenError::Malformed,
        ),
        (
            "claims that are a list",
            &hs256(HEADER, "[]"),
            TokenError::Malformed,
        ),
        (
            "claims that are none",
            &hs256(HEADER, "{"),
            TokenError::Malformed,
        ),
        ("padding", &format!("{good}="), TokenError::Malformed),
        ("blanks", &format!(" {good}"), TokenError::Malformed),
        ("a second spelling", &respelled, TokenError::Malformed),
    ] {
        let found = verifier.verify_at(token, NOW);
        assert_eq!(found, Err(expected), "{what}");
    }
    let other = Verifier::new("another secret", "HS256").unwrap();
    assert_eq!(other.verify_at(&good, NOW), Err(TokenError::BadSignature));
}

#[test]
fn times_are_kept_with_some_seconds_of_leeway() {
    let verifier = Verifier::new(SECRET, "HS256").unwrap();
    let now = NOW.as_secs();
    for (claims, expected) in [
        (json!({}), Ok(())),
        (json!({ "exp": now + 1 }), Ok(())),
        (json!({ "exp": now - 9 }), Ok(())),
        (json!({ "exp": now - 10 }), Err(TokenError::Expired)),
        (json!({ "exp": 0 }), Err(TokenError::Expired)),
        (json!({ "exp": -1 }), Err(TokenError::Expired)),
        (json!({ "exp": 1e300 }), Ok(())),
        (
            json!({ "exp": format!("{}", now + 100) }),
            Err(TokenError::Malformed),
        ),
        (json!({ "exp": null }), Err(TokenError::Malformed)),
        (json!({ "nbf": now + 10 }), Ok(())),
        (json!({ "nbf": now + 11 }), Err(TokenError::NotYetValid)),
        (
            json!({ "nbf": now as f64 + 0.5, "exp": now as f64 + 0.5 }),
            Ok(()),
        ),
        (json!({ "nbf": [] }), Err(TokenError::Malformed)),
    ] {
        let token = hs256(r#"{"alg":"HS256"}"#, &claims.to_string());
        let found = verifier.verify_at(&token, NOW).map(drop);
        assert_eq!(found, expected, "{claims}");
    }
}

#[test]
fn a_key_is_of_its_algorithm_or_refused() {
    let (private, public) = curve_keys();
    let refused = |key: &str, algorithm: &str| Verifier::new(key, algorithm).map(drop).unwrap_err();
    // A public key is no secret: anyone could sign with it.
    for algorithm in ["HS256", "HS384", "HS512"] {
        assert!(matches!(
            refused(RSA_PUBLIC, algorithm),
            KeyError::PemAsSecret(_)
        ));
        assert_eq!(refused("", algorithm), KeyError::Empty);
    }
    for algorithm in ["none", "None", "", "HS255", "hs256", "ES512"] {
        assert_eq!(
            refused(SECRET, algorithm),
            KeyError::UnknownAlgorithm(algorithm.to_owned())
        );
    }
    assert_eq!(refused(RSA_PUBLIC, "ES256"), KeyError::WrongKind("ES256"));
    assert_eq!(refused(&public, "RS256"), KeyError::WrongKind("RS256"));
    assert!(matches!(refused(SECRET, "RS256"), KeyError::NotPem { .. }));
    assert!(matches!(
        refused(&private, "ES256"),
        KeyError::NotPem { .. }
    ));
    assert_eq!(
        refused(
            "-----BEGIN PUBLIC KEY-----\n?\n-----END PUBLIC KEY-----",
            "ES256"
        ),
        KeyError::InvalidBase64
    );
    // Cut anywhere, a key is refused and nothing panics.
    let der = STANDARD.decode(public.lines().nth(1).unwrap()).unwrap();
    for end in 0..der.len() {
        assert!(Verifier::new(&pem("PUBLIC KEY", &der[..end]), "ES256").is_err());
    }
    let refused = |key: &str| Signer::new(key, "p").map(drop).unwrap_err();
    assert_eq!(refused(""), KeyError::Empty);
    assert_eq!(refused("base64:"), KeyError::Empty);
    assert_eq!(refused("base64:?"), KeyError::InvalidBase64);
    assert!(matches!(refused(&public), KeyError::NotPem { .. }));
    assert!(matches!(
        refused(&pem("PRIVATE KEY", b"abc")),
        KeyError::WrongKind(_)
    ));
}

#[test]
fn keys_are_not_shown() {
    let signer = Signer::new(SECRET, "penstock").unwrap();
    let verifier = Verifier::new(SECRET, "HS256").unwrap();
    let shown = format!("{signer:?} {verifier:?}");
    assert!(
        shown.contains("penstock") && !shown.contains("Change"),
        "{shown}"
    );
}

/// A key that was made for this test; its private half is nowhere.
const RSA_PUBLIC: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAiGSqHuIaXlG+XQ7/8SxR
F/i83ynkYJEbu2I9hW0op/gDr1qOdeBhOFyEr/yD6BO29OrbbAVcJafhA1qEHzG7
jb5I95utgbDtpnDj5F74ggI1wGmsg0NM1+DSsixVMx4f+89Hq15e65sxh5QGd7a3
K2loXAQANXLOIXdpxxB/NHMhMz9pWjUcW9zjyBt4INOt+P/4IvC1SNeRCv7hHDbc
k4ZPO3Y+rCVBrvZVUvVGiPQ7c3WnA7NBguZz73qMKPHBPZoCqloHe1PArLC7IIgT
QPd3FfBzlAddBhlxgEJQTb+FThlGZu329qSXl4wvjfvUG9TAZcjyeFKHRFiO+yOk
aQIDAQAB
-----END PUBLIC KEY-----
";

/// The same in its older form.
const RSA_PUBLIC_PKCS1: &str = "\
-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEAiGSqHuIaXlG+XQ7/8SxRF/i83ynkYJEbu2I9hW0op/gDr1qOdeBh
OFyEr/yD6BO29OrbbAVcJafhA1qEHzG7jb5I95utgbDtpnDj5F74ggI1wGmsg0NM
1+DSsixVMx4f+89Hq15e65sxh5QGd7a3K2loXAQANXLOIXdpxxB/NHMhMz9pWjUc
W9zjyBt4INOt+P/4IvC1SNeRCv7hHDbck4ZPO3Y+rCVBrvZVUvVGiPQ7c3WnA7NB
guZz73qMKPHBPZoCqloHe1PArLC7IIgTQPd3FfBzlAddBhlxgEJQTb+FThlGZu32
9qSXl4wvjfvUG9TAZcjyeFKHRFiO+yOkaQIDAQAB
-----END RSA PUBLIC KEY-----
";

/// Signed by it; good until 2100.
const RSA_TOKEN: &str = concat!(
    "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdfSwiZXhwIjo0MTA",
    "yNDQ0ODAwfQ.",
    "Jy_jQbyGH1x_8KZBfXYn0_IIJc9Sx6HQtWVBpCorekqc6WcHhyDLrSho_0ayohuqifBUIRNTU3sBFXIgbzHsJaOJ",
    "SWp4vxo_fcmPaS7YbsHBSzInKkw10Z7WX9bymynvedE32r9WTuIbsARDOVvfNtozvJaZ_PGY-O3fqquoniNLaFmZ",
    "TXUN37HSufxGJnAmyUrTlWv_YfGF2djz1rvwiIPYKw63hyYMgQOtPNnUv6LsKV6a5QfKchaHamnD3-hY4z48RwzQ",
    "31J_iUVHClXteW0i_5m1LNV5Wfr6YtMxOdOuefKDsYvUceSXhirdgK7xTjeXGt0Pe_UdKk3ssfH07w",
);

#[test]
fn a_signer_recognises_tokens_of_the_same_secret() {
    let now = clock::wall_time();
    let other = |key: &str| Signer::new(key, "another").unwrap();
    let own = Signer::new(SECRET, "penstock").unwrap();
    assert!(own.is_signed_with_same_secret(other(SECRET).sign(now).as_bytes()));
    let claims = format!(r#"{{"nbf": {}}}"#, (now + 2 * TOKEN_LIFETIME).as_secs());
    for (name, token) in [
        ("another secret", other("another").sign(now).to_string()),
        (
            "too late",
            other(SECRET).sign(now - 2 * TOKEN_LIFETIME).to_string(),
        ),
        ("too early", hs256(r#"{"alg": "HS256"}"#, &claims)),
        ("another algorithm", hs256(r#"{"alg": "none"}"#, "{}")),
        ("none", String::new()),
    ] {
        assert!(!own.is_signed_with_same_secret(token.as_bytes()), "{name}");
    }
    assert!(!own.is_signed_with_same_secret(b"\xff.a.b"));
    // A signature of a private key cannot come from another server.
    let (private, _) = curve_keys();
    let alone = other(&private);
    assert!(!alone.is_signed_with_same_secret(alone.sign(now).as_bytes()));
}
