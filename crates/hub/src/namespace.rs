//! Namespaces: they make the key of a channel from the name that a back end or a request uses.
//!
//! The rest of the hub knows keys only, so no back end can name a channel of another one.
//!
//! # Invariants
//! - Two pairs of namespace and name never have the same key, whatever is in the name.
//! - The names in the namespace of routes with `hub` are their own keys.

use std::sync::Arc;

use penstock_config::HUB_NAMESPACE;

/// Between the namespace and the name: no namespace has a control character.
const SEPARATOR: char = '\u{1f}';

/// A namespace of channels. Clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Namespace {
    name: Arc<str>,
    is_hub: bool,
}

impl Namespace {
    /// The namespace of this name, which a checked configuration has.
    #[must_use]
    pub fn new(name: &str) -> Self {
        debug_assert!(!name.is_empty() && !name.contains(SEPARATOR), "{name:?}");
        Self {
            name: name.into(),
            is_hub: name == HUB_NAMESPACE,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key of a channel of that name in it.
    #[must_use]
    pub fn channel_key(&self, channel: &str) -> Arc<str> {
        match self.is_hub {
            // Only a publisher can use such a name here, and it has no subscribers.
            true if channel.contains(SEPARATOR) => format!("{SEPARATOR}{channel}").into(),
            true => channel.into(),
            false => format!("{}{SEPARATOR}{channel}", self.name).into(),
        }
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new(HUB_NAMESPACE)
    }
}

/// The namespace in the key of a channel; empty for that of routes with `hub`.
#[must_use]
pub(crate) fn namespace_of_key(key: &str) -> &str {
    key.split_once(SEPARATOR)
        .map_or("", |(namespace, _)| namespace)
}

/// The name in the key of a channel, as those know it that share its namespace.
#[must_use]
pub fn channel_name(key: &str) -> &str {
    key.split_once(SEPARATOR).map_or(key, |(_, name)| name)
}

/// The namespaces that a configuration has, for publishers that do not say one.
#[derive(Debug, Clone, Default)]
pub struct Namespaces(Arc<[Namespace]>);

/// Why it is not clear which channel is meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// There are several, and the publisher names none.
    #[error("`namespace` must be said, since there are several: {0}")]
    Ambiguous(String),
    /// Nothing has one of that name.
    #[error("no application, upstream or route has the namespace `{name}`; there are: {known}")]
    Unknown {
        /// What was said.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The publisher may publish in one only.
    #[error("this key publishes in the namespace `{0}` only")]
    OtherNamespace(String),
}

impl Namespaces {
    /// These, each once.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names: std::collections::BTreeSet<_> = names.into_iter().collect();
        Self(names.iter().map(|name| Namespace::new(name)).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Namespace> {
        self.0.iter()
    }

    /// The one of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Namespace> {
        self.0.iter().find(|known| known.name() == name)
    }

    /// The one that an operator means: by its name, or the only one that there is.
    ///
    /// # Errors
    /// When there is none of that name, or several and none was named.
    pub fn resolve(&self, name: Option<&str>) -> Result<Namespace, NamespaceError> {
        let known = || {
            let names = self.0.iter().map(Namespace::name);
            names.collect::<Vec<_>>().join(", ")
        };
        match (name, &*self.0) {
            (Some(name), _) => self.find(name).cloned().ok_or_else(|| {
                let (name, known) = (name.to_owned(), known());
                NamespaceError::Unknown { name, known }
            }),
            // There are no subscribers.
            (None, []) => Ok(Namespace::default()),
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(NamespaceError::Ambiguous(known())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_reaches_into_another_namespace() {
        let names = [
            "room",
            "",
            "a",
            "b\u{1f}room",
            "\u{1f}room",
            "\u{1f}b\u{1f}room",
            "hub\u{1f}room",
            "\0next:1",
        ];
        let spaces = ["a", "b", "hub", "hubs"].map(Namespace::new);
        let mut seen = std::collections::HashMap::new();
        for space in &spaces {
            for name in names {
                let key = space.channel_key(name);
                assert_eq!(channel_name(&key), name, "{space:?}");
                let before = seen.insert(key, (space.name(), name));
                assert_eq!(before, None, "{space:?} {name:?}");
            }
        }
    }

    #[test]
    fn names_of_the_hub_are_their_own_keys() {
        assert_eq!(&*Namespace::default().channel_key("news"), "news");
        assert_eq!(channel_name("news"), "news");
    }

    #[test]
    fn an_operator_names_the_namespace_unless_there_is_one() {
        let spaces = |names: &[&str]| Namespaces::new(names.iter().map(|&name| name.to_owned()));
        let found = |names: &[&str], name| spaces(names).resolve(name);
        assert_eq!(found(&[], None), Ok(Namespace::default()));
        assert_eq!(found(&["a"], None), Ok(Namespace::new("a")));
        assert_eq!(found(&["a", "a"], None), Ok(Namespace::new("a")));
        assert_eq!(found(&["a", "hub"], Some("hub")), Ok(Namespace::default()));
        let ambiguous = NamespaceError::Ambiguous("a, hub".to_owned());
        assert_eq!(found(&["hub", "a"], None), Err(ambiguous));
        let unknown = NamespaceError::Unknown {
            name: "b".to_owned(),
            known: "a".to_owned(),
        };
        assert_eq!(found(&["a"], Some("b")), Err(unknown));
    }
}
