//! The query of a request to a Mercure hub, read by `subscribe` and `publish`.
//!
//! # Invariants
//! - Unknown names are ignored. Of a repeated name the first value counts, except for topics,
//!   which all count.

use std::borrow::Cow;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MercureQuery<'a> {
    /// The selectors, as sent.
    pub topics: Vec<Cow<'a, str>>,
    /// The last update that a subscriber knows.
    pub last_event_id: Option<Cow<'a, str>>,
    /// A token.
    pub authorization: Option<Cow<'a, str>>,
}

impl<'a> MercureQuery<'a> {
    /// Reads a query without its question mark.
    pub(super) fn parse(query: &'a str) -> Self {
        let mut parsed = Self::default();
        let mut old_spelling = None;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "topic" => parsed.topics.push(value),
                _ if value.is_empty() => {}
                "lastEventID" => set_once(&mut parsed.last_event_id, value),
                // What generation 7 of the protocol called it.
                "Last-Event-ID" => set_once(&mut old_spelling, value),
                "authorization" => set_once(&mut parsed.authorization, value),
                _ => {}
            }
        }
        parsed.last_event_id = parsed.last_event_id.or(old_spelling);
        parsed
    }
}

fn set_once<'a>(place: &mut Option<Cow<'a, str>>, value: Cow<'a, str>) {
    place.get_or_insert(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_knows() {
        for (query, topics, last_event_id, authorization) in [
            ("", &[][..], None, None),
            (
                "topic=a&topic=b%2Fc&x=1&topic=a",
                &["a", "b/c", "a"],
                None,
                None,
            ),
            (
                "topic=%2A&lastEventID=1&lastEventID=2",
                &["*"],
                Some("1"),
                None,
            ),
            ("Last-Event-ID=old", &[], Some("old"), None),
            ("Last-Event-ID=old&lastEventID=new", &[], Some("new"), None),
            ("lastEventID=&authorization=", &[], None, None),
            ("authorization=a.b.c&topic=", &[""], None, Some("a.b.c")),
            ("lasteventid=1&Topic=a&&=&topic", &[""], None, None),
        ] {
            let parsed = MercureQuery::parse(query);
            assert_eq!(parsed.topics, topics, "{query}");
            assert_eq!(parsed.last_event_id.as_deref(), last_event_id, "{query}");
            assert_eq!(parsed.authorization.as_deref(), authorization, "{query}");
        }
    }
}
