//! The index from topics to the audiences that subscribe to them.
//!
//! Maintained by `audiences`.
//!
//! # Invariants
//! - A look-up costs one search for the exact topic, one for each length of a template's literal
//!   prefix, and the templates found that way.
//! - The entries of an audience are removed with it.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::selector::{SelectorSet, TopicSelector};

/// Variables in the different templates that subscribers of one route use at a time. Each template
/// may be tried for each topic of each update under the broker's lock, at a cost of its variables
/// times the topic's length, and any subscriber may bring new ones.
pub(super) const MAX_VARIABLES_IN_USE: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct SelectorIndex {
    /// All but `*`: a template selects its own spelling too.
    exact: HashMap<Arc<str>, SelectorEntry>,
    /// By the text in front of their first expression.
    templates: HashMap<Box<str>, Vec<TopicSelector>>,
    /// Of all of these.
    variables: usize,
    /// How many of these texts have each length.
    prefix_lengths: BTreeMap<usize, usize>,
    /// Audiences that take all updates.
    match_all: AudienceSet,
}

#[derive(Debug)]
struct SelectorEntry {
    selector: TopicSelector,
    audiences: AudienceSet,
}

/// Numbers of audiences; nearly always few.
#[derive(Debug, Default)]
enum AudienceSet {
    #[default]
    None,
    One(u64),
    Many(HashSet<u64>),
}

impl SelectorIndex {
    pub(super) fn has_room_for(&self, selectors: &SelectorSet) -> bool {
        let is_new = |selector: &&TopicSelector| !self.exact.contains_key(selector.selector_text());
        let new = selectors
            .iter()
            .filter(is_new)
            .map(variable_count)
            .sum::<usize>();
        new == 0 || self.variables + new <= MAX_VARIABLES_IN_USE
    }

    /// Adds `number` for all of these; returns the interned selectors, so that each text is kept
    /// once.
    pub(super) fn insert(&mut self, selectors: &SelectorSet, number: u64) -> SelectorSet {
        let known = selectors.map_each(|selector| self.intern_selector(selector));
        for selector in known.iter() {
            if selector.is_wildcard() {
                self.match_all.insert(number);
                continue;
            }
            if !self.exact.contains_key(selector.selector_text()) {
                self.insert_template(selector);
            }
            let listed = self.exact.entry(Arc::clone(selector.selector_text()));
            let listed = listed.or_insert_with(|| SelectorEntry::new(selector));
            listed.audiences.insert(number);
        }
        known
    }

    /// The interned copy of `selector`, if there is one.
    pub(super) fn intern_selector(&self, selector: &TopicSelector) -> TopicSelector {
        let known = self.exact.get(selector.selector_text());
        known.map_or(selector, |known| &known.selector).clone()
    }

    /// Adds a new selector under its prefix, if it is a template.
    fn insert_template(&mut self, selector: &TopicSelector) {
        let Some(template) = selector.template() else {
            return;
        };
        self.variables += template.variable_count();
        let prefix = template.prefix();
        let group = self.templates.entry(prefix.into()).or_default();
        if group.is_empty() {
            *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
        }
        group.push(selector.clone());
    }

    /// Removes `number` for all of these.
    pub(super) fn remove(&mut self, selectors: &SelectorSet, number: u64) {
        for selector in selectors.iter() {
            if selector.is_wildcard() {
                self.match_all.remove(number);
                continue;
            }
            if let Some(listed) = self.exact.get_mut(selector.selector_text())
                && listed.audiences.remove(number)
            {
                self.exact.remove(selector.selector_text());
                self.remove_template(selector);
            }
        }
    }

    fn remove_template(&mut self, selector: &TopicSelector) {
        let Some(template) = selector.template() else {
            return;
        };
        self.variables -= template.variable_count();
        let prefix = template.prefix();
        let Some(group) = self.templates.get_mut(prefix) else {
            return;
        };
        group.retain(|listed| listed != selector);
        if group.is_empty() {
            self.templates.remove(prefix);
            if let Entry::Occupied(mut count) = self.prefix_lengths.entry(prefix.len()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }

    /// The audiences that subscribe to one of `topics`, each once, in the order of numbers.
    pub(super) fn audiences_for(&self, topics: &[Box<str>]) -> Vec<u64> {
        let mut found: Vec<u64> = self.match_all.iter().collect();
        for topic in topics {
            if let Some(listed) = self.exact.get(&**topic) {
                found.extend(listed.audiences.iter());
            }
            for (&length, _) in self.prefix_lengths.range(..=topic.len()) {
                let group = topic
                    .get(..length)
                    .and_then(|text| self.templates.get(text));
                let matching = group.into_iter().flatten();
                let matching = matching.filter(|selector| selector.matches(topic));
                for listed in
                    matching.filter_map(|selector| self.exact.get(selector.selector_text()))
                {
                    found.extend(listed.audiences.iter());
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl SelectorEntry {
    fn new(selector: &TopicSelector) -> Self {
        Self {
            selector: selector.clone(),
            audiences: AudienceSet::None,
        }
    }
}

impl AudienceSet {
    fn insert(&mut self, number: u64) {
        match self {
            Self::None => *self = Self::One(number),
            Self::One(other) if *other == number => {}
            Self::One(other) => *self = Self::Many(HashSet::from([*other, number])),
            Self::Many(numbers) => {
                numbers.insert(number);
            }
        }
    }

    /// Whether it is empty now.
    fn remove(&mut self, number: u64) -> bool {
        match self {
            Self::None => true,
            Self::One(other) if *other == number => {
                *self = Self::None;
                true
            }
            Self::One(_) => false,
            Self::Many(numbers) => {
                numbers.remove(&number);
                numbers.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(number) => (Some(*number), None),
            Self::Many(numbers) => (None, Some(numbers)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }
}

pub(super) fn variable_count(selector: &TopicSelector) -> usize {
    selector
        .template()
        .map_or(0, |template| template.variable_count())
}
