//! What a response may ask of the front end, and who the client is.
//!
//! Helpers of `call`: where an `X-Sendfile` path lies below the folder that is given out, which fields
//! survive an internal redirect, and the client's address as far as it is to be believed. Pure.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use penstock_exchange::Request;
use penstock_http::FieldBlock;
use penstock_sys::net::PeerAddress;

/// Fields of the first answer that go into the one that an internal redirect leads to.
const SURVIVING: [&str; 7] = [
    "content-type",
    "content-disposition",
    "content-language",
    "set-cookie",
    "cache-control",
    "expires",
    "accept-ranges",
];

/// The fields that survive an internal redirect.
pub(crate) fn surviving(fields: &FieldBlock) -> FieldBlock {
    let mut kept = FieldBlock::new();
    for (name, value) in fields.iter() {
        if SURVIVING
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
        {
            // It was a field before.
            let _ = kept.push(name, value);
        }
    }
    kept
}

/// The target, percent-encoded, under which the files below `root` know the absolute `path`; `None`
/// when it is not below, or could leave.
pub(crate) fn target_below(root: &Path, path: &[u8]) -> Option<String> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let below = path.strip_prefix(root).ok()?;
    let mut target = String::new();
    for part in below.components() {
        let Component::Normal(name) = part else {
            return None;
        };
        target.push('/');
        for &byte in name.as_bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    target.push(char::from(byte));
                }
                _ => target.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    (!target.is_empty()).then_some(target)
}

/// The client's address: the peer's, or what trusted proxies say of theirs (the first from the right
/// in `X-Forwarded-For` that is not itself trusted).
pub(crate) fn client_address(request: &Request) -> String {
    let peer = match request.peer {
        PeerAddress::Tcp(address) => address.ip().to_canonical().to_string(),
        PeerAddress::Unix => String::new(),
    };
    if !request.is_from_proxy() {
        return peer;
    }
    let mut told = Vec::new();
    for value in request.head.field_all("x-forwarded-for") {
        told.extend(value.split(|&byte| byte == b','));
    }
    let mut client = peer;
    for element in told.into_iter().rev() {
        let text = std::str::from_utf8(element.trim_ascii()).unwrap_or_default();
        let Ok(address) = text.parse::<std::net::IpAddr>() else {
            break;
        };
        client = address.to_canonical().to_string();
        if !request.trust.covers_ip(address) {
            break;
        }
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_below_the_root_have_a_target() {
        let root = Path::new("/srv/files");
        for (path, expected) in [
            ("/srv/files/a b/c.txt", Some("/a%20b/c.txt")),
            ("/srv/files/%2e%2e/x", Some("/%252e%252e/x")),
            ("/srv/files", None),
            ("/srv/files/", None),
            ("/srv/filesx/a", None),
            ("/srv/files/../secret", None),
            ("/etc/passwd", None),
            ("srv/files/a", None),
            ("", None),
        ] {
            let target = target_below(root, path.as_bytes());
            assert_eq!(target.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn what_describes_the_first_body_does_not_survive() {
        let mut fields = FieldBlock::new();
        for (name, value) in [
            ("ETag", "\"a\""),
            ("Content-Type", "text/plain"),
            ("Last-Modified", "x"),
            ("Set-Cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("Server", "x"),
        ] {
            fields.push(name, value.as_bytes()).unwrap();
        }
        let kept = surviving(&fields);
        assert_eq!(
            kept.as_bytes(),
            b"Content-Type: text/plain\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n"
        );
    }
}
