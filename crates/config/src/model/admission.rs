//! Who may use a route, beside networks, passwords and services: tokens, and the words of
//! `satisfy`.

use std::collections::BTreeMap;

use super::{KeySetSource, TokenAlgorithm};
use crate::options::OptionDefault::{Described, Required};
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::redacted::Secret;
use crate::signed_url::SignedText;
use crate::values::ValuePattern;

choice! {
    /// How many of the rules about who may use a route must admit a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Satisfy {
        /// All of them.
        #[default]
        All = "all",
        /// One of them.
        Any = "any",
    }
}

section! {
    /// Signed tokens (JWT, RFC 7519) that clients must have, with the algorithm that the key is for.
    /// A token must have an end (`exp`); clocks may differ by 10 seconds. It comes as `Authorization: Bearer TOKEN`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JwtAuth(keys: JwtKeys)
    in "sites.routes.jwt", "jwt = { ... } in [[sites.routes]]", "" {
        /// What the issuer of tokens (`iss`) must be.
        issuer: Option<String> = None, Text(PLAIN_TEXT), default "any",
            example r#""https://id.example""#, by check(crate::hub::is_valid_issuer);
        /// What the audience of tokens (`aud`) must be or have: one of these.
        "audience" => audiences: Vec<String> = Vec::new(), TextOrTexts(PLAIN_TEXT), default "any",
            example r#""shop""#, by hand;
        /// The cookie that has the token of a request without the field.
        cookie: Option<String> = None, Text(COOKIE_NAME), default "none", example r#""token""#,
            by check(crate::headers::is_token);
        /// The parameter of the query that has it. Logs mask its value.
        query: Option<String> = None, Text(PARAMETER_NAME), default "none",
            example r#""access_token""#, by check(crate::jwt::is_parameter);
        /// Fields that the request goes on with, each with the claim that it has the value of; a
        /// dot leads into a claim. The client's own fields of these names are dropped.
        claims: BTreeMap<String, String> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ X-User = "sub", X-Roles = "realm_access.roles" }"#, by hand;
        /// What claims must be; others get 403. Values are as those of `match`; of a list one item
        /// must match, and of `scope` one word.
        require: BTreeMap<String, ValuePattern> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ scope = "orders:read" }"#, by hand;
        /// The claim with the user's name, for the log and `REMOTE_USER`.
        "user" => user_claim: String = "sub".to_owned(), Text(PLAIN_TEXT),
            by check(crate::hub::is_valid_issuer);
        /// The name of the protected part in `WWW-Authenticate`.
        realm: String = "restricted".to_owned(), Text(REALM), by check(crate::basic_auth::is_realm);
    }
    also {
        /// The set of public keys (JWKS, RFC 7517): an address that begins with `https://` or
        /// `http://`, or a file. It is read again every 5 minutes, and when a token names an unknown
        /// key. While it cannot be read the last one counts; before the first, tokens get 503.
        "jwks": Text(crate::hub::KEY_SET_EXPECTED), Described("required, unless there is `key`"),
            example r#""https://id.example/keys""#;
        /// One key in place of a set.
        "key": Table("sites.routes.jwt.key"), Described("required, unless there is `jwks`"),
            example r#"{ file = "jwt.pem" }"#;
    }
    plain {
        /// The keys.
        keys: JwtKeys = keys;
    }
}

keys! {
    /// The key of tokens.
    JWT_KEY in "sites.routes.jwt.key", "key = { ... } in jwt of [[sites.routes]]", "" {
        /// A file with a public key in PEM, or with a secret, as it is or in base64 behind `base64:`.
        /// It is read at start and at a reload.
        "file": Path, Described("required, unless there is a `credential`"),
            example r#""jwt.pem""#;
        /// The name of a credential that systemd gives the server, in place of `file`.
        "credential": Text(crate::secret::CREDENTIAL_EXPECTED), Described("none");
        /// The algorithm of tokens that are taken.
        "algorithm": Choice(TokenAlgorithm::WORDS),
            Described("the public key's own; `HS256` for a secret"), example r#""HS512""#;
    }
}

/// The keys of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwtKeys {
    /// One.
    Single {
        /// The public key in PEM, or the secret.
        key: Secret,
        /// The algorithm, where it is not the key's own.
        algorithm: Option<String>,
    },
    /// Those of a set (JWKS), which may change.
    Set(KeySetSource),
}

section! {
    /// Links that are good until a time, since the application has signed them with a secret that it
    /// shares with the server: `?expires=SECONDS&signature=...`, with the end in seconds since 1970
    /// and HMAC-SHA256 over path and query without the signature, in base64 for URLs or in
    /// hexadecimal digits. A wrong one gets 403, one that has expired 410.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SignedUrl(secrets: Vec<Secret>)
    in "sites.routes.signed_url", "signed_url = { ... } in [[sites.routes]]", "" {
        /// The text that is signed by MD5 instead, for links in the form of nginx'
        /// `secure_link_md5`: `{expires}`, `{path}` (decoded), `{client}` and `{secret}` stand for
        /// their values.
        md5: Option<SignedText> = None, Text(SIGNED_TEXT), default "none: HMAC-SHA256",
            example r#""{expires}{path}{client} {secret}""#, by parse(SignedText::parse);
        /// The parameter with the end of the link.
        expires_parameter: String = "expires".to_owned(), Text(PARAMETER_NAME),
            by check(crate::jwt::is_parameter);
        /// The parameter with the signature. Logs mask its value.
        signature_parameter: String = "signature".to_owned(), Text(PARAMETER_NAME),
            default "`signature`, or `md5` beside `md5`", example r#""signature""#,
            by check(crate::jwt::is_parameter);
        /// Methods that links are for.
        methods: Vec<String> = vec!["GET".to_owned(), "HEAD".to_owned()], Texts(METHOD_EXPECTED),
            by items(crate::conditions::is_method);
        /// Whether a link is good for one address alone: a line feed and the client's address then
        /// follow the signed text.
        client: bool = false, Bool, only "links without `md5`";
    }
    also {
        /// The secrets, one a line, of at least 16 bytes each; links of all of them are good.
        "secret": OrTable(&Text(SHARED_SECRET), "secret_file"), Required,
            example r#""J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=""#;
    }
    plain {
        /// The secrets.
        secrets: Vec<Secret> = secrets;
    }
}
