//! Tokens right and wrong, where they are found, what they allow, and which pages may use a cookie.

use serde_json::json;

use super::*;
use crate::tests::fixtures::{
    PUBLISHER_KEY, SUBSCRIBERS_KEY, head, no_key_sets, publisher_token, settings, sign_token,
    sign_token_with_header, subscriber_token,
};

fn access(settings: &RouteMercure) -> MercureAccess {
    MercureAccess::new(settings, no_key_sets).unwrap()
}

/// The head of a request with these fields.
fn asked(method: &str, fields: &[&str]) -> RequestHead {
    let line = format!("{method} /.well-known/mercure HTTP/1.1");
    let mut lines = vec![&*line, "Host: hub.example"];
    lines.extend(fields);
    head(&lines)
}

fn with_token(token: &str) -> RequestHead {
    asked("GET", &[&format!("Authorization: Bearer {token}")])
}

#[test]
fn a_token_is_found_in_header_query_and_cookie_in_that_order() {
    let access = access(&settings());
    let sees = |claims: MercureClaims, topic: &str| claims.subscribe.matches(topic);
    let [one, two, three] = ["1", "2", "3"].map(|topic| subscriber_token(&[topic]));
    let header = format!("Authorization: bearer  {one} ");
    let cookie = format!("Cookie: a=b; mercureAuthorizationX=x; mercureAuthorization={three};c=d");
    for (fields, query, seen) in [
        (&[&*header, &*cookie][..], Some(&*two), "1"),
        (&[&*header], None, "1"),
        (&[&*cookie], Some(&*two), "2"),
        // Another scheme is not for this hub.
        (&["Authorization: Basic eDp5", &*cookie], Some(&*two), "2"),
        (&[&*cookie], None, "3"),
        (&["Cookie: x=y", &*cookie], None, "3"),
    ] {
        let claims = access
            .authorize_subscriber(&asked("GET", fields), query)
            .unwrap();
        assert!(sees(claims, seen), "{fields:?}");
    }
}

#[test]
fn who_has_no_token_may_subscribe_only_where_that_is_allowed() {
    for (anonymous, expected) in [(true, None), (false, Some(AccessDenied::NoToken))] {
        let access = access(&RouteMercure {
            anonymous,
            ..settings()
        });
        let denied = access
            .authorize_subscriber(&asked("GET", &["Cookie: a=b"]), None)
            .err();
        assert_eq!(denied, expected);
        // One that allows nothing is still one.
        let token = sign_token(SUBSCRIBERS_KEY, &json!({}));
        let claims = access
            .authorize_subscriber(&with_token(&token), None)
            .unwrap();
        assert!(claims.subscribe.is_empty());
        assert_eq!(
            access.authorize_publisher(&asked("POST", &[]), None),
            Err(AccessDenied::NoToken)
        );
    }
}

#[test]
fn a_token_that_is_wrong_is_refused_also_where_none_is_needed() {
    let access = access(&settings());
    let claims = json!({ "mercure": { "subscribe": ["*"] } });
    let none = sign_token_with_header("", &json!({ "alg": "none" }), &claims);
    let unsigned = format!("{}.", none.rsplit_once('.').unwrap().0);
    let expired = sign_token(
        SUBSCRIBERS_KEY,
        &json!({ "mercure": claims["mercure"], "exp": 1 }),
    );
    let early = sign_token(
        SUBSCRIBERS_KEY,
        &json!({ "mercure": claims["mercure"], "nbf": 99_999_999_999_u64 }),
    );
    let hs512 = sign_token_with_header(SUBSCRIBERS_KEY, &json!({ "alg": "HS512" }), &claims);
    for (name, token, expected) in [
        (
            "empty",
            String::new(),
            AccessDenied::InvalidToken(TokenError::Malformed),
        ),
        (
            "no token",
            "x".to_owned(),
            AccessDenied::InvalidToken(TokenError::Malformed),
        ),
        (
            "alg none",
            none,
            AccessDenied::InvalidToken(TokenError::WrongAlgorithm("HS256")),
        ),
        (
            "unsigned",
            unsigned,
            AccessDenied::InvalidToken(TokenError::WrongAlgorithm("HS256")),
        ),
        (
            "another algorithm",
            hs512,
            AccessDenied::InvalidToken(TokenError::WrongAlgorithm("HS256")),
        ),
        (
            "the publishers' key",
            sign_token(PUBLISHER_KEY, &claims),
            AccessDenied::InvalidToken(TokenError::BadSignature),
        ),
        (
            "expired",
            expired,
            AccessDenied::InvalidToken(TokenError::Expired),
        ),
        (
            "too early",
            early,
            AccessDenied::InvalidToken(TokenError::NotYetValid),
        ),
        (
            "long",
            "a.".repeat(50_000),
            AccessDenied::InvalidToken(TokenError::TooLong),
        ),
    ] {
        let denied = access.authorize_subscriber(&with_token(&token), None);
        assert_eq!(denied.err(), Some(expected.clone()), "{name}");
        let cookie = format!("Cookie: mercureAuthorization={token}");
        let denied = access.authorize_subscriber(&asked("GET", &[&cookie]), None);
        assert_eq!(denied.err(), Some(expected), "{name}");
    }
}

#[test]
fn claims_are_lists_of_selectors() {
    let access = access(&settings());
    let publish = |claims: &Value| {
        let token = sign_token(PUBLISHER_KEY, claims);
        access.authorize_publisher(&with_token(&token), None)
    };
    let long = "a".repeat(10_000);
    for (claims, expected) in [
        (json!({}), AccessDenied::NotAllowed),
        (json!({ "mercure": {} }), AccessDenied::NotAllowed),
        (json!({ "mercure": null }), AccessDenied::NotAllowed),
        (json!({ "mercure": "x" }), AccessDenied::NotAllowed),
        (
            json!({ "mercure": { "publish": null } }),
            AccessDenied::NotAllowed,
        ),
        (
            json!({ "mercure": { "subscribe": ["*"] } }),
            AccessDenied::NotAllowed,
        ),
        (
            json!({ "mercure": { "publish": "*" } }),
            AccessDenied::InvalidClaim("publish"),
        ),
        (
            json!({ "mercure": { "publish": [1] } }),
            AccessDenied::InvalidClaim("publish"),
        ),
        (
            json!({ "mercure": { "publish": [], "subscribe": {} } }),
            AccessDenied::InvalidClaim("subscribe"),
        ),
        (
            json!({ "mercure": { "publish": [""] } }),
            AccessDenied::InvalidSelector("publish", SelectorError::Empty),
        ),
        (
            json!({ "mercure": { "publish": [long] } }),
            AccessDenied::InvalidSelector("publish", SelectorError::TooLong),
        ),
        (
            json!({ "mercure": { "publish": ["{a}".repeat(100)] } }),
            AccessDenied::InvalidSelector("publish", SelectorError::TooComplex),
        ),
    ] {
        assert_eq!(publish(&claims), Err(expected), "{claims}");
    }
    for name in ["mercure", "https://mercure.rocks/"] {
        let grants = publish(&json!({ name: { "publish": ["/a/{id}"] } })).unwrap();
        assert!(grants.matches("/a/1") && !grants.matches("/b/1"), "{name}");
    }
    assert!(
        publish(&json!({ "mercure": { "publish": [] } }))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn payload_and_end_come_with_the_claims() {
    let access = access(&settings());
    let claims = json!({ "exp": 9_000_000_000_u64, "mercure": { "payload": { "user": 7 } } });
    let token = sign_token(SUBSCRIBERS_KEY, &claims);
    let claims = access
        .authorize_subscriber(&with_token(&token), None)
        .unwrap();
    assert_eq!(claims.payload, Some(json!({ "user": 7 })));
    for (now, expected) in [(8_999_999_990, 10), (9_000_000_001, 0)] {
        let lifetime = claims.remaining_lifetime(Duration::from_secs(now));
        assert_eq!(lifetime, Some(Duration::from_secs(expected)));
    }
    assert_eq!(
        MercureClaims::default().remaining_lifetime(Duration::ZERO),
        None
    );
}

#[test]
fn subscribers_without_a_key_of_their_own_have_the_publishers() {
    let both = access(&RouteMercure {
        subscriber_key: None,
        ..settings()
    });
    let token = sign_token(PUBLISHER_KEY, &json!({ "mercure": { "subscribe": ["a"] } }));
    assert!(
        both.authorize_subscriber(&with_token(&token), None)
            .unwrap()
            .subscribe
            .matches("a")
    );
    let keyless = access(&RouteMercure {
        publisher_key: None,
        subscriber_key: None,
        ..settings()
    });
    assert_eq!(
        keyless.authorize_publisher(&with_token(&token), None),
        Err(AccessDenied::NoKey)
    );
    let denied = keyless.authorize_subscriber(&with_token(&token), None);
    assert_eq!(denied.err(), Some(AccessDenied::NoKey));
    let broken = RouteMercure {
        publisher_key: Some(MercureKeys::Single(MercureKey {
            key: "x".into(),
            algorithm: "none".to_owned(),
        })),
        ..settings()
    };
    let error = MercureAccess::new(&broken, no_key_sets).unwrap_err();
    assert!(
        error.starts_with("mercure.publisher_key: `none`"),
        "{error}"
    );
}

#[test]
fn a_token_is_of_the_issuer_and_for_the_audience_that_are_set() {
    let access = access(&RouteMercure {
        issuer: Some("https://id.example".to_owned()),
        audience: Some("hub".to_owned()),
        ..settings()
    });
    let issuer = TokenError::WrongIssuer("https://id.example".to_owned());
    let audience = TokenError::WrongAudience("hub".to_owned());
    for (claims, expected) in [
        (json!({ "iss": "https://id.example", "aud": "hub" }), None),
        (
            json!({ "iss": "https://id.example", "aud": ["x", "hub"] }),
            None,
        ),
        (json!({ "aud": "hub" }), Some(&issuer)),
        (
            json!({ "iss": "https://id.example.org", "aud": "hub" }),
            Some(&issuer),
        ),
        (
            json!({ "iss": ["https://id.example"], "aud": "hub" }),
            Some(&issuer),
        ),
        (json!({ "iss": "https://id.example" }), Some(&audience)),
        (
            json!({ "iss": "https://id.example", "aud": "hubs" }),
            Some(&audience),
        ),
        (
            json!({ "iss": "https://id.example", "aud": [["hub"]] }),
            Some(&audience),
        ),
    ] {
        let token = sign_token(SUBSCRIBERS_KEY, &claims);
        let denied = access.authorize_subscriber(&with_token(&token), None).err();
        let expected = expected.map(|error| AccessDenied::InvalidToken(error.clone()));
        assert_eq!(denied, expected, "{claims}");
    }
}

#[test]
fn a_cookie_publishes_only_for_pages_of_this_host_and_of_named_origins() {
    let access = access(&settings());
    let cookie = format!("Cookie: mercureAuthorization={}", publisher_token(&["*"]));
    for (fields, expected) in [
        (&["Origin: https://page.example"][..], Ok(())),
        (&["Origin: https://hub.example"], Ok(())),
        (&["Origin: http://HUB.example"], Ok(())),
        (&["Referer: https://page.example/a/b?c"], Ok(())),
        (&["Referer: https://hub.example"], Ok(())),
        (&[], Err(AccessDenied::ForeignOrigin)),
        (&["Origin: null"], Err(AccessDenied::ForeignOrigin)),
        (
            &["Origin: https://evil.example"],
            Err(AccessDenied::ForeignOrigin),
        ),
        (
            &["Origin: https://hub.example.evil.example"],
            Err(AccessDenied::ForeignOrigin),
        ),
        (
            &["Origin: http://page.example"],
            Err(AccessDenied::ForeignOrigin),
        ),
        (
            &["Origin: ftp://hub.example"],
            Err(AccessDenied::ForeignOrigin),
        ),
        (
            &["Referer: https://evil.example/https://hub.example"],
            Err(AccessDenied::ForeignOrigin),
        ),
        (&["Referer: hub.example"], Err(AccessDenied::ForeignOrigin)),
        (
            &[
                "Origin: https://evil.example",
                "Referer: https://hub.example/",
            ],
            Err(AccessDenied::ForeignOrigin),
        ),
    ] {
        let mut all = vec![&*cookie];
        all.extend(fields);
        let answer = access
            .authorize_publisher(&asked("POST", &all), None)
            .map(|_| ());
        assert_eq!(answer, expected, "{fields:?}");
    }
    // A header is no browser's doing.
    let header = format!("Authorization: Bearer {}", publisher_token(&["*"]));
    let fields = [&*header, "Origin: https://evil.example"];
    assert!(
        access
            .authorize_publisher(&asked("POST", &fields), None)
            .is_ok()
    );
}

#[test]
fn pages_of_named_origins_may_read_answers_with_credentials() {
    let any = RouteMercure {
        origins: vec!["*".to_owned(), "https://page.example".to_owned()],
        ..settings()
    };
    let none = RouteMercure {
        origins: Vec::new(),
        ..settings()
    };
    // The answer depends on the origin where one is named.
    let (named, page, other) = (settings(), "https://page.example", "https://other.example");
    for (settings, origin, allowed, has_credentials) in [
        (&named, page, Some(page), true),
        (&named, other, None, false),
        (&any, page, Some(page), true),
        (&any, other, Some("*"), false),
        (&any, "null", Some("*"), false),
        (&none, page, None, false),
    ] {
        let access = access(settings);
        for method in ["GET", "POST", "OPTIONS"] {
            let mut fields = FieldBlock::new();
            let origin = format!("Origin: {origin}");
            access.add_cors_headers(&asked(method, &[&origin]), &mut fields);
            let field = |name: &str| fields.get(name);
            let name = format!("{method} {origin}");
            let allowed = allowed.map(str::as_bytes);
            assert_eq!(field("access-control-allow-origin"), allowed, "{name}");
            let credentials = field("access-control-allow-credentials");
            assert_eq!(credentials.is_some(), has_credentials, "{name}");
            let methods = field("access-control-allow-methods");
            assert_eq!(
                methods.is_some(),
                method == "OPTIONS" && allowed.is_some(),
                "{name}"
            );
            let varies = !settings.origins.is_empty();
            assert_eq!(field("vary").is_some(), varies, "{name}");
        }
        let mut fields = FieldBlock::new();
        access.add_cors_headers(&asked("GET", &[]), &mut fields);
        assert!(fields.is_empty());
    }
}
