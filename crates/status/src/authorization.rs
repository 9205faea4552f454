//! Decides whether a change is permitted on a listener: always, with the token, or never.
//!
//! `api` asks for every change, after the checks of `browser_guard`.
//!
//! # Invariants
//! - The token itself is not kept, and comparing takes the same time for every wrong token.
//! - Of the wrong tokens in a second only the first are answered with 401 and logged
//!   ([`LogThrottle`]). The right token is always accepted.

use std::fmt;
use std::time::Instant;

use aws_lc_rs::digest;
use penstock_http::RequestHead;
use penstock_runtime::LogThrottle;

/// Which changes are permitted on a listener.
#[derive(Debug)]
pub enum ChangeAuthorization {
    /// All: the callers were checked when they connected.
    AnyConnected,
    /// Those with the token.
    Token(AdminToken),
    /// None.
    ReadOnly,
}

/// The SHA-256 of `server.admin_token`.
pub struct AdminToken {
    digest: [u8; DIGEST_BYTES],
    wrong_tokens: LogThrottle,
}

/// The length of a SHA-256.
const DIGEST_BYTES: usize = 32;

/// Whether a change is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    Granted,
    /// No change is permitted on this listener.
    ChangesDisabled,
    /// The token is missing.
    TokenMissing,
    /// The token is wrong.
    TokenWrong,
    /// The token is wrong, as were many others in this second.
    TooManyWrongTokens,
}

impl ChangeAuthorization {
    /// Decides on the request with this head at the time `now`.
    pub(crate) fn check_permission(&self, head: &RequestHead, now: Instant) -> Permission {
        match self {
            Self::AnyConnected => Permission::Granted,
            Self::ReadOnly => Permission::ChangesDisabled,
            Self::Token(token) => match bearer_token(head) {
                None => Permission::TokenMissing,
                Some(sent) if token.matches(sent) => Permission::Granted,
                Some(_) if token.count_wrong_token(now) => Permission::TokenWrong,
                Some(_) => Permission::TooManyWrongTokens,
            },
        }
    }
}

impl AdminToken {
    /// Hashes the token.
    pub fn new(text: &str) -> Self {
        Self::from_digest(sha256(text.as_bytes()))
    }

    /// The token of this SHA-256.
    #[must_use]
    pub fn from_digest(digest: [u8; DIGEST_BYTES]) -> Self {
        Self {
            digest,
            wrong_tokens: LogThrottle::default(),
        }
    }

    /// The SHA-256, for the new process of an upgrade, which may not be able to read the file.
    pub fn digest(&self) -> [u8; DIGEST_BYTES] {
        self.digest
    }

    fn matches(&self, sent: &[u8]) -> bool {
        let sent = sha256(sent);
        let pairs = self.digest.iter().zip(sent);
        // In constant time.
        pairs.fold(0, |difference, (ours, theirs)| difference | (ours ^ theirs)) == 0
    }

    /// Counts a wrong token. Returns whether it is answered with 401 and logged.
    fn count_wrong_token(&self, now: Instant) -> bool {
        self.wrong_tokens.admit_line("wrong token", now).is_some()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

/// The bearer token of a request (RFC 6750 section 2.1); `None` if there are several.
pub(crate) fn bearer_token(head: &RequestHead) -> Option<&[u8]> {
    let mut fields = head.field_values("authorization");
    let value = fields.next().filter(|_| fields.next().is_none())?;
    let (scheme, token) = value.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

fn sha256(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{TestTransport, request};
    use std::time::Duration;

    const TOKEN: &str = "dGhpcyBpcyBub3QgYSByZWFsIHRva2VuLCBidXQgbG9uZw==";

    fn permit(authorization: &ChangeAuthorization, fields: &str, now: Instant) -> Permission {
        let text = format!("POST /reload HTTP/1.1\nHost: 127.0.0.1:8090{fields}");
        authorization.check_permission(&request(&text, TestTransport::Tcp).head, now)
    }

    #[test]
    fn takes_the_token_and_nothing_like_it() {
        let authorization = ChangeAuthorization::Token(AdminToken::new(TOKEN));
        let now = Instant::now();
        for (name, fields, expected) in [
            (
                "the token",
                format!("\nAuthorization: Bearer {TOKEN}"),
                Permission::Granted,
            ),
            (
                "any case",
                format!("\nauthorization: bearer  {TOKEN} "),
                Permission::Granted,
            ),
            ("nothing", String::new(), Permission::TokenMissing),
            (
                "no scheme",
                format!("\nAuthorization: {TOKEN}"),
                Permission::TokenMissing,
            ),
            (
                "another scheme",
                format!("\nAuthorization: Basic {TOKEN}"),
                Permission::TokenMissing,
            ),
            (
                "empty",
                "\nAuthorization: Bearer ".to_owned(),
                Permission::TokenMissing,
            ),
            (
                "short",
                "\nAuthorization: Bear".to_owned(),
                Permission::TokenMissing,
            ),
            (
                "twice",
                format!("\nAuthorization: Bearer {TOKEN}\nAuthorization: Bearer {TOKEN}"),
                Permission::TokenMissing,
            ),
            (
                "cut",
                format!("\nAuthorization: Bearer {}", &TOKEN[1..]),
                Permission::TokenWrong,
            ),
            (
                "longer",
                format!("\nAuthorization: Bearer {TOKEN}A"),
                Permission::TokenWrong,
            ),
            (
                "its digest",
                format!("\nAuthorization: Bearer {}", hex(&sha256(TOKEN.as_bytes()))),
                Permission::TokenWrong,
            ),
        ] {
            assert_eq!(permit(&authorization, &fields, now), expected, "{name}");
        }
        let restored = AdminToken::from_digest(AdminToken::new(TOKEN).digest());
        assert!(restored.matches(TOKEN.as_bytes()));
        assert_eq!(format!("{restored:?}"), "AdminToken");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn wrong_tokens_are_answered_so_often_and_the_right_one_always() {
        let authorization = ChangeAuthorization::Token(AdminToken::new(TOKEN));
        let (wrong, right) = (
            "\nAuthorization: Bearer guess",
            format!("\nAuthorization: Bearer {TOKEN}"),
        );
        let now = Instant::now();
        for _ in 0..10 {
            assert_eq!(permit(&authorization, wrong, now), Permission::TokenWrong);
        }
        for _ in 0..3 {
            assert_eq!(
                permit(&authorization, wrong, now),
                Permission::TooManyWrongTokens
            );
            assert_eq!(permit(&authorization, &right, now), Permission::Granted);
        }
        assert_eq!(
            permit(&authorization, wrong, now + Duration::from_secs(60)),
            Permission::TokenWrong
        );
    }

    #[test]
    fn without_a_token_nobody_may_but_who_was_let_in() {
        let now = Instant::now();
        let sent = format!("\nAuthorization: Bearer {TOKEN}");
        assert_eq!(
            permit(&ChangeAuthorization::ReadOnly, &sent, now),
            Permission::ChangesDisabled
        );
        assert_eq!(
            permit(&ChangeAuthorization::AnyConnected, "", now),
            Permission::Granted
        );
    }
}
