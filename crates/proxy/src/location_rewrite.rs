//! Rewrites response fields that name the server's own address, which means nothing to a client.
//!
//! Called by `response` for heads with a `Location`, `Content-Location` or `Refresh`, before a
//! cache stores them. The address becomes a path, as with nginx's default `proxy_redirect`. Pure.
//!
//! # Invariants
//!
//! - A path never becomes a reference to another host, whatever follows the server's address.

use penstock_http::{FieldBlock, refresh_target};

/// Rewrites the fields of a response of `server`. `requested_host` is that of the request; an
/// address at that host is not changed.
pub(crate) fn rewrite_location_fields(fields: &mut FieldBlock, server: &str, requested_host: &str) {
    for name in ["Location", "Content-Location"] {
        let value = fields.get(name);
        let value = value.and_then(|value| std::str::from_utf8(value).ok());
        if let Some(path) = value.and_then(|value| path_on_server(value, server, requested_host)) {
            // A part of a valid value.
            let _ = fields.set(name, path.as_bytes());
        }
    }
    let value = fields.get("Refresh");
    let value = value.and_then(|value| std::str::from_utf8(value).ok());
    let Some((value, target_range)) = value.and_then(|value| Some((value, refresh_target(value)?)))
    else {
        return;
    };
    if let Some(path) = path_on_server(&value[target_range.clone()], server, requested_host) {
        let value = format!(
            "{}{path}{}",
            &value[..target_range.start],
            &value[target_range.end..]
        );
        let _ = fields.set("Refresh", value.as_bytes());
    }
}

/// The path of a reference to `server` itself; `None` for any other.
fn path_on_server(reference: &str, server: &str, requested_host: &str) -> Option<String> {
    let behind = |start: &str| {
        let found = reference.get(..start.len())?;
        found
            .eq_ignore_ascii_case(start)
            .then(|| &reference[start.len()..])
    };
    let (rest, port) = match (behind("http://"), behind("https://"), behind("//")) {
        (Some(rest), ..) | (.., Some(rest)) => (rest, ":80"),
        (_, Some(rest), _) => (rest, ":443"),
        _ => return None,
    };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let is = |own: &str| {
        let without = own.strip_suffix(port).unwrap_or(own);
        !own.is_empty()
            && [own, without]
                .iter()
                .any(|own| authority.eq_ignore_ascii_case(own))
    };
    if !is(server) || is(requested_host) {
        return None;
    }
    // Two leading slashes would name a host, and browsers read a backslash as a slash and skip tabs
    // (WHATWG URL, 4.4).
    Some(format!("/{}", rest.trim_start_matches(['/', '\\', '\t'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(location: &str, server: &str, requested_host: &str) -> String {
        let mut fields = FieldBlock::new();
        for name in ["Location", "Content-Location", "X-Location"] {
            fields.push(name, location.as_bytes()).unwrap();
        }
        rewrite_location_fields(&mut fields, server, requested_host);
        let value = |name: &str| String::from_utf8(fields.get(name).unwrap().to_vec()).unwrap();
        assert_eq!(value("location"), value("content-location"));
        assert_eq!(value("x-location"), location);
        value("location")
    }

    #[test]
    fn the_servers_own_address_becomes_a_path() {
        const SERVER: &str = "127.0.0.1:3000";
        for (location, expected) in [
            ("http://127.0.0.1:3000/login?a#b", "/login?a#b"),
            ("HTTPS://127.0.0.1:3000/login", "/login"),
            ("//127.0.0.1:3000/login", "/login"),
            ("http://127.0.0.1:3000", "/"),
            ("http://127.0.0.1:3000?a", "/?a"),
            ("http://127.0.0.1:3000//evil.test/x", "/evil.test/x"),
            ("http://127.0.0.1:3000/\\evil.test/x", "/evil.test/x"),
            ("http://127.0.0.1:3000\\/evil.test/x", "/evil.test/x"),
            ("http://127.0.0.1:3000/\t/evil.test/x", "/evil.test/x"),
            ("http://127.0.0.1:30001/a", "http://127.0.0.1:30001/a"),
            (
                "http://127.0.0.1:3000@evil.test/",
                "http://127.0.0.1:3000@evil.test/",
            ),
            ("http://a@127.0.0.1:3000/", "http://a@127.0.0.1:3000/"),
            ("http://shop.test/login", "http://shop.test/login"),
            ("/login", "/login"),
            ("login", "login"),
            ("", ""),
        ] {
            assert_eq!(
                rewritten(location, SERVER, "shop.test"),
                expected,
                "{location}"
            );
        }
    }

    #[test]
    fn a_refresh_leads_to_no_server() {
        for (location, expected) in [
            ("5; url=http://127.0.0.1:3000//a?b", "5; url=/a?b"),
            ("0;URL=\"http://127.0.0.1:3000/a\"", "0;URL=\"/a\""),
            ("0; url=http://shop.test/a", "0; url=http://shop.test/a"),
            ("5", "5"),
        ] {
            let mut fields = FieldBlock::new();
            fields.push("Refresh", location.as_bytes()).unwrap();
            rewrite_location_fields(&mut fields, "127.0.0.1:3000", "shop.test");
            assert_eq!(
                fields.get("refresh"),
                Some(expected.as_bytes()),
                "{location}"
            );
        }
    }

    #[test]
    fn an_address_that_the_client_asked_for_stays() {
        let location = "http://backend:3000/login";
        assert_eq!(
            rewritten(location, "backend:3000", "Backend:3000"),
            location
        );
        assert_eq!(
            rewritten("http://backend/a", "backend:80", "shop.test"),
            "/a"
        );
        assert_eq!(
            rewritten("https://backend/a", "backend:80", "shop.test"),
            "https://backend/a"
        );
        assert_eq!(
            rewritten("http://backend/a", "backend:80", "backend"),
            "http://backend/a"
        );
        assert_eq!(rewritten("http:///a", "", ""), "http:///a");
    }
}
