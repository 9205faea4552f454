//! The configuration that an import writes: tables with keys and comments.
//!
//! Translators fill it, `output` renders it.

use std::collections::{BTreeMap, BTreeSet};

use crate::toml_value::{TomlTable, TomlValue};

/// A table with the comments that stand at its place.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct DraftTable {
    /// The keys.
    pub(crate) keys: TomlTable,
    /// Lines above the table, without `#`.
    pub(crate) comments: Vec<String>,
}

impl DraftTable {
    /// Adds a comment, unless it is one of the last.
    pub(crate) fn comment(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self
            .comments
            .iter()
            .rev()
            .take(NEAR_COMMENTS)
            .any(|near| *near == text)
        {
            self.comments.push(text);
        }
    }
}

/// How many comments are looked at for a repetition.
const NEAR_COMMENTS: usize = 16;

/// A site with its routes.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct DraftSite {
    /// The keys of the site.
    pub(crate) table: DraftTable,
    /// Its routes, in their order.
    pub(crate) routes: Vec<DraftTable>,
}

/// Tables under names, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct NamedTables {
    tables: Vec<(String, DraftTable)>,
    places: BTreeMap<String, usize>,
    /// The last number behind each name.
    numbers: BTreeMap<String, usize>,
}

impl NamedTables {
    /// The table of a name, made where it is missing.
    pub(crate) fn table_mut(&mut self, name: &str) -> &mut DraftTable {
        let at = match self.places.get(name) {
            Some(at) => *at,
            None => {
                self.tables.push((name.to_owned(), DraftTable::default()));
                self.places.insert(name.to_owned(), self.tables.len() - 1);
                self.tables.len() - 1
            }
        };
        &mut self.tables[at].1
    }

    /// Whether there is one with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// A name that no table has: `wanted`, else with a number behind it.
    pub(crate) fn free_name(&mut self, wanted: &str) -> String {
        let wanted = as_name(wanted);
        let mut name = wanted.clone();
        while self.has(&name) {
            let number = self.numbers.entry(wanted.clone()).or_insert(1);
            *number += 1;
            name = format!("{wanted}-{number}");
        }
        name
    }

    /// Changes each table.
    pub(crate) fn for_each(&mut self, change: impl FnMut(&mut DraftTable)) {
        self.tables
            .iter_mut()
            .map(|(_, table)| table)
            .for_each(change);
    }

    /// Names and tables.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &DraftTable)> {
        self.tables
            .iter()
            .map(|(name, table)| (name.as_str(), table))
    }
}

/// A name of letters, digits, `-` and `_`.
pub(crate) fn as_name(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name: String = text
        .chars()
        .map(|c| if is_plain(c) { c } else { '-' })
        .take(60)
        .collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        "main".to_owned()
    } else {
        name.to_owned()
    }
}

/// A whole configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    /// Lines at the head of the file.
    pub(crate) head: Vec<String>,
    pub(crate) server: DraftTable,
    pub(crate) limits: DraftTable,
    pub(crate) tls: DraftTable,
    pub(crate) acme: DraftTable,
    pub(crate) hub: DraftTable,
    pub(crate) access_logs: NamedTables,
    pub(crate) caches: NamedTables,
    pub(crate) conditions: NamedTables,
    pub(crate) apps: NamedTables,
    pub(crate) jobs: NamedTables,
    pub(crate) upstreams: NamedTables,
    pub(crate) sites: Vec<DraftSite>,
    pub(crate) tcp: Vec<DraftTable>,
    /// Lines at the end of the file.
    pub(crate) tail: Vec<String>,
    /// Addresses of `server.listen` with their flags.
    listeners: BTreeSet<(String, String)>,
}

impl Draft {
    /// Adds an address to `server.listen`, once for each set of flags.
    pub(crate) fn listen(&mut self, address: &str, flags: &[&str]) {
        if !self.listeners.insert((address.to_owned(), flags.join(" "))) {
            return;
        }
        let mut table = TomlTable::with("address", address);
        for flag in flags {
            table.set(flag, true);
        }
        let value: TomlValue = match flags.is_empty() {
            true => address.into(),
            false => table.into(),
        };
        self.server.keys.push("listen", value);
    }

    /// Every address of `server.listen`.
    pub(crate) fn listener_addresses(&self) -> impl Iterator<Item = &str> {
        self.listeners.iter().map(|(address, _)| address.as_str())
    }

    /// How many routes there are.
    pub(crate) fn route_count(&self) -> usize {
        self.sites.iter().map(|site| site.routes.len()).sum()
    }
}
