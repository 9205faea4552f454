//! Requests to the admin listener and the control socket, for the fuzzer:
//! `fuzz/fuzz_targets/control_request.rs`.
//!
//! # Invariants
//! - No input panics. A parsed change is no larger than its body.
//! - A change without a required token, or from a foreign origin, is refused.

use std::time::Instant;

use penstock_cache::PurgeTarget;
use penstock_http::{HeadLimits, ParseProgress, RequestHead, parse_head};

use crate::authorization::{self, Permission};
use crate::publish::ResponseFormat;
use crate::{
    AdminToken, ChangeAuthorization, browser_guard, publish, purge, server_changes, traffic_changes,
};

const TOKEN: &str = "dGhlIGZ1enplciBtYXkgaGF2ZSB0aGlzIG9uZQ==";

/// Reads `bytes` as a request with its body, and as a body alone.
pub fn read_request(bytes: &[u8]) {
    read_body(bytes);
    let limits = HeadLimits {
        max_target_bytes: 1024,
        max_head_bytes: 4096,
        max_fields: 40,
    };
    if let Ok(ParseProgress::Complete((head, length))) = parse_head(bytes, &limits) {
        read_head(&head, &bytes[..length]);
        read_body(&bytes[length..]);
    }
}

fn read_head(head: &RequestHead, text: &[u8]) {
    let host = head.host();
    if browser_guard::is_host_trusted(head) && !host.is_empty() {
        // No host name that a foreign DNS server could forge.
        let name = host.split(':').next().unwrap_or_default();
        let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
        let is_address = host.starts_with('[') || name.bytes().all(is_number);
        assert!(
            is_address || name.eq_ignore_ascii_case("localhost"),
            "{host}"
        );
    }
    if browser_guard::is_same_origin(head) {
        for origin in head.field_values("origin") {
            assert!(
                origin.len() > host.len()
                    && origin
                        .to_ascii_lowercase()
                        .ends_with(host.to_ascii_lowercase().as_bytes())
            );
        }
    }
    let now = Instant::now();
    assert!(
        ChangeAuthorization::ReadOnly.check_permission(head, now) == Permission::ChangesDisabled
    );
    let permission = ChangeAuthorization::Token(AdminToken::new(TOKEN)).check_permission(head, now);
    if permission == Permission::Granted {
        let mut windows = text.windows(TOKEN.len());
        assert!(windows.any(|window| window == TOKEN.as_bytes()));
    }
    let bearer = authorization::bearer_token(head);
    assert_eq!(bearer.is_none(), permission == Permission::TokenMissing);
    assert!(bearer.is_none() || head.field_values("authorization").count() == 1);
    let _ = ResponseFormat::from_accept(head.field("accept"));
    if let Some(token) = publish::publisher_token(head) {
        assert!(token.matches('.').count() == 2 && token.len() < text.len());
    }
}

fn read_body(text: &[u8]) {
    if let Ok(change) = server_changes::parse_server_change(text) {
        assert!(format!("{change:?}").len() <= 4 * text.len() + 256);
    }
    if let Ok(time) = traffic_changes::parse_pause(text) {
        assert!(!time.is_zero() && time.as_secs() <= 3600);
    }
    if let Ok(change) = traffic_changes::parse_maintenance(text) {
        assert!(format!("{change:?}").len() <= 8 * text.len() + 256);
    }
    let Ok(wish) = purge::parse_purge(text) else {
        return;
    };
    assert!(wish.cache.is_none_or(|name| !name.trim().is_empty()));
    match wish.target {
        PurgeTarget::Url(url) | PurgeTarget::Prefix(url) => {
            let begins = ["/", "http://", "https://"];
            assert!(begins.iter().any(|begin| url.starts_with(begin)), "{url}");
        }
        PurgeTarget::Tag(tag) => assert!(!tag.trim().is_empty()),
        PurgeTarget::All => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_any_bytes_change_nothing_without_the_token() {
        // A small generator for runs without the fuzzer.
        let mut state = 3_u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        let seed = format!(
            "POST /cache/purge HTTP/1.1\r\nHost: 127.0.0.1:8090\r\nAuthorization: Bearer {TOKEN}\r\n\
             Origin: http://127.0.0.1:8090\r\nSec-Fetch-Site: none\r\nContent-Length: 40\r\n\r\n"
        );
        for body in [
            "{\"prefix\": \"https://a/b\", \"cache\": \"c\"}",
            "{\"action\": \"add\", \"server\": \"127.0.0.1:1\", \"weight\": 2, \"max_active\": 3}",
        ] {
            let seed = [&seed, body].concat().into_bytes();
            read_request(&seed);
            for _ in 0..3000 {
                let mut bytes = seed.clone();
                for _ in 0..1 + next() % 3 {
                    let at = next() % bytes.len();
                    match next() % 4 {
                        0 => bytes.truncate(at.max(1)),
                        1 => bytes[at] = b"\"\\{},:\r\n\0 "[next() % 10],
                        2 => bytes[at] ^= 1 << (next() % 8),
                        _ => drop(bytes.remove(at)),
                    }
                    if bytes.is_empty() {
                        bytes.push(b'{');
                    }
                }
                read_request(&bytes);
            }
        }
    }
}
