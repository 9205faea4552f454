//! The readers of updates and queries, for `fuzz/fuzz_targets`: they are private to this crate, and
//! each is reached here with any bytes.
//!
//! # Invariants
//! - No bytes panic, and no more is kept than was sent.
//! - Accepted input is within the bounds that the hub relies on.

use crate::query::MercureQuery;
use crate::selector::{MAX_TOPIC_BYTES, TopicSelector};
use crate::template::{MAX_TEMPLATE_VARIABLES, UriTemplate};
use crate::update::{EARLIEST_ID, MAX_ID_BYTES, MAX_TOPICS, UpdateDraft};

/// Whether `text`, a template, selects `topic`; `None` if it is no template, or too complex a one.
#[must_use]
pub fn matches_template(text: &str, topic: &str) -> Option<bool> {
    let template = UriTemplate::compile(text).ok();
    if let Some(template) = &template {
        assert!((1..=MAX_TEMPLATE_VARIABLES).contains(&template.variable_count()));
        assert!(text.starts_with(template.prefix()));
    }
    let matches = template.map(|template| {
        let matches = template.matches(topic);
        assert!(!matches || topic.starts_with(template.prefix()));
        matches
    });
    if let Ok(selector) = TopicSelector::new(text) {
        // It also selects the topic that is spelled as it is.
        let selects = matches.unwrap_or_default() || text == topic || text == "*";
        assert_eq!(selector.matches(topic), selects);
        assert!(selector.matches(text));
    }
    matches
}

/// Reads `form` as an update, and as the query of a subscriber.
pub fn read_update(form: &[u8]) {
    if let Ok(query) = std::str::from_utf8(form) {
        let query = MercureQuery::parse(query);
        // A byte that is no text becomes a character of three.
        let topic_bytes = query.topics.iter().map(|topic| topic.len()).sum::<usize>();
        assert!(topic_bytes <= 3 * form.len());
    }
    let Ok(draft) = UpdateDraft::parse(form) else {
        return;
    };
    assert!((1..=MAX_TOPICS).contains(&draft.topics.len()));
    for topic in &draft.topics {
        assert!((1..=MAX_TOPIC_BYTES).contains(&topic.len()));
    }
    for line in [&draft.id, &draft.event].into_iter().flatten() {
        assert!((1..=MAX_ID_BYTES).contains(&line.len()));
        assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
    }
    let id = draft.id.as_deref().unwrap_or_default();
    assert!(id != EARLIEST_ID && !id.starts_with('#'));
    assert!(draft.data.len() <= 3 * form.len());
}

#[cfg(test)]
mod tests {
    use penstock_hub::fuzzing::read_mutated_inputs;

    use super::*;

    #[test]
    fn updates_of_any_bytes_keep_their_bounds() {
        read_mutated_inputs(
            &["topic=https%3A%2F%2Fa%2F1&topic=b&data=x%0Ay&id=1&type=t&retry=10&private=on"],
            read_update,
        );
    }
}
