//! GRIP's filters: which messages a subscriber gets, and how their content is changed for it.
//!
//! Pure. Used by shards for streams and by `hub` for long polls, only where a subscription or a
//! message names filters.
//!
//! # Invariants
//! - A message that cannot be rendered for a subscriber is not sent to it.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Content, MessageFilter};

pub(crate) type MetaPairs = [(Box<str>, Box<str>)];

/// The subscriber that a message is for.
pub(crate) trait FilterSubscriber {
    /// Its metadata (`Grip-Set-Meta`).
    fn subscriber_meta(&self) -> &MetaPairs;

    /// The last id of a channel, by its name within the subscriber's namespace: none if it does not
    /// subscribe to it, empty if that has had no message.
    fn last_id(&self, channel: &str) -> Option<Arc<str>>;
}

/// Whether a message with this meta is for this subscriber.
pub(crate) fn passes_filters(
    filters: &[MessageFilter],
    message: &MetaPairs,
    subscriber: &dyn FilterSubscriber,
) -> bool {
    filters.iter().all(|filter| match filter {
        MessageFilter::SkipSelf => {
            let user = meta_value_or_empty(subscriber.subscriber_meta(), "user");
            user.is_empty() || user != meta_value_or_empty(message, "sender")
        }
        MessageFilter::SkipUsers => {
            let user = meta_value_or_empty(subscriber.subscriber_meta(), "user");
            let mut skipped = meta_value_or_empty(message, "skip_users").split(',');
            user.is_empty() || !skipped.any(|name| name.trim() == user)
        }
        MessageFilter::RequireSubscription => {
            let required = meta_value_or_empty(message, "require_sub");
            required.is_empty() || subscriber.last_id(required).is_some()
        }
        MessageFilter::BuildId | MessageFilter::VarSubst => true,
    })
}

/// The content as this subscriber gets it: changed by its own filters, then by the message's.
///
/// # Errors
/// Why it cannot be made: an unknown filter, or a directive without its value.
pub(crate) fn render_content(
    content: &Content,
    filters: &[MessageFilter],
    subscriber: &dyn FilterSubscriber,
) -> Result<Bytes, RenderError> {
    let mut bytes = content.bytes.clone();
    for filter in filters {
        bytes = apply_filter(*filter, bytes, subscriber)?;
    }
    for name in &content.filters {
        let filter = match &**name {
            "build-id" => MessageFilter::BuildId,
            "var-subst" => MessageFilter::VarSubst,
            _ => return Err(RenderError::Filter(name.clone())),
        };
        if !filters.contains(&filter) {
            bytes = apply_filter(filter, bytes, subscriber)?;
        }
    }
    Ok(bytes)
}

/// Why a content cannot be made for a subscriber.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RenderError {
    #[error("no content filter is called {0:?}")]
    Filter(Box<str>),
    #[error("`%{0}` is no directive here")]
    Directive(char),
    #[error("nothing is known of {0:?}")]
    Name(Box<str>),
    #[error("the id's encoding {0:?} is not `hex`")]
    Encoding(Box<str>),
}

fn apply_filter(
    filter: MessageFilter,
    bytes: Bytes,
    subscriber: &dyn FilterSubscriber,
) -> Result<Bytes, RenderError> {
    match filter {
        MessageFilter::SkipSelf | MessageFilter::SkipUsers | MessageFilter::RequireSubscription => {
            Ok(bytes)
        }
        MessageFilter::VarSubst => {
            expand_directives(&bytes, |directive, argument| match (directive, argument) {
                (b's', Some(name)) => Ok(meta_value(subscriber.subscriber_meta(), name)?
                    .as_bytes()
                    .to_vec()),
                _ => Err(RenderError::Directive(directive.into())),
            })
        }
        MessageFilter::BuildId => {
            let id = subscriber_id(subscriber)?;
            let is_hex = match meta_value_or_empty(subscriber.subscriber_meta(), "id_encoding") {
                "" => false,
                "hex" => true,
                other => return Err(RenderError::Encoding(other.into())),
            };
            expand_directives(&bytes, |directive, argument| {
                if directive != b'I' {
                    return Err(RenderError::Directive(directive.into()));
                }
                let id = argument.map_or(&id[..], str::as_bytes);
                Ok(if is_hex { hex(id) } else { id.to_vec() })
            })
        }
    }
}

/// The id that a subscriber's `id_format` makes of the last ids of its channels.
fn subscriber_id(subscriber: &dyn FilterSubscriber) -> Result<Bytes, RenderError> {
    let format = meta_value(subscriber.subscriber_meta(), "id_format")?;
    expand_directives(format.as_bytes(), |directive, argument| {
        match (directive, argument) {
            (b's', Some(channel)) => subscriber
                .last_id(channel)
                .map(|id| id.as_bytes().to_vec())
                .ok_or_else(|| RenderError::Name(channel.into())),
            _ => Err(RenderError::Directive(directive.into())),
        }
    })
}

/// Replaces each `%X` and `%(argument)X` with what `expand` returns; `%%` is a percent sign.
fn expand_directives(
    text: &[u8],
    expand: impl Fn(u8, Option<&str>) -> Result<Vec<u8>, RenderError>,
) -> Result<Bytes, RenderError> {
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
                return Err(RenderError::Directive('('));
            };
            argument = Some(name);
            rest = &inside[end + 1..];
        }
        let Some((&directive, after)) = rest.split_first() else {
            return Err(RenderError::Directive(' '));
        };
        rest = after;
        if directive == b'%' && argument.is_none() {
            out.push(b'%');
        } else {
            out.extend_from_slice(&expand(directive, argument)?);
        }
    }
    out.extend_from_slice(rest);
    Ok(out.into())
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<String>().into_bytes()
}

fn meta_value_or_empty<'a>(meta: &'a MetaPairs, name: &str) -> &'a str {
    meta_value(meta, name).unwrap_or_default()
}

fn meta_value<'a>(meta: &'a MetaPairs, name: &str) -> Result<&'a str, RenderError> {
    let found = meta.iter().find(|(each, _)| **each == *name);
    found
        .map(|(_, value)| &**value)
        .ok_or_else(|| RenderError::Name(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FakeSubscriber(Vec<(Box<str>, Box<str>)>);

    impl FilterSubscriber for FakeSubscriber {
        fn subscriber_meta(&self) -> &MetaPairs {
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
        use MessageFilter::{RequireSubscription, SkipSelf, SkipUsers};
        for (filter, subscriber, message, expected) in [
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
            (RequireSubscription, &[], ("require_sub", "a"), true),
            (RequireSubscription, &[], ("require_sub", "new"), true),
            (RequireSubscription, &[], ("require_sub", "b"), false),
            (RequireSubscription, &[], ("other", "b"), true),
        ] {
            let passes = passes_filters(
                &[filter],
                &meta(&[message]),
                &FakeSubscriber(meta(subscriber)),
            );
            assert_eq!(passes, expected, "{filter:?} {subscriber:?} {message:?}");
        }
        let both = [SkipSelf, RequireSubscription];
        let message = meta(&[("sender", "ann"), ("require_sub", "a")]);
        assert!(!passes_filters(
            &both,
            &message,
            &FakeSubscriber(meta(&[("user", "ann")]))
        ));
        assert!(passes_filters(
            &both,
            &message,
            &FakeSubscriber(meta(&[("user", "bob")]))
        ));
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
        render_content(&content, &[], &FakeSubscriber(meta(pairs)))
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
        let subscriber = FakeSubscriber(meta(&[("n", "%(n)s")]));
        let bytes = render_content(&content, &[MessageFilter::VarSubst], &subscriber).unwrap();
        assert_eq!(bytes, &b"%%(n)s"[..]);
    }
}
