//! The names below a root that the log has, so that each is logged once.

use std::sync::{Mutex, PoisonError};

/// Names logged for one root.
pub(crate) const MAX_LOGGED_NAMES: usize = 32;

/// Names relative to the root.
#[derive(Debug, Default)]
pub(crate) struct LoggedNames(pub(crate) Mutex<Vec<Box<[u8]>>>);

impl LoggedNames {
    /// Whether no more names are logged, or one that `is_it`.
    pub(crate) fn is_logged_or_full(&self, is_it: impl Fn(&[u8]) -> bool) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.len() >= MAX_LOGGED_NAMES || names.iter().any(|name| is_it(name))
    }

    /// Adds a name; `false` if it need not be logged.
    pub(crate) fn insert(&self, name: &[u8]) -> bool {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = names.len() < MAX_LOGGED_NAMES && !names.iter().any(|known| **known == *name);
        if is_new {
            names.push(name.into());
        }
        is_new
    }
}
