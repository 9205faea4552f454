//! One table of a file: typed, ranged values out of it, with every mistake noted and passed over.
//!
//! Opened by `parse` and the readers of each table. Opening reports the keys that nobody knows; each
//! getter leaves its target alone when the key is absent or wrong, so that defaults live in `model`
//! only and reading goes on to the next mistake. What must stay true: a getter asks for a key that
//! the option table has, under a kind that fits it.

mod mixed;
mod number;

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::Problem;
use crate::foreign_words::{address_of_url, translate};
use crate::options::{self, Kind, Opt};
use crate::place::{At, Findings};
use crate::suggest::nearest;

pub(crate) use mixed::{FlagOrWord, Item, Texts};
pub(crate) use number::TIME_MAX;

/// A table being read.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    /// Where problems go.
    pub(crate) found: &'a Findings<'a>,
    /// Where the table starts.
    pub(crate) at: usize,
    /// Its name with the reader's own names in it, such as `apps.guestbook`.
    pub(crate) shown: String,
    table: &'a DeTable<'a>,
    name: &'static str,
}

impl<'a> Section<'a> {
    /// The table `name` of the option table, after its unknown keys were reported.
    pub(crate) fn open(
        found: &'a Findings<'a>,
        name: &'static str,
        shown: String,
        table: At<&'a DeTable<'a>>,
    ) -> Self {
        let section = Self {
            found,
            at: table.at,
            shown,
            table: table.value,
            name,
        };
        for key in section.table.keys() {
            section.check_key(key);
        }
        section
    }

    /// Whether the key was written, rightly or wrongly.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Adds a problem at an offset.
    pub(crate) fn add(&self, at: usize, what: Problem) {
        self.found.add(at, what);
    }

    /// Reports that a key without a default is absent.
    pub(crate) fn missing(&self, key: &'static str) {
        let expected = self
            .option(key)
            .map(|option| option.kind.expected())
            .unwrap_or_default();
        self.add(
            self.at,
            Problem::Missing {
                key,
                section: self.shown.clone(),
                expected,
            },
        );
    }

    /// Reports a value of the right type that its reader could not make sense of.
    pub(crate) fn bad(&self, key: &str, value: &At<&str>) {
        let kind = self.option(key).map(|option| option.kind);
        let suggestion = match kind {
            Some(Kind::OneOf(words) | Kind::FlagOrWords(words) | Kind::FlagOrWord(words)) => {
                nearest(value.value, words.iter().copied())
            }
            _ => address_of_url(value.value).filter(|_| TAKE_ADDRESSES.contains(&key)),
        };
        let expected = kind.map(|kind| kind.expected_item());
        self.add(
            value.at,
            Problem::BadValue {
                key: key.to_owned(),
                value: value.value.to_owned(),
                expected: expected.unwrap_or_default(),
                suggestion,
            },
        );
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Option<At<&'a str>> {
        let (option, value) = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(At::new(text.as_ref(), value.span().start)),
            _ => self.wrong_type(option, value),
        }
    }

    /// A text that `read` makes sense of.
    pub(crate) fn parsed<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<At<T>> {
        let text = self.text(key)?;
        let value = read(text.value);
        if value.is_none() {
            self.bad(key, &text);
        }
        value.map(|value| At::new(value, text.at))
    }

    /// A path, made absolute.
    pub(crate) fn path(&self, key: &str) -> Option<At<PathBuf>> {
        let usable = |text: &str| !text.is_empty() && !text.contains('\0');
        self.parsed(key, |text| usable(text).then(|| self.found.resolve(text)))
    }

    /// One of the option's words.
    pub(crate) fn word(&self, key: &str) -> Option<At<&'static str>> {
        let Kind::OneOf(words) = self.option(key)?.kind else {
            return None;
        };
        self.parsed(key, |text| words.iter().copied().find(|word| *word == text))
    }

    /// Texts under free keys, with the offset of each key.
    pub(crate) fn map(&self, key: &str) -> BTreeMap<String, At<String>> {
        let mut texts = BTreeMap::new();
        let Some((option, value)) = self.value(key) else {
            return texts;
        };
        let Some(table) = value.get_ref().as_table() else {
            self.wrong_type::<()>(option, value);
            return texts;
        };
        for (name, value) in table.iter() {
            match value.get_ref().as_str() {
                Some(text) => {
                    let text = At::new(text.to_owned(), name.span().start);
                    texts.insert(name.get_ref().to_string(), text);
                }
                None => self.add(
                    value.span().start,
                    Problem::WrongType {
                        key: name.get_ref().to_string(),
                        expected: "a string".to_owned(),
                        found: article(value.get_ref()),
                    },
                ),
            }
        }
        texts
    }

    /// The table under a key.
    pub(crate) fn table(&self, key: &str) -> Option<Self> {
        let (option, value) = self.value(key)?;
        let (Kind::Table(name)
        | Kind::CountOrTable(_, _, name)
        | Kind::SizeOrTable(_, name)
        | Kind::TextOrTable(_, name)
        | Kind::ListOrTable(_, name)
        | Kind::FlagOrTable(name)
        | Kind::FlagListOrTable(_, name)) = option.kind
        else {
            return None;
        };
        let shown = format!("{}.{key}", self.shown.trim_matches(['[', ']']));
        let shown = shown.trim_start_matches('.').to_owned();
        match value.get_ref() {
            DeValue::Table(table) => {
                let table = At::new(table, value.span().start);
                Some(Self::open(self.found, name, shown, table))
            }
            _ => self.wrong_type(option, value),
        }
    }

    /// The tables under free names, with the offset of each name; names outside the grammar are
    /// reported and left out.
    pub(crate) fn named(&self, key: &str) -> Vec<(At<String>, Self)> {
        let mut tables = Vec::new();
        let Some((option, value)) = self.value(key) else {
            return tables;
        };
        let (Kind::Named(template), Some(named)) = (option.kind, value.get_ref().as_table()) else {
            self.wrong_type::<()>(option, value);
            return tables;
        };
        for (name, value) in named.iter() {
            let text = At::new(name.get_ref().as_ref(), name.span().start);
            if !is_name(text.value) {
                self.bad_item(key, text.value, text.at, NAME_EXPECTED);
                continue;
            }
            let shown = format!("{key}.{}", text.value);
            match value.get_ref() {
                DeValue::Table(table) => {
                    let table = At::new(table, text.at);
                    let section = Self::open(self.found, template, shown, table);
                    tables.push((At::new(text.value.to_owned(), text.at), section));
                }
                other => self.add(
                    value.span().start,
                    Problem::WrongType {
                        key: shown,
                        expected: "a table".to_owned(),
                        found: article(other),
                    },
                ),
            }
        }
        tables
    }

    /// Where the value of the first of these keys that was written stands, else the table.
    pub(crate) fn key_at(&self, keys: &[&str]) -> usize {
        let value = keys.iter().find_map(|key| self.table.get(*key));
        value.map_or(self.at, |value| value.span().start)
    }

    /// Variables of an environment; those that no process could have are reported and left out.
    pub(crate) fn variables(&self, key: &str) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        for (name, value) in self.map(key) {
            if name.is_empty() || name.contains(['=', '\0']) || value.value.contains('\0') {
                self.bad_item(key, &name, value.at, VARIABLE_EXPECTED);
            } else {
                variables.insert(name, value.value);
            }
        }
        variables
    }

    /// Reports a part of a value.
    pub(crate) fn bad_item(&self, key: &str, value: &str, at: usize, expected: &str) {
        self.add(
            at,
            Problem::BadValue {
                key: key.to_owned(),
                value: value.to_owned(),
                expected: expected.to_owned(),
                suggestion: None,
            },
        );
    }

    /// Reports a text that is no usable secret, without showing it.
    pub(crate) fn bad_secret(&self, key: &'static str, at: usize, expected: &'static str) {
        self.add(at, Problem::BadSecret { key, expected });
    }

    /// Reports a key that was written beside what it cannot stand with.
    pub(crate) fn refuse(&self, key: &'static str) {
        if let Some(option) = self.option(key).filter(|_| self.has(key)) {
            let what = option.only;
            self.add(self.key_at(&[key]), Problem::OnlyFor { key, what });
        }
    }

    /// Reports two bounds that are the wrong way round.
    pub(crate) fn check_order(&self, low: (&'static str, u64), high: (&'static str, u64)) {
        let ((low, low_value), (high, high_value)) = (low, high);
        if low_value > high_value {
            let at = self.key_at(&[low, high]);
            self.add(
                at,
                Problem::LowAboveHigh {
                    low,
                    low_value,
                    high,
                    high_value,
                },
            );
        }
    }

    /// Whether the value under a key is a table.
    pub(crate) fn is_table(&self, key: &str) -> bool {
        self.table
            .get(key)
            .is_some_and(|value| value.get_ref().is_table())
    }

    fn value(&self, key: &str) -> Option<(&'static Opt, &'a Spanned<DeValue<'a>>)> {
        #[cfg(test)]
        self.found.note_read(self.name, key);
        Some((self.option(key)?, self.table.get(key)?))
    }

    fn option(&self, key: &str) -> Option<&'static Opt> {
        let option = options::find(self.name, key);
        debug_assert!(
            option.is_some(),
            "{}.{key} is not in the option table",
            self.name
        );
        option
    }

    /// Reports the type and gives nothing.
    fn wrong_type<T>(&self, option: &Opt, value: &Spanned<DeValue<'_>>) -> Option<T> {
        self.add(
            value.span().start,
            Problem::WrongType {
                key: option.key.to_owned(),
                expected: option.kind.expected(),
                found: article(value.get_ref()),
            },
        );
        None
    }

    fn check_key(&self, key: &Spanned<std::borrow::Cow<'_, str>>) {
        let (text, at) = (key.get_ref().as_ref(), key.span().start);
        if options::find(self.name, text).is_some() {
            return;
        }
        let section = self.shown.clone();
        let but = options::like(self.name).map_or(&[][..], |like| like.but);
        if let Some((key, reason)) = but.iter().find(|(key, _)| *key == text) {
            return self.add(
                at,
                Problem::Elsewhere {
                    key,
                    section,
                    reason,
                },
            );
        }
        let known = options::in_section(self.name).map(|option| option.key);
        let translated = translate(self.name, text).map(str::to_owned);
        let suggestion = translated.or_else(|| nearest(text, known));
        let key = text.to_owned();
        self.add(
            at,
            Problem::UnknownKey {
                key,
                section,
                suggestion,
            },
        );
    }

    /// The whole name of a key of this table; those of lists are clear without it.
    fn shown_below(&self, key: &str) -> String {
        if self.shown.is_empty() || self.shown.starts_with('[') {
            return key.to_owned();
        }
        format!("{}.{key}", self.shown)
    }
}

/// Whether a text can name an application or a pool: it shows up in URLs, metrics and messages.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= 64
        && text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && text.bytes().all(plain)
}

/// The type of a value with its article.
fn article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Keys whose value is an address, which others write as a URL.
const TAKE_ADDRESSES: [&str; 4] = ["listen", "address", "admin", "servers"];

const VARIABLE_EXPECTED: &str = "a variable without `=` in its name and without zero bytes";
const NAME_EXPECTED: &str = "a name of at most 64 letters, digits, `-`, `_` and `.`";
