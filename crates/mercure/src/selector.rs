//! Topic selectors: the topics of subscribers, and the topics that tokens allow.
//!
//! A selector is `*`, an exact string, or a URI template; a template also selects the topic that
//! is spelled as it is. `subscribe` and `access` make sets of them from requests and claims.
//!
//! # Invariants
//! - Two sets with the same selectors are equal, so that their subscribers share an audience.

use std::sync::Arc;

use thiserror::Error;

use crate::template::{MAX_TEMPLATE_VARIABLES, TemplateError, UriTemplate};

/// The longest topic or selector: as long as a request's target by default.
pub(super) const MAX_TOPIC_BYTES: usize = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum SelectorError {
    #[error("a topic is empty")]
    Empty,
    #[error("a topic is longer than {MAX_TOPIC_BYTES} bytes")]
    TooLong,
    #[error("a topic's template has more than {MAX_TEMPLATE_VARIABLES} variables")]
    TooComplex,
}

/// One selector. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TopicSelector {
    selector_text: Arc<str>,
    kind: SelectorKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum SelectorKind {
    All,
    Exact,
    Template(Arc<UriTemplate>),
}

/// A set of selectors in their own order. Sets with `*` have nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SelectorSet(Box<[TopicSelector]>);

impl TopicSelector {
    /// Reads one.
    pub(super) fn new(text: &str) -> Result<Self, SelectorError> {
        check_topic_length(text)?;
        let kind = match text {
            "*" => SelectorKind::All,
            _ => match UriTemplate::compile(text) {
                Ok(template) => SelectorKind::Template(Arc::new(template)),
                Err(TemplateError::NotATemplate) => SelectorKind::Exact,
                Err(TemplateError::TooComplex) => return Err(SelectorError::TooComplex),
            },
        };
        Ok(Self {
            selector_text: text.into(),
            kind,
        })
    }

    pub(super) fn selector_text(&self) -> &Arc<str> {
        &self.selector_text
    }

    pub(super) fn is_wildcard(&self) -> bool {
        matches!(self.kind, SelectorKind::All)
    }

    pub(super) fn template(&self) -> Option<&Arc<UriTemplate>> {
        match &self.kind {
            SelectorKind::Template(template) => Some(template),
            SelectorKind::All | SelectorKind::Exact => None,
        }
    }

    pub(super) fn matches(&self, topic: &str) -> bool {
        match &self.kind {
            SelectorKind::All => true,
            SelectorKind::Exact => *self.selector_text == *topic,
            SelectorKind::Template(template) => {
                *self.selector_text == *topic || template.matches(topic)
            }
        }
    }
}

impl SelectorSet {
    pub(super) fn new(mut selectors: Vec<TopicSelector>) -> Self {
        if let Some(at) = selectors.iter().position(TopicSelector::is_wildcard) {
            selectors.swap(0, at);
            selectors.truncate(1);
        }
        selectors.sort_by(|a, b| a.selector_text.cmp(&b.selector_text));
        selectors.dedup();
        Self(selectors.into())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &TopicSelector> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn matches(&self, topic: &str) -> bool {
        self.0.iter().any(|selector| selector.matches(topic))
    }

    pub(super) fn matches_any(&self, topics: &[Box<str>]) -> bool {
        topics.iter().any(|topic| self.matches(topic))
    }

    pub(super) fn matches_all(&self, topics: &[Box<str>]) -> bool {
        topics.iter().all(|topic| self.matches(topic))
    }

    /// Each as `other` gives it.
    pub(super) fn map_each(&self, other: impl FnMut(&TopicSelector) -> TopicSelector) -> Self {
        Self(self.0.iter().map(other).collect())
    }
}

/// Whether `topic` may be one, selector or not.
pub(super) fn check_topic_length(topic: &str) -> Result<(), SelectorError> {
    match topic.len() {
        0 => Err(SelectorError::Empty),
        1..=MAX_TOPIC_BYTES => Ok(()),
        _ => Err(SelectorError::TooLong),
    }
}

#[cfg(test)]
mod tests;
