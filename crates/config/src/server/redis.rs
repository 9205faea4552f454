//! The `redis` of `[server]`: where the Redis or Valkey is that several servers share.
//!
//! Called by `server`.
//!
//! # Invariants
//! - An accepted address has a host or a socket and nothing that a client of Redis would read
//!   otherwise, and no message shows a password.

use std::path::{Path, PathBuf};

use crate::address::is_host;
use crate::findings::make_absolute;
use crate::section::Section;
use crate::values::MAX_UNIX_PATH_BYTES;

/// What a message says was expected.
pub(crate) const REDIS_EXPECTED: &str = "an address such as \"redis://127.0.0.1:6379\", \
     \"rediss://user:password@redis.example:6379/1\" or \"unix:/run/redis.sock\"";

/// Reads the address; of a socket with its absolute path.
pub(super) fn read(server: &Section<'_>) -> Option<String> {
    let text = server.secret("redis")?;
    let address = match text.value.strip_prefix("unix:") {
        Some(path) => parse_socket(server, path),
        None => is_redis_url(&text.value).then(|| text.value.clone().into_owned()),
    };
    if address.is_none() {
        if server.is_table("redis") || server.findings.is_expanded(text.offset) {
            server.report_invalid_secret("redis", text.offset, REDIS_EXPECTED);
            return None;
        }
        let masked = mask_credentials(&text.value);
        server.report_invalid_item("redis", &masked, text.offset, REDIS_EXPECTED);
    }
    address
}

/// Reads the file of authorities that the Redis at `address` is verified by, if it has TLS.
pub(super) fn read_authorities(server: &Section<'_>, address: Option<&str>) -> Option<PathBuf> {
    let is_wrong = address.is_none() && server.has("redis");
    if !is_wrong && !address.is_some_and(|address| address.starts_with("rediss://")) {
        server.report_not_applicable("redis_ca");
    }
    server.path("redis_ca").map(|path| path.value)
}

fn parse_socket(server: &Section<'_>, path: &str) -> Option<String> {
    let usable = !path.is_empty() && !path.contains(char::is_control);
    let path = usable.then(|| make_absolute(server.findings.base_dir(), Path::new(path)))?;
    let fits = path.as_os_str().len() <= MAX_UNIX_PATH_BYTES;
    Some(format!("unix:{}", path.to_str().filter(|_| fits)?))
}

/// `redis://[[user]:password@]host[:port][/database]`, or `rediss://` with TLS. What a URL could not have in a name or a
/// password stands there as `%` and two digits (RFC 3986 §2.1).
fn is_redis_url(text: &str) -> bool {
    let rest = text.strip_prefix("redis://");
    let Some(rest) = rest.or_else(|| text.strip_prefix("rediss://")) else {
        return false;
    };
    let (authority, database) = match rest.split_once('/') {
        Some((authority, database)) => (authority, Some(database)),
        None => (rest, None),
    };
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let is_number =
        |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u16>().is_ok();
    let has_port = |host: &str| !host.ends_with(":0");
    is_host(host)
        && has_port(host)
        && user.is_none_or(is_user_info)
        && database.is_none_or(|database| database.is_empty() || is_number(database))
}

fn is_user_info(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_graphic() && !b"/?#[]@%\"<>\\^`{|}".contains(&b);
    let mut rest = text;
    while let Some(percent) = rest.find(|c: char| !(c.is_ascii() && is_plain(c as u8))) {
        let coded = rest[percent..].strip_prefix('%');
        let digits = coded.and_then(|coded| coded.get(..2));
        if !digits.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit())) {
            return false;
        }
        rest = &rest[percent + 3..];
    }
    text.contains(':')
}

/// The text, or its scheme alone when there may be a password in it.
fn mask_credentials(text: &str) -> String {
    if !text.contains(['@', '?']) {
        return text.to_owned();
    }
    let scheme = text.find("://").map_or("", |end| &text[..end + 3]);
    format!("{scheme}(masked)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, check_error_table, parse_valid};

    fn redis(folder: &TestDir, text: &str) -> Option<String> {
        let text = format!("[apps.a]\n[server]\nredis = \"{text}\"\n");
        let redis = parse_valid(folder, &text).server.redis;
        redis.map(|redis| redis.expose().to_owned())
    }

    #[test]
    fn reads_addresses_and_sockets() {
        let folder = TestDir::with_sample_site();
        let base = folder.path().display();
        let rows = [
            ("redis://127.0.0.1:6379", None),
            ("redis://redis.example", None),
            ("rediss://:s3cret@redis.example:6380/1", None),
            ("redis://[::1]:6379/", None),
            ("redis://:s3cret@127.0.0.1:6379/15", None),
            ("redis://user:p%40%2Fss!$&'()*+,;=~@[::1]:6379", None),
            ("unix:/run/redis.sock", None),
            (
                "unix:///run/redis.sock",
                Some("unix:/run/redis.sock".to_owned()),
            ),
            ("unix:x.sock", Some(format!("unix:{base}/x.sock"))),
        ];
        for (text, expected) in rows {
            let expected = expected.unwrap_or_else(|| text.to_owned());
            assert_eq!(redis(&folder, text), Some(expected), "{text}");
        }
        assert_eq!(parse_valid(&folder, "[apps.a]\n").server.redis, None);
    }

    #[test]
    fn reports_addresses_that_are_none_without_their_passwords() {
        let long = format!("unix:/{}", "x".repeat(MAX_UNIX_PATH_BYTES));
        let rows = [
            ("", ""),
            ("127.0.0.1:6379", "127.0.0.1:6379"),
            ("http://127.0.0.1", "http://127.0.0.1"),
            ("redis://", "redis://"),
            ("redis://a b", "redis://a b"),
            ("redis://127.0.0.1:0", "redis://127.0.0.1:0"),
            ("redis://127.0.0.1:65536", "redis://127.0.0.1:65536"),
            ("redis://h/one", "redis://h/one"),
            ("redis://h/1/2", "redis://h/1/2"),
            ("redis://h/-1", "redis://h/-1"),
            ("redis://h/65536", "redis://h/65536"),
            ("redis://s3cret@h", "redis://(masked)"),
            ("rediss://s3cret@h", "rediss://(masked)"),
            ("redis://:s3/cret@h", "redis://(masked)"),
            ("redis://:s3@cret@h", "redis://(masked)"),
            ("redis://:s3%2cret%@h", "redis://(masked)"),
            ("redis://:s3 cret@h", "redis://(masked)"),
            ("redis://:s3€@h", "redis://(masked)"),
            ("redis://:s3%€€@h", "redis://(masked)"),
            ("redis:s3cret@h", "(masked)"),
            ("redis://h?password=s3cret", "redis://(masked)"),
            ("unix:", "unix:"),
            (long.as_str(), long.as_str()),
        ];
        for (text, masked) in rows {
            let expected = format!(
                "penstock.toml:3:9: `redis` cannot be {masked:?}: expected {REDIS_EXPECTED}"
            );
            let text = format!("[apps.a]\n[server]\nredis = \"{text}\"\n");
            check_error_table(&[(masked, &text, &[&expected])]);
        }
        check_error_table(&[
            (
                "authorities without TLS",
                "[apps.a]\n[server]\nredis = \"redis://h\"\nredis_ca = \"ca.pem\"\n",
                &["penstock.toml:4:12: `redis_ca` is only for a `redis` with `rediss://`"],
            ),
            (
                "type",
                "[apps.a]\n[server]\nredis = 6379\n",
                &[&format!(
                    "penstock.toml:3:9: `redis` must be {REDIS_EXPECTED}, or a table, not an integer"
                )],
            ),
        ]);
    }
}
