//! GRIP's filters: which messages a subscriber gets, and what of their content is its own.
//!
//! Pure. Used by shards for streams and by `hub` for long polls, but only where a subscription or a
//! message names filters: everything else never comes here. What must stay true: a message whose content
//! cannot be made for a subscriber is not sent to it.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Content, Filter};

/// Pairs of a name and a value.
pub(crate) type Meta = [(Box<str>, Box<str>)];

/// Whom a message is for.
pub(crate) trait Reader {
    /// What was said of it when it was held (`Grip-Set-Meta`).
    fn meta(&self) -> &Meta;

    /// The last id of a channel, by its name within the reader's namespace: none if it does not subscribe to it, empty if that has had no message.
    fn last_id(&self, channel: &str) -> Option<Arc<str>>;
}

/// Whether a message with this meta is for this reader.
pub(crate) fn passes(filters: &[Filter], message: &Meta, reader: &dyn Reader) -> bool {
    filters.iter().all(|filter| match filter {
        Filter::SkipSelf => {
            let user = value(reader.meta(), "user");
            user.is_empty() || user != value(message, "sender")
        }
        Filter::SkipUsers => {
            let user = value(reader.meta(), "user");
            let mut skipped = value(message, "skip_users").split(',');
            user.is_empty() || !skipped.any(|name| name.trim() == user)
        }
        Filter::RequireSub => {
            let required = value(message, "require_sub");
            required.is_empty() || reader.last_id(required).is_some()
        }
        Filter::BuildId | Filter::VarSubst => true,
    })
}

/// The content as this reader gets it: changed by its own filters, then by the message's.
///
/// # Errors
/// Why it cannot be made: an unknown filter, or a directive without its value.
pub(crate) fn render(
    content: &Content,
    filters: &[Filter],
    reader: &dyn Reader,
) -> Result<Bytes, BadContent> {
    let mut bytes = content.bytes.clone();
    for filter in filters {
        bytes = apply(*filter, bytes, reader)?;
    }
    for name in &content.filters {
        let filter = match &**name {
            "build-id" => Filter::BuildId,
            "var-subst" => Filter::VarSubst,
            _ => return Err(BadContent::UnknownFilter(name.clone())),
        };
        if !filters.contains(&filter) {
            bytes = apply(filter, bytes, reader)?;
        }
    }
    Ok(bytes)
}

/// Why a content cannot be made for a subscriber.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadContent {
    #[error("no content filter is called {0:?}")]
    UnknownFilter(Box<str>),
    #[error("`%{0}` is no directive here")]
    UnknownDirective(char),
    #[error("nothing is known of {0:?}")]
    NoValue(Box<str>),
    #[error("the id's encoding {0:?} is not `hex`")]
    UnknownEncoding(Box<str>),
}

fn apply(filter: Filter, bytes: Bytes, reader: &dyn Reader) -> Result<Bytes, BadContent> {
    match filter {
        Filter::SkipSelf | Filter::SkipUsers | Filter::RequireSub => Ok(bytes),
        Filter::VarSubst => substitute(&bytes, |directive, argument| match (directive, argument) {
            (b's', Some(name)) => Ok(find(reader.meta(), name)?.as_bytes().to_vec()),
            _ => Err(BadContent::UnknownDirective(directive.into())),
        }),
        Filter::BuildId => {
            let id = reader_id(reader)?;
            let is_hex = match value(reader.meta(), "id_encoding") {
                "" => false,
                "hex" => true,
                other => return Err(BadContent::UnknownEncoding(other.into())),
            };
            substitute(&bytes, |directive, argument| {
                if directive != b'I' {
                    return Err(BadContent::UnknownDirective(directive.into()));
                }
                let id = argument.map_or(&id[..], str::as_bytes);
                Ok(if is_hex { hex(id) } else { id.to_vec() })
            })
        }
    }
}

/// The id that a reader's `id_format` makes of the last ids of its channels.
fn reader_id(reader: &dyn Reader) -> Result<Bytes, BadContent> {
    let format = find(reader.meta(), "id_format")?;
    substitute(format.as_bytes(), |directive, argument| {
        match (directive, argument) {
            (b's', Some(channel)) => reader
                .last_id(channel)
                .map(|id| id.as_bytes().to_vec())
                .ok_or_else(|| BadContent::NoValue(channel.into())),
            _ => Err(BadContent::UnknownDirective(directive.into())),
        }
    })
}

/// Puts what `say` says in the place of each `%X` and `%(argument)X`; `%%` is a percent sign.
fn substitute(
    text: &[u8],
    say: impl Fn(u8, Option<&str>) -> Result<Vec<u8>, BadContent>,
) -> Result<Bytes, BadContent> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(percent) = rest.iter().position(|&byte| byte == b'%') {
        out.extend_from_slice(&rest[..percent]);
        rest = &rest[percent + 1..];
        let mut argument = None;
        if let Some(inside) = rest.strip_prefix(b"(") {
            let end = inside.iter().position(|&byte| byte == b')');
            let name = end.and_then(|end| std::str::from_utf8(&inside[..end]).ok());
            let (Some(end), Some(name)) = (end, name) else {
                return Err(BadContent::UnknownDirective('('));
            };
            argument = Some(name);
            rest = &inside[end + 1..];
        }
        let Some((&directive, after)) = rest.split_first() else {
            return Err(BadContent::UnknownDirective(' '));
        };
        rest = after;
        if directive == b'%' && argument.is_none() {
            out.push(b'%');
        } else {
            out.extend_from_slice(&say(directive, argument)?);
        }
    }
    out.extend_from_slice(rest);
    Ok(out.into())
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out.into_bytes()
}

/// The value, or nothing.
fn value<'a>(meta: &'a Meta, name: &str) -> &'a str {
    find(meta, name).unwrap_or_default()
}

fn find<'a>(meta: &'a Meta, name: &str) -> Result<&'a str, BadContent> {
    let found = meta.iter().find(|(each, _)| **each == *name);
    found
        .map(|(_, value)| &**value)
        .ok_or_else(|| BadContent::NoValue(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Known(Vec<(Box<str>, Box<str>)>);

    impl Reader for Known {
        fn meta(&self) -> &Meta {
            &self.0
        }

        fn last_id(&self, channel: &str) -> Option<Arc<str>> {
            match channel {
                "a" => Some("17".into()),
                "new" => Some("".into()),
                _ => None,
            }
        }
    }

    fn meta(pairs: &[(&str, &str)]) -> Vec<(Box<str>, Box<str>)> {
        let pairs = pairs.iter();
        pairs
            .map(|&(name, value)| (name.into(), value.into()))
            .collect()
    }

    #[test]
    fn each_filter_decides_by_both_metas() {
        use Filter::{RequireSub, SkipSelf, SkipUsers};
        for (filter, reader, message, expected) in [
            (SkipSelf, &[("user", "ann")][..], ("sender", "ann"), false),
            (SkipSelf, &[("user", "ann")], ("sender", "bob"), true),
            (SkipSelf, &[("user", "")], ("sender", ""), true),
            (SkipSelf, &[], ("sender", "ann"), true),
            (
                SkipUsers,
                &[("user", "ann")],
                ("skip_users", "bob, ann"),
                false,
            ),
            (
                SkipUsers,
                &[("user", "ann")],
                ("skip_users", "bob,annabel"),
                true,
            ),
            (SkipUsers, &[], ("skip_users", ", ,"), true),
            (RequireSub, &[], ("require_sub", "a"), true),
            (RequireSub, &[], ("require_sub", "new"), true),
            (RequireSub, &[], ("require_sub", "b"), false),
            (RequireSub, &[], ("other", "b"), true),
        ] {
            let said = passes(&[filter], &meta(&[message]), &Known(meta(reader)));
            assert_eq!(said, expected, "{filter:?} {reader:?} {message:?}");
        }
        let both = [SkipSelf, RequireSub];
        let message = meta(&[("sender", "ann"), ("require_sub", "a")]);
        assert!(!passes(&both, &message, &Known(meta(&[("user", "ann")]))));
        assert!(passes(&both, &message, &Known(meta(&[("user", "bob")]))));
    }

    fn rendered(
        text: &'static str,
        filter: &str,
        pairs: &[(&str, &str)],
    ) -> Result<String, String> {
        let content = Content {
            bytes: Bytes::from_static(text.as_bytes()),
            filters: vec![filter.into()],
        };
        render(&content, &[], &Known(meta(pairs)))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn variables_and_ids_are_put_into_the_content() {
        let format = ("id_format", "%(a)s-x");
        for (text, filter, pairs, expected) in [
            (
                "hi %(name)s, 100%%",
                "var-subst",
                &[("name", "Ann")][..],
                "hi Ann, 100%",
            ),
            ("nothing to do", "var-subst", &[], "nothing to do"),
            ("id=%I.", "build-id", &[format], "id=17-x."),
            ("id=%(own)I.", "build-id", &[format], "id=own."),
            (
                "%I",
                "build-id",
                &[("id_format", "a"), ("id_encoding", "hex")],
                "61",
            ),
            ("%I", "build-id", &[("id_format", "<%(new)s>")], "<>"),
        ] {
            assert_eq!(rendered(text, filter, pairs).unwrap(), expected, "{text}");
        }
        for (text, filter, pairs, expected) in [
            (
                "%(name)s",
                "var-subst",
                &[][..],
                "nothing is known of \"name\"",
            ),
            ("%s", "var-subst", &[], "`%s` is no directive here"),
            ("%(name", "var-subst", &[], "`%(` is no directive here"),
            ("100%", "var-subst", &[], "`% ` is no directive here"),
            ("%I", "build-id", &[], "nothing is known of \"id_format\""),
            (
                "%I",
                "build-id",
                &[("id_format", "%(b)s")],
                "nothing is known of \"b\"",
            ),
            (
                "x",
                "build-id",
                &[format, ("id_encoding", "x")],
                "the id's encoding \"x\" is not `hex`",
            ),
            ("x", "rot13", &[], "no content filter is called \"rot13\""),
        ] {
            assert_eq!(
                rendered(text, filter, pairs).unwrap_err(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn a_filter_that_both_sides_name_is_applied_once() {
        let content = Content {
            bytes: Bytes::from_static(b"%%%(n)s"),
            filters: vec!["var-subst".into()],
        };
        let reader = Known(meta(&[("n", "%(n)s")]));
        let bytes = render(&content, &[Filter::VarSubst], &reader).unwrap();
        assert_eq!(bytes, &b"%%(n)s"[..]);
    }
}
