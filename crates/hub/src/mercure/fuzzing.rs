//! What publishers and subscribers say: see `crate::fuzzing`.

use super::query::MercureQuery;
use super::selector::{MAX_TOPIC_BYTES, TopicSelector};
use super::template::{MAX_VARIABLES, Template};
use super::update::{EARLIEST_ID, MAX_LINE_BYTES, MAX_TOPICS, UpdateDraft};

/// See [`crate::fuzzing::matches_template`].
pub(crate) fn matches_template(text: &str, topic: &str) -> Option<bool> {
    let template = Template::compile(text).ok();
    if let Some(template) = &template {
        assert!((1..=MAX_VARIABLES).contains(&template.variables()));
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

/// See [`crate::fuzzing::read_update`].
pub(crate) fn read_update(form: &[u8]) {
    if let Ok(query) = std::str::from_utf8(form) {
        let query = MercureQuery::parse(query);
        // A byte that is no text becomes a character of three.
        let said = query.topics.iter().map(|topic| topic.len()).sum::<usize>();
        assert!(said <= 3 * form.len());
    }
    let Ok(draft) = UpdateDraft::parse(form) else {
        return;
    };
    assert!((1..=MAX_TOPICS).contains(&draft.topics.len()));
    for topic in &draft.topics {
        assert!((1..=MAX_TOPIC_BYTES).contains(&topic.len()));
    }
    for line in [&draft.id, &draft.event].into_iter().flatten() {
        assert!((1..=MAX_LINE_BYTES).contains(&line.len()));
        assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
    }
    let id = draft.id.as_deref().unwrap_or_default();
    assert!(id != EARLIEST_ID && !id.starts_with('#'));
    assert!(draft.data.len() <= 3 * form.len());
}
