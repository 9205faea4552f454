//! The query of a signed link, without its signature. Pure.
//!
//! Names are compared as they were sent: a name in another encoding is another parameter, which the
//! signature covers.

use super::LinkProblem;

/// A query that is split at its signature.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SignedQuery<'q> {
    pub(super) signature: &'q str,
    before: &'q str,
    after: &'q str,
}

impl<'q> SignedQuery<'q> {
    /// Takes the parameter `name` out of a query.
    pub(super) fn split(query: &'q str, name: &str) -> Result<Self, LinkProblem> {
        let signature = find_parameter(query, name)?.ok_or(LinkProblem::NotSigned)?;
        let mut begin = 0;
        for pair in query.split('&') {
            let is_signature = pair.split_once('=').is_some_and(|(found, _)| found == name);
            if is_signature {
                let (before, rest) = query.split_at(begin);
                let after = &rest[pair.len()..];
                return Ok(Self {
                    signature,
                    before: before.strip_suffix('&').unwrap_or(before),
                    after: after.strip_prefix('&').unwrap_or(after),
                });
            }
            begin += pair.len() + 1;
        }
        Err(LinkProblem::NotSigned)
    }

    /// Appends the query without the signature.
    pub(super) fn append_rest(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.before.as_bytes());
        if !self.before.is_empty() && !self.after.is_empty() {
            out.push(b'&');
        }
        out.extend_from_slice(self.after.as_bytes());
    }
}

/// The value of a parameter as it was sent.
pub(super) fn find_parameter<'q>(
    query: &'q str,
    name: &str,
) -> Result<Option<&'q str>, LinkProblem> {
    let mut values = query.split('&').filter_map(|pair| {
        let (found, value) = pair.split_once('=')?;
        (found == name).then_some(value)
    });
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(LinkProblem::Ambiguous),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_query_is_what_was_signed() {
        for (query, expected) in [
            ("sig=x", Ok(("x", ""))),
            ("expires=1&sig=x", Ok(("x", "expires=1"))),
            ("sig=x&expires=1", Ok(("x", "expires=1"))),
            ("a=1&sig=x&b=2", Ok(("x", "a=1&b=2"))),
            ("a&&sig=x==&b", Ok(("x==", "a&&b"))),
            ("a=1&sig=&b=2", Ok(("", "a=1&b=2"))),
            ("", Err(LinkProblem::NotSigned)),
            ("sig", Err(LinkProblem::NotSigned)),
            ("xsig=1", Err(LinkProblem::NotSigned)),
            ("s%69g=1", Err(LinkProblem::NotSigned)),
            ("sig=x&sig=x", Err(LinkProblem::Ambiguous)),
        ] {
            let split = SignedQuery::split(query, "sig");
            let split = split.map(|split| {
                let mut rest = Vec::new();
                split.append_rest(&mut rest);
                (split.signature, String::from_utf8(rest).unwrap())
            });
            let expected = expected.map(|(value, rest)| (value, rest.to_owned()));
            assert_eq!(split, expected, "{query}");
        }
    }
}
