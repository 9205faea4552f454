//! Ids of messages: which ones a publisher may choose, and the one that a returning client names.
//!
//! An id goes into the event of its message, comes back in the `Last-Event-ID` of a client that
//! reconnects, and is looked up in the histories of that client's channels.
//!
//! # Invariants
//! - An accepted id fits on one line of an event and in a field of a request, so that a browser
//!   can return it.
//! - An id in a request is only compared and echoed, and is cut before it is kept.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_http::RequestHead;

/// Maximum length of an id.
pub const MAX_MESSAGE_ID_BYTES: usize = 1024;

/// What is expected of the id of a message.
pub const MESSAGE_ID_EXPECTED: &str =
    "an id of at most 1024 bytes without control characters, and without blanks around it";

/// Whether a publisher may choose this id. Browsers ignore an id with a NUL, and no field has
/// control characters, or blanks around its value (WHATWG HTML, "Server-sent events"; RFC 9110
/// §5.5).
#[must_use]
pub fn is_valid_message_id(id: &str) -> bool {
    id.len() <= MAX_MESSAGE_ID_BYTES
        && id.trim_ascii().len() == id.len()
        && !id.bytes().any(|byte| byte.is_ascii_control())
}

/// The last event that a client received: its `Last-Event-ID`, else `lastEventID` of the query,
/// which a page can set on its first visit. Empty ones count as none.
#[must_use]
pub fn last_event_id(head: &RequestHead) -> Option<Arc<str>> {
    let field = head.field("last-event-id").filter(|id| !id.is_empty());
    let query = head.target_path_query().split_once('?');
    let id = field.map(String::from_utf8_lossy).or_else(|| {
        query_parameter(query.map(|(_, query)| query), |name| {
            name.eq_ignore_ascii_case("lastEventID")
        })
    });
    id.filter(|id| !id.is_empty())
        .map(|id| Arc::from(truncate_id(&id)))
}

/// The first parameter of a query with a matching name, decoded as forms are.
pub(crate) fn query_parameter<'a>(
    query: Option<&'a str>,
    is_meant: impl Fn(&str) -> bool,
) -> Option<Cow<'a, str>> {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.find_map(|(name, value)| is_meant(&name).then_some(value))
}

/// Cuts an id that is too long to be known. It stays longer than any that is.
fn truncate_id(id: &str) -> &str {
    let mut end = id.len().min(MAX_MESSAGE_ID_BYTES + 4);
    while !id.is_char_boundary(end) {
        end -= 1;
    }
    &id[..end]
}

#[cfg(test)]
mod tests {
    use penstock_http::{HeadLimits, ParseProgress, parse_head};

    use super::*;

    #[test]
    fn an_id_that_a_browser_cannot_return_is_invalid() {
        let longest = "x".repeat(MAX_MESSAGE_ID_BYTES);
        for id in ["1", "room-7:42", "é, ü; \"x\"", "", &longest] {
            assert!(is_valid_message_id(id), "{id:?}");
        }
        let too_long = "x".repeat(MAX_MESSAGE_ID_BYTES + 1);
        for id in [
            "a\nb", "a\r", "\0", "a\x7f", "a\tb", " ", "a ", " a", &too_long,
        ] {
            assert!(!is_valid_message_id(id), "{id:?}");
        }
    }

    fn id_in(target: &str, fields: &str) -> Option<Arc<str>> {
        let raw = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let limits = HeadLimits::default();
        let Ok(ParseProgress::Complete((head, _))) = parse_head(raw.as_bytes(), &limits) else {
            panic!("no whole head: {raw:?}");
        };
        last_event_id(&head)
    }

    #[test]
    fn the_last_event_id_comes_from_the_header_else_the_query() {
        for (target, fields, expected) in [
            ("/", "", None),
            ("/", "Last-Event-ID: 7\r\n", Some("7")),
            ("/?lastEventID=8", "", Some("8")),
            ("/?x&lastEventId=a%20b", "", Some("a b")),
            ("/?lastEventID=8", "Last-Event-ID: 7\r\n", Some("7")),
            ("/?lastEventID=8", "Last-Event-ID:\r\n", Some("8")),
            ("/?lastEventID=", "", None),
            ("/", "Last-Event-ID: \r\n", None),
        ] {
            let found = id_in(target, fields);
            assert_eq!(found.as_deref(), expected, "{target} {fields:?}");
        }
    }

    #[test]
    fn a_long_id_is_cut_and_stays_unknown() {
        let long = "é".repeat(5_000);
        let found = id_in("/", &format!("Last-Event-ID: {long}\r\n")).unwrap();
        assert!(long.starts_with(&*found) && found.len() <= MAX_MESSAGE_ID_BYTES + 4);
        assert!(!is_valid_message_id(&found));
        let bytes = id_in("/?lastEventID=%ff%00%0a", "").unwrap();
        assert_eq!(&*bytes, "\u{fffd}\0\n");
    }
}
