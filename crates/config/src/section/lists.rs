//! Lists out of a table, and values of more than one form: a text or a list, a text or a table.
//!
//! Getters of `Section` like those in its own file.
//!
//! # Invariants
//! - An item that is wrong is reported at its own place and left out, and the others are read on.

use toml::Spanned;
use toml::de::{DeArray, DeValue};

use super::Section;
use crate::findings::LocatedValue;
use crate::options::OptionKind;

/// An item of a list that may hold texts and tables.
#[derive(Debug)]
pub(crate) enum TextOrTable<'a> {
    /// A text.
    Text(LocatedValue<&'a str>),
    /// A table.
    Table(Section<'a>),
}

/// A text, or a list of texts.
#[derive(Debug)]
pub(crate) enum TextOrList<'a> {
    /// One text.
    One(LocatedValue<&'a str>),
    /// A list, and where it starts.
    List(LocatedValue<Vec<&'a str>>),
}

/// `true`, `false`, or the option's word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FlagOrWord {
    /// A flag.
    Flag(bool),
    /// The word.
    Word,
}

impl<'a> Section<'a> {
    /// The texts of a list that stands where the option takes none, and where it starts.
    pub(crate) fn texts_of_list(&self, key: &str) -> Option<(Vec<&'a str>, usize)> {
        let (_, value) = self.option_and_value(key)?;
        let items = value.get_ref().as_array()?.iter();
        let texts = items.filter_map(|item| item.get_ref().as_str());
        Some((texts.collect(), value.span().start))
    }

    /// A flag or the option's word, and where it is.
    pub(crate) fn flag_or_word(&self, key: &str) -> Option<LocatedValue<FlagOrWord>> {
        let (option, value) = self.option_and_value(key)?;
        let OptionKind::FlagOrWord(word) = option.kind else {
            return None;
        };
        let at = value.span().start;
        let found = match value.get_ref() {
            DeValue::Boolean(flag) => FlagOrWord::Flag(*flag),
            DeValue::String(text) if text == word => FlagOrWord::Word,
            DeValue::String(text) => {
                self.report_invalid(key, &LocatedValue::new(text.as_ref(), at));
                return None;
            }
            _ => return self.report_wrong_type(option, value),
        };
        Some(LocatedValue::new(found, at))
    }

    /// A number of the option's range, or a list of at least one; those that are wrong are reported
    /// and left out.
    pub(crate) fn numbers(&self, key: &'static str) -> Option<Vec<u64>> {
        let (option, value) = self.option_and_value(key)?;
        let DeValue::Array(items) = value.get_ref() else {
            return self.parse_number(option, value).map(|count| vec![count]);
        };
        self.check_not_empty(key);
        let counts = items
            .iter()
            .filter_map(|item| self.parse_number(option, item));
        Some(counts.collect())
    }

    /// A list of texts that `read` makes sense of; those it does not are reported and left out.
    pub(crate) fn list<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<LocatedValue<T>>> {
        let items = self.list_items(key)?.iter();
        let texts = items.filter_map(|item| self.item_text(key, item));
        let values = texts.filter_map(|text| {
            let value = read(text.value);
            if value.is_none() {
                self.report_invalid(key, &text);
            }
            value.map(|value| LocatedValue::new(value, text.offset))
        });
        Some(values.collect())
    }

    /// The option's words that are set: with `true` all of them, with `false` none. A word that
    /// stands twice is reported.
    pub(crate) fn choices(&self, key: &'static str) -> Option<Vec<&'static str>> {
        let OptionKind::FlagOrChoices(words) = self.option(key)?.kind.without_table() else {
            return None;
        };
        if !self.is_list(key) {
            let flag = self.get::<bool>(key)?;
            return Some(if flag { words.to_vec() } else { Vec::new() });
        }
        let find = |text: &str| words.iter().copied().find(|word| *word == text);
        let found = self.list(key, find)?;
        self.check_unique(key, &found, |a, b| a == b);
        Some(found.into_iter().map(|word| word.value).collect())
    }

    /// Reports the items of a list that are there already.
    pub(crate) fn check_unique<T: AsRef<str>>(
        &self,
        key: &'static str,
        items: &[LocatedValue<T>],
        is_same: impl Fn(&str, &str) -> bool,
    ) {
        for (index, item) in items.iter().enumerate() {
            let text = item.value.as_ref();
            let mut earlier = items[..index].iter();
            if earlier.any(|other| is_same(other.value.as_ref(), text)) {
                self.report(item.offset, format!("`{key}` has `{text}` twice"));
            }
        }
    }

    /// A list of texts and tables, or one of them; the tables are named after the key.
    pub(crate) fn texts_or_tables(&self, key: &str) -> Option<Vec<TextOrTable<'a>>> {
        let (option, value) = self.option_and_value(key)?;
        let OptionKind::TextsOrTables(_, name) = option.kind else {
            return None;
        };
        let items = match value.get_ref() {
            DeValue::String(_) | DeValue::Table(_) => std::slice::from_ref(value),
            _ => self.list_items(key)?,
        };
        let read = items.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => {
                let table = LocatedValue::new(table, item.span().start);
                let shown = self.display_key(key);
                Some(TextOrTable::Table(Self::new(
                    self.findings,
                    name,
                    shown,
                    table,
                )))
            }
            _ => self.item_text(key, item).map(TextOrTable::Text),
        });
        Some(read.collect())
    }

    /// A text or a list of texts.
    pub(crate) fn text_or_texts(&self, key: &str) -> Option<TextOrList<'a>> {
        let (option, value) = self.option_and_value(key)?;
        match value.get_ref() {
            DeValue::String(text) => {
                let text = LocatedValue::new(text.as_ref(), value.span().start);
                Some(TextOrList::One(text))
            }
            DeValue::Array(items) => {
                let texts: Option<Vec<_>> = items
                    .iter()
                    .map(|item| self.item_text(key, item).map(|text| text.value))
                    .collect();
                texts.map(|texts| TextOrList::List(LocatedValue::new(texts, value.span().start)))
            }
            _ => self.report_wrong_type(option, value),
        }
    }

    /// The list of tables under a key.
    pub(crate) fn tables(&self, key: &str) -> Vec<Self> {
        let mut tables = Vec::new();
        let Some((option, value)) = self.option_and_value(key) else {
            return tables;
        };
        let (OptionKind::Tables(template), Some(items)) = (option.kind, value.get_ref().as_array())
        else {
            self.report_wrong_type::<()>(option, value);
            return tables;
        };
        for item in items.iter() {
            match item.get_ref() {
                DeValue::Table(table) => {
                    let table = LocatedValue::new(table, item.span().start);
                    let shown = format!("[{template}]");
                    tables.push(Self::new(self.findings, template, shown, table));
                }
                _ => {
                    self.report_wrong_type::<()>(option, item);
                }
            }
        }
        tables
    }

    /// The table under a key, or those of a list.
    pub(crate) fn table_or_tables(&self, key: &str) -> Vec<Self> {
        if !self.is_list(key) {
            return self.table(key).into_iter().collect();
        }
        let option = self.option(key);
        let Some((option, name)) = option.and_then(|it| Some((it, it.kind.inline_table()?))) else {
            return Vec::new();
        };
        let items = self.list_items(key).unwrap_or_default().iter();
        let read = items.filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => {
                let table = LocatedValue::new(table, item.span().start);
                Some(Self::new(self.findings, name, self.display_key(key), table))
            }
            _ => self.report_wrong_type(option, item),
        });
        read.collect()
    }

    /// Reports a list without items that needs some.
    pub(crate) fn check_not_empty(&self, key: &'static str) {
        if self.is_empty_list(key) {
            let kind = self.option(key).map(|option| option.kind);
            let expected = kind.map(|kind| kind.expected_item()).unwrap_or_default();
            let problem = format!("`{key}` needs at least one item: expected {expected}");
            self.report_key(key, problem);
        }
    }

    /// Whether the value under a key is a list.
    pub(crate) fn is_list(&self, key: &str) -> bool {
        self.array(key).is_some()
    }

    /// Whether the value under a key is a list without items.
    pub(crate) fn is_empty_list(&self, key: &str) -> bool {
        self.array(key).is_some_and(|list| list.is_empty())
    }

    fn array(&self, key: &str) -> Option<&DeArray<'a>> {
        self.subtable.get(key)?.get_ref().as_array()
    }

    fn list_items(&self, key: &str) -> Option<&'a [Spanned<DeValue<'a>>]> {
        let (option, value) = self.option_and_value(key)?;
        match value.get_ref() {
            DeValue::Array(items) => Some(items.as_ref()),
            _ => self.report_wrong_type(option, value),
        }
    }

    fn item_text(
        &self,
        key: &str,
        item: &'a Spanned<DeValue<'a>>,
    ) -> Option<LocatedValue<&'a str>> {
        match item.get_ref() {
            DeValue::String(text) => Some(LocatedValue::new(text.as_ref(), item.span().start)),
            _ => self.report_wrong_type(self.option(key)?, item),
        }
    }
}
