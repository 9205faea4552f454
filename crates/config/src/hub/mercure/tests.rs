//! What the `mercure` of a route gives, and its errors, row by row.
//!
//! # Invariants
//! - No line of a report has a key in it.

use std::time::Duration;

use super::*;
use crate::hub::tests::{check_routes, route, texts};

/// The example of Mercure's own documents.
const SECRET: &str = "!ChangeThisMercureHubJWTSecretKey!";
const PEM: &str = "-----BEGIN PUBLIC KEY-----\\nAAAA\\n-----END PUBLIC KEY-----\\n";

#[test]
fn reads_mercure_hubs() {
    let key = |key: &str, algorithm: &str| {
        Some(MercureKeys::Single(MercureKey {
            key: key.replace("\\n", "\n").into(),
            algorithm: algorithm.to_owned(),
        }))
    };
    let plain = RouteMercure {
        publisher_key: None,
        subscriber_key: None,
        issuer: None,
        audience: None,
        anonymous: false,
        origins: Vec::new(),
        subscriptions: false,
        heartbeat_interval: None,
        heartbeat_event: None,
    };
    let mercure = |value: &str| route(&format!("mercure = {{ {value} }}")).mercure;
    let short = RouteMercure {
        publisher_key: key(SECRET, "HS256"),
        ..plain.clone()
    };
    let text = format!("publisher_key = \"{SECRET}\"");
    assert_eq!(mercure(&text), Some(short.clone()));
    let text = format!("publisher_key = {{ key = \"{SECRET}\" }}");
    assert_eq!(mercure(&text), Some(short));
    let long = "k".repeat(64);
    let text = format!(
        "publisher_key = {{ key = \"{PEM}\", algorithm = \"RS256\" }}, subscriber_key = {{ key = \"{long}\", algorithm = \"HS512\" }}, issuer = \"https://id.example\", audience = \"hub\", anonymous = true, origins = [\"*\", \"HTTPS://App.example:443\", \"http://[::1]:8080\", \"capacitor://localhost\"], subscriptions = true, heartbeat_interval = \"40s\", heartbeat_event = \"beat\""
    );
    let expected = RouteMercure {
        publisher_key: key(PEM, "RS256"),
        subscriber_key: key(&long, "HS512"),
        issuer: Some("https://id.example".to_owned()),
        audience: Some("hub".to_owned()),
        anonymous: true,
        origins: texts(&[
            "*",
            "https://app.example",
            "http://[::1]:8080",
            "capacitor://localhost",
        ]),
        subscriptions: true,
        heartbeat_interval: Some(Duration::from_secs(40)),
        heartbeat_event: Some("beat".to_owned()),
    };
    assert_eq!(mercure(&text), Some(expected));
    let rsa = PEM.replace("PUBLIC", "RSA PUBLIC");
    for (pem, algorithm) in [(rsa.as_str(), "RS256"), (PEM, "ES256"), (PEM, "EdDSA")] {
        let text = format!("subscriber_key = {{ key = \"{pem}\", algorithm = \"{algorithm}\" }}");
        let read = mercure(&text).unwrap();
        assert_eq!(read.subscriber_key, key(pem, algorithm), "{algorithm}");
    }
    let set = |text: &str| {
        let text = format!("publisher_key = {{ jwks = \"{text}\" }}");
        match mercure(&text).unwrap().publisher_key {
            Some(MercureKeys::Set(source)) => source,
            other => panic!("{text}: {other:?}"),
        }
    };
    let http = |authority: &str, target: &str| KeySetSource::Http {
        scheme: HttpScheme::Http,
        authority: authority.to_owned(),
        target: target.to_owned(),
    };
    assert_eq!(set("http://id.example"), http("id.example", "/"));
    let with_port = http("[::1]:8180", "/keys?a=b");
    assert_eq!(set("http://[::1]:8180/keys?a=b"), with_port);
    assert_eq!(with_port.to_string(), "http://[::1]:8180/keys");
    let secure = set("https://id.example/keys");
    assert!(matches!(
        secure,
        KeySetSource::Http {
            scheme: HttpScheme::Https,
            ..
        }
    ));
    assert_eq!(secure.to_string(), "https://id.example/keys");
    let file = set("keys.json");
    assert!(
        matches!(&file, KeySetSource::File(path) if path.ends_with("keys.json")),
        "{file}"
    );
    let open = RouteMercure {
        anonymous: true,
        ..plain
    };
    assert_eq!(mercure("anonymous = true"), Some(open));
}

#[test]
fn reports_keys_that_are_none_and_shows_no_key() {
    let private = "-----BEGIN PRIVATE KEY-----\\nAAAA\\n-----END PRIVATE KEY-----";
    let half = PEM.replace("-----END PUBLIC KEY-----", "");
    let rsa = PEM.replace("PUBLIC", "RSA PUBLIC");
    let rows = [
        (
            "HS256",
            "k".repeat(31),
            "a secret of at least 32 bytes for HS256; a public key stands beside its `algorithm`",
        ),
        (
            "HS256",
            PEM.to_owned(),
            "a secret of at least 32 bytes for HS256; a public key stands beside its `algorithm`",
        ),
        (
            "HS384",
            "k".repeat(47),
            "a secret of at least 48 bytes for HS384",
        ),
        (
            "HS512",
            "k".repeat(63),
            "a secret of at least 64 bytes for HS512",
        ),
        (
            "HS512",
            PEM.repeat(2),
            "a secret of at least 64 bytes for HS512",
        ),
        (
            "RS256",
            SECRET.to_owned(),
            "a public key in PEM for RS256, from `-----BEGIN PUBLIC KEY-----` on",
        ),
        (
            "RS256",
            private.to_owned(),
            "a public key in PEM for RS256, from `-----BEGIN PUBLIC KEY-----` on",
        ),
        (
            "RS256",
            half,
            "a public key in PEM for RS256, from `-----BEGIN PUBLIC KEY-----` on",
        ),
        (
            "RS256",
            PEM.repeat(2),
            "a public key in PEM for RS256, from `-----BEGIN PUBLIC KEY-----` on",
        ),
        (
            "ES256",
            rsa,
            "a public key in PEM for ES256, from `-----BEGIN PUBLIC KEY-----` on",
        ),
        (
            "ES256",
            String::new(),
            "a public key in PEM for ES256, from `-----BEGIN PUBLIC KEY-----` on",
        ),
    ];
    for (algorithm, key, expected) in rows {
        let lines = format!(
            "mercure.publisher_key.algorithm = \"{algorithm}\"\nmercure.publisher_key.key = \"{key}\""
        );
        let expected =
            format!("penstock.toml:4:29: `key` (not shown) cannot be used: expected {expected}");
        check_routes(&[(algorithm, &lines, &[&expected])]);
    }
    check_routes(&[
        (
            "a set and a key",
            "mercure.publisher_key = { jwks = \"keys.json\", key = \"x\" }",
            &["penstock.toml:3:34: `key` and `jwks` are both the keys: keep one"],
        ),
        (
            "a set of another scheme",
            "mercure.publisher_key.jwks = \"ftp://id.example/keys\"",
            &[
                "penstock.toml:3:30: `jwks` cannot be \"ftp://id.example/keys\": expected a file, or an address that begins with `https://` or `http://`",
            ],
        ),
        (
            "neither",
            "mercure.publisher_key = {}",
            &[
                "penstock.toml:3:25: `key` is missing in [sites.routes.mercure.publisher_key]: expected a secret, or a public key in PEM, or a table",
            ],
        ),
        (
            "a short text",
            "mercure = { publisher_key = \"changeme\" }",
            &[
                "penstock.toml:3:29: `publisher_key` (not shown) cannot be used: expected a secret of at least 32 bytes for HS256; a public key stands beside its `algorithm`",
            ],
        ),
        (
            "algorithm",
            "mercure = { subscriber_key = { key = \"x\", algorithm = \"none\" } }",
            &[
                "penstock.toml:3:55: `algorithm` cannot be \"none\": expected \"HS256\" or \"HS384\" or \"HS512\" or \"RS256\" or \"RS384\" or \"RS512\" or \"PS256\" or \"PS384\" or \"PS512\" or \"ES256\" or \"ES384\" or \"EdDSA\"",
            ],
        ),
        (
            "no key in the table",
            "mercure = { subscriber_key = { algorithm = \"HS256\" } }",
            &[
                "penstock.toml:3:30: `key` is missing in [sites.routes.mercure.subscriber_key]: expected a secret, or a public key in PEM, or a table",
            ],
        ),
        (
            "for nobody",
            "mercure = { subscriptions = true }",
            &[
                "penstock.toml:3:11: `publisher_key` is missing in [sites.routes.mercure]: expected a secret of at least 32 bytes for HS256; a public key stands beside its `algorithm`, or a table",
            ],
        ),
        (
            "types and keys",
            "mercure = { anonymous = true, publisher_key = 1, subscriber_jwt = \"x\", heartbeat_interval = \"0s\" }",
            &[
                "penstock.toml:3:47: `publisher_key` must be a secret of at least 32 bytes for HS256; a public key stands beside its `algorithm`, or a table, not an integer",
                "penstock.toml:3:50: unknown key `subscriber_jwt` in [sites.routes.mercure]; did you mean `subscriber_key`?",
                "penstock.toml:3:93: `heartbeat_interval` cannot be \"0s\": expected at least 1s",
            ],
        ),
        (
            "mercure is a table",
            "mercure = true",
            &["penstock.toml:3:11: `mercure` must be a table, not a boolean"],
        ),
    ]);
}

#[test]
fn reports_origins_that_no_browser_sends() {
    const ORIGIN: &str =
        "expected an origin such as \"https://app.example\", without a path, or \"*\"";
    for origin in [
        "",
        "null",
        "app.example",
        "https://",
        "https://app.example/",
        "https://a b",
        "://a",
        "1x://a",
        "https://*.app.example",
        "https://user@app.example",
    ] {
        let lines = format!("mercure = {{ anonymous = true, origins = [\"{origin}\"] }}");
        let expected = format!("penstock.toml:3:42: `origins` cannot be {origin:?}: {ORIGIN}");
        check_routes(&[(origin, &lines, &[&expected])]);
    }
    check_routes(&[(
        "twice",
        "mercure = { anonymous = true, origins = [\"http://a\", \"http://A:80\"] }",
        &["penstock.toml:3:54: `origins` has `http://a` twice"],
    )]);
}
