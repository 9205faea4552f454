//! What publishers and subscribers say: see `crate::fuzzing`.

use super::query::Query;
use super::selector::{Selector, TOPIC_BYTES_MAX};
use super::template::{Template, VARIABLES_MAX};
use super::update::{Draft, EARLIEST, LINE_BYTES_MAX, TOPICS_MAX};

/// See [`crate::fuzzing::matches_template`].
pub(crate) fn matches_template(text: &str, topic: &str) -> Option<bool> {
    let template = Template::compile(text).ok();
    if let Some(template) = &template {
        assert!((1..=VARIABLES_MAX).contains(&template.variables()));
        assert!(text.starts_with(template.prefix()));
    }
    let matches = template.map(|template| {
        let matches = template.matches(topic);
        assert!(!matches || topic.starts_with(template.prefix()));
        matches
    });
    if let Ok(selector) = Selector::new(text) {
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
        let query = Query::parse(query);
        // A byte that is no text becomes a character of three.
        let said = query.topics.iter().map(|topic| topic.len()).sum::<usize>();
        assert!(said <= 3 * form.len());
    }
    let Ok(draft) = Draft::parse(form) else {
        return;
    };
    assert!((1..=TOPICS_MAX).contains(&draft.topics.len()));
    for topic in &draft.topics {
        assert!((1..=TOPIC_BYTES_MAX).contains(&topic.len()));
    }
    for line in [&draft.id, &draft.event].into_iter().flatten() {
        assert!((1..=LINE_BYTES_MAX).contains(&line.len()));
        assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
    }
    let id = draft.id.as_deref().unwrap_or_default();
    assert!(id != EARLIEST && !id.starts_with('#'));
    assert!(draft.data.len() <= 3 * form.len());
}
