//! The tables of rules by their names: a rule that a reload keeps finds its counts again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Tables that live as long as a rule uses them.
#[derive(Debug, Default)]
pub struct NamedTables<T>(Mutex<HashMap<String, Weak<T>>>);

impl<T: Default> NamedTables<T> {
    /// The table of a rule. Rules of other names have others.
    #[must_use]
    pub fn table(&self, rule: &str) -> Arc<T> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|_, table| table.strong_count() > 0);
        if let Some(table) = tables.get(rule).and_then(Weak::upgrade) {
            return table;
        }
        let table = Arc::<T>::default();
        tables.insert(rule.to_owned(), Arc::downgrade(&table));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_kept_while_a_rule_uses_it() {
        let tables = NamedTables::<Mutex<u32>>::default();
        let (first, other) = (tables.table("a"), tables.table("b"));
        *first.lock().unwrap() = 7;
        assert_eq!(*tables.table("a").lock().unwrap(), 7);
        assert_eq!(*other.lock().unwrap(), 0);
        drop(first);
        assert_eq!(*tables.table("a").lock().unwrap(), 0);
    }
}
