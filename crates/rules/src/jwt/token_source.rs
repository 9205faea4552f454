//! Where a request has its token: the field `Authorization`, a parameter of the query, or a cookie.
//!
//! # Invariants
//! - The first of these that has a token decides. One with several has none.

use std::borrow::Cow;

use penstock_exchange::Request;
use penstock_http::RequestHead;

/// The places besides `Authorization`.
#[derive(Debug)]
pub(super) struct TokenSource {
    query: Option<Box<str>>,
    cookie: Option<Box<str>>,
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundToken<'r> {
    None,
    One(Cow<'r, str>),
    /// No one can tell which is meant.
    Several,
}

impl TokenSource {
    pub(super) fn new(query: Option<&str>, cookie: Option<&str>) -> Self {
        Self {
            query: query.map(Into::into),
            cookie: cookie.map(Into::into),
        }
    }

    pub(super) fn find<'r>(&self, request: &'r Request) -> FoundToken<'r> {
        match in_header(&request.head) {
            FoundToken::None => {}
            found => return found,
        }
        if let Some(name) = &self.query {
            let query = request.query().unwrap_or_default();
            let pairs = form_urlencoded::parse(query.as_bytes());
            let named = pairs.filter(|(found, _)| *found == **name);
            match only(named.map(|(_, value)| value)) {
                FoundToken::None => {}
                found => return found,
            }
        }
        let Some(name) = &self.cookie else {
            return FoundToken::None;
        };
        let cookies = request.head.cookies();
        let named = cookies.filter(|(found, _)| *found == name.as_bytes());
        only(named.map(|(_, value)| String::from_utf8_lossy(value)))
    }
}

/// RFC 6750 §2.1. Other schemes are for other rules.
fn in_header(head: &RequestHead) -> FoundToken<'_> {
    let values = head.field_values("authorization");
    let tokens: Vec<_> = values.map(bearer_token).collect();
    match &tokens[..] {
        [Some(token)] => FoundToken::One(String::from_utf8_lossy(token)),
        [] | [None] => FoundToken::None,
        several if several.iter().any(Option::is_some) => FoundToken::Several,
        _ => FoundToken::None,
    }
}

fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn only<'r>(mut values: impl Iterator<Item = Cow<'r, str>>) -> FoundToken<'r> {
    match (values.next(), values.next()) {
        (None, _) => FoundToken::None,
        (Some(value), None) => FoundToken::One(value),
        (Some(_), Some(_)) => FoundToken::Several,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    #[test]
    fn a_request_has_one_token_or_none() {
        let source = TokenSource::new(Some("access"), Some("token"));
        let header = "Authorization: Bearer a.b.c\r\n";
        let basic = "Authorization: Basic YTpi\r\n";
        for (target, fields, expected) in [
            ("/", "", None),
            ("/", header, Some("a.b.c")),
            ("/", "Authorization: bEARER   x \r\n", Some("x")),
            ("/", "Authorization: Bearer\r\n", None),
            ("/", "Authorization: Bearerx\r\n", None),
            ("/", basic, None),
            ("/?access=q%2Er", "", Some("q.r")),
            ("/?access=q", header, Some("a.b.c")),
            ("/?access=q", basic, Some("q")),
            ("/?access=q", "Cookie: token=c\r\n", Some("q")),
            ("/", "Cookie: other=1; token=c\r\n", Some("c")),
            ("/?access=q&access=r", "", Some("several")),
            ("/?access=q&%61ccess=r", "", Some("several")),
            ("/", "Cookie: token=c; token=d\r\n", Some("several")),
            ("/", &format!("{header}{header}"), Some("several")),
            ("/", &format!("{basic}{header}"), Some("several")),
            ("/", &format!("{basic}{basic}"), None),
        ] {
            let request = request(target, fields);
            let found = source.find(&request);
            let expected = match expected {
                None => FoundToken::None,
                Some("several") => FoundToken::Several,
                Some(token) => FoundToken::One(token.into()),
            };
            assert_eq!(found, expected, "{target} {fields}");
        }
        let bare = TokenSource::new(None, None);
        let request = request("/?access=q", "Cookie: token=c\r\n");
        assert_eq!(bare.find(&request), FoundToken::None);
    }
}
