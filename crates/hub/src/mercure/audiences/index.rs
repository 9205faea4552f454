//! Which audiences subscribe to a topic.
//!
//! Kept by `audiences` while they come and go. What must stay true: a look costs one search for the exact
//! topic, one for each length that a template's first text has, and the templates found that way; what an
//! audience put in is taken out with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::mercure::selector::{Selector, Selectors};

/// Variables in the different templates that subscribers of one route use at a time. Each template may have to
/// be tried for each topic of each update under the board's lock, at a cost that is its variables times the
/// topic's length, and everybody may bring new ones.
pub(super) const VARIABLES_MAX: usize = 10_000;

/// Selectors and who has them.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// All but `*`: a template selects its own spelling too.
    exact: HashMap<Arc<str>, Listed>,
    /// By the text in front of their first expression.
    templates: HashMap<Box<str>, Vec<Listed>>,
    /// Of all of these.
    variables: usize,
    /// How many of these texts have each length.
    prefix_lengths: BTreeMap<usize, usize>,
    /// Who takes all.
    everything: Members,
}

#[derive(Debug)]
struct Listed {
    selector: Selector,
    members: Members,
}

/// Numbers of audiences; nearly always few.
#[derive(Debug, Default)]
enum Members {
    #[default]
    None,
    One(u64),
    Many(HashSet<u64>),
}

impl Index {
    /// Whether these can be put in.
    pub(super) fn has_room_for(&self, selectors: &Selectors) -> bool {
        let is_new = |selector: &&Selector| !self.exact.contains_key(selector.text());
        let new = selectors
            .iter()
            .filter(is_new)
            .map(variables)
            .sum::<usize>();
        new == 0 || self.variables + new <= VARIABLES_MAX
    }

    /// Puts `number` in for all of these; gives them as they are known here, so that each text is kept once.
    pub(super) fn insert(&mut self, selectors: &Selectors, number: u64) -> Selectors {
        let known = selectors.map(|selector| self.known(selector));
        for selector in known.iter() {
            if selector.is_all() {
                self.everything.insert(number);
                continue;
            }
            let is_new = !self.exact.contains_key(selector.text());
            let listed = self.exact.entry(Arc::clone(selector.text()));
            let listed = listed.or_insert_with(|| Listed::new(selector));
            listed.members.insert(number);
            if selector.template().is_some() {
                self.insert_template(selector, number, is_new);
            }
        }
        known
    }

    /// `selector` as it is kept here, if it is.
    pub(super) fn known(&self, selector: &Selector) -> Selector {
        let known = self.exact.get(selector.text());
        known.map_or(selector, |known| &known.selector).clone()
    }

    fn insert_template(&mut self, selector: &Selector, number: u64, is_new: bool) {
        let prefix = prefix(selector);
        if !self.templates.contains_key(prefix) {
            *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
        }
        let group = self.templates.entry(prefix.into()).or_default();
        if is_new {
            group.push(Listed::new(selector));
            self.variables += variables(selector);
        }
        if let Some(listed) = group.iter_mut().find(|listed| listed.selector == *selector) {
            listed.members.insert(number);
        }
    }

    /// Takes `number` out for all of these.
    pub(super) fn remove(&mut self, selectors: &Selectors, number: u64) {
        for selector in selectors.iter() {
            if selector.is_all() {
                self.everything.remove(number);
                continue;
            }
            if let Some(listed) = self.exact.get_mut(selector.text())
                && listed.members.remove(number)
            {
                self.exact.remove(selector.text());
            }
            if selector.template().is_some() {
                self.remove_template(selector, number);
            }
        }
    }

    fn remove_template(&mut self, selector: &Selector, number: u64) {
        let prefix = prefix(selector);
        let Some(group) = self.templates.get_mut(prefix) else {
            return;
        };
        let at = group.iter().position(|listed| listed.selector == *selector);
        let Some(at) = at else { return };
        if !group[at].members.remove(number) {
            return;
        }
        group.swap_remove(at);
        self.variables -= variables(selector);
        if group.is_empty() {
            self.templates.remove(prefix);
            let length = self.prefix_lengths.get_mut(&prefix.len());
            if length.is_some_and(|count| {
                *count -= 1;
                *count == 0
            }) {
                self.prefix_lengths.remove(&prefix.len());
            }
        }
    }

    /// Who subscribes to one of `topics`, each once, in the order of numbers.
    pub(super) fn that_want(&self, topics: &[Box<str>]) -> Vec<u64> {
        let mut found: Vec<u64> = self.everything.iter().collect();
        for topic in topics {
            if let Some(listed) = self.exact.get(&**topic) {
                found.extend(listed.members.iter());
            }
            for (&length, _) in self.prefix_lengths.range(..=topic.len()) {
                let group = topic
                    .get(..length)
                    .and_then(|text| self.templates.get(text));
                for listed in group.into_iter().flatten() {
                    if listed.selector.matches(topic) {
                        found.extend(listed.members.iter());
                    }
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether nothing is left in it.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            exact,
            templates,
            variables,
            prefix_lengths,
            everything,
        } = self;
        exact.is_empty()
            && templates.is_empty()
            && *variables == 0
            && prefix_lengths.is_empty()
            && everything.iter().next().is_none()
    }
}

impl Listed {
    fn new(selector: &Selector) -> Self {
        Self {
            selector: selector.clone(),
            members: Members::None,
        }
    }
}

impl Members {
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

fn prefix(selector: &Selector) -> &str {
    selector.template().map_or("", |template| template.prefix())
}

pub(super) fn variables(selector: &Selector) -> usize {
    selector
        .template()
        .map_or(0, |template| template.variables())
}
